import io

import pytest
from tqdm.notebook import tqdm_notebook

from hf_meanmax.progress import LineProgress, progress_bar


@pytest.mark.parametrize("total", [3, None])
def test_a_log_has_no_empty_lines(total):
    log = io.StringIO()
    for name in ("first", "second"):
        with LineProgress(range(3), desc=name, total=total, file=log) as bar:
            assert list(bar) == [0, 1, 2]
    lines = log.getvalue().split("\n")
    assert lines.pop() == ""
    assert all(line.strip() == line != "" for line in lines)
    assert [line.partition(":")[0] for line in lines] == ["first", "first", "second", "second"]
    assert all("3" in line.partition(":")[2] for line in lines[1::2])


def test_a_notebook_has_its_own_bar(monkeypatch):
    monkeypatch.setattr("hf_meanmax.progress.tqdm", tqdm_notebook)
    bar = progress_bar(range(3), disable=True)
    assert isinstance(bar, tqdm_notebook)
    assert list(bar) == [0, 1, 2]
    assert not issubclass(LineProgress, tqdm_notebook)


def test_a_disabled_bar_is_silent(capsys):
    list(progress_bar(range(3), disable=True))
    assert capsys.readouterr() == ("", "")
