"""Translation through a third language, for pairs that no model translates directly.

Let x be a text, z its translation into the third language (the pivot) and y the translation of z. The first model finds
the ``candidates`` best pivots z, the second model translates each of them, and the pairs are ranked by their joint
probability

    log p(y, z | x) = log p(z | x) + log p(y | z),

assuming that y depends on x only through z. Usually, one pivot is used (``candidates=1``). With several pivots, the
choice also depends on the second model, for which some pivots are easier or clearer than others (Utiyama and Isahara
2007, "A Comparison of Pivot Methods for Phrase-Based Statistical Machine Translation", call this n-best sentence
translation). If several pivots lead to the same y, only the most probable pair is kept.

If a text is split, each sentence has its own pivots. Requirements on the translation (prefix, phrases, and the targets
of a glossary) apply to the second step, but glossary entries are matched in x. The alignment of y with x is the product
of y's attention to z and z's attention to x.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from headway.decode import DecodingOptions, SearchFunction, SearchStepsFunction
from headway.errors import ConfigError, HeadwayError
from headway.predict.phrases import alternatives_to_include, contains_any_phrase
from headway.predict.results import Alignment, Candidate, Flag, GlossaryTerm, Source, Translation, WordAlignment
from headway.predict.translation.alignment import compose_alignments, word_alignment
from headway.predict.translation.glossary import Glossary, GlossaryEntry
from headway.predict.translation.marked_translation import MarkedTexts, TranslationUnit
from headway.predict.translation.options import DEFAULT_OPTIONS, TranslateOptions
from headway.predict.translation.plan import TranslationPlan, merge_parts
from headway.predict.translation.quality import sort_flags
from headway.predict.translation.segment import TextPart, split_text
from headway.predict.translation.text_translator import TextTranslator
from headway.predict.translation.translator import Translator

DEFAULT_NUM_PIVOTS = 1
_UNKNOWN_LANGUAGES = ("source", "target")  # language names in models whose languages are not known
_HARMLESS: tuple[Flag, ...] = ("forced", "fell_back", "split")


@dataclass(frozen=True)
class _PivotedPart:
    """A sentence, or a text that is not split.

    Attributes:
        source: The text, with the requirements on its translation.
        terms: The glossary entries that apply to the text.
        has_glossary: Whether there is a glossary.
    """

    source: Source
    terms: tuple[GlossaryEntry, ...]
    has_glossary: bool


def pivot_search_options(decoding: DecodingOptions, search: DecodingOptions, candidates: int) -> DecodingOptions:
    """Return the search options for the first step of a translation.

    Args:
        decoding: The options of the translation.
        search: The search settings of the first model.
        candidates: The number of pivots for each text.

    Raises:
        ConfigError: A setting of the model is not compatible with the given options.
    """
    shared = decoding.model_dump(include={"beam_size", "length_penalty", "normalization"}, exclude_unset=True)
    beam = DecodingOptions.parse(shared, "options").with_defaults(search)
    return beam.model_copy(update={"n_best": 1 if decoding.sampling is not None else min(candidates, beam.beam_size)})


class PivotTranslator(TextTranslator):
    """Translates with one model into a third language, and with another model from the third language.

        model = PivotTranslator(headway.load("runs/de-en/best"), headway.load("runs/en-fr/best"))
        model.translate("Guten Morgen!").candidates[0].pivot

    Args:
        first: Translates into the pivot language.
        second: Translates from the pivot language.
        pivot_language: Name of the pivot language, or a pair of names if the two models use different names. None means
            the language that the first model translates into and the second model translates from.
        candidates: The number of pivots for each text. It is limited to the beam size, and to 1 if the translation is
            sampled.

    Raises:
        ConfigError: The models have no language in common, or several, or ``candidates`` is less than 1.
    """

    def __init__(
        self,
        first: Translator,
        second: Translator,
        *,
        pivot_language: str | tuple[str, str] | None = None,
        candidates: int = DEFAULT_NUM_PIVOTS,
    ) -> None:
        if candidates < 1:
            raise ConfigError(f"candidates = {candidates}: expected 1 or more pivots")
        if pivot_language is None:
            pivot_language = _common_language(first, second)
        into, from_ = (pivot_language, pivot_language) if isinstance(pivot_language, str) else pivot_language
        self.first, self.second, self.candidates = first, second, candidates
        self._into = into if first.target_languages else None
        self._from = from_ if second.source_languages else None

    def replace_search(self, search: SearchFunction, steps: SearchStepsFunction) -> None:
        """Replace the search functions of all calls, so that calls can share batches."""
        self.first.replace_search(search, steps)
        self.second.replace_search(search, steps)

    def translate_each(
        self,
        texts: Sequence[str | Source],
        options: TranslateOptions = DEFAULT_OPTIONS,
        glossary: Glossary | None = None,
    ) -> list[Translation | HeadwayError]:
        """Translate a list of texts. A text that cannot be translated is represented by its error.

        The first step is a beam search with the given beam size, length penalty and normalization. All options apply to
        the second step. In each step, options that are not given have the defaults of that step's model.
        """
        if options.alignment:
            self.first.check_alignment()
            self.second.check_alignment()
        if glossary is not None:
            self.second.check_glossary(glossary)
        marked = MarkedTexts(texts, options, can_align=self.first.can_align and self.second.can_align)
        marked.store(marked.units, self._translate(marked.units, options, glossary))
        if retries := marked.prepare_retries():
            marked.store(retries, self._translate(retries, options, glossary))
        return marked.merge()

    def word_alignment(self, candidate: Candidate) -> WordAlignment:
        """Return the word alignment of a candidate that was translated with ``alignment=True``."""
        return word_alignment(candidate, self.first.bundle.source_tokenizer, self.second.bundle.target_tokenizer)

    def has_prepared(self, glossary: Glossary) -> bool:
        """Return whether a glossary is ready for use; see :meth:`Translator.has_prepared`."""
        return self.second.has_prepared(glossary)

    def check_glossary(self, glossary: Glossary) -> None:
        """Raise an error if the second model cannot generate any target phrase of a glossary entry."""
        self.second.check_glossary(glossary)

    def _translate(
        self, units: Sequence[TranslationUnit], options: TranslateOptions, glossary: Glossary | None
    ) -> list[Translation | HeadwayError]:
        """Return the translation of each unit, or an error. Units contain no markup and no placeholders to keep."""
        plans = [self._plan(unit.source, options.source_language) for unit in units]
        parts = [
            _PivotedPart(source, tuple(glossary.matches(source.text)) if glossary else (), glossary is not None)
            for plan in plans
            if not isinstance(plan, HeadwayError)
            for source in plan[1]
        ]
        decoding = options.decoding
        needs_alignment = any(unit.needs_alignment for unit in units)
        first_options = TranslateOptions(
            decoding=pivot_search_options(decoding, self.first.bundle.search, self.candidates),
            source_language=options.source_language,
            target_language=self._into,
            alignment=needs_alignment,
            protect=False,
        )
        second_options = TranslateOptions(
            decoding=decoding,
            source_language=self._from,
            target_language=options.target_language,
            alignment=needs_alignment,
            protect=False,
        )
        starts = self.first.translate_each([Source(part.source.text) for part in parts], first_options)
        pivots = [[] if isinstance(start, HeadwayError) else _pivots(start) for start in starts]
        requests = [
            self._requirements(part, pivot.text, decoding)
            for part, of_part in zip(parts, pivots, strict=True)
            for pivot in of_part
        ]
        remaining = iter(self.second.translate_each(requests, second_options))
        results: list[Translation | HeadwayError] = []
        for part, start, of_part in zip(parts, starts, pivots, strict=True):
            ends = [next(remaining) for _ in of_part]
            results.append(
                start if isinstance(start, HeadwayError) else self._join(part, start, of_part, ends, decoding)
            )
        return _merged(plans, iter(results), [unit.needs_alignment for unit in units])

    def _plan(self, source: Source, source_language: str | None) -> tuple[TranslationPlan, list[Source]] | HeadwayError:
        """Split a text into parts with separate pivots."""
        if not source.text.strip():
            return TranslationPlan(source), []
        first = self.first
        try:
            length = first.count_source_tokens(source.text)
            if not source.split_sentences and length <= first.max_source_tokens:
                return TranslationPlan(source, (TextPart(source.text, ""),)), [source]
            language = source_language or first.bundle.task.source_language
            parts, trailing = split_text(source.text, language, first.count_source_tokens, first.max_source_tokens)
        except HeadwayError as error:
            return error
        if source.include and len(parts) > 1:
            return ConfigError(
                f"include: the text is translated in {len(parts)} parts, and it is unknown which part must contain the "
                "phrases; translate its sentences one by one"
            )
        plan = TranslationPlan(source, tuple(parts), trailing_whitespace=trailing)
        unsplit = replace(source, split_sentences=False)
        return plan, [
            replace(unsplit, text=part.text, prefix="" if number else source.prefix)
            for number, part in enumerate(parts)
        ]

    def _requirements(self, part: _PivotedPart, pivot: str, options: DecodingOptions) -> Source:
        """Return a pivot with the requirements on its translation."""
        # Sampling cannot be forced to produce phrases, so samples are only checked for them.
        terms = () if options.sampling else tuple(entry.accepted_targets for entry in part.terms)
        return replace(part.source, text=pivot, include=(*part.source.include, *terms))

    def _join(
        self,
        part: _PivotedPart,
        start: Translation,
        pivots: Sequence[Candidate],
        ends: Sequence[Translation | HeadwayError],
        options: DecodingOptions,
    ) -> Translation | HeadwayError:
        """Rank the translations of all pivots for a part."""
        errors = [end for end in ends if isinstance(end, HeadwayError)]
        if len(errors) == len(ends):
            return errors[0]
        pairs = [
            self._joint(part, pivot, candidate)
            for pivot, end in zip(pivots, ends, strict=True)
            if not isinstance(end, HeadwayError)
            for candidate in end.candidates
        ]
        if options.sampling is None:
            pairs = _distinct(sorted(pairs, key=lambda pair: -pair.log_probability))
            best, pairs = pairs[0], sorted(pairs, key=lambda pair: not self._is_sound(pair))
            if pairs[0] is not best:
                pairs[0] = replace(pairs[0], flags=(*pairs[0].flags, "fell_back"))
        unlikely = _any(step.unlikely for step in (start, *ends) if not isinstance(step, HeadwayError))
        return Translation(part.source.text, tuple(pairs[: options.n_best]), unlikely)

    def _is_sound(self, candidate: Candidate) -> bool:
        return not self.second.avoid_flagged or set(candidate.flags) <= set(_HARMLESS)

    def _joint(self, part: _PivotedPart, pivot: Candidate, candidate: Candidate) -> Candidate:
        """Convert the translation of a pivot to a translation of the part."""
        alignment = None
        if pivot.alignment is not None:
            second = candidate.alignment or Alignment((), (), ())  # None if the pivot has no text
            alignment = compose_alignments(pivot.alignment, pivot.tokens, second)
        tokenizer, flags = self.second.bundle.target_tokenizer, {*pivot.flags, *candidate.flags} - {"fell_back"}
        named = {group[0] for group in alternatives_to_include(part.source)}
        terms = tuple(
            GlossaryTerm(
                entry.source, entry.targets, contains_any_phrase(tokenizer, candidate.text, entry.accepted_targets)
            )
            for entry in part.terms
        )
        joint = pivot.log_probability + candidate.log_probability
        return replace(
            candidate,
            score=joint,
            log_probability=joint,
            flags=sort_flags(flags),
            unmet=tuple(phrase for phrase in candidate.unmet if phrase in named),
            glossary=terms if part.has_glossary else None,
            alignment=alignment,
            pivot=pivot.text,
        )


def _common_language(first: Translator, second: Translator) -> str:
    """Return the language that one model translates into and the other model translates from."""
    into = first.target_languages or (first.bundle.task.target_language,)
    from_ = second.source_languages or (second.bundle.task.source_language,)
    common = [language for language in into if language in from_]
    if len(common) == 1:
        return common[0]
    if common:
        raise ConfigError(f"both models have {', '.join(common)}", hint="choose one of them as pivot_language")
    if len(into) == len(from_) == 1 and not {*into, *from_}.isdisjoint(_UNKNOWN_LANGUAGES):
        return into[0]
    raise ConfigError(
        f"the first model translates into {', '.join(into)}, but the second one from {', '.join(from_)}",
        hint="choose models with a language in common, or name it as pivot_language",
    )


def _pivots(translation: Translation) -> list[Candidate]:
    """Return the distinct pivots, without empty ones, whose translation is certain and would always rank first."""
    distinct = _distinct(translation.candidates)
    return [pivot for pivot in distinct if pivot.text.strip()] or distinct[:1]


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the first candidate with each text."""
    by_text: dict[str, Candidate] = {}
    for candidate in candidates:
        by_text.setdefault(candidate.text, candidate)
    return list(by_text.values())


def _merged(
    plans: Sequence[tuple[TranslationPlan, list[Source]] | HeadwayError],
    results: Iterator[Translation | HeadwayError],
    aligned: Sequence[bool],
) -> list[Translation | HeadwayError]:
    """Merge the translations of each text's parts."""
    merged: list[Translation | HeadwayError] = []
    for plan, align in zip(plans, aligned, strict=True):
        if isinstance(plan, HeadwayError):
            merged.append(plan)
            continue
        of_plan = [next(results) for _ in plan[1]]
        error = next((result for result in of_plan if isinstance(result, HeadwayError)), None)
        parts = [result for result in of_plan if not isinstance(result, HeadwayError)]
        whole = error or merge_parts(
            plan[0], [part.candidates for part in parts], _any(part.unlikely for part in parts)
        )
        if isinstance(whole, Translation) and not align:
            whole = replace(
                whole, candidates=tuple(replace(candidate, alignment=None) for candidate in whole.candidates)
            )
        merged.append(whole)
    return merged


def _any(judgements: Iterable[bool | None]) -> bool | None:
    """Return whether any of the judgments is True, or None if all are None."""
    known = [judgement for judgement in judgements if judgement is not None]
    return any(known) if known else None
