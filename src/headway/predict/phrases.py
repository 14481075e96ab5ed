"""Convert phrases to the tokens that a search must produce, or must not produce.

A phrase matches whole words (:mod:`headway.text.words`). An asterisk at an edge removes this condition: ``Haus*`` may
begin a longer word, ``*haus`` may end one, and ``*Haus*`` may occur anywhere. ``\\*`` is a literal asterisk.

A byte-level vocabulary stores the space before a word in the word's first token, so a phrase has two tokenizations:
with the space, as inside a sentence, and without it, as at the start of a sentence or after a bracket or quotation
mark. Which one fits depends on the context, so the search may use both. (In vocabularies that mark words in other ways,
or not at all, both tokenizations are equal or one contains the other, and only one of them is used.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from headway.decode import Phrase, WordBoundaries
from headway.errors import ConfigError
from headway.predict.results import Source
from headway.text.base import UNK, TextTokenizer
from headway.text.normalization import normalize, normalize_characters
from headway.text.words import contains_words, end_word_bits, start_word_bits

TokenIds = tuple[int, ...]

_BYTE = "<0x[0-9A-F]{2}>"  # how tokenizers display a byte that is only a part of a character
_SEPARATORS = (" ", ",", ".", ":", ";", "-", "、", "。")


@dataclass(frozen=True)
class WordPhrase:
    """A phrase in normal form, and whether a word must begin where it starts and end where it ends."""

    text: str
    at_word_start: bool = True
    at_word_end: bool = True

    @classmethod
    def parse(cls, pattern: str) -> WordPhrase:
        """Parse a phrase that a user has written, possibly with asterisks at its edges."""
        text = normalize(pattern)
        if not text.strip("*"):
            return cls(text)
        start, end = text.startswith("*"), text.endswith("*") and not text.endswith("\\*")
        text = text[start : len(text) - end].strip()
        if text.startswith("\\*"):
            text = text[1:]
        if text.endswith("\\*"):
            text = f"{text[:-2]}*"
        return cls(text, not start, not end)

    def occurs_in(self, text: str) -> bool:
        """Return whether a text contains the phrase, or one that is canonically equivalent."""
        forms = dict.fromkeys((text, normalize_characters(text)))
        edges = {"whole_start": self.at_word_start, "whole_end": self.at_word_end}
        return any(contains_words(form, self.text, **edges) for form in forms)


def alternatives_to_include(source: Source) -> list[tuple[str, ...]]:
    """Return the alternatives of each phrase to include. A phrase without alternatives is its only alternative."""
    return [(phrase,) if isinstance(phrase, str) else tuple(phrase) for phrase in source.include]


def check_phrases(source: Source) -> None:
    """Raise :class:`ConfigError` if a phrase is empty."""
    banned = [(phrase,) for phrase in source.banned]
    for name, phrases in (("include", alternatives_to_include(source)), ("banned", banned)):
        for alternatives in phrases:
            if not alternatives or not all(WordPhrase.parse(phrase).text for phrase in alternatives):
                raise ConfigError(f"{name}: a phrase is empty; give words in each alternative, or leave the phrase out")


def prefix_ids(tokenizer: TextTokenizer, prefix: str) -> TokenIds:
    """Return the tokens that the target must begin with."""
    ids = tuple(tokenizer.encode(prefix.rstrip()))
    if UNK in ids:
        raise _unknown("prefix", prefix)
    return ids


def phrases_to_include(tokenizer: TextTokenizer, source: Source) -> tuple[tuple[Phrase, ...], ...]:
    """Return the alternative token sequences of each phrase to include.

    The target must contain at least one sequence of each phrase.
    """
    by_phrase = []
    for alternatives in alternatives_to_include(source):
        phrases = tokenize_phrases(tokenizer, alternatives)
        if not phrases:
            raise _unknown("include", " | ".join(alternatives))
        by_phrase.append(phrases)
    return tuple(by_phrase)


def banned_ids(tokenizer: TextTokenizer, source: Source) -> tuple[TokenIds, ...]:
    """Return the token sequences that the target must not contain."""
    phrases = [Phrase(ids) for phrase in source.banned for ids in _spellings(tokenizer, WordPhrase.parse(phrase))]
    return tuple(phrase.tokens for phrase in _shortest(phrases, word_boundaries(tokenizer)))


def tokenize_phrases(tokenizer: TextTokenizer, alternatives: Iterable[str]) -> tuple[Phrase, ...]:
    """Return the tokenizations of all alternatives, except those with characters that the vocabulary lacks."""
    boundaries = word_boundaries(tokenizer)
    phrases: dict[Phrase, None] = {}
    for phrase in map(WordPhrase.parse, alternatives):
        start = phrase.at_word_start * start_word_bits(phrase.text)
        end = phrase.at_word_end * end_word_bits(phrase.text)
        for ids in _spellings(tokenizer, phrase):
            if UNK not in ids:
                phrases[Phrase(ids, start & boundaries.start_bits[ids[0]], end & boundaries.end_bits[ids[-1]])] = None
    return _shortest(list(phrases), boundaries)


def contains_any_phrase(tokenizer: TextTokenizer, text: str, alternatives: Iterable[str]) -> bool:
    """Return whether a target contains one of the alternatives, as written or as normalized by the tokenizer."""
    phrases = [WordPhrase.parse(phrase) for phrase in alternatives]
    return any(phrase.occurs_in(text) for phrase in phrases) or any(
        WordPhrase(normal, phrase.at_word_start, phrase.at_word_end).occurs_in(text)
        for phrase in phrases
        if (normal := tokenizer.decode(tokenizer.encode(phrase.text)).strip()) not in ("", phrase.text)
    )


def word_boundaries(tokenizer: TextTokenizer) -> WordBoundaries:
    """Return the tokens of a vocabulary at which words begin and end. They are computed once for each tokenizer.

    A token that contains only some bytes of a character is treated as a letter, because the character could be one.
    """
    if tokenizer not in _BOUNDARIES:
        _BOUNDARIES[tokenizer] = _find_boundaries(tokenizer)
    return _BOUNDARIES[tokenizer]


_BOUNDARIES: WeakKeyDictionary[TextTokenizer, WordBoundaries] = WeakKeyDictionary()


def _find_boundaries(tokenizer: TextTokenizer) -> WordBoundaries:
    size = tokenizer.vocab_size
    if tokenizer.kind == "whitespace":  # every token is a word
        return WordBoundaries(bytes(size), bytes(size))
    names = tokenizer.display(range(size))
    starts = bytes(start_word_bits("a" if re.match(_BYTE, name) else name) for name in names)
    ends = bytes(end_word_bits("a" if re.search(rf"{_BYTE}\Z", name) else name) for name in names)
    known = (ids[0] for ids in map(tokenizer.encode, _SEPARATORS) if len(ids) == 1 and UNK not in ids)
    return WordBoundaries(starts, ends, next((one for one in known if not starts[one] | ends[one]), None))


def _spellings(tokenizer: TextTokenizer, phrase: WordPhrase) -> list[TokenIds]:
    """Return a phrase's tokenizations inside a sentence and at the start of a sentence."""
    return list(dict.fromkeys(tuple(tokenizer.encode(space + phrase.text)) for space in (" ", "")))


