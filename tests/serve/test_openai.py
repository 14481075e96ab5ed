"""The API of OpenAI, called by its own client: replies equal those of the Python objects."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from running_clients import HERE, call, install_node
from running_service import RunningService, running, unpack_model

from headway.predict import LanguageModel, Translator, load_language_model, load_translator

KEY, OTHER_KEY, NODE_KEY = "0123456789abcdef", "fedcba9876543210", "00112233445566"
WRITER = "writer"  # the name of the language model; the other one is called "model"


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, make_language_model: Callable[..., LanguageModel]
) -> tuple[Path, Path]:
    """A language model and a translation model, which were never trained."""
    folder = tmp_path_factory.mktemp("served")
    make_language_model(max_length=64).bundle.save(folder / WRITER, "A test.")
    return folder / WRITER, unpack_model(folder)


@pytest.fixture(scope="module")
def service(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    config = tmp_path_factory.mktemp("config") / "serve.toml"
    lines = ["[limits]", "texts = 100", "characters = 2000"]
    lines += [f'[[models]]\npath = "{folder}"\nprecision = "float32"' for folder in folders]
    limited = "requests_per_minute = 2"
    for name, key, rate in (("one", KEY, ""), ("two", OTHER_KEY, limited), ("three", NODE_KEY, limited)):
        lines += ["[[keys]]", f'name = "{name}"', f'sha256 = "{sha256(key.encode()).hexdigest()}"', rate]
    config.write_text("\n".join(lines))
    with running(["--config", str(config), "--workers", "1"]) as found:
        yield found


@pytest.fixture(scope="module")
def writer(folders: tuple[Path, Path]) -> LanguageModel:
    return load_language_model(folders[0], precision="float32")


@pytest.fixture(scope="module")
def translator(folders: tuple[Path, Path]) -> Translator:
    return load_translator(folders[1], precision="float32")


@pytest.fixture
def client(service: RunningService) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=KEY, base_url=f"{service.url}/v1", max_retries=0) as found:
        yield found


OPTIONS: dict[str, Any] = {"temperature": 1.5, "top_p": 0.9, "seed": 3}


def test_models(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == [WRITER, "model"]
    assert client.models.retrieve(WRITER).owned_by == "headway"
    with pytest.raises(openai.NotFoundError, match="There is no model gpt-9"):
        client.models.retrieve("gpt-9")


def test_completions_of_a_list_of_prompts(client: openai.OpenAI, writer: LanguageModel) -> None:
    prompts = ["ein", "zwei rote", "", "ein"]
    found = client.completions.create(model=WRITER, prompt=prompts, max_tokens=9, n=2, **OPTIONS)
    expected = writer.generate(list(prompts), max_new_tokens=9, n=2, **OPTIONS)
    assert [each.text for each in found.choices] == [one.text for own in expected for one in own]
    assert [each.index for each in found.choices] == list(range(8))
    assert {each.finish_reason for each in found.choices} <= {"length", "stop"}
    assert found.usage is not None
    assert found.usage.completion_tokens == sum(len(one.ids) for own in expected for one in own)
    assert found.usage.prompt_tokens == sum(writer.decode_prompt(prompt)[1] for prompt in prompts)


def test_stop_strings_seeds_and_greedy(client: openai.OpenAI, writer: LanguageModel) -> None:
    whole = writer.generate("ein", max_new_tokens=12, **OPTIONS)[0].text
    stop = whole[3:5]
    found = client.completions.create(model=WRITER, prompt="ein", max_tokens=12, stop=stop, **OPTIONS).choices[0]
    assert (found.text, found.finish_reason) == (whole[: whole.index(stop)], "stop")
    greedy = client.completions.create(model=WRITER, prompt="ein", max_tokens=5, temperature=0).choices[0].text
    assert greedy == writer.generate("ein", max_new_tokens=5, temperature=0)[0].text
    drawn = {client.completions.create(model=WRITER, prompt="ein", temperature=9).choices[0].text for _ in range(3)}
    assert len(drawn) == 3  # without a seed


def test_equal_prompts_are_drawn_one_by_one_unless_there_is_a_seed(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {"model": WRITER, "prompt": ["ein"] * 4, "max_tokens": 12, "temperature": 1.5}
    assert len({choice.text for choice in client.completions.create(**arguments).choices}) == 4
    assert len({choice.text for choice in client.completions.create(**arguments, seed=5).choices}) == 1


def test_a_prompt_beyond_the_context_is_refused_before_a_stream_begins(client: openai.OpenAI) -> None:
    text = "ein " * 100
    requests: dict[str, list[Callable[[], Any]]] = {
        "prompt": [
            lambda: client.completions.create(model=WRITER, prompt=text),
            lambda: client.completions.create(model=WRITER, prompt=text, stream=True),
            lambda: client.completions.create(model=WRITER, prompt=text, stream=True, echo=True),
            lambda: client.completions.create(model=WRITER, prompt=["ein", text], stream=True, n=2),
            lambda: client.completions.create(model=WRITER, prompt=text, max_tokens=0, echo=True, logprobs=1),
        ],
        "messages": [
            lambda: client.chat.completions.create(model=WRITER, messages=[{"role": "user", "content": text}]),
            lambda: client.chat.completions.create(
                model=WRITER, messages=[{"role": "user", "content": text}], stream=True
            ),
        ],
    }
    for field, calls in requests.items():
        for number, create in enumerate(calls):
            with pytest.raises(openai.BadRequestError) as caught:
                create()
            error = caught.value
            assert (error.status_code, error.code, error.param) == (400, "context_length_exceeded", field)
            assert "beyond_context" not in error.message
            if number < 4:
                assert "This model's maximum context length is 64 tokens. However, your" in error.message


def test_log_probabilities_of_translations(client: openai.OpenAI, translator: Translator) -> None:
    for text in ("Ein Hund läuft.", "Ein Hund läuft.\n\nZwei Hunde laufen. Ein Hund läuft."):
        expected = translator.translate(text).candidates[0]
        # Each part of a text has an EOS, which is no token of the reply.
        lengths, log_probs = expected.part_lengths or (len(expected.tokens),), list(expected.token_log_probabilities)
        for end in np.cumsum(lengths):
            del log_probs[end]
        messages: list[Any] = [{"role": "user", "content": text}]
        arguments: dict[str, Any] = {"model": "model", "messages": messages, "logprobs": True}
        whole = client.chat.completions.create(**arguments).choices[0].logprobs
        (streamed,) = [chunk.choices[0].logprobs for chunk in client.chat.completions.create(stream=True, **arguments)]
        for logprobs in (whole, streamed):
            assert logprobs is not None
            assert [token.token for token in logprobs.content or ()] == list(expected.tokens)
            assert [token.logprob for token in logprobs.content or ()] == pytest.approx(log_probs, abs=1e-4)
        arguments = {"model": "model", "prompt": text, "logprobs": 0}
        completed = client.completions.create(**arguments).choices[0].logprobs
        (chunk,) = client.completions.create(stream=True, **arguments)
        for completion in (completed, chunk.choices[0].logprobs):
            assert completion is not None
            assert completion.tokens == list(expected.tokens)
            assert completion.token_logprobs == pytest.approx(log_probs, abs=1e-4)
    with pytest.raises(openai.BadRequestError, match="top_logprobs: only 0 is supported for a translation model"):
        client.chat.completions.create(model="model", messages=messages, logprobs=True, top_logprobs=2)
    with pytest.raises(openai.BadRequestError, match="logprobs: only 0 is supported for a translation model"):
        client.completions.create(model="model", prompt="Ein Hund", logprobs=2)


def test_streams_join_to_the_reply_without_streaming(client: openai.OpenAI, writer: LanguageModel) -> None:
    chunks = list(
        client.completions.create(
            model=WRITER, prompt="ein", max_tokens=20, echo=True, stream=True,
            stream_options={"include_usage": True}, **OPTIONS,
        )
    )  # fmt: skip
    *parts, end, last = chunks
    assert (
        "".join(each.choices[0].text for each in parts)
        == "ein" + writer.generate("ein", max_new_tokens=20, **OPTIONS)[0].text
    )
    assert len(parts) > 3
    assert end.choices[0].finish_reason in ("length", "stop")
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens


def test_log_probabilities_are_those_of_score(client: openai.OpenAI, writer: LanguageModel) -> None:
    text = "zwei rote Haus"
    found = client.completions.create(model=WRITER, prompt=text, max_tokens=0, echo=True, logprobs=3).choices[0]
    (score,) = writer.score([text])
    assert found.text == text
    assert found.logprobs is not None
    assert found.logprobs.token_logprobs == pytest.approx(score.token_log_probabilities, abs=1e-4)
    assert found.logprobs.tokens == list(score.tokens)
    offsets, tokens = found.logprobs.text_offset, found.logprobs.tokens
    assert offsets is not None
    assert all(text[at:].startswith(token) for at, token in zip(offsets, tokens or (), strict=True))
    assert all(len(each) == 3 for each in found.logprobs.top_logprobs or ())
    new = client.completions.create(model=WRITER, prompt=text, max_tokens=4, temperature=0, logprobs=1).choices[0]
    (expected,) = writer.generate(text, max_new_tokens=4, temperature=0)
    assert new.logprobs is not None
    assert new.logprobs.token_logprobs == pytest.approx(expected.token_log_probabilities, abs=1e-4)
    assert [max(each, key=each.__getitem__) for each in new.logprobs.top_logprobs or ()] == new.logprobs.tokens


def test_token_ids_as_evaluation_harnesses_send_them(client: openai.OpenAI, writer: LanguageModel) -> None:
    text = "zwei rote Haus"
    ids = writer.bundle.tokenizer.encode(text)
    arguments: dict[str, Any] = {"model": WRITER, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    (found,) = client.completions.create(prompt=[[1, *ids]], **arguments).choices
    assert found.logprobs is not None
    assert found.logprobs.token_logprobs is not None
    first, *others = found.logprobs.token_logprobs[:-1]  # the last one is that of the new token
    assert first is None
    assert others == pytest.approx(writer.score([text])[0].token_log_probabilities, abs=1e-4)
    assert found.text.startswith(text)
    with pytest.raises(openai.BadRequestError, match="no token has the id 100000"):
        client.completions.create(prompt=[100_000], **arguments)


def test_chat(client: openai.OpenAI, writer: LanguageModel) -> None:
    messages: Any = [
        {"role": "system", "content": "ein"},
        {"role": "user", "content": [{"type": "text", "text": "zwei"}]},
    ]
    expected = writer.generate("ein\nzwei", max_new_tokens=8, **OPTIONS)[0]
    create = client.chat.completions.create
    found = create(
        model=WRITER, messages=messages, max_completion_tokens=8, logprobs=True, top_logprobs=2, **OPTIONS
    ).choices[0]
    assert found.message.content == expected.text
    assert found.logprobs is not None
    values = [each.logprob for each in found.logprobs.content or ()]
    assert values == pytest.approx(expected.token_log_probabilities, abs=1e-4)
    parts = list(create(model=WRITER, messages=messages, max_tokens=8, stream=True, **OPTIONS))
    assert "".join(each.choices[0].delta.content or "" for each in parts) == expected.text
    assert parts[0].choices[0].delta.role == "assistant"


def test_a_translation_model_translates_the_last_message_of_the_user(
    client: openai.OpenAI, translator: Translator
) -> None:
    messages: Any = [
        {"role": "user", "content": "Hallo"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Ein Hund läuft."},
    ]
    expected = translator.translate("Ein Hund läuft.").text
    found = client.chat.completions.create(model="model", messages=messages, temperature=0.3)
    assert found.choices[0].message.content == expected
    parts = client.chat.completions.create(model="model", messages=messages, stream=True)
    assert "".join(each.choices[0].delta.content or "" for each in parts if each.choices) == expected
    assert client.completions.create(model="model", prompt="Ein Hund läuft.").choices[0].text == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "a", "frequency_penalty": 1.0}, "frequency_penalty"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias"),
        ({"prompt": "ein " * 100}, "context"),
        ({"prompt": "x" * 2001}, "2,001 characters"),
        ({"prompt": ["a"] * 101}, "101 texts"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
    ],
)
def test_what_cannot_be_served_is_refused(client: openai.OpenAI, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.APIStatusError, match=message) as caught:
        client.completions.create(model=WRITER, **fields)
    assert caught.value.status_code in (400, 413)
    assert caught.value.body is not None


def test_messages_without_any(service: RunningService) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    bodies: list[Any] = [
        {"messages": []},
        {"messages": [{"role": "system", "content": "a"}], "model": "model"},
        {},
        [1],
        "a",
    ]
    for body in bodies:
        reply = httpx.post(f"{service.url}/v1/chat/completions", json=body, headers=headers)
        assert reply.status_code == 400
        assert reply.json()["error"]["type"] == "invalid_request_error"
    reply = httpx.get(f"{service.url}/v1/nothing", headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


def test_keys_and_rates(service: RunningService) -> None:
    wrong = openai.OpenAI(api_key="wrong", base_url=f"{service.url}/v1")
    with pytest.raises(openai.AuthenticationError):
        wrong.completions.create(model=WRITER, prompt="a")
    limited = openai.OpenAI(api_key=OTHER_KEY, base_url=f"{service.url}/v1", max_retries=0)
    for _ in range(2):
        limited.completions.create(model=WRITER, prompt="a", max_tokens=1)
    with pytest.raises(openai.RateLimitError) as caught:
        limited.completions.create(model=WRITER, prompt="a", max_tokens=1)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60


def test_native_events(service: RunningService, writer: LanguageModel, translator: Translator) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    body = {"prompt": "ein", "options": {"max_new_tokens": 20, **OPTIONS}, "stream": True}
    reply = httpx.post(f"{service.url}/api/v1/generate", json=body, headers=headers)
    *parts, last = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n") if line]
    (expected,) = writer.generate("ein", max_new_tokens=20, **OPTIONS)
    assert "".join(each["text"] for each in parts) == expected.text
    assert last["continuation"]["ids"] == list(expected.ids)
    texts = ["Ein Hund", "Zwei Hunde laufen", ""]
    body = {"text": texts, "source": "en", "target": "de", "stream": True}
    reply = httpx.post(f"{service.url}/api/v1/translate", json=body, headers=headers)
    events = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n") if line]
    found = {each["index"]: each["translation"]["text"] for each in events}
    assert [found[at] for at in range(3)] == [each.text for each in translator.translate(texts)]
    bad = httpx.post(f"{service.url}/api/v1/generate", json={"prompt": "ein " * 90, "stream": True}, headers=headers)
    assert bad.status_code == 400
    assert "context" in bad.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node.js")
def test_the_client_for_node(
    service: RunningService, writer: LanguageModel, translator: Translator, tmp_path: Path
) -> None:
    install_node(tmp_path, "openai@7.57.0")
    script = shutil.copy(HERE / "openai_clients.mjs", tmp_path)
    found = call("node", str(script), service.url, KEY, NODE_KEY, WRITER)
    assert found["models"] == [WRITER, "model"]
    assert found["model"] == "headway"
    expected = writer.generate(["ein", "zwei rote"], max_new_tokens=12, n=2, **OPTIONS)
    assert found["texts"] == [one.text for own in expected for one in own]
    assert found["usage"] == sum(len(one.ids) for own in expected for one in own)
    whole = writer.generate("ein", max_new_tokens=12, **OPTIONS)[0].text
    assert found["stopped"] == whole.partition("a")[0]
    assert found["streamed"]["text"] == whole
    assert found["streamed"]["chunks"] > 3
    assert found["logprobs"] == pytest.approx(writer.score(["zwei rote"])[0].token_log_probabilities, abs=1e-4)
    translation = translator.translate("Ein Hund läuft.").text
    assert found["chat"] == found["chatStream"]["text"] == translation
    assert found["left"] == "text_completion"
    assert found["unknown"] == "NotFoundError: 404 There is no model gpt-9"
    assert found["empty"].startswith("BadRequestError: 400 ")
    assert found["wrongKey"].startswith("AuthenticationError: 401 ")
    assert found["limited"]["name"] == "RateLimitError"
    assert 1 <= found["limited"]["retryAfter"] <= 60
