"""Small models that were never trained, and an application that serves the one from English to German."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import application
from running_service import unpack_model
from starlette.testclient import TestClient

from headway.predict import LanguageModel, MaskedLanguageModel, Translator, load_translator
from headway.predict.classification.classifier import Classifier

KINDS = ("model", "writer", "labeler", "filler")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model."""
    return unpack_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def translator(model_folder: Path) -> Translator:
    """The model as the service loads it."""
    return load_translator(model_folder, precision="int8")


@pytest.fixture(scope="session")
def http(translator: Translator) -> TestClient:
    """A client of an application without keys that serves the model."""
    return application({"model": translator})


@pytest.fixture(scope="session")
def models(
    translator: Translator,
    make_language_model: Callable[..., LanguageModel],
    make_classifier: Callable[..., Classifier],
    make_masked_language_model: Callable[..., MaskedLanguageModel],
) -> dict[str, Any]:
    """A model of each kind, by the names in :data:`KINDS`. The first one is the translator."""
    others = make_language_model(max_length=64), make_classifier(), make_masked_language_model()
    return dict(zip(KINDS, (translator, *others), strict=True))
