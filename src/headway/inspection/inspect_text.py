"""Inspect any model, and write the result as a page, a picture, JSON or a decoding trace.

If the last block of a classifier computes only the position from which the label is predicted, its attention acts as
pooling: it shows how much each token contributes to the vector at that position.

from headway.inspection.inspect_text import inspect, write_inspection
write_inspection(inspect(headway.load("runs/de-en/best"), "Guten Morgen!"), Path("morning.html"))
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from headway.errors import BundleError, ConfigError
from headway.inspection.attention_plots import plot_inspection
from headway.inspection.capture import CapturedMap, Kind, capture
from headway.inspection.html_page import render_html
from headway.inspection.inspect_language_model import DEFAULT_NEW_TOKENS, inspect_language_model
from headway.inspection.inspect_masked_language_model import inspect_masked_language_model
from headway.inspection.inspect_translator import inspect_translation
from headway.inspection.picture_files import PICTURE_FORMATS, save_picture
from headway.inspection.results import AttentionMap, Inspection, LabelAttribution, check_attention_size
from headway.predict import (
    Classifier,
    DecodingTrace,
    LanguageModel,
    MaskedLanguageModel,
    TokenAlternative,
    TracedStep,
    Translator,
)
from headway.predict.language_modeling.predicted_tokens import DEFAULT_ALTERNATIVES
from headway.storage import atomic_write_text

_NAMES = {"labels": "a classifier", "continues": "a language model", "fills": "a masked language model"}


def inspect(
    model: Translator | Classifier | LanguageModel | MaskedLanguageModel,
    source: str,
    target: str | None = None,
    *,
    name: str = "model",
    alternatives: int | None = None,
    target_language: str | None = None,
    source_language: str | None = None,
    max_new_tokens: int | None = None,
) -> Inspection:
    """Run ``model`` on ``source`` and return its attention and predictions.

    Args:
        model: A model from ``headway.load``.
        source: A text that the model can process without splitting it; for a language model, the prompt; for a masked
            language model, a text with or without [MASK].
        target: The translation, the continuation of the prompt, or the label to explain. None means the model's own
            prediction. It must be None for a masked language model.
        name: The model's name, for titles.
        alternatives: Number of most probable tokens to list at each target position. None means five.
        target_language: The language to translate into, if the model has several.
        source_language: The language of the source, for imported models that need it.
        max_new_tokens: Maximum length of a language model's own continuation. None means 20; 0 inspects the prompt.

    Raises:
        HeadwayError: The text is blank or too long, or an argument does not fit the model.
    """
    capability = model.bundle.capability
    if max_new_tokens is not None and capability != "continues":
        raise ConfigError("max_new_tokens is for language models; leave it out (--max-new-tokens)")
    if capability == "translates":
        return inspect_translation(
            cast("Translator", model),
            source,
            target,
            name=name,
            alternatives=DEFAULT_ALTERNATIVES if alternatives is None else alternatives,
            target_language=target_language,
            source_language=source_language,
        )
    if target_language is not None or source_language is not None:
        raise ConfigError(f"{_NAMES[capability]} has no languages to choose; leave out --to and --from")
    if capability == "fills":
        if target is not None:
            raise ConfigError(f"target {target!r}: a masked language model has none; put [MASK] into the text instead")
        return inspect_masked_language_model(
            cast("MaskedLanguageModel", model),
            source,
            name=name,
            alternatives=DEFAULT_ALTERNATIVES if alternatives is None else alternatives,
        )
    if capability == "continues":
        if target is not None and max_new_tokens is not None:
            raise ConfigError("max_new_tokens has no effect on a given continuation; leave one out (--max-new-tokens)")
        return inspect_language_model(
            cast("LanguageModel", model),
            source,
            target,
            name=name,
            alternatives=DEFAULT_ALTERNATIVES if alternatives is None else alternatives,
            max_new_tokens=DEFAULT_NEW_TOKENS if max_new_tokens is None else max_new_tokens,
        )
    if alternatives is not None:
        raise ConfigError(
            f"alternatives = {alternatives}: a classifier predicts no tokens, and the probabilities of all labels are "
            "shown anyway; leave it out (--alternatives)"
        )
    return inspect_classification(cast("Classifier", model), source, target, name=name)


def inspect_classification(
    classifier: Classifier, text: str, label: str | None = None, *, name: str = "model"
) -> Inspection:
    """Return what the model attends to in ``text``, and which tokens support ``label`` (default: the most probable
    label).

    Raises:
        HeadwayError: The text is blank or has too many attention weights, or the model has no such label.
    """
    model = classifier.bundle.model
    length = model.max_length
    if not model.config.pad_to_max_length:
        read = classifier.bundle.normalized(text)
        length = min(len(classifier.bundle.tokenizer.encode(read)) + 1, length)
    check_attention_size(model, length + (model.config.pooling == "first"))
    with capture(model) as seen:
        classification = classifier.classify(text)
    if any(value != value for value in classification.probabilities.values()):
        raise BundleError("the model's probabilities are NaN: its weights are damaged")
    explanation = classifier.explain(text, label)
    return Inspection(
        model=name,
        architecture=model.config.kind,
        source=text,
        source_tokens=tuple(token.text for token in explanation.tokens),
        maps=tuple(
            _without_padding(captured, captured.kind, len(explanation.tokens))
            for captured in seen.maps
            if captured.kind
        ),
        labels=dict(sorted(classification.probabilities.items(), key=lambda pair: -pair[1])),
        attribution=LabelAttribution(explanation.label, tuple(token.value for token in explanation.tokens)),
        truncated=classification.truncated,
    )


def _without_padding(each: CapturedMap, kind: Kind, count: int) -> AttentionMap:
    """Return the attention map of the first ``count`` tokens, which are not padding."""
    one = each.weights.size(2) == 1 and kind == "encoder" and count > 1
    layer = 1 if one else each.layer
    weights = each.weights[0, :, :count, :count]
    return AttentionMap("pooling" if one else kind, layer, tuple(range(1, weights.size(0) + 1)), weights, each.name)


def check_output_format(output: Path) -> None:
    """Raise ConfigError if :func:`write_inspection` does not support the file name's extension."""
    known = (".html", *PICTURE_FORMATS, ".txt", ".json")
    if output.suffix.lower() not in known:
        raise ConfigError(
            f"{output}: expected a name that ends in .html (a page), {', '.join(PICTURE_FORMATS)} (a picture), .txt "
            "(the decoding step by step) or .json"
        )


