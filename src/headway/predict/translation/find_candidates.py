"""Find candidate translations: search, search again if banned phrases occur, check for errors, choose, and align."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headway.bundle import Bundle
from headway.decode import (
    DecodingOptions,
    Hypothesis,
    Request,
    SearchFunction,
    SearchModel,
    SearchVocabulary,
    give_way,
    length_batches,
    search_all,
)
from headway.decode.request import check_request
from headway.errors import ConfigError
from headway.hardware import return_freed_memory
from headway.predict.phrases import WordPhrase, alternatives_to_include, contains_any_phrase, find_phrase
from headway.predict.results import Alignment, Candidate, GlossaryTerm, Source
from headway.predict.translation.alignment import attention_maps, hard_alignment
from headway.predict.translation.plan import PartRequest
from headway.predict.translation.quality import find_flags
from headway.text.base import BOS, EOS, PAD, UNK, TextTokenizer
from headway.text.special_tokens import SpecialTokens

_LOGITS_IN_MEMORY = 1 << 24  # maximum number of logits in a decoding step: sentences x beam x vocabulary
# Freed memory is returned to the system only after calls with more parts, because it takes as long as a short search.
_MANY = 512
_RESPELLINGS = 4  # maximum number of repeated searches because a banned phrase appeared in another tokenization

_Search = Callable[[Sequence[Request], DecodingOptions], list[list[Hypothesis]]]


@dataclass(frozen=True)
class CandidateFinder:
    """Finds the candidate translations for one call of the translator.

    Attributes:
        bundle: The model and its tokenizers.
        model: The form of the model that is used for the search.
        options: The options of the search.
        special_tokens: The special tokens around each sentence.
        languages_differ: Whether source and target are known to be in different languages.
        max_batch_tokens: Maximum size of a batch: number of sentences x source tokens.
        avoid_flagged: Whether a flagged best hypothesis is replaced by the most probable one without flags.
        search: The search.
    """

    bundle: Bundle
    model: SearchModel[Any]
    options: DecodingOptions
    special_tokens: SpecialTokens
    languages_differ: bool
    max_batch_tokens: int
    avoid_flagged: bool
    search: SearchFunction = search_all

    def find(self, parts: Sequence[PartRequest]) -> list[list[Candidate]]:
        """Return at most ``n_best`` candidates for each part, best first, or none if the options forbid every target.

        If one hypothesis is much more probable than the rest, the search finishes few others. So that a candidate
        without flags can be found, a part whose best hypothesis is flagged is searched again with ``n_best`` set to the
        beam size.
        """
        parts, search = list(parts), self._searcher()
        hypotheses = search([part.request for part in parts], self.options)
        if any(part.source.banned for part in parts):
            self._search_again_for_banned_phrases(parts, hypotheses, search)
        found: list[list[Candidate]] = []
        for part, each in zip(parts, hypotheses, strict=True):
            give_way()
            found.append(self._choose(part, each))
        beam = self.options.beam_size
        if self.avoid_flagged and self.options.sampling is None and self.options.n_best < beam:
            flagged = [bool(each) and each[0].flags not in ((), ("fell_back",)) for each in found]
            few = [at for at, each in enumerate(hypotheses) if flagged[at] and len(each) < beam]
            more = self.options.model_copy(update={"n_best": beam})
            for at, each in zip(few, search([parts[at].request for at in few], more), strict=True):
                found[at] = self._choose(parts[at], each)
        if len(parts) > _MANY:
            return_freed_memory()  # batches of many shapes fragment the heap
        return found

    def align(
        self,
        parts: Sequence[PartRequest],
        candidates: Sequence[Sequence[Candidate]],
        layer: int | None,
        *,
        keep_attention: bool,
    ) -> list[list[Candidate]]:
        """Add alignments to the candidates of each part, computed from the attention of decoder block ``layer``."""
        tokenizer, special = self.bundle.source_tokenizer, self.special_tokens
        flat = [(part, each) for part, own in zip(parts, candidates, strict=True) for each in own]
        sources, start = [part.request.source for part, _ in flat], len(special.source_prefix)
        alignments: dict[int, Alignment] = {}
        longer = [max(source, candidate.ids, key=len) for source, (_, candidate) in zip(sources, flat, strict=True)]
        for batch in length_batches(longer, self.max_batch_tokens, self.max_batch_tokens):
            targets = [[*special.target_prefix, *flat[at][1].ids] for at in batch]
            maps = attention_maps(self.bundle.model, [sources[at] for at in batch], targets, layer=layer)
            for at, attention in zip(batch, maps, strict=True):
                ids = flat[at][0].source_ids
                own = attention[len(special.target_prefix) :, start : start + len(ids)]
                found = hard_alignment(own, tokenizer.display(ids))
                alignments[at] = found if keep_attention else found.without_attention()
        aligned = iter(replace(each, alignment=alignments[at]) for at, (_, each) in enumerate(flat))
        return [[next(aligned) for _ in own] for own in candidates]

    def _search_again_for_banned_phrases(
        self, parts: list[PartRequest], hypotheses: list[list[Hypothesis]], search: _Search
    ) -> None:
        """Replace the requests and hypotheses of parts whose hypotheses contain banned phrases."""
        for _ in range(_RESPELLINGS):
            again = {
                at: request
                for at, (part, found) in enumerate(zip(parts, hypotheses, strict=True))
                if part.source.banned and (request := self._respelled(part, found[: self.options.n_best]))
            }
            for at, found in zip(again, search(list(again.values()), self.options), strict=True):
                if found:  # otherwise the earlier hypotheses are kept, and their candidates list the banned phrases
                    hypotheses[at] = found
                    parts[at] = replace(parts[at], request=again[at])

    def _respelled(self, part: PartRequest, hypotheses: Sequence[Hypothesis]) -> Request | None:
        """Return a request that also bans the tokenizations in which banned phrases appeared in the hypotheses.

        A phrase has many tokenizations, and a search that may not use the usual one often uses another one. Returns
        None if no banned phrase appeared, or if a phrase to include contains one of these tokenizations.
        """
        tokenizer, start = self.bundle.target_tokenizer, len(part.request.prefix)
        found: dict[tuple[int, ...], None] = {}
        for hypothesis in hypotheses:
            tokens = hypothesis.tokens[start:]
            for phrase in map(WordPhrase.parse, part.source.banned):
                if phrase.occurs_in(tokenizer.decode(tokens)) and (ids := find_phrase(tokens, phrase.text, tokenizer)):
                    found[ids] = None
        request = replace(part.request, banned=(*part.request.banned, *found))
        try:
            check_request(request, self.options, EOS)
        except ConfigError:
            return None
        return request if found else None

    def _choose(self, part: PartRequest, hypotheses: Sequence[Hypothesis]) -> list[Candidate]:
        """Return the best candidates. With ``avoid_flagged``, the most probable candidate without flags comes first."""
        n_best = self.options.n_best
        if not hypotheses:
            return []
        if self.options.sampling is not None and part.glossary_entries:  # samples with the fewest violations come first
            hypotheses = sorted(hypotheses, key=lambda each: len(_violations(self._candidate(part, each))))
        best = self._candidate(part, hypotheses[0])
        if not (self.avoid_flagged and best.flags):
            return [best, *(self._candidate(part, each) for each in hypotheses[1:n_best])]
        # Hypotheses that were cut off get a flag, and only a candidate without flags can replace the best candidate.
        needed = [each for at, each in enumerate(hypotheses) if at < n_best or each.finished]
        every = [best, *(self._candidate(part, each) for each in needed[1:])]
        # The most probable candidate that has no flags, and only violations that the best candidate also has.
        sound = next((each for each in every if not each.flags and _violations(each) <= _violations(best)), None)
        if sound is not None:
            every = [replace(sound, flags=("fell_back",)), *(each for each in every if each is not sound)]
        return every[:n_best]

    def _candidate(self, part: PartRequest, hypothesis: Hypothesis) -> Candidate:
        tokenizer, forced = self.bundle.target_tokenizer, len(self.special_tokens.target_prefix)
        tokens, log_probs = hypothesis.tokens[forced:], hypothesis.token_log_probabilities[forced:]
        text, source = tokenizer.decode(tokens), part.source
        if source.include or part.glossary_entries:
            text = text.strip(" ")  # the search may begin with a phrase and the space before it
        terms = [
            GlossaryTerm(term.source, term.targets, contains_any_phrase(tokenizer, text, term.accepted_targets))
            for term in part.glossary_entries or ()
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
                *(source.text, text, part.source_ids, tokens),
                finished=hypothesis.finished,
                languages_differ=self.languages_differ,
            ),
            unmet=self._unmet(source, text) if source.include else (),
            banned=tuple(phrase for phrase in source.banned if WordPhrase.parse(phrase).occurs_in(after_prefix)),
            glossary=None if part.glossary_entries is None else tuple(terms),
        )

    def _unmet(self, source: Source, text: str) -> tuple[str, ...]:
        groups, tokenizer = alternatives_to_include(source), self.bundle.target_tokenizer
        return tuple(group[0] for group in groups if not contains_any_phrase(tokenizer, text, group))

    def _searcher(self) -> _Search:
        """Return a function that finds the hypotheses for requests, best first, in batches of similar length."""
        tokenizer = self.bundle.target_tokenizer
        rows = max(self.options.beam_size, self.options.n_best)
        if self.options.beam_size > tokenizer.vocab_size:
            raise ConfigError(
                f"beam size {self.options.beam_size}: expected 1 to the vocabulary size, {tokenizer.vocab_size}"
            )
        return partial(
            self.search,
            self.model,
            vocabulary=search_vocabulary(tokenizer),
            max_batch_tokens=self.max_batch_tokens,
            max_sequences=max(1, _LOGITS_IN_MEMORY // (rows * tokenizer.vocab_size)),
        )


def search_vocabulary(tokenizer: TextTokenizer) -> SearchVocabulary:
    """Return the special tokens of a search for translations, which never contain language tags."""
    return SearchVocabulary(BOS, EOS, banned=(PAD, BOS, UNK, *(tokenizer.tag_id(tag) for tag in tokenizer.tags)))


def _violations(candidate: Candidate) -> set[tuple[str, str]]:
    """Return the phrases and glossary entries that a candidate violates, each with its kind."""
    terms = [term.source for term in candidate.glossary or () if not term.met]
    named = {"include": candidate.unmet, "banned": candidate.banned, "glossary": terms}
    return {(name, phrase) for name, phrases in named.items() for phrase in phrases}
