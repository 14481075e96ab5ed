"""Inspect a classifier: the attention of its encoder and its pooling, and the tokens that support a label.

If the last block computes only the position that is read out, its attention acts as a pooling: it shows how much of
each token goes into the one vector that the label is predicted from.
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
    """Return what the model attends to in ``text``, and which tokens support ``label`` (None: the most probable).

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
    """Return the map restricted to the ``count`` real tokens; the model does not see the padding behind them."""
    one = each.weights.size(2) == 1 and kind == "encoder" and count > 1
    layer = 1 if one else each.layer
    weights = each.weights[0, :, :count, :count]
    return AttentionMap("pooling" if one else kind, layer, tuple(range(1, weights.size(0) + 1)), weights, each.name)
