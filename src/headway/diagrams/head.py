"""One attention head with its numbers: X split into Q, K and V, the scores, and the mixture of the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from headway.diagrams.drawing import LINE_HEIGHT, Box, Drawing, Style
from headway.diagrams.text_width import shortened
from headway.errors import ConfigError
from headway.models.base import Model
from headway.models.classifier import EncoderClassifier
from headway.models.decoder_only import DecoderOnly
from headway.models.masked import MaskedTransformer
from headway.models.sequence_classifier import SequenceClassifier
from headway.models.transformer import Transformer
from headway.nn.attention import MultiHeadAttention, attention_weights
from headway.nn.blocks import PreNorm

_CELL = 38.0  # width of a number
_SHOWN, MAX_TOKENS = 3, 5  # columns of vectors, and tokens
_APART = 206.0  # between the centers of Q, K and V


@dataclass(frozen=True)
class HeadInput:
    """An attention layer, its input, and the tokens that it belongs to."""

    layer: MultiHeadAttention
    x: Float[Tensor, "T D"]
    tokens: list[int]
    is_causal: bool


@torch.inference_mode()
def first_attention(model: Model, tokens: list[int]) -> HeadInput:
    """Return the attention of the first block that reads ``tokens``, in a Transformer that of the encoder.

    Raises:
        ConfigError: The model has no blocks.
    """
    row, stack = torch.tensor([tokens]), cast("Any", None)
    match model:
        case Transformer():
            embedded, stack = model.embed_source(row), model.encoder
        case EncoderClassifier():
            embedded, row, stack = model.embed_source(row), model.encoder_tokens(row), model.encoder
        case SequenceClassifier():
            return first_attention(model.body, model.encoder_tokens(row)[0].tolist())
        case MaskedTransformer():
            embedded, stack = model.embed(row), model.encoder
        case DecoderOnly():
            embedded, stack = model.embed(row), model.decoder
        case _:
            raise ConfigError(f"a model of kind {model.config.kind} has no attention heads; choose the level model")
    if not len(stack.blocks):
        raise ConfigError("the model has no blocks, and so no attention heads; choose the level model")
    block: Any = stack.blocks[0]
    x = block.attention_residual.norm(embedded) if isinstance(block.attention_residual, PreNorm) else embedded
    return HeadInput(block.attention, x[0], row[0].tolist(), isinstance(model, DecoderOnly))


@torch.inference_mode()
def draw_head(given: HeadInput, tokens: Sequence[str], drawing: Drawing) -> None:
    """Draw what the first head computes from the input of the layer, with a row for each of the first tokens.

    What it computes for one of them, the second if there are two, is in bold.
    """
    attention, x, causal = given.layer, given.x, given.is_causal
    query, kv = attention.project(x[None])
    kv = kv.for_queries(attention.queries_per_key)
    positions = torch.arange(len(x))
    distance = positions - positions.unsqueeze(1)
    before, after = attention.window or (len(x), len(x))
    mask = (distance >= -before) & (distance <= (0 if causal else after))
    score = None if attention.score is None else attention.score.compare
    q, k, v = query[0, 0], kv.keys[0, 0], kv.values[0, 0]
    weights = attention_weights(query, kv.keys, mask, score)[0, 0]
    scores = (query * query.size(-1) ** -0.5 @ kv.keys.mT if score is None else score(query, kv.keys))[0, 0]

    source = _matrix(drawing, 0.0, -10.0, "X: input of the layer", x, tokens, "embedding")
    shown = []
    for place, (name, part) in enumerate((("Q", q), ("K", k), ("V", v)), start=-1):
        center = place * _APART
        size = f"{x.size(1):,} × {part.size(1):,}"
        matrix = drawing.box(center, source.y - 44, (f"W for {name}", size), "linear", width=110)
        _elbow(drawing, source, matrix)
        title, bold = f"{name} of head 1", name == "Q"
        shown.append(_matrix(drawing, center, matrix.y - 20, title, part, tokens, "state", bold=bold))
        drawing.arrow((center, matrix.y), (center, shown[-1].bottom))
    title = f"Scores: Q Kᵀ / √{attention.d_key}" if score is None else "Scores of Q and K"
    compared = _matrix(drawing, -_APART / 2, shown[0].y - 44, title, scores, tokens, "attention", headed=True)
    for box in shown[:2]:
        _elbow(drawing, box, compared)
    bottom = compared.y - 44 - LINE_HEIGHT
    normed = _matrix(drawing, -_APART / 2, bottom, "Softmax of each row", weights, tokens, "softmax", headed=True)
    drawing.arrow((compared.center, compared.y - 18 - LINE_HEIGHT), (normed.center, normed.bottom))
    mixed = _matrix(
        drawing, _APART / 4, normed.y - 48 - LINE_HEIGHT, "Mixture: weights × V", weights @ v, tokens, "state"
    )
    _elbow(drawing, normed, mixed, LINE_HEIGHT)
    drawing.arrow((shown[2].center, shown[2].y - 18), (shown[2].center, mixed.middle), (mixed.right, mixed.middle))
    kind = "causal self-attention" if causal else "encoder self-attention"
    drawing.caption = (
        f"Numbers of the first head in the first block ({kind}). Rows, and columns of scores and softmax, are tokens; "
        f"bold: the row of “{tokens[min(1, len(tokens) - 1)].strip()}”. "
    )


def _matrix(
    drawing: Drawing, center: float, bottom: float, title: str, rows: Tensor, tokens: Sequence[str], style: Style,
    *, bold: bool = True, headed: bool = False,
) -> Box:  # fmt: skip
    """Draw a matrix with its title above it; a row for each token, and an ellipsis for what is not drawn.

    With ``headed``, columns are tokens, too. With ``bold``, the second row is bold, or the only one.
    """
    most, cell = (MAX_TOKENS, _CELL + 12) if headed else (_SHOWN, _CELL)
    count, wide = min(rows.size(1), most), rows.size(1) > most
    numbers = [[*map(_number, row[:count]), *["…"] * wide] for row in rows[:MAX_TOKENS].tolist()]
    width, height = cell * count + 22 * wide + 8, LINE_HEIGHT * len(numbers) + 8
    box = drawing.box(center, bottom, ("",), style, width=width, height=height)
    drawing.text(box.x, box.y - 5 - LINE_HEIGHT * headed, title, role="small")
    columns = [box.x + cell * (column + 1) - 2 for column in range(count)]
    for x, token in zip(columns if headed else (), tokens, strict=False):
        drawing.text(x, box.y - 5, shortened(token, 11, cell - 4), anchor="end", role="small")
    columns += [box.right - 6] * wide
    for number, row in enumerate(numbers):
        y, is_bold = box.y + 15 + number * LINE_HEIGHT, bold and number == min(1, len(numbers) - 1)
        for x, value in zip(columns, row, strict=True):
            drawing.text(x, y, value, anchor="end", role="bold" if is_bold else "code")
        name = shortened(tokens[number], 11, 45 if is_bold else 52)
        drawing.text(box.x - 6, y, name, anchor="end", role="bold" if is_bold else "small")
    drawing.sentences.append(f"{title}: " + "; ".join(" ".join(row) for row in numbers) + ".")
    return box


def _number(value: float) -> str:
    """Return a number with at most five characters, if it is not huge."""
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def _elbow(drawing: Drawing, lower: Box, upper: Box, heading: float = 0.0) -> None:
    """Draw an arrow from the top of a matrix, above its title and a heading, to the bottom of a box."""
    start, bend = lower.y - 18 - heading, lower.y - 28 - heading
    drawing.arrow((lower.center, start), (lower.center, bend), (upper.center, bend), (upper.center, upper.bottom))
