"""Occlusion: measure the probability of a label without each word of a text.

Each word is left out in turn, and the rest is classified (for images: Zeiler and Fergus 2014, section 4.2; for text: Li
et al. 2016, "Understanding Neural Networks through Representation Erasure"). Unlike gradient x input
(:mod:`headway.predict.classification.attribution`), this measures a real change in the prediction. It needs one
prediction per word, so the words of a long text are left out in groups.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headway.predict.classification.classifier import Classifier
from headway.text.normalization import original_pieces

MAX_PARTS = 40
MAX_CHARACTERS = 10_000  # maximum number of characters of a text that are considered


@dataclass(frozen=True)
class OccludedPart:
    """One or more words of a text, and the probability of the label without them."""

    text: str
    probability: float


@dataclass(frozen=True)
class Occlusion:
    """The probability of a label for a text, and for the text without each of its parts.

    Attributes:
        label: The label that is explained.
        probability: Probability of the label for the whole text.
        parts: The parts of the text, in order. Empty if the text is a single word.
    """

    label: str
    probability: float
    parts: tuple[OccludedPart, ...]


def occlude(classifier: Classifier, text: str, label: str | None = None) -> Occlusion:
    """Return the probability of ``label``, by default the most probable label, without each part of ``text``.

    At most :data:`MAX_CHARACTERS` characters, counted from the first word, are considered, in at most
    :data:`MAX_PARTS` parts. Text beyond the model's maximum length is ignored.

    Raises:
        ConfigError: The label does not exist.
        DataError: The text is empty or not valid Unicode.
    """
    label = classifier.resolve_label(label)
    text = text[: len(text) - len(text.lstrip()) + MAX_CHARACTERS]
    whole = classifier.classify(text)
    chosen = label or whole.label
    spans = _part_spans(_truncated_text(classifier, text) if whole.truncated else text)
    without = [text[:start] + text[end:] for start, end in spans] if len(spans) > 1 else []
    classifications = classifier.classify(without)
    parts = (
        OccludedPart(text[start:end], classification.probabilities[chosen])
        for (start, end), classification in zip(spans[: len(without)], classifications, strict=True)
    )
    return Occlusion(chosen, whole.probabilities[chosen], tuple(parts))


def _truncated_text(classifier: Classifier, text: str) -> str:
    """Return the text truncated to the model's maximum length."""
    bundle = classifier.bundle
    read, tokenizer = bundle.normalized(text), bundle.tokenizer
    length = len(tokenizer.decode(tokenizer.encode(read)[: bundle.model.max_length - 1]))
    return original_pieces(text, [read[:length], read[length:]])[0] if bundle.normalize else text[:length]


def _part_spans(text: str) -> list[tuple[int, int]]:
    """Return the range [start, end) of each word or, if there are too many words, of each group of words."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    size = -(-len(words) // MAX_PARTS)  # rounded up
    groups = [words[start : start + size] for start in range(0, len(words), size or 1)]
    return [(group[0][0], group[-1][1]) for group in groups]
