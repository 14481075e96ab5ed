import math
import random

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
    log_probs_of,
    plain_beam_search,
    random_distribution,
    run,
)
from torch import Tensor

from headway.decode import Request
from headway.decode.rules import (
    BannedSequences,
    ban_eos,
    ban_repeated_ngrams,
    ban_tokens,
    force_tokens,
    penalize_repetition,
)

VOCABULARY = 5


def aligned(prefixes: list[Prefix]) -> Tensor:
    """Prefixes as the search stores them: right-aligned, with -1 in front of shorter rows."""
    width = max(map(len, prefixes))
    rows = [[-1] * (width - len(prefix)) + list(prefix) for prefix in prefixes]
    return torch.tensor(rows, dtype=torch.long).view(len(prefixes), width)


def banned_in(log_probs: Tensor) -> list[set[int]]:
    return [{token for token, value in enumerate(row) if value == -math.inf} for row in log_probs.tolist()]


def holds(sequence: Prefix, part: Prefix) -> bool:
    return any(sequence[at : at + len(part)] == part for at in range(len(sequence) - len(part) + 1))


some_prefixes = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=7).map(tuple), min_size=1, max_size=4)


@given(prefixes=some_prefixes, n=st.integers(1, 4))
@settings(derandomize=True)
def test_no_sequence_occurs_twice(prefixes: list[Prefix], n: int) -> None:
    def grams(sequence: Prefix) -> list[Prefix]:
        return [sequence[at : at + n] for at in range(len(sequence) - n + 1)]

    found = banned_in(ban_repeated_ngrams(torch.zeros(len(prefixes), VOCABULARY), aligned(prefixes), n))
    for prefix, banned in zip(prefixes, found, strict=True):
        for token in range(VOCABULARY):
            longer = (*prefix, token)
            repeats = len(longer) >= n and longer[len(longer) - n :] in grams(prefix)
            assert (token in banned) == repeats


@given(
    prefixes=some_prefixes,
    sequences=st.lists(
        st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4).map(tuple), max_size=3),
        min_size=4, max_size=4,
    ),
)  # fmt: skip
@settings(derandomize=True)
def test_banned_sequences_are_never_completed(prefixes: list[Prefix], sequences: list[list[Prefix]]) -> None:
    sequences = sequences[: len(prefixes)]
    rules = BannedSequences(sequences, torch.device("cpu"))
    # Two rows per sentence, with different prefixes.
    pairs = [pair for prefix in prefixes for pair in (prefix, prefix[:-1])]
    found = banned_in(rules.ban(torch.zeros(len(pairs), VOCABULARY), aligned(pairs)))
    for row, (prefix, banned) in enumerate(zip(pairs, found, strict=True)):
        for token in range(VOCABULARY):
            longer = (*prefix, token)
            completes = any(longer[-len(one) :] == one for one in sequences[row // 2])
            assert (token in banned) == completes


def test_repeated_tokens_lose_whatever_their_sign() -> None:
    logits = torch.tensor([[3.0, -3.0, 3.0, -3.0]] * 2)
    penalized = penalize_repetition(logits, torch.tensor([[-1, 0, 1], [-1, -1, -1]]), 1.5)
    assert penalized.tolist() == [[2.0, -4.5, 3.0, -3.0], [3.0, -3.0, 3.0, -3.0]]


def test_plain_rules() -> None:
    zeros = torch.zeros(2, 4)
    assert banned_in(ban_tokens(zeros, (1, 3))) == [{1, 3}, {1, 3}]
    assert banned_in(ban_tokens(zeros, ())) == [set(), set()]
    assert banned_in(ban_eos(zeros, torch.tensor([True, False]), 2)) == [{2}, set()]
    forced = force_tokens(zeros - 7, torch.tensor([-1, 2]))
    assert forced.tolist() == [[-7.0] * 4, [-math.inf, -math.inf, 0.0, -math.inf]]
    assert not zeros.any(), "what is given stays as it was"


@given(
    seed=st.integers(0, 9999),
    beam_size=st.integers(1, 5),
    n=st.integers(0, 3),
    banned=st.lists(st.lists(st.sampled_from([0, 3, 4]), min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
    min_length=st.integers(0, 3),
    prefix=st.sampled_from([(), (3,), (4, 4), (3, 4, 3)]),
)
@settings(derandomize=True, max_examples=60)
def test_rules_in_a_search_equal_those_in_a_plain_one(
    seed: int, beam_size: int, n: int, banned: tuple[Prefix, ...], min_length: int, prefix: Prefix
) -> None:
    def allowed(before: Prefix, token: int) -> bool:
        longer = (*before, token)
        repeats = n > 0 and len(longer) >= n and holds(before, longer[len(longer) - n :])
        completes = any(longer[-len(one) :] == one for one in banned)
        return not (token in (PAD, BEGIN) or repeats or completes or (token == END and len(before) < min_length))

    distribution = random_distribution(seed, VOCABULARY)
    requests = [
        Request(source=(0,), limit=5, prefix=prefix, banned=banned),
        Request(source=(1,), limit=4),
    ]
    found = run(
        TableModel(distribution), requests, (PAD, BEGIN),
        beam_size=beam_size, min_length=min_length, no_repeat_ngram=n,
    )  # fmt: skip
    assert_same(
        found[0],
        plain_beam_search(log_probs_of(distribution), 5, beam_size=beam_size, forced=prefix, allowed=allowed),
    )
    banned = ()
    assert_same(found[1], plain_beam_search(log_probs_of(distribution, 1), 4, beam_size=beam_size, allowed=allowed))


def test_the_repetition_penalty_ranks_and_leaves_probabilities_as_they_are() -> None:
    logits = [-9.0, -9.0, 0.0, 2.0, 1.5]
    shares = torch.tensor(logits).softmax(0).tolist()
    ((plain,),) = run(TableModel(lambda *_: shares), [Request(source=(0,), limit=2)], (END,), beam_size=1)
    assert plain.tokens == (3, 3)
    ((found,),) = run(
        TableModel(lambda *_: shares), [Request(source=(0,), limit=2)], (END,), beam_size=1, repetition_penalty=2
    )
    # Normalized logits are all negative, so token 3's logit after the first row is twice as far below 0.
    logs = [math.log(share) for share in shares]
    assert 2 * logs[3] < logs[4]
    assert found.tokens == (3, 4)
    assert found.token_log_probabilities == pytest.approx((logs[3], logs[4], logs[2]), abs=1e-5)


def test_rules_hold_in_samples() -> None:
    dice = random.Random(0)
    requests = [
        Request(source=(number,), limit=6, prefix=(4,), banned=((3, 4),), seed=dice.randrange(99))
        for number in range(8)
    ]
    found = run(
        TableModel(random_distribution(1, VOCABULARY)), requests, (PAD, BEGIN),
        sampling={"temperature": 3.0}, n_best=4, no_repeat_ngram=3, min_length=3,
    )  # fmt: skip
    for hypothesis in (one for several in found for one in several):
        assert hypothesis.tokens[:1] == (4,)
        assert len(hypothesis.tokens) >= 3
        assert set(hypothesis.tokens) <= {3, 4}
        assert not holds(hypothesis.tokens, (3, 4))
        grams = [hypothesis.tokens[at : at + 3] for at in range(len(hypothesis.tokens) - 2)]
        assert len(set(grams)) == len(grams)
