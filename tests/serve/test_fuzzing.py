"""Requests at random, valid and broken: no reply is an internal error, no worker is lost, and the service goes on.

HEADWAY_FUZZ_EXAMPLES sets how many requests schemathesis makes for each operation; the raw fuzzer makes forty times as
many in all. 1000 takes an hour or so.
"""

from __future__ import annotations

import copy
import http.client
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from running_service import RunningService, running, unpack_model, wait_until
from unpacking import unpack_archive

from headway.predict import LanguageModel, MaskedLanguageModel
from headway.serve.dispatch import api_of_head

EXAMPLES = int(os.environ.get("HEADWAY_FUZZ_EXAMPLES", "25"))
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance",
)  # fmt: skip
_CLASSIFIER = Path(__file__).parents[1] / "compat" / "recorded" / "bundle-classifier-default.tar.xz"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory,
    make_language_model: Callable[..., LanguageModel],
    make_masked_language_model: Callable[..., MaskedLanguageModel],
) -> Iterator[RunningService]:
    """A service with a model of each kind, which does not wait long for slow clients."""
    folder = tmp_path_factory.mktemp("models")
    make_language_model(max_length=64).bundle.save(folder / "writer", "A test.")
    make_masked_language_model().bundle.save(folder / "filler", "A test.")
    unpack_archive(_CLASSIFIER, folder / "classifier")
    names = ["writer", "filler", "classifier/model"]
    models = [f'{{ path = "{name}", name = "{name[:6]}", precision = "float32" }}' for name in names]
    unpack_model(folder)
    config = folder / "serve.toml"
    limits = "limits = { receive_seconds = 1.0, queue_seconds = 1000 }"
    config.write_text(f'{limits}\nmodels = [{{ path = "model" }}, {", ".join(models)}]\n')
    with running(["--config", str(config), "--workers", "1"]) as found:
        yield found


def translate(service: RunningService) -> Any:
    """Return a translation, after checking that nothing was lost."""
    metrics = httpx.get(f"{service.url}/metrics").text
    assert "headway_worker_restarts_total 0.0" in metrics, "".join(service.log[-50:])
    assert httpx.get(f"{service.url}/ready").json() == {"status": "ready"}
    body = {"q": "Ein Hund läuft.", "source": "en", "target": "de"}
    return httpx.post(f"{service.url}/translate", json=body, timeout=60).json()["translatedText"]


def test_schemathesis(service: RunningService) -> None:
    """Replies to requests made from the OpenAPI, and to requests that do not fit it, are as it says."""
    pytest.importorskip("schemathesis")
    before = translate(service)
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/api/v1/openapi.json", "--no-color",
        "--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES), "--seed", "1",
        "--checks", ",".join(CHECKS), "--request-timeout", "120", "--generation-database", "none",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert translate(service) == before


