"""Layers that encoders and decoders share: word and position embeddings, multi-head attention, feed-forward."""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

logger = logging.get_logger(__name__)

# Tokens up to which attention written out needs little memory.
_SHORT = 256


class SequenceLayer(GradientCheckpointingLayer):
    """A layer of an encoder or a decoder: `output_hidden_states` records its output."""


def sinusoidal_positions(length: int, width: int, device: torch.device | None = None) -> torch.Tensor:
    """Codes of positions 0..length-1 (mean-max autoencoder, eq. 1-2): `(length, width)`, float32, sines and cosines
    interleaved."""
    # Apple's GPUs know no float64.
    dtype = torch.float32 if device is not None and device.type == "mps" else torch.float64
    positions = torch.arange(length, device=device, dtype=dtype)[:, None]
    exponents = torch.arange(0, width, 2, device=device, dtype=dtype) / width
    angles = positions * torch.pow(10000.0, -exponents)
    # A cosine in float64 is more than many versions of onnxruntime have.
    cosines = torch.sin(angles + torch.pi / 2)
    return torch.stack((angles.sin(), cosines), dim=-1).flatten(1).float()


class TextEmbeddings(nn.Module):
    """Word vectors plus position codes: x_t = e_t + p_t. Encoder and decoder read the same tables, unless their words
    are of two vocabularies.

    With `config.freeze_word_embeddings` the word table never gets a gradient and the special tokens read a small
    trained table of their own.
    """

    def __init__(self, config: PreTrainedConfig, vocab_size: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.word_embeddings = nn.Embedding(
            vocab_size or config.input_vocab_size, config.embedding_size, padding_idx=config.pad_token_id
        )
        self.special_embeddings = None
        if config.freeze_word_embeddings:
            self.special_embeddings = nn.Embedding(
                config.num_special_tokens, config.embedding_size, padding_idx=config.pad_token_id
            )
        self.position_embeddings = None
        if config.position_embedding_type == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self._warned_about_length = False
        self.freeze_as_configured()

    def freeze_as_configured(self) -> None:
        """Takes the word table out of training if `config.freeze_word_embeddings` says so."""
        if self.config.freeze_word_embeddings:
            self.word_embeddings.weight.requires_grad_(False)

    @torch.no_grad()
    def start_from(self, vectors: torch.Tensor) -> None:
        """Puts in a word table `(V, embedding_size)`. Special tokens that have a table of their own become as large as
        its words: one that is five times as large is all that the last state of a network tells of a text."""
        self.word_embeddings.weight.copy_(vectors)
        if self.special_embeddings is not None:
            count, specials = self.config.num_special_tokens, self.special_embeddings.weight
            drawn = [row for row in range(count) if row != self.config.pad_token_id]
            size, wanted = (
                specials[drawn].square().mean().sqrt(),
                self.word_embeddings.weight[count:].square().mean().sqrt(),
            )
            if size > 0 and wanted > 0:
                specials *= wanted / size

    @torch.no_grad()
    def start_unknown_as_mean(self) -> None:
        """Makes the unknown word, where training never meets it, the mean of all words."""
        words = self.word_embeddings.weight
        own = self.word_embeddings if self.special_embeddings is None else self.special_embeddings
        own.weight[self.config.unk_token_id] = words[self.config.num_special_tokens :].mean(dim=0)

    def embed_words(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Word vectors `(B, N, embedding_size)` of token ids `(B, N)`."""
        words = self.word_embeddings(input_ids)
        if self.special_embeddings is None:
            return words
        count = self.config.num_special_tokens
        specials = self.special_embeddings(input_ids.clamp(max=count - 1))
        return torch.where((input_ids < count).unsqueeze(-1), specials, words)

    def embed_positions(self, length: int, position_ids: torch.Tensor | None, device: torch.device) -> torch.Tensor:
        """Codes of `position_ids` `(B, N)`, or of 0..length-1 for all rows alike when it is None."""
        if self.position_embeddings is not None:
            limit = self.config.max_position_embeddings
            if position_ids is None and length <= limit:
                return self.position_embeddings.weight[:length]
            ids = position_ids if position_ids is not None else torch.arange(length, device=device)
            return self.position_embeddings(ids.clamp(max=limit - 1)) * (ids < limit).unsqueeze(-1)
        if position_ids is None:
            return sinusoidal_positions(length, self.config.embedding_size, device)
        return sinusoidal_positions(length, self.config.embedding_size, device)[position_ids]

    def _warn_about_length(self, rows: int, length: int, position_ids: torch.Tensor | None) -> None:
        limit = self.config.max_position_embeddings
        if self.position_embeddings is None or length <= limit:
            return
        if self._warned_about_length or torch.compiler.is_compiling():
            return
        if position_ids is None:
            beyond = rows * (length - limit)
        else:
            # In generation one row of positions stands for all.
            beyond = int((position_ids >= limit).sum()) * rows // len(position_ids)
        if beyond:
            self._warned_about_length = True
            logger.warning(
                f"{beyond} token(s) of this batch stand beyond the {limit} learned positions and get no position "
                "code. Train with a larger `max_position_embeddings` or with sinusoidal positions."
            )

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        length: int | None = None,
    ) -> torch.Tensor:
        """`(B, N, embedding_size)` of ids `(B, N)` or of word vectors given as `inputs_embeds`.

        `length` bounds the positions when `position_ids` are given (N otherwise).
        """
        words = inputs_embeds if input_ids is None else self.embed_words(input_ids)
        if words is None:
            raise ValueError("Give `input_ids` or `inputs_embeds`.")
        if self.config.position_embedding_type != "none":
            length = length or words.shape[1]
            self._warn_about_length(words.shape[0], length, position_ids)
            positions = self.embed_positions(length, position_ids, words.device)
            words = words + positions.to(words.dtype)
        return self.dropout(words)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention written out (eq. 5-6): returns `(B, Nq, heads, d_k)` and the weights `(B, heads, Nq, Nk)`."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = masked_softmax(scores, None).to(query.dtype)
    dropped = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(dropped, value).transpose(1, 2), weights


def _unweighted_eager_attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    return eager_attention_forward(*args, **kwargs)[0], None


def masked_softmax(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the last dimension, exactly 0 where `mask` is 0; a row without any 1 is all 0."""
    if mask is None:
        return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)
    hidden = mask == 0
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return masked_softmax(scores, None).masked_fill(hidden, 0.0)


class AdditiveAttention(nn.Module):
    """Weights softmax_j v' tanh(W q + U k_j) of a query over keys, and the mean of the keys that they give (Bahdanau et
    al. 2015)."""

    def __init__(self, query_size: int, key_size: int, inner_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_size, inner_size)
        self.key = nn.Linear(key_size, inner_size, bias=False)
        self.score = nn.Linear(inner_size, 1, bias=False)

    def forward(
        self, query: torch.Tensor, states: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries `(B, query_size)`, states `(B, L, key_size)`, `key(states)`, which is the same for all queries, and
        mask `(B, L)` -> `(B, key_size)` and weights `(B, L)`."""
        scores = self.score((self.query(query).unsqueeze(1) + keys).tanh()).squeeze(-1)
        weights = masked_softmax(scores, mask)
        return (weights.unsqueeze(1) @ states).squeeze(1), weights


class MultiHeadAttention(nn.Module):
    """Multi-head attention without an output projection (mean-max autoencoder, eq. 3-7).

    Maps queries of width `query_size` and keys of width `key_size` to `config.hidden_size`; the heads are
    concatenated and nothing follows them. With `adds_value`, where states attend to themselves, the value of each is
    added to what it attends to.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        query_size: int,
        key_size: int,
        layer_idx: int,
        is_causal: bool = False,
        adds_value: bool = False,
    ) -> None:
        super().__init__()
        self.adds_value = adds_value
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.query = nn.Linear(query_size, config.hidden_size, bias=config.attention_bias)
        self.key = nn.Linear(key_size, config.hidden_size, bias=config.attention_bias)
        self.value = nn.Linear(key_size, config.hidden_size, bias=config.attention_bias)

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        if self.config.projection_activation == "relu":
            projected = nn.functional.relu(projected)
        return projected.view(*projected.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        projected: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`(B, Nq, query_size)` -> `(B, Nq, hidden_size)` and, with eager attention, weights `(B, heads, Nq, Nk)`.

        `projected` `(B, Nq, 3 * hidden_size)` are query, key and value of the states, where they are at hand.
        """
        states = hidden_states if key_value_states is None else key_value_states
        if projected is not None:
            query, key, value = map(self._heads, projected.chunk(3, dim=-1))
        else:
            query = self._heads(self.query(hidden_states))
            key, value = self._heads(self.key(states)), self._heads(self.value(states))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        implementation = self.config._attn_implementation
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        is_short = key.shape[2] <= _SHORT
        if (
            implementation == "sdpa"
            and not self.is_causal
            and is_short
            and query.is_cpu
            and query.dtype == torch.bfloat16
        ):
            # Over sentences, torch's own kernel takes more than half as long again.
            attend = _unweighted_eager_attention
        output, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        if self.adds_value:
            output = output + value.transpose(1, 2)
        return output.flatten(-2), weights


class WordProjections:
    """Query, key and value of every word, for an attention that reads word vector + position code alone.

    W (e + p) = W e + W p, so a word's part is computed once, at the first text, in a fraction of a second. Only in
    `torch.inference_mode()` on a CPU. The vectors and maps that the table was made of are kept beside it and compared
    with those of each batch, since not every change of a weight leaves a trace.
    """

    most_bytes = 2**28

    def __init__(self) -> None:
        self.table: torch.Tensor | None = None
        self.words: Any = None
        # Weights and, where there are any, biases of the three maps, side by side.
        self.maps: list[torch.Tensor] = []

    def __deepcopy__(self, memo: Any) -> "WordProjections":
        return WordProjections()

    def __reduce__(self) -> Any:
        return WordProjections, ()

    def __call__(
        self,
        embeddings: TextEmbeddings,
        attention: MultiHeadAttention,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """`(B, N, 3 * hidden_size)` of token ids `(B, N)`, or None where they are not to be had this way. Padding gets
        what its place in the row gives it."""
        if not torch.is_inference_mode_enabled() or embeddings.training or torch.is_autocast_enabled("cpu"):
            return None
        if not input_ids.is_cpu or not input_ids.numel() or not self._is_plain(embeddings, attention):
            return None
        # Places count from each row's first token.
        if attention_mask is not None and (attention_mask[:, 1:] > attention_mask[:, :-1]).any():
            return None
        if (
            embeddings.position_embeddings is not None
            and input_ids.shape[1] > embeddings.config.max_position_embeddings
        ):
            return None
        num_words, size = embeddings.word_embeddings.num_embeddings, 3 * attention.query.out_features
        if num_words * size * embeddings.word_embeddings.weight.element_size() > self.most_bytes:
            return None
        parts = (attention.query, attention.key, attention.value)
        maps: list[Any] = [[part.weight for part in parts]]
        if attention.query.bias is not None:
            maps.append([part.bias for part in parts])
        if self.table is None or not self._is_made_of(embeddings.embed_words(input_ids), input_ids, maps):
            self.words = embeddings.embed_words(torch.arange(num_words))
            self.maps = [torch.cat(kind) for kind in maps]
            self.table = nn.functional.linear(self.words, *self.maps)
        rows = self.table.index_select(0, input_ids.flatten()).unflatten(0, input_ids.shape)
        if embeddings.config.position_embedding_type == "none":
            return rows
        codes = embeddings.embed_positions(input_ids.shape[1], None, input_ids.device).to(rows.dtype)
        # Without the biases, which each word's part has.
        return rows.add_(nn.functional.linear(codes, self.maps[0]))

    def _is_made_of(self, words: torch.Tensor, input_ids: torch.Tensor, maps: list[Any]) -> bool:
        """Whether the table holds what these vectors `(B, N, embedding_size)` of words and these maps give."""
        if self.words.dtype != words.dtype or len(self.maps) != len(maps) or int(input_ids.max()) >= len(self.words):
            return False
        kept = self.words.index_select(0, input_ids.flatten()).view_as(words)
        return _same_bits(kept, words) and all(
            all(map(_same_bits, whole.chunk(3), kind)) for whole, kind in zip(self.maps, maps, strict=True)
        )

    @staticmethod
    def _is_plain(embeddings: TextEmbeddings, attention: MultiHeadAttention) -> bool:
        """Whether nothing is there that would see or change what the modules compute: adapters, hooks, quantised or
        offloaded weights."""
        linear = (attention.query, attention.key, attention.value)
        modules = [(embeddings, TextEmbeddings), (embeddings.word_embeddings, nn.Embedding)]
        modules += [(module, nn.Linear) for module in linear]
        return all(
            type(module) is kind
            and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
            and all(type(weight) is nn.Parameter and weight.is_cpu for weight in module.parameters())
            for module, kind in modules
        )


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype == right.dtype and left.is_contiguous() and right.is_contiguous():
        left, right = left.flatten(), right.flatten()
        if left.numel() * left.element_size() % 8 == 0 and not (left.data_ptr() | right.data_ptr()) % 8:
            # A CPU compares number by number, and these are fewer.
            left, right = left.view(torch.int64), right.view(torch.int64)
    return torch.equal(left, right)


def convolve(convolution: Any, states: torch.Tensor, before: int) -> torch.Tensor:
    """A convolution over the places of `(B, N, C)` that sees `before` places before each and the rest of its width from
    there on, with zeros beyond the ends: `(B, N, C')`.

    Written as one product over windows, which reaches the rate of large matrix products on a CPU; torch's own reaches
    three quarters of it.
    """
    (width,) = convolution.kernel_size
    if width > 1:
        windows = nn.functional.pad(states, (0, 0, before, width - 1 - before)).unfold(1, width, 1)
        states = windows.flatten(2)
    return nn.functional.linear(states, convolution.weight.flatten(1), convolution.bias)


class FeedForward(nn.Module):
    """FFN(a) = max(0, a W1 + b1) W2 + b2, position by position (mean-max autoencoder, eq. 10)."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """`(B, N, hidden_size)` -> `(B, N, hidden_size)`."""
        return self.dropout(self.down(nn.functional.relu(self.up(hidden_states))))


class LatentGates(nn.Module):
    """What gates let through of the latent rows at each step: sum_i z_i * sigma(z_i W_i + f U_i + b_i) (Zhang, Wu, Li
    and Zhang, eq. 19-20)."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.row_indices = [config.pooling_rows.index(row) for row in config.gated_rows]
        size = config.hidden_size
        self.latent_projections = nn.ModuleList(nn.Linear(size, size) for _ in self.row_indices)
        self.state_projections = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in self.row_indices)

    def forward(self, hidden_states: torch.Tensor, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`(B, T, d)` and Z `(B, L, d)` -> the sum over the R gated rows `(B, T, d)` and the gates `(B, T, R, d)`."""
        read, gates = torch.zeros_like(hidden_states), []
        for i, row in enumerate(self.row_indices):
            z = latents[:, row : row + 1]
            gates.append(torch.sigmoid(self.latent_projections[i](z) + self.state_projections[i](hidden_states)))
            read = read + z * gates[-1]
        return read, torch.stack(gates, dim=2)


def run_recurrent(
    network: nn.LSTM | nn.GRU,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    state: Any = None,
) -> torch.Tensor:
    """Outputs `(B, N, d)` of an LSTM or GRU over the tokens of `inputs` `(B, N, input_size)`, padding on either side
    left out.

    `attention_mask` `(B, N)` is 0 at padding, where the output is 0; `state` is what to start from: h, or h and c,
    `(directions, B, d)`.
    """
    if attention_mask is None:
        return network(inputs, state)[0]
    mask = attention_mask.bool()
    # The tokens of a row side by side, from its first column on.
    order = (~mask).long().argsort(dim=1, stable=True)
    inputs, lengths = _reordered(inputs, order), mask.sum(dim=1)
    outputs = (_run_packed if inputs.is_cuda else _run_padded)(network, inputs, lengths, state)
    outputs = torch.zeros_like(outputs).scatter(1, order.unsqueeze(-1).expand_as(outputs), outputs)
    return outputs.masked_fill(~mask.unsqueeze(-1), 0.0)


def _run_packed(network: nn.LSTM | nn.GRU, inputs: torch.Tensor, lengths: torch.Tensor, state: Any) -> torch.Tensor:
    # A row without tokens runs over one column of padding.
    packed = nn.utils.rnn.pack_padded_sequence(inputs, lengths.clamp(min=1).cpu(), True, enforce_sorted=False)
    outputs, _ = nn.utils.rnn.pad_packed_sequence(network(packed, state)[0], True, total_length=inputs.shape[1])
    return outputs


def _run_padded(network: nn.LSTM | nn.GRU, inputs: torch.Tensor, lengths: torch.Tensor, state: Any) -> torch.Tensor:
    """Padding behind a row's end changes nothing before it, and the direction that reads from the end gets each row
    turned round. On a CPU the gradient of a packed sequence fills a matrix of zeros as large as the batch at each step.
    """
    if not network.bidirectional:
        return network(inputs, state)[0]
    places = torch.arange(inputs.shape[1], device=inputs.device)
    backward = lengths.unsqueeze(1) - 1 - places
    backward = torch.where(backward >= 0, backward, places)
    is_lstm = isinstance(network, nn.LSTM)
    run: Any = torch.lstm if is_lstm else torch.gru
    if state is None:
        zeros = inputs.new_zeros(2, len(inputs), network.hidden_size)
        state = (zeros, zeros) if is_lstm else zeros
    outputs = []
    for direction, suffix in enumerate(("", "_reverse")):
        weights = [getattr(network, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        own = slice(direction, direction + 1)
        start = tuple(part[own] for part in state) if is_lstm else state[own]
        read = _reordered(inputs, backward) if direction else inputs
        said = run(read, start, weights, True, 1, 0.0, network.training, False, True)[0]
        outputs.append(_reordered(said, backward) if direction else said)
    return torch.cat(outputs, dim=-1)


def _reordered(states: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """`(B, N, d)` with the places `(B, N)` of each row in another order."""
    return states.gather(1, order.unsqueeze(-1).expand_as(states))


def cached_state(
    past_key_values: Cache | None, layer_idx: int, start: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """The state after the last word of a cache, or `start` where there is none: h, or h and c, `(B, d)` each."""
    past = 0 if past_key_values is None else int(past_key_values.get_seq_length(layer_idx))
    if past_key_values is None or past == 0:
        return start
    layer = past_key_values.layers[layer_idx]
    return tuple(kept[:, 0, past - 1] for kept in (layer.keys, layer.values)[: len(start)])


def run_recurrent_on(
    network: nn.LSTM | nn.GRU,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    state: tuple[torch.Tensor, ...],
    past_key_values: Cache | None,
    layer_idx: int,
) -> torch.Tensor:
    """Outputs `(B, T, d)` of an LSTM or GRU of one direction that goes on where a cache ends, or starts from `state`.

    The states of all past steps are kept as the keys (h) and values (c, for a GRU h again) of an attention with one
    head, so every kind of cache, beam search and cropping works as it does there.

    Args:
        inputs: `(B, T, input_size)`.
        attention_mask: `(B, past + T)`, 0 at padding.
        state: h, or h and c, `(B, d)` before the first word.
        past_key_values: the cache, extended in place.
        layer_idx: place of the layer in it.
    """
    state = cached_state(past_key_values, layer_idx, state)
    # A GPU takes whole states of the inputs' type alone; under autocast an LSTM gives another type than it takes.
    state = tuple(part.to(inputs.dtype).contiguous() for part in state)
    if past_key_values is None:
        return run_recurrent(network, inputs, attention_mask, _packed(state))
    outputs = []
    for t in range(inputs.shape[1]):
        output, packed = network(inputs[:, t : t + 1], _packed(state))
        next_state = [part[0].to(inputs.dtype) for part in (packed if isinstance(packed, tuple) else (packed,))]
        if attention_mask is not None:
            is_word = attention_mask[:, t - inputs.shape[1]].bool().unsqueeze(-1)
            next_state = [torch.where(is_word, new, old) for new, old in zip(next_state, state, strict=True)]
        state = tuple(next_state)
        past_key_values.update(state[0][:, None, None], state[-1][:, None, None], layer_idx)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def _packed(state: tuple[torch.Tensor, ...]) -> Any:
    """h, or h and c, as a network of one direction takes them."""
    h, *c = (part[None] for part in state)
    return (h, *c) if c else h


class WordSpaceProjection(nn.Linear):
    """From the decoder's states to the space of the word vectors, where a tied output layer scores them."""
