"""The list of families. A new one is a configuration file, a modeling file and one line here."""

from __future__ import annotations

from dataclasses import dataclass

import transformers
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from .modeling.base import LatentPreTrainedModel
from .modeling.classifier_model import LatentForSequenceClassification
from .modeling.conditional_decoding import LatentForConditionalDecoding
from .modeling.configuration_base import LatentConfig
from .modeling.configuration_compound_attention import CompoundAttentionConfig
from .modeling.configuration_embedding_decoder import EmbeddingDecoderConfig
from .modeling.configuration_gated_mean_max_aae import GatedMeanMaxAAEConfig
from .modeling.configuration_mean_max_aae import MeanMaxAAEConfig
from .modeling.configuration_rnn_cnn import RNNCNNConfig
from .modeling.configuration_structured_self_attention import StructuredSelfAttentionConfig
from .modeling.encoder_model import LatentEncoderModel
from .modeling.modeling_compound_attention import (
    CompoundAttentionForSequenceClassification,
    CompoundAttentionForTranslation,
    CompoundAttentionModel,
)
from .modeling.modeling_embedding_decoder import EmbeddingDecoderForGeneration
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
from .tokenization.latent_tokenizer import LatentTokenizer


@dataclass(frozen=True)
class Family:
    """A family's configuration and its models.

    Args:
        config: the configuration.
        full: the model with the decoder.
        encoder: the text encoder; None if the family decodes the vectors of another embedder.
        classifier: the text encoder with a classifier, where there is one.
    """

    config: type[LatentConfig]
    full: type[LatentForConditionalDecoding]
    encoder: type[LatentEncoderModel] | None = None
    classifier: type[LatentForSequenceClassification] | None = None

    def model_class(self, name: str) -> type[LatentPreTrainedModel]:
        """The model class of this name; the one with the decoder if the family has no class of this name."""
        return {cls.__name__: cls for cls in (self.encoder, self.classifier) if cls is not None}.get(name, self.full)


FAMILIES: dict[str, Family] = {}


def register(family: Family) -> None:
    """Registers a family, by its `model_type`, with the Auto classes of transformers and with this package."""
    FAMILIES[family.config.model_type] = family
    AutoConfig.register(family.config.model_type, family.config, exist_ok=True)
    AutoTokenizer.register(family.config, tokenizer_class=LatentTokenizer, exist_ok=True)
    getattr(transformers, family.config.full_auto_class).register(family.config, family.full, exist_ok=True)
    for auto_class, model in (
        (AutoModel, family.encoder),
        (AutoModelForSequenceClassification, family.classifier),
    ):
        if model is not None:
            auto_class.register(family.config, model, exist_ok=True)


for _family in (
    Family(MeanMaxAAEConfig, MeanMaxAAEForReconstruction, MeanMaxAAEModel, MeanMaxAAEForSequenceClassification),
    Family(
        GatedMeanMaxAAEConfig,
        GatedMeanMaxAAEForReconstruction,
        GatedMeanMaxAAEModel,
        GatedMeanMaxAAEForSequenceClassification,
    ),
    Family(RNNCNNConfig, RNNCNNForContextPrediction, RNNCNNModel, RNNCNNForSequenceClassification),
    Family(
        CompoundAttentionConfig,
        CompoundAttentionForTranslation,
        CompoundAttentionModel,
        CompoundAttentionForSequenceClassification,
    ),
    Family(
        StructuredSelfAttentionConfig,
        StructuredSelfAttentionForReconstruction,
        StructuredSelfAttentionModel,
        StructuredSelfAttentionForSequenceClassification,
    ),
    Family(EmbeddingDecoderConfig, EmbeddingDecoderForGeneration),
):
    register(_family)
