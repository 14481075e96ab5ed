"""Phrases as tokens: what a search must make, or must not.

A byte-level vocabulary keeps the space before a word as part of the word's first token, so a phrase has two spellings:
one inside of a sentence, with the space, and one at its start or after a bracket or a quotation mark, without. Which
one fits is known only in context, so both are offered. (Where a vocabulary marks words in another way, or not at all,
the two are equal or one holds the other, and one is left.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from headway.errors import ConfigError
from headway.predict.results import Source
from headway.text.interface import TextTokenizer
from headway.text.tokenizer import UNK

__all__ = [
    "banned_ids",
    "check_phrases",
    "groups",
    "holds_word",
    "include_ids",
    "prefix_ids",
    "spelling_in",
    "spellings",
]

Ids = tuple[int, ...]

# A letter or digit of a script that parts words by spaces: not Kana, Han, Thai, Lao, Myanmar or Khmer.
_SPACED = r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"


def groups(source: Source) -> list[tuple[str, ...]]:
    """The phrases to include, each with its alternatives."""
    return [(each,) if isinstance(each, str) else tuple(each) for each in source.include]


def check_phrases(source: Source) -> None:
    """Refuse phrases that say nothing."""
    for name, phrases in (("include", groups(source)), ("banned", [(phrase,) for phrase in source.banned])):
        for alternatives in phrases:
            if not alternatives or not all(phrase.strip() for phrase in alternatives):
                raise ConfigError(
                    f"{name}: a phrase is empty; give words, or leave it out (alternatives of a phrase to include "
                    "stand in a list of their own, each with words)"
                )


def prefix_ids(tokenizer: TextTokenizer, source: Source) -> Ids:
    """The tokens that a target begins with."""
    ids = tuple(tokenizer.encode(source.prefix.rstrip()))
    if UNK in ids:
        raise _unknown("prefix", source.prefix)
    return ids


def include_ids(tokenizer: TextTokenizer, source: Source) -> tuple[tuple[Ids, ...], ...]:
    """For each phrase to include, the token sequences of which the target must hold one."""
    found = []
    for alternatives in groups(source):
        known = [ids for ids in spellings(tokenizer, alternatives) if UNK not in ids]
        if not known:
            raise _unknown("include", " | ".join(alternatives))
        found.append(_shortest(known))
    return tuple(found)


def banned_ids(tokenizer: TextTokenizer, source: Source) -> tuple[Ids, ...]:
    """The token sequences that the target must not hold."""
    return _shortest(spellings(tokenizer, source.banned))


def spellings(tokenizer: TextTokenizer, phrases: Iterable[str]) -> list[Ids]:
    """Each phrase in a sentence and at the start of one, each spelling once."""
    words = [phrase.strip() for phrase in phrases]
    return list(dict.fromkeys(tuple(tokenizer.encode(space + word)) for word in words for space in (" ", "")))


def holds_word(text: str, phrase: str) -> bool:
    """Whether ``phrase`` stands in ``text`` and is not a part of longer words.

    Where it begins or ends with a mark, or in a script without spaces between words, anything may stand beside it.
    """
    phrase = phrase.strip()
    before = rf"(?<!{_SPACED})" if re.match(_SPACED, phrase) else ""
    after = rf"(?!{_SPACED})" if re.search(rf"{_SPACED}\Z", phrase) else ""
    return re.search(f"{before}{re.escape(phrase)}{after}", text) is not None


def _unknown(name: str, phrase: str) -> ConfigError:
    return ConfigError(
        f"{name}: {phrase!r} holds what this model's vocabulary does not have, so no target can hold it; leave it out, "
        "or spell it as the training text does"
    )


def _shortest(sequences: list[Ids]) -> tuple[Ids, ...]:
    """The sequences that hold no other: where a longer one stands, the shorter stands too."""
    return tuple(each for each in sequences if not any(other != each and _holds(each, other) for other in sequences))


def _holds(sequence: Ids, part: Ids) -> bool:
    return any(sequence[at : at + len(part)] == part for at in range(len(sequence) - len(part) + 1))


def spelling_in(tokens: Ids, phrase: str, tokenizer: TextTokenizer) -> Ids | None:
    """The fewest of ``tokens`` in a row whose text holds ``phrase``; None where none do."""
    places = range(len(tokens) + 1)
    spans = sorted(
        ((start, end) for start in places for end in places[start + 1 :]), key=lambda span: span[1] - span[0]
    )
    return next(
        (tokens[start:end] for start, end in spans if phrase.strip() in tokenizer.decode(tokens[start:end])), None
    )
