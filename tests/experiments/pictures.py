"""Requirements for every figure of an experiment."""

from __future__ import annotations

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


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


def overlapping_texts(picture: Figure) -> list[tuple[str, str]]:
    """Return the pairs of titles, labels, ticks and notes of a figure that cover each other by more than a pixel.

    Slanted texts are left out, because their boxes are larger than they are.
    """
    FigureCanvasAgg(picture).draw()  # type: ignore[no-untyped-call]
    hidden = set[Text]()
    for axes in picture.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            slack = 1e-9 * (high - low)
            outside = [tick for tick in ticks if not low - slack <= tick.get_loc() <= high + slack]
            hidden |= {label for tick in outside for label in (tick.label1, tick.label2)}
    texts = [text for text in picture.findobj(Text) if text not in hidden and text.get_visible() and text.get_text()]
    boxes = [
        (text.get_text(), text.get_window_extent().padded(-1)) for text in texts if text.get_rotation() in (0, 90, 270)
    ]
    return [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]
