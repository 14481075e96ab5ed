"""HTML fragments for displaying objects in notebooks.

All text is escaped, and no external resources are loaded. There is no style sheet: fragments inherit the colors of the
page and add translucent shades, so they are legible on light and dark pages, in JupyterLab, VS Code and exported HTML.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from html import escape
from itertools import accumulate

_LINE = "rgba(128,128,128,.4)"
_CELL = f"padding:.15em .7em;border-bottom:1px solid {_LINE};vertical-align:top;overflow-wrap:anywhere"
DOUBT_COLOR, FOR_COLOR, AGAINST_COLOR = (217, 119, 6), (22, 140, 90), (200, 50, 60)  # RGB colors of shades
_STRONGEST = 0.65  # maximum opacity of a shade; text on it is still legible
_WIDTH, _HEIGHT = 420, 120  # size of a line plot in pixels
_FRAME_HEIGHT = 640  # height of an embedded page in pixels
# Sizes of a tree in pixels: the height of a line, the width of a character, and the gap between two columns.
_ROW, _CHARACTER, _GAP = 20, 8, 26


def join_fragments(*parts: str) -> str:
    """Join HTML fragments, one below the other."""
    inner = "".join(parts)
    return f'<div class="headway" style="line-height:1.5;max-width:60em">{inner}</div>'


def paragraph(content: str, *, note: bool = False) -> str:
    """Return an HTML paragraph, in a smaller font if ``note`` is set."""
    style = "margin:.3em 0" + (";font-size:85%;opacity:.75" if note else "")
    return f'<div style="{style}">{content}</div>'


def text(content: str) -> str:
    """Return text in any language and direction, with line breaks preserved."""
    return f'<span dir="auto" style="white-space:pre-wrap;overflow-wrap:anywhere">{escape(content)}</span>'


def badge(content: str) -> str:
    """Return a word in a frame, such as a flag."""
    style = f"border:1px solid {_LINE};border-radius:.6em;padding:0 .5em;font-size:85%"
    return f'<span style="{style}">{escape(content)}</span>'


def shaded_words(words: Iterable[tuple[str, float, str]], color: tuple[int, int, int] | None = None) -> str:
    """Return words with shaded backgrounds.

    Args:
        words: The text of each word, the strength of its shade (from -1 to 1), and its tooltip.
        color: The color of all shades. None means green for positive and red for negative strengths.
    """
    spans = []
    for word, strength, tip in words:
        red, green, blue = color or (FOR_COLOR if strength >= 0 else AGAINST_COLOR)
        opacity = _STRONGEST * min(abs(strength), 1.0) if math.isfinite(strength) else 0.0
        style = f"background:rgba({red},{green},{blue},{opacity:.2f});border-radius:.25em;padding:0 .15em"
        spans.append(f'<span dir="auto" title="{escape(tip)}" style="{style}">{escape(word)}</span>')
    inner = " ".join(spans)
    return f'<span style="white-space:pre-wrap;overflow-wrap:anywhere">{inner}</span>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """Return a table of texts. The columns with the indices ``numbers``, counted from 0, are right-aligned."""

    def row(cells: Sequence[str], tag: str) -> str:
        aligned = [f"text-align:{'right' if index in numbers else 'left'};{_CELL}" for index in range(len(cells))]
        marked = zip(aligned, cells, strict=True)
        inner = [f'<{tag} style="{style}">{escape(cell)}</{tag}>' for style, cell in marked]
        return f"<tr>{''.join(inner)}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    head = f"<thead>{row(header, 'th')}</thead>" if header else ""
    style = "border-collapse:collapse;margin:.3em 0;color:inherit;font:inherit"
    return f'<table style="{style}">{head}<tbody>{body}</tbody></table>'


def line_plot(points: Sequence[tuple[float, float]], title: str) -> str:
    """Return a small SVG line plot of points (x, y), in the color of the surrounding text."""
    points = [(x, y) for x, y in points if math.isfinite(y)]
    if len(points) < 2:
        return ""
    xs, ys = zip(*points, strict=True)
    width, height = (max(xs) - min(xs)) or 1, (max(ys) - min(ys)) or 1
    placed = " ".join(
        f"{4 + (x - min(xs)) / width * (_WIDTH - 8):.1f},{16 + (max(ys) - y) / height * (_HEIGHT - 24):.1f}"
        for x, y in points
    )
    ends = f"{title}: {ys[0]:.4g} at {xs[0]:,g}, {ys[-1]:.4g} at {xs[-1]:,g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{escape(ends)}"><title>{escape(ends)}</title>'
        f'<text x="4" y="11" font-size="11" fill="currentColor">{escape(ends)}</text>'
        f'<polyline fill="none" stroke="currentColor" stroke-width="1.5" points="{placed}"/></svg>'
    )


def heat_map(weights: Sequence[Sequence[float]], title: str, size: int = 6) -> str:
    """Return an SVG of a matrix of weights from 0 to 1, with cells of ``size`` pixels. Weights below 0.02 are not
    drawn.
    """
    width, height = max(map(len, weights), default=0) * size, len(weights) * size
    cells = "".join(
        f'<rect x="{column * size}" y="{row * size}" width="{size}" height="{size}" fill-opacity="{weight:.2f}"/>'
        for row, line in enumerate(weights)
        for column, weight in enumerate(line)
        if weight >= 0.02
    )
    frame = f'<rect width="{width}" height="{height}" fill="none" stroke="{_LINE}"/>'
    return (
        f'<figure style="display:inline-block;margin:.3em"><svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}"><g fill="rgb(36,116,200)">{cells}</g>{frame}</svg>'
        f'<figcaption style="font-size:85%">{escape(title)}</figcaption></figure>'
    )


def details(summary: str, content: str) -> str:
    """Return a summary that expands to plain text when the user opens it."""
    return f'<details style="margin:.3em 0"><summary>{escape(summary)}</summary>{text(content)}</details>'


def sandboxed_frame(document: str, title: str) -> str:
    """Return an HTML document in a sandboxed frame, whose scripts cannot access the surrounding page."""
    style = f"width:100%;height:{_FRAME_HEIGHT}px;border:1px solid {_LINE};border-radius:.3em"
    return (
        f'<iframe title="{escape(title)}" sandbox="allow-scripts" style="{style}" srcdoc="{escape(document)}"></iframe>'
    )


def tree_rows(parents: Sequence[int | None]) -> list[int]:
    """Return the row of each node of a tree that grows to the right, counted from 1, given the nodes' parents.

    A parent must come before its children. A node is drawn in the row of its first child.
    """
    children = dict[int | None, list[int]]()
    for index, parent in enumerate(parents):
        children.setdefault(parent, []).append(index)
    rows, num_rows = [0] * len(parents), 0
    stack = children.get(None, [])[::-1]
    while stack:
        index = stack.pop()
        parent = parents[index]
        if parent is None or index != children[parent][0]:
            num_rows += 1
        rows[index] = num_rows
        stack += children.get(index, [])[::-1]
    return rows


def tree_diagram(nodes: Sequence[tuple[str, int | None, str]], marked: Collection[int] = ()) -> str:
    """Return an SVG of a tree that grows to the right, in the color of the surrounding text.

    Args:
        nodes: The label of each node, the index of its parent (which must come first; None for a root), and its
            tooltip.
        marked: Indices of the nodes drawn in bold.
    """
    depths = list[int]()
    for _, parent, _ in nodes:
        depths.append(0 if parent is None else depths[parent] + 1)
    widths = [0] * (max(depths, default=-1) + 1)  # number of characters of the longest label in each column
    for depth, (label, _, _) in zip(depths, nodes, strict=True):
        widths[depth] = max(widths[depth], len(label))
    lefts = list(accumulate((width * _CHARACTER + _GAP for width in widths), initial=4))
    rows = tree_rows([parent for _, parent, _ in nodes])
    parts = []
    for index, (label, parent, tip) in enumerate(nodes):
        x, y = lefts[depths[index]], rows[index] * _ROW
        if parent is not None:
            start = lefts[depths[parent]] + len(nodes[parent][0]) * _CHARACTER + 4
            bend, above = x - 12, rows[parent] * _ROW - 4
            line = f"M{start} {above}H{bend}V{y - 4}H{x - 3}"
            parts.append(f'<path d="{line}" fill="none" stroke="currentColor" stroke-opacity=".4"/>')
        weight = ' font-weight="bold"' if index in marked else ""
        parts.append(f'<text x="{x}" y="{y}"{weight}><title>{escape(tip)}</title>{escape(label)}</text>')
    width, height = lefts[-1], (max(rows, default=0) + 1) * _ROW
    return (
        f'<div style="overflow:auto;max-height:32em"><svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{height}" font-family="monospace" font-size="13" fill="currentColor">{"".join(parts)}</svg></div>'
    )
