"""Alignments from attention: the source token from which each target token is translated.

In a trained decoder, the attention over the source is largest at the words that are being translated. The block with
the best alignments depends on the decoder's depth (:func:`default_alignment_layer`). A target token is aligned to the
source token with the largest attention weight, averaged over the heads, in the step that predicted the target token.
The weights are computed in one teacher-forced pass over the finished targets, so alignment does not slow down the
search.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.errors import ConfigError
from headway.models.base import TranslationModel
from headway.models.registry import architecture_of
from headway.nn.attention import record_attention
from headway.nn.embedding import pad_sequences
from headway.predict.results import Alignment, Candidate, WordAlignment
from headway.text.base import BOS, PAD, TextTokenizer


@torch.inference_mode()
def attention_maps(
    model: TranslationModel, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], *, layer: int | None
) -> list[Float[Tensor, "T S"]]:
    """Return, for each pair, the attention of each target token over the source, averaged over the heads.

    Args:
        model: A model whose decoder attends to the source.
        sources: The source tokens of each pair, with special tokens such as EOS.
        targets: The target tokens of each pair, without BOS and EOS.
        layer: Index of the decoder block; see :func:`alignment_module`.

    Raises:
        ConfigError: The block does not exist, or the model has no attention.
    """
    with record_attention(alignment_module(model, layer)) as seen:
        model.hidden(*(pad_sequences(rows, PAD, model.device) for rows in (sources, [[BOS, *row] for row in targets])))
    # A recurrent decoder may call its attention layer once per step, which gives one map per step.
    maps = torch.cat(seen, dim=2).float().mean(1).cpu()
    return [
        attention[: len(target), : len(source)]
        for attention, source, target in zip(maps, sources, targets, strict=True)
    ]


def default_alignment_layer(num_layers: int) -> int:
    """Return the decoder block used for alignment by default, counted from 0: the last of up to three blocks, otherwise
    the second-to-last.

    In decoders with six blocks, the second-to-last block agrees best with human word alignments (Garg et al. 2019,
    "Jointly Learning to Align and Translate with Transformer Models", section 4.2). In shallow decoders, the last block
    is by far the best: in Multi30k models with two blocks, the blocks found 25 and 88 % of the word pairs in a
    dictionary, and in a half-trained model with three blocks, they found 11, 42 and 51 %.
    """
    return num_layers - (1 if num_layers <= 3 else 2)


def alignment_module(model: TranslationModel, layer: int | None) -> nn.Module:
    """Return the attention layer of the decoder block that is used for alignment.

    ``layer`` is the block's index, counted from 0, or from the end if negative. None means the block of
    :func:`default_alignment_layer`.

    Raises:
        ConfigError: The block does not exist, or the model has no attention.
    """
    attentions = architecture_of(model.config).get_cross_attentions(model)
    count = len(attentions)
    if not count:
        raise ConfigError(f"alignment: this {model.config.kind} model has no attention; train a model with attention")
    chosen = default_alignment_layer(count) if layer is None else layer
    if not -count <= chosen < count:
        raise ConfigError(
            f"alignment layer {layer}: this model's decoder has {count} blocks; expected 0 to {count - 1}, "
            f"or from the end -1 to -{count}"
        )
    return attentions[chosen]


def hard_alignment(
    attention: Float[Tensor, "T S"], source_tokens: Sequence[str], *, keep_attention: bool = True
) -> Alignment:
    """Align each target token to the source token with the largest weight."""
    best = attention.argmax(1).tolist() if source_tokens else []
    rows = tuple(tuple(row) for row in attention.tolist()) if keep_attention else ()
    return Alignment(tuple(source_tokens), tuple((source, target) for target, source in enumerate(best)), rows)


def compose_alignments(first: Alignment, pivot_tokens: Sequence[str], second: Alignment) -> Alignment:
    """Return the alignment of a text that was translated in two steps.

    Its attention is the matrix product of the second attention (target x pivot) and the first (pivot x source). The
    models may tokenize the pivot differently. The attention of a source token of the second model is the average over
    the first model's target tokens with which it shares characters, weighted by the number of shared characters. If an
    alignment has no attention, its pairs are used instead, and the result also has no attention.

    Args:
        first: The alignment of the pivot with the source.
        pivot_tokens: The tokens of the pivot as displayed by the first model.
        second: The alignment of the target with the pivot.
    """
    source_tokens, target_length = first.source_tokens, len(second.pairs) or len(second.attention)
    if not (source_tokens and pivot_tokens and second.source_tokens and target_length):
        return Alignment(source_tokens, (), tuple(() for _ in range(target_length)))
    shared = _shared_characters(second.source_tokens, pivot_tokens)
    share = shared / shared.sum(1, keepdim=True).clamp(min=1)
    composed = _weights(second) @ share @ _weights(first)
    return hard_alignment(composed, source_tokens, keep_attention=bool(first.attention and second.attention))


def _weights(alignment: Alignment) -> Float[Tensor, "T S"]:
    """Return the attention of an alignment. Without attention, each aligned pair has the weight 1."""
    if alignment.attention:
        return torch.tensor(alignment.attention)
    weights = torch.zeros(len(alignment.pairs), len(alignment.source_tokens))
    for source, target in alignment.pairs:
        weights[target, source] = 1
    return weights


def _shared_characters(tokens: Sequence[str], others: Sequence[str]) -> Float[Tensor, "_ _"]:
    """Return the number of characters, except white space, that each token shares with each of ``others``."""

    def spans(tokens: Sequence[str]) -> Float[Tensor, "_ 2"]:
        ends = torch.tensor([float(len("".join(token.split()))) for token in tokens]).cumsum(0)
        return torch.stack((torch.cat((torch.zeros(1), ends[:-1])), ends), 1)

    rows, columns = spans(tokens), spans(others)
    columns = columns * (
        rows[-1, 1] / columns[-1, 1].clamp(min=1)
    )  # tokens that are parts of a character count once each
    overlap = torch.minimum(rows[:, None, 1], columns[None, :, 1]) - torch.maximum(
        rows[:, None, 0], columns[None, :, 0]
    )
    return overlap.clamp(min=0)


def word_alignment(candidate: Candidate, source: TextTokenizer, target: TextTokenizer) -> WordAlignment:
    """Return the word alignment of a candidate with an alignment.

    Args:
        candidate: A candidate that was translated with ``alignment=True``.
        source: The source tokenizer.
        target: The target tokenizer.

    Raises:
        ConfigError: The candidate has no alignment.
    """
    if candidate.alignment is None:
        raise ConfigError("this candidate has no alignment; translate with alignment=True")
    source_words, in_source = tokens_to_words(candidate.alignment.source_tokens, subwords=source.kind != "whitespace")
    target_words, in_target = tokens_to_words(candidate.tokens, subwords=target.kind != "whitespace")
    pairs = to_word_alignment(candidate.alignment.pairs, in_source, in_target)
    return WordAlignment(tuple(source_words), tuple(target_words), tuple(pairs))


def tokens_to_words(tokens: Sequence[str], *, subwords: bool) -> tuple[list[str], list[int | None]]:
    """Return the words of a text, and for each token the index of the word in which the token starts.

    The index is None if a token consists of white space.

    Args:
        tokens: Tokens as displayed.
        subwords: Whether the tokens are subwords, which concatenate to a text whose words are separated by white space.
            Otherwise each token is a word.
    """
    if not subwords:
        return [token.strip() for token in tokens], list(range(len(tokens)))
    words = list(re.finditer(r"\S+", "".join(tokens)))
    word_at = {position: number for number, word in enumerate(words) for position in range(*word.span())}
    starts = [end - len(token.lstrip()) for token, end in zip(tokens, accumulate(map(len, tokens)), strict=True)]
    return [word.group() for word in words], [
        word_at[start] if token.strip() else None for token, start in zip(tokens, starts, strict=True)
    ]


def to_word_alignment(
    token_pairs: Iterable[tuple[int, int]], source_word_ids: Sequence[int | None], target_word_ids: Sequence[int | None]
) -> list[tuple[int, int]]:
    """Return the sorted pairs (source word, target word) of words that contain aligned tokens.

    ``source_word_ids`` and ``target_word_ids`` contain the index of each token's word, from :func:`tokens_to_words`.
    """
    word_pairs = {(source_word_ids[source], target_word_ids[target]) for source, target in token_pairs}
    return sorted((source, target) for source, target in word_pairs if source is not None and target is not None)
