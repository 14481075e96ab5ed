"""Find candidate translations: search, search again if banned phrases occur, flag errors, and choose candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headway.decode import (
    DecodingOptions,
    Hypothesis,
    Request,
    SearchFunction,
    SearchModel,
    SearchVocabulary,
    give_way,
)
from headway.decode.request import check_request
from headway.errors import ConfigError
from headway.hardware import return_freed_memory
from headway.predict.phrases import WordPhrase, alternatives_to_include, contains_any_phrase, find_phrase
from headway.predict.results import Candidate, GlossaryTerm, Source
from headway.predict.translation.plan import CallSettings, PartRequest
from headway.predict.translation.quality import find_flags, has_only_unknown_tokens, sort_flags
from headway.text.base import BOS, EOS, PAD, UNK, TextTokenizer

_LOGITS_IN_MEMORY = 1 << 24  # maximum number of logits in a decoding step: sentences x beam x vocabulary
# Minimum number of parts for returning freed memory to the system, because this takes as long as a short search.
_MANY = 512
_RESPELLINGS = 4  # maximum number of repeated searches because a banned phrase appeared in another tokenization

_Search = Callable[[Sequence[Request], DecodingOptions], list[list[Hypothesis]]]


@dataclass(frozen=True)
class CandidateFinder:
    """Finds the candidate translations for one call to a translator.

    Attributes:
        settings: The model, and the options that were resolved for it.
        model: The model in the form that is used for searches.
        search: The search function.
        max_constraint_cost: The cost of a constraint above which candidates get the flag ``forced``; see
            :mod:`headway.predict.translation.quality`. None means that the flag is never set and no cost is computed.
    """

    settings: CallSettings
    model: SearchModel[Any]
    search: SearchFunction
    max_constraint_cost: float | None = None

    def find(self, parts: Sequence[PartRequest]) -> list[list[Candidate]]:
        """Return at most ``n_best`` candidates for each part, best first, or none if the options exclude every target.

        If one hypothesis is much more probable than the rest, the search finishes few others. If this hypothesis is
        flagged, the search is repeated with ``n_best`` set to the beam size, to find a candidate without flags.
        """
        parts, search, decoding = list(parts), self._searcher(), self.settings.decoding
        hypotheses = search([part.request for part in parts], decoding)
        if any(part.source.banned for part in parts):
            self._search_again_for_banned_phrases(parts, hypotheses, search)
        candidates: list[list[Candidate]] = []
        for part, of_part in zip(parts, hypotheses, strict=True):
            candidates.append(self._choose(part, of_part))
        beam = decoding.beam_size
        if self.settings.avoid_flagged and decoding.sampling is None and decoding.n_best < beam:
            flagged = [bool(of_part) and of_part[0].flags not in ((), ("fell_back",)) for of_part in candidates]
            few = [index for index, of_part in enumerate(hypotheses) if flagged[index] and len(of_part) < beam]
            more = search([parts[index].request for index in few], decoding.model_copy(update={"n_best": beam}))
            for index, of_part in zip(few, more, strict=True):
                candidates[index] = self._choose(parts[index], of_part)
        if self.max_constraint_cost is not None:
            self._flag_forced(parts, hypotheses, candidates, search, self.max_constraint_cost)
        if len(parts) > _MANY:
            return_freed_memory()  # batches of many shapes fragment the heap
        return candidates

    def _flag_forced(
        self,
        parts: Sequence[PartRequest],
        hypotheses: Sequence[Sequence[Hypothesis]],
        candidates: list[list[Candidate]],
        search: _Search,
        max_cost: float,
    ) -> None:
        """Add the flag ``forced`` to the candidates of parts whose constraints cost more than ``max_cost``."""
        constrained = [index for index, part in enumerate(parts) if part.request.include and hypotheses[index]]
        requests = [replace(parts[index].request, include=(), boundaries=None) for index in constrained]
        free = search(requests, self.settings.decoding.model_copy(update={"n_best": 1}))
        for index, best in zip(constrained, free, strict=True):
            if not best:
                continue
            unmet = [kind for kind, _ in _violations(self._candidate(parts[index], best[0])) if kind != "banned"]
            cost = best[0].log_probability - hypotheses[index][0].log_probability
            if unmet and cost > max_cost * len(unmet):
                candidates[index] = [
                    replace(candidate, flags=sort_flags((*candidate.flags, "forced")))
                    for candidate in candidates[index]
                ]

    def _search_again_for_banned_phrases(
        self, parts: list[PartRequest], hypotheses: list[list[Hypothesis]], search: _Search
    ) -> None:
        """Search again for parts whose hypotheses contain banned phrases, and replace their requests and hypotheses."""
        decoding = self.settings.decoding
        for _ in range(_RESPELLINGS):
            again = {
                index: request
                for index, (part, of_part) in enumerate(zip(parts, hypotheses, strict=True))
                if part.source.banned and (request := self._respelled(part, of_part[: decoding.n_best]))
            }
            for index, of_part in zip(again, search(list(again.values()), decoding), strict=True):
                if of_part:  # otherwise keep the earlier hypotheses; their candidates list the banned phrases
                    hypotheses[index] = of_part
                    parts[index] = replace(parts[index], request=again[index])

    def _respelled(self, part: PartRequest, hypotheses: Sequence[Hypothesis]) -> Request | None:
        """Return a request that also bans the tokenizations in which banned phrases occurred in the hypotheses.

        A phrase has many tokenizations. If the usual tokenization is banned, a search often uses another one. Returns
        None if no banned phrase occurred, or if a phrase to include contains one of these tokenizations.
        """
        tokenizer, start = self.settings.bundle.target_tokenizer, len(part.request.prefix)
        tokenizations: dict[tuple[int, ...], None] = {}
        for hypothesis in hypotheses:
            tokens = hypothesis.tokens[start:]
            for phrase in map(WordPhrase.parse, part.source.banned):
                if phrase.occurs_in(tokenizer.decode(tokens)) and (ids := find_phrase(tokens, phrase.text, tokenizer)):
                    tokenizations[ids] = None
        request = replace(part.request, banned=(*part.request.banned, *tokenizations))
        try:
            check_request(request, self.settings.decoding, EOS)
        except ConfigError:
            return None
        return request if tokenizations else None

    def _choose(self, part: PartRequest, hypotheses: Sequence[Hypothesis]) -> list[Candidate]:
        """Return the best candidates. With ``avoid_flagged``, the most probable candidate without flags comes first."""
        decoding = self.settings.decoding
        n_best = decoding.n_best
        if not hypotheses:
            return []
        if decoding.sampling is not None and part.glossary_entries:  # samples with the fewest violations come first
            hypotheses = sorted(hypotheses, key=lambda hypothesis: len(_violations(self._candidate(part, hypothesis))))
        best = self._candidate(part, hypotheses[0])
        if not (self.settings.avoid_flagged and best.flags):
            return [best, *(self._candidate(part, hypothesis) for hypothesis in hypotheses[1:n_best])]
        # Hypotheses that were cut off get a flag, and only a candidate without flags can replace the best candidate.
        needed = [hypothesis for rank, hypothesis in enumerate(hypotheses) if rank < n_best or hypothesis.finished]
        candidates = [best, *(self._candidate(part, hypothesis) for hypothesis in needed[1:])]
        # The most probable candidate without flags whose violations are all also violations of the best candidate.
        allowed = _violations(best)
        sound = next((other for other in candidates if not other.flags and _violations(other) <= allowed), None)
        if sound is not None:
            others = [candidate for candidate in candidates if candidate is not sound]
            candidates = [replace(sound, flags=("fell_back",)), *others]
        return candidates[:n_best]

    def _candidate(self, part: PartRequest, hypothesis: Hypothesis) -> Candidate:
        give_way()
        tokenizer, forced = self.settings.bundle.target_tokenizer, len(self.settings.special_tokens.target_prefix)
        tokens, log_probs = hypothesis.tokens[forced:], hypothesis.token_log_probabilities[forced:]
        text, source = tokenizer.decode(tokens), part.source
        if source.include or part.glossary_entries:
            text = text.strip(" ")  # the target may begin with a phrase and the space before the phrase
        terms = [
            GlossaryTerm(entry.source, entry.targets, contains_any_phrase(tokenizer, text, entry.accepted_targets))
            for entry in part.glossary_entries or ()
        ]
        after_prefix = tokenizer.decode(hypothesis.tokens[len(part.request.prefix) :]) if source.banned else ""
        return Candidate(
            text=text,
            score=hypothesis.score,
            log_probability=sum(log_probs) if forced else hypothesis.log_probability,
            tokens=tuple(tokenizer.display(tokens)),
            token_log_probabilities=log_probs,
            ids=tuple(tokens),
            flags=find_flags(
                *(self.settings.bundle.normalized(source.text), text, part.source_ids, tokens),
                finished=hypothesis.finished,
                languages_differ=self.settings.languages_differ,
                source_is_unknown=has_only_unknown_tokens(part.source_ids, self.settings.bundle.source_tokenizer),
            ),
            unmet=self._unmet(source, text) if source.include else (),
            banned=tuple(phrase for phrase in source.banned if WordPhrase.parse(phrase).occurs_in(after_prefix)),
            glossary=None if part.glossary_entries is None else tuple(terms),
        )

    def _unmet(self, source: Source, text: str) -> tuple[str, ...]:
        groups, tokenizer = alternatives_to_include(source), self.settings.bundle.target_tokenizer
        return tuple(group[0] for group in groups if not contains_any_phrase(tokenizer, text, group))

    def _searcher(self) -> _Search:
        """Return a function that searches for the best hypotheses of requests, in batches of similar length."""
        tokenizer, decoding = self.settings.bundle.target_tokenizer, self.settings.decoding
        rows = max(decoding.beam_size, decoding.n_best)
        if decoding.beam_size > tokenizer.vocab_size:
            raise ConfigError(
                f"beam size {decoding.beam_size}: expected 1 to the vocabulary size, {tokenizer.vocab_size}"
            )
        return partial(
            self.search,
            self.model,
            vocabulary=search_vocabulary(tokenizer),
            max_batch_tokens=self.settings.max_batch_tokens,
            max_sequences=max(1, _LOGITS_IN_MEMORY // (rows * tokenizer.vocab_size)),
        )


def search_vocabulary(tokenizer: TextTokenizer) -> SearchVocabulary:
    """Return the special tokens of a search for translations, which never contain language tags."""
    return SearchVocabulary(BOS, EOS, banned=(PAD, BOS, UNK, *(tokenizer.tag_id(tag) for tag in tokenizer.tags)))


def _violations(candidate: Candidate) -> set[tuple[str, str]]:
    """Return the phrases and glossary entries that a candidate violates, each with the kind of requirement."""
    terms = [term.source for term in candidate.glossary or () if not term.met]
    named = {"include": candidate.unmet, "banned": candidate.banned, "glossary": terms}
    return {(name, phrase) for name, phrases in named.items() for phrase in phrases}
