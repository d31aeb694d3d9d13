"""Initialisation, saving and loading rules that all models share."""

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.configuration_utils import PreTrainedConfig
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging

from .classifiers import RowwiseLinear
from .configuration_base import LatentConfig
from .decoders import ConditionalGRULayer
from .embeddings import TextEmbeddings
from .layers import Standardization, WordSpaceProjection
from .pooling import WeightedMeanPooling, ZeroLinear
from .sentence_transformer_files import sentence_transformer_files, write_json_files
from .storage import restored_state_dict
from .suggestions import did_you_mean

logger = logging.get_logger(__name__)

# Arguments that every forward accepts beside its named ones: transformers passes them, or the layers read them.
_COMMON_ARGUMENTS = {
    "num_items_in_batch", "output_attentions", "output_cross_attentions", "output_hidden_states",
    "output_latent_gates", "return_dict", "use_cache",
}  # fmt: skip


# Checkpoint weights that are ignored on loading: the first by encoders and classifiers, the second by encoders and
# models with a decoder.
DECODING_WEIGHTS = [
    r"^((previous|context)_)?decoder\.", r"^decoder_embeddings\.", r"^lm_head\.", r"^output_projection\.",
    r"^(teacher|contrastive)_head\.",
]  # fmt: skip
CLASSIFIER_WEIGHTS = [r"^classifier\."]

_INTEGERS = (torch.int64, torch.int32)


