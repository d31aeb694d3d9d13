"""The figure of many systems shows each one's mean and deviation in its own line."""

import pytest

from hf_meanmax.plots.systems import plot_systems

pytest.importorskip("matplotlib")


def test_each_system_has_its_line():
    scores = {"low": [70.0, 72.0], "high": [80.0]}
    figure = plot_systems(scores, {"low": [71.0], "high": []}, {"high": [60.0]}, "macro average")
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["low", "high"]
    control, own = (container.lines[0] for container in left.containers)
    assert (list(own.get_xdata()), list(own.get_ydata())) == ([71.0, 80.0], [0, 1])
    assert (list(control.get_xdata()), list(control.get_ydata())) == ([71.0], [0])
    bars = left.containers[1].lines[2][0].get_segments()
    assert bars[0][1][0] - bars[0][0][0] == pytest.approx(2 * 2**0.5)
    (said,) = (container.lines[0] for container in right.containers)
    assert (list(said.get_xdata()), list(said.get_ydata())) == ([60.0], [1])
    assert left.get_xlabel() == "macro average"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["strongest control", "system"]


def test_without_controls_and_reconstructions():
    figure = plot_systems({"a": [1.0]}, {}, {}, "accuracy")
    assert len(figure.axes) == 1
    assert figure.legends == []
    with pytest.raises(ValueError, match="no system has scores"):
        plot_systems({}, {}, {}, "accuracy")
