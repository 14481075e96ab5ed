"""HTML for notebooks: pieces of which objects are shown.

Everything is escaped, and nothing is loaded from elsewhere. There is no style sheet: colors are those of the page
around it, shaded by half-transparent ones. So a piece is legible on light and dark pages, in JupyterLab, VS Code and
exported HTML, whatever says which of the two they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

_LINE = "rgba(128,128,128,.4)"
_CELL = f"padding:.15em .7em;border-bottom:1px solid {_LINE};vertical-align:top;overflow-wrap:anywhere"
DOUBT, FOR, AGAINST = (217, 119, 6), (22, 140, 90), (200, 50, 60)  # red, green and blue of shades
_STRONGEST = 0.65  # opacity of a shade, under which text is legible
_WIDTH, _HEIGHT = 420, 120  # of a curve, in pixels


def page(*parts: str) -> str:
    """Join pieces of HTML, one below the other."""
    inner = "".join(parts)
    return f'<div class="headway" style="line-height:1.5;max-width:60em">{inner}</div>'


def paragraph(content: str, *, note: bool = False) -> str:
    """Return a paragraph of HTML, in small letters if it is a note."""
    style = "margin:.3em 0" + (";font-size:85%;opacity:.75" if note else "")
    return f'<div style="{style}">{content}</div>'


def text(content: str) -> str:
    """Return text of any language and direction, with its line breaks."""
    return f'<span dir="auto" style="white-space:pre-wrap;overflow-wrap:anywhere">{escape(content)}</span>'


def badge(content: str) -> str:
    """Return a word in a frame, such as a flag."""
    style = f"border:1px solid {_LINE};border-radius:.6em;padding:0 .5em;font-size:85%"
    return f'<span style="{style}">{escape(content)}</span>'


def shaded(words: Iterable[tuple[str, float, str]], color: tuple[int, int, int] | None = None) -> str:
    """Return words with shades.

    Args:
        words: For each word: the word, how strong its shade is (from -1 to 1), and what a tooltip says.
        color: The color of all shades. None means green for positive and red for negative ones.
    """
    spans = []
    for word, strength, tip in words:
        red, green, blue = color or (FOR if strength >= 0 else AGAINST)
        opacity = _STRONGEST * min(abs(strength), 1.0) if math.isfinite(strength) else 0.0
        style = f"background:rgba({red},{green},{blue},{opacity:.2f});border-radius:.25em;padding:0 .15em"
        spans.append(f'<span dir="auto" title="{escape(tip)}" style="{style}">{escape(word)}</span>')
    inner = " ".join(spans)
    return f'<span style="white-space:pre-wrap;overflow-wrap:anywhere">{inner}</span>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """Return a table of texts. The columns ``numbers``, counted from 0, are aligned on the right."""

    def row(cells: Sequence[str], tag: str) -> str:
        aligned = [f"text-align:{'right' if index in numbers else 'left'};{_CELL}" for index in range(len(cells))]
        marked = zip(aligned, cells, strict=True)
        inner = [f'<{tag} style="{style}">{escape(cell)}</{tag}>' for style, cell in marked]
        return f"<tr>{''.join(inner)}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    head = f"<thead>{row(header, 'th')}</thead>" if header else ""
    style = "border-collapse:collapse;margin:.3em 0;color:inherit;font:inherit"
    return f'<table style="{style}">{head}<tbody>{body}</tbody></table>'


def curve(points: Sequence[tuple[float, float]], title: str) -> str:
    """Return a small SVG of a curve through points (x, y), in the color of the text around it."""
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
    """Return an SVG of a matrix of weights from 0 to 1, with cells of ``size`` pixels. Weights below 0.02 are empty."""
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
