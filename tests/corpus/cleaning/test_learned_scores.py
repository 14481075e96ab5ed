"""The borders of scores, learned from a corpus."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from headway.corpus.cleaning import learned_scores
from headway.corpus.cleaning.learned_scores import learn_thresholds
from headway.corpus.cleaning.measuring import CleaningSettings
from headway.corpus.cleaning.scoring import ScoringSettings


def test_random_pairs_of_the_corpus_do_not_count_as_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = np.random.default_rng(1)
    bad = SimpleNamespace(
        scores_of_random_pairs=dice.normal(0, 1, 5_000), coverages_of_truncated_pairs=dice.normal(-2, 1, 5_000)
    )
    monkeypatch.setattr(learned_scores, "LexicalModel", SimpleNamespace(load=lambda path: bad))
    good, random = dice.normal((8, 2), 1, (8_000, 2)), dice.normal((0, -2), 1, (2_000, 2))
    scores = np.full((10_000, 3), np.nan, np.float32)
    scores[:, :2] = np.concatenate([good, random])
    settings = ScoringSettings(
        cleaning=CleaningSettings(kind="pairs", languages=("de", "en")), lexical_model="lexical.npz"
    )
    borders = learn_thresholds(settings, scores, [], 0.75)
    assert (random[:, 0] < borders["misaligned"]).mean() > 0.99
    assert (good[:, 0] < borders["misaligned"]).mean() < 0.001
    assert (good[:, 1] < borders["truncated"]).mean() < 0.001
