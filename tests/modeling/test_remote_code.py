"""Checkpoints with their code load where hf_meanmax is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from safetensors.torch import save_file

from modeling.all_families import TESTS
from modeling.family_tests import FamilyTests, read_of, text_of

LOAD = """
import json, sys, traceback
sys.modules["hf_meanmax"] = None
import torch, transformers
from safetensors.torch import load_file
torch.set_num_threads(1)

def check(folder, expected, wanted):
    text = {name: expected[name] for name in wanted["text"]}
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    model = getattr(transformers, wanted["full"]).from_pretrained(folder, trust_remote_code=True)
    encoder = model.get_encoder()
    if wanted["has_encoder"]:
        encoder = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True)
    names = [type(x).__name__ for x in (config, model, encoder)]
    assert names[:len(wanted["classes"])] == wanted["classes"], names
    encoded = encoder(**text)
    read = encoded.last_hidden_state if encoded.latents is None else encoded.latents
    assert torch.equal(read, expected["read"])
    assert model(**text, labels=expected["labels"]).loss.isfinite()
    for source in (text, {"sentence_embedding": encoded.pooler_output}):
        if source.get("sentence_embedding", read) is None:
            continue
        if config.is_autoregressive:
            said = model.generate(**source, max_new_tokens=6)
        else:
            said, _ = model.predict_words(**source, top_k=3)
        assert torch.equal(said, expected["said"])
    return model

checked, failed = [], {}
for family, wanted in json.load(open("wanted.json")).items():
    for variant in wanted["variants"]:
        folder = f"{family}/{variant}"
        try:
            expected = load_file(folder + ".expected")
            model = check(folder, expected, wanted)
            if variant == wanted["variants"][-1]:
                model.save_pretrained(folder + "_again")
                check(folder + "_again", expected, wanted)
            checked.append(folder)
        except Exception:
            failed[folder] = traceback.format_exc()
packages = {name.split(".")[0] for name, module in sys.modules.items() if module is not None}
print(json.dumps({"checked": checked, "failed": failed, "imports_package": "hf_meanmax" in packages}))
"""


def save_with_code(test: FamilyTests, variant: str, folder: Path) -> None:
    """A checkpoint with its code, and beside it what it must compute."""
    full_class = test.family.full_class
    model = test.full(variant)
    was_registered = full_class._auto_class
    try:
        full_class.register_for_auto_class(test.family.auto_full_class.__name__)
        model.save_pretrained(folder)
    finally:
        full_class._auto_class = was_registered
    auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
    assert auto_map == test.family.config_class.auto_classes
    assert {"AutoConfig", *(loader.__name__ for loader in test.auto_classes())} <= set(auto_map)
    for path in auto_map.values():
        assert (folder / f"{path.split('.')[0]}.py").exists()

    batch = test.make_batch()
    expected = {
        **text_of(batch),
        "labels": batch["labels"],
        "read": read_of(model(**batch)).detach(),
        "said": test.say(model, **text_of(batch)),
    }
    save_file(expected, folder.with_suffix(".expected"))


def test_remote_code_loads_without_the_package(tmp_path):
    """Two variants of every family, through every Auto class, in one fresh process that cannot import hf_meanmax."""
    wanted = {}
    for name, make_test in TESTS.items():
        test, family = make_test(), make_test.family
        # The code that is carried is that of the family, whatever the variant.
        variants = list(dict.fromkeys((next(iter(family.variants)), next(reversed(family.variants)))))
        for variant in variants:
            save_with_code(test, variant, tmp_path / name / variant)
        classes = [cls for cls in (family.config_class, family.full_class, family.model_class) if cls is not None]
        wanted[name] = {
            "variants": variants,
            "text": list(text_of(test.make_batch())),
            "full": family.auto_full_class.__name__,
            "has_encoder": family.model_class is not None,
            "classes": [cls.__name__ for cls in classes],
        }
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["HF_HOME"] = str(tmp_path / "home")
    environment["HF_HUB_OFFLINE"] = "1"
    command = [sys.executable, "-I", "-c", LOAD]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["failed"] == {}
    assert found["checked"] == [f"{name}/{variant}" for name, one in wanted.items() for variant in one["variants"]]
    assert not found["imports_package"]
