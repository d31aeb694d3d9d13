"""Nearest sentences: exact equals brute force, small indexes find nearly the same, no half-made one is read."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import get_args

import faiss
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from hf_meanmax import files
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands import search as search_command
from hf_meanmax.commands.search import format_table, main
from hf_meanmax.data.corpus import Documents
from hf_meanmax.data.opening import open_corpus
from hf_meanmax.inference.compression import PCA
from hf_meanmax.inference.encode import EncodeSettings, encode_corpus
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.index import IndexSettings, IndexType, build_index, check_index_output, make_index
from hf_meanmax.inference.search import Neighbor, SentenceIndex
from hf_meanmax.inference.text_store import TextStore
from tiny_model import make_model, make_tokenizer, random_lines, run_python

LINES = [*dict.fromkeys(random_lines(400)), "the cat sat", "the cat sat", "the cat sat"]
ROWS, DIMENSION = 12_000, 16


def clustered(count: int = ROWS, dimension: int = DIMENSION, seed: int = 0) -> np.ndarray:
    centres = np.random.default_rng(9).standard_normal((60, dimension)) * 2
    generator = np.random.default_rng(seed)
    return (centres[generator.integers(60, size=count)] + generator.standard_normal((count, dimension))).astype("f4")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory) -> list[Path]:
    """Two files of clustered vectors."""
    folder, data = tmp_path_factory.mktemp("vectors"), clustered()
    np.save(folder / "a.npy", data[:7000])
    np.save(folder / "b.npy", data[7000:])
    return [folder / "a.npy", folder / "b.npy"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("search") / "model")


@pytest.fixture(scope="module")
def model(checkpoint) -> SentenceTransformer:
    return load_encoder(str(checkpoint), device="cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("search") / "text.txt"
    path.write_text("\n".join(LINES))
    return path


@pytest.fixture(scope="module")
def indexed(checkpoint, corpus, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "index"
    main(["index", str(checkpoint), str(corpus), "--output", str(folder), "--compute-dtype", "float32"])
    return folder


def build(sources, output, recall_queries=100, lines=None, **settings):
    return build_index(
        sources,
        output,
        IndexSettings(**settings),
        lines=lines,
        recall_queries=recall_queries,
        show_progress=False,
    )


def brute_force(queries: np.ndarray, data: np.ndarray, metric: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    queries, data = queries.astype(np.float64), data.astype(np.float64)
    if metric == "cosine":
        norms = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(data, axis=1)
        scores = -(queries @ data.T) / norms
    else:
        scores = np.stack([np.linalg.norm(data - query, axis=1) for query in queries])
    rows = np.argsort(scores, axis=1)[:, :k]
    scores = np.take_along_axis(scores, rows, axis=1)
    return (-scores if metric == "cosine" else scores), rows


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_exact_equals_brute_force(vectors, tmp_path, metric):
    manifest = build(vectors, tmp_path / "index", metric=metric)
    assert manifest.recall is None
    assert not SentenceIndex(tmp_path / "index").is_lossy
    queries = clustered(20, seed=1)
    scores, rows = SentenceIndex(tmp_path / "index").search(queries, 7)
    expected_scores, expected_rows = brute_force(queries, clustered(), metric, 7)
    assert np.array_equal(rows, expected_rows)
    assert np.allclose(scores, expected_scores, atol=2e-3 if metric == "l2" else 1e-5)


@pytest.mark.parametrize(
    ("settings", "floor"),
    [
        ({"index_type": "int8"}, 0.9),
        ({"index_type": "hnsw"}, 0.97),
        ({"index_type": "hnsw-int8", "metric": "l2"}, 0.9),
        ({"index_type": "ivf-int8"}, 0.85),
        ({"index_type": "ivfpq"}, 0.3),
        ({"factory": "PCA14,Flat"}, 0.6),
        ({"factory": "PCA16,Flat"}, 0.999),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_compressed_indexes_find_nearly_the_same(vectors, tmp_path, settings, floor):
    manifest = build(vectors, tmp_path / "index", **settings)
    index = SentenceIndex(tmp_path / "index")
    assert index.is_lossy == (settings.get("index_type") != "hnsw")
    queries = clustered(100, seed=1)
    _, rows = index.search(queries, 10)
    _, expected = brute_force(queries, clustered(), settings.get("metric", "cosine"), 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows.tolist(), expected.tolist(), strict=True)])
    assert recall > floor
    measured = manifest.recall
    assert measured["queries"] == 100
    assert measured["recall@10"] == pytest.approx(recall, abs=0.08)
    assert measured["rescored_recall@10"] >= measured["recall@10"]
    assert measured["rescored_recall@10"] > 0.85

    build(vectors, tmp_path / "again", **settings)
    for name in ("index.json", "vectors.faiss"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "index" / name).read_bytes(), name
    if settings.get("index_type", "").startswith("ivf"):
        few = SentenceIndex(tmp_path / "index", nprobe=1).search(queries, 10)[1]
        assert np.mean(few == rows) < 0.99


def test_projection_of_an_index_is_that_of_unit_vectors(vectors, tmp_path):
    build(vectors, tmp_path / "index", factory="PCA5,Flat")
    data = clustered()
    units = data / np.linalg.norm(data, axis=1)[:, None]
    projected = PCA.fit(units, 5).apply(units)
    _, rows = SentenceIndex(tmp_path / "index").search(data[:50], 4)
    _, expected = brute_force(projected[:50], projected, "l2", 4)
    assert np.mean(rows == expected) > 0.98


def test_a_row_as_near_as_the_last_counts_as_found(tmp_path):
    data = clustered(300)
    # Any ten of these copies are right.
    data[100:] = data[0]
    np.save(tmp_path / "a.npy", data)
    assert build([tmp_path / "a.npy"], tmp_path / "index", index_type="int8", recall_queries=300).recall[
        "recall@10"
    ] == pytest.approx(1, abs=0.05)


def test_an_index_that_is_fitted_needs_vectors_that_are_not_zero(tmp_path):
    np.save(tmp_path / "zeros.npy", np.zeros((20, 4), np.float32))
    with pytest.raises(ValueError, match="of 20 that were drawn, 0 are none"):
        build([tmp_path / "zeros.npy"], tmp_path / "index", index_type="int8")
    rows = np.concatenate([np.zeros((18, 4)), np.eye(2, 4)]).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(ValueError, match="fitted on 4 vectors of texts, or more; of 20 that were drawn, 2 are"):
        build([tmp_path / "rows.npy"], tmp_path / "index", factory="IVF4,Flat")
    assert not (tmp_path / "index").exists()


def test_too_few_rows_for_clusters(tmp_path, capsys):
    np.save(tmp_path / "a.npy", clustered(500))
    manifest = build_index([tmp_path / "a.npy"], tmp_path / "index", IndexSettings("ivfpq"), show_progress=True)
    assert "ivfpq needs 9,984 rows to be fitted on, there are 500: the index is exact." in capsys.readouterr().err
    assert manifest.factory == "Flat"
    assert manifest.settings.index_type == "ivfpq"


def test_automatic_sizes():
    for kind, expected in (("ivf-int8", "IVF8944,SQ8"), ("ivfpq", "IVF8944,PQ512x8np")):
        factory, index = make_index(5_000_000, 2048, IndexSettings(kind))
        assert factory == expected
        assert faiss.extract_index_ivf(index).nprobe == 279
    _, index = make_index(ROWS, DIMENSION, IndexSettings("hnsw"))
    assert faiss.downcast_index(index.index).hnsw.efSearch == 128


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"factory": "IVF20000,SQ8"}, "IVF20000,SQ8 is fitted on 20,000 rows or more; there are 12,000"),
        ({"factory": "IVFx,SQ8"}, "faiss makes no index 'IVFx,SQ8' of 16 numbers"),
        ({"index_type": "flat"}, "`index_type` is 'flat'; allowed: 'exact', 'int8'"),
        ({"metric": "dot"}, "`metric` is 'dot'; allowed: 'cosine', 'l2'"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit(settings, said):
    with pytest.raises(ValueError, match=said):
        make_index(ROWS, DIMENSION, IndexSettings(**settings))


def test_a_pca_of_more_components_than_rows_is_refused(tmp_path):
    np.save(tmp_path / "few.npy", clustered()[:10])
    with pytest.raises(ValueError, match="faiss cannot fit this index on 10 vectors"):
        build([tmp_path / "few.npy"], tmp_path / "index", factory="PCA14,Flat")


def test_a_prime_dimension_has_no_product_quantiser():
    with pytest.raises(ValueError, match=r"splits 257 numbers evenly.*--truncate_dim or --pca"):
        make_index(ROWS, 257, IndexSettings("ivfpq"))
    with pytest.raises(ValueError, match="nothing to index"):
        make_index(0, 16, IndexSettings())


def test_texts_are_kept_as_they_are(tmp_path):
    lines = ["", "caf\u00e9 \u4f60\u597d \U0001f600", "", "plain", "a\tb", "\udcff lone", ""]
    assert TextStore.write(tmp_path, lines) == 7
    store = TextStore(tmp_path)
    assert [store[row] for row in range(len(store))] == [*lines[:5], "? lone", ""]
    for row in (-1, 7):
        with pytest.raises(IndexError, match=f"Row {row}"):
            store[row]
    (tmp_path / "texts.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match="5 bytes"):
        TextStore(tmp_path)
    TextStore.write(tmp_path, [""])
    assert TextStore(tmp_path)[0] == ""


@pytest.mark.parametrize("kind", ["exact", "int8", "hnsw"])
def test_a_blank_line_is_no_neighbour_and_keeps_its_number(model, tmp_path, kind):
    """It ends a document, and its vector is near those of many short texts."""
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(["the cat sat", "a dog ran", "the dog sat"]) + "\n\n\n")
    encode_corpus(model, open_corpus(path), tmp_path / "shards", EncodeSettings(), show_progress=False)
    lines = ["the cat sat", "", "a dog ran", "", "the dog sat", "", ""]
    manifest = build([tmp_path / "shards"], tmp_path / "index", lines=lines, index_type=kind)
    assert manifest.rows == 7
    index = SentenceIndex(tmp_path / "index")
    found = index.nearest(index.embed(model, ["", "cat"]), k=7)
    assert [sorted(near.row for near in row) for row in found] == 2 * [[0, 2, 4]]
    assert all(near.text == lines[near.row] for row in found for near in row)


def test_the_table_of_a_query(indexed, capsys):
    main(["query", str(indexed), "the cat sat", "a red dog ran", "--k", "3"])
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "the cat sat"
    same = [row for row, line in enumerate(LINES) if line == "the cat sat"]
    assert set(table[1:4]) <= {f"   1.0000  row {row}  the cat sat" for row in same}
    assert table[4:6] == ["", "a red dog ran"]
    assert len(table) == 9

    main(["query", str(indexed), "the cat sat", "", " ", "--k", "3", "--skip-identical", "--json"])
    printed = capsys.readouterr()
    assert "2 of 3 queries are blank, left out." in printed.err
    (entry,) = json.loads(printed.out)
    texts = [near["text"] for near in entry["nearest"]]
    assert entry["query"] == "the cat sat"
    assert len(set(texts)) == 3
    assert "the cat sat" not in texts
    assert [LINES[near["row"]] for near in entry["nearest"]] == texts

    main(["query", str(indexed), "the cat sat", "--k", "1", "--markdown"])
    header, _, line = capsys.readouterr().out.splitlines()
    assert header == "| query | rank | cosine | row | sentence |"
    assert line in [f"| the cat sat | 1 | 1.0000 | {row} | the cat sat |" for row in same]
    assert "| a \\| b \\* |  |  |  |  |" in format_table(["a | b *"], [[]], markdown=True)
    assert format_table(["a"], [[]]) == "a\n  (none)"
    assert format_table(["a"], [[Neighbor(3, 0.5, None)]]).endswith("0.5000  row 3")
    assert format_table(["a"], [[Neighbor(0, 0.5, "one\ntwo")]]).endswith("0.5000  row 0  one two")


def test_the_table_goes_to_a_file(indexed, tmp_path, capsys):
    queries = ["the cat sat", "a red dog ran"]
    (tmp_path / "queries.txt").write_text("\n".join(queries))
    command = ["query", str(indexed), "--file", str(tmp_path / "queries.txt"), "--k", "2", "--skip-identical"]
    main([*command, "--json"])
    found = json.loads(capsys.readouterr().out)
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps({"said": query}) + "\n" for query in queries))
    main([*command, "--json", "--file", str(tmp_path / "queries.jsonl"), "--text_column", "said"])
    assert json.loads(capsys.readouterr().out) == found
    main([*command, "--markdown", "--output", str(tmp_path / "nearest.md")])
    assert capsys.readouterr().out == ""
    header, _, *rows = (tmp_path / "nearest.md").read_text().splitlines()
    assert header == "| query | rank | cosine | row | sentence |"
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert [row[-1] for row in cells] == [near["text"] for entry in found for near in entry["nearest"]]
    assert [int(row[-2]) for row in cells] == [near["row"] for entry in found for near in entry["nearest"]]
    assert [float(row[-3]) for row in cells] == [
        pytest.approx(near["cosine"], abs=6e-5) for entry in found for near in entry["nearest"]
    ]
    assert [row[-4] for row in cells] == ["1", "2", "1", "2"]
    assert [row[0] for row in cells[::2]] == queries
    assert not set(queries) & {row[-1] for row in cells}
    main([*command, "--output", str(tmp_path / "new" / "nearest.txt")])
    assert "the cat sat" in (tmp_path / "new" / "nearest.txt").read_text()
    with pytest.raises(SystemExit, match=r"^hf-meanmax search query: .*queries\.txt"):
        main([*command, "--output", str(tmp_path / "queries.txt" / "nearest.md")])


def test_a_distance_is_called_so():
    table = format_table(["a"], [[Neighbor(0, 1.5, "b"), Neighbor(1, 2.0, "c|d\ne")]], markdown=True, score="distance")
    assert table.splitlines() == [
        "| query | rank | distance | row | sentence |",
        "|---|---:|---:|---:|---|",
        "| a | 1 | 1.5000 | 0 | b |",
        "|  | 2 | 2.0000 | 1 | c\\|d e |",
    ]


def test_found_sentences_are_those_of_brute_force(indexed, model, tmp_path, capsys):
    queries = ["the old mat", "unheard words", "a dog on a mat"]
    (tmp_path / "queries.txt").write_text("\n\n".join(queries) + "\n")
    main(["query", str(indexed), "--file", str(tmp_path / "queries.txt"), "--json", "--k", "4"])
    table = json.loads(capsys.readouterr().out)
    scores, _ = brute_force(model.encode(queries), model.encode(LINES), "cosine", 4)
    assert [entry["query"] for entry in table] == queries
    assert np.allclose([[near["cosine"] for near in entry["nearest"]] for entry in table], scores, atol=1e-5)


def test_shards_beside_the_index_are_removed(indexed):
    assert sorted(path.name for path in indexed.parent.iterdir()) == ["index"]
    assert sorted(path.name for path in indexed.iterdir()) == [
        "index.json",
        "text_offsets.npy",
        "texts.bin",
        "vectors.faiss",
    ]


def test_scores_of_a_compressed_index_are_made_exact(checkpoint, corpus, tmp_path, capsys):
    settings = EncodeSettings(dtype="int8", truncate_dim=24, max_length=9, shard_size=64)
    fresh = load_encoder(str(checkpoint), device="cpu")
    encode_corpus(fresh, open_corpus(corpus), tmp_path / "shards", settings, show_progress=False)
    command = ["index", str(checkpoint), str(corpus), "--output", str(tmp_path / "index")]
    main([*command, "--embeddings", str(tmp_path / "shards"), "--factory", "PCA6,SQ8"])
    assert (tmp_path / "shards").is_dir()
    said = capsys.readouterr().err
    assert "recall@10" in said
    assert f"{len(LINES)} sentences, PCA6,SQ8" in said

    query = ["query", str(tmp_path / "index"), "the old mat", "--json", "--k", "4"]
    main([*query, "--rescore", "1000"])
    fresh = load_encoder(str(checkpoint), device="cpu")
    fresh.max_seq_length = 9
    scores, _ = brute_force(fresh.encode(["the old mat"]), fresh.encode(LINES), "cosine", 4)
    (entry,) = json.loads(capsys.readouterr().out)
    assert np.allclose([near["cosine"] for near in entry["nearest"]], scores[0], atol=1e-5)
    main([*query, "--rescore", "0"])
    (rough,) = json.loads(capsys.readouterr().out)
    assert not np.allclose([near["cosine"] for near in rough["nearest"]], scores[0], atol=1e-5)
    main(["query", str(tmp_path / "index"), "the cat", "the cat sat on the mat " * 2])
    assert "The limit of 9 tokens cut 1 text." in capsys.readouterr().err

    # Vectors of queries that were encoded in the same way, and in another.
    (tmp_path / "q.txt").write_text("the old mat\nthe cat")
    fresh = load_encoder(str(checkpoint), device="cpu")
    encode_corpus(fresh, open_corpus(tmp_path / "q.txt"), tmp_path / "q", settings, show_progress=False)
    main(["query", str(tmp_path / "index"), "--embeddings", str(tmp_path / "q"), "--json", "--k", "4"])
    near = json.loads(capsys.readouterr().out)
    assert [entry["query"] for entry in near] == [f"{tmp_path / 'q'}, row 0", f"{tmp_path / 'q'}, row 1"]
    assert {n["row"] for n in near[0]["nearest"]} & {n["row"] for n in rough["nearest"]}
    other = EncodeSettings(truncate_dim=20, max_length=9)
    encode_corpus(fresh, open_corpus(tmp_path / "q.txt"), tmp_path / "other", other, show_progress=False)
    with pytest.raises(SystemExit, match=r"encoded with other settings .*truncate_dim is 20, not 24"):
        main(["query", str(tmp_path / "index"), "--embeddings", str(tmp_path / "other")])
    np.save(tmp_path / "foreign.npy", np.zeros((2, 7), np.float32))
    with pytest.raises(SystemExit, match=r"foreign\.npy holds vectors of 7 numbers; .* takes 24"):
        main(["query", str(tmp_path / "index"), "--embeddings", str(tmp_path / "foreign.npy")])


def test_shards_that_are_there_are_not_made_anew(model, checkpoint, corpus, tmp_path, monkeypatch):
    encode_corpus(model, open_corpus(corpus), tmp_path / "shards", EncodeSettings(normalize=True), show_progress=False)
    command = ["index", str(checkpoint), str(corpus), "--output", str(tmp_path / "index")]
    command += ["--embeddings", str(tmp_path / "shards")]
    with monkeypatch.context() as patch:
        patch.setattr(SentenceTransformer, "encode", lambda *_, **__: pytest.fail("encoded again"))
        main(command)
    other = save_checkpoint(make_model(seed=1), make_tokenizer(), tmp_path / "other")
    with pytest.raises(SystemExit, match=r"hf-meanmax search index: .*holds an encoding of another model"):
        main([*command[:1], str(other), *command[2:]])
    (tmp_path / "text.txt").write_text("another\ntext")
    with pytest.raises(SystemExit, match=r"hf-meanmax search index: .*holds an encoding of another text"):
        main([*command[:2], str(tmp_path / "text.txt"), *command[3:], "--overwrite"])
    assert SentenceIndex(tmp_path / "index").encoding.normalize


def test_a_model_that_has_moved_is_asked_for(corpus, tmp_path):
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    main(["index", str(folder), str(corpus), "--output", str(tmp_path / "index"), "--index_type", "int8"])
    folder.rename(tmp_path / "moved")
    with pytest.raises(SystemExit, match=r"The model of .*index was at .* could not be loaded .*name it with --model"):
        main(["query", str(tmp_path / "index"), "a cat"])
    main(["query", str(tmp_path / "index"), "a cat", "--model", str(tmp_path / "moved")])


def test_another_model_is_refused(indexed, checkpoint, tmp_path):
    other = save_checkpoint(make_model(seed=1), make_tokenizer(), tmp_path / "other")
    with pytest.raises(SystemExit, match="was made with another model"):
        main(["query", str(indexed), "a cat", "--model", str(other)])
    # The same weights may have moved.
    moved = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "moved")
    main(["query", str(indexed), "a cat", "--model", str(moved)])
    (tmp_path / "q.txt").write_text("the cat")
    settings = EncodeSettings()
    model = load_encoder(str(other), device="cpu")
    encode_corpus(model, open_corpus(tmp_path / "q.txt"), tmp_path / "q", settings, show_progress=False)
    with pytest.raises(SystemExit, match="was encoded by another model than"):
        main(["query", str(indexed), "--embeddings", str(tmp_path / "q")])


def test_damaged_and_missing_folders_are_named(indexed, tmp_path):
    def damaged(name: str) -> Path:
        folder = tmp_path / name.replace(".", "_")
        shutil.copytree(indexed, folder)
        return folder / name

    path = damaged("vectors.faiss")
    content = path.read_bytes()
    for broken in (content[:-8], b"none" + content[4:]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"vectors\.faiss is damaged: faiss cannot read it"):
            SentenceIndex(path.parent)
    path.unlink()
    with pytest.raises(ValueError, match=r"vectors\.faiss is damaged: faiss cannot read it .*No such file"):
        SentenceIndex(path.parent)
    path = damaged("index.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 3}))
    with pytest.raises(ValueError, match=r"has format 3, expected 4; build the index again"):
        SentenceIndex(path.parent)
    path.write_text(path.read_text()[:-30])
    with pytest.raises(ValueError, match=r"index\.json is damaged"):
        SentenceIndex(path.parent)
    with pytest.raises(FileNotFoundError, match=r"is no index: it has no index\.json"):
        SentenceIndex(tmp_path)
    with pytest.raises(SystemExit, match=r"hf-meanmax search query: No index .*none': there is no such folder"):
        main(["query", str(tmp_path / "none"), "a cat"])
    with pytest.raises(FileExistsError, match="exists and is no index"):
        check_index_output(tmp_path)


def test_a_killed_build_leaves_no_index(vectors, tmp_path, monkeypatch):
    output = tmp_path / "index"
    with monkeypatch.context() as patch:
        # What SIGKILL leaves: the folder beside it.
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(faiss, "write_index", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(vectors, output, lines=["line"] * ROWS)
    assert not output.exists()
    assert (tmp_path / ".index.partial" / "texts.bin").is_file()
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        SentenceIndex(output)
    build(vectors, output, lines=map(str, range(ROWS)))
    assert SentenceIndex(output).texts[11_999] == "11999"
    assert [path.name for path in tmp_path.iterdir()] == ["index"]

    # A failed build leaves the old index.
    with pytest.raises(ValueError, match="11,999 sentences for 12,000 vectors"):
        build(vectors, output, lines=map(str, range(ROWS - 1)))
    assert SentenceIndex(output).texts[0] == "0"


def test_an_interrupted_encoding_goes_on(checkpoint, corpus, tmp_path, monkeypatch):
    command = ["index", str(checkpoint), str(corpus), "--output", str(tmp_path / "index")]
    with monkeypatch.context() as patch:
        patch.setattr(search_command, "build_index", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(SystemExit, match="130"):
            main(command)
    assert (tmp_path / ".index.embeddings").is_dir()
    with monkeypatch.context() as patch:
        patch.setattr(SentenceTransformer, "encode", lambda *_, **__: pytest.fail("encoded again"))
        main(command)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_bad_vectors(vectors, tmp_path):
    data = clustered(100)
    data[70, 3] = np.nan
    np.save(tmp_path / "nan.npy", data)
    with pytest.raises(ValueError, match="embedding of line 71 is not finite"):
        build([tmp_path / "nan.npy"], tmp_path / "index")
    assert not (tmp_path / "index").exists()
    np.save(tmp_path / "other.npy", clustered(10, 8))
    with pytest.raises(ValueError, match="vectors of one size, found vectors of 8, 16 numbers"):
        build([*vectors, tmp_path / "other.npy"], tmp_path / "index")
    build(vectors, tmp_path / "index")
    index = SentenceIndex(tmp_path / "index")
    with pytest.raises(ValueError, match=r"made of vectors of 16 numbers; got an array \(2, 15\)"):
        index.search(np.zeros((2, 15)))
    with pytest.raises(ValueError, match="NaN or infinite"):
        index.search(np.full((1, 16), np.nan))
    with pytest.raises(ValueError, match="missing in the index"):
        index.nearest(np.ones((1, 16)), queries=["a"], skip_identical=True)
    with pytest.raises(ValueError, match="2 queries with 1 vectors"):
        index.nearest(np.ones((1, 16)), queries=["a", "b"])
    with pytest.raises(ValueError, match="from vectors alone"):
        index.check_model(None)
    assert index.nearest(np.ones((1, 16)), 2)[0][0].text is None


@pytest.mark.parametrize("kind", get_args(IndexType))
def test_a_vector_of_zeros_has_no_neighbour_and_is_none(tmp_path, kind):
    data = clustered(10_500)
    # A plain direction, from which all the others are far.
    data[:, 0], data[[7, 10_400]] = 0, 0
    np.save(tmp_path / "a.npy", data)
    manifest = build([tmp_path / "a.npy"], tmp_path / "index", index_type=kind)
    index = SentenceIndex(tmp_path / "index")
    queries = np.eye(16, dtype="f4")[[0, 0]] + np.array([[0], [0.1]], dtype="f4")
    queries = np.concatenate([queries, np.zeros((1, 16), "f4")])
    scores, rows = index.search(queries, 20)
    assert (rows[:2] >= 0).all()
    assert not {7, 10_400} & set(rows.ravel().tolist())
    assert (rows[2] == -1).all()
    assert (scores[2] == 0).all()
    assert index.nearest(queries, 3)[2] == []
    expected, _ = brute_force(queries[:2], np.delete(data, [7, 10_400], axis=0), "cosine", 20)
    if kind == "exact":
        assert np.allclose(scores[:2], expected, atol=1e-5)
    else:
        assert manifest.recall["recall@10"] > 0.5


def test_many_copies_are_looked_past(model, tmp_path):
    lines = ["the cat sat"] * 300 + ["a dog ran", "the red mat"]
    encode_corpus(model, Documents([lines]), tmp_path / "shards", show_progress=False)
    build([tmp_path / "shards"], tmp_path / "index", lines=[*lines, ""])
    index = SentenceIndex(tmp_path / "index")
    vectors = index.embed(model, ["the cat sat", "a dog ran"])
    found = index.nearest(vectors, 2, queries=["the cat sat", "a dog ran"], skip_identical=True)
    assert {neighbor.text for neighbor in found[0]} <= {"a dog ran", "the red mat", ""}
    assert len(found[0]) == len(found[1]) == 2
    assert len({neighbor.text for neighbor in found[1]}) == 2
    assert [neighbor.row for neighbor in index.nearest(vectors[1:], 1)[0]] == [300]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "a word is missing; choose from index, query"),
        (["find"], "unknown 'find'; choose from index, query"),
        (["index", "model", "text", "--output", "out", "--index-typ", "exact"], "Did you mean --index-type?"),
        (["query", "index", "a", "--skip-identica"], "Did you mean --skip-identical?"),
        (["index", "model", "text", "--output", "out", "--nprobe", "0"], "`nprobe` is 0; it must be 1 or more"),
        (["query", "index", "a", "--rescore", "-1"], "expected one argument|must be 0 or more"),
    ],
    ids=str,
)
def test_misspelt_commands(capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert any(part in errors for part in said.split("|"))


def test_no_query(indexed):
    with pytest.raises(SystemExit, match="No query: give sentences, --file or --embeddings"):
        main(["query", str(indexed), "", " "])
    with pytest.raises(SystemExit, match="No query: give sentences, --file or --embeddings"):
        main(["query", str(indexed)])


@pytest.mark.parametrize("order", ["torch, faiss", "faiss, torch"])
def test_the_two_openmp_runtimes_live_together(order):
    code = f"""
