"""Untrained controls: the trained word vectors and dimension, nothing else that was trained; equal to plain loops."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.evaluation.controls import (
    CONTROL_KINDS,
    BagOfWords,
    Control,
    EchoStateNetwork,
    MajorityClass,
    RandomEncoder,
    RandomProjection,
    make_controls,
)
from hf_meanmax.evaluation.reservoir import spectral_radius
from hf_meanmax.evaluation.word_sources import explain_no_controls, unknown_word_rate_of
from hf_meanmax.inference.encoder import load_encoder
from hf_meanmax.inference.fingerprints import weights_fingerprint
from tiny_model import WORDS, make_model, make_tokenizer, random_lines

try:
    from sentence_transformers.base.modules import Transformer
except ImportError:
    from sentence_transformers.models import Transformer

TEXTS = [*random_lines(90), "", "unheard words", "the unheard cat </s> <pad>", "cat"]


def trained(model: SentenceTransformer) -> SentenceTransformer:
    """Word vectors that no initialisation gives."""
    with torch.no_grad():
        table = model[0].auto_model.get_input_embeddings().weight
        table.copy_(torch.randn(table.shape, generator=torch.Generator().manual_seed(1)) * 3)
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> SentenceTransformer:
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path_factory.mktemp("controls") / "model")
    return trained(load_encoder(str(folder), device="cpu"))


@pytest.fixture(scope="module")
def frozen(tmp_path_factory) -> SentenceTransformer:
    model = make_model(freeze_word_embeddings=True, position_embedding_type="learned", pooling="mean")
    return trained(
        load_encoder(
            str(save_checkpoint(model, make_tokenizer(), tmp_path_factory.mktemp("frozen") / "m")), device="cpu"
        )
    )


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> SentenceTransformer:
    """A small model like all-MiniLM, with a Dense layer, an odd dimension and a length limit."""
    folder = tmp_path_factory.mktemp("bert")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "words"]
    backend = Tokenizer(models.WordPiece({word: index for index, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=10,
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    torch.manual_seed(3)
    BertModel(config).save_pretrained(folder)
    modules = [Transformer(str(folder)), Pooling(12), Dense(12, 7), Normalize()]
    return trained(SentenceTransformer(modules=modules, device="cpu"))


@pytest.fixture(params=["checkpoint", "frozen", "bert"])
def model(request) -> SentenceTransformer:
    return request.getfixturevalue(request.param)


def table(model: SentenceTransformer) -> torch.Tensor:
    return model[0].auto_model.get_input_embeddings().weight.detach()


def word_vectors(model: SentenceTransformer, text: str) -> torch.Tensor:
    """The known words' vectors of one text, `(N, e)`."""
    tokenizer = model.tokenizer
    ids = tokenizer(text, truncation=True)["input_ids"]
    return table(model)[[number for number in ids if number not in tokenizer.all_special_ids]]


def all_controls(model: SentenceTransformer) -> Iterator[Control]:
    yield from make_controls(model, seeds=(0,))


def test_kinds_seeds_and_dimensions(model):
    controls = make_controls(model)
    drawn = [(kind, seed) for kind in CONTROL_KINDS[:3] for seed in (0, 1, 2)]
    assert [(control.kind, control.seed) for control in controls] == [*drawn, ("bag", None), ("majority", None)]
    size = model.get_embedding_dimension()
    assert [control.dimension for control in controls] == [size] * 9 + [table(model).shape[1], 1]
    assert len({control.key for control in controls}) == len({control.name for control in controls}) == 11
    assert controls[4].name == "random projection, seed 1"
    for control in controls:
        vectors = control.encode(TEXTS)
        assert vectors.shape == (len(TEXTS), control.dimension)
        assert vectors.dtype == np.float32
        assert np.isfinite(vectors).all()
        assert control.encode([]).shape == (0, control.dimension)


def test_a_selection_of_kinds(checkpoint):
    controls = make_controls(checkpoint, seeds=(5,), kinds=["majority", "echo_state_network"])
    assert [(control.kind, control.seed) for control in controls] == [("echo_state_network", 5), ("majority", None)]
    assert make_controls(checkpoint, kinds=[]) == []


