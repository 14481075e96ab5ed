"""Beam search, and with it every other search: sentences enter, all of them advance by a token, the finished leave.

The paper (section 6.1) searches with a beam of 4, a length penalty of 0.6 (Wu et al. 2016, section 7) and at most
input length + 50 tokens.

Each sentence has G groups of W prefixes. Plain beam search has one group, greedy search one group of one prefix,
diverse beam search several groups, sampling a group of one prefix for each draw. A step extends prefixes by tokens and
keeps W extensions of each group: those that end are finished hypotheses, the others go on as prefixes. At its limit a
sentence's prefixes are ended by force. Done, it leaves the batch, and others may join at any time.

Two rules to stop a group:

    exact   no prefix is left, or none can become better than what is finished. A prefix only loses probability, so
            its log-probability over the penalty at the limit bounds its score.
    first   W hypotheses are finished. As in other toolkits the beam stays W prefixes wide meanwhile: a step looks at
            the 2 W best extensions, the ends among the first W of them are finished, the W best others go on.

Stopping at the first W loses good translations: where the model is sure of one, the other places of the beam hold
noise, and W bits of noise may end before the one good prefix does.

All of a step is tensors, but for one reading of the scores, from which the host learns who is finished.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool
from torch import Tensor

from headway.decode.batch import Batch, Ending, Sentence
from headway.decode.constrained import extend_constrained
from headway.decode.constraints import Constraints
from headway.decode.diverse import extend_diverse
from headway.decode.extension import Extensions, extend_best
from headway.decode.options import DecodingOptions
from headway.decode.protocol import Hypothesis, SearchModel, StateT, device_of, length_penalty
from headway.decode.ranker import Ranker, Ranking
from headway.decode.request import Request, check_request, limit_of
from headway.decode.sampling import draw, draw_keys
from headway.errors import BundleError

__all__ = ["BeamSearch", "Finished"]

_Array = npt.NDArray[Any]
Finished = list[tuple[int, list[Hypothesis]]]  # keys of sentences, and what was found for them, best first

_PAD = 0  # what sources are padded with; models mask it


class BeamSearch(Generic[StateT]):
    """Sentences in decoding by one model and one set of options.

    ``forbidden`` tokens are never chosen. :meth:`add` and :meth:`step` return the sentences that are done by then, by
    the keys that they were added with.

    Raises:
        ConfigError: The options ask for what the model cannot do.
    """

    def __init__(
        self,
        model: SearchModel[StateT],
        options: DecodingOptions,
        *,
        begin: int,
        end: int,
        forbidden: Sequence[int] = (),
    ) -> None:
        self.model = model
        self.options = options
        self.end, self.forbidden = end, tuple(forbidden)
        self.device = device_of(model)
        if options.sampling is not None:
            self.groups, self.width, self._count = options.n_best, 1, 1
            ranked = options.sampling.top_k
        else:
            self.groups, self.width = options.groups, options.beam_size // options.groups
            self._count = self.width if options.stopping == "exact" else 2 * self.width
            # As many more as groups may make dear.
            ranked = self._count + (options.beam_size if options.groups > 1 else 0)
        self._ranker = Ranker(model, options, ranked, begin=begin, end=end, forbidden=forbidden)
        self._batch: Batch[StateT] | None = None

    @property
    def num_sentences(self) -> int:
        """Sentences in decoding."""
        return len(self._batch.sentences) if self._batch else 0

    @property
    def rows_each(self) -> int:
        """Rows that a sentence takes."""
        return self.groups * self.width

    @torch.inference_mode()
    def add(self, requests: Sequence[tuple[int, Request]]) -> Finished:
        """Let sentences enter, each with a key of its own, and take their first step.

        Raises:
            ConfigError: A request asks for what is impossible, or for what the options exclude.
        """
        for _, request in requests:
            check_request(request, self.options, self.end)
        if not requests:
            return []
        longest = max(len(request.source) for _, request in requests)
        rows = [[*request.source] + [_PAD] * (longest - len(request.source)) for _, request in requests]
        state = self.model.start(torch.tensor(rows, device=self.device))
        if self.groups > 1:
            state.select(torch.arange(len(rows), device=self.device).repeat_interleave(self.groups))
        sentences = [self._sentence(key, request) for key, request in requests]
        batch = Batch(sentences, state, torch.zeros(len(rows), self.groups, 1, device=self.device))
        finished = self._advance(batch)
        if batch.sentences and self._batch:
            self._batch.join(batch)
        elif batch.sentences:
            self._batch = batch
        return finished

    @torch.inference_mode()
    def step(self) -> Finished:
        """Extend every sentence by one token."""
        if self._batch is None:
            return []
        finished = self._advance(self._batch)
        if not self._batch.sentences:
            self._batch = None
        return finished

    def _sentence(self, key: int, request: Request) -> Sentence:
        options = self.options
        keys = draw_keys(request, options.sampling, self.groups) if options.sampling else ()
        constraints = Constraints(request.include, self.forbidden) if request.include else None
        return Sentence(key, request, limit_of(request, options), self.groups, keys, constraints)

    def _advance(self, batch: Batch[StateT]) -> Finished:
        """One step of a batch, which the sentences that are done leave."""
        ranking = self._ranker.rank(batch)
        chosen = self._extend(batch, ranking)
        ends = (chosen.tokens == self.end) & chosen.scores.isfinite()
        self._settle(batch, chosen, ends, ranking.natural)
        chosen = chosen.with_scores(chosen.scores.masked_fill(ends, -torch.inf))
        if self._count > self.width:
            chosen = chosen.best(self.width)
        staying = _in_place([at for at, sentence in enumerate(batch.sentences) if not sentence.done])
        finished = [(sentence.key, self._hypotheses(sentence)) for sentence in batch.sentences if sentence.done]
        batch.follow(chosen, staying)
        return finished

    def _extend(self, batch: Batch[StateT], ranking: Ranking) -> Extensions:
        """The extensions of each group to look at, best first."""
        options, ranked = self.options, ranking.ranked
        if options.sampling is not None:
            positions = [sentence.length for sentence in batch.sentences]
            return draw(batch.scores, ranked, [one.keys for one in batch.sentences], positions, options.sampling)
        if options.groups > 1:
            return extend_diverse(batch.scores, ranked, self._count, options.diversity, self.width)
        chosen = extend_best(batch.scores, ranked, self._count)
        if batch.nodes is None:
            return chosen
        return extend_constrained(batch, ranking, chosen, width=self.width, end=self.end)

    def _settle(
        self,
        batch: Batch[StateT],
        chosen: Extensions,
        ends: Bool[Tensor, "B G C"],
        natural: Bool[Tensor, " R"] | None,
    ) -> None:
        """Read the scores, give each group what it has finished, and close the groups that are done."""
        read = [chosen.scores, ends.to(chosen.scores)]
        if self.options.coverage_penalty:
            read.append(batch.coverage_penalties(self.options.coverage_penalty).gather(2, chosen.parents))
        scores, flags, *penalties = torch.stack(read).numpy(force=True)
        ended = flags > 0
        if np.isnan(scores[:, :, 0]).any():
            raise BundleError("the model gives no finite probabilities: its weights are damaged")
        there = ended[:, :, : self.width].nonzero()
        places = list(zip(*(index.tolist() for index in there), strict=True))
        if places:
            nodes = None if chosen.nodes is None else chosen.nodes.tolist()
            coverages = penalties[0][there].tolist() if penalties else [0.0] * len(places)
            lengths = [batch.sentences[at].length + 1 for at, _, _ in places]
            found = [
                total / self._penalty(length) + coverage
                for total, length, coverage in zip(scores[there].tolist(), lengths, coverages, strict=True)
            ]
            endings = batch.endings(places, chosen, natural, found, coverages)
            for (at, group, place), ending in zip(places, endings, strict=True):
                sentence = batch.sentences[at]
                if nodes is not None and sentence.constraints is not None:
                    ending = _checked(ending, sentence.constraints, nodes[at][group][place])
                sentence.groups[group].append(ending)
        # Where nothing has ended yet, the best has not.
        best = scores[:, :, 0].tolist()
        looked_at = [
            (at, group)
            for at, sentence in enumerate(batch.sentences)
            for group, finished in enumerate(sentence.groups)
            if finished or best[at][group] == -math.inf
        ]
        for (at, group), score in zip(looked_at, _first_without(ended, scores, looked_at), strict=True):
            sentence = batch.sentences[at]
            finished = sentence.groups[group]
            finished.sort(key=lambda ending: ending.order)
            del finished[self.width :]
            if not self._may_improve(finished, score, sentence.limit):
                sentence.closed.add(group)

    def _may_improve(self, finished: Sequence[Ending], best: float, limit: int) -> bool:
        """Whether a group goes on whose best prefix has the score ``best`` (-inf: none is left)."""
        if best == -math.inf:
            return False
        if self.options.stopping == "first":
            return len(finished) < self.width
        sure = math.ceil(self.options.n_best / self.groups)
        if len(finished) < sure or finished[sure - 1].lacking:
            return True
        # Longer, a prefix gains by the length penalty, and by coverage, whose penalty is at most 0.
        return finished[sure - 1].score < best / self._penalty(limit + 1)

    def _penalty(self, length: int) -> float:
        return length_penalty(length, self.options.length_penalty, self.options.normalization)

    def _hypotheses(self, sentence: Sentence) -> list[Hypothesis]:
        """What a sentence has found, best first."""
        if self.groups == 1 and self.options.sampling is None:
            endings = sentence.groups[0]  # sorted: those that lack a phrase are given only where none has all
            return [one.hypothesis() for one in endings if one.lacking == endings[0].lacking]
        found: dict[tuple[tuple[int, ...], int], Hypothesis] = {}
        # The best of each group, then the second of each, and so on: what comes from all groups differs most.
        for place in range(self.width):
            for group, endings in enumerate(sentence.groups):
                for ending in endings[place : place + 1]:
                    hypothesis = self._by_probability(ending, sentence)
                    found.setdefault((hypothesis.tokens, group if self.options.sampling else 0), hypothesis)
        return sorted(list(found.values())[: self.options.n_best], key=lambda one: -one.score)

    def _by_probability(self, ending: Ending, sentence: Sentence) -> Hypothesis:
        """A hypothesis scored by its probability alone, without what diversity or temperature did to the search."""
        hypothesis = ending.hypothesis()
        free = math.fsum(hypothesis.token_log_probabilities[len(sentence.request.prefix) :])
        return dataclasses.replace(hypothesis, score=free / self._penalty(ending.length + 1) + ending.coverage)


def _first_without(flags: _Array, scores: _Array, places: list[tuple[int, int]]) -> list[float]:
    """Of each place (sentence, group), the first score (B, G, C) that has no flag; -inf where all have."""
    if not places:
        return []
    at = tuple(np.array(places).T)
    of_places = np.where(flags[at], -np.inf, scores[at])
    first: list[float] = of_places[np.arange(len(places)), flags[at].argmin(1)].tolist()
    return first


def _in_place(staying: list[int]) -> list[int]:
    """The same places in an order that leaves most where they are: the last ones take those that are left."""
    count = len(staying)
    kept = [at for at in staying if at < count]
    last = iter(staying[len(kept) :])
    here = set(kept)
    return [at if at in here else next(last) for at in range(count)]


def _checked(ending: Ending, constraints: Constraints, node: int) -> Ending:
    """``ending`` with the constraints that it does not meet."""
    return dataclasses.replace(ending, unmet=constraints.unmet(node), lacking=constraints.needed(node) > 0)
