"""The options of decoding: their meanings, and which of them exclude each other."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from headway.config import Config

__all__ = ["DecodingOptions", "Sampling", "length_penalty"]

_IDLE = ("beam_size", "stopping", "diversity")  # without a beam, or groups of one


class Sampling(Config):
    """Draw tokens at random instead of searching for the best target. Filters apply in the order of these fields."""

    temperature: float = Field(
        1.0, gt=0, description="Logits are divided by it: below 1 makes draws less random, above 1 more."
    )
    top_k: int | None = Field(None, ge=1, description="Draw from this many of the most probable tokens. Default: all.")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Draw from the smallest set of most probable tokens that together have this probability.",
    )
    min_p: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Draw from tokens with at least this fraction of the most probable token's probability.",
    )
    seed: int = Field(
        1, description="Random seed. The draws for a text depend only on the seed and its own tokens, not on its batch."
    )


class DecodingOptions(Config):
    """Every option of a search; the defaults are the paper's (section 6.1)."""

    beam_size: int = Field(4, ge=1, description="Number of hypotheses kept at each step; 1 is greedy search.")
    n_best: int = Field(
        1, ge=1, description="Number of hypotheses returned for each text: at most beam_size, or the number of samples."
    )
    length_penalty: float = Field(
        0.6, ge=0, description="Exponent of the length penalty; 0 ranks by probability (see normalization)."
    )
    normalization: Literal["gnmt", "average"] = Field(
        "gnmt",
        description="Log-probabilities are divided by ((5 + length) / 6)^length_penalty, or by length^length_penalty.",
    )
    coverage_penalty: float = Field(
        0.0, ge=0, description="Weight of the penalty on source tokens that attention has left out (Wu et al. 2016)."
    )
    stopping: Literal["exact", "first"] = Field(
        "exact",
        description="When a text is done: if no prefix can become better than the finished hypotheses (exact), or as "
        "soon as beam_size hypotheses are finished (first), as in other toolkits.",
    )
    min_length: int = Field(0, ge=0, description="Minimum number of target tokens, without EOS.")
    max_length: int | None = Field(
        None, ge=1, description="Maximum number of target tokens, without EOS. Default: source length + 50."
    )
    sampling: Sampling | None = Field(None, description="Draw tokens instead of searching.")
    groups: int = Field(1, ge=1, description="Number of groups in diverse beam search.")
    diversity: float = Field(
        0.5,
        ge=0,
        description="With groups: penalty of a token, in nats, for each earlier group that chose it in the same step.",
    )
    repetition_penalty: float = Field(
        1.0, ge=1, description="Logits of tokens in the prefix are divided by it, or multiplied if negative."
    )
    no_repeat_ngram: int = Field(
        0, ge=0, description="No sequence of this many tokens occurs twice; 0 disables the rule."
    )

    @model_validator(mode="after")
    def _fit_together(self) -> DecodingOptions:
        if self.n_best > self.beam_size and self.sampling is None:
            raise ValueError(f"n_best = {self.n_best}: expected from 1 to beam_size, which is {self.beam_size}")
        if self.beam_size % self.groups:
            raise ValueError(f"groups = {self.groups} does not divide beam_size = {self.beam_size}; choose a divisor")
        idle = {name for name in _IDLE if getattr(self, name) != type(self).model_fields[name].default}
        if "diversity" in idle and self.groups == 1:
            raise ValueError("diversity is a cost between groups of a beam; set groups, or leave it out")
        if self.sampling is not None and idle:
            raise ValueError(f"{min(idle)} and sampling exclude each other: draws have no beam; leave one out")
        if self.sampling is not None and self.groups > 1:
            raise ValueError("groups and sampling exclude each other: drawn texts differ by chance already")
        if self.sampling is not None and self.coverage_penalty:
            raise ValueError(
                "coverage_penalty and sampling exclude each other: it ranks a beam, and draws are not ranked"
            )
        if self.max_length is not None and self.max_length < self.min_length:
            raise ValueError(f"max_length = {self.max_length} is below min_length = {self.min_length}")
        return self


def length_penalty(length: int, alpha: float, normalization: Literal["gnmt", "average"] = "gnmt") -> float:
    """Return the divisor of a hypothesis's log-probability.

    "gnmt": ((5 + length) / (5 + 1))^alpha (Wu et al. 2016, section 7, equation 14); "average": length^alpha. ``length``
    counts the tokens with EOS. alpha = 0 ranks by probability; the paper uses "gnmt" with 0.6.
    """
    base = (5 + length) / 6 if normalization == "gnmt" else length
    return float(base**alpha)
