"""What may come next after each prefix of a batch: the model's probabilities, under the rules of options and requests.

Where no rule is at work in a step, the model ranks the tokens (or :func:`best_of` does), and no row of probabilities
over the vocabulary is ever made. Most rules come and go: a forced prefix and a minimum length rule a sentence's first
steps only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.decode import rules
from headway.decode.batch import Batch
from headway.decode.extension import Ranked
from headway.decode.options import DecodingOptions
from headway.decode.protocol import Best, RankingModel, RestrictedModel, SearchModel, StateT, attends, best_of
from headway.decode.ranking import top
from headway.errors import ConfigError

__all__ = ["Ranker", "Ranking"]


@dataclass(frozen=True)
class Ranking:
    """The tokens that may come next.

    Attributes:
        ranked: The best of them.
        natural: Whether each row would end if it did not have to; None where no row must end.
        gains, own: As in ``ranked``, but for every token; None where no rule needed that.
    """

    ranked: Ranked
    natural: Bool[Tensor, " R"] | None
    gains: Float[Tensor, "R V"] | None = None
    own: Float[Tensor, "R V"] | None = None


class Ranker(Generic[StateT]):
    """A model under the rules of the options; ``count`` tokens are ranked, or with None all, in no order."""

    def __init__(
        self,
        model: SearchModel[StateT],
        options: DecodingOptions,
        count: int | None,
        *,
        begin: int,
        end: int,
        forbidden: Sequence[int],
    ) -> None:
        self.model = model
        self.options = options
        self.count = count
        self.begin, self.end, self.forbidden = begin, end, tuple(forbidden)
        # Asked once: to tell by a protocol takes as long as a small tensor operation.
        self._ranking_model = model if isinstance(model, RankingModel) and not options.coverage_penalty else None
        self._restricted_model = model if isinstance(model, RestrictedModel) else None
        if options.coverage_penalty and not attends(model):
            raise ConfigError(
                f"coverage_penalty = {options.coverage_penalty}: this {type(model).__name__} does not tell what it "
                "attends to, as it or a member of it has no attention; leave the penalty out"
            )

    def rank(self, batch: Batch[StateT]) -> Ranking:
        """Advance the model by the newest tokens, and rank what may follow."""
        last = batch.last_tokens(self.begin)
        # Where no sentence may end yet, that is one more forbidden token, and no rule that needs all logits.
        short = all(sentence.length < self.options.min_length for sentence in batch.sentences)
        forbidden = (*self.forbidden, self.end) if short else self.forbidden
        every = self.count is None or self._is_ruled(batch, short)
        gains = own = None
        if every:
            logits = self._restricted(batch, self._logits(batch, last).float())
            own = logits.log_softmax(-1)
            gains = self._ruled(logits, own, batch)
            # One token more, since constraints may forbid the end.
            best = self._best_of_ruled(gains, own, extra=int(batch.nodes is not None))
        elif self._ranking_model is not None:
            best = _Best.of(self._ranking_model.best(batch.state, last, self.count or 0, forbidden))
        else:
            best = _Best.of(best_of(self._logits(batch, last), self.count or 0, forbidden, self.end))
        shape = batch.scores.shape
        ranked = Ranked(*(torch.unflatten(x, 0, shape) for x in (best.gains, best.own, best.tokens)))
        full = [sentence.left < 1 for sentence in batch.sentences]
        if not any(full):
            return Ranking(ranked, None, gains, own)
        natural = ranked.tokens.gather(3, ranked.gains.argmax(3, keepdim=True)).flatten() == self.end
        must = torch.tensor(full, device=ranked.tokens.device)
        return Ranking(ranked.only(self.end, torch.unflatten(best.end, 0, shape), must), natural, gains, own)

    def _logits(self, batch: Batch[StateT], last: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """The model's, and with a coverage penalty the batch's coverage grows by what the model attends to."""
        if not self.options.coverage_penalty:
            return self.model.advance(batch.state, last)
        assert attends(self.model), "checked at the start"
        attended = self.model.advance_attending(batch.state, last)
        batch.cover(attended.attention)
        logits: Tensor = attended.logits
        return logits

    def _restricted(self, batch: Batch[StateT], logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Without what the model would not rank. Only a forced prefix and phrases to include need the whole vocabulary,
        and only for their own sentences."""
        if self._restricted_model is None:
            return logits
        whole = [one.forced is not None or bool(one.request.include) for one in batch.sentences]
        return self._restricted_model.restrict(batch.state, logits, whole)

    def _is_ruled(self, batch: Batch[StateT], short: bool) -> bool:
        """Whether a rule is at work in this step, but for a minimum length that all are ``short`` of."""
        if self.options.repetition_penalty > 1 or self.options.no_repeat_ngram:
            return True
        return any(
            (sentence.length < self.options.min_length and not short)
            or sentence.length < len(sentence.request.prefix)
            or sentence.request.banned
            or sentence.request.include
            for sentence in batch.sentences
        )

    def _ruled(
        self, logits: Float[Tensor, "R V"], own: Float[Tensor, "R V"], batch: Batch[StateT]
    ) -> Float[Tensor, "R V"]:
        """What each token adds to a score, under all rules."""
        options, sentences = self.options, batch.sentences
        each = len(logits) // len(sentences)

        def per_row(values: list[bool] | list[int]) -> Tensor:
            return torch.tensor(values, device=logits.device).repeat_interleave(each)

        gains, prefixes = own, batch.prefixes()
        if options.repetition_penalty > 1:
            gains = rules.penalize_repetition(logits, prefixes, options.repetition_penalty).log_softmax(-1)
        gains = rules.ban_tokens(gains, self.forbidden)
        if options.no_repeat_ngram:
            gains = rules.ban_repeated_ngrams(gains, prefixes, options.no_repeat_ngram)
        if any(sentence.request.banned for sentence in sentences):
            gains = batch.banned_sequences().ban(gains, prefixes)
        short = [sentence.length < options.min_length for sentence in sentences]
        if any(short):
            gains = rules.ban_short(gains, per_row(short), self.end)
        forced = [sentence.forced for sentence in sentences]
        if any(token is not None for token in forced):
            gains = rules.force_tokens(gains, per_row([-1 if token is None else token for token in forced]))
        return gains

    def _best_of_ruled(self, gains: Float[Tensor, "R V"], own: Float[Tensor, "R V"], extra: int) -> _Best:
        if self.count is None:
            tokens = torch.arange(gains.size(1), device=gains.device).expand(gains.shape)
            return _Best(gains, own, tokens, own[:, self.end])
        values, tokens = top(gains, min(self.count + extra, gains.size(1)))
        return _Best(values, own.gather(1, tokens), tokens, own[:, self.end])


@dataclass(frozen=True)
class _Best:
    """Like :class:`Best`, where what a token adds to the score and its log-probability are two things."""

    gains: Float[Tensor, "R C"]
    own: Float[Tensor, "R C"]
    tokens: Int[Tensor, "R C"]
    end: Float[Tensor, " R"]

    @classmethod
    def of(cls, best: Best) -> _Best:
        """No rules: both are one."""
        return cls(best.log_probs, best.log_probs, best.tokens, best.end)
