"""Every field of a request either has a small bound, or raises the request's cost, or exceeds a limit."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import astuple
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import httpx
import pytest
from fastapi import FastAPI
from in_process import InProcessFleet, key_config, make_service, make_test_app
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from starlette.testclient import TestClient

from headway.decode.request import DecodingOptions, Sampling
from headway.predict import GenerationOptions, Source
from headway.predict.translation.options import TranslateOptions
from headway.serve import apis
from headway.serve.clients import Client
from headway.serve.config import LimitsConfig
from headway.serve.cost import (
    Cost,
    cost_of_alternatives,
    cost_of_fillings,
    cost_of_generation,
    cost_of_translation,
    exceeded_limit_message,
)
from headway.serve.errors import UnavailableError

pytest_plugins = ["small_model"]  # the fixtures of that file

_SMALL = 1000  # largest number that needs no place in the cost
# What is looked up, compared, ignored or passed back, and never multiplied by texts: names, languages, labels, seeds.
_LOOKED_UP = {
    "aws": {"content_type", "next_token", "source_language_code", "target_language_code", "terminology_names"},
    "azure": {
        "adaptive_dataset_id", "deployment_name", "gender", "language", "profanity_action", "reference_text_pairs",
        "script", "text_type", "tone",
    },
    "google": {"glossary", "mime_type", "model", "source_language_code", "target_language_code"},
    # Sizes of n-grams and numbers of tokens to draw from; labels that a reply has; options that have no effect.
    "huggingface": {"no_repeat_ngram_size", "options", "seed", "src_lang", "tgt_lang", "top_k"},
    "native": {"label", "model", "name", "source", "target"},
    "open_inference": {"binary_data_size", "classification", "id", "name", "source_language", "target_language"},
    "openai": {"model", "role", "seed", "source_language", "target_language", "top_k"},
}  # fmt: skip
# Each route with a small body that it accepts, and its fields that cost: with larger values of a type of their own.
_GLOSSARY = [["a", "b"]] * 60
_LONG = "x z " * 100
_EN_DE = {"source": "en", "target": "de"}
_V3 = {"source_language_code": "en", "target_language_code": "de"}
_AWS = {"SourceLanguageCode": "en", "TargetLanguageCode": "de"}
_INPUT = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
_ROUTES: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("native", "/api/v1/translate", {"text": "a", **_EN_DE},
     {"text": _LONG, "prefix": _LONG, "include": [_LONG], "ban": [_LONG], "glossary": _GLOSSARY,
      "options": {"n_best": 64, "beam_size": 64}, "alignment": True}),
    ("native", "/api/v1/jobs", {"text": ["a"], **_EN_DE},
     {"text": ["a"] * 9, "prefix": _LONG, "include": [_LONG], "ban": [_LONG], "glossary": _GLOSSARY,
      "options": {"min_length": 5000, "max_length": 9000}}),
    ("native", "/api/v1/detect", {"text": "a"}, {"text": _LONG}),
    ("native", "/api/v1/sentences", {"text": "a", "language": "en"}, {"text": _LONG}),
    ("native", "/api/v1/score", {"source_texts": ["a"], "target_texts": ["b"], **_EN_DE},
     {"source_texts": [_LONG], "target_texts": [_LONG]}),
    ("native", "/api/v1/alternatives", {"text": "a", **_EN_DE}, {"text": _LONG, "prefix": _LONG}),
    ("native", "/api/v1/inspect", {"text": "a", **_EN_DE}, {"text": _LONG, "translation": _LONG}),
    ("native", "/api/v1/search-tree", {"text": "a", **_EN_DE}, {"text": _LONG}),
    ("native", "/api/v1/force-word", {"text": "a", "word": "b", **_EN_DE},
     {"text": _LONG, "translation": _LONG, "prefix": _LONG, "word": _LONG}),
    ("native", "/api/v1/classify", {"text": "a"}, {"text": _LONG}),
    ("native", "/api/v1/explain", {"text": "a"}, {"text": _LONG}),
    ("native", "/api/v1/occlude", {"text": "a"}, {"text": _LONG}),
    ("native", "/api/v1/generate", {"prompt": "a"},
     {"prompt": _LONG, "options": {"max_new_tokens": 999}}),
    ("native", "/api/v1/generate", {"prompt": "a", "stream": True}, {"alternatives": 50}),
    ("native", "/api/v1/score-texts", {"text": "a", "model": "filler"}, {"text": _LONG}),
    ("native", "/api/v1/perplexity", {"text": "a b c d"}, {"text": _LONG, "stride": 1}),
    ("native", "/api/v1/fill", {"text": "[MASK]"}, {"text": f"[MASK] {_LONG}", "top": 90, "candidates": ["a"] * 99}),
    ("native", "/api/v1/glossaries", {"name": "a", "dictionaries": [{**_EN_DE, "entries": [["a", "b"]]}]},
     {"dictionaries": [{**_EN_DE, "entries": _GLOSSARY}], "entries": None}),
    ("openai", "/v1/completions", {"model": "writer", "prompt": "a", "max_tokens": 2},
     {"prompt": [_LONG], "max_tokens": 900, "n": 9, "best_of": 9, "stop": [_LONG], "logprobs": 20, "echo": True}),
    ("openai", "/v1/completions", {"model": "model", "prompt": "a"}, {"prompt": _LONG, "n": 9}),
    ("openai", "/v1/chat/completions",
     {"model": "writer", "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 2, "logprobs": True},
     {"messages": [{"role": "user", "content": _LONG}], "content": None, "text": None, "max_completion_tokens": 900,
      "n": 9, "stop": [_LONG], "top_logprobs": 20}),
    ("openai", "/v1/chat/completions",
     {"model": "writer", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}, {"max_tokens": 900}),
    ("huggingface", "/models/writer", {"inputs": "a"}, {"inputs": [_LONG], "parameters": {"max_new_tokens": 900},
     "max_new_tokens": None}),
    ("huggingface", "/models/writer", {"inputs": "a", "parameters": {"do_sample": True}},
     {"parameters": {"do_sample": True, "best_of": 9}, "best_of": None}),
    ("huggingface", "/models/writer", {"inputs": "a"}, {"parameters": {"stop": [_LONG]}, "stop": None}),
    ("huggingface", "/models/writer", {"inputs": "a"}, {"parameters": {"details": True}, "details": None}),
    ("huggingface", "/models/model", {"inputs": "a"},
     {"inputs": _LONG, "parameters": {"generate_parameters": {"num_beams": 64}}, "num_beams": None}),
    ("huggingface", "/models/model", {"inputs": "a"},
     {"parameters": {"generate_parameters": {"max_new_tokens": 9000}}, "max_new_tokens": None}),
    ("huggingface", "/models/model", {"inputs": "a"},
     {"parameters": {"generate_parameters": {"min_new_tokens": 900, "max_new_tokens": 999}}, "min_new_tokens": None}),
    ("huggingface", "/models/filler", {"inputs": "[MASK]"}, {"parameters": {"targets": ["a"] * 99}, "targets": None}),
    ("huggingface", "/models/labeler", {"inputs": "a"}, {"inputs": [_LONG]}),
    *(("open_inference", f"/v2/models/{name}/infer", {"inputs": [{**_INPUT, "data": [text]}]},
       {"inputs": [{**_INPUT, "data": [text + _LONG]}], "data": None})
      for name, text in (("model", "a"), ("writer", "a"), ("labeler", "a"), ("filler", "[MASK]"))),
    ("open_inference", "/v2/models/writer/infer", {"inputs": [_INPUT]}, {"parameters": {"max_new_tokens": 900}}),
    ("open_inference", "/v2/models/writer/infer", {"inputs": [_INPUT]}, {"parameters": {"stop": [_LONG]}}),
    ("open_inference", "/v2/models/filler/infer", {"inputs": [{**_INPUT, "data": ["[MASK]"]}]},
     {"parameters": {"top": 90}}),
    ("azure", "/azure/translate?api-version=3.0&to=de&from=en", [{"Text": "a"}],
     {"root": [{"Text": _LONG}], "text": None}),
    ("azure", "/azure/translate?api-version=2026-06-06",
     {"inputs": [{"text": "a", "language": "en", "targets": [{"language": "de"}]}]},
     {"inputs": [{"text": _LONG, "language": "en", "targets": [{"language": "de"}]}], "text": None}),
    ("azure", "/azure/translate?api-version=2026-06-06",
     {"inputs": [{"text": "a", "language": "en", "targets": [{"language": "de"}]}]},
     {"inputs": [{"text": "a", "language": "en", "targets": [{"language": "de"}] * 9}], "targets": None}),
    ("azure", "/azure/detect?api-version=3.0", [{"Text": "a"}], {"root": [{"Text": _LONG}]}),
    ("google", "/v3/projects/x:translateText", {"contents": ["a"], **_V3}, {"contents": [_LONG]}),
    ("google", "/v3/projects/x:detectLanguage", {"content": "a"}, {"content": _LONG}),
    ("google", "/language/translate/v2", {"q": "a", **_EN_DE}, {"q": _LONG}),
    ("google", "/language/translate/v2/detect", {"q": "a"}, {"q": _LONG}),
    ("libretranslate", "/translate", {"q": "a", **_EN_DE}, {"q": [_LONG], "alternatives": 10}),
    ("libretranslate", "/detect", {"q": "a"}, {"q": _LONG}),
    ("deepl", "/v2/translate", {"text": ["a"], "source_lang": "EN", "target_lang": "DE"}, {"text": [_LONG]}),
    ("deeplx", "/deeplx/translate", {"text": "a", "source_lang": "EN", "target_lang": "DE"}, {"text": _LONG}),
    ("aws", "TranslateText", {"Text": "a", **_AWS}, {"Text": _LONG, "text": None}),
    ("aws", "TranslateDocument", {"Document": {"Content": "YQ==", "ContentType": "text/plain"}, **_AWS},
     {"Document": {"Content": "YWFh" * 99, "ContentType": "text/plain"}, "content": None}),
]  # fmt: skip
_COUNTED = {api: {name for one, _, _, larger in _ROUTES if one == api for name in larger} for api, *_ in _ROUTES}


def request_models() -> Iterator[type[BaseModel]]:
    for module_info in pkgutil.walk_packages(apis.__path__, f"{apis.__name__}."):
        module = importlib.import_module(module_info.name)
        for value in vars(module).values():
            is_model = isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
            if is_model and not value.__name__.endswith(("Reply", "Item", "Detail", "Error")):
                yield value


def is_small(annotation: Any, metadata: Sequence[Any] = ()) -> bool:
    """Return whether the largest value of a field is small. Models in a field are looked at on their own."""
    bounds = [getattr(item, name, None) for item in metadata for name in ("le", "lt", "max_length")]
    if any(bound is not None and bound <= _SMALL for bound in bounds):
        return True
    if any(getattr(item, "pattern", None) for item in metadata):
        return True
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        items = [item for one in more for item in (one.metadata if isinstance(one, FieldInfo) else [one])]
        return is_small(inner, (*metadata, *items))
    if get_origin(annotation) in (Union, UnionType):
        return all(is_small(kind, metadata) for kind in get_args(annotation))
    if get_origin(annotation) is Literal or annotation in (bool, float, type(None)):
        return True
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


@pytest.mark.parametrize("model", sorted(request_models(), key=str))
def test_every_field_is_small_or_counted_or_only_looked_up(model: type[BaseModel]) -> None:
    api = model.__module__.removeprefix(f"{apis.__name__}.").partition(".")[0]
    unknown = {
        name
        for name, field in model.model_fields.items()
        if name not in _COUNTED[api] | _LOOKED_UP[api] and not is_small(field.annotation, field.metadata)
    }
    assert not unknown, "bound these fields, or count them in headway.serve.cost and add them to this test"


class _Meter:
    """A service that refuses to work, and adds up what requests would cost."""

    def __init__(self, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self._service = make_service(models)
        self._costs = list[tuple[int, ...]]()
        sizes, clients, admission = self._service.sizes, self._service.clients, self._service.admission
        check_cost, count, enter, add = (
            sizes.check_cost,
            clients.count_characters,
            admission.enter,
            self._service.jobs.add,
        )
        monkeypatch.setattr(sizes, "check_cost", lambda cost: (self._add(*astuple(cost)), check_cost(cost)))
        monkeypatch.setattr(clients, "count_characters", lambda client, n: (self._add(max(0, n)), count(client, n)))
        monkeypatch.setattr(
            admission, "enter", lambda tokens, *rest, **options: (self._add(tokens), enter(tokens, *rest, **options))[1]
        )
        monkeypatch.setattr(self._service.jobs, "add", lambda *job: (self._add(round(job[-1])), add(*job))[1])
        monkeypatch.setattr(InProcessFleet, "call", self._refuse)
        monkeypatch.setattr(InProcessFleet, "stream", self._refuse_stream)
        app = make_test_app(self._service)
        self._http = TestClient(app, "http://localhost", raise_server_exceptions=False)

    def _add(self, *numbers: int) -> bool:
        self._costs.append(numbers)
        return True

    async def _refuse(self, *_: Any) -> None:
        raise UnavailableError

    async def _refuse_stream(self, *_: Any) -> AsyncGenerator[None]:
        raise UnavailableError
        yield

    def measure(self, path: str, body: Any) -> tuple[int, int]:
        """Return the status of a request, and the sum of all that it would cost."""
        self._costs.clear()
        headers = {"Authorization": "DeepL-Auth-Key a"}
        if path.startswith("/azure"):
            headers["Ocp-Apim-Subscription-Key"] = "a"
        if not path.startswith("/"):
            headers["Authorization"] = "AWS4-HMAC-SHA256 Credential=a/b"
            headers["X-Amz-Target"] = f"AWSShineFrontendService_20170701.{path}"
            path = "/"
        status = self._http.post(path, json=body, headers=headers).status_code
        return status, sum(map(sum, self._costs))


def test_larger_values_of_counted_fields_cost_more(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that a test names as None is a part of the field before it."""
    meter, free = _Meter(models, monkeypatch), list[str]()
    for _, path, body, larger in _ROUTES:
        status, usual = meter.measure(path, body)
        assert status in (200, 201, 503), (path, body, status)
        for name, value in larger.items():
            if value is None:
                continue
            changed = value if isinstance(body, list) else {**body, name: value}
            if name == "best_of" and isinstance(value, int):  # only the value of n
                changed["n"] = value
            status, cost = meter.measure(path, changed)
            assert status in (200, 201, 413, 503), (path, name, status)
            if cost <= usual:
                free.append(f"{path}: {name}")
    assert not free, "count these in headway.serve.cost"


