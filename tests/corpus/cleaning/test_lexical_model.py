"""A lexical model of an artificial language pair, in which each word has one translation."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from headway import kernels
from headway.corpus.cleaning.coverage import coverage_posteriors
from headway.corpus.cleaning.lexical_model import LexicalModel, _Direction, _Vocabulary
from headway.corpus.cleaning.mixture import estimate_posteriors
from headway.errors import DataError

WORDS = 300


def sentence(dice: random.Random, length: int) -> list[int]:
    """Return words, of which some are frequent and most are rare."""
    return [int(WORDS * dice.random() ** 2) for _ in range(length)]


def target_of(words: list[int]) -> str:
    return " ".join(f"T{word}" for word in words[::-1]) + "."


def corpus(seed: int, number: int = 3_000) -> tuple[list[str], list[str]]:
    dice = random.Random(seed)
    texts = [sentence(dice, dice.randint(4, 12)) for _ in range(number)]
    return [" ".join(f"s{word}" for word in words) + "." for words in texts], [*map(target_of, texts)]


@pytest.fixture(scope="module")
def damaged() -> tuple[list[str], list[str], list[str]]:
    """Return sources, targets, and the targets before a tenth of them was exchanged and a tenth truncated."""
    sources, targets = corpus(1)
    bad = targets.copy()
    bad[:300] = targets[100:300] + targets[:100]
    bad[300:600] = [" ".join(text.split()[: len(text.split()) // 2]) for text in targets[300:600]]
    return sources, bad, targets


@pytest.fixture(scope="module")
def model(damaged: tuple[list[str], list[str], list[str]]) -> LexicalModel:
    return LexicalModel.learn(damaged[0], damaged[1])


def test_random_and_truncated_pairs_are_found_in_the_corpus_that_the_model_was_learned_from(
    model: LexicalModel, damaged: tuple[list[str], list[str], list[str]]
) -> None:
    sources, targets, _ = damaged
    scores = model.scores(sources, targets)
    border = estimate_posteriors(scores, model.scores_of_random_pairs).border
    assert (scores[:300] < border).mean() > 0.98
    assert (scores[600:] < border).mean() < 0.01
    coverages = model.coverages(sources, targets)
    border = coverage_posteriors(coverages[300:], model.coverages_of_truncated_pairs).border
    assert (coverages[300:600] < border).mean() > 0.9
    assert (coverages[600:] < border).mean() < 0.02


def test_pairs_that_the_model_has_not_seen_are_scored_alike(model: LexicalModel) -> None:
    sources, targets = corpus(2, 500)
    usual = np.quantile(model.scores_of_random_pairs, 0.99)
    assert (model.scores(sources, targets) > usual).mean() > 0.98
    assert (model.scores(sources, targets[1:] + targets[:1]) < usual).mean() > 0.98
    truncated = [" ".join(text.split()[: len(text.split()) // 2]) for text in targets]
    assert (model.coverages(sources, targets) > 0).mean() > 0.95
    assert (model.coverages(sources, truncated) < 0).mean() > 0.8
    assert (model.coverages([text[: len(text) // 2] for text in sources], targets) < 0).mean() > 0.8


def test_it_is_deterministic_and_a_saved_model_gives_the_same_scores(
    model: LexicalModel, damaged: tuple[list[str], list[str], list[str]], tmp_path: Path
) -> None:
    sources, targets, _ = damaged
    again = LexicalModel.learn(sources, targets)
    model.save(tmp_path / "model.npz")
    loaded = LexicalModel.load(tmp_path / "model.npz")
    for other in (again, loaded):
        np.testing.assert_array_equal(other.scores(sources, targets), model.scores(sources, targets))
        np.testing.assert_array_equal(other.coverages(sources, targets), model.coverages(sources, targets))
        np.testing.assert_array_equal(other.scores_of_random_pairs, model.scores_of_random_pairs)
        np.testing.assert_array_equal(other.coverages_of_truncated_pairs, model.coverages_of_truncated_pairs)


def test_the_scores_of_a_pair_do_not_depend_on_other_pairs(model: LexicalModel) -> None:
    sources, targets = corpus(3, 40)
    together = model.scores(sources, targets)
    alone = [model.scores([source], [target])[0] for source, target in zip(sources, targets, strict=True)]
    np.testing.assert_allclose(together, alone, rtol=1e-9)


def test_any_text_has_a_score(model: LexicalModel) -> None:
    texts = ["", " ", ".", "s1", "未知 的 词", "s1 " * 500]
    pairs = [(source, target) for source in texts for target in texts]
    scores = model.scores([source for source, _ in pairs], [target for _, target in pairs])
    assert np.isfinite(scores).all()
    assert model.scores([], []).shape == (0,)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_tiny_corpus_has_a_model_and_none_has_not(number: int) -> None:
    sources, targets = corpus(4, number)
    assert np.isfinite(LexicalModel.learn(sources, targets).scores(sources, targets)).all()
    with pytest.raises(DataError, match="no pairs"):
        LexicalModel.learn([], [])


def test_a_copied_name_that_occurs_once_is_evidence() -> None:
    sources, targets = corpus(5, 800)
    model = LexicalModel.learn([*sources, "s1 Zyx.", "s2 Abc."], [*targets, "T1 Zyx.", "T2 Abc."])
    same, other = model.scores(["s250 s9 s8 Zyx."] * 2, ["T250 T8 T9 Zyx.", "T250 T8 T9 Abc."])
    assert same > other


@pytest.mark.skipif(not kernels.is_available(), reason="no compiled kernels")
def test_the_compiled_form_gives_the_same_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    sources, targets = corpus(6, 60)
    vocabulary = _Vocabulary.learn(sources, targets)
    pair = vocabulary.encode([*sources, "", "unknown"]), vocabulary.encode([*targets, "T1 T2", ""])
    direction = _Direction.learn(*pair, vocabulary.unknown + 1)
    compiled = direction.evidence(*pair)
    monkeypatch.setattr(kernels, "is_available", lambda: False)
    np.testing.assert_allclose(direction.evidence(*pair), compiled, rtol=1e-5, atol=1e-6)
    again = _Direction.learn(*pair, vocabulary.unknown + 1)
    np.testing.assert_allclose(again.gains, direction.gains, rtol=1e-5)


def test_random_pairs_that_are_new_to_the_model_score_lower() -> None:
    """Most pairs of a large corpus are new, because the model is learned from a sample. Good pairs stand out more."""
    sources, targets = corpus(7, 1_500)
    whole = LexicalModel.learn(sources, targets)
    sample = LexicalModel.learn(sources, targets, corpus_size=10**9)
    assert len(sample.scores_of_random_pairs) == len(whole.scores_of_random_pairs)
    assert np.median(sample.scores(sources, targets)) > np.median(whole.scores(sources, targets))
