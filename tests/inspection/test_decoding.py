"""Inspection of a decoder: the recorded numbers are those of the model itself, and the files hold them."""

from __future__ import annotations

import functools
import json
import sys

import numpy as np
import pytest
import torch

from hf_meanmax import CompoundAttentionForTranslation, GatedMeanMaxAAEConfig, GatedMeanMaxAAEForReconstruction
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.inspect import inspect_decoding
from hf_meanmax.inspection import decoding as inspection
from hf_meanmax.inspection.decoding import record_decoding, write_inspection
from hf_meanmax.plots.alignment import attention_by_position
from hf_meanmax.tokenization import train_tokenizer
from tiny_model import SPECIALS, WORDS, make_model, make_tokenizer

COMPOUND = {
    "full_class": CompoundAttentionForTranslation, "latent_heads": 3, "latent_size": 6, "initializer_range": 0.7,
}  # fmt: skip
TEXTS = ["the old cat sat on the mat", "a dog ran"]
PLAIN = {"encoder_type": "bilstm", "pooling": "last", "decoder_type": "lstm"}


def make_gated(seed: int = 0, **config: object) -> GatedMeanMaxAAEForReconstruction:
    sizes = {
        "vocab_size": len(SPECIALS + WORDS),
        "embedding_size": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "initializer_range": 0.7,
    }
    torch.manual_seed(seed)
    model = GatedMeanMaxAAEForReconstruction(GatedMeanMaxAAEConfig(**{**sizes, **config}))
    return model.eval()


KINDS = {
    "mean-max": lambda: make_model(seed=1),
    "mean-max, two layers": lambda: make_model(seed=1, num_hidden_layers=2, mean_first=True),
    "gated": make_gated,
    "gated, mean": lambda: make_gated(pooling="mean"),
    "gated, two layers": lambda: make_gated(num_hidden_layers=2),
    "gated RAE": lambda: make_gated(encoder_type="bilstm", pooling="mean_max_last", decoder_type="lstm_gates"),
    "compound attention": lambda: make_model(seed=2, **COMPOUND),
    "compound attention, two layers": lambda: make_model(seed=2, num_hidden_layers=2, **COMPOUND),
    "mean-max RAE": lambda: make_gated(encoder_type="bilstm", decoder_type="lstm_attention"),
}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@functools.cache
def recorded(kind: str, text: str):
    """A model that attends as it did before, and the record of what it makes of a text."""
    model = KINDS[kind]()
    model.set_attn_implementation("sdpa")
    record = record_decoding(model, make_tokenizer(), text)
    assert model.config._attn_implementation == "sdpa"
    return model, record


@torch.no_grad()
def step_by_step(model, tokenizer, text: str, most: int) -> tuple[list[int], np.ndarray | None, np.ndarray | None]:
    """Greedy decoding without a cache, one full forward pass a word, of which the last step is kept."""
    model.set_attn_implementation("eager")
    batch = tokenizer([text], return_tensors="pt")
    said, attentions, gates = [model.config.decoder_start_token_id], [], []
    while len(said) <= most and said[-1] != tokenizer.eos_token_id:
        output = model(
            **batch,
            decoder_input_ids=torch.tensor([said]),
            output_attentions=True,
            output_latent_gates=True,
            use_cache=False,
        )
        if output.cross_attentions:
            attentions.append(torch.stack([layer[0, :, -1] for layer in output.cross_attentions]).numpy())
        if output.latent_gates:
            gates.append(torch.stack([layer[0, -1] for layer in output.latent_gates]).numpy())
        said.append(output.logits[0, -1].argmax().item())
    # (T, layers, heads, L) -> (layers, heads, T, L); (T, layers, R, d) -> (layers, T, R, d)
    return (
        said[1:],
        np.stack(attentions).transpose(1, 2, 0, 3) if attentions else None,
        np.stack(gates).transpose(1, 0, 2, 3) if gates else None,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [*TEXTS, ""])
def test_the_record_is_that_of_generating_word_by_word(kind, text, tokenizer):
    model, record = recorded(kind, text)
    ids, attentions, gates = step_by_step(model, tokenizer, text, len(record.tokens))
    assert record.tokens == tokenizer.convert_ids_to_tokens(ids)
    assert record.reconstruction == tokenizer.decode(ids, skip_special_tokens=True)
    assert (record.attentions is None) == (attentions is None)
    assert (record.gates is None) == (gates is None)
    assert (attentions is None) != (gates is None)
    for found, expected in ((record.attentions, attentions), (record.gates, gates)):
        if expected is not None:
            assert found.shape == expected.shape
            assert np.allclose(found, expected, atol=1e-5)


def test_some_texts_end_and_some_are_cut():
    """So that the test above covers both."""
    records = [recorded(kind, text)[1] for kind in KINDS for text in TEXTS]
    assert {record.tokens[-1] == "</s>" for record in records} == {True, False}
    assert all("</s>" not in record.tokens[:-1] for record in records)


