"""What a classifier sees: the attention of its encoder and of its pooling, and what speaks for a label.

A last block that reads out one position computes that position's queries alone. Its attention is then a pooling: it
says how much of each token goes into the one vector that the label is read from.
"""

from __future__ import annotations

from headway.errors import BundleError
from headway.inspection.capture import CapturedMap, Kind, capture
from headway.inspection.results import AttentionMap, Inspection, LabelAttribution, check_size
from headway.predict import Classifier

__all__ = ["inspect_classification"]


def inspect_classification(
    classifier: Classifier, text: str, label: str | None = None, *, name: str = "model"
) -> Inspection:
    """What the model sees in ``text``, and what speaks for ``label`` (None: the most probable one).

    Raises:
        HeadwayError: The text is blank or has too much attention, or the model has no such label.
    """
    model = classifier.bundle.model
    length = model.max_length
    if not model.config.pad_to_max_length:
        length = min(len(classifier.bundle.tokenizer.encode(text)) + 1, length)
    check_size(model, length + (model.config.pooling == "first"))
    with capture(model) as seen:
        found = classifier.classify(text)
    if any(value != value for value in found.probabilities.values()):
        raise BundleError("the model gives no finite probabilities: its weights are damaged")
    told = classifier.explain(text, label)
    return Inspection(
        model=name,
        architecture=model.config.kind,
        source=text,
        source_tokens=tuple(token.text for token in told.tokens),
        maps=tuple(_without_padding(each, each.kind, len(told.tokens)) for each in seen.maps if each.kind),
        labels=dict(sorted(found.probabilities.items(), key=lambda pair: -pair[1])),
        attribution=LabelAttribution(told.label, tuple(token.value for token in told.tokens)),
        truncated=found.truncated,
    )


def _without_padding(each: CapturedMap, kind: Kind, count: int) -> AttentionMap:
    """The map of the ``count`` tokens that are shown; those behind them are hidden from the model as well."""
    one = each.weights.size(2) == 1 and kind == "encoder" and count > 1
    layer = 1 if one else each.layer
    weights = each.weights[0, :, :count, :count]
    return AttentionMap("pooling" if one else kind, layer, tuple(range(1, weights.size(0) + 1)), weights, each.name)
