"""Word and position embeddings, and a cache of the words' attention projections."""

import torch
from torch import nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

from .attention import MultiHeadAttention
from .layers import has_padding_first, is_plain

logger = logging.get_logger(__name__)


def sinusoidal_positions(length: int, width: int, device: torch.device | None = None) -> torch.Tensor:
    """Codes of positions 0..length-1 (mean-max autoencoder, eq. 1-2): `(length, width)`, float32, sines and cosines
    interleaved."""
    # Apple's GPUs have no float64.
    dtype = torch.float32 if device is not None and device.type == "mps" else torch.float64
    positions = torch.arange(length, device=device, dtype=dtype)[:, None]
    exponents = torch.arange(0, width, 2, device=device, dtype=dtype) / width
    angles = positions * torch.pow(10000.0, -exponents)
    # Many versions of onnxruntime have no cosine in float64.
    cosines = torch.sin(angles + torch.pi / 2)
    return torch.stack((angles.sin(), cosines), dim=-1).flatten(1).float()


def token_positions(attention_mask: torch.Tensor) -> torch.Tensor:
    """Positions `(B, N)` that count the tokens of the mask `(B, N)` from 0, padding on either side; 0 for padding."""
    return (attention_mask.long().cumsum(dim=-1) - 1).masked_fill(attention_mask == 0, 0)


