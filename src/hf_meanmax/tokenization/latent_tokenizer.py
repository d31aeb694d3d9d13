"""The tokenizer class of this package: `PreTrainedTokenizerFast` with a faster conversion to tensors."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch
from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers.utils import PaddingStrategy

from hf_meanmax.modeling.configuration_base import NO_LIMIT


class LatentTokenizer(PreTrainedTokenizerFast):
    """A `PreTrainedTokenizerFast` that makes the tensors of a padded batch by way of NumPy arrays.

    `PreTrainedTokenizerFast` flattens all ids in Python to check for emptiness, which takes a quarter of its time. The
    values are the same; without this package, `AutoTokenizer` loads the files as `PreTrainedTokenizerFast`.
    """

    def __call__(self, text: object = None, *args: object, **kwargs: object) -> BatchEncoding:
        """Tokenises like `PreTrainedTokenizerFast`.

        Raises:
            ValueError: a pair of texts without `token_type_ids` in the output, whose second text a model would read as
                more of the first, or a text with a lone surrogate.
        """
        is_batch = isinstance(text, list) and kwargs.get("return_tensors") == "pt"
        # For a single text that is split into words, the tensors have a batch axis that the lists lack.
        if args or not is_batch or kwargs.get("is_split_into_words") or "tokenizer_kwargs" in kwargs:
            return self._encoding(text, *args, **kwargs)
        encoding = self._encoding(text, **{**kwargs, "return_tensors": None})
        for name, rows in encoding.items():
            # Rows of unequal lengths are left to `convert_to_tensors`, whose error has the remedy.
            with suppress(ValueError):
                array = np.array(rows)
                if array.dtype == np.int64:
                    encoding[name] = torch.from_numpy(array)
        return encoding.convert_to_tensors("pt")

    def _encoding(self, text: object, *args: object, **kwargs: object) -> BatchEncoding:
        try:
            encoding = super().__call__(text, *args, **kwargs)
        except TypeError:
            _refuse_surrogates(text if isinstance(text, list | tuple) else [text])
            raise
        if encoding.n_sequences == 2 and "token_type_ids" not in encoding:
            raise ValueError(
                "The tokenizer got a pair of texts. Give it single texts; for a model of pairs set "
                '`tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]`.'
            )
        return encoding

    def _get_padding_truncation_strategies(
        self, padding: object = False, truncation: object = None, max_length: int | None = None, **kwargs: object
    ) -> tuple[object, ...]:
        # As transformers does without a limit. A SentenceTransformer sets `NO_LIMIT`, and rows of that length would
        # end the process.
        limit = self.model_max_length if max_length is None else max_length
        if padding == PaddingStrategy.MAX_LENGTH and limit >= NO_LIMIT:
            padding = False
        return super()._get_padding_truncation_strategies(padding, truncation, max_length, **kwargs)


def _refuse_surrogates(texts: list[object] | tuple[object, ...]) -> None:
    for position, text in enumerate(texts):
        try:
            str(text).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ValueError(
                f"Text {position} has {half!r} at character {error.start}, half of a character, which "
                'UTF-8 cannot encode. Replace it: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").'
            ) from None