@pytest.mark.parametrize(
    ("texts", "options", "has_glossary"),
    [
        (["Das ist ein gewöhnlicher Satz mit einigen Wörtern. " * 1900], {"max_length": 512, "n_best": 2}, False),
        (["Hallo."] * 300, {"max_length": 512}, True),
        (["这是一个普通的句子，其中有几个词。" * 5800], {"beam_size": 8}, True),
    ],
)
def test_ordinary_large_requests_are_accepted(texts: list[str], options: dict[str, int], has_glossary: bool) -> None:
    decoding = DecodingOptions(**{"beam_size": 4, **options})
    cost = cost_of_translation(texts, TranslateOptions(decoding=decoding), has_glossary=has_glossary)
    assert exceeded_limit_message(cost, LimitsConfig()) is None


@pytest.mark.parametrize("stream", [False, True])
def test_entries_of_a_request_count_once(models: dict[str, Any], stream: bool) -> None:
    service = make_service(models)
    http = TestClient(make_test_app(service), "http://localhost")
    body = {"text": ["a"] * 3, **_EN_DE, "stream": stream, "glossary": [["x" * 10, "y" * 10]]}
    assert http.post("/api/v1/translate", json=body).status_code == 200
    assert service.clients.characters_used(Client("anyone")) == 3 + 20


