"""Tokenize the phrases that a search must generate or must not generate.

A phrase matches whole words (:mod:`headway.text.words`). An asterisk at an edge removes this condition: ``Haus*`` may
begin a longer word, ``*haus`` may end a longer word, and ``*Haus*`` may occur anywhere. ``\\*`` is a literal asterisk.

In a byte-level vocabulary, the space before a word is part of the word's first token. A phrase therefore has a
tokenization with the space, which occurs inside a sentence, and one without the space, which occurs at the start of a
sentence or after a bracket or quotation mark. The context determines which one fits, so the search may use both. (In
other vocabularies, the two are equal or one contains the other, and only one is used.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from headway.decode import Phrase, WordBoundaries, give_way
from headway.errors import ConfigError, LengthError
from headway.predict.results import Source
from headway.text.base import UNK, TextTokenizer
from headway.text.normalization import normalize, normalize_characters
from headway.text.words import contains_words, end_word_bits, start_word_bits

TokenIds = tuple[int, ...]

MAX_PHRASE_TOKENS = 50  # every target may have at least 50 tokens (section 6.1: source length + 50)
_BYTE = "<0x[0-9A-F]{2}>"  # how tokenizers display a byte that is not a complete character
_SEPARATORS = (" ", ",", ".", ":", ";", "-", "、", "。")


@dataclass(frozen=True)
class WordPhrase:
    """A normalized phrase, and whether it must begin at the start of a word and end at the end of a word."""

    text: str
    at_word_start: bool = True
    at_word_end: bool = True

    @classmethod
    def parse(cls, pattern: str) -> WordPhrase:
        """Parse a user's phrase, which may have asterisks at its edges."""
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
        """Return whether a text contains the phrase, or a canonically equivalent phrase."""
        forms = dict.fromkeys((text, normalize_characters(text)))
        edges = {"whole_start": self.at_word_start, "whole_end": self.at_word_end}
        return any(contains_words(form, self.text, **edges) for form in forms)


def alternatives_to_include(source: Source) -> list[tuple[str, ...]]:
    """Return the alternatives of each phrase to include. A single phrase is returned as its only alternative."""
    return [(phrase,) if isinstance(phrase, str) else tuple(phrase) for phrase in source.include]


def check_phrases(source: Source) -> None:
    """Raise :class:`ConfigError` if a phrase is empty."""
    banned = [(phrase,) for phrase in source.banned]
    for name, phrases in (("include", alternatives_to_include(source)), ("banned", banned)):
        for alternatives in phrases:
            if not alternatives or not all(WordPhrase.parse(phrase).text for phrase in alternatives):
                raise ConfigError(f"{name}: a phrase is empty; each alternative needs at least one word")


def encode_prefix(tokenizer: TextTokenizer, prefix: str) -> TokenIds:
    """Tokenize the prefix that the target must begin with."""
    ids = tuple(tokenizer.encode(prefix.rstrip()))
    if UNK in ids:
        raise _unknown("prefix", prefix)
    return ids


def tokenize_included_phrases(tokenizer: TextTokenizer, source: Source) -> tuple[tuple[Phrase, ...], ...]:
    """Return the alternative token sequences of each phrase to include.

    The target must contain at least one of the sequences for each phrase.
    """
    by_phrase = []
    for alternatives in alternatives_to_include(source):
        phrases = tokenize_phrases(tokenizer, alternatives)
        if not phrases:
            raise _unknown("include", " | ".join(alternatives))
        by_phrase.append(phrases)
    return tuple(by_phrase)


def tokenize_banned_phrases(tokenizer: TextTokenizer, source: Source) -> tuple[TokenIds, ...]:
    """Return the token sequences that the target must not contain."""
    phrases = [Phrase(ids) for phrase in source.banned for ids in _spellings(tokenizer, WordPhrase.parse(phrase))]
    return tuple(phrase.tokens for phrase in _shortest(phrases, word_boundaries(tokenizer)))