def test_vectors_depend_on_the_text_alone(model):
    for control in all_controls(model):
        whole = control.encode(TEXTS)
        alone = np.concatenate([control.encode([text]) for text in TEXTS])
        assert np.allclose(whole, alone, atol=1e-5), control.kind
        order = np.random.default_rng(0).permutation(len(TEXTS))
        assert np.allclose(control.encode([TEXTS[i] for i in order], batch_size=7), whole[order], atol=1e-5)


def test_chunks_do_not_matter(checkpoint, monkeypatch):
    controls = list(all_controls(checkpoint))
    whole = [control.encode(TEXTS) for control in controls]
    monkeypatch.setattr("hf_meanmax.evaluation.word_sources._CHUNK", 11)
    monkeypatch.setattr("hf_meanmax.evaluation.word_sources._BATCH_NUMBERS", 40)
    for control, expected in zip(controls, whole, strict=True):
        assert np.allclose(control.encode(TEXTS), expected, atol=1e-5), control.kind


def test_seeds_differ_and_repeat(model):
    first, again = make_controls(model, seeds=(0, 1)), make_controls(model, seeds=(0, 1))
    for control, repeated in zip(first, again, strict=True):
        assert np.array_equal(control.encode(TEXTS), repeated.encode(TEXTS))
        assert control.key == repeated.key
    by_kind: dict[str, list[np.ndarray]] = {}
    for control in first:
        by_kind.setdefault(control.kind, []).append(control.encode(TEXTS))
    for kind in CONTROL_KINDS[:3]:
        a, b = by_kind[kind]
        assert np.abs(a - b).max() > 0.01, kind


def test_keys_identify_what_is_computed(checkpoint, frozen):
    keys = {control.kind: control.key for control in make_controls(checkpoint, seeds=(0,))}
    other = {control.kind: control.key for control in make_controls(frozen, seeds=(0,))}
    assert {kind for kind in keys if keys[kind] == other[kind]} == {"majority"}
    changed = copy.deepcopy(checkpoint)
    with torch.no_grad():
        changed[0].auto_model.sequence_encoder.layers[0].feed_forward.up.weight.mul_(2)
    assert {control.kind: control.key for control in make_controls(changed, seeds=(0,))} == keys
    # What only the random encoder reads.
    with torch.no_grad():
        table(changed)[changed.tokenizer.unk_token_id] += 1
    second = {control.kind: control.key for control in make_controls(changed, seeds=(0,))}
    assert {kind for kind in keys if keys[kind] != second[kind]} == {"random_encoder"}
    with torch.no_grad():
        table(changed)[5] += 1
    third = {control.kind: control.key for control in make_controls(changed, seeds=(0,))}
    assert {kind for kind in keys if keys[kind] == third[kind]} == {"majority"}


def test_the_trained_model_and_random_states_are_left_alone(model):
    before = weights_fingerprint(model)
    vectors = model.encode(TEXTS)
    identities = [id(parameter) for parameter in model.parameters()]
    trains = [parameter.requires_grad for parameter in model.parameters()]
    torch.manual_seed(4)
    state = torch.get_rng_state()
    for control in all_controls(model):
        control.encode(TEXTS)
    assert torch.equal(torch.get_rng_state(), state)
    assert weights_fingerprint(model) == before
    assert [id(parameter) for parameter in model.parameters()] == identities
    assert [parameter.requires_grad for parameter in model.parameters()] == trains
    assert np.array_equal(model.encode(TEXTS), vectors)


def test_random_encoder_has_only_the_trained_word_vectors(model):
    drawn = RandomEncoder(model, 0).sentence_transformer
    old, new = dict(model.named_parameters()), dict(drawn.named_parameters())
    assert old.keys() == new.keys()
    shared = {name for name in old if torch.equal(old[name], new[name])}
    # Norms and biases are constant before training, and here they are not trained.
    drawn_at_random = {name for name, value in old.items() if value.ndim > 1}
    word_tables = {name for name in old if "word_embeddings" in name or "special_embeddings" in name}
    assert shared & drawn_at_random == word_tables
    assert torch.equal(table(drawn), table(model))
    assert [type(module) for module in drawn] == [type(module) for module in model]
    assert repr(drawn) == repr(model)


