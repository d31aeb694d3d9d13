"""A device that stands in for a GPU where there is none.

Its tensors keep their numbers in the CPU's memory, but what a GPU refuses is refused: operations between its tensors
and the CPU's, and numpy arrays of them. They say that they are on a GPU (`is_cuda`), so that its branches are taken.
Importing this registers the device for the whole process.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import safetensors.torch
import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend("other", backend_module=_Module())
DEVICE = torch.device("other:0")

# A GPU's tensors are copied from the CPU's and indexed by them, and lengths of rows stay on the CPU.
MAY_MIX = {
    "aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
    "aten::_pack_padded_sequence", "aten::_pad_packed_sequence", "aten::lstm", "aten::gru",
}  # fmt: skip


# Where the host waits for a GPU: for a number, for how many there are, or for a copy; how often, by operation and line.
WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal"}
waits: Counter[str] = Counter()


class OtherTensor(torch.Tensor):
    """A tensor on the device; `raw` has its numbers."""

    raw: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # every operation comes to `__torch_dispatch__` anyway
    is_cuda = property(lambda self: True)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> OtherTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=DEVICE
        )
        tensor.raw = raw
        return tensor

    def __repr__(self, **_: Any) -> str:
        return f"{self.raw!r} on {DEVICE}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: OtherTensor) -> None:
        self.raw = value.raw

    def tolist(self) -> Any:
        return self.raw.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"a tensor on {DEVICE} has no numpy array; copy it to the CPU first")

    __array__ = numpy

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()


def _map(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """What `change` makes of each tensor of an operation's arguments or results; pytree takes ten times as long."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_map(item, change) for item in value])
    return value


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """One operation, on the CPU's numbers."""
    name = func._schema.name
    tensors: list[torch.Tensor] = []

    def raw(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return _raw(tensor)

    raw_args = _map(args, raw)
    raw_kwargs = {key: _map(value, raw) for key, value in kwargs.items()}
    own = [tensor for tensor in tensors if isinstance(tensor, OtherTensor)]
    foreign = [tensor for tensor in tensors if not isinstance(tensor, OtherTensor) and tensor.dim()]
    if own and foreign and name not in MAY_MIX:
        raise RuntimeError(f"{name} of tensors on two devices, {own[0].shape} on {DEVICE} and {foreign[0].shape}")
    if own:
        leaves = str(kwargs.get("device")) == "cpu" or (name == "aten::copy_" and not isinstance(args[0], OtherTensor))
        by_mask = "index" in name and any(tensor.dtype == torch.bool for tensor in tensors[1:])
        if leaves or by_mask or name in WAITS:
            _count_wait(name)
    stays = bool(own)
    if kwargs.get("device") is not None:
        stays = torch.device(kwargs["device"]).type == DEVICE.type
        raw_kwargs["device"] = torch.device("cpu")
    result = CELLS.get(name, func)(*raw_args, **raw_kwargs)
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():
            func(*args, **kwargs)
    if name == "aten::copy_":
        return args[0]
    if name == "aten::_pack_padded_sequence":
        return OtherTensor(result[0]), result[1]
    if not stays:
        return result
    known = {id(tensor.raw): tensor for tensor in own}
    return _map(result, lambda raw: known[id(raw)] if id(raw) in known else OtherTensor(raw))


def _count_wait(name: str) -> None:
    frames = [frame for frame in traceback.extract_stack() if "hf_meanmax" in frame.filename]
    waits[f"{name} at {frames[-1].filename}:{frames[-1].lineno}" if frames else name] += 1


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.raw if isinstance(tensor, OtherTensor) else tensor


def _lstm_cell(from_input: Any, from_state: Any, c: Any, input_bias: Any = None, state_bias: Any = None) -> Any:
    gates = from_input + from_state
    if input_bias is not None:
        gates = gates + input_bias + state_bias
    i, f, g, o = gates.chunk(4, dim=1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat((i, f, g, o), dim=1)


def _lstm_cell_backward(grad_h: Any, grad_c: Any, before: Any, c: Any, kept: Any, has_bias: bool) -> Any:
    i, f, g, o = kept.chunk(4, dim=1)
    grad_h = torch.zeros_like(c) if grad_h is None else grad_h
    grad_o = grad_h * c.tanh() * o * (1 - o)
    inner = grad_h * o * (1 - c.tanh() ** 2) + (0 if grad_c is None else grad_c)
    grads = torch.cat((inner * g * i * (1 - i), inner * before * f * (1 - f), inner * i * (1 - g**2), grad_o), dim=1)
    return grads, inner * f, grads.sum(dim=0) if has_bias else None


def _gru_cell(from_input: Any, from_state: Any, h: Any, input_bias: Any = None, state_bias: Any = None) -> Any:
    if input_bias is not None:
        from_input, from_state = from_input + input_bias, from_state + state_bias
    (r, z, n), (state_r, state_z, state_n) = from_input.chunk(3, dim=1), from_state.chunk(3, dim=1)
    r, z = (r + state_r).sigmoid(), (z + state_z).sigmoid()
    n = (n + r * state_n).tanh()
    return n + z * (h - n), torch.cat((r, z, n, h, state_n), dim=1)


def _gru_cell_backward(grad_h: Any, kept: Any, has_bias: bool) -> Any:
    r, z, n, h, state_n = kept.chunk(5, dim=1)
    grad_z = grad_h * (h - n) * z * (1 - z)
    grad_n = grad_h * (1 - z) * (1 - n**2)
    grad_r = grad_n * state_n * r * (1 - r)
    grads = [torch.cat((grad_r, grad_z, last), dim=1) for last in (grad_n, grad_n * r)]
    return *grads, grad_h * z, *(grad.sum(dim=0) if has_bias else None for grad in grads)


# What torch runs recurrent networks with on devices other than the CPU, and has no CPU code for.
CELLS = {
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_gru_cell_backward": _gru_cell_backward,
}


def _empty(size: Any, *, dtype: Any = None, **_: Any) -> OtherTensor:
    return OtherTensor(torch.empty(size, dtype=dtype, device="cpu"))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> OtherTensor:
    return OtherTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _raw(target).copy_(_raw(source))
    return target


_LIBRARY = torch.library.Library("aten", "IMPL")
for _name, _function in (
    ("empty.memory_format", _empty),
    ("empty_strided", _empty_strided),
    ("_copy_from", _copy_from),
):
    _LIBRARY.impl(_name, _function, "PrivateUse1")

_move = torch.nn.Module.to


def _move_and_tie(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """What was one parameter remains one, as between the CPU and a GPU."""
    first: dict[int, str] = {}
    same_as = {
        name: first.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
    _move(module, *args, **kwargs)
    for name, original in same_as.items():
        holder, _, last = name.rpartition(".")
        setattr(module.get_submodule(holder), last, module.get_parameter(original))
    return module


torch.nn.Module.to = _move_and_tie

_storage_ptr, _storage_size = safetensors.torch.storage_ptr, safetensors.torch.storage_size
safetensors.torch.storage_ptr = lambda tensor: _storage_ptr(_raw(tensor))
safetensors.torch.storage_size = lambda tensor: _storage_size(_raw(tensor))
