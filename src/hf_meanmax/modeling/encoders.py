"""Encoders: from token vectors (B, N, embedding_size) to hidden states (B, N, hidden_size)."""

import torch
from torch import nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from .attention import MultiHeadAttention
from .convolution import convolve
from .layers import FeedForward, SequenceLayer
from .recurrent import run_recurrent


class SelfAttentionLayer(SequenceLayer):
    """a = LN(MHA(x, x, x)); h = LN(FFN(a) + a) (mean-max autoencoder, eq. 8-11).

    The first layer changes the width, so it has no residual around its attention (with `encoder_residual`, each token's
    value is added); deeper layers have the usual residual.
    """

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        input_size = config.embedding_size if layer_idx == 0 else config.hidden_size
        self.has_residual = layer_idx > 0
        adds_value = config.encoder_residual and layer_idx == 0
        self.attention = MultiHeadAttention(config, input_size, input_size, layer_idx, adds_value=adds_value)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        projected: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(B, N, input_size)` -> `(B, N, hidden_size)`; for `projected` see
        [`~hf_meanmax.modeling.attention.MultiHeadAttention`]."""
        attended, _ = self.attention(hidden_states, attention_mask=attention_mask, projected=projected, **kwargs)
        if self.has_residual:
            attended = attended + hidden_states
        attended = self.attention_norm(attended)
        return self.output_norm(self.feed_forward(attended) + attended)


class RecurrentLayer(SequenceLayer):
    """An LSTM or GRU, or one in each direction with concatenated states, over sequences padded on either side."""

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        input_size = config.embedding_size if layer_idx == 0 else config.hidden_size
        directions = 2 if config.encoder_type.startswith("bi") else 1
        network = nn.GRU if config.encoder_type.endswith("gru") else nn.LSTM
        self.network = network(
            input_size, config.hidden_size // directions, batch_first=True, bidirectional=directions == 2
        )
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(B, N, input_size)` and mask `(B, N)` -> `(B, N, hidden_size)`."""
        return self.dropout(run_recurrent(self.network, hidden_states, attention_mask))


class ConvolutionalLayer(SequenceLayer):
    """Filters of 3, 4 and 5 words with tanh, equally many of each; with max pooling this is the encoder of a CNN-LSTM
    autoencoder (Gan et al. 2017)."""

    widths = (3, 4, 5)

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        input_size = config.embedding_size if layer_idx == 0 else config.hidden_size
        share, left = divmod(config.hidden_size, len(self.widths))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(input_size, share + (i < left), width) for i, width in enumerate(self.widths)
        )
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(B, N, input_size)` and mask `(B, N)` -> `(B, N, hidden_size)`."""
        if attention_mask is not None:
            # Padding then equals the zeros that a convolution sees beyond the ends of a row.
            hidden_states = hidden_states.masked_fill(attention_mask.unsqueeze(-1) == 0, 0.0)
        # Filters are centred on their word (those of four words on the second).
        outputs = [
            convolve(convolution, hidden_states, (width - 1) // 2)
            for convolution, width in zip(self.convolutions, self.widths, strict=True)
        ]
        return self.dropout(torch.cat(outputs, dim=-1).tanh())


class WideningLayer(SequenceLayer):
    """One of the four layers of RNN-CNN's convolutional encoder: filters of three words and ReLU."""

    width = 3

    def __init__(self, config: PreTrainedConfig, layer_idx: int) -> None:
        super().__init__()
        share = config.hidden_size // config.num_hidden_layers
        self.convolution = nn.Conv1d(config.embedding_size if layer_idx == 0 else share, share, self.width)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """`(B, N, input_size)` and mask `(B, N)` -> `(B, N, hidden_size / num_hidden_layers)`."""
        if attention_mask is not None:
            hidden_states = hidden_states.masked_fill(attention_mask.unsqueeze(-1) == 0, 0.0)
        return self.dropout(convolve(self.convolution, hidden_states, before=1).relu())


class LayeredEncoder(nn.Module):
    """A stack of layers, each on the output of the one before."""

    layer_classes = {
        "self_attention": SelfAttentionLayer,
        "bilstm": RecurrentLayer,
        "lstm": RecurrentLayer,
        "bigru": RecurrentLayer,
        "gru": RecurrentLayer,
        "cnn": ConvolutionalLayer,
        "hierarchical_cnn": WideningLayer,
    }

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.config = config
        layer_class = self.layer_classes[config.encoder_type]
        self.layers = nn.ModuleList(layer_class(config, i) for i in range(config.num_hidden_layers))

    def forward(
        self,
        inputs: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        projected: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Token vectors `(B, N, embedding_size)` and mask `(B, N)` -> `(B, N, hidden_size)`; the first layer reads its
        projections `projected` `(B, N, 3 * hidden_size)` instead, if given.

        The outputs of the layers of a `hierarchical_cnn` (the CNN encoder that RNN-CNN is compared with, after Conneau
        et al. 2017) are concatenated, so that max pooling keeps the maximum of each.
        """
        if self.config.encoder_type == "self_attention" and attention_mask is not None:
            attention_mask = create_bidirectional_mask(self.config, inputs, attention_mask)
        keeps_all = self.config.encoder_type == "hierarchical_cnn"
        outputs = []
        for layer in self.layers:
            inputs = layer(inputs, attention_mask=attention_mask, projected=projected, **kwargs)
            projected = None
            if keeps_all:
                outputs.append(inputs)
        return torch.cat(outputs, dim=-1) if keeps_all else inputs


class NoEncoder(SequenceLayer):
    """Leaves the word vectors as they are: a static model."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()

    def forward(
        self,
        inputs: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        projected: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """The inputs `(B, N, embedding_size)`."""
        return inputs


ENCODERS: dict[str, type[nn.Module]] = {
    **dict.fromkeys(LayeredEncoder.layer_classes, LayeredEncoder),
    "none": NoEncoder,
}
