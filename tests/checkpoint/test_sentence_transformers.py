"""A checkpoint folder in the hands of sentence-transformers; its trainer is with the tests of fine-tuning."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from hf_meanmax.checkpoint.folder import save_checkpoint
from tiny_model import TEXTS, make_model, make_tokenizer


def test_encoding_in_another_process(tmp_path):
    """It gets the pickled model."""
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    model = SentenceTransformer(str(folder), device="cpu")
    pool = model.start_multi_process_pool(["cpu"])
    try:
        vectors = model.encode(TEXTS, pool=pool, chunk_size=2)
    finally:
        model.stop_multi_process_pool(pool)
    assert np.allclose(vectors, model.encode(TEXTS), atol=1e-6)


def test_what_is_saved_is_loaded(tmp_path):
    """By `SentenceTransformer.save_pretrained`, normalisation included."""
    for normalize in (None, "rows", "embedding"):
        save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model", normalize=normalize)
        model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
        model.save_pretrained(str(tmp_path / f"saved-{normalize}"))
        loaded = SentenceTransformer(str(tmp_path / f"saved-{normalize}"), device="cpu")
        assert np.array_equal(loaded.encode(TEXTS), model.encode(TEXTS))
        assert (loaded.max_seq_length, loaded.get_embedding_dimension()) == (model.max_seq_length, 32)


def test_what_transformers_saves_is_one_as_well(tmp_path):
    """And not the mean of the hidden states, which sentence-transformers takes of an unknown folder."""
    tokenizer, model = make_tokenizer(), make_model()
    folder = save_checkpoint(model, tokenizer, tmp_path / "checkpoint")
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    for name, saved in (("whole", model), ("encoder", model.encoder)):
        saved.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        assert np.allclose(SentenceTransformer(str(tmp_path / name), device="cpu").encode(TEXTS), expected, atol=1e-6)


def test_saving_keeps_what_a_user_has_set_and_writes_nothing_of_another_process(tmp_path):
    model = make_model()
    save_checkpoint(model, make_tokenizer(), tmp_path / "model", normalize="embedding")
    files = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
    before = [(tmp_path / "model" / name).read_text() for name in files]
    model.save_pretrained(tmp_path / "model")
    assert [(tmp_path / "model" / name).read_text() for name in files] == before
    model.save_pretrained(tmp_path / "other", False)
    assert not (tmp_path / "other/modules.json").exists()


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_its_other_backends_need_a_package_that_they_name(tmp_path, backend):
    """`hf-meanmax export-onnx` writes the encoder without it."""
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    with pytest.raises(Exception, match=r"requires installing Optimum .*pip install sentence-transformers\["):
        SentenceTransformer(str(folder), device="cpu", backend=backend)


def test_texts_of_a_batch_are_grouped_by_length(tmp_path):
    """The vectors are those of single texts, and hidden states are to be had as of any model."""
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    model = SentenceTransformer(str(folder), device="cpu")
    passes = []
    model[0].auto_model.register_forward_hook(lambda *called: passes.append(len(called[2].latents)))
    texts = [*TEXTS, " ".join(["the cat"] * 20), " ".join(["a dog"] * 19)]
    vectors = model.encode(texts)
    assert len(passes) > 1
    assert np.allclose(vectors, [model.encode(text) for text in texts], atol=1e-6)
    recording = SentenceTransformer(str(folder), device="cpu", config_kwargs={"output_hidden_states": True})
    assert np.allclose(recording.encode(texts), vectors, atol=1e-6)


def test_a_second_text_is_refused(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    folder = save_checkpoint(make_model(), tokenizer, tmp_path / "model")
    with pytest.raises(ValueError, match=r"`token_type_ids` mark a second text, and this \w+ reads one"):
        SentenceTransformer(str(folder), device="cpu").encode([("a dog", "the cat")])
