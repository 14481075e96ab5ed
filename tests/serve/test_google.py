"""Google's API, v2 and v3, called by plain requests and by its clients."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from in_process import application
from running_clients import (
    HERE,
    KEY,
    WRONG_KEY,
    call,
    call_python,
    install_node,
    install_python,
    limited_key,
    write_config,
)
from running_service import RunningService, running
from starlette.testclient import TestClient

from headway.predict import Translator
from headway.serve.config import KeyConfig

pytest_plugins = ["small_model"]  # the fixtures of that file

V2, V3 = "/language/translate/v2", "/v3/projects/one/locations/global"
TEXTS = ["Guten Morgen", "Grüße – 5 & 6?", "Zwei\nZeilen"]
AUTO = "Good morning to all of you"
LANGUAGES = [{"language": "de", "name": "German"}, {"language": "en", "name": "English"}]
FIELDS = {"q": "Grüße – 5", "source": "en", "target": "de", "format": "text"}
CONTENTS = {"contents": TEXTS, "sourceLanguageCode": "en", "targetLanguageCode": "de", "mimeType": "text/plain"}


@pytest.fixture(scope="module")
def service(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    config = tmp_path_factory.mktemp("config") / "serve.toml"
    write_config(config, model_folder, ["v2", "v3", "node"])
    with running(["--config", str(config)]) as found:
        yield found


def texts_of(translator: Translator, texts: list[str]) -> list[str]:
    return [each.text for each in translator.translate(texts)]


@pytest.mark.parametrize(
    ("method", "content"),
    [
        ("POST", {"json": FIELDS}),
        ("POST", {"json": FIELDS | {"cid": [], "model": None, "key": None}}),
        ("POST", {"json": {"data": FIELDS}}),
        ("POST", {"data": FIELDS}),
        ("POST", {"params": FIELDS}),
        ("GET", {"params": FIELDS}),
        ("POST", {"params": FIELDS, "headers": {"x-http-method-override": "GET"}}),
    ],
)
def test_forms_of_v2(http: TestClient, translator: Translator, method: str, content: Any) -> None:
    expected = {"translations": [{"translatedText": translator.translate(FIELDS["q"]).text}]}
    assert http.request(method, V2, **content).json() == {"data": expected}


def test_several_texts_in_the_query(http: TestClient, translator: Translator) -> None:
    reply = http.get(V2, params=FIELDS | {"q": TEXTS, "model": "nmt"})
    assert reply.json()["data"]["translations"] == [
        {"translatedText": text, "model": "nmt"} for text in texts_of(translator, TEXTS)
    ]


@pytest.mark.parametrize("field", [{}, {"format": "html"}])
def test_html(http: TestClient, translator: Translator, field: dict[str, str]) -> None:
    """A text without a format is HTML, in both versions."""
    text = "abc <b>de</b> &amp; l"
    expected = translator.translate(text, markup="html").text
    assert expected.count("<b>") == 1
    fields = {"q": text, "source": "en", "target": "de"} | field
    assert http.post(V2, json=fields).json()["data"]["translations"][0]["translatedText"] == expected
    body = CONTENTS | {"contents": [text], "mimeType": "text/html" if field else ""}
    assert http.post(f"{V3}:translateText", json=body).json()["translations"][0]["translatedText"] == expected


def test_detected_languages(http: TestClient, translator: Translator) -> None:
    found = http.post(V2, json={"q": [AUTO], "target": "de", "source": None, "format": "text"}).json()
    assert found["data"]["translations"] == [
        {"translatedText": translator.translate(AUTO).text, "detectedSourceLanguage": "en"}
    ]
    for reply in (http.post(f"{V2}/detect", json={"q": [AUTO, AUTO]}), http.get(f"{V2}/detect", params={"q": AUTO})):
        for (each,) in reply.json()["data"]["detections"]:
            assert each["language"] == "en"
            assert 0 < each["confidence"] <= 1
    (each,) = http.post(f"{V3}:detectLanguage", json={"content": AUTO}).json()["languages"]
    assert each["languageCode"] == "en"


def test_languages(http: TestClient) -> None:
    assert http.get(f"{V2}/languages?target=en").json() == {"data": {"languages": LANGUAGES}}
    assert http.get(f"{V2}/languages").json() == {"data": {"languages": [{"language": "de"}, {"language": "en"}]}}
    german = {"languageCode": "de", "supportSource": False, "supportTarget": True}
    assert http.get(f"{V3}/supportedLanguages").json()["languages"][0] == german
    named = http.get("/v3/projects/one/supportedLanguages?displayLanguageCode=en").json()["languages"][0]
    assert named == german | {"displayName": "German"}


@pytest.mark.parametrize("names", ["camel case", "underscores"])
@pytest.mark.parametrize("parent", [V3, "/v3/projects/example.com:one", f"/google{V3}"])
def test_version_3(http: TestClient, translator: Translator, parent: str, names: str) -> None:
    body: dict[str, Any] = CONTENTS
    if names == "underscores":
        body = {
            "contents": TEXTS,
            "source_language_code": "en",
            "target_language_code": "de",
            "mime_type": "text/plain",
        }
    expected = [{"translatedText": text} for text in texts_of(translator, TEXTS)]
    assert http.post(f"{parent}:translateText", json=body).json() == {"translations": expected}


@pytest.mark.parametrize(
    ("path", "body", "status", "name"),
    [
        (V2, {"target": "de"}, 400, "INVALID_ARGUMENT"),
        (V2, {"q": "a"}, 400, "INVALID_ARGUMENT"),
        (V2, {"q": 5, "target": "de"}, 400, "INVALID_ARGUMENT"),
        (V2, {"q": ["a", 5], "target": "de"}, 400, "INVALID_ARGUMENT"),
        (V2, FIELDS | {"target": "zz"}, 400, "INVALID_ARGUMENT"),
        (V2, FIELDS | {"source": "zz"}, 400, "INVALID_ARGUMENT"),
        (V2, FIELDS | {"source": ["en"]}, 400, "INVALID_ARGUMENT"),
        (V2, FIELDS | {"format": "pdf"}, 400, "INVALID_ARGUMENT"),
        (V2, FIELDS | {"model": "own"}, 400, "INVALID_ARGUMENT"),
        (V2, FIELDS | {"cid": ["own"]}, 400, "INVALID_ARGUMENT"),
        (V2, FIELDS | {"q": "a" * 100_001}, 400, "INVALID_ARGUMENT"),
        (V2, [FIELDS], 400, "INVALID_ARGUMENT"),
        (f"{V2}/detect", {}, 400, "INVALID_ARGUMENT"),
        (f"{V2}/other", {}, 404, "NOT_FOUND"),
        (f"{V3}:translateText", {}, 400, "INVALID_ARGUMENT"),
        (f"{V3}:translateText", CONTENTS | {"contents": []}, 400, "INVALID_ARGUMENT"),
        (f"{V3}:translateText", CONTENTS | {"targetLanguageCode": "zz"}, 400, "INVALID_ARGUMENT"),
        (f"{V3}:translateText", CONTENTS | {"sourceLanguageCode": "zz"}, 400, "INVALID_ARGUMENT"),
        (f"{V3}:translateText", CONTENTS | {"mimeType": "text/x"}, 400, "INVALID_ARGUMENT"),
        (f"{V3}:translateText", CONTENTS | {"model": "projects/one/models/own"}, 400, "INVALID_ARGUMENT"),
        (f"{V3}:translateText", CONTENTS | {"glossaryConfig": {"glossary": "x"}}, 404, "NOT_FOUND"),
        (
            f"{V3}:translateText",
            CONTENTS | {"glossaryConfig": {"glossary": "x", "contextualTranslationEnabled": True}},
            400,
            "INVALID_ARGUMENT",
        ),
        (f"{V3}:detectLanguage", {"mimeType": "text/plain"}, 400, "INVALID_ARGUMENT"),
        (f"{V3}:translateDocument", {}, 404, "NOT_FOUND"),
        (f"{V3}/supportedLanguages", {}, 405, "UNIMPLEMENTED"),
    ],
)  # fmt: skip
def test_errors(http: TestClient, path: str, body: Any, status: int, name: str) -> None:
    reply = http.post(path, json=body)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert (error["code"], error["status"]) == (status, name)
    assert error["errors"][0]["message"] == error["message"] != ""


def test_null_is_as_good_as_a_field_that_is_missing(http: TestClient) -> None:
    body = CONTENTS | {"model": None, "mimeType": None, "glossaryConfig": None, "sourceLanguageCode": None}
    assert http.post(f"{V3}:translateText", json=body).status_code == 200


def test_keys(translator: Translator) -> None:
    keys = (
        KeyConfig(name="one", sha256=sha256(b"k1").hexdigest()),
        KeyConfig(name="two", sha256=sha256(b"k2").hexdigest(), characters_per_month=10),
    )
    http = application({"model": translator}, keys=keys)

    def status(headers: dict[str, str], **fields: str) -> int:
        return http.post(V2, json=FIELDS | fields, headers=headers).status_code

    assert [status({}), status({}, key="k"), status({"authorization": "Bearer k"})] == [403, 400, 401]
    assert [status({}, key="k1"), status({"authorization": "Bearer k1"})] == [200, 200]
    assert status({"x-goog-api-key": "k1"}) == 200
    assert [status({}, key="k2") for _ in range(2)] == [200, 429]
    assert http.post(f"{V3}:translateText?key=k1", json=CONTENTS).status_code == 200
    assert http.post(f"{V3}:translateText?key=k", json=CONTENTS).status_code == 400


@pytest.mark.slow
def test_clients_in_python(service: RunningService, translator: Translator, tmp_path: Path) -> None:
    entries = [{"source": "en", "target": "de", "entries": [["a", "cat"]]}]
    body, headers = {"name": "terms", "dictionaries": entries}, {"x-api-key": KEY}
    glossary = httpx.post(f"{service.url}/api/v1/glossaries", json=body, headers=headers).json()["id"]
    install_python(tmp_path, "google-cloud-translate==3.28.0")
    keys = KEY, limited_key("v2"), limited_key("v3"), WRONG_KEY
    found = call_python("google_clients.py", tmp_path, service.url, *keys, glossary)
    texts, auto = texts_of(translator, TEXTS), translator.translate(AUTO).text
    second, third = found["v2"], found["v3"]

    assert second["one"] == texts[0]
    assert second["list"] == second["prefix"] == second["token"] == texts
    assert second["html"] == third["html"] == [translator.translate("abc <b>de</b>", markup="html").text]
    assert second["model"] == "nmt"
    assert second["auto"] == [auto, "en"]
    assert second["detected"] == ["en", "en"]
    assert second["languages"] == LANGUAGES

    assert third["lists"] == [texts, texts]
    assert third["model"] == "projects/one/locations/global/models/general/nmt"
    assert third["auto"] == [auto, "en"]
    assert third["detected"] == ["en", "en"]
    assert third["languages"] == [[["de", "German", False, True], ["en", "English", True, False]]] * 2
    plain, with_terms = third["glossary"]
    assert plain == [translator.translate("a b").text]
    assert "cat" in with_terms[0].lower()

    for own in (second, third):
        for name, message in {
            "unknown target": "Target language is invalid.",
            "unknown source": "Bad language pair: zz|de" if own is second else "Source language is invalid.",
            "wrong key": "API key not valid. Please pass a valid API key.",
        }.items():
            assert own[name][:2] == ["BadRequest", 400]
            assert own[name][2].endswith(message)
        assert own["custom model"][:2] == ["BadRequest", 400]
        assert own["limit"][1][:2] == ["TooManyRequests", 429]
    assert second["limit"][0] == texts[0]
    assert third["limit"][0] == texts
    assert third["transliteration"][:2] == ["BadRequest", 400]
    assert third["unknown glossary"][:2] == ["NotFound", 404]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node.js")
def test_client_in_javascript(service: RunningService, translator: Translator, tmp_path: Path) -> None:
    install_node(tmp_path, "@google-cloud/translate@9.4.2")
    script = shutil.copy(HERE / "google_clients.cjs", tmp_path)
    endpoint = {"GOOGLE_CLOUD_TRANSLATE_ENDPOINT": f"{service.url}{V2}"}
    found = call("node", str(script), KEY, limited_key("node"), WRONG_KEY, **endpoint)
    texts = texts_of(translator, TEXTS)
    assert found == {
        "one": texts[0],
        "list": texts,
        "auto": translator.translate(AUTO).text,
        "detected": ["en", "en"],
        "languages": [{"code": each["language"], "name": each["name"]} for each in LANGUAGES],
        "unknown": [400, "Target language is invalid."],
        "wrongKey": [400, "API key not valid. Please pass a valid API key."],
        "limit": [texts[0], [429, "Too many requests"]],
    }
