"""Candidates are embedded again, and the nearest one is kept."""

from __future__ import annotations

import copy
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from hf_meanmax.checkpoint.folder import load_checkpoint, save_checkpoint
from hf_meanmax.commands import decode as decode_command
from hf_meanmax.commands.decode import main
from hf_meanmax.inference import correction, edits
from hf_meanmax.inference.correction import Corrector, embedder_of
from hf_meanmax.inference.decode import decode_sources
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.sources import SourceOptions, open_sources
from inference.test_embedder import LINES, decoder, embedder  # noqa: F401
from tiny_model import make_model, make_tokenizer

BOUND = {"max_new_tokens": 6}


@pytest.fixture
def vectors(embedder):  # noqa: F811
    return load_encoder(str(embedder), device="cpu").encode(LINES[:9])


@pytest.fixture
def make(embedder, decoder):  # noqa: F811
    model, tokenizer = load_checkpoint(decoder)

    def make(**settings):
        own = embedder_of(model, decoder, str(embedder), "cpu")
        return Corrector(model, tokenizer, own, **settings)

    return make


def cosine(embedder, text, vector):  # noqa: F811
    found = embedder.encode([text])[0]
    return float(found @ vector / np.linalg.norm(found) / np.linalg.norm(vector))


def test_the_nearest_candidate_is_chosen(make, vectors):
    """Against every beam, embedded one by one."""
    corrector = make(num_candidates=4)
    found = corrector.decode(vectors, **BOUND)
    tokens = corrector.model.generate(
        sentence_embedding=torch.from_numpy(vectors), num_beams=4, num_return_sequences=4, **BOUND
    )
    texts = corrector.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    changed = 0
    for row, one in enumerate(found):
        candidates = texts[4 * row : 4 * row + 4]
        cosines = [cosine(corrector.embedder, text, vectors[row]) for text in candidates]
        assert one.cosine == pytest.approx(max(cosines), abs=1e-5)
        assert one.first_cosine == pytest.approx(cosines[0], abs=1e-5)
        assert cosine(corrector.embedder, one.text, vectors[row]) == pytest.approx(max(cosines), abs=1e-5)
        changed += one.text != candidates[0]
    assert changed > 0


def test_a_single_candidate_is_the_greedy_text(make, vectors):
    corrector = make(num_candidates=1)
    tokens = corrector.model.generate(sentence_embedding=torch.from_numpy(vectors), **BOUND)
    expected = corrector.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    assert [one.text for one in corrector.decode(vectors, **BOUND)] == expected


def test_corrections_never_lose(make, vectors):
    found = []
    for rounds in (0, 4):
        torch.manual_seed(0)
        corrector = make(num_candidates=3, num_corrections=rounds, do_sample=True)
        found.append(corrector.decode(vectors, **BOUND))
    once, often = found
    gains = [later.cosine - earlier.cosine for earlier, later in zip(once, often, strict=True)]
    assert min(gains) >= 0
    assert max(gains) > 0.001
    assert [one.first_cosine for one in once] == [one.first_cosine for one in often]
    for one, vector in zip(often, vectors, strict=True):
        assert cosine(corrector.embedder, one.text, vector) == pytest.approx(one.cosine, abs=1e-5)


def test_a_wrong_word_is_mended(make, vectors, monkeypatch):
    """The first text has another word in one place; the right one has a cosine of 1."""
    monkeypatch.setattr(edits, "_WORDS_OF_A_PLACE", 1000)
    monkeypatch.setattr(correction, "_LIKELIHOOD_WEIGHT", 0.0)
    corrector = make(num_candidates=1, num_corrections=1, num_edits=10_000)
    right = corrector.tokenizer(LINES[:9], padding=True, return_tensors="pt")["input_ids"]
    wrong = right.clone()
    wrong[:, 1] = torch.where(right[:, 1] == 7, 8, 7)
    start = torch.full((9, 1), corrector.model.config.decoder_start_token_id)
    monkeypatch.setattr(corrector.model, "generate", lambda **given: torch.cat((start, wrong), dim=1))
    expected = corrector.tokenizer.batch_decode(right, skip_special_tokens=True)
    assert [one.text for one in corrector.decode(vectors, max_new_tokens=20)] == expected
    assert [one.text for one in replace(corrector, num_corrections=0).decode(vectors, max_new_tokens=20)] != expected


def test_the_decoder_has_a_say_in_what_is_near(make, vectors, monkeypatch):
    """With all weight on cosines the texts are nearer, with much on likelihood they are likelier; never less near."""
    found = {}
    for weight in (0.0, 0.1):
        monkeypatch.setattr(correction, "_LIKELIHOOD_WEIGHT", weight)
        corrector = make(num_candidates=2, num_corrections=3)
        texts = corrector.decode(vectors, **BOUND)
        ids = [tuple(corrector.tokenizer(one.text)["input_ids"][:-1]) for one in texts]
        latents = corrector.model.latents_from_embedding(torch.from_numpy(vectors))
        found[weight] = (
            np.mean([one.cosine for one in texts]),
            edits.log_likelihoods(corrector.model, latents, ids).mean(),
        )
        before = replace(corrector, num_corrections=0).decode(vectors, **BOUND)
        assert all(one.cosine >= other.cosine for one, other in zip(texts, before, strict=True))
    assert found[0.0][0] > found[0.1][0]
    assert found[0.0][1] < found[0.1][1]


