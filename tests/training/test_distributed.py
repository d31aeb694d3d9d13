"""Runs on two processes of `accelerate launch`, with DDP and with FSDP2, over gloo on the CPU.

Starting processes takes longer than what they do, so one launch makes all runs ([`training.launched`]).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.training import pretrain as pretraining
from hf_meanmax.training import teacher
from hf_meanmax.training.checkpoints import CHECKPOINTS, Checkpoints
from hf_meanmax.training.pretrain import pretrain
from hf_meanmax.training.recipes import arguments_from_settings
from tiny_model import make_model, make_tokenizer, run_python
from training.conftest import sentences
from training.test_pretrain import records, weights

LAUNCHED = Path(__file__).parent / "launched.py"
KINDS = ["ddp", "fsdp"]
STEPS = 2
# Parts of a run that take longer than its steps: FLOPs are counted, and the finished model is written.
SLOW = ["count_flops_per_token", "save_checkpoint"]
BASE = {
    "vocab_size": 40, "embedding_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
    "embedding_dropout": 0.0, "attention_dropout": 0.0, "batch_tokens": 100, "learning_rate": 0.01, "log_steps": 1,
    "max_steps": STEPS, "checkpoint_steps": STEPS, "eval_steps": 0, "precision": "fp32", "ddp_timeout": 60,
    "sample_sentences": 0, "validation_sentences": 8, "max_grad_norm": 1.0,
}  # fmt: skip
RNN = {"family": "rnn_cnn", "decoder_channels": [12, 16, 8], "num_context_words": 9}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "reconstruction": {"gradient_accumulation_steps": 2, "batch_tokens": 50},
    "sampled_with_noise": {"softmax": "sampled", "num_negatives": 5, "word_drop": 0.2, "word_swap": 0.2},
    "penalty": {
        "family": "structured_self_attention", "latent_heads": 3, "pooling_hidden_size": 8, "attention_penalty": 0.3,
    },
    "next_words": {**RNN, "objective": "next_words", "softmax": "sampled", "num_negatives": 30},
    "next_sentence": {**RNN, "objective": "next_sentence", "decoder_type": "gru"},
    "neighbours": {
        "family": "rnn_cnn", "objective": "neighbours", "encoder_type": "gru", "pooling": "last", "decoder_type": "gru",
        "predict_previous": True, "tie_word_embeddings": False,
    },
    "context": {"context_channels": [24, 16], "num_context_words": 9, "context_weight": 0.5},
    "translation": {
        "family": "compound_attention", "objective": "translation", "architecture": "attn-attn", "latent_heads": 4,
        "latent_size": 16, "softmax": "chunked", "corpus": "PLACE/train.src", "target": "PLACE/train.tgt",
        "validation_target": "PLACE/held-out.tgt",
    },
    "teacher_and_contrast": {
        "teacher": "PLACE/teacher", "similarity_weight": 0.5, "contrastive": "both", "word_drop": 0.2,
        "contrastive_size": 8, "weighted_mean_row": True, "latent_normalization": "rows", "latent_scales": True,
    },
    "static": {
        "objective": "none", "contrastive": "neighbours", "encoder_type": "none", "pooling": "weighted_mean",
        "latent_size": 8, "teacher": "PLACE/teacher", "teacher_loss": "contrast",
    },
    "inversion": {
        "objective": "embedding_inversion", "embedder": "PLACE/teacher", "latent_length": 2, "embedding_noise": 0.1,
    },
    "muon": {"optimizer": "muon", "tie_word_embeddings": True},
}  # fmt: skip
# Muon needs whole matrices.
NOT_SHARDED = ["muon"]
RUNS = [(kind, name) for kind in KINDS for name in OBJECTIVES if kind != "fsdp" or name not in NOT_SHARDED]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


class Place:
    """A folder with texts, a teacher and the folders of runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        train, held_out = sentences(60, seed=0), sentences(8, seed=1)
        documents = "\n\n".join("\n".join(train[start : start + 10]) for start in range(0, 60, 10))
        for name, lines in (("train", train), ("held-out", held_out)):
            (folder / f"{name}.src").write_text("\n".join(lines) + "\n")
            (folder / f"{name}.tgt").write_text("\n".join(" ".join(reversed(line.split())) for line in lines) + "\n")
        (folder / "train.txt").write_text(documents + "\n")
        save_checkpoint(make_model(), make_tokenizer(), folder / "teacher")

    def settings(self, output: str, **changes: Any) -> dict[str, Any]:
        """Flat settings of a run in the folder `output`."""
        given = {
            **BASE, "corpus": "PLACE/train.txt", "validation": "PLACE/held-out.src", "cache_dir": "PLACE/cache",
            "output_dir": f"PLACE/{output}", **changes,
        }  # fmt: skip
        return json.loads(json.dumps(given).replace("PLACE", str(self.folder)))

    def train(self, output: str, **changes: Any) -> Path:
        """The folder of a run of this process."""
        args = arguments_from_settings(self.settings(output, **changes))
        pretrain(args)
        return Path(args.output_dir)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "count_flops_per_token", lambda *arguments: 1.0)
        # As in `launched.py`.
        patch.setattr(teacher, "_SETTINGS", replace(teacher._SETTINGS, shard_size=16))
        yield Place(tmp_path_factory.mktemp("distributed"))


