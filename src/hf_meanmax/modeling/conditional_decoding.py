"""An encoder with a decoder that reads nothing but the latent rows."""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import ModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .base import CLASSIFIER_WEIGHTS, LatentPreTrainedModel
from .configuration_checks import DECODERS_WITH_CHANNELS
from .decoder_model import LatentDecoderModel, shift_right
from .decoders import NonAutoregressiveLayer
from .embeddings import TextEmbeddings, token_positions
from .encoder_model import LatentEncoderModel
from .generation import MIN_TOKENS_FROM_EMBEDDING, NO_DECODER, CanGenerate, LatentGenerationMixin
from .layers import WordSpaceProjection
from .losses import IGNORE_INDEX, full_cross_entropy, penalty_of_sentences
from .outputs import DecoderOutput, LatentModelOutput, LatentSeq2SeqOutput


class LatentForConditionalDecoding(LatentPreTrainedModel, LatentGenerationMixin):
    """An encoder with a decoder that reads nothing but Z.

    The labels determine what the decoder must generate: the input, the words that follow, or a translation. Other
    objectives and sampled softmax are in `hf_meanmax.objectives`.
    """

    encoder_class: type[LatentEncoderModel] = LatentEncoderModel
    # The fields of a batch that the encoder reads.
    encoder_inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    can_generate = CanGenerate()
    has_sparse_gradients = False
    _tied_weights_keys = {"lm_head.weight": "encoder.embeddings.word_embeddings.weight"}

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.encoder = self.encoder_class(config)
        self.decoder_embeddings = None
        reads_words = config.is_autoregressive or (config.has_decoder and config.tie_word_embeddings)
        if config.separate_vocabularies and reads_words:
            # Not frozen: pretrained word vectors, which may be frozen, are the encoder's.
            self.decoder_embeddings = TextEmbeddings(config, config.vocab_size, frozen=False)
            self._tied_weights_keys = {"lm_head.weight": "decoder_embeddings.word_embeddings.weight"}
        self.decoder = LatentDecoderModel(config) if config.has_decoder else None
        self.previous_decoder = LatentDecoderModel(config) if config.predict_previous else None
        self.context_decoder = None
        if config.context_channels is not None:
            self.context_decoder = NonAutoregressiveLayer(config, config.context_channels)
        self.output_projection = None
        if config.has_decoder and config.tie_word_embeddings and config.decoder_type not in DECODERS_WITH_CHANNELS:
            self.output_projection = WordSpaceProjection(config.decoder_output_size, config.embedding_size)
        self.lm_head: Any = None
        if config.has_decoder:
            self.lm_head = nn.Linear(config.scored_size, config.vocab_size, bias=config.output_bias)
        else:
            self._tied_weights_keys = {}
        self.teacher_head = None
        if config.teacher_size is not None:
            self.teacher_head = nn.Linear(config.sentence_embedding_size, config.teacher_size)
        self.contrastive_head = None
        if config.contrastive_size is not None:
            self.contrastive_head = nn.Linear(config.sentence_embedding_size, config.contrastive_size, bias=False)
        if self.can_generate():
            # Decoding stops at the end token; this bounds a decoder that never generates it, when there is no text
            # whose length could.
            self.generation_config.max_new_tokens = self.generation_config.max_new_tokens or MIN_TOKENS_FROM_EMBEDDING
        self.post_init()
        # transformers would add the weights that the inner encoder ignores when it is loaded alone.
        self._keys_to_ignore_on_load_unexpected = set(CLASSIFIER_WEIGHTS)

    def make_gradients_sparse(self) -> None:
        """Makes the gradients of the word tables sparse, with only the rows that a batch reads, so that their cost does
        not grow with the vocabulary; the output layer's are sparse only under sampled softmax."""
        self.has_sparse_gradients = True
        for embeddings in (self.encoder.embeddings, self.decoder_embeddings):
            if embeddings is not None:
                embeddings.word_embeddings.sparse = True

    @torch.no_grad()
    def start_from_frequencies(self, token_counts: torch.Tensor) -> None:
        """Initialises the output layer's bias with the log frequencies of the words, from their counts `(V,)` in the
        training texts; a word never seen counts as seen once.

        At a small learning rate a bias of zeros takes thousands of steps to get there, and until then the embeddings
        of all texts encode the same word frequencies.

        Raises:
            ValueError: the output layer has no bias, or there is not one count for each word.
        """
        bias = None if self.lm_head is None else self.lm_head.bias
        if bias is None:
            raise ValueError("The output layer has no bias to start from frequencies (`output_bias=False`).")
        if token_counts.shape != bias.shape:
            raise ValueError(f"token_counts has shape {tuple(token_counts.shape)}, expected {tuple(bias.shape)}.")
        counts = token_counts.double().clamp(min=1)
        bias.copy_((counts / counts.sum()).log())

    @property
    def has_own_output(self) -> bool:
        """Whether the output layer scores the words of the word table with its own weights."""
        config = self.config
        return bool(config.has_decoder and not config.tie_word_embeddings and not config.separate_vocabularies)

    @torch.no_grad()
    def start_output_from_words(self) -> None:
        """Initialises an untied output layer with the word vectors, randomly rotated into its width, so that similar
        words start with similar scores.

        The rows keep the cosines of the word vectors if the layer is at least as wide as these. All have length 0.7, so
        that scores of states of unit variance start with a standard deviation of 0.7. The rows of words without a
        vector are unchanged.

        Raises:
            ValueError: there is no output layer, it is tied, or it has another vocabulary.
        """
        if not self.has_own_output:
            raise ValueError("The output layer is tied to the word table, or is of another vocabulary.")
        words, rows = self.get_input_embeddings().weight, self.lm_head.weight
        turn = nn.init.orthogonal_(torch.empty(rows.shape[1], words.shape[1]))
        turned = nn.functional.normalize(words.float() @ turn.T.to(words.device), dim=-1)
        rows.copy_(torch.where(turned.any(dim=-1, keepdim=True), 0.7 * turned, rows.float()))

    def encode_latents(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        """Encodes token ids `(B, N)` for the decoder: as Z `(B, L, latent_width)`, or as the hidden states `(B, N, d)`
        if there are no rows."""
        encoded = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
        )
        return self.read_by_decoder(encoded)

    def read_by_decoder(self, encoded: LatentModelOutput) -> Any:
        """The part of the encoder's output that the decoder reads: Z, or the hidden states if there are no rows."""
        return encoded.latents if self.config.has_latents else encoded.last_hidden_state

    def output_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The inputs of the output layer: the decoder's states, projected if the output is tied."""
        return hidden_states if self.output_projection is None else self.output_projection(hidden_states)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: ModelOutput | tuple[torch.Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        sentence_embedding: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> LatentSeq2SeqOutput:
        """Encodes, decodes under teacher forcing, and scores the labels.

        Args:
            input_ids: `(B, N)` token ids of the input.
            attention_mask: `(B, N)`, 0 for padding on either side; None means no padding.
            decoder_input_ids: `(B, T)`; made from `labels` (or from `input_ids`) when left out. A non-autoregressive
                decoder takes none.
            decoder_attention_mask: `(B, T)`, 0 for padding in the decoder's input.
            encoder_outputs: in place of an input text, the output of `get_encoder()`, or a `BaseModelOutput` whose
                `last_hidden_state` is Z `(B, L, latent_width)` or, if there are no rows, the hidden states (with their
                `attention_mask`).
            past_key_values: the cache of an earlier call with `use_cache`, to continue after the words it has read.
            decoder_inputs_embeds: `(B, T, embedding_size)` in place of `decoder_input_ids`.
            labels: `(B, T)` target ids, -100 where there is none; for a text without `attention_mask` they may be
                padded only on the right. The loss is their cross entropy plus any penalty on attention weights.
            sentence_embedding: raw embeddings `(B, L * d)` in place of an input text.
            kwargs: `use_cache`, whether to return `past_key_values` (default: `config.use_cache` outside training if
                decoder inputs but no labels are given, otherwise False); `num_items_in_batch`, the divisor of the
                summed loss (default: the number of targets in this batch); `token_type_ids`, all 0; and arguments of
                the layers, for instance `output_attentions=True`.

        Raises:
            ValueError: if the model has no decoder; if there is nothing to decode, or more than the decoder can
                predict; if arguments do not fit the decoder or each other.
            TypeError: for an argument that nothing reads.
        """
        if self.decoder is None or self.lm_head is None:
            raise ValueError(NO_DECODER)
        num_items, use_cache = (kwargs.pop(name, None) for name in ("num_items_in_batch", "use_cache"))
        self.refuse_second_text(kwargs.pop("token_type_ids", None))
        self.refuse_unknown(kwargs)
        read = self._read_input(
            encoder_outputs, sentence_embedding, input_ids=input_ids, attention_mask=attention_mask,
            inputs_embeds=inputs_embeds, **kwargs,
        )  # fmt: skip
        latents: Any = read.latents
        self.check_words(latents.shape[0], labels, decoder_input_ids, decoder_inputs_embeds, decoder_attention_mask)
        is_vector = sentence_embedding is not None or not self.config.reads_text
        if is_vector and labels is not None and attention_mask is None:
            # Without an input text, only the labels show where padding on the left ends.
            attention_mask = (labels != IGNORE_INDEX).long()
        has_inputs = decoder_input_ids is not None or decoder_inputs_embeds is not None
        targets = labels
        if labels is None and not has_inputs and self.config.is_autoregressive:
            targets = self._own_words(input_ids, attention_mask)
        if use_cache is None:
            use_cache = self.config.use_cache and has_inputs and labels is None and not self.training
        outputs = self.decode(
            latents, targets, attention_mask, decoder_input_ids, decoder_attention_mask,
            decoder_inputs_embeds=decoder_inputs_embeds,
            past_key_values=self._decoding_cache(past_key_values) if use_cache else past_key_values, **kwargs,
        )  # fmt: skip
        states: Any = outputs.last_hidden_state
        logits = self.lm_head(self.output_states(states))
        loss, penalty = (
            (None, None) if labels is None else self._losses(logits, labels, read.pooling_attentions, num_items)
        )
        return LatentSeq2SeqOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            latent_gates=outputs.latent_gates,
            encoder_last_hidden_state=latents,
            encoder_hidden_states=read.hidden_states,
            encoder_attentions=read.attentions,
            latents=latents if self.config.has_latents else None,
            attention_penalty=penalty,
        )

    def _read_input(
        self,
        encoder_outputs: ModelOutput | tuple[torch.Tensor, ...] | None,
        sentence_embedding: torch.Tensor | None = None,
        **text: Any,
    ) -> LatentModelOutput:
        """The decoder's input as `latents`, with the hidden states and attentions that the encoder recorded."""
        if sentence_embedding is not None:
            words = (text.get("input_ids"), text.get("inputs_embeds"))
            if any(given is not None for given in (encoder_outputs, *words)):
                raise ValueError("Give one of a text, `encoder_outputs` and `sentence_embedding`.")
            return LatentModelOutput(latents=self.latents_from_embedding(sentence_embedding))
        if encoder_outputs is None:
            encoded = self.encoder(**text)
            return LatentModelOutput(
                latents=self.read_by_decoder(encoded),
                hidden_states=encoded.hidden_states,
                attentions=encoded.attentions,
                pooling_attentions=encoded.pooling_attentions,
            )
        return LatentModelOutput(
            latents=self._given_latents(encoder_outputs),
            hidden_states=getattr(encoder_outputs, "hidden_states", None),
            attentions=getattr(encoder_outputs, "attentions", None),
            pooling_attentions=getattr(encoder_outputs, "pooling_attentions", None),
        )

    def _decoding_cache(self, past_key_values: Cache | None) -> Cache | None:
        """The given cache, or a new one for an autoregressive decoder."""
        if past_key_values is None and self.config.is_autoregressive:
            # The second, the cache for cross-attention, is never used.
            caches = (DynamicCache(config=self.config) for _ in range(2))
            past_key_values = EncoderDecoderCache(*caches)
        return past_key_values

    def _losses(
        self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None, num_items: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The loss, and the penalty on the pooling's attention weights that it includes, or None."""
        more_are_read = (self.config.input_vocab_size or 0) > self.config.vocab_size
        if more_are_read and not self.config.separate_vocabularies and bool((labels >= self.config.vocab_size).any()):
            raise ValueError(
                f"`labels` hold words that were added to the encoder alone (from {self.config.vocab_size} on); the "
                "decoder cannot generate them. Put `unk_token_id` or -100 in their place."
            )
        smoothing = self.config.label_smoothing if self.training else 0.0
        loss = full_cross_entropy(logits, labels, smoothing, num_items)
        if not self.config.attention_penalty or weights is None:
            return loss, None
        penalty = penalty_of_sentences(weights, labels, num_items=num_items)
        return loss + self.config.attention_penalty * penalty, penalty

    def decode(
        self,
        latents: torch.Tensor,
        targets: torch.Tensor | None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        decoder: LatentDecoderModel | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> DecoderOutput:
        """The decoder's states `(B, T, d)` under teacher forcing.

        Args:
            latents: the decoder's input, as returned by [`encode_latents`].
            targets: `(B, T)` ids that the decoder must generate, -100 where there is none.
            attention_mask: `(B, N)` of the input text; None means no padding, in the targets either.
            decoder_input_ids: `(B, T)`; made from `targets` when left out.
            decoder_attention_mask: `(B, T)`, 0 for padding in the decoder's input.
            decoder_inputs_embeds: `(B, T, embedding_size)` in place of `decoder_input_ids`.
            decoder: default: the model's own; `previous_decoder` decodes the previous sentence (skip-thought).
            kwargs: `past_key_values`, and arguments of the layers.
        """
        given = [words for words in (decoder_input_ids, decoder_inputs_embeds) if words is not None]
        if not self.config.has_latents and attention_mask is not None:
            kwargs["latent_mask"] = attention_mask
        if not self.config.is_autoregressive:
            kwargs.pop("past_key_values", None)
            return self._predict(latents, bool(given), targets, **kwargs)
        if len(given) > 1:
            raise ValueError("Give one of `decoder_input_ids` and `decoder_inputs_embeds`.")
        if not given:
            if targets is None:
                raise ValueError("Give `targets` or `decoder_input_ids`: there is nothing to decode.")
            given = [self.prepare_decoder_input_ids_from_labels(targets)]
        if decoder_attention_mask is None and attention_mask is not None and targets is not None:
            # Without any padding the causal mask is enough; with it, padding on the left must be hidden.
            if decoder_input_ids is None:
                decoder_attention_mask = _from_first(targets != IGNORE_INDEX)
            elif self.config.decoder_start_token_id != self.config.pad_token_id:
                decoder_attention_mask = _from_first(decoder_input_ids != self.config.pad_token_id)
        return self._run_decoder(decoder or self.decoder, given[0], latents, decoder_attention_mask, **kwargs)

    def predict_context(self, latents: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The second decoder's inputs to the output layer, `(B, N, d)` at the places of the targets `(B, N)`."""
        self._check_places("context_targets", targets)
        predict: Any = self.context_decoder
        return predict(latents)[:, : targets.shape[1]]

    def _given_latents(self, encoder_outputs: ModelOutput | tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The part of an encoder's output that the decoder reads: `latents` if it has them, else its first tensor."""
        latents = getattr(encoder_outputs, "latents", None)
        latents = encoder_outputs[0] if latents is None else latents
        rows, width = self.config.num_latents, self.config.latent_width
        # The encoder's own tuple begins with hidden states, which may have the shape of Z.
        more = encoder_outputs[1:] if isinstance(encoder_outputs, tuple | list) else ()
        is_encoders = any(isinstance(part, torch.Tensor) for part in more)
        if self.config.has_latents and (is_encoders or latents.dim() != 3 or latents.shape[1:] != (rows, width)):
            raise ValueError(
                f"`encoder_outputs` begin with a tensor of shape {tuple(latents.shape)}; this decoder reads Z "
                f"(B, {rows}, {width}). Give what `get_encoder()` returns with `return_dict=True`."
            )
        return latents

    def _run_decoder(
        self,
        decoder: Any,
        words: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> DecoderOutput:
        """Runs an autoregressive decoder over the words before the targets, ids `(B, T)` or vectors `(B, T, e)`."""
        steps = words.shape[1]
        position_ids, length = None, steps
        if attention_mask is not None and attention_mask.dim() == 2:
            length = attention_mask.shape[1]
            position_ids = token_positions(attention_mask)[:, -steps:]
        elif past_key_values is not None:
            past_length = past_key_values.get_seq_length()
            length = int(past_length) + steps
            position_ids = (torch.arange(steps, device=words.device) + past_length)[None]
        embeddings = self.encoder.embeddings if self.decoder_embeddings is None else self.decoder_embeddings
        inputs = embeddings(*((words, None) if words.dim() == 2 else (None, words)), position_ids, length)
        return decoder(inputs, latents, attention_mask=attention_mask, past_key_values=past_key_values, **kwargs)

    def _predict(
        self,
        latents: torch.Tensor,
        has_inputs: bool,
        labels: torch.Tensor | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> DecoderOutput:
        """Runs the non-autoregressive decoder; returns its states at as many places as there are labels."""
        if has_inputs:
            raise ValueError(
                f"decoder_type is {self.config.decoder_type!r}, which is not autoregressive: it takes no "
                "`decoder_input_ids` or `decoder_inputs_embeds`. Leave the data collator's `model` out: it makes them."
            )
        predict: Any = self.decoder
        outputs = predict(None, latents, **kwargs)
        if labels is not None:
            self._check_places("labels", labels)
            outputs.last_hidden_state = outputs.last_hidden_state[:, : labels.shape[1]]
        return outputs

    def _check_places(self, name: str, labels: torch.Tensor) -> None:
        places = self.config.num_context_words
        if labels.shape[1] > places:
            raise ValueError(
                f"`{name}` has {labels.shape[1]} places; this decoder predicts {places} words (`num_context_words`). "
                "Cut the labels."
            )

    def _own_words(self, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """The input as targets `(B, N)`, -100 at padding."""
        if input_ids is None:
            raise ValueError("Give `labels`, `decoder_input_ids` or `input_ids`: there is nothing to decode.")
        if self.config.separate_vocabularies:
            raise ValueError(
                "Give `labels` or `decoder_input_ids`: the text itself is of another vocabulary than what the decoder "
                "generates."
            )
        return input_ids if attention_mask is None else input_ids.masked_fill(attention_mask == 0, IGNORE_INDEX)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Decoder inputs `(B, T)` for labels `(B, T)`; transformers' collators and Trainer call this method."""
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)


def _from_first(is_word: torch.Tensor) -> torch.Tensor:
    """A mask `(B, T)` that hides padding before the first word. Padding after the last word needs none: the causal mask
    hides it from the words, and it is never scored."""
    return (is_word.cumsum(dim=1) > 0).long()
