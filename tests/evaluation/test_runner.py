"""Running encoders over tasks: nothing is computed twice, nothing finished is lost."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from evaluation.fake_tasks import LengthEncoder, LengthTask, words
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.evaluation import runner
from hf_meanmax.evaluation.embedding import Embedder
from hf_meanmax.evaluation.runner import MODEL, Evaluation, ResultCache, TaskError, evaluate, package_versions
from tiny_model import make_model, make_tokenizer


def make_tasks() -> list[LengthTask]:
    return [LengthTask("A", words(20)), LengthTask("B", words(10, start=5)), LengthTask("C", words(12), "pearson")]


def run(encoders, tasks, cache=None) -> Evaluation:
    return evaluate(encoders, tasks, cache, show_progress=False)


def test_every_encoder_is_scored_on_every_task():
    encoders = [LengthEncoder("good"), LengthEncoder("bad", 2, "random", 3)]
    evaluation = run(encoders, make_tasks())
    assert [run.name for run in evaluation.encoders] == ["good", "bad"]
    assert {name: result.score for name, result in evaluation.encoders[0].results.items()} == {
        "A": 100,
        "B": 100,
        "C": pytest.approx(1),
    }
    assert evaluation.encoders[1].results["A"].score == 50
    assert [run.name for run in evaluation.models] == ["good"]
    assert {kind: [run.seed for run in runs] for kind, runs in evaluation.controls.items()} == {"random": [3]}
    assert evaluation.control_results("A") == {"random": [evaluation.encoders[1].results["A"]]}
    first = evaluation.encoders[0]
    assert (first.kind, first.seed, first.dimension) == (MODEL, None, 2)
    assert first.sentences_per_second > 0
    assert first.tasks["A"].versions == package_versions()
    assert {"python", "hf_meanmax", "torch", "numpy", "sentence-transformers"} <= set(package_versions())


def test_one_model_or_task_in_place_of_a_list_is_refused():
    for encoders, tasks in ((LengthEncoder("good"), make_tasks()), ([LengthEncoder("good")], make_tasks()[0])):
        with pytest.raises(TypeError, match=r"takes lists: evaluate\(\[model\], \[task\]\)"):
            evaluate(encoders, tasks)


def test_an_embedder_kept_while_its_model_is_trained_scores_anew(tmp_path):
    tasks = [LengthTask("A", ["the cat", "a dog ran", "the old man saw"])]
    model = SentenceTransformer(str(save_checkpoint(make_model(), make_tokenizer(), tmp_path / "model")), device="cpu")
    embedder = Embedder(model, show_progress=False)
    before = run([embedder], tasks, tmp_path / "cache").encoders[0]
    vectors = embedder(["the cat"])
    assert run([embedder], tasks, tmp_path / "cache").encoders[0].tasks["A"].was_cached
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1
    after = run([embedder], tasks, tmp_path / "cache").encoders[0]
    assert not after.tasks["A"].was_cached
    assert after.key != before.key
    assert not np.array_equal(embedder(["the cat"]), vectors)


def test_texts_that_tasks_share_are_encoded_once():
    evaluation = run([LengthEncoder("good")], make_tasks())
    assert [run.texts_embedded for run in evaluation.encoders[0].tasks.values()] == [20, 0, 0]


def test_each_evaluation_counts_its_own_texts():
    embedder, tasks = Embedder(LengthEncoder("mine"), show_progress=False), [LengthTask("MR", words(9))]
    counts = []
    for _ in range(2):
        evaluate([embedder], tasks, show_progress=False)
        counts.append(embedder.encoded)
    assert counts == [9, 9]


def test_a_finished_task_is_never_computed_again(tmp_path):
    first = run([LengthEncoder("good")], make_tasks(), tmp_path / "cache")
    encoder, tasks = LengthEncoder("good"), make_tasks()
    second = run([encoder], tasks, tmp_path / "cache")
    assert encoder.calls == 0
    assert [task.calls for task in tasks] == [0, 0, 0]
    for name, before in first.encoders[0].tasks.items():
        after = second.encoders[0].tasks[name]
        assert after.was_cached
        assert not before.was_cached
        assert (after.result.metrics, after.result.main) == (before.result.metrics, before.result.main)
        assert (after.result.num_test, after.result.details) == (before.result.num_test, before.result.details)
        assert after.result.items.keys() == before.result.items.keys()
        for item, values in before.result.items.items():
            assert np.array_equal(after.result.items[item], values)
            assert after.result.items[item].dtype == values.dtype
        assert after.seconds_scoring == before.seconds_scoring
        assert after.versions == before.versions
    assert second.encoders[0].dimension == 2


def test_other_encoder_data_or_protocol_is_computed(tmp_path):
    run([LengthEncoder("good")], make_tasks(), tmp_path)
    task = LengthTask("A", words(20))
    run([LengthEncoder("good", 3)], [task], tmp_path)
    assert task.calls == 1
    changed = LengthTask("A", words(21))
    run([LengthEncoder("good")], [changed], tmp_path)
    assert changed.calls == 1
    newer = LengthTask("A", words(20))
    newer.version = 2
    run([LengthEncoder("good")], [newer], tmp_path)
    assert newer.calls == 1
    assert len(list(tmp_path.rglob("A-*.json"))) == 4


def test_a_killed_evaluation_goes_on_where_it_stopped(tmp_path):
    class Killed(LengthTask):
        def evaluate(self, embed, device=None):
            super().evaluate(embed)
            raise KeyboardInterrupt

    tasks = make_tasks()
    tasks[1] = Killed("B", words(10, start=5))
    with pytest.raises(KeyboardInterrupt):
        run([LengthEncoder("good"), LengthEncoder("bad", 2)], tasks, tmp_path)
    again = make_tasks()
    evaluation = run([LengthEncoder("good"), LengthEncoder("bad", 2)], again, tmp_path)
    assert [task.calls for task in again] == [1, 2, 2]
    assert [run.was_cached for run in evaluation.encoders[0].tasks.values()] == [True, False, False]
    assert not list(tmp_path.rglob("*.partial-*"))


def test_a_task_that_fails_loses_no_finished_one(tmp_path):
    class Broken(LengthEncoder):
        def encode(self, texts):
            rows = super().encode(texts)
            rows[[len(text) == 33 for text in texts]] = np.nan
            return rows

    tasks = [*make_tasks(), LengthTask("D", words(3, start=32)), LengthTask("E", words(2))]
    message = r"D: broken gave a vector with NaN or infinity for the text 'xxx.*3 finished tasks are kept in .*cache"
    with pytest.raises(TaskError, match=message) as caught:
        run([Broken("broken")], tasks, tmp_path / "cache")
    assert list(caught.value.evaluation.encoders[0].tasks) == ["A", "B", "C"]
    again = make_tasks()
    run([Broken("broken")], again, tmp_path / "cache")
    assert [task.calls for task in again] == [0, 0, 0]


@pytest.mark.parametrize("damage", ["json", "list", "cut", "items", "other"])
def test_a_damaged_entry_is_computed_again(tmp_path, damage):
    task = LengthTask("A", words(20))
    run([LengthEncoder("good")], [task], tmp_path)
    entry = next(tmp_path.rglob("A-*.json"))
    if damage == "json":
        entry.write_text("{")
    elif damage == "list":
        entry.write_text("[]")
    elif damage == "cut":
        content = json.loads(entry.read_text())
        del content["result"]["metrics"]
        entry.write_text(json.dumps(content))
    elif damage == "items":
        entry.write_text(entry.read_text().replace("<f8", "???"))
    else:
        entry.write_text(entry.read_text().replace("lengths-good", "lengths-else"))
    with pytest.warns(UserWarning, match=r"A-.*json is damaged .*; A is computed again"):
        evaluation = run([LengthEncoder("good")], [task], tmp_path)
    assert task.calls == 2
    assert evaluation.encoders[0].results["A"].score == 100
    run([LengthEncoder("good")], [task], tmp_path)
    assert task.calls == 2


def test_an_encoder_without_a_key_is_not_kept_and_says_so(tmp_path):
    task = LengthTask("A", words(20))
    encoder = LengthEncoder("good").encode
    for _ in range(2):
        with pytest.warns(UserWarning, match="encode has no key that identifies it, so its results are not kept"):
            run([encoder], [task], tmp_path / "cache")
    assert task.calls == 2
    assert not (tmp_path / "cache").exists()
    run([Embedder(encoder, key="given", show_progress=False)], [task], tmp_path / "cache")
    run([Embedder(encoder, key="given", show_progress=False)], [task], tmp_path / "cache")
    assert task.calls == 3


def test_names_are_distinct(tmp_path):
    with pytest.raises(ValueError, match="Several tasks are called A"):
        run([LengthEncoder("good")], [LengthTask("A", words(2)), LengthTask("A", words(3))])
    with pytest.raises(ValueError, match="Several encoders are called good"):
        run([LengthEncoder("good"), LengthEncoder("good", 2)], make_tasks())
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        ResultCache(tmp_path / "file")


def test_only_what_later_tasks_need_is_remembered():
    held = []

    class Looking(LengthTask):
        def evaluate(self, embed, device=None):
            result = super().evaluate(embed)
            held.append({len(text) for text in embed._kept})
            return result

    tasks = [Looking("A", [*words(8), "xx"]), Looking("B", words(3, start=6)), Looking("C", words(2, start=8))]
    embedder = Embedder(LengthEncoder("good"), show_progress=False)
    run([embedder], tasks)
    assert held == [{2, 6, 7, 8}, {2, 6, 7, 8}, {2, 6, 7, 8}]
    assert embedder.encoded == 9


def test_memory_of_an_encoder_is_given_back():
    embedder = Embedder(LengthEncoder("good"), show_progress=False)
    run([embedder], make_tasks())
    assert embedder._kept == {}


def test_scores_are_shown_as_the_field_prints_them():
    assert runner.format_score(78.66, "accuracy") == "78.7"
    assert runner.format_score(82.04, "f1") == "82.0"
    assert runner.format_score(0.8537, "pearson") == "0.854"
    assert runner.format_score(0.3671, "inverse_davies_bouldin") == "0.367"
