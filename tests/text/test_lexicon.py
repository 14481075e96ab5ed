"""Translation tables compared with IBM model 1 written with dictionaries."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest

from headway import kernels
from headway.text import lexicon
from headway.text.lexicon import Cooccurrences, align_tokens, translation_table

Text = list[list[int]]
NOTHING = -1


def written_out(sources: Text, targets: Text, iterations: int) -> dict[tuple[int, int], float]:
    """Return t(e | f) after the given number of iterations, from t = 1 (Brown et al. 1993)."""
    t: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        totals: dict[int, float] = defaultdict(float)
        for source, target in zip(sources, targets, strict=True):
            for e in target:
                whole = sum(t[f, e] for f in [*source, NOTHING])
                for f in [*source, NOTHING]:
                    counts[f, e] += t[f, e] / whole
                    totals[f] += t[f, e] / whole
        t = defaultdict(float, {(f, e): count / totals[f] for (f, e), count in counts.items()})
    return t


@pytest.mark.parametrize("seed", range(5))
def test_each_token_has_its_most_probable_translations(seed: int) -> None:
    dice = random.Random(seed)
    sources = [[dice.randint(4, 9) for _ in range(dice.randint(1, 5))] for _ in range(12)]
    targets = [[dice.randint(4, 11) for _ in range(dice.randint(0, 5))] for _ in range(12)]
    t = written_out(sources, targets, iterations=5)
    table = translation_table(sources, targets, 12, 14, top_k=3)
    assert table.shape == (12, 3)
    for f in range(12):
        probabilities = sorted((p for (of, _), p in t.items() if of == f), reverse=True)
        found = [t[f, e] for e in table[f].tolist() if e]
        np.testing.assert_allclose(found, probabilities[:3], rtol=1e-9)


def test_pairs_that_occur_together_once_and_separately_often_are_distinguished() -> None:
    """Das Haus / the house, das Buch / the book, ein Buch / a book: co-occurrence is not enough."""
    das, haus, buch, ein = range(4, 8)
    the, house, book, a = range(4, 8)
    table = translation_table([[das, haus], [das, buch], [ein, buch]], [[the, house], [the, book], [a, book]], 8, 8, 1)
    assert table[[das, haus, buch, ein], 0].tolist() == [the, house, book, a]


def test_of_a_long_text_a_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = [[4]] * 10 + [[5]] * 10 + [[6]] * 10  # 60 pairs, including the empty word
    monkeypatch.setattr(lexicon, "_MAX_PAIRS", 6)
    assert translation_table(text, text, 8, 8, 1)[4:, 0].tolist() == [4, 5, 6, 0], "first, middle, last"
    monkeypatch.setattr(lexicon, "_MAX_PAIRS", 2)
    assert translation_table(text, text, 8, 8, 1)[4:, 0].tolist() == [4, 0, 0, 0]


def test_what_is_far_too_long_is_no_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "_MAX_SENTENCE_PAIRS", 20)
    assert translation_table([[4] * 5, [5]], [[4] * 5, [5]], 8, 8, 1)[4:6, 0].tolist() == [0, 5]


def test_no_text_is_a_table_of_zeros() -> None:
    assert not translation_table([], [], 5, 5, 2).any()


@pytest.mark.skipif(not kernels.is_available(), reason="no compiled kernels")
def test_the_compiled_form_gives_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(1)
    sources = [[dice.randint(4, 30) for _ in range(dice.randint(0, 8))] for _ in range(50)]
    targets = [[dice.randint(4, 30) for _ in range(dice.randint(0, 8))] for _ in range(50)]
    cooccurrences = Cooccurrences.count(sources, targets, 31, 31)
    probabilities = np.random.default_rng(1).random(len(cooccurrences.pairs))
    compiled = cooccurrences.add_expected_counts(probabilities)
    assert compiled.sum() == pytest.approx(sum(map(len, targets))), "each target token is generated once"
    monkeypatch.setattr(kernels, "is_available", lambda: False)
    np.testing.assert_array_equal(cooccurrences.add_expected_counts(probabilities), compiled)


def test_tokens_are_linked_that_occur_together() -> None:
    # 1 and 11, 2 and 12, 3 and 13 are translations; the order changes, and 4 has none.
    texts = [([1, 2], [12, 11]), ([2, 3], [12, 13]), ([3, 1, 4], [11, 13]), ([1], [11]), ([2, 4], [12])]
    assert align_tokens(texts, 3, 20) == [{0: 1, 1: 0}, {0: 0, 1: 1}, {0: 1, 1: 0}]