def test_random_encoder_is_the_architecture(checkpoint):
    """A model with all weights drawn by hand gives the same vectors."""
    control = RandomEncoder(checkpoint, 2)
    by_hand = copy.deepcopy(checkpoint)
    by_hand[0].auto_model.load_state_dict(control.sentence_transformer[0].auto_model.state_dict())
    np.testing.assert_allclose(control.encode(TEXTS), by_hand.encode(TEXTS), atol=1e-5)
    assert not np.allclose(control.encode(TEXTS), checkpoint.encode(TEXTS), atol=0.1)


def test_random_encoder_keeps_tied_tables(tmp_path, checkpoint):
    from transformers import T5Config, T5EncoderModel

    checkpoint.tokenizer.save_pretrained(tmp_path)
    T5EncoderModel(T5Config(vocab_size=14, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).save_pretrained(
        tmp_path
    )
    model = trained(SentenceTransformer(modules=[Transformer(str(tmp_path)), Pooling(8)], device="cpu"))
    drawn = RandomEncoder(model, 0).sentence_transformer[0].auto_model
    assert torch.equal(drawn.encoder.embed_tokens.weight, table(model))


def test_random_encoder_refuses_weights_that_it_cannot_draw(checkpoint):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, features):
            return {**features, "sentence_embedding": self.scale * features["sentence_embedding"]}

    model = SentenceTransformer(modules=[*checkpoint, Scale()], device="cpu")
    with pytest.raises(ValueError, match=r"weights of Scale.*leave out the kind 'random_encoder'"):
        RandomEncoder(model)
    with pytest.raises(ValueError, match="weights of Scale"):
        make_controls(model, kinds=["random_encoder", "bag"])
    with pytest.warns(UserWarning, match=r"weights of Scale.*has no random encoder\.$"):
        found = make_controls(model, seeds=[0])
    assert [control.kind for control in found] == [kind for kind in CONTROL_KINDS if kind != "random_encoder"]


