"""Glossaries: required translations of certain source phrases.

A glossary is a list of entries. Each has a source phrase, one or several alternative target phrases, and a case rule.
An entry applies to a sentence if the sentence contains the source phrase as whole words (:mod:`headway.text.words`), in
the same or a canonically equivalent spelling (:mod:`headway.text.normalization`). If entries overlap, the longest one
applies. The translation must then contain one of the target phrases, which have the same syntax as phrases to include
(:mod:`headway.predict.phrases`).

One dictionary contains all source phrases. Another dictionary maps the first word of each multi-word phrase to the
possible lengths. So the entries that apply to a sentence are found in one pass, however many entries there are. A
glossary needs 200 to 500 bytes per entry.
"""

from __future__ import annotations

import csv
import gc
import hashlib
import re
import textwrap
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count, repeat
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from weakref import WeakKeyDictionary

from headway.data.readers import read_lines
from headway.decode import Phrase, give_way
from headway.errors import ConfigError, DataError, LengthError
from headway.predict.phrases import MAX_PHRASE_TOKENS, WordPhrase, tokenize_phrases
from headway.predict.shared_weights import Lazy
from headway.text.base import UNK, TextTokenizer
from headway.text.normalization import normalize, normalize_characters
from headway.text.words import split_words

CaseRule = Literal["ignore", "exact"]
CASE_RULES: tuple[CaseRule, ...] = ("ignore", "exact")

# The patterns match one nonblank line of text. Target alternatives are separated by "|". The JSON Schema contains these
# patterns, so the end of the text is matched by a lookahead, which both Python and JavaScript support.
_CONTROL = r"\x00-\x1f\x7f-\x9f"
_PHRASE = rf"(?=[^|]*[^\s|{_CONTROL}])[^|{_CONTROL}]+"  # unambiguous, so that matching takes linear time
_END = r"(?![\s\S])"
SOURCE_PATTERN = rf"^(?=.*\S)[^{_CONTROL}]+{_END}"
TARGET_PATTERN = rf"^{_PHRASE}(?:\|{_PHRASE})*{_END}"

_HEADERS = (["source", "target"], ["source", "target", "case"])
_SHOWN_CHARACTERS = 60  # maximum length of a phrase in an error message
_SOURCE, _TARGET, _SURROGATE = re.compile(SOURCE_PATTERN), re.compile(TARGET_PATTERN), re.compile("[\ud800-\udfff]")
_SEPARATOR = "\x1f"  # a control character, which does not occur in normalized text
_ENCODED_TOGETHER = 500  # number of entries to tokenize at a time
_MAX_ALTERNATIVES = 100  # maximum number of alternatives per entry
_MANY_ENTRIES = 20_000  # with fewer entries, a garbage collection takes only a few milliseconds
# Maximum number of glossaries to cache for each tokenizer, and maximum total number of their entries.
_MAX_PREPARED, _MAX_PREPARED_ENTRIES = 64, 200_000