def _unknown(name: str, phrase: str) -> ConfigError:
    return ConfigError(
        f"{name}: {phrase!r} contains characters or words that the vocabulary lacks; leave it out or respell it"
    )


def _shortest(phrases: Sequence[Phrase], boundaries: WordBoundaries) -> tuple[Phrase, ...]:
    """Return the phrases that contain no other phrase. A target with a longer phrase also contains the shorter one."""
    return tuple(
        one for one in phrases if not any(other != one and _contains(one, other, boundaries) for other in phrases)
    )


def _contains(phrase: Phrase, part: Phrase, boundaries: WordBoundaries) -> bool:
    """Return whether every occurrence of a phrase contains an occurrence of ``part``."""
    tokens, length = phrase.tokens, len(part.tokens)

    def fits(index: int) -> bool:
        start = part.start_bits & (boundaries.end_bits[tokens[index - 1]] if index else ~phrase.start_bits)
        after = index + length
        end = part.end_bits & (boundaries.start_bits[tokens[after]] if after < len(tokens) else ~phrase.end_bits)
        return not start and not end

    places = range(len(tokens) - length + 1)
    return any(tokens[index : index + length] == part.tokens and fits(index) for index in places)


def find_phrase(tokens: TokenIds, phrase: str, tokenizer: TextTokenizer) -> TokenIds | None:
    """Return the shortest run of consecutive ``tokens`` whose text contains ``phrase``, or None."""
    places = range(len(tokens) + 1)
    spans = sorted(
        ((start, end) for start in places for end in places[start + 1 :]), key=lambda span: span[1] - span[0]
    )
    texts = ((tokens[start:end], normalize_characters(tokenizer.decode(tokens[start:end]))) for start, end in spans)
    return next((run for run, text in texts if phrase in text), None)
