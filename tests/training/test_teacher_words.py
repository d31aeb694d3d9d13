"""Words and pieces of a teacher: their vectors, their file, and a tokenizer that leaves no word unknown."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast

from hf_meanmax.checkpoint.folder import load_checkpoint, save_checkpoint
from hf_meanmax.commands.vectors import main
from hf_meanmax.data.opening import open_corpus
from hf_meanmax.inference.teacher_words import static_words, teacher_words, wordpieces
from hf_meanmax.tokenization import (
    WordVectors,
    load_word_vectors,
    train_tokenizer,
    unknown_word_rate,
    wordpiece_tokenizer,
)
from hf_meanmax.training import word_vectors as word_vectors_module
from hf_meanmax.training.pretrain import pretrain
from hf_meanmax.training.recipes import parse_command_line
from hf_meanmax.training.word_vectors import VectorSettings, train_corpus_vectors
from tiny_model import make_model, make_tokenizer

PIECES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "dog", "a", "##t", *"bcdefgh", "##e"]
TEXT = "the cat sat\nthe cat ran\nthe dog sat\n"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> SentenceTransformer:
    """A tiny BERT with random weights and a WordPiece vocabulary."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(PIECES), **sizes)).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    transformer = Transformer(str(folder))
    model = SentenceTransformer(modules=[transformer, Pooling(16)], device="cpu")
    model.save_pretrained(str(folder / "st"))
    return SentenceTransformer(str(folder / "st"), device="cpu")


@pytest.fixture
def corpus(tmp_path) -> Path:
    (tmp_path / "corpus.txt").write_text(TEXT * 2)
    return tmp_path / "corpus.txt"


def words_of(names: list[str]) -> WordVectors:
    return WordVectors(names, np.zeros((len(names), 0), np.float32), np.arange(len(names), 0, -1))


def test_each_word_alone_as_a_text_with_the_mean_removed(teacher):
    names = ["the", "cat", "dog", "hat"]
    found = teacher_words(teacher, words_of(names), show_progress=False)
    plain = teacher.encode(names)
    plain = plain - plain.mean(axis=0)
    np.testing.assert_allclose(found.vectors, plain / np.sqrt(np.square(plain).mean()), rtol=1e-4, atol=1e-5)
    assert found.words == names
    assert found.counts.tolist() == [4, 3, 2, 1]
    few = teacher_words(teacher, words_of(names), components=2, show_progress=False)
    assert few.vectors.shape == (4, 2)


def test_pieces_that_are_no_words_follow(teacher):
    assert list(wordpieces(teacher, {"the", "cat"})) == ["##s", "dog", "a", "##t", *"bcdefgh", "##e"]
    found = teacher_words(teacher, words_of(["the", "cat"]), with_pieces=True, show_progress=False)
    assert found.words[:4] == ["the", "cat", "##s", "dog"]
    # Characters that it has no piece of are pieces too, so that no word of these letters is unknown.
    assert {"t", "##a", "##c", "##h"} <= set(found.words)
    tokenizer = wordpiece_tokenizer(found.words)
    assert tokenizer.unk_token_id not in tokenizer("tach hat that").input_ids
    assert found.counts.tolist() == [2, 1] + [1] * (len(found) - 2)
    # A piece that begins a word is the same tokens as the word alone.
    plain, both = teacher.encode(["the", "cat", "dog"]), [0, 1, 3]
    mean = plain[:2].mean(axis=0)
    unit = [rows / np.linalg.norm(rows) for rows in (found.vectors[both], plain - mean)]
    np.testing.assert_allclose(unit[0], unit[1], atol=1e-4)


def test_a_chinese_character_is_the_same_inside_a_word(teacher, monkeypatch):
    """BERT reads each as a word, and has learnt nothing of `##` before one."""
    vocabulary = {"[PAD]": 0, "\u4eba": 1, "##\u4eba": 2, "##s": 3, "##\u56fd": 4}
    backend = SimpleNamespace(model=teacher.tokenizer.backend_tokenizer.model, get_vocab=lambda **_: vocabulary)
    monkeypatch.setattr(type(teacher.tokenizer), "backend_tokenizer", property(lambda self: backend))
    assert wordpieces(teacher, set()) == {"\u4eba": 1, "##\u4eba": 1, "##s": 3, "##\u56fd": 4}


