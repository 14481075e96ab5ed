"""A model that tends to append letters to words, and a search with it for phrases that must be whole words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.decode import DecodingOptions, Request, SearchVocabulary, Step, search
from headway.predict import Source
from headway.predict.phrases import tokenize_included_phrases, word_boundaries
from headway.text.base import BOS, EOS, PAD, UNK, TextTokenizer


class Gluing:
    """Random probabilities that depend only on the last two tokens; a letter is most often followed by a letter."""

    device = torch.device("cpu")
    max_length = None

    def __init__(self, tokenizer: TextTokenizer, seed: int) -> None:
        self.seed, self.size = seed, tokenizer.vocab_size
        boundaries = word_boundaries(tokenizer)
        self.starts = torch.tensor(list(boundaries.start_bits))
        self.ends = boundaries.end_bits

    def start(self, sources: Any, *, beams: int = 1) -> list[tuple[int, ...]]:
        return [()] * (len(sources) * beams)

    def admit(self, state: Any, sources: Any) -> None:
        raise NotImplementedError

    def step(self, state: list[tuple[int, ...]], tokens: Tensor, *, attention: bool = False) -> Step:
        state[:] = [(*row, token)[-2:] for row, token in zip(state, tokens.tolist(), strict=True)]
        return Step(torch.stack([self.logits(row) for row in state]))

    def logits(self, row: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, *row)) % (1 << 31))
        logits = torch.randn(self.size, generator=generator)
        return logits + 6.0 * ((self.starts & self.ends[row[-1]]) > 0)

    def reorder_rows(self, state: list[tuple[int, ...]], rows: Tensor, sequences: Tensor | None = None) -> None:
        state[:] = [state[row] for row in rows.tolist()]


def search_phrases(
    tokenizer: TextTokenizer, source: Source, seed: int, beam_size: int
) -> list[tuple[tuple[int, ...], str]]:
    """Return the unmet phrases and the text of each hypothesis, with a length limit that just fits all phrases."""
    phrases = tokenize_included_phrases(tokenizer, source)
    needed = sum(min(len(each.tokens) for each in several) + 1 for several in phrases)
    request = Request(source=(4, EOS), limit=needed + 2, include=phrases, boundaries=word_boundaries(tokenizer))
    options = DecodingOptions(beam_size=beam_size, n_best=2)
    reserved = getattr(tokenizer, "reserved_ids", {PAD, BOS, UNK})  # tokens without text, which models never produce
    banned = tuple(sorted(reserved - {EOS}))
    (found,) = search(Gluing(tokenizer, seed), [request], options, SearchVocabulary(BOS, EOS, banned=banned))
    return [(each.unmet, tokenizer.decode(each.tokens)) for each in found]
