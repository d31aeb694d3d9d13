"""Scores of reconstructions: BLEU by sacrebleu, unknown words as errors, order, teacher-forced accuracy."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
import sacrebleu
import torch

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.reconstruct import main
from hf_meanmax.commands.reproduce import compare_reconstructions
from hf_meanmax.evaluation import reconstruct, score_reconstructions, teacher_forced_scores
from hf_meanmax.evaluation import reconstruction as module
from hf_meanmax.evaluation.reconstruction import (
    ReconstructionSettings,
    reconstruction_pairs,
    score_checkpoint,
    teacher_forced_counts,
)
from hf_meanmax.evaluation.reconstruction import _padded_batches as padded_batches
from hf_meanmax.evaluation.reconstruction_table import read_texts, reconstruction_table, sample_texts
from hf_meanmax.evaluation.recovery import word_cutter
from hf_meanmax.evaluation.text_scores import score_texts, scores_by_length
from hf_meanmax.tokenization import WordVectors, expand_vocabulary, train_tokenizer
from tiny_model import WORDS, make_model, make_tokenizer, random_lines

LONG = "the old cat sat on the red mat"


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def model():
    return make_model()


def ids(tokenizer, *texts: str) -> list[list[int]]:
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


@pytest.mark.parametrize(
    ("references", "hypotheses"),
    [
        ([LONG, "a dog ran on the mat"], [LONG, "a dog ran on the mat"]),
        ([LONG, "a dog ran on the mat"], ["the old cat sat on the red dog", "a dog ran"]),
        ([LONG], ["the the the the"]),
        ([LONG, "a dog"], ["", "a dog"]),
        (["the cat", "a dog"], ["the cat", "a cat"]),
    ],
    ids=["same", "partly", "repeated", "empty", "short"],
)
def test_bleu_is_sacrebleu_s(tokenizer, references, hypotheses):
    scores = score_reconstructions(tokenizer, references, ids(tokenizer, *hypotheses))
    assert scores.bleu == pytest.approx(
        sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none", force=True).score
    )
    equal = [reference == hypothesis for reference, hypothesis in zip(references, hypotheses, strict=True)]
    assert scores.exact_match == sum(equal) / len(equal)
    assert scores.sentences == len(references)


def test_bleu_by_hand(tokenizer):
    """One word of eight is wrong: n-gram precisions 7/8, 5/7, 3/6 and 2/5, no brevity penalty."""
    said = ids(tokenizer, "the old dog sat on the red mat")
    expected = 100 * (7 / 8 * 5 / 7 * 3 / 6 * 2 / 5) ** 0.25
    assert score_reconstructions(tokenizer, [LONG], said).bleu == pytest.approx(expected)
    # A word left out at the end costs the brevity penalty alone.
    said = ids(tokenizer, LONG.removesuffix(" mat"))
    assert score_reconstructions(tokenizer, [LONG], said).bleu == pytest.approx(100 * torch.tensor(-1 / 7).exp().item())


def test_an_unknown_word_is_an_error(tokenizer):
    """The reference is the text, not its ids: `<unk>` said for an unknown word is not right."""
    text = "the old zebra sat on the red mat"
    said = ids(tokenizer, text)
    assert tokenizer.unk_token_id in said[0]
    assert tokenizer(text)["input_ids"][:-1] == said[0]
    scores = score_reconstructions(tokenizer, [text], said)
    wrong = score_reconstructions(tokenizer, [text], ids(tokenizer, "the old dog sat on the red mat"))
    assert scores.bleu == pytest.approx(wrong.bleu)
    assert scores.bleu < 75
    assert scores.exact_match == 0


def test_pieces_are_scored_as_words():
    texts = ["the unbelievable cat sat on the mat", "don't stop, please"] * 5
    tokenizer = train_tokenizer(texts, kind="bpe", vocab_size=265, show_progress=False)
    said = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert max(map(len, said)) > 8
    scores = score_reconstructions(tokenizer, texts, said)
    assert (scores.bleu, scores.exact_match) == (pytest.approx(100), 1)
    changed = [tokenizer("the unbelievable dog sat on the mat", add_special_tokens=False)["input_ids"], *said[1:]]
    scores = score_reconstructions(tokenizer, texts, changed)
    assert scores.bleu < 100
    assert scores.exact_match == pytest.approx(0.9)


def test_words_are_compared_as_the_tokenizer_cuts_them():
    texts = ["Don't stop, Tom!", "(the cat) sat"] * 3
    tokenizer = train_tokenizer(texts, kind="word", vocab_size=50, show_progress=False)
    said = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert score_reconstructions(tokenizer, texts, said).exact_match == 1


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_texts_come_back_in_their_order(model, tokenizer, batch_size):
    lines = random_lines(17)
    said = reconstruct(model, tokenizer, lines, batch_size=batch_size)
    assert len(said) == len(lines)
    special = {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    for text, found in zip(lines, said, strict=True):
        batch = tokenizer(text, return_tensors="pt")
        output = model.generate(**batch)[0].tolist()
        assert found == [token for token in output if token not in special]


def test_length_of_what_is_said(tokenizer):
    """1.5 times the tokens of each text, the end token counted, whatever is decoded beside it."""
    endless = make_model()
    with torch.no_grad():
        endless.lm_head.bias[[0, 2, 3]] = -1e4
    texts = [f"{LONG} " * number for number in (3, 40, 1)]
    assert [len(said) for said in reconstruct(endless, tokenizer, texts)] == [38, 482, 16]
    assert [len(said) for said in reconstruct(endless, tokenizer, texts, max_new_tokens=2)] == [2, 2, 2]
    assert reconstruct(endless, tokenizer, []) == []


def test_long_texts_share_a_batch_with_fewer(model, tokenizer, monkeypatch):
    texts = [f"{LONG} " * (number % 40) for number in range(100)]
    shapes = []

    def generate(input_ids, **kwargs):
        shapes.append(tuple(input_ids.shape))
        return input_ids

    monkeypatch.setattr(model, "generate", generate)
    said = reconstruct(model, tokenizer, texts, batch_size=20)
    assert said == [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert sum(rows for rows, _ in shapes) == 100
    assert max(rows for rows, _ in shapes) == 20
    assert max(width for _, width in shapes) == 39 * 8 + 1
    assert all(rows * max(width, 64) <= 20 * 64 for rows, width in shapes)
    # One text a batch at the least, also where it alone exceeds the tokens.
    assert len(reconstruct(model, tokenizer, texts, batch_size=1)) == 100

    shapes = [batch["labels"].shape for batch in padded_batches(model.config, tokenizer, texts, 200)]
    assert sum(rows for rows, _ in shapes) == 100
    assert all(rows * width <= 200 or rows == 1 for rows, width in shapes)
    assert max(rows for rows, _ in shapes) > 5


def test_an_unknown_word_that_is_said_stays(model, tokenizer, monkeypatch):
    monkeypatch.setattr(model, "generate", lambda **kwargs: torch.tensor([[2, 1, 5, 3, 0]]))
    assert reconstruct(model, tokenizer, ["a cat"]) == [[1, 5]]


def naive_scores(model, rows: list[list[int]]) -> tuple[float, float]:
    """One sentence and one target at a time."""
    loss = correct = count = 0
    with torch.no_grad():
        for row in rows:
            for place in range(len(row)):
                prefix = torch.tensor([[model.config.decoder_start_token_id, *row[:place]]])
                logits = model(input_ids=torch.tensor([row]), decoder_input_ids=prefix).logits[0, -1]
                loss -= logits.log_softmax(-1)[row[place]].item()
                correct += int(logits.argmax() == row[place])
                count += 1
    return loss / count, correct / count


@pytest.mark.parametrize("rows_at_once", [None, 2])
def test_teacher_forced_scores_equal_a_naive_loop(model, tokenizer, monkeypatch, rows_at_once):
    if rows_at_once:
        monkeypatch.setattr(module, "_MOST_LOGITS", rows_at_once * 9 * model.config.vocab_size)
    rows = tokenizer([line for line in random_lines(12) if line])["input_ids"]
    batches = []
    for start in (0, 5):
        batch = dict(tokenizer.pad({"input_ids": rows[start : start + 5]}, return_tensors="pt"))
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        batches.append(batch)
    loss, accuracy = teacher_forced_scores(model, batches)
    assert (loss, accuracy) == pytest.approx(naive_scores(model, rows[:10]), abs=1e-5)
    loss_sum, correct, count = sum(teacher_forced_counts(model, batch) for batch in batches).tolist()
    assert count == sum(map(len, rows[:10]))
    assert (loss_sum / count, correct / count) == (loss, accuracy)


@pytest.mark.parametrize("batches", [[], [{"input_ids": torch.tensor([[4, 3]]), "labels": torch.full((1, 2), -100)}]])
def test_nothing_to_score(model, batches):
    with pytest.raises(ValueError, match="the evaluation set is empty"):
        teacher_forced_scores(model, batches)


def test_scores_of_a_checkpoint(model, tokenizer, tmp_path, capsys):
    folder = save_checkpoint(model, tokenizer, tmp_path / "model")
    lines = random_lines(30)
    (tmp_path / "text.txt").write_text("\n".join(lines))
    picked = [line for line in lines if 4 <= len(line.split()) <= 8][:6]
    scores = score_checkpoint(
        str(folder),
        str(tmp_path / "text.txt"),
        ReconstructionSettings(limit=6, max_tokens=8, batch_tokens=20),
        show_progress=False,
    )
    assert (scores["sentences"], scores["left_out"]) == (6, None)
    expected = score_reconstructions(tokenizer, picked, reconstruct(model, tokenizer, picked))
    assert (scores["bleu"], scores["exact_match"]) == (expected.bleu, expected.exact_match)
    rows = tokenizer(picked)["input_ids"]
    assert (scores["loss"], scores["accuracy"]) == pytest.approx(naive_scores(model, rows), abs=1e-5)

    words = [str(folder), str(tmp_path / "text.txt"), "--limit", "6", "--max-tokens", "8"]
    main(words)
    printed = json.loads(capsys.readouterr().out)
    assert printed.keys() == scores.keys()
    assert [printed[name] for name in ("accuracy", "loss")] == pytest.approx([scores["accuracy"], scores["loss"]])
    assert {**printed, "accuracy": 0, "loss": 0} == {**scores, "accuracy": 0, "loss": 0}
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"said": line}) + "\n" for line in lines if line))
    main([str(folder), str(tmp_path / "text.jsonl"), *words[2:], "--text_column", "said"])
    assert json.loads(capsys.readouterr().out) == printed
    with pytest.raises(ValueError, match="`max_tokens` is 32, less than `min_tokens` 50"):
        ReconstructionSettings(min_tokens=50)
    with pytest.raises(ValueError, match="has no sentence of 50-60 tokens"):
        score_checkpoint(
            str(folder),
            str(tmp_path / "text.txt"),
            ReconstructionSettings(min_tokens=50, max_tokens=60),
            show_progress=False,
        )
    capsys.readouterr()
    wide = ReconstructionSettings(max_tokens=8)
    scores = score_checkpoint(str(folder), str(tmp_path / "text.txt"), wide, show_progress=False)
    filled = [len(line.split()) for line in lines if line]
    within = sum(4 <= length <= 8 for length in filled)
    assert (scores["sentences"], scores["left_out"]) == (within, len(filled) - within)
    assert f"{len(filled) - within} of {len(filled)} sentences are not of 4-8 tokens" in capsys.readouterr().err
    short = save_checkpoint(model, tokenizer, tmp_path / "short", training_args={"max_tokens": 6})
    score_checkpoint(str(short), str(tmp_path / "text.txt"), wide, show_progress=False)
    longer = sum(6 < length <= 8 for length in filled)
    assert f"warning: {longer} of {within} texts have more than 6 tokens" in capsys.readouterr().err
    told = {"objective": "none"}
    static = save_checkpoint(model, tokenizer, tmp_path / "static", training_args=told)
    with pytest.raises(ValueError, match=r"learnt by the objective 'none': it has no decoder"):
        score_checkpoint(str(static), str(tmp_path / "text.txt"), show_progress=False)
    told = {"objective": "translation"}
    other = save_checkpoint(model, tokenizer, tmp_path / "translator", training_args=told)
    with pytest.raises(ValueError, match=r"learnt by the objective 'translation'.*hf-meanmax translate --reference"):
        score_checkpoint(str(other), str(tmp_path / "text.txt"), show_progress=False)
    with pytest.raises(SystemExit, match=r"reconstruct.*no sentence of 50-60 tokens"):
        main([*words, "--min-tokens", "50", "--max-tokens", "60"])
    with pytest.raises(SystemExit):
        main([*words, "--limits", "3"])
    assert "Did you mean --limit?" in capsys.readouterr().err


@pytest.fixture
def checkpoint(model, tokenizer, tmp_path):
    lines = [line for line in random_lines(40, seed=3) if line]
    lines[0] = "the\tcat\u2028sat on the zebra"
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    return save_checkpoint(model, tokenizer, tmp_path / "model")


def test_scores_are_those_of_the_texts_said(checkpoint, model, tokenizer, tmp_path):
    pytest.importorskip("rouge_score")
    source = str(tmp_path / "text.txt")
    scores = score_checkpoint(
        str(checkpoint), source, ReconstructionSettings(min_tokens=1, max_tokens=12), show_progress=False
    )
    texts = [line for line in source_lines(tmp_path) if line]
    said = reconstruct(model, tokenizer, texts)
    expected = score_texts(*reconstruction_pairs(tokenizer, texts, said), rouge=True)
    assert {name: scores[name] for name in expected.to_dict()} == expected.to_dict()
    assert set(expected.signatures) == {"bleu", "chrf", "rouge"}
    assert "tok:none" in expected.signatures["bleu"]
    assert sum(row["count"] for row in scores["by_length"]) == len(texts)
    assert scores["by_length"] == scores_by_length(*reconstruction_pairs(tokenizer, texts, said)[:2])


def test_words_of_an_expanded_vocabulary_are_errors(model, tokenizer, tmp_path):
    expanded = make_model()
    vectors = WordVectors([*WORDS, "unheard"], np.random.default_rng(0).standard_normal((len(WORDS) + 1, 8)))
    words = expand_vocabulary(expanded, tokenizer, vectors).tokenizer
    folder = save_checkpoint(expanded, words, tmp_path / "expanded")
    (tmp_path / "text.txt").write_text("the cat sat on the unheard mat\n")
    scores = score_checkpoint(str(folder), str(tmp_path / "text.txt"), show_progress=False)
    assert (scores["sentences"], scores["exact_match"]) == (1, 0)
    assert 0 < scores["loss"] < float("inf")


def source_lines(folder):
    return (folder / "text.txt").read_text(encoding="utf-8").split("\n")


def test_output_folder_holds_scores_texts_table_and_figure(checkpoint, model, tokenizer, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    words = [str(checkpoint), str(tmp_path / "text.txt"), "--min-tokens", "1", "--device", "cpu", "--batch-size", "7"]
    main([*words, "--output", str(tmp_path / "a")])
    captured = capsys.readouterr()
    assert captured.err.count("\n    ") == 3, "three texts, each with what comes back of it"
    printed = json.loads(captured.out)
    results = json.loads((tmp_path / "a/reconstruction.json").read_text())
    assert results["scores"] == printed
    assert (results["checkpoint"], results["num_beams"], results["seed"]) == (str(checkpoint), 1, 0)
    header, *rows = (tmp_path / "a/reconstructions.tsv").read_text(encoding="utf-8").splitlines()
    assert header == "text\treconstruction"
    texts = [line for line in source_lines(tmp_path) if line]
    said = tokenizer.batch_decode(reconstruct(model, tokenizer, texts, batch_size=7))
    assert rows[0].split("\t")[0] == "the cat sat on the zebra"
    assert [row.split("\t") for row in rows[1:]] == [list(pair) for pair in zip(texts[1:], said[1:], strict=True)]
    assert (tmp_path / "a/bleu-by-length.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "a/bleu-by-length.md").read_text()
    assert table.startswith("| length | texts | BLEU | chrF | exact match | token accuracy |\n")

    main([*words, "--num-beams", "2", "--output", str(tmp_path / "b")])
    assert json.loads((tmp_path / "b/reconstruction.json").read_text())["num_beams"] == 2
    both = tmp_path / "both"
    compare_reconstructions([str(tmp_path / "b"), str(tmp_path / "a"), "--output", str(both)])
    assert (both / "bleu-by-length.md").read_text().startswith("| length | texts | b | a |\n")
    assert (both / "bleu-by-length.png").read_bytes().startswith(b"\x89PNG")
    systems = {"b": read_texts(tmp_path / "b"), "a": read_texts(tmp_path / "a")}
    shown = sample_texts([text for text, _ in systems["a"]], 5)
    assert (both / "reconstructions.md").read_text().startswith(reconstruction_table(systems, shown) + "\n")

    (tmp_path / "text.txt").write_text("a dog ran\n")
    main([*words, "--output", str(tmp_path / "c")])
    for other, message in (
        ("c", "No text is shared by c, a"),
        ("damaged", "reconstruction.json holds no scores by length"),
        ("cut", "reconstruction.json is damaged or cut short"),
    ):
        if other != "c":
            shutil.copytree(tmp_path / "a", tmp_path / other)
            (tmp_path / other / "reconstruction.json").write_text('{"scores": {}}'[: 14 if other == "damaged" else 5])
        with pytest.raises(SystemExit, match=message):
            compare_reconstructions([str(tmp_path / other), str(tmp_path / "a"), "--output", str(tmp_path / "d")])
    shutil.copytree(tmp_path / "a", tmp_path / "lacking")
    for row in results["scores"]["by_length"]:
        row.pop("chrf", None)
    (tmp_path / "lacking/reconstruction.json").write_text(json.dumps(results))
    with pytest.raises(SystemExit, match=r"reconstruction.json holds no scores by length \(KeyError\('chrf'\)\)"):
        compare_reconstructions([str(tmp_path / "lacking"), "--output", str(tmp_path / "e")])
    assert not (tmp_path / "e").exists()
    main([*words, "--output", str(tmp_path / "c"), "--examples", "1", "--seed", "3"])
    assert "1 of 1 texts, drawn with seed 3" in (tmp_path / "c/reconstructions.md").read_text()


def test_without_matplotlib_and_rouge_the_rest_is_written(checkpoint, tmp_path, monkeypatch, capsys):
    for name in ("matplotlib", "matplotlib.figure", "rouge_score", "rouge_score.rouge_scorer"):
        monkeypatch.setitem(sys.modules, name, None)
    main([str(checkpoint), str(tmp_path / "text.txt"), "--output", str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert (
        "bleu-by-length.png was not drawn. A figure needs matplotlib. "
        'In a clone: pip install -c constraints.txt ".[plots]"' in captured.err
    )
    scores = json.loads(captured.out)
    assert set(scores["signatures"]) == {"bleu", "chrf"}
    assert "rouge1" not in scores
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"reconstruction.json", "reconstructions.tsv", "reconstructions.md", "bleu-by-length.md"}


def test_bad_options_end_before_anything_is_decoded(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "reconstruct", lambda *args, **kwargs: pytest.fail("it was decoded"))
    words = [str(checkpoint), str(tmp_path / "text.txt")]
    (tmp_path / "file").touch()
    for options, message in (
        (["--device", "abacus"], "device is 'abacus', which cannot be used here"),
        (["--output", str(tmp_path / "file")], "file is a file; name a folder"),
    ):
        with pytest.raises(SystemExit, match=message):
            main([*words, *options])


CHINESE = ["我们喜欢看书,也喜欢写字。", "他昨天去了北京大学。", "2022年的冬天很冷,下了大雪。"] * 4


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_chinese_text_is_scored_by_character(kind):
    sizes = {"bpe": 300, "unigram": 330, "char": 60}
    tokenizer = train_tokenizer(CHINESE, kind=kind, vocab_size=sizes[kind], show_progress=False)
    said = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in CHINESE]
    scores = score_reconstructions(tokenizer, CHINESE, said)
    assert (scores.bleu, scores.exact_match, scores.token_accuracy) == (pytest.approx(100), 1, 1)
    # One character of ten is wrong: words without spaces between them would make it the whole clause.
    wrong = [text.replace("京", "字") for text in CHINESE]
    said = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in wrong]
    scores = score_reconstructions(tokenizer, CHINESE, said)
    expected = sacrebleu.corpus_bleu(wrong, [CHINESE], tokenize="zh").score
    # `char` keeps the digits apart, which sacrebleu's zh joins to a number.
    assert scores.bleu == pytest.approx(expected, abs=1.5 if kind == "char" else 1e-9)
    assert 0.9 < scores.token_accuracy < 1
    assert ("tok:none" if kind == "char" else "tok:zh") in scores.signatures["bleu"]


def test_spaced_text_under_a_tokenizer_of_characters_is_scored_by_word():
    texts = ["The cat sat on a mat.", "A dog ran after the red cat."] * 3
    tokenizer = train_tokenizer(texts, kind="char", vocab_size=60, show_progress=False)
    wrong = [text.replace("cat", "tac") for text in texts]
    said = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in wrong]
    scores = score_reconstructions(tokenizer, texts, said)
    assert scores.bleu == pytest.approx(sacrebleu.corpus_bleu(wrong, [texts], tokenize="13a").score)
    assert word_cutter(tokenizer, texts)(["The cat."]) == [["The", "cat", "."]]


def test_plain_text_is_compared_as_the_tokenizer_normalises_it():
    texts = ["Don't stop, Tom!", "(The cat) sat on a mat."] * 3
    tokenizer = train_tokenizer(texts, kind="word", vocab_size=50, show_progress=False)
    said = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    scores = score_reconstructions(tokenizer, texts, said, tokenize="13a")
    assert (scores.bleu, scores.exact_match) == (pytest.approx(100), 1)
    assert "tok:13a" in scores.signatures["bleu"]


def test_training_scores_need_no_rouge(tokenizer, monkeypatch):
    for name in ("rouge_score", "rouge_score.rouge_scorer"):
        monkeypatch.setitem(sys.modules, name, None)
    scores = score_reconstructions(tokenizer, [LONG], ids(tokenizer, LONG))
    assert (scores.chrf, scores.token_accuracy, scores.rouge1) == (pytest.approx(100), 1, None)
