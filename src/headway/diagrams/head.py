"""Draw an attention head with its numbers: X, its projections Q, K and V, the scores, and the mixture of values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.diagrams.drawing import LINE_HEIGHT, Box, Drawing, Style
from headway.diagrams.head_input import HeadInput
from headway.diagrams.text_width import truncate_to_width
from headway.nn.attention import record_attention

_CELL = 38.0  # width of a matrix cell
_SHOWN, _MAX_TOKENS = 3, 5  # maximum numbers of vector components and of tokens to show
_APART = 206.0  # distance between the centers of Q, K and V


@torch.inference_mode()
def draw_head(head: HeadInput, tokens: Sequence[str], drawing: Drawing) -> None:
    """Draw what the first head computes, with a row for each of the first tokens. The second token's row is bold."""
    attention, x = head.layer, head.x
    query, kv = attention.project(x[None])
    bias = None if attention.relative_bias is None else attention.relative_bias.biases_for_length(len(x))
    scores = attention.scores(query, kv.repeat_for_queries(attention.queries_per_key).keys, bias)[0, 0]
    with record_attention(attention) as recorded:
        attention.attend_to_itself(query, kv, head.mask)
    weights = recorded[0][0, 0]
    source = _matrix(drawing, 0.0, -10.0, "X: input of the layer", x, tokens, "embedding")
    shown = []
    for place, (name, part) in enumerate((("Q", query[0, 0]), ("K", kv.keys[0, 0]), ("V", kv.values[0, 0])), start=-1):
        text = f"W for {name}\n{x.size(1):,} × {part.size(1):,}"
        matrix = drawing.box(place * _APART, source.top - 44, text, "linear", width=110)
        _elbow(drawing, source, matrix)
        box = _matrix(
            drawing, matrix.center_x, matrix.top - 20, f"{name} of head 1", part, tokens, "state", name == "Q"
        )
        drawing.arrow(matrix.center_x, matrix.top, box.bottom)
        shown.append(box)
    center = -_APART / 2
    title = f"Scores: Q Kᵀ / √{attention.d_key}" if attention.score is None else "Scores of Q and K"
    title += "" if attention.relative_bias is None else " + bias"
    compared = _matrix(drawing, center, shown[0].top - 44, title, scores, tokens, "attention", heading=LINE_HEIGHT)
    for box, port in zip(shown, (-20.0, 20.0), strict=False):
        _elbow(drawing, box, compared, port=port)
    bottom = compared.top - 44 - LINE_HEIGHT
    normed = _matrix(drawing, center, bottom, "Softmax of each row", weights, tokens, "softmax", heading=LINE_HEIGHT)
    drawing.arrow(center, compared.top - 18 - LINE_HEIGHT, normed.bottom)
    mixture, bottom = weights @ kv.values[0, 0], normed.top - 48 - LINE_HEIGHT
    mixed = _matrix(drawing, _APART / 4, bottom, "Mixture: weights × V", mixture, tokens, "state")
    _elbow(drawing, normed, mixed, LINE_HEIGHT)
    drawing.arrow(shown[2].center_x, shown[2].top - 18, mixed.center_y, mixed.right)
    row = tokens[min(1, len(tokens) - 1)].strip()
    drawing.caption = (
        f"Head 1 of the first block ({head.block_kind} self-attention), rounded; the row of “{row}” is bold. "
    )


def _matrix(
    drawing: Drawing, center: float, bottom: float, title: str, rows: Tensor, tokens: Sequence[str], style: Style,
    bold: bool = True, heading: float = 0.0,
) -> Box:  # fmt: skip
    """Draw a matrix below its title: a row for each token, and an ellipsis for the columns that are not drawn.

    If ``heading``, its height, is not 0, the columns are also tokens, which are written above them. If ``bold`` is
    True, the second row is bold, or the only row.
    """
    most, cell = (_MAX_TOKENS, _CELL + 12) if heading else (_SHOWN, _CELL)
    count, more = min(rows.size(1), most), rows.size(1) > most
    numbers = [[*map(_number, row[:count]), *["…"] * more] for row in rows[:_MAX_TOKENS].tolist()]
    width, height = cell * count + 22 * more + 8, LINE_HEIGHT * len(numbers) + 8
    box = drawing.box(center, bottom, "", style, width=width, height=height)
    drawing.text(box.left, box.top - 5 - heading, title, "small", "start")
    columns = [box.left + cell * (column + 1) - 2 for column in range(count)]
    for x, token in zip(columns if heading else (), tokens, strict=False):
        drawing.text(x, box.top - 5, truncate_to_width(token, cell - 4, "small"), "small", "end")
    columns += [box.right - 6] * more
    for number, row in enumerate(numbers):
        y, is_bold = box.top + 15 + number * LINE_HEIGHT, bold and number == min(1, len(numbers) - 1)
        for x, value in zip(columns, row, strict=True):
            drawing.text(x, y, value, "bold" if is_bold else "code", "end")
        role = "bold" if is_bold else "small"
        drawing.text(box.left - 6, y, truncate_to_width(tokens[number], 52, role), role, "end")
    return box


def _number(value: float) -> str:
    """Return a number as text of at most five characters, unless it is huge."""
    return f"{value:z.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def _elbow(drawing: Drawing, lower: Box, upper: Box, heading: float = 0.0, port: float = 0.0) -> None:
    """Draw an arrow to the bottom of a box from the top of a matrix, above the matrix's title and heading.

    The arrow ends ``port`` to the right of the center.
    """
    start = lower.top - 18 - heading
    drawing.arrow(lower.center_x, start, start - 10, upper.center_x + port, upper.bottom)