# Requests that are valid, by method and path.
LANGUAGES = {"source": "en", "target": "de"}
DEEPL = {"text": ["Hallo", "b"], "source_lang": "EN", "target_lang": "DE", "split_sentences": "1"}
ENTRIES = {"source_lang": "en", "target_lang": "de", "entries": "a\tb\nc\td", "entries_format": "tsv"}
CODES = {"sourceLanguageCode": "en", "targetLanguageCode": "de"}
AWS = {"SourceLanguageCode": "en", "TargetLanguageCode": "de"}
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["ein Hund"]}
MASKED = TENSOR | {"data": [["[MASK]"]]}
CLASSES = {"name": "probabilities", "parameters": {"classification": 2, "binary_data": True}}
GLOSSARY, SHORT = {"glossary": "z"}, {"max_new_tokens": 3}
VALID: list[tuple[str, str, Any]] = [
    ("POST", "/translate", {"q": "Hallo", **LANGUAGES, "alternatives": 1, "format": "text", "api_key": "k"}),
    ("POST", "/translate", {"q": ["Hallo", "a"], "source": "auto", "target": "de"}),
    ("POST", "/detect", {"q": "Hallo"}),
    ("GET", "/languages", {}),
    ("GET", "/frontend/settings", {}),
    ("POST", "/suggest", {"q": "a", "s": "b", **LANGUAGES}),
    ("GET", "/health", {}),
    ("GET", "/ready", {}),
    ("GET", "/metrics", {}),
    ("POST", "/api/v1/translate", {"text": ["Hallo", ""], **LANGUAGES, "options": {"beam_size": 2}, "prefix": "u"}),
    ("POST", "/api/v1/translate", {"text": "Hallo", **LANGUAGES, "stream": True, "include": ["und"], "ban": ["a"]}),
    ("POST", "/api/v1/translate", {"text": "a", **LANGUAGES, "options": {"sampling": {"temperature": 2, "seed": 3}}}),
    ("POST", "/api/v1/jobs", {"text": ["Hallo", "b"], **LANGUAGES}),
    ("GET", "/api/v1/jobs/x/result", {}),
    ("POST", "/api/v1/score", {"source_texts": ["a"], "target_texts": ["b"], **LANGUAGES}),
    ("POST", "/api/v1/alternatives", {"text": "Hallo", "prefix": "u", "count": 3, **LANGUAGES}),
    ("POST", "/api/v1/detect", {"text": ["Hallo"]}),
    ("POST", "/api/v1/classify", {"text": ["Hallo"]}),
    ("POST", "/api/v1/explain", {"text": "Hallo"}),
    ("POST", "/api/v1/score-texts", {"text": ["ein Hund"]}),
    ("POST", "/api/v1/perplexity", {"text": ["ein Hund"], "stride": 4}),
    ("POST", "/api/v1/fill", {"text": "ein [MASK]", "top": 2, "candidates": ["Hund"]}),
    ("POST", "/api/v1/generate", {"prompt": "ein", "options": {"max_new_tokens": 3, "stop": ["x"]}, "stream": False}),
    ("POST", "/api/v1/generate", {"prompt": "ein", "options": {"max_new_tokens": 3}, "stream": True}),
    ("POST", "/api/v1/glossaries", {"name": "n", "dictionaries": [{**LANGUAGES, "entries": [["a", "b"]]}]}),
    ("GET", "/api/v1/models", {}),
    ("DELETE", "/api/v1/glossaries/x", {}),
    ("GET", "/v1/models", {}),
    ("POST", "/v1/completions", {"prompt": "ein", "max_tokens": 3, "logprobs": 1, "n": 2, "stop": "x", "echo": True}),
    ("POST", "/v1/completions", {"prompt": [5, 6], "max_tokens": 3, "stream": True, "temperature": 0.5}),
    ("POST", "/v1/completions", {"prompt": "ein", "model": "model", "source_language": "en"}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "n": 1}),
    ("POST", "/v2/translate", {**DEEPL, "show_billed_characters": "1"}),
    ("GET", "/v2/languages", {"type": "target"}),
    ("GET", "/v2/usage", {}),
    ("POST", "/v2/glossaries", {"name": "n", **ENTRIES}),
    ("GET", "/v2/glossaries/x/entries", {}),
    ("POST", "/v3/glossaries", {"name": "n", "dictionaries": [ENTRIES]}),
    ("PATCH", "/v3/glossaries/x", {"name": "m"}),
    ("POST", "/azure/translate?api-version=3.0&from=en&to=de&includeAlignment=true", [{"Text": "Hallo"}]),
    (
        "POST",
        "/azure/translate?api-version=2026-06-06",
        {"inputs": [{"text": "Hallo", "language": "en", "targets": [{"language": "de"}]}]},
    ),
    ("POST", "/detect?api-version=3.0", [{"Text": "Hallo"}, {"text": "b"}]),
    ("GET", "/azure/languages?api-version=3.0", {}),
    ("PUT", "/v3/glossaries/x/dictionaries", ENTRIES),
    ("POST", "/translate", {"text": "Hallo", "source_lang": "EN", "target_lang": "DE", "tag_handling": "html"}),
    ("POST", "/deeplx/translate?token=k", {"text": "Hallo", "target_lang": "DE"}),
    ("POST", "/language/translate/v2", {"q": ["a", "b"], **LANGUAGES, "format": "text", "key": "k", "model": "nmt"}),
    ("GET", "/language/translate/v2?q=Hallo&source=en&target=de", {}),
    ("POST", "/language/translate/v2/detect", {"q": ["Hallo"]}),
    ("GET", "/language/translate/v2/languages?target=en", {}),
    ("POST", "/v3/projects/x:translateText", {"contents": ["Hallo"], **CODES, "mimeType": "text/html"}),
    ("POST", "/v3/projects/x/locations/y:translateText", {"contents": ["a"], **CODES, "glossaryConfig": GLOSSARY}),
    ("POST", "/v3/projects/x:detectLanguage", {"content": "Hallo", "mimeType": "text/plain"}),
    ("GET", "/v3/projects/x/supportedLanguages", {}),
    ("POST", "/aws?TranslateText", {"Text": "Hallo", **AWS, "TerminologyNames": [], "Settings": {"Brevity": "ON"}}),
    ("POST", "/aws?TranslateDocument", {"Document": {"Content": "YQ==", "ContentType": "text/html"}, **AWS}),
    ("POST", "/aws?ListLanguages", {"MaxResults": 1, "NextToken": "1", "DisplayLanguageCode": "en"}),
    ("POST", "/", {"inputs": ["Hallo", "b"], "parameters": {"src_lang": "en", "tgt_lang": "de"}}),
    ("POST", "/models/writer", {"inputs": "ein", "parameters": SHORT | {"details": True}, "stream": True}),
    ("POST", "/models/writer", {"inputs": "ein", "parameters": SHORT | {"best_of": 2, "do_sample": True}}),
    ("POST", "/models/classi", {"inputs": "Hallo", "parameters": {"top_k": 1}}),
    ("POST", "/models/filler", {"inputs": "ein [MASK]", "parameters": {"targets": ["Haus"]}}),
    ("GET", "/info", {}),
    ("POST", "/v2/models/model/infer", {"inputs": [TENSOR], "parameters": {"markup": "html"}, "id": "x"}),
    ("POST", "/v2/models/classi/infer", {"inputs": [TENSOR], "outputs": [CLASSES]}),
    ("POST", "/v2/models/writer/infer", {"inputs": [TENSOR], "parameters": SHORT | {"binary_data_output": True}}),
    ("POST", "/v2/models/filler/versions/1/infer", {"inputs": [MASKED], "parameters": {"top": 2}}),
    ("GET", "/v2/models/model", {}),
    ("GET", "/v2/health/ready", {}),
]  # fmt: skip
NESTED: Any = 0
for _ in range(300):
    NESTED = [NESTED]
