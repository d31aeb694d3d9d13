"""The table of translators: BLEU, scores of representations, and how they go together."""

from __future__ import annotations

import json

import pytest

from hf_meanmax import CompoundAttentionForTranslation
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands.reproduce import compare_translations as main
from hf_meanmax.commands.translate import main as translate
from hf_meanmax.evaluation.report import Results
from hf_meanmax.reproduce import translation_table as translate_module
from hf_meanmax.reproduce.translation_table import compare_translators, representation_scores
from tiny_model import make_model, make_tokenizer

LINES = ["the cat sat", "a dog ran on the mat", "the red dog ran", "the old cat sat on the mat"]


def results(name: str, accuracy: float) -> Results:
    metrics = {
        "MR": ("accuracy", {"accuracy": accuracy, "dev_accuracy": 1.0}),
        "TREC": ("accuracy", {"accuracy": 80.0}),
        "SICK-R": ("pearson", {"pearson": 0.7, "mse": 0.3}),
        "STS14": ("pearson", {"pearson": 0.5}),
        "paraphrases": ("nearest_cosine", {"nearest_cosine": accuracy / 2, "inverse_davies_bouldin": 0.4}),
    }
    return Results(
        model={"name": name},
        tasks={task: {"main": main} for task, (main, _) in metrics.items()},
        scores={task: {"metrics": found} for task, (_, found) in metrics.items()},
    )


@pytest.fixture
def systems(tmp_path):
    """Four translators, one of them without a representation; the scores of the others."""
    found = {}
    for number, architecture in enumerate(("attn", "final", "attn-attn", "avgpool")):
        size = {} if architecture == "attn" else {"latent_size": 6}
        model = make_model(
            number, CompoundAttentionForTranslation, architecture=architecture, initializer_range=1.0, **size
        )
        found[architecture] = save_checkpoint(model, make_tokenizer(), tmp_path / architecture)
        if size:
            results(architecture, 60.0 + number).save(tmp_path / "results" / architecture / "results.json")
    return found


def test_averages_are_of_the_main_metrics():
    assert representation_scores(results("x", 70.0)) == pytest.approx(
        {
            "mean accuracy of 2": 75.0,
            "mean similarity of 2": 60.0,
            "paraphrases nearest_cosine": 35.0,
            "paraphrases inverse_davies_bouldin": 0.4,
        }
    )


def test_table_numbers_and_figure(systems, tmp_path, capsys, monkeypatch):
    source, reference = tmp_path / "x.en", tmp_path / "x.de"
    source.write_text("\n".join(LINES) + "\n")
    # What one of them says is the reference, so that it alone is right.
    translate([str(systems["final"]), str(source), "--output", str(reference)])
    output = tmp_path / "table"
    command = [
        *(f"{name}={folder}" for name, folder in systems.items()),
        "--pairs", f"test={source},{reference}", "--results", str(tmp_path / "results"), "--output", str(output),
    ]  # fmt: skip
    main(command)
    table = (output / "translators.md").read_text()
    assert capsys.readouterr().out.endswith(table)
    numbers = json.loads((output / "translators.json").read_text())
    bleu = {name: scores["BLEU test"] for name, scores in numbers.items()}
    assert bleu["final"] == max(bleu.values())
    assert (numbers["attn"]["heads"], numbers["attn"]["size"]) == (0, 0)
    assert "mean accuracy of 2" not in numbers["attn"]
    assert numbers["avgpool"]["mean accuracy of 2"] == pytest.approx(71.5)
    header = [cell.strip() for cell in table.splitlines()[0].strip("|").split("|")]
    assert header[:4] == ["system", "rows", "size", "BLEU test"]
    assert {"paraphrases nearest cosine", "mean similarity of 2"} <= set(header)
    # The ends of files that a glob matches are no lines.
    for number in range(2):
        (tmp_path / f"part{number}.txt").write_text("\n".join(LINES[2 * number : 2 * number + 2]) + "\n")
    main([str(systems["final"]), "--pairs", f"test={tmp_path}/part*.txt,{reference}", "--output", str(tmp_path / "g")])
    # Scored once; new scores of a representation are taken in.
    monkeypatch.setattr(translate_module, "translate_corpus", lambda *_, **__: pytest.fail("translated again"))
    results("avgpool", 90.0).save(tmp_path / "results" / "avgpool" / "results.json")
    main(command)
    assert json.loads((output / "translators.json").read_text())["avgpool"]["mean accuracy of 2"] == pytest.approx(85.0)
    # Other references, or other weights in the same folder, are scored anew.
    monkeypatch.undo()
    reference.write_text("\n".join(["nothing of it"] * len(LINES)) + "\n")
    main(command)
    assert json.loads((output / "translators.json").read_text())["final"]["BLEU test"] < 1
    other = make_model(9, CompoundAttentionForTranslation, architecture="final", initializer_range=1.0, latent_size=6)
    save_checkpoint(other, make_tokenizer(), systems["final"])
    said = []
    translate_corpus = translate_module.translate_corpus
    monkeypatch.setattr(
        translate_module,
        "translate_corpus",
        lambda model, *rest, **more: said.append(model) or translate_corpus(model, *rest, **more),
    )
    main(command)
    assert [model.config.architecture for model in said] == ["final"]
    pytest.importorskip("matplotlib")
    assert (output / "correlations.png").stat().st_size > 5000


def test_refusals(systems, tmp_path):
    (tmp_path / "one").write_text("a\n")
    (tmp_path / "two").write_text("a\nb\n")
    folder = str(systems["final"])
    for models, pairs, reason in (
        ([folder], "test", "expected NAME=SOURCE,REFERENCE"),
        ([folder], f"t={tmp_path / 'one'},{tmp_path / 'two'}", "has 1 lines and .* 2; they must be as many"),
        ([f"a={folder}", f"a={folder}"], f"t={tmp_path / 'one'},{tmp_path / 'one'}", "need different names"),
    ):
        with pytest.raises(SystemExit, match=reason):
            main([*models, "--pairs", pairs, "--output", str(tmp_path / "out")])
    with pytest.raises(FileNotFoundError, match="No checkpoint folder"):
        compare_translators({"x": tmp_path / "nothing"}, {"t": (["a"], ["b"])}, tmp_path / "out")
