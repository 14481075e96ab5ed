"""Draw the tree of a beam search: what was kept and dropped at each step, and the path that wins."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from headway.inspection.picture_files import COLORS
from headway.notebook_html import tree_rows
from headway.predict.translation.search_tree import SearchTree
from headway.text.visible_tokens import make_visible

_BLUE, _ORANGE, _GRAY = COLORS[0], COLORS[1], "#767676"


def draw_search_tree(axes: Axes, tree: SearchTree, *, font_size: float = 10) -> None:
    """Draw each token that the beam kept, with the log-probability of the hypothesis up to it, step by step.

    The path of the best hypothesis is blue. The path that takes the most probable token at each step, as greedy search
    does, is orange where it differs; it ends where the beam drops it. All other branches are gray. The score of each
    finished hypothesis stands beside its end.
    """
    parents = [node.parent for node in tree.nodes]
    rows, columns = tree_rows(parents), list[int]()
    for parent in parents:
        columns.append(0 if parent is None else columns[parent] + 1)
    best, greedy = _path_to(tree, tree.ends[0].node), _greedy_path(tree)
    scores = {end.node: f"  score {end.score:.2f}" for end in tree.ends}
    for index, (node, row, column) in enumerate(zip(tree.nodes, rows, columns, strict=True)):
        color = _BLUE if index in best else _ORANGE if index in greedy else _GRAY
        is_gray = color == _GRAY
        start, bend = (column, column) if node.parent is None else (columns[node.parent], column - 0.12)
        above = row if node.parent is None else rows[node.parent]
        line: dict[str, Any] = {"color": color, "linewidth": 1 if is_gray else 2.6, "zorder": 1 if is_gray else 2}
        axes.plot([start, bend, bend, column + 0.5], [above, above, row, row], **line)
        token, total = make_visible(node.token).replace("␣", ""), f"{node.total:.2f}{scores.get(index, '')}"
        for text, offset, size in ((token, 0.75, font_size), (total.replace("-", "−"), -0.65, 0.75 * font_size)):
            weight = "normal" if is_gray else "bold"
            style: dict[str, Any] = {"color": color, "fontweight": weight, "va": "center", "fontsize": size}
            axes.annotate(text, (column, row), (0, offset * font_size), textcoords="offset points", **style)
    axes.set_xlim(-0.1, max(columns) + 1.4)
    axes.set_ylim(max(rows) + 0.7, min(rows) - 0.7)
    axes.set_yticks([])
    axes.set_xticks(range(max(columns) + 1), [str(step) for step in range(1, max(columns) + 2)])
    axes.grid(visible=False)


def _path_to(tree: SearchTree, node: int | None) -> set[int]:
    """Return the nodes from the root to ``node``."""
    nodes = set[int]()
    while node is not None:
        nodes.add(node)
        node = tree.nodes[node].parent
    return nodes


def _greedy_path(tree: SearchTree) -> set[int]:
    """Return the nodes of the most probable token at each step.

    Of the children of a node, the beam always keeps the most probable one, if it keeps any.
    """
    nodes, last = set[int](), None
    while children := [index for index, node in enumerate(tree.nodes) if node.parent == last]:
        last = max(children, key=lambda index: tree.nodes[index].log_probability)
        nodes.add(last)
    return nodes