def test_a_teacher_without_wordpieces_has_none(tmp_path):
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    with pytest.raises(ValueError, match="Only a WordPiece vocabulary can be joined"):
        wordpieces(SentenceTransformer(str(folder), device="cpu"), set())


def test_a_vector_that_is_not_finite_is_refused(teacher, monkeypatch):
    monkeypatch.setattr("hf_meanmax.inference.embedder.encode_texts", lambda *_: np.full((1, 4), np.nan))
    with pytest.raises(ValueError, match="finite"):
        teacher_words(teacher, words_of(["the"]), show_progress=False)


def test_the_longest_pieces_spell_other_words():
    tokenizer = wordpiece_tokenizer(["the", "cat", "n't", "do", "##s", "c", "##a", "##b"])
    assert tokenizer.tokenize("The cats don't cab") == ["the", "cat", "##s", "do", "n't", "c", "##a", "##b"]
    assert tokenizer.decode(tokenizer("the cats don't cab").input_ids, skip_special_tokens=True) == "the cats don't cab"
    assert tokenizer("xyz </s>").input_ids[0] == tokenizer.unk_token_id
    # A run of letters without spaces, as in Chinese or Thai.
    assert len(tokenizer.tokenize("c" + 150 * "ab")) == 301
    assert tokenizer("").input_ids == [tokenizer.eos_token_id]
    with pytest.raises(ValueError, match="has words twice: 'cat'"):
        wordpiece_tokenizer(["cat", "dog", "cat"])


def test_the_command_and_a_run_that_starts_from_its_file(teacher, corpus, tmp_path, make_arguments):
    folder, output = str(tmp_path / "teacher"), tmp_path / "words.safetensors"
    teacher.save_pretrained(folder)
    main([str(corpus), "--output", str(output), "--teacher", folder, "--pieces", "--min_count", "1"])
    vectors = WordVectors.load(output)
    assert vectors.words[:2] == ["the", "cat"]
    assert vectors.counts[:2].tolist() == [6, 4]
    args = make_arguments(
        tokenizer="wordpiece", word_vectors=str(output), embedding_size=16, latent_size=16, encoder_type="none",
        pooling="weighted_mean", objective="none", contrastive="views", word_drop=0.3, freeze_word_embeddings=True,
    )  # fmt: skip
    summary = pretrain(args)
    assert summary["steps"] == 8
    unknown = [
        unknown_word_rate(tokenizer, ["the cats hat", "bad dogs"]).rate
        for tokenizer in (train_tokenizer(TEXT.split("\n"), show_progress=False), wordpiece_tokenizer(vectors.words))
    ]
    assert unknown[1] < unknown[0]


def test_tables_side_by_side(corpus, tmp_path, teacher):
    pytest.importorskip("gensim")
    folder, first, both = str(tmp_path / "teacher"), tmp_path / "first.safetensors", tmp_path / "both.safetensors"
    teacher.save_pretrained(folder)
    main([str(corpus), "--output", str(first), "--size", "5", "--min_count", "1"])
    assert WordVectors.load(first).counts.tolist()[:2] == [6, 4]
    words = [str(corpus), "--output", str(both), "--teacher", folder, "--min_count", "2"]
    main([*words, "--pieces"])
    alone, beside = WordVectors.load(both), WordVectors.load(first)
    main([*words, "--pieces", "--join", str(first)])
    joined = WordVectors.load(both)
    assert joined.words == alone.words
    np.testing.assert_array_equal(joined.counts, alone.counts)
    np.testing.assert_allclose(joined.vectors[:, :16], alone.vectors, rtol=1e-5)
    known = np.array([word in beside.index for word in joined.words])
    assert known[:5].all()
    assert not known.all()
    assert not joined.vectors[~known, 16:].any()
    found = beside.vectors[[beside.index[word] for word in joined.words if word in beside.index]]
    expected = found / np.sqrt(np.square(found).mean())
    np.testing.assert_allclose(joined.vectors[known, 16:], expected, rtol=1e-5)


