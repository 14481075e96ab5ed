"""The steps of attention, each with its name and its line of code.

A test runs these lines and compares their result with the layer's output.
"""

from __future__ import annotations

_MATMUL = ("MatMul: Q Kᵀ", "scores = query @ key.transpose(-2, -1)")
_PAIRS = "(query.unsqueeze(-2) + key.unsqueeze(-3){})"
_HIDDEN = ("Linear to one number", "scores = (hidden @ score.vector.unsqueeze(-3)).squeeze(-1)")
_PROJECTED = ("Linear for Q, linear for K", "query, key = query @ score.query, key @ score.key")
# Maps each score function to its title and its steps from queries and keys to scores: names and lines of code.
_SCORES: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "scaled_dot": ("Scaled dot-product", [_MATMUL, ("Scale by 1 / √{width}", "scores = scores / math.sqrt({width})")]),
    "dot": ("Dot-product", [_MATMUL]),
    "general": ("General (bilinear)", [("Linear for K", "key = key @ score.weight.transpose(-2, -1)"), _MATMUL]),
    "cosine": ("Cosine", [
        ("Normalize Q and K", "query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)"),
        _MATMUL,
        ("Scale by a learned factor", "scores = scores * score.log_scale.exp().view(-1, 1, 1)"),
    ]),
    "additive": ("Additive", [_PROJECTED, ("Sum of each pair, tanh", f"hidden = {_PAIRS.format('')}.tanh()"), _HIDDEN]),
    "feed_forward": ("Feed-forward", [
        _PROJECTED,
        ("Sum of each pair, bias, ReLU", f"hidden = {_PAIRS.format(' + score.bias.unsqueeze(-3)')}.relu()"),
        _HIDDEN,
    ]),
}  # fmt: skip


def score_steps(kind: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the title and the steps of a score function. A score function from another package is a single step."""
    name = kind.replace("_", " ")
    return _SCORES.get(kind, (name.capitalize(), [(f"Score ({name})", "scores = score(query, key)")]))


def attention_steps(kind: str, width: int, dropout: float = 0.0, *, has_bias: bool = False) -> list[tuple[str, str]]:
    """Return the name and the line of code of each step from query, key, value and mask to the output.

    If ``has_bias`` is True, the lines also use the tensor ``bias``, which depends on the distance.
    """
    return [
        *((name.format(width=width), code.format(width=width)) for name, code in score_steps(kind)[1]),
        *([("Add bias by distance", "scores = scores + bias")] if has_bias else []),
        ("Mask", "scores = scores.masked_fill(~mask, -math.inf)"),
        ("SoftMax", "weights = scores.softmax(-1)"),
        *([(f"Dropout {dropout:g}", f"weights = F.dropout(weights, {dropout:g})")] if dropout else []),
        ("MatMul", "output = weights @ value"),
    ]
