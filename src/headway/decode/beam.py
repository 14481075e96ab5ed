"""Beam search, in a form that includes greedy search, diverse beam search and sampling.

Sequences enter the search, advance together by one token per step, and leave when they are finished. The paper (section
6.1) searches with a beam of 4, a length penalty of 0.6 (Wu et al. 2016, section 7) and at most input length + 50
tokens.

Each sequence has G groups of W hypotheses. Plain beam search has one group, greedy search one group of one hypothesis,
diverse beam search several groups, sampling one group of one hypothesis per draw. A step extends the hypotheses by one
token and keeps W extensions of each group. A hypothesis is finished when it ends with EOS, or when the request's own
stopping rule ends it; the others continue. When a sequence reaches its length limit, its hypotheses are forced to end.
A finished sequence leaves the batch, and new sequences may enter between any two steps.

A group stops when one of these conditions is met, depending on the option ``stopping``:

    exact   No hypothesis is left, or none can become better than the finished ones. A hypothesis can only lose
            probability, so its log-probability divided by the length penalty at the limit is an upper bound of its
            score.
    first   W hypotheses are finished, as in other toolkits. Until then, the beam keeps W hypotheses: a step considers
            the 2 W best extensions, finishes those of the first W that end, and continues with the W best that do not
            end.

Stopping at the first W finished hypotheses loses good translations: if the model is certain of one hypothesis, the rest
of the beam is noise, and W noisy hypotheses may end before the good one.

A step consists of tensor operations. Only the scores are copied to the host, once per step, to find the sequences that
are finished.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.decode import rules
from headway.decode.constraints import Constraints, extend_constrained
from headway.decode.finishing import EndedRows, Ending, FinishedHypotheses
from headway.decode.inference import in_inference_mode
from headway.decode.protocol import SearchModel, StateT, Step, nan_error
from headway.decode.ranking import (
    Extensions,
    NextTokens,
    TokenScores,
    extend_best,
    extend_diverse,
    merge_rows,
    topk_ordered,
)
from headway.decode.request import (
    DecodingOptions,
    Hypothesis,
    NextToken,
    Request,
    SearchVocabulary,
    check_request,
    target_limit,
)
from headway.decode.sampling import draw_tokens, sampling_keys
from headway.decode.trace import StepRecorder
from headway.errors import ConfigError

_Array = npt.NDArray[Any]
_NOTHING = -1  # pads shorter hypotheses


class _Beam:
    """One request in the search: its progress and its finished hypotheses."""

    def __init__(
        self, key: int, request: Request, options: DecodingOptions, groups: int, width: int, banned: Sequence[int]
    ) -> None:
        self.key = key
        self.request = request
        self.limit = target_limit(request, options)
        self.finished = FinishedHypotheses(request, options, groups, width)
        self.sampling_keys = sampling_keys(request, options.sampling, groups) if options.sampling else []
        self.constraints = Constraints(request.include, banned, request.boundaries) if request.include else None
        self.length = 0  # number of tokens of each hypothesis so far
        self.top_tokens_per_step: list[tuple[NextToken, ...]] = []  # filled only if the request asks for the top tokens

    @property
    def left(self) -> int:
        """Number of tokens that may still be added to the hypotheses."""
        return self.limit - self.length

    @property
    def forced(self) -> int:
        """The next token of the request's prefix; -1 if there is none."""
        return self.request.prefix[self.length] if self.length < len(self.request.prefix) else _NOTHING


