"""Plan the translation of texts: create search requests for the parts of each text, and merge the parts' candidates.

Long texts are split. A text that cannot be translated is represented by its error, so that other texts can still be
translated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headway.bundle import Bundle
from headway.decode import DecodingOptions, Phrase, give_way
from headway.decode.request import Request, check_request
from headway.errors import ConfigError, DataError, HeadwayError, LengthError
from headway.predict.phrases import (
    TokenIds,
    alternatives_to_include,
    check_phrases,
    encode_prefix,
    tokenize_banned_phrases,
    tokenize_included_phrases,
    word_boundaries,
)
from headway.predict.results import Alignment, Candidate, Flag, GlossaryTerm, Source, Translation
from headway.predict.translation.glossary import GlossaryEntry, ModelGlossary
from headway.predict.translation.quality import sort_flags
from headway.predict.translation.segment import TextPart, split_text
from headway.text.base import EOS, TextTokenizer
from headway.text.normalization import split_surrounding_space
from headway.text.special_tokens import SpecialTokens
from headway.text.words import end_word_bits, start_word_bits

MAX_EXTRA_TOKENS = 50  # the paper's maximum output length is the input length + 50 (section 6.1)
_MAX_ATTENTION = 1_000_000  # maximum number of attention weights in all merged alignments of a text
# Maximum of beam size x number of phrases to include in a text, because each hypothesis is extended by each phrase.
_MAX_PHRASE_EXTENSIONS = 10_000


@dataclass(frozen=True)
class PartRequest:
    """One part of a text, encoded and ready for decoding.

    Attributes:
        source: The part, with the phrases that apply to it.
        source_ids: Token ids of the part, without special tokens.
        request: The search request.
        glossary_entries: The glossary entries that apply to the part. None if there is no glossary.
    """

    source: Source
    source_ids: tuple[int, ...]
    request: Request
    glossary_entries: tuple[GlossaryEntry, ...] | None = None


@dataclass(frozen=True)
class TranslationPlan:
    """The parts of a text, with a search request for each. A blank text has no parts."""

    source: Source
    parts: tuple[TextPart, ...] = ()
    requests: tuple[PartRequest, ...] = ()
    trailing_whitespace: str = ""


@dataclass(frozen=True, kw_only=True)
class CallSettings:
    """The model that one call to a translator uses, and the options that were resolved for this model.

    Attributes:
        bundle: The model and its tokenizers.
        decoding: The options of the search.
        special_tokens: The special tokens around each sentence.
        source_language: A BCP 47 tag that selects the rules for splitting texts into sentences.
        languages_differ: Whether source and target are known to be in different languages.
        glossary: The glossary in the model's tokens. It is applied to each part of a text.
        max_source_tokens: Maximum number of source tokens, including special tokens. Longer texts are split.
        max_positions: Maximum length of a sequence, including EOS or BOS, that the model supports. None means no limit.
        max_batch_tokens: Maximum size of a batch: number of sentences x source tokens.
        avoid_flagged: Whether a flagged best hypothesis is replaced by the most probable one without flags.
    """

    bundle: Bundle
    decoding: DecodingOptions
    special_tokens: SpecialTokens
    source_language: str
    languages_differ: bool
    glossary: ModelGlossary | None
    max_source_tokens: int
    max_positions: int | None
    max_batch_tokens: int
    avoid_flagged: bool


@dataclass(frozen=True)
class RequestBuilder:
    """Creates the search requests for one call to a translator."""

    settings: CallSettings
    # The texts of a call usually share the same few phrases, so each phrase is tokenized only once.
    _prefixes: dict[str, TokenIds] = field(default_factory=dict, init=False)
    _included: dict[tuple[str | tuple[str, ...], ...], tuple[tuple[Phrase, ...], ...]] = field(
        default_factory=lambda: {(): ()}, init=False
    )
    _banned: dict[tuple[str, ...], tuple[TokenIds, ...]] = field(default_factory=lambda: {(): ()}, init=False)

    def plan_each(self, sources: Sequence[Source]) -> list[TranslationPlan | HeadwayError]:
        """Return the plan for each text, or an error if the text cannot be translated."""
        normalized = self.settings.bundle.normalized
        texts = ["" if not source.text.strip() else normalized(source.text) for source in sources]
        encoded = encode_each(self.settings.bundle.source_tokenizer, texts)
        return [self._plan(source, ids) for source, ids in zip(sources, encoded, strict=True)]

    def _plan(self, source: Source, ids: list[int] | HeadwayError) -> TranslationPlan | HeadwayError:
        if isinstance(ids, HeadwayError):
            return ids
        if not ids:
            return TranslationPlan(source)
        try:
            if source.include not in self._included or source.banned not in self._banned:
                check_phrases(source)
            length = len(ids) + self.settings.special_tokens.source_overhead
            if source.split_sentences or length > self.settings.max_source_tokens:
                return self._plan_of_parts(source, length)
            return self._plan_of_whole(source, ids)
        except HeadwayError as error:
            return error

    def _plan_of_whole(self, source: Source, ids: list[int]) -> TranslationPlan:
        """Return the plan for a text that is not split. Surrounding white space is removed if the model normalizes."""
        if not self.settings.bundle.normalize:
            return TranslationPlan(source, (TextPart(source.text, ""),), (self._request(source, ids),))
        lead, core, trail = split_surrounding_space(source.text)
        inside = source if core == source.text else replace(source, text=core)
        return TranslationPlan(source, (TextPart(core, lead),), (self._request(inside, ids),), trail)

    def _plan_of_parts(self, source: Source, length: int) -> TranslationPlan:
        settings, normalized = self.settings, self.settings.bundle.normalized
        encode, overhead = settings.bundle.source_tokenizer.encode, settings.special_tokens.source_overhead
        lead, text, trail = split_surrounding_space(source.text) if settings.bundle.normalize else ("", source.text, "")
        parts, trailing_whitespace = split_text(
            text,
            settings.source_language,
            lambda text: len(encode(normalized(text))) + overhead,
            settings.max_source_tokens,
        )
        if source.include and len(parts) > 1:
            raise ConfigError(
                f"include: a text of {length} tokens is translated in {len(parts)} parts, and it is unknown which part "
                "must contain the phrases; translate its sentences one by one"
            )
        parts[:1] = [replace(part, leading_whitespace=lead + part.leading_whitespace) for part in parts[:1]]
        rest = replace(source, prefix="")  # the prefix belongs to the translation of the first part
        sources = [replace(rest if number else source, text=part.text) for number, part in enumerate(parts)]
        requests = tuple(self._request(part_source, encode(normalized(part_source.text))) for part_source in sources)
        return TranslationPlan(source, tuple(parts), requests, trailing_whitespace + trail)

    def _request(self, source: Source, ids: Sequence[int]) -> PartRequest:
        give_way()
        settings = self.settings
        tokenizer, glossary = settings.bundle.target_tokenizer, settings.glossary
        prefix = settings.special_tokens.target_prefix
        if source.prefix:
            if source.prefix not in self._prefixes:
                self._prefixes[source.prefix] = encode_prefix(tokenizer, settings.bundle.normalized(source.prefix))
            prefix += self._prefixes[source.prefix]
        framed = tuple(settings.special_tokens.add_to_source(ids))
        if source.include not in self._included:
            self._included[source.include] = tokenize_included_phrases(tokenizer, source)
        if source.banned not in self._banned:
            self._banned[source.banned] = tokenize_banned_phrases(tokenizer, source)
        include = self._included[source.include]
        matches = glossary.matches(source.text) if glossary else []
        # Sampling cannot be forced to produce phrases, so samples are only checked for them.
        required: tuple[tuple[Phrase, ...], ...] = ()
        if glossary and not settings.decoding.sampling:
            _check_num_phrases((*include, *(entry.targets for entry in matches)), settings.decoding)  # without tokens
            required = tuple(map(glossary.phrases, matches))
        _check_num_phrases((*include, *required), settings.decoding)
        request = Request(
            source=framed,
            limit=self._limit(len(framed) - 1, len(prefix)),
            prefix=prefix,
            include=(*include, *required),
            boundaries=word_boundaries(tokenizer) if include or required else None,
            banned=self._banned[source.banned],
        )
        for phrase, alternatives in zip(source.include, include, strict=True):
            shortest = min(len(alternative.tokens) for alternative in alternatives)
            if shortest > request.limit:
                raise LengthError(
                    f"include: {phrase!r} has {shortest} tokens, but this target may have at most "
                    f"{request.limit}; raise max_length (--max-length), or remove the phrase"
                )
        check_request(request, settings.decoding, EOS)  # an error during the search would stop the whole batch
        terms = tuple(matches) if glossary else None
        return PartRequest(source, tuple(ids), request, terms)

    def _limit(self, source_length: int, prefix_length: int) -> int:
        """Return the maximum number of target tokens: ``max_length``, or the lower of the paper's and model's limits.

        The result is at most the number of positions that the model supports.
        """
        usual, of_model = max(source_length, prefix_length) + MAX_EXTRA_TOKENS, self.settings.bundle.search
        usual = max(usual, of_model.min_length)
        if of_model.max_length is not None:
            usual = min(usual, of_model.max_length)
        limit = self.settings.decoding.max_length or usual
        if self.settings.max_positions is not None:
            limit = min(limit, self.settings.max_positions - 1)
        if prefix_length > limit:
            raise LengthError(
                f"prefix: {prefix_length} tokens, but this target may have at most {limit}; raise max_length "
                "(--max-length) up to the model's number of positions, or use a shorter prefix"
            )
        return limit


def _check_num_phrases(include: Sequence[Sequence[Any]], options: DecodingOptions) -> None:
    """Raise :class:`LengthError` if there are so many phrases to include that each search step would take too long."""
    count = sum(map(len, include))
    if count * options.beam_size > _MAX_PHRASE_EXTENSIONS:
        raise LengthError(
            f"{count:,} phrases of the glossary and to include apply to a text; with a beam_size of "
            f"{options.beam_size} at most {_MAX_PHRASE_EXTENSIONS // options.beam_size:,} are accepted (each spelling "
            "of an alternative counts); lower beam_size, or use fewer alternatives"
        )


def encode_each(tokenizer: TextTokenizer, texts: Sequence[str]) -> list[list[int] | HeadwayError]:
    """Return the ids of each text, or an error if the text cannot be encoded."""
    try:
        return list(tokenizer.encode_batch(texts))
    except DataError:  # one of the texts cannot be encoded
        return [_encoded(tokenizer, text) for text in texts]


def _encoded(tokenizer: TextTokenizer, text: str) -> list[int] | HeadwayError:
    try:
        return tokenizer.encode(text)
    except DataError as error:
        return DataError(str(error).removeprefix("text 1, "))


def merge_parts(
    plan: TranslationPlan, part_candidates: Sequence[Sequence[Candidate]], unlikely: bool | None = None
) -> Translation | ConfigError:
    """Merge the candidates of a text's parts into its translation, or return an error if a part has no candidates.

    The k-th candidate of the text consists of the k-th candidate of each part, or the last candidate of a part with
    fewer candidates. ``unlikely`` is stored in the translation.
    """
    if not all(part_candidates):
        return ConfigError(
            "the options exclude every target; relax banned phrases, min_length, no_repeat_ngram and similar options"
        )
    if not part_candidates:
        unmet = tuple(alternatives[0] for alternatives in alternatives_to_include(plan.source) if alternatives)
        return Translation(plan.source.text, (Candidate("", 0.0, 0.0, (), (), unmet=unmet),), unlikely)
    count = max(map(len, part_candidates))
    chosen = ([candidates[min(k, len(candidates) - 1)] for candidates in part_candidates] for k in range(count))
    merged, remaining = list[Candidate](), _MAX_ATTENTION
    for parts in chosen:
        candidate = _merge(plan, parts, remaining)
        if len(parts) > 1 and candidate.alignment is not None and candidate.alignment.attention:
            remaining -= len(candidate.alignment.attention) * len(candidate.alignment.source_tokens)
        merged.append(candidate)
    return Translation(plan.source.text, tuple(merged), unlikely)


def _merge(plan: TranslationPlan, parts: list[Candidate], max_attention: int) -> Candidate:
    whole, texts = parts[0], [part.text for part in parts]
    separators = _separators(plan, texts)
    if len(parts) > 1:
        whole = Candidate(
            text="",
            score=sum(part.score for part in parts),
            log_probability=sum(part.log_probability for part in parts),
            tokens=_concatenate(separators, [part.tokens for part in parts]),
            token_log_probabilities=tuple(value for part in parts for value in part.token_log_probabilities),
            ids=tuple(token for part in parts for token in part.ids),
            part_lengths=tuple(len(part.tokens) for part in parts),
            banned=tuple(dict.fromkeys(phrase for part in parts for phrase in part.banned)),
            glossary=_merge_glossaries([part.glossary for part in parts if part.glossary is not None]),
            alignment=_merge_alignments(plan, parts, max_attention),
            pivot=_merge_pivots(plan, [part.pivot for part in parts if part.pivot is not None]),
        )
    text = "".join(separator + part for separator, part in zip(separators, texts, strict=True))
    flags: list[Flag] = [flag for part in parts for flag in part.flags]
    if any(part.is_partial_sentence for part in plan.parts):
        flags.append("split")
    return replace(whole, text=text + plan.trailing_whitespace, flags=sort_flags(flags))


def _merge_glossaries(glossaries: Sequence[tuple[GlossaryTerm, ...]]) -> tuple[GlossaryTerm, ...] | None:
    """Concatenate the glossary terms of a text's parts. Return None if no part has a glossary."""
    return tuple(term for terms in glossaries for term in terms) if glossaries else None


