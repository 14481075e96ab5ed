"""A call whose caller was canceled ends before its next batch, whatever the call computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from headway.decode import Caller, use_caller
from headway.predict import Glossary, LanguageModel, MaskedLanguageModel, Translator
from headway.predict.classification.classifier import Classifier
from headway.predict.classification.occlusion import occlude


@pytest.fixture
def calls(
    make_translator: Callable[..., Translator],
    make_classifier: Callable[..., Classifier],
    make_language_model: Callable[..., LanguageModel],
    make_masked_language_model: Callable[..., MaskedLanguageModel],
) -> dict[str, Callable[[], Any]]:
    translator, classifier = make_translator(), make_classifier()
    writer, filler = make_language_model(), make_masked_language_model()
    return {
        "translate": lambda: translator.translate("ein Haus"),
        "score translations": lambda: translator.score(["ein"], ["a"]),
        "classify": lambda: classifier.classify("ein Haus"),
        "occlude": lambda: occlude(classifier, "ein Haus"),
        "alternatives": lambda: translator.alternatives("ein Haus", "das"),
        "glossary": lambda: Glossary([("Haus", "das")]),
        "score": lambda: writer.score(["ein Haus"]),
        "perplexity": lambda: writer.perplexity(["ein Haus"]),
        "pseudo-log-likelihood": lambda: filler.score(["ein Haus"]),
        "fill": lambda: filler.fill("ein [MASK]"),
    }


@pytest.mark.parametrize(
    "name",
    [
        *("translate", "score translations", "alternatives", "glossary", "classify", "occlude", "score", "perplexity"),
        *("pseudo-log-likelihood", "fill"),
    ],
)
def test_a_canceled_call_ends(calls: dict[str, Callable[[], Any]], name: str) -> None:
    caller = Caller("one")
    with use_caller(caller):
        calls[name]()
        caller.cancel_event.set()
        with pytest.raises(CancelledError):
            calls[name]()
    calls[name]()
