import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_models import (
    BEGIN,
    END,
    PAD,
    Prefix,
    TableModel,
    assert_same,
    log_probability,
    log_probs_of,
    numbered,
    random_distribution,
    run,
    sentences,
    tiny_transformer,
)

from headway.decode import Hypothesis, Request, Sampling
from headway.decode.ranking import TokenScores
from headway.decode.sampling import draw_tokens, filter_logits, gumbel_noise, sampling_keys
from headway.models.transformer import Transformer

DRAWS = 6_000


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    return tiny_transformer()


def drawn(probabilities: list[float], position: int = 0, **sampling: object) -> list[float]:
    """Return the share of each token in many draws."""
    options = Sampling.parse(sampling, "test")
    keys = sampling_keys(Request(source=(5, END), limit=9), options, DRAWS)
    log_probs = torch.tensor(probabilities).log().expand(1, DRAWS, 1, -1)
    tokens = torch.arange(len(probabilities)).expand(log_probs.shape)
    found = draw_tokens(
        torch.zeros(1, DRAWS, 1), TokenScores(log_probs, log_probs, tokens), [keys], [position], options
    )
    return [float((found.tokens == token).float().mean()) for token in range(len(probabilities))]


def assert_shares(found: list[float], expected: list[float]) -> None:
    # The standard deviation of a share is sqrt(p (1 - p) / draws); five of them are exceeded once in two million.
    for share, probability in zip(found, expected, strict=True):
        assert abs(share - probability) <= 5 * math.sqrt(probability * (1 - probability) / DRAWS) + 1e-12


@pytest.mark.parametrize("position", [0, 1, 77])
def test_tokens_are_drawn_as_often_as_they_are_probable(position: int) -> None:
    probabilities = [0.5, 0.0, 0.25, 0.15, 0.0999, 1e-4]
    assert_shares(drawn(probabilities, position), probabilities)


def test_temperature_sharpens_and_flattens() -> None:
    probabilities = [0.6, 0.3, 0.1]
    for temperature in (0.5, 2.0):
        powers = [probability ** (1 / temperature) for probability in probabilities]
        expected = [power / sum(powers) for power in powers]
        assert_shares(drawn(probabilities, temperature=temperature), expected)


def test_draws_at_different_positions_and_of_different_seeds_are_independent() -> None:
    # Like fair coins: two draws agree with probability one half.
    tokens = torch.arange(2).expand(1, DRAWS, 2)
    options = Sampling()

    def coins(request: Request, position: int, options: Sampling = options) -> torch.Tensor:
        keys = sampling_keys(request, options, DRAWS)
        fair = torch.zeros(1, DRAWS, 1, 2)
        ranked = TokenScores(fair, fair, tokens.unsqueeze(2))
        return draw_tokens(torch.zeros(1, DRAWS, 1), ranked, [keys], [position], options).tokens.flatten()

    first = Request(source=(5, END), limit=9)
    base = coins(first, 0)
    assert coins(first, 0).equal(base)
    assert coins(replace(first, seed=2), 0).equal(coins(first, 0, Sampling(seed=2)))
    others = [
        coins(first, 1),
        coins(Request(source=(6, END), limit=9), 0),
        coins(Request(source=(5, END), limit=9, seed=3), 0),
        coins(first, 0, Sampling(seed=2)),
        base.roll(1),
    ]
    for other in others:
        assert_shares([float((other == base).float().mean())], [0.5])


def test_the_noise_is_gumbels() -> None:
    # Its distribution function is exp(-exp(-x)).
    keys = torch.randint(-(2**31), 2**31 - 1, (1, 40, 2)).to(torch.int32)
    noise = gumbel_noise(keys, torch.arange(5000).expand(1, 40, 5000)).flatten().double()
    assert noise.isfinite().all()
    for x in (-1.0, 0.0, 1.0, 3.0, 6.0):
        expected = math.exp(-math.exp(-x))
        share = float((noise <= x).double().mean())
        assert abs(share - expected) <= 5 * math.sqrt(expected * (1 - expected) / noise.numel())