class BeamSearch(Generic[StateT]):
    """The search for the targets of a changing set of sequences, with one model and one set of options.

    B sequences have R = B * G * W rows.

    Attributes:
        recorder: Records the steps of a search for a single sequence, if it is set before the first step.
    """

    recorder: StepRecorder | None = None

    def __init__(self, model: SearchModel[StateT], options: DecodingOptions, vocabulary: SearchVocabulary) -> None:
        self.model = model
        self.options = options
        self.vocabulary = vocabulary
        self.groups, self.width = options.groups, options.beam_size // options.groups
        # Number of extensions that a step considers in each group.
        self._considered = self.width if options.stopping == "exact" else 2 * self.width
        # Diverse beam search may penalize up to beam_size candidates of a row, so each row needs beam_size more.
        self._top_k: int | None = self._considered + (options.beam_size if options.groups > 1 else 0)
        if options.sampling is not None:
            self.groups, self.width, self._considered = options.n_best, 1, 1
            self._top_k = options.sampling.top_k  # None means all tokens
        self.beams: list[_Beam] = []
        self._state: StateT
        self._reset()

    def _reset(self) -> None:
        device = self.model.device
        self.scores: Float[Tensor, "B G W"] = torch.zeros(0, self.groups, 1, device=device)  # -inf marks an empty slot
        self._newest = torch.empty(0, dtype=torch.long, device=device)  # (R,), each row's last token
        # Tokens are right-aligned, because sequences enter at different times.
        self._tokens: Int[Tensor, "R T"] = torch.empty(0, 0, dtype=torch.long, device=device)
        self._log_probs: Float[Tensor, "R T"] = torch.empty(0, 0, device=device)
        self._coverage: Float[Tensor, "R S"] | None = None  # the sum of all attention to each source position
        self._nodes: Int[Tensor, "B G W"] | None = None  # the state of the constraints
        self._banned_sequences: rules.BannedSequences | None = None

    @property
    def rows_per_sequence(self) -> int:
        """Number of rows of each sequence."""
        return self.options.rows_per_sequence

    @in_inference_mode
    def add_requests(self, requests: Iterable[tuple[int, Request]]) -> None:
        """Add requests to the search, each with a key under which :meth:`step` returns its hypotheses.

        Raises:
            ConfigError: A request is impossible, or incompatible with the options.
        """
        requests = list(requests)
        for _, request in requests:
            check_request(request, self.options, self.vocabulary.eos)
        if not requests:
            return
        sources = [request.source for _, request in requests]
        if self.beams:
            self.model.admit(self._state, sources)
        else:  # the first step needs only one row per group, because the hypotheses of a group are still equal
            self._reset()
            self._state = self.model.start(sources, beams=self.groups)
        self.beams += [
            _Beam(key, request, self.options, self.groups, self.width, self.vocabulary.banned)
            for key, request in requests
        ]
        scores = self.scores.new_full((len(requests), self.groups, self.scores.size(2)), -torch.inf)
        scores[:, :, 0] = 0
        rows, length = scores.numel(), self._tokens.size(1)
        self.scores = torch.cat([self.scores, scores])
        bos = self.vocabulary.bos
        first = self._tensor([bos if request.first_token is None else request.first_token for _, request in requests])
        self._newest = torch.cat([self._newest, first.repeat_interleave(rows // len(requests))])
        self._tokens = torch.cat([self._tokens, self._tokens.new_full((rows, length), _NOTHING)])
        self._log_probs = torch.cat([self._log_probs, self._log_probs.new_zeros(rows, length)])
        if self._coverage is not None:
            self._coverage = F.pad(self._coverage, (0, 0, 0, rows))
        if self._nodes is not None:
            self._nodes = F.pad(self._nodes, (0, 0, 0, 0, 0, len(requests)))
        elif any(request.include for _, request in requests):
            self._nodes = torch.zeros(self.scores.shape, dtype=torch.long, device=self.scores.device)
        self._banned_sequences = None

    @in_inference_mode
    def step(self) -> list[tuple[int, list[Hypothesis]]]:
        """Extend every sequence by one token. Return the keys and hypotheses of the sequences that are now finished.

        Raises:
            ConfigError: The model does not support an option, such as the coverage penalty.
            BundleError: The model's probabilities are NaN.
        """
        if not self.beams:
            return []
        step = self.model.step(self._state, self._newest, attention=self.options.coverage_penalty > 0)
        if self.options.coverage_penalty:
            self._cover(step.attention)
        if any(beam.request.alternatives for beam in self.beams):
            self._record_top_tokens(step)
        has_rules = self._sequences_with_rules()
        chosen, natural = self._extend_by_rules(step, has_rules) if any(has_rules) else self._extend_by_top_tokens(step)
        if self.vocabulary.extra_eos_ids:
            ends = torch.isin(chosen.tokens, self._tensor(self.vocabulary.extra_eos_ids))
            chosen = dataclasses.replace(chosen, tokens=chosen.tokens.masked_fill(ends, self.vocabulary.eos))
        ended = self._finish(chosen, natural)
        if self.recorder is not None:
            self.recorder.record(step, self._tokens, self.scores, chosen, ended)
        if ended is not None:
            chosen = dataclasses.replace(chosen, scores=chosen.scores.masked_fill(ended, -torch.inf))
        if self._considered > self.width:
            # Extensions are sorted by score unless some have ended.
            chosen = chosen.first(self.width) if ended is None else chosen.best(self.width)
        done = [beam.finished.is_complete for beam in self.beams]
        finished = [
            (beam.key, beam.finished.best(tuple(beam.top_tokens_per_step))) for beam in compress(self.beams, done)
        ]
        self._follow(chosen, _keep_places([number for number, is_done in enumerate(done) if not is_done]))
        return finished

    def open_hypotheses(self, key: int) -> list[Hypothesis]:
        """Return the hypotheses that are not finished, best first, for the request with this key."""
        sequence, beam = next((index, beam) for index, beam in enumerate(self.beams) if beam.key == key)
        scores = self.scores[sequence].flatten().tolist()
        rows = slice(sequence * len(scores), (sequence + 1) * len(scores))
        first = self._tokens.size(1) - beam.length
        tokens, log_probs = self._tokens[rows, first:].tolist(), self._log_probs[rows, first:].tolist()
        ranked = sorted(zip(scores, tokens, log_probs, strict=True), key=lambda row: -row[0])
        return [
            Hypothesis(
                tokens=tuple(token_ids),
                log_probability=math.fsum(token_log_probs),
                score=score,
                token_log_probabilities=tuple(token_log_probs),
                finished=False,
                top_tokens_per_step=tuple(beam.top_tokens_per_step),
            )
            for score, token_ids, token_log_probs in ranked
            if score > -math.inf
        ]

    @in_inference_mode
    def remove(self, keys: Collection[int]) -> None:
        """Stop searching for the requests with these keys."""
        kept = _keep_places([number for number, beam in enumerate(self.beams) if beam.key not in keys])
        if len(kept) == len(self.beams):
            return
        self.beams = [self.beams[number] for number in kept]
        if not kept:
            return
        index, rows_per_sequence = self._tensor(kept), self.scores[0].numel()
        rows = (index.unsqueeze(1) * rows_per_sequence + torch.arange(rows_per_sequence, device=index.device)).flatten()
        self.scores, self._newest = self.scores[index], self._newest[rows]
        self._nodes = None if self._nodes is None else self._nodes[index]
        self._banned_sequences = None
        self._select_rows(rows, index)
        self._trim()

    # Turn the model's predictions into extensions.

    def _cover(self, attention: Float[Tensor, "R S"] | None) -> None:
        if attention is None:
            raise ConfigError(
                f"coverage_penalty = {self.options.coverage_penalty}: this {type(self.model).__name__} does not return "
                "attention weights, because it, or a member of an ensemble, has no attention; remove coverage_penalty"
            )
        if self._coverage is None:
            self._coverage = torch.zeros_like(attention)
        # New sequences may be longer than the current ones, and the longest sequence may have left the batch.
        missing = attention.size(1) - self._coverage.size(1)
        self._coverage = F.pad(self._coverage, (0, missing)) + attention

    def _record_top_tokens(self, step: Step) -> None:
        """Record the most probable tokens for each request that asks for them. Each such request has a single row."""
        top = step.top_k(max(beam.request.alternatives for beam in self.beams), (), self.vocabulary.eos)
        for beam, tokens, log_probs in zip(self.beams, top.tokens.tolist(), top.log_probs.tolist(), strict=True):
            best = list(map(NextToken, tokens, log_probs))[: beam.request.alternatives]
            beam.top_tokens_per_step.append(tuple(best))

    def _sequences_with_rules(self) -> list[bool]:
        """Return for each sequence whether its extensions depend on the logits of all tokens in this step.

        They do if a rule other than the minimum length applies to the sequence, or if any token may be drawn.
        """
        if self._top_k is None or self.options.repetition_penalty > 1 or self.options.no_repeat_ngram:
            return [True] * len(self.beams)
        return [
            beam.length < len(beam.request.prefix) or bool(beam.request.banned or beam.request.include)
            for beam in self.beams
        ]

    def _extend_by_top_tokens(self, step: Step) -> tuple[Extensions, Bool[Tensor, " R"] | None]:
        """Choose extensions among each row's top tokens. Return them and the mask from :meth:`_candidates`."""
        assert self._top_k is not None
        top = self._ranked(step, self._top_k)
        candidates, natural = self._candidates(top, top.log_probs)
        return self._extend(candidates), natural

    def _ranked(self, step: Step, count: int) -> NextTokens:
        """Return the ``count`` top tokens of each row.

        For a sequence that may not end yet, EOS is treated as one more banned token, which needs no rule on all logits.
        """
        short = [beam.length < self.options.min_length for beam in self.beams]
        banned, eos = self.vocabulary.banned, self.vocabulary.eos
        if not any(short):
            return step.top_k(count, banned, eos)
        without_ends = step.top_k(count, (*banned, *self.vocabulary.ends), eos)
        return without_ends if all(short) else self._merged(short, without_ends, step.top_k(count, banned, eos))

    def _merged(self, where: Sequence[bool], one: NextTokens, other: NextTokens) -> NextTokens:
        """Return the rows of ``one`` for the sequences where ``where`` is True, and of ``other`` for the rest."""
        return merge_rows(self._tensor(where).repeat_interleave(len(one.tokens) // len(where)), one, other)

    def _extend_by_rules(self, step: Step, has_rules: Sequence[bool]) -> tuple[Extensions, Bool[Tensor, " R"] | None]:
        """Apply the rules to the logits of all tokens, and choose extensions.

        Sequences whose ``has_rules`` is False get the same candidates as in a batch without rules. Returns the
        extensions and the mask from :meth:`_candidates`.
        """
        top = None if self._top_k is None or all(has_rules) else self._ranked(step, self._top_k)
        logits = self._allowed_logits(step)
        log_probs = logits.log_softmax(-1)
        gains = self._apply_rules(logits, log_probs)
        values, by_rules = self._top_by_gain(gains, log_probs)
        if top is not None:
            values = self._merged(has_rules, dataclasses.replace(by_rules, log_probs=values), top).log_probs
            by_rules = self._merged(has_rules, by_rules, top)
        candidates, natural = self._candidates(by_rules, values)
        chosen = self._extend(candidates)
        if self._nodes is not None:
            constraints, left = [beam.constraints for beam in self.beams], [beam.left for beam in self.beams]
            chosen = extend_constrained(
                *(chosen, constraints, left, self._nodes, self.scores, candidates, gains, log_probs),
                width=self.width,
                eos=self.vocabulary.eos,
            )
        return chosen, natural

    def _allowed_logits(self, step: Step) -> Float[Tensor, "R V"]:
        """Return the logits of all tokens, with -inf for tokens outside a sequence's shortlist.

        A sequence with a forced next token or with phrases to include may use the whole vocabulary.
        """
        logits, allowed = step.logits().float(), step.allowed()
        if allowed is None:
            return logits
        whole = [beam.forced >= 0 or bool(beam.request.include) for beam in self.beams]
        open_rows = (allowed | self._tensor(whole).unsqueeze(1)).repeat_interleave(len(logits) // len(whole), 0)
        return logits.masked_fill(~open_rows, -torch.inf)

    def _top_by_gain(
        self, gains: Float[Tensor, "R V"], log_probs: Float[Tensor, "R V"]
    ) -> tuple[Float[Tensor, "R C"], NextTokens]:
        """Return the largest gains of each row and their tokens, or the gains of all tokens if any may be drawn."""
        eos_log_probs = log_probs[:, self.vocabulary.eos]
        if self._top_k is None:
            tokens = torch.arange(gains.size(1), device=gains.device).expand(gains.shape)
            return gains, NextTokens(tokens, log_probs, eos_log_probs)
        count = self._top_k + int(self._nodes is not None)  # one more, because constraints may forbid EOS
        values, tokens = topk_ordered(gains, min(count, gains.size(1)))
        return values, NextTokens(tokens, log_probs.gather(1, tokens), eos_log_probs)

    def _apply_rules(self, logits: Float[Tensor, "R V"], log_probs: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Apply all rules. Return how much each token adds to the score of its hypothesis."""
        options, beams = self.options, self.beams
        rows_each = len(logits) // len(beams)
        missing = self._tensor([self._tokens.size(1) - beam.length for beam in beams]).repeat_interleave(rows_each)
        columns = torch.arange(self._tokens.size(1), device=missing.device)
        prefixes = self._tokens.masked_fill(columns < missing.unsqueeze(1), _NOTHING)
        gains = log_probs
        if options.repetition_penalty > 1:
            gains = rules.penalize_repetition(logits, prefixes, options.repetition_penalty).log_softmax(-1)
        gains = rules.ban_tokens(gains, self.vocabulary.banned)
        if options.no_repeat_ngram:
            gains = rules.ban_repeated_ngrams(gains, prefixes, options.no_repeat_ngram)
        if any(beam.request.banned for beam in beams):
            if self._banned_sequences is None:
                banned = [beam.request.banned for beam in beams]
                self._banned_sequences = rules.BannedSequences(banned, self.scores.device)
            gains = self._banned_sequences.ban(gains, prefixes)
        short = [beam.length < options.min_length for beam in beams]
        if any(short):
            gains = self._ban_ends(gains, short, self.vocabulary.ends)
        if self.vocabulary.extra_eos_ids and self._nodes is not None:  # unmet phrases prevent only EOS
            gains = self._ban_ends(
                gains, [beam.constraints is not None for beam in beams], self.vocabulary.extra_eos_ids
            )
        forced = [beam.forced for beam in beams]
        if max(forced) >= 0:
            gains = rules.force_tokens(gains, self._tensor(forced).repeat_interleave(rows_each))
        return gains

    def _ban_ends(
        self, gains: Float[Tensor, "R V"], where: Sequence[bool], ends: Sequence[int]
    ) -> Float[Tensor, "R V"]:
        """Ban the tokens ``ends`` in the sequences where ``where`` is True."""
        rows = self._tensor(where).repeat_interleave(len(gains) // len(where))
        for end in ends:
            gains = rules.ban_eos(gains, rows, end)
        return gains

    def _candidates(
        self, found: NextTokens, gains: Float[Tensor, "R C"]
    ) -> tuple[TokenScores, Bool[Tensor, " R"] | None]:
        """Return the candidates and a mask of the rows that would choose EOS on their own.

        At its length limit a sequence has EOS as its only candidate. The mask is None if no sequence is at its limit.
        """
        shape = self.scores.shape
        candidates = TokenScores(*(torch.unflatten(x, 0, shape) for x in (gains, found.log_probs, found.tokens)))
        full = [beam.left < 1 for beam in self.beams]
        if not any(full):
            return candidates, None
        best = candidates.tokens.gather(3, candidates.gains.argmax(3, keepdim=True)).flatten()
        natural = torch.isin(best, self._tensor(self.vocabulary.ends))
        eos_log_probs = torch.unflatten(found.eos_log_prob, 0, shape)
        return candidates.with_only_eos(self.vocabulary.eos, eos_log_probs, self._tensor(full)), natural

    def _extend(self, candidates: TokenScores) -> Extensions:
        """Choose the extensions to consider in each group, best first."""
        options = self.options
        if options.sampling is not None:
            keys, positions = [beam.sampling_keys for beam in self.beams], [beam.length for beam in self.beams]
            return draw_tokens(self.scores, candidates, keys, positions, options.sampling)
        if options.groups > 1:
            return extend_diverse(self.scores, candidates, self._considered, options.diversity, self.width)
        return extend_best(self.scores, candidates, self._considered)

    # Turn extensions into finished hypotheses.

    def _ended_by_request(self, chosen: Extensions, unfinished: _Array) -> _Array:
        """Return a mask of the ``unfinished`` extensions (B, G, C) that their request's stopping rule ends."""
        asked = np.array([beam.request.should_end is not None for beam in self.beams])
        where = (unfinished & asked[:, None, None]).nonzero()
        index = self._index(where)
        extended = torch.cat([self._tokens[self._rows(chosen)[index]], chosen.tokens[index].unsqueeze(1)], 1)
        ended = np.zeros_like(unfinished)
        for number, group, choice, tokens in zip(*where, extended.tolist(), strict=True):
            beam = self.beams[number]
            assert beam.request.should_end is not None
            ended[number, group, choice] = beam.request.should_end(tokens[len(tokens) - beam.length - 1 :])
        return ended

    def _finish(self, chosen: Extensions, natural: Bool[Tensor, " R"] | None) -> Bool[Tensor, "B G C"] | None:
        """Store the extensions that end as finished hypotheses, and close the groups that are done.

        Returns a mask of the extensions that end, or None if no extension ends.
        """
        read = [chosen.scores, chosen.tokens.to(chosen.scores)]  # floats represent token ids exactly
        if self._coverage is not None:
            read.append(self._coverage_penalties().gather(2, chosen.parents))
        scores, tokens, *penalties = torch.stack(read).numpy(force=True)
        if np.isnan(scores[:, :, 0]).any():
            raise nan_error(self.model, self._state)
        is_possible = scores > -np.inf
        has_ended = is_possible & (tokens == self.vocabulary.eos)
        if any(beam.request.should_end is not None for beam in self.beams):
            has_ended |= self._ended_by_request(chosen, is_possible & ~has_ended)
        self._close_groups(chosen, scores, has_ended, penalties, natural)
        return torch.from_numpy(has_ended).to(self.scores.device) if has_ended.any() else None

    def _close_groups(
        self,
        chosen: Extensions,
        scores: _Array,
        has_ended: _Array,
        penalties: Sequence[_Array],
        natural: Bool[Tensor, " R"] | None,
    ) -> None:
        """Collect the extensions where ``has_ended`` is True, and close the groups that can no longer improve."""
        where = has_ended[:, :, : self.width].nonzero()
        if len(where[0]):
            self._collect(chosen, where, scores[where], penalties[0][where] if penalties else None, natural)
        elif np.isfinite(scores[:, :, 0]).all() and not any(beam.finished.has_any for beam in self.beams):
            return  # every group has only unfinished hypotheses
        # The score of each group's best extension that does not end, or -inf if all extensions end.
        first = has_ended.argmin(2, keepdims=True)
        unfinished = np.take_along_axis(np.where(has_ended, -np.inf, scores), first, 2)[:, :, 0].tolist()
        may_repeat = bool(self.vocabulary.extra_eos_ids)
        for beam, best_of_groups in zip(self.beams, unfinished, strict=True):
            for group, best in enumerate(best_of_groups):
                beam.finished.update_group(group, best, may_repeat=may_repeat)

    def _collect(
        self,
        chosen: Extensions,
        where: tuple[_Array, ...],
        totals: _Array,
        penalties: _Array | None,
        natural: Bool[Tensor, " R"] | None,
    ) -> None:
        """Add the extensions at ``where`` (sequence, group, extension) to the finished hypotheses of their groups."""
        index = self._index(where)
        rows = self._rows(chosen)[index]
        last = chosen.tokens[index]
        tokens = torch.cat([self._tokens[rows], last.unsqueeze(1)], dim=1)
        log_probs = torch.cat([self._log_probs[rows], chosen.log_probs[index].unsqueeze(1)], dim=1)
        ended = EndedRows(tokens, log_probs, None if natural is None else natural[rows])
        nodes = [0] * len(totals) if chosen.nodes is None else chosen.nodes[index].tolist()
        coverages = [0.0] * len(totals) if penalties is None else penalties.tolist()
        with_eos = [True] * len(totals)
        if any(beam.request.should_end is not None for beam in self.beams):
            with_eos = (last == self.vocabulary.eos).tolist()
        places = zip(where[0].tolist(), where[1].tolist(), totals.tolist(), coverages, nodes, with_eos, strict=True)
        for row, (sequence, group, total, coverage, node, has_eos) in enumerate(places):
            beam = self.beams[sequence]
            score = total / beam.finished.length_penalty(beam.length + 1) + coverage
            unmet = beam.constraints.unmet(node) if beam.constraints else ()
            incomplete = beam.constraints is not None and beam.constraints.num_needed_tokens(node) > 0
            ending = Ending(ended, row, beam.length, has_eos, score, coverage, beam.left < 1, unmet, incomplete)
            beam.finished.add(group, ending)

    def _coverage_penalties(self) -> Float[Tensor, "B G W"]:
        """Return the weighted sum over source positions of log min(coverage, 1) (Wu et al. 2016, equation 14)."""
        assert self._coverage is not None
        lengths = self._tensor([len(beam.request.source) for beam in self.beams])
        lengths = lengths.repeat_interleave(len(self._coverage) // len(self.beams))
        real = torch.arange(self._coverage.size(1), device=lengths.device) < lengths.unsqueeze(1)
        shares = self._coverage.clamp(min=torch.finfo(self._coverage.dtype).tiny, max=1).log()
        return self.options.coverage_penalty * shares.masked_fill(~real, 0.0).sum(1).view_as(self.scores)

    # Move on to the next step.

    def _follow(self, chosen: Extensions, kept: Sequence[int]) -> None:
        """Continue with the ``chosen`` extensions of the ``kept`` sequences."""
        if not kept:
            self.beams = []
            return
        everyone = len(kept) == len(self.beams)
        rows, scores, tokens, log_probs = self._rows(chosen), chosen.scores, chosen.tokens, chosen.log_probs
        self._nodes, index = chosen.nodes, None
        if not everyone:
            index = self._tensor(kept)
            rows, scores, tokens, log_probs = (x[index] for x in (rows, scores, tokens, log_probs))
            self.beams = [self.beams[number] for number in kept]
            if self._nodes is not None:
                self._nodes = self._nodes[index] if any(beam.constraints for beam in self.beams) else None
            self._banned_sequences = None
        # With a single row per sequence, the order of rows never changes.
        if not (everyone and self.scores.size(2) == scores.size(2) == 1):
            self._select_rows(rows.flatten(), index)
        self.scores, self._newest = scores, tokens.flatten()
        self._tokens = torch.cat([self._tokens, self._newest.unsqueeze(1)], dim=1)
        self._log_probs = torch.cat([self._log_probs, log_probs.flatten().unsqueeze(1)], dim=1)
        for sequence, beam in enumerate(self.beams):
            beam.length += 1
            if beam.finished.closed_groups:
                self.scores[sequence, list(beam.finished.closed_groups)] = -torch.inf
        if not everyone:
            self._trim()

    def _select_rows(self, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None) -> None:
        """Reorder the rows: row i continues the old row ``rows[i]``. Keep only ``sequences``; None keeps all."""
        self.model.reorder_rows(self._state, rows, sequences)
        self._tokens, self._log_probs = self._tokens[rows], self._log_probs[rows]
        self._coverage = None if self._coverage is None else self._coverage[rows]

    def _trim(self) -> None:
        """Drop the leading token columns that are padding in every hypothesis."""
        first = self._tokens.size(1) - max(beam.length for beam in self.beams)
        self._tokens, self._log_probs = self._tokens[:, first:], self._log_probs[:, first:]

    def _rows(self, chosen: Extensions) -> Int[Tensor, "B G C"]:
        """Return the index of the row that each extension continues."""
        sequences, groups, width = self.scores.shape
        first = torch.arange(0, sequences * groups * width, width, device=self.scores.device)
        return first.view(sequences, groups, 1) + chosen.parents

    def _index(self, where: tuple[_Array, ...]) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(axis).to(self.scores.device) for axis in where)

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=self.scores.device)


def _keep_places(kept: list[int]) -> list[int]:
    """Return ``kept`` in an order that moves as few sequences as possible: the last ones fill the gaps."""
    count = len(kept)
    staying = {number for number in kept if number < count}
    last = iter(number for number in kept if number >= count)
    return [number if number in staying else next(last) for number in range(count)]