def test_files_of_an_attention(tokenizer, tmp_path):
    pytest.importorskip("matplotlib")
    model = make_model(seed=1, num_hidden_layers=2, mean_first=True)
    records = write_inspection(model, tokenizer, TEXTS, tmp_path / "out", "mine")
    content = json.loads((tmp_path / "out/inspection.json").read_text())
    assert content["checkpoint"] == "mine"
    assert (content["decoder_type"], content["attention_rows"], content["gated_rows"]) == (
        "attention",
        ["mean", "max"],
        [],
    )
    for found, record, text in zip(content["texts"], records, TEXTS, strict=True):
        assert set(found) == {"text", "reconstruction", "tokens", "source_tokens", "attention"}
        assert (found["text"], found["tokens"]) == (text, record.tokens)
        assert np.allclose(found["attention"], record.attentions, atol=1e-6)
    prefixes = [f"text-{number}-layer-{layer}-attention" for number in (1, 2) for layer in (1, 2)]
    names = [prefix + suffix for prefix in prefixes for suffix in (".png", "-by-head.png")]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"inspection.json", *names}
    assert all((tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_files_of_gates(tokenizer, tmp_path):
    pytest.importorskip("matplotlib")
    model = make_gated(encoder_type="bilstm", pooling="mean_max_last", decoder_type="lstm_gates")
    (record,) = write_inspection(model, tokenizer, TEXTS[:1], tmp_path)
    content = json.loads((tmp_path / "inspection.json").read_text())
    assert (content["attention_rows"], content["gated_rows"]) == ([], ["max", "mean"])
    (found,) = content["texts"]
    (layer,) = found["gates"]
    for place, row in enumerate(["max", "mean"]):
        values = record.gates[0, :, place]
        assert np.allclose(layer[row]["mean"], values.mean(axis=1), atol=1e-6)
        assert np.allclose(layer[row]["quantile_10"], np.quantile(values, 0.1, axis=1), atol=1e-6)
        assert np.allclose(layer[row]["quantile_90"], np.quantile(values, 0.9, axis=1), atol=1e-6)
    assert {path.name for path in tmp_path.iterdir()} == {"inspection.json", "text-1-gates.png"}


def test_figures_show_the_recorded_numbers(tokenizer, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(inspection, "save_figure", lambda figure, path: path.touch())
    monkeypatch.setattr(inspection, "plot_latent_gates", lambda *args: drawn.append(args))
    monkeypatch.setattr(inspection, "plot_latent_attention", lambda *args: drawn.append(args))
    (gated,) = write_inspection(make_gated(), tokenizer, TEXTS[:1], tmp_path)
    (attended,) = write_inspection(make_model(), tokenizer, TEXTS[1:], tmp_path)
    (one, (tokens, weights, rows, per_head), (*_, by_head)) = drawn
    assert one[0] == gated.tokens
    assert np.array_equal(one[1], gated.gates[0])
    assert one[2] == ("max", "mean")
    assert (tokens, rows, per_head, by_head) == (attended.tokens, ("max", "mean"), False, True)
    assert np.array_equal(weights, attended.attentions[0])
    # The older inspection is gone.
    assert {path.name for path in tmp_path.iterdir()} == {
        "inspection.json",
        "text-1-attention.png",
        "text-1-attention-by-head.png",
    }


def test_a_decoder_with_neither_says_so(tokenizer, tmp_path):
    folder = save_checkpoint(make_gated(**PLAIN), tokenizer, tmp_path / "model")
    with pytest.raises(SystemExit) as ended:
        inspect_decoding([str(folder), "a cat", "--output", str(tmp_path / "out")])
    said = str(ended.value)
    assert said.startswith(
        "hf-meanmax inspect decoding: decoder_type is 'lstm': this decoder reads the latent rows before its first word"
    )
    assert "\n" not in said
    assert not (tmp_path / "out").exists()


def test_pieces_are_shown_as_text():
    texts = ["the unbelievable cat", "我们喜欢看书"] * 5
    tokenizer = train_tokenizer(texts, kind="bpe", vocab_size=290, show_progress=False)
    model = make_gated(vocab_size=len(tokenizer))
    ids = tokenizer("the cat 我们")["input_ids"]
    model.generate = lambda **kwargs: torch.tensor([[2, *ids]])
    record = record_decoding(model, tokenizer, "the cat")
    assert "".join(record.tokens[:-1]).replace("\ufffd", "").startswith("the cat ")
    assert record.tokens[-1] == "</s>"
    assert not any("\u0120" in token for token in record.tokens)


def test_command_line(tokenizer, tmp_path, capsys):
    folder = save_checkpoint(make_gated(), tokenizer, tmp_path / "model")
    inspect_decoding([str(folder), *TEXTS, "--output", str(tmp_path / "out")])
    content = json.loads((tmp_path / "out/inspection.json").read_text())
    assert content["checkpoint"] == str(folder)
    assert capsys.readouterr().out.splitlines() == [found["reconstruction"] for found in content["texts"]]
    assert [found["text"] for found in content["texts"]] == TEXTS
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"^hf-meanmax inspect decoding: .*file is a file; name a folder"):
        inspect_decoding([str(folder), "a cat", "--output", str(tmp_path / "file")])
    with pytest.raises(SystemExit):
        inspect_decoding([str(folder), "a cat", "--out", str(tmp_path / "out")])
    assert "Did you mean --output?" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"texts is 'a cat'; give a list"):
        write_inspection(make_gated(), tokenizer, "a cat", tmp_path / "out")


def test_without_matplotlib_the_numbers_are_written(tokenizer, tmp_path, monkeypatch, capsys):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    write_inspection(make_gated(), tokenizer, TEXTS, tmp_path / "out")
    said = 'No figures were drawn. A figure needs matplotlib. In a clone: pip install -c constraints.txt ".[plots]"\n'
    assert capsys.readouterr().err == said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["inspection.json"]


def test_the_alignment_of_a_translation(tokenizer, tmp_path):
    """B A from the model's own attentions, in numbers, figures and a page; a target tokenizer names what is said."""
    model = make_model(seed=2, **COMPOUND)
    said_by = train_tokenizer(["eins zwei drei vier funf sechs sieben acht neun zehn elf"], show_progress=False)
    (record, _) = write_inspection(model, tokenizer, TEXTS, tmp_path / "out", "name", said_by)
    batch = tokenizer([TEXTS[0]], return_tensors="pt")
    with torch.no_grad():
        words = model.encoder(**batch).pooling_attentions[0]
        said = model.generate(**batch)
        (rows,) = model(**batch, decoder_input_ids=said[:, :-1], output_attentions=True).cross_attentions
    assert record.source_tokens == [*TEXTS[0].split(), "</s>"]
    assert record.tokens == said_by.convert_ids_to_tokens(said[0, 1:].tolist())
    np.testing.assert_allclose(record.word_weights, words, atol=1e-6)
    np.testing.assert_allclose(record.alignment.sum(axis=0), rows[0, 0] @ words, atol=1e-6)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"alignments.html", "text-1-alignment.png", "text-1-heads.png", "text-2-alignment.png"} <= names
    content = json.loads((tmp_path / "out" / "inspection.json").read_text(encoding="utf-8"))
    np.testing.assert_allclose(content["texts"][0]["word_weights"], words, atol=1e-5)


