"""Generation from text or from an embedding alone; each text has a length bound of its own."""

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.configuration_utils import PreTrainedConfig
from transformers.generation.utils import GenerateOutput
from transformers.modeling_outputs import BaseModelOutput

from .encoder_model import NO_REPRESENTATION, LatentEncoderModel

Count = TypeVar("Count", int, torch.Tensor)

NO_DECODER = (
    "`decoder_type` is 'none': this checkpoint gives vectors alone and cannot generate. Train one with a decoder "
    "(`--objective reconstruction`)."
)

# The least bound for a text, however short, and for an embedding, whose text's length is not known.
LEAST_OF_TEXT, LEAST_OF_EMBEDDING = 16, 256


def decoding_bound(tokens: Count) -> Count:
    """The most tokens generated for a text of `tokens` tokens, `</s>` counted in both: 1.5 times as many, rounded up
    (Zhang, Wu, Li and Zhang, section 5.2).

    Args:
        tokens: a number, or a tensor of them.
    """
    return (3 * tokens + 1) // 2


def text_bounds(text: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """The bound `(B,)` of each text, given as ids `(B, N)` or vectors `(B, N, e)`; no mask means no padding."""
    mask = torch.ones(text.shape[:2], device=text.device) if attention_mask is None else attention_mask
    return decoding_bound((mask != 0).sum(dim=1)).clamp(min=LEAST_OF_TEXT)


class TextLengthCriteria(StoppingCriteria):
    """Ends the decoding of text b after `bounds[b]` new tokens, so that it does not depend on the rest of its batch.

    Args:
        bounds: `(B,)`, each 1 or more. The beams or samples of a text are rows that follow each other.
    """

    def __init__(self, bounds: torch.Tensor) -> None:
        self.bounds = bounds
        self.prompt: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        rows, length = input_ids.shape
        if self.prompt is None:
            # Whether to end is asked for the first time when the first token has been generated.
            self.prompt = length - 1
        return self.reached(rows, length - self.prompt)

    def reached(self, rows: int, length: int | torch.Tensor) -> torch.Tensor:
        """Whether so many new tokens reach the bound of each row: `(rows,)`, or `(rows, T)` for a tensor `(T,)`."""
        bounds = self.bounds.repeat_interleave(rows // len(self.bounds))
        return bounds <= length if isinstance(length, int) else bounds[:, None] <= length


def pad_ended(sequences: torch.Tensor, criteria: TextLengthCriteria | None, *settings: object) -> None:
    """Puts padding behind the end token of each row of `(rows, T)` ids, and behind its bound, in place.

    transformers leaves no other tokens there, but its beam search puts the end token where the padding token is 0.

    Args:
        sequences: what was generated.
        criteria: the bounds, if there were any.
        settings: dicts and configurations; the first that has a `pad_token_id` or an `eos_token_id` tells it.
    """
    pad_id, end_ids = _setting("pad_token_id", settings), _setting("eos_token_id", settings)
    if pad_id is None:
        return
    is_end = torch.isin(sequences, torch.as_tensor([] if end_ids is None else end_ids, device=sequences.device))
    is_end[:, 0] = False  # some decoders start with it
    behind = is_end.cumsum(dim=1) > is_end
    if criteria is not None:
        columns = torch.arange(sequences.shape[1], device=sequences.device)
        behind |= criteria.reached(len(sequences), columns - (criteria.prompt or 0))
    sequences.masked_fill_(behind, pad_id)


def _setting(name: str, sources: Iterable[object]) -> Any:
    found = (source.get(name) if isinstance(source, dict) else getattr(source, name, None) for source in sources)
    return next((value for value in found if value is not None), None)


def checked_vectors(
    vectors: torch.Tensor, size: int, matrix: tuple[int, int] | None, expected: str, like: torch.Tensor
) -> torch.Tensor:
    """Sentence embeddings with the type and on the device of `like`.

    Args:
        vectors: `(B, size)` or `(size,)`, or of the shape `matrix` each; a tensor, an array or a list of them.
        expected: what the model decodes, for errors.

    Raises:
        ValueError: a vector has another size, holds NaN or infinities or is quantised.
    """
    if isinstance(vectors, (list, tuple)) and any(map(torch.is_tensor, vectors)):
        vectors = torch.stack(list(vectors))
    vectors = torch.as_tensor(vectors)
    if vectors.dim() == 3:
        fits = matrix is not None and vectors.shape[1:] == matrix
    else:
        fits = vectors.dim() in (1, 2) and vectors.shape[-1] == size
    if not fits:
        raise ValueError(
            f"A sentence embedding of shape {tuple(vectors.shape)} cannot be decoded: this model decodes "
            f"{expected}. A truncated vector, or one of another model, cannot be decoded."
        )
    if not vectors.is_floating_point():
        raise ValueError(
            f"Sentence embeddings of type {str(vectors.dtype).removeprefix('torch.')} are quantised; this model "
            f"decodes {expected}."
        )
    vectors = vectors.to(device=like.device).to(like.dtype)
    if not bool(torch.isfinite(vectors).all()):
        raise ValueError(f"A sentence embedding holds NaN or infinite values; this model decodes {expected}.")
    return vectors


class LatentGenerationMixin(GenerationMixin):
    """Generation for models whose decoder reads latent rows alone."""

    config: PreTrainedConfig
    encoder: LatentEncoderModel
    lm_head: nn.Linear

    @staticmethod
    def create_masks_for_generate(
        config: PreTrainedConfig, attention_mask: torch.Tensor | None, **kwargs: object
    ) -> torch.Tensor | None:
        """What generation with a cache of fixed size hands on: the mask `(B, past + T)` as it is. Positions are counted
        on it, and an attention's mask, which transformers would put in its place, means nothing to an LSTM."""
        return attention_mask

    def latents_from_embedding(self, sentence_embedding: torch.Tensor) -> torch.Tensor:
        """Z `(B, L, d)` of raw sentence embeddings `(B, L * d)`, `(L * d,)` or `(B, L, d)`, with d the `latent_width`.

        With `latent_normalization="rows"` an embedding may have been multiplied by any positive number.

        Raises:
            ValueError: if the model has no decoder or no fixed representation, or a vector has another size, holds NaN
                or infinities or is quantised.
        """
        if not self.config.has_decoder:
            raise ValueError(NO_DECODER)
        if not self.config.has_latents:
            raise ValueError(NO_REPRESENTATION)
        rows, width = self.config.num_latents, self.config.latent_width
        expected = f"a raw vector of {rows * width} numbers ({rows} rows of {width})"
        vectors = checked_vectors(sentence_embedding, rows * width, (rows, width), expected, self.lm_head.weight)
        return self.encoder.scale_rows(vectors.reshape(-1, rows, width))

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        *args: Any,
        sentence_embedding: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> GenerateOutput | torch.Tensor:
        """The `generate` of transformers, from text or from sentence embeddings alone.

        A bound of the caller's wins: `max_new_tokens` or `max_length`, as an argument or in a `generation_config`.
        Without one, a text is decoded to at most 1.5 times its own tokens (Zhang, Wu, Li and Zhang, section 5.2; at
        least 16), whatever else is in its batch, and a vector, whose text's length is not known, to the
        `max_new_tokens` of the model's `generation_config`. What follows the end of a row is padding.

        Args:
            sentence_embedding: raw embeddings `(B, L * d)` (`pooler_output`, or `SentenceTransformer.encode` of a
                folder exported without normalisation), or Z `(B, L, d)`; mixtures of embeddings are fine. Replaces
                `input_ids`.

        Raises:
            ValueError: if both text and embeddings are given, if a vector cannot be decoded
                ([`latents_from_embedding`][]), or if the decoder is not autoregressive.
        """
        if not self.config.has_decoder:
            raise ValueError(NO_DECODER)
        if not self.config.is_autoregressive:
            raise ValueError(
                f"decoder_type is {self.config.decoder_type!r}, which is not autoregressive: use predict_words()."
            )
        text = {name: kwargs.pop(name) for name in ("input_ids", "inputs_embeds") if kwargs.get(name) is not None}
        if inputs is not None:
            text["input_ids"] = inputs
        sources = len(text) + sum(given is not None for given in (sentence_embedding, kwargs.get("encoder_outputs")))
        if sources != 1:
            raise ValueError(
                f"generate() got {sources} inputs; give exactly one of a text (`input_ids` or `inputs_embeds`), "
                "`sentence_embedding` and `encoder_outputs`."
            )
        # A decoder that reads only Z has no use for the mask of the text.
        attention_mask = kwargs.pop("attention_mask", None)
        if not self.config.has_latents and attention_mask is not None:
            kwargs["attention_mask"] = attention_mask
        if kwargs.get("encoder_outputs") is None:
            if sentence_embedding is not None:
                latents = self.latents_from_embedding(sentence_embedding)
            else:
                latents = self.encode_latents(attention_mask=attention_mask, **text)
        else:
            latents = self._given_latents(kwargs["encoder_outputs"])
        kwargs["encoder_outputs"] = BaseModelOutput(last_hidden_state=latents)
        criteria = self._bound_length(kwargs, generation_config, text, attention_mask)
        if criteria is not None:
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), criteria])
        output = super().generate(None, generation_config, logits_processor, stopping_criteria, *args, **kwargs)
        pad_ended(getattr(output, "sequences", output), criteria, kwargs, generation_config, self.generation_config)
        return output

    def _bound_length(
        self,
        kwargs: dict[str, Any],
        generation_config: GenerationConfig | None,
        text: dict[str, torch.Tensor],
        attention_mask: torch.Tensor | None,
    ) -> TextLengthCriteria | None:
        """Puts the caller's bound, or that of the longest text, into `kwargs`; with the latter, each text's own."""
        if kwargs.get("max_new_tokens") is not None:
            return None
        kwargs.pop("max_new_tokens", None)  # transformers would take a None for its own default, 20 tokens
        max_length = kwargs.pop("max_length", None)
        has_own_bound = getattr(generation_config, "max_new_tokens", None) is not None
        if max_length is None and not has_own_bound:
            max_length = getattr(generation_config, "max_length", None)
        if max_length is not None:
            # The model's own bound is on new tokens, and transformers would let that one win.
            kwargs["max_new_tokens"] = max_length - self._begun_length(kwargs.get("decoder_input_ids"))
            return None
        if not text or has_own_bound:
            return None
        criteria = TextLengthCriteria(text_bounds(next(iter(text.values())), attention_mask))
        kwargs["max_new_tokens"] = int(criteria.bounds.max())
        return criteria

    def _begun_length(self, decoder_input_ids: torch.Tensor | None) -> int:
        """Tokens that generation begins with: before given ones, transformers puts the start where none has it."""
        if decoder_input_ids is None:
            return 1
        lacks_start = (decoder_input_ids[:, 0] != self.config.decoder_start_token_id).all()
        return decoder_input_ids.shape[1] + int(lacks_start)

    @torch.no_grad()
    def predict_words(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        sentence_embedding: torch.Tensor | None = None,
        top_k: int = 5,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest words at each place of a non-autoregressive decoder.

        Args:
            input_ids: `(B, N)` token ids, or give `sentence_embedding` instead.
            attention_mask: `(B, N)`, 0 for padding on either side.
            sentence_embedding: raw embeddings `(B, L * d)` or Z `(B, L, d)`.
            top_k: words at each place.

        Returns:
            Ids and log probabilities, `(B, num_context_words, top_k)` each, the likeliest first.

        Raises:
            ValueError: if not exactly one of text and embeddings is given, if a vector cannot be decoded
                ([`latents_from_embedding`][]), if `top_k` is not between 1 and the vocabulary size, or if the decoder
                is autoregressive.
        """
        if not self.config.has_decoder:
            raise ValueError(NO_DECODER)
        if self.config.is_autoregressive:
            raise ValueError(f"decoder_type is {self.config.decoder_type!r}, which is autoregressive: use generate().")
        if (input_ids is None) == (sentence_embedding is None):
            raise ValueError("Give exactly one of `input_ids` and `sentence_embedding`.")
        if not 1 <= top_k <= self.config.vocab_size:
            raise ValueError(f"`top_k` is {top_k}; it must be in 1..{self.config.vocab_size}.")
        if sentence_embedding is not None:
            latents = self.latents_from_embedding(sentence_embedding)
        else:
            latents = self.encode_latents(input_ids, attention_mask)
        logits = self(encoder_outputs=BaseModelOutput(last_hidden_state=latents)).logits
        likeliest = logits.float().log_softmax(dim=-1).topk(top_k, dim=-1)
        return likeliest.indices, likeliest.values
