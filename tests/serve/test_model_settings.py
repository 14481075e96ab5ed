"""The settings that came with a model are the defaults of requests, of what they cost, and of the keys of the cache."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from in_process import application, make_service, make_test_app
from starlette.testclient import TestClient

from headway.decode import DecodingOptions
from headway.decode.generation_options import GenerationOptions
from headway.errors import ConfigError
from headway.predict import LanguageModel, Translator
from headway.serve.bulk_jobs import BulkJob, BulkJobs
from headway.serve.cost import Cost, cost_of_translation
from headway.serve.service import Service

TEXT = "das Haus ist klein und das Haus ist grün"
SETTINGS = DecodingOptions(beam_size=2, normalization="average", length_penalty=2.0, max_length=3)
LARGE = DecodingOptions(beam_size=16)


@pytest.fixture(scope="module")
def translator(make_translator: Callable[..., Translator]) -> Translator:
    return make_translator()


def searching(translator: Translator, search: DecodingOptions, source: str = "de", target: str = "en") -> Translator:
    task = translator.bundle.task.model_copy(update={"source_language": source, "target_language": target})
    return Translator(replace(translator.bundle, search=search, task=task), precision="float32")


def client_of(service: Service) -> TestClient:
    return TestClient(make_test_app(service), "http://localhost", raise_server_exceptions=False)


def test_every_api_translates_with_the_search_of_the_model(translator: Translator) -> None:
    model = searching(translator, SETTINGS)
    expected = translator.translate(TEXT, SETTINGS).text
    assert expected != translator.translate(TEXT).text
    http, languages = application({"model": model}), {"source": "de", "target": "en"}
    native = {"text": TEXT, **languages}
    assert http.post("/api/v1/translate", json=native).json()["translations"][0]["text"] == expected
    assert http.post("/translate", json={"q": TEXT, **languages}).json() == {"translatedText": expected}
    deepl = {"text": [TEXT], "source_lang": "DE", "target_lang": "EN"}
    reply = http.post("/v2/translate", json=deepl, headers={"authorization": "DeepL-Auth-Key any"})
    assert reply.json()["translations"][0]["text"] == expected
    given = {"beam_size": 1, "max_length": 8}  # and the model's penalty
    reply = http.post("/api/v1/translate", json={**native, "options": given}).json()
    assert reply["translations"][0]["text"] == model.translate(TEXT, DecodingOptions(**given)).text
    assert http.get("/api/v1/models").json()[0]["search"] == SETTINGS.model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    ("search", "equal", "other"),
    [(DecodingOptions(), {"beam_size": 4}, {"beam_size": 2}), (SETTINGS, {"beam_size": 2}, {"beam_size": 4})],
)
def test_a_default_that_is_given_has_the_key_of_one_that_is_not(
    search: DecodingOptions, equal: dict[str, Any], other: dict[str, Any], translator: Translator
) -> None:
    service = make_service({"model": searching(translator, search)}, limits={"cache_mb": 1.0})
    http, body = client_of(service), {"text": TEXT, "source": "de", "target": "en"}
    hits = []
    for options in ({}, equal, other, {"max_length": 3}):  # a given length is no limit, but a choice
        assert http.post("/api/v1/translate", json={**body, "options": options}).status_code == 200
        hits.append(service.cache.num_hits)
    assert hits == [0, 1, 1, 1]


def test_requests_cost_what_the_search_of_their_models_costs(translator: Translator) -> None:
    plain, large = DecodingOptions(), searching(translator, LARGE, "en", "fr")
    service = make_service(
        {"one": searching(translator, plain), "large": large, "es": searching(translator, plain, "es", "en")}
    )
    texts = [TEXT, "ein Haus"]

    def tokens(source: str, target: str, model: str | None = None) -> int:
        return service.cost_of_translation(texts, [(source, target)], model).work_tokens

    usual = tokens("de", "en")
    assert tokens("en", "fr") == 4 * usual
    assert tokens("de", "fr") == 4 * usual  # through English: the second step searches with 16 hypotheses
    assert tokens("auto", "fr") == 4 * usual
    assert tokens("auto", "en", "one") == tokens("de", "xx") == tokens("auto", "en", "missing") == usual
    reverse = make_service({"large": searching(translator, LARGE), "one": searching(translator, plain, "en", "fr")})
    assert reverse.cost_of_translation(texts, [("de", "fr")]).work_tokens == 4 * usual  # the first step


def test_settings_of_a_model_that_a_detected_text_may_not_need_refuse_nothing(translator: Translator) -> None:
    """``n_best = 4`` does not fit the beam of one of the two models from whose language the text could be."""
    german = searching(translator, DecodingOptions())
    french = searching(translator, SETTINGS, "fr", "en")
    http = application({"german": german, "french": french})
    body = {"text": TEXT, "target": "en", "options": {"n_best": 4}}
    assert http.post("/api/v1/translate", json={**body, "source": "auto"}).status_code == 200
    assert http.post("/api/v1/translate", json={**body, "source": "fr"}).status_code == 400


def test_many_pairs_of_languages_cost_their_texts_once(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a request with too many texts is refused before anything is computed for each."""
    costs: list[int] = []

    def recorded(texts: Sequence[Any], *arguments: Any, **keywords: Any) -> Cost:
        costs.append(len(texts))
        return cost_of_translation(texts, *arguments, **keywords)

    monkeypatch.setattr("headway.serve.service.cost_of_translation", recorded)
    http = application({"model": searching(translator, SETTINGS)})

    def post(count: int) -> Any:
        inputs = [{"text": "ein", "language": "de", "targets": [{"language": f"x{n}"} for n in range(count)]}]
        return http.post("/translate?api-version=2026-06-06", json={"inputs": inputs})

    post(200)
    assert sum(costs) <= 500  # all together, and each pair alone
    costs.clear()
    reply = post(3000)
    assert reply.status_code in (400, 413)
    assert costs == []


