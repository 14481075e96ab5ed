"""The Open Inference Protocol, called by plain requests and by the client of Triton."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from in_process import RefusingOnce, application, key_config, listening, make_service, make_test_app
from starlette.testclient import TestClient
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

pytest_plugins = ["small_model"]  # the fixtures of that file

TEXTS = ["Guten Morgen", "Grüße – 5 & 6?", "Zwei\nZeilen"]
KEYS = (key_config("one", "k1"), key_config("two", "k2", requests_per_minute=1))
INFER = "/v2/models/model/infer"
WRITING = {"max_new_tokens": 8, "temperature": 1.5, "seed": 3}


def tensor(data: Any = "a", shape: Any = (1,), **more: Any) -> dict[str, Any]:
    data = [data] if isinstance(data, str) else data
    return {"name": "text", "datatype": "BYTES", "shape": shape, "data": data} | more


@pytest.fixture(scope="module")
def http(models: dict[str, Any]) -> TestClient:
    return application(models)


@pytest.fixture(scope="module")
def url(models: dict[str, Any]) -> Iterator[str]:
    with listening(make_test_app(make_service(models, keys=KEYS))) as found:
        yield found


@pytest.fixture
def client(url: str) -> Iterator[Callable[..., InferenceServerClient]]:
    """A function that makes clients."""
    made = []

    def make(prefix: str = "", **settings: Any) -> InferenceServerClient:
        made.append(InferenceServerClient(url.removeprefix("http://") + prefix, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


HEADERS = {"Authorization": "Bearer k1"}


def infer(
    client: InferenceServerClient, texts: list[str], model: str = "model", *, binary: bool = True, **more: Any
) -> Any:
    given = InferInput("text", [len(texts)], "BYTES")
    given.set_data_from_numpy(np.array(texts, dtype=np.object_), binary_data=binary)
    return client.infer(model, [given], **{"headers": dict(HEADERS)} | more)


def strings(array: Any) -> Any:
    """Return nested lists of the texts in an array, whose elements are bytes if they were sent as such."""
    return [
        strings(each) if isinstance(each, np.ndarray) else each.decode() if isinstance(each, bytes) else each
        for each in array
    ]


# Plain requests.


@pytest.mark.parametrize("prefix", ["", "/open-inference"])
def test_the_server_and_its_models_are_described(http: TestClient, prefix: str) -> None:
    assert http.get(f"{prefix}/v2/health/live").json() == {"live": True}
    assert http.get(f"{prefix}/v2/health/ready").json() == {"ready": True}
    server = http.get(f"{prefix}/v2").json()
    assert (server["name"], server["extensions"]) == ("headway", ["binary_tensor_data", "classification"])
    for path in ("/v2/models/labeler", "/v2/models/labeler/versions/1"):
        found = http.get(prefix + path).json()
        assert found["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        assert [(each["name"], each["datatype"], each["shape"]) for each in found["outputs"]] == [
            ("label", "BYTES", [-1]), ("probability", "FP32", [-1]), ("probabilities", "FP32", [-1, -1])
        ]  # fmt: skip
        assert http.get(f"{prefix}{path}/ready").json() == {"name": "labeler", "ready": True}


def test_tensors_of_any_shape(http: TestClient, models: dict[str, Any]) -> None:
    expected = [each.text for each in models["model"].translate(TEXTS)]
    for shape, data in ([3], TEXTS), ([3, 1], [[text] for text in TEXTS]), ([1, 3], [TEXTS]), ([3, 1], TEXTS):
        parameters = {"content_type": "str"}  # of MLServer's clients
        found = http.post(INFER, json={"id": "7", "inputs": [tensor(data, shape)], "parameters": parameters}).json()
        assert found == {
            "model_name": "model",
            "model_version": "1",
            "id": "7",
            "outputs": [{"name": "translation", "datatype": "BYTES", "shape": shape, "data": expected}],
        }


def test_every_kind_of_model(http: TestClient, models: dict[str, Any]) -> None:
    def outputs(model: str, text: str, **parameters: Any) -> dict[str, Any]:
        body = {"inputs": [tensor(text)], "parameters": parameters}
        found = http.post(f"/v2/models/{model}/infer", json=body).json()["outputs"]
        return {each["name"]: (each["shape"], each["data"]) for each in found}

    (written,) = models["writer"].generate("ein", **WRITING)
    assert outputs("writer", "ein", **WRITING) == {
        "continuation": ([1], [written.text]), "finish_reason": ([1], [written.finish_reason])
    }  # fmt: skip
    label = models["labeler"].classify("das rote Haus")
    assert outputs("labeler", "das rote Haus") == {
        "label": ([1], [label.label]),
        "probability": ([1], [label.probability]),
        "probabilities": ([1, 3], [label.probabilities[each] for each in models["labeler"].labels]),
    }
    fillings = models["filler"].fill("das [MASK] Haus", top=3)
    assert outputs("filler", "das [MASK] Haus", top=3) == {
        "filled": ([1, 3], [each.text for each in fillings]),
        "probability": ([1, 3], [each.probability for each in fillings]),
    }


def test_compressed_bodies(http: TestClient) -> None:
    body = json.dumps({"inputs": [tensor()]}).encode()
    plain = http.post(INFER, content=body).json()

    def status(content: bytes, encoding: str = "gzip") -> int:
        return http.post(INFER, content=content, headers={"content-encoding": encoding}).status_code

    assert http.post(INFER, content=gzip.compress(body), headers={"content-encoding": "gzip"}).json() == plain
    assert [status(gzip.compress(body)[:-9]), status(b"x"), status(body, "br")] == [400] * 3
    assert status(gzip.compress(b" " * (5 << 20))) == 413


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v2/models/other/infer", {"inputs": [tensor()]}, 404),
        ("/v2/models/model/versions/2/infer", {"inputs": [tensor()]}, 404),
        ("/v2/models/model/stats", {}, 405),
        ("/v2/repository/index", {}, 404),
        ("/v2/systemsharedmemory/region/a/register", {}, 404),
        (INFER, {}, 400),
        (INFER, [], 400),
        (INFER, {"inputs": []}, 400),
        (INFER, {"inputs": [tensor(), tensor()]}, 400),
        (INFER, {"inputs": [tensor(name="other")]}, 400),
        (INFER, {"inputs": [tensor(datatype="FP32")]}, 400),
        (INFER, {"inputs": [tensor(shape=[2])]}, 400),
        (INFER, {"inputs": [tensor(shape=[])]}, 400),
        (INFER, {"inputs": [tensor(shape=[-1])]}, 400),
        (INFER, {"inputs": [tensor([], [0])]}, 400),
        (INFER, {"inputs": [tensor(5)]}, 400),
        (INFER, {"inputs": [tensor([5])]}, 400),
        (INFER, {"inputs": [tensor([["a"], "bc"], [2])]}, 400),
        (INFER, {"inputs": [tensor(parameters={"binary_data_size": 5})]}, 400),
        (INFER, {"inputs": [tensor(parameters={"shared_memory_region": "a"})]}, 400),
        (INFER, {"inputs": [tensor()], "outputs": [{"name": "other"}]}, 400),
        (INFER, {"inputs": [tensor()], "outputs": [{"name": "translation", "parameters": {"classification": 1}}]}, 400),
        (INFER, {"inputs": [tensor()], "parameters": {"target_language": "zz"}}, 400),
        (INFER, {"inputs": [tensor()], "parameters": {"markup": "other"}}, 400),
        (INFER, {"inputs": [tensor()], "parameters": {"other": 1}}, 400),
        (INFER, {"inputs": [tensor("\ud800")]}, 400),
        (INFER, {"inputs": [tensor("a" * 100_001)]}, 413),
        (INFER, {"inputs": [tensor(["a"] * 1025, [1025])]}, 413),
        ("/v2/models/writer/infer", {"inputs": [tensor("ein " * 99)]}, 400),
        ("/v2/models/writer/infer", {"inputs": [tensor()], "parameters": {"other": 1}}, 400),
        ("/v2/models/writer/infer", {"inputs": [tensor()], "parameters": {"n": 2}}, 400),
        ("/v2/models/writer/infer", {"inputs": [tensor()], "parameters": {"max_new_tokens": 10**9}}, 413),
        ("/v2/models/filler/infer", {"inputs": [tensor()]}, 400),
        ("/v2/models/filler/infer", {"inputs": [tensor("[MASK]")], "parameters": {"top": 0}}, 400),
        ("/v2/models/labeler/infer", {"inputs": [tensor(" ")]}, 400),
        ("/v2/models/labeler/infer", {"inputs": [tensor()], "parameters": {"top": 1}}, 400),
    ],
)  # fmt: skip
def test_errors(http: TestClient, path: str, body: Any, status: int) -> None:
    reply = http.post(path, content=json.dumps(body))
    assert reply.status_code == status
    assert list(reply.json()) == ["error"]
    assert isinstance(reply.json()["error"], str)


@pytest.mark.parametrize(
    ("length", "data"),
    [
        ("x", b""),
        ("-1", b""),
        ("9" * 5000, b""),
        (None, b"\x01\0\0"),
        (None, b"\x02\0\0\0a"),
        (None, b"\x01\0\0\0\xff"),
        (None, struct.pack("<I", 1) + b"a" + b"\xff\xff\xff\xff"),
    ],
)
def test_binary_data_that_are_not_texts(http: TestClient, length: str | None, data: bytes) -> None:
    head = json.dumps({"inputs": [tensor(parameters={"binary_data_size": len(data)}, data=None)]}).encode()
    headers = {"inference-header-content-length": str(len(head)) if length is None else length}
    reply = http.post(INFER, content=head + data, headers=headers)
    assert (reply.status_code, list(reply.json())) == (400, ["error"])


def test_keys(models: dict[str, Any]) -> None:
    http = application(models, keys=KEYS)

    def status(authorization: str) -> int:
        return http.post(INFER, json={"inputs": [tensor()]}, headers={"authorization": authorization}).status_code

    assert [status("Bearer k"), status("Basic azpr"), status("Basic /w=="), status("k1")] == [401, 401, 400, 401]
    assert [status("Bearer k1"), status("Basic dXNlcjprMQ==")] == [200, 200]
    assert [http.get(f"/v2{path}").status_code for path in ("", "/health/ready", "/models/model")] == [200, 200, 401]


# The client.


@pytest.mark.parametrize("prefix", ["", "/open-inference"])
def test_the_client_describes(client: Callable[..., InferenceServerClient], prefix: str) -> None:
    own = client(prefix)
    assert own.is_server_live()
    assert own.is_server_ready()
    assert own.is_model_ready("writer", headers=HEADERS)
    assert own.is_model_ready("writer", "1", headers=HEADERS)
    assert not own.is_model_ready("other", headers=HEADERS)
    assert own.get_server_metadata()["name"] == "headway"
    assert own.get_model_metadata("model", headers=HEADERS)["outputs"][0]["name"] == "translation"


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_the_client_translates(
    client: Callable[..., InferenceServerClient], models: dict[str, Any], binary: bool, compression: str | None
) -> None:
    expected = [each.text for each in models["model"].translate(TEXTS)]
    own = client()
    for output_is_binary in (None, True, False):
        wanted = None if output_is_binary is None else [InferRequestedOutput("translation", output_is_binary)]
        found = infer(
            own, TEXTS, binary=binary, outputs=wanted, request_id="7", model_version="1", priority=1, timeout=10**6,
            request_compression_algorithm=compression, response_compression_algorithm=compression,
        )  # fmt: skip
        assert strings(found.as_numpy("translation")) == expected
        assert found.get_response()["id"] == "7"


def test_the_client_translates_one_text_with_markup(
    client: Callable[..., InferenceServerClient], models: dict[str, Any]
) -> None:
    text, own = "abc <b>de</b> &amp; l", client()
    parameters = {"source_language": "en", "target_language": "DE", "markup": "html"}
    assert strings(infer(own, [text], parameters=parameters).as_numpy("translation")) == [
        models["model"].translate(text, markup="html").text
    ]
    given = InferInput("text", [1], "BYTES")
    given.set_data_from_numpy(np.array(["a"], dtype=np.object_))
    later = own.async_infer("model", [given], headers=dict(HEADERS)).get_result()
    assert strings(later.as_numpy("translation")) == [models["model"].translate("a").text]


def test_the_client_calls_every_kind_of_model(
    client: Callable[..., InferenceServerClient], models: dict[str, Any]
) -> None:
    own, texts = client(), ["das rote Haus", "ein Baum"]
    (first,), (second,) = models["writer"].generate(list(texts), **WRITING)
    assert strings(infer(own, texts, "writer", parameters=WRITING).as_numpy("continuation")) == [
        first.text, second.text
    ]  # fmt: skip
    labels, names = models["labeler"].classify(texts), models["labeler"].labels
    found = infer(own, texts, "labeler")
    assert strings(found.as_numpy("label")) == [each.label for each in labels]
    expected = [[each.probabilities[name] for name in names] for each in labels]
    np.testing.assert_allclose(found.as_numpy("probabilities"), expected, rtol=1e-6)
    classes = infer(own, texts, "labeler", outputs=[InferRequestedOutput("probabilities", class_count=2)])
    for row, each in zip(strings(classes.as_numpy("probabilities")), labels, strict=True):
        best = sorted(names, key=lambda name: -each.probabilities[name])[:2]
        assert [entry.split(":", 1)[1] for entry in row] == [f"{names.index(name)}:{name}" for name in best]
        assert [float(entry.split(":")[0]) for entry in row] == pytest.approx(
            [each.probabilities[name] for name in best], abs=1e-6
        )
    fillings = models["filler"].fill("das [MASK] Haus", top=2)
    filled = infer(own, ["das [MASK] Haus"], "filler", parameters={"top": 2})
    assert strings(filled.as_numpy("filled")) == [[each.text for each in fillings]]
    np.testing.assert_allclose(filled.as_numpy("probability"), [[each.probability for each in fillings]], rtol=1e-6)


def test_errors_are_exceptions_of_the_client(client: Callable[..., InferenceServerClient]) -> None:
    own = client()
    cases: list[tuple[str, str, Callable[[], object]]] = [
        ("401", "Invalid API key", lambda: infer(own, ["a"], headers={"Authorization": "Bearer k"})),
        ("400", "zz is not supported", lambda: infer(own, ["a"], parameters={"target_language": "zz"})),
        ("404", "There is no model other", lambda: infer(own, ["a"], "other")),
        ("413", "1,025 texts", lambda: infer(own, ["a"] * 1025)),
        ("400", "shape", lambda: infer(own, [])),
        ("404", "There is no model model/stats", lambda: own.get_inference_statistics("model", headers=HEADERS)),
        ("404", "Not Found", lambda: own.get_model_repository_index()),
    ]
    for status, message, call in cases:
        with pytest.raises(InferenceServerException, match=message) as caught:
            call()
        assert caught.value.status() == status


def test_a_limit_and_a_request_after_it(models: dict[str, Any]) -> None:
    """This client leaves it to its caller to send a request again."""
    service = make_service(models, keys=KEYS)
    with listening(make_test_app(service)) as url, InferenceServerClient(url.removeprefix("http://")) as own:
        infer(own, ["a"], headers={"Authorization": "Bearer k2"})
        with pytest.raises(InferenceServerException, match="Too many requests") as caught:
            infer(own, ["a"], headers={"Authorization": "Bearer k2"})
        assert caught.value.status() == "429"
        with RefusingOnce(service):
            with pytest.raises(InferenceServerException, match="busy"):
                infer(own, ["a"])
            assert strings(infer(own, ["a"]).as_numpy("translation")) == [models["model"].translate("a").text]
