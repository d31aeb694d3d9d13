"""Vectors where people keep them: faiss indexes, tables of LanceDB and PostgreSQL, in order, in batches and resumed."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hf_meanmax.checkpoint.folder import load_checkpoint
from hf_meanmax.commands import decode as decode_command
from hf_meanmax.commands.audit import main as audit
from hf_meanmax.commands.decode import main
from hf_meanmax.inference.continued_file import continued_file
from hf_meanmax.inference.decodable import check_sources
from hf_meanmax.inference.decode import decode_embeddings
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.index import IndexManifest, IndexSettings
from hf_meanmax.inference.sources import SourceOptions, open_sources, take_rows
from inference.test_embedder import LINES, decoder, embedder  # noqa: F401
from postgres_server import PASSWORD, postgres_server

lancedb = pytest.importorskip("lancedb", reason="lancedb is not installed")
psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
register_vector = pytest.importorskip("pgvector.psycopg", reason="pgvector is not installed").register_vector

VECTORS = np.random.default_rng(0).normal(size=(37, 8)).astype(np.float32)
# Keys of the rows in the order in which they are stored, not in theirs.
KEYS = np.random.default_rng(1).permutation(37) * 3


def opened(name, **options):
    (source,) = open_sources([name], SourceOptions(**options))
    return source


def everything(source, batch_size=5, start=0):
    """Keys and vectors."""
    batches = list(source.batches(batch_size, start))
    assert all(len(batch.keys) == len(batch.vectors) <= batch_size for batch in batches)
    return [key for batch in batches for key in batch.keys], np.concatenate([batch.vectors for batch in batches])


def check_reading(source, keys, vectors, exact=True):
    """A source gives its rows in the order of the keys, in any batches, from any row on."""
    order = np.argsort(keys)
    wanted = vectors[order] if exact else vectors[order].astype(np.float16).astype(np.float32)
    assert source.rows == len(keys)
    for batch_size, start in ((5, 0), (100, 0), (1, 34), (5, 12)):
        found, read = everything(source, batch_size, start)
        assert found == np.asarray(keys)[order].tolist()[start:]
        np.testing.assert_array_equal(read, wanted[start:])
    rows = np.array([0, 7, 8, 36])
    np.testing.assert_array_equal(source.take(rows), wanted[rows])
    assert source.key(7) == np.asarray(keys)[order][7]


def write_index(folder: Path, factory: str, keys=None, vectors=VECTORS) -> str:
    index = faiss.index_factory(vectors.shape[1], factory)
    index.train(vectors)
    index.add(vectors) if keys is None else index.add_with_ids(vectors, keys)
    path = str(folder / "index.faiss")
    faiss.write_index(index, path)
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "factory",
    ["Flat", "IDMap,Flat", "IVF3,Flat", "IDMap,IVF3,Flat", "HNSW4,Flat", "SQfp16", "IVF3,SQfp16", "PQ4x4np,RFlat"],
)
def test_a_faiss_index(factory, tmp_path):
    has_ids = factory.startswith(("ID", "IVF"))
    path = write_index(tmp_path, factory, KEYS if has_ids else None)
    source = opened(path)
    assert source.dimension == 8
    keys, exact = (KEYS if has_ids else np.arange(37)), "fp16" not in factory
    if factory == "IVF3,SQfp16":  # It keeps what a vector differs from its cluster.
        assert everything(source)[0] == sorted(KEYS.tolist())
        np.testing.assert_allclose(everything(source)[1], VECTORS[np.argsort(KEYS)], atol=2e-3)
    else:
        check_reading(source, keys, VECTORS, exact)


@pytest.mark.parametrize(
    ("factory", "reason"),
    [("SQ8", "no whole vectors"), ("PQ4x4np", "no whole vectors"), ("IVF3,PQ4x4np", "no whole vectors"),
     ("PCA4,Flat", "transformed vectors"), ("IVF3,SQ8", "no whole vectors"), ("HNSW4,SQ8", "no whole vectors"),
     ("IDMap,SQ8", "no whole vectors")],
)  # fmt: skip
def test_an_index_that_keeps_no_vectors(factory, reason, tmp_path):
    path = write_index(tmp_path, factory, KEYS if "IDMap" in factory else None)
    with pytest.raises(ValueError, match=f"{reason}.*Read the vectors that it was built from"):
        opened(path)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> str:
    """A LanceDB table that was written in two parts, of which a row was deleted."""
    folder = tmp_path_factory.mktemp("lance")
    extra = np.zeros((1, 8), np.float32)
    for name, kind in (
        ("fixed", pa.list_(pa.float32(), 8)),
        ("ragged", pa.list_(pa.float64())),
        ("large", pa.large_list(pa.float32())),
    ):
        parts = [
            pa.table({
                "id": keys,
                "word": [f"w{key:03d}" for key in keys],
                "half": [None if key == 0 else key // 6 for key in keys],
                "embedding": pa.array(vectors.tolist(), kind),
                "other": pa.array(vectors.tolist(), kind),
                "numbers": pa.array([[1, 2]] * len(keys)),
                "gaps": pa.array([None, *vectors.tolist()[1:]], kind),
            })
            for keys, vectors in ((KEYS[:20], VECTORS[:20]), ([*KEYS[20:], 1], np.concatenate([VECTORS[20:], extra])))
        ]  # fmt: skip
        written = lancedb.connect(folder).create_table(name, parts[0])
        written.add(parts[1])
        written.delete("id = 1")
    return f"lancedb:{folder}"


def test_a_lancedb_table(table):
    for name in "fixed", "ragged":
        check_reading(opened(f"{table}/{name}", vector_column="embedding", key_column="id"), KEYS, VECTORS)
        words = opened(table, table=name, vector_column="other", key_column="word")
        assert words.dimension == (8 if name == "fixed" else None)
        check_reading(words, np.array([f"w{key:03d}" for key in KEYS]), VECTORS)
        check_reading(opened(f"{table}/{name}.lance", vector_column="other"), np.arange(37), VECTORS)


def test_an_opened_lancedb_table_stays_as_it_was(tmp_path):
    def rows(keys):
        return pa.table({"id": keys, "vector": pa.array(VECTORS[: len(keys)].tolist(), pa.list_(pa.float32(), 8))})

    written = lancedb.connect(tmp_path).create_table("t", rows([2, 1, 0]))
    source = opened(f"lancedb:{tmp_path}/t")
    written.delete("id = 1")
    written.add(rows([7, 8]))
    check = everything(source)
    np.testing.assert_array_equal(check[1], VECTORS[:3])
    again = opened(f"lancedb:{tmp_path}/t")
    assert again.rows == 4
    assert again.version != source.version


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("none", {}, "Table 'none' was not found"),
        ("fixed", {}, "no list column 'embeddings'; name one of embedding, other, numbers, gaps"),
        ("fixed", {"vector_column": "word"}, "no list column 'word'"),
        ("fixed", {"vector_column": "numbers"}, r"holds list<\w+: int64>, expected vectors of floating-point"),
        ("fixed", {"vector_column": "gaps"}, "column 'gaps' has 2 missing rows"),
        ("fixed", {"vector_column": "embedding", "key_column": "none"}, "no column 'none'; name one of id, word"),
        ("fixed", {"vector_column": "embedding", "key_column": "half"}, "key column 'half' has 1 missing rows"),
        ("ragged", {"vector_column": "embedding", "key_column": "gaps"}, "key column 'gaps' has 2 missing rows"),
        ("ragged", {"vector_column": "embedding", "key_column": "numbers"}, "which has no order"),
    ],
)
def test_lancedb_tables_that_cannot_be_read(table, name, options, reason):
    with pytest.raises(ValueError, match=reason) as raised:
        opened(f"{table}/{name}", **options)
    assert str(raised.value).startswith(f"{table}/{name}: no vectors can be read from it")


def test_lancedb_places_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such folder"):
        opened(f"lancedb:{tmp_path / 'none'}/table")
    assert not (tmp_path / "none").exists()
    for name in "lancedb:table", "lancedb:", "lancedb:db://cloud/table":
        with pytest.raises(ValueError, match="names no table of a folder"):
            opened(name)


@pytest.fixture(scope="module")
def database() -> str:
    with postgres_server() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute('CREATE EXTENSION vector; CREATE SCHEMA "My"')
            register_vector(connection)
            labels = ", ".join(f"'w{key:03d}'" for key in sorted(KEYS.tolist()))
            connection.execute(f"CREATE TYPE label AS ENUM ({labels})")
            connection.execute(
                'CREATE TABLE docs (id bigint PRIMARY KEY, word text UNIQUE NOT NULL, plain text, twice int, "A" text, '
                "label label, embedding vector(8), other vector, gaps vector(8), floats real[])"
            )
            for key, vector in zip(KEYS.tolist(), VECTORS, strict=True):
                word, gap = f"w{key:03d}", None if key == 3 else vector
                row = (key, word, word, key // 6, word, word, vector, vector, gap, vector.tolist())
                connection.execute(f"INSERT INTO docs VALUES ({', '.join(['%s'] * len(row))})", row)
            connection.execute("CREATE VIEW filled AS SELECT id, gaps FROM docs WHERE gaps IS NOT NULL")
            connection.execute('CREATE TABLE "My"."Odd %" (k text PRIMARY KEY, "v %s" vector)')
            connection.execute(
                'INSERT INTO "My"."Odd %%" VALUES (%s, %s), (%s, %s)', ("a", np.ones(3), "b", np.ones(2))
            )
        yield url


def test_a_postgresql_table(database):
    source = opened(database, table="docs", vector_column="embedding")
    assert source.dimension == 8
    assert source.name.endswith("/postgres table docs")
    check_reading(source, KEYS, VECTORS)
    words = np.array([f"w{key:03d}" for key in KEYS])
    for key in "word", "plain", "A":
        check_reading(opened(database, table="public.docs", vector_column="other", key_column=key), words, VECTORS)
    keys, vectors = everything(opened(database, table="filled", key_column="id"))
    assert len(keys) == 36
    np.testing.assert_array_equal(vectors, VECTORS[np.argsort(KEYS)][np.arange(37) != 1])


def test_pages_of_a_postgresql_table(database, monkeypatch):
    monkeypatch.setattr("hf_meanmax.inference.sources.postgres_table._PAGE", 7)
    check_reading(opened(database, table="docs", vector_column="embedding"), KEYS, VECTORS)
    words = np.array([f"w{key:03d}" for key in KEYS])
    check_reading(opened(database, table="docs", vector_column="embedding", key_column="label"), words, VECTORS)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("interval", "{} * interval '1 month'"),
        ("float4", "{} * 0.1"),
        ("jsonb", "to_jsonb({})"),
        ("int[]", "ARRAY[{}, 1]"),
        ("timestamptz", "CASE {} WHEN 50 THEN 'infinity' ELSE now() + {} * interval '1 day' END"),
        ("date", "date '9999-12-01' + {}"),
    ],
)  # fmt: skip
def test_keys_that_python_knows_otherwise_or_not(database, kind, key, monkeypatch):
    monkeypatch.setattr("hf_meanmax.inference.sources.postgres_table._PAGE", 7)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS odd_keys")
        connection.execute(f"CREATE TABLE odd_keys (id {kind} PRIMARY KEY, embedding vector(1))")
        for number in range(1, 51):
            made = key.replace("{}", str(number))
            connection.execute(f"INSERT INTO odd_keys VALUES ({made}, '[{number}]')")
    keys, vectors = everything(opened(database, table="odd_keys"))
    assert len(set(keys)) == 50
    assert vectors[:, 0].tolist() == list(range(1, 51))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, r"name the table \(`table`\)"),
        ({"table": "none"}, "has no table 'none'"),
        ({"table": "None.docs"}, "has no table 'None.docs'"),
        ({"table": "docs"}, "no vector column 'embeddings'; name one of embedding, other, gaps"),
        ({"table": "docs", "vector_column": "none"}, "no vector column 'none'; name one of embedding"),
        ({"table": "docs", "vector_column": "floats"}, "'floats' is of type _float4, expected vector or halfvec"),
        ({"table": "docs", "vector_column": "gaps"}, "1 of 37 rows of column 'gaps' are NULL"),
        ({"table": "docs", "vector_column": "other", "key_column": "none"}, "no column 'none'; name one of id, word"),
        ({"table": "docs", "vector_column": "other", "key_column": "twice"}, "37 rows have 19 different values"),
        ({"table": "filled"}, "no primary key of one column"),
        ({"table": "My.Odd %"}, r"expected vectors of one size, found 3 and 2 \(key 'b'\) numbers"),
    ],
)  # fmt: skip
def test_postgresql_tables_that_cannot_be_read(database, options, reason):
    with pytest.raises(ValueError, match=reason) as raised:
        everything(opened(database, **options))
    assert PASSWORD not in str(raised.value)


def test_servers_that_let_nobody_in(database, tmp_path):
    wrong = database.replace("p%40ss", "secret")
    with pytest.raises(ConnectionError, match="password authentication failed") as raised:
        opened(wrong, table="docs")
    assert "secret" not in str(raised.value)
    with pytest.raises(ConnectionError, match="No such file or directory"):
        opened(f"postgresql://me:secret@{str(tmp_path).replace('/', '%2F')}/db", table="docs")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@x@localhost/db",
        "postgresql://me:secret/x@localhost/db",
        "postgresql://me:secret%zz@localhost/db",
        "postgresql://me:12/secret@localhost/db",
        "postgres:me:secret@localhost/db",
        "mysql://me:secret@localhost/db",
        "postgresql+psycopg://me:secret@localhost/db",
    ],
)
def test_no_password_is_shown_of_a_url_that_is_none(url):
    with pytest.raises(ValueError, match="postgresql://user@host") as raised:
        opened(url, table="docs")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [("faiss", "i.faiss", "faiss-cpu"), ("lancedb", "lancedb:{}/t", "lancedb"),
     ("psycopg", "postgresql://h/d", "psycopg"), ("pgvector.psycopg", "postgresql://h/d", "pgvector")],
)  # fmt: skip
def test_a_package_that_is_not_installed(module, name, package, tmp_path, monkeypatch):
    (tmp_path / "i.faiss").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ImportError, match=rf'This needs {package}\. In a clone: pip install -c constraints.txt "\.\[stores\]"'
    ):
        opened(name.format(tmp_path), table="t" if "postgres" in name else None)


def test_options_that_are_of_tables(tmp_path):
    np.save(tmp_path / "v.npy", VECTORS)
    for option in "table", "key_column":
        with pytest.raises(ValueError, match=f"`{option}` is of a database"):
            opened(tmp_path / "v.npy", **{option: "x"})
    write_index(tmp_path, "Flat", vectors=VECTORS)
    for name in ("v.npy", "index.faiss"):
        with pytest.raises(
            ValueError, match=f"`vector_column` is 'x', and .*{name} has no columns or tensors with names"
        ):
            opened(tmp_path / name, vector_column="x")
    check_reading(opened(tmp_path / "v.npy"), np.arange(37), VECTORS)
    columns = {"a": pa.array(VECTORS.tolist()), "b": pa.array((VECTORS + 1).tolist())}
    pa.parquet.write_table(pa.table(columns), tmp_path / "v.parquet")
    check_reading(opened(tmp_path / "v.parquet", vector_column="b"), np.arange(37), (VECTORS + 1).astype(np.float64))
    both = open_sources([tmp_path / "v.npy", tmp_path / "v.npy"])
    np.testing.assert_array_equal(take_rows(both, np.array([1, 36, 37, 40])), VECTORS[[1, 36, 0, 3]])


# Decoding.


@pytest.fixture(scope="module")
def kept(embedder, tmp_path_factory, request) -> tuple[Path, np.ndarray]:  # noqa: F811
    """Vectors of lines in a LanceDB table, a faiss index and a file; keys fall."""
    folder = tmp_path_factory.mktemp("kept")
    vectors = load_encoder(str(embedder), device="cpu").encode(LINES[:20])
    rows = pa.table({"id": list(range(20, 0, -1)), "vector": pa.array(vectors.tolist(), pa.list_(pa.float32(), 32))})
    lancedb.connect(folder / "lance").create_table("docs", rows)
    write_index(folder, "Flat", vectors=vectors)
    np.save(folder / "vectors.npy", vectors)
    return folder, vectors


def texts_of(decoder, vectors):  # noqa: F811
    return list(decode_embeddings(*load_checkpoint(decoder), [vectors], max_new_tokens=6))


def test_decoding_from_stores(kept, decoder, tmp_path, capsys):  # noqa: F811
    folder, _ = kept
    said = texts_of(decoder, folder / "vectors.npy")
    assert len(set(said)) > 3
    command = ["--max_length", "6", "--batch_size", "8"]
    main([str(decoder), f"lancedb:{folder}/lance/docs", "--key_column", "id", "--write_keys", *command])
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [f"{key}\t{text}" for key, text in enumerate(reversed(said), start=1)]
    assert "does not say which model made its vectors; they are decoded as those of 'embedder'" in captured.err
    main([str(decoder), str(folder / "index.faiss"), *command, "--output", str(tmp_path / "said.txt")])
    assert (tmp_path / "said.txt").read_text().splitlines() == said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["said.txt"]


def test_decoding_from_postgresql(database, kept, decoder, capsys):  # noqa: F811
    folder, vectors = kept
    with psycopg.connect(database, autocommit=True) as connection:
        register_vector(connection)
        connection.execute("DROP TABLE IF EXISTS lines; CREATE TABLE lines (id int PRIMARY KEY, embedding vector(32))")
        for key, vector in enumerate(vectors):
            connection.execute("INSERT INTO lines VALUES (%s, %s)", (key, vector))
    main([str(decoder), database, "--table", "lines", "--max_length", "6"])
    captured = capsys.readouterr()
    assert captured.out.splitlines() == texts_of(decoder, folder / "vectors.npy")
    assert PASSWORD not in captured.err
    with pytest.raises(SystemExit) as ended:
        main([str(decoder), database, "--table", "docs", "--vector_column", "embedding"])
    assert "table docs holds vectors of 8 numbers; the model decodes 32" in str(ended.value)
    assert PASSWORD not in str(ended.value)


def test_an_audit_from_postgresql(database, kept, decoder, tmp_path, capsys):  # noqa: F811
    """It reads the rows that the lines have, and names no password."""
    with psycopg.connect(database, autocommit=True) as connection:
        register_vector(connection)
        connection.execute(
            "DROP TABLE IF EXISTS texts; CREATE TABLE texts (line int PRIMARY KEY, embedding vector(32))"
        )
        for key, vector in reversed(list(enumerate(kept[1]))):
            connection.execute("INSERT INTO texts VALUES (%s, %s)", (key, vector))
    (tmp_path / "texts.txt").write_text("\n".join(LINES[:20]) + "\n")
    command = ["--decoder", str(decoder), "--texts", str(tmp_path / "texts.txt"), "--limit", "7", "--max_length", "6"]
    found = []
    for name, source in (("a", [database, "--table", "texts"]), ("b", [str(kept[0] / "vectors.npy")])):
        audit([*command, "--defence_texts", "0", "--embeddings", *source, "--output", str(tmp_path / name)])
        found.append(json.loads((tmp_path / name / "audit.json").read_text()))
    assert found[0]["decoder"] == found[1]["decoder"]
    assert found[0]["settings"]["embeddings"] == ["postgres table texts"]
    shown = "".join(path.read_text() for path in (tmp_path / "a").iterdir()) + "".join(capsys.readouterr())
    assert not any(secret in shown for secret in (PASSWORD, quote(PASSWORD, safe="")))


def test_a_store_that_names_its_embedder(kept, decoder, tmp_path, capsys):  # noqa: F811
    rows = lancedb.connect(kept[0] / "lance").open_table("docs").to_arrow()
    for name, model in (("same", "someone/Embedder"), ("other", "all-MiniLM-L6-v2")):
        function = {"name": "sentence-transformers", "model": {"name": model}, "vector_column": "vector"}
        described = rows.replace_schema_metadata({"embedding_functions": json.dumps([function])})
        lancedb.connect(tmp_path).create_table(name, described)
    model, _ = load_checkpoint(decoder)
    capsys.readouterr()
    check_sources([opened(f"lancedb:{tmp_path}/same")], model)
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="says that 'all-MiniLM-L6-v2' made its vectors; this model decodes those of"):
        check_sources([opened(f"lancedb:{tmp_path}/other")], model)


def test_a_killed_decode_goes_on(kept, decoder, tmp_path, capsys, monkeypatch):  # noqa: F811
    folder, _ = kept
    said = [f"{key}\t{text}" for key, text in enumerate(reversed(texts_of(decoder, folder / "vectors.npy")), start=1)]
    output = tmp_path / "said.txt"
    command = [str(decoder), f"lancedb:{folder}/lance/docs", "--key_column", "id", "--write_keys"]
    command += ["--max_length", "6", "--output", str(output)]
    decode, starts = decode_command.decode_sources, []

    def killed(model, tokenizer, sources, batch_size, start, **rest):
        starts.append(start)
        for number, batch in enumerate(decode(model, tokenizer, sources, batch_size, start, **rest)):
            if number == 2:
                raise KeyboardInterrupt
            yield batch

    def run_killed(batch_size):
        with monkeypatch.context() as patch:
            patch.setattr(decode_command, "decode_sources", killed)
            with pytest.raises((KeyboardInterrupt, SystemExit)):
                main([*command, "--batch_size", batch_size])

    run_killed("4")
    assert not output.exists()
    partial = tmp_path / ".said.txt.partial"
    assert partial.read_text().splitlines() == said[:8]
    with open(partial, "a") as file:
        file.write("9\thalf a li")
    for batch_size, first in (("3", 8), ("2", 14)):
        run_killed(batch_size)
        assert starts[-1] == first
    main([*command, "--batch_size", "4"])
    assert output.read_text().splitlines() == said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["said.txt"]


def test_what_is_not_gone_on_with(tmp_path, capsys):
    path = tmp_path / "a.txt"

    def begun(made_from):
        with suppress(RuntimeError), continued_file(path, made_from) as file:
            rows = file.rows, file.last_key
            file.append(["x"], "k")
            raise RuntimeError("as if killed")
        return rows

    assert begun({"model": 1}) == (0, "")
    assert begun({"model": 1}) == (1, "k")
    assert capsys.readouterr().err == ""
    with pytest.raises(FileExistsError, match=r"2 rows that were made with other settings \(model: 1 there, 2 now\)"):
        begun({"model": 2})
    assert (tmp_path / ".a.txt.partial").read_text() == "x\nx\n"
    (tmp_path / ".a.txt.progress").unlink()
    assert begun({"model": 2}) == (0, "")
    (tmp_path / ".a.txt.partial").write_text("")
    assert begun({"model": 2}) == (0, "")
    for damage in ("{", '{"made_from": {"model": 2}, "rows": 1, "last_key": "k", "bytes": "2"}'):
        (tmp_path / ".a.txt.progress").write_text(damage)
        assert begun({"model": 2}) == (0, "")
    refused = []

    def second():
        try:
            begun({"model": 2})
        except BlockingIOError as error:
            refused.append(str(error))

    with continued_file(path, {"model": 2}) as file:
        assert file.rows == 1
        other = threading.Thread(target=second)
        other.start()
        other.join()
    assert len(refused) == 1
    assert refused[0].startswith(f"{path} is being written by process {os.getpid()}")
    assert path.read_text() == "x\n"


@pytest.mark.parametrize("last", [None, 10])
def test_an_interrupted_batch_is_written_again(last, tmp_path, monkeypatch):
    """Ctrl-C amid its lines, or before they are counted."""
    path, lines = tmp_path / "a.txt", [f"line {number}" for number in range(200)]

    class Interrupted:
        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def writelines(self, lines):
            self.file.writelines(list(lines)[:last])
            self.file.flush()
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), continued_file(path, {}) as output:
        output.append(lines[:64], 63)
        output._file = Interrupted(output._file)
        output.append(lines[64:128], 127)
    with continued_file(path, {}) as output:
        assert (output.rows, output.last_key) == (64, "63")
        output.append(lines[64:], 199)
    assert path.read_text().splitlines() == lines


def test_what_fails_before_its_first_row_leaves_nothing(tmp_path):
    with suppress(RuntimeError), continued_file(tmp_path / "a.txt", {}):
        raise RuntimeError("no vectors")
    assert list(tmp_path.iterdir()) == []


def test_rows_that_have_changed_start_over(kept, decoder, tmp_path, capsys):  # noqa: F811
    options = SourceOptions(key_column="id")
    sources = open_sources([f"lancedb:{kept[0]}/lance/docs"], options)
    for rows, key, left in ((3, "3", 3), (3, "4", 0), (21, "21", 0)):
        with continued_file(tmp_path / "b.txt", {"rows": rows, "key": key}) as file:
            file.append(["x"] * rows, key)
            assert decode_command._first_row(file, sources) == left
            assert ("it starts over" in capsys.readouterr().err) is (left == 0)


def test_a_search_index_says_how_its_vectors_were_made(kept, decoder, tmp_path):  # noqa: F811
    model, _ = load_checkpoint(decoder)
    write_index(tmp_path, "IDMap,Flat", np.arange(20), kept[1])
    settings = {"normalize": False, "truncate_dim": 4, "pca": None, "dtype": "float32"}
    for metric, encoded, reason in (
        ("cosine", None, None),
        ("l2", {"settings": settings, "model": {}}, "encoded with --truncate_dim"),
    ):
        IndexManifest(IndexSettings(metric=metric), "Flat", 20, 4, encoded, None).write(tmp_path)
        if reason is None:
            check_sources([opened(tmp_path / "index.faiss")], model)
            (tmp_path / "index.faiss").rename(tmp_path / "vectors.faiss")
            assert opened(tmp_path).rows == 20
            (tmp_path / "vectors.faiss").rename(tmp_path / "index.faiss")
            model.config.normalize_embeddings = False
            with pytest.raises(ValueError, match="of unit length"):
                check_sources([opened(tmp_path / "index.faiss")], model)
        else:
            with pytest.raises(ValueError, match=reason):
                check_sources([opened(tmp_path / "index.faiss")], model)
