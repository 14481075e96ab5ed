"""Inputs and results of a search: options, special tokens, requests and hypotheses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from headway.config import Config
from headway.decode.constraints import Constraints, Phrase, WordBoundaries
from headway.errors import ConfigError

_IDLE = ("beam_size", "stopping", "diversity")  # options without effect if sampling, or without groups (diversity)
_OF_A_BEAM = (*_IDLE, "groups", "coverage_penalty")  # beam search options that do not apply to sampling
_MIN_TEMPERATURE = 1e-6  # greater than 0, because logits are divided by the temperature


class Sampling(Config):
    """Options for drawing tokens at random. The filters are applied in the order of the fields."""

    temperature: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="Divisor of the logits: values below 1 make draws less random, values above 1 more.",
    )
    top_k: int | None = Field(None, ge=1, description="Number of most probable tokens to draw from. Default: all.")
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

    @model_validator(mode="after")
    def _check_temperature(self) -> Sampling:
        if 0 < self.temperature < _MIN_TEMPERATURE:
            raise ValueError(f"temperature = {self.temperature:g}: expected at least {_MIN_TEMPERATURE:g}")
        return self


class DecodingOptions(Config):
    """All options of a search. The defaults are the paper's (section 6.1).

    For a model that was imported with search settings, these settings are the defaults
    (:attr:`headway.bundle.Bundle.search`).
    """

    beam_size: int = Field(4, ge=1, description="Number of hypotheses kept at each step; 1 is greedy search.")
    n_best: int = Field(
        1, ge=1, description="Number of hypotheses to return for each text, at most beam_size, or number of samples."
    )
    length_penalty: float = Field(
        0.6, ge=0, le=10, description="Exponent of the length penalty; 0 ranks by probability (see normalization)."
    )
    normalization: Literal["gnmt", "average"] = Field(
        "gnmt",
        description="Divisor of scores: ((5 + length) / 6)^length_penalty (gnmt) or length^length_penalty (average).",
    )
    coverage_penalty: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="Weight of the penalty for source tokens with little attention (Wu et al. 2016).",
    )
    stopping: Literal["exact", "first"] = Field(
        "exact",
        description="When to end the search for a text. exact: when no unfinished hypothesis can become better than "
        "the finished ones. first: when beam_size hypotheses are finished, as in other toolkits.",
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
        le=1000,
        description="With groups: penalty on a token, in nats, for each earlier group that chose it in the same step.",
    )
    repetition_penalty: float = Field(
        1.0, ge=1, description="Divisor of the logits of earlier tokens; negative logits are multiplied by it."
    )
    no_repeat_ngram: int = Field(
        0, ge=0, description="Length of token n-grams that may not occur twice; 0 allows every repetition."
    )

    @model_validator(mode="after")
    def _fit_together(self) -> DecodingOptions:
        if self.n_best > self.beam_size and self.sampling is None:
            raise ValueError(f"n_best = {self.n_best}: expected from 1 to beam_size, which is {self.beam_size}")
        if self.beam_size % self.groups:
            raise ValueError(f"groups = {self.groups} does not divide beam_size = {self.beam_size}; choose a divisor")
        fields = type(self).model_fields
        idle = {name for name in _IDLE if getattr(self, name) != fields[name].default}
        if "diversity" in idle and self.groups == 1:
            raise ValueError("diversity has no effect without groups; set groups, or remove diversity")
        if self.sampling is not None and idle:
            raise ValueError(f"{min(idle)} and sampling cannot be combined: samples have no beam; remove one of them")
        if self.sampling is not None and self.groups > 1:
            raise ValueError("groups and sampling cannot be combined: samples already differ at random")
        if self.sampling is not None and self.coverage_penalty:
            raise ValueError(
                "coverage_penalty and sampling cannot be combined: the penalty ranks a beam, samples are not ranked"
            )
        if self.max_length is not None and self.max_length < self.min_length:
            raise ValueError(f"max_length = {self.max_length} is below min_length = {self.min_length}")
        return self

    def with_defaults(self, defaults: DecodingOptions) -> DecodingOptions:
        """Return these options, completed with the options that were explicitly set in ``defaults``.

        The default ``max_length`` is ignored, because it is an upper limit, not a chosen length. Beam search options
        are ignored if samples are drawn, and so is a default minimum length above the given maximum.

        Raises:
            ConfigError: A default is incompatible with the given options.
        """
        inherited = {
            name: getattr(defaults, name)
            for name in defaults.model_fields_set - self.model_fields_set - {"max_length"}
            if self.sampling is None or name not in _OF_A_BEAM
        }
        if self.max_length is not None and inherited.get("min_length", 0) > self.max_length:
            del inherited["min_length"]
        if not inherited:
            return self
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).parse({**inherited, **given}, "options")

    @property
    def rows_per_sequence(self) -> int:
        """Number of rows that a sequence occupies in a batch: one for each hypothesis or sample."""
        return self.beam_size if self.sampling is None else self.n_best


PAPER_OPTIONS = DecodingOptions()  # section 6.1


@dataclass(frozen=True)
class SearchVocabulary:
    """The tokens that have a special meaning in a search.

    Attributes:
        bos: The token with which decoding starts, unless the request specifies a different token.
        eos: The token that ends a target.
        banned: Tokens that are never chosen.
        extra_eos_ids: Tokens that also end a target. Their hypotheses are returned as if they ended with ``eos``.
    """

    bos: int
    eos: int
    banned: tuple[int, ...] = ()
    extra_eos_ids: tuple[int, ...] = ()

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end a target."""
        return (self.eos, *self.extra_eos_ids)


