"""Public functions that take a path accept it as a string."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import GenericAlias
from typing import Any

import pytest

from headway.bundle import Bundle, load_bundle, load_without_weights, read_config

MODULES = ("headway", "headway.predict", "headway.tasks", "headway.documents", "headway.interop.huggingface")
FURTHER = {
    "headway.bundle": ("Bundle", "ClassifierBundle", "LanguageModelBundle", "MaskedLanguageModelBundle", "load_bundle"),
    "headway.distillation": ("distill",),
    "headway.interop.exporting": ("export_to",),
    "headway.interop.importing": ("import_huggingface", "import_language_model", "import_masked_language_model"),
    "headway.interop.onnx": ("export",),
}


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in map(importlib.import_module, (*MODULES, *FURTHER)):
        for name in FURTHER.get(module.__name__) or module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                methods = inspect.getmembers(value, lambda each: inspect.isfunction(each) or inspect.ismethod(each))
                yield from ((f"{name}.{method}", each) for method, each in methods if not method.startswith("_"))
            elif callable(value) and not isinstance(value, GenericAlias):
                yield name, value


def test_every_annotation_of_a_path_allows_a_string() -> None:
    found = {
        f"{name}, {parameter.name}": str(parameter.annotation)
        for name, function in public_functions()
        for parameter in inspect.signature(function).parameters.values()
        if "Path" in str(parameter.annotation).replace("Callable", "")
    }
    assert len(found) > 15
    assert [where for where, annotation in found.items() if "str" not in annotation] == []


def test_a_bundle_is_saved_and_loaded(
    make_translator: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_translator().bundle.save("folder", "card")
    for load in (load_bundle, load_without_weights, Bundle.load, Bundle.load_without_weights, read_config):
        assert load("folder").task == load(Path("folder")).task
