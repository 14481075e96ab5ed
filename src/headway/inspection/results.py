"""The result of inspecting a model on one text, and its JSON form.

Layers and heads are counted from 1. Shapes: H heads, T queries (rows), S keys (columns).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.errors import ConfigError, DataError, LengthError
from headway.inspection.capture import Kind, count_attention_weights
from headway.inspection.page_data import MAX_DRAWN_TOKENS
from headway.notebook_html import heat_map, join_fragments, paragraph, sandboxed_frame
from headway.predict.language_modeling.predicted_tokens import PredictedToken
from headway.predict.results import TokenAlternative, abbreviate

MAX_WEIGHTS = 20_000_000  # maximum number of attention weights per text: 80 MB, or about 200 MB as JSON
_DRAWN_HEADS = 16  # maximum number of heads per attention map in a notebook
_DIGITS = 6  # number of decimals of weights and probabilities in JSON
_FORMAT, _VERSION = "headway-inspection", 1

Side = Literal["source", "input", "target", "text"]
_KINDS: Mapping[
    Kind, tuple[str, Side, Side]
] = {  # name, side of the rows, side of the columns; the most informative kind first
    "cross": ("Cross-attention", "target", "source"),
    "pooling": ("Attention pooling", "text", "source"),
    "encoder": ("Encoder self-attention", "source", "source"),
    "decoder": ("Decoder self-attention", "target", "input"),
}
KIND_NAMES: Mapping[Kind, str] = {kind: name for kind, (name, _, _) in _KINDS.items()}


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one module, for all heads or a single head.

    Attributes:
        kind: "encoder" or "decoder" (self-attention), "cross" (target to source) or "pooling" (whole text to tokens).
        layer: Number of the layer, counted from 1.
        heads: Numbers of the heads, counted from 1.
        weights: For each head, one row per query. Each row sums to 1.
        name: The name of the module in the model.
    """

    kind: Kind
    layer: int
    heads: tuple[int, ...]
    weights: Float[Tensor, "H T S"]
    name: str = ""

    @property
    def row_side(self) -> Side:
        """The side whose tokens are the rows (queries). In a decoder, each row is a token that is being predicted."""
        return _KINDS[self.kind][1]

    @property
    def column_side(self) -> Side:
        """The side whose tokens are the columns (keys)."""
        return _KINDS[self.kind][2]

    def __repr__(self) -> str:
        heads, rows, columns = self.weights.shape
        name = KIND_NAMES[self.kind].lower()
        return f"<AttentionMap: {name}, layer {self.layer}, {heads} heads, {rows} queries x {columns} keys>"

    def _repr_html_(self) -> str:
        heads, rows, columns = self.weights.shape
        if max(rows, columns) > MAX_DRAWN_TOKENS:
            return join_fragments(paragraph(escape(f"{self!r}: too long to draw")))
        head = f"{KIND_NAMES[self.kind]}, layer {self.layer}: rows attend to columns"
        shown = zip(self.heads[:_DRAWN_HEADS], self.weights[:_DRAWN_HEADS].tolist(), strict=True)
        rest = f"{heads - _DRAWN_HEADS} more heads" if heads > _DRAWN_HEADS else ""
        maps = [
            heat_map(weights, f"head {head}", max(2, min(12, 160 // max(rows, columns)))) for head, weights in shown
        ]
        return join_fragments(paragraph(head), *maps, paragraph(rest, note=True))


@dataclass(frozen=True)
class LabelAttribution:
    """Attribution of a label to the source tokens: gradient x input, positive for the label, negative against it."""

    label: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Inspection:
    """Attention, predictions and attributions of a model for one text.

    Attributes:
        model: The model's name.
        architecture: The model's ``kind``, such as "transformer", "recurrent" or "classifier".
        source: The source text; the prompt of a language model.
        source_tokens: Input tokens of the model for the source, including language codes and EOS.
        maps: The attention weights of every attention module; empty for a model without attention.
        target: The target text, or the continuation of a prompt; None for a classifier.
        target_given: Whether the target was passed by the caller. Otherwise it is the model's own translation or
            continuation.
        steps: One entry per target token, and one for EOS. For a language model, the tokens of the prompt come first.
            For a masked language model, one entry per hidden token.
        alignment: (source token, target token) pairs, counted from 0 in ``source_tokens`` and ``steps``.
        alignment_layer: The layer whose mean attention gives the alignment, counted from 1.
        labels: A classifier's labels and their probabilities, most probable first.
        attribution: A classifier's attribution of the requested label (default: the most probable label).
        prompt_length: For a language model: the number of initial steps that belong to the prompt. None for other
            models.
        hidden_positions: For a masked language model: the position in ``source_tokens`` of the token that each step
            predicts. ``target`` is then the text with the most probable token for each [MASK], or None if the text has
            none. None for other models.
        truncated: Whether the text was truncated because it exceeds the model's maximum length.
    """

    model: str
    architecture: str
    source: str
    source_tokens: tuple[str, ...]
    maps: tuple[AttentionMap, ...]
    target: str | None = None
    target_given: bool = False
    steps: tuple[PredictedToken, ...] = ()
    alignment: tuple[tuple[int, int], ...] = ()
    alignment_layer: int | None = None
    labels: Mapping[str, float] | None = None
    attribution: LabelAttribution | None = None
    truncated: bool = False
    prompt_length: int | None = None
    hidden_positions: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        target = "" if self.target is None else f" → {abbreviate(self.target)}"
        return f"<Inspection of {self.model}: {abbreviate(self.source)}{target}, {len(self.maps)} attention maps>"

    def _repr_html_(self) -> str:
        from headway.inspection.html_page import render_html

        head = paragraph(f"<b>{escape(self.target or '')}</b>"), paragraph(escape(self.source), note=True)
        return join_fragments(*head, sandboxed_frame(render_html(self), f"attention of {self.model}"))

    @property
    def log_probability(self) -> float:
        """Log-probability of the target given the source, in nats, excluding forced tokens.

        For a masked language model, the sum of the log-probabilities of its steps.
        """
        return math.fsum(step.log_probability for step in self.steps[self.prompt_length or 0 :] if not step.forced)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of attention of this model, the most informative first."""
        present = {attention_map.kind for attention_map in self.maps}
        return tuple(kind for kind in _KINDS if kind in present)

    def tokens(self, side: Side) -> tuple[str, ...]:
        """Return the tokens of a side of an attention map. "input" means the decoder's input tokens."""
        target = tuple(step.token for step in self.steps)
        match side:
            case "source":
                return self.source_tokens
            case "target":
                return target
            case "input":
                return ("<bos>", *target[:-1])
            case "text":
                return ("<text>",)

    def longer_length(self) -> int:
        """Return the number of tokens of the source or the target, whichever is longer."""
        return max(len(self.source_tokens), len(self.steps))

    def maps_of_kind(self, kind: Kind) -> tuple[AttentionMap, ...]:
        """Return the maps of one kind in layer order, or raise :class:`ConfigError` if the model has none."""
        maps = tuple(attention_map for attention_map in self.maps if attention_map.kind == kind)
        if not maps:
            has = f"it has {', '.join(self.kinds)}" if self.maps else "it has no attention at all"
            raise ConfigError(f"kind {kind!r}: this {self.architecture} model has no such attention; {has}")
        return maps

    def select_map(self, kind: Kind | None = None, layer: int = -1, head: int | None = None) -> AttentionMap:
        """Return one map, by default of the most informative kind and the last layer, with all heads or one.

        Args:
            kind: The kind of attention.
            layer: Number of the layer, counted from 1, or negative from the end.
            head: Number of the head, counted from 1, or negative from the end. None means all heads.

        Raises:
            ConfigError: There is no such attention, layer or head.
        """
        if kind is None and not self.maps:
            raise ConfigError(
                f"this {self.architecture} model has no attention to show; JSON contains its probabilities"
            )
        maps = self.maps_of_kind(kind or self.kinds[0])
        layer_map = maps[_index("layer", layer, len(maps))]
        if head is None:
            return layer_map
        index = _index("head", head, len(layer_map.heads))
        return replace(
            layer_map, heads=layer_map.heads[index : index + 1], weights=layer_map.weights[index : index + 1]
        )

    def filter_maps(self, kind: Kind | None = None, layer: int | None = None, head: int | None = None) -> Inspection:
        """Return a copy that contains only the maps of one kind, layer or head. See :meth:`select_map` for the
        arguments.

        If ``kind`` is None, the layer or head is selected in each kind that has it.
        """
        maps = self.maps if kind is None else self.maps_of_kind(kind)
        if layer is not None:
            depths = {attention_map.kind: attention_map.layer for attention_map in maps}
            _index("layer", layer, max(depths.values(), default=0))
            maps = tuple(
                attention_map
                for attention_map in maps
                if attention_map.layer in (layer, depths[attention_map.kind] + 1 + layer)
            )
        if head is not None:
            _index("head", head, max((len(attention_map.heads) for attention_map in maps), default=0))
            fitting = (
                attention_map for attention_map in maps if -len(attention_map.heads) <= head <= len(attention_map.heads)
            )
            maps = tuple(self.select_map(attention_map.kind, attention_map.layer, head) for attention_map in fitting)
        return replace(self, maps=maps)

    def as_json(self) -> str:
        """Return the inspection as a JSON object. Weights and probabilities are rounded to 6 decimals."""
        values = _rounded(asdict(replace(self, maps=())))
        values["maps"] = [
            {key: getattr(attention_map, key) for key in ("kind", "layer", "name", "heads")}
            | {
                "rows": attention_map.row_side,
                "columns": attention_map.column_side,
                "weights": _rounded(attention_map.weights.tolist()),
            }
            for attention_map in self.maps
        ]
        header: dict[str, Any] = {"format": _FORMAT, "version": _VERSION}
        if self.steps:
            header["log_probability"] = _rounded(self.log_probability)
        return json.dumps({**header, **values}, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Inspection:
        """Return the inspection in ``text``, which :meth:`as_json` has returned."""
        try:
            values = json.loads(text)
            if (values.pop("format"), values.pop("version")) != (_FORMAT, _VERSION):
                raise DataError(f"not an inspection of format {_FORMAT}, version {_VERSION}")
            values.pop("log_probability", None)
            maps = tuple(
                AttentionMap(
                    entry["kind"], entry["layer"], tuple(entry["heads"]), torch.tensor(entry["weights"]), entry["name"]
                )
                for entry in values.pop("maps")
            )
            for step in values["steps"]:
                step["alternatives"] = tuple(TokenAlternative(**alternative) for alternative in step["alternatives"])
            values["steps"] = tuple(PredictedToken(**step) for step in values["steps"])
            values["alignment"] = tuple((source, target) for source, target in values["alignment"])
            if attribution := values["attribution"]:
                values["attribution"] = LabelAttribution(attribution["label"], tuple(attribution["values"]))
            if (positions := values.get("hidden_positions")) is not None:
                values["hidden_positions"] = tuple(positions)
            return cls(**{**values, "source_tokens": tuple(values["source_tokens"]), "maps": maps})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"not an inspection written by headway inspect ({error!r})") from None


def check_attention_size(model: nn.Module, source_length: int, target_length: int = 0) -> None:
    """Raise an error if a source and a target of these lengths have too many attention weights to be inspected.

    Raises:
        LengthError: There are more than :data:`MAX_WEIGHTS` weights.
    """
    count = count_attention_weights(model, source_length, target_length)
    if count > MAX_WEIGHTS:
        target = f" source and {target_length:,} target" if target_length else ""
        raise LengthError(
            f"the attention over {source_length:,}{target} tokens has {count:,} weights, more than the {MAX_WEIGHTS:,} "
            "that can be inspected at once; inspect a shorter text, or its sentences one by one"
        )


def _index(what: str, number: int, count: int) -> int:
    """Convert a layer or head number, counted from 1 or negative from the end, to an index."""
    if 1 <= number <= count:
        return number - 1
    if -count <= number <= -1:
        return number + count
    accepted = f"expected 1 to {count}, or from the end -1 to -{count}" if count else "this model has no attention"
    raise ConfigError(f"{what} {number}: {accepted}")


def _rounded(value: Any) -> Any:
    """Round all numbers in a nested value to six decimals, so that rows still sum to 1 within about 1e-5."""
    match value:
        case float():
            return round(value, _DIGITS)
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [_rounded(item) for item in value]
    return value
