"""Ids of much text at once, packed into arrays: how corpora are tokenised.

:class:`PackedEncoder` gives the ids of :meth:`~headway.text.tokenizer.Tokenizer.encode_batch`, an order of magnitude
faster. Byte-pair merges never cross words, so a word is segmented once and remembered. A *chunk* is what stands between
two single spaces, with the space before it: GPT-2's expression cuts there in any case, so that the ids of a text are
those of its chunks, one after the other. Other white space may belong to the word before or after it, depending on what
follows; a text that has some goes to the library whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from headway.text.interface import TextTokenizer

__all__ = ["Packed", "PackedEncoder", "id_bytes", "pack", "single_spaced"]

_REMEMBERED = 1 << 17  # chunks of a generation; two of them are about 50 MB
_LONGEST_REMEMBERED = 40  # characters; in scripts without spaces a chunk is a sentence, seen once


@dataclass(frozen=True)
class Packed:
    """The ids of several texts: ``ids`` one text after the other, ``lengths`` how many belong to each."""

    ids: NDArray[np.uint32]
    lengths: NDArray[np.int64]


def pack(rows: Sequence[bytes]) -> Packed:
    """Pack texts that are each the bytes of an array of uint32."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows)) // 4
    return Packed(np.frombuffer(b"".join(rows), np.uint32), lengths)


def single_spaced(text: str) -> list[str] | None:
    """The words of a text whose only white space is single spaces between words, or None for any other text."""
    words = text.split()
    return words if words and " ".join(words) == text else None


class PackedEncoder:
    """The ids of ``tokenizer``, for much text."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._first = _Chunks(self._segment_each, "")
        self._later = _Chunks(self._segment_each, " ")

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return self._tokenizer.vocab_size

    def encode(self, texts: Sequence[str]) -> Packed:
        """The ids of each text, without special tokens around them."""
        if self._tokenizer.kind == "bpe":
            cut = [single_spaced(text) for text in texts]
            self._first.learn(words[0] for words in cut if words is not None)
            self._later.learn(word for words in cut if words is not None for word in words[1:])
            return pack([self._row(text, words) for text, words in zip(texts, cut, strict=True)])
        rows = self._tokenizer.encode_batch(texts)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return Packed(np.fromiter(chain.from_iterable(rows), np.uint32, int(lengths.sum())), lengths)

    def _row(self, text: str, words: list[str] | None) -> bytes:
        if words is None:
            return self._segment_each([text])[0]
        first, *later = words
        return b"".join([self._first[first], *map(self._later.__getitem__, later)])

    def _segment_each(self, texts: Sequence[str]) -> list[bytes]:
        return [id_bytes(ids) for ids in self._tokenizer.encode_batch(texts)]


def id_bytes(ids: list[int]) -> bytes:
    """Ids as the bytes of an array of uint32."""
    return np.array(ids, np.uint32).tobytes()


class _Chunks(dict[str, bytes]):
    """Word -> the ids of ``before + word``, found when first asked for.

    When there are too many, those that were not asked for since there last were too many are forgotten.
    """

    def __init__(self, segment: Callable[[Sequence[str]], list[bytes]], before: str) -> None:
        super().__init__()
        self._segment, self._before = segment, before
        self._older: dict[str, bytes] = {}

    def learn(self, words: Iterable[str]) -> None:
        """Find the ids of what is new among ``words`` at once, which is many times faster than one by one."""
        known = self, self._older  # other threads may replace the latter
        new = [
            word for word in set(words) if len(word) <= _LONGEST_REMEMBERED and not any(word in each for each in known)
        ]
        for word, ids in zip(new, self._segment([self._before + word for word in new]), strict=True):
            self._remember(word, ids)

    def __missing__(self, word: str) -> bytes:
        ids = self._older.get(word) or self._segment([self._before + word])[0]
        if len(word) <= _LONGEST_REMEMBERED:
            self._remember(word, ids)
        return ids

    def _remember(self, word: str, ids: bytes) -> None:
        if len(self) >= _REMEMBERED:
            self._older = dict(self)
            self.clear()
        self[word] = ids

    def __reduce__(self) -> tuple[type[_Chunks], tuple[Callable[[Sequence[str]], list[bytes]], str]]:
        return _Chunks, (self._segment, self._before)  # another process remembers its own
