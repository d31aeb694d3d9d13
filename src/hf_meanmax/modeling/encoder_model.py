"""The encoder model of every family: tokens -> hidden states -> latent rows -> embedding."""

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention import MultiHeadAttention
from .base import CLASSIFIER_WEIGHTS, DECODING_WEIGHTS, LatentPreTrainedModel
from .by_length import encode_by_length, sizes_of_like_length
from .embeddings import TextEmbeddings, WordProjections, token_positions
from .encoders import ENCODERS
from .layers import SequenceLayer, scale_rows, unit_rows
from .outputs import LatentModelOutput
from .pooling import POOLINGS, WeightedMeanPooling

NO_REPRESENTATION = (
    "`pooling` is 'none': the decoder attends over all hidden states, and the model has no fixed representation, so no "
    "latents, pooler_output or sentence embedding. Train one with a pooling, for instance 'inner_attention'."
)


class LatentEncoderModel(LatentPreTrainedModel):
    """Token sequence -> hidden states -> latent rows Z -> sentence embedding."""

    _keys_to_ignore_on_load_unexpected = [*DECODING_WEIGHTS, *CLASSIFIER_WEIGHTS]
    _can_record_outputs = {
        "hidden_states": SequenceLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1),
    }

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.embeddings = TextEmbeddings(config)
        self.sequence_encoder: Any = ENCODERS[config.encoder_type](config)
        self.pooler = POOLINGS[config.pooling](config)
        self.word_pooler = WeightedMeanPooling(config) if config.has_weighted_mean else None
        self.latent_scales = nn.Parameter(torch.ones(config.num_latents)) if config.latent_scales else None
        self.word_projections = WordProjections() if config.encoder_type == "self_attention" else None
        self.gradient_checkpointing = False
        self.post_init()

    def cache_word_projections(self) -> None:
        """Computes query, key and value of every word now; otherwise encoding in `torch.inference_mode()` on a CPU
        computes them when a text first contains the word.

        Training, loading weights, `to()`, a forward pass with gradients and any in-place change of a weight drop them.
        Call this again, or [`drop_word_projections`][], after a change through `.data`. An encoder without
        self-attention, or whose table would exceed 1 GiB, has none.
        """
        self.drop_word_projections()
        if self.word_projections is not None:
            with torch.inference_mode():
                attention: Any = self.sequence_encoder.layers[0].attention
                self.word_projections.fill(self.embeddings, attention)

    def drop_word_projections(self) -> None:
        """Drops the projections that [`cache_word_projections`][] has computed."""
        if self.word_projections is not None and self.word_projections.table is not None:
            self.word_projections = WordProjections()

    def train(self, mode: bool = True) -> "LatentEncoderModel":
        """[`torch.nn.Module.train`]; training mode drops the words' projections."""
        if mode:
            self.drop_word_projections()
        return super().train(mode)

    def _apply(self, *args: object, **kwargs: Unpack[TransformersKwargs]) -> "LatentEncoderModel":
        self.drop_word_projections()
        return super()._apply(*args, **kwargs)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> LatentModelOutput:
        """Encodes sentences.

        Args:
            input_ids: `(B, N)` token ids, or give `inputs_embeds` `(B, N, embedding_size)` instead, unless
                the model has a weighted mean, which looks up weights by id.
            attention_mask: `(B, N)`, 1 for tokens and 0 for padding on either side; None means no padding at all.
            token_type_ids: `(B, N)`, all 0, from a tokenizer that gives them.

        Raises:
            ValueError: if not exactly one of `input_ids` and `inputs_embeds` is given, if there is a second text, if
                `input_ids` are no integers `(B, N)`, or if the mask has another shape.
            TypeError: for an argument that nothing reads.
        """
        self.refuse_unknown(kwargs)
        self.refuse_second_text(token_type_ids)
        self.check_text(input_ids, inputs_embeds, attention_mask)
        if input_ids is not None and not self.training:  # training need not wait for a GPU
            self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        if torch.is_grad_enabled():
            self.drop_word_projections()
        projected = None
        # The first recorded hidden state is the input of the first layer; 0 asks for that one alone.
        hidden_states_too = kwargs.get("output_hidden_states", self.config.output_hidden_states)
        records_inputs = hidden_states_too is not None and hidden_states_too is not False
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if not is_traced and self.word_projections is not None and input_ids is not None and not records_inputs:
            attention: Any = self.sequence_encoder.layers[0].attention
            projected = self.word_projections(self.embeddings, attention, input_ids, attention_mask)
        inputs, words = projected, inputs_embeds
        if self.word_pooler is not None and input_ids is not None:
            # Encoder and pooling share one look-up, and so one gradient of the table.
            words = self.embeddings.embed_words(input_ids)
        if inputs is None:
            position_ids = None if attention_mask is None else token_positions(attention_mask)
            inputs = self.embeddings(input_ids if words is None else None, words, position_ids)
        hidden_states = self.sequence_encoder(inputs, attention_mask, projected=projected, **kwargs)
        latents, pooling_attentions = self.pooler(hidden_states, attention_mask)
        if self.word_pooler is not None:
            row = self.weighted_mean(words, input_ids, attention_mask)
            latents = row if latents is None else torch.cat((latents, row.to(latents.dtype)), dim=1)
        if latents is not None:
            latents = self.scale_rows(latents)
        return LatentModelOutput(
            last_hidden_state=hidden_states,
            pooler_output=None if latents is None else latents.flatten(1),
            latents=latents,
            pooling_attentions=pooling_attentions,
        )

    def weighted_mean(
        self,
        words: torch.Tensor | None,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The weighted mean of the words as a row of Z `(B, 1, d)`, before rows are scaled.

        Args:
            words: word vectors `(B, N, embedding_size)` of the ids.
            input_ids: `(B, N)` token ids.
            attention_mask: `(B, N)`, 1 for tokens and 0 for padding; None means no padding.

        Raises:
            ValueError: words without ids.
        """
        if input_ids is None:
            raise ValueError("The weighted mean has a weight for each word: give `input_ids`, not `inputs_embeds`.")
        assert self.word_pooler is not None
        row: torch.Tensor = self.word_pooler(words, input_ids, attention_mask)
        return row.unsqueeze(1)

    def scale_rows(self, latents: torch.Tensor) -> torch.Tensor:
        """Z `(B, L, d)`, normalised and scaled as configured, see [`~hf_meanmax.modeling.layers.scale_rows`].

        Raises:
            ValueError: the scales are not in memory.
        """
        if self.latent_scales is not None and self.latent_scales.is_meta and not latents.is_meta:
            raise ValueError(
                "The encoder's `latent_scales` have no values: `device_map` has put them on the disk, or they are on "
                "the device 'meta'. To decode vectors, keep the encoder in memory."
            )
        return scale_rows(latents, self.config, self.latent_scales)

    def forward_by_length(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> LatentModelOutput:
        """The forward pass that a SentenceTransformer folder calls. On a CPU without gradients, it encodes texts in
        groups of similar length: a batch may hold texts of any lengths, and the output then has only `latents` and
        `pooler_output`.

        Args:
            input_ids: `(B, N)` token ids.
            attention_mask: `(B, N)`, 1 for tokens and 0 for padding on either side; None means no padding at all.
            token_type_ids: `(B, N)`, all 0, from a tokenizer that gives them.

        Raises:
            ValueError: if the model has no fixed representation, or if there is a second text.
        """
        if not self.config.has_latents:
            raise ValueError(NO_REPRESENTATION)
        self.refuse_second_text(token_type_ids)
        records = self.config.output_hidden_states or self.config.output_attentions
        learns = self.training or torch.is_grad_enabled()
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        # In a static model the overhead of groups exceeds the cost of padding.
        is_whole = learns or records or is_traced or self.config.is_static or not input_ids.is_cpu
        if is_whole or attention_mask is None or len(input_ids) < 2:
            return self(input_ids=input_ids, attention_mask=attention_mask)
        # The states of this many tokens fit a core's cache; a recurrent network steps through all rows at once.
        most_tokens = 2048 if self.config.encoder_type == "self_attention" else None
        sizes = partial(sizes_of_like_length, most_tokens=most_tokens)
        latents = encode_by_length(self, input_ids, attention_mask, sizes)
        return LatentModelOutput(pooler_output=latents.flatten(1), latents=latents)

    def normalized_rows(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The flat embedding `(B, L * d)` with each latent row at unit length, as in the mean-max authors' code.

        A SentenceTransformer folder exported with `normalize="rows"` calls it; such a vector cannot be decoded.

        Raises:
            ValueError: if the model has no fixed representation.
        """
        latents = self.forward_by_length(input_ids, attention_mask).latents
        assert latents is not None
        return unit_rows(latents).flatten(1)