def length_penalty(length: int, alpha: float, normalization: Literal["gnmt", "average"] = "gnmt") -> float:
    """Return the divisor of a hypothesis's log-probability.

    "gnmt": ((5 + length) / (5 + 1))^alpha (Wu et al. 2016, section 7, equation 14). "average": length^alpha. ``length``
    is the number of tokens, including EOS. alpha = 0 ranks by probability. The paper uses "gnmt" with alpha = 0.6.
    """
    base = (5 + length) / 6 if normalization == "gnmt" else length
    return float(base**alpha)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to decode.

    Attributes:
        source: Source token ids, including EOS. For a language model, the prompt without its last token.
        first_token: Input token of the first decoding step: the last token of a language model's prompt, or None for
            BOS.
        limit: Maximum number of target tokens, excluding EOS. ``DecodingOptions.max_length`` may lower it.
        prefix: Tokens that the target must begin with. Rules do not apply to them.
        include: Constraints. Each is a set of alternative token sequences, such as the inflected forms of a term, at
            least one of which must occur in the target. One occurrence may satisfy several constraints. A
            :class:`Phrase` can be required to match whole words.
        boundaries: The vocabulary's word boundaries, used to check the conditions of a :class:`Phrase`. None if no
            phrase has such a condition.
        banned: Token sequences that must not occur after the prefix.
        should_end: Function that takes the target tokens so far and returns whether the target ends there without EOS.
            It is called after each token. None means that only EOS ends a target.
        alternatives: Number of most probable tokens to record at each step. Supported only in a search with one
            hypothesis.
        seed: Random seed. Together with ``source`` and ``first_token``, it determines the random draws. None means the
            seed of the options.
    """

    source: tuple[int, ...]
    limit: int
    first_token: int | None = None
    prefix: tuple[int, ...] = ()
    include: tuple[tuple[Phrase | tuple[int, ...], ...], ...] = ()
    boundaries: WordBoundaries | None = None
    banned: tuple[tuple[int, ...], ...] = ()
    should_end: Callable[[Sequence[int]], bool] | None = None
    alternatives: int = 0
    seed: int | None = None


@dataclass(frozen=True)
class NextToken:
    """A possible next token and its log-probability in nats."""

    token: int
    log_probability: float


@dataclass(frozen=True)
class Hypothesis:
    """A finished target.

    Attributes:
        tokens: Token ids, without BOS and EOS.
        log_probability: log P(target | source) in nats, EOS included unless :attr:`Request.should_end` ended the
            target.
        score: The ranking score; greater is better. It is the log-probability of the tokens after the forced prefix,
            including the repetition penalty, divided by the length penalty, plus the coverage penalty.
        token_log_probabilities: Log-probability of each token, and of EOS unless :attr:`Request.should_end` ended the
            target. They are the model's own, without the effects of rules, penalties and temperature, and add up to
            ``log_probability``.
        finished: False if the length limit ended the target although the model preferred a token other than EOS.
        unmet: Indices of the request's ``include`` constraints that the target does not satisfy.
        top_tokens_per_step: The most probable tokens at each step, best first, if the request asks for them.
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    token_log_probabilities: tuple[float, ...] = ()
    finished: bool = True
    unmet: tuple[int, ...] = ()
    top_tokens_per_step: tuple[tuple[NextToken, ...], ...] = ()


