import pytest

from hf_meanmax.modeling.suggestions import did_you_mean


@pytest.mark.parametrize(
    ("name", "hint"),
    [("encdoe", " Did you mean 'encode'?"), ("DECOD", " Did you mean 'decode'?"), ("xyz", ""), (7, "")],
)
def test_the_likest_name_is_proposed_or_none(name, hint):
    assert did_you_mean(name, ["encode", "decode"]) == hint


def test_the_name_keeps_its_case_and_the_quotes_are_the_callers():
    assert did_you_mean("sick-e", ["SICK-R", "TREC"], quote="`") == " Did you mean `SICK-R`?"
