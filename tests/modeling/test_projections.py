"""What an encoder keeps of its words: dropped by what changes weights, never past what stands in a module's place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hf_meanmax.modeling.embeddings import WordProjections, WordTable
from tiny_model import make_model

IDS = torch.tensor([[5, 9, 7, 8, 3], [6, 3, 11, 4, 3]])


def encode(model, context=torch.inference_mode) -> torch.Tensor:
    with context():
        return model(input_ids=IDS).pooler_output.clone()


@pytest.fixture
def encoder():
    """An encoder that has made its table."""
    model = make_model().encoder.eval()
    encode(model)
    assert model.word_projections.table is not None
    return model


def assert_right(model) -> None:
    torch.testing.assert_close(encode(model), encode(model, torch.no_grad), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizers_that_leave_no_trace(encoder, kind):
    before = encode(encoder)
    optimizer = kind(encoder.parameters(), lr=0.1, fused=True)
    encoder(input_ids=IDS).pooler_output.square().sum().backward()
    optimizer.step()
    assert_right(encoder)
    assert not torch.allclose(encode(encoder), before, atol=1e-3)


@pytest.mark.parametrize("how", ["load", "anew", "another table", "another weight", "in place"])
def test_changed_weights(encoder, how):
    if how == "load":
        encoder.load_state_dict({key: -2.0 * value for key, value in encoder.state_dict().items()})
    elif how == "another weight":
        words = encoder.get_input_embeddings()
        words.weight = nn.Parameter(-2.0 * words.weight.detach())
    elif how == "in place":
        with torch.no_grad():
            encoder.get_input_embeddings().weight.mul_(-2.0)
            encoder.sequence_encoder.layers[0].attention.value.weight.mul_(3.0)
    elif how == "another table":
        words = encoder.get_input_embeddings()
        encoder.set_input_embeddings(nn.Embedding.from_pretrained(-2.0 * words.weight, padding_idx=words.padding_idx))
    else:
        encoder.embeddings.word_embeddings.weight.data.mul_(-2.0)
        encoder.cache_word_projections()
    assert_right(encoder)


@pytest.mark.parametrize(
    "name", ["embeddings", "embeddings.word_embeddings", "sequence_encoder.layers.0.attention.query"]
)
def test_hooks_are_heard(encoder, name):
    called = []
    hook = encoder.get_submodule(name).register_forward_hook(lambda *_: called.append(1))
    encode(encoder)
    hook.remove()
    assert called


def test_offloaded_weights_are_fetched(encoder):
    from accelerate import cpu_offload

    expected = encode(encoder, torch.no_grad)
    cpu_offload(encoder, execution_device=torch.device("cpu"))
    torch.testing.assert_close(encode(encoder), expected)


class Turned(nn.Module):
    """Stands where an adapter would."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).roll(1, dims=-1)


@pytest.mark.parametrize("name", ["embeddings.word_embeddings", "sequence_encoder.layers.0.attention.value"])
def test_adapters_are_applied(encoder, name):
    before = encode(encoder)
    encoder.set_submodule(name, Turned(encoder.get_submodule(name)))
    assert_right(encoder)
    assert not torch.allclose(encode(encoder), before, atol=1e-3)


def test_no_texts(encoder):
    encoder.set_attn_implementation("eager")
    with torch.inference_mode():
        assert encoder(input_ids=IDS[:0]).pooler_output.shape[0] == 0


def test_the_table_goes_when_it_is_of_no_use(encoder):
    encoder.train()
    assert encoder.word_projections.table is None
    encoder.eval()
    encode(encoder)
    encoder.to(torch.bfloat16)
    assert encoder.word_projections.table is None


@pytest.mark.parametrize("first", [[5], [11, 4], [9, 3, 7]])
def test_a_words_part_is_the_same_whatever_came_before(monkeypatch, first):
    """To the last bit: the results of one process are those of several."""
    monkeypatch.setattr(WordTable, "block_size", 4)
    model = make_model().encoder.eval()
    model.cache_word_projections()
    expected, whole = encode(model), model.word_projections.table.rows
    model.drop_word_projections()
    with torch.inference_mode():
        model(input_ids=torch.tensor([first]))
    table = model.word_projections.table
    assert table.missing.any()
    assert torch.equal(encode(model), expected)
    there = ~table.missing.repeat_interleave(4)[: len(whole)]
    assert torch.equal(table.rows[there], whole[there])


def test_large_vocabularies_have_no_table(encoder, monkeypatch):
    monkeypatch.setattr(WordProjections, "most_bytes", 1000)
    encoder.to(torch.float64)
    assert_right_double = encode(encoder), encode(encoder, torch.no_grad)
    torch.testing.assert_close(*assert_right_double)
    assert encoder.word_projections.table is None


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_an_encoder_is_one_graph(encoder, context):
    compiled = torch.compile(encoder, fullgraph=True, backend="eager")
    with context():
        found = compiled(input_ids=IDS).pooler_output
    torch.testing.assert_close(found, encode(encoder, torch.no_grad))


def test_long_texts_in_bf16_need_no_square_of_memory(monkeypatch):
    """Beyond some hundred tokens attention is not written out."""
    from hf_meanmax.modeling import attention

    model, sizes = make_model().encoder.eval().to(torch.bfloat16), []
    model.set_attn_implementation("sdpa")
    eager = attention.eager_attention_forward
    monkeypatch.setattr(
        attention,
        "eager_attention_forward",
        lambda module, query, *rest, **k: sizes.append(query.shape[2]) or eager(module, query, *rest, **k),
    )
    with torch.no_grad():
        for length in (10, attention._SHORT, attention._SHORT + 1):
            model(input_ids=torch.full((1, length), 5))
    assert sizes == [10, attention._SHORT]
