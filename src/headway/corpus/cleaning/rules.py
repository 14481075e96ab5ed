"""The rules for dropping lines: the value that each rule compares with its threshold, and in which direction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.corpus.cleaning.config import RuleName, Thresholds
from headway.corpus.cleaning.corpus_lines import CorpusKind

HELD_OUT = "held_out"
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Rule:
    """A rule that drops the lines whose value is on the wrong side of a threshold.

    Attributes:
        name: Name of the rule.
        meaning: A description of the dropped lines.
        value: A description of the value.
        threshold: The name of the threshold in the configuration, or None if the threshold is always 0 or learned.
        drops_if: "above" or "below", if the rule drops lines whose values are above or below the threshold.
        kinds: The kinds of corpora that the rule applies to.
        histogram_edges: The first and the last edge of the histogram of values, or None if there are only two values.
        histogram_scale: The scale of the histogram.
        num_bins: Number of bins in the histogram.
        is_learned: Whether the threshold is learned from the corpus.
    """

    name: str
    meaning: str
    value: str = ""
    threshold: str | None = None
    drops_if: Literal["above", "below"] = "above"
    kinds: tuple[CorpusKind, ...] = ("pairs", "texts", "labels")
    histogram_edges: tuple[float, float] | None = None
    histogram_scale: Scale = "linear"
    num_bins: int = 60  # chosen so that the default thresholds are edges of bins
    is_learned: bool = False

    def default_threshold(self, thresholds: Thresholds) -> float:
        """Return the threshold, or NaN if it has to be learned."""
        if self.is_learned:
            return math.nan
        return 0.0 if self.threshold is None else float(getattr(thresholds, self.threshold))


_PAIRS: tuple[CorpusKind, ...] = ("pairs",)
RULES_BY_NAME: Mapping[RuleName | Literal["held_out"], Rule] = {
    "held_out": Rule(HELD_OUT, "texts that also occur in the held-out files, ignoring case and punctuation"),
    "undecodable": Rule("undecodable", "lines that are not UTF-8, contain NUL, or lack a column or field"),
    "empty": Rule("empty", "lines with an empty text"),
    "length": Rule(
        "length",
        "very long lines",
        "characters of the longer side",
        "max_characters",
        histogram_edges=(1, 10_000),
        histogram_scale="log",
    ),
    "letters": Rule(
        "letters",
        "texts that consist mostly of digits and symbols",
        "share of letters",
        "min_letter_share",
        "below",
        histogram_edges=(0, 1),
    ),
    "script": Rule(
        "script",
        "texts in a script that is not used for their language",
        "share of letters in the language's script",
        "min_script_share",
        "below",
        histogram_edges=(0, 1),
    ),
    "copy": Rule(
        "copy",
        "targets that are copies of their source",
        "similarity of source and target",
        "max_copy_similarity",
        kinds=_PAIRS,
        histogram_edges=(0, 1),
    ),
    "language": Rule(
        "language",
        "texts in another language",
        "probability of the side's language",
        "min_language_probability",
        "below",
        histogram_edges=(1e-6, 1),
        histogram_scale="log",
    ),
    "ratio": Rule(
        "ratio",
        "pairs of very different lengths",
        "deviation of the length ratio, in robust standard deviations",
        "max_ratio_deviations",
        kinds=_PAIRS,
        histogram_edges=(0, 12),
    ),
    "facts": Rule(
        "facts",
        "pairs with different numbers, addresses or placeholders",
        "numbers, addresses and placeholders without a counterpart",
        "max_fact_differences",
        kinds=_PAIRS,
        histogram_edges=(-0.5, 10.5),
        num_bins=11,
    ),
    "repetition": Rule(
        "repetition",
        "texts that repeat themselves",
        "share of 6-grams that occurred before",
        "max_repetition",
        histogram_edges=(0, 1),
    ),
    "contradiction": Rule("contradiction", "texts that have several labels", kinds=("labels",)),
    "duplicate": Rule("duplicate", "lines that repeat an earlier one, ignoring case and punctuation"),
    "misaligned": Rule(
        "misaligned",
        "pairs whose words do not translate each other",
        "log-odds of being a pair of the corpus instead of a random pair",
        drops_if="below",
        kinds=_PAIRS,
        histogram_edges=(-12, 12),
        is_learned=True,
    ),
    "truncated": Rule(
        "truncated",
        "pairs in which one side contains more than the other",
        "log-odds that neither side is truncated",
        drops_if="below",
        kinds=_PAIRS,
        histogram_edges=(-12, 12),
        is_learned=True,
    ),
    "cross_entropy": Rule(
        "cross_entropy",
        "pairs that two translation models do not agree on",
        "dual conditional cross-entropy, in nats per token",
        kinds=_PAIRS,
        histogram_edges=(0, 12),
        is_learned=True,
    ),
}


def rules_for(names: Sequence[RuleName], kind: CorpusKind, *, has_held_out: bool) -> list[Rule]:
    """Return the rules with these names that apply to this kind of corpus, in the order in which they are applied."""
    rules = [RULES_BY_NAME[name] for name in names]
    return [RULES_BY_NAME["held_out"]] * has_held_out + [rule for rule in rules if kind in rule.kinds]
