"""BPE-dropout (Provilkov et al., "BPE-Dropout: Simple and Effective Subword Regularization", 2020, algorithm 1).

A word is segmented as always, but before each merge every merge that would fit is left out with probability p, each on
its own; of those left the one of lowest rank is applied, the leftmost first. Where none is left the word is done. So
the same word is cut in many ways, and a model learns its parts as well.

The library has such a switch but no seed for it. Here segmentations are a pure function of text and seed. Departure
from the paper, for speed: words are not segmented anew each time that they occur. Every chunk (see ``packed.py``) has
64 segmentations, drawn independently, and each occurrence takes one of them at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from random import Random

from headway.errors import ConfigError
from headway.text.interface import TextTokenizer
from headway.text.packed import Packed, id_bytes, pack, single_spaced
from headway.text.tokenizer import Tokenizer

__all__ = ["SampledEncoder", "sample_pieces"]

_CHOICES = 64  # segmentations of a chunk; divides 256, so that a random byte chooses evenly
_REMEMBERED = 1 << 17  # chunks whose segmentations are kept, some 150 MB


def sample_pieces(
    word: Sequence[str], ranks: Mapping[tuple[str, str], int], probability: float, draw: Callable[[], float]
) -> list[str]:
    """The pieces of one word after merges with dropout.

    Args:
        word: The symbols that it starts from.
        ranks: The rank of each merge.
        probability: How likely each merge that fits is left out, each time that one is chosen.
        draw: Random numbers, uniform in [0, 1).
    """
    pieces = list(word)
    seams = [ranks.get(pair, math.inf) for pair in pairwise(pieces)]  # the rank of the merge at each
    while seams and (lowest := min(seams)) < math.inf:
        # Deciding on one merge after the other, by rank, until one stays is deciding on all and then choosing.
        if draw() >= probability:
            at = seams.index(lowest)
        else:
            others = sorted((rank, seam) for seam, rank in enumerate(seams) if rank < math.inf)[1:]
            kept = next((seam for _, seam in others if draw() >= probability), None)
            if kept is None:
                break
            at = kept
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        del seams[at]
        for seam in range(max(at - 1, 0), min(at + 1, len(seams))):
            seams[seam] = ranks.get((pieces[seam], pieces[seam + 1]), math.inf)
    return pieces


class SampledEncoder:
    """Several segmentations of each text by BPE-dropout.

    Args:
        tokenizer: A byte-pair tokenizer of Headway's own.
        probability: How likely each merge is left out.
        segmentations: How many segmentations of a text :meth:`encode` returns.
        seed: Another seed, other segmentations.
    """

    def __init__(self, tokenizer: TextTokenizer, probability: float, segmentations: int, seed: int) -> None:
        if not isinstance(tokenizer, Tokenizer) or tokenizer.kind != "bpe":
            raise ConfigError(
                f"data.bpe_dropout = {probability}: only Headway's own bpe tells which merges it makes, and the "
                f"tokenizer is {tokenizer.kind!r}; set data.bpe_dropout = 0, or train from scratch with tokenizer.kind "
                "= 'bpe'"
            )
        self.num_segmentations = segmentations
        self._tokenizer, self._probability, self._seed = tokenizer, probability, seed
        self._chunks: dict[str, _Chunk] = {}

    def encode(self, texts: Sequence[str]) -> Packed:
        """The ids of all segmentations of the first text, then of the second, and so on."""
        return pack([row for text in texts for row in self._rows(text)])

    def _rows(self, text: str) -> list[bytes]:
        words = single_spaced(text)
        if words is None:
            whole = _Chunk(text, self._tokenizer)
            return [self._sample(whole, number) for number in range(self.num_segmentations)]
        chunks = [self._chunk(words[0]), *[self._chunk(" " + word) for word in words[1:]]]
        picks = iter(Random(f"{self._seed} {text}").randbytes(len(chunks) * self.num_segmentations))
        return [
            b"".join(
                [
                    chunk.samples[pick % _CHOICES] or self._keep(chunk, pick % _CHOICES)
                    for chunk, pick in zip(chunks, picks, strict=False)  # the picks go on
                ]
            )
            for _ in range(self.num_segmentations)
        ]

    def _chunk(self, text: str) -> _Chunk:
        if (known := self._chunks.get(text)) is not None:
            return known
        if len(self._chunks) >= _REMEMBERED:
            self._chunks.clear()
        chunk = self._chunks[text] = _Chunk(text, self._tokenizer)
        return chunk

    def _keep(self, chunk: _Chunk, number: int) -> bytes:
        ids = self._sample(chunk, number)
        # Most samples are equal; one object serves them all.
        chunk.samples[number] = next((same for same in chunk.samples if same == ids), ids)
        return ids

    def _sample(self, chunk: _Chunk, number: int) -> bytes:
        draw = Random(f"{self._seed} {number} {chunk.text}").random
        ranks = self._tokenizer.ranks
        pieces = [piece for word in chunk.words for piece in sample_pieces(word, ranks, self._probability, draw)]
        return id_bytes(self._tokenizer.piece_ids(pieces))


class _Chunk:
    """A chunk, the words in it, and those of its segmentations that have been asked for."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self.text = text
        self.words = tokenizer.spelled_words(text)
        self.samples: list[bytes | None] = [None] * _CHOICES
