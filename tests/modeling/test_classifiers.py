"""Supervised heads: the same tests for every family, and what heads and penalty compute."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification, Trainer, TrainingArguments

import hf_meanmax
from hf_meanmax.modeling.classifiers import split_pairs
from hf_meanmax.modeling.losses import attention_penalty
from modeling.all_families import TESTS
from modeling.family_tests import END, SENTENCES, WarningRecorder, close, make_batch, pad, text_of

# A family without a text encoder has no classifier.
FAMILIES = {name: test.family for name, test in TESTS.items() if test.family.model_class is not None}
HEADS = {
    "linear": {"classifier_hidden_size": None},
    "mlp": {"classifier_hidden_size": 11},
    "pruned": {"classifier_type": "pruned", "classifier_row_size": 5, "classifier_column_size": 3},
    "concatenated_pair": {"pair_combination": "concatenation", "classifier_hidden_size": 11},
    "multiplied_pair": {"pair_combination": "multiplicative", "pair_size": 7, "classifier_hidden_size": None},
    "pruned_pair": {"pair_combination": "multiplicative", "classifier_type": "pruned"},
}
SECOND = [[9, 8, 3], [3], [30, 21, 7, 7, 5, 11, 3], [4, 3]]
NO_DROPOUT = {"embedding_dropout": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0, "classifier_dropout": 0.0}


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


def class_of(family) -> type:
    path = family.config_class.auto_classes["AutoModelForSequenceClassification"]
    return getattr(hf_meanmax, path.split(".")[1])


def make(family, head: str = "mlp", dtype=torch.float64, **settings):
    torch.manual_seed(1)
    config = family.config_class(**{**family.tiny, **HEADS[head], "num_labels": 3, **settings})
    model = class_of(family)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "embeddings" in name:
                parameter.mul_(10)
    return model.to(dtype).eval()


def batch_for(config, side: str = "right", extra: int = 0, rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    """Texts or pairs with three classes."""
    labels = torch.tensor([2, 0, 1, 1])[rows]
    if config.pair_combination is None:
        return {**text_of(make_batch(SENTENCES[rows], side, extra)), "labels": labels}
    pairs = [a + b for a, b in zip(SENTENCES[rows], SECOND[rows], strict=True)]
    kinds = [[0] * len(a) + [1] * len(b) for a, b in zip(SENTENCES[rows], SECOND[rows], strict=True)]
    return {
        "input_ids": pad(pairs, side, extra),
        "attention_mask": pad([[1] * len(ids) for ids in pairs], side, extra),
        "token_type_ids": pad(kinds, side, extra),
        "labels": labels,
    }


# Every family


@pytest.mark.parametrize("head", HEADS)
def test_every_loader_gives_the_saved_model(family, head, tmp_path):
    model = make(family, head, torch.float32, id2label={0: "no", 1: "yes", 2: "perhaps"})
    model.save_pretrained(tmp_path)
    batch = batch_for(model.config)
    expected = model(**batch)
    with WarningRecorder("transformers") as messages:
        for loader in (class_of(family), AutoModelForSequenceClassification):
            loaded = loader.from_pretrained(tmp_path)
            assert type(loaded) is class_of(family)
            assert torch.equal(loaded(**batch).logits, expected.logits)
        encoder = AutoModel.from_pretrained(tmp_path)
    assert messages == []
    assert type(encoder) is family.model_class
    text = text_of(make_batch())
    assert torch.equal(encoder(**text).latents, model.encoder(**text).latents)
    assert loaded.config.id2label == {0: "no", 1: "yes", 2: "perhaps"}


def test_starts_from_an_unsupervised_checkpoint(family, tmp_path):
    """From the whole model or from its encoder: the encoder is the checkpoint's, the head is new."""
    torch.manual_seed(0)
    whole = family.full_class(family.config_class(**family.tiny))
    for saved, folder in ((whole, tmp_path / "whole"), (whole.encoder, tmp_path / "encoder")):
        saved.save_pretrained(folder)
        loaded = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=5, classifier_hidden_size=6)
        wanted = whole.encoder.state_dict()
        assert all(torch.equal(value, wanted[name]) for name, value in loaded.encoder.state_dict().items())
        assert loaded.classifier.head.hidden.weight.shape[0] == 6
        assert loaded(**text_of(make_batch())).logits.shape == (4, 5)


