"""What each packaged recipe publishes, vectors that its own decoder reads; and the configurations of machines."""

from __future__ import annotations

import argparse
import importlib.resources

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from sentence_transformers import SentenceTransformer

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.pretrain import main
from hf_meanmax.families import FAMILIES
from hf_meanmax.training.recipes import arguments_from_settings, list_recipes, parse_command_line, read_recipe
from tiny_model import make_model, make_tokenizer

TEXTS = ["the cat sat", "a dog ran on the mat", "the red dog ran"]
# Widths that fit each other, whatever the recipe combines.
TINY = {
    "embedding_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("name", list_recipes())
def test_a_decoder_reads_what_is_published(name, tmp_path):
    """What `SentenceTransformer(folder).encode` returns decodes to what the text itself decodes to."""
    settings = read_recipe(name)
    target = {"corpus": ["pairs.en"], "target": ["pairs.de"]} if settings.get("objective") == "translation" else {}
    args = arguments_from_settings({**settings, **target, "output_dir": str(tmp_path / "run")}, name)
    config = args.build_config()
    if not config.has_decoder:
        pytest.skip(f"{name} trains no decoder: its vectors are for search alone")
    if not config.is_autoregressive:
        pytest.skip(f"{name} has a decoder that predicts words at once, which reads the same raw vector")
    if not config.reads_text:
        pytest.skip(f"{name} publishes no vectors: it decodes those of another embedder")
    fields = {key: value for key, value in args.model.items() if key not in ("vocab_size", "latent_size")}
    narrow = {"latent_size": 4} if config.latent_size is not None else {}
    model = make_model(full_class=FAMILIES[args.family].full, **{**fields, **TINY, **narrow})
    tokenizer = make_tokenizer()
    target_tokenizer = make_tokenizer() if config.separate_vocabularies else None
    normalize = None if args.normalize == "none" else args.normalize
    folder = save_checkpoint(
        model, tokenizer, tmp_path / "model", normalize=normalize, target_tokenizer=target_tokenizer
    )
    published = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    words = model.generate(sentence_embedding=published, max_new_tokens=8)
    again = model.generate(**tokenizer(TEXTS, return_tensors="pt", padding=True), max_new_tokens=8)
    assert torch.equal(words, again)
    if config.latent_normalization == "rows":
        unit = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, normalize_embeddings=True)
        assert torch.equal(model.generate(sentence_embedding=unit, max_new_tokens=8), words)


def test_options_of_the_family_that_a_recipe_s_objective_has(tmp_path, capsys):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"objective: embedding_inversion\nembedder: {tmp_path}\n")
    args = parse_command_line([str(recipe), "--latent_length", "4"])
    assert (args.family, args.model["latent_length"]) == ("embedding_decoder", 4)
    for words in ([str(recipe)], ["--objective", "embedding_inversion"]):
        assert main([*words, "--help"]) == 0
        assert "--latent_length" in capsys.readouterr().out


CONFIGURATIONS = {
    "1-gpu": ("NO", 1, 1),
    "8-gpus": ("MULTI_GPU", 8, 1),
    "8-gpus-fsdp": ("FSDP", 8, 1),
    "2x8-gpus": ("MULTI_GPU", 16, 2),
}


def configuration(name: str) -> str:
    return str(importlib.resources.files("hf_meanmax") / "recipes" / "accelerate" / f"{name}.yaml")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_accelerate_reads_the_configurations_of_machines(name):
    config = load_config_from_file(configuration(name))
    assert (config.distributed_type, config.num_processes, config.num_machines) == CONFIGURATIONS[name]
    assert config.mixed_precision == "no"


def test_there_are_no_other_configurations_of_machines():
    folder = importlib.resources.files("hf_meanmax") / "recipes" / "accelerate"
    assert {item.name for item in folder.iterdir()} == {f"{name}.yaml" for name in CONFIGURATIONS}


def test_what_accelerate_launch_makes_of_the_configurations():
    """The launcher's own way from a file to the arguments of torchrun and the environment of the processes."""

    def launched(name: str, *words: str) -> tuple[argparse.Namespace, dict[str, str]]:
        words = ("--config_file", configuration(name), "--main_process_port", "0", *words, "scripts/pretrain.py")
        args, *_ = _validate_launch_command(launch_command_parser().parse_args(words))
        return args, prepare_multi_gpu_env(args)

    _, environment = launched("8-gpus")
    assert "ACCELERATE_USE_FSDP" not in environment
    args, environment = launched("8-gpus-fsdp")
    assert (args.nproc_per_node, environment["ACCELERATE_USE_FSDP"], environment["FSDP_VERSION"]) == ("8", "true", "2")
    assert environment["FSDP_AUTO_WRAP_POLICY"] == "TRANSFORMER_BASED_WRAP"
    place = ("--main_process_ip", "127.0.0.1", "--machine_rank", "1")
    args, _ = launched("2x8-gpus", *place, "--rdzv_backend", "c10d")
    assert (args.nnodes, args.nproc_per_node, args.node_rank, args.rdzv_backend) == ("2", "8", 1, "c10d")
    assert args.rdzv_endpoint.startswith("127.0.0.1:")