import {order}
import numpy as np
torch.set_num_threads(2)
faiss.omp_set_num_threads(2)
for _ in range(3):
    x = (torch.randn(300, 64) @ torch.randn(64, 64)).numpy()
    index = faiss.index_factory(64, "HNSW8,Flat")
    index.add(x)
    assert (index.search(x, 1)[1][:, 0] == np.arange(300)).mean() > 0.9
"""
    result = run_python("-c", code, OMP_NUM_THREADS="2")
    assert result.returncode == 0, result.stderr[-2000:]


def test_rescoring_keeps_the_length_of_normalised_vectors(model, checkpoint, corpus, tmp_path, capsys):
    settings = EncodeSettings(normalize=True)
    encode_corpus(model, open_corpus(corpus), tmp_path / "shards", settings, show_progress=False)
    command = ["index", str(checkpoint), str(corpus), "--output", str(tmp_path / "index"), "--index-type", "int8"]
    main([*command, "--metric", "l2", "--embeddings", str(tmp_path / "shards")])
    capsys.readouterr()
    main(["query", str(tmp_path / "index"), "the old mat", "--json", "--k", "4", "--rescore", "1000"])
    (entry,) = json.loads(capsys.readouterr().out)
    unit = model.encode(["the old mat", *LINES], normalize_embeddings=True)
    scores, _ = brute_force(unit[:1], unit[1:], "l2", 4)
    assert np.allclose([near["distance"] for near in entry["nearest"]], scores[0], atol=1e-5)


def test_queries_are_rescored_together_as_each_alone(model, checkpoint, corpus, tmp_path, monkeypatch):
    main(["index", str(checkpoint), str(corpus), "--output", str(tmp_path / "index"), "--index_type", "int8"])
    index = SentenceIndex(tmp_path / "index")
    queries = ["the old mat", "a cat", "the old mat", LINES[0]]
    vectors = index.embed(model, queries)
    alone = [index.nearest(v[None], queries=[q], model=model)[0] for q, v in zip(queries, vectors, strict=True)]
    monkeypatch.setattr("hf_meanmax.inference.search._RESCORED_AT_ONCE", 3)
    for found, expected in zip(index.nearest(vectors, queries=queries, model=model), alone, strict=True):
        assert [near.row for near in found] == [near.row for near in expected]
        assert np.allclose([near.score for near in found], [near.score for near in expected], atol=1e-6)


def test_what_a_killed_run_left_serves_its_own_settings_alone(checkpoint, corpus, tmp_path, monkeypatch):
    command = ["index", str(checkpoint), str(corpus), "--output", str(tmp_path / "index"), "--max-length"]
    with monkeypatch.context() as patch:
        patch.setattr(search_command, "build_index", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(SystemExit, match="130"):
            main([*command, "2"])
    main([*command, "12"])
    assert SentenceIndex(tmp_path / "index").encoding.max_length == 12


def test_what_a_killed_run_left_serves_its_own_text_alone(checkpoint, corpus, tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text(corpus.read_text())
    command = ["index", str(checkpoint), str(text), "--output", str(tmp_path / "index")]
    with monkeypatch.context() as patch:
        patch.setattr(search_command, "build_index", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(SystemExit, match="130"):
            main(command)
    text.write_text(corpus.read_text() + "\none more\n")
    main(command)
    texts = SentenceIndex(tmp_path / "index").texts
    assert texts[len(texts) - 1] == "one more"


def test_a_folder_that_is_not_its_own_is_left(checkpoint, corpus, tmp_path):
    (tmp_path / ".index.embeddings").mkdir()
    (tmp_path / ".index.embeddings" / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit, match="holds no encoded corpus"):
        main(["index", str(checkpoint), str(corpus), "--output", str(tmp_path / "index")])
    assert (tmp_path / ".index.embeddings" / "notes.txt").read_text() == "mine"


def test_an_index_where_bf16_is_fast(checkpoint, corpus, tmp_path, bf16_is_fast, capsys):
    main(["index", str(checkpoint), str(corpus), "--output", str(tmp_path / "index")])
    assert SentenceIndex(tmp_path / "index").encoding.compute_dtype == "bfloat16"
    capsys.readouterr()
    main(["query", str(tmp_path / "index"), LINES[0], "--k", "1", "--json"])
    assert json.loads(capsys.readouterr().out)[0]["nearest"][0]["text"] == LINES[0]
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_faiss_is_missed_before_the_corpus_is_encoded(checkpoint, corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(search_command, "encode_corpus", lambda *_, **__: pytest.fail("encoded first"))
    with pytest.raises(SystemExit, match="faiss-cpu"):
        main(["index", str(checkpoint), str(corpus), "--output", str(tmp_path / "index")])


def test_settings_of_another_index_type_are_refused(indexed, tmp_path):
    with pytest.raises(ValueError, match=r"nprobe is no setting of .*, an index of type Flat"):
        SentenceIndex(indexed, nprobe=3)


def test_settings_that_an_index_does_not_have_are_refused(checkpoint, corpus, tmp_path):
    for kind, name in (("exact", "nprobe"), ("hnsw", "nprobe"), ("int8", "ef_search")):
        with pytest.raises(ValueError, match=f"{name} is 4, which is no setting of an index"):
            make_index(100_000, 8, IndexSettings(index_type=kind, **{name: 4}))
    assert make_index(100, 8, IndexSettings(index_type="ivf-int8", nprobe=4))[0] == "Flat"
    command = ["index", str(checkpoint), str(corpus), "--output", str(tmp_path / "index")]
    with pytest.raises(SystemExit, match="which is replaced; name another"):
        main([*command, "--embeddings", str(tmp_path / "index" / "shards")])
    with pytest.raises(SystemExit, match=r"lies in .*, a model"):
        main([*command, "--embeddings", str(checkpoint / "shards")])
    with pytest.raises(SystemExit, match="--model and --embeddings exclude each other"):
        main(["query", str(tmp_path), "--model", "m", "--embeddings", "v.npy"])


def test_a_length_limit_that_the_shards_do_not_have(model, checkpoint, corpus, tmp_path):
    encode_corpus(model, open_corpus(corpus), tmp_path / "shards", EncodeSettings(), show_progress=False)
    command = ["index", str(checkpoint), str(corpus), "--output", str(tmp_path / "index"), "--max-length", "3"]
    with pytest.raises(SystemExit, match=r"encoded with max_length None, not 3; leave --max_length out"):
        main([*command, "--embeddings", str(tmp_path / "shards")])


def test_a_query_may_have_no_other_sentence(model, tmp_path):
    lines = ["the cat sat"] * 300
    encode_corpus(model, Documents([lines]), tmp_path / "shards", show_progress=False)
    build([tmp_path / "shards"], tmp_path / "index", lines=[*lines, ""], index_type="int8")
    index = SentenceIndex(tmp_path / "index")
    vectors = index.embed(model, ["the cat sat"])
    texts = ["the cat sat", ""]
    found = index.nearest(vectors, 2, queries=texts[:1], skip_identical=True, model=model, rescore=4)
    assert {neighbor.text for neighbor in found[0]} <= {""}


@pytest.mark.parametrize("size", [40, 2e-5])
def test_lengths_of_half_precision_are_those_of_its_numbers(size, tmp_path):
    """Their squares overflow, or are zero, in half precision."""
    vectors = (np.random.default_rng(0).normal(size=(50, 64)) * size).astype(np.float16)
    np.save(tmp_path / "v.npy", vectors)
    build([tmp_path / "v.npy"], tmp_path / "index")
    scores, rows = SentenceIndex(tmp_path / "index").search(vectors.astype(np.float32), 1)
    assert rows[:, 0].tolist() == list(range(50))
    np.testing.assert_allclose(scores, 1, atol=1e-5)


def test_a_text_that_changes_meanwhile_is_refused(checkpoint, tmp_path, monkeypatch):
    """Its lines would stand beside the vectors of others."""
    text = tmp_path / "text.txt"
    text.write_text("a cat sat\nthe dog ran\n")
    command = ["index", str(checkpoint), str(text), "--output", str(tmp_path / "index")]

    def building(*args, **options):
        text.write_text("the dog ran\na cat sat\nand slept\n")
        return build_index(*args, **options)

    monkeypatch.setattr(search_command, "build_index", building)
    with pytest.raises(SystemExit, match="The text changed while it was read"):
        main(command)
    assert not (tmp_path / "index").exists()


def test_an_index_whose_replacement_was_killed(vectors, tmp_path, monkeypatch):
    build(vectors, tmp_path / "index")
    (tmp_path / "index").rename(tmp_path / ".index.old")
    monkeypatch.setattr(files, "_REPLACEMENT_SECONDS", 0.05)
    with pytest.raises(FileNotFoundError, match=r"index is missing: .* the old one is .*\.index\.old\. Write it again"):
        SentenceIndex(tmp_path / "index")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (".", "'.' has no name of its own, and is replaced as a whole"),
        (os.fsdecode(b"caf\xe9"), "is no UTF-8, which faiss needs"),
    ],
)
def test_names_that_an_index_cannot_have(output, said, checkpoint, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"{said}; name"):
        main(["index", str(checkpoint), str(corpus), "--output", output])
    assert list(tmp_path.iterdir()) == []


def test_a_service_asks_in_its_own_ways(model, indexed, corpus, tmp_path):
    index = SentenceIndex(indexed)
    own = model.max_seq_length
    index.check_model(model)
    alone, several = index.embed(model, "the cat sat"), index.embed(model, ["the cat sat"])
    assert np.array_equal(alone, several)
    nothing = index.embed(model, [])
    assert nothing.shape == (0, index.dimension)
    assert index.search(nothing)[0].shape == (0, 5)
    for k in (0, -1):
        with pytest.raises(ValueError, match=f"k is {k}; it must be 1 or more"):
            index.search(alone, k)
    # The limit of one index is not that of the next.
    cut = tmp_path / "cut"
    main(["index", model[0].auto_model.config._name_or_path, str(corpus), "--output", str(cut), "--max-length", "2"])
    short = SentenceIndex(cut)
    short.check_model(model)
    assert not np.allclose(
        short.embed(model, ["the cat sat on the mat"]), index.embed(model, ["the cat sat on the mat"])
    )
    assert model.max_seq_length == own
