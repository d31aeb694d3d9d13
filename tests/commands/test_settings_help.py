"""The help of the verbs that train."""

from __future__ import annotations

import re

import pytest

from hf_meanmax.commands import finetune, pretrain
from hf_meanmax.families import FAMILIES
from hf_meanmax.training.model_settings import model_fields


@pytest.mark.parametrize(("verb", "family"), [(pretrain, "mean_max_aae"), (finetune, "structured_self_attention")])
def test_help_has_type_choices_default_and_the_configuration(verb, family, capsys):
    assert verb.main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name in model_fields(FAMILIES[family].config):
        assert f"--{name} " in shown, name
    size = FAMILIES[family].config().hidden_size
    meaning = f"Width of the hidden states and of each latent row (default: {size})"
    assert f"--hidden_size INT {meaning}" in shown
    assert f"the model ({family}): " in shown
    assert "--hidden-size" not in shown
    assert "(default: )" not in shown
    assert "--position_embedding_type {sinusoidal,learned,none}" in shown
    assert "--learning_rate FLOAT" in shown
    assert not re.search(r"--no_\w+", shown)
