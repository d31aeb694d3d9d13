"""Odd texts get finite vectors, the same alone and among others; damaged files get a sentence. All of it is seeded."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from hf_meanmax.checkpoint.folder import load_checkpoint, save_checkpoint
from hf_meanmax.data import Documents, TokenStore, build_token_store
from hf_meanmax.data.corpus import CorpusLines
from hf_meanmax.files import Json
from hf_meanmax.inference.embedding_files import read_embeddings
from hf_meanmax.inference.encode import encode_corpus
from hf_meanmax.inference.encoder import encode_texts, load_encoder
from hf_meanmax.inference.index import build_index
from hf_meanmax.inference.search import SentenceIndex
from hf_meanmax.tokenization import train_tokenizer
from hf_meanmax.training.pretrain import pretrain
from hf_meanmax.training.recipes import arguments_from_settings
from odd_texts import odd_texts
from tiny_model import make_model, make_tokenizer, random_lines

TEXTS, FILES = 5000, 200


@pytest.mark.parametrize("kind", ["word", "bpe", "char"])
def test_odd_texts_have_finite_vectors_that_do_not_depend_on_their_batch(tmp_path, kind):
    texts = list(odd_texts(TEXTS // 3 + 1, seed=hash_of(kind)))
    tokenizer = train_tokenizer(filter(None, Documents([texts[::50]])), kind, vocab_size=400, show_progress=False)
    folder = save_checkpoint(make_model(vocab_size=len(tokenizer)), tokenizer, tmp_path / "model")
    model = SentenceTransformer(str(folder), device="cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Lone surrogates")
        together = encode_texts(model, texts, 64)
        assert np.isfinite(together).all()
        for row in random.Random(0).sample(range(len(texts)), 60):
            alone = encode_texts(model, [texts[row]], 1)[0]
            np.testing.assert_allclose(alone, together[row], atol=2e-5, err_msg=repr(texts[row][:200]))


def hash_of(name: str) -> int:
    return sum(map(ord, name))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A checkpoint, vectors, an index, a run and a token store, whole."""
    return make_whole(tmp_path_factory.mktemp("whole"))


def make_whole(folder: Path) -> Path:
    """The same in a folder that is there."""
    save_checkpoint(make_model(), make_tokenizer(), folder / "model", training_args={"seed": 0})
    lines = Documents([random_lines(40)])
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    encode_corpus(model, lines, folder / "vectors", show_progress=False)
    build_index([folder / "vectors"], folder / "index", lines=CorpusLines(lines), show_progress=False)
    build_token_store(lines, make_tokenizer(), folder / "store", show_progress=False)
    (folder / "corpus.txt").write_text("\n".join(filter(None, random_lines(300))))
    pretrain(arguments_from_settings(run_settings(folder)))
    return folder


def run_settings(folder: Path) -> Json:
    sizes = dict.fromkeys(("embedding_size", "hidden_size", "intermediate_size"), 8)
    return {
        **sizes, "corpus": [str(folder / "corpus.txt")], "cache_dir": str(folder / "cache"), "num_attention_heads": 2,
        "output_dir": str(folder / "run"), "max_steps": 2, "sample_sentences": 0, "min_tokens": 1, "log_steps": 1,
    }  # fmt: skip


def read_model(folder: Path) -> None:
    load_checkpoint(folder / "model")
    load_encoder(str(folder / "model"))


def read_vectors(folder: Path) -> None:
    for _ in read_embeddings([folder / "vectors"]):
        pass


def read_index(folder: Path) -> None:
    index = SentenceIndex(folder / "index")
    index.nearest(np.ones((1, index.dimension), dtype=np.float32), k=3)


def read_store(folder: Path) -> None:
    store = TokenStore.open(folder / "store")
    store.rows(np.arange(len(store)))


def resume(folder: Path) -> None:
    pretrain(arguments_from_settings({**run_settings(folder), "max_steps": 3}))


