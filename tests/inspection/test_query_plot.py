"""The drawing of what several heads see from one token."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headway.inspection.picture_files import COLORS
from headway.inspection.query_plot import draw_query


def test_bars_are_as_long_as_the_weights_and_have_their_heads_color() -> None:
    weights = [[0.25, 0.75, 0.0], [0.05, 0.0, 0.95]]
    axes = Figure().subplots()
    draw_query(axes, ["the", " red", " house"], weights, ["head 1", "head 2"], query=1, outlined=[2])
    *bars, frame = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [bar.get_width() for bar in bars] == pytest.approx([*weights[0], *weights[1]])
    assert [to_hex(bar.get_facecolor()).upper() for bar in bars] == [COLORS[0]] * 3 + [COLORS[1]] * 3
    assert frame.get_y() < 2 < frame.get_y() + frame.get_height()
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["the", "red", "house"]
    assert axes.get_yticklabels()[1].get_fontweight() == "bold"
    assert {"0.25", "0.75", "0.95"} <= {text.get_text() for text in axes.texts}  # but not 0.05
