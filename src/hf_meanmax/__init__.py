"""Sentence and paragraph embeddings learnt from raw text, with decoders that turn them back to text."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from ._version import __version__
from .modeling.configuration_gated_mean_max_aae import GatedMeanMaxAAEConfig
from .modeling.configuration_mean_max_aae import MeanMaxAAEConfig
from .modeling.modeling_gated_mean_max_aae import GatedMeanMaxAAEForReconstruction, GatedMeanMaxAAEModel
from .modeling.modeling_mean_max_aae import MeanMaxAAEForReconstruction, MeanMaxAAEModel

for _config, _model, _full in (
    (MeanMaxAAEConfig, MeanMaxAAEModel, MeanMaxAAEForReconstruction),
    (GatedMeanMaxAAEConfig, GatedMeanMaxAAEModel, GatedMeanMaxAAEForReconstruction),
):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _model, exist_ok=True)
    AutoModelForSeq2SeqLM.register(_config, _full, exist_ok=True)

__all__ = [
    "GatedMeanMaxAAEConfig",
    "GatedMeanMaxAAEForReconstruction",
    "GatedMeanMaxAAEModel",
    "MeanMaxAAEConfig",
    "MeanMaxAAEForReconstruction",
    "MeanMaxAAEModel",
    "__version__",
]
