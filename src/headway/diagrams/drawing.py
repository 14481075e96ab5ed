"""The shapes of a drawing: boxes, texts, arrows, frames and grids at fixed places, whose sizes are known.

Coordinates are in pixels of 1/96 inch, x to the right and y downward. A drawing grows upward from y = 0, as figure 1 of
the paper does, so most y are negative. The smallest letters are 8 points high if the drawing is as wide as
:data:`PAGE_WIDTH` and shown at the width of a page, 6.5 inches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from headway.diagrams.text_width import text_width, wrapped

PAGE_WIDTH = 640.0
FONT_SIZES = {"box": 12.0, "label": 12.0, "small": 11.0, "bold": 11.0, "code": 11.0, "title": 13.0, "count": 16.0}
LINE_HEIGHT = 15.0
Style = Literal["embedding", "attention", "feed_forward", "norm", "linear", "softmax", "state", "plain", "circle"]
Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle, or a circle, with centered lines of text. (x, y) is its upper left corner."""

    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]
    style: Style
    stacked: bool = False  # whether the edges of two more boxes are visible behind it
    reserved: float = 0.0  # width at the right that the text leaves free

    @property
    def center(self) -> float:
        """The x of the center."""
        return self.x + self.width / 2

    @property
    def middle(self) -> float:
        """The y of the center."""
        return self.y + self.height / 2

    @property
    def right(self) -> float:
        """The x of the right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The y of the bottom edge."""
        return self.y + self.height


@dataclass(frozen=True)
class Text:
    """A line of text. (x, y) is on its baseline, at its start, middle or end; if upright, at its middle."""

    x: float
    y: float
    text: str
    anchor: Anchor
    role: str  # a key of FONT_SIZES
    upright: bool = False  # whether it is read from bottom to top

    @property
    def width(self) -> float:
        """The width in pixels, in the widest of the fonts."""
        return text_width(self.text, FONT_SIZES[self.role], self.role)

    @property
    def left(self) -> float:
        """The x of the left end."""
        return self.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor] * self.width


@dataclass(frozen=True)
class Arrow:
    """A line through points, with a head at its end. Ties of weights are dashed and have no head."""

    points: tuple[Point, ...]
    head: bool = True
    dashed: bool = False


@dataclass(frozen=True)
class Frame:
    """A rounded outline around shapes, such as a block that occurs several times. ``style`` "cell" is filled."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Grid:
    """A mask: one row for each query, one column for each key, filled where the query may attend to the key.

    The numbers are between 0 and 1: the opacity of a cell.
    """

    x: float
    y: float
    size: float  # of a cell
    rows: tuple[tuple[float, ...], ...]


Shape = Box | Text | Arrow | Frame | Grid


@dataclass
class Drawing:
    """Shapes, with a title and a description in words.

    Attributes:
        title: One line that says what is drawn.
        shapes: The shapes, in the order in which they are drawn.
        caption: Sizes and options of the model, written below the shapes.
        sentences: The description, for people who do not see the drawing.
        weights: The number of weights that each box stands for, in all its copies. Shared weights count once.
    """

    title: str
    shapes: list[Shape] = field(default_factory=list)
    caption: str = ""
    sentences: list[str] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)

    def box(
        self,
        center: float,
        bottom: float,
        lines: Sequence[str],
        style: Style,
        *,
        width: float | None = None,
        height: float | None = None,
        stacked: bool = False,
        reserved: float = 0.0,
    ) -> Box:
        """Add a box above ``bottom``. Its lines are wrapped to ``width``, which by default fits them."""
        size = FONT_SIZES["box"]
        if width is None:
            width = max(text_width(line, size, "box") for line in lines) + 16
        shown = tuple(part for line in lines for part in wrapped(line, size, width - reserved - 8, "box"))
        height = height or LINE_HEIGHT * len(shown) + 9
        added = Box(center - width / 2, bottom - height, width, height, shown, style, stacked, reserved)
        self.shapes.append(added)
        return added

    def circle(self, center: float, middle: float, sign: str) -> Box:
        """Add a circle with a sign, such as the addition of two inputs."""
        added = Box(center - 10, middle - 10, 20, 20, (sign,), "circle")
        self.shapes.append(added)
        return added

    def text(
        self, x: float, y: float, text: str, *, anchor: Anchor = "start", role: str = "label", upright: bool = False
    ) -> Text:
        """Add a line of text."""
        added = Text(x, y, text, anchor, role, upright)
        self.shapes.append(added)
        return added

    def paragraph(self, x: float, y: float, text: str, width: float, *, role: str = "small") -> float:
        """Add text below ``y``, wrapped to ``width``, and return the y of its end."""
        for line in wrapped(text.replace(" = ", "\u00a0=\u00a0"), FONT_SIZES[role], width, role):
            y += LINE_HEIGHT
            self.text(x, y, line, role=role)
        return y

    def arrow(self, *points: Point, head: bool = True, dashed: bool = False) -> None:
        """Add a line through ``points``, with a head at its end."""
        kept = [points[0], *(new for old, new in pairwise(points) if new != old)]
        self.shapes.append(Arrow(tuple(kept), head, dashed))

    def bounds(self) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of all shapes."""
        rectangles = [rectangle(shape) for shape in self.shapes]
        lefts, tops, rights, bottoms = zip(*rectangles, strict=True)
        return min(lefts), min(tops), max(rights), max(bottoms)


def rectangle(shape: Shape) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of the space that a shape takes."""
    match shape:
        case Text():
            size, half = FONT_SIZES[shape.role], shape.width / 2
            if shape.upright:
                return shape.x - 0.8 * size, shape.y - half, shape.x + 0.25 * size, shape.y + half
            return shape.left, shape.y - 0.8 * size, shape.left + shape.width, shape.y + 0.25 * size
        case Arrow():
            xs, ys = zip(*shape.points, strict=True)
            return min(xs), min(ys), max(xs), max(ys)
        case Grid():
            rows, columns = len(shape.rows), len(shape.rows[0])
            return shape.x, shape.y, shape.x + columns * shape.size, shape.y + rows * shape.size
        case Box() if shape.stacked:
            return shape.x, shape.y - 8, shape.x + shape.width + 8, shape.y + shape.height
        case _:
            return shape.x, shape.y, shape.x + shape.width, shape.y + shape.height
