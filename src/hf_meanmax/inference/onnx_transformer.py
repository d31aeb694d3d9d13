"""An exported encoder as the module of a SentenceTransformer, without weights in torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from sentence_transformers.base.modules import InputModule
from sentence_transformers.util import load_dir_path
from transformers import AutoTokenizer

from hf_meanmax.files import Json, file_digest

from .onnx_encoder import INT8_MODEL, MODEL, OnnxEncoder

if TYPE_CHECKING:
    from torch import Tensor

# Texts per batch of one core, fixed because in int8 a vector depends on the others in its batch.
_PART = 16


class OnnxTransformer(InputModule):
    """An encoder that `hf-meanmax export-onnx` has written, as the only module of a SentenceTransformer.

        int8 = {"file_name": "model_int8.onnx"}
        SentenceTransformer("runs/mine/model/onnx", trust_remote_code=True, model_kwargs=int8)

    A batch is distributed over the cores in parts of 16 texts, so a `batch_size` of 1,024 encodes faster than one of
    32. Vectors are computed on the CPU unless `providers` names another device.

    Args:
        folder: the folder of the export.
        file_name: `model.onnx` or `model_int8.onnx`.
        threads: number of parts encoded at once, each on one core (default: torch's number of threads).
        providers: execution providers of onnxruntime.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ImportError: onnxruntime is not installed.
        ValueError: another file name, or an invalid number of threads.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        file_name: str = MODEL,
        threads: int | None = None,
        providers: Sequence[str] = ("CPUExecutionProvider",),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if file_name not in (MODEL, INT8_MODEL):
            raise ValueError(f"file_name is {file_name!r}; an export has {MODEL} and {INT8_MODEL}.")
        threads = torch.get_num_threads() if threads is None else threads
        self._given = os.path.abspath(folder), file_name, threads, tuple(providers)
        self.encoder = OnnxEncoder(folder, file_name == INT8_MODEL, threads, providers)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        digest = hashlib.blake2b(digest_size=8)
        for path in sorted(Path(folder).glob(f"{file_name}*")):
            digest.update(bytes.fromhex(file_digest(path, 64)))
        self._described = {"file_name": file_name, "digest": digest.hexdigest()}
        # The hash of the exported weights, by which a decoder recognises these vectors.
        self.exported_weights: str = self.encoder.settings["weights"]

    @property
    def max_seq_length(self) -> int | None:
        """The number of tokens at which texts are cut; None if they are not."""
        return self.encoder.max_tokens

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        self.encoder.limit_length(value)

    def get_embedding_dimension(self) -> int:
        """The size of the vectors."""
        return self.encoder.dimension

    def preprocess(self, inputs: list[str], prompt: str | None = None, **kwargs: object) -> dict[str, Tensor]:  # type: ignore[override]
        """Token ids and mask `(B, N)` of texts, padded on the right."""
        ids = self.encoder.token_ids(self._prepend_prompt(inputs, prompt) if prompt else inputs)
        lengths = np.array([len(row) for row in ids])
        mask = np.arange(lengths.max(initial=1)) < lengths[:, None]
        padded = np.full(mask.shape, self.encoder.pad_token_id, dtype=np.int64)
        padded[mask] = np.concatenate(ids)
        return {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask.astype(np.int64))}

    def forward(self, features: dict[str, Tensor], **kwargs: object) -> dict[str, Tensor]:
        """Adds `sentence_embedding` `(B, dimension)` to ids and mask, which are padded on the right."""
        lengths = features["attention_mask"].sum(dim=1).tolist()
        ids = [row[:length] for row, length in zip(features["input_ids"].tolist(), lengths, strict=True)]
        vectors = self.encoder.encode_ids(ids, _PART)
        return {**features, "sentence_embedding": torch.from_numpy(vectors)}

    def get_config_dict(self) -> Json:
        """The file and its hash, which the model's `repr` shows and its fingerprint includes."""
        return self._described

    def __reduce__(self) -> tuple[object, ...]:
        # A session of onnxruntime cannot be sent to another process.
        return _opened, (self._given, self.max_seq_length)

    def save(self, output_path: str, *args: object, **kwargs: object) -> None:
        """Refuses, since the folder of the export itself loads as a SentenceTransformer.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(f"An export is not saved again; copy its folder, {self._given[0]}.")

    @classmethod
    def load(  # type: ignore[override]
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        model_kwargs: Json | None = None,
        **kwargs: object,
    ) -> Self:
        """Loads the module from a folder of sentence-transformers or a repository on the Hub.

        Raises:
            FileNotFoundError, ImportError, ValueError: see the class.
        """
        folder = load_dir_path(model_name_or_path, subfolder, token, cache_folder, revision, local_files_only)
        return cls(folder or model_name_or_path, **(model_kwargs or {}))


def _opened(given: tuple[str, str, int, tuple[str, ...]], max_seq_length: int | None) -> OnnxTransformer:
    module = OnnxTransformer(*given)
    module.max_seq_length = max_seq_length
    return module
