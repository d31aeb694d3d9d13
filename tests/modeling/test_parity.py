"""The models against the equations written out in `reference.py`, in float64."""

from __future__ import annotations

import pytest
import torch

from hf_meanmax import MeanMaxAAEConfig, MeanMaxAAEForReconstruction
from modeling.reference import Reference

TOLERANCE = 1e-6
SENTENCES = [[7, 5, 9, 4, 3], [6, 3], [8, 1, 8, 3]]  # <unk> and a repeated word; all end in </s>
SIZES = {
    "vocab_size": 11, "embedding_size": 6, "hidden_size": 8, "intermediate_size": 10, "num_attention_heads": 2,
    "embedding_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
FORMS = {
    "paper": {},
    "released": {
        "attention_bias": True, "projection_activation": "relu", "position_embedding_type": "learned",
        "max_position_embeddings": 4, "label_smoothing": 0.1, "layer_norm_eps": 1e-8, "mean_first": True,
        "freeze_word_embeddings": True,
    },
}  # fmt: skip
ROWS = {
    ("paper", "mean_max"): ("max", "mean"),
    ("released", "mean_max"): ("mean", "max"),
    ("paper", "mean"): ("mean",),
    ("released", "mean"): ("mean",),
    ("paper", "max"): ("max",),
    ("released", "max"): ("max",),
}


def pad(sentences: list[list[int]], side: str, value: int) -> torch.Tensor:
    longest = max(map(len, sentences))
    fill = [[value] * (longest - len(ids)) for ids in sentences]
    return torch.tensor([ids + f if side == "right" else f + ids for ids, f in zip(sentences, fill, strict=True)])


def make_model(form: str, pooling: str = "mean_max", **settings) -> MeanMaxAAEForReconstruction:
    config = MeanMaxAAEConfig(**SIZES, **FORMS[form], pooling=pooling, **settings)
    model = MeanMaxAAEForReconstruction(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)  # norms and biases too, so that none can be left out unnoticed
    return model


def make_reference(model: MeanMaxAAEForReconstruction, form: str, pooling: str) -> Reference:
    released = form == "released"
    return Reference(
        weights={name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()},
        heads=SIZES["num_attention_heads"],
        layers=model.config.num_hidden_layers,
        eps=1e-8 if released else 1e-5,
        rows=ROWS[form, pooling],
        relu=released,
        positions="learned" if released else "sinusoidal",
        frozen=released,
        tied=model.config.tie_word_embeddings,
    )


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("layers", [1, 2], ids=["1layer", "2layers"])
@pytest.mark.parametrize("pooling", ["mean_max", "mean", "max"])
@pytest.mark.parametrize("form", FORMS)
def test_equations(form, pooling, layers, tied):
    model = make_model(form, pooling, num_hidden_layers=layers, tie_word_embeddings=tied)
    # Dropout is 0, so that training mode differs from evaluation only by the label smoothing.
    model.train()
    reference = make_reference(model, form, pooling)
    side = "left" if layers == 2 else "right"
    labels = pad(SENTENCES, side, -100)
    mask = (labels != -100).long()
    ids = pad(SENTENCES, side, 0)

    output = model(input_ids=ids, attention_mask=mask, labels=labels)
    states = model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    for row, sentence in enumerate(SENTENCES):
        expected_states, expected_latents = reference.encode(sentence)
        expected_logits = reference.decode(expected_latents, sentence)
        torch.testing.assert_close(states[row, mask[row] == 1], torch.stack(expected_states), atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(output.latents[row], torch.stack(expected_latents), atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(
            output.logits[row, mask[row] == 1], torch.stack(expected_logits), atol=TOLERANCE, rtol=0
        )

    expected_loss = reference.loss(SENTENCES, label_smoothing=0.1 if form == "released" else 0.0)
    torch.testing.assert_close(output.loss, expected_loss, atol=TOLERANCE, rtol=0)
    output.loss.backward()
    expected_loss.backward()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None, name
            continue
        expected = reference.weights[name].grad
        if name.endswith(("word_embeddings.weight", "special_embeddings.weight")) and not tied:
            assert parameter.grad[0].abs().max() == 0, name  # <pad> is never read
        torch.testing.assert_close(parameter.grad, expected, atol=TOLERANCE, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


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
