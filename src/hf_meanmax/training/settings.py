"""The settings of a pretraining run, checked together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hf_meanmax.data.context import CONTEXTS
from hf_meanmax.fields import count, option
from hf_meanmax.modeling.configuration_base import LatentConfig
from hf_meanmax.pretrained import ENCODER_SOURCES

from .model_settings import settings_of
from .run_settings import RunArguments

# Settings without effect if there is no decoder.
_OF_DECODERS = (
    "decoding_weight", "softmax", "num_negatives", "label_smoothing", "output_bias", "frequency_bias",
    "output_from_words", "sample_sentences",
)  # fmt: skip
# Settings of the layers of an encoder or a decoder.
_OF_LAYERS = ("num_hidden_layers", "num_attention_heads", "intermediate_size")


@dataclass
class PretrainArguments(RunArguments):
    """The settings of a pretraining run."""

    corpus: list[str] = option(
        "text files or globs (.txt .gz .xz .zst .bz2), tables, addresses (hf:// s3://), one data set, or "
        "`docstrings` for the built-in one",
        ["docstrings"],
    )
    validation: list[str] | None = option("like corpus; by default a part of the corpus's documents is held out", None)
    validation_sentences: int = count("sentences that evaluations use", 2000)
    target: list[str] | None = option(
        "translation: like corpus; each line is the translation of the same line of the corpus", None
    )
    validation_target: list[str] | None = option("translation: like target, for the lines of validation", None)
    target_column: str = option("translation: column of the data set with the translations", "")
    split: str = option("split of a data set", "train")
    target_tokenizer: str = option(
        "translation: a tokenizer of the target's own, like tokenizer; by default both languages share one", ""
    )
    source_vocab_size: int = option(
        "size of the source vocabulary, with a `target_tokenizer` (0: vocab_size)", 0, at_least=0
    )
    min_tokens: int = count("shorter sentences are left out", 4)
    max_tokens: int = count("longer sentences are left out, or cut (see long_lines)", 32)
    max_target_tokens: int = count("translation: longer targets are left out with their pair, or cut", 35)
    long_lines: Literal["drop", "truncate"] = option(
        "whether sentences of more than max_tokens are left out or cut", "drop"
    )
    max_unknown_rate: float = option("sentences with more unknown words are left out", 1.0, at_least=0, at_most=1)
    drop_unknown_words: bool = option("remove unknown words from the training texts", False)
    initial_model: str = option(
        f"a checkpoint that the run starts from ({ENCODER_SOURCES}): its weights, its model settings "
        "and its vocabulary replace those of the recipe",
        "",
    )
    objective: Literal[
        "reconstruction", "next_words", "next_sentence", "neighbours", "translation", "embedding_inversion", "none"
    ] = option(
        "what the decoder generates. reconstruction: the sentence; next_words: the next `num_context_words` words of "
        "its document; next_sentence; neighbours: the previous and the next sentence; translation; "
        "embedding_inversion: the sentence, from the vector of an `embedder`; none: no decoder (needs a teacher or "
        "`contrastive`)",
        "reconstruction",
    )
    embedder: str = option(
        f"embedding_inversion: a SentenceTransformer whose vectors are decoded ({ENCODER_SOURCES})",
        "",
    )
    embedder_prompt: str = option("text put before each sentence that the embedder reads", "")
    embedding_noise: float = option(
        "embedding_inversion: Gaussian noise on the vectors in training, as a share of each number's standard "
        "deviation",
        0.0,
        at_least=0,
    )
    decoding_weight: float = option("weight of the decoder's loss", 1.0, at_least=0)
    contrastive: Literal["none", "neighbours", "views", "both"] = option(
        "contrastive training: the embedding must pick out, among those of the batch, the next sentence "
        "(`neighbours`) or a noisy copy of its own sentence (`views`: `word_drop`, `span_drop`, `word_swap`, which "
        "then act on the copies alone, and dropout)",
        "none",
    )
    contrastive_weight: float = option("weight of the contrastive loss", 1.0, at_least=0)
    contrastive_row_weight: float = option(
        "weight of a second contrastive loss, in which each row of the embedding is compared alone",
        0.0,
        at_least=0,
    )
    temperature: float = option("what cosines are divided by in the contrastive loss, and in that of a teacher", 0.05)
    teacher: str = option(
        f"a SentenceTransformer ({ENCODER_SOURCES}) whose vectors a linear map of the embedding also "
        "learns to predict, or `none`",
        "",
    )
    teacher_prompt: str = option("text put before each sentence that the teacher reads", "")
    teacher_loss: Literal["cosine", "squared", "contrast"] = option(
        "how far the embedding is from its teacher's vector: 1 - cosine, the squared distance, or the cross "
        "entropy of finding that vector among those of the batch",
        "cosine",
    )
    teacher_weight: float = option("weight of the teacher's loss", 1.0, at_least=0)
    teacher_head: bool = option(
        "compare the teacher's vectors with a linear map of the embedding; without it the embedding itself is "
        "trained to be them, and has their size",
        True,
    )
    similarity_weight: float = option(
        "weight of the distance between the embeddings' cosines in a batch and the teacher's", 0.0, at_least=0
    )
    teacher_shuffled: bool = option("give each sentence the teacher's vector of another one (the control)", False)
    context_weight: float = option(
        "weight of the loss of a second decoder (`context_channels`), which predicts the next `num_context_words` "
        "words of the document",
        0.0,
        at_least=0,
    )
    decoder_inputs: Literal["words", "own", "random"] = option(
        "what an autoregressive decoder is fed in training: the target words, its own samples (always sampling), or "
        "words drawn evenly (uniform sampling)",
        "words",
    )
    word_drop: float = option("denoising: share of input words dropped", 0.0)
    word_swap: float = option("denoising: share of neighbouring input words swapped", 0.0)
    span_drop: float = option("denoising: share of a text dropped in one stretch", 0.0)
    word_weight_rate: float = option(
        "factor on the learning rate for the word weights of `weighted_mean_row`", 5.0, at_least=0
    )
    word_vector_rate: float = option(
        "factor on the learning rate for the encoder's word vectors, where they are trained", 1.0, at_least=0
    )
    batch_tokens: int = count("tokens of one forward pass, over all processes", 4096, at_most=10**9)
    max_steps: int = option("stop after so many optimizer steps (0: see epochs)", 0, at_least=0)
    max_minutes: float = option("stop after so many minutes of training (0: no limit)", 0.0, at_least=0)
    max_training_tokens: int = option("stop after so many target tokens (0: no limit)", 0, at_least=0)
    softmax: Literal["full", "chunked", "sampled"] = option(
        "how the training loss is computed; evaluation always uses the full one", "full"
    )
    num_negatives: int = count("sampled words per forward pass", 4000, at_most=10**6)
    frequency_bias: bool = option(
        "start the output layer's bias, where it has one, from log word frequencies, which it would learn slowly",
        True,
    )
    output_from_words: bool = option(
        "start the output layer from the word vectors as well, where there are any and it is not tied to them", False
    )
    optimizer: Literal["adam", "muon"] = option(
        "muon: Muon for the matrices between the word tables and the output layer, Adam for the rest", "adam"
    )
    muon_rate: float = option("factor on the learning rate for the matrices that Muon trains", 1.0, at_least=0)
    muon_interval: int = count(
        "move each matrix that Muon trains once in so many steps, so many times as far; 4 saves most of Muon's time, "
        "for a slightly higher loss after as many steps",
        1,
        at_most=20,  # steps that its momentum remembers
    )
    lazy_adam: bool = option(
        "Adam that updates only the rows seen in the batch, each by all that Adam would move it before it is next seen "
        "(beside a decoder it needs `softmax` sampled); for some hundred thousand words and more, whose tables else "
        "take much of a step",
        False,
    )
    adam_beta1: float = option("Adam: decay of the mean of the gradients", 0.9)
    adam_beta2: float = option("Adam: decay of the mean of their squares", 0.999)
    adam_epsilon: float = option("Adam: added to the root of the mean square", 1e-8)
    compile: bool = option("torch.compile the model, on a GPU", False)
    log_steps: int = count("steps between log lines", 50)
    eval_steps: int = option("steps between evaluations (0: only at the end)", 1000, at_least=0)
    sample_sentences: int = option("sentences that an evaluation reconstructs and prints", 3, at_least=0)
    early_stopping_patience: int = option(
        "stop after so many evaluations without better accuracy (0: never)", 0, at_least=0
    )
    checkpoint_steps: int = count("steps between checkpoints", 1000)
    checkpoint_minutes: float = option("most minutes between checkpoints (0: no limit)", 5.0, at_least=0)
    keep_checkpoints: int = count("latest checkpoints kept beside the best", 2)
    ddp_timeout: float = option("seconds that a process waits for others in a step", 1800, at_least=1)
    showcase: bool = option("end by printing neighbours and reconstructions", False)

    def __post_init__(self) -> None:
        if self.initial_model:
            for name, value in settings_of(self.initial_model, self.model).items():
                if name != "normalize" or self.normalize == "auto":
                    setattr(self, name, value)
        super().__post_init__()
        if self.max_tokens < self.min_tokens:
            raise ValueError(
                f"`max_tokens` is {self.max_tokens}, less than `min_tokens` {self.min_tokens}: nothing would be left."
            )
        if not self.max_steps and self.epochs <= 0:
            raise ValueError(f"`epochs` is {self.epochs}; give a positive number, or `max_steps`.")
        for name in ("word_drop", "word_swap", "span_drop", "adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` is {getattr(self, name)}; it must be at least 0 and less than 1.")
        if self.early_stopping_patience and not self.eval_steps:
            raise ValueError(
                f"`early_stopping_patience` is {self.early_stopping_patience}, but with `eval_steps` 0 nothing is "
                "evaluated before the end. Give `eval_steps`."
            )
        if self.word_vectors == "teacher" and not self.frozen_encoder:
            raise ValueError("`word_vectors` is 'teacher' without a `teacher`. Give one, or other vectors.")
        for name in ("teacher_shuffled", "similarity_weight", "teacher_prompt"):
            if getattr(self, name) and not self.teacher:
                raise ValueError(f"`{name}` is {getattr(self, name)!r} without a `teacher`. Give one, or leave it out.")
        if self.word_vectors == "teacher" and self.objective == "translation":
            raise ValueError(
                "`word_vectors` 'teacher' is not for the objective 'translation'. Give a file of `hf-meanmax vectors`."
            )
        if self.teacher and not self.learns_from_teacher and self.word_vectors != "teacher":
            raise ValueError(
                f"`teacher` is {self.teacher!r}, but `teacher_weight` and `similarity_weight` are 0, and "
                "`word_vectors` is not 'teacher': nothing would be learnt from it. Leave it out, or give a weight."
            )
        for name in ("temperature", "adam_epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` is {getattr(self, name)}; it must be a positive number.")
        if self.objective == "none":
            self.model = {"decoder_type": "none", **self.model}
        if self.drop_unknown_words and self.objective == "translation":
            raise ValueError("`drop_unknown_words` is not for the objective 'translation'. Leave it out.")
        self._check_docstrings()
        self._check_lazy_adam()
        # Before hours of preparation, not after them.
        self._check_objective(self.build_config())
        if not self.output_dir:
            self.output_dir = str(Path("runs") / (self.recipe or "pretrain"))
        self.check_sources()

    def without_effect(self) -> dict[str, str]:
        config = self.build_config()
        has_words_to_copy = self.word_vectors and not (config.tie_word_embeddings or config.separate_vocabularies)
        unread = (
            ("a `teacher`", not self.teacher, ("teacher_loss", "teacher_weight", "teacher_head")),
            ("`contrastive`", self.contrastive == "none", ("contrastive_weight",)),
            ("a `teacher_weight`", not self.teacher_weight, ("teacher_loss", "teacher_head")),
            ("`contrastive` or `teacher_loss` 'contrast'", not self.compares_in_batch, ("temperature",)),
            ("a decoder", self.objective == "none", _OF_DECODERS),
            ("`eval_steps`", not self.eval_steps, ("sample_sentences",)),
            ("`word_vectors` and an untied output layer", not has_words_to_copy, ("output_from_words",)),
            ("`pooling` 'weighted_mean' or `weighted_mean_row`", not config.has_weighted_mean, ("word_weight_rate",)),
            ("`freeze_word_embeddings` false", config.freeze_word_embeddings, ("word_vector_rate",)),
            ("`objective` 'next_words'", not self.is_of_context and not self.context_weight, ("num_context_words",)),
            ("`objective` 'translation'", self.objective != "translation", ("max_target_tokens",)),
            ("`softmax` 'sampled'", self.softmax != "sampled", ("num_negatives",)),
            ("`optimizer` 'muon'", self.optimizer != "muon", ("muon_rate", "muon_interval")),
            ("an encoder or a decoder", config.is_static and not config.has_decoder, _OF_LAYERS),
        )
        of_this = {name: needed for needed, is_missing, names in unread if is_missing for name in names}
        return {**super().without_effect(), **of_this}

    def _check_docstrings(self) -> None:
        """Checks that `docstrings`, if given, is the only corpus, no validation text and not translated."""
        is_alone = self.corpus == ["docstrings"] and self.objective != "translation"
        if "docstrings" in (self.validation or []) or ("docstrings" in self.corpus and not is_alone):
            raise ValueError(
                "'docstrings', the built-in corpus, stands alone in `corpus`, is no `validation`, and has no "
                "translations. Name other texts."
            )

    def _check_lazy_adam(self) -> None:
        if not self.lazy_adam:
            return
        if self.objective != "none" and self.softmax != "sampled":
            raise ValueError(
                f"`lazy_adam` needs `softmax` 'sampled', not {self.softmax!r}: otherwise each step reads all words."
            )
        if self.weight_decay or self.compile:
            raise ValueError("`lazy_adam` excludes `weight_decay` and `compile`. Leave it, or them, out.")
        if self.adam_beta1**2 >= self.adam_beta2:
            raise ValueError(
                f"`lazy_adam` needs an `adam_beta1` below the root of `adam_beta2`: {self.adam_beta1} and "
                f"{self.adam_beta2} are given."
            )

    def _check_objective(self, config: LatentConfig) -> None:
        """Checks that the model and its decoder fit the objective."""
        if config.has_decoder == (self.objective == "none"):
            if self.initial_model:
                remedy = "a decoder, and `objective` is 'none': give `--objective reconstruction`"
                if not config.has_decoder:
                    remedy = "no decoder: give `--objective none`, with a `teacher` or `contrastive`"
                raise ValueError(f"`initial_model` {self.initial_model!r} has {remedy}.")
            raise ValueError(
                f"`objective` is {self.objective!r} and `decoder_type` {config.decoder_type!r}: `objective` must be "
                "'none' where the model has no decoder, and only there. Leave `decoder_type` out."
            )
        if config.has_decoder and not self.decoding_weight:
            raise ValueError("`decoding_weight` is 0: the decoder would never learn. Use `--objective none`.")
        self._check_inversion(config)
        self._check_contrast(config)
        if not config.has_decoder:
            if not (self.learns_from_teacher or self.contrastive != "none"):
                raise ValueError(
                    "`objective` is 'none' and there is neither a `teacher` nor `contrastive`: nothing would be "
                    "learnt. Give one of them."
                )
            has_map = config.contrastive_size or (self.teacher and self.teacher_weight and self.teacher_head)
            if self.freeze_encoder and not has_map:
                raise ValueError(
                    "`freeze_encoder` is True and `objective` 'none': nothing would be trained, since there is no map "
                    "of the embedding either. Give `teacher_head` true or `contrastive_size`, or train the encoder."
                )
        elif not config.is_autoregressive and self.objective != "next_words":
            raise ValueError(
                f"`decoder_type` is {config.decoder_type!r}, which predicts a fixed number of words at once; its "
                f"`objective` is 'next_words', not {self.objective!r}."
            )
        self._check_frozen(config)
        if config.predict_previous != (self.objective == "neighbours"):
            raise ValueError(
                f"`objective` is {self.objective!r} and `predict_previous` {config.predict_previous}: 'neighbours' "
                "needs `predict_previous=True`, and nothing else may have it."
            )
        if self.decoder_inputs != "words" and not config.is_autoregressive:
            raise ValueError(
                f"`decoder_inputs` is {self.decoder_inputs!r}, but `decoder_type` {config.decoder_type!r} takes none."
            )
        if self.decoder_inputs != "words" and config.predict_previous:
            raise ValueError(
                f"`decoder_inputs` is {self.decoder_inputs!r}, which is for one decoder; with `predict_previous` there "
                "are two. Use 'words'."
            )
        self._check_translation()
        self._check_context(config)
        if self.showcase and (self.objective != "reconstruction" or not config.has_latents):
            raise ValueError(
                f"`showcase` prints reconstructions from vectors, and a model with `objective` {self.objective!r} and "
                f"`pooling` {config.pooling!r} makes none. Use `--showcase false`."
            )

    def _check_frozen(self, config: LatentConfig) -> None:
        """Checks that each loss on the embeddings of a frozen encoder has a map to train."""
        for name, is_given, has_map in (
            ("similarity_weight", self.similarity_weight > 0, False),
            ("contrastive", self.contrastive != "none", bool(config.contrastive_size)),
            ("teacher_weight", bool(self.teacher) and self.teacher_weight > 0, self.teacher_head),
        ):
            if self.freeze_encoder and is_given and not has_map:
                raise ValueError(
                    f"`freeze_encoder` is True, so that `{name}` {getattr(self, name)!r} would train nothing. Leave "
                    "one of them out."
                )

    def _check_context(self, config: LatentConfig) -> None:
        """Checks that a second decoder has a weight and reconstructs too, and that no line of context is left out."""
        if (self.context_weight > 0) != (config.context_channels is not None):
            raise ValueError(
                f"`context_weight` is {self.context_weight} and `context_channels` {config.context_channels}: the "
                "second decoder needs both, and without it neither is of use."
            )
        if self.context_weight > 0 and self.objective != "reconstruction":
            raise ValueError(
                f"`context_weight` is {self.context_weight}, which works with `objective` 'reconstruction', not "
                f"{self.objective!r}. Leave it out."
            )
        if self.reads_context and (self.long_lines != "drop" or self.max_unknown_rate < 1):
            raise ValueError(
                f"`long_lines` is {self.long_lines!r} and `max_unknown_rate` {self.max_unknown_rate}; with `objective` "
                f"{self.objective!r} every line is kept, as context. Leave them out."
            )

    def _check_inversion(self, config: LatentConfig) -> None:
        """Checks that a decoder of an embedder's vectors has an embedder, and that a text encoder has none."""
        if (self.objective == "embedding_inversion") == config.reads_text:
            if self.initial_model:
                raise ValueError(
                    f"`initial_model` {self.initial_model!r} is of the family {self.family!r}, and `objective` is "
                    f"{self.objective!r}: 'embedding_inversion' starts from a decoder of an embedder's vectors, as "
                    "`hf-meanmax pretrain embedding-decoder` and `hf-meanmax align` write it, and nothing else does."
                )
            raise ValueError(
                f"`objective` is {self.objective!r} and `family` {self.family!r}: 'embedding_inversion' is the "
                "objective of the family 'embedding_decoder', and its only one. Leave `family` out."
            )
        if config.reads_text:
            for name in ("embedder", "embedder_prompt", "embedding_noise"):
                if getattr(self, name):
                    raise ValueError(
                        f"`{name}` is {getattr(self, name)!r}, but `objective` is {self.objective!r}. Use `--objective "
                        "embedding_inversion`, or leave it out."
                    )
            return
        if not self.embedder:
            raise ValueError(
                "`objective` 'embedding_inversion' needs an `embedder`, for instance "
                "`--embedder sentence-transformers/all-MiniLM-L6-v2`."
            )
        for name in ("teacher", "word_drop", "word_swap", "span_drop"):
            if getattr(self, name):
                raise ValueError(
                    f"`{name}` is {getattr(self, name)!r}, which is of a text encoder; with `objective` "
                    "'embedding_inversion' there is none. Leave it out."
                )
        if self.normalize != "none":
            raise ValueError(f"`normalize` is {self.normalize!r}, but nothing is encoded. Leave it out.")

    def _check_contrast(self, config: LatentConfig) -> None:
        """Checks that a teacher or contrastive loss has embeddings to compare, and that two views of a text differ."""
        if (self.teacher or self.contrastive != "none") and not config.has_latents:
            raise ValueError(
                f"`teacher` is {self.teacher!r} and `contrastive` {self.contrastive!r}, but with `pooling='none'` "
                "there is no embedding to map or compare. Leave them out, or use another pooling."
            )
        if self.contrastive_row_weight and (self.contrastive == "none" or config.num_latents == 1):
            raise ValueError(
                f"`contrastive_row_weight` is {self.contrastive_row_weight}, with `contrastive` {self.contrastive!r} "
                f"and {config.num_latents} row(s): there are no rows to compare one by one. Leave it out."
            )
        if self.contrastive == "none":
            if config.contrastive_size is not None:
                raise ValueError(
                    f"`contrastive_size` is {config.contrastive_size} and `contrastive` 'none': nothing would train "
                    "that map. Leave it out, or give `contrastive`."
                )
            return
        if not self.contrastive_weight:
            raise ValueError(
                f"`contrastive` is {self.contrastive!r} and `contrastive_weight` 0. Use `--contrastive none`."
            )
        if self.objective not in ("reconstruction", "none"):
            raise ValueError(
                f"`contrastive` is {self.contrastive!r}, which works with `objective` 'reconstruction' or 'none', not "
                f"{self.objective!r}. Leave it out."
            )
        if self.context_weight:
            raise ValueError("`contrastive` and `context_weight` exclude each other. Leave one out.")
        attends = config.encoder_type == "self_attention"
        has_dropout = config.embedding_dropout or config.hidden_dropout or (attends and config.attention_dropout)
        # A frozen encoder has no dropout.
        has_dropout = has_dropout and not self.freeze_encoder
        if self.has_views and not (self.has_noise or has_dropout):
            raise ValueError(
                f"`contrastive` is {self.contrastive!r}, but without noise or dropout two views of a sentence are the "
                "same. Give `word_drop`, for instance 0.4."
            )
        if config.is_static and self.has_views and not (self.word_drop or self.span_drop):
            raise ValueError(
                "A static model has no dropout and does not know the order of words, so two views of a sentence would "
                "be the same. Give `word_drop`."
            )

    @property
    def has_noise(self) -> bool:
        """Whether the encoder reads sentences with words missing or in another order."""
        return bool(self.word_drop or self.word_swap or self.span_drop)

    @property
    def learns_from_teacher(self) -> bool:
        """Whether a loss uses the teacher's vectors of texts; without a weight only its word vectors are used."""
        return bool(self.teacher) and (self.teacher_weight > 0 or self.similarity_weight > 0)

    @property
    def compares_in_batch(self) -> bool:
        """Whether a loss is the cross entropy of cosines in a batch."""
        return self.contrastive != "none" or (
            bool(self.teacher) and self.teacher_weight > 0 and self.teacher_loss == "contrast"
        )

    @property
    def frozen_encoder(self) -> str:
        """The external encoder, which is not trained: the teacher, or the embedder."""
        return self.teacher or self.embedder

    @property
    def reads_vectors(self) -> bool:
        """Whether training uses vectors of the texts by `frozen_encoder`."""
        return self.learns_from_teacher or bool(self.embedder)

    @property
    def has_neighbours(self) -> bool:
        """Whether embeddings are compared with those of the next sentences."""
        return self.contrastive in ("neighbours", "both")

    @property
    def has_views(self) -> bool:
        """Whether embeddings are compared with those of the same sentences under other noise."""
        return self.contrastive in ("views", "both")

    def _check_translation(self) -> None:
        """Checks that translations are given if the objective is translation, and only then."""
        given = [
            name
            for name in ("target", "validation_target", "target_column", "target_tokenizer", "source_vocab_size")
            if getattr(self, name)
        ]
        if self.objective != "translation":
            if self.initial_model and given == ["target_tokenizer"]:
                raise ValueError(
                    f"`initial_model` {self.initial_model!r} translates between two vocabularies. Use `--objective "
                    "translation`, with the translations."
                )
            if given:
                raise ValueError(
                    f"`{given[0]}` is {getattr(self, given[0])!r}, but `objective` is {self.objective!r}. Use "
                    "`--objective translation`, or leave it out."
                )
            return
        if bool(self.target) == bool(self.target_column):
            raise ValueError(
                "`objective` 'translation' needs the translations: either `target` (files, line by line) or "
                "`target_column` (of the data set)."
            )
        if (self.target or self.validation_target) and bool(self.validation) != bool(self.validation_target):
            raise ValueError("`validation` and `validation_target` go together: give both, or neither.")
        if self.target_tokenizer == "wordpiece":
            raise ValueError(
                "`target_tokenizer` is 'wordpiece', whose words are those of the source's `word_vectors`. Give word, "
                "bpe, unigram, char or a folder."
            )
        if self.source_vocab_size and not self.target_tokenizer:
            raise ValueError(
                f"`source_vocab_size` is {self.source_vocab_size}, but one tokenizer is for both languages. Give "
                "`target_tokenizer`, or leave it out."
            )

    @property
    def is_of_context(self) -> bool:
        """Whether the decoder's targets come from the text around the sentence."""
        return self.objective in CONTEXTS

    @property
    def adds_context(self) -> bool:
        """Whether a sentence is read with the text after it, as a second target or to be compared with."""
        return self.context_weight > 0 or self.has_neighbours

    @property
    def reads_context(self) -> bool:
        """Whether the training needs the text around a sentence."""
        return self.is_of_context or self.adds_context