@pytest.mark.parametrize("head", HEADS)
def test_missing_weights_are_initialised(family, head, tmp_path):
    model = make(family, head, torch.float32)
    model.save_pretrained(tmp_path)
    keep = "encoder.embeddings.word_embeddings.weight"
    save_file({keep: load_file(tmp_path / "model.safetensors")[keep].clone()}, tmp_path / "model.safetensors")
    torch.use_deterministic_algorithms(True)
    try:
        loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.manual_seed(3)
    fresh = dict(class_of(family)(model.config).named_parameters())
    for name, value in loaded.named_parameters():
        assert value.isfinite().all(), name
        if name != keep and value.numel() > 64:
            assert value.std().item() == pytest.approx(fresh[name].std().item(), rel=0.3), name


@pytest.mark.parametrize("head", HEADS)
def test_padding_and_batch_change_nothing(family, head):
    model = make(family, head)
    alone = [model(**batch_for(model.config, rows=slice(row, row + 1))) for row in range(4)]
    for side in ("right", "left"):
        for extra in (0, 3):
            output = model(**batch_for(model.config, side, extra))
            close(output.logits, torch.cat([one.logits for one in alone]))
            close(output.loss, torch.stack([one.loss for one in alone]).mean())
            if model.config.attention_penalty:
                close(output.attention_penalty, torch.stack([one.attention_penalty for one in alone]).mean())
    unmasked = batch_for(model.config, rows=slice(0, 1))
    del unmasked["attention_mask"]
    close(model(**unmasked).logits, alone[0].logits)


@pytest.mark.parametrize("head", HEADS)
def test_every_parameter_learns(family, head):
    model = make(family, head).train()
    model(**batch_for(model.config)).loss.backward()
    for name, parameter in model.named_parameters():
        reason = family.gets_no_gradient(model.config, name)
        largest = parameter.grad.abs().max()
        assert parameter.grad.isfinite().all(), name
        assert largest < 1e-12 if reason else largest > 1e-7, (name, reason)


def test_empty_text_is_finite(family):
    for head in ("mlp", "concatenated_pair"):
        model = make(family, head)
        batch = batch_for(model.config)
        for mask in (torch.zeros_like(batch["attention_mask"]), batch["attention_mask"] * (batch["input_ids"] == END)):
            model.zero_grad()
            output = model(**{**batch, "attention_mask": mask})
            assert output.logits.isfinite().all()
            output.loss.backward()
            assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_bfloat16_and_backends_are_close(family):
    model = make(family, "mlp", torch.float32)
    batch = batch_for(model.config)
    expected = model(**batch)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(**batch).loss.item() == pytest.approx(expected.loss.item(), rel=0.05)
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        close(model(**batch).logits, expected.logits, atol=1e-5)
    assert copy.deepcopy(model).to(torch.bfloat16)(**batch).loss.item() == pytest.approx(expected.loss.item(), rel=0.05)


def test_frozen_encoder(family):
    """Only the head gets gradients, and what it sees has no dropout."""
    model = make(family, "mlp", embedding_dropout=0.5, hidden_dropout=0.5, classifier_dropout=0.0).train()
    batch = batch_for(model.config)
    if model.config.embedding_dropout:
        assert not torch.equal(model(**batch).logits, model(**batch).logits)
    model.freeze_encoder()
    model.eval().train()
    output = model(**batch)
    assert torch.equal(output.logits, model(**batch).logits)
    output.loss.backward()
    with_gradient = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert with_gradient == {"classifier"}


