"""Amazon Translate's API, called by plain requests and by boto3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from in_process import RefusingOnce, application, key_config, listening, make_service, make_test_app
from starlette.testclient import TestClient

from headway.predict import Translator

pytest_plugins = ["small_model"]  # the fixtures of that file

TEXT, AUTO = "Grüße – 5 & 6?", "Good morning to all of you"
HTML = "<p>abc <b>de</b> &amp; l</p>"
LANGUAGES = {"SourceLanguageCode": "en", "TargetLanguageCode": "de"}
PAIR = {"Text": "a", **LANGUAGES}
KEYS = (
    key_config("one", "k1"),
    key_config("two", "k2", requests_per_minute=1),
    key_config("three", "k3", characters_per_month=3),
)


def document(content: str, kind: str) -> dict[str, Any]:
    return {"Document": {"Content": content, "ContentType": kind}, **LANGUAGES}


def target(operation: str) -> dict[str, str]:
    return {
        "x-amz-target": f"AWSShineFrontendService_20170701.{operation}",
        "content-type": "application/x-amz-json-1.1",
    }


def post(http: TestClient, operation: str, fields: Any, path: str = "/", **headers: str) -> Any:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return http.post(path, content=body, headers=target(operation) | headers)


@pytest.mark.parametrize("path", ["/", "/aws", "/aws/"])
def test_texts(http: TestClient, translator: Translator, path: str) -> None:
    reply = post(http, "TranslateText", {"Text": TEXT, **LANGUAGES}, path)
    assert reply.headers["content-type"] == "application/x-amz-json-1.1"
    assert reply.json() == {"TranslatedText": translator.translate(TEXT).text, **LANGUAGES}


@pytest.mark.parametrize(
    ("operation", "fields", "status", "name"),
    [
        ("TranslateText", PAIR | {"TargetLanguageCode": "zz"}, 400, "UnsupportedLanguagePairException"),
        ("TranslateText", PAIR | {"SourceLanguageCode": "\ud800" * 9}, 400, "InvalidRequestException"),
        ("TranslateText", {"Text": "", **LANGUAGES}, 400, "InvalidRequestException"),
        ("TranslateText", {"Text": ["a"], **LANGUAGES}, 400, "InvalidRequestException"),
        ("TranslateText", {"Text": "\ud800", **LANGUAGES}, 400, "InvalidRequestException"),
        ("TranslateText", LANGUAGES, 400, "InvalidRequestException"),
        ("TranslateText", b"[", 400, "InvalidRequestException"),
        ("TranslateText", PAIR | {"Settings": {"Formality": "x"}}, 400, "InvalidRequestException"),
        ("TranslateText", PAIR | {"TerminologyNames": ["x"]}, 404, "ResourceNotFoundException"),
        ("TranslateText", PAIR | {"TerminologyNames": ["x", "y"]}, 400, "InvalidRequestException"),
        ("TranslateText", {"Text": "a" * 100_001, **LANGUAGES}, 400, "TextSizeLimitExceededException"),
        ("TranslateText", b" " * (5 << 20), 400, "TextSizeLimitExceededException"),
        ("TranslateDocument", document("YQ==", "a/b"), 400, "InvalidRequestException"),
        ("TranslateDocument", document("/w==", "text/html"), 400, "InvalidRequestException"),
        ("TranslateDocument", document("=", "text/html"), 400, "InvalidRequestException"),
        ("ListLanguages", {"DisplayLanguageCode": "de"}, 400, "UnsupportedDisplayLanguageCodeException"),
        ("ListLanguages", {"NextToken": "9"}, 400, "InvalidParameterValueException"),
        ("ListLanguages", {"MaxResults": 0}, 400, "InvalidRequestException"),
        ("StartTextTranslationJob", {}, 404, "UnknownOperationException"),
    ],
)  # fmt: skip
def test_errors(http: TestClient, operation: str, fields: Any, status: int, name: str) -> None:
    reply = post(http, operation, fields)
    assert reply.status_code == status
    assert reply.json()["__type"] == name
    assert reply.json()["Message"]


def test_keys(translator: Translator) -> None:
    http = application({"model": translator}, keys=KEYS)

    def answer(authorization: str = "", query: str = "") -> Any:
        headers = {"authorization": authorization} if authorization else {}
        reply = post(http, "TranslateText", {"Text": "ab", **LANGUAGES}, f"/{query}", **headers)
        return reply.status_code, reply.json().get("__type")

    def signed(key: str) -> str:
        return f"AWS4-HMAC-SHA256 Credential={key}/20260101/eu-west-1/translate/aws4_request, Signature=0"

    assert answer() == answer("Bearer k1") == (403, "MissingAuthenticationTokenException")
    assert answer(signed("k")) == (403, "UnrecognizedClientException")
    assert answer(signed("k1")) == answer(query="?X-Amz-Credential=k1/20260101/x") == (200, None)
    assert [answer(signed("k2")) for _ in range(2)] == [(200, None), (429, "TooManyRequestsException")]
    assert [answer(signed("k3")) for _ in range(2)] == [(200, None), (400, "LimitExceededException")]


@pytest.fixture(scope="module")
def url(translator: Translator) -> Iterator[str]:
    """The URL of a service with keys."""
    with listening(make_test_app(make_service({"model": translator}, keys=KEYS))) as found:
        yield found


def client(url: str, key: str = "k1", attempts: int = 1) -> Any:
    return boto3.client(
        "translate",
        region_name="eu-west-1",
        endpoint_url=url,
        aws_access_key_id=key,
        aws_secret_access_key="any",
        config=Config(retries={"total_max_attempts": attempts, "mode": "standard"}),
    )


@pytest.mark.parametrize("prefix", ["", "/aws", "/aws/"])
def test_the_client_translates(url: str, translator: Translator, prefix: str) -> None:
    found = client(url + prefix).translate_text(
        Text=TEXT, **LANGUAGES, Settings={"Formality": "FORMAL", "Profanity": "MASK", "Brevity": "ON"}
    )
    assert found.pop("ResponseMetadata")["HTTPStatusCode"] == 200
    assert found == {"TranslatedText": translator.translate(TEXT).text, **LANGUAGES}


def test_the_client_lets_the_language_be_detected(url: str, translator: Translator) -> None:
    found = client(url).translate_text(Text=AUTO, SourceLanguageCode="auto", TargetLanguageCode="de")
    assert (found["TranslatedText"], found["SourceLanguageCode"]) == (translator.translate(AUTO).text, "en")


@pytest.mark.parametrize(("kind", "text"), [("text/html", HTML), ("text/plain", HTML)])
def test_the_client_translates_documents(url: str, translator: Translator, kind: str, text: str) -> None:
    document = {"Content": text.encode(), "ContentType": kind}
    found = client(url).translate_document(Document=document, **LANGUAGES)["TranslatedDocument"]["Content"].decode()
    assert found == translator.translate(text, markup="html" if kind == "text/html" else None).text
    assert (found.count("<b>") == 1) == (kind == "text/html")


def test_the_client_uses_a_terminology(url: str, translator: Translator) -> None:
    body = {"name": "terms", "dictionaries": [{"source": "en", "target": "de", "entries": [["a", "cat"]]}]}
    glossary = httpx.post(f"{url}/api/v1/glossaries", json=body, headers={"x-api-key": "k1"}).json()["id"]
    found = client(url).translate_text(Text="a b", TerminologyNames=[glossary], **LANGUAGES)
    assert "cat" in found["TranslatedText"].lower()
    assert "cat" not in translator.translate("a b").text.lower()
    assert found["AppliedTerminologies"] == [{"Name": glossary, "Terms": []}]


def test_the_client_lists_languages(url: str) -> None:
    aws = client(url)
    german, english = [
        {"LanguageName": name, "LanguageCode": code} for name, code in (("German", "de"), ("English", "en"))
    ]
    found = aws.list_languages(DisplayLanguageCode="en")
    assert (found["Languages"], found["DisplayLanguageCode"], found.get("NextToken")) == ([german, english], "en", None)
    first = aws.list_languages(MaxResults=1)
    assert first["Languages"] == [german]
    second = aws.list_languages(MaxResults=1, NextToken=first["NextToken"])
    assert (second["Languages"], second.get("NextToken")) == ([english], None)


def test_errors_are_exceptions_of_the_client(url: str) -> None:
    aws = client(url)
    with pytest.raises(aws.exceptions.UnsupportedLanguagePairException) as caught:
        aws.translate_text(Text="a", SourceLanguageCode="en", TargetLanguageCode="zz")
    assert caught.value.response["TargetLanguageCode"] == "zz"
    with pytest.raises(aws.exceptions.TextSizeLimitExceededException, match="100,001 characters"):
        aws.translate_text(Text="a" * 100_001, **LANGUAGES)
    with pytest.raises(aws.exceptions.ResourceNotFoundException):
        aws.translate_text(Text="a", TerminologyNames=["other"], **LANGUAGES)
    with pytest.raises(aws.exceptions.InvalidRequestException, match="content type"):
        aws.translate_document(Document={"Content": b"a", "ContentType": "application/x"}, **LANGUAGES)
    with pytest.raises(aws.exceptions.LimitExceededException):
        aws.translate_document(Document={"Content": b"a" * 100_001, "ContentType": "text/plain"}, **LANGUAGES)
    with pytest.raises(aws.exceptions.UnsupportedDisplayLanguageCodeException):
        aws.list_languages(DisplayLanguageCode="de")
    with pytest.raises(ClientError, match="UnknownOperationException"):
        aws.list_terminologies()
    with pytest.raises(ClientError, match="UnrecognizedClientException"):
        client(url, "wrong").translate_text(Text="a", **LANGUAGES)


def test_a_limit_and_the_retry_of_the_client(translator: Translator) -> None:
    service = make_service({"model": translator}, keys=KEYS)
    with listening(make_test_app(service)) as url:
        limited = client(url, "k2")
        limited.translate_text(Text="a", **LANGUAGES)
        with pytest.raises(limited.exceptions.TooManyRequestsException) as caught:
            limited.translate_text(Text="a", **LANGUAGES)
        headers = caught.value.response["ResponseMetadata"]["HTTPHeaders"]
        assert int(headers["x-amz-retry-after"]) == 1000 * int(headers["retry-after"])
        with RefusingOnce(service) as refusing:
            found = client(url, attempts=2).translate_text(Text="a", **LANGUAGES)
    assert refusing.num_refused == 1
    assert found["ResponseMetadata"]["RetryAttempts"] == 1
    assert found["TranslatedText"] == translator.translate("a").text
