"""Lexically constrained beam search: targets that must contain certain phrases, with dynamic beam allocation.

The method follows Post and Vilar 2018 ("Fast Lexically Constrained Decoding with Dynamic Beam Allocation for Neural
Machine Translation", section 3). The candidates of a step are the best extensions of the beam and, for every
hypothesis, each token that advances a constraint. Candidates are grouped into banks by the number of constraint tokens
that they still need, and the banks fill the beam in turn. A hypothesis may end when its constraints are met.

Departures from the paper: A constraint is met if one of its alternatives occurs anywhere in the target, including the
forced prefix, and one occurrence satisfies every constraint that it matches. The progress of a hypothesis depends only
on its tokens and is a node of an automaton (:class:`Constraints`), so the search stores only the number of the node.

A phrase can be required to match whole words (:class:`WordBoundaries`). In this case, the token before a phrase
determines whether the phrase may begin there, and the token after it determines whether the phrase is a match. A
complete phrase therefore stays open until the next token, and the best tokens that close it are also candidates.

The bank that needs the fewest tokens fills the first slot of the beam, and each of its hypotheses can be extended by a
token that reduces the number of needed tokens by one. Constraints therefore stay unmet only if rules forbid tokens, or
if the length limit is too short to meet all constraints one after another.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.decode.ranking import Extensions, TokenScores, topk_ordered


@dataclass(frozen=True)
class WordBoundaries:
    """The word boundaries of a vocabulary.

    For each token, they define whether it can continue a word, and whether the next token can continue the token's
    last word. Each token has two bit sets of one byte each. Token t continues the last word of the preceding token s if
    ``end_bits[s] & start_bits[t]`` is not 0.

    Attributes:
        start_bits: For each token, the kinds of words that it can continue.
        end_bits: For each token, the kind of word that it leaves open.
        separator: A token that neither continues a word nor leaves one open, such as a space. None if the vocabulary
            has no such token.
    """

    start_bits: bytes
    end_bits: bytes
    separator: int | None = None


@dataclass(frozen=True)
class Phrase:
    """A token sequence to include, with conditions on the tokens around it (bits as in :class:`WordBoundaries`).

    Attributes:
        tokens: Ids of the phrase's tokens.
        start_bits: The token before the phrase must have none of these bits in its ``end_bits``. 0 means no condition.
        end_bits: The token after the phrase must have none of these bits in its ``start_bits``. 0 means no condition.
    """

    tokens: tuple[int, ...]
    start_bits: int = 0
    end_bits: int = 0


@dataclass(frozen=True)
class _Progress:
    """The state of the constraints after some tokens.

    Attributes:
        matched: For each constraint, None if it is met, otherwise a bit set for each alternative. Bit k is set if the
            tokens so far end with the alternative's first k + 1 tokens.
        ends: The bit set ``WordBoundaries.end_bits`` of the last token.
    """

    matched: tuple[tuple[int, ...] | None, ...]
    ends: int = 0


class Constraints:
    """An automaton that tracks one request's constraints. Its nodes are created when they are first reached.

    Nodes are integers, and every target begins at node 0. All partial matches of an alternative are tracked together,
    as bits of an integer (the shift-and algorithm, Baeza-Yates and Gonnet 1992). Alternatives that contain a
    ``forbidden`` token are ignored. A constraint without alternatives can never be met, and the search does not try to
    meet it.

    Args:
        include: The alternatives of each constraint. A plain token sequence is a phrase without conditions.
        forbidden: Tokens that no target contains.
        boundaries: The vocabulary's word boundaries, used to check the conditions of phrases. If None, the conditions
            are ignored.
    """

    def __init__(
        self,
        include: Sequence[Sequence[Phrase | tuple[int, ...]]],
        forbidden: Collection[int] = (),
        boundaries: WordBoundaries | None = None,
    ) -> None:
        phrases = [[one if isinstance(one, Phrase) else Phrase(one) for one in several] for several in include]
        self.include = [[one for one in several if not set(one.tokens) & set(forbidden)] for several in phrases]
        self.boundaries = boundaries
        self._starts = defaultdict[int, int](int) if boundaries is None else boundaries.start_bits
        self._separator = None if boundaries is None else boundaries.separator
        # For each constraint, a number of tokens that always suffices to meet it: the phrase, after a separator if the
        # phrase might continue a word. If the vocabulary has no separator, some phrases cannot be reached.
        longer = self._separator is not None
        self._shortest = [
            min((len(one.tokens) + (longer and bool(self._continued(one))) for one in several), default=0)
            for several in self.include
        ]
        # _places maps, for each alternative, tokens to the bits of their positions. _having maps each token to the
        # constraints that contain it.
        self._places = [[_places(one.tokens) for one in several] for several in self.include]
        self._having: dict[int, set[int]] = {}
        for index, several in enumerate(self.include):
            for token in {token for one in several for token in one.tokens}:
                self._having.setdefault(token, set()).add(index)
        start = _Progress(tuple((0,) * len(several) for several in self.include))
        self._progress = [start]
        self._begun: list[set[int]] = [set()]  # for each node, the partly matched constraints
        self._numbers = {start: 0}
        self._steps: dict[tuple[int, int], int] = {}
        self._needed: dict[int, int] = {}
        self._first_ways: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def step(self, node: int, token: int) -> int:
        """Return the node that ``token`` leads to from ``node``."""
        if (node, token) not in self._steps:
            now = self._progress[node]
            ends = 0 if self.boundaries is None else self.boundaries.end_bits[token]
            matched = list(now.matched)
            changed = self._begun[node] | self._having.get(token, set())
            for index in changed:
                if (places := now.matched[index]) is not None:
                    matched[index] = self._matched(index, places, now.ends, token)
            progress = _Progress(tuple(matched), ends)
            if progress not in self._numbers:
                self._numbers[progress] = len(self._progress)
                self._progress.append(progress)
                self._begun.append({index for index in changed if any(matched[index] or ())})
            self._steps[node, token] = self._numbers[progress]
        return self._steps[node, token]

    def node_after(self, tokens: Sequence[int]) -> int:
        """Return the node that is reached after all tokens of a prefix."""
        return reduce(self.step, tokens, 0)

    def unmet(self, node: int) -> tuple[int, ...]:
        """Return the indices of the constraints that are not met if the target ends at ``node``."""
        matched = self._progress[node].matched
        open_ = {index for index in self._begun[node] if self._open(index, matched[index] or ())}
        return tuple(index for index, places in enumerate(matched) if places is not None and index not in open_)

    def min_tokens_to_meet(self, node: int, constraint: int) -> int:
        """Return the minimum number of tokens needed to meet a constraint; 0 if it is already met or cannot be met."""
        if constraint not in self.unmet(node):
            return 0
        return min((needed for needed, _ in self._continuations(node, constraint)), default=0)

    def num_needed_tokens(self, node: int) -> int:
        """Return the number of tokens needed to meet all constraints one after another.

        The partial match that saves the most tokens is completed first. If the number is not 0,
        :meth:`advancing_tokens` contains a token that reduces it by one.
        """
        if node not in self._needed:
            unmet = self.unmet(node)
            can_lose = self.undoing_start_bits(node) > 0
            ways = (
                needed - self._shortest[index] + (self._lost(node, token) if can_lose else 0)
                for index in unmet
                for needed, token in self._continuations(node, index)
            )
            self._needed[node] = sum(self._shortest[index] for index in unmet) + min(ways, default=0)
        return self._needed[node]

    def advancing_tokens(self, node: int) -> set[int]:
        """Return the tokens that advance an unmet constraint."""
        return {token for index in self.unmet(node) for _, token in self._continuations(node, index)}

    def undoing_start_bits(self, node: int) -> int:
        """Return a bit set. A token undoes an open match if its ``start_bits`` contain one of these bits."""
        bits = 0
        for index in self._begun[node]:
            for one, place in zip(self.include[index], self._progress[node].matched[index] or (), strict=False):
                bits |= one.end_bits * (place >> (len(one.tokens) - 1) & 1)
        return bits

    def _open(self, constraint: int, places: tuple[int, ...]) -> bool:
        """Return whether an alternative is complete, but still open until the next token."""
        return any(place >> (len(one.tokens) - 1) for one, place in zip(self.include[constraint], places, strict=True))

    def _continuations(self, node: int, constraint: int) -> list[tuple[int, int]]:
        """Return the number of tokens and the first token of each way to complete an unmet constraint."""
        now = self._progress[node]
        ways = self._ways_to_begin(constraint, now.ends)
        if constraint not in self._begun[node]:
            return ways
        places = now.matched[constraint]
        assert places is not None
        return ways + [
            (len(one.tokens) - k, one.tokens[k])
            for one, place in zip(self.include[constraint], places, strict=True)
            if place
            for k in range(1, len(one.tokens))
            if place >> (k - 1) & 1
        ]

    def _ways_to_begin(self, constraint: int, ends: int) -> list[tuple[int, int]]:
        """Return the ways to complete a constraint from its beginning after a token with these ``end_bits``."""
        if (constraint, ends) not in self._first_ways:
            ways: list[tuple[int, int]] = []
            for one in self.include[constraint]:
                if not one.start_bits & ends:
                    ways.append((len(one.tokens), one.tokens[0]))
                if self._continued(one) & ends and self._separator is not None:
                    ways.append((len(one.tokens) + 1, self._separator))
            self._first_ways[constraint, ends] = ways
        return self._first_ways[constraint, ends]

    def _continued(self, phrase: Phrase) -> int:
        """Return the bits of the words that a phrase would continue or must not continue."""
        return phrase.start_bits | self._starts[phrase.tokens[0]]

    def _lost(self, node: int, token: int) -> int:
        """Return the number of tokens needed to repeat the phrases whose last word ``token`` would continue."""
        if not self.undoing_start_bits(node) & self._starts[token]:
            return 0
        before, after = self.unmet(node), self.unmet(self.step(node, token))
        return sum(self._shortest[index] for index in after if index not in before)

    def _matched(self, constraint: int, places: tuple[int, ...], ends: int, token: int) -> tuple[int, ...] | None:
        new_places = []
        for one, place, token_places in zip(self.include[constraint], places, self._places[constraint], strict=True):
            last = len(one.tokens) - 1
            if place >> last and not one.end_bits & self._starts[token]:
                return None
            place = ((place << 1) | (not one.start_bits & ends)) & token_places.get(token, 0)
            if place >> last and not one.end_bits:
                return None
            new_places.append(place)
        return tuple(new_places)


def _places(tokens: Sequence[int]) -> dict[int, int]:
    """Return a bit set for each token: the indices at which it occurs."""
    places: dict[int, int] = {}
    for index, token in enumerate(tokens):
        places[token] = places.get(token, 0) | 1 << index
    return places


class Extension(NamedTuple):
    """A hypothesis extended by one token. ``log_prob`` is the model's own log-probability of the token."""

    score: float
    parent: int
    token: int
    log_prob: float


