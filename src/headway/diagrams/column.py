"""A column of boxes from bottom to top, connected by arrows, with residual connections beside them.

Figure 1 of the paper has two columns, and the drawings of other models have one. Columns over the tokens of a text have
an arrow for each token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from torch import Tensor

from headway.diagrams.drawing import LINE_HEIGHT, Anchor, Box, Drawing, Mask, MaskRows, Style, area

WIDTH = 172.0  # of a layer's box
FRAME_HALF_WIDTH = WIDTH / 2 + 26.0  # distance from the center of a column to the edge of its frames
_GAP = 24.0  # distance between two boxes
_SKIP = 16.0  # distance between a box and the residual connection beside it
_CELL = 4.0  # cell size of a mask's picture
_FORK = 56.0  # distance between the arrows of queries, keys and values
_LABEL = 55.0  # width of the label beside a frame
# Text anchors on each side of a column: for text outside and inside the column.
_ANCHORS: dict[int, tuple[Anchor, Anchor]] = {-1: ("end", "start"), 1: ("start", "end")}


class Column:
    """Places boxes upward, each on its arrows.

    Args:
        drawing: The drawing to add shapes to.
        ports: The x of each arrow. The boxes are centered between the first and the last arrow.
        words: The names of the inputs, one for each of the ``ports``.
        shape: The shape of the input. :attr:`shape` is updated to the output shape of :attr:`newest_box`.
        width: The width of the boxes.
        y: The bottom of the first layer.
        side: The side of residual connections and labels: -1 is left, 1 is right.
        copies: The number of equal blocks that the drawn layers represent.
    """

    newest_box: Box

    def __init__(
        self, drawing: Drawing, ports: Sequence[float], words: Sequence[str] = (), shape: str = "", *,
        width: float = WIDTH, y: float = 0.0, side: int = 1, copies: int = 1,
    ) -> None:  # fmt: skip
        self.drawing, self.ports, self.width, self.side, self.copies = drawing, ports, width, side, copies
        self.x, self.y = (ports[0] + ports[-1]) / 2, y - 12 if words else y
        self.shape = self._unwritten = shape
        self._outward, self._inward = _ANCHORS[side]
        self._write(words, y)

    def draw_arrows(self, height: float = _GAP, *, head: bool = True) -> None:
        """Draw the arrows upward from the newest box, labeled with its output shape."""
        for x in self.ports if height else ():
            self.drawing.arrow(x, self.y, self.y - height, head=head)
        if height > LINE_HEIGHT:
            self._write_shape()
        self.y -= height

    def add_layer(
        self, text: str, style: Style, weights: Iterable[Tensor] = (), *, shape: str = "", gap: float = _GAP,
        stacked: bool = False, reserved: float = 0.0,
    ) -> Box:  # fmt: skip
        """Place a box, and dashed lines to the boxes with the same weights."""
        self.draw_arrows(gap)
        weights = list(weights)
        number = self.drawing.count_new(weights, self.copies)
        if self.drawing.show_sizes and number:
            text += f"\n{f'{self.copies} × ' if self.copies > 1 else ''}{number:,} weights"
        box = self.drawing.box(self.x, self.y, text, style, width=self.width, stacked=stacked, reserved=reserved)
        self._tie(weights, box)
        self.newest_box, self.y, self.shape = box, area(box)[1], shape or self.shape
        self._unwritten = self.shape
        return box

    def add_boxes(
        self, texts: Sequence[str], style: Style, gap: float, width: float, height: float, *, links: int = 0,
        weights: Sequence[Tensor] = (),
    ) -> list[Box]:  # fmt: skip
        """Place a box on each port. Arrows connect each box to the next (``links`` = 1), or to both neighbors (2)."""
        boxes = [self.drawing.box(x, self.y - gap, text, style, width=width, height=height)
                 for x, text in zip(self.ports, texts, strict=True)]  # fmt: skip
        self.draw_arrows(gap)
        self.y, apart = boxes[0].top, 8 * (links - 1)
        for left, right in pairwise(boxes) if links else ():
            self.drawing.arrow(left.right, left.center_y - apart, right.left, along="x")
            if links > 1:
                self.drawing.arrow(right.left, left.center_y + apart, left.right, along="x")
        self._tie(weights, boxes[0], boxes[-1])
        return boxes

    def draw_outputs(self, *words: str) -> None:
        """Draw an arrow for each output at the end of the column, and write the names of the outputs."""
        self.ports = self.ports if len(words) == len(self.ports) else [self.x]
        self.draw_arrows()
        self._write(words, self.y - 4)

    def add_attention(self, text: str, weights: Iterable[Tensor], mask: MaskRows, memory: Column | None) -> None:
        """Place an attention layer with arrows for its values, keys and queries, and a picture of its mask.

        Keys and values come from the end of the column ``memory`` or, if it is None, from the box below.
        """
        fork, arrow = self.y - _GAP, self.drawing.arrow
        bottom = fork - (34 if memory else 20)
        value, key, query = self.x - _FORK, self.x, self.x + _FORK
        self._write_shape()
        if memory is None:
            arrow(self.x, self.y, bottom)
            arrow(self.x, fork, value, bottom, along="x")
            arrow(self.x, fork, query, bottom, along="x")
        else:
            arrow(self.x, self.y, fork, query, bottom)
            arrow(memory.x, memory.y, memory.y - _GAP, (memory.x + self.x) / 2, bottom + 18, value, bottom)
            arrow(value, bottom + 18, key, bottom, along="x")
        for port, name in ((value, "V"), (key, "K"), (query, "Q")):
            self.drawing.text(port + 5, bottom + 12, name, "small", "start")
        self.y, size = bottom, _CELL * len(mask)
        box = self.add_layer(text, "attention", weights, gap=0.0, reserved=size + 8)
        self.drawing.shapes.append(Mask(box.right - size - 7, box.center_y - size / 2, _CELL, mask))

    def add_plus_sign(self) -> None:
        """Place a plus sign for an addition."""
        self.draw_arrows()
        self.newest_box = self._circle(self.x, self.y - 10, "+")
        self.y = self.newest_box.top

    def add_from_side(self, text: str, weights: Iterable[Tensor] = (), sign: str = "") -> None:
        """Place a box whose output is added to the column, such as a positional encoding. ``sign`` is its function."""
        number, width = self.drawing.count_new(weights), 100 if sign else 116
        text += f"\n{number:,} weights" if self.drawing.show_sizes and number else ""
        x = self.x + self.side * ((62 if sign else 28) + width / 2)
        box = self.drawing.box(x, self.y - 14, text, "embedding", width=width)
        start = box.left if self.side > 0 else box.right
        if sign:
            circle = self._circle(self.x + self.side * 36, box.center_y, sign)
            self.drawing.arrow(start, box.center_y, circle.center_x + 10 * self.side, along="x", head=False)
            start = circle.center_x - 10 * self.side
        self.draw_arrows(self.y - box.center_y - 10)
        self.drawing.arrow(start, box.center_y, self.x + 10 * self.side, along="x")
        self.y = self._circle(self.x, box.center_y, "+").top
        self.draw_arrows(max(self.y - box.top, 0.0), head=False)

    def draw_residual(self, start: float) -> None:
        """Draw a residual connection from the line at y = ``start`` to the side of the newest box."""
        outer, end = self.x + self.side * (WIDTH / 2 + _SKIP), self.newest_box
        self.drawing.arrow(self.x, start, outer, end.center_y, end.right if self.side > 0 else end.left, along="x")

    def fork(self) -> list[Column]:
        """Return two columns that start from this column's current value, one on each side of it."""
        branches = []
        for side in (-1, 1):
            x, y = self.x + side * (WIDTH / 2 + 14), self.y - 12
            branches.append(Column(self.drawing, [x], (), self.shape, y=y, side=side, copies=self.copies))
            self.drawing.arrow(self.x, y, x, along="x", head=False)
        return branches

    def join(self, branches: list[Column]) -> None:
        """Add the outputs of ``branches`` to this column's current value."""
        self.draw_arrows(self.y - min(branch.y for branch in branches), head=False)
        self.add_plus_sign()
        for branch in branches:
            self.drawing.arrow(branch.x, branch.y, self.newest_box.center_y, self.x + 10 * branch.side)

    @contextmanager
    def frame_repeated(self, count: int, label: str, words: str) -> Iterator[None]:
        """Draw a frame around everything placed inside the context: a block that is repeated ``count`` times."""
        place = len(self.drawing.shapes)
        self.draw_arrows(head=False)
        bottom, self.copies = self.y + 6, count
        yield
        self.copies, self._unwritten = 1, self.shape
        self.draw_arrows(12, head=False)
        boxes = [shape for shape in self.drawing.shapes[place:] if isinstance(shape, Box)]
        half = max(abs(edge - self.x) for box in boxes for edge in (box.left, box.right)) + FRAME_HALF_WIDTH - WIDTH / 2
        self.drawing.shapes.insert(place, Box(self.x - half, self.y, self.x + half, bottom, (), "frame"))
        x, y = self.x + self.side * (half + 7), (self.y + bottom) / 2 - LINE_HEIGHT
        self.drawing.text(x, y, label, "count", self._outward)
        self.drawing.paragraph(x, y, words, _LABEL, self._outward)

    def _circle(self, x: float, middle: float, sign: str) -> Box:
        return self.drawing.box(x, middle + 10, sign, "circle", width=20, height=20)

    def _write(self, words: Sequence[str], y: float) -> None:
        for x, word in zip(self.ports, words, strict=False):
            self.drawing.text(x, y, word)

    def _write_shape(self) -> None:
        """Write the shape of the newest output beside the arrow above it, unless it has been written."""
        if self.drawing.show_sizes and self._unwritten:
            self.drawing.text(self.x - 6 * self.side, self.y - 6, self._unwritten, "small", self._inward)
            self._unwritten = ""

    def _tie(self, weights: Sequence[Tensor], box: Box, last: Box | None = None) -> None:
        """Draw dashed lines to ``box`` from boxes with the same weights. Later lines start from ``last`` or ``box``."""
        owners, arrow, text = self.drawing.weight_boxes, self.drawing.arrow, self.drawing.text
        for owner in dict.fromkeys(map(owners.get, weights)):
            if owner and owner.bottom == box.bottom:  # the boxes are in different columns
                y = box.bottom + 6
                arrow(owner.right - 8, owner.bottom, y, box.left + 8, box.bottom, head=False, dashed=True)
                text((owner.right + box.left) / 2, y + 12, "same weights", "small")
            elif owner:
                x = self.drawing.bounds()[2] + 18
                arrow(owner.right, owner.center_y, x, box.center_y, box.right, along="x", head=False, dashed=True)
                text(x - 4, (owner.center_y + box.center_y) / 2, "same weights", "small", upright=True)
        owners.update(dict.fromkeys(weights, last or box))
