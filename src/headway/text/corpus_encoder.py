"""Fast tokenization of large corpora into arrays of ids.

:class:`CorpusEncoder` returns the same ids as :meth:`~headway.text.tokenizer.Tokenizer.encode_batch`, but faster.
Byte-pair merges never cross words, and tokens of kind "words" are such words, so each word is segmented once and
cached. The cache stores *chunks*: a chunk is the text between two single spaces, including the preceding space. GPT-2's
regular expression always splits there, and before line breaks that follow a word, so the ids of a text are the
concatenated ids of its chunks. Other white space may belong to the preceding or following word, depending on the
context. A line with such white space is tokenized as a whole; if a line starts or ends with it, the entire text is
tokenized as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from headway.text.base import TextTokenizer

_LINE_BREAKS = re.compile("(\n+)")
_GROUP_CHARACTERS = 1 << 20  # number of characters of text whose words are in memory at a time
_MAX_CACHED = 1 << 17  # number of chunks in a generation; two generations take about 50 MB
# in characters; longer chunks occur mostly once, such as whole sentences in scripts without spaces
_MAX_CACHED_LENGTH = 40


@dataclass(frozen=True)
class PackedIds:
    """The token ids of several texts: the concatenated ``ids``, and the number of tokens of each text (``lengths``)."""

    ids: NDArray[np.uint32]
    lengths: NDArray[np.int64]


def pack_id_bytes(rows: Sequence[bytes]) -> PackedIds:
    """Concatenate the token ids of texts, each given as the bytes of a uint32 array."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows)) // 4
    return PackedIds(np.frombuffer(b"".join(rows), np.uint32), lengths)


def split_if_single_spaced(text: str) -> list[str] | None:
    """Return the words of a text, or None if it contains white space other than single spaces between words."""
    words = text.split()
    return words if words and " ".join(words) == text else None


def _split_lines(text: str) -> list[list[str]]:
    """Split a text into lines, each with the preceding line breaks, and the lines into words at single spaces.

    A line that contains other white space between words is returned as a single word.
    """
    lines = _LINE_BREAKS.split(text)
    lines, breaks = lines[::2], lines[1::2]
    if any(line != line.strip() for line in lines):
        return [[text]]
    split = []
    for before, line in zip(["", *breaks], lines, strict=True):
        first, *later = split_if_single_spaced(line) or [line]
        split.append([before + first, *later])
    return split


def _group_texts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divide texts into groups, because the words of a text take ten times as much memory as the text itself."""
    start = size = 0
    for end, text in enumerate(texts, start=1):
        size += len(text)
        if size >= _GROUP_CHARACTERS or end == len(texts):
            yield texts[start:end]
            start, size = end, 0


class CorpusEncoder:
    """Computes the same ids as ``tokenizer``, but faster for large corpora."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._first = _Chunks(self._segment_each, "")
        self._later = _Chunks(self._segment_each, " ")

    @property
    def vocab_size(self) -> int:
        """The size of the tokenizer's vocabulary."""
        return self._tokenizer.vocab_size

    def encode(self, texts: Sequence[str]) -> PackedIds:
        """Return the ids of each text, without special tokens around them."""
        if self._tokenizer.kind in ("bpe", "words"):
            return pack_id_bytes([row for group in _group_texts(texts) for row in self._encode_group(group)])
        rows = self._tokenizer.encode_batch(texts)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return PackedIds(np.fromiter(chain.from_iterable(rows), np.uint32, int(lengths.sum())), lengths)

    def _encode_group(self, texts: Sequence[str]) -> Iterator[bytes]:
        split = [_split_lines(text) for text in texts]
        self._first.add_words({words[0] for lines in split for words in lines})
        self._later.add_words({word for lines in split for words in lines for word in words[1:]})
        return (b"".join(map(self._encode_line, lines)) for lines in split)

    def _encode_line(self, words: list[str]) -> bytes:
        first, *later = words
        return b"".join([self._first[first], *map(self._later.__getitem__, later)])

    def _segment_each(self, texts: Sequence[str]) -> list[bytes]:
        return [ids_to_bytes(ids) for ids in self._tokenizer.encode_batch(texts)]


def ids_to_bytes(ids: list[int]) -> bytes:
    """Return the bytes of a uint32 array of ``ids``."""
    return np.array(ids, np.uint32).tobytes()


class _Chunks(dict[str, bytes]):
    """A cache that maps each word to the ids of ``prefix`` + word, filled on demand.

    When the cache is full, it starts a new generation. Words that were not used during the previous generation are
    dropped.
    """

    def __init__(self, segment: Callable[[Sequence[str]], list[bytes]], prefix: str) -> None:
        super().__init__()
        self._segment, self._prefix = segment, prefix
        self._older: dict[str, bytes] = {}

    def add_words(self, words: set[str]) -> None:
        """Add the ids of all new ``words`` in a single call, which is many times faster than adding them one by one."""
        older = self._older  # read once, because other threads may replace the attribute
        new = [word for word in words if len(word) <= _MAX_CACHED_LENGTH and word not in self and word not in older]
        for word, ids in zip(new, self._segment([self._prefix + word for word in new]), strict=True):
            self._store(word, ids)

    def __missing__(self, word: str) -> bytes:
        ids = self._older.get(word) or self._segment([self._prefix + word])[0]
        if len(word) <= _MAX_CACHED_LENGTH:
            self._store(word, ids)
        return ids

    def _store(self, word: str, ids: bytes) -> None:
        if len(self) >= _MAX_CACHED:
            self._older = dict(self)
            self.clear()
        self[word] = ids

    def __reduce__(self) -> tuple[type[_Chunks], tuple[Callable[[Sequence[str]], list[bytes]], str]]:
        return _Chunks, (self._segment, self._prefix)  # each process has a separate cache