def _allocate_beam(
    constraints: Constraints, nodes: Sequence[int], candidates: Sequence[Extension], *, width: int, left: int, eos: int
) -> list[tuple[Extension, int]]:
    """Return the ``width`` candidates to keep, best first, each with the node that it reaches.

    ``nodes`` contains the hypotheses' nodes. ``left`` is the number of tokens that may still be added; 0 means that the
    sequence must end now.
    """

    def ends_well(candidate: Extension) -> bool:
        return candidate.token != eos or not left or not constraints.num_needed_tokens(nodes[candidate.parent])

    fitting = [candidate for candidate in candidates if ends_well(candidate)] or candidates
    reached = [
        (one, nodes[one.parent] if one.token == eos else constraints.step(nodes[one.parent], one.token))
        for one in fitting
    ]
    banks: dict[int, list[tuple[Extension, int]]] = {}
    for item in sorted(reached, key=lambda item: (-item[0].score, item[0].parent, item[0].token)):
        banks.setdefault(constraints.num_needed_tokens(item[1]), []).append(item)
    chosen: list[tuple[Extension, int]] = []
    for place in range(width):
        for needed in sorted(banks):
            chosen += banks[needed][place : place + 1]
    return sorted(chosen[:width], key=lambda item: -item[0].score)


def extend_constrained(
    extensions: Extensions,
    constraints: Sequence[Constraints | None],
    tokens_left: Sequence[int],
    nodes: Int[Tensor, "B 1 W"],
    scores: Float[Tensor, "B 1 W"],
    candidates: TokenScores,
    gains: Float[Tensor, "R V"],
    log_probs: Float[Tensor, "R V"],
    *,
    width: int,
    eos: int,
) -> Extensions:
    """Return ``extensions`` with the extensions of constrained sequences replaced by dynamic beam allocation.

    At most ``width`` extensions per sequence are replaced.

    ``nodes`` and ``scores`` belong to the hypotheses. ``tokens_left`` is the number of tokens that may still be added
    to each sequence. ``gains`` and ``log_probs`` contain all tokens. Extensions are chosen on the host, because only a
    few candidates of each constrained sequence are considered.
    """
    count, empty = extensions.scores.size(2), Extension(-math.inf, 0, eos, 0.0)
    tensors = [x.clone() for x in (extensions.scores, extensions.parents, extensions.tokens, extensions.log_probs)]
    tensors.append(torch.zeros_like(extensions.tokens))
    for sequence, sequence_constraints in enumerate(constraints):
        if sequence_constraints is None:
            continue
        before = nodes[sequence, 0].tolist()
        possible = _candidates(
            sequence_constraints,
            tokens_left[sequence],
            before,
            scores[sequence, 0],
            candidates,
            gains,
            log_probs,
            sequence,
        )
        allocated = _allocate_beam(
            sequence_constraints, before, possible, width=width, left=tokens_left[sequence], eos=eos
        )
        allocated += [(empty, 0)] * (count - len(allocated))
        for x, values in zip(tensors, zip(*((*one, node) for one, node in allocated), strict=True), strict=True):
            x[sequence, 0] = torch.tensor(values, dtype=x.dtype, device=x.device)
    return Extensions(*tensors)


