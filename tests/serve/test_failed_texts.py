"""Texts that cannot be translated: the reply of each API says which one, and why, in its own form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from in_process import make_service, make_test_app
from starlette.testclient import TestClient

from headway.predict import Translator
from headway.serve.directions import Directions

pytest_plugins = ["small_model"]  # the fixtures of that file

ENGLISH, FRENCH = "Good morning to all of you, my friends", "La maison est grande et belle."
AWS_HEADERS = {"x-amz-target": "AWSShineFrontendService_20170701.TranslateText"}
V3, V2026 = "/azure/translate?api-version=3.0&to=de", "/azure/translate?api-version=2026-06-06"


def azure_inputs(texts: list[str], source: str | None) -> dict[str, Any]:
    targets = [{"language": "de"}]
    return {"inputs": [{"text": text, "language": source, "targets": targets} for text in texts]}


def tensor(texts: list[str], source: str | None) -> dict[str, Any]:
    data = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return {"inputs": [data], "parameters": {"source_language": source or "auto"}}


# The path and the body of a request for each API. If there is no source, the language is detected.
REQUESTS: dict[str, Callable[[list[str], str | None], tuple[str, Any]]] = {
    "libretranslate": lambda texts, source: (
        "/libretranslate/translate", {"q": texts, "source": source or "auto", "target": "de"}
    ),
    "deepl": lambda texts, source: (
        "/deepl/v2/translate", {"text": texts, "source_lang": source, "target_lang": "DE", "auth_key": "k"}
    ),
    "azure 3.0": lambda texts, source: (
        f"{V3}&from={source}" if source else V3, [{"Text": text} for text in texts]
    ),
    "azure 2026-06-06": lambda texts, source: (V2026, azure_inputs(texts, source)),
    "google v2": lambda texts, source: (
        "/google/language/translate/v2", {"q": texts, "source": source, "target": "de", "format": "text"}
    ),
    "google v3": lambda texts, source: (
        "/google/v3/projects/one:translateText",
        {"contents": texts, "sourceLanguageCode": source, "targetLanguageCode": "de"},
    ),
    "huggingface": lambda texts, source: (
        "/huggingface/models/model", {"inputs": texts, "parameters": {"src_lang": source or "auto"}}
    ),
    "open inference": lambda texts, source: ("/open-inference/v2/models/model/infer", tensor(texts, source)),
    "openai": lambda texts, source: (
        "/openai/v1/completions", {"prompt": texts, "model": "model", "source_language": source or "auto"}
    ),
    "aws": lambda texts, source: (
        "/aws", {"Text": texts[-1], "SourceLanguageCode": source or "auto", "TargetLanguageCode": "de"}
    ),
    "deeplx": lambda texts, source: (
        "/deeplx/translate", {"text": texts[-1], "source_lang": source or "auto", "target_lang": "DE"}
    ),
}  # fmt: skip


def refusal(http: TestClient, api: str, texts: list[str], source: str | None = None) -> Any:
    path, body = REQUESTS[api](texts, source)
    reply = http.post(path, content=json.dumps(body), headers=AWS_HEADERS if api == "aws" else {})
    assert reply.status_code == 400, reply.text
    return reply.json()


def google_error(message: str, reason: str, field: str) -> dict[str, Any]:
    violations = [{"field": field, "description": "Source language: fr"}]
    return {
        "error": {
            "code": 400,
            "message": message,
            "errors": [{"message": message, "domain": "global", "reason": reason}],
            "status": "INVALID_ARGUMENT",
            "details": [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}],
        }
    }


AZURE_PAIR = {"error": {"code": 400023, "message": "text 2: The language pair is not valid: fr (detected) and de"}}


@pytest.mark.parametrize(
    ("api", "reply"),
    [
        ("libretranslate", {"error": "text 2: fr is not supported"}),
        ("deepl", {"message": "text 2: Value for 'source_lang' not supported. The detected language is FR."}),
        ("azure 3.0", AZURE_PAIR),
        ("azure 2026-06-06", AZURE_PAIR),
        ("google v2", google_error("text 2: Bad language pair: fr|de", "badRequest", "source")),
        ("google v3", google_error("text 2: Source language is invalid.", "invalid", "source_language_code")),
        ("huggingface", {"error": "text 2: fr is not supported", "error_type": "validation"}),
        ("open inference", {"error": "text 2: fr is not supported"}),
        (
            "openai",
            {
                "error": {
                    "message": "text 2: fr is not supported",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": None,
                }
            },
        ),
        (
            "aws",
            {
                "__type": "UnsupportedLanguagePairException",
                "Message": "Unsupported language pair: fr to de.",
                "SourceLanguageCode": "fr",
                "TargetLanguageCode": "de",
            },
        ),
        ("deeplx", {"code": 400, "message": "fr is not supported"}),
    ],
)
def test_a_detected_language_from_which_no_model_translates(http: TestClient, api: str, reply: Any) -> None:
    assert refusal(http, api, [ENGLISH, FRENCH]) == reply


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("libretranslate", "German (de) is not available as a target language from French (fr)"),
        ("azure 3.0", {"code": 400023, "message": "The language pair is not valid"}),
        ("azure 2026-06-06", {"code": 400023, "message": "The language pair is not valid"}),
    ],
)
def test_a_pair_of_languages_both_of_which_are_known(translator: Translator, api: str, error: Any) -> None:
    service = make_service({"model": translator})
    (model,) = service.models
    other = replace(model, name="other", source_languages=("fr",), target_languages=("es",))
    service.directions = Directions([model, other], pivot_candidates=0)
    http = TestClient(make_test_app(service), "http://localhost")
    assert refusal(http, api, [FRENCH], "fr")["error"] == error


@pytest.mark.parametrize("api", sorted(REQUESTS.keys() - {"aws"}))  # AWS refuses the body of such a text
def test_a_text_that_fails_is_named(http: TestClient, api: str) -> None:
    texts = [ENGLISH, "\ud800"]
    place = "" if api == "deeplx" else "text 2: "
    reply = refusal(http, api, texts, "en")
    error = reply.get("error", reply)
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith(f"{place}character 1: lone surrogate"), message
    if api.startswith("azure"):
        assert error["code"] == 400020
        assert refusal(http, api, texts[1:], "en")["error"]["code"] == 400005


def test_azure_says_whether_a_detected_language_is_translated(http: TestClient) -> None:
    reply = http.post("/azure/detect?api-version=3.0", json=[{"Text": ENGLISH}, {"Text": FRENCH}])
    found = {item["language"]: item["isTranslationSupported"] for item in reply.json()}
    assert found == {"en": True, "fr": False}
