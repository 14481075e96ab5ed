"""BPE-dropout (Provilkov et al., "BPE-Dropout: Simple and Effective Subword Regularization", 2020, algorithm 1).

A word is segmented by merges as usual, but at each step, every applicable merge is independently skipped with
probability p. Of the remaining merges, the merge with the lowest rank is applied, leftmost first. If no merge remains,
the segmentation is complete. A word thus has many segmentations, so that a model also learns its parts.

The library `tokenizers` has this option, but without a seed. Here, segmentations depend only on the text and the seed.
Unlike in the paper, words are not segmented again each time they occur, because this would be slow. Instead, every
chunk (see :mod:`headway.text.corpus_encoder`) has 64 independently drawn segmentations, and each occurrence uses a
random one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import shake_128
from itertools import pairwise
from random import Random

from headway.errors import ConfigError
from headway.text.base import TextTokenizer
from headway.text.corpus_encoder import PackedIds, ids_to_bytes, pack_id_bytes, split_if_single_spaced
from headway.text.tokenizer import Tokenizer

_CHOICES = 64  # number of segmentations of a chunk; a divisor of 256, so that a random byte selects one uniformly
_MAX_CACHED = 1 << 17  # maximum number of chunks in the cache, about 150 MB


def segment_with_dropout(
    word: Sequence[str], merge_ranks: Mapping[tuple[str, str], int], dropout: float, draw_uniform: Callable[[], float]
) -> list[str]:
    """Return the tokens of a word after merges with dropout.

    Args:
        word: Symbols of the word before any merge.
        merge_ranks: Rank of each merge.
        dropout: Probability of skipping an applicable merge at each step.
        draw_uniform: Function that returns a random number, uniformly distributed in [0, 1).
    """
    pieces = list(word)
    seams = [merge_ranks.get(pair, math.inf) for pair in pairwise(pieces)]  # ranks of the merges between neighbors
    while seams and (lowest := min(seams)) < math.inf:
        # Drawing for the merges in rank order until one is kept is equivalent to drawing for all merges and then
        # choosing the lowest rank.
        if draw_uniform() >= dropout:
            index = seams.index(lowest)
        else:
            others = sorted((rank, seam) for seam, rank in enumerate(seams) if rank < math.inf)[1:]
            kept = next((seam for _, seam in others if draw_uniform() >= dropout), None)
            if kept is None:
                break
            index = kept
        pieces[index : index + 2] = [pieces[index] + pieces[index + 1]]
        del seams[index]
        for seam in range(max(index - 1, 0), min(index + 1, len(seams))):
            seams[seam] = merge_ranks.get((pieces[seam], pieces[seam + 1]), math.inf)
    return pieces


class BPEDropoutEncoder:
    """Computes several segmentations of each text with BPE-dropout.

    Args:
        tokenizer: Headway's own tokenizer, of kind "bpe".
        probability: Probability of skipping a merge.
        num_segmentations: Number of segmentations per text.
        seed: Random seed of the segmentations.
        order_version: As in :mod:`headway.data.draws`. In version 1, segmentations are selected with ``randbytes``,
            whose results may change between versions of Python.
    """

    def __init__(
        self, tokenizer: TextTokenizer, probability: float, num_segmentations: int, seed: int, order_version: int = 2
    ) -> None:
        if not isinstance(tokenizer, Tokenizer) or tokenizer.kind != "bpe":
            raise ConfigError(
                f"data.bpe_dropout = {probability}: only Headway's own bpe tokenizer reports its merges, but the "
                f"tokenizer is {tokenizer.kind!r}; set data.bpe_dropout = 0, or train from scratch with tokenizer.kind "
                "= 'bpe'"
            )
        self.num_segmentations = num_segmentations
        self._tokenizer, self._probability, self._seed = tokenizer, probability, seed
        self._order_version = order_version
        self._chunks: dict[str, _Chunk] = {}

    def encode(self, texts: Sequence[str]) -> PackedIds:
        """Return the ids of all segmentations of the first text, then of the second text, and so on."""
        return pack_id_bytes([row for text in texts for row in self._rows(text)])

    def _rows(self, text: str) -> list[bytes]:
        words = split_if_single_spaced(text)
        if words is None:
            whole = _Chunk(text, self._tokenizer)
            return [self._sample(whole, number) for number in range(self.num_segmentations)]
        chunks = [self._chunk(words[0]), *[self._chunk(" " + word) for word in words[1:]]]
        picks = iter(self._random_bytes(text, len(chunks) * self.num_segmentations))
        return [
            b"".join(
                [
                    chunk.samples[pick % _CHOICES] or self._store(chunk, pick % _CHOICES)
                    # the next segmentation uses the following picks
                    for chunk, pick in zip(chunks, picks, strict=False)
                ]
            )
            for _ in range(self.num_segmentations)
        ]

    def _random_bytes(self, text: str, count: int) -> bytes:
        seed = f"{self._seed} {text}"
        return Random(seed).randbytes(count) if self._order_version == 1 else shake_128(seed.encode()).digest(count)

    def _chunk(self, text: str) -> _Chunk:
        if (known := self._chunks.get(text)) is not None:
            return known
        if len(self._chunks) >= _MAX_CACHED:
            self._chunks.clear()
        chunk = self._chunks[text] = _Chunk(text, self._tokenizer)
        return chunk

    def _store(self, chunk: _Chunk, number: int) -> bytes:
        ids = self._sample(chunk, number)
        # Most segmentations of a chunk are equal, so equal segmentations share an object.
        chunk.samples[number] = next((same for same in chunk.samples if same == ids), ids)
        return ids

    def _sample(self, chunk: _Chunk, number: int) -> bytes:
        draw = Random(f"{self._seed} {number} {chunk.text}").random
        ranks = self._tokenizer.merge_ranks
        pieces = [piece for word in chunk.words for piece in segment_with_dropout(word, ranks, self._probability, draw)]
        return ids_to_bytes([self._tokenizer.vocabulary[piece] for piece in pieces])


class _Chunk:
    """A chunk, its words, and the segmentations computed so far."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self.text = text
        self.words = tokenizer.byte_spelled_words(text)
        self.samples: list[bytes | None] = [None] * _CHOICES
