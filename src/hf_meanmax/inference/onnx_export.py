"""Exports a checkpoint's encoder to ONNX, also with int8 weights, and checks it against torch.

Writes a folder with the models, the tokenizer, and `encoder.py`, which encodes with onnxruntime and tokenizers alone.
It also loads as a SentenceTransformer.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hf_meanmax.checkpoint.folder import ONNX_FOLDER, check_checkpoint, require_embedding
from hf_meanmax.checkpoint.location import checkpoint_folder
from hf_meanmax.checkpoint.sentence_transformer import saved_length_limit, saved_normalization
from hf_meanmax.cosines import paired_cosines
from hf_meanmax.extras import require
from hf_meanmax.files import Json, read_json, replacing_folder, write_json
from hf_meanmax.inference import onnx_encoder
from hf_meanmax.modeling.encoders import RecurrentLayer

from .encoder import ONNX_TRANSFORMER
from .fingerprints import weights_fingerprint
from .onnx_encoder import INT8_MODEL, MODEL, SETTINGS, TOKENIZER, OnnxEncoder

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

# A value of the graph that onnxscript builds; the types that its operators declare are for eager values only.
Symbol = Any

REPORT, CODE = "report.json", "encoder.py"
# Files that a SentenceTransformer needs beside the model: copied from the checkpoint, and the list of modules.
_COPIED = (TOKENIZER, "tokenizer_config.json", "config_sentence_transformers.json")
_MODULES = "modules.json"
_OWNED = (MODEL, f"{MODEL}.data", INT8_MODEL, f"{INT8_MODEL}.data", SETTINGS, REPORT, CODE, _MODULES, *_COPIED)
_OPSET = 20
# Bounds relative to the largest number; float32 stays near a thousandth of its bound, int8 below its own.
_LARGEST_DIFFERENCES = {MODEL: 1e-3, INT8_MODEL: 1.0}
_LEAST_COSINE = 0.9
_EXAMPLE = ("the old man sat by the fire .", "a dog", "")
TEXTS = (
    *_EXAMPLE,
    "nobody had shown her what the letter said , and she did not ask .",
    "unheardof wordz !",
    "two men in blue shirts are standing on a ladder and cleaning the windows of a tall house .",
)


def _check_modules(path: Path) -> None:
    modules = read_json(path / "modules.json", list)
    others = [module["type"] for module in modules[1:] if not module["type"].endswith(".Normalize")]
    if others:
        raise ValueError(
            f"{path} has {', '.join(others)} after its encoder; only the encoder and Normalize are exported."
        )


def _settings_of(path: Path, encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Json:
    """The settings in the export's `encoder.json`."""
    around_file = path / "config_sentence_transformers.json"
    config, around = encoder.config, read_json(around_file) if around_file.is_file() else {}
    return {
        "dimension": around.get("truncate_dim") or config.sentence_embedding_size,
        "prompt": around.get("prompts", {}).get(around.get("default_prompt_name")) or "",
        "pad_token_id": config.pad_token_id,
        "max_tokens": saved_length_limit(path),
        "split_special_tokens": bool(getattr(tokenizer, "split_special_tokens", False)),
        "weights": weights_fingerprint(encoder),
    }


def _check_folder(folder: Path) -> Path:
    """Returns the folder; checks that an export would replace only files of an older export in it."""
    taken = [name for name in _OWNED if (folder / name).exists()]
    if taken and SETTINGS not in taken:
        raise FileExistsError(
            f"{folder} is no export, but has files that one would replace ({', '.join(taken)}); name another folder."
        )
    return folder


