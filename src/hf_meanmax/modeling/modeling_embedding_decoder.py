"""A decoder of any embedder: a map from its vector to latent rows, and a decoder that reads them.

The input of vec2text (Morris et al., EMNLP 2023) is such a map before a T5; here any autoregressive decoder follows.
"""

import torch
from torch import nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import ModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .base import LatentPreTrainedModel
from .conditional_decoding import LatentForConditionalDecoding
from .configuration_embedding_decoder import EmbeddingDecoderConfig
from .embeddings import TextEmbeddings
from .generation import checked_vectors
from .layers import Standardization, scale_rows, unit_rows
from .outputs import LatentModelOutput, LatentSeq2SeqOutput


class EmbeddingMap(LatentPreTrainedModel):
    """Maps an embedder's vector to latent rows Z; also holds the word table of the decoder."""

    config: EmbeddingDecoderConfig
    main_input_name = "sentence_embedding"

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.embeddings = TextEmbeddings(config)
        self.standardization = Standardization(config.embedding_dim)
        size = config.num_latents * config.latent_width
        self.map: nn.Module = nn.Linear(config.embedding_dim, size)
        if config.map_hidden_size is not None:
            hidden = config.map_hidden_size
            self.map = nn.Sequential(nn.Linear(config.embedding_dim, hidden), nn.GELU(), nn.Linear(hidden, size))
        self.layer_norm = None
        if config.map_layer_norm:
            self.layer_norm = nn.LayerNorm(config.latent_width, eps=config.layer_norm_eps)
        self.latent_scales = nn.Parameter(torch.ones(config.num_latents)) if config.latent_scales else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        sentence_embedding: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> LatentModelOutput:
        """Maps vectors `(B, embedding_dim)` to Z `(B, L, latent_width)`.

        Raises:
            ValueError: there is no vector (a text is not accepted), or it has another shape.
            TypeError: for an argument that nothing reads.
        """
        if sentence_embedding is None:
            raise ValueError(
                "This model decodes vectors and has no text encoder: give `sentence_embedding`, the vectors of "
                f"{self.config.embedder_name}."
            )
        self.refuse_unknown(kwargs)
        size = self.config.embedding_dim
        if not isinstance(sentence_embedding, torch.Tensor) or sentence_embedding.shape[1:] != (size,):
            given = type(sentence_embedding).__name__
            if hasattr(sentence_embedding, "shape"):
                given += f" {tuple(sentence_embedding.shape)}"
            raise ValueError(
                f"`sentence_embedding` is a {given}; this model reads a tensor (B, {size}), the vectors of "
                f"{self.config.embedder_name}."
            )
        vectors = sentence_embedding.to(self.standardization.mean.dtype)
        if self.config.normalize_embeddings:
            vectors = unit_rows(vectors)
        rows = self.map(self.standardization(vectors))
        rows = rows.unflatten(-1, (self.config.num_latents, self.config.latent_width))
        if self.layer_norm is not None:
            rows = self.layer_norm(rows)
        rows = scale_rows(rows, self.config, self.latent_scales)
        return LatentModelOutput(last_hidden_state=rows, pooler_output=sentence_embedding, latents=rows)


class EmbeddingDecoderForGeneration(LatentForConditionalDecoding):
    """Decodes the vectors of another embedder.

    ```python
    >>> from sentence_transformers import SentenceTransformer
    >>> from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    >>> import hf_meanmax

    >>> embedder = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
    >>> tokenizer = AutoTokenizer.from_pretrained("runs/embedding-decoder/model")
    >>> model = AutoModelForSeq2SeqLM.from_pretrained("runs/embedding-decoder/model")
    >>> vectors = embedder.encode(["return the number of items"])
    >>> tokenizer.batch_decode(model.generate(sentence_embedding=vectors), skip_special_tokens=True)
    ```
    """

    config: EmbeddingDecoderConfig
    encoder: EmbeddingMap
    main_input_name = "sentence_embedding"
    encoder_class = EmbeddingMap
    encoder_inputs = ("sentence_embedding",)

    def encode_latents(
        self, *args: torch.Tensor | None, sentence_embedding: torch.Tensor | None = None, **kwargs: object
    ) -> torch.Tensor:
        """Z `(B, L, latent_width)` of vectors `(B, embedding_dim)`."""
        return self.read_by_decoder(self.encoder(sentence_embedding))

    def latents_from_embedding(self, sentence_embedding: torch.Tensor) -> torch.Tensor:
        """Z `(B, L, latent_width)` of vectors `(B, embedding_dim)` or `(embedding_dim,)` of the embedder.

        Raises:
            ValueError: a vector has another size, holds NaN or infinities or is quantised.
        """
        size = self.config.embedding_dim
        expected = f"vectors of {self.config.embedder_name}, of {size} numbers"
        vectors = checked_vectors(sentence_embedding, size, None, expected, self)
        return self.encode_latents(sentence_embedding=vectors.reshape(-1, size))

    def forward(
        self,
        sentence_embedding: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        encoder_outputs: ModelOutput | tuple[torch.Tensor, ...] | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> LatentSeq2SeqOutput:
        """Maps vectors to latent rows, decodes under teacher forcing, and scores the labels.

        Args:
            sentence_embedding: `(B, embedding_dim)`, or give `encoder_outputs`.
            labels: `(B, T)` target ids, -100 where there is none.
            encoder_outputs, decoder_input_ids, decoder_attention_mask: see `LatentForConditionalDecoding.forward`.
            kwargs: see `LatentForConditionalDecoding.forward`. `attention_mask` `(B, T)` is the mask of the labels
                (default: made from them).

        Raises:
            ValueError: there is nothing to decode.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(sentence_embedding)
        output: LatentSeq2SeqOutput = super().forward(
            encoder_outputs=encoder_outputs, labels=labels, decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask, **kwargs,
        )  # fmt: skip
        return output


__all__ = ["EmbeddingDecoderForGeneration"]