def test_a_table_without_a_word_of_the_corpus_is_refused_before_training(corpus, tmp_path, monkeypatch):
    WordVectors(["katze", "hund"], np.eye(2, dtype=np.float32)).save(tmp_path / "other.safetensors")
    monkeypatch.setattr(word_vectors_module, "train_word_vectors", lambda *_, **__: pytest.fail("trained first"))
    settings = VectorSettings(join=str(tmp_path / "other.safetensors"), min_count=1)
    with pytest.raises(ValueError, match=r"None of .* words is among the 2 words of the other vectors"):
        train_corpus_vectors(open_corpus(corpus), tmp_path / "out.safetensors", settings, show_progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pieces"], "`pieces` is True without a `teacher`"),
        (["--components", "5"], "`components` is 5 without a `teacher`"),
        (["--join", "nowhere.safetensors"], "no such file"),
        (["--teacher", "no/such/model"], "no/such/model"),
        (["--teacher", "no/such/model", "--size", "100"], "`size` is 100, but a teacher's vectors are not trained"),
    ],
)
def test_mistakes_are_one_line(corpus, tmp_path, options, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(corpus), "--output", str(tmp_path / "out.safetensors"), *options])
    assert message in f"{stopped.value} {capsys.readouterr().err}"


def test_a_file_that_holds_special_tokens_gives_them_their_ids():
    """word2vec files begin with `</s>`, GloVe files end with `<unk>`."""
    tokenizer = wordpiece_tokenizer(["</s>", "the", "cat", "##s", "<unk>"])
    assert tokenizer.convert_tokens_to_ids(["<pad>", "<unk>", "<s>", "</s>", "the"]) == [0, 1, 2, 3, 4]
    assert tokenizer("the cats bark").input_ids == [4, 5, 6, 1, 3]
    assert len(tokenizer) == 7


STATIC = {"encoder_type": "none", "pooling": "weighted_mean", "position_embedding_type": "none"}


@pytest.mark.parametrize("hidden_size", [None, 24])
def test_words_of_a_static_model_keep_its_cosines(hidden_size, tmp_path):
    sizes = {"embedding_size": 6, "latent_size": 10, "weighted_mean_hidden_size": hidden_size}
    model = make_model(**STATIC, decoder_type="none", **sizes)
    if hidden_size:
        torch.nn.init.normal_(model.encoder.word_pooler.feed_forward.down.weight)
    folder, tokenizer = save_checkpoint(model, make_tokenizer(), tmp_path / "static"), make_tokenizer()
    names = [
        word
        for word in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        if word not in tokenizer.all_special_tokens
    ]
    encoded = SentenceTransformer(str(folder), device="cpu").encode(names, normalize_embeddings=True)
    # A map alone is of rank 6, so nothing is lost.
    for size in (10,) if hidden_size else (10, 6):
        words = static_words(folder, size)
        assert words.words == names
        assert words.size == size
        unit = words.vectors / np.linalg.norm(words.vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(unit @ unit.T, encoded @ encoded.T, atol=1e-5)
    assert static_words(folder, 4).size == 4
    assert static_words(folder).size == 10
    with pytest.raises(ValueError, match=r"have 10 numbers, 12 are asked for. Set `--embedding_size 10`"):
        static_words(folder, 12)


def test_a_run_starts_from_the_words_of_a_static_model(corpus, tmp_path):
    static = save_checkpoint(
        make_model(**STATIC, decoder_type="none", latent_size=8), make_tokenizer(), tmp_path / "static"
    )
    held_out = shutil.copy(corpus, tmp_path / "held-out.txt")
    options = [
        f"--corpus={corpus}",
        f"--validation={held_out}",
        f"--word_vectors={static}",
        "--vocab_size=20",
        "--embedding_size=6",
        "--hidden_size=8",
        "--intermediate_size=8",
        "--num_attention_heads=2",
        "--freeze_word_embeddings=true",
        "--min_tokens=1",
        "--word_vector_scale=0",
        "--max_steps=1",
        f"--output_dir={tmp_path / 'run'}",
        f"--cache_dir={tmp_path / 'cache'}",
    ]
    pretrain(parse_command_line(options))
    model, tokenizer = load_checkpoint(tmp_path / "run" / "model")
    words = static_words(static, 6)
    found = model.encoder.embeddings.word_embeddings.weight[tokenizer.convert_tokens_to_ids("the")]
    np.testing.assert_array_equal(found.detach().numpy(), words.vectors[words.index["the"]])


def test_another_models_words_are_refused(corpus, tmp_path):
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    with pytest.raises(ValueError, match="is no static model: its pooling is 'mean_max'"):
        static_words(folder, 4)
    with pytest.raises(IsADirectoryError, match=r"is a folder. Give a file of word vectors"):
        load_word_vectors(folder)
