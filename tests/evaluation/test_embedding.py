"""Embedding of texts: each distinct text once, checked, remembered within bounds, from encoders and from files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer

from evaluation.fake_tasks import LengthEncoder, LengthTask
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.data.opening import open_corpus
from hf_meanmax.evaluation.embedding import Embedder, EmbeddingFile, encoder_key, read_sentences, write_sentences
from hf_meanmax.evaluation.runner import evaluate
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus
from hf_meanmax.inference.encoder import load_encoder
from tiny_model import TEXTS, make_model, make_tokenizer

SIZE = 5


def vector(text: str) -> np.ndarray:
    return np.array([len(text), *(text.count(letter) for letter in "aeio")], dtype=np.float32)


class Counting:
    """An encoder that keeps what it was asked."""

    name = "counting"

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def encode(self, texts: list[str]) -> np.ndarray:
        self.calls.append(texts)
        return np.stack([vector(text) for text in texts])

    @property
    def asked(self) -> list[str]:
        return [text for call in self.calls for text in call]


def expected(texts) -> np.ndarray:
    return np.stack([vector(text) for text in texts])


def test_each_distinct_text_is_encoded_once_and_rows_keep_their_order():
    encoder = Counting()
    embed = Embedder(encoder, batch_size=2, show_progress=False)
    texts = ["a cat", "", "a long dog ran", "a cat", "mouse", "", "a cat"]
    found = embed(texts)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected(texts))
    assert sorted(encoder.asked) == sorted(set(texts))
    assert [len(call) for call in encoder.calls] == [2, 2]
    assert [len(text) for text in encoder.asked] == [14, 5, 5, 0]
    assert embed.dimension == SIZE
    assert embed.encoded == 4


def test_texts_of_an_earlier_call_are_remembered():
    encoder = Counting()
    embed = Embedder(encoder, show_progress=False)
    first = embed(["x", "yy", "x"])
    first[:] = 0  # the caller's own
    assert np.array_equal(embed(["yy", "zzz", "x"]), expected(["yy", "zzz", "x"]))
    assert sorted(encoder.asked) == ["x", "yy", "zzz"]
    embed.clear()
    embed(["x"])
    assert encoder.asked.count("x") == 2


def test_memory_is_bounded_and_the_least_recently_used_go_first():
    encoder = Counting()
    row = 4 * SIZE
    embed = Embedder(encoder, show_progress=False, cache_bytes=4 * row)
    embed(["a", "b"])
    embed(["c", "d"])
    embed(["a"])  # now b is the oldest
    embed(["e"])
    encoder.calls.clear()
    assert np.array_equal(embed(["a", "b", "e", "c"]), expected(["a", "b", "e", "c"]))
    assert encoder.asked == ["b"]


def test_only_texts_that_are_worth_it_are_remembered():
    encoder = Counting()
    embed = Embedder(encoder, show_progress=False)
    embed.keep = {"b", "z"}
    embed(["a", "b", "c"])
    encoder.calls.clear()
    assert np.array_equal(embed(["b", "a"]), expected(["b", "a"]))
    assert encoder.asked == ["a"]


def test_an_encoder_that_makes_its_own_batches_gets_many_texts():
    sizes = []

    class Batching:
        def encode(self, texts, batch_size=32):
            sizes.append((len(texts), batch_size))
            return expected(texts)

    Embedder(Batching(), batch_size=2, show_progress=False)(["x" * length for length in range(130)])
    assert sizes == [(128, 2), (2, 2)]


def test_a_function_is_an_encoder():
    embed = Embedder(lambda texts: [[len(text), 1] for text in texts], name="lengths", show_progress=False)
    assert embed(["abc", ""]).tolist() == [[3, 1], [0, 1]]
    assert embed.key is None
    assert Embedder(vector, key="mine").key == "mine"
    with pytest.raises(ValueError, match="is no encoder"):
        Embedder(3)


@pytest.mark.parametrize(
    "convert",
    [
        lambda rows: torch.from_numpy(rows).to(torch.bfloat16).requires_grad_(),
        lambda rows: torch.from_numpy(rows).long(),
        lambda rows: list(rows),
        lambda rows: [torch.from_numpy(row) for row in rows],
        lambda rows: rows.tolist(),
        lambda rows: rows.astype(np.float16),
        lambda rows: rows.astype(np.int32),
    ],
    ids=["bfloat16", "integers", "list of arrays", "list of tensors", "lists", "float16", "int32"],
)
def test_kinds_of_output(convert):
    embed = Embedder(lambda texts: convert(expected(texts)), show_progress=False)
    found = embed(["a cat", "mouse"])
    assert found.dtype == np.float32
    assert np.array_equal(found, expected(["a cat", "mouse"]))


def spoiled(text: str, value: float):
    def encode(texts: list[str]) -> np.ndarray:
        rows = expected(texts)
        rows[[index for index, other in enumerate(texts) if other == text], 2] = value
        return rows

    return encode


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (spoiled("the dog", np.nan), r"bad gave a vector with NaN or infinity for the text 'the dog'"),
        (spoiled("the dog", np.inf), r"bad gave a vector with NaN or infinity for the text 'the dog'"),
        (lambda texts: expected(texts).astype(np.float64) * 1e300, r"NaN or infinity for the text 'a mouse"),
        (lambda texts: expected(texts)[:-1], r"bad was given 3 texts, the first 'a mouse ran', and gave 2 rows"),
        (lambda texts: expected(texts)[0], r"an array of shape \(5,\); expected one row a text, \(3, D\)"),
        (lambda texts: expected(texts)[None], r"shape \(1, 3, 5\)"),
        (lambda texts: np.array([["x"]] * len(texts)), r"an array of <U1; expected numbers"),
        (lambda texts: None, r"bad was given 3 texts"),
        (lambda texts: [vector(text)[: 1 + len(text) % 3] for text in texts], r"no matrix of numbers .*same shape"),
        (lambda texts: [[1.0, 2.0], [1.0]] * 2, r"no matrix of numbers"),
        (lambda texts: np.zeros((len(texts), 0)), r"vectors of dimension 0"),
    ],
    ids=[
        "nan", "inf", "overflow", "rows", "one axis", "three axes", "words", "none", "ragged", "ragged lists", "empty"
    ],
)  # fmt: skip
def test_a_bad_encoder_is_named_with_its_text(encoder, message):
    with pytest.raises(ValueError, match=message):
        Embedder(encoder, name="bad", show_progress=False)(["the dog", "a mouse ran", "cat"])


def test_a_dimension_that_varies_between_calls_is_an_error():
    sizes = iter([4, 4, 3])
    embed = Embedder(lambda texts: np.ones((len(texts), next(sizes))), name="wild", batch_size=1, show_progress=False)
    with pytest.raises(ValueError, match=r"wild was given 1 text, the first 'z', .* 3 numbers; before, they had 4"):
        embed(["yyy", "xx", "z"])


def test_only_strings_are_embedded():
    with pytest.raises(ValueError, match="embed text 2, None; expected a string"):
        Embedder(vector)(["a", None])
    assert Embedder(vector)([]).shape == (0, 0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("embedding") / "model")


@pytest.fixture(scope="module")
def model(checkpoint) -> SentenceTransformer:
    return load_encoder(str(checkpoint), device="cpu")


def test_sentence_transformer_gives_its_own_vectors(model):
    embed = Embedder(model, batch_size=2, show_progress=False)
    assert np.allclose(embed(TEXTS), np.concatenate([model.encode([text]) for text in TEXTS]), atol=1e-6)
    assert embed.dimension == 32


def test_cut_texts_are_counted_and_told_once(checkpoint):
    model = load_encoder(str(checkpoint), device="cpu")
    whole = Embedder(model, batch_size=2, show_progress=False)
    whole(TEXTS)
    assert whole.truncated == 0
    model.max_seq_length = 5
    embed = Embedder(model, "short", batch_size=2, show_progress=False)
    embed(TEXTS)
    cut = sum(len(text.split()) + 1 > 5 for text in TEXTS)
    assert embed.truncated == cut > 0
    embed = Embedder(model, "short", batch_size=2, show_progress=False)
    tasks = [LengthTask("one", TEXTS[:3]), LengthTask("two", TEXTS)]
    with pytest.warns(UserWarning, match="cut .* texts at its limit") as told:
        evaluate([embed, LengthEncoder("other")], tasks, show_progress=False)
    message = f"short cut {embed.truncated} of {embed.encoded} texts at its limit of 5 tokens."
    assert [str(warning.message) for warning in told] == [message]
    assert embed.truncated >= cut


def test_key_of_a_sentence_transformer_is_what_it_computes(model, checkpoint, tmp_path):
    key = encoder_key(model)
    assert encoder_key(load_encoder(str(checkpoint), device="cpu")) == key
    model.encode(["the cat"])
    assert encoder_key(model) == key
    others = {
        "weights": make_model(seed=1),
        "heads": make_model(num_attention_heads=4),
    }
    keys = {key}
    for name, other in others.items():
        folder = save_checkpoint(other, make_tokenizer(), tmp_path / name)
        keys.add(encoder_key(load_encoder(str(folder), device="cpu")))
    truncated = load_encoder(str(checkpoint), device="cpu")
    truncated.truncate_dim = 8
    keys.add(encoder_key(truncated))
    keys.add(encoder_key(load_encoder(str(checkpoint), device="cpu").to(torch.bfloat16)))
    assert len(keys) == 5


def test_weights_that_do_not_show_have_no_key(checkpoint):
    """Those of ONNX Runtime, for instance."""
    encoder = load_encoder(str(checkpoint), device="cpu")

    class Other(torch.nn.Module):
        def forward(self, features):
            return features

    assert encoder_key(SentenceTransformer(modules=[Other()], device="cpu")) is None
    assert encoder_key(encoder) is not None


def test_sentences_file_is_sorted_distinct_and_comes_back(tmp_path):
    path = tmp_path / "new" / "sentences.txt"
    texts = ["zebra", "", " leading", "Ärger", "cat", "zebra", "a\u2028b", "naïve\x85x"]
    assert write_sentences(path, texts) == 7
    assert read_sentences(path) == sorted(set(texts))
    assert write_sentences(tmp_path / "again.txt", reversed(texts)) == 7
    assert (tmp_path / "again.txt").read_bytes() == path.read_bytes()
    with pytest.raises(ValueError, match="holds a line break"):
        write_sentences(path, ["a\nb"])


def test_sentences_in_another_order_are_refused(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("ant\ncat\nbee\n")
    with pytest.raises(ValueError, match=r"line 3: 'bee' comes before line 2 in the order.*sorted by code point"):
        read_sentences(path)
    path.write_text("ant\nbee\nbee\n")
    with pytest.raises(ValueError, match="line 3: 'bee' repeats the line before"):
        read_sentences(path)
    with pytest.raises(FileNotFoundError, match="nothing"):
        read_sentences(tmp_path / "nothing")


@pytest.fixture
def saved(tmp_path):
    texts = sorted(["", "a cat", "the dog", "mouse"])
    write_sentences(tmp_path / "sentences.txt", texts)
    np.save(tmp_path / "vectors.npy", expected(texts))
    return tmp_path


def test_saved_embeddings_are_an_encoder(saved):
    source = EmbeddingFile(saved / "vectors.npy", saved / "sentences.txt")
    embed = Embedder(source, show_progress=False)
    texts = ["mouse", "a cat", "mouse", ""]
    assert np.array_equal(embed(texts), expected(texts))
    assert embed.name == "vectors.npy"
    assert embed.key == source.key
    assert EmbeddingFile(saved / "vectors.npy", saved / "sentences.txt").key == source.key
    with pytest.raises(ValueError, match=r"sentences.txt lacks 1 text of the tasks, the first 'horse'"):
        embed(["a cat", "horse"])


def test_saved_embeddings_change_their_key(saved):
    key = EmbeddingFile(saved / "vectors.npy", saved / "sentences.txt").key
    rows = np.load(saved / "vectors.npy")
    rows[2, 1] += 1
    np.save(saved / "changed.npy", rows)
    assert EmbeddingFile(saved / "changed.npy", saved / "sentences.txt").key != key


def test_wrong_count_of_saved_embeddings(saved):
    np.save(saved / "short.npy", np.load(saved / "vectors.npy")[:3])
    with pytest.raises(ValueError, match=r"short.npy has 3 embeddings, .*sentences.txt has 4 texts"):
        EmbeddingFile(saved / "short.npy", saved / "sentences.txt")
    with pytest.raises(FileNotFoundError, match="nothing"):
        EmbeddingFile(saved / "nothing.npy", saved / "sentences.txt")
    np.save(saved / "flat.npy", np.zeros(4))
    with pytest.raises(ValueError, match=r"flat\.npy: no embeddings can be read"):
        EmbeddingFile(saved / "flat.npy", saved / "sentences.txt")


def test_kinds_of_files(saved):
    rows = np.load(saved / "vectors.npy")
    save_file({"embeddings": rows}, saved / "vectors.safetensors")
    texts = ["the dog", ""]
    embed = Embedder(EmbeddingFile(saved / "vectors.safetensors", saved / "sentences.txt"), show_progress=False)
    assert np.array_equal(embed(texts), expected(texts))


@pytest.mark.parametrize(("format", "dtype"), [("npy", "float32"), ("parquet", "float32"), ("npy", "int8")])
def test_a_folder_of_encode_over_the_sentences_file(checkpoint, tmp_path, format, dtype):
    model = load_encoder(str(checkpoint), device="cpu")
    write_sentences(tmp_path / "sentences.txt", TEXTS)
    settings = EncodeSettings(shard_size=2, format=format, dtype=dtype)
    corpus = open_corpus(str(tmp_path / "sentences.txt"))
    encode_corpus(model, corpus, tmp_path / "out", settings, show_progress=False)
    embed = Embedder(EmbeddingFile(tmp_path / "out", tmp_path / "sentences.txt"), show_progress=False)
    assert np.allclose(
        embed(TEXTS), Embedder(model, show_progress=False)(TEXTS), atol=0.05 if dtype == "int8" else 1e-6
    )


def test_vectors_of_unit_length():
    def encoder(texts):
        return np.array([[3.0, 4.0] if text else [0.0, 0.0] for text in texts])

    plain, unit = (Embedder(encoder, key="k", show_progress=False, unit_length=scaled) for scaled in (False, True))
    np.testing.assert_allclose(plain(["a", ""]), [[3, 4], [0, 0]])
    np.testing.assert_allclose(unit(["a", ""]), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    assert plain.key != unit.key


def test_a_changed_model_may_have_another_dimension(checkpoint):
    model = SentenceTransformer(str(checkpoint), device="cpu")
    embedder = Embedder(model, show_progress=False)
    whole = embedder(["a b"])
    model.truncate_dim = 4
    embedder.refresh()
    np.testing.assert_array_equal(embedder(["a b"]), whole[:, :4])
