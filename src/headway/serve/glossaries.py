"""The glossaries that clients create. They are kept in memory and, if one is configured, in a folder.

A glossary has dictionaries, at most one for each pair of languages. The entries of a dictionary are stored as
tab-separated lines, which need far less memory than a :class:`~headway.predict.Glossary`. Workers receive these lines
before the first job that needs them, and cache the glossaries that they build from them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from headway.config import Config
from headway.decode import give_way
from headway.errors import ConfigError, DataError
from headway.predict.shared_weights import Lazy
from headway.predict.translation.glossary import Glossary, without_garbage_collection
from headway.serve.errors import GlossariesFullError, UnknownDictionaryError, UnknownGlossaryError
from headway.storage import atomic_write_text
from headway.text.languages import base_language

BYTE_ORDER_MARK = "\ufeff"
_MAX_NAME = 1024  # characters
_NOT_IN_LINES = re.compile("[\t\n\ud800-\udfff]")
# Maximum numbers of glossaries, entries and characters in a worker's cache.
_MAX_RECENT, _MAX_RECENT_ENTRIES, _MAX_RECENT_CHARACTERS = 64, 200_000, 20_000_000


@dataclass(frozen=True)
class GlossaryDigest:
    """Identifies a glossary in a worker by a digest of its lines."""

    value: bytes


@dataclass(frozen=True)
class GlossaryLines:
    """The entries of a glossary as tab-separated lines, which is the format for sending them to workers."""

    text: str

    def __reduce__(self) -> tuple[Any, ...]:
        return GlossaryLines, (self.text,)

    @cached_property
    def num_entries(self) -> int:
        """The number of entries."""
        return self.text.count("\n") + 1

    @cached_property
    def digest(self) -> GlossaryDigest:
        """The SHA-256 digest of the lines."""
        return GlossaryDigest(hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).digest())

    def build(self) -> Glossary:
        """Return the glossary, which the first call builds. Meanwhile, other threads that need the glossary wait.

        Raises:
            DataError: An entry is malformed or contradicts another entry.
        """
        glossary: Glossary = self._glossary()
        return glossary

    @property
    def is_built(self) -> bool:
        """Whether the glossary has been built, so that :meth:`build` returns immediately."""
        return self._glossary.is_made

    @cached_property
    def _glossary(self) -> Lazy:
        return Lazy(self._parse)

    def _parse(self) -> Glossary:
        with without_garbage_collection(self.num_entries):
            rows: list[list[str]] = []
            for line in StringIO(self.text):
                give_way()
                rows.append(line.removesuffix("\n").split("\t"))
            _add_case_rules(rows)
            return Glossary(rows)


class GlossaryCache:
    """An LRU cache of the glossaries in a worker. The service keeps a copy to determine which glossaries to send."""

    def __init__(self) -> None:
        self._glossaries: dict[GlossaryDigest, GlossaryLines] = {}
        self._entries = self._characters = 0  # totals over all glossaries

    def __contains__(self, digest: GlossaryDigest) -> bool:
        return digest in self._glossaries

    def get(self, digest: GlossaryDigest) -> GlossaryLines:
        """Return a glossary, and mark it as the most recently used."""
        lines = self._glossaries[digest]
        self.add(lines)
        return lines

    def add(self, lines: GlossaryLines) -> None:
        """Add a glossary, or mark it as used. The least recently used glossaries are removed to make room."""
        kept = self._remove(lines.digest) or lines  # prefer the cached object, which may already be built
        self._glossaries[kept.digest] = kept
        self._entries += kept.num_entries
        self._characters += len(kept.text)
        while len(self._glossaries) > 1 and self._is_too_large():
            self._remove(next(iter(self._glossaries)))

    def _remove(self, digest: GlossaryDigest) -> GlossaryLines | None:
        lines = self._glossaries.pop(digest, None)
        if lines is not None:
            self._entries -= lines.num_entries
            self._characters -= len(lines.text)
        return lines

    def _is_too_large(self) -> bool:
        return (
            len(self._glossaries) > _MAX_RECENT
            or self._entries > _MAX_RECENT_ENTRIES
            or self._characters > _MAX_RECENT_CHARACTERS
        )


def _add_case_rules(rows: Sequence[list[str]]) -> None:
    """Add the case rule "exact" to entries without a rule that contradict each other if case is ignored."""
    targets: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        give_way()
        targets[row[0].casefold()].update(row[1:2])
    for row in rows:
        give_way()
        if len(row) == 2 and len(targets[row[0].casefold()]) > 1:
            row.append("exact")


class Dictionary(Config):
    """The glossary entries for a pair of languages.

    Attributes:
        source: Code of the source language, without a region.
        target: Code of the target language, without a region.
        lines: The entries as tab-separated lines.
    """

    source: str
    target: str
    lines: str

    @classmethod
    def from_rows(cls, source: str, target: str, rows: Iterable[Sequence[str]]) -> Dictionary:
        """Create a dictionary from rows, each with a source phrase, a target phrase and optionally a case rule.

        A byte order mark before the first row is dropped; it comes from a file that the client has read.

        Raises:
            DataError: A phrase contains a tab, a line break or an unpaired surrogate. Workers check everything else.
        """
        lines = []
        for number, row in enumerate(rows, start=1):
            if any(map(_NOT_IN_LINES.search, row)):
                raise DataError(f"glossary, row {number}: a phrase contains a control character")
            lines.append("\t".join(row))
        return cls(
            source=base_language(source),
            target=base_language(target),
            lines="\n".join(lines).removeprefix(BYTE_ORDER_MARK),
        )

    @property
    def rows(self) -> list[list[str]]:
        """The entries as lists of a source phrase, a target phrase and optionally a case rule."""
        return [line.split("\t") for line in self.lines.split("\n")]

    @cached_property
    def glossary_lines(self) -> GlossaryLines:
        """The entries in the format for sending them to workers."""
        return GlossaryLines(self.lines)

    @property
    def num_entries(self) -> int:
        """The number of entries."""
        return self.lines.count("\n") + 1


class StoredGlossary(Config):
    """A glossary that a client has created.

    Attributes:
        id: Unique id of the glossary.
        owner: Name of the key that created the glossary. Only this key can use it.
        name: Name chosen by the client. Several glossaries may have the same name.
        created: Time of creation (ISO 8601, UTC).
        dictionaries: The glossary's dictionaries, one for each pair of languages.
    """

    id: str
    owner: str
    name: str
    created: str
    dictionaries: tuple[Dictionary, ...]

    @classmethod
    def create(cls, owner: str, name: str, dictionaries: Iterable[Dictionary]) -> StoredGlossary:
        """Create a glossary with a new id.

        Raises:
            ConfigError: The name is empty or too long, or two dictionaries have the same languages.
        """
        listed = tuple(dictionaries)
        _check_name(name)
        if len({(dictionary.source, dictionary.target) for dictionary in listed}) < len(listed):
            raise ConfigError("the glossary has several dictionaries for the same pair of languages")
        created = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        data = {"id": str(uuid.uuid4()), "owner": owner, "name": name, "created": created, "dictionaries": listed}
        return cls.parse(data, "glossary")

    def dictionary(self, source: str, target: str) -> Dictionary:
        """Return the dictionary for a pair of languages, ignoring regions.

        Raises:
            UnknownDictionaryError: The glossary has no dictionary for this pair.
        """
        pair = base_language(source), base_language(target)
        match = next(
            (dictionary for dictionary in self.dictionaries if (dictionary.source, dictionary.target) == pair), None
        )
        if match is None:
            raise UnknownDictionaryError(f"{source} to {target}")
        return match

    def with_name(self, name: str) -> StoredGlossary:
        """Return a copy of the glossary with another name. Raises :class:`ConfigError` if the name is invalid."""
        _check_name(name)
        return self.model_copy(update={"name": name})

    def with_entries(self, dictionary: Dictionary) -> StoredGlossary:
        """Return a copy with the entries of ``dictionary`` added. They replace entries with the same source phrase."""
        try:
            rows = self.dictionary(dictionary.source, dictionary.target).rows
        except UnknownDictionaryError:
            return self.with_dictionary(dictionary)
        merged = {row[0]: row for row in (*rows, *dictionary.rows)}
        return self.with_dictionary(Dictionary.from_rows(dictionary.source, dictionary.target, merged.values()))

    def with_dictionary(self, dictionary: Dictionary) -> StoredGlossary:
        """Return a copy with ``dictionary`` added. It replaces an existing dictionary for the same languages."""
        pair = dictionary.source, dictionary.target
        others = tuple(other for other in self.dictionaries if (other.source, other.target) != pair)
        return self.model_copy(update={"dictionaries": (*others, dictionary)})

    def without_dictionary(self, dictionary: Dictionary) -> StoredGlossary:
        """Return a copy without ``dictionary``."""
        others = tuple(other for other in self.dictionaries if other != dictionary)
        return self.model_copy(update={"dictionaries": others})

    @property
    def size(self) -> int:
        """Size of the glossary in characters: its name and all entries."""
        return len(self.name) + sum(len(dictionary.lines) for dictionary in self.dictionaries)


class GlossaryStore:
    """The glossaries of a service.

    Args:
        folder: Folder in which each glossary is stored as a file. None means that glossaries are lost when the service
            stops.
        max_glossaries: Maximum number of glossaries per owner.
        max_characters: Maximum total size of an owner's glossaries, in characters.
        max_entries: Maximum number of entries per dictionary.

    Raises:
        ConfigError: The folder cannot be used, or a file in it is not a glossary.
    """

    def __init__(
        self, folder: Path | None, *, max_glossaries: int, max_characters: int, max_entries: int = 100_000
    ) -> None:
        self._folder, self._max_glossaries, self._max_characters = folder, max_glossaries, max_characters
        self._max_entries = max_entries
        self._glossaries: dict[str, StoredGlossary] = {}
        if folder is not None:
            read = sorted(map(_read, _files(folder)), key=lambda glossary: glossary.created)
            self._glossaries = {glossary.id: glossary for glossary in read}

    def get(self, owner: str, identifier: str) -> StoredGlossary:
        """Return the glossary with this id.

        Raises:
            UnknownGlossaryError: No glossary has this id, or the glossary has another owner.
        """
        glossary = self._glossaries.get(identifier)
        if glossary is None or glossary.owner != owner:
            raise UnknownGlossaryError(identifier)
        return glossary

    def owned_by(self, owner: str) -> list[StoredGlossary]:
        """Return the glossaries of an owner in order of creation."""
        return [glossary for glossary in list(self._glossaries.values()) if glossary.owner == owner]

    def check_limits(self, glossary: StoredGlossary) -> None:
        """Raise :class:`GlossariesFullError` if storing ``glossary`` would exceed a limit of its owner."""
        others = [other for other in self.owned_by(glossary.owner) if other.id != glossary.id]
        if len(others) >= self._max_glossaries:
            raise GlossariesFullError(f"The service stores at most {self._max_glossaries:,} glossaries per key")
        if sum(other.size for other in others) + glossary.size > self._max_characters:
            raise GlossariesFullError(
                f"The glossaries of a key may have at most {self._max_characters:,} characters in total"
            )
        self.check_entries(glossary)

    def check_entries(self, glossary: StoredGlossary) -> None:
        """Raise :class:`GlossariesFullError` if a dictionary has too many entries."""
        if max((dictionary.num_entries for dictionary in glossary.dictionaries), default=0) > self._max_entries:
            raise GlossariesFullError(f"A dictionary in a glossary may have at most {self._max_entries:,} entries")

    def put(self, glossary: StoredGlossary) -> None:
        """Add a glossary, or replace the glossary with the same id.

        Raises:
            GlossariesFullError: The owner would have too many glossaries, or they would be too large.
            OutputError: The file cannot be written.
        """
        self.check_limits(glossary)
        if self._folder is not None:
            atomic_write_text(self._path(self._folder, glossary), json.dumps(glossary.as_dict()), private=True)
        self._glossaries[glossary.id] = glossary

    def delete(self, glossary: StoredGlossary) -> None:
        """Delete a glossary and its file."""
        if self._folder is not None:
            self._path(self._folder, glossary).unlink(missing_ok=True)
        self._glossaries.pop(glossary.id, None)

    @staticmethod
    def _path(folder: Path, glossary: StoredGlossary) -> Path:
        return folder / f"{glossary.id}.json"


class GlossaryEditor:
    """Creates, changes and deletes glossaries, one at a time for each owner.

    Args:
        store: The glossaries to edit.
        check: Checks whether the models can apply an owner's dictionaries, and raises an error if they cannot.
    """

    def __init__(self, store: GlossaryStore, check: Callable[[str, Sequence[Dictionary]], Awaitable[None]]) -> None:
        self._store, self._check = store, check
        self._editing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one lock per owner
        self._storing = asyncio.Lock()

    async def create(self, owner: str, name: str, dictionaries: Sequence[Dictionary]) -> StoredGlossary:
        """Create and store a glossary.

        Raises :class:`ConfigError` for an invalid name, and the same exceptions as :meth:`edit`.
        """
        glossary = StoredGlossary.create(owner, name, dictionaries)
        async with self._editing[owner]:
            await self._put(glossary, dictionaries)
        return glossary

    async def edit(
        self, owner: str, identifier: str, edit: Callable[[StoredGlossary], StoredGlossary]
    ) -> StoredGlossary:
        """Replace a glossary with the result of ``edit``, and return the new glossary.

        Raises:
            UnknownGlossaryError: The owner has no glossary with this id.
            UnknownLanguageError: No model translates the languages of a dictionary.
            HeadwayError: An entry is malformed, contradicts another entry, or cannot be generated by the model.
            GlossariesFullError: The owner would have too many glossaries, or they would be too large.
        """
        async with self._editing[owner]:
            old = self._store.get(owner, identifier)
            new = await asyncio.to_thread(edit, old)  # merging large glossaries takes long
            await self._put(new, [dictionary for dictionary in new.dictionaries if dictionary not in old.dictionaries])
        return new

    async def delete(self, owner: str, identifier: str) -> None:
        """Delete a glossary. Raises :class:`UnknownGlossaryError` if the owner has no glossary with this id."""
        async with self._editing[owner], self._storing:
            self._store.delete(self._store.get(owner, identifier))

    async def _put(self, glossary: StoredGlossary, changed: Sequence[Dictionary]) -> None:
        """Check the changed dictionaries, and store the glossary."""
        self._store.check_limits(glossary)
        await self._check(glossary.owner, changed)
        async with self._storing:
            await asyncio.to_thread(self._store.put, glossary)


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= _MAX_NAME or not name.isprintable():
        raise ConfigError(f"the name of a glossary must have 1 to {_MAX_NAME:,} printable characters")


def _files(folder: Path) -> list[Path]:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return sorted(folder.glob("*.json"))
    except OSError as error:
        raise ConfigError(f"glossary_folder: {folder} cannot be used ({error.strerror})") from None


def _read(path: Path) -> StoredGlossary:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a glossary of this service ({error}); remove the file") from None
    glossary = StoredGlossary.parse_saved(data, str(path))
    if glossary.id != path.stem:
        raise ConfigError(f"{path}: contains the glossary {glossary.id!r}; name the file after its id, or remove it")
    return glossary
