"""Draw what several heads see from one token: as in figures 3 to 5 of "Attention Is All You Need", a color for each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from headway.inspection.picture_files import COLORS
from headway.text.visible_tokens import make_visible

_GAP = 0.35  # between the columns of two heads, whose longest possible bar is 1 wide
_WRITTEN = 0.1  # smaller weights are drawn without their number


def draw_query(
    axes: Axes,
    tokens: Sequence[str],
    weights: Sequence[Sequence[float]],
    names: Sequence[str],
    *,
    query: int | None = None,
    outlined: Collection[int] = (),
) -> None:
    """Draw the attention weights of one query, with a column of horizontal bars for each head.

    Args:
        axes: The panel.
        tokens: The tokens that are attended to, in the order of the text from top to bottom.
        weights: The weights of each head (heads x tokens).
        names: The name of each head, such as "layer 2, head 1".
        query: The index of the query among the tokens, which is printed in bold, if it is one of them.
        outlined: Indices of tokens whose row is outlined, such as those that an aligner links to the query.
    """
    width = 1 + _GAP
    for column, (head, name, color) in enumerate(zip(weights, names, COLORS, strict=False)):
        left = column * width
        axes.barh(range(len(tokens)), head, left=left, height=0.8, color=color)
        axes.plot([left, left], [-0.5, len(tokens) - 0.5], color="#888888", linewidth=0.8)
        for row, weight in enumerate(head):
            if weight >= _WRITTEN:
                inside = weight > 0.6
                style: dict[str, Any] = (
                    {"color": "white", "ha": "right"} if inside else {"color": "black", "ha": "left"}
                )
                place, shift = (left + weight, row), (-4 if inside else 4, 0)
                axes.annotate(
                    f"{weight:.2f}", place, shift, textcoords="offset points", va="center", fontsize="small", **style
                )
        axes.text(left, -1, name, color=color, fontweight="bold", va="center")
    for row in outlined:
        axes.add_patch(Rectangle((-0.08, row - 0.48), width * len(weights), 0.96, fill=False, linewidth=2, zorder=3))
    axes.set_yticks(range(len(tokens)), [make_visible(token).replace("␣", "") for token in tokens])
    if query is not None:
        axes.get_yticklabels()[query].set_fontweight("bold")
    axes.set_ylim(len(tokens) - 0.5, -1.5)
    axes.set_xlim(-0.1, width * len(weights))
    axes.set_xticks(
        [column * width + tick for column in range(len(weights)) for tick in (0, 1)], ["0", "1"] * len(weights)
    )
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
