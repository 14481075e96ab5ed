"""Inspections of translations. They run in a worker and return JSON, which the front process sends unchanged.

The length of texts is limited (:data:`headway.inspection.page_data.MAX_DRAWN_TOKENS`), so that an inspection does not
occupy a worker for long: if the client disconnects, only the searches of an inspection end early.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from headway.decode import DecodingOptions
from headway.errors import LengthError
from headway.inspection.diagram import build_outline, diagram
from headway.inspection.forced_word import force_word
from headway.inspection.inspect_translator import inspect_translation
from headway.inspection.page_data import MAX_DRAWN_TOKENS, REPLY_MAX_WEIGHT, page_data, predicted_token_data
from headway.inspection.results import Inspection
from headway.predict import Translator


def inspect_sentence(translator: Translator, text: str, translation: str | None, name: str, **languages: Any) -> bytes:
    """Return the attention and the predictions for a translation, in the format of :func:`page_data`."""
    _check_length(translator, text, translation)
    return _json(
        page_data(inspect_translation(translator, text, translation, name=name, **languages), REPLY_MAX_WEIGHT)
    )


def search_tree(translator: Translator, text: str, options: DecodingOptions, **languages: Any) -> bytes:
    """Return the search tree of a translation's beam search."""
    _check_length(translator, text)
    return _json(asdict(translator.search_tree(text, options, **languages)))


def force_word_in_translation(
    translator: Translator, text: str, prefix: str, word: str, translation: str | None, **languages: Any
) -> bytes:
    """Return the cost in log-probability of forcing a word at a position in a translation."""
    _check_length(translator, text, translation, prefix + word)
    forced = force_word(translator, text, prefix, word, translation=translation, **languages)
    return _json({"cost": forced.cost, "chosen": _target(forced.original), "forced": _target(forced.with_word)})


def draw_architecture(model: Any) -> bytes:
    """Return a drawing of a model's architecture as an SVG file."""
    return diagram(build_outline(model.bundle)).svg.encode()


def _target(inspection: Inspection) -> dict[str, Any]:
    steps = [predicted_token_data(step) for step in inspection.steps]
    return {"text": inspection.target, "log_probability": inspection.log_probability, "steps": steps}


def _check_length(translator: Translator, text: str, *translations: str | None) -> None:
    """Raise :class:`LengthError` if a text or a translation is too long to be drawn."""
    bundle = translator.bundle
    read = [("text", "give one of its sentences", bundle.source_tokenizer, text)]
    read += [
        ("translation", "shorten it", bundle.target_tokenizer, translation)
        for translation in translations
        if translation
    ]
    for what, hint, tokenizer, checked in read:
        count = len(tokenizer.encode(bundle.normalized(checked)))
        if count > MAX_DRAWN_TOKENS:
            raise LengthError(
                f"a {what} of {count:,} tokens is too long to be inspected; at most {MAX_DRAWN_TOKENS} are accepted: "
                f"{hint}"
            )


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
