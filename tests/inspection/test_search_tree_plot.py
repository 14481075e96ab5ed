"""The drawing of a beam search."""

from __future__ import annotations

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from headway.inspection.picture_files import COLORS
from headway.inspection.search_tree_plot import draw_search_tree
from headway.notebook_html import tree_rows
from headway.predict.translation.search_tree import SearchEnd, SearchNode, SearchTree


def test_a_node_is_in_the_row_of_its_first_child() -> None:
    #   0 - 1 - 4
    #     - 2
    #   3
    assert tree_rows([None, 0, 0, None, 1]) == [1, 1, 2, 3, 1]


def test_the_winner_and_the_path_of_greedy_search_are_told_apart() -> None:
    """Greedy search begins with "a" (-0.5), but the best whole begins with "b": -0.9 - 0.1 against -0.5 - 2."""
    steps = (("a", None, -0.5), ("b", None, -0.9), ("y", 0, -2.0), ("z", 1, -0.1))
    totals = (-0.5, -0.9, -2.5, -1.0)
    nodes = tuple(SearchNode(*step, total) for step, total in zip(steps, totals, strict=True))
    axes = Figure().subplots()
    draw_search_tree(axes, SearchTree(2, nodes, (SearchEnd(3, "b z", -1.0), SearchEnd(2, "a y", -2.5))))
    colors = {text.get_text(): to_hex(text.get_color()).upper() for text in axes.texts}
    assert colors["b"] == colors["z"] == colors["−1.00  score −1.00"] == COLORS[0]
    assert colors["a"] == colors["y"] == colors["−2.50  score −2.50"] == COLORS[1]
