"""Whitened vectors: what scikit-learn gives, in a folder that loads everywhere."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import PCA

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.decode import main as decode
from hf_meanmax.commands.encode import main as encode
from hf_meanmax.commands.whiten import main
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.whitening import whiten
from tiny_model import make_model, make_tokenizer, random_lines

LINES = [line for line in random_lines(400, seed=2) if line][:300]


@pytest.fixture
def folder(tmp_path):
    save_checkpoint(make_model(initializer_range=0.7), make_tokenizer(), tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n\n".join(LINES) + "\n")
    return tmp_path


def test_vectors_are_those_of_sklearn_and_survive_the_folder(folder, capsys):
    """On the texts that were fitted on: mean 0, covariance 1; a blank line is no text."""
    main([f"{folder}/model", f"{folder}/texts.txt", "--output", f"{folder}/white", "--dimension", "9"])
    assert "9 components of 32 numbers keep " in capsys.readouterr().out
    raw = SentenceTransformer(f"{folder}/model", device="cpu").encode(LINES)
    white = SentenceTransformer(f"{folder}/white", device="cpu")
    assert white.get_embedding_dimension() == 9
    vectors = white.encode(LINES)
    np.testing.assert_allclose(np.cov(vectors.T), np.eye(9), atol=2e-3)
    np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=1e-3)
    reference = PCA(9, whiten=True, svd_solver="full").fit(raw.astype(np.float64))
    others = random_lines(20, seed=3)
    wanted = reference.transform(SentenceTransformer(f"{folder}/model", device="cpu").encode(others))
    # A component has no sign.
    np.testing.assert_allclose(np.abs(white.encode(others)), np.abs(wanted), atol=5e-3)
    np.testing.assert_allclose(load_encoder(f"{folder}/white", device="cpu").encode(LINES), vectors, atol=1e-5)


def test_the_card_of_the_vectors_before_is_left_behind(folder, tmp_path):
    """Its scores and what it says of decoding are not of the whitened ones."""
    source = tmp_path / "source"
    shutil.copytree(folder / "model", source)
    (source / "README.md").write_text("An embedding of this model is its text.")
    main([str(source), str(folder / "texts.txt"), "--output", str(tmp_path / "whitened"), "--dimension", "4"])
    assert not (tmp_path / "whitened" / "README.md").exists()
    model = SentenceTransformer(str(source), device="cpu")
    whiten(model, LINES, 4)
    model.save_pretrained(str(tmp_path / "again"))
    assert "is its text" not in (tmp_path / "again" / "README.md").read_text()


def test_of_a_model_that_cuts_its_vectors_whole_ones_are_whitened(folder):
    for name, size in (("model", None), ("cut", 8)):
        SentenceTransformer(f"{folder}/model", device="cpu", truncate_dim=size).save_pretrained(
            f"{folder}/{name}-saved"
        )
        main(
            [f"{folder}/{name}-saved", f"{folder}/texts.txt", "--output", f"{folder}/{name}-white", "--dimension", "9"]
        )
    whole, cut = (load_encoder(f"{folder}/{name}-white", device="cpu").encode(LINES) for name in ("model", "cut"))
    np.testing.assert_array_equal(whole, cut)


def test_a_model_of_half_precision_encodes_at_once(folder):
    model = load_encoder(f"{folder}/model", device="cpu").to(torch.bfloat16)
    whiten(model, LINES, 4)
    assert np.isfinite(model.encode(LINES[:2], convert_to_tensor=True).float().numpy()).all()


def test_are_encoded_but_not_decoded(folder):
    main([f"{folder}/model", f"{folder}/texts.txt", "--output", f"{folder}/white", "--dimension", "30"])
    encode([f"{folder}/white", f"{folder}/texts.txt", "--output", f"{folder}/vectors"])
    with pytest.raises(SystemExit, match="encoded by another model"):
        decode([f"{folder}/model", f"{folder}/vectors"])


def test_refusals(folder):
    with pytest.raises(SystemExit, match="model is what would be read"):
        main([f"{folder}/model", f"{folder}/texts.txt", "--output", f"{folder}/model"])
    with pytest.raises(SystemExit, match="different texts are too few for 300 components"):
        main([f"{folder}/model", f"{folder}/texts.txt", "--output", f"{folder}/white", "--dimension", "300"])
    with pytest.raises(SystemExit, match="`dimension` is 33, and the model's vectors have 32 numbers"):
        main([f"{folder}/model", f"{folder}/texts.txt", "--output", f"{folder}/white", "--dimension", "33"])
    assert not (folder / "white").exists()
    model = SentenceTransformer(f"{folder}/model", device="cpu", truncate_dim=6)
    # Blanks make other texts with the same vectors.
    for few, message in ((4, "vary in 3 directions only; give a dimension up to that"), (1, "are all the same")):
        with pytest.raises(ValueError, match=message):
            whiten(model, [line + " " * blanks for line in LINES[:few] for blanks in range(40)], dimension=8)
    with pytest.raises(ValueError, match="4 different texts are too few for 8 components"):
        whiten(model, LINES[:4] * 5, dimension=8)
    with pytest.raises(ValueError, match="`dimension` is 33, and the model's vectors have 32 numbers"):
        whiten(model, LINES, dimension=33)
    assert (len(model), model.truncate_dim) == (1, 6)