def test_a_list_is_made_once_for_all_who_wait(translator: Translator) -> None:
    service = make_service({"model": translator})
    calls: list[int] = []

    def make() -> list[str]:
        calls.append(1)
        time.sleep(0.05)
        return ["de"]

    def fail() -> list[str]:
        raise ValueError("no languages")

    async def check() -> None:
        assert await asyncio.gather(*(service.cached_list("list", make) for _ in range(5))) == [b'["de"]'] * 5
        assert len(calls) == 1
        with pytest.raises(ValueError, match="no languages"):
            await service.cached_list("other", fail)
        assert await service.cached_list("other", make) == b'["de"]'

    asyncio.run(check())


def test_a_job_has_the_share_of_the_queue_that_its_search_needs(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales: list[float] = []
    for search in (DecodingOptions(), LARGE):
        service = make_service({"model": searching(translator, search)})

        def add(*words: Any, jobs: BulkJobs = service.jobs) -> BulkJob:
            scales.append(words[-1])
            return BulkJobs.add(jobs, *words)

        monkeypatch.setattr(service.jobs, "add", add)
        body = {"text": [TEXT], "source": "de", "target": "en"}
        assert client_of(service).post("/api/v1/jobs", json=body).status_code == 201
    assert scales == [1, 4]


def with_settings(model: LanguageModel, **settings: Any) -> LanguageModel:
    bundle = replace(model.bundle, generation=GenerationOptions(**settings))
    return LanguageModel(bundle, device="cpu", precision="float32")


@pytest.fixture(scope="module")
def plain(make_language_model: Callable[..., LanguageModel]) -> LanguageModel:
    return make_language_model(max_length=64)


def test_a_language_model_generates_with_its_settings(plain: LanguageModel) -> None:
    settings = {"temperature": 0.3, "top_k": 5, "repetition_penalty": 1.5, "max_new_tokens": 7}
    model = with_settings(plain, **settings)
    assert model.generate("das ") == plain.generate("das ", **settings) != plain.generate("das ", max_new_tokens=7)
    assert "".join(model.stream("das ")) == model.generate("das ")[0].text
    assert model.generate("das ", temperature=1.0, top_k=2) == plain.generate(
        "das ", **settings | {"temperature": 1.0, "top_k": 2}
    )
    beam = with_settings(plain, temperature=0.0, beam_size=3, max_new_tokens=5)
    greedy = {"temperature": 0.0, "max_new_tokens": 5}
    assert beam.generate("das ") == plain.generate("das ", beam_size=3, **greedy)
    assert "".join(beam.stream("das ")) == plain.generate("das ", **greedy)[0].text  # a stream has no beam
    assert beam.generate("das ", temperature=0.5) == plain.generate("das ", temperature=0.5, max_new_tokens=5)
    with pytest.raises(ConfigError, match="n = 4: with temperature = 0 expected at most beam_size, which is 3"):
        beam.generate("das ", n=4)


def test_several_answers_of_openai_without_chance_are_those_of_a_beam(plain: LanguageModel) -> None:
    http = application({"model": with_settings(plain, temperature=0.0)})
    reply = http.post("/v1/completions", json={"prompt": "a", "n": 3, "max_tokens": 3})
    assert reply.status_code == 200
    assert len(reply.json()["choices"]) == 3


@pytest.mark.parametrize("filters", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.05}])
def test_a_filter_of_tokens_asks_for_draws_also_where_a_model_takes_the_best_token(
    filters: dict[str, float], plain: LanguageModel
) -> None:
    greedy = with_settings(plain, temperature=0.0, beam_size=2, max_new_tokens=12)
    drawn = plain.generate("das ", n=3, max_new_tokens=12, seed=5, **filters)
    assert greedy.generate("das ", n=3, seed=5, **filters) == drawn != greedy.generate("das ")
    assert greedy.generate("das ", temperature=0.0, **filters) == greedy.generate("das ")
    http = application({"model": greedy})
    body = {"prompt": "das ", "n": 3, "max_tokens": 12, "seed": 5, **filters}
    assert [choice["text"] for choice in http.post("/v1/completions", json=body).json()["choices"]] == [
        continuation.text for continuation in drawn
    ]


