"""A search of one shape in memory that stays where it is: what :mod:`headway.decode.static` keeps and runs.

Dimensions: B sentences, W beams each, R = B * W rows, S source tokens, T steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.decode import rules
from headway.decode.extension import Extensions, Ranked, extend_best
from headway.decode.options import DecodingOptions
from headway.decode.protocol import Hypothesis, StaticModel, length_penalty
from headway.decode.ranking import top
from headway.decode.recording import Recorder, Recordings, Watch
from headway.decode.request import Request, limit_of
from headway.errors import BundleError

__all__ = ["Plan", "Program", "Shape"]

_Array = npt.NDArray[Any]

_PAD = 0  # what sources are padded with; models mask it
_NO_TOKEN = -1
_FIRST_REACH, _REACH_GROWTH = 32, 4  # steps whose slots a step looks at, and how they grow: each is a recording


class Shape(NamedTuple):
    """B, S and T."""

    sentences: int
    source: int
    steps: int


class Plan(NamedTuple):
    """What a program's steps do."""

    beams: int
    n_best: int
    exact: bool  # when to stop
    begin: int
    end: int
    forbidden: tuple[int, ...]

    @property
    def looked_at(self) -> int:
        """Extensions that are looked at: those that may end a sentence's search before it is done, too."""
        return self.beams if self.exact else 2 * self.beams


@dataclass
class _Endings:
    """The W best finished hypotheses of each sentence, best first: their scores (-inf: none is here), in which step
    they ended, which prefix of that step they are, and the end symbol's log-probability; ``natural`` where the model,
    too, would have ended."""

    scores: Float[Tensor, "B W"]
    steps: Int[Tensor, "B W"]
    places: Int[Tensor, "B W"]
    own: Float[Tensor, "B W"]
    natural: Bool[Tensor, "B W"]

    def join(self, new: _Endings) -> None:
        """Keep the best of both, of equals what was there first."""
        both = [torch.cat(pair, dim=1) for pair in zip(self._tensors, new._tensors, strict=True)]
        order = both[0].sort(dim=1, descending=True, stable=True).indices[:, : self.scores.size(1)]
        for mine, joined in zip(self._tensors, both, strict=True):
            mine.copy_(joined.gather(1, order))

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        return self.scores, self.steps, self.places, self.own, self.natural