@pytest.fixture(scope="module")
def alone(place) -> Callable[[str], Path]:
    """The folder of each objective's run on one process, made once."""
    return functools.cache(lambda name: place.train(f"one/{name}", **OBJECTIVES[name]))


def launch(folder: Path, cases: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    """Runs cases on two processes; returns the launcher's exit code and what each process has written."""
    folder.mkdir()
    (folder / "cases.json").write_text(json.dumps(cases))
    command = ["-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes=2"]
    command += ["--main_process_port=0", str(LAUNCHED), str(folder)]
    result = run_python(*command, timeout=500, ACCELERATE_USE_CPU="true", PYTHONPATH=os.pathsep.join(sys.path))
    files = [folder / f"results-{rank}.json" for rank in range(2)]
    assert all(file.is_file() for file in files), result.stderr[-3000:]
    return result.returncode, [json.loads(file.read_text()) for file in files]


def case(place: Place, settings: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What `launched.py` reads of a case.

    Args:
        settings: flat settings of the run.
        options: `folders`, the working folder of each process; `changes` of the settings in each process; `skipped`,
            functions of the run; `is_sharded`, whether it is one of FSDP.
    """
    folders = [place.folder / f"process-{rank}" for rank in range(2)]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    defaults = {"folders": list(map(str, folders)), "changes": [{}, {}], "skipped": SLOW, "is_sharded": False}
    return {"settings": settings, **defaults, **options}


def plain_cases(place: Place, kind: str) -> dict[str, Any]:
    """Runs of all objectives, and two that another number of processes begins or ends."""
    settings = {name: place.settings(f"{kind}/{name}", **OBJECTIVES[name]) for other, name in RUNS if other == kind}
    cases = {name: case(place, given) for name, given in settings.items()}
    for name in ("teacher_and_contrast", "inversion"):
        # Each kind computes the vectors of a teacher itself.
        cases[name]["settings"]["cache_dir"] += f"-{kind}"
    cases["teacher_and_contrast"]["skipped"] = ["save_checkpoint"]
    place.train(f"{kind}/grown", max_steps=1)
    cases["grown"] = case(place, place.settings(f"{kind}/grown"), skipped=[])
    cases["shrunk"] = case(place, place.settings(f"{kind}/shrunk", max_steps=1))
    return {f"{kind}/{name}": {**found, "is_sharded": kind == "fsdp"} for name, found in cases.items()}


@pytest.fixture(scope="module")
def launched(place) -> list[dict[str, Any]]:
    """What became of each case in each process."""
    cases = plain_cases(place, "ddp") | plain_cases(place, "fsdp")
    code, found = launch(place.folder / "launch", cases | faulty_cases(place))
    failed = {name: [part[name]["stderr"][-3:] for part in found] for name in cases if found[0][name]["code"]}
    # The last case ends the launch.
    assert (code, failed) == (1, {})
    return found


def check_same_run(found: Path, expected: Path) -> None:
    """Losses, scores, weights and what the optimizer holds are alike within float error."""
    for mine, theirs in zip(records(found), records(expected), strict=True):
        for name, value in theirs.items():
            if name == "step" or "loss" in name or "accuracy" in name or "penalty" in name:
                assert mine[name] == pytest.approx(value, rel=1e-5, abs=1e-6), (theirs["step"], name)
    for file in ("model", "optimizer"):
        mine, theirs = (load_file(latest(folder) / f"{file}.safetensors") for folder in (found, expected))
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, atol=2e-4, rtol=1e-4, msg=f"{file}: {name}")


def latest(folder: Path) -> Path:
    path = Checkpoints(folder / CHECKPOINTS).latest()
    assert path is not None
    return path


@pytest.mark.parametrize(("kind", "name"), RUNS)
def test_two_processes_train_as_one(place, alone, launched, kind, name):
    check_same_run(place.folder / kind / name, alone(name))


def test_gradients_are_sent_once_a_step(launched):
    """With two micro batches a step: the first one's gradients stay where they are."""
    assert [part["ddp/reconstruction"]["sent"] for part in launched] == [STEPS, STEPS]


def test_fsdp_holds_a_part_of_each_weight(launched):
    whole = [part["ddp/reconstruction"]["held"] for part in launched]
    parts = [part["fsdp/reconstruction"]["held"] for part in launched]
    assert whole[0] == whole[1] == sum(parts)
    assert max(parts) < 0.6 * whole[0]
    assert [part["ddp/reconstruction"]["sharded"] for part in launched] == [0, 0]


def test_processes_that_share_out_the_weights_take_as_many_steps(launched):
    """Greedy and with beams: one that has ended its texts still holds a part of what the other needs."""
    assert [part["fsdp/reconstruction"]["steps"] for part in launched] == [[12, 12], [12, 12]]


@pytest.fixture(scope="module")
def whole(place) -> Path:
    return place.train("one/whole")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_one_process_goes_on_with_two(place, launched, whole, kind):
    folder = place.folder / kind / "grown"
    check_same_run(folder, whole)
    mine, theirs = weights(folder), weights(whole)
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_two_processes_goes_on_with_one(place, launched, whole, kind):
    check_same_run(place.train(f"{kind}/shrunk"), whole)


# In these each process has a folder of its own, as on machines that share no disk.
APART = {"corpus": ["train.txt"], "validation": ["held-out.src"], "cache_dir": "cache"}
DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "changed": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\1"),
    "truncated": lambda path: os.truncate(path, 40),
}
FULL = "could not be written: No space left on device."
TOLD = {
    "other versions": "Process 1 on HOST has another version of torch than process 0 on HOST (1.0 there, ",
    "other settings": "has another `learning_rate` than process 0 on HOST (0.02 there, 0.01 here). Give every process",
    "other texts": "Process 1 on HOST has another hash of the training texts than process 0 on HOST (",
    "no corpus": "process 1 on HOST: ",
    "no checkpoint": "has another latest checkpoint than process 0 on HOST (None there, step-00000001 here). "
    "`output_dir` must be on a disk that all machines share.",
    "no space for the store": f"process 1 on HOST: .* {FULL}",
    "no space for the teacher": f"process 1 on HOST: .* {FULL}",
    "no space for the checkpoint": f"step-00000002 {FULL}",
    "no space for the model": FULL,
    "a process that stalls": "did not answer within 3 s",
}


def faulty_cases(place: Place) -> dict[str, Any]:
    """Cases with bad input of one process, which in the last one never answers."""
    reconstruction = place.settings("faults")

    def machines(name: str) -> list[Path]:
        """A folder for each process, with the texts."""
        folders = [place.folder / name / str(rank) for rank in range(2)]
        for folder in folders:
            folder.mkdir(parents=True)
            for file in (*APART["corpus"], *APART["validation"]):
                shutil.copy(place.folder / file, folder)
        return folders

    def apart(name: str, prepare: Callable[[list[Path]], object] = list) -> dict[str, Any]:
        folders = machines(name)
        prepare(folders)
        settings = {**reconstruction, **APART, "output_dir": "run"}
        return case(place, settings, folders=list(map(str, folders)))

    def shared(**changes: Any) -> dict[str, Any]:
        return case(place, place.settings(f"faults/{len(cases)}", **changes))

    def swap_two_lines(folders: list[Path]) -> None:
        path = folders[1] / "train.txt"
        first, second, *others = path.read_text().splitlines()
        path.write_text("\n".join([second, first, *others]) + "\n")

    def begin(folders: list[Path]) -> None:
        with contextlib.chdir(folders[0]):
            pretrain(arguments_from_settings({**reconstruction, **APART, "output_dir": "run", "max_steps": 1}))

    def damage(how: str, folders: list[Path]) -> None:
        begin(folders)
        shutil.rmtree(folders[0] / "run")
        DAMAGES[how](max(folders[0].glob("cache/stores/*/tokens.bin"), key=lambda path: path.stat().st_size))

    cases: dict[str, Any] = {}
    cases["other versions"] = shared()
    cases["other settings"] = shared() | {"changes": [{}, {"learning_rate": 0.02}]}
    cases["other texts"] = apart("other texts", swap_two_lines)
    cases["no corpus"] = apart("no corpus", lambda folders: (folders[1] / "train.txt").unlink())
    cases["no checkpoint"] = apart("no checkpoint", begin)
    cases["no space for the store"] = apart("no space for the store")
    cases["no space for the teacher"] = shared(objective="none", teacher="PLACE/teacher", teacher_prompt="a")
    cases["no space for the checkpoint"] = shared()
    cases["no space for the model"] = shared() | {"skipped": []}
    for how in DAMAGES:
        cases[how] = apart(how, functools.partial(damage, how))
    return {**cases, "a process that stalls": shared(ddp_timeout=3) | {"port": free_port()}}


@pytest.mark.parametrize("name", TOLD)
def test_the_main_process_tells_in_a_line_what_is_wrong_in_one(launched, name):
    main = launched[0][name]
    assert main["code"] == 1
    errors = [line for line in main["stderr"] if "hf-meanmax pretrain: " in line]
    assert len(errors) == 1
    told = re.escape(TOLD[name].replace("HOST", socket.gethostname())).replace(r"\.\*", ".*")
    assert re.search(told, errors[0]), errors[0]
    assert not any("Traceback" in line for line in main["stderr"])


@pytest.mark.parametrize("name", TOLD)
def test_no_process_waits_for_one_that_has_failed(launched, name):
    main, other = (part.get(name) for part in launched)
    assert main["seconds"] < 30
    if name == "a process that stalls":
        assert other is None  # The launcher ended it.
    else:
        assert (other["code"], [line for line in other["stderr"] if "hf-meanmax pretrain: " in line]) == (1, [])


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_store_is_told_of_and_made_anew(place, launched, whole, how):
    main, other = (part[how] for part in launched)
    assert (main["code"], other["code"]) == (0, 0)
    warnings = [line for line in main["stderr"] if "The token store is built anew. " in line]
    assert len(warnings) == 1
    assert "tokens.bin" in warnings[0]
    check_same_run(place.folder / how / "0" / "run", whole)