def test_filters_that_keep_all_tokens_ask_for_no_draws(plain: LanguageModel) -> None:
    greedy = with_settings(plain, temperature=0.0, max_new_tokens=12)
    assert greedy.generate("das ", top_p=1.0, min_p=0.0, top_k=None) == greedy.generate("das ")
    assert greedy.generate("das ", top_p="1.0") == greedy.generate("das ")  # as JSON may have it
    with pytest.raises(ConfigError, match="top_p"):
        greedy.generate("das ", top_p=2.0)


def test_a_filter_does_not_overrule_a_beam_that_is_asked_for(plain: LanguageModel) -> None:
    greedy = with_settings(plain, temperature=0.0, max_new_tokens=12)
    assert greedy.generate("das ", beam_size=2, top_p=0.9) == greedy.generate("das ", beam_size=2)


def test_every_api_generates_with_the_settings_of_the_model(plain: LanguageModel) -> None:
    model = with_settings(plain, temperature=0.0, max_new_tokens=6, repetition_penalty=2.0)
    http, (expected,) = application({"model": model}), model.generate("das Haus")
    reply = http.post("/api/v1/generate", json={"prompt": "das Haus"}).json()
    assert reply["continuations"][0][0]["text"] == expected.text
    assert http.get("/api/v1/models").json()[0]["generation"] == model.bundle.generation.explicit_options()
    body = {"model": "model", "prompt": "das Haus", "max_tokens": 6}
    assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == expected.text
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["das Haus"]}]
    outputs = http.post("/v2/models/model/infer", json={"inputs": inputs}).json()["outputs"]
    assert outputs[0]["data"] == [expected.text]
    refused = http.post("/api/v1/generate", json={"prompt": "das Haus", "options": {"n": 2}})
    assert refused.status_code == 400
    assert "n = 2" in refused.text