def test_kinds_of_labels(family):
    text = text_of(make_batch())
    several = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.float64)
    numbers = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64)
    functional = torch.nn.functional
    for settings, labels, expected in (
        ({}, torch.tensor([2, 0, 1, 1]), functional.cross_entropy),
        ({}, several, functional.binary_cross_entropy_with_logits),
        ({"num_labels": 1}, numbers, lambda logits, wanted: functional.mse_loss(logits[:, 0], wanted)),
        ({"problem_type": "regression"}, several, functional.mse_loss),
    ):
        model = make(family, "mlp", **settings)
        output = model(**text, labels=labels)
        penalty = model.config.attention_penalty * output.attention_penalty if model.config.attention_penalty else 0
        close(output.loss, expected(output.logits, labels) + penalty)


def test_misused_pairs_are_refused(family):
    single, pair = make(family, "mlp"), make(family, "concatenated_pair")
    batch = batch_for(pair.config)
    with pytest.raises(
        ValueError, match="reads two texts, and `token_type_ids` must tell them apart: give `return_token"
    ):
        pair(**text_of(batch))
    with pytest.raises(ValueError, match="`token_type_ids` mark no second text in row 0"):
        pair(**text_of(batch), token_type_ids=torch.zeros_like(batch["token_type_ids"]))
    with pytest.raises(ValueError, match=r"`token_type_ids` mark a second text, and this \w+ reads one"):
        single(**batch)
    assert single(**text_of(batch), token_type_ids=torch.zeros_like(batch["token_type_ids"])).logits.shape == (4, 3)


def test_no_representation_no_classifier():
    config = FAMILIES["compound_attention"].config_class(
        **{**FAMILIES["compound_attention"].tiny, "architecture": "attn"}
    )
    with pytest.raises(ValueError, match="no fixed representation"):
        class_of(FAMILIES["compound_attention"])(config)


def test_gradient_checkpointing_changes_nothing(family):
    gradients = []
    for checkpointing in (False, True):
        model = make(family, "mlp", **NO_DROPOUT).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(**batch_for(model.config)).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        close(a, b)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_trainer_learns_two_words_apart(family, accumulation, tmp_path):
    """transformers' Trainer, with and without accumulation, on texts whose class is a word of theirs."""
    torch.manual_seed(0)
    texts = torch.randint(10, 40, (96, 6))
    labels = torch.arange(96) % 2
    texts[:, 2], texts[:, 5] = 5 + labels, END
    rows = [
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": label}
        for ids, label in zip(texts, labels, strict=True)
    ]
    model = make(family, "mlp", torch.float32, num_labels=2, **NO_DROPOUT)
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16 // accumulation,
        gradient_accumulation_steps=accumulation,
        per_device_eval_batch_size=24,
        max_steps=30,
        learning_rate=0.01,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=30,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    before = trainer.evaluate()["eval_loss"]
    logged = trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.5 * before
    predicted = trainer.predict(rows)
    assert predicted.predictions.shape == (96, 2)
    assert (predicted.predictions.argmax(-1) == labels.numpy()).mean() > 0.9
    # A mean over the batch whatever its parts: one that is not divided by them would be twice as large.
    assert logged.training_loss < 1.5 * before


# What is computed


def test_split_pairs_by_hand():
    for side in ("right", "left"):
        ids = pad([[5, 6, 3, 7, 3], [8, 3, 9, 10, 11, 3]], side, extra=1)
        mask = pad([[1] * 5, [1] * 6], side, extra=1)
        kinds = pad([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1]], side, extra=1)
        texts, masks = split_pairs(ids, mask, kinds)
        assert [row[keep.bool()].tolist() for row, keep in zip(texts, masks, strict=True)] == [
            [5, 6, 3], [8, 3], [7, 3], [9, 10, 11, 3],
        ]  # fmt: skip
        assert masks.tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
        vectors = torch.randn(2, ids.shape[1], 4)
        split, _ = split_pairs(vectors, mask, kinds)
        assert torch.equal(split[2, 0], vectors[0][(ids[0] == 7).nonzero()[0, 0]])