def export_onnx(
    checkpoint: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    int8: bool = True,
    texts: Sequence[str] = TEXTS,
) -> Json:
    """Writes a checkpoint's encoder as ONNX: token ids and mask -> the vectors of `SentenceTransformer.encode`.

    Batch size and length are dynamic; padding is on the right.

    Args:
        checkpoint: a checkpoint folder, or a repository on the Hub; it may be an encoder alone, as
            `SentenceTransformer.save` writes it after its own training.
        output: a folder (default: `onnx` in the checkpoint folder). An older export in it is replaced, other files are
            kept.
        int8: also write a model with dynamically quantised products (one scale per column) and an int8 word table.
        texts: texts on which the exported models are compared with torch.

    Returns:
        For each model file: `bytes`, and against torch `largest_difference` and `least_cosine`; also in report.json.

    Raises:
        FileExistsError: the folder is no export and has files of the same names.
        FileNotFoundError, ValueError: no whole checkpoint, or one without a fixed representation, or with modules of
            sentence-transformers after the encoder that are not exported; no `output` for a repository; or vectors of
            the export differ from torch's. An older export is then untouched.
        ImportError: onnx, onnxruntime or onnxscript is not installed.
    """
    from transformers import AutoModel, AutoTokenizer

    for package in ("onnx", "onnxscript", "onnxruntime.quantization"):
        require(package, "onnx", "Exporting to ONNX")
    folder = _check_folder(onnx_folder(checkpoint, output))
    path = checkpoint_folder(checkpoint)
    require_embedding(check_checkpoint(path, encoder_alone=True), str(checkpoint))
    _check_modules(path)
    # Exported, torch's SDPA has extra operators for fully masked rows, which make it slower.
    encoder = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    settings = _settings_of(path, encoder, tokenizer)
    module = _Exported(encoder.float(), saved_normalization(path))
    expected = _encode(module, tokenizer, [settings["prompt"] + text for text in texts], settings["max_tokens"])
    expected = expected[:, : settings["dimension"]]
    report: Json = {}
    with replacing_folder(folder, _OWNED) as partial:
        _write_model(_exportable(module), tokenizer(list(_EXAMPLE), padding=True, return_tensors="pt"), partial / MODEL)
        if int8:
            _write_int8(partial / MODEL, partial / INT8_MODEL)
        for name in filter(lambda name: (path / name).is_file(), _COPIED):
            shutil.copyfile(path / name, partial / name)
        write_json(partial / _MODULES, [{"idx": 0, "name": "0", "path": "", "type": ONNX_TRANSFORMER}])
        write_json(partial / SETTINGS, settings)
        shutil.copyfile(onnx_encoder.__file__, partial / CODE)
        for name in (MODEL, INT8_MODEL) if int8 else (MODEL,):
            vectors = OnnxEncoder(partial, int8=name == INT8_MODEL).encode(list(texts))
            size = sum(file.stat().st_size for file in partial.glob(f"{name}*"))
            report[name] = {"bytes": size, **_compared(vectors, expected, name)}
        write_json(partial / REPORT, report)
    return report


def _compared(vectors: np.ndarray, expected: np.ndarray, name: str) -> dict[str, float]:
    """The differences of an exported model's vectors from torch's; raises ValueError if they are too large."""
    difference = float(np.abs(vectors - expected).max())
    # A text without a word has no direction in a static model.
    cosine = float(paired_cosines(vectors, expected).min(where=expected.any(axis=1), initial=1.0))
    remedy = " Export without int8 (`--no_int8`)." if name == INT8_MODEL else ""
    # `not <=`, so that NaN fails too.
    if not difference <= _LARGEST_DIFFERENCES[name] * max(1.0, float(np.abs(expected).max())):
        raise ValueError(f"{name} is not what torch computes: the largest difference is {difference:.2g}.{remedy}")
    if not cosine >= _LEAST_COSINE:
        raise ValueError(f"{name} is not what torch computes: the least cosine is {cosine:.2g}.{remedy}")
    return {"largest_difference": difference, "least_cosine": cosine}


def onnx_folder(checkpoint: str | os.PathLike[str], output: str | os.PathLike[str] | None) -> Path:
    """The folder of an export: `output`, or `onnx` in a local checkpoint folder.

    Raises:
        ValueError: there is neither.
    """
    if output is None and not Path(checkpoint).is_dir():
        raise ValueError(f"{str(checkpoint)!r} is no folder here to export into. Give `--output FOLDER`.")
    return Path(checkpoint) / ONNX_FOLDER if output is None else Path(output)


@torch.no_grad()
def _encode(
    module: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_tokens: int | None
) -> np.ndarray:
    """The vectors that torch computes, one text at a time."""
    limit = {} if max_tokens is None else {"truncation": True, "max_length": max_tokens}
    batches = (tokenizer([text], return_tensors="pt", **limit) for text in texts)
    return np.concatenate([module(batch["input_ids"], batch["attention_mask"]).numpy() for batch in batches])