class Program:
    """The memory of searches of one shape, and what is done in it.

    Whatever :meth:`_start` and :meth:`_step` read is in tensors that stay where they are: they are recorded. The model
    is handed in each time, so that who drops it frees its memory at once.
    """

    def __init__(self, model: StaticModel, shape: Shape, plan: Plan, recorder: Recorder, device: torch.device) -> None:
        self._shape, self._plan, self._recorder = shape, plan, recorder
        self._recordings: Recordings = {}
        sentences, steps, beams = shape.sentences, shape.steps, plan.beams

        def zeros(*size: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        # What is asked.
        self._source = zeros(sentences, shape.source)
        self._limits = zeros(sentences)
        self._forced = zeros(sentences, steps)  # tokens of the requests' prefixes, -1 after them
        self._penalties = zeros(steps + 1, dtype=torch.float64)  # of hypotheses that end in each step, and one more
        self._last_penalties = zeros(sentences, dtype=torch.float64)  # of those that end at a sentence's limit
        # Where the search is.
        self._source[:, 0] = plan.end
        self._state = model.start_static(self._source, beams, steps)
        self._at = zeros(1)  # the step
        self._newest = zeros(sentences * beams)  # tokens
        self._scores = zeros(sentences, 1, beams, dtype=torch.float32)  # of the prefixes; -inf: no prefix is here
        self._closed, self._done, self._broken = (zeros(size, dtype=torch.bool) for size in (sentences, 1, 1))
        self._first_rows = torch.arange(0, sentences * beams, beams, device=device).view(-1, 1)
        # What it has found.
        chosen = steps, sentences, beams
        self._tokens, self._parents, self._own = zeros(*chosen), zeros(*chosen), zeros(*chosen, dtype=torch.float32)
        ended = sentences, beams
        self._ended = _Endings(
            zeros(*ended, dtype=torch.float64),
            zeros(*ended),
            zeros(*ended),
            zeros(*ended, dtype=torch.float32),
            zeros(*ended, dtype=torch.bool),
        )

    @property
    def num_bytes(self) -> int:
        """Of the model's state, which is nearly all."""
        num_bytes: int = self._state.num_bytes
        return num_bytes

    def search(
        self, model: StaticModel, requests: Sequence[Request], options: DecodingOptions, stop: Event | None
    ) -> list[list[Hypothesis]]:
        """See :func:`~headway.decode.static.static_search`."""
        limits = [limit_of(request, options) for request in requests]
        with self._recorder.scope():
            self._ask(requests, limits, options)
            self._recorder.run(self._recordings, "start", lambda: self._start(model))
            watch = Watch(self._done)
            longest = max(len(request.prefix) for request in requests)
            for number in range(max(limits) + 1):
                self._take_step(model, number, short=number < options.min_length, forced=number < longest)
                if watch.step():
                    break
                if stop is not None and stop.is_set():
                    raise CancelledError
            return self._found(limits)

    def _ask(self, requests: Sequence[Request], limits: Sequence[int], options: DecodingOptions) -> None:
        """Write down what is asked; sentences that fill the batch up have an end symbol alone, and no room."""
        source = np.full(self._source.shape, _PAD)
        source[:, 0] = self._plan.end
        forced = np.full(self._forced.shape, _NO_TOKEN)
        room = np.zeros(len(source), dtype=np.int64)
        for row, (request, limit) in enumerate(zip(requests, limits, strict=True)):
            source[row, : len(request.source)] = request.source
            forced[row, : len(request.prefix)] = request.prefix
            room[row] = limit
        penalties = [
            length_penalty(length, options.length_penalty, options.normalization)
            for length in range(1, self._shape.steps + 2)
        ]
        self._source.copy_(torch.from_numpy(source))
        self._forced.copy_(torch.from_numpy(forced))
        self._limits.copy_(torch.from_numpy(room))
        self._penalties.copy_(torch.tensor(penalties, dtype=torch.float64))
        self._last_penalties.copy_(torch.tensor([penalties[limit] for limit in room.tolist()], dtype=torch.float64))

    def _start(self, model: StaticModel) -> None:
        """Encode the sources; every sentence has one prefix, which is empty."""
        model.restart(self._state, self._source)
        self._at.zero_()
        self._newest.fill_(self._plan.begin)
        self._scores.fill_(-math.inf)[:, :, 0].zero_()
        for flag in (self._closed, self._done, self._broken):
            flag.zero_()
        self._ended.scores.fill_(-math.inf)

    def _take_step(self, model: StaticModel, number: int, *, short: bool, forced: bool) -> None:
        reach = _FIRST_REACH
        while reach <= number:
            reach *= _REACH_GROWTH
        reach = min(reach, self._shape.steps)
        self._state.set_reach(reach)
        if forced:
            self._step(model, short, forced)  # the few steps that need all logits are not recorded
        else:
            self._recorder.run(self._recordings, (reach, short), lambda: self._step(model, short, forced))

    def _step(self, model: StaticModel, short: bool, forced: bool) -> None:
        """Extend every prefix by a token; ``short`` is a step that may not end, ``forced`` one with forced tokens."""
        plan, width = self._plan, self._plan.beams
        ranked, ending = self._ranked(model, (*plan.forbidden, plan.end) if short else plan.forbidden, forced)
        natural = (ranked.tokens.gather(3, ranked.gains.argmax(3, keepdim=True)) == plan.end).squeeze(3)
        chosen = extend_best(self._scores, ranked.only(plan.end, ending, self._limits <= self._at), plan.looked_at)
        self._broken.logical_or_((chosen.scores[:, 0, 0].isnan() & ~self._closed).any())
        ends = (chosen.tokens == plan.end) & chosen.scores.isfinite()
        self._end(chosen, ends, natural)
        chosen = chosen.with_scores(chosen.scores.masked_fill(ends, -math.inf))
        self._close(chosen.scores.amax(2).squeeze(1))
        if plan.looked_at > width:
            chosen = chosen.best(width)
        kept = (self._tokens, chosen.tokens), (self._parents, chosen.parents), (self._own, chosen.own)
        for history, new in kept:
            history.index_copy_(0, self._at, new.squeeze(1).unsqueeze(0))
        self._state.select((self._first_rows + chosen.parents.squeeze(1)).flatten())
        self._newest.copy_(chosen.tokens.flatten())
        self._scores.copy_(chosen.scores.masked_fill(self._closed.view(-1, 1, 1), -math.inf))
        self._at.add_(1)

    def _ranked(
        self, model: StaticModel, forbidden: tuple[int, ...], forced: bool
    ) -> tuple[Ranked, Float[Tensor, "B 1 W"]]:
        """The best tokens after each prefix, and what it would cost to end."""
        plan, shape = self._plan, self._scores.shape
        if not forced:
            best = model.best(self._state, self._newest, plan.looked_at, forbidden)
            values = best.log_probs, best.log_probs, best.tokens
            return Ranked(*(torch.unflatten(x, 0, shape) for x in values)), best.end.view(shape)
        own = model.advance(self._state, self._newest).float().log_softmax(-1)
        tokens = self._forced.index_select(1, self._at).expand(-1, plan.beams).flatten()
        gains, chosen = top(
            rules.force_tokens(rules.ban_tokens(own, forbidden), tokens), min(plan.looked_at, own.size(1))
        )
        values = gains, own.gather(1, chosen), chosen
        return Ranked(*(torch.unflatten(x, 0, shape) for x in values)), own[:, plan.end].view(shape)

    def _end(self, chosen: Extensions, ends: Bool[Tensor, "B 1 C"], natural: Bool[Tensor, "B 1 W"]) -> None:
        """Keep the extensions that end, of those that the beam has places for."""
        width = self._plan.beams
        totals, ended, parents, own = (x[:, 0, :width] for x in (chosen.scores, ends, chosen.parents, chosen.own))
        scores = totals.double() / self._penalties.index_select(0, self._at)
        self._ended.join(
            _Endings(
                scores.masked_fill(~ended, -math.inf),
                self._at.expand(scores.shape),
                parents,
                own,
                natural.squeeze(1).gather(1, parents),
            )
        )

    def _close(self, best: Float[Tensor, " B"]) -> None:
        """The sentences that are done; ``best`` are the scores of their best prefixes, -inf where none is left."""
        ended = self._ended.scores
        if self._plan.exact:
            # Longer, a prefix gains by the length penalty.
            going_on = ended[:, self._plan.n_best - 1] < best.double() / self._last_penalties
        else:
            going_on = (ended[:, -1] == -math.inf) & (best > -math.inf)
        self._closed.logical_or_(~going_on)
        self._done.copy_(self._closed.all())

    def _found(self, limits: Sequence[int]) -> list[list[Hypothesis]]:
        """Read what was found."""
        count = len(limits)
        if self._broken.item():
            raise BundleError("the model gives no finite probabilities: its weights are damaged")
        taken = int(self._at.item())
        chosen = [x[:taken, :count].numpy(force=True) for x in (self._tokens, self._parents, self._own)]
        ended = self._ended
        scores, steps, places, own, natural = (
            x[:count].numpy(force=True) for x in (ended.scores, ended.steps, ended.places, ended.own, ended.natural)
        )
        there = np.isfinite(scores)
        tokens, log_probs = _followed_back(chosen, np.where(there, steps, 0), places)
        return [
            [
                _hypothesis(
                    tokens[row, place, :length].tolist(),
                    [*log_probs[row, place, :length].tolist(), float(own[row, place])],
                    float(scores[row, place]),
                    finished=length < limit or bool(natural[row, place]),
                )
                for place, length in enumerate(steps[row].tolist())
                if there[row, place]
            ]
            for row, limit in enumerate(limits)
        ]


def _hypothesis(tokens: list[int], log_probs: list[float], score: float, *, finished: bool) -> Hypothesis:
    return Hypothesis(tuple(tokens), math.fsum(log_probs), score, tuple(log_probs), finished)


def _followed_back(chosen: Sequence[_Array], steps: _Array, places: _Array) -> tuple[_Array, _Array]:
    """The tokens (B, W, T) of the prefixes that were ``places`` (B, W) after so many ``steps`` (B, W), and their
    log-probabilities; ``chosen`` are each step's tokens, their parents and their log-probabilities (T, B, W)."""
    tokens, parents, own = chosen
    longest = int(steps.max(initial=0))
    found, log_probs = np.zeros((*steps.shape, longest), tokens.dtype), np.zeros((*steps.shape, longest), own.dtype)
    places = places.copy()
    for step in reversed(range(longest)):
        sentences, ranks = (steps > step).nonzero()
        at = step, sentences, places[sentences, ranks]
        found[sentences, ranks, step], log_probs[sentences, ranks, step] = tokens[at], own[at]
        places[sentences, ranks] = parents[at]
    return found, log_probs
