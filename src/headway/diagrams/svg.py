"""Write a drawing as SVG: text as text, colors for light and dark screens, and the same bytes for the same drawing."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise

from headway.diagrams.drawing import FONT_SIZES, LINE_HEIGHT, Arrow, Box, Drawing, Frame, Grid, Shape, Text
from headway.diagrams.text_width import BOLD

_MARGIN = 12.0
_FONTS = "Arial,Helvetica,'Liberation Sans','DejaVu Sans',sans-serif"
_CODE_FONTS = "Menlo,Consolas,'Liberation Mono','DejaVu Sans Mono',monospace"
# The colors on a light and on a dark screen. Boxes have those of figure 1 of the paper.
_FILLS = {
    "page": ("#ffffff", "#14181d"),
    "frame": ("#f3f3f5", "#1f252c"),
    "embedding": ("#fbe0e0", "#5b2f35"),
    "attention": ("#ffe0b8", "#5f431a"),
    "feed_forward": ("#c6e8f6", "#174a60"),
    "norm": ("#f1f4bf", "#4a4d16"),
    "linear": ("#dcdff1", "#343a63"),
    "softmax": ("#cbe7cf", "#214d2b"),
    "state": ("#e6dcf3", "#46325f"),
    "plain": ("#ffffff", "#14181d"),
    "circle": ("#ffffff", "#14181d"),
    "ink": ("#1b1f24", "#e8eaed"),
}
_LINES = {"line": ("#1b1f24", "#e8eaed"), "edge": ("#5c636b", "#98a1ab"), "tie": ("#a3195b", "#ff8ac0")}


def to_svg(drawing: Drawing) -> str:
    """Return the text of an SVG file. Its caption is below the shapes, and its title above them."""
    left, top, right, bottom = drawing.bounds()
    width, height = right - left + 2 * _MARGIN, bottom - top + 2 * _MARGIN
    size = f'width="{_number(width)}" height="{_number(height)}" viewBox="0 0 {_number(width)} {_number(height)}"'
    described = " ".join(drawing.sentences)
    inner = "\n".join(line for shape in drawing.shapes for line in _elements(shape))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="headway-diagram" role="img" {size} '
        f'aria-label="{escape(drawing.title)}">\n<title>{escape(drawing.title)}</title>\n<desc>{escape(described)}'
        f"</desc>\n<style>{style_sheet()}</style>\n"
        f'<rect class="page" width="{_number(width)}" height="{_number(height)}"/>\n'
        f'<g transform="translate({_number(_MARGIN - left)} {_number(_MARGIN - top)})">\n{inner}\n</g>\n</svg>\n'
    )


def style_sheet() -> str:
    """Return the style sheet of all drawings, whose rules name their class, because a page may contain drawings."""
    texts = [f".headway-diagram text{{font-family:{_FONTS};stroke:none}}"]
    for role, size in FONT_SIZES.items():
        weight = ";font-weight:bold" if role in BOLD else ""
        fonts = f";font-family:{_CODE_FONTS}" if role == "code" else ""
        texts.append(f".headway-diagram .{role}-text{{font-size:{_number(size)}px{weight}{fonts}}}")
    fixed = ".headway-diagram path{fill:none}.headway-diagram .tie{stroke-dasharray:5 3}"
    light, dark = ("".join(_colors(theme)) for theme in (0, 1))
    return f"{''.join(texts)}{fixed}{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _colors(theme: int) -> Iterator[str]:
    for name, fill in _FILLS.items():
        selector = "text,.headway-diagram .ink" if name == "ink" else f".{name}"
        yield f".headway-diagram {selector}{{fill:{fill[theme]}}}"
    for name, stroke in _LINES.items():
        yield f".headway-diagram .{name}{{stroke:{stroke[theme]}}}"


def _elements(shape: Shape) -> Iterator[str]:
    match shape:
        case Box():
            yield from _box(shape)
        case Text(x, y, text, anchor, role, upright):
            turn = f' transform="rotate(-90 {_number(x)} {_number(y)})"' if upright else ""
            yield _text(x, y, text, f"{role}-text", anchor, turn)
        case Arrow(points, head, dashed):
            path = "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
            yield f'<path class="{"tie" if dashed else "line"}" d="{path}"/>'
            if head:
                yield _head(*list(pairwise(points))[-1])
        case Frame(x, y, width, height):
            yield _rectangle(x, y, width, height, 10, "frame edge")
        case Grid(x, y, size, rows):
            yield _rectangle(x, y, size * len(rows[0]), size * len(rows), 0, "plain edge")
            for row, cells in enumerate(rows):
                for column, cell in enumerate(cells):
                    place = f'x="{_number(x + column * size)}" y="{_number(y + row * size)}"'
                    if cell > 0:
                        yield (
                            f'<rect class="ink" {place} width="{_number(size)}" height="{_number(size)}" '
                            f'fill-opacity="{_number(cell)}"/>'
                        )


def _box(box: Box) -> Iterator[str]:
    if box.style == "circle":
        yield f'<circle class="circle line" cx="{_number(box.center)}" cy="{_number(box.middle)}" r="10"/>'
    else:
        for behind in (8, 4) if box.stacked else ():
            yield _rectangle(box.x + behind, box.y - behind, box.width, box.height, 5, f"{box.style} edge")
        yield _rectangle(box.x, box.y, box.width, box.height, 5, f"{box.style} edge")
    first = box.middle - LINE_HEIGHT * (len(box.lines) - 1) / 2 + 4
    for number, line in enumerate(box.lines):
        yield _text(box.center - box.reserved / 2, first + number * LINE_HEIGHT, line, "box-text", "middle")


def _head(before: tuple[float, float], end: tuple[float, float]) -> str:
    """Return the head of an arrow, a triangle. Lines are horizontal or vertical, or else any."""
    (x0, y0), (x, y) = before, end
    length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
    dx, dy = (x - x0) / length, (y - y0) / length
    corners = (
        (x, y),
        (x - 7 * dx + 3.5 * dy, y - 7 * dy - 3.5 * dx),
        (x - 7 * dx - 3.5 * dy, y - 7 * dy + 3.5 * dx),
    )
    points = " ".join(f"{_number(a)},{_number(b)}" for a, b in corners)
    return f'<polygon class="ink" points="{points}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str, more: str = "") -> str:
    """Return a text element, which keeps the spaces of code."""
    more += ' xml:space="preserve"' if kind == "code-text" else ""
    return f'<text class="{kind}" x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _rectangle(x: float, y: float, width: float, height: float, radius: float, kind: str) -> str:
    place = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
    return f'<rect class="{kind}" {place} rx="{_number(radius)}"/>'


def _number(value: float) -> str:
    """Return a number with at most one decimal place, so that rounding is the same on all processors."""
    return f"{round(value + 0.0, 1):g}" if abs(value) >= 0.05 else "0"