@dataclass(frozen=True, slots=True)
class GlossaryEntry:
    """One entry of a glossary.

    Attributes:
        source: The source phrase.
        targets: The alternative target phrases.
        case: "exact" requires the same case in the text. "ignore" accepts any case, and the target may also begin with
            a capital letter.
        origin: The source of the entry, without its number: "terms.tsv, line".
        number: The number of the entry's line or row.
    """

    source: str
    targets: tuple[str, ...]
    case: CaseRule
    origin: str
    number: int

    @property
    def location(self) -> str:
        """The file and line of the entry, or its row number, for error messages."""
        return f"{self.origin} {self.number}"

    @property
    def accepted_targets(self) -> tuple[str, ...]:
        """The target phrases, in all accepted spellings. The translation must contain one of them."""
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
        rows: The entries. Each has a source phrase, a target phrase (alternatives are separated by ``|``) and
            optionally a case rule, "ignore" (the default) or "exact".
        numbers: The number of each row, for error messages. None means that rows are counted from 1.
        origin: The source of the rows, for error messages.

    Raises:
        DataError: A row is malformed, or contradicts another row.
    """

    def __init__(
        self, rows: Iterable[Sequence[str]], numbers: Iterable[int] | None = None, origin: str = "glossary, row"
    ) -> None:
        rows = list(rows)
        digest = hashlib.sha256()
        with without_garbage_collection(len(rows)):
            self.entries: tuple[GlossaryEntry, ...] = tuple(map(_parse_row, rows, repeat(origin), numbers or count(1)))
            for entry in self.entries:
                give_way()
                digest.update(repr((entry.source, entry.targets, entry.case)).encode())
            self._fingerprint = digest.hexdigest()
            _ = self._indexes  # raises an error if entries contradict each other

    @classmethod
    def load(cls, path: str | Path) -> Glossary:
        """Read tab-separated values, or comma-separated values with quotes (.csv). The file may be compressed.

        Blank lines and a header line (source, target and optionally case) are skipped.

        Raises:
            DataError: The file is missing, empty, binary or not UTF-8, or a line is malformed or contradicts another
                line.
        """
        path = Path(path)
        rows: list[list[str]] = []
        numbers: list[int] = []
        for number, row in _read_rows(path):
            if any(map(str.strip, row)) and not (not rows and [cell.strip().lower() for cell in row] in _HEADERS):
                rows.append(row)
                numbers.append(number)
        if not rows:
            raise DataError("has no entries", where=str(path), accepted="lines with a source and a target phrase")
        return cls(rows, numbers, f"{path}, line")

    def __len__(self) -> int:
        return len(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Glossary) and self._fingerprint == other._fingerprint

    def __hash__(self) -> int:
        return hash(self._fingerprint)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_indexes"}

    def matches(self, text: str) -> list[GlossaryEntry]:
        """Return the entries whose source phrases occur in a text, each once, in the order of their occurrence.

        If occurrences overlap, only the longest one is used. Among equally long occurrences, entries with exact case
        take precedence, and then the first occurrence.
        """
        words = split_words(normalize_characters(text))
        offsets = [0, *accumulate(map(len, words))]
        occurrences: list[tuple[int, int, int, int, GlossaryEntry]] = []
        for rank, index in enumerate(self._indexes):
            for start, end, entry in index.occurrences(words):
                occurrences.append((offsets[start] - offsets[end], rank, start, end, entry))
        occurrences.sort(key=lambda occurrence: occurrence[:3])
        taken = bytearray(len(words))
        chosen: list[tuple[int, GlossaryEntry]] = []
        for _, _, start, end, entry in occurrences:
            # The earlier occurrences are at least as long, so an overlapping one contains the first or the last word.
            if not (taken[start] or taken[end - 1]):
                taken[start:end] = bytes([1]) * (end - start)
                chosen.append((start, entry))
        return list(dict.fromkeys(entry for _, entry in sorted(chosen, key=lambda occurrence: occurrence[0])))

    @cached_property
    def _indexes(self) -> tuple[_Index, _Index]:
        """The entries with exact case, and the entries that ignore case."""
        exact, ignore = _Index("exact"), _Index("ignore")
        for entry in self.entries:
            give_way()
            earlier = (exact if entry.case == "exact" else ignore).add(entry)
            if earlier is not entry and set(map(normalize, earlier.targets)) != set(map(normalize, entry.targets)):
                raise DataError(
                    f"{entry.source!r} is translated as {'|'.join(entry.targets)!r}, but as "
                    f"{'|'.join(earlier.targets)!r} in {earlier.location}",
                    where=entry.location,
                    hint="list all alternatives in one entry, separated by |",
                )
        return exact, ignore


class _Index:
    """The entries with one case rule, indexed by the words of their source phrases."""

    def __init__(self, case: CaseRule) -> None:
        self._case = case
        self._entries: dict[str, GlossaryEntry] = {}  # keys: the joined words of a source phrase
        # Maps the first word of each multi-word phrase to a bit set: bit n is set if such a phrase has n words.
        self._lengths: dict[str, int] = {}

    def add(self, entry: GlossaryEntry) -> GlossaryEntry:
        """Add an entry. Return the first entry with the same source phrase, which may be an earlier one."""
        words = self._folded(split_words(normalize(entry.source)))
        if len(words) > 1:
            self._lengths[words[0]] = self._lengths.get(words[0], 0) | 1 << len(words)
        key = _SEPARATOR.join(words)
        return self._entries.setdefault(
            entry.source if key == entry.source else key, entry
        )  # does not store two equal strings

    def occurrences(self, words: Sequence[str]) -> Iterator[tuple[int, int, GlossaryEntry]]:
        """Yield each entry that occurs in a text, with the index of its first word and the index after its last."""
        words = self._folded(words)
        text = _SEPARATOR.join(words)
        offsets = [0, *accumulate(len(word) + 1 for word in words)]
        for start, word in enumerate(words):
            lengths = self._lengths.get(word, 0) | 1 << 1  # a phrase of one word is always possible
            while lengths:
                shortest = lengths & -lengths
                lengths ^= shortest
                end = start + shortest.bit_length() - 1
                if end > len(words):
                    break
                entry = self._entries.get(text[offsets[start] : offsets[end] - 1])
                if entry is not None:
                    yield start, end, entry

    def _folded(self, words: Sequence[str]) -> Sequence[str]:
        return words if self._case == "exact" else [*map(str.casefold, words)]


class ModelGlossary:
    """A glossary whose target phrases are tokenized for a model. Created by :func:`prepare_glossary`.

    Args:
        glossary: The glossary to prepare.
        tokenizer: The model's target tokenizer.

    Raises:
        HeadwayError: An entry has no usable alternative: each one contains characters that the vocabulary lacks, or has
            more than 50 tokens.
    """

    def __init__(self, glossary: Glossary, tokenizer: TextTokenizer) -> None:
        self._glossary = glossary
        self._tokenizer = weakref.ref(tokenizer)  # weak, so that the cache does not keep the tokenizer alive
        self._tokens: dict[GlossaryEntry, tuple[Phrase, ...]] = {}
        # The entry whose shortest usable alternative is the longest, this alternative, and its number of tokens.
        self._longest: tuple[GlossaryEntry, str, int] | None = None
        for first in range(0, len(glossary.entries), _ENCODED_TOGETHER):
            give_way()
            entries = glossary.entries[first : first + _ENCODED_TOGETHER]
            targets = [[WordPhrase.parse(target).text for target in entry.targets] for entry in entries]
            encoded = iter(tokenizer.encode_batch([target for alternatives in targets for target in alternatives]))
            for entry, alternatives in zip(entries, targets, strict=True):
                self._add(entry, [(target, next(encoded)) for target in alternatives])
        self.check_length(MAX_PHRASE_TOKENS)

    def _add(self, entry: GlossaryEntry, alternatives: Sequence[tuple[str, Sequence[int]]]) -> None:
        usable = [(target, len(ids)) for target, ids in alternatives if UNK not in ids]
        if not usable:
            raise ConfigError(
                f"{alternatives[0][0]!r} contains characters or words that this model's vocabulary does not have",
                where=entry.location,
                hint="remove the entry, or use a spelling that occurs in the training text",
            )
        target, length = min(usable, key=lambda alternative: alternative[1])
        if self._longest is None or length > self._longest[2]:
            self._longest = entry, target, length

    def check_length(self, max_phrase_tokens: int) -> None:
        """Raise :class:`LengthError` if an entry has only alternatives with more than this number of tokens."""
        if self._longest is not None and self._longest[2] > max_phrase_tokens:
            entry, target, length = self._longest
            raise LengthError(
                f"{textwrap.shorten(target, _SHOWN_CHARACTERS, placeholder='…')!r} has {length} tokens",
                where=entry.location,
                accepted=f"at most {max_phrase_tokens}",
                hint="shorten the entry, or raise max_length (--max-length) if it is lower than 50",
            )

    def matches(self, text: str) -> list[GlossaryEntry]:
        """Return the entries that apply to a text."""
        return self._glossary.matches(text)

    def phrases(self, entry: GlossaryEntry) -> tuple[Phrase, ...]:
        """Return an entry's phrases in the model's tokens. The target must contain one of them."""
        if entry not in self._tokens:
            give_way()
            tokenizer = self._tokenizer()
            assert tokenizer is not None  # the translating model keeps the tokenizer alive
            self._tokens[entry] = tokenize_phrases(tokenizer, entry.accepted_targets)
        return self._tokens[entry]


def prepare_glossary(glossary: Glossary, tokenizer: Any, max_phrase_tokens: int | None) -> ModelGlossary:
    """Prepare a glossary for a model. The most recently used glossaries of each tokenizer are cached.

    If several threads need the same glossary, one of them prepares it and the others wait. Other threads do not wait.

    Args:
        glossary: The glossary to prepare.
        tokenizer: The model's target tokenizer.
        max_phrase_tokens: Maximum number of tokens in a target phrase. The limit is never more than 50.

    Raises:
        HeadwayError: An entry has no usable alternative.
    """
    with _CACHE_LOCK:
        prepared = _PREPARED.setdefault(tokenizer, {})
        reference = weakref.ref(tokenizer)
        prepared[glossary] = prepare = prepared.pop(glossary, None) or Lazy(lambda: _prepare(glossary, reference))
        while len(prepared) > 1 and (len(prepared) > _MAX_PREPARED or sum(map(len, prepared)) > _MAX_PREPARED_ENTRIES):
            del prepared[next(iter(prepared))]  # the least recently used entry
    try:
        prepared_glossary: ModelGlossary = prepare()
    except BaseException:
        with _CACHE_LOCK:
            if prepared.get(glossary) is prepare:
                del prepared[glossary]
        raise
    if max_phrase_tokens is not None:
        prepared_glossary.check_length(max_phrase_tokens)
    return prepared_glossary


def is_glossary_prepared(glossary: Glossary, tokenizer: Any) -> bool:
    """Return whether the glossary is in the cache of :func:`prepare_glossary`, which then returns immediately."""
    with _CACHE_LOCK:
        prepare = _PREPARED.get(tokenizer, {}).get(glossary)
    return prepare is not None and prepare.is_made


_CACHE_LOCK = Lock()
_PREPARED: WeakKeyDictionary[Any, dict[Glossary, Lazy]] = WeakKeyDictionary()


def _prepare(glossary: Glossary, reference: weakref.ref[Any]) -> ModelGlossary:
    tokenizer = reference()
    assert tokenizer is not None  # the caller of prepare_glossary has it
    with without_garbage_collection(len(glossary)):
        return ModelGlossary(glossary, tokenizer)


@contextmanager
def without_garbage_collection(num_entries: int) -> Iterator[None]:
    """Disable cyclic garbage collection while many entries are created, and exclude the entries from it afterwards.

    The garbage collector would repeatedly examine all entries, and each time stop all threads for hundreds of
    milliseconds.
    """
    if num_entries < _MANY_ENTRIES or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Move all objects to the oldest generation, or to the frozen objects if the program has frozen any.
        has_frozen = gc.get_freeze_count() > 0
        gc.freeze()
        if not has_frozen:
            gc.unfreeze()
        gc.enable()


def _parse_row(row: Sequence[str], origin: str, number: int) -> GlossaryEntry:
    where = f"{origin} {number}"
    if not 2 <= len(row) <= 3:
        raise DataError(
            f"{len(row)} column{'s' * (len(row) != 1)}",
            where=where,
            accepted="a source phrase, a target phrase and optionally a case rule",
            hint="separate columns with tabs, or in .csv files with commas; put phrases with commas in double quotes",
        )
    give_way()
    if row[1].count("|") >= _MAX_ALTERNATIVES:
        raise DataError(
            f"{row[1].count('|') + 1:,} alternatives",
            where=where,
            accepted=f"at most {_MAX_ALTERNATIVES}",
            hint="choose the best translations of the phrase",
        )
    targets = [target.strip() for target in row[1].split("|")]
    if not row[0].strip() or not all(targets):
        raise DataError("a phrase is empty", where=where, accepted="words in each column and on each side of |")
    for pattern, text in ((_SOURCE, row[0]), (_TARGET, row[1])):
        if not pattern.search(text) or _SURROGATE.search(text):
            raise DataError(f"{text!r} contains a control character", where=where, accepted="one line of text")
    case = row[2] if len(row) > 2 and row[2] else "ignore"
    if case not in CASE_RULES:
        raise DataError(f"case rule {case!r}", where=where, accepted=" or ".join(CASE_RULES))
    return GlossaryEntry(row[0].strip(), tuple(targets), case, origin, number)


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
            f"not valid CSV ({error})", where=f"{path}, line {rows.line_num}", hint="double each quote inside quotes"
        ) from None
