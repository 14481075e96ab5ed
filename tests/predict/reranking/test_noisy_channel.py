"""The noisy channel: features against the models' own scores, ranking by hand, and tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from headway.errors import ConfigError
from headway.predict import (
    NoisyChannelWeights,
    ScoredText,
    Translator,
    noisy_channel_features,
    rank_by_noisy_channel,
    tune_noisy_channel,
)

Make = Callable[..., Translator]


class LengthModel:
    """A language model that gives each character the log-probability -1, and no end."""

    def score(self, texts: Sequence[str]) -> list[ScoredText]:
        """Return minus the number of characters of each text."""
        return [ScoredText(tuple(text), (-1.0,) * len(text), None) for text in texts]


def test_features_are_the_models_scores(make_translator: Make) -> None:
    forward, backward = make_translator("whitespace", seed=1), make_translator("bpe", seed=2)
    sources, candidates = ["das Haus", "ein Baum"], [["das", "ein rote"], ["der Baum", "und", "das"]]
    found = noisy_channel_features(forward, sources, candidates, language_model=LengthModel(), channel=backward)
    assert [len(rows) for rows in found] == [2, 3]
    for source, texts, rows in zip(sources, candidates, found, strict=True):
        for text, row in zip(texts, rows, strict=True):
            (direct,), (channel,) = forward.score([source], [text]), backward.score([text], [source])
            expected = [direct.log_probability, -len(text), channel.log_probability, len(direct.tokens)]
            assert row.tolist() == pytest.approx(expected, abs=1e-4)
    (alone, _) = noisy_channel_features(forward, sources, candidates)
    assert not alone[:, 1:3].any()


def test_candidates_are_ranked_by_the_weighted_sum() -> None:
    features = [np.array([[-1.0, -4.0, -2.0, 3.0], [-2.0, -1.0, -2.0, 2.0]])]
    by_model = rank_by_noisy_channel([["a", "b"]], features, NoisyChannelWeights())
    assert [(each.text, each.score) for each in by_model[0]] == [("a", -1.0), ("b", -2.0)]
    by_all = rank_by_noisy_channel([["a", "b"]], features, NoisyChannelWeights(language_model=1, channel=0.5, length=1))
    assert [(each.text, each.score) for each in by_all[0]] == [("b", -2.0), ("a", -3.0)]
    with pytest.raises(ConfigError, match="finite"):
        NoisyChannelWeights.parse({"channel": float("nan")}, "weights")


def test_tuning_uses_the_features_that_there_are() -> None:
    """Only the language model prefers the right candidates."""
    right, wrong = "the small red house stands there", "a tree is not what we see"
    features = [np.array([[-1.0, -9.0, 0.0, 7.0], [-1.5, -5.0, 0.0, 7.0]])] * 2
    found = tune_noisy_channel([[wrong, right]] * 2, features, [right] * 2)
    assert found.channel == 0
    assert found.language_model * 4 > 0.5
    assert rank_by_noisy_channel([[wrong, right]], features[:1], found)[0][0].text == right
