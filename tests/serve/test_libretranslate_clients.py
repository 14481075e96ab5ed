"""LibreTranslate's own Python client, unmodified but for the URL."""

from __future__ import annotations

import gc
from pathlib import Path
from urllib.error import HTTPError

import pytest
from conftest import RunningService
from libretranslatepy import LibreTranslateAPI

from headway.predict import load_translator

# The client leaves the closing of its sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("slash", ["", "/"])
def test_libretranslatepy(service: RunningService, slash: str, model_folder: Path) -> None:
    client = LibreTranslateAPI(service.url + slash)
    expected = load_translator(model_folder, precision="int8").translate("Guten Morgen")
    assert client.translate("Guten Morgen", "en", "de") == expected.text
    assert client.detect("Good morning")[0]["language"] == "en"
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]
    with pytest.raises(HTTPError) as refused:
        client.translate("a", "en", "zz")
    assert refused.value.code == 400
    del refused
    gc.collect()
