"""A drawing: boxes, texts, arrows and masks with fixed positions and known sizes.

Coordinates are pixels of 1/96 inch, x to the right and y downward. A drawing grows upward from y = 0, like figure 1 of
the paper, so most values of y are negative. If a drawing of the width :data:`PAGE_WIDTH` is scaled to the width of a
page (6.5 inches), the smallest letters are 8 points high.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from typing import Literal

from torch import Tensor, nn

from headway.diagrams.text_width import FONT_SIZES, text_width, wrap_text

PAGE_WIDTH, LINE_HEIGHT = 640.0, 15.0
Style = Literal[
    "embedding", "attention", "feed_forward", "norm", "linear", "softmax", "state", "plain", "circle", "frame"
]
Anchor = Literal["start", "middle", "end"]
MaskRows = tuple[tuple[bool, ...], ...]  # one row per query; True where the query may attend to the key


@dataclass(frozen=True)
class Box:
    """A rectangle, circle or frame with centered lines of text. ``reserved`` pixels at its right are left free.

    Behind a ``stacked`` box, the edges of two more boxes are visible.
    """

    left: float
    top: float
    right: float
    bottom: float
    lines: tuple[str, ...]
    style: Style
    stacked: bool = False
    reserved: float = 0.0

    @property
    def center_x(self) -> float:
        """The x coordinate of the center."""
        return (self.left + self.right) / 2

    @property
    def center_y(self) -> float:
        """The y coordinate of the center."""
        return (self.top + self.bottom) / 2


@dataclass(frozen=True)
class Text:
    """A line of text. (x, y) is the start, middle or end of its baseline. ``upright`` text is read upward."""

    x: float
    y: float
    text: str
    role: str  # a key of FONT_SIZES
    anchor: Anchor
    upright: bool = False


@dataclass(frozen=True)
class Arrow:
    """A line through points, with an arrowhead at its end. Lines between shared weights are dashed and have no head."""

    points: tuple[tuple[float, float], ...]
    head: bool = True
    dashed: bool = False


@dataclass(frozen=True)
class Mask:
    """A picture of an attention mask with square cells."""

    left: float
    top: float
    cell: float
    rows: MaskRows


Shape = Box | Text | Arrow | Mask


def area(shape: Shape) -> tuple[float, float, float, float]:
    """Return the left, top, right and bottom of the space that a shape occupies."""
    match shape:
        case Box(left, top, right, bottom):
            behind = 8 * shape.stacked
            return left, top - behind, right + behind, bottom
        case Text(x, y, text, role, anchor, upright):
            size, width = FONT_SIZES[role], text_width(text, role)
            if upright:
                return x - 0.8 * size, y - width / 2, x + 0.25 * size, y + width / 2
            left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
            return left, y - 0.8 * size, left + width, y + 0.25 * size
        case Arrow(points):
            xs, ys = zip(*points, strict=True)
            return min(xs), min(ys), max(xs), max(ys)
        case Mask(left, top, cell, rows):
            return left, top, left + cell * len(rows[0]), top + cell * len(rows)


@dataclass
class Drawing:
    """A collection of shapes with a title and a caption.

    Attributes:
        title: One line that describes what is drawn.
        show_sizes: Whether to write tensor shapes beside arrows and numbers of weights in boxes.
        show_steps: Whether to draw a box for each step of a block instead of each sub-layer.
        shapes: The shapes, in the order in which they are drawn.
        caption: Sizes and options of the model, written below the shapes.
        weights: The number of weights of each layer, including its copies. Shared weights are counted once.
        weight_boxes: Maps each weight that has been counted to the box of its layer.
    """

    title: str
    show_sizes: bool = False
    show_steps: bool = False
    shapes: list[Shape] = field(default_factory=list)
    caption: str = ""
    weights: list[int] = field(default_factory=list)
    weight_boxes: dict[Tensor, Box | None] = field(default_factory=dict, compare=False)

    def box(
        self, center: float, bottom: float, text: str, style: Style, *, width: float = 0.0, height: float = 0.0,
        stacked: bool = False, reserved: float = 0.0,
    ) -> Box:  # fmt: skip
        """Add a box above ``bottom``. Its text is wrapped to ``width``; by default, the width fits the text."""
        width = width or max(text_width(line, "box") for line in text.split("\n")) + 16
        lines = tuple(part for line in text.split("\n") for part in wrap_text(line, width - reserved - 8, "box"))
        top = bottom - (height or LINE_HEIGHT * len(lines) + 9)
        box = Box(center - width / 2, top, center + width / 2, bottom, lines, style, stacked, reserved)
        self.shapes.append(box)
        return box

    def text(
        self, x: float, y: float, text: str, role: str = "label", anchor: Anchor = "middle", *, upright: bool = False
    ) -> None:
        """Add a line of text."""
        self.shapes.append(Text(x, y, text, role, anchor, upright))

    def paragraph(self, x: float, y: float, text: str, width: float, anchor: Anchor = "start") -> float:
        """Add text below ``y``, wrapped to ``width``, and return the y of its last line."""
        for line in wrap_text(text.replace(" = ", "\u00a0=\u00a0"), width, "small"):
            y += LINE_HEIGHT
            self.text(x, y, line, "small", anchor)
        return y

    def arrow(
        self, x: float, y: float, *turns: float, along: Literal["x", "y"] = "y", head: bool = True, dashed: bool = False
    ) -> None:
        """Add a line from (x, y) along an axis. It changes the axis at each of ``turns`` and ends at the last turn."""
        points = [(x, y)]
        for turn in turns:
            x, y, along = (turn, y, "y") if along == "x" else (x, turn, "x")
            points.append((x, y))
        self.shapes.append(Arrow(tuple(point for point, _ in groupby(points)), head, dashed))

    def count_new(self, weights: Iterable[Tensor], copies: int = 1) -> int:
        """Return the number of weights, excluding weights that have been counted before."""
        new = {weight: None for weight in weights if weight not in self.weight_boxes}
        self.weight_boxes.update(new)
        number = sum(weight.numel() for weight in new)
        self.weights.append(copies * number)
        return number

    def bounds(self) -> tuple[float, float, float, float]:
        """Return the left, top, right and bottom of all shapes together."""
        lefts, tops, rights, bottoms = zip(*map(area, self.shapes), strict=True)
        return min(lefts), min(tops), max(rights), max(bottoms)

    def junctions(self) -> list[tuple[float, float]]:
        """Return the points where lines branch or join. Lines that only cross have no junction."""
        lines = [shape.points for shape in self.shapes if isinstance(shape, Arrow) and not shape.dashed]
        segments, found = [segment for points in lines for segment in pairwise(points)], []
        for x, y in dict.fromkeys(chain(*lines)):
            ends = [end for (x0, y0), (x1, y1) in segments if (x0 - x) * (x1 - x) <= 0 and (y0 - y) * (y1 - y) <= 0
                    for end in ((x0, y0), (x1, y1)) if end != (x, y)]  # fmt: skip
            if len({(end[0] == x, end > (x, y)) for end in ends}) > 2:  # directions
                found.append((x, y))
        return found

    def description(self) -> str:
        """Return the text of all shapes, for people who cannot see the drawing."""
        texts = [" ".join(shape.lines) if isinstance(shape, Box) else shape.text for shape in self.shapes
                 if isinstance(shape, Box | Text)]  # fmt: skip
        return "; ".join(text for text, _ in groupby(texts) if text)


def weights_of(*modules: nn.Module | None) -> list[Tensor]:
    """Return the weights of modules. Modules that are None are skipped."""
    return [weight for module in modules if module is not None for weight in module.parameters()]
