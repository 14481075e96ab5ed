"""Requests of all APIs at once: each reply equals the reply to the same request alone, and none is an internal error.

HEADWAY_MIXED_REQUESTS sets the number of requests. 10000 take 11 minutes on two cores (Intel Xeon with AMX).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from running_service import RunningService, running, unpack_model

COUNT = int(os.environ.get("HEADWAY_MIXED_REQUESTS", "300"))
CONNECTIONS = 64
WORDS = [
    *("Ein", "Hund", "läuft", "über", "die", "grüne", "Wiese", "the", "old", "house", "near", "a", "river"),
    *("Guten", "Tag,"),
    *("{name}", "%s", "https://example.org/a?b=c", "me@example.org", "12.5", "7 km", "🙂", "**bold**", "fish.", "Why?"),
    *("x" * 30, "日本語", "naïve;", "\n", "l'été", "(yes)", "&", "<"),
]  # fmt: skip
TAGS = ["b", "i", "p", "code", "a href='/'", "span translate='no'", "div"]
PAIR = {"source": "en", "target": "de"}
DEEPL = {"source_lang": "EN", "target_lang": "DE"}
AWS_PAIR = {"SourceLanguageCode": "en", "TargetLanguageCode": "de"}
AWS_HEADERS = {"x-amz-target": "AWSShineFrontendService_20170701.TranslateText"}
CHANGING = {"id", "created"}  # keys whose values differ from reply to reply


@dataclass(frozen=True)
class MixedRequest:
    """A request, whether it must be refused, and whether it may be: a text may be in a language that is not served."""

    method: str
    path: str
    content: dict[str, Any] = field(default_factory=dict)  # arguments of httpx
    is_bad: bool = False
    may_be_refused: bool = False


class RequestMaker:
    """Draws requests.

    Args:
        glossary: The id of a glossary.
        seed: Random seed.
    """

    def __init__(self, glossary: str, seed: int) -> None:
        self._glossary, self._chance = glossary, random.Random(seed)
        self._kinds: list[Callable[[], MixedRequest]] = [
            self._native, self._native_stream, self._libretranslate, self._deepl, self._azure, self._google_v2,
            self._google_v3, self._deeplx, self._openai_chat, self._openai_completion, self._aws, self._huggingface,
            self._open_inference, self._other, self._bad,
        ]  # fmt: skip

    def make(self) -> MixedRequest:
        return self._chance.choice(self._kinds)()

    def _text(self) -> str:
        """A text of 1 to 200 words, half of which have at most ten."""
        count = min(200, max(1, round(self._chance.lognormvariate(2.3, 1.2))))
        return " ".join(self._chance.choices(WORDS, k=count))

    def _texts(self) -> list[str]:
        return [self._text() for _ in range(self._chance.choice([1, 1, 2, 4]))]

    def _html(self) -> str:
        parts = []
        for _ in range(self._chance.randrange(1, 6)):
            tag, text = self._chance.choice(TAGS), " ".join(self._chance.choices(WORDS, k=self._chance.randrange(1, 9)))
            parts.append(
                f"<{tag}>{text}</{tag.partition(' ')[0]}>" if self._chance.random() < 0.9 else f"<{tag}>{text}"
            )
        return " ".join(parts)

    def _marked(self) -> tuple[str, bool]:
        """A text, and whether it is HTML."""
        return (self._html(), True) if self._chance.random() < 0.3 else (self._text(), False)

    def _some(self, **fields: Any) -> dict[str, Any]:
        """Some of these fields."""
        return {name: value for name, value in fields.items() if self._chance.random() < 0.3}

    def _native(self) -> MixedRequest:
        beam = self._chance.choice([1, 2, 5])
        options = {"beam_size": beam} | self._some(n_best=beam, length_penalty=0.5)
        text, is_html = self._marked()
        body = {"text": [text, *self._texts()], **PAIR, "options": options}
        body |= self._some(alignment=True, ban=["Hund"], protect=False)
        body |= self._some(include=["Haus"], glossary=self._glossary) if beam > 1 else {}
        return MixedRequest("POST", "/api/v1/translate", {"json": body | ({"markup": "html"} if is_html else {})})

    def _native_stream(self) -> MixedRequest:
        return MixedRequest("POST", "/api/v1/translate", {"json": {"text": self._texts(), **PAIR, "stream": True}})

    def _libretranslate(self) -> MixedRequest:
        text, is_html = self._marked()
        fields = {"q": text, "source": self._chance.choice(["en", "auto"]), "target": "de"}
        is_detected = fields["source"] == "auto"
        fields |= {"format": "html"} if is_html else {}
        match self._chance.randrange(4):
            case 0:
                return MixedRequest("POST", "/translate", {"data": fields}, may_be_refused=is_detected)
            case 1:
                return MixedRequest(
                    "POST",
                    "/translate",
                    {"files": {key: (None, value) for key, value in fields.items()}},
                    may_be_refused=is_detected,
                )
            case 2:
                return MixedRequest("POST", "/translate", {"params": fields}, may_be_refused=is_detected)
        return MixedRequest(
            "POST",
            "/translate",
            {"json": fields | {"q": [text, self._text()]} | self._some(alternatives=2)},
            may_be_refused=is_detected,
        )

    def _deepl(self) -> MixedRequest:
        text, is_html = self._marked()
        fields: dict[str, Any] = {"text": [text, *self._texts()], **DEEPL}
        fields |= {"tag_handling": "html"} if is_html else self._some(split_sentences="0")
        fields |= self._some(glossary_id=self._glossary, context="A dog.", show_billed_characters="1")
        body = {"data": fields} if self._chance.random() < 0.5 else {"json": fields}
        return MixedRequest("POST", "/v2/translate", body | {"headers": {"authorization": "DeepL-Auth-Key any"}})

    def _azure(self) -> MixedRequest:
        if self._chance.random() < 0.5:
            inputs = [{"text": text, "language": "en", "targets": [{"language": "de"}]} for text in self._texts()]
            return MixedRequest("POST", "/translate?api-version=2026-06-06", {"json": {"inputs": inputs}})
        path = "/translate?api-version=3.0&from=en&to=de" + self._chance.choice(["", "&includeAlignment=true"])
        return MixedRequest("POST", path, {"json": [{"Text": text} for text in self._texts()]})

    def _google_v2(self) -> MixedRequest:
        text, is_html = self._marked()
        fields = {"q": [text, *self._texts()], **PAIR, "format": "html" if is_html else "text"}
        return MixedRequest("POST", "/language/translate/v2", {self._chance.choice(["json", "data"]): fields})

    def _google_v3(self) -> MixedRequest:
        body: dict[str, Any] = {"contents": self._texts(), "mimeType": "text/plain", "targetLanguageCode": "de"}
        body |= {"sourceLanguageCode": "en"}
        body |= self._some(glossaryConfig={"glossary": f"projects/p/locations/l/glossaries/{self._glossary}"})
        return MixedRequest("POST", "/v3/projects/p/locations/l:translateText", {"json": body})

    def _deeplx(self) -> MixedRequest:
        body = {"text": self._text(), **DEEPL}
        return MixedRequest("POST", self._chance.choice(["/translate", "/deeplx/translate"]), {"json": body})

    def _openai_chat(self) -> MixedRequest:
        messages = [{"role": "system", "content": "Translate."}, {"role": "user", "content": self._text()}]
        body = {"model": "model", "messages": messages} | self._some(stream=True, n=2)
        return MixedRequest("POST", "/v1/chat/completions", {"json": body})

    def _openai_completion(self) -> MixedRequest:
        body = {"model": "model", "prompt": self._text()} | self._some(stream=True)
        return MixedRequest("POST", "/v1/completions", {"json": body})

    def _aws(self) -> MixedRequest:
        body = {"Text": self._text(), **AWS_PAIR} | self._some(TerminologyNames=[self._glossary])
        return MixedRequest("POST", "/", {"json": body, "headers": AWS_HEADERS})

    def _huggingface(self) -> MixedRequest:
        path = self._chance.choice(["/", "/models/model"])
        body = {"inputs": self._texts()} | self._some(parameters={"src_lang": "en", "tgt_lang": "de"})
        return MixedRequest("POST", path, {"json": body})

    def _open_inference(self) -> MixedRequest:
        texts = self._texts()
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        body = {"inputs": [tensor]} | self._some(parameters={"markup": "html"})
        return MixedRequest("POST", "/v2/models/model/infer", {"json": body})

    def _other(self) -> MixedRequest:
        text = self._text()
        return self._chance.choice(
            [
                MixedRequest("GET", "/languages"),
                MixedRequest("GET", "/api/v1/models"),
                MixedRequest("POST", "/detect", {"json": {"q": text}}),
                MixedRequest("POST", "/api/v1/alternatives", {"json": {"text": text, "count": 3, **PAIR}}),
                MixedRequest(
                    "POST", "/api/v1/score", {"json": {"source_texts": [text], "target_texts": ["Haus"], **PAIR}}
                ),
            ]
        )

    def _bad(self) -> MixedRequest:
        key, texts = {"authorization": "DeepL-Auth-Key any"}, [self._text()]
        kinds: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", "/translate", {"json": {"q": texts, "source": "en", "target": "zz"}}),
            ("POST", "/translate", {"json": {"q": 5, **PAIR}}),
            ("POST", "/translate", {"content": b'{"q": "a', "headers": {"content-type": "application/json"}}),
            ("GET", "/nothing", {}),
            ("PUT", "/translate", {}),
            ("POST", "/api/v1/translate", {"json": {"text": texts, **PAIR, "options": {"beam_size": -1}}}),
            ("POST", "/api/v1/translate", {"json": {"text": ["word " * 30_000], **PAIR}}),
            ("POST", "/api/v1/translate", {"json": {"text": texts, **PAIR, "glossary": "unknown"}}),
            ("POST", "/v2/translate", {"json": {"text": texts, **DEEPL, "formality": "more"}, "headers": key}),
            ("POST", "/v2/translate", {"json": {"text": texts, **DEEPL}}),  # no key
            ("POST", "/translate?api-version=3.0&to=de", {"json": [{"Words": "a"}]}),
            ("POST", "/language/translate/v2", {"json": {"q": texts, "target": "zz", "source": "en"}}),
            ("POST", "/v3/projects/p:translateText", {"json": {"contents": "a", "targetLanguageCode": []}}),
            ("POST", "/deeplx/translate", {"json": {"text": texts, "target_lang": "DE"}}),
            ("POST", "/v1/chat/completions", {"json": {"model": "model", "messages": []}}),
            ("POST", "/v1/completions", {"json": {"model": "unknown", "prompt": texts[0]}}),
            ("POST", "/", {"json": {"Text": texts, **AWS_PAIR}, "headers": AWS_HEADERS}),
            ("POST", "/models/unknown", {"json": {"inputs": texts}}),
            ("POST", "/v2/models/model/infer", {"json": {"inputs": texts}}),
        ]  # fmt: skip
        return MixedRequest(*self._chance.choice(kinds), is_bad=True)


def without_changing_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_changing_values(each) for name, each in value.items() if name not in CHANGING}
    return [without_changing_values(each) for each in value] if isinstance(value, list) else value


def readable(reply: httpx.Response) -> tuple[int, Any]:
    """The status and the content of a reply. Of streams, whose parts come as they are ready, it is all parts."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return reply.status_code, without_changing_values(reply.json())
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    events = [without_changing_values(json.loads(line)) for line in lines]
    if "choices" in events[0]:  # OpenAI
        texts: dict[int, str] = {}
        for choice in (choice for event in events for choice in event["choices"]):
            text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            texts[choice["index"]] = texts.get(choice["index"], "") + (text or "")
        return reply.status_code, texts
    return reply.status_code, sorted(events, key=lambda event: event["index"])


