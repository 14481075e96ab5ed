import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.decode.ranking import TokenScores, extend_best, extend_diverse, top_tokens, topk_ordered


def sorted_indices(row: list[float]) -> list[int]:
    """The largest first, of equal ones the lowest index: Python's sort is stable."""
    return sorted(range(len(row)), key=lambda index: -row[index])


@given(
    size=st.integers(1, 3000),
    count=st.integers(1, 9),
    levels=st.sampled_from([1, 2, 50, 10**6]),
    seed=st.integers(0, 999),
)
@settings(derandomize=True, max_examples=60)
def test_the_top_is_that_of_a_stable_sort(size: int, count: int, levels: int, seed: int) -> None:
    torch.manual_seed(seed)
    values = (torch.randint(0, levels, (2, 3, size)).float() - levels // 2) / 7  # few levels: many ties
    values[0, 0, :: seed % 5 + 2] = -math.inf
    count = min(count, size)
    found, indices = topk_ordered(values, count)
    for row, numbers, places in zip(
        values.flatten(0, 1).tolist(), found.flatten(0, 1).tolist(), indices.flatten(0, 1).tolist(), strict=True
    ):
        assert places == sorted_indices(row)[:count]
        assert numbers == [row[place] for place in places]


@pytest.mark.parametrize("size", [5, 1000])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nan_comes_first(size: int, sign: float) -> None:
    values = torch.randn(2, size)
    values[1, 3] = torch.tensor(math.nan).copysign(torch.tensor(sign))
    values[1, 1] = math.inf
    for count in (1, 3):
        found, indices = topk_ordered(values, count)
        assert found[1, 0].isnan()
        assert indices[1, 0] == 3
        assert found[0].isfinite().all()


def test_zeros_of_both_signs_are_equal() -> None:
    _, indices = topk_ordered(torch.tensor([-0.0, 0.0, -1.0, 0.0]), 3)
    assert indices.tolist() == [0, 1, 3]


@given(
    vocab_size=st.sampled_from([3, 40, 700, 2500]),
    count=st.integers(1, 6),
    forbidden=st.sampled_from([(), (0,), (0, 1, 2), tuple(range(12)), (1, 1, 0)]),
    ties=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(derandomize=True, max_examples=60)
def test_the_best_are_those_of_the_log_softmax(
    vocab_size: int, count: int, forbidden: tuple[int, ...], ties: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    forbidden = tuple(token for token in forbidden if token < vocab_size)
    logits = torch.randn(3, vocab_size) * 3
    if ties:
        logits = logits.round()
    before = logits.clone()
    best = top_tokens(logits, count, forbidden, eos=2)
    assert logits.equal(before), "they are the model's"
    log_probs = logits.double().log_softmax(-1)
    for row in range(3):
        allowed = logits[row].tolist()
        for token in forbidden:
            allowed[token] = -math.inf
        expected = [index for index in sorted_indices(allowed)[:count] if allowed[index] > -math.inf]
        assert best.tokens[row].tolist()[: len(expected)] == expected
        assert best.log_probs[row].tolist()[: len(expected)] == pytest.approx(
            log_probs[row, expected].tolist(), abs=1e-5
        )
        assert best.log_probs[row].tolist()[len(expected) :] == [-math.inf] * (min(count, vocab_size) - len(expected))
        assert float(best.eos_log_prob[row]) == pytest.approx(float(log_probs[row, 2]), abs=1e-5), "forbidden or not"


def test_half_precision_is_ranked_in_single(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(2, 300).bfloat16()
    best = top_tokens(logits, 2, (), eos=0)
    assert best.log_probs.dtype == torch.float32
    expected: Tensor = logits.float().log_softmax(-1).amax(-1)
    assert best.log_probs[:, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@given(width=st.integers(1, 4), groups=st.integers(1, 3), levels=st.sampled_from([2, 10**6]), seed=st.integers(0, 999))
@settings(derandomize=True, max_examples=40)
def test_the_first_extensions_are_the_best(width: int, groups: int, levels: int, seed: int) -> None:
    torch.manual_seed(seed)
    count = 2 * width
    shape = 3, groups, width, count * (groups + 1)
    gains = -torch.randint(0, levels, shape).float() / 7
    gains[0, :, -1] = -math.inf
    scores = -torch.rand(shape[:3])
    scores[1, 0] = -math.inf  # a closed group
    candidates = TokenScores(gains, gains, torch.randint(0, 50, shape))
    for found in (
        extend_best(scores, candidates, count),
        extend_diverse(scores, candidates, count, diversity=0.5, width=width),
    ):
        first, best = found.first(width), found.best(width)
        for name in ("scores", "parents", "tokens", "log_probs"):
            assert getattr(first, name).equal(getattr(best, name))
