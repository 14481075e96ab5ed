"""Every field of a request either has a small bound, or raises the request's cost, or exceeds a limit."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headway.decode.request import DecodingOptions, Sampling
from headway.predict import GenerationOptions, Source
from headway.predict.translation.options import TranslateOptions
from headway.serve import apis
from headway.serve.config import LimitsConfig
from headway.serve.cost import Cost, cost_of_generation, cost_of_translation, problem_of

_SMALL = 1000  # largest number that needs no place in the cost
# Texts, whose characters are counted (headway.serve.cost), also as prompts, phrases, prefixes and contents of files.
_COUNTED = {
    "ban", "candidates", "content", "contents", "data", "dictionaries", "echo", "entries", "glossary", "include",
    "input", "inputs", "messages", "options", "parameters", "prefix", "prompt", "q", "root", "source_texts", "stop",
    "suffix", "target_texts", "targets", "text", "texts", "translation", "word",
    # Numbers, which limits.hypotheses and limits.new_tokens bound, or which are counted as new tokens.
    "best_of", "max_completion_tokens", "max_length", "max_new_tokens", "max_tokens", "min_length", "min_new_tokens",
    "n", "num_beams", "stride", "top_k", "top_n_tokens", "num_return_sequences",
}  # fmt: skip
# What is looked up, compared, ignored or passed back, and never multiplied by texts: names, languages, labels, seeds.
_LOOKED_UP = {
    "adaptive_dataset_id", "binary_data_size", "category", "classification", "content_type", "datatype",
    "deployment_name", "display_language_code", "gender", "id", "label", "language", "language_code", "logit_bias",
    "markup", "mime_type", "model", "name", "next_token", "no_repeat_ngram_size", "outputs", "profanity_action",
    "reference_text_pairs", "role", "script", "seed", "shape", "source", "source_lang", "source_language",
    "source_language_code", "src_lang", "target", "target_lang", "target_language", "target_language_code",
    "terminology_names", "text_type", "tgt_lang", "tone", "tools", "type", "user", "version",
}  # fmt: skip


def request_models() -> Iterator[type[BaseModel]]:
    for module_info in pkgutil.walk_packages(apis.__path__, f"{apis.__name__}."):
        module = importlib.import_module(module_info.name)
        for value in vars(module).values():
            is_model = isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
            if is_model and not value.__name__.endswith(("Reply", "Item", "Detail", "Error")):
                yield value


def is_small(annotation: Any, metadata: Sequence[Any] = ()) -> bool:
    """Return whether the largest value of a field is small. Models in a field are looked at on their own."""
    bounds = [getattr(item, name, None) for item in metadata for name in ("le", "lt", "max_length")]
    if any(bound is not None and bound <= _SMALL for bound in bounds):
        return True
    if any(getattr(item, "pattern", None) for item in metadata):
        return True
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        items = [item for one in more for item in (one.metadata if isinstance(one, FieldInfo) else [one])]
        return is_small(inner, (*metadata, *items))
    if get_origin(annotation) in (Union, UnionType):
        return all(is_small(kind, metadata) for kind in get_args(annotation))
    if get_origin(annotation) is Literal or annotation in (bool, float, type(None)):
        return True
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


@pytest.mark.parametrize("model", sorted(request_models(), key=str))
def test_every_field_is_small_or_counted_or_only_looked_up(model: type[BaseModel]) -> None:
    unknown = {
        name
        for name, field in model.model_fields.items()
        if not {name, field.alias or name} & (_COUNTED | _LOOKED_UP) and not is_small(field.annotation, field.metadata)
    }
    assert not unknown, "bound these fields, or count them in headway.serve.cost and add them to this test"


def _exceeds(cost: Cost) -> bool:
    return problem_of(cost, LimitsConfig()) is not None


@pytest.mark.parametrize("name", DecodingOptions.model_fields)
def test_every_option_of_a_search_costs_or_is_bounded(name: str) -> None:
    """Options that only change which hypotheses win, or a token's logits, are free."""
    large: dict[str, Any] = {
        "beam_size": {"beam_size": 128}, "n_best": {"n_best": 128, "beam_size": 128},
        "min_length": {"min_length": 50_000, "max_length": 60_000}, "max_length": {"max_length": 60_000},
        "sampling": {"sampling": Sampling(), "n_best": 128}, "groups": {"groups": 128, "beam_size": 128},
    }  # fmt: skip
    free = {
        "length_penalty", "normalization", "coverage_penalty", "stopping", "diversity", "repetition_penalty",
        "no_repeat_ngram",
    }  # fmt: skip
    assert name in large or name in free
    if name in large:
        texts, usual = ["ein Hund"], TranslateOptions()
        cost = cost_of_translation(texts, TranslateOptions(decoding=DecodingOptions(**large[name])))
        assert cost.tokens >= 10 * cost_of_translation(texts, usual).tokens


@pytest.mark.parametrize(
    "source",
    [
        Source("a", prefix="x z " * 100),
        Source("a", include=("wort haus",) * 50),
        Source("a", include=(("wort", "haus") * 25,)),
        Source("a", banned=("wort haus",) * 50),
    ],
    ids=["prefix", "include", "alternatives", "ban"],
)
def test_what_is_read_with_each_text_counts_for_each_text(source: Source) -> None:
    one, ten = (cost_of_translation([source] * count, TranslateOptions()) for count in (1, 10))
    plain = cost_of_translation(["a"] * 10, TranslateOptions())
    assert ten.characters == 10 * one.characters >= 200 * 10
    assert ten.tokens > 5 * plain.tokens


def test_requests_that_are_too_large() -> None:
    usual, beam = TranslateOptions(), TranslateOptions(decoding=DecodingOptions(beam_size=128))
    best = TranslateOptions(decoding=DecodingOptions(beam_size=128, n_best=128))
    phrases = Source("a", banned=("x z " * 30,) * 20)
    assert not _exceeds(cost_of_translation(["ein Hund"] * 1024, usual))
    assert not _exceeds(cost_of_translation([Source("ein Hund", include=("dog",))] * 100, usual))
    assert _exceeds(cost_of_translation([phrases], usual))
    assert _exceeds(cost_of_translation([Source("a", banned=("wort 0 haus",) * 20)] * 1000, usual))
    assert _exceeds(cost_of_translation([Source("a", include=("dog",))], beam))
    assert _exceeds(cost_of_translation(["a"], beam, has_glossary=True))
    assert _exceeds(cost_of_translation(["ein Hund läuft"] * 500, best))
    assert _exceeds(cost_of_translation(["a"], usual, entries=[["a", "b"]] * 2001))
    assert _exceeds(cost_of_generation(["a"] * 2, GenerationOptions(max_new_tokens=60_000)))
    assert _exceeds(cost_of_generation(["a"], GenerationOptions(ban=("x z " * 30,) * 20)))