HOSTILE: list[Any] = [
    None, True, -1, 0, 1.5, 2**31, 2**63, 2**64, 10**400, 1e308, float("inf"), float("nan"), "", " ", "\0", "\ud800",
    "\udfff x", "a" * 3000, "🙂" * 9, "\u2028\r\n\t", "%s{}|*\\", "<b", "[MASK]", "-_" * 50, [], [[]], [None], ["a"],
    ["", "\ud800"], ["x"] * 2000, {}, {"a": 1}, {"\ud800": 1}, {str(each): 1 for each in range(2000)}, NESTED,
]  # fmt: skip


def json_body(chance: random.Random, fields: Any) -> tuple[str, bytes]:
    text = json.dumps(fields, ensure_ascii=chance.random() < 0.7)
    if chance.random() < 0.05:
        text = chance.choice(["[" * 100_000, text[:-1], text + text, f"[{text}]", '"a"', "{" * 50, "NaN", ""])
    return "application/json", text.encode(chance.choice(["utf-8"] * 9 + ["utf-16"]), "surrogatepass")


def form_body(chance: random.Random, fields: Any) -> tuple[str, bytes]:
    text = urlencode(fields if isinstance(fields, dict) else {}, doseq=True, errors="replace")
    if chance.random() < 0.2:
        text = chance.choice([text + "&q=%ff%", text.replace("%", ""), "&" * 5000, "=&=&=", text + "&q=\0"])
    return "application/x-www-form-urlencoded", text.encode()


