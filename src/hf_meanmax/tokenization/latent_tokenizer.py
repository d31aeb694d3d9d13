"""The tokenizer class of this package: `PreTrainedTokenizerFast` with a faster conversion to tensors."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch
from transformers import BatchEncoding, PreTrainedTokenizerFast


class LatentTokenizer(PreTrainedTokenizerFast):
    """A `PreTrainedTokenizerFast` that makes the tensors of a padded batch by way of NumPy arrays.

    `PreTrainedTokenizerFast` flattens all ids in Python to check for emptiness, which takes a quarter of its time. The
    values are the same; without this package, `AutoTokenizer` loads the files as `PreTrainedTokenizerFast`.
    """

    def __call__(self, text: object = None, *args: object, **kwargs: object) -> BatchEncoding:
        """Tokenises like `PreTrainedTokenizerFast`."""
        is_batch = isinstance(text, list) and kwargs.get("return_tensors") == "pt"
        # For a single text that is split into words, the tensors have a batch axis that the lists lack.
        if args or not is_batch or kwargs.get("is_split_into_words") or "tokenizer_kwargs" in kwargs:
            return super().__call__(text, *args, **kwargs)
        encoding = super().__call__(text, **{**kwargs, "return_tensors": None})
        for name, rows in encoding.items():
            # Rows of unequal lengths are left to `convert_to_tensors`, whose error has the remedy.
            with suppress(ValueError):
                array = np.array(rows)
                if array.dtype == np.int64:
                    encoding[name] = torch.from_numpy(array)
        return encoding.convert_to_tensors("pt")
