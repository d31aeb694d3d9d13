"""What the documentation names is there: files, verbs, options, and the figures of the results."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from hf_meanmax.commands.__main__ import VERBS
from hf_meanmax.families import FAMILIES
from hf_meanmax.training import PretrainArguments, list_recipes, read_recipe
from hf_meanmax.training.finetune_settings import FinetuneArguments
from hf_meanmax.training.model_settings import model_fields

ROOT = Path(__file__).parents[1]
# An experiment has the commands of its time.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "model_cards").glob("*.md"))]
SUBVERBS = {"search": ("index", "query"), "inspect": ("decoding", "pooling")}
TRAINING = {"pretrain": PretrainArguments, "finetune": FinetuneArguments}

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the documentation is in the repository alone")


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((ROOT / "docs" / "experiments").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_to_files(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"https?:|#|mailto:", link):
            assert (page.parent / link.split("#")[0]).exists(), link


def commands(page: Path) -> list[list[str]]:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"(?ms)^```\w*\n(.*?)^```", text)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    lines += re.findall(r"(?m)^    (hf-meanmax .*)$", text)
    found = []
    for line in lines:
        match = re.search(r"(?:^|\s)(?:hf-meanmax|accelerate launch scripts/(?=pretrain|finetune))\s*([a-z].*)", line)
        if match:
            found.append(shlex.split(re.sub(r"\.py\b", "", match[1], count=1), comments=True))
    return found


def options_of(verb: str, capsys) -> set[str]:
    if verb.split()[0] in TRAINING:
        arguments = TRAINING[verb.split()[0]]
        names = {name for family in FAMILIES.values() for name in model_fields(family.config)}
        return names | set(arguments.__dataclass_fields__)
    name, *rest = verb.split()
    module = importlib.import_module(f"hf_meanmax.commands.{name.replace('-', '_')}")
    with pytest.raises(SystemExit):
        module.main([*rest, "--help"])
    return {option.replace("-", "_") for option in re.findall(r"--([a-z][\w-]*)", capsys.readouterr().out)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_verbs_and_options(page, capsys):
    for words in commands(page):
        verb = words[0]
        assert verb in VERBS, words
        if len(words) > 1 and (words[1] in SUBVERBS.get(verb, ()) or words[1].startswith("compare-")):
            verb = f"{verb} {words[1]}"
        given = {word[2:].split("=")[0].replace("-", "_") for word in words if re.match(r"--[a-z]", word)}
        if given:
            assert given <= options_of(verb, capsys), words


def test_the_readme_has_commands():
    assert len(commands(ROOT / "README.md")) > 3


def test_figures_of_the_papers_rows_are_those_of_the_results():
    table = (ROOT / "results" / "books" / "table.md").read_text(encoding="utf-8")
    text = (ROOT / "docs" / "quality.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| \[.*AAE", line)]
    assert rows
    for row in rows:
        for value in re.findall(r"\d+\.\d+(?: ± \d+\.\d+)?", row):
            assert value in table, (row, value)


def test_the_page_of_recipes_lists_them_all_with_their_ends():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    settings = {"minutes": "max_minutes", "steps": "max_steps", "epochs": "epochs"}
    rows = re.findall(r"(?m)^\| (`.*?) \|.*\| ([\d,]+) (minutes|steps|epochs) \|$", page)
    named = re.findall(r"`([\w-]+)`", page.partition("These recipes have the papers' sizes")[2])
    for names, end, unit in rows:
        for name in re.findall(r"`([\w-]+)`", names):
            assert read_recipe(name)[settings[unit]] == int(end.replace(",", "")), name
            named.append(name)
    assert sorted(named) == list_recipes()
