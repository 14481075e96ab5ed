"""What one request may ask for, counts once, and cannot be multiplied by lists of options."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest
from in_process import InProcessFleet, application, key_config, make_service, make_test_app
from running_service import unpack_model
from starlette.testclient import TestClient

from headway.predict import LanguageModel, MaskedLanguageModel, Translator, load_translator
from headway.serve.apis.deepl import _WHITE_SPACE, _without_newlines
from headway.serve.config import LimitsConfig
from headway.serve.workers.messages import Job
from headway.serve.workers.model_pool import ModelPool

_AZURE = "/translate?api-version=3.0&from=en"


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return load_translator(unpack_model(tmp_path_factory.mktemp("model")), precision="float32")


@pytest.fixture(scope="module")
def writer(make_language_model: Callable[..., LanguageModel]) -> LanguageModel:
    return make_language_model(max_length=64)


def served(models: dict[str, Any], **limits: Any) -> TestClient:
    return application(models, limits=LimitsConfig(**limits))


def usage(http: TestClient, key: str) -> int:
    headers = {"authorization": f"DeepL-Auth-Key {key}"}
    return int(http.get("/v2/usage", headers=headers).json()["character_count"])


class TestParts:
    """A request that is worked on in parts is refused as a whole, and never because of its own parts."""

    def test_a_stream_of_many_texts(self, translator: Translator) -> None:
        http = served({"model": translator}, queue_tokens=1)
        texts = [f"Ein Hund {number}" for number in range(20)]
        body = {"text": texts, "source": "en", "target": "de", "stream": True, "options": {"beam_size": 1}}
        reply = http.post("/api/v1/translate", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.text.count("data: ") == len(texts)
        assert "error" not in reply.text

    def test_several_languages(self, translator: Translator) -> None:
        http = served({"model": translator}, queue_tokens=1)
        reply = http.post(f"{_AZURE}&to=de&to=DE", json=[{"Text": "Ein Hund"}] * 3)
        assert reply.status_code == 200, reply.text

    def test_a_stream_beyond_the_quota_is_refused_before_it_begins(self, translator: Translator) -> None:
        http = application({"model": translator}, keys=(key_config("one", "k", characters_per_month=10),))
        body = {"text": ["Ein Hund", "Ein Hund"], "source": "en", "target": "de", "stream": True}
        reply = http.post("/api/v1/translate", json=body, headers={"authorization": "Bearer k"})
        assert reply.status_code == 429
        assert usage(http, "k") == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/translate", {"text": ["a"] * 2000, "source": "en", "target": "de"}),
        ("/api/v1/jobs", {"text": ["a"] * 2000, "source": "en", "target": "de"}),
        ("/api/v1/sentences", {"text": ["a"] * 2000, "language": "en"}),
        ("/api/v1/score", {"source_texts": ["a"] * 2000, "target_texts": ["a"] * 2000, "source": "en", "target": "de"}),
        ("/api/v1/score-texts", {"text": ["a"] * 2000}),
        ("/api/v1/perplexity", {"text": ["a"] * 2000}),
        ("/api/v1/generate", {"prompt": ["a"] * 2000}),
        ("/v1/completions", {"model": "lm", "prompt": ["a"] * 2000}),
        ("/translate", {"q": ["a"] * 2000, "source": "en", "target": "de"}),
        ("/language/translate/v2", {"q": ["a"] * 2000, "source": "en", "target": "de"}),
    ],
)
def test_many_texts_are_refused_before_anything_is_computed_for_each(
    path: str, body: Any, translator: Translator, writer: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(*_: Any, **__: Any) -> None:
        raise AssertionError

    for name in ("estimated_tokens", "num_sentences"):
        monkeypatch.setattr(f"headway.serve.cost.{name}", compute)
    reply = served({"model": translator, "lm": writer}, job_texts=1024).post(path, json=body)
    assert reply.status_code in (400, 413), reply.text
    assert "texts in one" in reply.text


class TestProducts:
    """Lists of texts and of options multiply, and the limits hold for the product."""

    @pytest.mark.parametrize("targets", [2, 5_000])
    def test_texts_and_targets(self, translator: Translator, targets: int) -> None:
        http = served({"model": translator}, texts=100, header_bytes=1_000_000)
        began = time.process_time()
        reply = http.post(f"{_AZURE}{'&to=de' * targets}", json=[{"Text": "a"}] * 90)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, 400077), reply.text
        assert time.process_time() - began < 10

    def test_characters_and_targets(self, translator: Translator) -> None:
        http = served({"model": translator}, characters=100)
        reply = http.post(f"{_AZURE}&to=de&to=DE", json=[{"Text": "a" * 51}])
        assert reply.json()["error"]["code"] == 400077

    @pytest.mark.parametrize("max_tokens", [0, 1])
    def test_prompts_and_answers(self, writer: LanguageModel, max_tokens: int) -> None:
        http = served({"writer": writer}, texts=100)
        body = {"prompt": ["ein"] * 51, "n": 2, "max_tokens": max_tokens}
        reply = http.post("/v1/completions", json=body)
        assert reply.status_code == 413
        assert "102 texts" in reply.text

    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
    def test_answers_of_one_prompt(self, writer: LanguageModel, path: str) -> None:
        http = served({"writer": writer}, hypotheses=3)
        body = {"prompt": "ein", "messages": [{"role": "user", "content": "ein"}], "n": 4, "max_tokens": 1}
        assert http.post(path, json=body).status_code == 413
        assert http.post(path, json=body | {"n": 3}).status_code == 200

    def test_alternatives_of_libretranslate(self, translator: Translator) -> None:
        http = served({"model": translator}, hypotheses=4)
        body = {"q": "Ein Hund", "source": "en", "target": "de", "alternatives": 4}
        assert http.post("/translate", json=body).status_code == 413
        assert http.post("/translate", json=body | {"alternatives": 3}).status_code == 200

    @pytest.mark.parametrize("path", ["translate", "jobs"])
    def test_texts_and_their_minimum_length(self, translator: Translator, path: str) -> None:
        http = served({"model": translator}, new_tokens=20)
        body = {"source": "en", "target": "de", "options": {"min_length": 5, "max_length": 8}}
        reply = http.post(f"/api/v1/{path}", json=body | {"text": ["a"] * 5})
        assert (reply.status_code, "25 new tokens" in reply.text) == (413, True)
        assert http.post(f"/api/v1/{path}", json=body | {"text": ["a"] * 4}).status_code in (200, 201)

    def test_windows_of_a_long_text(self, writer: LanguageModel) -> None:
        http = served({"writer": writer}, characters=1000)
        body = {"text": "ein Haus " * 100, "stride": 1}
        reply = http.post("/api/v1/perplexity", json=body)
        assert reply.status_code == 413
        assert "encoded 64 times" in reply.json()["error"]["message"]
        assert http.post("/api/v1/perplexity", json=body | {"stride": 32}).status_code == 200


class TestCounting:
    @pytest.mark.parametrize("stream", [False, True])
    def test_a_completion_counts_its_prompt_once(self, writer: LanguageModel, stream: bool) -> None:
        http = application({"writer": writer}, keys=(key_config("one", "k"),))
        body = {"prompt": "ein Haus", "max_tokens": 2, "n": 1, "stream": stream, "logprobs": None if stream else 1}
        reply = http.post("/v1/completions", json=body, headers={"authorization": "Bearer k"})
        assert reply.status_code == 200, reply.text
        assert usage(http, "k") == len("ein Haus")

    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
    def test_a_stream_that_is_too_long_is_refused_before_it_begins(self, writer: LanguageModel, path: str) -> None:
        http = served({"writer": writer}, new_tokens=10)
        body: dict[str, Any] = {"prompt": "ein", "messages": [{"role": "user", "content": "ein"}]}
        reply = http.post(path, json=body | {"max_tokens": 11, "stream": True, "echo": True})
        assert reply.status_code == 413, reply.text

    def test_a_stream_of_hugging_face_counts_its_prompt_once(self, writer: LanguageModel) -> None:
        http = application({"writer": writer}, keys=(key_config("one", "k"),))
        body = {"inputs": "ein Haus", "stream": True, "parameters": {"max_new_tokens": 2, "details": True}}
        reply = http.post("/models/writer", json=body, headers={"authorization": "Bearer k"})
        assert reply.status_code == 200, reply.text
        assert usage(http, "k") == len("ein Haus")

    @pytest.mark.parametrize("path", ["/v2/models/filler/infer", "/models/filler"])
    def test_several_texts_to_fill_are_refused_together(
        self, make_masked_language_model: Callable[..., MaskedLanguageModel], path: str
    ) -> None:
        models = {"filler": make_masked_language_model()}
        http = application(models, keys=(key_config("one", "k", characters_per_month=30),))
        texts = ["ein [MASK] Haus", "zwei [MASK] Hunde"]
        inputs = {"name": "text", "shape": [2], "datatype": "BYTES", "data": texts}
        body = {"inputs": [inputs] if path.startswith("/v2") else texts}
        reply = http.post(path, json=body, headers={"authorization": "Bearer k"})
        assert reply.status_code == 429, reply.text
        assert usage(http, "k") == 0


def test_an_error_in_the_middle_of_a_stream_has_its_status(writer: LanguageModel) -> None:
    class Late(InProcessFleet):
        async def stream(self, job: Job) -> AsyncGenerator[Any]:
            async for part in super().stream(job):
                yield part
                raise TimeoutError

    service = make_service({"writer": writer})
    service.replace_models(service.config, ModelPool.from_fleet(Late({"writer": writer})))
    http = TestClient(make_test_app(service), "http://localhost")
    reply = http.post("/api/v1/generate", json={"prompt": "ein", "stream": True, "options": {"max_new_tokens": 5}})
    *_, last = (json.loads(event.removeprefix("data: ")) for event in reply.text.split("\n\n") if event)
    assert last == {"error": {"status": 504, "message": "The request has exceeded its time limit"}}


def test_the_cache_of_new_models_has_no_results_of_the_old_ones(translator: Translator) -> None:
    """The models are replaced while a request waits for the old ones."""
    service = make_service({"model": translator}, limits=LimitsConfig(cache_mb=1.0))

    class Slow(InProcessFleet):
        async def call(self, job: Job) -> Any:
            service.replace_models(service.config, ModelPool.from_fleet(InProcessFleet({"model": translator})))
            return await super().call(job)

    service.replace_models(service.config, ModelPool.from_fleet(Slow({"model": translator})))
    before = service.cache
    asyncio.run(service.translate(service.clients.authenticate(None), ["Ein Hund"], "en", "de"))
    assert service.cache is not before
    assert (before.num_bytes > 0, service.cache.num_bytes) == (True, 0)


class TestWhiteSpace:
    @pytest.mark.parametrize(
        "text", ["a \n b", "a\r\n\r\n b", " \t", "a  b", "\n", "a\u2028\nb", "a \x0b\n\x85 b\nc  d", ""]
    )
    def test_line_breaks_become_spaces(self, text: str) -> None:
        expected = re.sub(r"[^\S\r\n]*[\r\n]\s*", " ", text)
        assert _WHITE_SPACE.sub(_without_newlines, text) == expected

    def test_a_long_line_takes_no_long_time(self, translator: Translator) -> None:
        http = application({"model": translator})
        fields = {"text": " " * 99_999 + "a", "target_lang": "DE", "source_lang": "EN", "split_sentences": "nonewlines"}
        began = time.process_time()
        http.post("/v2/translate", data=fields, headers={"authorization": "DeepL-Auth-Key any"})
        assert time.process_time() - began < 20


@pytest.mark.parametrize("host", ["Translate.Example.org", "translate.example.org", "TRANSLATE.example.ORG:5000"])
def test_the_names_of_hosts_have_no_case(translator: Translator, host: str) -> None:
    http = application({"model": translator}, allowed_hosts=("Translate.example.org",))
    assert http.get("/health", headers={"host": host}).status_code == 200
    assert http.get("/health", headers={"host": "other.example.org"}).status_code == 421


@pytest.mark.parametrize("host", ["[fd00::1]", "[fd00::1]:5000"])
def test_an_address_of_ipv6(translator: Translator, host: str) -> None:
    http = application({"model": translator}, host="fd00::1")
    assert http.get("/health", headers={"host": host}).status_code == 200
    assert http.get("/health", headers={"host": "[fd00::2]"}).status_code == 421


def test_what_http_asks_for(translator: Translator) -> None:
    http = application({"model": translator}, keys=(key_config("one", "k"),), allowed_origins=("http://a.example",))
    assert http.head("/ready").status_code == 200
    assert http.get("/v1/models").headers["www-authenticate"] == "Bearer"
    exposed = http.get("/health", headers={"origin": "http://a.example"}).headers["access-control-expose-headers"]
    assert "Retry-After" in exposed


def test_messages_say_what_is_missing(translator: Translator) -> None:
    http = application({"model": translator})
    for path, body, message in (
        ("fill", {"text": "[MASK]"}, "There is no masked language model"),
        ("classify", {"text": "a"}, "There is no classifier"),
        ("translate", {"text": "a", "source": "en", "target": "zz"}, "zz is not supported"),
        ("force-word", {"text": "a", "source": "en", "target": "en", "prefix": "", "word": "a"}, "en is not supported"),
    ):
        assert http.post(f"/api/v1/{path}", json=body).json()["error"]["message"] == message


def test_a_limit_of_bodies_changes_with_the_configuration(translator: Translator) -> None:
    service = make_service({"model": translator})
    http = TestClient(make_test_app(service), "http://localhost")
    body = {"q": "Ein Hund" + " " * 2000, "source": "en", "target": "de"}
    assert http.post("/translate", json=body).status_code == 200
    limits = service.config.limits.model_copy(update={"body_bytes": 1024})
    service.config = service.config.model_copy(update={"limits": limits})
    assert http.post("/translate", json=body).status_code == 413


def test_an_upload_in_pieces_that_is_too_large(translator: Translator) -> None:
    http = served({"model": translator}, document_bytes=2000, body_bytes=1024)
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'

    def pieces() -> Iterator[bytes]:
        yield head
        for _ in range(100):
            yield b"a" * 1000

    headers = {"content-type": "multipart/form-data; boundary=b"}
    assert http.post("/translate_file", content=pieces(), headers=headers).status_code == 413


def test_a_length_with_many_digits_is_refused(translator: Translator) -> None:
    http = application({"model": translator})
    headers = {"inference-header-content-length": "0" * 5000}
    reply = http.post("/v2/models/model/infer", content=b"{}", headers=headers)
    assert reply.status_code == 400, reply.text


@pytest.mark.parametrize(
    ("source", "target", "side"), [("zz", "de", "Source"), ("zz", "zz", "Source"), ("en", "zz", "Target")]
)
def test_which_language_is_unknown(translator: Translator, source: str, target: str, side: str) -> None:
    http = application({"model": translator})
    fields = {"contents": ["a"], "sourceLanguageCode": source, "targetLanguageCode": target}
    reply = http.post("/v3/projects/one/locations/global:translateText", json=fields)
    assert f"{side} language is invalid" in reply.text
