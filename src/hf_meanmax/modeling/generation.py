"""Generation from text or from an embedding alone; each text has its own length bound."""

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import distributed, nn
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.configuration_utils import PreTrainedConfig
from transformers.generation.utils import GenerateEncoderDecoderOutput, GenerateOutput
from transformers.integrations import is_deepspeed_zero3_enabled, is_fsdp_managed_module
from transformers.modeling_outputs import BaseModelOutput

from .beam_search import BeamSearch
from .encoder_model import NO_REPRESENTATION, LatentEncoderModel
from .generation_settings import by_own_settings, setting, take_settings
from .suggestions import did_you_mean

Count = TypeVar("Count", int, torch.Tensor)

NO_DECODER = (
    "`decoder_type` is 'none': this checkpoint gives vectors alone and cannot generate. Train one with a decoder "
    "(`--objective reconstruction`)."
)

# The smallest bound for a text, and the bound for an embedding, whose text's length is not known.
MIN_TOKENS_FROM_TEXT, MIN_TOKENS_FROM_EMBEDDING = 16, 256

# Number of words after which greedy decoding drops the rows that have ended.
WORDS_OF_A_STAGE = 8
# Settings allowed in searches that drop rows: none depends on the number of generated words or on other rows.
_COMMON_SEARCH_SETTINGS = {
    "attention_mask", "bos_token_id", "decoder_start_token_id", "do_sample", "encoder_outputs", "eos_token_id",
    "max_new_tokens", "num_beams", "pad_token_id", "transformers_version", "use_cache", "_from_model_config",
}  # fmt: skip
_GREEDY_SETTINGS = _COMMON_SEARCH_SETTINGS | {"repetition_penalty"}
_BEAM_SETTINGS = _COMMON_SEARCH_SETTINGS | {"early_stopping", "length_penalty", "num_return_sequences"}


def decoding_bound(tokens: Count) -> Count:
    """The largest number of tokens generated for a text of `tokens` tokens: 1.5 times as many, rounded up, with `</s>`
    counted in both (Zhang, Wu, Li and Zhang, section 5.2).

    Args:
        tokens: a number, or a tensor of numbers.
    """
    return (3 * tokens + 1) // 2


