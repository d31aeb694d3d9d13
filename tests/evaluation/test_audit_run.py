"""Audits from files and checkpoints, and the verb."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hf_meanmax.checkpoint.folder import load_checkpoint, save_checkpoint
from hf_meanmax.commands.audit import main
from hf_meanmax.commands.encode import main as encode
from hf_meanmax.evaluation.audit import AuditSettings
from hf_meanmax.evaluation.audit_run import AuditSource, audit_checkpoint
from hf_meanmax.evaluation.recovery import References, score_recovery, word_cutter
from hf_meanmax.inference.correction import Corrector, embedder_of
from hf_meanmax.inference.decode import DecodingSettings, decode_vectors
from hf_meanmax.inference.encoder import load_encoder
from inference.test_embedder import LINES, decoder, embedder  # noqa: F401
from tiny_model import make_model, make_tokenizer

BOUND = ["--max_length", "6"]


@pytest.fixture
def files(tmp_path):
    """Texts with blank lines between, and a corpus."""
    (tmp_path / "texts.txt").write_text("\n\n".join(LINES[:12]) + "\n")
    (tmp_path / "corpus.txt").write_text("\n".join(LINES[12:30]) + "\n")
    return tmp_path


@pytest.fixture
def options(files, embedder, decoder):  # noqa: F811
    texts, output = str(files / "texts.txt"), str(files / "audit")
    return ["--embedder", str(embedder), "--decoder", str(decoder), "--texts", texts, "--output", output, *BOUND]


def results(files):
    return json.loads((files / "audit" / "audit.json").read_text())


def decoded(decoder, vectors, dtype=torch.float32, **generation):  # noqa: F811
    model, tokenizer = load_checkpoint(decoder)
    model.to(dtype)
    tokens = model.generate(sentence_embedding=torch.from_numpy(vectors), max_new_tokens=6, **generation)
    return tokenizer.batch_decode(tokens, skip_special_tokens=True)


def expected_scores(said, texts=LINES[:12], counted=None):
    cut = word_cutter(make_tokenizer(), texts)
    return score_recovery(cut(said), References.of(texts, cut, counted))


def scores_of(record, expected):
    return {name: record[name] for name in expected}


def test_the_command(files, options, embedder, decoder, capsys):  # noqa: F811
    main([*options, "--corpus", str(files / "corpus.txt"), "--defence_texts", "5", "--noise_levels", "0.5"])
    captured = capsys.readouterr()
    found = results(files)
    vectors = load_encoder(str(embedder), device="cpu").encode(LINES[:12])
    said = decoded(decoder, vectors)
    expected = expected_scores(said, counted=LINES[12:30])
    assert scores_of(found["decoder"], expected) == pytest.approx(expected)
    assert set(found["controls"]) == {"nearest text", "shuffled words", "another text's vector"}
    assert [row["name"] for row in found["defences"]][:2] == ["none", "noise 0.5"]
    assert found["settings"]["embedder"] == "embedder"
    assert found["settings"]["texts"] == ["texts.txt"]
    assert found["settings"]["corpus_texts"] == 18
    printed = json.loads(captured.out)
    assert printed["bleu"] == found["decoder"]["bleu"]
    assert printed["page"].endswith("audit.html")
    page = (files / "audit" / "audit.html").read_text()
    assert found["examples"]["best"][0]["text"] in page
    assert str(files) not in page + json.dumps(found)


def test_texts_of_a_table_beside_a_corpus_of_lines(files, options):
    main([*options, "--corpus", str(files / "corpus.txt"), "--defence_texts", "0"])
    of_lines = results(files)
    table = files / "texts.jsonl"
    table.write_text("".join(json.dumps({"said": text}) + "\n" for text in LINES[:12]))
    words = [str(table) if word.endswith("texts.txt") else word for word in options]
    main([*words, "--text_column", "said", "--corpus", str(files / "corpus.txt"), "--defence_texts", "0"])
    for part in ("decoder", "controls"):
        assert results(files)[part] == of_lines[part]


def test_vectors_from_files(files, options, embedder, decoder, capsys, monkeypatch):  # noqa: F811
    vectors = load_encoder(str(embedder), device="cpu").encode(LINES[:12])
    lines = (files / "texts.txt").read_text().splitlines()
    all_lines = np.zeros((len(lines), vectors.shape[1]), np.float32)
    all_lines[::2] = vectors
    (files / "whole.txt").write_text("\n".join(LINES) + "\n")
    said = decoded(decoder, vectors)
    for name, array in (("filled", vectors), ("lines", all_lines)):
        np.save(files / f"{name}.npy", array)
        main([*options[2:], "--embeddings", str(files / f"{name}.npy"), "--defence_texts", "0"])
        found = results(files)
        assert scores_of(found["decoder"], expected_scores(said)) == pytest.approx(expected_scores(said))
        assert list(found["controls"]) == ["another text's vector"]
        assert found["settings"]["cosine_with_embedder"] is None
        assert "taken to be of these texts in this order. Name the embedder" in capsys.readouterr().err
    # With the embedder they are compared, and what needs it is there.
    main([*options, "--embeddings", str(files / "lines.npy"), "--defence_texts", "0"])
    assert results(files)["settings"]["cosine_with_embedder"] == pytest.approx(1)
    assert "shuffled words" in results(files)["controls"]
    assert "not those that the embedder makes" not in capsys.readouterr().err
    # Only the last rows are another text's, of which a few are compared.
    monkeypatch.setattr("hf_meanmax.evaluation.audit_run._COMPARED", 5)
    np.save(files / "turned.npy", np.concatenate([vectors[:9], vectors[:8:-1]]))
    main([*options, "--embeddings", str(files / "turned.npy"), "--defence_texts", "0"])
    assert "1 of 5 vectors are not those that the embedder makes of their texts" in capsys.readouterr().err


def test_vectors_of_a_folder_of_encode(files, options, embedder):  # noqa: F811
    (files / "texts.txt").write_text("\n".join(LINES) + "\n")
    encode([str(embedder), str(files / "texts.txt"), "--output", str(files / "vectors")])
    main([*options, "--embeddings", str(files / "vectors"), "--defence_texts", "0", "--limit", "7"])
    assert results(files)["texts"] == 7
    assert results(files)["settings"]["cosine_with_embedder"] == pytest.approx(1)
    encode([str(embedder), str(files / "texts.txt"), "--output", str(files / "short"), "--truncate_dim", "8"])
    with pytest.raises(SystemExit, match=r"hf-meanmax audit: .*--truncate_dim"):
        main([*options, "--embeddings", str(files / "short")])


def test_texts_are_drawn_with_their_vectors(files, options):
    draws = []
    for seed in ("0", "0", "1"):
        main([*options, "--limit", "5", "--defence_texts", "0", "--seed", seed, "--examples", "9"])
        draws.append({row["text"] for rows in results(files)["examples"].values() for row in rows})
    assert draws[0] == draws[1] != draws[2]
    assert all(len(drawn) == len(drawn & set(LINES[:12])) == 5 for drawn in draws)


def test_candidates_are_chosen(files, options, embedder, decoder):  # noqa: F811
    main([*options, "--rerank", "3", "--num_corrections", "1", "--defence_texts", "0"])
    model, tokenizer = load_checkpoint(decoder)
    own = embedder_of(model, decoder, str(embedder), "cpu")
    chosen = Corrector(model, tokenizer, own, 3, 1).decode(own.encode(LINES[:12]), max_new_tokens=6)
    expected = expected_scores([one.text for one in chosen])
    assert scores_of(results(files)["decoder"], expected) == pytest.approx(expected)
    main([*options, "--num_beams", "3", "--defence_texts", "0"])
    expected = expected_scores(decoded(decoder, own.encode(LINES[:12]), num_beams=3))
    assert scores_of(results(files)["decoder"], expected) == pytest.approx(expected)


def test_the_decoder_in_bf16(files, options, embedder, decoder):  # noqa: F811
    main([*options, "--compute_dtype", "bfloat16", "--defence_texts", "0"])
    vectors = load_encoder(str(embedder), device="cpu").encode(LINES[:12])
    expected = expected_scores(decoded(decoder, vectors, torch.bfloat16))
    assert scores_of(results(files)["decoder"], expected) == pytest.approx(expected)
    assert results(files)["settings"]["compute_dtype"] == "bfloat16"
    with pytest.raises(ValueError, match="`compute_dtype` is 'int8'; allowed: 'auto', 'float32'"):
        DecodingSettings(compute_dtype="int8")


def test_an_autoencoder_is_audited_by_itself(files):
    folder = save_checkpoint(make_model(), make_tokenizer(), files / "model")
    result = audit_checkpoint(
        AuditSource(str(folder), [str(files / "texts.txt")]), files / "audit", DecodingSettings(max_length=6),
        AuditSettings(defence_texts=0), show_progress=False,
    )  # fmt: skip
    assert "shuffled words" in result["controls"]
    assert (files / "audit" / "audit.html").is_file()


def test_vectors_of_an_autoencoder_are_compared_with_its_own(files, capsys):
    folder = save_checkpoint(make_model(), make_tokenizer(), files / "model")
    vectors = load_encoder(str(folder), device="cpu").encode(LINES[:12])
    words = ["--decoder", str(folder), "--texts", str(files / "texts.txt"), "--output", str(files / "audit"), *BOUND]
    for order, told in ((slice(None), False), (slice(None, None, -1), True)):
        np.save(files / "given.npy", vectors[order])
        main([*words, "--embeddings", str(files / "given.npy"), "--defence_texts", "0"])
        said = capsys.readouterr().err
        assert ("vectors are not those that the embedder makes of their texts" in said) == told
        assert "does not say which model made its vectors; they are decoded as those of this model itself" in said


def test_normalised_vectors_of_an_autoencoder_are_refused(files):
    """Decoded as raw ones they would seem to say nothing."""
    folder = save_checkpoint(make_model(), make_tokenizer(), files / "model", normalize="embedding")
    words = ["--decoder", str(folder), "--texts", str(files / "texts.txt"), "--output", str(files / "audit"), *BOUND]
    unit = load_encoder(str(folder), device="cpu").encode(LINES[:12])
    np.save(files / "unit.npy", unit)
    for given in ([], ["--embeddings", str(files / "unit.npy")]):
        with pytest.raises(
            SystemExit, match="hf-meanmax audit: The vectors are of unit length, so they were normalised"
        ):
            main([*words, *given])
    assert not (files / "audit").exists()


def test_batches_do_not_matter(embedder, decoder):  # noqa: F811
    vectors = load_encoder(str(embedder), device="cpu").encode(LINES[:12])
    model, tokenizer = load_checkpoint(decoder)
    for size in (1, 5, 64):
        assert decode_vectors(model, tokenizer, vectors, size, max_new_tokens=6) == decoded(decoder, vectors)
    assert decode_vectors(model, tokenizer, vectors[:0]) == []


def bad_files(folder):
    (folder / "empty.txt").write_text("\n\n")
    vectors = np.ones((12, 32), np.float32)
    np.save(folder / "few.npy", vectors[:5])
    np.save(folder / "wide.npy", np.ones((12, 40), np.float32))
    np.save(folder / "whole.npy", np.ones((12, 32), np.int64))
    vectors[3, 2] = np.nan
    np.save(folder / "nan.npy", vectors)
    np.save(folder / "fine.npy", np.ones((12, 32), np.float32))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--texts", "{}/none.txt"], "none.txt"),
        (["--texts", "{}/empty.txt"], "there is no text; every line is blank"),
        (
            ["--output", "{}/texts.txt"],
            "texts.txt is the name of a file, but it names a folder. Take for instance",
        ),
        (["--output", "mini-en"], "would hide the model of that name that comes with the package"),
        (["--decoder", "./none"], "No checkpoint folder 'none'"),
        (["--embedder", "./none"], "No checkpoint folder 'none'"),
        (["--embeddings", "{}/few.npy"], "few.npy: 5 vectors for 23 lines, of which 12 are not blank"),
        (["--embeddings", "{}/wide.npy"], "holds vectors of 40 numbers; the model decodes 32"),
        (["--embeddings", "{}/whole.npy"], "int64, expected a matrix of floating-point numbers"),
        (
            ["--embeddings", "{}/nan.npy"],
            "Row 4 of the vectors is not finite (NaN or infinite); 1 of the 12 audited are not",
        ),
        (["--corpus", "{}/none.txt"], "none.txt"),
        (["--sts", "--data", "{}/none"], "No such folder"),
        (["--data", "{}/none"], "which is for `sts`. Give both, or neither."),
        (["--sts", "--defence_texts", "0"], "`sts` scores the defences"),
        (["--num_corrections", "2"], "`num_corrections` needs `rerank`"),
        (["--num_beams", "2", "--rerank", "2"], "leave `num_beams` out"),
        (["--noise_levels", "0"], "A noise level is 0.0"),
    ],
)
def test_a_mistake_is_told_in_a_line_and_nothing_is_written(capsys, files, options, words, reason):
    bad_files(files)
    (files / "audit").mkdir()
    (files / "audit" / "audit.json").write_text("old")
    with pytest.raises(SystemExit) as error:
        main([*options, *(word.format(files) for word in words)])
    told = capsys.readouterr().err.rstrip() if error.value.code == 2 else str(error.value)
    assert told.startswith("hf-meanmax audit: ")
    assert reason in told
    assert "\n" not in told
    assert [path.name for path in (files / "audit").iterdir()] == ["audit.json"]
    assert (files / "audit" / "audit.json").read_text() == "old"


def test_vectors_alone_have_no_embedder_by_name(files, options):
    bad_files(files)
    (files / "wide.txt").write_text("\n".join(LINES[:12]) + "\n")
    for words, reason in (
        (["--corpus", str(files / "corpus.txt")], "'embedder', could not be loaded"),
        (["--embeddings", str(files / "wide.npy")], "holds vectors of 40 numbers; the model decodes 32"),
    ):
        vectors = [] if "--embeddings" in words else ["--embeddings", str(files / "fine.npy")]
        with pytest.raises(SystemExit, match=f"hf-meanmax audit: .*{reason}"):
            main([*options[2:], *vectors, *words])
