"""Processes of a launcher: what each of them says. tests/training/test_distributed.py and
tests/inference/test_encode_processes.py have two of them."""

from __future__ import annotations

import gc
import weakref
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from accelerate import PartialState

from hf_meanmax import processes
from hf_meanmax.commands.encode import main
from hf_meanmax.commands.options import command_line
from hf_meanmax.processes import (
    PeerEndedError,
    check_agreement,
    end_processes,
    errors_once,
    errors_shared,
    main_process_first,
    naming_lost_processes,
    process_state,
    shared_versions,
    tells,
    wait_for_everyone,
)

ALONE = SimpleNamespace(num_processes=1, is_main_process=True)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(("rank", "said"), [("0", "unknown option --bach-size"), ("1", "")])
def test_one_process_a_machine_tells_of_a_misspelt_option(monkeypatch, capsys, rank, said):
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(SystemExit) as ended:
        main(["model", "text", "--output", "out", "--bach-size", "3"])
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert bool(said) == bool(errors)


def test_one_process_a_machine_tells_of_a_wrong_value(monkeypatch):
    def read() -> None:
        with errors_once():
            raise ValueError("a wrong value")

    with pytest.raises(ValueError, match="a wrong value"):
        read()
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(SystemExit) as ended:
        read()
    assert ended.value.code == 1


def test_a_process_whose_peer_has_ended_says_nothing():
    with pytest.raises(SystemExit) as ended, command_line("encode"):
        raise PeerEndedError("Another process has ended.")
    assert ended.value.code == 1


@pytest.mark.parametrize(("rank", "said"), [("0", "hf-meanmax encode: of all"), ("3", 1)])
def test_a_shared_error_is_told_by_the_main_process(monkeypatch, rank, said):
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit) as ended, command_line("encode"):
        raise processes._marked(ValueError("of all"))
    assert ended.value.code == said
    assert tells(ValueError("its own"))


@pytest.mark.parametrize("state", [None, ALONE])
def test_one_process_waits_for_nobody(state):
    wait_for_everyone(state)
    check_agreement(state, {"version": 1})
    with main_process_first(state):
        pass
    with pytest.raises(ValueError, match="its own") as raised, errors_shared(state):
        raise ValueError("its own")
    assert tells(raised.value)


def test_an_error_of_a_process_is_not_taken_for_that_of_another(monkeypatch):
    """Of two processes the other one has ended."""

    def closed(*args: object, **options: object) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(processes, "_patient_group", lambda world: None)
    for name, found in (("get_world_size", lambda: 2), ("get_rank", lambda: 0), ("all_gather_object", closed)):
        monkeypatch.setattr(torch.distributed, name, found)
    here, there = (SimpleNamespace(num_processes=2, is_main_process=is_main) for is_main in (True, False))
    with pytest.raises(RuntimeError, match="its own") as raised, main_process_first(here):
        raise RuntimeError("its own")
    assert type(raised.value) is RuntimeError
    with pytest.raises(PeerEndedError, match="Connection closed"), main_process_first(there):
        pytest.fail("the block ran")


def test_no_group_outlives_the_end(tmp_path):
    """One that the interpreter ends aborts the process now and then."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    group = weakref.ref(processes._patient_group(torch.distributed.group.WORLD))
    assert group() is not None
    end_processes()
    gc.collect()
    assert group() is None
    assert not torch.distributed.is_initialized()
    end_processes()


@pytest.mark.parametrize(
    "text",
    [
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [::1]:4501: Connection reset by peer",
        "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete",
        "NCCL communicator was aborted on rank 1.",
    ],
)
def test_what_backends_say_of_a_lost_process(monkeypatch, text):
    with pytest.raises(RuntimeError, match=r"\w"), naming_lost_processes(MINUTE):
        raise RuntimeError(text)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConnectionError, match=r"ended, or did not answer within 60 s .*resumes from") as caught:
        with naming_lost_processes(MINUTE):
            raise RuntimeError(text)
    assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError, match="of another kind"), naming_lost_processes(MINUTE):
        raise RuntimeError("of another kind")


def test_versions_are_those_that_run():
    versions = shared_versions()
    assert versions["version of torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"version of hf_meanmax", "version of transformers"} <= set(versions)


def test_processes_that_do_not_know_of_one_another(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    # As on a machine whose accelerator has no backend.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    PartialState._reset_state()
    with pytest.raises(ValueError, match="4 processes were launched, but accelerate sees 1"):
        process_state()
    PartialState._reset_state()
