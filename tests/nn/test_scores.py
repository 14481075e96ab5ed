"""Score functions, compared with values worked out by hand, a slow loop, and numerical gradients."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from headway.nn import MultiHeadAttention, attention_weights, scores
from headway.nn.scores import ScoreFunction, ScoreKind, make_score

KINDS: tuple[ScoreKind, ...] = get_args(ScoreKind)
HIDDEN: tuple[ScoreKind, ...] = ("additive", "feed_forward")
B, H, T, S, K = 2, 3, 4, 5, 6


def drawn(kind: ScoreKind, width: int = K, heads: int = H, hidden: int | None = None) -> ScoreFunction:
    """Move all weights away from their initial values."""
    score = make_score(kind, width, heads, hidden=hidden)
    with torch.no_grad():
        for parameter in score.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return score


def queries_and_keys() -> tuple[Tensor, Tensor]:
    return torch.randn(B, H, T, K), torch.randn(B, H, S, K)


# Values.


@pytest.mark.parametrize(
    ("kind", "weights", "expected"),
    [
        ("dot", {}, 1.0),  # 1 x 3 + 2 x -1
        ("scaled_dot", {}, 1 / math.sqrt(2)),
        # W k = (3 - 2, -3) = (1, -3), and (1, 2) . (1, -3) = -5.
        ("general", {"weight": [[1.0, 2.0], [0.0, 3.0]]}, -5.0),
        # |q| = sqrt(5), |k| = sqrt(10); the temperature is 1 / 4.
        ("cosine", {"log_scale": math.log(4)}, 4 / math.sqrt(50)),
        # W q = (1, 2) and U k = (3, -1) are summed to (4, 1); v = (1, 2).
        ("additive", {"query": [[1.0, 0.0], [0.0, 1.0]], "key": [[1.0, 0.0], [0.0, 1.0]], "vector": [[1.0], [2.0]]},
         math.tanh(4) + 2 * math.tanh(1)),
        # With the bias this is (-1, 1), and after ReLU (0, 1). W q = (1 x 1 + 2 x 0, ...) multiplies rows with columns.
        ("feed_forward", {"query": [[1.0, 0.0], [0.0, 1.0]], "key": [[1.0, 0.0], [0.0, 1.0]],
                          "vector": [[1.0], [2.0]], "bias": [-5.0, 0.0]}, 2.0),
    ],
)  # fmt: skip
def test_by_hand(kind: ScoreKind, weights: dict[str, Any], expected: float) -> None:
    score = make_score(kind, 2, hidden=2)
    assert set(weights) == set(score.state_dict())
    score.load_state_dict(
        {name: torch.tensor(value).view_as(score.state_dict()[name]) for name, value in weights.items()}
    )
    query, key = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, -1.0]]]])
    torch.testing.assert_close(score(query, key), torch.tensor([[[[expected]]]]))


def of_one_pair(kind: ScoreKind, state: dict[str, Tensor], head: int, q: Tensor, k: Tensor) -> Tensor:
    """The formula in the module's docstring; matrices are stored so that rows are multiplied from the left."""
    of = {name: weight[head] for name, weight in state.items()}
    match kind:
        case "scaled_dot":
            return q.dot(k) / math.sqrt(len(q))
        case "dot":
            return q.dot(k)
        case "general":
            return q.dot(of["weight"].mv(k))
        case "cosine":
            return of["log_scale"].exp() * q.dot(k) / (q.square().sum() * k.square().sum()).sqrt()
        case "additive":
            return of["vector"].squeeze(1).dot((of["query"].T.mv(q) + of["key"].T.mv(k)).tanh())
        case "feed_forward":
            hidden = of["query"].T.mv(q) + of["key"].T.mv(k) + of["bias"].squeeze(0)
            return of["vector"].squeeze(1).dot(hidden.clamp(min=0))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_equals_a_loop_over_heads_and_pairs(kind: ScoreKind) -> None:
    score = drawn(kind, hidden=7)
    query, key = queries_and_keys()
    found, state = score(query, key), score.state_dict()
    assert found.shape == (B, H, T, S)
    for b, h, t, s in torch.cartesian_prod(*(torch.arange(n) for n in found.shape)).tolist():
        expected = of_one_pair(kind, state, h, query[b, h, t], key[b, h, s])
        torch.testing.assert_close(found[b, h, t, s], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_can_be_prepared_once_and_each_alone(kind: ScoreKind) -> None:
    score = drawn(kind)
    query, key = queries_and_keys()
    prepared = torch.cat([score.prepare(key[:, :, s : s + 1]) for s in range(S)], dim=2)
    found = torch.cat([score.compare(query[:, :, t : t + 1], prepared) for t in range(T)], dim=2)
    torch.testing.assert_close(found, score(query, key))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_its_softmax(kind: ScoreKind) -> None:
    score = drawn(kind)
    query, key = queries_and_keys()
    mask = torch.rand(B, 1, T, S) < 0.6
    mask[..., 0] = True
    mask[0, 0, 1] = False
    expected = score(query, key).masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0.0)
    torch.testing.assert_close(attention_weights(query, key, mask, score), expected)
    if kind == "scaled_dot":
        torch.testing.assert_close(attention_weights(query, key, mask), expected)


