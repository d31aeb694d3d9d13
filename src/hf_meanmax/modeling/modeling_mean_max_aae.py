"""The mean-max attention autoencoder (Zhang, Wu, Li and Li, EMNLP 2018)."""

from .classifier_model import LatentForSequenceClassification
from .conditional_decoding import LatentForConditionalDecoding
from .configuration_mean_max_aae import MeanMaxAAEConfig
from .encoder_model import LatentEncoderModel


class MeanMaxAAEModel(LatentEncoderModel):
    """Encoder: self-attention, then the maximum and the mean over the tokens (eq. 8-14).

    `pooler_output` `(B, 2 * hidden_size)` is [max; mean], raw, by default; `config.pooling_rows` names the rows.
    """

    config: MeanMaxAAEConfig


class MeanMaxAAEForReconstruction(LatentForConditionalDecoding):
    """The whole autoencoder: the decoder attends over max row and mean row to reconstruct the input (eq. 15-22).

    ```python
    >>> from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    >>> import hf_meanmax

    >>> tokenizer = AutoTokenizer.from_pretrained("runs/docstrings/model")
    >>> model = AutoModelForSeq2SeqLM.from_pretrained("runs/docstrings/model")
    >>> embedding = model.encoder(**tokenizer("return the number of items", return_tensors="pt")).pooler_output
    >>> tokenizer.batch_decode(model.generate(sentence_embedding=embedding), skip_special_tokens=True)
    ```
    """

    config: MeanMaxAAEConfig
    encoder_class = MeanMaxAAEModel


class MeanMaxAAEForSequenceClassification(LatentForSequenceClassification):
    """The encoder with a supervised head, over one text or two."""

    config: MeanMaxAAEConfig
    encoder_class = MeanMaxAAEModel


__all__ = ["MeanMaxAAEForReconstruction", "MeanMaxAAEForSequenceClassification", "MeanMaxAAEModel"]