def test_a_weighted_mean_beside_the_heads_is_not_aligned(tokenizer, tmp_path):
    model = make_model(seed=2, **COMPOUND, weighted_mean_row=True)
    (record, *_) = write_inspection(model, tokenizer, TEXTS, tmp_path / "out")
    heads, rows = len(record.word_weights), record.attentions[-1].mean(axis=0)
    assert rows.shape[1] == heads + 1
    np.testing.assert_allclose(record.alignment.sum(axis=0), rows[:, :heads] @ record.word_weights, atol=1e-6)
    assert (tmp_path / "out" / "text-1-alignment.png").is_file()


@pytest.mark.parametrize("architecture", ["attn", "trf"])
def test_attention_over_the_source_itself(tokenizer, tmp_path, architecture):
    """Where there are no rows, the decoder's attention is over the source's tokens."""
    model = make_model(full_class=CompoundAttentionForTranslation, architecture=architecture, initializer_range=0.7)
    (record, *_) = write_inspection(model, tokenizer, TEXTS, tmp_path / "out")
    assert record.attentions.shape[2:] == (len(record.tokens), len(record.source_tokens))
    assert record.word_weights is None
    assert record.alignment is None
    assert (tmp_path / "out" / "text-1-attention.png").is_file()


def test_inner_attention_alone_has_its_maps(tokenizer, tmp_path):
    model = make_model(
        full_class=CompoundAttentionForTranslation, architecture="attn-ctx", latent_heads=2, latent_size=5
    )
    (record, *_) = write_inspection(model, tokenizer, TEXTS, tmp_path / "out")
    assert record.attentions is None
    assert record.word_weights.shape == (2, len(record.source_tokens))
    assert (tmp_path / "out" / "text-1-heads.png").is_file()


def test_weights_by_position(tokenizer, tmp_path, capsys):
    """Averaged over the lines of a file that are long enough; the same whatever is in a batch."""
    model = make_model(seed=2, **COMPOUND)
    folder = save_checkpoint(model, tokenizer, tmp_path / "model")
    lines = ["the cat sat on the mat a dog ran on the old mat", "a dog", "the red dog ran on the old mat the cat sat"]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    inspect_decoding(
        [str(folder), TEXTS[0], "--output", str(tmp_path / "out"), "--positions", str(tmp_path / "lines.txt")]
    )
    content = json.loads((tmp_path / "out" / "inspection.json").read_text(encoding="utf-8"))
    alone = [next(inspection.inner_attention_weights(model.encoder, tokenizer, [line])) for line in lines]
    np.testing.assert_allclose(content["attention_by_position"], attention_by_position(alone), atol=1e-5)
    assert (tmp_path / "out" / "attention-by-position.png").is_file()
    with pytest.raises(ValueError, match="`pooling` is 'mean_max'"):
        write_inspection(make_model(), tokenizer, TEXTS, tmp_path / "out", position_texts=lines)
