"""The base class of imported tokenizers, which reorder ids and have reserved ids.

An imported vocabulary is rearranged into Headway's order: <pad>, <bos>, <eos>, <unk>, then the other tokens in their
original order. *Reserved* ids are special tokens, language codes, masks and unused rows. Encoding a text never returns
them, and decoding skips them. (The original toolkits of these models do match such tokens inside text, so that a
sentence about "</s>" would end early.)
"""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import BundleError
from headway.text.base import MASK, NUM_SPECIAL, TextTokenizer, decode_utf8

IMPORTED_FORMAT_VERSION = 2  # version of the saved file; Headway's own tokenizer uses version 1
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class ImportedTokenizer(TextTokenizer):
    """The base class of imported tokenizers.

    Args:
        names: Text that is displayed for each id.
        reserved_ids: Ids that encoding a text never returns. The four special ids are always reserved.
        pieces: Token of each id, as spelled by the tokenizer's library.
        byte_tokens: Maps ids to bytes, which may be part of a character. Contains all ids of a byte-level vocabulary,
            or the ids of single bytes in other vocabularies.
    """

    def __init__(
        self,
        names: Sequence[str],
        reserved_ids: Iterable[int],
        pieces: Iterable[str] = (),
        byte_tokens: Mapping[int, bytes] | None = None,
    ) -> None:
        self._names, self._pieces, self.vocab_size = tuple(names), tuple(pieces), len(names)
        self._byte_tokens = byte_tokens or {}
        self.reserved_ids = frozenset(reserved_ids) | frozenset(range(NUM_SPECIAL))
        if stray := [index for index in self.reserved_ids if not 0 <= index < len(names)]:
            raise BundleError(f"reserved id {stray[0]} is not in a vocabulary of {len(names)} tokens")

    @property
    def pieces(self) -> Sequence[str]:
        """The token of each id, as the tokenizer's library spells it."""
        return self._pieces

    @property
    def mask_id(self) -> int | None:
        """The id of the mask token: the reserved token [MASK] (BERT) or <mask> (RoBERTa), or None."""
        return next((index for index in sorted(self.reserved_ids) if self._names[index] in (MASK, "<mask>")), None)

    def mandatory_ids(self) -> frozenset[int]:
        """Return the ids of special tokens, languages and single-byte tokens. Unused rows are not included."""
        named = (index for index in self.reserved_ids if not self._names[index].startswith("<unused "))
        return super().mandatory_ids().union(named, byte_token_values(dict(enumerate(self._spelled()))))

    def _spelled(self) -> Sequence[str]:
        """Return the token of each id, as spelled by the library."""
        return self._pieces

    def _name(self, index: int) -> str:
        return self._names[index]

    @classmethod
    @abstractmethod
    def from_saved(cls, saved: dict[str, Any], path: Path) -> ImportedTokenizer:
        """Create the tokenizer from the parsed content of its file. The caller must handle errors such as KeyError."""

    @abstractmethod
    def _fields(self) -> Mapping[str, Any]:
        """Return the fields of the saved file, except format, version and kind."""

    def _saved(self) -> Mapping[str, Any]:
        return {"format": "headway-tokenizer", "version": IMPORTED_FORMAT_VERSION, "kind": self.kind, **self._fields()}

    def decode_continuation(self, ids: Sequence[int], *, final: bool = False) -> str:
        """Return the text that ``ids`` append to a preceding text. Unless ``final``, omit an incomplete character at
        the end.

        The libraries remove a space at the beginning of a text, so ids are decoded after the ids of a letter. Bytes are
        not decoded by the libraries, because some of them lose complete characters before an incomplete one.
        """
        before = self.encode("a")
        start, parts = len(self._joined(before)), list[str]()
        grouped = itertools.groupby(self._text_ids(ids), key=self._byte_tokens.__contains__)
        runs = [(are_bytes, list(run)) for are_bytes, run in grouped]
        for number, (are_bytes, run) in enumerate(runs, start=1):
            if are_bytes:
                data = b"".join(self._byte_tokens[index] for index in run)
                parts.append(decode_utf8(data, final=final or number < len(runs)))
            else:
                parts.append(self._joined([*before, *run])[start:])
        return "".join(parts)

    def _joined(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``. The library may remove spaces at its beginning."""
        return self.decode(ids)

    def _text_ids(self, ids: Sequence[int]) -> list[int]:
        """Return ``ids`` without the reserved ids."""
        self._check_ids(ids)
        return [index for index in ids if index not in self.reserved_ids]


def byte_token_values(tokens: Mapping[int, str]) -> dict[int, bytes]:
    """Return the bytes of tokens that are spelled as single bytes, such as "<0xE2>", keyed by id."""
    matches = ((index, _BYTE_TOKEN.fullmatch(token)) for index, token in tokens.items())
    return {index: bytes.fromhex(match[1]) for index, match in matches if match}
