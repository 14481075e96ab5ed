"""A running service: its replies equal those of Python, its errors have the form of their API, and it ends in order."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI
from running_service import RunningService, running, unpack_model, wait_until

from headway.decode import DecodingOptions
from headway.predict import MarkupOptions, Translator, load_translator

LANGUAGES = [
    {"code": "de", "name": "German", "targets": []},
    {"code": "en", "name": "English", "targets": ["de"]},
]
TEXTS = ["Ein Hund läuft.", "Zwei Männer", "a b c d e", "Hallo!", "", "Grüße aus dem Süden 🙂"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def service(model_folder: Path) -> Iterator[RunningService]:
    with running([str(model_folder), "--workers", "2"]) as found:
        yield found


@pytest.fixture(scope="module")
def translator(model_folder: Path) -> Translator:
    return load_translator(model_folder, precision="int8")


@pytest.fixture
def http(service: RunningService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60) as client:
        yield client


@pytest.mark.slow
def test_replies_to_many_users_at_once_equal_those_of_python(http: httpx.Client, translator: Translator) -> None:
    texts = [f"{text} {number}" for number in range(8) for text in TEXTS]

    def ask(text: str) -> Any:
        reply = http.post("/translate", json={"q": text, "source": "en", "target": "de"})
        return reply.status_code, reply.json()

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(ask, texts))
    assert found == [(200, {"translatedText": each.text}) for each in translator.translate(texts)]


@pytest.mark.parametrize(
    "form",
    [
        {"data": {"q": "Grüße – 5", "source": "en", "target": "de"}},
        {"files": {"q": (None, "Grüße – 5"), "source": (None, "en"), "target": (None, "de")}},
        {"params": {"q": "Grüße – 5", "source": "en", "target": "de"}},
        {
            "content": "q=Grüße – 5&source=en&target=de".encode(),  # as `curl -d` sends it: not escaped
            "headers": {"content-type": "application/x-www-form-urlencoded"},
        },
    ],
    ids=["urlencoded", "multipart", "query", "not-escaped"],
)
def test_forms_of_libretranslate(http: httpx.Client, translator: Translator, form: dict[str, Any]) -> None:
    assert http.post("/translate", **form).json() == {"translatedText": translator.translate("Grüße – 5").text}


def test_the_native_api_gives_what_python_gives(http: httpx.Client, translator: Translator) -> None:
    body = {"text": TEXTS[:3], "source": "en", "target": "de", "options": {"n_best": 2}, "alignment": True}
    found = http.post("/api/v1/translate", json=body).json()["translations"]
    expected = translator.translate(TEXTS[:3], DecodingOptions(n_best=2), alignment=True)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours["text"], ours["score"], ours["tokens"]) == (theirs.text, theirs.score, list(theirs.tokens))
        assert ours["alternatives"][0]["text"] == theirs.candidates[1].text
        assert theirs.alignment is not None
        assert ours["alignment"]["pairs"] == [list(pair) for pair in theirs.alignment.pairs]
    body = {"text": "Hallo", "source": "en", "target": "de", "prefix": "und"}
    assert http.post("/api/v1/translate", json=body).json()["translations"][0]["text"].startswith("und")
    pair = {"source_texts": ["Hallo"], "target_texts": ["Welt"], "source": "en", "target": "de"}
    (score,) = http.post("/api/v1/score", json=pair).json()["scores"]
    assert score["log_probability"] == pytest.approx(translator.score(["Hallo"], ["Welt"])[0].log_probability)


MARKED = ["<p>A <b>dog</b> is running.</p><p>a &amp; b</p>", "a <br> b <code>c</code> d {name}", "<b>Hallo</i>", ""]


@pytest.mark.parametrize("source", ["en", "auto"])
def test_html_of_libretranslate(http: httpx.Client, translator: Translator, source: str) -> None:
    body = {"q": MARKED, "source": source, "target": "de", "format": "html"}
    expected = [each.text for each in translator.translate(MARKED, markup="html")]
    assert http.post("/translate", json=body).json()["translatedText"] == expected
    assert expected[0].count("<b>") == expected[0].count("</b>") == 1
    body = {"q": "a <x", "source": source, "target": "de", "format": "text"}
    assert http.post("/translate", json=body).json()["translatedText"] == translator.translate("a <x").text


@pytest.mark.parametrize(
    ("markup", "protect"), [("html", True), (None, False), ({"kind": "xml", "splitting_tags": ["b"]}, True)]
)
def test_markup_of_the_native_api(http: httpx.Client, translator: Translator, markup: Any, protect: bool) -> None:
    body = {"text": MARKED, "source": "en", "target": "de", "markup": markup, "protect": protect}
    options = MarkupOptions.model_validate(markup) if isinstance(markup, dict) else markup
    expected = translator.translate(MARKED, markup=options, protect=protect)
    found = http.post("/api/v1/translate", json=body).json()["translations"]
    assert [each["text"] for each in found] == [each.text for each in expected]


def test_a_text_in_a_language_that_is_not_served_fails_alone(http: httpx.Client) -> None:
    texts = ["Good morning to all of you, my friends", "La maison est grande et belle."]
    body = {"text": texts, "source": "auto", "target": "de"}
    translated, failed = http.post("/api/v1/translate", json=body).json()["translations"]
    assert translated["detected"]["code"] == "en"
    assert translated["text"]
    assert failed["error"] == "fr is not supported"
    assert failed["detected"]["code"] == "fr"
    lines = http.post("/api/v1/translate", json=body | {"stream": True}).text.split("\n\n")
    streamed = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert {item["index"]: item["translation"] for item in streamed} == {0: translated, 1: failed}
    alone = http.post("/api/v1/translate", json=body | {"text": texts[1]})
    assert (alone.status_code, alone.json()["error"]["message"]) == (400, "fr is not supported")


@pytest.mark.slow
def test_a_text_that_is_in_the_target_language_already_stays_as_it_is(model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    pairs = (("en", "de"), ("de", "en"))
    path.write_text(
        "workers = 1\n"
        + "".join(
            f"[[models]]\npath = '{model_folder}'\nname = '{source}'\nsource = ['{source}']\ntarget = ['{target}']\n"
            for source, target in pairs
        )
    )
    texts = ["Good morning to all of you, my dear friends", "Guten Morgen, meine lieben Freunde"]
    with running(["--config", str(path)]) as service:
        body = {"q": texts, "source": "auto", "target": "de"}
        found = httpx.post(f"{service.url}/translate", json=body, timeout=60).json()
        assert [each["language"] for each in found["detectedLanguage"]] == ["en", "de"]
        assert found["translatedText"][1] == texts[1]
        assert found["translatedText"][0] != texts[0]
        found = httpx.post(f"{service.url}/translate", json=body | {"source": "de"}, timeout=60).json()
        assert found["translatedText"] == texts


def test_it_describes_itself(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").json() == {"status": "ready"}
    assert http.get("/languages").json() == LANGUAGES
    (model,) = http.get("/api/v1/models").json()
    assert (model["name"], model["kind"]) == ("model", "translation")
    paths = http.get("/api/v1/openapi.json").json()["paths"]
    assert "/api/v1/translate" in paths
    assert all(path.startswith("/api/v1/") for path in paths)
    assert "headway_requests_total{" in http.get("/metrics").text


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "message"),
    [
        ("POST", "/translate", {"json": {"source": "en", "target": "de"}}, 400, "Invalid request: missing q parameter"),
        ("POST", "/translate", {"json": {"q": "a", "source": "en"}}, 400, "Invalid request: missing target parameter"),
        ("POST", "/translate", {"json": {"q": "a", "source": "zz", "target": "de"}}, 400, "zz is not supported"),
        ("POST", "/translate", {"json": {"q": "a", "source": "en", "target": "zz"}}, 400, "zz is not supported"),
        (
            "POST",
            "/translate",
            {"json": {"q": "a", "source": "en", "target": "de", "format": "markdown"}},
            400,
            "markdown format is not supported",
        ),
        (
            "POST",
            "/translate",
            {"json": {"q": "a", "source": "en", "target": "de", "format": ["html"]}},
            400,
            "['html'] format is not supported",
        ),
        ("POST", "/translate", {"json": {"q": 5, "source": "en", "target": "de"}}, 400, None),
        ("POST", "/translate", {"json": {"q": ["a", 5], "source": "en", "target": "de"}}, 400, None),
        ("POST", "/translate", {"json": {"q": ["a"], "source": ["en"], "target": "de"}}, 400, None),
        (
            "POST",
            "/translate",
            {"content": rb'{"q": "a", "source": "\ud800", "target": "de"}'},
            400,
            r"\ud800 is not supported",
        ),
        (
            "POST",
            "/translate",
            {"json": {"q": ["Good morning", "La maison est grande."], "source": "auto", "target": "de"}},
            400,
            "text 2: fr is not supported",
        ),
        ("POST", "/translate", {"json": [1]}, 400, "the body is not a JSON object"),
        ("POST", "/translate", {"content": b"\xff{", "headers": {"content-type": "application/json"}}, 400, None),
        ("POST", "/translate", {"content": b"[" * 100_000}, 400, "the body is not valid JSON"),
        ("POST", "/translate", {"json": {"q": "x" * 100_001, "source": "en", "target": "de"}}, 413, None),
        ("POST", "/translate", {"json": {"q": ["x"] * 1025, "source": "en", "target": "de"}}, 413, None),
        ("POST", "/translate", {"content": b" " * (5 << 20)}, 413, None),
        (
            "POST",
            "/translate",
            {"content": b"q=\xff", "headers": {"content-type": "application/x-www-form-urlencoded"}},
            400,
            "the form is not valid UTF-8",
        ),
        ("POST", "/health", {}, 405, "Method Not Allowed"),
        ("POST", "/languages", {}, 405, "Method Not Allowed"),
        ("GET", "/detect", {}, 405, "Method Not Allowed"),
        ("GET", "/nothing", {}, 404, "Not Found"),
    ],
)
def test_errors_of_libretranslate(
    http: httpx.Client, method: str, path: str, content: Any, status: int, message: str | None
) -> None:
    reply = http.request(method, path, **content)
    assert reply.status_code == status, reply.text
    assert list(reply.json()) == ["error"]
    if message is not None:
        assert reply.json()["error"] == message


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/v1/translate", {"text": 5, "target": "de"}, 422),
        ("/api/v1/translate", {"text": "a", "target": "de", "markup": "markdown"}, 422),
        ("/api/v1/translate", {"text": "a", "target": "de", "markup": {"kind": "xml", "tags": []}}, 422),
        ("/api/v1/translate", {"text": "a", "target": "de", "sorce": "en"}, 422),
        ("/api/v1/translate", {"text": "a", "source": "en", "target": "zz"}, 400),
        ("/api/v1/translate", {"text": "a", "source": "en", "target": "de", "options": {"beam_size": 0}}, 400),
        ("/api/v1/translate", {"text": "a", "source": "en", "target": "de", "model": "other"}, 404),
        ("/api/v1/classify", {"text": "a"}, 404),
        ("/api/v1/nothing", {}, 404),
    ],
)
def test_errors_of_the_native_api(http: httpx.Client, path: str, body: Any, status: int) -> None:
    reply = http.post(path, json=body)
    assert reply.status_code == status, reply.text
    assert reply.json()["error"]["status"] == status
    assert reply.json()["error"]["message"]


def test_other_hosts_are_refused(http: httpx.Client) -> None:
    """A page of another site whose name is made to point to this machine sends its own name."""
    assert http.get("/health", headers={"host": "evil.example"}).status_code == 421


@pytest.mark.slow
def test_a_client_that_disconnects_frees_its_place(http: httpx.Client, service: RunningService) -> None:
    body = {"text": ["word " * 60] * 300, "source": "en", "target": "de", "options": {"max_length": 200}}

    def tokens() -> float:
        return next(
            float(x.split()[1]) for x in http.get("/metrics").text.splitlines() if x[:21] == "headway_queue_tokens "
        )

    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{service.url}/api/v1/translate", json=body, timeout=httpx.Timeout(60, read=0.5))
    wait_until(lambda: tokens() == 0, 30)  # half of the time limit of a request, which would end it, too


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_lost_is_replaced_and_no_reply_is(
    model_folder: Path, translator: Translator, number: signal.Signals
) -> None:
    texts = [f"{text} {number}" for number in range(10) for text in TEXTS]
    with running([str(model_folder), "--workers", "2"]) as service, httpx.Client(base_url=service.url) as http:

        def ask(text: str) -> Any:
            return http.post("/translate", json={"q": text, "source": "en", "target": "de"}, timeout=60).json()

        with ThreadPoolExecutor(16) as pool:
            found = [pool.submit(ask, text) for text in texts]
            wait_until(lambda: found[5].done())
            children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
            workers = Path(f"/proc/{children[0]}/task/{children[0]}/children").read_text().split()
            assert len(workers) == 2
            os.kill(int(workers[0]), number)
            replies = [each.result() for each in found]
        assert replies == [{"translatedText": each.text} for each in translator.translate(texts)]
        wait_until(lambda: http.get("/ready").json() == {"status": "ready"})


@pytest.mark.slow
def test_keys_and_their_limits(model_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    keys = [
        f'{{ name = "one", sha256 = "{sha256(b"k1").hexdigest()}", requests_per_minute = 2 }}',
        f'{{ name = "two", sha256 = "{sha256(b"k2").hexdigest()}", characters_per_month = 10 }}',
        f'{{ name = "three", sha256 = "{sha256(b"k3").hexdigest()}" }}',
    ]
    path.write_text(f"models = [{{ path = '{model_folder}' }}]\nworkers = 1\nkeys = [{', '.join(keys)}]\n")
    with running(["--config", str(path)]) as service, httpx.Client(base_url=service.url, timeout=60) as http:

        def ask(key: str | None, text: str = "abc") -> httpx.Response:
            body = {"q": text, "source": "en", "target": "de"} | ({"api_key": key} if key else {})
            return http.post("/translate", json=body)

        assert [ask(None).status_code, ask("k").status_code, ask("k1").status_code] == [403, 403, 200]
        assert ask("k1").status_code == 200
        refused = ask("k1")
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert [ask("k2", "1234567").status_code, ask("k2", "1234567").status_code] == [200, 429]
        assert http.get("/api/v1/models").status_code == 403
        assert http.get("/api/v1/models", headers={"authorization": "Bearer k2"}).status_code == 200
        # SIGTERM: the accepted request is answered, and the service ends without an error.
        with ThreadPoolExecutor(1) as pool:
            last = pool.submit(ask, "k3", "word " * 2000)
            wait_until(lambda: "headway_queue_tokens 0.0" not in http.get("/metrics").text)
            assert service.stop() == 0
            assert last.result().status_code == 200


@pytest.mark.slow
def test_a_model_that_is_missing_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headway", "serve", str(tmp_path / "nothing"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("headway: ")
    assert len(done.stderr.splitlines()) == 1


def test_libretranslate_describes_its_api(service: RunningService) -> None:
    reply = httpx.get(f"{service.url}/spec")
    assert reply.status_code == 200
    paths = reply.json()["paths"]
    for path in ("/translate", "/detect", "/languages", "/translate_file", "/suggest", "/frontend/settings", "/spec"):
        for method in paths[path]:  # the service has what it describes
            assert httpx.request(method, service.url + path).status_code in (200, 400, 403), path
    assert httpx.post(f"{service.url}/spec").status_code == 405


# The client leaves the closing of its sockets to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("slash", ["", "/"])
def test_libretranslatepy(service: RunningService, slash: str, translator: Translator) -> None:
    client = LibreTranslateAPI(service.url + slash)
    expected = translator.translate("Guten Morgen")
    assert client.translate("Guten Morgen", "en", "de") == expected.text
    assert client.detect("Good morning")[0]["language"] == "en"
    assert client.languages() == LANGUAGES
    with pytest.raises(HTTPError) as refused:
        client.translate("a", "en", "zz")
    assert refused.value.code == 400
    del refused
    gc.collect()