class _Exported(nn.Module):
    """Ids and mask `(B, N)` -> the sentence embedding, normalised as the checkpoint's SentenceTransformer does."""

    def __init__(self, encoder: PreTrainedModel, normalize: str | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.normalize = normalize

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        if self.normalize == "rows":
            rows: torch.Tensor = self.encoder.normalized_rows(input_ids, attention_mask)
            return rows
        embedding = self.encoder(input_ids=input_ids, attention_mask=attention_mask).pooler_output
        return nn.functional.normalize(embedding, dim=-1) if self.normalize == "embedding" else embedding


@torch.library.custom_op("hf_meanmax::recurrent", mutates_args=())
def _recurrent(
    inputs: torch.Tensor, lengths: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor, hidden_size: int,
    is_lstm: bool,
) -> torch.Tensor:  # fmt: skip
    raise NotImplementedError("This stands for an operator of ONNX, and is only exported.")


@_recurrent.register_fake
def _(
    inputs: torch.Tensor, lengths: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor, hidden_size: int,
    is_lstm: bool,
) -> torch.Tensor:  # fmt: skip
    return inputs.new_empty(inputs.shape[0], inputs.shape[1], w.shape[0] * hidden_size)


def _translate_recurrent(
    inputs: Symbol, lengths: Symbol, w: Symbol, r: Symbol, b: Symbol, hidden_size: int, is_lstm: bool
) -> Symbol:
    """ONNX's LSTM or GRU, which stops each row at its length and reads it backwards from there."""
    from onnxscript import opset20

    op: Symbol = opset20
    directions = "bidirectional" if w.shape[0] == 2 else "forward"
    options = {"hidden_size": hidden_size, "direction": directions}
    steps_first = op.Transpose(inputs, perm=[1, 0, 2])
    count = op.Cast(lengths, to=6)  # int32
    if is_lstm:
        states, _, _ = op.LSTM(steps_first, w, r, b, count, **options)
    else:
        states, _ = op.GRU(steps_first, w, r, b, count, linear_before_reset=1, **options)
    # (N, directions, B, hidden) -> (B, N, directions * hidden)
    return op.Reshape(op.Transpose(states, perm=[2, 0, 1, 3]), op.Constant(value_ints=[0, 0, -1]))


class _OnnxLayer(nn.Module):
    """A recurrent layer as one operator of ONNX, for texts padded on the right."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__()
        network = layer.network
        self.hidden_size, self.is_lstm = network.hidden_size, isinstance(network, nn.LSTM)
        suffixes = ("_l0", "_l0_reverse") if network.bidirectional else ("_l0",)
        # torch has the gates as i f g o and r z n, ONNX as i o f g and z r n.
        order = (0, 3, 1, 2) if self.is_lstm else (1, 0, 2)

        def reordered(name: str) -> torch.Tensor:
            gates = getattr(network, name).detach().chunk(len(order))
            return torch.cat([gates[gate] for gate in order])

        self.w = nn.Parameter(torch.stack([reordered(f"weight_ih{suffix}") for suffix in suffixes]))
        self.r = nn.Parameter(torch.stack([reordered(f"weight_hh{suffix}") for suffix in suffixes]))
        self.b = nn.Parameter(
            torch.stack(
                [torch.cat([reordered(f"bias_{kind}{suffix}") for kind in ("ih", "hh")]) for suffix in suffixes]
            )
        )

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **kwargs: object) -> torch.Tensor:
        lengths = attention_mask.sum(dim=1)
        states: torch.Tensor = _recurrent(
            hidden_states, lengths, self.w, self.r, self.b, self.hidden_size, self.is_lstm
        )
        return states


def _exportable(module: _Exported) -> _Exported:
    """A copy with recurrent layers replaced by ONNX operators; exported torch layers have a fixed length."""
    module = copy.deepcopy(module)
    # A static model has no layers.
    layers: Any = getattr(module.encoder.sequence_encoder, "layers", ())
    for index, layer in enumerate(layers):
        if isinstance(layer, RecurrentLayer):
            layers[index] = _OnnxLayer(layer)
    return module.eval()


def _write_model(module: nn.Module, batch: BatchEncoding, path: Path) -> None:
    dims = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
    with _silence():
        program = torch.onnx.export(
            module, (batch["input_ids"], batch["attention_mask"]), dynamo=True, dynamic_shapes=(dims, dims),
            opset_version=_OPSET, input_names=["input_ids", "attention_mask"], output_names=["sentence_embedding"],
            custom_translation_table={torch.ops.hf_meanmax.recurrent.default: _translate_recurrent}, verbose=False,
        )  # fmt: skip
        if program is None:
            raise RuntimeError("torch gave no ONNX program.")
        program.save(str(path))


def _write_int8(source: Path, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    is_large = source.with_name(f"{source.name}.data").is_file()
    # `reduce_range` gives 7-bit weights: processors without VNNI add 8-bit products in 16 bits, which overflow.
    with _silence():
        quantize_dynamic(
            str(source),
            str(target),
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            use_external_data_format=is_large,
        )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silences the exporters' logs and warnings."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