def text_bounds(text: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """The bound `(B,)` of each text, given as ids `(B, N)` or vectors `(B, N, e)`; no mask means no padding."""
    mask = torch.ones(text.shape[:2], device=text.device) if attention_mask is None else attention_mask
    return decoding_bound((mask != 0).sum(dim=1)).clamp(min=MIN_TOKENS_FROM_TEXT)


class TextLengthCriteria(StoppingCriteria):
    """Ends the decoding of text b after `bounds[b]` new tokens, so that it does not depend on the rest of its batch.

    Args:
        bounds: `(B,)`, each 1 or more. The beams or samples of a text are consecutive rows.
        prompt: number of tokens that generation begins with.
    """

    def __init__(self, bounds: torch.Tensor, prompt: int = 1) -> None:
        self.bounds = bounds
        self.prompt = prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        rows, length = input_ids.shape
        return self.reached(rows, length - self.prompt)

    def reached(self, rows: int, length: int | torch.Tensor) -> torch.Tensor:
        """Whether `length` new tokens reach the bound of each row: `(rows,)`, or `(rows, T)` for a tensor `(T,)`."""
        bounds = self.bounds.repeat_interleave(rows // len(self.bounds))
        return bounds <= length if isinstance(length, int) else bounds[:, None] <= length


def pad_ended(sequences: torch.Tensor, criteria: TextLengthCriteria | None, prompt: int, *settings: object) -> None:
    """Fills each row of `(rows, T)` ids with padding after its end token and after its bound, in place.

    transformers does so too, but its beam search fills with the end token if the padding token is 0, and with -1 if
    there is no end token.

    Args:
        sequences: the generated ids.
        criteria: the bounds, if there were any.
        prompt: number of tokens that generation began with.
        settings: dicts and configurations; `pad_token_id` and `eos_token_id` are taken from the first that has them.
    """
    pad_id = setting("pad_token_id", settings)
    if pad_id is None:
        return
    is_end = _is_end(sequences, prompt, settings)
    behind = is_end.cumsum(dim=1) > is_end
    if criteria is not None:
        columns = torch.arange(sequences.shape[1], device=sequences.device)
        behind |= criteria.reached(len(sequences), columns - criteria.prompt)
    sequences.masked_fill_(behind, pad_id)


def _is_end(sequences: torch.Tensor, prompt: int, settings: Iterable[object]) -> torch.Tensor:
    """Which of `(rows, T)` ids are end tokens after the prompt: by the first of the settings with an `eos_token_id`;
    an argument `eos_token_id=None` means that there are none."""
    is_end = torch.isin(sequences, _end_ids(settings, sequences.device))
    is_end[:, :prompt] = False
    return is_end


def _end_ids(settings: Iterable[object], device: torch.device) -> torch.Tensor:
    given = next((each for each in settings if isinstance(each, dict) and "eos_token_id" in each), None)
    end_ids = setting("eos_token_id", settings if given is None else [given])
    return torch.as_tensor([] if end_ids is None else end_ids, device=device).reshape(-1)


def _is_sharded(model: nn.Module) -> bool:
    """Whether the weights are sharded over processes: these must run equally many steps, which transformers ensures."""
    several = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    return several and (is_fsdp_managed_module(model) or is_deepspeed_zero3_enabled())


def _mark_read_words(kwargs: dict[str, Any]) -> None:
    """Adds a mask to words that continue a cache: by its length transformers sees that the cache has the first ones."""
    cache, words = kwargs.get("past_key_values"), kwargs.get("decoder_input_ids")
    if cache is None or words is None or kwargs.get("decoder_attention_mask") is not None:
        return
    if words.shape[1] > int(cache.get_seq_length()):
        kwargs["decoder_attention_mask"] = torch.ones_like(words)


def _as_batch(vectors: Any, expected: str) -> torch.Tensor:
    if hasattr(vectors, "to_numpy"):
        vectors = vectors.to_numpy()
    is_of_objects = getattr(getattr(vectors, "dtype", None), "hasobject", False) and vectors.ndim
    if is_of_objects or (isinstance(vectors, Sequence) and not isinstance(vectors, str)):
        # A column of a table, with a vector in each cell.
        vectors = list(vectors)
    rows = vectors if isinstance(vectors, list) else [vectors]
    if any(isinstance(row, str) or getattr(getattr(row, "dtype", None), "kind", None) in ("U", "S") for row in rows):
        raise ValueError(f"`sentence_embedding` is text; this model decodes {expected}. Encode the text first.")
    try:
        if rows is vectors and any(hasattr(row, "shape") for row in rows):
            return torch.stack([_as_tensor(row) for row in rows])
        return _as_tensor(vectors)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"These sentence embeddings are no batch ({error}); this model decodes {expected}.") from error


def _as_tensor(vectors: Any) -> torch.Tensor:
    if not torch.is_tensor(vectors) and hasattr(vectors, "astype"):
        # torch rejects arrays with negative strides or another byte order.
        vectors = vectors.astype(vectors.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(vectors)


def checked_vectors(
    vectors: Any,
    size: int,
    matrix: tuple[int, int] | None,
    expected: str,
    model: PreTrainedModel,
    any_scale: bool = False,
) -> torch.Tensor:
    """Checks sentence embeddings and converts them to the dtype and device of a model.

    Args:
        vectors: `(B, size)`, `(size,)` or `(B, *matrix)`; a tensor, an array, a column or table of pandas or
            `datasets`, or a list of vectors.
        expected: the vectors that the model decodes, in words, for errors.
        any_scale: whether the scale of a row of the matrix has no meaning. Rows `(B, L, d)` with a largest absolute
            value of 1 are then returned, so that they fit the model's dtype.

    Raises:
        ValueError: a vector has another size, holds NaN or infinities, is quantised or does not fit the model's dtype.
    """
    vectors = _as_batch(vectors, expected)
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
    if not bool(torch.isfinite(vectors).all()):
        raise ValueError(f"A sentence embedding holds NaN or infinite values; this model decodes {expected}.")
    if any_scale and matrix is not None:
        vectors = vectors.reshape(-1, *matrix)
        largest = vectors.abs().amax(dim=-1, keepdim=True)
        vectors = vectors / largest.where(largest > 0, 1)
    # Weights offloaded to disk are on the device 'meta'.
    device = vectors.device if model.device.type == "meta" else model.device
    vectors = vectors.to(model.dtype).to(device)
    if not bool(torch.isfinite(vectors).all()):
        raise ValueError(
            f"A sentence embedding holds values that are too large for {str(model.dtype).removeprefix('torch.')}; this "
            f"model decodes {expected}."
        )
    return vectors


class CanGenerate:
    """`can_generate()`: True for a class, and for a model if its decoder is autoregressive."""

    def __get__(self, model: PreTrainedModel | None, owner: type) -> Callable[[], bool]:
        return lambda: model is None or model.config.is_autoregressive


class LatentGenerationMixin(GenerationMixin):
    """Generation for models whose decoder reads latent rows alone."""

    config: PreTrainedConfig
    encoder: LatentEncoderModel
    lm_head: nn.Linear

    @staticmethod
    def create_masks_for_generate(
        config: PreTrainedConfig, attention_mask: torch.Tensor | None, **kwargs: object
    ) -> torch.Tensor | None:
        """Returns the mask `(B, past + T)` unchanged, for generation with a static cache. Positions are computed from
        it, and an LSTM cannot use the attention mask that transformers would put in its place."""
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
        any_scale = self.config.latent_normalization == "rows"
        vectors = checked_vectors(sentence_embedding, rows * width, (rows, width), expected, self, any_scale)
        return self.encoder.scale_rows(vectors.reshape(-1, rows, width))

    @wraps(GenerationMixin.prepare_inputs_for_generation)
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        # transformers passes on the tokenizers for `stop_strings` and for an assistant.
        read = {name: value for name, value in kwargs.items() if name not in ("tokenizer", "assistant_tokenizer")}
        return super().prepare_inputs_for_generation(*args, **read)

    @torch.no_grad()
    @by_own_settings
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

        The caller's bound takes precedence: `max_new_tokens` or `max_length`, as an argument, in a `generation_config`,
        or the model's `max_length` unless it is transformers' default of 20. Otherwise a text is decoded to at most 1.5
        times its own tokens (Zhang, Wu, Li and Zhang, section 5.2; at least 16), independently of its batch, and a
        vector to the model's `max_new_tokens`. No text ends before the caller's `min_new_tokens` or `min_length`. Beam
        search defaults to `early_stopping=True`. Rows are padded after their end.

        Args:
            inputs: the text's ids `(B, N)`, or the vectors if the model decodes another embedder's.
            sentence_embedding: in place of a text, raw embeddings `(B, L * d)` (`pooler_output`, or the output of a
                SentenceTransformer without normalisation), or Z `(B, L, d)`; mixtures of embeddings are fine. An
                `attention_mask` beside them is not read.

        Raises:
            ValueError: if both text and embeddings are given, if a vector cannot be decoded
                ([`latents_from_embedding`][]), if the decoder is not autoregressive, or for classifier-free guidance.
        """
        if not self.config.has_decoder:
            raise ValueError(NO_DECODER)
        if not self.config.is_autoregressive:
            raise ValueError(
                f"decoder_type is {self.config.decoder_type!r}, which is not autoregressive: use predict_words()."
            )
        text = {name: kwargs.pop(name) for name in ("input_ids", "inputs_embeds") if kwargs.get(name) is not None}
        sources = len(text) + sum(
            given is not None for given in (inputs, sentence_embedding, kwargs.get("encoder_outputs"))
        )
        if inputs is not None and self.main_input_name == "sentence_embedding":
            sentence_embedding = inputs
        elif inputs is not None:
            text["input_ids"] = inputs
        if sources != 1:
            names = ("input_ids", "inputs_embeds", "sentence_embedding", "encoder_outputs")
            hints = [did_you_mean(name, names, cutoff=0.8, quote="`") for name in kwargs if name not in names]
            hint = next(filter(None, hints), "")
            raise ValueError(
                f"generate() got {sources} inputs; give exactly one of a text (`input_ids` or `inputs_embeds`), "
                f"`sentence_embedding` and `encoder_outputs`.{hint}"
            )
        take_settings(generation_config, kwargs)
        settings = (kwargs, self.generation_config)
        if setting("guidance_scale", settings) not in (None, 1) or kwargs.get("negative_prompt_ids") is not None:
            raise ValueError("No text can be steered away from: leave `guidance_scale` and `negative_prompt_ids` out.")
        ids = self._readable_ids(text.get("input_ids"), kwargs.get("assistant_model"), settings)
        begun = self._begun_length(kwargs.get("decoder_input_ids"), settings)
        if any(len(texts) == 0 for texts in text.values()):
            return self._nothing(begun, settings)
        kwargs["encoder_outputs"] = self._encode_input(text, sentence_embedding, kwargs, settings)
        rows = kwargs["encoder_outputs"].last_hidden_state
        if len(rows) == 0:
            return self._nothing(begun, settings)
        if ids is None:
            # The ids that transformers makes if there is no text, but on the device of the rows, not of the weights.
            ids = torch.full(rows.shape[:2], -100, device=rows.device)
        _mark_read_words(kwargs)
        criteria = self._set_end(kwargs, text, begun)
        if all(other is None for other in (logits_processor, stopping_criteria, *args)):
            if self._is_plainly_greedy(kwargs):
                return self._generate_in_stages(ids, criteria, kwargs)
            search = self._plain_beam_search(kwargs, rows.device)
            if search is not None:
                bounds = None if criteria is None else criteria.bounds.to(rows.device)
                sequences = search.run(self, rows, self._read_mask(kwargs), bounds)
                pad_ended(sequences, criteria, begun, *settings)
                return sequences
        stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), *([criteria] if criteria else [])])
        output = super().generate(ids, None, logits_processor, stopping_criteria, *args, **kwargs)
        pad_ended(getattr(output, "sequences", output), criteria, begun, *settings)
        return output

    def _is_plain(self, kwargs: dict[str, Any], known: set[str]) -> bool:
        """Whether the settings ask for a bounded search without sampling that returns ids, and are all in `known`."""
        # Left to transformers: it keeps sharded models in step, and rejects settings in the model's configuration.
        if _is_sharded(self) or self.config._get_generation_parameters():
            return False
        settings = (kwargs, self.generation_config.to_diff_dict())
        set_names = {
            name
            for given in settings
            for name, value in given.items()
            if not ((value is None or value is False) and hasattr(self.generation_config, name))
        }
        bound, pad_id = (setting(name, settings) for name in ("max_new_tokens", "pad_token_id"))
        # transformers rejects a bound of 0 words.
        is_bounded = pad_id is not None and bound is not None and bound > 0
        return set_names <= known and is_bounded and not setting("do_sample", settings)

    def _is_plainly_greedy(self, kwargs: dict[str, Any]) -> bool:
        settings = (kwargs, self.generation_config)
        # With one start token per text, those of the texts that go on would have to be selected.
        has_one_start = isinstance(setting("decoder_start_token_id", settings), int)
        is_greedy = (setting("num_beams", settings) or 1) == 1
        return is_greedy and has_one_start and self._is_plain(kwargs, _GREEDY_SETTINGS)

    def _plain_beam_search(self, kwargs: dict[str, Any], device: torch.device) -> BeamSearch | None:
        """The requested beam search, or None if only transformers can run it, or has to reject it."""
        if not self._is_plain(kwargs, _BEAM_SETTINGS):
            return None
        settings = (kwargs, self.generation_config)
        num_beams, number, early_stopping, penalty, use_cache = (
            setting(name, settings)
            for name in ("num_beams", "num_return_sequences", "early_stopping", "length_penalty", "use_cache")
        )
        if (num_beams or 1) == 1 or not (isinstance(early_stopping, bool) and use_cache):
            return None
        search = BeamSearch(
            num_beams=num_beams,
            num_return_sequences=1 if number is None else number,
            early_stopping=early_stopping,
            length_penalty=1.0 if penalty is None else penalty,
            max_new_tokens=setting("max_new_tokens", settings),
            start_id=setting("decoder_start_token_id", settings),
            pad_id=setting("pad_token_id", settings),
            end_ids=_end_ids(settings, device),
        )
        is_possible = 0 < search.num_return_sequences <= num_beams and search.num_candidates <= self.config.vocab_size
        return search if is_possible and isinstance(search.start_id, int) else None

    def _read_mask(self, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """The mask of the decoder's input, if there is one; all ones for a fixed representation."""
        rows, mask = kwargs["encoder_outputs"].last_hidden_state, kwargs.get("attention_mask")
        if mask is not None and self.config.has_latents:
            mask = torch.ones(rows.shape[:2], dtype=torch.long)
        return None if mask is None else mask.to(rows.device)

    def _generate_in_stages(
        self, ids: torch.Tensor, criteria: TextLengthCriteria | None, kwargs: dict[str, Any]
    ) -> torch.Tensor:
        """Greedy ids `(B, T)`, as transformers generates them, except that rows that have ended leave the batch.

        Args:
            ids: the text `(B, N)`, as it is passed to transformers.
            criteria: the bounds of the texts, if there are any.
            kwargs: arguments of `generate`.
        """
        mask = self._read_mask(kwargs)
        latents = kwargs.pop("encoder_outputs").last_hidden_state
        kwargs.pop("attention_mask", None)
        settings = (kwargs, self.generation_config)
        bound, pad_id = (setting(name, settings) for name in ("max_new_tokens", "pad_token_id"))
        kwargs |= {"return_dict_in_generate": True, "decoder_input_ids": None, "past_key_values": None}
        rows = torch.arange(len(latents))
        sequences, length = torch.full((len(latents), 1), pad_id, dtype=torch.long, device=ids.device), 1
        while len(rows) and length <= bound:
            bounds = None if criteria is None else TextLengthCriteria(criteria.bounds[rows], criteria.prompt)
            left = bound + 1 - length
            # A single row does not wait for others.
            kwargs["max_new_tokens"] = left if len(rows) == 1 else min(WORDS_OF_A_STAGE, left)
            output: Any = super().generate(
                ids[rows],
                stopping_criteria=None if bounds is None else StoppingCriteriaList([bounds]),
                encoder_outputs=BaseModelOutput(last_hidden_state=latents[rows]),
                attention_mask=None if mask is None else mask[rows],
                **kwargs,
            )
            words, cache = output.sequences, output.past_key_values
            length = words.shape[1]
            sequences = nn.functional.pad(sequences, (0, length - sequences.shape[1]), value=pad_id)
            sequences[rows] = words
            goes_on = ~_is_end(words, 1, settings).any(dim=1)
            if bounds is not None:
                goes_on &= ~bounds.reached(len(words), length - bounds.prompt)
            goes_on = goes_on.cpu()  # which waits for a GPU once
            rows = rows[goes_on]
            if cache is not None:
                cache.batch_select_indices(goes_on)
            kwargs |= {"decoder_input_ids": words[goes_on], "past_key_values": cache, "decoder_attention_mask": None}
            _mark_read_words(kwargs)
        pad_ended(sequences, criteria, 1, *settings)
        return sequences

    def _encode_input(
        self,
        text: dict[str, torch.Tensor],
        sentence_embedding: torch.Tensor | None,
        kwargs: dict[str, Any],
        settings: Iterable[object],
    ) -> BaseModelOutput:
        """The decoder's input as `last_hidden_state`, with the states and attentions the encoder records on request."""
        token_type_ids = kwargs.pop("token_type_ids", None)
        given: dict[str, Any] = dict(text)
        if text:
            given |= {name: setting(name, settings) for name in ("output_hidden_states", "output_attentions")}
            given["attention_mask"] = kwargs.get("attention_mask")
        if token_type_ids is not None:
            given["token_type_ids"] = token_type_ids
        read = self._read_input(kwargs.get("encoder_outputs"), sentence_embedding, **given)
        return BaseModelOutput(
            last_hidden_state=read.latents, hidden_states=read.hidden_states, attentions=read.attentions
        )

    def _readable_ids(
        self, input_ids: torch.Tensor | None, assistant_model: object, settings: Iterable[object]
    ) -> torch.Tensor | None:
        """The text's ids, for an assistant and for settings that compare the output with the words of the input.

        Raises:
            ValueError: such a setting with two vocabularies, or an assistant without `input_ids`.
        """
        neutral = {"encoder_no_repeat_ngram_size": (None, 0), "encoder_repetition_penalty": (None, 1.0)}
        asked = [name for name, values in neutral.items() if setting(name, settings) not in values]
        if asked and self.config.separate_vocabularies:
            raise ValueError(
                f"`{asked[0]}` compares the words of the output with those of the input, and this model has two "
                "vocabularies (`separate_vocabularies`). Leave it out."
            )
        if assistant_model is not None and input_ids is None:
            raise ValueError("`assistant_model` encodes the text itself: give `input_ids`, or leave it out.")
        if input_ids is None or not asked:
            return input_ids
        # Words of an expanded vocabulary cannot be generated, and have no score to change.
        return input_ids.masked_fill(input_ids >= self.config.vocab_size, self.config.unk_token_id)

    def _nothing(self, begun: int, settings: Iterable[object]) -> GenerateOutput | torch.Tensor:
        """The output for an empty batch: ids `(0, begun)`."""
        sequences = torch.empty((0, begun), dtype=torch.long, device=self.device)
        in_full = setting("return_dict_in_generate", settings)
        return GenerateEncoderDecoderOutput(sequences=sequences) if in_full else sequences

    def _set_end(self, kwargs: dict[str, Any], text: dict[str, torch.Tensor], begun: int) -> TextLengthCriteria | None:
        """Sets `max_new_tokens` in `kwargs` to the caller's bound or else to the longest text's, and returns the texts'
        own bounds if these apply. `begun` tokens count towards a `max_length`."""
        settings = (kwargs, self.generation_config)
        if (setting("num_beams", settings) or 1) > 1 and setting("early_stopping", settings) is None:
            # Otherwise a beam that repeats a word runs to the batch's bound, since its mean score could still improve.
            kwargs["early_stopping"] = True
        if kwargs.get("max_new_tokens") is not None:
            return None
        kwargs.pop("max_new_tokens", None)  # transformers would replace None with its default of 20 tokens
        max_length = setting("max_length", settings)
        kwargs.pop("max_length", None)
        if max_length is not None:
            # Given as new tokens, since transformers would prefer the model's own `max_new_tokens` to a `max_length`.
            kwargs["max_new_tokens"] = max_length - begun
            return None
        if not text:
            if self.generation_config.max_new_tokens is None:
                kwargs["max_new_tokens"] = MIN_TOKENS_FROM_EMBEDDING
            return None
        if self.config.separate_vocabularies and self.generation_config.max_new_tokens is not None:
            return None  # tokens of the other vocabulary may be far shorter
        least = max(setting("min_new_tokens", settings) or 0, (setting("min_length", settings) or 0) - begun)
        bounds = text_bounds(next(iter(text.values())), kwargs.get("attention_mask")).clamp(min=least)
        criteria = TextLengthCriteria(bounds, begun)
        kwargs["max_new_tokens"] = int(criteria.bounds.max())
        return criteria

    def _begun_length(self, decoder_input_ids: torch.Tensor | None, settings: Iterable[object]) -> int:
        """Number of tokens that generation begins with: transformers prepends the start token if no row begins so."""
        if decoder_input_ids is None:
            return 1
        starts = (setting(name, settings) for name in ("decoder_start_token_id", "bos_token_id"))
        start = torch.as_tensor(next((one for one in starts if one is not None), -1), device=decoder_input_ids.device)
        return decoder_input_ids.shape[1] + int((decoder_input_ids[:, 0] != start).all())

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
