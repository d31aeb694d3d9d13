"""What the tabs compute and show, without a browser: any checkpoint, and messages for bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from hf_meanmax import MeanMaxAAEForReconstruction, RNNCNNForContextPrediction
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.demo import panels
from hf_meanmax.demo.model import MOST_CHARACTERS, MOST_LINES, DemoModel, given_text
from hf_meanmax.demo.page import build_page, shown
from tiny_model import make_model, make_tokenizer

TEXT, OTHER = "the old cat sat on the red mat", "a dog ran"


def demo_of(folder, normalize: str | None = None, **settings: object) -> DemoModel:
    return DemoModel(
        str(save_checkpoint(make_model(**settings), make_tokenizer(), folder / "model", normalize=normalize))
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoModel:
    return demo_of(tmp_path_factory.mktemp("demo"), initializer_range=0.7)


def test_similarity_is_the_cosine_of_the_vectors(demo):
    vectors = demo.embedder.encode([TEXT, OTHER])
    expected = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    found = demo.similarity([TEXT, OTHER])
    np.testing.assert_allclose(found, [[1, expected], [expected, 1]], atol=1e-5)
    for texts in ([TEXT], [TEXT] * 13):
        with pytest.raises(ValueError, match=f"2 to 12 texts, one a line; got {len(texts)}"):
            demo.similarity(texts)


def test_decoding_is_that_of_generate_with_its_probabilities(demo):
    vector, changed, decoded = demo.decode_text(TEXT, noise=0, kept=1, seed=0)
    assert np.array_equal(vector, changed)
    given = torch.from_numpy(vector[None])
    ids = demo.model.generate(sentence_embedding=given, max_new_tokens=64)
    said = demo.tokenizer.decode(ids[0], skip_special_tokens=True)
    assert decoded.text == said + ("" if demo.tokenizer.eos_token_id in ids[0, 1:] else " ...")
    with torch.no_grad():
        batch = demo.tokenizer([TEXT], return_tensors="pt")
        logits = demo.model(**batch, decoder_input_ids=ids[:, :-1]).logits[0]
    expected = logits.softmax(dim=-1).gather(1, ids[0, 1:, None])[:, 0]
    np.testing.assert_allclose(decoded.probabilities, expected[: len(decoded.tokens)], rtol=1e-3)


def test_a_text_that_is_cut_says_so_and_prompt_and_limit_are_those_of_the_folder(tmp_path):
    demo = demo_of(tmp_path, initializer_range=0.7)
    with torch.no_grad():
        demo.model.lm_head.bias[demo.tokenizer.eos_token_id] = -1e4
    assert demo.decode_text(TEXT, noise=0, kept=1, seed=0)[2].text.endswith(" ...")
    demo.embedder.prompts, demo.embedder.default_prompt_name = {"query": "the old "}, "query"
    demo.embedder.max_seq_length = 5
    np.testing.assert_allclose(demo.vectors([TEXT, OTHER]), demo.embedder.encode([TEXT, OTHER]), atol=1e-5)
    assert demo.attention("cat sat on the mat")[0] == ["the", "old", "cat", "sat", "</s>"]


@pytest.mark.parametrize("name", ["user/model", "mini-en"])
def test_the_title_names_a_model_that_is_no_folder_as_it_was_named(name, tmp_path):
    pytest.importorskip("gradio")
    demo = demo_of(tmp_path)
    demo.name = name
    parts = build_page(demo).config["components"]
    assert any(f"`{name}`: vectors" in str(part["props"].get("value")) for part in parts)


def test_noise_is_drawn_by_its_seed_and_small_numbers_go(demo):
    vector, first, _ = demo.decode_text(TEXT, noise=0.5, kept=1, seed=1)
    assert np.array_equal(first, demo.decode_text(TEXT, noise=0.5, kept=1, seed=1)[1])
    assert not np.array_equal(first, demo.decode_text(TEXT, noise=0.5, kept=1, seed=2)[1])
    assert (first - vector).std() == pytest.approx(0.5 * vector.std(), rel=0.5)
    _, kept, _ = demo.decode_text(TEXT, noise=0, kept=0.25, seed=0)
    assert np.count_nonzero(kept) == len(vector) // 4
    assert np.abs(kept[kept != 0]).min() >= np.abs(vector[kept == 0]).max()


def test_a_path_ends_at_the_two_texts(demo):
    path = demo.between(TEXT, OTHER, 5)
    assert [share for share, _, _ in path] == [0, 0.25, 0.5, 0.75, 1]
    assert path[0][1][0] == pytest.approx(1, abs=1e-5)
    assert path[-1][1][1] == pytest.approx(1, abs=1e-5)
    for (_, _, decoded), text in ((path[0], TEXT), (path[-1], OTHER)):
        assert decoded.text == demo.decode_text(text, 0, 1, 0)[2].text


def test_a_folder_that_normalises_decodes_all_the_same(demo, tmp_path):
    other = demo_of(tmp_path, normalize="rows", initializer_range=0.7)
    assert other.decode_text(TEXT, 0, 1, 0)[2] == demo.decode_text(TEXT, 0, 1, 0)[2]


def test_search_finds_the_sentence_itself(demo, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(f"\ufeff{TEXT}\n\n{OTHER}\n", encoding="utf-8")
    corpus = demo.read_corpus(str(path))
    assert corpus.texts == [TEXT, OTHER]
    found = demo.search(corpus, OTHER, 5)
    assert found.neighbors[0] == (pytest.approx(1, abs=1e-5), OTHER)
    assert len(found.neighbors) == 2
    assert len(demo.read_corpus(None).texts) == 120
    assert demo.read_corpus(None) is demo.read_corpus(None)


def test_half_a_surrogate_pair_is_read_as_everywhere():
    assert given_text("the \ud800 cat", "text") == "the \ufffd cat"


def test_bad_files_and_texts_get_a_message(demo, tmp_path):
    path = tmp_path / "bad.txt"
    for content, said in (
        (b"caf\xe9", "not UTF-8 text (byte 3)"),
        (b"\n \n", "has no sentence"),
        (b"a\n" * (MOST_LINES + 1), "20,001 sentences; the page takes 20,000"),
        (b"a" * 5_000_001, "5.0 MB; the page takes 5"),
    ):
        path.write_bytes(content)
        content = shown(lambda: panels.search_panel(demo.read_corpus(str(path)), None))()
        assert said in content
        assert 'role="alert"' in content
    assert "is empty; write a sentence" in shown(lambda: demo.attention(" \n "))()
    assert f"the page takes {MOST_CHARACTERS:,}" in shown(lambda: demo.attention("a" * (MOST_CHARACTERS + 1)))()


def test_what_nobody_foresaw_is_a_message_too(capsys):
    assert "This did not work" in shown(lambda: {}["secret"])()
    assert "secret" in capsys.readouterr().err


def test_attention_shows_poolings_and_decoder_escaped(demo):
    content = panels.attention_panel(*demo.attention("the <i>cat</i> sat"))
    assert "<h4>max</h4>" in content
    assert "<h4>mean</h4>" in content
    assert "What the decoder reads" in content
    assert "<i>" not in panels.similarity_panel(["<i>a</i>", "b"], np.eye(2))


@pytest.mark.parametrize(
    ("full_class", "settings", "decodes"),
    [
        (MeanMaxAAEForReconstruction, {"weighted_mean_row": True, "latent_normalization": "rows"}, True),
        (MeanMaxAAEForReconstruction, {"encoder_type": "lstm", "pooling": "last", "decoder_type": "lstm"}, True),
        (RNNCNNForContextPrediction, {"decoder_channels": [8, 8], "num_context_words": 5}, True),
        (
            MeanMaxAAEForReconstruction,
            {"encoder_type": "none", "pooling": "weighted_mean", "decoder_type": "none"},
            False,
        ),
    ],
    ids=["rows", "lstm", "words", "static"],
)
def test_every_kind_of_checkpoint(full_class, settings, decodes, tmp_path):
    demo = demo_of(tmp_path, full_class=full_class, **settings)
    assert panels.attention_panel(*demo.attention(TEXT))
    if decodes:
        assert panels.decoded_panel(*demo.decode_text(TEXT, 0.1, 1, 0))
        assert panels.between_panel(demo.between(TEXT, OTHER, 3))
    else:
        for run in (lambda: demo.decode_text(TEXT, 0, 1, 0), lambda: demo.between(TEXT, OTHER, 3)):
            with pytest.raises(ValueError, match="has no decoder"):
                run()


def test_an_encoder_alone_of_sentence_transformers(tmp_path):
    source = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")
    SentenceTransformer(str(source), device="cpu").save_pretrained(str(tmp_path / "alone"))
    demo = DemoModel(str(tmp_path / "alone"))
    assert demo.model is None
    assert list(demo.attention(TEXT)[1]) == ["max", "mean"]