def test_a_text_whose_vector_is_the_right_one_is_left(make, vectors, monkeypatch):
    corrector = make(num_candidates=1, num_corrections=2)
    right = corrector.tokenizer(LINES[:9], padding=True, return_tensors="pt")["input_ids"]
    start = torch.full((9, 1), corrector.model.config.decoder_start_token_id)
    monkeypatch.setattr(corrector.model, "generate", lambda **given: torch.cat((start, right), dim=1))
    monkeypatch.setattr(correction, "propose_edits", None)
    assert [one.text for one in corrector.decode(vectors)] == [" ".join(line.split()) for line in LINES[:9]]


@pytest.mark.parametrize("bound", [2, 5])
def test_edits_keep_to_the_bound(make, vectors, bound):
    corrector = make(num_candidates=2, num_corrections=3)
    corrector.model.generation_config.max_new_tokens = bound
    found = [corrector.decode(vectors)]
    corrector.model.generation_config.max_new_tokens = None
    found += [corrector.decode(vectors, max_new_tokens=bound), corrector.decode(vectors, max_length=bound + 1)]
    for one, *others in zip(*found, strict=True):
        assert others == [one, one]
        assert len(corrector.tokenizer(one.text)["input_ids"]) <= bound + (not one.ended)


def test_in_bf16(make, vectors, monkeypatch):
    """The embedder computes in what the decoder does, and cosines stay what they are to three digits."""
    corrector = make(num_candidates=2, num_corrections=1)
    corrector.model.bfloat16()
    modes, encode = [], correction.encode_texts
    monkeypatch.setattr(
        correction, "encode_texts", lambda *given: modes.append(torch.is_autocast_enabled("cpu")) or encode(*given)
    )
    for one, vector in zip(corrector.decode(vectors, **BOUND), vectors, strict=True):
        assert one.cosine == pytest.approx(cosine(corrector.embedder, one.text, vector), abs=5e-3)
    corrector.model.float()
    corrector.decode(vectors, **BOUND)
    assert modes == [True, True, False, False]


def test_many_vectors_are_decoded_in_batches(make, vectors, monkeypatch):
    corrector = make(num_candidates=2, num_corrections=1)
    together = corrector.decode(vectors, **BOUND)
    monkeypatch.setattr(correction, "_CANDIDATES_TOGETHER", 8)
    batches = corrector.decode(vectors, show_progress=True, **BOUND)
    assert [one.text for one in batches] == [one.text for one in together]
    assert corrector.decode(vectors[:0]) == []
    assert [one.text for one in corrector.decode(vectors[0], **BOUND)] == [together[0].text]


def test_few_vectors_are_searched_together(make, vectors, monkeypatch):
    """Nine are in two parts, and what is found is the same."""
    corrector, searched = make(num_candidates=4, num_corrections=1), []
    whole = corrector.decode(vectors, **BOUND)
    monkeypatch.setattr(correction, "_CANDIDATES_TOGETHER", 20)
    generate = corrector.model.generate
    monkeypatch.setattr(
        corrector.model,
        "generate",
        lambda **given: searched.append(len(given["encoder_outputs"].last_hidden_state)) or generate(**given),
    )
    assert [one.text for one in corrector.decode(vectors, **BOUND)] == [one.text for one in whole]
    assert searched == [5, 4]


def test_samples(make, vectors):
    torch.manual_seed(0)
    found = make(num_candidates=6, do_sample=True).decode(vectors, top_k=5, **BOUND)
    assert all(one.cosine >= one.first_cosine for one in found)
    assert any(one.cosine > one.first_cosine for one in found)


def test_a_row_has_the_same_samples_wherever_decoding_begins(make, vectors, tmp_path):
    np.save(tmp_path / "v.npy", vectors)
    sources = open_sources([str(tmp_path / "v.npy")], SourceOptions())

    def texts(start: int, seed: int = 0) -> list[str]:
        corrector = make(num_candidates=2, do_sample=True, seed=seed)
        batches = decode_sources(corrector.model, corrector.tokenizer, sources, 2, start, corrector, **BOUND)
        return [text for batch in batches for text in batch.texts]

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    whole = texts(0)
    assert torch.equal(torch.rand(1), expected), "a service's own random numbers are left alone"
    assert texts(2) == whole[2:]
    assert texts(0, seed=1000) != whole


def test_settings_that_are_too_small(make):
    for name, value in (("num_candidates", 0), ("num_corrections", -1), ("batch_size", 0), ("num_edits", 0)):
        with pytest.raises(ValueError, match=f"`{name}` is {value}"):
            make(**{name: value})


