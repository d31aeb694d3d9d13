"""An encoder with a supervised head."""

import torch
from transformers.configuration_utils import PreTrainedConfig
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .base import DECODING_WEIGHTS, LatentPreTrainedModel
from .classifiers import LatentClassifier, split_pairs
from .encoder_model import NO_REPRESENTATION, LatentEncoderModel
from .losses import attention_penalty
from .outputs import LatentClassifierOutput


class LatentForSequenceClassification(LatentPreTrainedModel):
    """An encoder with a supervised head, over one text or, with `config.pair_combination`, over two.

    The labels are those of `AutoModelForSequenceClassification`: single-label, multi-label or regression, chosen by
    `config.problem_type` or else by `num_labels` and the labels' dtype. With `config.attention_penalty` the loss
    includes the penalty on the weights of `inner_attention`, which is also returned separately.

    Raises:
        ValueError: for a configuration without a fixed representation.
    """

    encoder_class: type[LatentEncoderModel] = LatentEncoderModel
    # Trainer scales the loss itself: parts of it are means over sentences, and no single item count fits them all.
    accepts_loss_kwargs = False

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        if not config.has_latents:
            raise ValueError(NO_REPRESENTATION)
        self.encoder = self.encoder_class(config)
        self.classifier = LatentClassifier(config)
        self.post_init()
        # transformers would add the weights that the inner encoder ignores when it is loaded alone.
        self._keys_to_ignore_on_load_unexpected = set(DECODING_WEIGHTS)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> LatentClassifierOutput:
        """Encodes, combines two texts if there are two, and classifies.

        Args:
            input_ids: `(B, N)` token ids of a text or of two texts in a row (as `tokenizer(first, second)` returns
                them), or `inputs_embeds` `(B, N, embedding_size)` instead.
            attention_mask: `(B, N)`, 0 for padding on either side; None means no padding.
            token_type_ids: `(B, N)`, 0 for tokens of the first text and 1 for those of the second
                (`tokenizer(first, second, return_token_type_ids=True)`).
            labels: `(B,)` classes or numbers, or `(B, num_labels)`.

        Raises:
            ValueError: if a model of pairs gets no `token_type_ids`, or a model of single texts gets a second text.
            TypeError: for an argument that nothing reads.
        """
        self.refuse_unknown(kwargs)
        if self.config.pair_combination is not None:
            if token_type_ids is None:
                raise ValueError(
                    f"`pair_combination` is {self.config.pair_combination!r}, so the model reads two texts, and "
                    "`token_type_ids` must tell them apart: give `return_token_type_ids=True` to the tokenizer, or to "
                    "the pipeline."
                )
            if input_ids is not None:
                input_ids, attention_mask = split_pairs(input_ids, attention_mask, token_type_ids)
            elif inputs_embeds is not None:
                inputs_embeds, attention_mask = split_pairs(inputs_embeds, attention_mask, token_type_ids)
        else:
            self.refuse_second_text(token_type_ids)
        encoded = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
        )
        logits = self.classifier(encoded.latents)
        loss = penalty = None
        if encoded.pooling_attentions is not None:
            penalty = attention_penalty(encoded.pooling_attentions).mean()
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
            if self.config.attention_penalty and penalty is not None:
                loss = loss + self.config.attention_penalty * penalty
        return LatentClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
            attention_penalty=penalty,
            pooling_attentions=encoded.pooling_attentions,
        )
