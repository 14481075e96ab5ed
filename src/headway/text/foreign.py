"""What the tokenizers of imported models have in common: another order of ids, and ids that no text makes.

An imported vocabulary is put in Headway's order (<pad>, <bos>, <eos>, <unk>, then the others in their old order).
*Reserved* ids are the special tokens, language codes, masks and rows that the vocabulary does not use: text never makes
them, and they contribute nothing to decoded text. (The toolkits that these models come from do find such tokens inside
text, so that a sentence about "</s>" ends early there.)
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headway.errors import BundleError, ConfigError
from headway.storage import atomic_write
from headway.text.tokenizer import NUM_SPECIAL, MergeStep

__all__ = ["FORMAT", "VERSION", "ForeignTokenizer"]

FORMAT, VERSION = "headway-tokenizer", 2


class ForeignTokenizer:
    """The part of a tokenizer that does not depend on who cuts text into pieces.

    Args:
        names: What each id is shown as.
        reserved: Ids that text never makes; the four special ones are among them without being listed.
    """

    kind: str
    tags: tuple[str, ...] = ()

    def __init__(self, names: Sequence[str], reserved: Iterable[int]) -> None:
        self._names = tuple(names)
        self.reserved = frozenset(reserved) | frozenset(range(NUM_SPECIAL))
        if stray := [index for index in self.reserved if not 0 <= index < len(self._names)]:
            raise BundleError(f"reserved id {stray[0]} is not in a vocabulary of {len(self._names)} tokens")

    @property
    def vocab_size(self) -> int:
        """How many ids there are, those that the vocabulary does not use included."""
        return len(self._names)

    def tag_id(self, name: str) -> int:
        """Imported tokenizers have no tags: always :class:`ConfigError`. Languages are the model folder's framing."""
        raise ConfigError(f"unknown tag {name!r}; an imported vocabulary has none")

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, without special tokens around them."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; what the vocabulary does not hold is ``UNK``."""
        raise NotImplementedError

    def tokens(self, text: str) -> list[str]:
        """The readable pieces of ``text``; see :meth:`display`."""
        return self.display(self.encode(text))

    def display(self, ids: Sequence[int]) -> list[str]:
        """Each id for people: the text of its piece, or the name of a reserved one."""
        self.check_ids(ids)
        return [self._names[index] for index in ids]

    def saved(self) -> dict[str, Any]:
        """What the saved file has besides format, version and kind."""
        raise NotImplementedError

    @functools.cached_property
    def content(self) -> str:
        """The saved file."""
        whole = {"format": FORMAT, "version": VERSION, "kind": self.kind, **self.saved()}
        return json.dumps(whole, ensure_ascii=False, separators=(",", ":")) + "\n"

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the saved file, in hexadecimal."""
        return hashlib.sha256(self.content.encode()).hexdigest()

    def save(self, folder: Path, name: str) -> None:
        """Write ``folder/name.json``, whole or not at all."""
        with atomic_write(folder / f"{name}.json") as aside:
            aside.write_text(self.content, encoding="utf-8", newline="\n")

    def merges_applied(self, text: str) -> list[MergeStep]:
        """Nothing: these libraries do not tell how they segment."""
        return []

    def check_ids(self, ids: Sequence[int]) -> None:
        """Refuse an id that is not in the vocabulary."""
        if wrong := [index for index in ids if not 0 <= index < self.vocab_size]:
            raise ConfigError(
                f"id {wrong[0]} is not in this vocabulary, whose ids are 0 to {self.vocab_size - 1}; "
                "were the ids made by another tokenizer?"
            )

    def kept(self, ids: Sequence[int]) -> list[int]:
        """Those of ``ids`` that stand for text."""
        self.check_ids(ids)
        return [index for index in ids if index not in self.reserved]