def write_inspection(
    inspection: Inspection, output: Path, *, kind: Kind | None = None, layer: int | None = None, head: int | None = None
) -> None:
    """Write an inspection as a page, a picture, a trace or JSON, depending on the file name's extension.

    The file is written completely or not at all. ``kind``, ``layer`` and ``head`` (counted from 1, or negative from the
    end) select the map that a page shows first and a picture enlarges, and the maps that the JSON contains.

    Raises:
        ConfigError: The inspection has no attention of this kind, layer or head; the extension is not supported; or a
            trace is requested for a model that does not decode step by step.
        LengthError: The text is too long for a picture.
    """
    check_output_format(output)
    if output.suffix.lower() == ".txt":
        if (kind, layer, head) != (None, None, None):
            raise ConfigError(f"{output}: kind, layer and head select attention, which a .txt file does not contain")
        name = "Translation" if inspection.prompt_length is None else "Continuation"
        return atomic_write_text(output, f"{decoding_trace(inspection)}\n{name}: {inspection.target}\n")
    if output.suffix.lower() in PICTURE_FORMATS:
        return save_picture(plot_inspection(inspection, kind=kind, layer=layer, head=head), output)
    if output.suffix.lower() == ".html":
        text = render_html(inspection, kind, layer, head)
    else:
        text = inspection.filter_maps(kind, layer, head).as_json() + "\n"
    return atomic_write_text(output, text)


def decoding_trace(inspection: Inspection) -> DecodingTrace:
    """Return the decoding of the inspected target step by step, as :func:`headway.predict.trace_translation` does.

    Raises:
        ConfigError: The model has no decoder.
    """
    if not inspection.steps or inspection.hidden_positions is not None:
        raise ConfigError(
            f"a {inspection.architecture} model does not decode step by step; write a page, a picture or JSON"
        )
    decoder_input = inspection.tokens("input")
    steps, total = list[TracedStep](), 0.0
    for index, step in enumerate(inspection.steps):
        given = step.forced or index < (inspection.prompt_length or 0)
        chosen = (TokenAlternative(step.token, step.log_probability),)
        steps.append(TracedStep(index + 1, 1, 1, total, decoder_input[: index + 1], chosen, step.alternatives, given))
        total += step.log_probability
    encoder_input = inspection.source_tokens if inspection.prompt_length is None else None
    return DecodingTrace("single", encoder_input, tuple(steps))
