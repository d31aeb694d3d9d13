"""The speed benchmarks run, with tiny sizes."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

PAIRS = [(noun, other) for noun in ("cat", "dog", "man", "boy") for other in ("cow", "hen", "fox")]
SENTENCES = [f"the {noun} saw a {other} by the old house" for noun, other in PAIRS]


class InProcess:
    """A worker without a process."""

    def __init__(self, make, *arguments):
        self.served = make(*arguments)

    def call(self, method, *arguments):
        return getattr(self.served, method)(*arguments)

    def peak_memory(self):
        return 1.0

    def close(self):
        pass


@pytest.fixture
def start(script, monkeypatch, tmp_path):
    """Runs a script on some sentences; returns the rows of its result."""
    (tmp_path / "corpus.txt").write_text("\n".join(8 * SENTENCES))
    monkeypatch.setattr(script("rounds"), "measure_matrix_rate", lambda device, dtype: 1e12)

    def run(name, *words):
        module = script(name)
        if hasattr(module, "Worker"):
            monkeypatch.setattr(module, "Worker", InProcess)
        words = [str(tmp_path / "corpus.txt") if word == "CORPUS" else word for word in words]
        monkeypatch.setattr(sys, "argv", [name, "--rounds", "2", "--json", str(tmp_path / "result.json"), *words])
        module.main()
        return json.loads((tmp_path / "result.json").read_text())["rows"]

    return run


def test_each_finds_what_it_imports(script):
    names = [path.stem for path in Path(script("rounds").__file__).parent.glob("*.py")]
    assert len(names) > 20
    assert all(script(name).__doc__ for name in names)


def test_training_is_compared_with_a_plain_loop(start):
    sizes = "--hidden-size 16 --intermediate-size 16 --vocab-size 50 --batch-tokens 64 --negatives 5 --steps 1"
    rows = start("training_speed", "CORPUS", *sizes.split())
    assert list(rows) == ["ours", "plain loop"]
    figures = rows["ours"]["figures"]
    assert figures["tokens/s"]["ratio"]["to"] == "plain loop"
    assert len(figures["share of the matrix rate"]["rounds"]) == 2


def test_a_point_of_a_scale_has_speeds_and_memory(script, monkeypatch):
    module = script("scaling")
    monkeypatch.setattr(module, "measure_matrix_rate", lambda device, dtype: 1e12)
    task = {"length": 4, "hidden_size": 16, "vocab_size": 50, "batch_tokens": 8, "negatives": 5, "rounds": 1}
    point = {"length": 4, **module.measure(task | {"trains": True, "tied": False, "lazy": False})}
    assert 0 < point["training share"] < 1
    figures = module.measured({"lengths": [point]}, ["lengths"]).figures
    assert set(figures["length 4"]) == set(point) - {"length"} > {"training tokens/s", "encoding tokens/s"}


def test_a_generated_store_is_read_as_one_of_a_corpus(script, tmp_path):
    module = script("scaling")
    module.generate_store(tmp_path, 1000)
    assert len(module.TokenStore.open(tmp_path)) == 1000, "its checksums match"
    found = module.measure_start(argparse.Namespace(batch_tokens=64), tmp_path)
    assert found["tokens/s"] > 0
    assert found["first batch, s"] >= found["checked, s"]


def test_recurrent_layers_are_compared_at_each_length(start):
    rows = start("recurrent_padding", *"--lengths 4 8 --rows 2 --input-size 8 --hidden-size 4".split())
    assert list(rows) == ["4 tokens, ours", "4 tokens, packed", "8 tokens, ours", "8 tokens, packed"]
    assert rows["8 tokens, ours"]["figures"]["rows/s"]["ratio"]["to"] == "8 tokens, packed"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_decoding_says_the_same_in_each_form(start, script, monkeypatch, precision):
    monkeypatch.setattr(script("rounds"), "is_bf16_fast", lambda device: precision == "bfloat16")
    # A worker of its own changes it; here the test's process is the worker.
    monkeypatch.setattr("hf_meanmax.modeling.generation.WORDS_OF_A_STAGE", 8)
    rows = start("decoding_speed", *"CORPUS --sentences 2 --max-length 3 --batch-sizes 2 --rounds 1".split())
    exact = [
        "one vector at a time, no cache", "one vector at a time", "batches, no cache", "batches, ended rows kept",
        "batches", "8 beams, of transformers", "8 beams",
    ]  # fmt: skip
    assert list(rows) == exact + (precision == "bfloat16") * [
        "one vector at a time, bf16", "batches, bf16", "8 beams, bf16",
    ]  # fmt: skip
    assert rows["batches"]["facts"]["batch size"] == 2
    assert rows["batches"]["figures"]["vectors/s"]["ratio"]["to"] == "one vector at a time, no cache"


def test_another_text_ends_the_decoding_benchmark(script):
    module = script("decoding_speed")
    module.check_same({"no cache": ["a", "b"], "cache": ["a", "b"]})
    with pytest.raises(SystemExit, match="cache: 1 of 2 texts are not those"):
        module.check_same({"no cache": ["a", "b"], "cache": ["a", "c"]})


def test_models_of_the_package_are_encoded_in_turn(start):
    rows = start("vectors", *"mini-en static-en --texts CORPUS --speed_only --sentences 8 --batch_sizes 4".split())
    assert list(rows) == ["mini-en", "static-en"]
    assert rows["static-en"]["figures"]["sentences/s"]["ratio"]["to"] == "mini-en"
    assert rows["static-en"]["facts"]["size, MB"] > 1


def test_quality_is_drawn_against_speed_and_reconstruction(script):
    module = script("draw_vectors")
    quality = {"rows": {"a": {"STS12-16": 0.7}, "b": {"STS12-16": 0.6, "BLEU": 30.0}, "c": {"eight tasks": 80.0}}}
    speed = {"rows": {
        "a": {"figures": {"sentences/s": {"median": 10.0}}},
        "b": {"figures": {"sentences/s": {"median": 70.0, "ratio": {"median": 7.0}}}},
    }}  # fmt: skip
    rows = module.joined(quality, speed)
    assert rows["b"] == {"STS12-16": 0.6, "BLEU": 30.0, module.SPEED: 7.0}
    assert rows["a"][module.SPEED] == 1.0
    axes = module.draw(rows, "a").axes
    assert [(one.get_xlabel(), one.get_ylabel()) for one in axes] == [module.PANELS[0], module.PANELS[2]]
    assert [text.get_text() for text in axes[0].texts] == ["a", "b"]
    assert [text.get_text() for text in axes[1].texts] == ["b"]
    assert axes[1].lines[0].get_ydata() == [0.7, 0.7], "the reference, which cannot be decoded, is a line"
    with pytest.raises(SystemExit, match="No model has both figures"):
        module.draw({"c": {"eight tasks": 80.0}}, "a")


def test_quality_is_drawn_against_a_size(script, monkeypatch, tmp_path, capsys):
    """Scores that rise by 0.01 a doubling do so in the fit, and in its prediction for ten times as much."""
    module = script("draw_sizes")
    metrics = ["STS12-16", "STSB"]
    rows = {
        f"n{size}-s{seed}": dict.fromkeys(metrics, 0.5 + 0.01 * doublings + 0.001 * seed)
        for doublings, size in enumerate((1000, 2000, 4000)) for seed in (0, 1)
    }  # fmt: skip
    scores = module.by_size(dict(reversed(rows.items())), metrics)
    assert scores["STSB"] == {1000: [0.501, 0.5], 2000: [0.511, 0.51], 4000: [0.521, 0.52]}
    slope, start = module.fit(scores["STSB"])
    assert slope == pytest.approx(0.01)
    assert start + slope * np.log2(1000) == pytest.approx(0.5005)
    (tmp_path / "quality.json").write_text(json.dumps({"rows": rows}))
    words = [str(tmp_path / "quality.json"), "--output", str(tmp_path / "drawn.png"), "--metrics", *metrics]
    monkeypatch.setattr(sys, "argv", ["draw_sizes", *words])
    module.main()
    printed = capsys.readouterr().out
    assert "| 1,000 | 0.5005 ± 0.00071 | 0.5005 ± 0.00071 |" in printed
    assert "| 40,000, by the line | 0.554 | 0.554 |" in printed
    assert (tmp_path / "drawn.png").stat().st_size > 1000
    with pytest.raises(SystemExit, match="'mini-en' is not named"):
        module.by_size({"mini-en": {}}, metrics)
    with pytest.raises(SystemExit, match="Not all rows have BLEU"):
        module.by_size(rows, ["STSB", "BLEU"])
    (tmp_path / "quality.json").write_text(json.dumps({"rows": {name: rows[name] for name in list(rows)[:1]}}))
    with pytest.raises(SystemExit, match="two sizes or more"):
        module.main()


def test_one_text_takes_the_time_of_its_parts(script):
    module = script("encoding_speed")
    encoding = module.Encoding(SENTENCES[:4], module.load_fast, "mini-en")
    found = encoding.latency()
    assert found["p50, ms"] <= found["p99, ms"]
    assert found["texts/s"] > 0
    assert 0 < found["model p50, ms"] <= found["model p99, ms"]
    assert 0 < found["tokenisation p50, ms"] <= found["tokenisation p99, ms"]


def test_every_part_has_options_that_its_script_knows(script, monkeypatch, capsys):
    known: dict[str, str] = {}
    for name, part in script("all").PARTS.items():
        stem, *words = f"{part.command} {part.quick} --json".split()
        if stem not in known:
            monkeypatch.setattr(sys, "argv", [stem, "--help"])
            with pytest.raises(SystemExit):
                script(stem.removesuffix(".py")).main()
            known[stem] = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b(?!-)", known[stem]), (name, option)


def test_an_embedder_with_fewer_layers_learns_its_own_vectors(script, monkeypatch, tmp_path):
    peer, module = script("train_peer"), script("train_fewer_layers")
    (tmp_path / "texts.txt").write_text("\n".join(SENTENCES))
    whole = peer.make_model(peer.train_tokenizer(SENTENCES), tmp_path, torch.device("cpu"), "mean").eval()
    whole.save_pretrained(str(tmp_path / "embedder"))
    np.save(tmp_path / "vectors.npy", whole.encode(SENTENCES))
    words = [str(tmp_path / name) for name in ("embedder", "texts.txt", "vectors.npy")]
    options = f"--layers 2 --sentences 12 --learning-rate 1e-3 --max-minutes 0.03 --output {tmp_path / 'student'}"
    monkeypatch.setattr(sys, "argv", ["train_fewer_layers", *words, *options.split()])
    module.main()
    told = json.loads((tmp_path / "student" / "training_args.json").read_text())["results"]
    assert told["kept"] == [0, 5]
    assert told["steps"] > 1
    student = SentenceTransformer(str(tmp_path / "student"))
    assert len(student[0].auto_model.encoder.layer) == 2
    untrained = SentenceTransformer(str(tmp_path / "embedder"))
    module.keep_layers(untrained, 2)
    wanted = whole.encode(SENTENCES)
    errors = [np.square(model.encode(SENTENCES) - wanted).mean() for model in (student, untrained)]
    assert errors[0] < errors[1]

    (tmp_path / "texts.txt").write_text(SENTENCES[0])
    with pytest.raises(SystemExit):
        module.main()
