"""Learning another encoder's vectors, beside plain formulas."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from hf_meanmax.modeling.losses import attention_penalty
from hf_meanmax.objectives import (
    Contrastive,
    TeacherDistance,
    TeacherSimilarities,
    TrainingModel,
    build_objectives,
)
from hf_meanmax.objectives.contrastive import matching_loss
from objectives.test_contrastive import make_batch
from tiny_model import make_model

GIVEN = [0, 1, 3, 4]


def make(objective, **config):
    model = make_model(embedding_dropout=0.0, attention_dropout=0.0, **config)
    batch = {name: value for name, value in make_batch().items() if not name.startswith("neighbour")}
    size = config.get("teacher_size", model.config.sentence_embedding_size)
    teacher = torch.randn(5, size, generator=torch.Generator().manual_seed(0))
    embeddings = model.encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).pooler_output
    # A sentence without a vector of the teacher.
    batch["teacher_embeddings"] = teacher.index_fill(0, torch.tensor([2]), torch.nan)
    output = TrainingModel(model, [objective]).train()(**batch)
    return model, embeddings.detach()[GIVEN], teacher[GIVEN], output.losses[objective.name]


@pytest.mark.parametrize("kind", ["cosine", "squared", "contrast"])
@pytest.mark.parametrize("has_head", [True, False])
def test_distances_of_the_mapped_embedding(kind, has_head):
    config = {"teacher_size": 6} if has_head else {}
    model, embeddings, teacher, loss = make(TeacherDistance(kind=kind, temperature=0.1), **config)
    mapped = model.teacher_head(embeddings) if has_head else embeddings
    scores = normalize(mapped, dim=-1) @ normalize(teacher, dim=-1).T / 0.1
    places = torch.arange(4)
    wanted = {
        "cosine": (1 - cosine_similarity(mapped, teacher)).mean(),
        "squared": (mapped - teacher).square().sum(dim=1).mean(),
        "contrast": (cross_entropy(scores, places) + cross_entropy(scores.T, places)) / 2,
    }
    torch.testing.assert_close(loss, wanted[kind])


@pytest.mark.parametrize("kind", ["cosine", "squared", "contrast"])
def test_vectors_of_a_teacher_in_float16(kind):
    training = TrainingModel(make_model(embedding_dropout=0.0, attention_dropout=0.0), [TeacherDistance(kind=kind)])
    batch = {name: value for name, value in make_batch().items() if not name.startswith("neighbour")}
    teacher = 200 * torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    teacher[2] = torch.nan
    half, single = (
        training.train()(**batch, teacher_embeddings=t).loss for t in (teacher.half(), teacher.half().float())
    )
    assert half.isfinite()
    assert torch.equal(half, single)


def test_similarities_are_those_of_the_published_vector():
    model, embeddings, teacher, loss = make(TeacherSimilarities(), teacher_size=6)
    differences = [
        (cosine_similarity(embeddings[i], embeddings[j], 0) - cosine_similarity(teacher[i], teacher[j], 0)) ** 2
        for i in range(4)
        for j in range(4)
        if i != j
    ]
    torch.testing.assert_close(loss, torch.stack(differences).mean())
    loss.backward()
    assert model.teacher_head.weight.grad is None


def test_cosines_are_compared_in_float32_under_autocast():
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    teacher, given = rows.detach() + 0.02, torch.ones(5, dtype=torch.bool)
    found = []
    for enabled in (False, True):
        rows.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = TeacherSimilarities().total(None, rows, teacher, given)
            loss = loss + matching_loss(rows, teacher, given, 0.1)
            loss = loss + attention_penalty(rows.softmax(dim=-1)[None]).sum()
        loss.backward()
        found.append((loss.detach(), rows.grad.clone()))
    for plain, cast in zip(*found, strict=True):
        assert torch.equal(plain, cast)


def test_mistakes():
    with pytest.raises(ValueError, match="`teacher_loss` is 'manhattan'; allowed: 'cosine', 'squared', 'contrast'"):
        TeacherDistance(kind="manhattan")
    with pytest.raises(ValueError, match="`temperature` is 0; it must be a positive number"):
        TeacherDistance(kind="contrast", temperature=0)
    training = TrainingModel(make_model(), [TeacherDistance()]).train()
    batch = {**make_batch(), "teacher_embeddings": torch.zeros(5, 5)}
    batch = {name: value for name, value in batch.items() if not name.startswith("neighbour")}
    with pytest.raises(ValueError, match="The embedding has 32 numbers and the teacher's vectors 5"):
        training(**batch)


def test_the_terms_of_a_run():
    contrasts = [Contrastive("neighbour"), Contrastive("view", 3.0)]
    weights = {"teacher": 2.0, "similarities": 0.5, "contrasts": contrasts, "teacher_loss": "contrast"}
    found = {objective.name: objective.weight for objective in build_objectives(make_model().config, **weights)}
    assert found == {
        "decoding": 1.0, "teacher_loss": 2.0, "similarity_loss": 0.5, "neighbour_loss": 1.0, "view_loss": 3.0,
    }  # fmt: skip


def test_evaluation_reads_no_field_of_an_objective():
    model = TrainingModel(make_model(), [TeacherDistance()]).eval()
    batch = {name: value for name, value in make_batch().items() if not name.startswith("neighbour")}
    plain = model(**batch).loss
    assert torch.equal(model(**batch, teacher_embeddings=torch.zeros(5, 5)).loss, plain)
    with pytest.raises(TypeError, match="unexpected argument `teachers`"):
        model(**batch, teachers=torch.zeros(5, 5))