async def ask(url: str, requests: Sequence[MixedRequest], connections: int) -> list[tuple[int, Any]]:
    """Return the replies to requests, of which each connection sends one after the other."""
    replies: dict[int, tuple[int, Any]] = {}
    waiting = iter(enumerate(requests))

    async def send_all() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=300) as http:
            for number, each in waiting:
                replies[number] = readable(await http.request(each.method, each.path, **each.content))

    await asyncio.gather(*(send_all() for _ in range(connections)))
    return [replies[number] for number in range(len(requests))]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("served")
    config = folder / "serve.toml"
    config.write_text(
        f"workers = 2\nlimits = {{ queue_seconds = 10_000, queue_tokens = 10_000_000, request_seconds = 300 }}\n"
        f'[[models]]\npath = "{unpack_model(folder)}"\n'
    )
    with running(["--config", str(config)]) as found:
        yield found


@pytest.mark.slow
def test_replies_to_requests_at_once_equal_those_to_each_alone(service: RunningService) -> None:
    entries = [["Hund", "cat"], ["house", "a b"]]
    body = {"name": "terms", "dictionaries": [{**PAIR, "entries": entries}]}
    glossary = httpx.post(f"{service.url}/api/v1/glossaries", json=body).json()["id"]
    maker = RequestMaker(glossary, seed=1)
    requests = [maker.make() for _ in range(COUNT)]
    together = asyncio.run(ask(service.url, requests, CONNECTIONS))
    lost = [line for line in service.log if "worker" in line]
    assert not lost, lost
    alone = asyncio.run(ask(service.url, requests, 1))
    for request, ours, theirs in zip(requests, together, alone, strict=True):
        assert ours == theirs, request
        is_refused = 400 <= ours[0] < 500
        assert is_refused if request.is_bad else ours[0] == 200 or (is_refused and request.may_be_refused), (
            request,
            ours,
        )
    metrics = httpx.get(f"{service.url}/metrics").text
    assert "headway_worker_restarts_total 0.0" in metrics
    assert "headway_queue_tokens 0.0" in metrics
