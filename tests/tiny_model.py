"""A tiny tokenizer and a random autoencoder, for tests of what surrounds a model."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import hf_meanmax
from hf_meanmax import MeanMaxAAEForReconstruction
from hf_meanmax.modeling.conditional_decoding import LatentForConditionalDecoding

SPECIALS = ["<pad>", "<unk>", "<s>", "</s>"]
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "red", "old"]
TEXTS = ["the cat sat", "", "a dog ran on the mat the cat sat on the old mat", "unheard words", "the red dog ran"]


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: index for index, word in enumerate(SPECIALS + WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 3)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        model_input_names=["input_ids", "attention_mask"],
    )


def make_model(
    seed: int = 0, full_class: type = MeanMaxAAEForReconstruction, **config: object
) -> LatentForConditionalDecoding:
    sizes = {
        "vocab_size": len(SPECIALS + WORDS),
        "embedding_size": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
    }
    torch.manual_seed(seed)
    model = full_class(full_class.config_class(**{**sizes, **config}))
    with torch.no_grad():
        if model.config.has_decoder and model.lm_head.bias is not None:
            model.lm_head.bias[3] = -1.0  # or many a random decoder would end before its first word
    if model.can_generate():
        # What is decoded from vectors ends early, which keeps tests short.
        model.generation_config.max_new_tokens = 8
    return model.eval()


def random_lines(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(0, 12))) for _ in range(count)]


def python_environment(with_package: bool = True, **variables: str) -> dict[str, str]:
    """The environment of a Python process of its own, with this package or where it cannot be imported."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    paths = [path for path in (environment.pop("PYTHONPATH", ""),) if path]
    if with_package:
        paths.insert(0, str(Path(hf_meanmax.__file__).parents[1]))
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def run_python(
    *args: str, timeout: float = 270, with_package: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own."""
    environment = python_environment(with_package, **variables)
    command = [sys.executable, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
