"""The models of requests: a body with a million invalid items must not make a million errors."""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Iterator
from importlib import import_module
from inspect import isclass
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from headway.decode.request import DecodingOptions
from headway.predict import GenerationOptions, MarkupOptions
from headway.predict.translation.options import TranslateOptions
from headway.serve import apis
from headway.serve.apis.native.fields import Body

_REPLIES = ("Reply", "Item", "Error", "Detail")  # the ends of the names of models that are not parsed
_SMALL = 100


def request_models() -> Iterator[type[BaseModel]]:
    """Yield all models that the bodies of requests, or parts of them, are parsed as."""
    yield from (DecodingOptions, GenerationOptions, MarkupOptions, TranslateOptions)
    for module in pkgutil.walk_packages(apis.__path__, f"{apis.__name__}."):
        for value in vars(import_module(module.name)).values():
            is_model = isclass(value) and issubclass(value, BaseModel) and value.__module__ == module.name
            if is_model and not value.__name__.endswith(_REPLIES):
                yield value


def sequences(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the schema of each list, tuple and set in a schema of pydantic."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple", "set", "frozenset", "generator"):
            yield path, schema
        for name, value in schema.items():
            if name not in ("serialization", "metadata", "cls"):
                yield from sequences(value, f"{path}.{name}")
    elif isinstance(schema, (list, tuple)):
        for value in schema:
            yield from sequences(value, path)


def test_a_list_ends_at_its_first_invalid_item_or_is_short() -> None:
    models = list(request_models())
    unbounded = [
        path
        for model in models
        for path, schema in sequences(model.__pydantic_core_schema__, model.__qualname__)
        if not schema.get("fail_fast") and schema.get("max_length", _SMALL + 1) > _SMALL
    ]
    assert not unbounded, "\n".join(unbounded)
    assert {"TranslateBody", "_ChatFields", "_Items", "_InferenceFields", "MarkupOptions"} <= {
        model.__name__ for model in models
    }


@pytest.mark.parametrize("name", ["ignore_tags", "attributes", "splitting_tags"])
def test_a_million_invalid_items_are_one_error(name: str) -> None:
    class Request(Body):
        markup: MarkupOptions

    body = '{"markup": {"kind": "xml", "' + name + '": [' + "1," * 1_000_000 + "1]}}"
    began = time.process_time()
    with pytest.raises(ValidationError) as raised:
        Request.model_validate_json(body)
    assert raised.value.error_count() == 1
    assert time.process_time() - began < 10
