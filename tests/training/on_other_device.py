"""That everything runs on a device other than the CPU, with the CPU's results; for a process of its own
(`test_other_device.py`), since a stand-in is registered for all of it. `HF_MEANMAX_TEST_DEVICE` names a real device."""

from __future__ import annotations

import copy
import os
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.evaluation import reconstruct
from hf_meanmax.evaluation.controls import make_controls
from hf_meanmax.evaluation.logistic_regression import fit_logistic_regressions
from hf_meanmax.evaluation.neighbors import nearest
from hf_meanmax.evaluation.relatedness import fit_relatedness
from hf_meanmax.training import pretrain as pretraining
from hf_meanmax.training.pretrain import pretrain
from modeling.all_families import TESTS as FAMILIES
from modeling.family_tests import NO_DROPOUT, labelled, text_of
from tiny_model import make_model, make_tokenizer, random_lines
from training.test_pretrain import CONTEXT_MODELS, OTHER_MODELS, losses, weights
from training_loss import training_loss

NAME = os.environ.get("HF_MEANMAX_TEST_DEVICE", "other:0")
if NAME.startswith("other"):
    import other_device
DEVICE = torch.device(NAME)
# A GPU's own networks and convolutions round their inputs unless it is told not to.
torch.backends.cudnn.allow_tf32 = False
of_the_stand_in = pytest.mark.skipif(DEVICE.type != "other", reason="about the stand-in for a GPU")
VARIANTS = [(name, variant) for name, test in FAMILIES.items() for variant in test.family.variants]
RUNS: dict[str, dict[str, Any]] = {
    "full": {},
    "sampled": {"softmax": "sampled", "num_negatives": 5},
    "chunked": {"softmax": "chunked", "label_smoothing": 0.1},
    "noise": {"word_drop": 0.2, "word_swap": 0.2, "gradient_accumulation_steps": 2},
    **OTHER_MODELS,
    **{f"context_{name}": changes for name, changes in CONTEXT_MODELS.items()},
}
# Runs that are also resumed: what an optimizer holds, of dense and of sparse gradients, of two vocabularies.
RESUMED = {"full", "sampled", "context_rnn_cnn"}
# Runs whose steps must not make the host wait: one of each softmax and of each kind of layer. None has padding, of
# which transformers asks whether a mask is all ones, and recurrent networks the lengths.
WITHOUT_WAITS = ("full", "sampled", "chunked", "structured", "gated", "context_gru_random")


def on_device(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to(DEVICE) for name, value in values.items()}


@of_the_stand_in
def test_the_device_refuses_what_a_gpu_refuses():
    here, there = torch.ones(3), torch.ones(3, device=DEVICE)
    assert there.device == DEVICE
    assert isinstance(there + 1, other_device.OtherTensor)
    assert (there + 1).cpu().tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="two devices"):
        there + here
    with pytest.raises(RuntimeError, match="two devices"):
        torch.nn.functional.embedding(torch.tensor([0]), there.unsqueeze(0))
    with pytest.raises(TypeError, match="copy it to the CPU"):
        np.asarray(there)


@of_the_stand_in
@pytest.mark.parametrize("module", [torch.nn.LSTM, torch.nn.GRU])
def test_its_recurrent_networks_are_torchs(module):
    network = module(3, 5, batch_first=True, bidirectional=True)
    inputs = torch.randn(2, 4, 3)
    there = copy.deepcopy(network).to(DEVICE)
    network(inputs)[0].square().sum().backward()
    there(inputs.to(DEVICE))[0].square().sum().backward()
    for expected, found in zip(network.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(found.grad.cpu(), expected.grad)


@pytest.mark.parametrize(("family", "variant"), VARIANTS)
def test_values_and_gradients(family, variant):
    test = FAMILIES[family]()
    # A GPU has no gradients of recurrent networks in evaluation; there is no dropout.
    model = test.full(variant, torch.float64, **NO_DROPOUT).train()
    batch = test.batch(model.config)
    there = copy.deepcopy(model).to(DEVICE)
    expected, found = training_loss(model, batch).loss, training_loss(there, on_device(batch)).loss
    expected.backward()
    found.backward()
    torch.testing.assert_close(found.cpu(), expected)
    logits = model(**labelled(batch)).logits
    torch.testing.assert_close(there(**on_device(labelled(batch))).logits.cpu(), logits)
    for (name, weight), copied in zip(model.named_parameters(), there.parameters(), strict=True):
        if weight.grad is None:
            assert copied.grad is None, name
        else:
            assert copied.grad.device == DEVICE
            torch.testing.assert_close(copied.grad.cpu(), weight.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("family", "variant"), VARIANTS)
def test_what_is_said(family, variant):
    test = FAMILIES[family]()
    model = test.full(variant, torch.float64)
    text = text_of(test.batch(model.config))
    there = copy.deepcopy(model).to(DEVICE)
    assert test.say(there, **on_device(text)).tolist() == test.say(model, **text).tolist()
    # The other searches are the decoder's, whatever encodes.
    if model.config.is_autoregressive and variant in test.family.decoders():
        for strategy in ({"num_beams": 3}, {"cache_implementation": "static"}, {"use_cache": False}):
            said = [
                m.generate(**t, **strategy, max_new_tokens=6).tolist()
                for m, t in ((there, on_device(text)), (model, text))
            ]
            assert said[0] == said[1], strategy


@pytest.fixture
def use(monkeypatch):
    """Has the runs that follow compute on a device, as Accelerate is told to."""

    def use(device):
        AcceleratorState._reset_state(reset_partial_state=True)
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", str(device))

    yield use
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_and_its_resumption(make_arguments, name, use):
    folders = []
    for device in ("cpu", str(DEVICE)):
        use(device)
        # On the CPU without the interruption, which changes nothing there.
        for steps in (3, 5) if device != "cpu" and name in RESUMED else (5,):
            changes = {"attention": "eager", **NO_DROPOUT, **RUNS[name]}
            args = make_arguments(device.replace(":", " "), max_steps=steps, **changes)
            pretrain(args)
        folders.append(args.output_dir)
    assert losses(folders[1]) == pytest.approx(losses(folders[0]), rel=1e-4)
    expected, found = map(weights, folders)
    assert expected.keys() == found.keys()
    for name, weight in found.items():
        # One number whose gradient is but rounding may go either way.
        assert (weight - expected[name]).norm() <= 1e-3 * expected[name].norm(), name


def test_a_decoder_of_vectors(make_arguments, use, tmp_path):
    embedder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "embedder", normalize="embedding")
    curves = []
    for device in ("cpu", str(DEVICE)):
        use(device)
        args = make_arguments(
            device.replace(":", " "), objective="embedding_inversion", embedder=str(embedder), embedding_noise=0.1,
            latent_length=2, max_steps=3, attention="eager", **NO_DROPOUT,
        )  # fmt: skip
        pretrain(args)
        curves.append(losses(args.output_dir))
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