def test_without_scaling_wide_vectors_score_higher() -> None:
    # Components of variance 1: a product of K of them has variance K, which the scale brings back to 1. The variance of
    # 2 x 100 x 100 products, of which those of one query or key are dependent, is within a fourth of its expectation.
    query, key = torch.randn(2, 1, 100, 256), torch.randn(2, 1, 100, 256)
    assert 0.75 * 256 < float(make_score("dot", 256)(query, key).var()) < 1.25 * 256
    assert 0.75 < float(make_score("scaled_dot", 256)(query, key).var()) < 1.25


# Gradients.


@pytest.mark.parametrize("at_once", [1, 1 << 24], ids=["some queries at a time", "whole"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(
    kind: ScoreKind, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "_LARGEST", at_once)
    score = drawn(kind, width=3, heads=2, hidden=2).double()
    query, key = (torch.randn(1, 2, n, 3, dtype=torch.float64, requires_grad=True) for n in (3, 2))
    names, weights = list(score.state_dict()), list(score.parameters())

    def function(query: Tensor, key: Tensor, *weights: Tensor) -> Tensor:
        found: Tensor = functional_call(score, dict(zip(names, weights, strict=True)), (query, key))
        return found

    assert torch.autograd.gradcheck(function, (query, key, *weights))


@pytest.mark.parametrize("kind", KINDS)
def test_heads_have_weights_of_their_own(kind: ScoreKind) -> None:
    score = drawn(kind)
    query, key = queries_and_keys()
    assert all(parameter.size(0) == H for parameter in score.parameters())
    if not list(score.parameters()):
        return
    gradients = torch.autograd.grad(score(query, key)[:, 1].square().sum(), list(score.parameters()))
    for gradient in gradients:
        assert gradient[1].abs().sum() > 0
        assert (gradient[[0, 2]] == 0).all()


def test_a_vector_of_zeros_has_a_cosine_and_gradients() -> None:
    query, key = torch.zeros(1, 1, 1, 4, requires_grad=True), torch.zeros(1, 1, 2, 4, requires_grad=True)
    found = drawn("cosine", 4, 1)(query, key)
    assert (found == 0).all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found.sum(), (query, key)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_cosines_of_zeros_and_of_long_vectors_are_finite_in_every_precision(dtype: torch.dtype) -> None:
    # The norm of (300, 300, 300, 300) is 600, its square 360,000: more than float16 holds.
    score = make_score("cosine", 4).to(dtype)
    vectors = torch.tensor([0.0, 1.0, 300.0], dtype=dtype)[None, None, :, None].expand(1, 1, 3, 4)
    expected = torch.tensor([[0.0, 0.0, 0.0], [0.0, 10.0, 10.0], [0.0, 10.0, 10.0]], dtype=dtype)
    torch.testing.assert_close(score(vectors, vectors)[0, 0], expected)


# Memory.


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Return the number of elements of the largest tensor that is created inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.numbers = max(self.numbers, made.numel())
        return made


@pytest.mark.parametrize("kind", HIDDEN)
def test_the_hidden_layer_is_held_for_some_queries_at_a_time(kind: ScoreKind, monkeypatch: pytest.MonkeyPatch) -> None:
    score = drawn(kind, hidden=8)
    query, key = (torch.randn(2, H, n, K, requires_grad=True) for n in (64, 10))
    found = []
    for limit in (1 << 24, 8 * 2 * H * 10 * 8):  # the second call: eight queries at a time
        monkeypatch.setattr(scores, "_LARGEST", limit)
        with _Largest() as largest:
            result = score(query, key)
            gradients = torch.autograd.grad(result.square().sum(), (query, key, *score.parameters()))
        found.append((result, *gradients))
        assert largest.numbers == min(limit, 2 * H * 64 * 10 * 8)
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(whole, parts, atol=1e-4, rtol=1e-4)


def test_the_hidden_layer_is_as_wide_as_asked_for_or_as_the_keys_up_to_64() -> None:
    for kind in HIDDEN:
        assert [make_score(kind, width).prepare(torch.zeros(1, 1, 1, width)).size(3) for width in (8, 200)] == [8, 64]
        assert make_score(kind, 8, hidden=200).prepare(torch.zeros(1, 1, 1, 8)).size(3) == 200


# Initial values, and half precision.


def test_each_matrix_starts_by_xaviers_rule_for_its_own_shape() -> None:
    # As for attention: all n draws are below 0.99 of the bound with probability 0.99^n, below 1e-8 for 2,048.
    found = {
        f"{kind}.{name}": weight for kind in KINDS for name, weight in make_score(kind, 64, 40).state_dict().items()
    }
    for name, weight in found.items():
        if name == "cosine.log_scale":
            torch.testing.assert_close(weight.exp(), torch.full((40,), 10.0))
        elif name == "feed_forward.bias":
            assert (weight == 0).all()
        else:
            bound = math.sqrt(6 / (weight.size(1) + weight.size(2)))
            assert 0.99 * bound < float(weight.abs().max()) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_changes_no_more_than_rounding(kind: ScoreKind) -> None:
    score = make_score(kind, K, H)
    query, key = queries_and_keys()
    with torch.autocast("cpu", torch.bfloat16):
        found = score(query.bfloat16(), key.bfloat16())
    assert found.dtype == torch.bfloat16
    # 8 bits of each operand; products of up to six numbers of size 3, or a cosine times ten.
    torch.testing.assert_close(found.float(), score(query, key), atol=0.2, rtol=0.05)


# Attention with every score function learns a lookup.


@pytest.mark.parametrize("kind", KINDS)
def test_attention_learns_to_look_up(kind: ScoreKind) -> None:
    """A memory of six pairs of a key and a value in random order: what is the value of this key? The model must match
    the query with the keys; without matching, one answer in six is right."""
    eye = torch.eye(6)

    def batch(size: int) -> tuple[Tensor, Tensor, Tensor]:
        keys = torch.rand(size, 6).argsort(1)
        values = torch.randint(6, (size, 6))
        asked = torch.randint(6, (size, 1))
        query = torch.cat([eye[keys.gather(1, asked)], torch.zeros(size, 1, 6)], 2)
        return query, torch.cat([eye[keys], eye[values]], 2), values.gather(1, asked).squeeze(1)

    attention, read = MultiHeadAttention(12, 2, score=kind), nn.Linear(12, 6)
    optimizer = torch.optim.Adam([*attention.parameters(), *read.parameters()], lr=0.02)
    for _ in range(120):
        query, memory, wanted = batch(48)
        loss = F.cross_entropy(read(attention(query, memory)).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    query, memory, wanted = batch(500)
    with torch.no_grad():
        right = read(attention(query, memory)).squeeze(1).argmax(1) == wanted
    assert right.float().mean() > 0.95