def target_limit(request: Request, options: DecodingOptions) -> int:
    """Return the maximum number of target tokens, excluding EOS."""
    return request.limit if options.max_length is None else min(request.limit, options.max_length)


def check_request(request: Request, options: DecodingOptions, eos: int) -> None:
    """Raise :class:`ConfigError` if a request is impossible, or incompatible with the options."""
    limit = target_limit(request, options)
    if not request.source and request.first_token is None:
        raise ConfigError("a source has no tokens: expected at least EOS")
    if limit < 0:
        raise ConfigError(f"limit = {limit} target tokens: expected 0 or more")
    if options.min_length > limit:
        raise ConfigError(
            f"min_length = {options.min_length}: this text may have at most {limit} target tokens; "
            "lower min_length, or raise max_length"
        )
    if len(request.prefix) > limit:
        raise ConfigError(
            f"a forced prefix of {len(request.prefix)} tokens is longer than the limit of {limit} target tokens; "
            "shorten the prefix, or raise max_length"
        )
    if eos in request.prefix or any(eos in one for several in _sequences(request) for one in several):
        raise ConfigError("a forced prefix or an included phrase contains EOS, which may only end a target")
    if request.alternatives and (options.beam_size if options.sampling is None else options.n_best) > 1:
        raise ConfigError("alternatives need a search with one hypothesis: set beam_size = 1 and n_best = 1")
    if not all(request.banned):
        raise ConfigError("a banned phrase has no tokens: expected at least one")
    if request.include:
        _check_include(request, options, limit)


def _check_include(request: Request, options: DecodingOptions, limit: int) -> None:
    if options.sampling is not None:
        raise ConfigError("included phrases and sampling cannot be combined: samples cannot be made to contain phrases")
    if options.groups > 1:
        raise ConfigError("included phrases and groups cannot be combined: the phrases already divide the beam")
    if options.beam_size == 1:
        raise ConfigError(
            "included phrases need beam_size >= 2: greedy search would place them at the beginning; raise beam_size"
        )
    sequences = _sequences(request)
    if not all(several and all(several) for several in sequences):
        raise ConfigError("an included phrase has no tokens, or no alternatives: expected at least one of each")
    constraints = Constraints(request.include, boundaries=request.boundaries)
    node = constraints.node_after(request.prefix)
    room = limit - len(request.prefix)
    for index in constraints.unmet(node):
        shortest = constraints.min_tokens_to_meet(node, index)
        if shortest > room:
            raise ConfigError(
                f"included phrase {index + 1} needs {shortest} tokens, but the target may have only {room} more; "
                "shorten the phrase, or raise max_length"
            )
        if all(any(_contains(one, banned) for banned in request.banned) for one in sequences[index]):
            raise ConfigError(
                f"included phrase {index + 1} cannot be met: it contains a banned phrase; remove one of the two"
            )


def _sequences(request: Request) -> list[list[tuple[int, ...]]]:
    """Return the token sequences of each included phrase's alternatives."""
    return [[one.tokens if isinstance(one, Phrase) else one for one in several] for several in request.include]


def _contains(sequence: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(sequence[start : start + len(part)]) == tuple(part) for start in range(len(sequence)))
