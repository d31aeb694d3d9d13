"""The models against the equations written out in `reference.py`, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hf_meanmax import (
    CompoundAttentionForTranslation,
    GatedMeanMaxAAEForReconstruction,
    MeanMaxAAEConfig,
    MeanMaxAAEForReconstruction,
    RNNCNNForContextPrediction,
)
from modeling.reference import Reference

TOLERANCE = 1e-9
END = 3
SENTENCES = [[7, 5, 9, 4, 3], [6, 3], [8, 1, 8, 3], [3]]  # <unk>, a repeated word, an empty one; all end in </s>
SIZES = {
    "vocab_size": 11, "embedding_size": 6, "hidden_size": 8, "intermediate_size": 10, "num_attention_heads": 2,
    "embedding_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
RELEASED = {
    "attention_bias": True, "projection_activation": "relu", "position_embedding_type": "learned",
    "max_position_embeddings": 4, "label_smoothing": 0.1, "layer_norm_eps": 1e-8, "mean_first": True,
    "freeze_word_embeddings": True,
}  # fmt: skip
FORMS = {"paper": {}, "released": RELEASED}
ROWS = {
    ("paper", "mean_max"): ("max", "mean"),
    ("released", "mean_max"): ("mean", "max"),
    ("paper", "mean"): ("mean",),
    ("released", "mean"): ("mean",),
    ("paper", "max"): ("max",),
    ("released", "max"): ("max",),
}
NO_POSITIONS = {"position_embedding_type": "none"}


@dataclass(frozen=True)
class Parts:
    """A model other than the mean-max autoencoder: its settings, and what they mean."""

    full_class: type
    settings: dict[str, Any]
    encoder: str
    rows: tuple[str, ...]
    decoder: str


COMPOUND = CompoundAttentionForTranslation
GATED, MEAN_MAX, RNN_CNN = GatedMeanMaxAAEForReconstruction, MeanMaxAAEForReconstruction, RNNCNNForContextPrediction
# One place more than the longest sentence, so that what stands beyond it is seen by the convolutions.
WORDS = {"num_context_words": 6, "decoder_channels": [5, 7, 6]}
PARTS = {
    "gated": Parts(GATED, {}, "self_attention", ("max", "mean"), "gates"),
    "gated_mean": Parts(GATED, {"pooling": "mean"}, "self_attention", ("mean",), "gates"),
    "gated_max": Parts(GATED, {"pooling": "max"}, "self_attention", ("max",), "gates"),
    "gated_rae": Parts(
        GATED,
        {"encoder_type": "bilstm", "pooling": "mean_max_last", "decoder_type": "lstm_gates", **NO_POSITIONS},
        "bilstm", ("max", "mean", "last"), "lstm_gates",
    ),
    "rae": Parts(
        GATED,
        {"encoder_type": "bilstm", "pooling": "last", "decoder_type": "lstm", **NO_POSITIONS},
        "bilstm", ("last",), "lstm",
    ),
    "mean_max_rae": Parts(
        MEAN_MAX,
        {"encoder_type": "bilstm", "decoder_type": "lstm_attention", **NO_POSITIONS},
        "bilstm", ("max", "mean"), "lstm_attention",
    ),
    "lstm_sdae": Parts(
        MEAN_MAX,
        {"encoder_type": "lstm", "pooling": "last", "decoder_type": "lstm", **NO_POSITIONS},
        "lstm", ("last",), "lstm",
    ),
    "cnn_lstm": Parts(
        MEAN_MAX,
        {"encoder_type": "cnn", "pooling": "max", "decoder_type": "lstm", **NO_POSITIONS},
        "cnn", ("max",), "lstm",
    ),
    # Parts that no paper puts together.
    "residual": Parts(
        MEAN_MAX, {"encoder_residual": True, "num_hidden_layers": 2}, "self_attention", ("max", "mean"), "attention"
    ),
    "released_with_residual": Parts(
        MEAN_MAX, {**RELEASED, "encoder_residual": True}, "self_attention", ("mean", "max"), "attention"
    ),
    "all_rows_of_cnn": Parts(
        GATED, {"encoder_type": "cnn", "pooling": "mean_max_last"}, "cnn", ("max", "mean", "last"), "gates"
    ),
    "lstm_from_all_rows": Parts(
        GATED,
        {"pooling": "mean_max_last", "mean_first": True, "decoder_type": "lstm"},
        "self_attention", ("mean", "max", "last"), "lstm",
    ),
    "gated_lstm_from_zeros": Parts(
        MEAN_MAX,
        {"encoder_type": "lstm", "mean_first": True, "decoder_type": "lstm_gates"},
        "lstm", ("mean", "max"), "lstm_gates",
    ),
    "released_rae": Parts(
        MEAN_MAX,
        {**RELEASED, "encoder_type": "bilstm", "pooling": "mean_max_last", "decoder_type": "lstm_attention"},
        "bilstm", ("mean", "max", "last"), "lstm_attention",
    ),
    "rnn_cnn": Parts(RNN_CNN, WORDS, "bigru", ("mean", "max"), "words_cnn"),
    "rnn_cnn_of_four_layers": Parts(
        RNN_CNN, {**WORDS, "decoder_channels": [5, 7, 4, 6], "output_bias": True, "pooling": "max"},
        "bigru", ("max",), "words_cnn",
    ),
    "rnn_rnn": Parts(
        RNN_CNN,
        {**WORDS, "decoder_type": "words_rnn", "encoder_type": "bilstm"},
        "bilstm", ("mean", "max"), "words_rnn",
    ),
    "gru_to_gru": Parts(RNN_CNN, {"decoder_type": "gru"}, "bigru", ("mean", "max"), "gru"),
    "skip_thought": Parts(
        RNN_CNN,
        {"encoder_type": "gru", "pooling": "last", "decoder_type": "gru", "output_bias": True},
        "gru", ("last",), "gru",
    ),
    "causal_cnn": Parts(
        RNN_CNN,
        {"decoder_type": "causal_cnn", "decoder_channels": [5, 7, 4, 6], "pooling": "mean_max_last"},
        "bigru", ("mean", "max", "last"), "causal_cnn",
    ),
    "cnn_cnn": Parts(
        RNN_CNN,
        {**WORDS, "encoder_type": "hierarchical_cnn", "pooling": "max"},
        "hierarchical_cnn", ("max",), "words_cnn",
    ),
    **{
        architecture: Parts(
            COMPOUND,
            {"architecture": architecture, **({} if architecture == "attn" else {"latent_size": 5})},
            "bigru", rows, "conditional_gru",
        )
        for architecture, rows in (
            ("attn", ()), ("final", ("last",)), ("final-ctx", ("last",)), ("avgpool", ("mean",)), ("maxpool", ("max",)),
            ("avgpool-ctx", ("mean",)), ("maxpool-ctx", ("max",)),
        )
    },
    "attn-ctx": Parts(
        COMPOUND,
        {"architecture": "attn-ctx", "latent_heads": 2, "latent_size": 3, "pooling_hidden_size": 7},
        "bigru", ("head_1", "head_2"), "conditional_gru",
    ),
    "attn-attn": Parts(
        COMPOUND, {"latent_heads": 3, "latent_size": 5}, "bigru", ("head_1", "head_2", "head_3"), "conditional_gru"
    ),
    "trf": Parts(COMPOUND, {"architecture": "trf"}, "self_attention", (), "attention"),
    "trf-attn-attn": Parts(
        COMPOUND,
        {"architecture": "trf-attn-attn", "latent_heads": 2, "latent_size": 5},
        "self_attention", ("head_1", "head_2"), "attention",
    ),
    # Parts that no paper puts together.
    "inner_attention_to_lstm": Parts(
        MEAN_MAX,
        {"pooling": "inner_attention", "latent_heads": 2, "latent_size": 3, "decoder_type": "lstm_attention"},
        "self_attention", ("head_1", "head_2"), "lstm_attention",
    ),
    "mean_max_to_conditional_gru": Parts(
        GATED,
        {"encoder_type": "bilstm", "latent_size": 3, "decoder_type": "conditional_gru", "decoder_initial_state": True},
        "bilstm", ("max", "mean"), "conditional_gru",
    ),
}  # fmt: skip
RECURRENT = [name for name, parts in PARTS.items() if parts.decoder.startswith("lstm")]
WITH_GATES = [name for name, parts in PARTS.items() if parts.decoder.endswith("gates")]


def pad(sentences: list[list[int]], side: str, value: int) -> torch.Tensor:
    longest = max(map(len, sentences))
    fill = [[value] * (longest - len(ids)) for ids in sentences]
    return torch.tensor([ids + f if side == "right" else f + ids for ids, f in zip(sentences, fill, strict=True)])


def build(full_class: type, settings: dict[str, Any], std: float = 0.5) -> Any:
    """A model in float64 none of whose parameters can be left out unnoticed, norms and biases among them."""
    torch.manual_seed(0)
    model = full_class(full_class.config_class(**{**SIZES, **settings})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std if parameter.dim() > 1 else 0.5)
    return model


def make_model(form: str, pooling: str = "mean_max", **settings) -> MeanMaxAAEForReconstruction:
    return build(MeanMaxAAEForReconstruction, {**FORMS[form], "pooling": pooling, **settings})


def refer(model: Any, settings: dict[str, Any], encoder: str, rows: tuple[str, ...], decoder: str) -> Reference:
    return Reference(
        weights={name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()},
        heads=SIZES["num_attention_heads"],
        layers=settings.get("num_hidden_layers", 1),
        eps=settings.get("layer_norm_eps", 1e-5),
        encoder=encoder,
        rows=rows,
        decoder=decoder,
        relu=settings.get("projection_activation") == "relu",
        positions=model.config.position_embedding_type,
        frozen=settings.get("freeze_word_embeddings", False),
        tied=settings.get("tie_word_embeddings", False),
        places=model.config.num_context_words,
        context=model.config.decoder_context,
        residual=model.config.encoder_residual,
    )


def make_reference(model: MeanMaxAAEForReconstruction, form: str, pooling: str, **settings) -> Reference:
    return refer(model, {**FORMS[form], **settings}, "self_attention", ROWS[form, pooling], "attention")


def make_parts(name: str, std: float = 0.5, **settings) -> tuple[Any, Reference]:
    parts = PARTS[name]
    settings = {**parts.settings, **settings}
    model = build(parts.full_class, settings, std)
    return model, refer(model, settings, parts.encoder, parts.rows, parts.decoder)


def padded(sentences: list[list[int]], side: str) -> dict[str, torch.Tensor]:
    labels = pad(sentences, side, -100)
    return {"input_ids": pad(sentences, side, 0), "attention_mask": (labels != -100).long(), "labels": labels}


def agree(actual: torch.Tensor, expected: torch.Tensor | list[torch.Tensor], message: str = "") -> None:
    wanted = torch.stack(expected) if isinstance(expected, list) else expected
    torch.testing.assert_close(actual, wanted, atol=TOLERANCE, rtol=0, msg=lambda text: f"{message}: {text}")


def check_agreement(model: Any, reference: Reference, label_smoothing: float) -> None:
    """States, rows, scores, loss and every gradient, for batches padded on either side."""
    # Dropout is 0, so that training mode differs from evaluation only by the label smoothing.
    model.train()
    expected = [reference.encode(sentence) for sentence in SENTENCES]
    logits = [reference.decode(latents, ids) for (_, latents), ids in zip(expected, SENTENCES, strict=True)]
    expected_loss = reference.loss(SENTENCES, label_smoothing)
    expected_loss.backward()
    for side in ("right", "left"):
        batch = padded(SENTENCES, side)
        if not model.config.is_autoregressive:
            batch["labels"] = pad(SENTENCES, "right", -100)  # they stand at places
        real, said = batch["attention_mask"] == 1, batch["labels"] != -100
        output = model(**batch)
        states = model.encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        for row, (expected_states, expected_latents) in enumerate(expected):
            agree(states[row, real[row]], expected_states)
            if reference.rows:
                agree(output.latents[row], expected_latents)
            agree(output.logits[row, said[row]], logits[row])
        agree(output.loss, expected_loss)
        model.zero_grad()
        output.loss.backward()
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                assert parameter.grad is None, name
                continue
            if name.endswith(("word_embeddings.weight", "special_embeddings.weight")) and not reference.tied:
                assert parameter.grad[0].abs().max() == 0, name  # <pad> is never read
            agree(parameter.grad, reference.weights[name].grad, name)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("layers", [1, 2], ids=["1layer", "2layers"])
@pytest.mark.parametrize("pooling", ["mean_max", "mean", "max"])
@pytest.mark.parametrize("form", FORMS)
def test_equations(form, pooling, layers, tied):
    settings = {"num_hidden_layers": layers, "tie_word_embeddings": tied}
    model = make_model(form, pooling, **settings)
    check_agreement(
        model, make_reference(model, form, pooling, **settings), label_smoothing=0.1 if form == "released" else 0.0
    )


@pytest.mark.parametrize("layers", [1, 2], ids=["1layer", "2layers"])
@pytest.mark.parametrize("name", PARTS)
def test_equations_of_other_parts(name, layers):
    model, reference = make_parts(name, num_hidden_layers=layers, tie_word_embeddings=layers == 2)
    check_agreement(model, reference, label_smoothing=PARTS[name].settings.get("label_smoothing", 0.0))


@pytest.mark.parametrize("name", WITH_GATES)
def test_recorded_gates_are_the_equations_own(name):
    """In the order of the rows, layer by layer, in a padded batch."""
    model, reference = make_parts(name, num_hidden_layers=2)
    model.eval()
    for side in ("right", "left"):
        batch = padded(SENTENCES, side)
        gates = model(**batch, output_latent_gates=True).latent_gates
        assert len(gates) == 2
        for row, ids in enumerate(SENTENCES):
            reference.decode(reference.encode(ids)[1], ids)
            for layer, expected in zip(gates, reference.gates, strict=True):
                agree(layer[row, batch["attention_mask"][row] == 1], expected)


@pytest.mark.parametrize("name", ["attn", "attn-attn"])
def test_recorded_weights_are_the_equations_own(name):
    """A of the pooling, B of the decoder and their product, the alignment, in a padded batch; 0 at padding."""
    model, reference = make_parts(name)
    model.eval()
    for side in ("right", "left"):
        batch = padded(SENTENCES, side)
        text = {key: batch[key] for key in ("input_ids", "attention_mask")}
        (rows,) = model(**batch, output_attentions=True).cross_attentions
        words = model.encoder(**text).pooling_attentions
        for row, ids in enumerate(SENTENCES):
            reference.decode(reference.encode(ids)[1], ids)
            real = batch["attention_mask"][row] == 1
            expected = torch.stack(reference.row_weights[0])
            if name == "attn":
                agree(rows[row, 0, real][:, real], expected)
                assert not real.all() or rows[row, 0, :, ~real].numel() == 0
                assert rows[row, 0, :, ~real].abs().sum() == 0
                continue
            agree(rows[row, 0, real], expected)
            agree(words[row][:, real], torch.stack(reference.source_weights))
            assert words[row][:, ~real].abs().sum() == 0
            alignment = rows[row, 0, real] @ words[row]
            agree(alignment[:, real], expected @ torch.stack(reference.source_weights))


@pytest.mark.parametrize("layers", [1, 2], ids=["1layer", "2layers"])
@pytest.mark.parametrize("name", RECURRENT)
def test_generation_carries_the_state_along(name, layers):
    """generate() says what a loop over the words says that keeps h and c itself."""
    model, reference = make_parts(name, std=1.25, num_hidden_layers=layers)
    model.eval()
    for bias in (model.lm_head.bias, reference.weights["lm_head.bias"]):
        bias.data[END] = -1e4  # it never stops by itself
    sentences = [*SENTENCES, [4, 9, 10, 3], [10, 10, 6, 7, 3], [5, 3], [9, 4, 8, 7, 6, 5, 3]]
    batch = padded(sentences, "left")
    said = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=8)
    assert said.tolist() == [reference.say(reference.encode(ids)[1], steps=8) for ids in sentences]
    assert len({tuple(row) for row in said.tolist()}) > 1


@pytest.mark.parametrize("form", FORMS)
def test_eager_attention_follows_the_equations(form):
    model = make_model(form).eval()
    model.set_attn_implementation("eager")
    reference = make_reference(model, form, "mean_max")
    loss = model(input_ids=torch.tensor(SENTENCES[:1]), labels=torch.tensor(SENTENCES[:1])).loss
    torch.testing.assert_close(loss, reference.loss(SENTENCES[:1]).detach(), atol=TOLERANCE, rtol=0)


def test_label_smoothing_is_for_training_alone():
    model = make_model("released")
    batch = {"input_ids": torch.tensor(SENTENCES[:1]), "labels": torch.tensor(SENTENCES[:1])}
    reference = make_reference(model, "released", "mean_max")
    assert model.eval()(**batch).loss.item() == pytest.approx(reference.loss(SENTENCES[:1]).item(), abs=TOLERANCE)
    assert model.train()(**batch).loss.item() == pytest.approx(reference.loss(SENTENCES[:1], 0.1).item(), abs=TOLERANCE)


def test_number_of_parameters_of_the_paper():
    """49.9 million without the word table and the 44 million of the output layer, as the equations give."""
    with torch.device("meta"):
        model = MeanMaxAAEForReconstruction(MeanMaxAAEConfig())
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    tables = sum(n for name, n in counts.items() if "embeddings" in name)
    output = sum(n for name, n in counts.items() if name.startswith("lm_head"))
    assert tables == 21583 * 300
    assert output == 21583 * 2049
    assert round((sum(counts.values()) - tables - output) / 1e6, 1) == 49.9
