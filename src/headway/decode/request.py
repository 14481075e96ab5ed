"""The input and the output of a search: one source sequence in ids, and the hypotheses found for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.decode.constraints import Constraints, Phrase, WordBoundaries
from headway.decode.options import DecodingOptions
from headway.errors import ConfigError

__all__ = ["Hypothesis", "Request", "check_request", "limit_of"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to decode.

    Attributes:
        source: The source ids as the model reads them, EOS included.
        limit: Maximum number of target tokens, EOS excluded; ``max_length`` of the options may allow fewer.
        prefix: Tokens that the target begins with, whatever the rules.
        include: Constraints. Each is a set of alternative token sequences, of which at least one must occur in the
            target: a term in the forms that it may take. One occurrence may satisfy several constraints. A
            :class:`Phrase` can be required to be whole words.
        boundaries: The word boundaries for the conditions of phrases; None if no phrase has a condition.
        banned: Token sequences that must not occur after the prefix.
        seed: With the options' seed and ``source``, it determines the random draws.
    """

    source: tuple[int, ...]
    limit: int
    prefix: tuple[int, ...] = ()
    include: tuple[tuple[Phrase | tuple[int, ...], ...], ...] = ()
    boundaries: WordBoundaries | None = None
    banned: tuple[tuple[int, ...], ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Hypothesis:
    """A finished target.

    Attributes:
        tokens: Without BOS and EOS.
        log_probability: log P(target | source) in nats, EOS included.
        score: The ranking score, greater is better: the log-probability of what follows the forced prefix, after
            penalties on repetition, divided by the length penalty, plus the coverage penalty.
        token_log_probabilities: One for each token and one for EOS; their sum is ``log_probability``. They are the
            model's own, whatever rules, penalties and temperatures the search used.
        finished: False if the length limit ended it although the model preferred another token to EOS.
        unmet: Indices of the request's ``include`` constraints that do not occur.
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    token_log_probabilities: tuple[float, ...] = ()
    finished: bool = True
    unmet: tuple[int, ...] = ()


def limit_of(request: Request, options: DecodingOptions) -> int:
    """Return the maximum number of target tokens, EOS excluded."""
    return request.limit if options.max_length is None else min(request.limit, options.max_length)


def check_request(request: Request, options: DecodingOptions, eos: int) -> None:
    """Raise :class:`ConfigError` if a request is impossible, or incompatible with the options."""
    limit = limit_of(request, options)
    if not request.source:
        raise ConfigError("a source has no tokens: expected at least EOS")
    if limit < 0:
        raise ConfigError(f"limit = {limit} target tokens: expected 0 or more")
    if options.min_length > limit:
        raise ConfigError(
            f"min_length = {options.min_length}: this text may have at most {limit} target tokens; "
            "lower it, or raise max_length"
        )
    if len(request.prefix) > limit:
        raise ConfigError(
            f"a forced prefix of {len(request.prefix)} tokens is longer than the {limit} that the target may have; "
            "shorten it, or raise max_length"
        )
    if eos in request.prefix or any(eos in one for several in _sequences(request) for one in several):
        raise ConfigError("a forced prefix or an included phrase contains EOS, which only ends a target")
    if not all(request.banned):
        raise ConfigError("a banned phrase has no tokens: expected at least one")
    if request.include:
        _check_include(request, options, limit)


def _check_include(request: Request, options: DecodingOptions, limit: int) -> None:
    if options.sampling is not None:
        raise ConfigError("included phrases and sampling exclude each other: draws cannot be made to contain a phrase")
    if options.groups > 1:
        raise ConfigError("included phrases and groups exclude each other: the beam is divided among the phrases")
    if options.beam_size == 1:
        raise ConfigError(
            "included phrases need a beam: greedy search (beam_size = 1) would begin with them; take at least 2"
        )
    sequences = _sequences(request)
    if not all(several and all(several) for several in sequences):
        raise ConfigError("an included phrase has no tokens, or no alternatives: expected at least one of each")
    constraints = Constraints(request.include, boundaries=request.boundaries)
    node = constraints.after(request.prefix)
    room = limit - len(request.prefix)
    for at in constraints.unmet(node):
        shortest = constraints.remaining(node, at)
        if shortest > room:
            raise ConfigError(
                f"included phrase {at + 1} takes {shortest} tokens, but the target may have only {room} more; "
                "shorten it, or raise max_length"
            )
        if all(any(_contains(one, banned) for banned in request.banned) for one in sequences[at]):
            raise ConfigError(
                f"included phrase {at + 1} cannot be met: what it contains is banned; remove one of the two"
            )


def _sequences(request: Request) -> list[list[tuple[int, ...]]]:
    """Return the token sequences of each constraint's alternatives."""
    return [[one.tokens if isinstance(one, Phrase) else one for one in several] for several in request.include]


def _contains(sequence: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(sequence[at : at + len(part)]) == tuple(part) for at in range(len(sequence)))
