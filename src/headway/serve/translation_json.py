"""Convert translations to JSON in the workers, so that the front process only has to send it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from headway.decode import give_way
from headway.errors import HeadwayError
from headway.predict import Candidate, Source, Translation
from headway.predict.translation.glossary import Glossary
from headway.predict.translation.options import TranslateOptions
from headway.text.sentences import split_sentences

MAX_ATTENTION_WEIGHTS = 1_000_000  # maximum number of attention weights in all results together

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

Weights = Literal["none", "best", "all"]
"""The candidates whose attention weights a result contains: none, only the best, or all."""


def translate_to_json(
    translator: Any,
    texts: Sequence[str | Source],
    options: TranslateOptions,
    glossary: Glossary | None = None,
    *,
    weights: Weights = "best",
) -> list[bytes]:
    """Translate texts, and return the translation or the error of each text as JSON."""
    remaining, results = MAX_ATTENTION_WEIGHTS, list[bytes]()
    for translation in translator.translate_each(texts, options, glossary):
        give_way()
        value, used = translation_to_value(translation, weights, remaining)
        remaining -= used
        results.append(to_json(value))
    return results


def sentences_to_json(_: Any, texts: Sequence[str], language: str) -> bytes:
    """Return the sentences of each text as JSON. The first argument is a model, which is not used."""
    sentences = list[list[str]]()
    for text in texts:
        give_way()
        sentences.append(split_sentences(text, language))
    return to_json({"sentences": sentences})


def translation_to_value(
    translation: Translation | HeadwayError, weights: Weights = "best", max_attention: int = MAX_ATTENTION_WEIGHTS
) -> tuple[dict[str, Any], int]:
    """Return a translation or its error as a JSON value, and the number of attention weights that it contains."""
    if isinstance(translation, HeadwayError):
        return {"error": str(translation)}, 0
    values, used = list[dict[str, Any]](), 0
    for rank, candidate in enumerate(translation.candidates):
        give_way()
        value = _candidate_value(candidate)
        if candidate.alignment is not None:
            attention = candidate.alignment.attention
            size = sum(map(len, attention))
            has_weights = weights == "all" or (weights == "best" and not rank)
            if has_weights and used + size <= max_attention:
                used += size
            else:
                attention = ()
            value["alignment"] = {
                "source_tokens": candidate.alignment.source_tokens,
                "pairs": candidate.alignment.pairs,
                **({} if weights == "none" else {"attention": attention}),
            }
        values.append(value)
    best, *others = values
    return {"source": translation.source, **best, "alternatives": others, "unlikely": translation.unlikely}, used


def to_json(value: Any) -> bytes:
    """Serialize a value to JSON."""
    return _encode(value).encode("utf-8", "replace")


def _candidate_value(candidate: Candidate) -> dict[str, Any]:
    fields = {
        name: value for name, value in vars(candidate).items() if name not in ("ids", "alignment") and value is not None
    }
    if candidate.glossary is not None:
        fields["glossary"] = [asdict(term) for term in candidate.glossary]
    return fields
