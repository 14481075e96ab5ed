"""A column of a drawing: layers from bottom to top, joined by arrows, with residual connections beside them.

A family of models describes its columns as items, and :class:`Column` places them: the paper's figure 1 has two
columns, other models one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from headway.diagrams.drawing import FONT_SIZES, LINE_HEIGHT, Anchor, Box, Drawing, Frame, Grid, Style
from headway.diagrams.text_width import text_width, wrapped

WIDTH = 172.0  # of a layer's box
_GAP = 24.0  # between two boxes
_FRAME_PADDING = 26.0  # between a box and the frame around its block; the residual connections run there
FRAME_HALF = WIDTH / 2 + _FRAME_PADDING  # from the center of a column to the edge of its frames
_SKIP = 16.0  # between a box and the residual connection beside it
_CELL = 4.0  # of the picture of a mask
_PORTS = 56.0  # between the arrows of queries, keys and values
_COUNT_WIDTH = 52.0  # of the label beside a frame

Mask = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Layer:
    """A box.

    Attributes:
        lines: Its text.
        style: Its color.
        weights: Its number of weights, or None if it has none.
        shape: The shape of its output.
        name: The name under which :attr:`Column.boxes` has the box.
        stacked: Whether it stands for several equal boxes.
    """

    lines: tuple[str, ...]
    style: Style
    weights: int = 0
    shape: str = ""
    name: str = ""
    stacked: bool = False


@dataclass(frozen=True)
class AttentionLayer(Layer):
    """A box with arrows for values, keys and queries, and a picture of its mask.

    ``memory`` says that keys and values come from :meth:`Column.attach_memory`, not from the layer below.
    """

    mask: Mask = ()
    memory: bool = False


@dataclass(frozen=True)
class Added:
    """The addition of a vector from a box at the side, such as the encoding of positions."""

    layer: Layer


@dataclass(frozen=True)
class Sublayer:
    """Layers with their residual connection: ``place`` is that of the norm. ``norm`` is None if there is none."""

    layers: tuple[Layer, ...]
    place: Literal["post", "pre", "none"]
    norm: Layer | None
    residual: bool


@dataclass(frozen=True)
class Parallel:
    """Two branches that read the same input, each with its norm first. Their outputs are added to the input."""

    branches: tuple[tuple[Layer, ...], tuple[Layer, ...]]


@dataclass(frozen=True)
class Repeat:
    """A block that occurs ``count`` times, and the words for it."""

    count: int
    words: str
    items: tuple[Item, ...]
    shape: str = ""


Item = Layer | Added | Sublayer | Parallel | Repeat


class Column:
    """Places items upward from ``y``, around the vertical line at ``x``.

    Args:
        drawing: The drawing to add shapes to.
        x: The center of the boxes.
        y: The bottom of the first item.
        width: The width of the boxes.
        side: The side of residual connections and labels: -1 is left, 1 is right.
        shapes: Whether to write the shapes of outputs beside arrows, and numbers of weights in boxes.
    """

    def __init__(
        self,
        drawing: Drawing,
        x: float,
        *,
        y: float = 0.0,
        width: float = WIDTH,
        side: Literal[-1, 1] = -1,
        shapes: bool = False,
    ) -> None:
        self.drawing, self.x, self.side, self.shapes = drawing, x, side, shapes
        self.width = width
        self._inward: Anchor = "start" if side < 0 else "end"  # of texts between the line and the column's other side
        self._outward: Anchor = "end" if side < 0 else "start"
        self.y = y  # the top of what has been placed; an arrow begins there
        self.boxes: dict[str, Box] = {}
        self.memory_ports: list[tuple[float, float, float]] = []  # x of the keys, of the values, and y of both
        self._shape, self._copies, self._started = "", 1, False
        self._extent, self._side_top = (
            FRAME_HALF + 7 + _COUNT_WIDTH,
            y,
        )  # of the labels at the side, and of the boxes there

    def words(self, text: str, *, shape: str = "") -> None:
        """Place a line of text, such as the name of the input."""
        if self._started:
            self._connect(self.y - _GAP)
            self.y -= _GAP + 4
        self.drawing.text(self.x, self.y, text, anchor="middle")
        self.y -= FONT_SIZES["label"]
        self._shape, self._started = shape, True
        self.drawing.sentences.append(f"{text}.")

    def add(self, *items: Item) -> None:
        """Place items above what has been placed."""
        for item in items:
            match item:
                case Layer():
                    self._layer(item)
                case Added():
                    self._added(item.layer)
                case Sublayer():
                    self._sublayer(item)
                case Parallel():
                    self._parallel(item)
                case Repeat():
                    self._repeat(item)

    def connect_memory(self, encoder: Column) -> None:
        """Draw arrows from the top of ``encoder`` through the middle between both columns to keys and values."""
        gutter, top = (encoder.x + self.x) / 2, encoder.y - _GAP
        text = "memory (encoder output)" + (f" {encoder._shape}" if self.shapes else "")
        self.drawing.text(encoder.x, top - 6, text, anchor="middle", role="small")
        for key, value, bus in self.memory_ports:
            self.drawing.arrow((encoder.x, encoder.y), (encoder.x, top), (gutter, top), (gutter, bus), (value, bus),
                               (value, bus - 18))  # fmt: skip
            self.drawing.arrow((value, bus), (key, bus), (key, bus - 18))

    def tie(self, lower: str, upper: str) -> None:
        """Draw a dashed line between two boxes that share their matrix."""
        first, second = self.boxes[lower], self.boxes[upper]
        outer = self.x + self.side * (self._extent + 9)
        (start, end) = (box.right if self.side > 0 else box.x for box in (first, second))
        self.drawing.arrow(
            (start, first.middle), (outer, first.middle), (outer, second.middle), (end, second.middle),
            head=False, dashed=True,
        )  # fmt: skip
        self.drawing.text(end + 8 * self.side, second.middle - 5, "same weights", anchor=self._outward, role="small")
        self.drawing.sentences.append("The output projection and the embedding are one matrix.")

    def finish(self) -> None:
        """End the column with an arrow, for a block whose output goes elsewhere."""
        self._connect(self.y - _GAP)
        self.y -= _GAP

    def _box(self, layer: Layer, x: float, bottom: float, width: float | None = None, reserved: float = 0.0) -> Box:
        lines = layer.lines
        if self.shapes and layer.weights:
            copies = f"{self._copies} × " if self._copies > 1 else ""
            lines = (*lines, f"{copies}{layer.weights:,} weights")
        added = self.drawing.box(
            x, bottom, lines, layer.style, width=width or self.width, stacked=layer.stacked, reserved=reserved
        )
        self.drawing.weights.append(layer.weights * self._copies)
        if layer.name:
            self.boxes[layer.name] = added
        self.drawing.sentences.append(", ".join(lines) + ".")
        return added

    def _connect(self, bottom: float) -> None:
        """Draw an arrow from the last item up to ``bottom``, with the shape of what it carries."""
        if self._started:
            self.drawing.arrow((self.x, self.y), (self.x, bottom))
            self._write_shape()

    def _write_shape(self) -> None:
        if self.shapes and self._shape:
            self.drawing.text(self.x - 6 * self.side, self.y - 6, self._shape, anchor=self._inward, role="small")
        self._shape = ""

    def _layer(self, layer: Layer) -> None:
        if isinstance(layer, AttentionLayer):
            self._attention(layer)
            return
        bottom = self.y - (_GAP if self._started else 0)
        self._connect(bottom)
        added = self._box(layer, self.x, bottom)
        self.y, self._started = added.y - (8 if layer.stacked else 0), True
        self._shape = layer.shape or self._shape

    def _attention(self, layer: AttentionLayer) -> None:
        """Place the box, the fork to its three inputs, and its mask."""
        fork, bottom = self.y - _GAP, self.y - _GAP - (34 if layer.memory else 20)
        self._write_shape()
        value, key, query = self.x - _PORTS, self.x, self.x + _PORTS
        if layer.memory:
            self.drawing.arrow((self.x, self.y), (self.x, fork), (query, fork), (query, bottom))
            self.memory_ports.append((key, value, bottom + 18))
        else:
            self.drawing.arrow((self.x, self.y), (self.x, bottom))
            for port in (value, query):
                self.drawing.arrow((self.x, fork), (port, fork), (port, bottom))
        for port, name in ((value, "V"), (key, "K"), (query, "Q")):
            self.drawing.text(port + 5, bottom + 12, name, role="small")
        side = _CELL * len(layer.mask)
        added = self._box(layer, self.x, bottom, reserved=side + 8 if side else 0.0)
        if layer.mask:
            self.drawing.shapes.append(Grid(added.right - side - 7, added.middle - side / 2, _CELL, layer.mask))
        self.y, self._shape = added.y, layer.shape

    def _added(self, layer: Layer) -> None:
        width = max(text_width(line, FONT_SIZES["box"], "box") for line in layer.lines) + 16
        width = min(max(width, 96.0), 132.0)
        box = self._box(layer, self.x + self.side * (28 + width / 2), 0.0, width)
        middle = min(self.y - _GAP - 10, self._side_top - 8 - box.height / 2)
        placed = self.drawing.shapes[-1] = replace(box, y=middle - box.height / 2)
        self._connect(middle + 10)
        circle = self.drawing.circle(self.x, middle, "+")
        self.drawing.arrow((placed.x if self.side > 0 else placed.right, middle), (self.x + 10 * self.side, middle))
        self.y, self._side_top, self._shape = circle.y, placed.y, ""

    def _sublayer(self, item: Sublayer) -> None:
        below, skip = self.y - 10, self.x + self.side * (WIDTH / 2 + _SKIP)
        if item.place == "pre" and item.norm is not None:
            self._layer(item.norm)
        for layer in item.layers:
            self._layer(layer)
        if item.place == "post" and item.norm is not None:
            words = f"Add & {item.norm.lines[0].lower() if item.norm.lines[0] == 'Norm' else item.norm.lines[0]}"
            norm = replace(item.norm, lines=(words, *item.norm.lines[1:])) if item.residual else item.norm
            self._layer(norm)
            target = (self.x + self.side * self.width / 2, _middle(self.drawing))
        elif item.residual:
            middle = self.y - _GAP - 10
            self._connect(middle + 10)
            self.drawing.circle(self.x, middle, "+")
            self.y = middle - 10
            target = (self.x + self.side * 10, middle)
            self.drawing.sentences.append("Added to the input of the sub-layer.")
        if item.residual:
            self.drawing.arrow((self.x, below), (skip, below), (skip, target[1]), target)

    def _parallel(self, item: Parallel) -> None:
        """Place the branches on both sides of the line that carries the input on to the addition."""
        start, tops = self.y - _GAP / 2, []
        for layers, side in zip(item.branches, (-1, 1), strict=True):
            x = self.x + side * (WIDTH / 2 + 14)
            self.drawing.arrow((self.x, start), (x, start), (x, self.y - _GAP - 6))
            bottom = self.y - _GAP - 6
            for number, layer in enumerate(layers):
                if number:
                    self.drawing.arrow((x, bottom), (x, bottom - _GAP))
                    bottom -= _GAP
                bottom = self._box(layer, x, bottom).y
            tops.append((x, bottom))
        middle = min(top for _, top in tops) - _GAP
        self.drawing.circle(self.x, middle, "+")
        for side, (x, top) in zip((-1, 1), tops, strict=True):
            self.drawing.arrow((x, top), (x, middle), (self.x + side * 10, middle))
        self.drawing.arrow((self.x, self.y), (self.x, middle + 10))
        self.drawing.sentences.append("Both outputs are added to the input of the block.")
        self.y, self._shape = middle - 10, item.branches[0][-1].shape

    def _repeat(self, item: Repeat) -> None:
        place, below = len(self.drawing.shapes), min(self.y - _GAP, self._side_top - 12)
        self.drawing.arrow((self.x, self.y), (self.x, below), head=False)
        self._write_shape()
        bottom = below + 6
        self.drawing.sentences.append(f"{f'{item.count} times' if item.count > 1 else 'Once'}, {item.words}:")
        self.y, self._copies = below, item.count
        self.add(*item.items)
        self._copies = 1
        wide = any(isinstance(inner, Parallel) for inner in item.items)
        half = FRAME_HALF + (WIDTH / 2 + 14 if wide else 0)
        top = self.y - 12
        self.drawing.arrow((self.x, self.y), (self.x, top), head=False)
        self.drawing.shapes.insert(place, Frame(self.x - half, top, 2 * half, bottom - top))
        self._extent = max(self._extent, half + 7 + _COUNT_WIDTH)
        edge = self.x + self.side * (half + 7)
        lines = list(wrapped(item.words, FONT_SIZES["small"], _COUNT_WIDTH, "small"))
        y = (top + bottom) / 2 - LINE_HEIGHT * len(lines) / 2
        self.drawing.text(edge, y, f"{item.count} ×", anchor=self._outward, role="count")
        for number, line in enumerate(lines, start=1):
            self.drawing.text(edge, y + 3 + number * LINE_HEIGHT, line, anchor=self._outward, role="small")
        self.y, self._shape = top, item.shape


def _middle(drawing: Drawing) -> float:
    """Return the y of the center of the last box."""
    return next(shape for shape in reversed(drawing.shapes) if isinstance(shape, Box)).middle