@pytest.mark.parametrize("head", HEADS)
def test_heads_follow_their_equations(head):
    """Written out for one text or pair at a time, one row and one column at a time."""
    model = make(FAMILIES["structured_self_attention"], head)
    config, batch = model.config, batch_for(model.config)
    weights = {name.removeprefix("classifier."): value for name, value in model.named_parameters()}
    logits = model(**batch).logits
    for row in range(4):
        first = model.encoder(input_ids=torch.tensor([SENTENCES[row]])).latents[0]
        matrix = first
        if config.pair_combination is not None:
            second = model.encoder(input_ids=torch.tensor([SECOND[row]])).latents[0]
            if config.pair_combination == "concatenation":
                lines = [torch.cat([u, v, (u - v).abs(), u * v]) for u, v in zip(first, second, strict=True)]
            else:
                maps = zip(weights["pair.first.weight"], weights["pair.second.weight"], strict=True)
                lines = [(u @ a) * (v @ b) for u, v, (a, b) in zip(first, second, maps, strict=True)]
            matrix = torch.stack(lines)
        if config.classifier_type == "pruned":
            parts = [weights["head.rows.weight"] @ line + weights["head.rows.bias"] for line in matrix]
            parts += [weights["head.columns.weight"] @ line + weights["head.columns.bias"] for line in matrix.T]
            states = torch.cat(parts).clamp(min=0)
        else:
            states = torch.cat(list(matrix))
            if config.classifier_hidden_size is not None:
                states = (weights["head.hidden.weight"] @ states + weights["head.hidden.bias"]).clamp(min=0)
        close(logits[row], weights["head.output.weight"] @ states + weights["head.output.bias"])


def test_pruned_head_has_fewer_parameters():
    """p (d + 1) + q (r + 1) weights of units, and (r p + d q + 1) of the output for each label."""
    config = FAMILIES["structured_self_attention"].config_class(num_labels=5, classifier_type="pruned")
    with torch.device("meta"):
        head = class_of(FAMILIES["structured_self_attention"])(config).classifier
        whole = class_of(FAMILIES["structured_self_attention"])(
            FAMILIES["structured_self_attention"].config_class(num_labels=5)
        ).classifier
    r, d, p, q = 30, 600, 150, 10
    assert sum(w.numel() for w in head.parameters()) == p * (d + 1) + q * (r + 1) + 5 * (r * p + d * q + 1) == 142_965
    assert sum(w.numel() for w in whole.parameters()) == 3000 * (r * d + 1) + 5 * 3001 == 54_018_005


def test_penalty_and_its_gradient_follow_the_equation():
    """Eq. 8 element by element, and its derivative 4 (A A' - I) A."""
    scores = torch.randn(2, 3, 5, dtype=torch.float64)
    weights = scores.softmax(dim=-1).requires_grad_(True)
    penalty = attention_penalty(weights)
    for text in range(2):
        total = 0.0
        for i in range(3):
            for j in range(3):
                overlap = sum((weights[text, i, n] * weights[text, j, n]).item() for n in range(5))
                total += (overlap - (i == j)) ** 2
        assert penalty[text].item() == pytest.approx(total, abs=1e-12)
    penalty.sum().backward()
    inner = weights @ weights.transpose(1, 2) - torch.eye(3, dtype=torch.float64)
    close(weights.grad, 4 * inner @ weights)
    assert attention_penalty(torch.eye(3, 5)[None]).item() == 0
    same = torch.zeros(1, 3, 5)
    same[:, :, 0] = 1
    assert attention_penalty(same).item() == 6  # all heads on one word: the r (r - 1) places beside the diagonal
    assert attention_penalty(torch.zeros(1, 3, 5)).item() == 3  # a text without tokens
    assert attention_penalty(same.to(torch.bfloat16)).dtype == torch.float32


def test_penalty_keeps_the_heads_apart():
    """Trained without it, heads stay closer together than trained with it."""
    overlaps = {}
    for penalty in (0.0, 1.0):
        model = make(
            FAMILIES["structured_self_attention"], "linear", torch.float32, attention_penalty=penalty, **NO_DROPOUT
        ).train()
        batch = batch_for(model.config, rows=slice(0, None))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(40):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        weights = model(**batch).pooling_attentions[[0, 3]]  # the texts with more words than heads
        overlaps[penalty] = attention_penalty(weights).mean().item()
        assert math.isfinite(overlaps[penalty])
    assert overlaps[1.0] < 0.5 * overlaps[0.0]