class LatentPreTrainedModel(PreTrainedModel):
    """Initialisation, backends and loading rules of all families."""

    config: LatentConfig
    base_model_prefix = "encoder"
    # Attribute of `embeddings`, which transformers finds by itself.
    _input_embed_layer = "word_embeddings"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = [
        "SelfAttentionLayer", "RecurrentLayer", "ConvolutionalLayer",
        "WideningLayer", "CausalLayer", "RecurrentDecoderLayer", "ContextGRULayer",
        "ConditionalGRULayer", "CausalConvolutionLayer", "NonAutoregressiveLayer",
    ]  # fmt: skip
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _encoder_is_frozen = False

    def __init__(self, config: PreTrainedConfig, *args: object, **kwargs: Unpack[TransformersKwargs]) -> None:
        # `from_pretrained(folder, field=...)` sets fields one by one after the configuration was checked.
        config.check()
        super().__init__(config, *args, **kwargs)

    def freeze_encoder(self) -> None:
        """Freezes the encoder and disables its dropout, so that the rest trains on embeddings as they are published."""
        self.base_model.requires_grad_(False)
        self._encoder_is_frozen = True
        self.train(self.training)

    def train(self, mode: bool = True) -> "LatentPreTrainedModel":
        super().train(mode)
        if mode and self._encoder_is_frozen:
            self.base_model.eval()
        return self

    def refuse_unknown(self, arguments: Mapping[str, object]) -> None:
        """Rejects additional arguments of a forward pass that would have no effect; None values are allowed.

        Raises:
            TypeError: for an argument that nothing reads.
        """
        for name, value in arguments.items():
            if name not in _COMMON_ARGUMENTS and value is not None:
                known = [*inspect.signature(self.forward).parameters, *_COMMON_ARGUMENTS]
                hint = did_you_mean(name, known, quote="`")
                raise TypeError(f"{type(self).__name__} got an unexpected argument `{name}`.{hint}")

    @staticmethod
    def check_text(
        input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, attention_mask: torch.Tensor | None
    ) -> None:
        """Raises ValueError unless exactly one of `input_ids`, integers `(B, N)` with N >= 1, and `inputs_embeds` is
        given, and `attention_mask` is `(B, N)` or None."""
        text = inputs_embeds if input_ids is None else input_ids
        if text is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("Give exactly one of `input_ids` and `inputs_embeds`.")
        is_tensor = isinstance(text, torch.Tensor)
        is_of_ids = is_tensor and text.dim() == 2 and text.dtype in _INTEGERS
        if input_ids is not None and not (is_of_ids and text.shape[1] > 0):
            raise ValueError(
                f"`input_ids` must be integers (B, N), one or more a text, got {_described(text)}. Give a text as "
                '`**tokenizer(texts, padding=True, return_tensors="pt")`, and a vector as `sentence_embedding` to the '
                "model with a decoder."
            )
        if attention_mask is not None and attention_mask.shape != text.shape[:2]:
            raise ValueError(
                f"`attention_mask` is {tuple(attention_mask.shape)}; the text has {tuple(text.shape[:2])} tokens."
            )

    @staticmethod
    def check_words(
        num_texts: int,
        labels: torch.Tensor | None,
        decoder_input_ids: torch.Tensor | None,
        decoder_inputs_embeds: torch.Tensor | None,
        decoder_attention_mask: torch.Tensor | None,
    ) -> None:
        """Raises ValueError unless what is given of the decoder's words is `(num_texts, T)`: integers `labels` and
        `decoder_input_ids`, a mask, and vectors `(num_texts, T, embedding_size)`."""
        ids = {"labels": labels, "decoder_input_ids": decoder_input_ids}
        others = {"decoder_inputs_embeds": decoder_inputs_embeds, "decoder_attention_mask": decoder_attention_mask}
        for name, given in (ids | others).items():
            axes = 3 if name == "decoder_inputs_embeds" else 2
            is_fitting = isinstance(given, torch.Tensor) and given.dim() == axes and given.shape[0] == num_texts
            if given is not None and not (is_fitting and (name not in ids or given.dtype in _INTEGERS)):
                kind, shape = ("integers ", "T") if name in ids else ("", "T, embedding_size" if axes == 3 else "T")
                raise ValueError(
                    f"`{name}` must be {kind}({num_texts}, {shape}) for an input of {num_texts} texts, got "
                    f"{_described(given)}."
                )
        words = decoder_inputs_embeds if decoder_input_ids is None else decoder_input_ids
        if labels is not None and words is not None and labels.shape != words.shape[:2]:
            raise ValueError(f"`labels` are {tuple(labels.shape)}, the decoder's input is {tuple(words.shape[:2])}.")

    def refuse_second_text(self, token_type_ids: torch.Tensor | None) -> None:
        """Raises ValueError if `token_type_ids` `(B, N)`, which some tokenizers return, mark a second text."""
        if token_type_ids is not None and bool(token_type_ids.any()):
            raise ValueError(
                f"`token_type_ids` mark a second text, and this {type(self).__name__} reads one. Give each text "
                "alone; a classifier of pairs has `pair_combination` 'concatenation' or 'multiplicative'."
            )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if getattr(module, "latent_scales", None) is not None:
            init.ones_(module.latent_scales)
        if isinstance(module, WordSpaceProjection):
            # Word vectors are large, but the scores against them must start with a standard deviation of 1.
            size = module.weight.numel()
            init.normal_(module.weight, std=1 / (self.config.initializer_range * size**0.5))
        elif isinstance(module, ZeroLinear):
            init.zeros_(module.weight)
        elif isinstance(module, nn.Linear | nn.Conv1d):
            init.xavier_uniform_(module.weight)
        elif isinstance(module, WeightedMeanPooling):
            init.zeros_(module.log_weights.weight)
            init.zeros_(module.frequencies)
            if isinstance(module.map, nn.Linear):
                is_wide_enough = module.map.out_features >= module.map.in_features
                (init.eye_ if is_wide_enough else init.orthogonal_)(module.map.weight)
        elif isinstance(module, Standardization):
            init.zeros_(module.mean)
            init.ones_(module.scale)
        elif isinstance(module, RowwiseLinear):
            # Xavier's bound for the map of a single row.
            bound = (6 / sum(module.weight.shape[1:])) ** 0.5
            init.uniform_(module.weight, -bound, bound)
        elif isinstance(module, ConditionalGRULayer):
            if module.start is not None:
                init.zeros_(module.start)
        elif isinstance(module, nn.GRU | nn.GRUCell):
            # transformers does not initialise these.
            for name, parameter in module.named_parameters():
                (init.zeros_ if name.startswith("bias") else init.xavier_uniform_)(parameter)
        elif isinstance(module, nn.LSTM):
            for name, parameter in module.named_parameters():
                # Forget gates start open; otherwise the last state of a long text forgets its beginning.
                if name.startswith("bias_ih") and not getattr(parameter, "_is_hf_initialized", False):
                    parameter[module.hidden_size : 2 * module.hidden_size] = 1.0

    @classmethod
    def from_pretrained(cls, *args: object, **kwargs: Unpack[TransformersKwargs]) -> Any:
        """[`~transformers.PreTrainedModel.from_pretrained`]; a frozen word table stays frozen."""
        loaded = super().from_pretrained(*args, **kwargs)
        # transformers replaces the constructor's parameters with new ones, which all require gradients.
        for module in (loaded[0] if isinstance(loaded, tuple) else loaded).modules():
            if isinstance(module, TextEmbeddings | WeightedMeanPooling):
                module.freeze_as_configured()
        return loaded

    @staticmethod
    def _load_pretrained_model(
        model: PreTrainedModel,
        state_dict: dict[str, torch.Tensor] | None,
        checkpoint_files: list[str] | None,
        *args: object,
        **kwargs: object,
    ) -> object:
        """As in transformers, which calls it with the files it found, but first restores int8 matrices to float; warns
        if the files hold no decoder."""
        if state_dict is None and checkpoint_files is not None:
            state_dict = restored_state_dict(checkpoint_files)
        info, index = PreTrainedModel._load_pretrained_model(model, state_dict, checkpoint_files, *args, **kwargs)
        of_decoder = {name for name in model.state_dict() if name.startswith("decoder.")}
        if of_decoder and of_decoder <= info.missing_keys:
            logger.warning(
                "The checkpoint holds no decoder, so the decoder's weights are random: what it generates means nothing "
                "until it is trained. To decode, load the checkpoint that this encoder was made from."
            )
        for target, source in (model.all_tied_weights_keys or {}).items():
            # transformers looks up offloaded tied weights by their names in the file.
            if index and source in index:
                index.setdefault(target, index[source])
        return info, index

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """[`~transformers.PreTrainedModel.resize_token_embeddings`]: both vocabularies get the new size.

        Raises:
            ValueError: if the two vocabularies are separate or, after an expansion, differ in size; for fewer tokens
                than the special ones.
        """
        if self.config.separate_vocabularies:
            raise ValueError("`separate_vocabularies` is True: there are two vocabularies, and no one size to change.")
        if self.config.input_vocab_size != self.config.vocab_size:
            raise ValueError(
                f"`input_vocab_size` is {self.config.input_vocab_size} and `vocab_size` {self.config.vocab_size}: a "
                "model with an expanded vocabulary cannot be resized. Resize first, then expand."
            )
        if new_num_tokens is not None and new_num_tokens < self.config.num_special_tokens:
            raise ValueError(
                f"new_num_tokens is {new_num_tokens}; the special tokens alone are {self.config.num_special_tokens}."
            )
        table = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.input_vocab_size = self.config.vocab_size
        for module in self.modules():
            if isinstance(module, WeightedMeanPooling):
                module.resize(table.num_embeddings)
        return table

    def save_pretrained(
        self,
        save_directory: str | os.PathLike,
        is_main_process: bool = True,
        *args: Any,
        **kwargs: Unpack[TransformersKwargs],
    ) -> None:
        """[`~transformers.PreTrainedModel.save_pretrained`]; saves the code too if the configuration has an `auto_map`.

        If the folder is not a SentenceTransformer yet, it becomes one that returns the model's own embedding:
        sentence-transformers would otherwise take the mean of the hidden states.
        """
        cls, registered = type(self), type(self)._auto_class
        own = self.config.auto_class_names.get(cls.__name__)
        try:
            if registered is not None or (own is not None and getattr(self.config, "auto_map", None)):
                # The `auto_map` that transformers would keep names files that are not in the new folder.
                self.config.auto_map = dict(self.config.auto_classes)
                cls._auto_class = registered or own
            super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        finally:
            cls._auto_class = registered
        if is_main_process:
            self._complete(Path(save_directory))

    def _upload_modified_files(
        self,
        working_dir: str | os.PathLike,
        repo_id: str,
        files_timestamps: dict[str, float],
        *args: Any,
        **kwargs: Any,
    ) -> object:
        """Adds the SentenceTransformer files before the upload, which transformers' `save_pretrained` starts itself."""
        unseen = {
            name: files_timestamps[name] for name in files_timestamps.keys() - sentence_transformer_files().keys()
        }
        self._complete(Path(working_dir))
        return super()._upload_modified_files(working_dir, repo_id, unseen, *args, **kwargs)

    def _complete(self, folder: Path) -> None:
        """Adds the files that make a folder a SentenceTransformer of the model's own embedding, unless it is one."""
        if self.config.reads_text and folder.is_dir() and not (folder / "modules.json").exists():
            files = sentence_transformer_files().items()
            write_json_files(folder, {name: content for name, content in files if not (folder / name).exists()})


def _described(given: object) -> str:
    if not isinstance(given, torch.Tensor):
        return type(given).__name__
    return f"{str(given.dtype).removeprefix('torch.')} {tuple(given.shape)}"
