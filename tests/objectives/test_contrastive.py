"""Telling a text's partner from the others of a batch, beside a plain loop; on two processes as on one."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing

from hf_meanmax.objectives import Contrastive, Decoding, TrainingModel
from hf_meanmax.objectives.contrastive import encode_partners, matching_loss
from tiny_model import make_model

IDS = [[4, 5, 6, 3], [7, 8, 3, 0], [9, 3, 0, 0], [10, 11, 12, 3], [5, 6, 3, 0]]
PARTNERS = [[6, 3, 0], [5, 4, 3], [7, 7, 3], [8, 3, 0], [12, 13, 3]]


def make_batch(rows=slice(None)) -> dict[str, torch.Tensor]:
    ids, partners = torch.tensor(IDS)[rows], torch.tensor(PARTNERS)[rows]
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": ids.masked_fill(ids == 0, -100),
        "neighbour_ids": partners,
        "neighbour_mask": (partners != 0).long(),
    }


def naive_loss(left: torch.Tensor, right: torch.Tensor, temperature: float) -> float:
    """The mean over the pairs of -log softmax in both directions, pair by pair."""

    def cosine(a, b):
        return float(a @ b / (a.norm() * b.norm())) / temperature

    total = 0.0
    for i in range(len(left)):
        there = [math.exp(cosine(left[i], right[j])) for j in range(len(right))]
        back = [math.exp(cosine(right[i], left[j])) for j in range(len(left))]
        total -= (math.log(there[i] / sum(there)) + math.log(back[i] / sum(back))) / 2
    return total / len(left)


def test_it_is_the_cross_entropy_of_the_partner_in_both_directions():
    batch = make_batch()
    for temperature in (0.05, 0.5):
        training = TrainingModel(make_model(embedding_dropout=0.0, attention_dropout=0.0), [
            Contrastive("neighbour", 2.0, temperature)
        ]).train()  # fmt: skip
        encoder = training.model.encoder
        left = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).pooler_output
        right = encoder(input_ids=batch["neighbour_ids"], attention_mask=batch["neighbour_mask"]).pooler_output
        output = training(**batch)
        wanted = naive_loss(left.detach(), right.detach(), temperature)
        assert output.losses["neighbour_loss"].item() == pytest.approx(wanted, rel=1e-4)
        assert output.loss.item() == pytest.approx(2 * wanted, rel=1e-4)


def test_each_row_is_compared_alone_beside_the_embedding():
    batch = make_batch()
    model = make_model(embedding_dropout=0.0, attention_dropout=0.0)
    training = TrainingModel(model, [Contrastive("neighbour", 2.0, 0.5, row_weight=0.3)]).train()
    left = model.encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).latents.detach()
    right = model.encoder(input_ids=batch["neighbour_ids"], attention_mask=batch["neighbour_mask"]).latents.detach()
    assert left.shape[1] == 2
    alone = [naive_loss(left[:, row], right[:, row], 0.5) for row in range(2)]
    assert abs(alone[0] - alone[1]) > 1e-3
    wanted = naive_loss(left.flatten(1), right.flatten(1), 0.5) + 0.3 * sum(alone) / 2
    output = training(**batch)
    assert output.losses["neighbour_loss"].item() == pytest.approx(wanted, rel=1e-4)
    assert output.loss.item() == pytest.approx(2 * wanted, rel=1e-4)


@pytest.mark.parametrize("rows", [2, 3, 5, 11])
def test_partners_in_groups_of_like_length_are_those_of_one_batch(rows):
    model = make_model(embedding_dropout=0.0, attention_dropout=0.0)
    lengths = torch.randint(1, 9, (rows,), generator=torch.Generator().manual_seed(rows))
    mask = (torch.arange(8) < lengths[:, None]).long()
    ids = (torch.arange(8 * rows).view(rows, 8) % 9 + 4) * mask
    results = []
    for latents in (encode_partners(model, ids, mask), model.encoder(input_ids=ids, attention_mask=mask).latents):
        model.zero_grad()
        (latents * torch.linspace(0, 1, rows)[:, None, None]).sum().backward()
        results.append([latents, *(p.grad for p in model.encoder.parameters() if p.grad is not None)])
    for grouped, wanted in zip(*results, strict=True):
        torch.testing.assert_close(grouped, wanted)
    # The same texts with their padding on the left.
    places = (torch.arange(8) - (8 - lengths[:, None])) % 8
    torch.testing.assert_close(encode_partners(model, ids.gather(1, places), mask.gather(1, places)), results[1][0])


def test_a_row_that_stands_for_none_counts_nowhere():
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(5, 8, generator=draw) for _ in range(2))
    is_row = torch.tensor([True, True, False, True, True])
    wanted = matching_loss(left[is_row], right[is_row], torch.ones(4, dtype=torch.bool), 0.1)
    torch.testing.assert_close(matching_loss(left, right, is_row, 0.1), wanted)
    assert matching_loss(left, right, torch.zeros(5, dtype=torch.bool), 0.1) == 0


def test_beside_decoding_and_under_a_projection():
    model = make_model(contrastive_size=6, embedding_dropout=0.0, attention_dropout=0.0)
    output = TrainingModel(model, [Decoding(), Contrastive("neighbour", 0.5)]).train()(**make_batch())
    torch.testing.assert_close(output.loss, output.losses["decoding"] + 0.5 * output.losses["neighbour_loss"])
    output.loss.backward()
    assert model.contrastive_head.weight.grad.abs().max() > 0
    with pytest.raises(ValueError, match="`temperature` is 0"):
        Contrastive("view", temperature=0)
    with pytest.raises(ValueError, match="`partner` is 'views'"):
        Contrastive("views")
    with pytest.raises(ValueError, match="one name"):
        TrainingModel(model, [Decoding(), Decoding()])
    whole = TrainingModel(model, [Decoding(), Contrastive("neighbour")]).eval()
    assert whole(**make_batch(), num_sentences_in_batch=torch.tensor(5)).loss > 0


def gradients(rows=slice(None), sentences: int = 5) -> dict[str, torch.Tensor]:
    model = make_model(embedding_dropout=0.0, attention_dropout=0.0)
    batch = {**make_batch(rows), "num_sentences_in_batch": torch.tensor(sentences)}
    TrainingModel(model, [Contrastive("neighbour", temperature=0.2)]).train()(**batch).loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def work(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.save(gradients(slice(rank, None, 2)), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def test_two_processes_learn_as_one(tmp_path):
    """The negatives are those of both, with gradients through them: three rows on one process and two on the other."""
    multiprocessing.spawn(work, (str(tmp_path),), nprocs=2)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    alone = gradients()
    assert alone.keys() == parts[0].keys()
    for name, gradient in alone.items():
        torch.testing.assert_close(parts[0][name] + parts[1][name], gradient, atol=1e-6, rtol=1e-4)
