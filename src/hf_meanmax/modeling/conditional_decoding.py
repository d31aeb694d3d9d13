"""An encoder with a decoder that reads nothing but the latent rows."""

from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.cache_utils import Cache
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput, ModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .base import LatentPreTrainedModel
from .configuration_base import DECODERS_WITH_CHANNELS
from .decoder_model import LatentDecoderModel, shift_right, token_positions
from .decoders import AllWordsLayer
from .embeddings import TextEmbeddings
from .encoder_model import NO_REPRESENTATION, LatentEncoderModel
from .generation import LEAST_OF_EMBEDDING, TextLengthCriteria, pad_ended, text_bounds
from .layers import WordSpaceProjection
from .losses import IGNORE_INDEX, chunked_cross_entropy, full_cross_entropy, mean_over_sentences, sampled_cross_entropy
from .outputs import DecoderOutput, LatentModelOutput, LatentSeq2SeqOutput
from .pooling import attention_penalty


class LatentForConditionalDecoding(LatentPreTrainedModel, GenerationMixin):
    """An encoder with an autoregressive decoder that reads nothing but Z.

    What the decoder must say (the input, a translation) is a matter of the labels.
    """

    encoder_class: type[LatentEncoderModel] = LatentEncoderModel
    has_sparse_gradients = False
    _tied_weights_keys = {"lm_head.weight": "encoder.embeddings.word_embeddings.weight"}

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.encoder = self.encoder_class(config)
        self.decoder_embeddings = None
        if config.separate_vocabularies:
            self.decoder_embeddings = TextEmbeddings(config, config.vocab_size)
            self._tied_weights_keys = {"lm_head.weight": "decoder_embeddings.word_embeddings.weight"}
        self.decoder = LatentDecoderModel(config)
        self.previous_decoder = LatentDecoderModel(config) if config.predict_previous else None
        self.context_decoder = None
        if config.context_channels is not None:
            self.context_decoder = AllWordsLayer(config, 0, config.context_channels)
        self.output_projection = None
        if config.tie_word_embeddings and config.decoder_type not in DECODERS_WITH_CHANNELS:
            self.output_projection = WordSpaceProjection(config.decoder_output_size, config.embedding_size)
        self.lm_head = nn.Linear(config.scored_size, config.vocab_size, bias=config.output_bias)
        self.teacher_head = None
        if config.teacher_size is not None:
            self.teacher_head = nn.Linear(config.sentence_embedding_size, config.teacher_size)
        # The sentence's end, not a length, stops a decoding; this bounds a decoder that never ends, where there is no
        # text whose length would do so.
        self.generation_config.max_new_tokens = self.generation_config.max_new_tokens or LEAST_OF_EMBEDDING
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.set_input_embeddings(value)

    def make_gradients_sparse(self) -> None:
        """From now on the gradients of the word tables are sparse tensors of the rows that a batch has read, so that
        they cost no more for a large vocabulary; the output's under a sampled softmax alone."""
        self.has_sparse_gradients = True
        for embeddings in (self.encoder.embeddings, self.decoder_embeddings):
            if embeddings is not None:
                embeddings.word_embeddings.sparse = True

    @torch.no_grad()
    def start_from_frequencies(self, token_counts: torch.Tensor) -> None:
        """Makes the output layer's bias the log frequencies of the words, from their counts `(V,)` in the training
        texts; a word never seen counts as seen once.

        At a small learning rate a bias of zeros takes thousands of steps to get there, and until then the embedding
        tells how frequent words are, the same for all texts.

        Raises:
            ValueError: the output layer has no bias, or the counts are not one for each word.
        """
        bias = self.lm_head.bias
        if bias is None:
            raise ValueError("The output layer has no bias to start from frequencies (`output_bias=False`).")
        if token_counts.shape != bias.shape:
            raise ValueError(f"token_counts has shape {tuple(token_counts.shape)}, expected {tuple(bias.shape)}.")
        counts = token_counts.double().clamp(min=1)
        bias.copy_((counts / counts.sum()).log())

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.lm_head = value

    def encode_latents(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """What the decoder reads of token ids `(B, N)`: Z `(B, L, latent_width)`, or the hidden states `(B, N, d)`
        where there are no rows."""
        encoded = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
        )
        return self._read_of(encoded)

    def _read_of(self, encoded: LatentModelOutput) -> Any:
        return encoded.latents if self.config.has_latents else encoded.last_hidden_state

    def output_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The vectors that the output layer scores: the decoder's states, projected where the output is tied."""
        return hidden_states if self.output_projection is None else self.output_projection(hidden_states)

    def score(
        self,
        hidden_states: Any,
        labels: torch.Tensor | None,
        candidate_ids: torch.Tensor | None = None,
        candidate_log_prob: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool = True,
    ) -> tuple[Any, Any]:
        """Loss of the decoder's states `(B, T, d)` against labels `(B, T)`, and logits `(B, T, V)` where they are made.

        The arguments are those of [`forward`].
        """
        options = (labels, candidate_ids, candidate_log_prob, num_items_in_batch, return_logits)
        return self._score_states(self.output_states(hidden_states), *options)

    def _score_states(
        self,
        states: torch.Tensor,
        labels: torch.Tensor | None,
        candidate_ids: torch.Tensor | None,
        candidate_log_prob: torch.Tensor | None,
        num_items_in_batch: torch.Tensor | int | None,
        return_logits: bool,
    ) -> tuple[Any, Any]:
        smoothing = self.config.label_smoothing if self.training else 0.0
        weight, bias = self.lm_head.weight, self.lm_head.bias
        if candidate_ids is not None:
            if labels is None or candidate_log_prob is None:
                raise ValueError("A sampled softmax needs `labels` and `candidate_log_prob` beside `candidate_ids`.")
            loss = sampled_cross_entropy(
                states, weight, bias, labels, candidate_ids, candidate_log_prob, smoothing, num_items_in_batch,
                sparse=self.has_sparse_gradients,
            )  # fmt: skip
            return loss, None
        if labels is not None and not return_logits:
            return chunked_cross_entropy(states, weight, bias, labels, smoothing, num_items_in_batch), None
        logits = self.lm_head(states)
        if labels is None:
            return None, logits
        return full_cross_entropy(logits, labels, smoothing, num_items_in_batch), logits

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: ModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        previous_targets: torch.Tensor | None = None,
        use_cache: bool | None = None,
        candidate_ids: torch.Tensor | None = None,
        candidate_log_prob: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        return_logits: bool = True,
        teacher_embeddings: torch.Tensor | None = None,
        teacher_weight: float = 1.0,
        context_targets: torch.Tensor | None = None,
        context_weight: float = 1.0,
        num_sentences_in_batch: torch.Tensor | int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> LatentSeq2SeqOutput:
        """Encodes, decodes under teacher forcing, and scores the labels.

        Args:
            input_ids: `(B, N)` token ids of the input.
            attention_mask: `(B, N)`, 0 for padding on either side; None means no padding.
            decoder_input_ids: `(B, T)`; made from `labels` (or from `input_ids`) when left out. A decoder that predicts
                all words at once takes none.
            decoder_attention_mask: `(B, T)`, 0 for padding in the decoder's input.
            encoder_outputs: what `get_encoder()` gave, or a `BaseModelOutput` whose `last_hidden_state` is Z
                `(B, L, latent_width)`, or the hidden states (with their `attention_mask`) where there are no rows,
                instead of an input text.
            labels: `(B, T)` target ids, -100 where there is none.
            previous_targets: `(B, T')`, what the decoder of the previous sentence must say
                (`config.predict_previous`), -100 where there is none; its loss is added. (transformers' Trainer would
                miss an argument called labels in any batch without it.)
            candidate_ids, candidate_log_prob: `(C,)` each; the loss is then a sampled softmax
                ([`~losses.sampled_cross_entropy`]) and no logits are returned.
            num_items_in_batch: what the summed loss is divided by (default: the targets of this batch).
            return_logits: False computes the loss without holding all logits.
            teacher_embeddings: `(B, teacher_size)`, NaN in rows that have none: the loss also has the squared distance
                of a linear map of the embedding from them, times `teacher_weight`, in the mean over the sentences
                (compound attention, eq. 4.9).
            context_targets: `(B, N)` words around the texts, -100 where there is none, which the second decoder
                (`config.context_channels`) must predict: the loss also has their summed cross entropy, times
                `context_weight`, divided by what the loss of `labels` is divided by.
            num_sentences_in_batch: what sums over sentences are divided by (default: the sentences of this batch; with
                `num_items_in_batch` their mean counts by this batch's share of the targets).

        Raises:
            ValueError: if there is nothing to say, or more than the decoder can; if arguments do not fit the decoder.
        """
        if previous_targets is not None and self.previous_decoder is None:
            raise ValueError("`previous_targets` need a model with `predict_previous=True`.")
        if previous_targets is not None and labels is None:
            raise ValueError("`previous_targets` need `labels` beside them, of the sentence that follows.")
        if teacher_embeddings is not None and self.teacher_head is None:
            raise ValueError("`teacher_embeddings` need a model with `teacher_size`, the width of the vectors.")
        if context_targets is not None and (self.context_decoder is None or labels is None):
            raise ValueError("`context_targets` need a model with `context_channels`, and `labels` beside them.")
        weights: Any = None
        if encoder_outputs is None:
            encoded = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
            latents, weights = self._read_of(encoded), encoded.pooling_attentions
        else:
            latents = self._given_latents(encoder_outputs)
        if not self.config.has_latents and attention_mask is not None:
            kwargs["latent_mask"] = attention_mask
        use_cache = use_cache if use_cache is not None else self.config.use_cache and labels is None
        past_key_values = past_key_values if use_cache else None
        if self.config.is_autoregressive:
            if decoder_input_ids is None:
                targets = labels if labels is not None else self._own_words(input_ids, attention_mask)
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(targets)
                # Without any padding the causal mask is enough; with it, padding on the left must be hidden.
                if decoder_attention_mask is None and attention_mask is not None:
                    decoder_attention_mask = (targets != IGNORE_INDEX).long()
            elif labels is not None and decoder_attention_mask is None and attention_mask is not None:
                decoder_attention_mask = self._from_first_word(decoder_input_ids)
            decoder_outputs = self._say(
                self.decoder, decoder_input_ids, latents, decoder_attention_mask, past_key_values, **kwargs
            )
        else:
            decoder_outputs = self._predict(latents, decoder_input_ids, labels, **kwargs)
        states: Any = decoder_outputs.last_hidden_state
        wanted: torch.Tensor | None = labels
        if labels is not None and previous_targets is not None:
            # Scored together, as one text: the loss is the mean over the targets of both.
            is_padded = decoder_attention_mask is not None
            states = torch.cat((states, self._previous_states(previous_targets, latents, is_padded, **kwargs)), dim=1)
            wanted = torch.cat((labels, previous_targets), dim=1)
        loss, logits = self.score(states, wanted, candidate_ids, candidate_log_prob, num_items_in_batch, return_logits)
        if labels is not None and logits is not None:
            logits = logits[:, : labels.shape[1]]
        counts = (num_sentences_in_batch, labels, num_items_in_batch)
        teacher_loss = None
        if teacher_embeddings is not None:
            distance, given = self._teacher_distances(latents, teacher_embeddings)
            teacher_loss = mean_over_sentences(distance, given, *counts)
            loss = teacher_weight * teacher_loss if loss is None else loss + teacher_weight * teacher_loss
        context_loss = None
        if labels is not None and context_targets is not None:
            divisor = (labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
            around = self._predict_around(latents, context_targets)
            options = (context_targets, candidate_ids, candidate_log_prob, divisor, False)
            context_loss, _ = self._score_states(around, *options)
            loss = loss + context_weight * context_loss
        penalty = None
        if self.config.attention_penalty and labels is not None and weights is not None:
            # A process without a sentence of its own has a row without targets.
            is_sentence = (labels != IGNORE_INDEX).any(dim=1)
            total = (attention_penalty(weights) * is_sentence).sum()
            penalty = mean_over_sentences(total, is_sentence.sum(), *counts)
            loss = loss + self.config.attention_penalty * penalty
        return LatentSeq2SeqOutput(
            loss=loss,
            logits=logits,
            past_key_values=past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            latent_gates=decoder_outputs.latent_gates,
            encoder_last_hidden_state=latents,
            latents=latents if self.config.has_latents else None,
            teacher_loss=teacher_loss,
            context_loss=context_loss,
            attention_penalty=penalty,
        )

    def _teacher_distances(
        self, latents: torch.Tensor, teacher_embeddings: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """||W u + b - t||^2 summed over the rows that have a t, and the number of these."""
        teacher_head: Any = self.teacher_head
        is_given = teacher_embeddings.isfinite().all(dim=-1, keepdim=True)
        wanted = torch.where(is_given, teacher_embeddings, torch.zeros_like(teacher_embeddings))
        distances = (teacher_head(latents.flatten(1)).to(wanted.dtype) - wanted).square() * is_given
        return distances.sum(), is_given.sum()

    def _given_latents(self, encoder_outputs: Any) -> torch.Tensor:
        """What the decoder reads of an encoder's output, Z before the hidden states."""
        latents = getattr(encoder_outputs, "latents", None)
        latents = encoder_outputs[0] if latents is None else latents
        rows, width = self.config.num_latents, self.config.latent_width
        if self.config.has_latents and (latents.dim() != 3 or latents.shape[1:] != (rows, width)):
            raise ValueError(
                f"`encoder_outputs` begin with a tensor of shape {tuple(latents.shape)}; this decoder reads Z "
                f"(B, {rows}, {width}). Give what `get_encoder()` returns with `return_dict=True`."
            )
        return latents

    def _from_first_word(self, decoder_input_ids: torch.Tensor) -> torch.Tensor | None:
        """A mask `(B, T)` that hides padding on the left of inputs that a collator has made of labels."""
        if self.config.decoder_start_token_id == self.config.pad_token_id:
            return None
        return ((decoder_input_ids != self.config.pad_token_id).cumsum(dim=1) > 0).long()

    def _say(
        self,
        decoder: Any,
        decoder_input_ids: torch.Tensor,
        latents: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> DecoderOutput:
        """An autoregressive decoder over the words `(B, T)` said so far."""
        steps = decoder_input_ids.shape[1]
        position_ids, length = None, steps
        if attention_mask is not None and attention_mask.dim() == 2:
            length = attention_mask.shape[1]
            position_ids = token_positions(attention_mask)[:, -steps:]
        elif past_key_values is not None:
            past_length = past_key_values.get_seq_length()
            length = int(past_length) + steps
            position_ids = (torch.arange(steps, device=decoder_input_ids.device) + past_length)[None]
        embeddings = self.encoder.embeddings if self.decoder_embeddings is None else self.decoder_embeddings
        inputs = embeddings(decoder_input_ids, None, position_ids, length)
        return decoder(inputs, latents, attention_mask=attention_mask, past_key_values=past_key_values, **kwargs)

    def _predict(
        self, latents: torch.Tensor, decoder_input_ids: torch.Tensor | None, labels: torch.Tensor | None, **kwargs: Any
    ) -> DecoderOutput:
        """A decoder of all words at once, over as many places as there are labels."""
        if decoder_input_ids is not None:
            raise ValueError(
                f"decoder_type is {self.config.decoder_type!r}, which predicts all words at once: it takes no "
                "`decoder_input_ids`."
            )
        outputs = self.decoder(None, latents, **kwargs)
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

    def _predict_around(self, latents: torch.Tensor, context_targets: torch.Tensor) -> torch.Tensor:
        """What the output layer scores of the second decoder, `(B, N, d)` over the places of the labels `(B, N)`."""
        self._check_places("context_targets", context_targets)
        predict: Any = self.context_decoder
        return predict(latents)[:, : context_targets.shape[1]]

    def _previous_states(
        self, previous_targets: torch.Tensor, latents: torch.Tensor, is_padded: bool, **kwargs: Any
    ) -> Any:
        """States `(B, T', d)` of the decoder of the previous sentence under teacher forcing."""
        words = self.prepare_decoder_input_ids_from_labels(previous_targets)
        mask = (previous_targets != IGNORE_INDEX).long() if is_padded else None
        return self._say(self.previous_decoder, words, latents, mask, **kwargs).last_hidden_state

    @staticmethod
    def create_masks_for_generate(config: PreTrainedConfig, attention_mask: torch.Tensor | None, **kwargs: Any) -> Any:
        """What generation with a cache of fixed size hands on: the mask `(B, past + T)` as it is. Positions are counted
        on it, and an attention's mask, which transformers would put in its place, means nothing to an LSTM."""
        return attention_mask

    def _own_words(self, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """The input as targets `(B, N)`, -100 at padding."""
        if input_ids is None:
            raise ValueError("Give `labels`, `decoder_input_ids` or `input_ids`: the decoder has nothing to say.")
        return input_ids if attention_mask is None else input_ids.masked_fill(attention_mask == 0, IGNORE_INDEX)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Decoder inputs `(B, T)` for labels `(B, T)`: what transformers' collators and Trainer call."""
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

    def latents_from_embedding(self, sentence_embedding: torch.Tensor) -> torch.Tensor:
        """Z `(B, L, d)` of raw sentence embeddings `(B, L * d)`, `(L * d,)` or `(B, L, d)`, with d the `latent_width`.

        Raises:
            ValueError: if the model has no fixed representation; if a vector has another size, holds NaN or infinities,
                was normalised or quantised, or cannot have come from this kind of encoder: such a vector has no text to
                give back.
        """
        if not self.config.has_latents:
            raise ValueError(NO_REPRESENTATION)
        rows, width = self.config.num_latents, self.config.latent_width
        if isinstance(sentence_embedding, (list, tuple)) and any(map(torch.is_tensor, sentence_embedding)):
            sentence_embedding = torch.stack(list(sentence_embedding))
        embedding = torch.as_tensor(sentence_embedding)
        expected = f"a raw vector of {rows * width} numbers ({rows} rows of {width})"
        if embedding.dim() == 3:
            fits = embedding.shape[1:] == (rows, width)
        else:
            fits = embedding.dim() in (1, 2) and embedding.shape[-1] == rows * width
        if not fits:
            raise ValueError(
                f"A sentence embedding of shape {tuple(embedding.shape)} cannot be decoded: this model decodes "
                f"{expected}. A truncated vector, or one of another model, cannot be decoded."
            )
        if not embedding.is_floating_point():
            raise ValueError(
                f"Sentence embeddings of type {str(embedding.dtype).removeprefix('torch.')} are quantised; this model "
                f"decodes {expected}."
            )
        latents = embedding.reshape(-1, rows, width).to(device=self.device)
        latents = latents.to(self.lm_head.weight.dtype)
        if not bool(torch.isfinite(latents).all()):
            raise ValueError(f"A sentence embedding holds NaN or infinite values; this model decodes {expected}.")
        slack = 1e-2
        is_normed = self.config.encoder_type == "self_attention" and self.config.latent_width == self.config.hidden_size
        if not is_normed or self.config.pooling == "inner_attention":
            # No layer norm keeps a raw row far from length 1 there, and some come near it by chance: what rounding
            # leaves of a normalised vector is nearer still.
            slack = max(torch.finfo(embedding.dtype).eps, 2e-6)
        norms = embedding.reshape(-1, rows, width).float().norm(dim=-1)
        lengths = torch.stack(((norms - 1).abs().amax(dim=-1), (norms.square().sum(-1).sqrt() - 1).abs()))
        is_unit = (lengths <= slack).any(dim=0)
        if len(latents) >= 8:
            # In bf16 none comes out at 1, but so many raw ones do not all come near it by chance.
            is_unit |= bool((lengths <= 1e-2).all(dim=-1).any())
        if bool(is_unit.any()):
            raise ValueError(
                f"{int(is_unit.sum())} of {len(latents)} sentence embeddings are L2-normalised; this model decodes "
                f"{expected}, as `pooler_output` gives it. Encode without normalisation."
            )
        pooler: Any = self.encoder.pooler
        reason = pooler.explain_foreign(latents)
        if reason is not None:
            raise ValueError(
                f"A sentence embedding did not come from this kind of encoder ({reason}); this model decodes "
                f"{expected}."
            )
        return latents

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
    ) -> Any:
        """[`~transformers.GenerationMixin.generate`], from text or from sentence embeddings alone.

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
                ([`latents_from_embedding`]), or if the decoder predicts all words at once.
        """
        if not self.config.is_autoregressive:
            raise ValueError(
                f"decoder_type is {self.config.decoder_type!r}, which predicts all words at once instead of saying one "
                "after the other: use predict_words()."
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
        criteria = None
        if kwargs.get("max_new_tokens") is None:
            kwargs.pop("max_new_tokens", None)  # transformers would take a None for its own default, 20 tokens
            max_length = kwargs.pop("max_length", None)
            has_own_bound = getattr(generation_config, "max_new_tokens", None) is not None
            if max_length is None and not has_own_bound:
                max_length = getattr(generation_config, "max_length", None)
            if max_length is not None:
                # The model's own bound is on new tokens, and transformers would let that one win.
                kwargs["max_new_tokens"] = max_length - self._begun_length(kwargs.get("decoder_input_ids"))
            elif text and not has_own_bound:
                criteria = TextLengthCriteria(text_bounds(next(iter(text.values())), attention_mask))
                kwargs["max_new_tokens"] = int(criteria.bounds.max())
                stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), criteria])
        output = super().generate(None, generation_config, logits_processor, stopping_criteria, *args, **kwargs)
        pad_ended(getattr(output, "sequences", output), criteria, kwargs, generation_config, self.generation_config)
        return output

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
        """The likeliest words at each place of a decoder that predicts all words at once.

        Args:
            input_ids: `(B, N)` token ids, or give `sentence_embedding` instead.
            attention_mask: `(B, N)`, 0 for padding on either side.
            sentence_embedding: raw embeddings `(B, L * d)` or Z `(B, L, d)`.
            top_k: words at each place.

        Returns:
            Ids and log probabilities, `(B, num_context_words, top_k)` each, the likeliest first.

        Raises:
            ValueError: if not exactly one of text and embeddings is given, if a vector cannot be decoded
                ([`latents_from_embedding`]), if `top_k` is not between 1 and the vocabulary size, or if the decoder
                says one word after the other.
        """
        if self.config.is_autoregressive:
            raise ValueError(
                f"decoder_type is {self.config.decoder_type!r}, which says one word after the other: use generate()."
            )
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