@given(
    logits=st.lists(st.floats(-5, 5), min_size=1, max_size=8),
    top_p=st.sampled_from([0.01, 0.3, 0.7, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.5, 0.99]),
)
@settings(derandomize=True)
def test_filters_against_plain_lists(logits: list[float], top_p: float, min_p: float) -> None:
    total = sum(map(math.exp, logits))
    probabilities = [math.exp(logit) / total for logit in logits]
    kept: list[int] = []
    for token in sorted(range(len(logits)), key=lambda token: -logits[token]):
        if sum(probabilities[other] for other in kept) < top_p - 1e-6 or not kept:
            kept.append(token)
    kept = [token for token in kept if probabilities[token] >= min_p * max(probabilities) - 1e-9]
    found = filter_logits(torch.tensor(logits, dtype=torch.float64), top_p, min_p)
    assert {token for token, value in enumerate(found.tolist()) if value > -math.inf} == set(kept)
    assert [found.tolist()[token] for token in kept] == [logits[token] for token in kept]


@pytest.mark.parametrize(
    ("sampling", "support"),
    [
        ({"top_k": 1}, {3}),
        ({"top_k": 2}, {3, 4}),
        ({"top_p": 0.5}, {3, 4}),
        ({"top_p": 0.39}, {3}),
        ({"min_p": 0.5}, {3, 4, 5}),
        ({"min_p": 0.6}, {3, 4}),
        ({"top_k": 3, "top_p": 0.6}, {3, 4}),  # of .9 in all, .4 and .3 have .78: top_k comes first
        ({}, {3, 4, 5, 6}),
    ],
)
def test_only_tokens_that_pass_the_filters_are_drawn(sampling: dict[str, Any], support: set[int]) -> None:
    model = TableModel(lambda _sentence, _prefix: [0, 0, 1e-6, 0.4, 0.3, 0.2, 0.1])
    (found,) = run(model, numbered([3]), (PAD, END), sampling=sampling, n_best=60)
    assert {token for hypothesis in found for token in hypothesis.tokens} == support


def test_a_draw_tells_the_models_own_probabilities_and_the_best_comes_first() -> None:
    distribution = random_distribution(4, 6)
    (found,) = run(
        TableModel(distribution), [Request(source=(0,), limit=4, prefix=(5,))], (PAD,),
        sampling={"temperature": 2.0, "top_p": 0.9}, n_best=12, length_penalty=1, normalization="average",
    )  # fmt: skip
    assert len(found) == 12, "every draw, the same text or not"
    log_probs = log_probs_of(distribution)
    for one in found:
        assert one.log_probability == pytest.approx(log_probability(log_probs, one.tokens), abs=1e-4)
        free = one.log_probability - log_probs(())[5]
        assert one.score == pytest.approx(free / (len(one.tokens) + 1), abs=1e-4)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert len({one.tokens for one in found}) > 2


def test_one_candidate_is_greedy(transformer: Transformer) -> None:
    requests = sentences()
    greedy = run(transformer, requests, (PAD, BEGIN), beam_size=1)
    for sampling in ({"top_k": 1}, {"temperature": 1e-4}):
        for found, expected in zip(run(transformer, requests, (PAD, BEGIN), sampling=sampling), greedy, strict=True):
            assert_same(found, expected)


@pytest.mark.parametrize("sampling", [{}, {"top_k": 4}, {"top_p": 0.8}], ids=str)
def test_a_request_draws_the_same_in_any_batch(transformer: Transformer, sampling: dict[str, Any]) -> None:
    requests = sentences(12)

    def texts(chosen: list[Request], **options: Any) -> list[list[Prefix]]:
        found = run(transformer, chosen, (PAD, BEGIN), sampling={"temperature": 1.5, **sampling}, **options)
        return [[one.tokens for one in several] for several in found]

    together = texts(requests, n_best=3)
    assert len({str(several) for several in together}) > 6, "too alike to tell anything"
    assert texts(requests[::-1], n_best=3) == together[::-1]
    for row in (0, 2, 7):
        assert texts([requests[row]], n_best=3) == [together[row]]
        # A draw does not depend on the number of other draws.
        assert set(texts([requests[row]], n_best=1)[0]) <= set(together[row])


def test_draws_end_apart() -> None:
    def distribution(_sentence: int, _prefix: Prefix) -> list[float]:
        return [0, 0, 0.4, 0.6]

    (found,) = run(TableModel(distribution), numbered([30]), sampling={}, n_best=50)
    lengths = [len(one.tokens) for one in found]
    # Lengths of geometric distribution: 0.6 / 0.4 tokens on average, standard deviation sqrt(.6) / .4.
    assert abs(sum(lengths) / 50 - 1.5) < 5 * math.sqrt(0.6) / 0.4 / math.sqrt(50)
    assert len(set(lengths)) > 3
    for one in found:
        assert isinstance(one, Hypothesis)
        assert one.tokens == (3,) * len(one.tokens)
        assert one.log_probability == pytest.approx(len(one.tokens) * math.log(0.6) + math.log(0.4))
