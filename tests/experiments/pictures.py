"""Requirements for every figure of an experiment."""

from __future__ import annotations

from matplotlib.figure import Figure


def assert_legible(picture: Figure) -> None:
    """Check that the figure has a title, and each panel a title and named axes, and that color bars have labels."""
    assert picture.get_suptitle()
    for axes in picture.axes:
        if axes.get_label() == "<colorbar>":
            assert axes.get_ylabel()
            continue
        assert axes.get_title("left"), "a panel without a title"
        assert axes.get_xlabel(), axes.get_title("left")
        assert axes.get_ylabel(), axes.get_title("left")
