"""An untrained language model that reads letters, as fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import headway
from headway.predict import LanguageModel


@pytest.fixture(scope="module")
def folder(make_language_model: Callable[..., LanguageModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model."""
    folder = tmp_path_factory.mktemp("models") / "letters"
    make_language_model("characters", texts=["abcdefghij "], max_length=16).bundle.save(folder, "# A model\n")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    """The model."""
    found = headway.load(folder)
    assert isinstance(found, LanguageModel)
    return found