def test_an_embedder_of_another_size_is_refused(make):
    corrector = make()
    narrow = copy.deepcopy(corrector.embedder)
    narrow.truncate_dim = 5
    with pytest.raises(ValueError, match="gives vectors of 5 numbers; the model decodes vectors of 32"):
        replace(corrector, embedder=narrow)


def test_vectors_and_parts_that_are_none(make, vectors):
    corrector = make(num_candidates=2)
    whole = np.clip(100 * vectors, -127, 127)
    for quantised in (whole.astype(np.int8), (whole + 127).astype(np.uint8)):
        with pytest.raises(ValueError, match="are quantised"):
            corrector.decode(quantised)
    with pytest.raises(ValueError, match="is text; this model decodes"):
        corrector.decode(LINES[:2])
    with pytest.raises(TypeError, match="Corrector takes a model, its tokenizer and a SentenceTransformer, not str, "):
        replace(corrector, model="mini-en")
    with pytest.raises(TypeError, match=r"not .*, NoneType"):
        replace(corrector, embedder=None)
    with pytest.raises(TypeError, match="Corrector takes a model"):
        replace(corrector, tokenizer=corrector.embedder, embedder=corrector.tokenizer)
    halves = vectors.astype(np.float16)
    assert corrector.decode(halves, **BOUND) == corrector.decode(halves.astype(np.float32), **BOUND)


def test_the_command(embedder, decoder, vectors, make, tmp_path, capsys):  # noqa: F811
    np.save(tmp_path / "vectors.npy", vectors)
    options = [str(decoder), str(tmp_path / "vectors.npy"), "--max_length", "6", "--compute_dtype", "float32"]
    main([*options, "--rerank", "3", "--num_corrections", "2", "--embedder", str(embedder)])
    captured = capsys.readouterr()
    expected = make(num_candidates=3, num_corrections=2).decode(vectors, **BOUND)
    assert captured.out.splitlines() == [one.text for one in expected]
    cut = sum(not one.ended for one in expected)
    assert f"Cut after 6 tokens, before their end: {cut} text" in captured.err
    for words, reason in (
        (["--num_corrections", "2"], "`num_corrections` needs `rerank`"),
        (["--rerank", "3", "--num_beams", "4"], "`rerank` has beams of its own"),
        (["--rerank", "3"], "'embedder', could not be loaded"),
        (["--rerank", "3", "--embedder", "./none"], "No checkpoint folder 'none'"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*options, *words])
        told = capsys.readouterr().err if ended.value.code == 2 else str(ended.value)
        assert re.search(f"hf-meanmax decode: .*({reason})", told)


def test_a_moved_embedder_continues(embedder, decoder, vectors, make, tmp_path, monkeypatch):  # noqa: F811
    np.save(tmp_path / "vectors.npy", vectors)
    command = [str(decoder), str(tmp_path / "vectors.npy"), "--max_length", "6", "--compute_dtype", "float32"]
    command += ["--rerank", "3", "--batch_size", "2", "--output", str(tmp_path / "texts.txt"), "--embedder"]
    starts = []

    def one_batch(*args, **kwargs):
        starts.append(args[4])
        for batch in decode_sources(*args, **kwargs):
            yield batch
            if len(starts) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(decode_command, "decode_sources", one_batch)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        main([*command, str(embedder)])
    shutil.copytree(embedder, tmp_path / "elsewhere")
    main([*command, str(tmp_path / "elsewhere")])
    assert starts == [0, 2]
    expected = make(num_candidates=3).decode(vectors, **BOUND)
    assert (tmp_path / "texts.txt").read_text().splitlines() == [one.text for one in expected]


def test_another_embedder_is_refused(decoder, tmp_path):  # noqa: F811
    other = save_checkpoint(make_model(seed=1), make_tokenizer(), tmp_path / "other", normalize="embedding")
    with pytest.raises(ValueError, match=r"other has other weights than 'embedder'.*`--embedder`"):
        embedder_of(load_checkpoint(decoder)[0], decoder, str(other), "cpu")


def test_an_autoencoder_is_its_own_embedder(tmp_path, capsys):
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    vectors = load_encoder(str(folder), device="cpu").encode(LINES[:5])
    np.save(tmp_path / "vectors.npy", vectors)
    main([str(folder), str(tmp_path / "vectors.npy"), "--rerank", "3", "--max_length", "6"])
    model, tokenizer = load_checkpoint(folder)
    found = Corrector(model, tokenizer, embedder_of(model, folder, device="cpu"), 3).decode(vectors, **BOUND)
    assert capsys.readouterr().out.splitlines() == [one.text for one in found]
    with pytest.raises(ValueError, match="decodes its own vectors"):
        embedder_of(model, folder, "some/embedder")
    # Rows of unit length, which the decoder does not read.
    scaled = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "scaled", normalize="rows")
    with pytest.raises(ValueError, match="saved with `normalize` 'rows'"):
        embedder_of(model, scaled, device="cpu")
    embedder_of(make_model(latent_normalization="rows"), scaled, device="cpu")