def tokenize_phrases(tokenizer: TextTokenizer, alternatives: Iterable[str]) -> tuple[Phrase, ...]:
    """Return the tokenizations of all alternatives, except alternatives with characters that the vocabulary lacks."""
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
    """Return whether a text contains one of the alternatives, as written or as normalized by the tokenizer."""
    phrases = [WordPhrase.parse(phrase) for phrase in alternatives]
    return any(phrase.occurs_in(text) for phrase in phrases) or any(
        WordPhrase(normal, phrase.at_word_start, phrase.at_word_end).occurs_in(text)
        for phrase in phrases
        if (normal := tokenizer.decode(tokenizer.encode(phrase.text)).strip()) not in ("", phrase.text)
    )


def word_boundaries(tokenizer: TextTokenizer) -> WordBoundaries:
    """Return at which tokens of a vocabulary words begin and end. The result is cached for each tokenizer.

    A token that contains only some bytes of a character is treated as a letter, because the character could be a
    letter.
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
    """Return the tokenizations of a phrase inside a sentence and at the start of a sentence.

    Raises:
        LengthError: The phrase has more than :data:`MAX_PHRASE_TOKENS` tokens.
    """
    give_way()
    spellings = list(dict.fromkeys(tuple(tokenizer.encode(space + phrase.text)) for space in (" ", "")))
    if (shortest := min(map(len, spellings))) > MAX_PHRASE_TOKENS:
        raise LengthError(
            f"a phrase to include or to ban has {shortest:,} tokens; at most {MAX_PHRASE_TOKENS} are accepted; "
            "shorten the phrase"
        )
    return spellings


def _unknown(name: str, phrase: str) -> ConfigError:
    return ConfigError(
        f"{name}: {phrase!r} contains characters or words that the vocabulary lacks; leave it out or respell it"
    )


def _shortest(phrases: Sequence[Phrase], boundaries: WordBoundaries) -> tuple[Phrase, ...]:
    """Return the phrases that contain no other phrase. A target with a longer phrase also contains the shorter one.

    The phrases are compiled into a trie of tokens, so that the running time is linear in the number of phrases.
    """
    trie: dict[int | None, Any] = {}  # nested dictionaries in which the key None maps to the phrases that end there
    for phrase in phrases:
        node = trie
        for token in phrase.tokens:
            node = node.setdefault(token, {})
        node.setdefault(None, []).append(phrase)
    return tuple(phrase for phrase in phrases if not _contains_another(phrase, trie, boundaries))


def _contains_another(phrase: Phrase, trie: dict[int | None, Any], boundaries: WordBoundaries) -> bool:
    """Return whether every occurrence of a phrase contains an occurrence of another phrase in a trie."""
    give_way()
    tokens = phrase.tokens
    for start in range(len(tokens)):
        node, end = trie.get(tokens[start]), start + 1
        while node is not None:
            for part in node.get(None, ()):
                if part != phrase and _fits(phrase, part, start, boundaries):
                    return True
            node, end = (node.get(tokens[end]) if end < len(tokens) else None), end + 1
    return False


def _fits(phrase: Phrase, part: Phrase, index: int, boundaries: WordBoundaries) -> bool:
    """Return whether ``part``, whose tokens are in ``phrase`` at ``index``, matches whole words in every occurrence."""
    tokens, after = phrase.tokens, index + len(part.tokens)
    start = part.start_bits & (boundaries.end_bits[tokens[index - 1]] if index else ~phrase.start_bits)
    end = part.end_bits & (boundaries.start_bits[tokens[after]] if after < len(tokens) else ~phrase.end_bits)
    return not start and not end


def find_phrase(tokens: TokenIds, phrase: str, tokenizer: TextTokenizer) -> TokenIds | None:
    """Return the shortest run of consecutive ``tokens`` whose text contains ``phrase``, or None.

    A run that contains the phrase still contains it if tokens are added on either side. Two pointers that only move
    forward therefore find all the shortest runs.
    """
    shortest: TokenIds | None = None
    longest = 4 * len(phrase.encode()) + 2  # a token has at least one byte of the text, before it is normalized
    start = 0
    for end in range(1, len(tokens) + 1):
        give_way()
        start = max(start, end - longest)
        while start < end and phrase in normalize_characters(tokenizer.decode(tokens[start:end])):
            shortest = tokens[start:end] if shortest is None or end - start < len(shortest) else shortest
            start += 1
    return shortest
