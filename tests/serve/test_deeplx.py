"""The API of DeepLX: requests as the programs send them that use it."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from in_process import application
from starlette.testclient import TestClient

from headway.decode import DecodingOptions
from headway.predict import MarkupKind, Translator
from headway.serve.config import KeyConfig

pytest_plugins = ["small_model"]  # the fixtures of that file

BODY = {"text": "Grüße – 5 & 6?", "source_lang": "EN", "target_lang": "DE"}


@pytest.mark.parametrize("path", ["/translate", "/deeplx/translate"])
@pytest.mark.parametrize("content_type", ["application/json", "text/plain;charset=UTF-8", None])
def test_translations(http: TestClient, translator: Translator, path: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    found = http.post(path, content=json.dumps(BODY), headers=headers).json()
    best, *others = translator.translate(BODY["text"], DecodingOptions(n_best=4)).candidates
    assert best.text == translator.translate(BODY["text"]).text
    assert 0 <= found.pop("id") < 10**10
    assert found == {
        "code": 200,
        "data": best.text,
        "alternatives": [each.text for each in others],
        "source_lang": "EN",
        "target_lang": "DE",
        "method": "Free",
    }


@pytest.mark.parametrize("source", [{}, {"source_lang": ""}, {"source_lang": "auto"}, {"source_lang": "AUTO"}])
def test_the_language_is_detected(http: TestClient, source: dict[str, str]) -> None:
    found = http.post("/translate", json={"text": "Good morning to all of you", "target_lang": "de-AT"} | source).json()
    assert (found["source_lang"], found["target_lang"]) == ("EN", "DE-AT")


@pytest.mark.parametrize("kind", ["html", "xml"])
def test_tags_are_kept(http: TestClient, translator: Translator, kind: MarkupKind) -> None:
    text = "abc <b>de</b> <b>l</b>"
    found = http.post("/translate", json=BODY | {"text": text, "tag_handling": kind}).json()
    assert found["data"] == translator.translate(text, markup=kind).text
    assert found["data"].count("<b>") == 2


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/translate", {**BODY, "text": ""}, 404),
        ("/translate", {"target_lang": "DE"}, 404),
        ("/translate", {"text": "a"}, 400),
        ("/translate", {**BODY, "text": ["a"]}, 400),
        ("/translate", {**BODY, "source_lang": "ZZ"}, 400),
        ("/translate", {**BODY, "target_lang": "ZZ"}, 400),
        ("/translate", {**BODY, "tag_handling": "other"}, 400),
        ("/translate", {**BODY, "text": "a" * 100_001}, 413),
        ("/deeplx/translate", [BODY], 400),
        ("/deeplx/translate", {}, 404),
        ("/deeplx/other", BODY, 404),
    ],
)  # fmt: skip
def test_errors(http: TestClient, path: str, body: Any, status: int) -> None:
    reply = http.post(path, json=body)
    assert reply.status_code == status
    assert set(reply.json()) == {"code", "message"}
    assert reply.json()["code"] == status


def test_keys(translator: Translator) -> None:
    keys = (
        KeyConfig(name="one", sha256=sha256(b"k1").hexdigest()),
        KeyConfig(name="two", sha256=sha256(b"k2").hexdigest(), requests_per_minute=1),
    )
    http = application({"model": translator}, keys=keys)

    def status(token: str = "", **headers: str) -> int:
        return http.post(f"/translate{token}", json=BODY, headers=headers).status_code

    assert [status(), status("?token=k"), status(authorization="Bearer k")] == [401] * 3
    assert [status("?token=k1"), status(authorization="Bearer k1")] == [200] * 2
    assert status(authorization="DeepL-Auth-Key k1") == 200
    assert [status("?token=k2") for _ in range(2)] == [200, 429]


def test_a_body_in_parts_is_read_once_and_its_limit_holds(http: TestClient) -> None:
    parts = [b'{"text": "a", "source_', b'lang": "EN", "target_lang": "DE"', b"}"]
    assert http.post("/translate", content=iter(parts)).json()["code"] == 200
    refused = http.post("/translate", content=(b" " * 100_000 for _ in range(50)))
    assert (refused.status_code, list(refused.json())) == (413, ["error"])


@pytest.mark.parametrize("path", ["/translate", "/sub/translate", "/sub/deeplx/translate"])
def test_paths_behind_a_proxy(translator: Translator, path: str) -> None:
    """A proxy may remove the prefix of the service's paths, or leave it."""
    assert application({"model": translator}, root_path="/sub").post(path, json=BODY).json()["code"] == 200
