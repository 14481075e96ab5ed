"""Azure's API, called by plain requests and by both versions of its Python client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from in_process import application
from running_clients import KEY, WRONG_KEY, call_python, install_python, limited_key, write_config
from running_service import RunningService, running
from starlette.testclient import TestClient

from headway.predict import Translator
from headway.serve.apis.azure import _words
from headway.serve.config import KeyConfig

pytest_plugins = ["small_model"]  # the fixtures of that file

TEXTS = ["Guten Morgen", "Grüße – 5 & 6?", "Zwei\nZeilen"]
AUTO = "Good morning to all of you"
CLIENTS = {"1": "azure-ai-translation-text==1.0.1", "2": "azure-ai-translation-text==2.0.0"}
V3, V2026 = "/translate?api-version=3.0", "/translate?api-version=2026-06-06"


@pytest.fixture(scope="module")
def service(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    config = tmp_path_factory.mktemp("config") / "serve.toml"
    write_config(config, model_folder, list(CLIENTS))
    with running(["--config", str(config)]) as found:
        yield found


def texts_of(translator: Translator, texts: list[str]) -> list[str]:
    return [each.text for each in translator.translate(texts)]


@pytest.mark.parametrize("name", ["Text", "text"])
def test_version_3(http: TestClient, translator: Translator, name: str) -> None:
    reply = http.post(f"{V3}&from=en&to=de&to=DE-at", json=[{name: text} for text in TEXTS])
    assert reply.json() == [
        {"translations": [{"text": text, "to": "de"}, {"text": text, "to": "DE-at"}]}
        for text in texts_of(translator, TEXTS)
    ]
    assert reply.headers["x-metered-usage"] == str(2 * sum(map(len, TEXTS)))


def test_version_2026_06_06(http: TestClient, translator: Translator) -> None:
    languages = ["en", None, "en"]
    inputs = [
        {"text": text, "language": language, "targets": [{"language": "de"}, {"language": "DE"}]}
        for text, language in zip(TEXTS, languages, strict=True)
    ]
    found = http.post(V2026, json={"inputs": inputs}).json()["value"]
    for text, each, language, source in zip(texts_of(translator, TEXTS), found, languages, TEXTS, strict=True):
        assert each["translations"] == [
            {"language": code, "sourceCharacters": len(source), "text": text} for code in ("de", "DE")
        ]
        assert ("detectedLanguage" in each) == (language is None)


@pytest.mark.parametrize("name", ["html", "Html"])
def test_html(http: TestClient, translator: Translator, name: str) -> None:
    """In the newer version each text has its own type."""
    text = "abc <b>de</b> &amp; l"
    expected = translator.translate(text, markup="html").text
    assert expected.count("<b>") == 1
    (found,) = http.post(f"{V3}&from=en&to=de&textType={name}&includeAlignment=true", json=[{"Text": text}]).json()
    assert found["translations"] == [{"text": expected, "to": "de", "alignment": {"proj": ""}}]
    inputs = [
        {"text": text, "language": "en", "textType": kind, "targets": [{"language": "de"}]}
        for kind in ("Plain", name, "Plain")
    ]
    found = http.post(V2026, json={"inputs": inputs}).json()["value"]
    plain = translator.translate(text).text
    assert [each["translations"][0]["text"] for each in found] == [plain, expected, plain]


def test_detected_languages(http: TestClient) -> None:
    (found,) = http.post(f"{V3}&to=de", json=[{"Text": AUTO}]).json()
    assert found["detectedLanguage"]["language"] == "en"
    (found,) = http.post("/detect?api-version=3.0", json=[{"Text": AUTO}]).json()
    assert (found["language"], found["isTranslationSupported"]) == ("en", True)
    assert 0 < found["score"] <= 1
    assert http.post("/detect?api-version=2026-06-06", json={"inputs": [{"text": AUTO}]}).status_code == 404


def test_languages(http: TestClient) -> None:
    german = {"name": "German", "nativeName": "Deutsch", "dir": "ltr"}
    found = http.get("/languages?api-version=3.0&scope=translation").json()
    assert found == {"translation": {"de": german, "en": {"name": "English", "nativeName": "English", "dir": "ltr"}}}
    assert set(http.get("/languages?api-version=3.0").json()) == {"translation", "transliteration", "dictionary"}
    assert http.get("/languages?api-version=2026-06-06").json()["translation"]["de"] == german | {"models": []}
    assert http.get("/languages?api-version=3.0&scope=other").json()["error"]["code"] == 400001


def projection(translator: Translator, text: str) -> str:
    """Return the alignment of a text whose tokens are characters, and whose translation is one word."""
    expected = translator.translate(text, alignment=True)
    assert expected.alignment is not None
    assert expected.alignment.source_tokens == tuple(text)
    assert " " not in expected.text
    words = [match.span() for match in re.finditer(r"\S+", text)]
    aligned = {span for source, _ in expected.alignment.pairs for span in words if span[0] <= source < span[1]}
    return " ".join(f"{first}:{end - 1}-0:{len(expected.text) - 1}" for first, end in sorted(aligned))


def test_alignment_is_that_of_the_words(http: TestClient, translator: Translator) -> None:
    (found,) = http.post(f"{V3}&from=en&to=de&includeAlignment=true", json=[{"Text": "abc d e, le"}]).json()
    proj = projection(translator, "abc d e, le")
    assert proj
    assert found["translations"][0]["alignment"] == {"proj": proj}


def test_tokens_that_are_not_in_the_text_have_no_word() -> None:
    assert _words("ab c  dé", ["a", "b ", "x", "c", " ", "d", "?"]) == [
        (0, 2), (0, 2), None, (3, 4), None, (6, 8), None
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/azure/translate?to=de", [{"Text": "a"}], 400021),
        ("/translate?api-version=4.0&to=de", [{"Text": "a"}], 400021),
        (f"{V3}&from=en", [{"Text": "a"}], 400036),
        (f"{V3}&from=en&to=de", [{"Txt": "a"}], 400000),
        (f"{V3}&from=en&to=de", {"Text": "a"}, 400000),
        (f"{V3}&from=en&to=de", b"[", 400074),
        (f"{V3}&from=en&to=de", b"[" * 100_000, 400074),
        (f"{V3}&from=en&to=de", b"\xff", 400074),
        (f"{V3}&from=en&to=de", b" " * (5 << 20), 400077),
        (f"{V3}&from=en&to=de", [{"Text": "a" * 100_001}], 400077),
        (f"{V3}&from=en&to=zz", [{"Text": "a"}], 400036),
        (f"{V3}&from=zz&to=de", [{"Text": "a"}], 400035),
        (f"{V3}&from=en&to=de&to=zz", [{"Text": "a"}], 400036),
        (f"{V3}&from=en&to=de&includeAlignment=perhaps", [{"Text": "a"}], 400000),
        (f"{V3}&from=en&to=de&textType=other", [{"Text": "a"}], 400071),
        (f"{V3}&from=en&to=de&toScript=Latn", [{"Text": "a"}], 400000),
        (f"{V3}&from=en&to=de&profanityAction=Deleted", [{"Text": "a"}], 400000),
        (f"{V3}&from=en&to=de", [{"Text": '<mstrans:dictionary translation="b">a</mstrans:dictionary>'}], 400000),
        (f"{V3}&from=en&to=de&category=own&allowFallback=false", [{"Text": "a"}], 400079),
        (V2026, [{"text": "a", "targets": [{"language": "de"}]}], 400000),
        (V2026, {"inputs": [{"text": "a", "targets": []}]}, 400000),
        (V2026, {"inputs": [{"text": "a", "language": "en", "targets": [{"language": "zz"}]}]}, 400036),
        (V2026, {"inputs": [{"text": "a", "targets": [{"language": "de", "tone": "formal"}]}]}, 400000),
        (V2026, {"inputs": [{"text": "a", "script": "Latn", "targets": [{"language": "de"}]}]}, 400000),
        ("/transliterate?api-version=3.0", [{"Text": "a"}], 404000),
    ],
)  # fmt: skip
def test_errors(http: TestClient, path: str, body: Any, code: int) -> None:
    reply = http.post(path, **({"content": body} if isinstance(body, bytes) else {"json": body}))
    assert reply.status_code == code // 1000
    assert list(reply.json()) == ["error"]
    assert reply.json()["error"]["code"] == code
    assert reply.json()["error"]["message"]


def test_keys(translator: Translator) -> None:
    keys = (
        KeyConfig(name="one", sha256=sha256(b"k1").hexdigest()),
        KeyConfig(name="two", sha256=sha256(b"k2").hexdigest(), characters_per_month=3),
        KeyConfig(name="three", sha256=sha256(b"k3").hexdigest(), requests_per_minute=1),
    )
    http = application({"model": translator}, keys=keys)

    def code(headers: dict[str, str], query: str = "") -> int | None:
        reply = http.post(f"{V3}&from=en&to=de{query}", json=[{"Text": "ab"}], headers=headers)
        return None if reply.status_code == 200 else reply.json()["error"]["code"]

    assert code({}) == code({"ocp-apim-subscription-key": "k"}) == code({"authorization": "Bearer k"}) == 401000
    assert code({"ocp-apim-subscription-key": "k1"}) is None
    assert code({"authorization": "Bearer k1"}) is None
    assert code({}, "&Subscription-Key=k1") is None
    assert [code({"ocp-apim-subscription-key": "k2"}) for _ in range(2)] == [None, 403001]
    assert [code({"ocp-apim-subscription-key": "k3"}) for _ in range(2)] == [None, 429000]
    assert http.get("/languages?api-version=3.0").status_code == 200  # as in the original, without a key


@pytest.mark.slow
@pytest.mark.parametrize("number", list(CLIENTS))
def test_clients(service: RunningService, translator: Translator, number: str, tmp_path: Path) -> None:
    install_python(tmp_path, CLIENTS[number])
    found = call_python("azure_clients.py", tmp_path, service.url, KEY, limited_key(number), WRONG_KEY)
    texts = texts_of(translator, TEXTS)
    assert found["version"] in CLIENTS[number]
    assert found["one"] == found["region"] == [texts[:1]]
    assert found["list"] == found["prefix"] == found["items"] == [[text] for text in texts]
    assert found["two targets"] == [[text, text] for text in texts]
    assert found["html"] == [[translator.translate("abc <b>de</b>", markup="html").text]]
    auto, language = found["auto"]
    assert auto == [texts_of(translator, [AUTO])]
    assert language["language"] == "en"
    more: dict[str, Any] = {} if number == "1" else {"models": []}
    assert found["languages"] == {
        "de": {"name": "German", "nativeName": "Deutsch", "dir": "ltr"} | more,
        "en": {"name": "English", "nativeName": "English", "dir": "ltr"} | more,
    }
    assert found["limit"] == [[texts[:1]], ["HttpResponseError", 429, 429000, True]]
    assert found["wrong key"] == ["ClientAuthenticationError", 401, 401000, False]
    assert found["other path"] == ["ResourceNotFoundError", 404, 404000, False]
    codes = {"unknown target": 400036, "unknown source": 400035, "too many": 400077, "custom model": 400079}
    unsupported = ["profanity", "script", *(["sentences"] if number == "1" else ["tone", "gender"])]
    for name, code in (codes | dict.fromkeys(unsupported, 400000)).items():
        assert found[name] == ["HttpResponseError", 400, code, False], name
    if number == "1":
        assert found["alignment"] == projection(translator, "abc d e, le")
