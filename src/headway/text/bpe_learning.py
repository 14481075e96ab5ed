"""Learn byte-pair encoding step by step, with the counts of the merged pairs.

Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016, algorithm 1: each word of the
corpus is a sequence of symbols. Each step counts all pairs of adjacent symbols, weighted by word frequency, and
replaces every occurrence of the most frequent pair with a new symbol. As in :mod:`headway.text.tokenizer`, the initial
symbols are bytes, and a word includes the space before it.

The merges are the same as with Hugging Face `tokenizers`, which learns the vocabularies of models: among equally
frequent pairs, the pair with the lowest ids is merged (bytes in the order of their spelling, then merged symbols in the
order of learning). This implementation makes each step visible; the library is faster.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from headway.text.base import check_no_surrogates
from headway.text.tokenizer import readable_piece, word_splitter

_Pair = tuple[str, str]


@dataclass(frozen=True)
class LearnedMerge:
    """A learned merge. Symbols are in readable form (see :meth:`headway.text.base.TextTokenizer.display`).

    Attributes:
        rank: Position in the order of learning, counted from 0.
        left: The left symbol of the merged pair.
        right: The right symbol of the merged pair.
        merged: The new symbol.
        count: Number of occurrences of the pair in the corpus.
        segmentations: Symbols of each example after this merge.
    """

    rank: int
    left: str
    right: str
    merged: str
    count: int
    segmentations: tuple[tuple[str, ...], ...]


def count_words(texts: Iterable[str], *, split_digits: bool = False) -> Counter[str]:
    """Count the words of texts; merges never cross words. Words are spelled in the byte alphabet.

    Raises:
        DataError: A text cannot be encoded in UTF-8.
    """
    splitter, counts = word_splitter(split_digits), Counter[str]()
    for number, text in enumerate(texts, start=1):
        check_no_surrogates(text, number)
        counts.update(word for word, _ in splitter.pre_tokenize_str(text))
    return counts


def learn_merges(
    words: Mapping[str, int], *, min_frequency: int = 2, examples: Iterable[str] = (), split_digits: bool = False
) -> Iterator[LearnedMerge]:
    """Yield merges in the order of learning until no pair occurs at least ``min_frequency`` times.

    Args:
        words: Frequency of each word, spelled in the byte alphabet; see :func:`count_words`.
        min_frequency: Minimum number of times that a pair must occur to be merged.
        examples: Texts whose segmentations to return after each merge.
        split_digits: Whether each digit of the examples is a separate word.
    """
    shown = [_words_as_bytes(text, number, split_digits) for number, text in enumerate(examples, start=1)]
    corpus, rank = _Corpus(words), 0
    while (best := corpus.most_frequent()) is not None and best[1] >= min_frequency:
        pair, count = best
        corpus.merge(pair)
        for example in shown:
            example[:] = [_merged(word, pair) for word in example]
        left, right = pair
        yield LearnedMerge(
            rank=rank,
            left=readable_piece(left),
            right=readable_piece(right),
            merged=readable_piece(left + right),
            count=count,
            segmentations=tuple(map(_readable, shown)),
        )
        rank += 1


def initial_symbols(text: str, *, split_digits: bool = False) -> tuple[str, ...]:
    """Return the symbols of a text before the first merge: its bytes."""
    return _readable(_words_as_bytes(text, 1, split_digits))


def _words_as_bytes(text: str, text_number: int, split_digits: bool) -> list[list[str]]:
    check_no_surrogates(text, text_number)
    return [list(word) for word, _ in word_splitter(split_digits).pre_tokenize_str(text)]


def _readable(words: list[list[str]]) -> tuple[str, ...]:
    return tuple(readable_piece(symbol) for word in words for symbol in word)


class _Corpus:
    """The words of a corpus as symbols, and the counts of all adjacent pairs."""

    def __init__(self, words: Mapping[str, int]) -> None:
        self._words = [list(word) for word in words]
        self._frequencies = list(words.values())
        self._ids = {symbol: index for index, symbol in enumerate(sorted(set().union(*words)))}
        self._counts: Counter[_Pair] = Counter()
        self._places: defaultdict[_Pair, set[int]] = defaultdict(set)  # words in which a pair has occurred
        for index in range(len(self._words)):
            self._count(index, 1)
        # The smallest entry is the most frequent pair with the lowest ids, unless its count is outdated.
        self._heap = [self._entry(pair) for pair in self._counts]
        heapq.heapify(self._heap)

    def most_frequent(self) -> tuple[_Pair, int] | None:
        """Return the most frequent pair and its count, or None if there are no pairs."""
        while self._heap:
            negative_count, _, pair = self._heap[0]
            if -negative_count == self._counts[pair] > 0:
                return pair, -negative_count
            heapq.heappop(self._heap)
        return None

    def merge(self, pair: _Pair) -> None:
        """Replace each occurrence of a pair with the merged symbol."""
        self._ids.setdefault("".join(pair), len(self._ids))
        changed: set[_Pair] = set()
        for index in self._places.pop(pair):
            before = self._words[index]
            after = _merged(before, pair)
            if len(after) == len(before):
                continue
            changed.update(self._count(index, -1))
            self._words[index] = after
            changed.update(self._count(index, 1))
        for other in changed:
            heapq.heappush(self._heap, self._entry(other))

    def _count(self, index: int, sign: int) -> list[_Pair]:
        """Add the pairs of a word to the counts, or subtract them if ``sign`` is -1. Return the pairs."""
        pairs = list(pairwise(self._words[index]))
        for pair in pairs:
            self._counts[pair] += sign * self._frequencies[index]
            self._places[pair].add(index)
        return pairs

    def _entry(self, pair: _Pair) -> tuple[int, tuple[int, int], _Pair]:
        left, right = pair
        return -self._counts[pair], (self._ids[left], self._ids[right]), pair


def _merged(symbols: list[str], pair: _Pair) -> list[str]:
    """Return the symbols of a word after applying a merge from left to right."""
    merged: list[str] = []
    position = 0
    while position < len(symbols):
        if position + 1 < len(symbols) and (symbols[position], symbols[position + 1]) == pair:
            merged.append(symbols[position] + symbols[position + 1])
            position += 2
        else:
            merged.append(symbols[position])
            position += 1
    return merged
