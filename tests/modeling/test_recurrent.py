"""What is particular to recurrent networks: padding under a mask, their first biases, raw rows of any length."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from hf_meanmax import GatedMeanMaxAAEConfig, GatedMeanMaxAAEForReconstruction
from hf_meanmax.modeling import recurrent
from hf_meanmax.modeling.recurrent import run_recurrent

SIZES = {
    "vocab_size": 20, "embedding_size": 6, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2,
    "initializer_range": 0.7,
}  # fmt: skip
GATED_RAE = {"encoder_type": "bilstm", "pooling": "mean_max_last", "decoder_type": "lstm_gates"}
RAE = {"encoder_type": "bilstm", "pooling": "last", "decoder_type": "lstm"}
MASK = torch.tensor(
    [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 1],
        [0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 1],
    ]
)


def make_model(dtype: torch.dtype = torch.float32, **settings) -> GatedMeanMaxAAEForReconstruction:
    torch.manual_seed(0)
    return GatedMeanMaxAAEForReconstruction(GatedMeanMaxAAEConfig(**{**SIZES, **settings})).to(dtype).eval()


@pytest.mark.parametrize("how", ["padded", "packed"])
@pytest.mark.parametrize("with_state", [False, True], ids=["from_zeros", "from_state"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("network", [nn.LSTM, nn.GRU])
def test_masked_network_is_each_row_alone(network, directions, with_state, how, monkeypatch):
    """Values and gradients, as on a CPU and as on a GPU; a row without tokens gives zeros."""
    if how == "packed":
        monkeypatch.setattr(recurrent, "_run_padded", recurrent._run_packed)
    torch.manual_seed(0)
    parts = 2 if network is nn.LSTM else 1
    network = network(3, 4, batch_first=True, bidirectional=directions == 2).double()
    inputs = torch.randn(6, 6, 3, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(directions, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(parts))
    leaves = [inputs, *state, *network.parameters()] if with_state else [inputs, *network.parameters()]

    def start(rows=slice(None)):
        given = tuple(part[:, rows].contiguous() for part in state)
        return (given if parts == 2 else given[0]) if with_state else None

    direction = torch.randn(6, 6, 4 * directions, dtype=torch.float64)

    expected = torch.zeros(6, 6, 4 * directions, dtype=torch.float64)
    for row in range(6):
        real = MASK[row].bool()
        if real.any():
            expected[row, real] = network(inputs[row : row + 1, real], start(slice(row, row + 1)))[0][0]
    wanted = torch.autograd.grad((expected * direction).sum(), leaves)
    for dtype in (torch.long, torch.bool, torch.float32):
        outputs = run_recurrent(network, inputs, MASK.to(dtype), start())
        torch.testing.assert_close(outputs, expected, atol=1e-12, rtol=0)
        for ours, theirs in zip(torch.autograd.grad((outputs * direction).sum(), leaves), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_forget_gates_start_open():
    model = make_model(**GATED_RAE, num_hidden_layers=2)
    found = [module for module in model.modules() if isinstance(module, nn.LSTM)]
    assert len(found) == 4
    for lstm in found:
        size = lstm.hidden_size
        for name, bias in lstm.named_parameters():
            if name.startswith("bias"):
                forget = 1.0 if name.startswith("bias_ih") else 0.0
                assert bias.tolist() == size * [0.0] + size * [forget] + 2 * size * [0.0], name
            else:
                assert bias.std() > 0.1, name


def test_loaded_biases_survive_a_missing_neighbour(tmp_path):
    """What a checkpoint lacks is initialised, forget gates included; what it holds is left alone."""
    model = make_model(**GATED_RAE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(tmp_path)
    saved = {name: value.clone() for name, value in load_file(tmp_path / "model.safetensors").items()}
    encoder, decoder = "encoder.sequence_encoder.layers.0.network.", "decoder.sequence_decoder.layers.0.lstm."
    missing = {encoder + "weight_hh_l0", encoder + "bias_ih_l0_reverse", decoder + "bias_hh_l0"}
    assert missing <= set(saved)
    kept = {name: value for name, value in saved.items() if name not in missing}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = GatedMeanMaxAAEForReconstruction.from_pretrained(tmp_path).state_dict()
    for name, value in loaded.items():
        assert name in missing or torch.equal(value, saved[name]), name
    assert loaded[encoder + "bias_ih_l0_reverse"].tolist() == 4 * [0.0] + 4 * [1.0] + 8 * [0.0]
    assert loaded[decoder + "bias_hh_l0"].abs().max() == 0
    assert loaded[encoder + "weight_hh_l0"].std() > 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_of_any_length_are_decoded(dtype):
    """A last state may be of any length, 1 included."""
    torch.manual_seed(1)
    row = torch.nn.functional.normalize(torch.randn(1, 8, dtype=torch.float64), dim=-1)
    for own in (torch.float32, torch.bfloat16):
        model = make_model(own, **RAE)
        for scale in (0.97, 1, 1.03):
            latents = model.latents_from_embedding((scale * row).to(dtype))
            torch.testing.assert_close(latents[0].double(), scale * row, atol=0.02, rtol=0)


@pytest.mark.parametrize("settings", [RAE, {**GATED_RAE, "num_hidden_layers": 2}], ids=["rae", "gated_rae"])
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_states_are_such_as_a_gpu_takes(settings, autocast):
    """cuDNN refuses a state that is not contiguous, or not of its input's type; the CPU is not so strict."""
    model = make_model(**settings)
    calls = 0

    def check(module, inputs):
        nonlocal calls
        sequence, state = inputs
        for part in state or ():
            calls += 1
            assert part.is_contiguous()
            assert part.dtype == (sequence.data if isinstance(sequence, PackedSequence) else sequence).dtype

    for module in model.modules():
        if isinstance(module, nn.LSTM):
            module.register_forward_pre_hook(check)
    ids = torch.tensor([[5, 6, 7, 3], [8, 3, 0, 0]])
    prompt = {"decoder_input_ids": torch.tensor([[2, 8], [2, 7]])}
    padded = {"decoder_input_ids": torch.tensor([[0, 2], [2, 7]]), "decoder_attention_mask": MASK[[3, 0], :2]}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model(input_ids=ids, labels=ids)
        model(input_ids=ids, attention_mask=(ids != 0).long(), labels=ids)
        for how in ({}, {"num_beams": 2}, {"cache_implementation": "static"}, {"use_cache": False}):
            for start in ({}, prompt, padded):
                model.generate(input_ids=ids, **start, **how, max_new_tokens=3)
    assert calls > 50


def test_compiled_parts_leave_the_lstm_to_python():
    """Not in one graph, but with the same numbers."""
    model = make_model(torch.float64, **RAE)
    inputs = torch.randn(6, 6, 6, dtype=torch.float64)
    for part, arguments in (
        (model.encoder.sequence_encoder, (inputs, MASK)),
        (model.decoder.sequence_decoder, (inputs, torch.randn(6, 1, 8, dtype=torch.float64), MASK)),
    ):
        compiled = torch.compile(part, backend="eager", dynamic=True)
        torch.testing.assert_close(compiled(*arguments), part(*arguments), atol=1e-12, rtol=0)


def test_float16_that_a_processor_lacks():
    model = make_model(**RAE, position_embedding_type="none")
    text = {
        "input_ids": torch.tensor([[5, 6, 7, 3], [5, 3, 0, 0]]),
        "attention_mask": torch.tensor([4 * [1], [1, 1, 0, 0]]),
    }
    plain = model.encoder(**text).pooler_output
    with torch.autocast("cpu", torch.float16):
        torch.testing.assert_close(model.encoder(**text).pooler_output.float(), plain, rtol=0.02, atol=0.02)
