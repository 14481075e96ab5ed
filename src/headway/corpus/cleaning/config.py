"""The configuration of ``headway corpus clean``: repairs, rules in their order, and thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from headway.config import Config, apply_overrides, read_toml

RepairName = Literal[
    "encoding", "entities", "tags", "byte_order_marks", "line_separators", "invisible", "nfc", "spaces"
]
RuleName = Literal[
    "undecodable",
    "empty",
    "length",
    "duplicate",
    "copy",
    "letters",
    "script",
    "language",
    "ratio",
    "facts",
    "repetition",
    "contradiction",
    "misaligned",
    "truncated",
    "cross_entropy",
]

REPAIRS: tuple[RepairName, ...] = (
    "encoding",
    "entities",
    "tags",
    "byte_order_marks",
    "line_separators",
    "invisible",
    "nfc",
    "spaces",
)
RULES: tuple[RuleName, ...] = (
    "undecodable",
    "empty",
    "length",
    "letters",
    "script",
    "copy",
    "language",
    "ratio",
    "facts",
    "repetition",
    "contradiction",
    "duplicate",
    "misaligned",
    "truncated",
    "cross_entropy",
)


class Thresholds(Config):
    """The thresholds of the rules."""

    max_characters: int = Field(1000, ge=1, description="length: maximum number of characters of the longer side.")
    min_letter_share: float = Field(
        0.3, ge=0, le=1, description="letters: minimum share of letters among a side's visible characters."
    )
    min_script_share: float = Field(
        0.5, ge=0, le=1, description="script: minimum share of letters in a script of the side's language."
    )
    max_copy_similarity: float = Field(
        0.9,
        gt=0,
        lt=1,
        description="copy: maximum similarity of source and target: the share of the shorter text's character "
        "trigrams that also occur in the other text.",
    )
    min_language_probability: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="language: minimum probability of the side's language among all languages that py3langid detects.",
    )
    max_ratio_deviations: float = Field(
        6.0,
        gt=0,
        description="ratio: maximum deviation of a pair's log length ratio from the median for pairs of this length, "
        "in robust standard deviations. The length is the number of characters.",
    )
    max_fact_differences: int = Field(
        0,
        ge=0,
        description="facts: maximum number of numbers, URLs, e-mail addresses and placeholders on one side without a "
        "counterpart on the other. Numbers are counted only if both sides contain digits.",
    )
    max_repetition: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="repetition: maximum share of a side's character 6-grams that repeat an earlier one.",
    )
    min_pair_posterior: float = Field(
        0.75,
        gt=0,
        lt=1,
        description="misaligned, truncated, cross_entropy: minimum probability that a pair with this score is a "
        "good pair, and not a random or truncated one. The corresponding score is learned from the corpus.",
    )


class CleaningConfig(Config):
    """The configuration of ``headway corpus clean``: the content of clean.toml."""

    repairs: tuple[RepairName, ...] = Field(REPAIRS, description="Repairs to make in each text. Their order is fixed.")
    rules: tuple[RuleName, ...] = Field(
        RULES,
        description="Rules in the order in which they are applied. A dropped line is counted for the first rule that "
        "drops it. Rules that do not apply to the corpus, such as ratio to single texts, are skipped. Held-out texts "
        "are always removed first.",
    )
    thresholds: Thresholds = Thresholds()

    @field_validator("repairs", "rules")
    @classmethod
    def _refuse_repeated(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{repeated[0]!r} is listed twice")
        return names


def load_cleaning_config(path: Path | None, assignments: Sequence[str] = ()) -> CleaningConfig:
    """Return the configuration in a TOML file, or the default one, overridden by assignments SECTION.KEY=VALUE.

    Raises:
        ConfigError: The file cannot be read, or a key or value is invalid.
    """
    data = {} if path is None else read_toml(path)
    return CleaningConfig.parse(apply_overrides(data, assignments), "--set" if path is None else str(path))
