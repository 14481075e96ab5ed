"""The base class of imported tokenizers, which change the order of ids and have reserved ids.

An imported vocabulary is rearranged into Headway's order: <pad>, <bos>, <eos>, <unk>, then the other tokens in their
original order. *Reserved* ids are special tokens, language codes, masks and unused rows. Encoding a text never returns
them, and decoding skips them. (The toolkits that these models come from do find such tokens inside text, so a sentence
about "</s>" ends early in them.)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import BundleError
from headway.text.base import MASK, NUM_SPECIAL, TextTokenizer

IMPORTED_FORMAT_VERSION = 2  # version of the saved file; version 1 is for Headway's own tokenizer


class ImportedTokenizer(TextTokenizer):
    """The base class of imported tokenizers.

    Args:
        names: The displayed text of each id.
        reserved_ids: Ids that encoding a text never returns. The four special ids are always reserved.
        pieces: The token of each id, as the tokenizer's library spells it.
    """

    def __init__(self, names: Sequence[str], reserved_ids: Iterable[int], pieces: Iterable[str] = ()) -> None:
        self._names, self._pieces, self.vocab_size = tuple(names), tuple(pieces), len(names)
        self.reserved_ids = frozenset(reserved_ids) | frozenset(range(NUM_SPECIAL))
        if stray := [index for index in self.reserved_ids if not 0 <= index < len(names)]:
            raise BundleError(f"reserved id {stray[0]} is not in a vocabulary of {len(names)} tokens")

    @property
    def pieces(self) -> Sequence[str]:
        """The token of each id, as the tokenizer's library spells it."""
        return self._pieces

    @property
    def mask_id(self) -> int | None:
        """The id of hidden tokens: the reserved token [MASK] (BERT) or <mask> (RoBERTa), or None."""
        return next((index for index in sorted(self.reserved_ids) if self._names[index] in (MASK, "<mask>")), None)

    def _name(self, index: int) -> str:
        return self._names[index]

    @classmethod
    @abstractmethod
    def from_saved(cls, saved: dict[str, Any], path: Path) -> ImportedTokenizer:
        """Create the tokenizer from the parsed content of its file. The caller handles errors such as KeyError."""

    @abstractmethod
    def _fields(self) -> Mapping[str, Any]:
        """Return the fields of the saved file, except its format, version and kind."""

    def _saved(self) -> Mapping[str, Any]:
        return {"format": "headway-tokenizer", "version": IMPORTED_FORMAT_VERSION, "kind": self.kind, **self._fields()}

    def decode_continuation(self, ids: Sequence[int]) -> str:
        """Return the text that ``ids`` add to a text before them.

        The libraries remove a space at the beginning of a text, so the ids are decoded after those of a letter.
        """
        before = self.encode("a")
        return self._joined([*before, *ids])[len(self._joined(before)) :]

    def _joined(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, of which the library may have removed spaces at the beginning."""
        return self.decode(ids)

    def _text_ids(self, ids: Sequence[int]) -> list[int]:
        """Return ``ids`` without the reserved ids."""
        self._check_ids(ids)
        return [index for index in ids if index not in self.reserved_ids]