class TextEmbeddings(nn.Module):
    """Word vectors plus position codes: x_t = e_t + p_t. Encoder and decoder share the tables, unless they have
    separate vocabularies.

    A frozen word table (default: `config.freeze_word_embeddings`) never gets a gradient; the special tokens then have a
    small trained table of their own.
    """

    def __init__(self, config: PreTrainedConfig, vocab_size: int | None = None, frozen: bool | None = None) -> None:
        super().__init__()
        self.config = config
        self.is_frozen = config.freeze_word_embeddings if frozen is None else frozen
        self.word_embeddings = nn.Embedding(
            vocab_size or config.input_vocab_size, config.embedding_size, padding_idx=config.pad_token_id
        )
        self.special_embeddings = None
        if self.is_frozen:
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
        """Excludes a frozen word table from training."""
        if self.is_frozen:
            self.word_embeddings.weight.requires_grad_(False)

    @torch.no_grad()
    def start_from(self, vectors: torch.Tensor) -> None:
        """Sets the word vectors to `(V, embedding_size)` and scales a separate table of special tokens to their size: a
        special token that is five times as large would alone determine the last state of a recurrent network."""
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
        """Sets the unknown word's vector to the mean of all words, for training without unknown words."""
        words = self.word_embeddings.weight
        own = self.word_embeddings if self.special_embeddings is None else self.special_embeddings
        own.weight[self.config.unk_token_id] = words[self.config.num_special_tokens :].mean(dim=0)

    def embed_words(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Word vectors `(B, N, embedding_size)` of token ids `(B, N)`.

        Raises:
            IndexError: on a CPU, for an id that is not in the word table.
        """
        try:
            words = self.word_embeddings(input_ids)
        except IndexError as error:
            raise IndexError(
                f"Token ids, of a text or of `labels`, are {int(input_ids.min())} to {int(input_ids.max())}; the model "
                f"has words 0 to {self.word_embeddings.num_embeddings - 1}. After words were added to the tokenizer, "
                "call `model.resize_token_embeddings(len(tokenizer))`; -100 is for labels alone."
            ) from error
        if self.special_embeddings is None:
            return words
        count = self.config.num_special_tokens
        specials = self.special_embeddings(input_ids.clamp(max=count - 1))
        return torch.where((input_ids < count).unsqueeze(-1), specials, words)

    def embed_positions(self, length: int, position_ids: torch.Tensor | None, device: torch.device) -> torch.Tensor:
        """Codes of `position_ids` `(B, N)`, or of 0..length-1 for all rows alike when it is None."""
        if self.position_embeddings is not None:
            limit = self.config.max_position_embeddings
            ids = position_ids if position_ids is not None else torch.arange(length, device=device)
            # A compiled graph of this branch would bound the length.
            if position_ids is None and not torch.compiler.is_compiling() and length <= limit:
                return self.position_embeddings(ids)
            return self.position_embeddings(ids.clamp(max=limit - 1)) * (ids < limit).unsqueeze(-1)
        codes = sinusoidal_positions(length, self.config.embedding_size, device)
        return codes if position_ids is None else codes[position_ids]

    def _warn_about_length(self, rows: int, length: int, position_ids: torch.Tensor | None) -> None:
        limit = self.config.max_position_embeddings
        if self.position_embeddings is None or self._warned_about_length or torch.compiler.is_compiling():
            return
        if length <= limit:
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


class WordTable:
    """Query, key and value of words, computed when texts first contain them.

    Args:
        num_words: size of the vocabulary.
        map: the three projections of a word vector, concatenated: `(3 * hidden_size, embedding_size)`.
        bias: their biases, or None.

    Attributes:
        rows: `(num_words, 3 * hidden_size)`; memory is only taken where they are written.
        missing: which blocks of words are still to be computed.
    """

    # Words computed together. Constant, since the last bits of a product depend on its number of rows.
    block_size = 128

    def __init__(self, num_words: int, map: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.map, self.bias = map, bias
        self.rows = torch.empty(num_words, len(map), dtype=map.dtype)
        self.missing = torch.ones(-(-num_words // self.block_size), dtype=torch.bool)
        self._is_whole = False

    def compute(self, embeddings: TextEmbeddings, words: torch.Tensor) -> None:
        """Computes the missing rows of words `(M,)`."""
        if self._is_whole:
            return
        blocks = words // self.block_size
        wanted = blocks[self.missing[blocks]].unique().tolist()
        for block in wanted:
            start = block * self.block_size
            rows = self.rows[start : start + self.block_size]
            vectors = embeddings.embed_words(torch.arange(start, start + len(rows)))
            rows.copy_(nn.functional.linear(vectors, self.map, self.bias))
            self.missing[block] = False  # after its rows are written, for other threads
        self._is_whole = bool(wanted) and not self.missing.any()


class WordProjections:
    """Caches query, key and value of every word, for attention over word vector + position code.

    W (e + p) = W e + W p, so a word's part is computed once, when a text first contains it. Only used in
    `torch.inference_mode()` on a CPU. Replacing a weight, changing it in place or adding an adapter drops the table.
    Writes through `.data` or numpy are detected by a checksum of some numbers, which may miss a change of single rows:
    call [`~encoder_model.LatentEncoderModel.drop_word_projections`] after such a write.
    """

    most_bytes = 2**30

    def __init__(self) -> None:
        self.table: WordTable | None = None
        self._read: list[tuple[torch.Tensor, int, float]] = []

    def __reduce__(self) -> tuple[object, ...]:
        return WordProjections, ()

    def __call__(
        self,
        embeddings: TextEmbeddings,
        attention: MultiHeadAttention,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """Projections `(B, N, 3 * hidden_size)` of token ids `(B, N)`, or None if the cache cannot give them. Padding
        gets the position of its place in the row."""
        if not torch.is_inference_mode_enabled() or embeddings.training or torch.is_autocast_enabled("cpu"):
            return None
        if not self._is_plain(embeddings, attention):
            # An adapter that is later merged into the weights may not be detected as a change.
            self.table = None
            return None
        if not input_ids.is_cpu or not input_ids.numel():
            return None
        # Positions count from each row's first token.
        if attention_mask is not None and has_padding_first(attention_mask):
            return None
        if (
            embeddings.position_embeddings is not None
            and input_ids.shape[1] > embeddings.config.max_position_embeddings
        ):
            return None
        table = self._valid_table(embeddings, attention)
        if table is None or int(input_ids.max()) >= len(table.rows):
            return None
        table.compute(embeddings, input_ids.flatten())
        rows = table.rows.index_select(0, input_ids.flatten()).unflatten(0, input_ids.shape)
        if embeddings.config.position_embedding_type == "none":
            return rows
        codes = embeddings.embed_positions(input_ids.shape[1], None, input_ids.device).to(rows.dtype)
        # The biases are part of `rows` already.
        return rows.add_(nn.functional.linear(codes, table.map))

    def fill(self, embeddings: TextEmbeddings, attention: MultiHeadAttention) -> None:
        """Computes the whole table now, unless it would take more than `most_bytes`."""
        table = self._valid_table(embeddings, attention) if self._is_plain(embeddings, attention) else None
        if table is not None:
            table.compute(embeddings, torch.arange(len(table.rows)))

    def _valid_table(self, embeddings: TextEmbeddings, attention: MultiHeadAttention) -> "WordTable | None":
        """The table, or an empty one if a weight was replaced or changed; None if it would be too large."""
        modules: tuple[nn.Module, ...] = (embeddings, attention.query, attention.key, attention.value)
        # Tensors created in inference mode have no version counter.
        weights: list[torch.Tensor] = [weight for module in modules for weight in module.parameters()]
        read = [(weight, 0 if weight.is_inference() else weight._version, _sum_of_some(weight)) for weight in weights]
        unchanged = len(read) == len(self._read) and all(
            mine[0] is known[0] and mine[1:] == known[1:] for mine, known in zip(read, self._read, strict=True)
        )
        if self.table is None or not unchanged:
            self.table, self._read = None, read
            return self._begin(embeddings, attention)
        return self.table

    def _begin(self, embeddings: TextEmbeddings, attention: MultiHeadAttention) -> "WordTable | None":
        """An empty table, unless it would take more than `most_bytes`."""
        weight = embeddings.word_embeddings.weight
        parts: list[nn.Linear] = [attention.query, attention.key, attention.value]
        if len(weight) * 3 * parts[0].out_features * weight.element_size() > self.most_bytes:
            return None
        weights = torch.cat([part.weight for part in parts])
        bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
        self.table = WordTable(len(weight), weights, bias)
        return self.table

    @staticmethod
    def _is_plain(embeddings: TextEmbeddings, attention: MultiHeadAttention) -> bool:
        """Whether the modules have no adapters, hooks, quantised or offloaded weights, which the cache would bypass."""
        linear = (attention.query, attention.key, attention.value)
        modules = [(embeddings, TextEmbeddings), (embeddings.word_embeddings, nn.Embedding)]
        modules += [(module, nn.Linear) for module in linear]
        return all(
            is_plain(module, kind)
            and all(type(weight) is nn.Parameter and weight.is_cpu for weight in module.parameters())
            for module, kind in modules
        )


def _sum_of_some(weight: torch.Tensor) -> float:
    """Checksum of a weight: the sum of about 64 evenly spaced numbers, which takes microseconds."""
    numbers = weight.detach().flatten()
    return float(numbers[:: max(1, len(numbers) // 64)].sum())
