"""Configuration of RNN-CNN."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_base import DecoderType, EncoderType, LatentConfig, Pooling, PositionType


@strict
class RNNCNNConfig(LatentConfig):
    r"""RNN-CNN, which learns by predicting the words that follow a sentence ("Exploring Asymmetric Encoder-Decoder
    Structure for Context-based Sentence Representation Learning"); defaults are its small model's, 300 units per
    direction and 1,200-dimensional vectors. The large one has `hidden_size=2400`.

    The paper's comparisons are configurations too: `pooling="max"`; `decoder_type="words_rnn"`; the autoregressive
    decoders `"gru"` and `"causal_cnn"`; `encoder_type="bilstm"` and the convolutional encoder
    (`encoder_type="hierarchical_cnn", num_hidden_layers=4, hidden_size=1200, pooling="max"`); `num_context_words=10`
    or 50; `decoder_channels=[600, 1200, 2400, 300]` or `[1200, 2400, 300]`. Skip-thought itself (Kiros et al. 2015) is
    `encoder_type="gru", pooling="last", decoder_type="gru", predict_previous=True, tie_word_embeddings=False`.

    `decoder_channels` defaults to 600, 1200 and the embedding size. The fields are described at [`LatentConfig`][].
    """

    model_type = "rnn_cnn"
    auto_classes: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_rnn_cnn.RNNCNNConfig",
        "AutoModel": "modeling_rnn_cnn.RNNCNNModel",
        "AutoModelForPreTraining": "modeling_rnn_cnn.RNNCNNForContextPrediction",
        "AutoModelForSequenceClassification": "modeling_rnn_cnn.RNNCNNForSequenceClassification",
    }

    full_auto_class: ClassVar[str] = "AutoModelForPreTraining"

    vocab_size: int = 20000
    embedding_size: int = 300
    hidden_size: int = 600
    # For a self-attention encoder, which the paper does not have.
    intermediate_size: int = 4096
    num_attention_heads: int = 8
    encoder_type: EncoderType = "bigru"
    pooling: Pooling = "mean_max"
    mean_first: bool = True
    decoder_type: DecoderType = "words_cnn"
    num_context_words: int = 30
    position_embedding_type: PositionType = "none"
    initializer_range: float | int = 0.7
    tie_word_embeddings: bool = True
    output_bias: bool = False

    def __post_init__(self, **kwargs: object) -> None:
        if self.decoder_channels is None:
            self.decoder_channels = [600, 1200, self.embedding_size]
        super().__post_init__(**kwargs)


__all__ = ["RNNCNNConfig"]
