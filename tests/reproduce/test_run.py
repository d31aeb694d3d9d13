"""A list of systems becomes a table; what is finished is not done again."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import signal
import statistics
import subprocess
import sys

import numpy as np
import pytest
import yaml
from filelock import FileLock

from evaluation.senteval_folder import write_senteval_folder
from hf_meanmax import CompoundAttentionForTranslation
from hf_meanmax.checkpoint.folder import save_checkpoint
from hf_meanmax.commands import __main__ as commands
from hf_meanmax.commands.reproduce import main
from hf_meanmax.evaluation.reconstruction import score_checkpoint
from hf_meanmax.reproduce import run as module
from hf_meanmax.reproduce.plan import folder_name, given_weights, is_finished, read_plan
from hf_meanmax.tokenization import WordVectors
from hf_meanmax.training.recipes import arguments_from_settings, read_recipe
from tiny_model import WORDS, make_model, make_tokenizer, python_environment, random_lines

TINY = {
    "vocab_size": 40, "embedding_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
    "batch_tokens": 200, "max_training_tokens": 400, "eval_steps": 0, "min_tokens": 1, "precision": "fp32",
    "validation_sentences": 20, "max_steps": 1000, "sample_sentences": 0,
}  # fmt: skip


@pytest.fixture
def data(tmp_path):
    write_senteval_folder(tmp_path / "data" / "senteval")
    (tmp_path / "data" / "text.txt").write_text("\n".join(filter(None, random_lines(300))) + "\n")
    save_checkpoint(make_model(), make_tokenizer(), tmp_path / "data" / "other")
    return tmp_path / "data"


@pytest.fixture
def in_process(monkeypatch):
    """The package's own commands run in this process, which has imported what they need.

    `test_one_failure_does_not_stop_the_others` has a process of its own for each."""
    run = module._run

    def run_here(command):
        if tuple(command[:3]) != module.COMMAND:
            return run(command)
        print("$ " + shlex.join(command))
        try:
            code = commands.main(command[3:])
        except SystemExit as error:
            code = error.code
        if code:
            raise ChildProcessError(f"{shlex.join(command)} ended with exit code {code}.")

    monkeypatch.setattr(module, "_run", run_here)


def write_plan(path, **changes):
    (path.parent / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    plan = {
        "prepare": [{"command": "cp {data}/text.txt {output}/corpus.txt", "makes": "{output}/corpus.txt"}],
        # A rate of an optimizer that only another system might have.
        "common": {"corpus": "{output}/corpus.txt", "cache_dir": "{output}/cache", "muon_rate": 2.0},
        "systems": {
            "mean-max AAE (tiny)": {"recipe": str(path.parent / "tiny.yaml"), "seeds": [3, 4]},
            "another": {"model": "{data}/other", "controls": "none"},
        },
        "evaluate": {"tasks": "TREC,STS12,STS13", "controls": "bag", "any_size": True},
        "reconstruct": {"source": "{output}/corpus.txt", "limit": 20, "min_tokens": 1},
        "cards": {"folder": "{output}/cards", "prefix": "tiny-", "limits": "Small talk only."},
        **changes,
    }
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return str(path)


@pytest.mark.usefixtures("in_process")
def test_systems_become_a_table(data, tmp_path, capsys, monkeypatch):
    plan, output = write_plan(tmp_path / "plan.yaml"), tmp_path / "results"
    main([plan, "--data", str(data), "--output", str(output)])
    table = (output / "table.md").read_text()
    assert capsys.readouterr().out.rstrip().endswith(table.rstrip())
    table, legend = table.split("\n\n")
    assert "`prepared files`" in legend
    header, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    assert header == [
        "system", "dimension", "TREC", "STS12", "STS13", "mean of STS12, STS13", "BLEU", "word for word",
        "training tokens", "minutes", "CPU minutes", "tokens/s", "sentences/s", "runs", "prepared files",
    ]  # fmt: skip
    assert [line[0] for line in lines] == ["mean-max AAE (tiny)", "another"]
    trained, other = (dict(zip(header, line, strict=True)) for line in lines)
    assert (trained["runs"], other["runs"]) == ("2", "1")
    corpus_hash = hashlib.blake2b((output / "corpus.txt").read_bytes(), digest_size=8).hexdigest()
    assert (trained["prepared files"], other["prepared files"]) == (corpus_hash[:4], "")
    mean, deviation = map(float, trained["training tokens"].split(" \u00b1 "))
    assert 400 <= mean < 700
    assert other["training tokens"] == ""
    # A checkpoint without a record of its training reconstructs.
    assert float(other["BLEU"]) >= 0
    rows = json.loads((output / "rows.json").read_text())
    assert list(rows) == ["mean-max AAE (tiny), seed 3", "mean-max AAE (tiny), seed 4", "another"]
    row, second = rows["mean-max AAE (tiny), seed 3"], rows["mean-max AAE (tiny), seed 4"]
    assert row["seed"] == 3
    prepared, trained_by = row["commands"]
    assert prepared.startswith("cp ")
    assert trained_by.startswith("python -m hf_meanmax.commands pretrain")
    assert second["seed"] == 4
    correlations = [
        statistics.fmean(one["scores"][task]["pearson"] for task in ("STS12", "STS13")) for one in (row, second)
    ]
    assert [float(text) for text in trained["mean of STS12, STS13"].split(" \u00b1 ")] == pytest.approx(
        [statistics.fmean(correlations), statistics.stdev(correlations)], abs=6e-4
    )
    counts = [one["training"]["tokens"] for one in (row, second)]
    assert (mean, deviation) == pytest.approx((statistics.fmean(counts), statistics.stdev(counts)), abs=0.6)
    assert float(trained["BLEU"].split()[0]) >= 0
    assert {"hf_meanmax", "torch"} <= set(row["versions"])
    assert (output / "report.md").exists()
    kinds = [{one["kind"] for one in json.loads((output / folder_name(name) / "results.json").read_text())["controls"]}
             for name in rows]  # fmt: skip
    assert kinds == [{"bag"}, {"bag"}, set()]
    assert (output / "mean-max-aae-tiny-seed-3" / "metrics.jsonl").read_text().count("\n") >= 1
    (card,) = (output / "cards").iterdir()
    text = card.read_text()
    assert card.name == "tiny-mean-max-aae-tiny.md"
    first = json.loads((output / "rows.json").read_text())["mean-max AAE (tiny), seed 3"]
    assert f"| training, target tokens | {first['training']['tokens']} |" in text
    said = [one["reconstruction"]["bleu"] for one in (row, second)]
    assert f"| bleu, 2 seeds | {statistics.fmean(said):.1f} \u00b1 {statistics.stdev(said):.1f} |" in text
    assert "- Small talk only." in text
    assert f"```bash\n{prepared}\n{trained_by}\n```" in text
    assert f"| reconstruction, bleu | {row['reconstruction']['bleu']:.3g}"[:24] in text
    assert f'SentenceTransformer("{output}/runs/mean-max-aae-tiny-seed-3/model"' in text
    assert "\n# tiny-mean-max-aae-tiny\n" in text
    card.unlink()
    # What is finished is not done again, nor prepared for; another setting of one system is another row.
    (output / "corpus.txt").rename(output / "kept.txt")
    commands = []
    run = module._run
    monkeypatch.setattr(module, "_run", lambda command: commands.append(command) or run(command))
    main([plan, "--data", str(data), "--output", str(output)])
    assert commands == []
    (output / "kept.txt").rename(output / "corpus.txt")
    assert card.read_text() == text
    # Nor where the folders are named otherwise.
    (tmp_path / "link").symlink_to(data)
    main([plan, "--data", str(tmp_path / "link"), "--output", str(output)])
    assert commands == []
    write_plan(tmp_path / "plan.yaml", evaluate={"tasks": "TREC", "controls": "none", "any_size": True})
    main([plan, "--data", str(data), "--output", str(output), "--only", "another"])
    assert len(commands) == 1
    assert commands[0][1:4] == ["-m", "hf_meanmax.commands", "evaluate"]
    # Whose results were deleted is made again.
    shutil.rmtree(output / folder_name("another"))
    main([plan, "--data", str(data), "--output", str(output), "--only", "another"])
    assert len(commands) == 2
    assert (output / folder_name("another") / "results.json").is_file()


@pytest.mark.usefixtures("in_process")
def test_a_changed_system_is_not_taken_for_the_one_that_was_trained(data, tmp_path):
    """Neither in silence, nor is the model thrown away."""
    plain = {"tasks": "TREC", "controls": "none", "any_size": True}
    output = tmp_path / "results of mine"
    command = "cp -r {data}/other {run}/model"
    for number in range(2):
        system = {"model": "{run}/model", "command": command + " --verbose" * number}
        plan = write_plan(tmp_path / "plan.yaml", systems={"a": system}, evaluate=plain, reconstruct=None)
        if number:
            with pytest.raises(SystemExit, match=r"holds a model of other settings \(command\)"):
                main([plan, "--data", str(data), "--output", str(output)])
        else:
            main([plan, "--data", str(data), "--output", str(output)])
    assert json.loads((output / "rows.json").read_text())["a"]["plan"]["system"] == {
        "model": "{run}/model",
        "command": command,
    }


@pytest.mark.usefixtures("in_process")
def test_the_systems_own_folder_in_what_is_common(data, tmp_path):
    """Each has its own."""
    common = {"corpus": "{output}/corpus.txt", "cache_dir": "{run}/cache", "max_steps": 2}
    plan = write_plan(
        tmp_path / "plan.yaml", common=common, cards=None, reconstruct={"source": "{run}/cache/../../../corpus.txt",
        "limit": 5, "min_tokens": 1}, evaluate={"tasks": "TREC", "controls": "none", "any_size": True},
    )  # fmt: skip
    output = tmp_path / "results"
    main([plan, "--data", str(data), "--output", str(output), "--only", "mean-max AAE (tiny)"])
    rows = json.loads((output / "rows.json").read_text())
    assert [row["reconstruction"]["sentences"] for row in rows.values()] == [5, 5]
    assert {path.parent.name for path in output.glob("runs/*/cache")} == {
        "mean-max-aae-tiny-seed-3", "mean-max-aae-tiny-seed-4",
    }  # fmt: skip


def test_one_failure_does_not_stop_the_others(data, tmp_path):
    systems = {"broken": {"model": "{run}/model", "command": "false"}, "another": {"model": "{data}/other"}}
    plan = write_plan(tmp_path / "plan.yaml", systems=systems, evaluate={"tasks": "TREC", "controls": "none",
                                                                          "any_size": True})  # fmt: skip
    with pytest.raises(SystemExit, match="failed: broken: false ended with exit code 1"):
        main([plan, "--data", str(data), "--output", str(tmp_path / "results")])
    assert list(json.loads((tmp_path / "results" / "rows.json").read_text())) == ["another"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"systems": {}}, "expected `systems:`"),
        ({"systems": {"x": {"seed": 1}}}, "the system 'x' needs either `recipe` or `model`"),
        ({"systems": {"x": {"model": "y", "seeds": [1]}}}, "`seeds` of the system 'x' is"),
        ({"systems": {"x": {"recipe": "y", "seeds": []}}}, "`seeds` of the system 'x' is"),
        ({"systems": {"x": {"recipe": "y", "seeds": [1, 1]}}}, "takes a list of different numbers"),
        (
            {"systems": {"x": {"model": "y", "controls": ["bag"]}}},
            "`controls` of the system 'x' is .*; it must be text",
        ),
        ({"reconstruct": {"limit": 20}}, "`reconstruct` needs `source`"),
        ({"systems": {"C": {"model": "y"}, "C++": {"model": "z"}}}, "'C' would share its folder with another"),
        ({"reconstruct": {"sources": "x"}}, "unknown setting 'sources' of `reconstruct`"),
        ({"prepare": [{"command": "true"}]}, "a step of `prepare` has `command` and `makes`"),
        ({"evaluate": {"tasks": ["MR", "CR"]}}, r"`tasks` of `evaluate` is .* give one like MR,CR"),
        ({"evaluate": {"task": "ten"}}, "unknown setting 'task' of `evaluate`"),
        ({"evaluate": {"seeds": 0}}, "`seeds` of `evaluate` is 0; it must be 1 or more"),
        ({"cards": {"owner": "me"}}, "`cards` needs `folder`"),
        ({"cards": {"folder": None, "owner": "me"}}, "`cards` needs `folder`"),
        ({"reconstruct": {"source": None, "limit": 3}}, "`reconstruct` needs `source`"),
        ({"evaluat": {}}, "unknown part 'evaluat'. Did you mean 'evaluate'"),
        (
            {"cards": {"folder": "x", "language": False}},
            "`language` of `cards` is False; it must be text. Put it in quotes",
        ),
        ({"systems": {"a": {"model": None}}}, "`model` of the system 'a' is None; it must be text"),
        (
            {"systems": {"a": {"model": "m", "contols": "none"}}},
            "unknown setting 'contols' of the system 'a'. Did you mean 'controls'",
        ),
        ({"systems": [{"model": "y"}]}, "`systems` is .* it takes `name: value` lines"),
        ({"common": 5}, "`common` is 5; it takes `name: value` lines"),
        ({"prepare": {"command": "true", "makes": "x"}}, "`prepare` is .* it takes `- ` items"),
        ({"prepare": [{"command": 1, "makes": "x"}]}, "`command` of a step of `prepare` is 1; it must be text"),
        ({"prepare": [{"command": "", "makes": "x"}]}, "the `command` of a step of `prepare` is empty"),
        ({"prepare": [{"command": "a 'b", "makes": "x"}]}, "the `command` of a step of `prepare` is .*: No closing"),
        ({"systems": {"a": {"model": "m", "command": "a 'b"}}}, "the `command` of the system 'a' is .*: No closing"),
        ({"reconstruct": {"source": ["x", 3]}}, r"`source` of `reconstruct` is \['x', 3\]; it must be text, or a list"),
    ],
)
def test_bad_plans_are_refused(changes, reason, tmp_path):
    path = write_plan(tmp_path / "plan.yaml", **changes)
    with pytest.raises(ValueError, match=reason):
        read_plan(path, tmp_path, tmp_path)


def test_texts_to_reconstruct_may_be_a_column_of_a_table(tmp_path):
    (tmp_path / "table.csv").write_text("body,id\na sentence,1\n")
    reconstruct = {"source": "{data}/table.csv", "text_column": "body"}
    module._check_prepared(read_plan(write_plan(tmp_path / "plan.yaml", reconstruct=reconstruct), tmp_path, tmp_path))


def test_a_setting_of_the_cards_may_be_left_empty(tmp_path):
    path = write_plan(tmp_path / "plan.yaml", cards={"folder": "x", "prefix": None})
    assert read_plan(path, tmp_path, tmp_path).cards == {"folder": "x"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"evaluate": {"tasks": "TREC,STS99", "any_size": True}}, "There is no task or group 'STS99'. Did you mean"),
        ({"evaluate": {"tasks": "TREC,paraphrases", "any_size": True}}, "paraphrases"),
        ({"evaluate": {"tasks": "TREC", "controls": "bags", "any_size": True}}, "There is no control 'bags'. Did you"),
        ({"systems": {"a": {"model": "{data}/other", "controls": "bog"}}}, "There is no control 'bog'. Did you mean"),
        ({"reconstruct": {"source": "{data}/none.txt"}}, "none.txt"),
        ({"reconstruct": {"source": "{data}/table.csv", "text_column": "name"}}, "no column 'name'; choose one of"),
        ({"reconstruct": {"source": "{data}/text.txt", "limit": "2e3"}}, "`limit` is '2e3'; it must be a whole number"),
        ({"reconstruct": {"source": "{data}/text.txt", "tokenize": "foo"}}, "`tokenize` is 'foo'; allowed: 'none'"),
        ({"prepare": [{"command": "true", "makes": "{data}"}]}, "is a folder; `makes` of a step"),
        (
            {"systems": {"a": {"model": "{data}/other"}, "b": {"recipe": "mean-max-aae-small", "max_step": 3}}},
            "The system 'b': .*max_step.*max_steps",
        ),
        (
            {"systems": {"a": {"recipe": "embedding-decoder", "embedder": "x"}}},
            "which has no text encoder to evaluate",
        ),
        ({"systems": {"a": {"recipe": "mean-max-small"}}}, "The system 'a': No recipe file 'mean-max-small'"),
    ],
)
def test_what_would_end_an_evaluation_is_told_before_the_training(changes, reason, data, tmp_path, monkeypatch):
    (data / "table.csv").write_text("body,id\na sentence,1\n")
    commands = []
    run = module._run
    monkeypatch.setattr(module, "_run", lambda command: commands.append(command) or run(command))
    plan = write_plan(tmp_path / "plan.yaml", **changes)
    with pytest.raises(SystemExit, match=f"hf-meanmax reproduce: .*{reason}"):
        main([plan, "--data", str(data), "--output", str(tmp_path / "results")])
    assert [command[0] for command in commands] in ([], ["cp"])


def test_a_part_of_a_prepared_file_is_not_taken(data, tmp_path, monkeypatch):
    output = tmp_path / "results"
    prepare = [{"command": "cp {data}/text.txt {output}/corpus.txt", "makes": "{output}/corpus.txt"}]
    plan = write_plan(tmp_path / "plan.yaml", prepare=prepare)
    command = ["--data", str(data), "--output", str(output)]

    def killed(words):
        assert json.loads((output / "runs" / "prepared.json").read_text()) == {"{output}/corpus.txt": None}
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_run", killed)
    with pytest.raises(SystemExit):
        main([plan, *command])
    # As if there had been no time to remove it.
    (output / "corpus.txt").write_text("a part")
    with pytest.raises(SystemExit, match=r"corpus.txt may be incomplete: .* Delete it and rerun"):
        main([plan, *command])


@pytest.mark.usefixtures("in_process")
def test_what_was_prepared_otherwise_is_not_taken(data, tmp_path):
    """Neither a file that another command made, nor a model, or half of one, that was trained on another file."""
    systems = {"a": {"recipe": str(tmp_path / "tiny.yaml"), "max_steps": 2}}
    plain = {"tasks": "TREC", "controls": "none", "any_size": True}
    output = tmp_path / "results"
    (tmp_path / "data" / "more.txt").write_text((data / "text.txt").read_text() * 2)

    def run(source):
        prepare = [{"command": f"cp {{data}}/{source} {{output}}/corpus.txt", "makes": "{output}/corpus.txt"}]
        plan = write_plan(tmp_path / "plan.yaml", systems=systems, prepare=prepare, evaluate=plain, reconstruct=None)
        main([plan, "--data", str(data), "--output", str(output)])

    run("text.txt")
    row = json.loads((output / "rows.json").read_text())["a"]
    assert row["commands"][0].startswith("cp ")
    with pytest.raises(SystemExit, match=r"was made by another command, 'cp \{data\}/text.txt .*Remove it"):
        run("more.txt")
    (output / "corpus.txt").unlink()
    with pytest.raises(SystemExit, match=r"holds a model of other settings \(prepared\)"):
        run("more.txt")
    model = output / "runs" / "a" / "model"
    model.rename(tmp_path / "model")
    with pytest.raises(SystemExit, match=r"holds a model of other settings \(prepared\)"):
        run("more.txt")
    (tmp_path / "model").rename(model)
    (output / "corpus.txt").unlink()
    (output / "rows.json").unlink()
    run("text.txt")
    # Who brings a file of his own is not told that a command made it.
    (output / "runs" / "prepared.json").unlink()
    (output / "rows.json").unlink()
    run("text.txt")
    again = json.loads((output / "rows.json").read_text())["a"]
    assert again["commands"] == row["commands"][1:]
    assert again["prepared"] == row["prepared"]
    # Nor is what a command leaves that failed.
    (output / "corpus.txt").unlink()
    step = {"command": "sh -c 'echo a > {output}/corpus.txt; exit 1'", "makes": "{output}/corpus.txt"}
    plan = write_plan(tmp_path / "plan.yaml", systems=systems, prepare=[step], evaluate=plain, reconstruct=None)
    with pytest.raises(SystemExit, match="exit 1"):
        main([plan, "--data", str(data), "--output", str(output)])
    assert not (output / "corpus.txt").exists()


def test_a_translator_without_a_record_of_its_training_is_not_reconstructed(data, tmp_path):
    model = make_model(full_class=CompoundAttentionForTranslation, architecture="attn-attn", latent_size=5)
    translator = save_checkpoint(model, make_tokenizer(), tmp_path / "translator")
    assert not module._can_reconstruct(str(translator), {})
    with pytest.raises(ValueError, match=r"learnt by the objective 'translation'.*hf-meanmax translate --reference"):
        score_checkpoint(str(translator), str(data / "text.txt"), show_progress=False)
    assert module._can_reconstruct(str(data / "other"), {})


@pytest.mark.usefixtures("in_process")
def test_too_little_memory_for_one_does_not_stop_the_others(data, tmp_path, monkeypatch):
    systems = {"a": {"model": "{data}/other"}, "b": {"model": "{data}/other"}}
    plain = {"tasks": "TREC", "controls": "none", "any_size": True}
    plan = write_plan(tmp_path / "plan.yaml", systems=systems, evaluate=plain, reconstruct=None)
    make_row = module._make_row

    def first_fails(plan, name, *rest):
        if name == "a":
            raise RuntimeError("out of memory")
        return make_row(plan, name, *rest)

    monkeypatch.setattr(module, "_make_row", first_fails)
    with pytest.raises(SystemExit, match="failed: a: out of memory"):
        main([plan, "--data", str(data), "--output", str(tmp_path / "results")])
    rows = tmp_path / "results" / "rows.json"
    assert list(json.loads(rows.read_text())) == ["b"]
    rows.write_text(rows.read_text()[:40])
    with pytest.raises(SystemExit, match=r"rows.json is damaged .* models and finished tasks are kept"):
        main([plan, "--data", str(data), "--output", str(tmp_path / "results")])


@pytest.mark.usefixtures("in_process")
def test_what_another_process_is_at_is_left_out(data, tmp_path, capsys):
    systems = {"a": {"model": "{data}/other"}, "b": {"model": "{data}/other"}}
    plain = {"tasks": "TREC", "controls": "none", "any_size": True}
    plan = write_plan(tmp_path / "plan.yaml", systems=systems, evaluate=plain, reconstruct=None)
    output = tmp_path / "results"
    arguments = [plan, "--data", str(data), "--output", str(output)]
    (output / "runs").mkdir(parents=True)
    with FileLock(output / "runs" / "a.lock"):
        main(arguments)
        assert "Another process is working on 'a'" in capsys.readouterr().out
        assert list(json.loads((output / "rows.json").read_text())) == ["b"]
    main(arguments)
    assert list(json.loads((output / "rows.json").read_text())) == ["a", "b"]
    # A row is kept when its system is taken from the list.
    del systems["a"]
    write_plan(tmp_path / "plan.yaml", systems={"c": {"model": "{data}/other"}, **systems}, evaluate=plain,
               reconstruct=None)  # fmt: skip
    main(arguments)
    assert list(json.loads((output / "rows.json").read_text())) == ["c", "b", "a"]
    assert "| a " not in (output / "table.md").read_text()


@pytest.mark.usefixtures("in_process")
def test_models_with_frozen_words_are_given_all_words_first(data, tmp_path):
    vectors = tmp_path / "vectors.safetensors"
    words = [*WORDS, "zebra", "gnu"]
    WordVectors(words, np.random.default_rng(0).standard_normal((len(words), 8)).astype(np.float32)).save(vectors)
    (tmp_path / "frozen.yaml").write_text(yaml.safe_dump(TINY))
    system = {"recipe": str(tmp_path / "frozen.yaml"), "word_vectors": str(vectors), "max_steps": 2}
    plan = write_plan(
        tmp_path / "plan.yaml",
        systems={"trained": system, "frozen": {**system, "freeze_word_embeddings": True}},
        evaluate={"tasks": "TREC", "controls": "bag", "any_size": True, "expand": str(vectors)},
        reconstruct=None,
        cards=None,
    )
    output = tmp_path / "results"
    main([plan, "--data", str(data), "--output", str(output)])
    results = {name: json.loads((output / name / "results.json").read_text()) for name in ("trained", "frozen")}
    assert {name: one["model"]["name"] for name, one in results.items()} == {
        "trained": "trained", "frozen": "frozen-expanded",
    }  # fmt: skip
    # What a recipe's file says may change under its name.
    before = read_plan(plan, data, output)
    (tmp_path / "frozen.yaml").write_text(yaml.safe_dump({**TINY, "seed": 5}))
    row = json.loads((output / "rows.json").read_text())["frozen"]
    assert [is_finished(one, "frozen", row) for one in (before, read_plan(plan, data, output))] == [True, False]
    config = json.loads((output / "runs" / "frozen" / "expanded" / "config.json").read_text())
    assert config["input_vocab_size"] == config["vocab_size"] + 2
    assert not (output / "runs" / "trained" / "expanded").exists()
    other = tmp_path / "other.yaml"
    other.write_text((tmp_path / "plan.yaml").read_text().replace(str(vectors), str(tmp_path / "none.safetensors")))
    with pytest.raises(SystemExit, match=r"`expand` of the plan names .*none\.safetensors, which is no file"):
        main([str(other), "--data", str(data), "--output", str(tmp_path / "other")])
    assert list((tmp_path / "other" / "runs").glob("trained*")) == []


@pytest.mark.parametrize(
    ("name", "systems", "size"), [("books", 17, 1024), ("variants", 16, 1024), ("books-gpu", 3, 4096)]
)
def test_the_plans_for_books_have_settings_that_fit(name, systems, size, tmp_path):
    plan = read_plan(name, tmp_path, tmp_path)
    sizes = {}
    for name, system in plan.systems.items():
        if "recipe" in system:
            settings = {**read_recipe(system["recipe"]), **plan.common, **system}
            config = arguments_from_settings(settings, settings.pop("recipe")).build_config()
            sizes[plan.groups[name]] = config.sentence_embedding_size
    assert len(sizes) == systems
    assert all(found == (2048 if "2,048 numbers" in name else size) for name, found in sizes.items()), sizes


def test_who_stops_it_stops_what_it_runs_and_waits(data, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(1)\n"
        "    open(sys.argv[1], 'w').write('saved')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    systems = {"slow": {"model": "{run}/model", "command": f"python {tmp_path}/slow.py {{run}}/told"}}
    plan = write_plan(tmp_path / "plan.yaml", systems=systems, prepare=None, reconstruct=None)
    output = tmp_path / "results"
    arguments = [plan, "--data", str(data), "--output", str(output)]
    code = f"from hf_meanmax.commands.reproduce import main; main({arguments!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=python_environment(),
    )
    while "ready" not in process.stdout.readline():
        pass
    process.terminate()
    _, errors = process.communicate(timeout=50)
    assert process.returncode == 128 + signal.SIGTERM
    assert errors.strip().endswith("stopped; the same command goes on from here")
    assert (output / "runs" / "slow" / "told").read_text() == "saved"


def test_a_model_that_was_trained_anew_is_another(data, tmp_path):
    folder = save_checkpoint(make_model(), make_tokenizer(), tmp_path / "mine")
    path = write_plan(tmp_path / "plan.yaml", systems={"mine": {"model": str(folder)}}, prepare=None, reconstruct=None)
    plan = read_plan(path, data, tmp_path / "results")
    row = {"plan": plan.written["mine"], "weights": given_weights(plan.systems["mine"])}
    assert row["weights"][0][0] == "model.safetensors"
    assert is_finished(plan, "mine", json.loads(json.dumps(row)))
    save_checkpoint(make_model(seed=9), make_tokenizer(), folder)
    assert not is_finished(plan, "mine", row)


def test_a_stop_while_a_command_starts_stops_it(tmp_path):
    (tmp_path / "early.py").write_text(
        "import os, signal, subprocess, sys\n"
        "from hf_meanmax.reproduce import run as reproduce\n"
        "start = subprocess.Popen\n"
        "def late(command):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return start(command)\n"
        "subprocess.Popen = late\n"
        "reproduce._run([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
    )
    result = subprocess.run(
        [sys.executable, str(tmp_path / "early.py")],
        capture_output=True,
        text=True,
        env=python_environment(),
        timeout=100,
    )
    assert result.returncode == 128 + signal.SIGTERM
    assert result.stderr.strip().endswith("stopped; the same command goes on from here")


@pytest.mark.usefixtures("in_process")
def test_a_row_of_other_settings_is_told(data, tmp_path, capsys):
    plain = {"tasks": "TREC", "controls": "none", "any_size": True}
    output = tmp_path / "results"
    systems = {"a": {"model": "{data}/other"}, "b": {"model": "{data}/other"}}
    plan = write_plan(tmp_path / "plan.yaml", systems=systems, evaluate=plain, reconstruct=None, cards=None)
    # A slash at the end is no other folder.
    main([plan, "--data", f"{data}/", "--output", f"{output}/"])
    before = (output / "table.md").read_text()
    main([plan, "--data", str(data), "--output", str(output)])
    assert (output / "table.md").read_text() == before
    # Both are one model, whose name would be in the report twice.
    report = (output / "report.md").read_text()
    assert all(f"| **{name}** |" in report for name in systems)
    write_plan(tmp_path / "plan.yaml", systems=systems, evaluate={**plain, "seeds": 1}, reconstruct=None, cards=None)
    main([plan, "--data", str(data), "--output", str(output), "--only", "b"])
    table = (output / "table.md").read_text()
    assert "| a (older settings) |" in table
    assert "| b |" in table
    # A folder that was taken away takes its line with it, and no more.
    shutil.rmtree(output / "b")
    main([plan, "--data", str(data), "--output", str(output), "--only", "a"])
    assert "the table has no line of 'b'" in capsys.readouterr().out
    table = (output / "table.md").read_text()
    assert "| a |" in table
    assert "| b |" not in table


def test_other_refusals(data, tmp_path):
    plan = write_plan(tmp_path / "plan.yaml")
    for arguments, reason in (
        ([str(tmp_path / "missing.yaml")], "No such file"),
        ([plan, "--only", "mean"], "There is no system 'mean'; choose among"),
    ):
        with pytest.raises(SystemExit, match=reason):
            main([*arguments, "--data", str(data), "--output", str(tmp_path / "results")])
    plan = write_plan(tmp_path / "plan.yaml", prepare=[{"command": "true", "makes": "{output}/nothing"}])
    with pytest.raises(SystemExit, match="'true' did not make"):
        main([plan, "--data", str(data), "--output", str(tmp_path / "results")])
    assert folder_name("mean-max AAE (paper), d = 512") == "mean-max-aae-paper-d-512"
