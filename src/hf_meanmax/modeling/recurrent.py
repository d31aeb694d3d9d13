"""LSTMs and GRUs over padded sequences, from the start or continued from a cache."""

from collections.abc import Callable

import torch
from torch import nn
from transformers.cache_utils import Cache

from .layers import is_plain, tokens_first

# Initial state of a network: h, or h and c.
State = torch.Tensor | tuple[torch.Tensor, ...] | None


def run_recurrent(
    network: nn.LSTM | nn.GRU,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    state: State = None,
) -> torch.Tensor:
    """Outputs `(B, N, d)` of an LSTM or GRU over the tokens of `inputs` `(B, N, input_size)`, without padding on
    either side.

    `attention_mask` `(B, N)` is 0 at padding, where the output is 0; `state` is the initial h, or h and c,
    `(directions, B, d)`.
    """
    if _lacks_autocast(inputs):
        with torch.autocast("cpu", enabled=False):
            state = tuple(part.float() for part in state) if isinstance(state, tuple) else state
            state = state.float() if isinstance(state, torch.Tensor) else state
            return run_recurrent(network, inputs.float(), attention_mask, state)
    if attention_mask is None:
        return network(inputs, state)[0]
    mask = attention_mask.bool()
    # Move the tokens of each row to its start.
    order = tokens_first(mask)
    inputs, lengths = _reordered(inputs, order), mask.sum(dim=1)
    by_weights = not inputs.is_cuda and is_plain(network, nn.LSTM, nn.GRU)
    outputs = (_run_padded if by_weights else _run_packed)(network, inputs, lengths, state)
    outputs = torch.zeros_like(outputs).scatter(1, order.unsqueeze(-1).expand_as(outputs), outputs)
    return outputs.masked_fill(~mask.unsqueeze(-1), 0.0)


def _lacks_autocast(inputs: torch.Tensor) -> bool:
    """Whether autocast is on with a precision in which this CPU cannot run recurrent networks."""
    if not inputs.is_cpu or not torch.is_autocast_enabled("cpu"):
        return False
    if torch.get_autocast_dtype("cpu") == torch.float16:
        return not torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _run_packed(network: nn.LSTM | nn.GRU, inputs: torch.Tensor, lengths: torch.Tensor, state: State) -> torch.Tensor:
    # A row without tokens runs over one column of padding.
    packed = nn.utils.rnn.pack_padded_sequence(inputs, lengths.clamp(min=1).cpu(), True, enforce_sorted=False)
    outputs, _ = nn.utils.rnn.pad_packed_sequence(network(packed, state)[0], True, total_length=inputs.shape[1])
    return outputs


def _run_padded(network: nn.LSTM | nn.GRU, inputs: torch.Tensor, lengths: torch.Tensor, state: State) -> torch.Tensor:
    """Runs over padding on the right, which does not affect the tokens before it; the backward direction gets each row
    reversed. On a CPU the gradient of a packed sequence fills a matrix of zeros as large as the batch at each step.
    """
    if not network.bidirectional:
        return network(inputs, state)[0]
    places = torch.arange(inputs.shape[1], device=inputs.device)
    backward = lengths.unsqueeze(1) - 1 - places
    backward = torch.where(backward >= 0, backward, places)
    is_lstm = isinstance(network, nn.LSTM)
    run: Callable[..., tuple[torch.Tensor, ...]] = torch.lstm if is_lstm else torch.gru
    if state is None:
        zeros = inputs.new_zeros(2, inputs.shape[0], network.hidden_size)
        state = (zeros, zeros) if is_lstm else zeros
    outputs = []
    for direction, suffix in enumerate(("", "_reverse")):
        weights = [getattr(network, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        own = slice(direction, direction + 1)
        start = tuple(part[own] for part in state) if is_lstm else state[own]
        read = _reordered(inputs, backward) if direction else inputs
        states = run(read, start, weights, True, 1, 0.0, network.training, False, True)[0]
        outputs.append(_reordered(states, backward) if direction else states)
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
    # Cloned, since a compiled step reads a view only after it has written to the cache.
    return tuple(kept[:, 0, past - 1].clone() for kept in (layer.keys, layer.values)[: len(start)])


def run_recurrent_on(
    network: nn.LSTM | nn.GRU,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    state: tuple[torch.Tensor, ...],
    past_key_values: Cache | None,
    layer_idx: int,
) -> torch.Tensor:
    """Outputs `(B, T, d)` of an LSTM or GRU of one direction that resumes where a cache ends, or starts from `state`.

    The states of all past steps are kept as the keys (h) and values (c, for a GRU h again) of an attention with one
    head, so dynamic and static caches, beam search and cropping work as they do there.

    Args:
        inputs: `(B, T, input_size)`.
        attention_mask: `(B, past + T)`, 0 at padding.
        state: h, or h and c, `(B, d)` before the first word.
        past_key_values: the cache, extended in place.
        layer_idx: index of the layer in the cache.
    """
    if _lacks_autocast(inputs):
        with torch.autocast("cpu", enabled=False):
            return run_recurrent_on(network, inputs.float(), attention_mask, state, past_key_values, layer_idx)
    state = cached_state(past_key_values, layer_idx, state)
    # A GPU needs contiguous states of the inputs' dtype; under autocast an LSTM returns another dtype than it takes.
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


def _packed(state: tuple[torch.Tensor, ...]) -> State:
    """h, or h and c, as a network of one direction takes them."""
    h, *c = (part[None] for part in state)
    return (h, *c) if c else h
