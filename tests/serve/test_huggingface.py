"""Hugging Face's API, called by plain requests and by huggingface_hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError, HfHubHTTPError, OverloadedError, ValidationError
from in_process import RefusingOnce, application, key_config, listening, make_service, make_test_app
from starlette.testclient import TestClient

from headway.decode import DecodingOptions
from headway.predict import LanguageModel, Translator

pytest_plugins = ["small_model"]  # the fixtures of that file

TEXTS = ["Guten Morgen", "Grüße – 5 & 6?", "Zwei\nZeilen"]
KEYS = (key_config("one", "k1"), key_config("two", "k2", requests_per_minute=1))
WRITING: dict[str, Any] = {"max_new_tokens": 9, "temperature": 1.5, "top_p": 0.9, "seed": 3}
PROMPT = "ein"
REFUSED_PARAMETERS: tuple[dict[str, Any], ...] = (
    {"adapter_id": "a"}, {"decoder_input_details": True}, {"frequency_penalty": 1}, {"grammar": {}},
    {"top_n_tokens": 2}, {"truncate": 5}, {"typical_p": 0.5}, {"watermark": True}, {"stop": [""]},
)  # fmt: skip


@pytest.fixture(scope="module")
def http(models: dict[str, Any]) -> TestClient:
    return application(models)


@pytest.fixture(scope="module")
def url(models: dict[str, Any]) -> Iterator[str]:
    with listening(make_test_app(make_service(models, keys=KEYS))) as found:
        yield found


@pytest.fixture(scope="module")
def writer(models: dict[str, Any]) -> LanguageModel:
    found: LanguageModel = models["writer"]
    return found


def client(url: str, model: str | None = None, key: str = "k1") -> Any:
    return InferenceClient(model=url if model is None else f"{url}/models/{model}", token=key)


# Plain requests.


@pytest.mark.parametrize("path", ["/", "/models/model", "/huggingface", "/huggingface/", "/huggingface/models/model"])
def test_one_text_and_a_list(http: TestClient, models: dict[str, Any], path: str) -> None:
    expected = [{"translation_text": each.text} for each in models["model"].translate(TEXTS)]
    assert http.post(path, json={"inputs": TEXTS[0]}).json() == expected[:1]
    body = {"inputs": TEXTS, "parameters": {"src_lang": "en", "tgt_lang": None}, "options": {"wait_for_model": True}}
    assert http.post(path, json=body).json() == expected


def test_lists_for_every_kind_of_model(http: TestClient, models: dict[str, Any]) -> None:
    texts = ["das rote Haus", "ein Baum"]
    parameters: dict[str, Any] = {}

    def answers(model: str, inputs: Any) -> Any:
        return http.post(f"/models/{model}", json={"inputs": inputs, "parameters": parameters}).json()

    parameters = {"max_new_tokens": 5}
    written = [own[0].text for own in models["writer"].generate(list(texts), max_new_tokens=5, temperature=0)]
    assert answers("writer", texts) == [[{"generated_text": text}] for text in written]
    parameters = {"top_k": 2}
    labels = [
        [{"label": name, "score": score} for name, score in sorted(each.probabilities.items(), key=lambda x: -x[1])[:2]]
        for each in models["labeler"].classify(texts)
    ]
    assert answers("labeler", texts) == labels
    masked = [f"{text} [MASK]" for text in texts]
    filled = answers("filler", masked)
    assert [[each["sequence"] for each in own] for own in filled] == [
        [each.text for each in models["filler"].fill(text, top=2)] for text in masked
    ]
    assert answers("filler", masked[0]) == filled[0]


def test_endpoints_are_described(http: TestClient) -> None:
    assert http.get("/info").json()["model_pipeline_tag"] == "translation"
    found = http.get("/models/writer/info").json()
    assert (found["model_id"], found["model_pipeline_tag"], found["max_total_tokens"]) == (
        "writer", "text-generation", 64
    )  # fmt: skip
    assert http.get("/models/writer/health").status_code == 200
    assert http.get("/models/other/info").status_code == 404


@pytest.mark.parametrize(
    ("model", "body", "status"),
    [
        ("other", {"inputs": "a"}, 404),
        ("model", {}, 400),
        ("model", {"inputs": []}, 400),
        ("model", {"inputs": [5]}, 400),
        ("model", {"inputs": "a", "other": 1}, 400),
        ("model", {"inputs": "a", "parameters": {"other": 1}}, 400),
        ("model", {"inputs": "a", "parameters": {"src_lang": "en", "tgt_lang": "zz"}}, 400),
        ("model", {"inputs": "a", "parameters": {"generate_parameters": {"do_sample": True}}}, 400),
        ("model", {"inputs": "a", "parameters": {"generate_parameters": {"num_beams": 10**6}}}, 413),
        ("model", {"inputs": "a", "stream": True}, 400),
        ("model", {"inputs": "\ud800"}, 400),
        ("model", {"inputs": "a" * 100_001}, 413),
        ("model", {"inputs": ["a"] * 1025}, 413),
        ("labeler", {"inputs": " "}, 400),
        ("labeler", {"inputs": "a", "parameters": {"function_to_apply": "none"}}, 400),
        ("filler", {"inputs": "a"}, 400),
        ("filler", {"inputs": "[MASK] [MASK]"}, 400),
        ("filler", {"inputs": "[MASK]", "parameters": {"targets": []}}, 400),
        ("filler", {"inputs": "[MASK]", "parameters": {"targets": [" "]}}, 400),
        ("writer", {"inputs": "a " * 99}, 400),
        ("writer", {"inputs": "a " * 99, "stream": True}, 400),
        ("writer", {"inputs": ["a"], "stream": True}, 400),
        ("writer", {"inputs": "a", "parameters": {"best_of": 2, "do_sample": True}, "stream": True}, 400),
        ("writer", {"inputs": "a", "parameters": {"best_of": 2}}, 400),
        ("writer", {"inputs": "a", "parameters": {"best_of": 1000, "do_sample": True}}, 413),
        ("writer", {"inputs": "a", "parameters": {"max_new_tokens": 10**9}}, 413),
        ("writer", {"inputs": "a", "parameters": {"temperature": 0}}, 400),
        *(("writer", {"inputs": "a", "parameters": parameter}, 400) for parameter in REFUSED_PARAMETERS),
    ],
)  # fmt: skip
def test_errors(http: TestClient, model: str, body: Any, status: int) -> None:
    reply = http.post(f"/models/{model}", content=json.dumps(body))
    assert reply.status_code == status
    assert set(reply.json()) == {"error", "error_type"}
    assert isinstance(reply.json()["error"], str)


# The client.


@pytest.mark.parametrize("prefix", ["", "/huggingface"])
def test_the_client_translates(url: str, models: dict[str, Any], prefix: str) -> None:
    own, translator = client(url + prefix), models["model"]
    assert own.translation(TEXTS[0]).translation_text == translator.translate(TEXTS[0]).text
    found = own.translation(
        TEXTS[1], src_lang="en", tgt_lang="de_DE", clean_up_tokenization_spaces=True, truncation="only_first",
        generate_parameters={"num_beams": 2, "max_new_tokens": 3, "length_penalty": 1.0},
    )  # fmt: skip
    options = DecodingOptions(beam_size=2, max_length=3, length_penalty=1.0, normalization="average")
    assert found.translation_text == translator.translate(TEXTS[1], options).text
    assert client(url + prefix, "model").translation(TEXTS[2]) == own.translation(TEXTS[2])


def test_the_client_classifies(url: str, models: dict[str, Any]) -> None:
    expected = models["labeler"].classify("das rote Haus")
    found = client(url, "labeler").text_classification("das rote Haus", function_to_apply="softmax")
    assert {each.label: each.score for each in found} == expected.probabilities
    assert found[0].label == expected.label
    (best,) = client(url, "labeler").text_classification("das rote Haus", top_k=1)
    assert best == found[0]


def test_the_client_fills_masks(url: str, models: dict[str, Any]) -> None:
    text, filler = "das [MASK] Haus", models["filler"]
    for found, expected in (
        (client(url, "filler").fill_mask(text), filler.fill(text)),
        (
            client(url, "filler").fill_mask(text, targets=["rote", "Baum"], top_k=1),
            filler.fill(text, 1, ["rote", "Baum"]),
        ),
    ):
        assert [(each.score, each.sequence, each.token, each.token_str) for each in found] == [
            (each.probability, each.text, each.ids[0], each.words[0]) for each in expected
        ]
        assert all(filler.bundle.tokenizer.decode(each.ids).strip() == each.words[0] for each in expected)


def test_the_client_generates(url: str, writer: LanguageModel) -> None:
    own = client(url, "writer")
    greedy = writer.generate(PROMPT, max_new_tokens=7, temperature=0)[0].text
    assert own.text_generation(PROMPT, max_new_tokens=7) == greedy
    assert own.text_generation(PROMPT, max_new_tokens=7, return_full_text=True) == PROMPT + greedy
    (drawn,) = writer.generate(PROMPT, repetition_penalty=1.2, top_k=9, **WRITING)
    assert own.text_generation(PROMPT, do_sample=True, repetition_penalty=1.2, top_k=9, **WRITING) == drawn.text
    whole = writer.generate(PROMPT, **WRITING)[0].text
    assert own.text_generation(PROMPT, stop=[whole[3:5]], **WRITING) == whole[: whole.index(whole[3:5])]
    unseeded = {own.text_generation(PROMPT, do_sample=True, temperature=9.0, max_new_tokens=9) for _ in range(3)}
    assert len(unseeded) == 3


def test_equal_texts_are_drawn_one_by_one_unless_there_is_a_seed(url: str) -> None:
    parameters = {"do_sample": True, "temperature": 9.0, "max_new_tokens": 9, "details": True}

    def texts(**more: Any) -> list[Any]:
        body = {"inputs": [PROMPT] * 3, "parameters": {**parameters, **more}}
        reply = httpx.post(f"{url}/models/writer", json=body, headers={"authorization": "Bearer k1"})
        assert reply.status_code == 200
        return [answer for (answer,) in reply.json()]

    drawn = texts()
    assert len({answer["generated_text"] for answer in drawn}) == 3
    again = texts(seed=drawn[2]["details"]["seed"])
    assert {answer["generated_text"] for answer in again} == {drawn[2]["generated_text"]}


def test_the_client_gets_details(url: str, writer: LanguageModel) -> None:
    found = client(url, "writer").text_generation(PROMPT, details=True, best_of=3, **WRITING)
    several = writer.generate(PROMPT, n=3, **WRITING)
    several.sort(key=lambda each: -sum(each.token_log_probabilities) / len(each.ids))
    assert found.details is not None
    assert found.details.best_of_sequences is not None
    assert found.generated_text == several[0].text
    assert [each.generated_text for each in found.details.best_of_sequences] == [each.text for each in several[1:]]
    for details, expected in zip([found.details, *found.details.best_of_sequences], several, strict=True):
        assert [each.id for each in details.tokens] == list(expected.ids)
        assert [each.logprob for each in details.tokens] == pytest.approx(expected.token_log_probabilities, abs=1e-4)
        assert details.finish_reason == {"length": "length", "end": "eos_token"}[expected.finish_reason]
        assert (details.generated_tokens, details.seed) == (len(expected.ids), 3)


def test_the_client_streams(url: str, writer: LanguageModel) -> None:
    own = client(url, "writer")
    (expected,) = writer.generate(PROMPT, **WRITING)
    parts = list(own.text_generation(PROMPT, stream=True, **WRITING))
    assert "".join(parts) == expected.text
    *events, last = own.text_generation(PROMPT, stream=True, details=True, return_full_text=True, **WRITING)
    assert [each.index for each in [*events, last]] == list(range(1, len(parts) + 1))
    assert [each.token.id for each in [*events, last]] == list(expected.ids)
    assert [each.token.logprob for each in [*events, last]] == pytest.approx(expected.token_log_probabilities, abs=1e-4)
    assert "".join(each.token.text for each in [*events, last]) == expected.text
    assert {each.generated_text for each in events} == {None}
    assert last.generated_text == PROMPT + expected.text
    assert last.details is not None
    assert last.details.generated_tokens == len(expected.ids)
    assert last.details.input_length == writer.decode_prompt(PROMPT)[1]
    assert (last.details.finish_reason, last.details.seed) == ("length", 3)


def test_the_client_chats_with_a_model_that_it_names(url: str, writer: LanguageModel) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    found = client(url).chat_completion(messages, model="writer", max_tokens=8, temperature=0)
    assert found.choices[0].message.content == writer.generate(PROMPT, max_new_tokens=8, temperature=0)[0].text


def test_parameters_of_another_task_name_the_models_that_have_them(url: str, translator: Translator) -> None:
    message = (
        "top_k: a parameter for text-classification or .*, but the model model is for translation; use the path .*"
    )
    with pytest.raises(BadRequestError, match=message + "labeler"):
        client(url).text_classification("a", top_k=1)
    http = application({"model": translator})
    reply = http.post("/", json={"inputs": "a", "parameters": {"function_to_apply": "softmax", "top_k": 1}})
    expected = "a parameter for text-classification, but the model model is for translation; no loaded model is for"
    assert reply.status_code == 400
    assert f"{expected} text-classification" in reply.json()["error"]


def test_errors_are_exceptions_of_the_client(url: str) -> None:
    with pytest.raises(BadRequestError, match="zz is not supported"):
        client(url).translation("a", src_lang="en", tgt_lang="zz")
    with pytest.raises(HfHubHTTPError, match="Invalid API key") as caught:
        client(url, key="wrong").translation("a")
    assert caught.value.response.status_code == 401
    with pytest.raises(HfHubHTTPError, match="There is no model other") as caught:
        client(url, "other").translation("a")
    assert caught.value.response.status_code == 404
    writer = client(url, "writer")
    for stream in (False, True):
        with pytest.raises(ValidationError, match=r"less than 64 tokens, the model's context. Given: \d+$"):
            writer.text_generation("ein " * 99, stream=stream)
        with pytest.raises(ValidationError, match="grammar"):
            writer.text_generation("ein", grammar={"type": "json", "value": {}}, stream=stream)


def test_a_limit_and_a_request_after_it(models: dict[str, Any]) -> None:
    """This client leaves it to its caller to send a request again."""
    service = make_service(models, keys=KEYS)
    with listening(make_test_app(service)) as url:
        limited = client(url, key="k2")
        limited.translation("a")
        with pytest.raises(HfHubHTTPError, match="Too Many Requests") as caught:
            limited.translation("a")
        assert caught.value.response.status_code == 429
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
        with RefusingOnce(service):
            with pytest.raises(OverloadedError, match="busy"):
                client(url, "writer").text_generation("ein")
            assert client(url, "writer").text_generation("ein", max_new_tokens=2) is not None
