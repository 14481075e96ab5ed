"""What is asked of a search: one sentence, as ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.decode.constraints import Constraints
from headway.decode.options import DecodingOptions
from headway.errors import ConfigError

__all__ = ["Request", "check_request", "limit_of"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sentence to decode.

    Attributes:
        source: Its tokens, as the model reads them, the end symbol included.
        limit: Most target tokens, the end symbol not counted; ``max_length`` of the options may allow fewer.
        prefix: The target begins with it, whatever the rules.
        include: Constraints. Each is a set of alternatives (token sequences), of which at least one must occur in the
            target: a term, in the forms it may take. One occurrence may serve several constraints.
        banned: Token sequences that must not occur; the prefix is not looked at.
        seed: Mixed with the seed of the options, and with ``source``, it decides the random draws.
    """

    source: tuple[int, ...]
    limit: int
    prefix: tuple[int, ...] = ()
    include: tuple[tuple[tuple[int, ...], ...], ...] = ()
    banned: tuple[tuple[int, ...], ...] = ()
    seed: int = 0


def limit_of(request: Request, options: DecodingOptions) -> int:
    """The most tokens of its target, the end symbol not counted."""
    return request.limit if options.max_length is None else min(request.limit, options.max_length)


def check_request(request: Request, options: DecodingOptions, end: int) -> None:
    """Raise :class:`ConfigError` where a request cannot be met, or not with these options."""
    limit = limit_of(request, options)
    if not request.source:
        raise ConfigError("a source has no tokens: expected at least the end symbol")
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
    if end in request.prefix or any(end in one for several in request.include for one in several):
        raise ConfigError("a forced prefix or an included phrase holds the end symbol, which only ends a target")
    if not all(request.banned):
        raise ConfigError("a banned phrase has no tokens: expected at least one")
    if request.include:
        _check_include(request, options, limit)


def _check_include(request: Request, options: DecodingOptions, limit: int) -> None:
    if options.sampling is not None:
        raise ConfigError("included phrases and sampling exclude each other: draws cannot be made to hold a phrase")
    if options.groups > 1:
        raise ConfigError("included phrases and groups exclude each other: the beam's places are given to the phrases")
    if options.beam_size == 1:
        raise ConfigError(
            "included phrases need a beam: greedy search (beam_size = 1) would begin with them; take at least 2"
        )
    if not all(several and all(several) for several in request.include):
        raise ConfigError("an included phrase has no tokens, or no alternatives: expected at least one of each")
    constraints = Constraints(request.include)
    node = constraints.after(request.prefix)
    room = limit - len(request.prefix)
    for at in constraints.unmet(node):
        shortest = constraints.remaining(node, at)
        if shortest > room:
            raise ConfigError(
                f"included phrase {at + 1} takes {shortest} tokens, but the target may have only {room} more; "
                "shorten it, or raise max_length"
            )
        if all(any(_holds(one, banned) for banned in request.banned) for one in request.include[at]):
            raise ConfigError(f"included phrase {at + 1} cannot be met: what it holds is banned; take out one of both")


def _holds(sequence: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(sequence[at : at + len(part)]) == tuple(part) for at in range(len(sequence)))
