"""Targets that must hold certain phrases: lexically constrained beam search by dynamic beam allocation.

After Post and Vilar 2018 ("Fast Lexically Constrained Decoding with Dynamic Beam Allocation for Neural Machine
Translation", section 3). A step's candidates are the best extensions of the beam and, for every prefix, each token that
brings a constraint forward. They are put into banks by how many constraint tokens they still need, and the places of
the beam go to the banks in turn. A prefix may end when its constraints are met.

Departures. Progress is not booked by the search, it is a function of the tokens alone (:class:`Constraints`): a
constraint is met where one of its alternatives occurs, wherever and however it came there, in the forced prefix too,
and one occurrence serves every constraint that it fits. The bank that needs the fewest tokens has the first place, and
from each of its prefixes a token leads to where one less is needed; so constraints go unmet only where rules forbid
tokens, or the limit is too short for all constraints one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = ["Candidate", "Constraints", "allocate"]


@dataclass(frozen=True)
class _Progress:
    """How far a prefix is with each alternative of each constraint, in tokens; None: the constraint is met."""

    matched: tuple[tuple[int, ...] | None, ...]


class Constraints:
    """An automaton over the tokens of one request's constraints, built as it is walked.

    Its nodes are numbers; 0 is where a target begins. For each alternative a node knows the longest end of the prefix
    that the alternative begins with (as in Knuth, Morris and Pratt 1977). Alternatives that hold a ``forbidden`` token
    are left out; a constraint of which none is left stays unmet, and nothing is done for it.
    """

    def __init__(self, include: Sequence[Sequence[tuple[int, ...]]], forbidden: Collection[int] = ()) -> None:
        include = [[one for one in several if not set(one) & set(forbidden)] for several in include]
        self.include = include
        self._fallbacks = {one: _fallbacks(one) for several in include for one in several}
        self._shortest = [min(map(len, several), default=0) for several in include]
        start = _Progress(tuple((0,) * len(several) for several in include))
        self._progress = [start]
        self._numbers = {start: 0}
        self._steps: dict[tuple[int, int], int] = {}

    def step(self, node: int, token: int) -> int:
        """The node after one more token."""
        if (node, token) not in self._steps:
            matched = tuple(
                None if places is None else self._matched(several, places, token)
                for several, places in zip(self.include, self._progress[node].matched, strict=True)
            )
            progress = _Progress(matched)
            if progress not in self._numbers:
                self._numbers[progress] = len(self._progress)
                self._progress.append(progress)
            self._steps[node, token] = self._numbers[progress]
        return self._steps[node, token]

    def after(self, tokens: Sequence[int]) -> int:
        """The node after a whole prefix."""
        node = 0
        for token in tokens:
            node = self.step(node, token)
        return node

    def unmet(self, node: int) -> tuple[int, ...]:
        """Which constraints do not occur yet."""
        return tuple(at for at, places in enumerate(self._progress[node].matched) if places is not None)

    def remaining(self, node: int, constraint: int) -> int:
        """The fewest tokens after which a constraint can occur; 0 where it does, or cannot."""
        places = self._progress[node].matched[constraint]
        if places is None:
            return 0
        return min((len(one) - at for one, at in zip(self.include[constraint], places, strict=True)), default=0)

    def needed(self, node: int) -> int:
        """Tokens that meet all constraints one after the other: one is gone on with, the others are begun.

        There is a token after which one less is needed, in every node that needs any.
        """
        unmet = self.unmet(node)
        saved = max((self._shortest[at] - self.remaining(node, at) for at in unmet), default=0)
        return sum(self._shortest[at] for at in unmet) - saved

    def forward(self, node: int) -> set[int]:
        """The tokens that bring an unmet constraint forward."""
        return {
            one[place]
            for several, places in zip(self.include, self._progress[node].matched, strict=True)
            if places is not None
            for one, place in zip(several, places, strict=True)
        }

    def _matched(
        self, several: Sequence[tuple[int, ...]], places: tuple[int, ...], token: int
    ) -> tuple[int, ...] | None:
        found = []
        for one, place in zip(several, places, strict=True):
            while place and one[place] != token:
                place = self._fallbacks[one][place]
            place += one[place] == token
            if place == len(one):
                return None
            found.append(place)
        return tuple(found)


def _fallbacks(sequence: tuple[int, ...]) -> list[int]:
    """For each length, the longest shorter beginning of ``sequence`` that its beginning of that length ends in."""
    fallbacks = [0, 0]
    for token in sequence[1:]:
        place = fallbacks[-1]
        while place and sequence[place] != token:
            place = fallbacks[place]
        fallbacks.append(place + (sequence[place] == token))
    return fallbacks


@dataclass(frozen=True)
class Candidate:
    """An extension of a prefix of one sentence: total score, the prefix, the token, the model's own log-probability."""

    score: float
    parent: int
    token: int
    own: float


def allocate(
    constraints: Constraints,
    nodes: Sequence[int],
    candidates: Sequence[Candidate],
    *,
    count: int,
    left: int,
    end: int,
) -> list[tuple[Candidate, int]]:
    """The ``count`` candidates that go on, best first, each with its node.

    ``nodes`` are those of the prefixes, ``left`` the tokens that a sentence may still grow by (0: it must end now).
    """

    def ends_well(candidate: Candidate) -> bool:
        return candidate.token != end or not left or not constraints.needed(nodes[candidate.parent])

    fitting = [candidate for candidate in candidates if ends_well(candidate)] or candidates
    reached = [
        (one, nodes[one.parent] if one.token == end else constraints.step(nodes[one.parent], one.token))
        for one in fitting
    ]
    banks: dict[int, list[tuple[Candidate, int]]] = {}
    for item in sorted(reached, key=lambda item: (-item[0].score, item[0].parent, item[0].token)):
        banks.setdefault(constraints.needed(item[1]), []).append(item)
    chosen: list[tuple[Candidate, int]] = []
    for place in range(count):
        for needed in sorted(banks):
            chosen += banks[needed][place : place + 1]
    return sorted(chosen[:count], key=lambda item: -item[0].score)
