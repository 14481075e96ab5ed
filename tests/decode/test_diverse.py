import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_models import (
    BEGIN,
    END,
    PAD,
    LogProbs,
    Prefix,
    TableModel,
    assert_same,
    log_probability,
    log_probs_of,
    numbered,
    random_distribution,
    run,
)

from headway.decode import length_penalty


def plain_groups(
    log_probs: LogProbs, limit: int, groups: int, width: int, diversity: float, forbidden: Sequence[int]
) -> list[list[Prefix]]:
    """Return the finished hypotheses of each group, best first. In every step, groups run in order."""
    beams: list[list[tuple[float, Prefix]]] = [[(0.0, ())] for _ in range(groups)]
    finished: list[list[tuple[float, Prefix]]] = [[] for _ in range(groups)]
    for step in range(limit + 1):
        taken: list[int] = []
        for group in range(groups):
            extensions = [
                (total + gain - diversity * taken.count(token), prefix, token)
                for total, prefix in beams[group]
                for token, gain in enumerate(log_probs(prefix))
                if token not in forbidden and (token == END or step < limit)
            ]
            survivors = sorted(extensions, key=lambda extension: -extension[0])[:width]
            taken += [token for _, _, token in survivors]
            finished[group] += [
                (total / length_penalty(step + 1, 0.6), prefix) for total, prefix, token in survivors if token == END
            ]
            finished[group].sort(key=lambda item: -item[0])
            beams[group] = [(total, (*prefix, token)) for total, prefix, token in survivors if token != END]
            bound = max((total for total, _ in beams[group]), default=-math.inf) / length_penalty(limit + 1, 0.6)
            if finished[group] and finished[group][0][0] >= bound:
                beams[group] = []
    return [[prefix for _, prefix in several[:width]] for several in finished]


@given(
    seed=st.integers(0, 9999),
    groups=st.integers(2, 4),
    width=st.integers(1, 3),
    diversity=st.sampled_from([0.0, 0.3, 2.0]),
    vocab_size=st.integers(4, 12),
    limit=st.integers(0, 5),
)
@settings(derandomize=True, max_examples=60)
def test_equals_the_plain_search_in_groups(
    seed: int, groups: int, width: int, diversity: float, vocab_size: int, limit: int
) -> None:
    distribution = random_distribution(seed, vocab_size)
    (found,) = run(
        TableModel(distribution), numbered([limit]), (PAD, BEGIN),
        beam_size=groups * width, groups=groups, diversity=diversity, n_best=groups,
    )  # fmt: skip
    log_probs = log_probs_of(distribution)
    by_group = plain_groups(log_probs, limit, groups, width, diversity, (PAD, BEGIN))
    # The best of every group, then the second of every group, and so on, without duplicate texts.
    in_turn = [several[place] for place in range(width) for several in by_group if place < len(several)]
    chosen = list(dict.fromkeys(in_turn))[:groups]
    scores = {target: log_probability(log_probs, target) / length_penalty(len(target) + 1, 0.6) for target in chosen}
    assert [one.tokens for one in found] == sorted(chosen, key=lambda target: -scores[target])
    assert [one.score for one in found] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-4)


def test_groups_leave_what_others_took() -> None:
    """Three tokens with decreasing probability: without diversity all groups choose the first, with it each its own."""
    model = TableModel(lambda _sentence, prefix: [0, 0, 1.0, 0, 0, 0] if prefix else [0, 0, 0, 0.5, 0.3, 0.2])
    (alike,) = run(model, numbered([3]), beam_size=3, groups=3, diversity=0.0, n_best=3)
    assert [one.tokens for one in alike] == [(3,)]
    # 3 costs the second group log .5 - 1, less than 4 at log .3; the third finds 3 at log .5 - 1 and 4 at log .3 - 1.
    (found,) = run(model, numbered([3]), beam_size=3, groups=3, diversity=1.0, n_best=3)
    assert [one.tokens for one in found] == [(3,), (4,), (5,)]
    assert [one.score for one in found] == pytest.approx(
        [math.log(share) / length_penalty(2, 0.6) for share in (0.5, 0.3, 0.2)]
    )


def test_two_sentences_do_not_disturb_each_other() -> None:
    distribution = random_distribution(7, 8)
    options = {"beam_size": 4, "groups": 2, "n_best": 4}
    together = run(TableModel(distribution), numbered([5, 3]), (PAD,), **options)
    for request, found in zip(numbered([5, 3]), together, strict=True):
        assert_same(run(TableModel(distribution), [request], (PAD,), **options)[0], found)
