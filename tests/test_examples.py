"""The notebooks run from top to bottom, on tiny settings and without a network."""

from __future__ import annotations

import importlib.util
import re
import sysconfig
from pathlib import Path

import pytest

import hf_meanmax
from hf_meanmax.data import harvest_docstrings

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
TINY = {
    "hidden_size": 32, "intermediate_size": 32, "vocab_size": 500, "embedding_size": 32, "num_attention_heads": 2,
    "validation_sentences": 10, "num_negatives": 100, "batch_tokens": 256,
}  # fmt: skip
MINUTES = 0.02
MOST_BYTES = 400_000

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the notebooks are in the repository alone")


@pytest.fixture(scope="module")
def run():
    pytest.importorskip("nbclient")
    specification = importlib.util.spec_from_file_location("examples_run", EXAMPLES / "run.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Some hundred docstrings."""
    folder = Path(sysconfig.get_path("stdlib"))
    documents = harvest_docstrings([folder / "email", folder / "http"], num_proc=1, show_progress=False).documents
    path = tmp_path_factory.mktemp("examples") / "corpus.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents), encoding="utf-8")
    return str(path)


@pytest.fixture
def execute(run, tmp_path, monkeypatch):
    """Runs a notebook; returns the kinds of what its cells show."""
    for name, folder in (("HF_MEANMAX_CACHE", "cache"), ("IPYTHONDIR", "ipython"), ("JUPYTER_RUNTIME_DIR", "jupyter")):
        monkeypatch.setenv(name, str(tmp_path / folder))

    def execute(name: str, **settings: object) -> list[str]:
        notebook = run.execute(EXAMPLES / f"{name}.ipynb", settings, tmp_path)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        saved = run.nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
        assert [cell.source for cell in notebook.cells] == [cell.source for cell in saved.cells]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
        return [kind for cell in code for output in cell.outputs for kind in output.get("data", {})]

    return execute


def require_model(name: str) -> None:
    if name not in [model.name for model in hf_meanmax.pretrained()]:
        pytest.skip(f"the package has no model {name!r}")


def test_encode_and_decode(execute):
    require_model("mini-en")
    kinds = execute("01_encode_and_decode")
    assert (kinds.count("text/html"), kinds.count("image/png")) == (4, 2)


def test_train_on_your_own_text(execute, corpus):
    kinds = execute("02_train_on_your_own_text", CORPUS=[corpus], MINUTES=MINUTES, SETTINGS=TINY)
    assert (kinds.count("text/html"), kinds.count("image/png")) == (2, 2)


def test_a_fast_student_of_your_embedder(execute, corpus):
    settings = {"validation_sentences": 10, "vocab_size": 500}
    teacher = hf_meanmax.pretrained("static-en")
    kinds = execute(
        "03_a_fast_student_of_your_embedder", TEACHER=teacher, CORPUS=corpus, MINUTES=MINUTES, SETTINGS=settings
    )
    assert (kinds.count("text/html"), kinds.count("image/png")) == (3, 1)


def test_what_do_my_vectors_leak(execute, tmp_path):
    require_model("mini-en")
    texts = ["Anna Kowalski moved to 14 Mill Road.", "The patient has taken insulin.", "He works at the bank."]
    kinds = execute("04_what_do_my_vectors_leak", texts=texts, NOISE_LEVELS=[0.5])
    assert (kinds.count("text/html"), kinds.count("image/png")) == (2, 1)
    assert (tmp_path / "audit" / "audit.html").is_file()


def test_five_papers_in_one_package(execute, corpus):
    kinds = execute("05_five_papers_in_one_package", CORPUS=corpus, MINUTES=MINUTES, SETTINGS=TINY)
    assert (kinds.count("text/html"), kinds.count("image/png")) == (1, 8)


def test_chinese_paragraphs(execute, data_root):
    corpus = [str(data_root / "corpora" / "paragraphs-zh" / "reviews.test.txt.xz")]
    kinds = execute("06_chinese_paragraphs", CORPUS=corpus, MINUTES=MINUTES, SETTINGS=TINY)
    assert (kinds.count("text/html"), kinds.count("image/png")) == (1, 2)


def test_a_parameter_must_be_known(run, tmp_path):
    with pytest.raises(ValueError, match="no parameter 'HOURS'; the notebook has CORPUS, MINUTES"):
        run.execute(EXAMPLES / "02_train_on_your_own_text.ipynb", {"HOURS": 1}, tmp_path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_says_what_it_gives(path):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert re.match(r"# .+\n\nAt the end of this notebook you have\n\n- ", notebook.cells[0].source)
    assert notebook.cells[1].metadata.tags == ["parameters"]
    assert path.stat().st_size < MOST_BYTES
    errors = [output for cell in notebook.cells for output in cell.get("outputs", ()) if output.output_type == "error"]
    assert errors == []


def test_every_notebook_is_run():
    tests = [name.removeprefix("test_") for name in globals()]
    assert [path.stem for path in NOTEBOOKS if path.stem[3:] not in tests] == []