def test_bag_is_the_mean_of_the_known_words(model):
    vectors = BagOfWords(model).encode(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        words = word_vectors(model, text)
        expected = words.mean(0) if len(words) else torch.zeros(words.shape[1])
        assert np.allclose(vector, expected, atol=1e-5), text


def test_specials_and_unknown_words_do_not_count(checkpoint):
    for control in (BagOfWords(checkpoint), RandomProjection(checkpoint), EchoStateNetwork(checkpoint)):
        empty, unknown, mixed, known = control.encode(["", "unheard words", "unheard cat </s> <pad> sat", "cat sat"])
        assert not empty.any()
        assert not unknown.any()
        assert known.any()
        assert np.allclose(mixed, known, atol=1e-6)


def test_texts_are_cut_as_the_model_cuts_them(bert):
    long = " ".join(["cat"] * 8 + ["dog"] * 8)
    assert np.allclose(BagOfWords(bert).encode([long])[0], table(bert)[bert.tokenizer.convert_tokens_to_ids("cat")])


def test_projection_equals_a_plain_loop(model):
    control = RandomProjection(model, 1)
    size = table(model).shape[1]
    assert control.matrix.shape == (size, model.get_embedding_dimension())
    assert control.matrix.abs().max() <= size**-0.5
    assert control.matrix.std() == pytest.approx((3 * size) ** -0.5, rel=0.2)
    for text, vector in zip(TEXTS, control.encode(TEXTS), strict=True):
        projected = [word @ control.matrix for word in word_vectors(model, text)]
        if projected:
            assert np.allclose(vector, torch.stack(projected).mean(0), atol=1e-5)
        else:
            assert not vector.any()


def test_echo_state_network_equals_a_plain_loop(model):
    control = EchoStateNetwork(model, 1)
    size = model.get_embedding_dimension()
    assert [len(direction.inputs) for direction in control.directions] == [size - size // 2, size // 2]
    recurrent = []
    for direction in control.directions:
        matrix = torch.zeros(len(direction.inputs), len(direction.inputs))
        recurrent.append(matrix.scatter_(1, direction.inputs, direction.weights))
    for text, vector in zip(TEXTS, control.encode(TEXTS), strict=True):
        words = word_vectors(model, text)
        parts = []
        for number, direction in enumerate(control.directions):
            state = torch.zeros(len(direction.inputs))
            states = []
            for word in words.flip(0) if number else words:
                state = torch.tanh(direction.project @ word + recurrent[number] @ state)
                states.append(state)
            parts.append(torch.stack(states).mean(0) if states else state)
        assert np.allclose(vector, torch.cat(parts), atol=1e-5), text


def test_echo_state_network_reads_the_order_of_words(checkpoint):
    first, second = EchoStateNetwork(checkpoint).encode(["the cat sat on mat", "mat on cat sat the"])
    assert np.abs(first - second).max() > 0.01


def test_echo_state_network_has_its_radius_fan_in_and_input_scale(checkpoint):
    control = EchoStateNetwork(checkpoint, 0)
    control.dimension = 600
    for direction in control.directions:
        assert direction.inputs.shape == (300, 10)
        assert all(len(set(row.tolist())) == 10 for row in direction.inputs)
        matrix = torch.zeros(300, 300).scatter_(1, direction.inputs, direction.weights)
        assert torch.linalg.eigvals(matrix).abs().max().item() == pytest.approx(0.8, rel=0.01)
        scores = table(checkpoint)[4:] @ direction.project.T
        assert scores.square().mean().sqrt().item() == pytest.approx(1.0, rel=0.1)


def test_spectral_radius_of_known_matrices():
    rng = np.random.default_rng(0)
    # A rotation has a pair of complex eigenvalues of modulus 2.
    inputs, weights = np.array([[0, 1], [0, 1]]), np.array([[1.2, -1.6], [1.6, 1.2]])
    assert spectral_radius(inputs, weights, rng) == pytest.approx(2.0)
    assert spectral_radius(np.array([[0], [1]]), np.array([[0.5], [-3.0]]), rng) == pytest.approx(3.0)


def test_classifier_of_the_majority_class_finds_the_majority():
    linear_model = pytest.importorskip("sklearn.linear_model")
    labels = np.array([0] * 4 + [1] * 7 + [2] * 3)
    vectors = MajorityClass().encode(["text"] * 14)
    assert (linear_model.LogisticRegression(C=0.1).fit(vectors, labels).predict(vectors) == 1).all()


def test_other_encoders_have_only_the_majority_class(checkpoint):
    def function(texts):
        return np.zeros((len(texts), 2))

    class Other:
        def encode(self, texts):
            return np.zeros((len(texts), 2))

    for encoder in (function, Other()):
        with pytest.warns(UserWarning, match=r"Only the majority class.*word vectors of a .* are not known"):
            controls = make_controls(encoder)
        assert [control.kind for control in controls] == ["majority"]
        assert [control.kind for control in make_controls(encoder, kinds=["majority"])] == ["majority"]
        with pytest.raises(ValueError, match=r"Only the majority class.*are not known"):
            make_controls(encoder, kinds=["bag"])
        with pytest.raises(ValueError, match="no such control"):
            BagOfWords(encoder)
        assert explain_no_controls(encoder) is not None
    assert explain_no_controls(checkpoint) is None


def test_bad_settings_are_refused(checkpoint):
    with pytest.raises(ValueError, match=r"'bags' is no kind of control; choose among random_encoder"):
        make_controls(checkpoint, kinds=["bags"])
    with pytest.raises(ValueError, match=r"seeds are \[0, 0\]"):
        make_controls(checkpoint, seeds=(0, 0))


def test_unknown_word_rate_of(checkpoint, bert):
    texts = ["the cat", "unheard words", "", "old unheard mat"]
    assert unknown_word_rate_of(checkpoint, texts) == 3 / 7
    assert unknown_word_rate_of(checkpoint.tokenizer, texts) == 3 / 7
    assert unknown_word_rate_of(bert, ["the cats unheard"]) == 1 / 4
    assert unknown_word_rate_of(checkpoint, []) == 0.0
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    assert unknown_word_rate_of(PreTrainedTokenizerFast(tokenizer_object=backend), texts) is None
    assert unknown_word_rate_of(len, texts) is None


def test_controls_work_on_half_precision(checkpoint):
    model = copy.deepcopy(checkpoint).to(torch.bfloat16)
    exact = {control.kind: control.encode(TEXTS) for control in make_controls(checkpoint, seeds=(0,))}
    for control in make_controls(model, seeds=(0,)):
        vectors = control.encode(TEXTS)
        assert vectors.dtype == np.float32
        assert np.abs(vectors - exact[control.kind]).max() < 0.05 * np.abs(exact[control.kind]).max() + 0.05
