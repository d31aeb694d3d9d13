"""Configuration of the mean-max attention autoencoder."""

from typing import ClassVar, Literal

from huggingface_hub.dataclasses import strict

from .configuration_base import LatentConfig


@strict
class MeanMaxAAEConfig(LatentConfig):
    r"""The mean-max attention autoencoder (Zhang, Wu, Li and Li, EMNLP 2018); defaults are the paper's.

    The authors' released code differs from the paper's equations; its form is
    `MeanMaxAAEConfig(attention_bias=True, projection_activation="relu", position_embedding_type="learned",
    max_position_embeddings=34, label_smoothing=0.1, layer_norm_eps=1e-8, mean_first=True,
    freeze_word_embeddings=True)`, exported with L2-normalised rows.

    Args:
        intermediate_size (`int`, defaults to 4096):
            Inner width of the feed-forward layers.
        num_attention_heads (`int`, defaults to 8):
            Heads of every attention; must divide `hidden_size`.
        attention_bias (`bool`, defaults to `False`):
            Whether the query, key and value projections have biases (the released code: yes).
        projection_activation (`"relu"` or `None`, *optional*):
            Activation on the query, key and value projections (the released code: ReLU).
        attention_dropout (`float`, defaults to 0.5):
            Dropout on the attention weights.
        encoder_type (`"self_attention"`):
            How the tokens become hidden states.
        decoder_type (`"attention"`):
            How the decoder reads the latent rows.

    The fields that all families share are described at [`LatentConfig`].
    """

    model_type = "mean_max_aae"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_mean_max_aae.MeanMaxAAEConfig",
        "AutoModel": "modeling_mean_max_aae.MeanMaxAAEModel",
        "AutoModelForSeq2SeqLM": "modeling_mean_max_aae.MeanMaxAAEForReconstruction",
    }

    intermediate_size: int = 4096
    num_attention_heads: int = 8
    attention_bias: bool = False
    projection_activation: Literal["relu"] | None = None
    attention_dropout: float | int = 0.5
    encoder_type: Literal["self_attention"] = "self_attention"
    decoder_type: Literal["attention"] = "attention"

    def validate_heads(self) -> None:
        """The heads share the hidden size equally."""
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`num_attention_heads` is {self.num_attention_heads} and `hidden_size` {self.hidden_size}: the heads "
                "must divide the hidden size."
            )
        if self.intermediate_size < 1:
            raise ValueError(f"`intermediate_size` is {self.intermediate_size}; it must be 1 or more.")


__all__ = ["MeanMaxAAEConfig"]