@pytest.mark.parametrize("name", WITHOUT_WAITS)
def test_a_step_makes_the_host_wait_for_nothing(make_arguments, name, use, monkeypatch):
    use(DEVICE)
    counts = []
    original = pretraining.Run._step

    def step(self, *args):
        if DEVICE.type == "cuda":
            # An error where torch would wait; what follows the step may, and the last one has padding.
            torch.cuda.set_sync_debug_mode("error" if 1 < len(counts) < 4 else "default")
        counts.append(other_device.waits.copy() if DEVICE.type == "other" else Counter())
        try:
            return original(self, *args)
        finally:
            if DEVICE.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(pretraining.Run, "_step", step)
    pretrain(make_arguments(max_steps=5, log_steps=100, checkpoint_steps=100, **RUNS[name]))
    assert len(counts) == 5
    assert counts[-1] - counts[1] == Counter()


RECURRENT = {"encoder_type": "bilstm", "decoder_type": "lstm_attention", "position_embedding_type": "none"}


@pytest.fixture(scope="module", params=[{}, RECURRENT], ids=["attention", "recurrent"])
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    save_checkpoint(make_model(**request.param), make_tokenizer(), folder)
    return folder


def test_encoding_and_decoding(folder):
    lines = [line for line in random_lines(40) if line]
    here, there = (SentenceTransformer(str(folder), device=device) for device in ("cpu", str(DEVICE)))
    vectors = there.encode(lines)
    np.testing.assert_allclose(vectors, here.encode(lines), atol=1e-5)
    assert there.encode(lines, convert_to_tensor=True).device == DEVICE
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    said, decoded = reconstruct(model, tokenizer, lines), model.generate(sentence_embedding=vectors).tolist()
    model.to(DEVICE)
    assert reconstruct(model, tokenizer, lines) == said
    assert model.generate(sentence_embedding=vectors).tolist() == decoded


def test_controls(folder, monkeypatch):
    # The stand-in has no views in inference mode.
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    lines = random_lines(40)
    controls = [make_controls(SentenceTransformer(str(folder), device=device), (0,)) for device in ("cpu", str(DEVICE))]
    for here, there in zip(*controls, strict=True):
        np.testing.assert_allclose(there.encode(lines), here.encode(lines), atol=1e-5)


def test_classifiers_and_neighbours():
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(90, 7)).astype(np.float32)
    labels = (rows[:, 0] + draw.normal(size=90) > 0).astype(int) + (rows[:, 1] > 1)
    masks = draw.random((4, 90)) < 0.8
    scores = 2.5 + 2 * np.tanh(rows[:, 0])
    fits = [
        fit_logistic_regressions(rows, labels, masks, [0.1, 1.0, 1.0, 10.0], device=device)
        for device in ("cpu", DEVICE)
    ]
    np.testing.assert_allclose(fits[1].coefficients.cpu(), fits[0].coefficients, atol=1e-4)
    fits = [
        fit_relatedness(rows[:60], scores[:60], rows[60:], scores[60:], device=device) for device in ("cpu", DEVICE)
    ]
    np.testing.assert_allclose(fits[1].weight.cpu(), fits[0].weight, atol=1e-4)
    found = [nearest(rows, rows, excluded=np.arange(90), device=device) for device in ("cpu", DEVICE)]
    assert found[0].tolist() == found[1].tolist()