def _merge_pivots(plan: TranslationPlan, pivots: Sequence[str]) -> str | None:
    """Return the text in the pivot language, or None if some part has no pivot."""
    if len(pivots) < len(plan.parts):
        return None
    return "".join(part.leading_whitespace + pivot for part, pivot in zip(plan.parts, pivots, strict=True))


def _separators(plan: TranslationPlan, texts: Sequence[str]) -> list[str]:
    """Return the white space before the translation of each part: usually the same as before the part.

    A space is added between two translations in a script with spaces if the parts are in a script without spaces, or if
    punctuation separates the parts.
    """
    separators = [part.leading_whitespace for part in plan.parts]
    for number in range(1, len(texts)):
        before, after = plan.parts[number - 1].text, plan.parts[number].text
        if separators[number] or end_word_bits(before) & start_word_bits(after):
            continue
        end, start = texts[number - 1][-1:], texts[number][:1]
        if end and start and _is_spaced(start) and (_is_spaced(end) or (end.isascii() and not end.isspace())):
            separators[number] = " "
    return separators


def _is_spaced(character: str) -> bool:
    """Return whether a character is a letter or digit in a script that separates words with spaces."""
    return character.isalnum() and bool(end_word_bits(character) & start_word_bits("a"))


def _concatenate(separators: Sequence[str], tokens: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Concatenate the tokens of all parts. The separator before a part becomes part of its first token."""
    pairs = zip(separators, tokens, strict=True)
    spaced = ((separator + of_part[0], *of_part[1:]) if of_part else () for separator, of_part in pairs)
    return tuple(token for of_part in spaced for token in of_part)


def _merge_alignments(plan: TranslationPlan, parts: Sequence[Candidate], max_attention: int) -> Alignment | None:
    """Merge the alignments of parts into a block-diagonal alignment: no token of one part attends to another part.

    The result has no attention if the attention of a part is missing, or if there would be more than ``max_attention``
    weights.
    """
    alignments = [part.alignment for part in parts if part.alignment is not None]
    if not alignments:
        return None
    width = sum(len(alignment.source_tokens) for alignment in alignments)
    is_incomplete = any(alignment.pairs and not alignment.attention for alignment in alignments)
    if is_incomplete or width * sum(len(alignment.attention) for alignment in alignments) > max_attention:
        parts = [replace(part, alignment=part.alignment and part.alignment.without_attention()) for part in parts]
    pairs: list[tuple[int, int]] = []
    rows: list[tuple[float, ...]] = []
    source_start = target_start = 0
    for part in parts:
        if (alignment := part.alignment) is None:
            continue
        count = len(alignment.source_tokens)
        pairs += [(source + source_start, target + target_start) for source, target in alignment.pairs]
        rows += [(*[0.0] * source_start, *row, *[0.0] * (width - source_start - count)) for row in alignment.attention]
        source_start, target_start = source_start + count, target_start + len(part.tokens)
    separators = [part.leading_whitespace for part in plan.parts]
    tokens = _concatenate(separators, [alignment.source_tokens for alignment in alignments])
    return Alignment(tokens, tuple(pairs), tuple(rows))
