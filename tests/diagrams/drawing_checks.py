"""Checks of the geometry of drawings: nothing overlaps, no text is cut, no arrow crosses a box or a text."""

from __future__ import annotations

import itertools
import re

from headway.diagrams.drawing import LINE_HEIGHT, Arrow, Box, Drawing, Mask, Text, area
from headway.diagrams.svg import to_svg
from headway.diagrams.text_width import FONT_SIZES, text_width

__all__ = ["faults"]

PAGE_POINTS = 6.5 * 72
Rectangle = tuple[float, float, float, float]


def faults(drawing: Drawing) -> list[str]:
    """Return what is wrong in a drawing, in words."""
    frames = [area(shape) for shape in drawing.shapes if is_frame(shape)]
    solid = [(shape, area(shape)) for shape in drawing.shapes
             if isinstance(shape, Box | Text | Mask) and not is_frame(shape)]  # fmt: skip
    found = [f"cut: {shape.lines}" for shape, _ in solid if isinstance(shape, Box) and not fits(shape)]
    for (one, first), (other, second) in itertools.combinations(solid, 2):
        if overlap(first, second) and not (holds(one, other) or holds(other, one)):
            found.append(f"overlap: {name(one)} and {name(other)}")
    for frame, (shape, place) in itertools.product(frames, solid):
        if overlap(place, frame) and not inside(place, frame):
            found.append(f"frame cuts {name(shape)}")
    cores = [(shape, shrunk(core(shape), 1.0)) for shape, _ in solid]
    for arrow in drawing.shapes:
        for start, end in itertools.pairwise(arrow.points) if isinstance(arrow, Arrow) else ():
            segment = (min(start[0], end[0]), min(start[1], end[1]), max(start[0], end[0]), max(start[1], end[1]))
            assert start[0] == end[0] or start[1] == end[1], f"a slanted arrow: {start}, {end}"
            found += [
                f"an arrow {start}, {end} crosses {name(shape)}" for shape, place in cores if overlap(segment, place)
            ]
    width = float(re.search(r'width="([\d.]+)"', to_svg(drawing)).group(1))  # type: ignore[union-attr]
    if min(FONT_SIZES.values()) * PAGE_POINTS / width < 7.99:
        found.append(f"{width} pixels wide: letters smaller than 8 points")
    return found


def is_frame(shape: object) -> bool:
    return isinstance(shape, Box) and shape.style == "frame"


def core(shape: Box | Text | Mask) -> Rectangle:
    """Return the rectangle that no arrow may cross: of a stacked box the front, of a text its letters."""
    return (shape.left, shape.top, shape.right, shape.bottom) if isinstance(shape, Box) else area(shape)


def fits(box: Box) -> bool:
    widest = max((text_width(line, "box") for line in box.lines), default=0.0)
    free, height = box.right - box.left - box.reserved, box.bottom - box.top
    return widest <= free - 3 and LINE_HEIGHT * len(box.lines) <= height + 0.5


def holds(outer: object, inner: object) -> bool:
    """Return whether a box has room for another shape: an empty box, or the part that its text leaves free."""
    if not isinstance(outer, Box) or isinstance(inner, Box):
        return False
    assert isinstance(inner, Text | Mask)
    free = outer.left if outer.lines == ("",) else outer.right - outer.reserved
    return inside(area(inner), (free, outer.top, outer.right, outer.bottom))


def overlap(one: Rectangle, other: Rectangle) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def inside(inner: Rectangle, outer: Rectangle) -> bool:
    return inner[0] >= outer[0] and inner[1] >= outer[1] and inner[2] <= outer[2] and inner[3] <= outer[3]


def shrunk(place: Rectangle, by: float) -> Rectangle:
    return place[0] + by, place[1] + by, place[2] - by, place[3] - by


def name(shape: Box | Text | Mask) -> str:
    match shape:
        case Box():
            return f"box {' / '.join(shape.lines)} at {shape.left:.0f}, {shape.top:.0f}"
        case Text():
            return f"text {shape.text!r} at {shape.x:.0f}, {shape.y:.0f}"
        case Mask():
            return f"mask at {shape.left:.0f}, {shape.top:.0f}"
