"""LoRA of the peft package: on decoder, encoder and classifier, over attention and around recurrent layers."""

from __future__ import annotations

import pytest
import torch

from modeling.kinds import labels, make, read

peft = pytest.importorskip("peft")

SEQ2SEQ, VECTORS, CLASSES = peft.TaskType.SEQ_2_SEQ_LM, peft.TaskType.FEATURE_EXTRACTION, peft.TaskType.SEQ_CLS
ATTENTION = ["query", "key", "value"]


def loss_of(output) -> torch.Tensor:
    return output.loss if "loss" in output else (output.pooler_output - 1).square().mean()


@pytest.mark.parametrize(
    ("kind", "task", "targets"),
    [
        ("attention", SEQ2SEQ, ATTENTION),
        ("attention", SEQ2SEQ, r"decoder\..*(query|value)"),
        ("lstm_attention", SEQ2SEQ, "all-linear"),
        ("no_rows", SEQ2SEQ, "all-linear"),
        ("encoder", VECTORS, "all-linear"),
        ("classifier", CLASSES, "all-linear"),
    ],
    ids=["attention", "decoder", "recurrent", "no_rows", "encoder", "classifier"],
)
def test_lora_learns_and_is_loaded(kind, task, targets, tmp_path):
    """The adapter alone changes; loaded on the same model, and merged into it, it computes the same."""
    inputs = {**read(kind), **labels(kind)}
    model = make(kind)
    before = {name: value.clone() for name, value in model.named_parameters()}
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type=task, target_modules=targets, r=2))
    optimizer = torch.optim.Adam([value for value in adapted.parameters() if value.requires_grad], lr=0.03)
    losses = []
    for _ in range(6):
        loss = loss_of(adapted(**inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    head = "classifier" if task == CLASSES else "nothing"
    for name, value in model.named_parameters():
        original = name.replace(".base_layer", "").replace(".original_module", "")
        if original in before and not name.startswith(head):
            assert torch.equal(value, before[original]), name
    adapted.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(make(kind), tmp_path)
    key = "logits" if "labels" in inputs else "pooler_output"
    with torch.inference_mode():
        expected = adapted.eval()(**inputs)[key]
        torch.testing.assert_close(loaded.eval()(**inputs)[key], expected, atol=1e-5, rtol=1e-5)
        if task == SEQ2SEQ:
            said = adapted.generate(**read(kind), max_new_tokens=4)
            if model.config.has_latents:
                vectors = model.encoder(**read(kind)).pooler_output
                assert torch.equal(adapted.generate(sentence_embedding=vectors, max_new_tokens=4), said)
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(merged(**inputs)[key], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["attention", "lstm_attention"])
def test_gradient_checkpointing(kind):
    """With it the gradients of the adapter are what they are without."""
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = make(kind, torch.float64, embedding_dropout=0.0, attention_dropout=0.0, hidden_dropout=0.0)
        config = peft.LoraConfig(task_type=SEQ2SEQ, target_modules="all-linear", r=2, init_lora_weights=False)
        adapted = peft.get_peft_model(model, config, autocast_adapter_dtype=False).train()
        if checkpointing:
            adapted.gradient_checkpointing_enable()
            adapted.enable_input_require_grads()
        adapted(**read(kind), **labels(kind)).loss.backward()
        gradients.append({name: value.grad for name, value in adapted.named_parameters() if value.requires_grad})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert gradient is not None, name
        torch.testing.assert_close(gradients[1][name], gradient)
