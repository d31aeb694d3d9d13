"""Sentence and paragraph embeddings learnt from raw text, with decoders that turn them back to text."""

from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from ._version import __version__
from .modeling.configuration_compound_attention import CompoundAttentionConfig
from .modeling.configuration_gated_mean_max_aae import GatedMeanMaxAAEConfig
from .modeling.configuration_mean_max_aae import MeanMaxAAEConfig
from .modeling.configuration_rnn_cnn import RNNCNNConfig
from .modeling.configuration_structured_self_attention import StructuredSelfAttentionConfig
from .modeling.modeling_compound_attention import (
    CompoundAttentionForSequenceClassification,
    CompoundAttentionForTranslation,
    CompoundAttentionModel,
)
from .modeling.modeling_gated_mean_max_aae import (
    GatedMeanMaxAAEForReconstruction,
    GatedMeanMaxAAEForSequenceClassification,
    GatedMeanMaxAAEModel,
)
from .modeling.modeling_mean_max_aae import (
    MeanMaxAAEForReconstruction,
    MeanMaxAAEForSequenceClassification,
    MeanMaxAAEModel,
)
from .modeling.modeling_rnn_cnn import RNNCNNForContextPrediction, RNNCNNForSequenceClassification, RNNCNNModel
from .modeling.modeling_structured_self_attention import (
    StructuredSelfAttentionForReconstruction,
    StructuredSelfAttentionForSequenceClassification,
    StructuredSelfAttentionModel,
)

_FAMILIES: tuple[tuple[Any, ...], ...] = (
    (
        MeanMaxAAEConfig,
        MeanMaxAAEModel,
        AutoModelForSeq2SeqLM,
        MeanMaxAAEForReconstruction,
        MeanMaxAAEForSequenceClassification,
    ),
    (
        GatedMeanMaxAAEConfig,
        GatedMeanMaxAAEModel,
        AutoModelForSeq2SeqLM,
        GatedMeanMaxAAEForReconstruction,
        GatedMeanMaxAAEForSequenceClassification,
    ),
    (
        CompoundAttentionConfig,
        CompoundAttentionModel,
        AutoModelForSeq2SeqLM,
        CompoundAttentionForTranslation,
        CompoundAttentionForSequenceClassification,
    ),
    (
        RNNCNNConfig,
        RNNCNNModel,
        AutoModelForPreTraining,
        RNNCNNForContextPrediction,
        RNNCNNForSequenceClassification,
    ),
    (
        StructuredSelfAttentionConfig,
        StructuredSelfAttentionModel,
        AutoModelForSeq2SeqLM,
        StructuredSelfAttentionForReconstruction,
        StructuredSelfAttentionForSequenceClassification,
    ),
)
for _config, _model, _auto_full, _full, _classifier in _FAMILIES:
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _model, exist_ok=True)
    _auto_full.register(_config, _full, exist_ok=True)
    AutoModelForSequenceClassification.register(_config, _classifier, exist_ok=True)

__all__ = [
    "CompoundAttentionConfig",
    "CompoundAttentionForSequenceClassification",
    "CompoundAttentionForTranslation",
    "CompoundAttentionModel",
    "GatedMeanMaxAAEConfig",
    "GatedMeanMaxAAEForReconstruction",
    "GatedMeanMaxAAEForSequenceClassification",
    "GatedMeanMaxAAEModel",
    "MeanMaxAAEConfig",
    "MeanMaxAAEForReconstruction",
    "MeanMaxAAEForSequenceClassification",
    "MeanMaxAAEModel",
    "RNNCNNConfig",
    "RNNCNNForContextPrediction",
    "RNNCNNForSequenceClassification",
    "RNNCNNModel",
    "StructuredSelfAttentionConfig",
    "StructuredSelfAttentionForReconstruction",
    "StructuredSelfAttentionForSequenceClassification",
    "StructuredSelfAttentionModel",
    "__version__",
]
