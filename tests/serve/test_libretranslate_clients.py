"""Programs that were written for LibreTranslate work with a service unmodified, but for the URL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_clients import HERE, KEY, WRONG_KEY, call, call_python, install_node, install_python, write_config
from running_service import RunningService, running, unpack_model

from headway.predict import Translator, load_translator

pytestmark = pytest.mark.slow
TEXTS = ["Guten Morgen", "Grüße – 5 & 6?", "Zwei\nZeilen"]
AUTO = "Good morning to all of you"
PYTHON_CLIENTS = ("deep-translator==1.11.4", "translate==3.8.1")
NODE_CLIENTS = ("libretranslate@1.0.1", "translate@3.1.0")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def service(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    config = tmp_path_factory.mktemp("config") / "serve.toml"
    write_config(config, model_folder)
    with running(["--config", str(config)]) as found:
        yield found


@pytest.fixture(scope="module")
def translator(model_folder: Path) -> Translator:
    return load_translator(model_folder, precision="int8")


def test_clients_in_python(service: RunningService, translator: Translator, tmp_path: Path) -> None:
    install_python(tmp_path, *PYTHON_CLIENTS)
    install_python(tmp_path, "--no-deps", "argostranslate==1.11.0")  # its client needs none of its models
    found = call_python("libretranslate_clients.py", tmp_path, service.url, KEY, WRONG_KEY)
    texts, auto = [each.text for each in translator.translate(TEXTS)], translator.translate(AUTO).text
    for name in ("argostranslate", "argostranslate/", "deep_translator", "translate"):
        assert found[name]["texts"] == texts, name
        assert found[name]["auto"] == auto, name
    for name in ("argostranslate", "argostranslate/"):
        # It sends a POST, which LibreTranslate refuses like this.
        assert found[name]["languages"] == "HTTPError: HTTP Error 405: Method Not Allowed"
        assert found[name]["detected"] == "en"
        assert found[name]["unknown"] == "HTTPError: HTTP Error 400: Bad Request"
        assert found[name]["wrong key"] == "HTTPError: HTTP Error 403: Forbidden"
    assert found["deep_translator"]["list"] == texts
    assert found["deep_translator"]["unknown"].startswith("ServerException")
    assert found["deep_translator"]["wrong key"].startswith("AuthorizationException")
    assert found["translate"]["unknown"] == "TranslationError: HTTP Error 400: Bad Request"
    assert found["translate"]["wrong key"] == "TranslationError: HTTP Error 403: Forbidden"


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node.js")
def test_clients_in_javascript(service: RunningService, translator: Translator, tmp_path: Path) -> None:
    install_node(tmp_path, *NODE_CLIENTS)
    script = shutil.copy(HERE / "libretranslate_clients.mjs", tmp_path)
    found = call("node", str(script), service.url, KEY, WRONG_KEY)
    texts = [each.text for each in translator.translate(TEXTS)]
    assert found["libretranslate"]["texts"] == texts
    assert found["libretranslate"]["auto"] == translator.translate(AUTO).text
    assert found["libretranslate"]["html"] == translator.translate("<b>Guten</b> Morgen", markup="html").text
    assert found["libretranslate"]["unknown"] == "TypeError: This language was not found/does not exist."
    assert found["libretranslate"]["wrongKey"] is None
    assert found["translate"]["texts"] == texts
    assert "not supported" in found["translate"]["unknown"]
