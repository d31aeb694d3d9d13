"""The command line: from a model and a folder of tasks to results.json, report and model card."""

from __future__ import annotations

import json
import lzma
import os
import signal
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from evaluation.senteval_folder import write_senteval_folder
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands import evaluate as module
from hf_meanmax.commands.evaluate import main
from hf_meanmax.evaluation import senteval
from hf_meanmax.evaluation.report import Results
from hf_meanmax.evaluation.senteval import PAPER_TASKS
from hf_meanmax.evaluation.suite import load_tasks, model_name
from hf_meanmax.inference.encoder import load_encoder
from tiny_model import make_model, make_tokenizer, random_lines

TASKS = "MRPC,SICK-R,STS14"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_senteval_folder(root / "senteval", size=40)
    return root


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny" / "model"
    return save_checkpoint(make_model(), make_tokenizer(), folder)


@pytest.fixture
def run(data, tmp_path, monkeypatch):
    """Runs the command line in a folder of its own and gives the folder of its output."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path, tasks: str = TASKS, sizes: tuple[str, ...] = ("--any-size",)) -> Path:
        main([*map(str, arguments), "--data", str(data), "--tasks", tasks, *sizes, "--device", "cpu"])
        return tmp_path / "results"

    return call


def test_a_model_and_its_controls(run, checkpoint, capsys, monkeypatch):
    # As if the tiny sets were those that are published.
    monkeypatch.setattr(senteval, "_check_counts", lambda *arguments: None)
    folder = run(checkpoint, "--seeds", "2", "--write-model-card", sizes=()) / "tiny"
    results = Results.load(folder)
    assert results.name == "tiny"
    assert list(results.scores) == ["MRPC", "SICK-R", "STS14"]
    assert results.settings["seeds"] == [0, 1]
    assert {kind: found["tasks"]["MRPC"]["accuracy"]["n"] for kind, found in results.spreads.items()} == {
        "random_encoder": 2,
        "random_projection": 2,
        "echo_state_network": 2,
        "bag": 1,
        "majority": 1,
    }
    assert results.spreads["majority"]["tasks"]["STS14"]["pearson"]["mean"] == 0
    assert results.spreads["majority"]["tasks"]["MRPC"]["accuracy"]["mean"] == 50
    assert set(results.gains) == {"MRPC", "SICK-R", "STS14"}
    assert results.tasks["MRPC"]["unknown_word_rate"] == 1
    assert results.command.startswith("hf-meanmax evaluate ")
    report = (folder / "report.md").read_text()
    assert "| **tiny** |" in report
    assert "| echo state network |" in report
    entries = huggingface_hub.ModelCard.load(checkpoint / "README.md").data.eval_results
    assert [entry.dataset_config for entry in entries] == ["MRPC", "MRPC", "SICK-R", "SICK-R", "STS14", "STS14"]
    assert entries[0].metric_value == results.scores["MRPC"]["metrics"]["accuracy"]
    said = capsys.readouterr().out
    assert said.startswith("tiny\n  MRPC ")


def test_the_same_command_again_computes_nothing(run, checkpoint, monkeypatch):
    first = Results.load(run(checkpoint, "--controls", "bag,random-encoder", "--seeds", "1") / "tiny")

    def encode(*unused, **options):
        raise AssertionError("encoded again")

    monkeypatch.setattr(SentenceTransformer, "encode", encode)
    second = Results.load(run(checkpoint, "--controls", "bag,random-encoder", "--seeds", "1") / "tiny")
    assert second.scores == first.scores
    assert second.controls == first.controls
    assert second.gains == first.gains
    assert second.tasks == first.tasks


def test_saved_embeddings_score_as_their_model(run, checkpoint, tmp_path, capsys):
    run("--write-sentences", "all.txt")
    texts = (tmp_path / "all.txt").read_text().split("\n")[:-1]
    assert f"{len(texts):,} texts: all.txt" in capsys.readouterr().err
    assert texts == sorted({text for task in TASKS.split(",") for text in sentences(run, task, tmp_path)})
    run("--write-sentences", "more.txt", "--erasure", "SST5")
    more = (tmp_path / "more.txt").read_text().split("\n")[:-1]
    assert more == sorted({*texts, *sentences(run, "SST5", tmp_path)})
    np.save("vectors.npy", load_encoder(str(checkpoint), device="cpu").encode(texts))
    saved = Results.load(run("--embeddings", "vectors.npy", "--sentences", "all.txt") / "vectors")
    model = Results.load(run(checkpoint, "--controls", "none") / "tiny")
    assert set(saved.spreads) == {"majority"}
    assert saved.model["sentences_per_second"] is None
    for task, scores in model.scores.items():
        for metric, value in scores["metrics"].items():
            # Every word is unknown, so texts of equal length tie, up to rounding, which decides their ranks.
            tolerance = 0.03 if "spearman" in metric else 0.01
            assert saved.scores[task]["metrics"][metric] == pytest.approx(value, abs=tolerance), (task, metric)
    # Scaled ones stand beside these.
    output = run("--embeddings", "vectors.npy", "--sentences", "all.txt", "--unit-length", "--controls", "none")
    assert (output / "vectors-unit" / "results.json").is_file()
    with pytest.raises(SystemExit, match=r"SST5: all.txt lacks .* texts of the tasks, the first 'label"):
        run("--embeddings", "vectors.npy", "--sentences", "all.txt", tasks="SST5")


def sentences(run, task: str, tmp_path: Path) -> list[str]:
    run("--write-sentences", "one.txt", tasks=task)
    return (tmp_path / "one.txt").read_text().split("\n")[:-1]


def test_several_models_have_a_common_report(run, checkpoint, tmp_path):
    other = save_checkpoint(make_model(seed=1), make_tokenizer(), tmp_path / "other")
    folder = run(checkpoint, other, "--controls", "majority", tasks="STS14") / "comparison"
    assert Results.load(folder / "tiny").scores != Results.load(folder / "other").scores
    report = (folder / "report.md").read_text()
    assert "| **tiny** |" in report
    assert "| **other** |" in report
    assert not (folder / "correlations.csv").exists()


def test_a_model_within_another_has_a_report_of_its_own(run, checkpoint, tmp_path):
    save_checkpoint(make_model(seed=1), make_tokenizer(), Path(checkpoint) / "model")
    folder = run(checkpoint, Path(checkpoint) / "model", "--controls", "none", tasks="STS14") / "comparison"
    assert {path.parent.name for path in folder.glob("*/report.md")} == {"tiny", "model"}
    assert (folder / "report.md").is_file()


def test_erasure_of_latent_rows_and_dimensions(run, checkpoint):
    folder = run(checkpoint, "--controls", "none", "--erasure", "TREC", "--latent-rows", "2") / "tiny"
    found = json.loads((folder / "erasure.json").read_text())["TREC"]
    dimension = Results.load(folder).model["dimension"]
    assert len(found["rows"]["without"]) == len(found["rows"]["only"]) == 2
    assert len(found["dimensions"]["without"]) == dimension
    assert len(found["dimensions"]["relative"]) == len(found["dimensions"]["absolute"]) == dimension
    assert found["rows"]["accuracy"] == pytest.approx(found["dimensions"]["accuracy"])
    run(checkpoint, "--controls", "none", "--erasure", "TREC")
    assert json.loads((folder / "erasure.json").read_text())["TREC"]["rows"] is None


def test_erasure_needs_single_sentences_with_a_test_set(run, checkpoint):
    with pytest.raises(SystemExit, match="MRPC cannot be used for erasure"):
        run(checkpoint, "--controls", "none", "--erasure", "MRPC")


def test_rows_that_do_not_divide_a_vector_are_refused_first(run, checkpoint, tmp_path):
    with pytest.raises(SystemExit, match=r"--latent_rows is 3; the vectors of tiny have 32 numbers"):
        run(checkpoint, "--controls", "none", "--erasure", "TREC", "--latent-rows", "3")
    assert not (tmp_path / "results").exists()


def test_truncated_vectors(run, checkpoint):
    results = Results.load(run(checkpoint, "--truncate-dim", "8", "--controls", "none", tasks="STS14") / "tiny-8")
    assert (results.model["name"], results.model["dimension"]) == ("tiny-8", 8)
    with pytest.raises(SystemExit, match=r"--truncate_dim is 33, the vectors of .* have 32 numbers"):
        run(checkpoint, "--truncate-dim", "33")


@pytest.mark.parametrize("how", ["interrupt", "terminate"])
def test_an_interrupted_run_says_how_to_go_on(run, checkpoint, monkeypatch, capsys, how):
    def stopped(*unused, **settings):
        if how == "interrupt":
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(module, "evaluate_models", stopped)
    with pytest.raises(SystemExit) as ended:
        run(checkpoint, "--cache", "kept")
    assert ended.value.code == 128 + (signal.SIGINT if how == "interrupt" else signal.SIGTERM)
    assert "Finished tasks are kept in kept; rerun the command to resume." in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "SICKR"], r"There is no task or group 'SICKR'. Did you mean 'SICK-R'\?"),
        (["--tasks", "tne"], r"Did you mean 'ten'\?"),
        (["--tasks", ","], r"No task was named"),
        (["--controls", "bags"], r"There is no control 'bags'. Did you mean 'bag'\?"),
        (["--controls", "all,bag"], r"`controls` is 'all,bag'; give all, none, or a list of"),
        (["--controls", ","], r"`controls` is ','; give all, none, or a list of random_encoder"),
        (["--write-model-card", "--unit-length"], r"takes no scores of scaled vectors; leave out --unit_length"),
        (["--write-model-card", "--any-size"], r"takes scores of the published sets alone; leave out --any_size"),
        (["--embeddings", "x.npy"], r"--embeddings and --sentences belong together"),
        (["--embeddings", "x.npy", "--sentences", "x.txt"], r"not both, and not neither"),
        (["--write-model-card"], r"writes into the folder of a model, and 'nobody/model' is none"),
    ],
    ids=[
        "task",
        "group",
        "no task",
        "control",
        "all and one",
        "no control",
        "scaled",
        "sizes",
        "no sentences",
        "both",
        "no folder",
    ],
)
def test_wrong_arguments(data, arguments, message):
    with pytest.raises(SystemExit, match=message):
        main(["nobody/model", "--data", str(data), *arguments])


def test_missing_data_says_what_to_set(monkeypatch, tmp_path, checkpoint):
    monkeypatch.delenv("HF_MEANMAX_DATA", raising=False)
    with pytest.raises(SystemExit, match=r"^hf-meanmax evaluate: .*Give --data FOLDER, or set HF_MEANMAX_DATA"):
        main([str(checkpoint)])
    monkeypatch.setenv("HF_MEANMAX_DATA", str(tmp_path / "nothing"))
    with pytest.raises(SystemExit, match=r"No such folder: .*nothing' \(from HF_MEANMAX_DATA\)"):
        main([str(checkpoint)])
    monkeypatch.setenv("HF_MEANMAX_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="or in senteval/downstream/ of it"):
        main([str(checkpoint)])


def test_groups_of_tasks(data, tmp_path):
    assert [task.name for task in load_tasks("ten", data, check_counts=False)] == list(PAPER_TASKS)
    (tmp_path / "senteval" / "downstream").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="has the files of no SentEval task; expected senteval/downstream/MR"):
        load_tasks("senteval", tmp_path)
    with pytest.raises(FileNotFoundError, match="has the files of no SentEval task"):
        load_tasks("all", tmp_path)
    names = [task.name for task in load_tasks("senteval,mr", data, check_counts=False)]
    assert len(names) == len(set(names)) == 17
    with pytest.raises(ValueError, match="expected"):
        load_tasks("MR", data)


def test_names_of_models(tmp_path, monkeypatch):
    (tmp_path / "runs" / "books" / "model").mkdir(parents=True)
    assert model_name(str(tmp_path / "runs" / "books" / "model")) == "books"
    monkeypatch.chdir(tmp_path / "runs" / "books")
    assert model_name("model") == "books"
    assert model_name("runs/films/expanded") == "films-expanded"
    assert model_name("expanded") == "expanded"
    assert model_name("runs/films/model/onnx") == "films-onnx"
    assert model_name("runs/films/model/onnx/model_int8.onnx") == "films-onnx-model_int8"
    assert model_name("sentence-transformers/all-MiniLM-L6-v2") == "all-MiniLM-L6-v2"


def test_results_hold_no_path_of_the_cache(run, checkpoint, tmp_path):
    folder = run(checkpoint, "--controls", "none", "--cache", "kept", tasks="STS14") / "tiny"
    content = json.loads((folder / "results.json").read_text())
    assert set(content) >= {"format_version", "model", "tasks", "scores", "versions", "created", "command"}
    assert len(list((tmp_path / "kept").rglob("STS14-*.json"))) == 1


def write_xz(path: Path, rows: list[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{first}\t{second}\n" for first, second in rows)


def test_intrinsic_tasks_stand_apart_from_published_numbers(checkpoint, tmp_path, monkeypatch):
    lines = [line for line in dict.fromkeys(random_lines(200)) if line]
    clusters = [(str(number // 4), line) for number, line in enumerate(lines[:80])]
    write_xz(tmp_path / "paraphrases" / "multi30k-captions.test.tsv.xz", clusters)
    for number, split in enumerate(("train", "heldout", "test")):
        part = lines[40 * number : 40 * number + 40]
        write_xz(
            tmp_path / "domain-alignment" / f"sentence-compression.{split}.tsv.xz",
            list(zip(part[:20], part[20:], strict=True)),
        )
    monkeypatch.chdir(tmp_path)
    main([str(checkpoint), "--data", ".", "--tasks", "intrinsic", "--controls", "bag", "--device", "cpu"])
    results = Results.load(tmp_path / "results" / "tiny")
    assert list(results.scores) == ["paraphrases", "domain-alignment"]
    assert results.averages == {}
    text = (tmp_path / "results" / "tiny" / "report.md").read_text()
    assert "## SentEval" not in text
    measured, published = text.split("## Other tasks")[1].split("## Published intrinsic scores, on other sets")
    assert "| paraphrases | nearest_cosine | **tiny** |" in measured
    assert "| domain-alignment | incl_l2 | **tiny** |" in measured
    assert "COCO" not in measured
    assert "**tiny**" not in published.split("## How")[0]
    assert "| InferSent |" in published


def test_correlations_between_metrics_of_three_models(run, checkpoint, tmp_path):
    pytest.importorskip("matplotlib")
    others = [save_checkpoint(make_model(seed=seed), make_tokenizer(), tmp_path / f"other{seed}") for seed in (1, 2)]
    folder = run(checkpoint, *others, "--controls", "none", tasks="STS13,STS14") / "comparison"
    lines = (folder / "correlations.csv").read_text().splitlines()
    assert lines[0].startswith("metric,STS13 pearson,")
    table = np.array([[float(cell) for cell in line.split(",")[1:]] for line in lines[1:]])
    assert np.allclose(np.diag(table), 1)
    assert np.allclose(table, table.T)
    assert "![correlations](correlations.png)" in (folder / "report.md").read_text()
    assert (folder / "correlations.png").read_bytes().startswith(b"\x89PNG")
    scores = [Results.load(folder / name).scores for name in ("tiny", "other1", "other2")]
    pairs = [(one["STS13"]["metrics"]["pearson"], one["STS14"]["metrics"]["pearson"]) for one in scores]
    place = lines[0].split(",").index("STS14 pearson") - 1
    assert table[0, place] == pytest.approx(np.corrcoef(np.array(pairs).T)[0, 1], abs=1e-4)
