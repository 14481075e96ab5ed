"""Inspect a translation model: record the attention in a single pass over source and target.

The target, which is given or found by beam search, is predicted with teacher forcing: the token at position t is
predicted from the target tokens before it. Row t of a decoder's attention is therefore the attention with which token t
was predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headway.decode import DecodingOptions
from headway.errors import ConfigError, DataError, LengthError
from headway.inspection.capture import capture
from headway.inspection.results import AttentionMap, Inspection, check_attention_size
from headway.predict import Translator
from headway.predict.language_modeling.predicted_tokens import DEFAULT_ALTERNATIVES, predicted_tokens
from headway.predict.translation.alignment import default_alignment_layer, hard_alignment
from headway.text.base import BOS, EOS
from headway.text.special_tokens import SpecialTokens

_PAPER = DecodingOptions()


@torch.inference_mode()
def inspect_translation(
    translator: Translator,
    source: str,
    target: str | None = None,
    *,
    name: str = "model",
    options: DecodingOptions = _PAPER,
    alternatives: int = DEFAULT_ALTERNATIVES,
    target_language: str | None = None,
    source_language: str | None = None,
) -> Inspection:
    """Return the attention and the predictions of a translator's model for a source and a target.

    Args:
        translator: The translator. In an ensemble, only the first model is inspected.
        source: A text that the model can process without splitting it.
        target: A translation of the source. None means the model's own translation.
        name: The model's name, for titles.
        options: Search options for the model's own translation.
        alternatives: Number of most probable tokens to list at each position.
        target_language: The language to translate into, if the model has several.
        source_language: The language of the source, for imported models that need it.

    Raises:
        HeadwayError: A text is blank or too long, or the options do not fit the model.
    """
    if alternatives < 0:
        raise ConfigError(f"alternatives = {alternatives}: expected 0 or more")
    bundle = translator.bundle
    special = bundle.token_template.fill(source_language=source_language, target_language=target_language)
    source_ids = _source_ids(translator, special, source)
    given = target is not None
    if target is None:
        best = translator.translate(
            source, options, target_language=target_language, source_language=source_language, protect=False
        ).candidates[0]
        target, target_ids = best.text, list(best.ids)
    else:
        target_ids = bundle.target_tokenizer.encode(bundle.normalized(target))
    predicted = [*special.target_prefix, *target_ids, EOS]
    positions, forced = bundle.model.max_length, len(special.target_prefix)
    if positions is not None and len(predicted) > positions:
        raise LengthError(
            f"a target of {len(predicted)} tokens is longer than the {positions} positions that this model has "
            "learned; inspect its sentences one by one"
        )
    read = special.add_to_source(source_ids)
    check_attention_size(bundle.model, len(read), len(predicted))

    device = translator.device
    with capture(bundle.model) as seen:
        hidden = bundle.model.hidden(
            torch.tensor([read], device=device), torch.tensor([[BOS, *predicted[:-1]]], device=device)
        )[0]
    maps = tuple(
        AttentionMap(
            captured.kind,
            captured.layer,
            tuple(range(1, captured.weights.size(1) + 1)),
            captured.weights[0],
            captured.name,
        )
        for captured in seen.maps
        if captured.kind  # skip attention of unknown kind (only in models outside Headway)
    )
    text_positions = slice(len(special.source_prefix), len(special.source_prefix) + len(source_ids))
    layer, pairs = _aligned(maps, text_positions, range(forced, len(predicted) - 1), translator.alignment_layer)
    steps = predicted_tokens(bundle.model.projection, hidden, predicted, forced, alternatives, bundle.target_tokenizer)
    return Inspection(
        model=name,
        architecture=bundle.model.config.kind,
        source=source,
        source_tokens=tuple(bundle.source_tokenizer.display(read)),
        maps=maps,
        target=target,
        target_given=given,
        steps=tuple(steps),
        alignment=pairs,
        alignment_layer=layer,
    )


def _source_ids(translator: Translator, special: SpecialTokens, source: str) -> list[int]:
    """Encode a source. Raise an error if the source is blank or would have to be split."""
    if not source.strip():
        raise DataError("the source is blank: there is nothing to inspect; pass a text")
    ids = translator.bundle.source_tokenizer.encode(translator.bundle.normalized(source))
    length, most = len(ids) + special.source_overhead, translator.max_source_tokens
    if length > most:
        raise LengthError(
            f"a source of {length} tokens is longer than the {most} that this model can process (it would be "
            "translated in parts); inspect its sentences one by one"
        )
    return ids


def _aligned(
    maps: Sequence[AttentionMap], own: slice, targets: range, asked: int | None
) -> tuple[int | None, tuple[tuple[int, int], ...]]:
    """Return the layer used for alignment and the aligned pairs of text tokens, as in
    :mod:`headway.predict.translation.alignment`.

    Without cross-attention, the layer is None and there are no pairs.
    """
    cross = [attention_map for attention_map in maps if attention_map.kind == "cross"]
    if not cross:
        return None, ()
    if asked is not None and not -len(cross) <= asked < len(cross):
        raise ConfigError(
            f"alignment layer {asked}: expected 0 to {len(cross) - 1}, or from the end -1 to -{len(cross)}"
        )
    chosen = cross[default_alignment_layer(len(cross)) if asked is None else asked]
    rows = chosen.weights.mean(0)[targets.start : targets.stop, own]
    pairs = hard_alignment(rows, [""] * rows.size(1)).pairs
    return chosen.layer, tuple((source + own.start, target + targets.start) for source, target in pairs)
