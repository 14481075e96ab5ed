"""Convert a drawing to SVG with text as text and colors for light and dark screens. The result is deterministic."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from headway.diagrams.drawing import LINE_HEIGHT, Arrow, Box, Drawing, Mask, Shape, Text
from headway.diagrams.text_width import BOLD, FONT_SIZES

_MARGIN = 12.0
_FONTS = "Arial,Helvetica,'Liberation Sans','DejaVu Sans',sans-serif"
_CODE_FONTS = "Menlo,Consolas,'Liberation Mono','DejaVu Sans Mono',monospace"
# The property of each class, with its values on a light and a dark screen. Box colors are from figure 1 of the paper.
_COLORS = {
    "frame": ("fill", "#f3f3f5", "#1f252c"),
    "embedding": ("fill", "#fbe0e0", "#5b2f35"),
    "attention": ("fill", "#ffe0b8", "#5f431a"),
    "feed_forward": ("fill", "#c6e8f6", "#174a60"),
    "norm": ("fill", "#f1f4bf", "#4a4d16"),
    "linear": ("fill", "#dcdff1", "#343a63"),
    "softmax": ("fill", "#cbe7cf", "#214d2b"),
    "state": ("fill", "#e6dcf3", "#46325f"),
    "plain": ("fill", "#ffffff", "#14181d"),
    "circle": ("fill", "#ffffff", "#14181d"),
    "ink": ("fill", "#1b1f24", "#e8eaed"),
    "line": ("stroke", "#1b1f24", "#e8eaed"),
    "edge": ("stroke", "#5c636b", "#98a1ab"),
    "tie": ("stroke", "#a3195b", "#ff8ac0"),
}


def to_svg(drawing: Drawing) -> str:
    """Return a drawing as the text of an SVG file."""
    left, top, right, bottom = drawing.bounds()
    width, height = _number(right - left + 2 * _MARGIN), _number(bottom - top + 2 * _MARGIN)
    title, inner = escape(drawing.title), "\n".join(line for shape in drawing.shapes for line in _elements(shape))
    dots = "".join(f'<circle class="ink" cx="{_number(x)}" cy="{_number(y)}" r="3"/>' for x, y in drawing.junctions())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="headway-diagram" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" aria-label="{title}">\n<title>{title}</title>\n'
        f"<desc>{escape(drawing.description())}</desc>\n<style>{style_sheet()}</style>\n"
        f'<rect class="plain" width="{width}" height="{height}"/>\n'
        f'<g transform="translate({_number(_MARGIN - left)} {_number(_MARGIN - top)})">\n{inner}\n{dots}</g>\n</svg>\n'
    )


def style_sheet() -> str:
    """Return the style sheet of all drawings. Its rules apply only to drawings, because pages contain other text."""
    light, dark = (
        "".join(f".headway-diagram .{name}{{{kind}:{colors[theme]}}}" for name, (kind, *colors) in _COLORS.items())
        for theme in (0, 1)
    )
    texts = "".join(
        f".headway-diagram .{role}-text{{font-size:{_number(size)}px{';font-weight:bold' if role in BOLD else ''}}}"
        for role, size in FONT_SIZES.items()
    )
    return (
        f".headway-diagram text{{font-family:{_FONTS};stroke:none}}{texts}.headway-diagram .code-text{{font-family:"
        f"{_CODE_FONTS}}}.headway-diagram .line,.headway-diagram .tie{{fill:none}}.headway-diagram .tie"
        f"{{stroke-dasharray:5 3}}{light}@media (prefers-color-scheme:dark){{{dark}}}"
    )


def _elements(shape: Shape) -> Iterator[str]:
    match shape:
        case Box(left, top, right, bottom, lines, style, stacked, reserved):
            for behind in (8, 4, 0) if stacked else (0,):
                yield _rectangle(left + behind, top - behind, right - left, bottom - top, style)
            y = shape.center_y - LINE_HEIGHT * (len(lines) - 1) / 2 + 4
            for number, line in enumerate(lines):
                yield from _elements(
                    Text(shape.center_x - reserved / 2, y + number * LINE_HEIGHT, line, "box", "middle")
                )
        case Text(x, y, text, role, anchor, upright):
            more = f' transform="rotate(-90 {_number(x)} {_number(y)})"' if upright else ""
            more += ' xml:space="preserve"' if role == "code" else ""
            place = f'x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}"'
            yield f'<text class="{role}-text ink" {place}{more}>{escape(text)}</text>'
        case Arrow(points, head, dashed):
            path = "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
            yield f'<path class="{"tie" if dashed else "line"}" d="M{path}"/>'
            if head:
                (x0, y0), (x, y) = points[-2:]
                dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
                corner = f"l{_number(3.5 * dy - 7 * dx)} {_number(-3.5 * dx - 7 * dy)}l{-7 * dy} {7 * dx}z"
                yield f'<path class="ink" d="M{_number(x)} {_number(y)}{corner}"/>'
        case Mask(left, top, cell, rows):
            yield _rectangle(left, top, cell * len(rows[0]), cell * len(rows), "plain", rounded=False)
            cells = [(left + cell * column, top + cell * row) for row, keys in enumerate(rows)
                     for column, attends in enumerate(keys) if attends]  # fmt: skip
            path = "".join(f"M{_number(x)} {_number(y)}h{cell:g}v{cell:g}h-{cell:g}z" for x, y in cells)
            yield f'<path class="ink" d="{path}"/>'


def _rectangle(left: float, top: float, width: float, height: float, style: str, *, rounded: bool = True) -> str:
    radius = (10 if style in ("circle", "frame") else 5) if rounded else 0
    place = f'x="{_number(left)}" y="{_number(top)}" width="{_number(width)}" height="{_number(height)}"'
    return f'<rect class="{style} edge" {place} rx="{radius}"/>'


def _number(value: float) -> str:
    """Return a number with at most one decimal place, so that rounding is the same on all processors."""
    return f"{round(value + 0.0, 1):g}" if abs(value) >= 0.05 else "0"
