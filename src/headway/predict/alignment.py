"""Alignments out of attention: which source token a target token comes from.

In a trained decoder, attention over the memory looks at the source words that are being translated. Which block's does,
as a mean over its heads, depends on depth (:func:`aligning_layer`). The attention with which a token was predicted
counts, and a token is aligned to the source token of greatest weight. One teacher-forced pass over finished targets
gives all of it, so search itself pays nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.errors import ConfigError
from headway.models.registry import TranslationModel
from headway.models.transformer import Transformer
from headway.nn.blocks import DecoderBlock
from headway.predict.results import Alignment

__all__ = ["aligning_attention", "aligning_layer", "attention_maps", "hard_alignment", "word_pairs", "words_of"]


@torch.inference_mode()
def attention_maps(
    model: TranslationModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    begin: int,
    layer: int | None,
) -> list[Float[Tensor, "T S"]]:
    """For each pair the attention, averaged over heads, with which each target token was predicted.

    Args:
        model: One that attends: a Transformer, or a recurrent model with attention, which has one layer of it.
        sources: As the model reads them, with their end symbols.
        targets: Without begin and end symbol.
        begin: The begin symbol.
        layer: The decoder block, counted from 0 or, negative, from the end; None: :func:`aligning_layer`'s.

    Raises:
        ConfigError: There is no such block, or no attention.
    """
    seen: list[Tensor] = []
    tap = aligning_attention(model, layer)
    handle = tap.register_forward_hook(lambda _module, _inputs, weights: seen.append(weights.float().mean(1)))
    try:
        device = next(model.parameters()).device
        model.hidden(_padded(sources, device), _padded([[begin, *target] for target in targets], device))
    finally:
        handle.remove()
    sizes = [(len(target), len(source)) for source, target in zip(sources, targets, strict=True)]
    return [weights[:length, :width].cpu() for weights, (length, width) in zip(seen[0], sizes, strict=True)]


def aligning_layer(blocks: int) -> int:
    """Which of so many decoder blocks aligns unless another is asked for, counted from 0: of up to three the last, else
    the last but one.

    In decoders of six blocks the last but one agrees with people's word alignments best (Garg et al. 2019, "Jointly
    Learning to Align and Translate with Transformer Models", section 4.2). In shallow ones it is the last, by far: of
    the links that a dictionary tells (``headway experiment what-heads-see``), the blocks of Multi30k models of two
    found 25 and 88 %, of a half-trained one of three 11, 42 and 51 %.
    """
    return blocks - (1 if blocks <= 3 else 2)


def aligning_attention(model: TranslationModel, layer: int | None) -> nn.Module:
    """The module through which the attention weights of the chosen layer pass.

    Raises:
        ConfigError: There is no such block, or no attention.
    """
    if not isinstance(model, Transformer):
        if model.config.attention == "none":
            raise ConfigError("alignment: this recurrent model has no attention that could tell; train one with it")
        return model.get_submodule("decoder.attention.weights")
    blocks = cast("list[DecoderBlock]", list(model.decoder.blocks))
    chosen = aligning_layer(len(blocks)) if layer is None else layer
    if not -len(blocks) <= chosen < len(blocks):
        raise ConfigError(
            f"alignment layer {layer}: this model's decoder has {len(blocks)} blocks; expected 0 to {len(blocks) - 1}, "
            f"or from the end -1 to -{len(blocks)}"
        )
    return blocks[chosen].cross_attention.weights


def hard_alignment(attention: Float[Tensor, "T S"], source_tokens: Sequence[str]) -> Alignment:
    """Each target token with the source token it attends to most; ``attention`` is that to ``source_tokens`` alone."""
    best = attention.argmax(1).tolist() if source_tokens else []
    rows = tuple(tuple(row) for row in attention.tolist())
    return Alignment(tuple(source_tokens), tuple((source, target) for target, source in enumerate(best)), rows)


def words_of(tokens: Sequence[str], *, joined: bool) -> tuple[list[str], list[int | None]]:
    """The words that tokens make, and for each token the word in which it starts; None for white space alone.

    Args:
        tokens: As a reader sees them.
        joined: Whether tokens join to the text, in which white space parts words; otherwise each is a word.
    """
    if not joined:
        return [token.strip() for token in tokens], list(range(len(tokens)))
    words = list(re.finditer(r"\S+", "".join(tokens)))
    word_at = {place: number for number, word in enumerate(words) for place in range(*word.span())}
    starts = [end - len(token.lstrip()) for token, end in zip(tokens, accumulate(map(len, tokens)), strict=True)]
    return [word.group() for word in words], [
        word_at[start] if token.strip() else None for token, start in zip(tokens, starts, strict=True)
    ]


def word_pairs(
    pairs: Iterable[tuple[int, int]], source_words: Sequence[int | None], target_words: Sequence[int | None]
) -> list[tuple[int, int]]:
    """The pairs of words that hold aligned tokens, in order; :func:`words_of` tells which word a token is in."""
    found = {(source_words[source], target_words[target]) for source, target in pairs}
    return sorted((source, target) for source, target in found if source is not None and target is not None)


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
