"""Training word vectors of a corpus from the command line."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

from hf_meanmax.commands.vectors import main
from hf_meanmax.tokenization import load_word_vectors

pytest.importorskip("gensim", reason="needs gensim")


def write_corpus(path):
    """Two topics whose words never meet, one rare word, one capital."""
    draw = random.Random(0)
    topics = (["ship", "sea", "sail", "mast"], ["oven", "bread", "flour", "yeast"])
    lines = [" ".join(draw.choices(topics[number % 2], k=8)) for number in range(600)]
    lines[0] += " Ship rare"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_frequent_words_get_vectors_that_tell_topics_apart(tmp_path, capsys):
    corpus, output = write_corpus(tmp_path / "corpus.txt"), tmp_path / "folder" / "vectors.safetensors"
    main([str(corpus), "--output", str(output), "--size", "12", "--epochs", "20", "--seed", "1"])
    assert "12 dimensions" in capsys.readouterr().out
    vectors = load_word_vectors(output)
    assert vectors.size == 12
    assert {"ship", "oven"} <= set(vectors.words)
    assert not {"rare", "Ship", "<s>", "</s>"} & set(vectors.words)
    unit = vectors.vectors / np.linalg.norm(vectors.vectors, axis=1, keepdims=True)
    ship, sea, oven = (unit[vectors.index[word]] for word in ("ship", "sea", "oven"))
    assert ship @ sea > ship @ oven
    # Nothing but the vectors is left.
    assert [path.name for path in output.parent.iterdir()] == [output.name]


def test_case_and_rare_words_on_request(tmp_path):
    corpus, output = write_corpus(tmp_path / "corpus.txt"), tmp_path / "vectors.safetensors"
    main([str(corpus), "--output", str(output), "--size", "4", "--epochs", "1", "--min-count", "1", "--keep-case"])
    assert {"rare", "Ship"} <= set(load_word_vectors(output).words)


def test_rare_words_of_little_text_are_counted(tmp_path):
    (tmp_path / "t.txt").write_text("A ship sails, a ship sinks.\nThe sea is a ship's grave\n" * 2)
    options = [str(tmp_path / "t.txt"), "--output", str(tmp_path / "v.safetensors"), "--size", "4"]
    with pytest.warns(UserWarning, match="9 of 11 different words occur less than 5 times, and have no vector"):
        main(options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        main([*options, "--min_count", "1"])


def test_a_log_gets_lines_from_the_first_second(tmp_path, capsys):
    main([str(write_corpus(tmp_path / "corpus.txt")), "--output", str(tmp_path / "v.safetensors"), "--size", "4"])
    log = capsys.readouterr().err
    assert "\r" not in log
    steps = [line.partition(":")[0] for line in log.splitlines()]
    for step in (
        "tokenizer",
        "tokenise",
        "word vectors, counting",
        "word vectors, epoch 1/2",
        "word vectors, epoch 2/2",
    ):
        assert 1 <= steps.count(step) <= 2, step


def test_errors_in_one_line(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.txt")
    with pytest.raises(SystemExit, match=r"^hf-meanmax vectors: output is .*vectors.txt'; word vectors are written as"):
        main([str(corpus), "--output", str(tmp_path / "vectors.txt")])
    with pytest.raises(SystemExit, match=r"^hf-meanmax vectors: .*nothing.txt"):
        main([str(tmp_path / "nothing.txt"), "--output", str(tmp_path / "vectors.safetensors")])


def test_the_same_vectors_on_request(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.txt")
    options = ["--size", "8", "--epochs", "2", "--deterministic"]
    for name in ("a", "b"):
        main([str(corpus), "--output", str(tmp_path / f"{name}.safetensors"), *options])
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_the_token_of_rare_words_is_no_word(tmp_path):
    """It stands in the text for all of them, so it is frequent, and every file would have it in common."""
    (tmp_path / "rare.txt").write_text("".join(f"one{n} two{n} three{n}\n" for n in range(20)))
    with pytest.raises(SystemExit, match="no word of the 20 sentences occurs 5 times"):
        main([str(tmp_path / "rare.txt"), "--output", str(tmp_path / "rare.safetensors"), "--size", "4"])
    assert not (tmp_path / "rare.safetensors").exists()
    corpus, german = write_corpus(tmp_path / "corpus.txt"), tmp_path / "german.safetensors"
    (tmp_path / "german.txt").write_text("das schiff und das meer weit\n" * 9 + "ein anderes wort\n")
    main([str(tmp_path / "german.txt"), "--output", str(german), "--size", "4"])
    assert "<unk>" not in load_word_vectors(german).words
    with pytest.raises(SystemExit, match="None of 8 words is among the 5 words of the other vectors"):
        main([str(corpus), "--output", str(tmp_path / "v.safetensors"), "--size", "4", "--join", str(german)])
