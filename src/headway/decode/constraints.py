"""Targets that must contain certain phrases: lexically constrained beam search with dynamic beam allocation.

After Post and Vilar 2018 ("Fast Lexically Constrained Decoding with Dynamic Beam Allocation for Neural Machine
Translation", section 3). The candidates of a step are the best extensions of the beam and, for every hypothesis, each
token that advances a constraint. They are put into banks by the number of constraint tokens that they still need, and
the places of the beam go to the banks in turn. A hypothesis may end when its constraints are met.

Departures. The search does not keep track of progress: progress is a function of the tokens (:class:`Constraints`). A
constraint is met if one of its alternatives occurs, wherever it came from, including the forced prefix, and one
occurrence satisfies every constraint that it matches. The bank that needs the fewest tokens gets the first place, and
each of its hypotheses has a token after which one token less is needed; so constraints stay unmet only if rules forbid
tokens, or if the limit is too short for all constraints one after the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.decode.candidates import Extensions, TokenScores

__all__ = ["Constraints", "Extension", "allocate", "extend_constrained"]


@dataclass(frozen=True)
class _Progress:
    """How many tokens of each alternative of each constraint are matched; None means that the constraint is met."""

    matched: tuple[tuple[int, ...] | None, ...]


class Constraints:
    """An automaton over the tokens of one request's constraints, built while it is used.

    Its nodes are numbers; every target begins at node 0. For each alternative, a node stores the length of the longest
    suffix of the target so far that the alternative begins with (as in Knuth, Morris and Pratt 1977). Alternatives that
    contain a ``forbidden`` token are left out; a constraint without alternatives stays unmet and is not pursued.
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
        """Return the node after one more token."""
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
        """Return the node after a whole prefix."""
        node = 0
        for token in tokens:
            node = self.step(node, token)
        return node

    def unmet(self, node: int) -> tuple[int, ...]:
        """Return the indices of the constraints that do not occur yet."""
        return tuple(at for at, places in enumerate(self._progress[node].matched) if places is not None)

    def remaining(self, node: int, constraint: int) -> int:
        """Return the fewest tokens after which a constraint can occur; 0 if it occurs already, or cannot."""
        places = self._progress[node].matched[constraint]
        if places is None:
            return 0
        return min((len(one) - at for one, at in zip(self.include[constraint], places, strict=True)), default=0)

    def needed(self, node: int) -> int:
        """Return how many tokens meet all constraints one after the other, continuing the one that saves most.

        Every node that needs any tokens has a token after which one token less is needed.
        """
        unmet = self.unmet(node)
        saved = max((self._shortest[at] - self.remaining(node, at) for at in unmet), default=0)
        return sum(self._shortest[at] for at in unmet) - saved

    def forward(self, node: int) -> set[int]:
        """Return the tokens that advance an unmet constraint."""
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
    """Return, for each prefix length of ``sequence``, the length of that prefix's longest proper border."""
    fallbacks = [0, 0]
    for token in sequence[1:]:
        place = fallbacks[-1]
        while place and sequence[place] != token:
            place = fallbacks[place]
        fallbacks.append(place + (sequence[place] == token))
    return fallbacks


@dataclass(frozen=True)
class Extension:
    """An extension of a hypothesis of one sequence by one token; ``log_prob`` is the model's own."""

    score: float
    parent: int
    token: int
    log_prob: float