def multipart_body(chance: random.Random, fields: Any) -> tuple[str, bytes]:
    ends = chance.choice(["\r\n", "\r\n", "\r\n", "\n"])
    parts = [
        f'--x{ends}Content-Disposition: form-data; name="{name}"{ends}{ends}{value}{ends}'
        for name, value in (fields.items() if isinstance(fields, dict) else ())
    ]
    body = ("".join(parts) + chance.choice([f"--x--{ends}", "--x--", "--x", ""])).encode(errors="replace")
    if chance.random() < 0.3:
        body = chance.choice([body[: len(body) // 2], body.replace(b"name", b"nam"), b"--x\r\n" * 500, body + b"\xff"])
    boundary = chance.choice(["; boundary=x"] * 5 + ["", "; boundary=", "; boundary=x; charset=idna", '; boundary="'])
    return "multipart/form-data" + boundary, body


def headers_of(path: str) -> list[str]:
    """Return the headers that a request of Amazon's API needs, whose operation is in the query."""
    operation = path.removeprefix("/aws?")
    return [] if operation == path else [f"X-Amz-Target: AWSShineFrontendService_20170701.{operation}"]


def head(chance: random.Random, method: str, path: str, kind: str, body: bytes) -> tuple[list[bytes], bytes]:
    """Return the lines before an empty line, and what follows it, perhaps not as HTTP wants it."""
    lines = [
        f"{method} {path} HTTP/1.1".encode(), b"Host: localhost", b"Content-Type: " + kind.encode(),
        b"Authorization: " + chance.choice([b"DeepL-Auth-Key k", b"Bearer k", b"\xff\xfe"]),
        *(each.encode() for each in headers_of(path)),
    ]  # fmt: skip
    match chance.randrange(12):
        case 0:  # chunked, perhaps broken
            size = chance.choice([b"%x" % len(body), b"%x" % (len(body) + 9), b"fffffffffffffffff", b"-1", b"zz", b""])
            rest = size + b"\r\n" + body + b"\r\n" + chance.choice([b"0\r\n\r\n", b"0\r\n", b""])
            return [*lines, b"Transfer-Encoding: chunked"], rest
        case 1:  # a wrong length
            length = chance.choice([len(body) + 5, max(0, len(body) - 5), -1, 10**30, "1, 2", "x", ""])
            return [*lines, f"Content-Length: {length}".encode()], body
    lines.append(f"Content-Length: {len(body)}".encode())
    if chance.random() < 0.3:
        odd = [
            b"A: " + b"a" * 70_000, b"A: b\0c", b": x", b"Host: evil.example", b"Transfer-Encoding: chunked", b"none",
            b" folded", b"Content-Length: 3", b"Upgrade: h2c\r\nConnection: upgrade", b"Expect: 100-continue",
            b"Connection: close", b"\xff\xff: \xff", b"X-Api-Key: \xff", b"A:" * 3000, b"Content-Type: \xff/\xff; =",
            b"Inference-Header-Content-Length: 50", b"Authorization: Basic k", b"X-Amz-Target: x",
            b"Upgrade: websocket\r\nConnection: Upgrade", b"Accept-Encoding: gzip;q=x", b"Content-Encoding: gzip",
        ]  # fmt: skip
        lines.insert(chance.randrange(1, len(lines) + 1), chance.choice(odd))
    if chance.random() < 0.1:
        target = chance.choice(
            [path + "?q=%ff&q=a", path + "//..%2f%00", "*", "http://x" + path, "/\xff", path + "#", ""]
        )
        version = chance.choice(["HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "HTTP/2", ""])
        verb = chance.choice([method, "HEAD", "OPTIONS", "TRACE", "CONNECT", "PRI", "get", "\0"])
        lines[0] = f"{verb} {target} {version}".encode("latin-1")
    return lines, body


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return a request with some bytes changed, inserted or removed."""
    found = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(found))
        match chance.randrange(3):
            case 0:
                found[at] = chance.randrange(256)
            case 1:
                found[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 2:
                del found[at : at + chance.randrange(1, 9)]
    return bytes(found)


def damage_fields(chance: random.Random, fields: Any) -> None:
    """Replace or add a value somewhere in the fields of a request."""
    while True:
        values = fields.values() if isinstance(fields, dict) else fields
        inside = [each for each in values if each and isinstance(each, dict | list)]
        if not inside or chance.random() < 0.5:
            break
        fields = chance.choice(inside)
    value = copy.deepcopy(chance.choice(HOSTILE))
    if isinstance(fields, dict):
        fields[chance.choice([*fields, "options", "\ud800", "x"])] = value
    else:
        fields[chance.randrange(len(fields))] = value


def make_request(seed: int) -> tuple[str, bytes, bool]:
    """Return the path of a request, its bytes, and whether they are HTTP for sure."""
    chance = random.Random(seed)
    method, path, valid = chance.choice(VALID)
    fields = copy.deepcopy(valid)
    for _ in range(chance.randrange(3)):
        damage_fields(chance, fields)
    kind, body = chance.choice([json_body, json_body, json_body, form_body, multipart_body])(chance, fields)
    if chance.random() < 0.5:
        plain = [f"{method} {path} HTTP/1.1", "Host: localhost", "Authorization: DeepL-Auth-Key k"]
        lines = [*plain, *headers_of(path), f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
        return path, "\r\n".join([*lines, "", ""]).encode() + body, True
    heads, rest = head(chance, method, path, kind, body)
    data = b"\r\n".join([*heads, b"", rest])
    return path, damaged(chance, data) if chance.random() < 0.3 else data, False


def send(service: RunningService, data: bytes) -> tuple[int, bytes] | None:
    """Return the status and the body of the reply, or None if the connection was closed without one."""
    with socket.create_connection(("127.0.0.1", httpx.URL(service.url).port or 0), timeout=120) as connection:
        try:
            connection.sendall(data)
            reply = http.client.HTTPResponse(connection, method="HEAD" if data[:4] == b"HEAD" else "GET")
            reply.begin()
            return reply.status, reply.read()
        except (ConnectionError, http.client.BadStatusLine):
            return None


def error_with(*names: str) -> Callable[[Any, int], bool]:
    """Return a function that says whether the field ``error`` is an object with these fields."""
    return lambda found, _: isinstance(found.get("error"), dict) and set(found["error"]) == set(names)


# Whether an object is an error of an API, by its status.
FORMS: dict[str, Callable[[Any, int], bool]] = {
    "aws": lambda found, _: {"__type", "Message"} <= set(found),
    "azure": error_with("code", "message"),
    "deepl": lambda found, _: list(found) == ["message"],
    "deeplx": lambda found, status: found == {"code": status, "message": found.get("message")},
    "google": error_with("code", "message", "errors", "status"),
    "huggingface": lambda found, _: set(found) == {"error", "error_type"},
    "libretranslate": lambda found, _: list(found) == ["error"] and isinstance(found["error"], str),
    "native": lambda found, status: error_with("status", "message")(found, 0) and found["error"]["status"] == status,
    "open-inference": lambda found, _: list(found) == ["error"] and isinstance(found["error"], str),
    "openai": error_with("message", "type", "param", "code"),
}


def has_form(path: str, status: int, body: bytes) -> bool:
    """Return whether an error has the form of the API that a path belongs to; with an empty path, of any API."""
    try:
        found = json.loads(body)
    except ValueError:
        return False
    path, _, query = path.partition("?")
    scope = {"method": "POST", "path": path, "query_string": query.encode(), "headers": []}
    apis = {api_of_head(scope)} if path else set(FORMS)
    if path == "/translate" and not query:  # its body decides
        apis.add("deeplx")
    return isinstance(found, dict) and any(FORMS[api](found, status) for api in apis)


def problem_of(service: RunningService, seed: int) -> str | None:
    """Send a request, and return what is wrong with the reply."""
    path, data, is_http = make_request(seed)
    try:
        reply = send(service, data)
    except TimeoutError:
        return f"seed {seed}: no reply in time to {data[:500]!r}"
    if reply is None:
        return f"seed {seed}: no reply to {data[:500]!r}" if is_http else None
    status, body = reply
    if status >= 500:
        return f"seed {seed}: status {status} of {data[:500]!r}"
    if status < 400 or (not body and data.startswith(b"HEAD")):
        return None
    # A damaged path may belong to another API.
    if has_form(path if is_http else "", status, body):
        return None
    return f"seed {seed}: {status} {body[:200]!r} to {data[:500]!r}"


def test_raw_requests(service: RunningService) -> None:
    before = translate(service)
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda seed: problem_of(service, seed), range(40 * EXAMPLES)))
    problems = list(filter(None, found))
    assert not problems, "\n".join([f"{len(problems)} problems", *problems[:10]])
    wait_until(lambda: "headway_open_requests 1.0" in httpx.get(f"{service.url}/metrics").text)  # this one
    assert translate(service) == before


TENSOR_START = '{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":['


def big(start: str, item: str, count: int, end: str) -> bytes:
    return (start + ",".join([item] * count) + end).encode()


FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/translate", FORM, b"a&" * 2_000_000),
        ("/translate", FORM, b"%" * 4_000_000),
        ("/translate", MULTIPART, b"\r\n--x" * 600_000),
        ("/translate", "application/json", big('{"q":[', '"a"', 900_000, '],"source":"auto","target":"de"}')),
        ("/translate", "application/json", b'{"q":"a","source":"' + b"-" * 3_000_000 + b'","target":"de"}'),
        ("/detect", "application/json", b'{"q":"' + b"word " * 800_000 + b'"}'),
        ("/api/v1/detect", "application/json", big('{"text":[', '"a"', 900_000, "]}")),
        ("/api/v1/translate", "application/json", big('{"text":[', "1", 1_000_000, '],"target":"de"}')),
        ("/api/v1/translate", "application/json", big('{"target":"de","options":{"a":[', "[]", 1_000_000, "]}}")),
        (
            "/api/v1/translate",
            "application/json",
            ("{" + ",".join(f'"{each}":1' for each in range(300_000)) + "}").encode(),
        ),
        ("/api/v1/generate", "application/json", big('{"prompt":"a","options":{"stop":[', "1", 1_000_000, "]}}")),
        ("/v1/completions", "application/json", big('{"prompt":[', "{}", 1_000_000, "]}")),
        ("/v2/translate", "application/json", big('{"target_lang":"de","text":[', '"a"', 900_000, "]}")),
        ("/", "application/json", big('{"inputs":[', '"a"', 900_000, "]}")),
        ("/aws?TranslateText", "application/x-amz-json-1.1", big('{"Text":[', "1", 1_000_000, "]}")),
        ("/v2/models/model/infer", "", big(TENSOR_START, '"a"', 900_000, "]}]}")),
        ("/v2/models/model/infer", "", big(TENSOR_START, '["a"]', 600_000, "]}]}")),
    ],
)
def test_large_requests_do_not_stop_the_service(service: RunningService, path: str, kind: str, body: bytes) -> None:
    """The parsing of a body at the limit does not keep the service from others for long."""
    headers = {"content-type": kind, "authorization": "DeepL-Auth-Key k"}
    headers |= dict(each.split(": ") for each in headers_of(path))
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(httpx.post, service.url + path, content=body, headers=headers, timeout=120)
        while not refused.done():
            assert httpx.get(f"{service.url}/health", timeout=30).status_code == 200
    reply = refused.result()
    assert reply.status_code in (400, 413, 422)
    assert len(reply.content) < 2000
    assert has_form(path, reply.status_code, reply.content)
    assert translate(service)
