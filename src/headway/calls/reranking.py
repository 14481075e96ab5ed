"""Tune the weights of a noisy channel on one half of a test set, and score both halves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.evaluation import Comparison, bleu, paired_bootstrap, tokenization_for
from headway.predict import NoisyChannelWeights, rank_by_noisy_channel, tune_noisy_channel
from headway.predict.reranking.noisy_channel import NoisyChannelFeatures


@dataclass(frozen=True)
class HalfScores:
    """The scores of one half of the lines.

    Attributes:
        bleu_before: BLEU of the first candidate of each line, before reranking.
        bleu_after: BLEU of the best candidate of each line, after reranking.
        difference: The difference in BLEU, with its 95 % interval and the p-value of the paired bootstrap.
    """

    bleu_before: float
    bleu_after: float
    difference: Comparison


@dataclass(frozen=True)
class TunedChannel:
    """The weights of a noisy channel, tuned on the lines with odd numbers, and its scores.

    Attributes:
        weights: The tuned weights.
        odd_lines: The scores of the lines with odd numbers.
        even_lines: The scores of the held-out lines with even numbers.
    """

    weights: NoisyChannelWeights
    odd_lines: HalfScores
    even_lines: HalfScores


def tune_on_odd_lines(
    numbers: Sequence[int],
    candidates: Sequence[Sequence[str]],
    features: Sequence[NoisyChannelFeatures],
    references: Sequence[str],
    target_language: str,
) -> TunedChannel:
    """Tune the weights of a noisy channel on the lines with odd numbers, and score both halves.

    Args:
        numbers: The number of each line. There must be both odd and even numbers.
        candidates: The candidates of each line, in their order before reranking.
        features: The result of :func:`headway.predict.noisy_channel_features` for these candidates.
        references: The reference translation of each line.
        target_language: The target language, which selects the tokenization of BLEU.
    """
    odd, even = ([index for index, number in enumerate(numbers) if number % 2 == rest] for rest in (1, 0))
    weights = tune_noisy_channel(
        [candidates[index] for index in odd],
        [features[index] for index in odd],
        [references[index] for index in odd],
        target_language,
    )
    ranked, tokenization = rank_by_noisy_channel(candidates, features, weights), tokenization_for(target_language)

    def scores(lines: Sequence[int]) -> HalfScores:
        before, after = [candidates[index][0] for index in lines], [ranked[index][0].text for index in lines]
        right = [references[index] for index in lines]
        first, best = (bleu(texts, right, tokenization=tokenization).value for texts in (before, after))
        return HalfScores(first, best, paired_bootstrap(before, after, right, tokenization=tokenization))

    return TunedChannel(weights, scores(odd), scores(even))