def allocate(
    constraints: Constraints,
    nodes: Sequence[int],
    candidates: Sequence[Extension],
    *,
    count: int,
    left: int,
    eos: int,
) -> list[tuple[Extension, int]]:
    """Return the ``count`` candidates to keep, best first, each with its node.

    ``nodes`` belong to the hypotheses; ``left`` is how many tokens the sequence may still grow by (0: it must end now).
    """

    def ends_well(candidate: Extension) -> bool:
        return candidate.token != eos or not left or not constraints.needed(nodes[candidate.parent])

    fitting = [candidate for candidate in candidates if ends_well(candidate)] or candidates
    reached = [
        (one, nodes[one.parent] if one.token == eos else constraints.step(nodes[one.parent], one.token))
        for one in fitting
    ]
    banks: dict[int, list[tuple[Extension, int]]] = {}
    for item in sorted(reached, key=lambda item: (-item[0].score, item[0].parent, item[0].token)):
        banks.setdefault(constraints.needed(item[1]), []).append(item)
    chosen: list[tuple[Extension, int]] = []
    for place in range(count):
        for needed in sorted(banks):
            chosen += banks[needed][place : place + 1]
    return sorted(chosen[:count], key=lambda item: -item[0].score)


def extend_constrained(
    chosen: Extensions,
    constraints: Sequence[Constraints | None],
    left: Sequence[int],
    nodes: Int[Tensor, "B 1 W"],
    scores: Float[Tensor, "B 1 W"],
    candidates: TokenScores,
    gains: Float[Tensor, "R V"],
    log_probs: Float[Tensor, "R V"],
    *,
    width: int,
    eos: int,
) -> Extensions:
    """Return ``chosen`` with the extensions of constrained sequences replaced by the ``width`` that :func:`allocate`
    picks.

    ``nodes`` and ``scores`` belong to the hypotheses, ``left`` is how many tokens each sequence may still grow by.
    ``gains`` and ``log_probs`` are those of all tokens. The choice is made on the host: it considers few candidates,
    and only of the sequences that have constraints.
    """
    count = chosen.scores.size(2)
    names = ("scores", "parents", "tokens", "log_probs")
    chosen = dataclasses.replace(chosen, **{name: getattr(chosen, name).clone() for name in names})
    new_nodes = torch.zeros_like(chosen.tokens)
    for at, own in enumerate(constraints):
        if own is None:
            continue
        before = nodes[at, 0].tolist()
        possible = _candidates(own, left[at], before, scores[at, 0], candidates, gains, log_probs, at)
        found = allocate(own, before, possible, count=width, left=left[at], eos=eos)
        missing = count - len(found)
        for target, values in (
            (chosen.scores, [one.score for one, _ in found] + [-math.inf] * missing),
            (chosen.parents, [one.parent for one, _ in found] + [0] * missing),
            (chosen.tokens, [one.token for one, _ in found] + [eos] * missing),
            (chosen.log_probs, [one.log_prob for one, _ in found] + [0.0] * missing),
            (new_nodes, [node for _, node in found] + [0] * missing),
        ):
            target[at, 0] = torch.tensor(values, dtype=target.dtype, device=target.device)
    return dataclasses.replace(chosen, nodes=new_nodes)


def _candidates(
    constraints: Constraints,
    left: int,
    nodes: Sequence[int],
    scores: Float[Tensor, " W"],
    candidates: TokenScores,
    gains: Float[Tensor, "R V"],
    log_probs: Float[Tensor, "R V"],
    at: int,
) -> list[Extension]:
    """Return the best extensions of each hypothesis of sequence ``at``, and those that advance a constraint."""
    tokens = [row.tolist() for row in candidates.tokens[at, 0]]
    of_tokens = [
        list(zip(*(x[at, 0, beam].tolist() for x in (candidates.gains, candidates.log_probs)), strict=True))
        for beam in range(len(nodes))
    ]
    if left > 0:
        for beam, node in enumerate(nodes):
            wanted, row = sorted(constraints.forward(node)), at * len(nodes) + beam
            tokens[beam] += wanted
            of_tokens[beam] += zip(gains[row, wanted].tolist(), log_probs[row, wanted].tolist(), strict=True)
    found: dict[tuple[int, int], Extension] = {}
    for parent, score in enumerate(scores.tolist()):
        for (gain, log_prob), token in zip(of_tokens[parent], tokens[parent], strict=True):
            if score + gain != -math.inf:
                found.setdefault((parent, token), Extension(score + gain, parent, token, log_prob))
    return list(found.values())
