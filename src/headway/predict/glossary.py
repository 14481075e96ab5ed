"""Glossaries: how certain phrases of the source must be translated.

A glossary is a list of entries: a source phrase, one or several alternative target phrases, and a rule on case. An
entry applies to a sentence if its source phrase occurs there as whole words (:mod:`headway.text.words`). If entries
overlap, the longest applies. The translation must then contain one of the target phrases, which are written like
phrases to include (:mod:`headway.predict.phrases`).

All source phrases are compiled into tries over words, so a sentence takes one pass however many entries there are.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from headway.data.readers import read_lines
from headway.decode import Phrase
from headway.errors import ConfigError, DataError, HeadwayError, LengthError
from headway.predict.phrases import WordPhrase, to_phrases
from headway.text.base import UNK, TextTokenizer
from headway.text.words import split_words

CaseRule = Literal["ignore", "exact"]
CASE_RULES: tuple[CaseRule, ...] = ("ignore", "exact")

# One line of text that is not blank; target alternatives are separated by "|". The JSON Schema contains these patterns,
# so the end of a text is written as a lookahead, which Python and JavaScript both support.
_CONTROL = r"\x00-\x1f\x7f-\x9f"
_PHRASE = rf"[^|{_CONTROL}]*[^\s|{_CONTROL}][^|{_CONTROL}]*"
_END = r"(?![\s\S])"
SOURCE_PATTERN = rf"^(?=.*\S)[^{_CONTROL}]+{_END}"
TARGET_PATTERN = rf"^{_PHRASE}(?:\|{_PHRASE})*{_END}"

_HEADERS = (["source", "target"], ["source", "target", "case"])
_MAX_TOKENS = 50  # of an entry; a target may always have as many (section 6.1: the source length + 50)


@dataclass(frozen=True)
class GlossaryEntry:
    """One entry of a glossary.

    Attributes:
        source: The source phrase.
        targets: The alternative target phrases.
        case: "exact": the source must have the entry's case. "ignore": any case, and the target may also begin with a
            capital letter.
        where: The place of the entry, for messages.
    """

    source: str
    targets: tuple[str, ...]
    case: CaseRule
    where: str

    @property
    def phrases(self) -> tuple[str, ...]:
        """The target phrases, of which the translation must contain one."""
        if self.case == "exact":
            return self.targets
        capitalized = [target[0].upper() + target[1:] for target in self.targets]
        return tuple(dict.fromkeys((*self.targets, *capitalized)))


class Glossary:
    """Required translations of certain source phrases.

        glossary = Glossary([("Haus", "house|home"), ("Mars", "Mars", "exact")])
        glossary = Glossary.load("terms.tsv")
        model.translate("das Haus", glossary=glossary).glossary

    Args:
        rows: The entries: source phrase, target phrase (alternatives separated by ``|``) and optionally "ignore" or
            "exact", which says whether the case of the source phrase must agree. The default is "ignore".
        places: Where each row comes from, for messages. Default: its number.

    Raises:
        DataError: A row is malformed, or contradicts another.
    """

    def __init__(self, rows: Iterable[Sequence[str]], places: Sequence[str] | None = None) -> None:
        rows = list(rows)
        if places is None:
            places = [f"glossary, row {number}" for number in range(1, len(rows) + 1)]
        self.entries: tuple[GlossaryEntry, ...] = tuple(map(_parse_row, rows, places))
        digest = hashlib.sha256(repr([(each.source, each.targets, each.case) for each in self.entries]).encode())
        self._fingerprint = digest.hexdigest()
        _ = self._tries  # reports contradictions

    @classmethod
    def load(cls, path: str | Path) -> Glossary:
        """Read a file of tab-separated values, or of comma-separated values with quotes (.csv), perhaps compressed.

        Blank lines are skipped, and so is a first line that names the columns: source, target and perhaps case.

        Raises:
            DataError: The file is missing, empty, binary or not UTF-8, or a line is malformed or contradicts another.
        """
        path = Path(path)
        rows: list[list[str]] = []
        places: list[str] = []
        for number, row in _read_rows(path):
            if any(map(str.strip, row)) and not (not rows and [cell.strip().lower() for cell in row] in _HEADERS):
                rows.append(row)
                places.append(f"{path}, line {number}")
        if not rows:
            raise DataError("has no entries", where=str(path), accepted="lines with a source and a target phrase")
        return cls(rows, places)

    def __len__(self) -> int:
        return len(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Glossary) and self._fingerprint == other._fingerprint

    def __hash__(self) -> int:
        return hash(self._fingerprint)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_tries"}

    def matches(self, text: str) -> list[GlossaryEntry]:
        """Return the entries whose source phrases occur in a text, in the order of the text, each once.

        Of overlapping occurrences the longest counts; of equally long ones that with exact case, then the first.
        """
        words = split_words(text)
        readings = [(trie, words if case == "exact" else [*map(str.casefold, words)]) for case, trie in self._tries]
        found: list[tuple[int, int, int, GlossaryEntry]] = []
        for rank, (trie, reading) in enumerate(readings):
            for start, word in enumerate(reading):
                node, end = trie.get(word), start + 1
                while node is not None:
                    if (entry := node.get(None)) is not None:
                        found.append((start, end, rank, entry))
                    node, end = (node.get(reading[end]) if end < len(reading) else None), end + 1
        found.sort(key=lambda each: (-sum(map(len, words[each[0] : each[1]])), each[2], each[0]))
        taken: set[int] = set()
        chosen: list[tuple[int, GlossaryEntry]] = []
        for start, end, _, entry in found:
            if taken.isdisjoint(range(start, end)):
                taken.update(range(start, end))
                chosen.append((start, entry))
        return list(dict.fromkeys(entry for _, entry in sorted(chosen, key=lambda each: each[0])))

    @cached_property
    def _tries(self) -> list[tuple[CaseRule, dict[str, Any]]]:
        """For each rule on case a trie over words: nested dictionaries in which the key None leads to an entry."""
        tries: dict[CaseRule, dict[str, Any]] = {"exact": {}, "ignore": {}}
        for entry in self.entries:
            node: dict[Any, Any] = tries[entry.case]
            for word in split_words(entry.source):
                node = node.setdefault(word if entry.case == "exact" else word.casefold(), {})
            other = node.setdefault(None, entry)
            if set(other.targets) != set(entry.targets):
                raise DataError(
                    f"{entry.source!r} is translated by {'|'.join(entry.targets)!r}, but by "
                    f"{'|'.join(other.targets)!r} in {other.where}",
                    where=entry.where,
                    hint="give all alternatives in one entry, separated by |",
                )
        return list(tries.items())


class ModelGlossary:
    """A glossary with its target phrases in the tokens of a model. Made by :func:`model_glossary`.

    Args:
        glossary: The glossary.
        tokenizer: The model's target tokenizer.
        max_tokens: Maximum number of tokens of an entry.

    Raises:
        HeadwayError: The vocabulary lacks a character of every alternative of an entry, or all are too long.
    """

    def __init__(self, glossary: Glossary, tokenizer: TextTokenizer, max_tokens: int) -> None:
        self._glossary = glossary
        self._tokens = cache(lambda entry: to_phrases(tokenizer, entry.phrases))
        pairs = [(entry, WordPhrase.parse(target).text) for entry in glossary.entries for target in entry.targets]
        problems: dict[GlossaryEntry, HeadwayError | None] = {}
        for (entry, target), ids in zip(pairs, tokenizer.encode_batch([text for _, text in pairs]), strict=True):
            problem: HeadwayError | None = None
            if UNK in ids:
                problem = ConfigError(
                    f"{target!r} contains characters or words that this model's vocabulary does not have",
                    where=entry.where,
                    hint="leave the entry out, or spell it as the training text does",
                )
            elif len(ids) > max_tokens:
                problem = LengthError(
                    f"{target!r} has {len(ids)} tokens",
                    where=entry.where,
                    accepted=f"at most {max_tokens}, which every target may have",
                    hint="shorten the entry, or raise max_length (--max-length) if it is lower than 50",
                )
            problems[entry] = problem and problems.get(entry, problem)
        if problem := next(filter(None, problems.values()), None):
            raise problem

    def matches(self, text: str) -> list[tuple[GlossaryEntry, tuple[Phrase, ...]]]:
        """Return the entries that apply to a text, and for each the token sequences of which one must occur."""
        return [(entry, self._tokens(entry)) for entry in self._glossary.matches(text)]


@lru_cache(4)
def model_glossary(glossary: Glossary, tokenizer: Any, max_tokens: int | None) -> ModelGlossary:
    """Return the glossary for a model, made once; no entry may be longer than 50 tokens or ``max_tokens``."""
    return ModelGlossary(glossary, tokenizer, min(_MAX_TOKENS, max_tokens or _MAX_TOKENS))


def _parse_row(row: Sequence[str], where: str) -> GlossaryEntry:
    if not 2 <= len(row) <= 3:
        raise DataError(
            f"{len(row)} column{'s' * (len(row) != 1)}",
            where=where,
            accepted="a source phrase, a target phrase and perhaps a case rule",
            hint="separate columns by tabs, or by commas in a .csv, where a phrase with commas needs double quotes",
        )
    targets = [target.strip() for target in row[1].split("|")]
    if not row[0].strip() or not all(targets):
        raise DataError("a phrase is empty", where=where, accepted="words in each column and on each side of |")
    for pattern, text in ((SOURCE_PATTERN, row[0]), (TARGET_PATTERN, row[1])):
        if not re.search(pattern, text) or re.search("[\ud800-\udfff]", text):
            raise DataError(f"{text!r} contains a control character", where=where, accepted="one line of text")
    case = row[2] if len(row) > 2 and row[2] else "ignore"
    if case not in CASE_RULES:
        raise DataError(f"case rule {case!r}", where=where, accepted=" or ".join(CASE_RULES))
    return GlossaryEntry(row[0].strip(), tuple(targets), case, where)


def _read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a file, each with the number of its last line."""
    if ".csv" not in path.suffixes[-2:]:
        yield from ((number, line.split("\t")) for number, line in enumerate(read_lines(path), start=1))
        return
    rows = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        yield from ((rows.line_num, row) for row in rows)
    except csv.Error as error:
        raise DataError(
            f"not valid CSV ({error})", where=f"{path}, line {rows.line_num}", hint="double the quotes inside of quotes"
        ) from None