def test_a_glossary_counts_while_a_worker_lacks_it(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing it takes long, so the first request with it costs more, once for each worker."""
    service, costs, lacking = make_service(models), list[int](), [1]
    http, enter = TestClient(make_test_app(service), "http://localhost"), service.admission.enter

    def enter_and_note(tokens: int, *rest: Any, **more: Any) -> Any:
        costs.append(tokens)
        return enter(tokens, *rest, **more)

    monkeypatch.setattr(service.admission, "enter", enter_and_note)
    monkeypatch.setattr(InProcessFleet, "num_workers_without_glossary", lambda *_: lacking[0])
    body = {"text": ["a"] * 3, **_EN_DE, "glossary": [["x" * 900, "y"], ["z" * 900, "y"]]}
    assert http.post("/api/v1/translate", json=body).status_code == 200
    assert http.post("/api/v1/translate", json={**body, "stream": True}).status_code == 200
    lacking[0] = 0
    assert http.post("/api/v1/translate", json=body).status_code == 200
    whole, *of_stream, later = costs
    assert whole == later + 19, "1,805 characters"
    assert sum(of_stream) == whole, "one of the texts of a stream counts it"
    assert not service._preparing


def test_openapi_is_written_in_a_thread_once(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[int]()

    def describe(_: FastAPI) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return {}

    monkeypatch.setattr(FastAPI, "openapi", describe)
    app = make_test_app(make_service(models))

    async def ask() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            replies = await asyncio.gather(*(http.get("/api/v1/openapi.json") for _ in range(3)))
        assert all(reply.json() == {} for reply in replies)
        return threading.get_ident()

    loop_thread = asyncio.run(ask())
    assert len(threads) == 1
    assert threads[0] != loop_thread


def _exceeds(cost: Cost) -> bool:
    return exceeded_limit_message(cost, LimitsConfig()) is not None


@pytest.mark.parametrize("name", DecodingOptions.model_fields)
def test_every_option_of_a_search_costs_or_is_bounded(name: str) -> None:
    """Options that only change which hypotheses win, or a token's logits, are free."""
    large: dict[str, Any] = {
        "beam_size": {"beam_size": 128}, "n_best": {"n_best": 128, "beam_size": 128},
        "min_length": {"min_length": 50_000, "max_length": 60_000}, "max_length": {"max_length": 60_000},
        "sampling": {"sampling": Sampling(), "n_best": 128}, "groups": {"groups": 128, "beam_size": 128},
    }  # fmt: skip
    free = {
        "length_penalty", "normalization", "coverage_penalty", "stopping", "diversity", "repetition_penalty",
        "no_repeat_ngram",
    }  # fmt: skip
    assert name in large or name in free
    if name in large:
        texts, usual = ["ein Hund"], TranslateOptions()
        cost = cost_of_translation(texts, TranslateOptions(decoding=DecodingOptions(**large[name])))
        assert cost.work_tokens >= 10 * cost_of_translation(texts, usual).work_tokens


@pytest.mark.parametrize(
    "source",
    [
        Source("a", prefix="x z " * 100),
        Source("a", include=("wort haus",) * 50),
        Source("a", include=(("wort", "haus") * 25,)),
        Source("a", banned=("wort haus",) * 50),
    ],
    ids=["prefix", "include", "alternatives", "ban"],
)
def test_what_is_read_with_each_text_counts_for_each_text(source: Source) -> None:
    one, ten = (cost_of_translation([source] * count, TranslateOptions()) for count in (1, 10))
    plain = cost_of_translation(["a"] * 10, TranslateOptions())
    assert ten.num_characters == 10 * one.num_characters >= 200 * 10
    assert ten.work_tokens > 5 * plain.work_tokens


def _tokens(source: str | Source, has_glossary: bool = False, **options: Any) -> int:
    decoding = DecodingOptions.parse(options, "test")
    return cost_of_translation([source], TranslateOptions(decoding=decoding), has_glossary=has_glossary).work_tokens


def test_parts_of_a_text_cost_as_much_as_texts() -> None:
    """A line, and a sentence of a long text, are sequences of their own, with the options of a text."""
    assert _tokens("a\n" * 100) > 80 * _tokens("a")
    assert _tokens("\u732b\u3002" * 200) > 100 * _tokens("a")
    assert _tokens("a\n" * 100, min_length=50, max_length=60) >= 100 * 50
    assert _tokens("a" * 10_000, min_length=50, max_length=60) >= 20 * 50
    assert _tokens("a\n" * 100, max_length=60) >= 100 * 60
    assert _exceeds(cost_of_translation(["a\n" * 200], TranslateOptions(decoding=DecodingOptions(min_length=900))))


def test_steps_that_take_longer_cost_more() -> None:
    usual = _tokens("ein Hund")
    assert _tokens("ein Hund", has_glossary=True) == _tokens("ein Hund", coverage_penalty=0.2) == 4 * usual
    assert _tokens("ein Hund", length_penalty=2) >= usual + 50
    assert _tokens(Source("a", prefix="x" * 100)) > _tokens("x" * 100)
    assert _tokens(Source("a", include=("x" * 100,))) > 10 * _tokens(Source("a", banned=("x" * 100,)))
    assert _tokens("a", min_length=900, max_length=900) > 2 * 900
    assert cost_of_alternatives("a", "x" * 100).work_tokens > 2 * _tokens("x" * 100)


def test_fillings_cost_the_texts_that_are_read() -> None:
    """Each mask but the first is filled in each filling of those before it, by each token of each candidate."""
    one, ten, more = (cost_of_fillings([text], 100).work_tokens for text in ("[MASK]", "[MASK] " * 10, "[MASK] " * 50))
    assert ten > 50 * one
    assert cost_of_fillings(["[MASK] " * 10], 10).work_tokens < ten / 5
    assert cost_of_fillings(["[MASK] " * 10], 100, ["x" * 50] * 20).work_tokens > 50 * ten
    assert more < 20 * ten, "a text with more than 20 masks is refused before any work"
    assert _exceeds(cost_of_fillings(["[MASK] " * 20], 100, ["x" * 50] * 20))


def test_requests_that_are_too_large() -> None:
    usual, beam = TranslateOptions(), TranslateOptions(decoding=DecodingOptions(beam_size=128))
    best = TranslateOptions(decoding=DecodingOptions(beam_size=128, n_best=128))
    phrases = Source("a", banned=("x z " * 30,) * 20)
    assert not _exceeds(cost_of_translation(["ein Hund"] * 1024, usual))
    assert not _exceeds(cost_of_translation([Source("ein Hund", include=("dog",))] * 100, usual))
    assert _exceeds(cost_of_translation([phrases], usual))
    assert _exceeds(cost_of_translation([Source("a", banned=("wort 0 haus",) * 20)] * 1000, usual))
    assert _exceeds(cost_of_translation([Source("a", include=("dog",))], beam))
    assert _exceeds(cost_of_translation(["a"], beam, has_glossary=True))
    assert _exceeds(cost_of_translation(["ein Hund läuft"] * 500, best))
    assert _exceeds(cost_of_translation(["a"], usual, entries=[["a", "b"]] * 2001))
    assert _exceeds(cost_of_generation(["a"] * 2, GenerationOptions(max_new_tokens=60_000)))
    assert _exceeds(cost_of_generation(["a"], GenerationOptions(ban=("x z " * 30,) * 20)))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/detect", {"text": ["a" * 90, "b" * 20_000]}),
        ("/detect", {"q": "a" * 20_000, "api_key": "secret"}),
        ("/azure/detect?api-version=3.0", [{"Text": "a" * 20_000}]),
        ("/language/translate/v2/detect", {"q": "a" * 20_000}),
        ("/v3/projects/x:detectLanguage", {"content": "a" * 20_000}),
    ],
)
def test_what_is_read_of_texts_to_detect_their_language_counts_for_the_quota(
    models: dict[str, Any], path: str, body: Any
) -> None:
    service = make_service(models, keys=(key_config("alpha", "secret", characters_per_month=10_100),))
    http = TestClient(make_test_app(service), "http://localhost", headers={"Authorization": "Bearer secret"})
    statuses = [http.post(path, json=body).status_code for _ in range(2)]
    assert statuses[0] == 200
    assert statuses[1] >= 400, "the quota is used up"
    assert service.clients.characters_used(Client("alpha")) in (10_000, 10_090)
