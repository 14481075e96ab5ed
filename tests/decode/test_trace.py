"""Records of searches, against values worked out by hand and against the searches that they record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from table_models import BEGIN, END, Prefix, TableModel, random_distribution, run

from headway.decode import DecodingOptions, NextToken, Request, SearchTrace, SearchVocabulary, trace_search


def trace(model: TableModel, request: Request, num_tokens: int = 5, **options: Any) -> SearchTrace:
    parsed = DecodingOptions.parse(options, "test")
    return trace_search(model, request, parsed, SearchVocabulary(BEGIN, END), num_tokens=num_tokens)


def distribution(_sentence: int, prefix: Prefix) -> Sequence[float]:
    table: dict[Prefix, list[float]] = {
        (): [0, 0, 0, 0.6, 0.4],
        (3,): [0, 0, 0.2, 0.5, 0.3],
        (4,): [0, 0, 0.3, 0.5, 0.2],
    }
    return table.get(prefix, [0, 0, 1, 0, 0])


def readable(tokens: Sequence[NextToken]) -> list[tuple[int, Any]]:
    """Return each token with its probability."""
    return [(token.token, pytest.approx(math.exp(token.log_probability))) for token in tokens]


def test_greedy_search_by_hand() -> None:
    seen = trace(TableModel(distribution), Request(source=(0,), limit=5), 2, beam_size=1)
    assert [len(step) for step in seen.steps] == [1, 1, 1]
    assert [step[0].tokens for step in seen.steps] == [(), (3,), (3, 3)]
    assert [readable(step[0].top_tokens) for step in seen.steps] == [
        [(3, 0.6), (4, 0.4)],
        [(3, 0.5), (4, 0.3)],
        [(END, 1.0)],
    ]
    assert [readable(step[0].chosen) for step in seen.steps] == [[(3, 0.6)], [(3, 0.5)], [(END, 1.0)]]
    assert [math.exp(step[0].score) for step in seen.steps] == pytest.approx([1, 0.6, 0.3])
    assert [hypothesis.tokens for hypothesis in seen.hypotheses] == [(3, 3)]


def test_a_beam_by_hand() -> None:
    # The extensions of step 2: .6 x .5 = .30, .4 x .5 = .20, .6 x .3 = .18, .4 x .3 = .12 (the end), .6 x .2 = .12.
    seen = trace(TableModel(distribution), Request(source=(0,), limit=5), beam_size=2, length_penalty=0)
    first, second, third = seen.steps
    assert [(one.tokens, [token for token, _ in readable(one.chosen)]) for one in first] == [((), [3, 4])]
    assert [(one.tokens, [token for token, _ in readable(one.chosen)]) for one in second] == [((3,), [3]), ((4,), [3])]
    assert [math.exp(one.score) for one in second] == pytest.approx([0.6, 0.4])
    assert [(one.tokens, readable(one.chosen)) for one in third] == [((3, 3), [(END, 1.0)]), ((4, 3), [(END, 1.0)])]


def test_a_hypothesis_that_the_beam_drops_has_no_chosen_token() -> None:
    def spread(_sentence: int, prefix: Prefix) -> Sequence[float]:
        table: dict[Prefix, list[float]] = {(): [0, 0, 0, 0.7, 0.3], (3,): [0, 0, 0, 0.5, 0.5]}
        return table.get(prefix, [0, 0, 1, 0, 0] if len(prefix) > 1 else [0, 0, 0, 0.5, 0.5])

    seen = trace(TableModel(spread), Request(source=(0,), limit=5), beam_size=2)
    # .35 and .35 after token 3, .15 and .15 after token 4
    assert [(one.tokens, [token.token for token in one.chosen]) for one in seen.steps[1]] == [
        ((3,), [3, 4]),
        ((4,), []),
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 3},
        {"beam_size": 3, "stopping": "first", "n_best": 3},
        {"beam_size": 4, "groups": 2, "n_best": 4},
        {"sampling": {"seed": 3}, "n_best": 3},
        {"beam_size": 2, "no_repeat_ngram": 1, "min_length": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("prefix", [(), (0, 3)])
def test_the_record_is_that_of_the_search(options: dict[str, Any], prefix: Prefix) -> None:
    """Each hypothesis of a step extends one of the step before, and each result is a path of chosen tokens."""
    table = random_distribution(5, 6)
    for sentence in range(2):
        request = Request(source=(sentence,), limit=4, prefix=prefix)
        seen = trace(TableModel(table), request, 3, **options)
        (expected,) = run(TableModel(table), [request], **options)
        assert list(seen.hypotheses) == expected
        chosen: set[tuple[int, Prefix]] = {(one.group, ()) for one in seen.steps[0]}
        for step in seen.steps:
            assert {(one.group, one.tokens) for one in step} <= chosen
            for one in step:
                probabilities = table(sentence, one.tokens)
                best = sorted(range(6), key=lambda token: -probabilities[token])[:3]
                assert readable(one.top_tokens) == [(token, probabilities[token]) for token in best]
                chosen |= {(one.group, (*one.tokens, token.token)) for token in one.chosen}
        paths = {path for _, path in chosen}
        assert {(*hypothesis.tokens, END) for hypothesis in seen.hypotheses} <= paths
