"""What is seen of a model that reads one text: plain values, and their JSON.

Layers and heads are counted from 1 wherever a person or a program meets them. Dimensions: H heads, T queries (rows), S
keys (columns).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.errors import ConfigError, DataError, LengthError
from headway.inspection.capture import Kind, numbers_in

__all__ = [
    "DRAWN_TOKENS",
    "MAX_NUMBERS",
    "AttentionMap",
    "Inspection",
    "LabelAttribution",
    "PredictedToken",
    "Side",
    "TokenProbability",
    "check_size",
]

DRAWN_TOKENS = 200  # of the longer side: more make neither a picture that can be read nor a page that opens fast
MAX_NUMBERS = 20_000_000  # weights that are kept of a text: 80 MB, and some 200 MB as JSON
_DIGITS = 6  # of weights and probabilities in JSON
_FORMAT, _VERSION = "headway-inspection", 1

Side = Literal["source", "input", "target", "text"]
_SIDES: Mapping[Kind, tuple[Side, Side]] = {
    "encoder": ("source", "source"),
    "decoder": ("target", "input"),
    "cross": ("target", "source"),
    "pooling": ("text", "source"),
}


@dataclass(frozen=True)
class AttentionMap:
    """The attention of one module, all heads.

    Attributes:
        kind: "encoder" or "decoder" (each to itself), "cross" (target to source), "pooling" (a whole text's).
        layer: Counted from 1.
        heads: Their numbers, counted from 1.
        weights: For each head a row for each query; a row sums to 1.
        name: The module in the model.
    """

    kind: Kind
    layer: int
    heads: tuple[int, ...]
    weights: Float[Tensor, "H T S"]
    name: str = ""

    @property
    def rows(self) -> Side:
        """Whose tokens the rows (queries) are; of a decoder the token that is being predicted."""
        return _SIDES[self.kind][0]

    @property
    def columns(self) -> Side:
        """Whose tokens the columns (keys) are."""
        return _SIDES[self.kind][1]


@dataclass(frozen=True)
class TokenProbability:
    """A token as a reader sees it, and its log-probability in nats."""

    token: str
    log_probability: float


@dataclass(frozen=True)
class PredictedToken:
    """One position of the target.

    Attributes:
        token: The token there.
        log_probability: Of it, in nats, given the source and the tokens before.
        rank: Its place among all tokens by probability, 1 the most probable.
        forced: Whether it is not predicted but given to the model, such as the code of the target's language.
        alternatives: The most probable tokens of this position, best first.
    """

    token: str
    log_probability: float
    rank: int
    forced: bool
    alternatives: tuple[TokenProbability, ...]


@dataclass(frozen=True)
class LabelAttribution:
    """How much each source token speaks for a label: gradient x input, positive for and negative against it."""

    label: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Inspection:
    """Everything that is seen.

    Attributes:
        model: What the model is called.
        architecture: "transformer", "recurrent" or "classifier".
        source: The text.
        source_tokens: Its tokens as the model reads them, codes of languages and the end symbol among them.
        maps: The attention of every module that has some; none in a model without attention.
        target: The target; None for a classifier.
        target_given: Whether it was given, or else is the model's own translation.
        steps: A step for each target token and one for the end symbol.
        alignment: (source token, target token), both counted from 0 among ``source_tokens`` and ``steps``.
        alignment_layer: Whose attention aligns, as a mean over heads; counted from 1.
        labels: A classifier's labels and their probabilities, most probable first.
        attribution: Of a classifier: what speaks for a label, the most probable one unless another was asked for.
        truncated: Whether the end of the text was cut off, being more than the model reads.
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

    @property
    def log_probability(self) -> float:
        """That of the target given the source, in nats: the sum over all steps that are not forced."""
        return math.fsum(step.log_probability for step in self.steps if not step.forced)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of attention that there are, the most telling first."""
        present = {each.kind for each in self.maps}
        return tuple(kind for kind in ("cross", "pooling", "encoder", "decoder") if kind in present)

    def tokens(self, side: Side) -> tuple[str, ...]:
        """The tokens that rows or columns stand for; "input" are those that the decoder has read."""
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

    def longest(self) -> int:
        """The length of the longer of source and target, in tokens."""
        return max(len(self.source_tokens), len(self.steps))

    def of_kind(self, kind: Kind) -> tuple[AttentionMap, ...]:
        """The maps of a kind by layer; :class:`ConfigError` where the model has none."""
        found = tuple(each for each in self.maps if each.kind == kind)
        if not found:
            has = f"it has {', '.join(self.kinds)}" if self.maps else "it has no attention at all"
            raise ConfigError(f"kind {kind!r}: this {self.architecture} model has no such attention; {has}")
        return found

    def select_map(self, kind: Kind | None = None, layer: int = -1, head: int | None = None) -> AttentionMap:
        """One map, by default of the most telling kind and the last layer, and of it all heads or one.

        Args:
            kind: Which attention.
            layer: Counted from 1 or, negative, from the end.
            head: Counted from 1; None: all.

        Raises:
            ConfigError: There is no such attention, layer or head.
        """
        if kind is None and not self.maps:
            raise ConfigError(f"this {self.architecture} model has no attention to show; its probabilities are in JSON")
        found = self.of_kind(kind or self.kinds[0])
        one = found[_index("layer", layer, len(found))]
        if head is None:
            return one
        at = _index("head", head, len(one.heads))
        return replace(one, heads=one.heads[at : at + 1], weights=one.weights[at : at + 1])

    def only(self, kind: Kind | None = None, layer: int | None = None, head: int | None = None) -> Inspection:
        """The same with the maps of one kind, layer or head alone; arguments as of :meth:`select_map`.

        Where no kind is given, a layer or head is that of each kind that has so many.
        """
        maps = self.maps if kind is None else self.of_kind(kind)
        if layer is not None:
            depths = {each.kind: each.layer for each in maps}
            _index("layer", layer, max(depths.values(), default=0))
            maps = tuple(each for each in maps if each.layer in (layer, depths[each.kind] + 1 + layer))
        if head is not None:
            _index("head", head, max((len(each.heads) for each in maps), default=0))
            fitting = (each for each in maps if -len(each.heads) <= head <= len(each.heads))
            maps = tuple(self.select_map(each.kind, each.layer, head) for each in fitting)
        return replace(self, maps=maps)

    def as_json(self) -> str:
        """All of it as one JSON object; weights and probabilities are rounded to 6 decimals."""
        values = _rounded(asdict(replace(self, maps=())))
        values["maps"] = [
            {
                "kind": each.kind,
                "layer": each.layer,
                "name": each.name,
                "heads": each.heads,
                "rows": each.rows,
                "columns": each.columns,
                "weights": _rounded(each.weights.tolist()),
            }
            for each in self.maps
        ]
        header: dict[str, Any] = {"format": _FORMAT, "version": _VERSION}
        if self.target is not None:
            header["log_probability"] = _rounded(self.log_probability)
        return json.dumps({**header, **values}, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Inspection:
        """Read what :meth:`as_json` wrote."""
        try:
            values = json.loads(text)
            if (values.pop("format"), values.pop("version")) != (_FORMAT, _VERSION):
                raise DataError(f"not an inspection of format {_FORMAT}, version {_VERSION}")
            values.pop("log_probability", None)
            maps = tuple(
                AttentionMap(each["kind"], each["layer"], tuple(each["heads"]), _tensor(each["weights"]), each["name"])
                for each in values.pop("maps")
            )
            steps = tuple(
                PredictedToken(
                    **{**step, "alternatives": tuple(TokenProbability(**each) for each in step["alternatives"])}
                )
                for step in values.pop("steps")
            )
            alignment = tuple((source, target) for source, target in values.pop("alignment"))
            told = values.pop("attribution")
            attribution = told and LabelAttribution(told["label"], tuple(told["values"]))
            source_tokens = tuple(values.pop("source_tokens"))
            return cls(
                **values,
                source_tokens=source_tokens,
                maps=maps,
                steps=steps,
                alignment=alignment,
                attribution=attribution,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"not an inspection as headway inspect writes it to .json ({error!r})") from None


def check_size(model: nn.Module, source: int, target: int = 0) -> None:
    """Refuse what has more attention than can be kept, before any is computed; lengths are in tokens.

    Raises:
        LengthError: It has.
    """
    numbers = numbers_in(model, source, target)
    if numbers > MAX_NUMBERS:
        lengths = f"a text of {source:,} tokens" if not target else f"{source:,} source and {target:,} target tokens"
        raise LengthError(
            f"all attention of {lengths} is {numbers:,} numbers, more than the {MAX_NUMBERS:,} that can be inspected "
            "at once; inspect a shorter text, or its sentences one by one"
        )


def _tensor(weights: list[list[list[float]]]) -> Float[Tensor, "H T S"]:
    return torch.tensor(weights, dtype=torch.float32)


def _index(what: str, number: int, count: int) -> int:
    """The place of a layer or head that is counted from 1 or from the end."""
    if 1 <= number <= count:
        return number - 1
    if -count <= number <= -1:
        return number + count
    accepted = f"expected 1 to {count}, or from the end -1 to -{count}" if count else "this model has no attention"
    raise ConfigError(f"{what} {number}: {accepted}")


def _rounded(value: Any) -> Any:
    """All numbers inside to six decimals, which keeps a row's sum to some 1e-5."""
    match value:
        case float():
            return round(value, _DIGITS)
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value