READERS: dict[str, Callable[[Path], None]] = {
    "model": read_model,
    "vectors": read_vectors,
    "index": read_index,
    "store": read_store,
    "run": resume,
}
VALUES = (None, True, -1, 10**9, 10**30, 1.5, "x", "", [], [1], {}, {"x": 1})


def damaged(content: bytes, is_json: bool, draw: random.Random) -> bytes:
    """Cut short, flipped bits, other bytes, nothing, or JSON with a value of another type."""
    how = draw.choice(["value", "value", "type", "cut"] if is_json else ["cut", "flip", "flip", "bytes", "empty"])
    if how == "type":
        return json.dumps(draw.choice(VALUES)).encode()
    if how == "value":
        found = json.loads(content)
        place = found
        while isinstance(place, (dict, list)) and place:
            key = draw.choice(list(place)) if isinstance(place, dict) else draw.randrange(len(place))
            if draw.random() < 0.5 or not isinstance(place[key], (dict, list)) or not place[key]:
                place[key] = draw.choice(VALUES)
                break
            place = place[key]
        return json.dumps(found).encode()
    if how == "cut":
        return content[: draw.randrange(len(content) or 1)]
    if how == "flip":
        flipped = bytearray(content)
        for _ in range(min(8, len(content))):
            # Most of a file is numbers, of which any may be; what describes them stands first.
            flipped[draw.randrange(min(len(content), draw.choice([64, 512, len(content)])))] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    return draw.randbytes(len(content)) if how == "bytes" else b""


def damages(whole: Path, seed: int, count: int) -> Iterator[tuple[str, Path, bytes]]:
    """The kind of folder, a file of it, and what is in it instead."""
    draw = random.Random(seed)
    for _ in range(count):
        kind = draw.choices(list(READERS), weights=[8, 4, 4, 3, 1])[0]
        files = sorted(p for p in (whole / kind).rglob("*") if p.is_file() and p.suffix != ".py" and "." in p.name[1:])
        path = draw.choice([p for p in files if not (kind == "run" and "model" in p.relative_to(whole / kind).parts)])
        yield kind, path.relative_to(whole), damaged(path.read_bytes(), path.suffix == ".json", draw)


def copy_damaged(whole: Path, place: Path, kind: str, path: Path, content: bytes) -> None:
    """Makes `place` a copy of one of the folders of `whole` in which a file holds something else."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    shutil.copytree(whole / kind, place / kind)
    if kind == "run":
        shutil.copyfile(whole / "corpus.txt", place / "corpus.txt")
    (place / path).write_bytes(content)


def what_is_said(read: Callable[[Path], None], place: Path) -> str:
    """The message of an error that a command shows on one line; empty where there is none."""
    try:
        read(place)
    except (ValueError, OSError, ImportError) as error:
        return str(error)
    return ""


def places(content: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to every value of a JSON file."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*before, key)
        yield from places(value, (*before, key))


@pytest.mark.parametrize(
    ("kind", "name"), [("vectors", "manifest.json"), ("index", "index.json"), ("store", "store.json")]
)
def test_no_value_of_a_manifest_ends_in_a_traceback(whole, tmp_path, kind, name):
    path = Path(kind) / name
    content = (whole / path).read_text()
    shutil.copytree(whole / kind, tmp_path / kind)
    for keys in places(json.loads(content)):
        for value in VALUES:
            changed = json.loads(content)
            place = changed
            for key in keys[:-1]:
                place = place[key]
            place[keys[-1]] = value
            (tmp_path / path).write_text(json.dumps(changed))
            assert len(what_is_said(READERS[kind], tmp_path)) < 2000, f"{keys} is {value!r}"


def test_damaged_files_are_told_in_one_line(whole, tmp_path):
    told, place = 0, tmp_path / "place"
    for number, (kind, path, content) in enumerate(damages(whole, seed=0, count=FILES)):
        copy_damaged(whole, place, kind, path, content)
        said = what_is_said(READERS[kind], place)
        told += bool(said)
        assert len(said) < 2000, f"{number}: {path} of {content[:300]!r}"
    assert told > FILES / 4