def _candidates(
    constraints: Constraints,
    left: int,
    nodes: Sequence[int],
    scores: Float[Tensor, " W"],
    candidates: TokenScores,
    gains: Float[Tensor, "R V"],
    log_probs: Float[Tensor, "R V"],
    sequence: int,
) -> list[Extension]:
    """Return each hypothesis's best extensions in ``sequence``, and all extensions that advance or close a phrase."""
    extensions: dict[tuple[int, int], Extension] = {}
    for parent, (node, score) in enumerate(zip(nodes, scores.tolist(), strict=True)):
        parts = candidates.tokens, candidates.gains, candidates.log_probs
        columns = [x[sequence, 0, parent].tolist() for x in parts]
        if left > 0:
            row = sequence * len(nodes) + parent
            wanted = sorted(constraints.advancing_tokens(node)) + _closing(constraints, node, gains[row], len(nodes))
            more = wanted, gains[row, wanted].tolist(), log_probs[row, wanted].tolist()
            columns = [before + after for before, after in zip(columns, more, strict=True)]
        for token, gain, log_prob in zip(*columns, strict=True):
            if score + gain != -math.inf:
                extensions.setdefault((parent, token), Extension(score + gain, parent, token, log_prob))
    return list(extensions.values())


def _closing(constraints: Constraints, node: int, gains: Float[Tensor, " V"], count: int) -> list[int]:
    """Return the ``count`` best tokens that leave the complete phrases of a node whole words."""
    end = constraints.undoing_start_bits(node)
    if not end or constraints.boundaries is None:
        return []
    starts = torch.frombuffer(bytearray(constraints.boundaries.start_bits), dtype=torch.uint8).to(gains.device)
    allowed = gains.masked_fill((starts & end) > 0, -torch.inf)
    return list(topk_ordered(allowed, min(count, len(gains)))[1].tolist())
