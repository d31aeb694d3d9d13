"""Sentence and paragraph embeddings learnt from raw text, with decoders that turn them back to text."""

from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, AutoModelForSeq2SeqLM

from ._version import __version__
from .modeling.configuration_compound_attention import CompoundAttentionConfig
from .modeling.configuration_gated_mean_max_aae import GatedMeanMaxAAEConfig
from .modeling.configuration_mean_max_aae import MeanMaxAAEConfig
from .modeling.configuration_rnn_cnn import RNNCNNConfig
from .modeling.modeling_compound_attention import CompoundAttentionForTranslation, CompoundAttentionModel
from .modeling.modeling_gated_mean_max_aae import GatedMeanMaxAAEForReconstruction, GatedMeanMaxAAEModel
from .modeling.modeling_mean_max_aae import MeanMaxAAEForReconstruction, MeanMaxAAEModel
from .modeling.modeling_rnn_cnn import RNNCNNForContextPrediction, RNNCNNModel

for _config, _model, _auto_full, _full in (
    (MeanMaxAAEConfig, MeanMaxAAEModel, AutoModelForSeq2SeqLM, MeanMaxAAEForReconstruction),
    (GatedMeanMaxAAEConfig, GatedMeanMaxAAEModel, AutoModelForSeq2SeqLM, GatedMeanMaxAAEForReconstruction),
    (CompoundAttentionConfig, CompoundAttentionModel, AutoModelForSeq2SeqLM, CompoundAttentionForTranslation),
    (RNNCNNConfig, RNNCNNModel, AutoModelForPreTraining, RNNCNNForContextPrediction),
):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _model, exist_ok=True)
    _auto_full.register(_config, _full, exist_ok=True)

__all__ = [
    "CompoundAttentionConfig",
    "CompoundAttentionForTranslation",
    "CompoundAttentionModel",
    "GatedMeanMaxAAEConfig",
    "GatedMeanMaxAAEForReconstruction",
    "GatedMeanMaxAAEModel",
    "MeanMaxAAEConfig",
    "MeanMaxAAEForReconstruction",
    "MeanMaxAAEModel",
    "RNNCNNConfig",
    "RNNCNNForContextPrediction",
    "RNNCNNModel",
    "__version__",
]
