"""The native API shows why a model translates as it does: what it answers is what Python gives."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from in_process import application
from running_service import unpack_model
from starlette.testclient import TestClient

from headway.decode import DecodingOptions
from headway.inspection.diagram import diagram
from headway.inspection.forced_word import force_word
from headway.inspection.inspect_translator import inspect_translation
from headway.predict import Translator, load_translator
from headway.serve.apis.native.inspection import ForceWordReply, InspectReply, SearchTreeReply
from headway.text.visible_tokens import make_visible

TEXT = "Ein Hund läuft."
BODY = {"text": TEXT, "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def http(folder: Path) -> TestClient:
    client = application(folder)
    client.base_url = client.base_url.join("/api/v1/")
    return client


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    return load_translator(folder, precision="int8")


@pytest.mark.parametrize("translation", [None, "das rote"])
def test_attention(http: TestClient, translator: Translator, translation: str | None) -> None:
    found = http.post("inspect", json={**BODY, "translation": translation}).raise_for_status().json()
    InspectReply.model_validate(found)
    expected = inspect_translation(translator, TEXT, translation)
    assert (found["model"], found["target"]) == ("model", expected.target)
    assert found["sides"]["source"] == [make_visible(token) for token in expected.source_tokens]
    assert [step["token"] for step in found["steps"]] == [step.token for step in expected.steps]
    assert found["log_probability"] == pytest.approx(expected.log_probability)
    assert {kind["id"] for kind in found["kinds"]} == {"cross", "encoder", "decoder"}
    for kind in found["kinds"]:
        for packed, each in zip(kind["maps"], expected.maps_of_kind(kind["id"]), strict=True):
            weights = np.frombuffer(base64.b64decode(packed["weights"]), "u1").reshape(each.weights.shape)
            np.testing.assert_allclose(weights / found["max_weight"], each.weights.numpy(), rtol=0, atol=0.002)


def test_attention_of_a_sentence_is_small(http: TestClient) -> None:
    reply = http.post("inspect", json={**BODY, "text": "ein haus " * 19}).raise_for_status()
    numbers = sum(len(each["weights"]) for kind in reply.json()["kinds"] for each in kind["maps"])
    sides = reply.json()["sides"]
    cells = sum(len(each["heads"]) * len(sides[kind["rows"]]) * len(sides[kind["columns"]])
                for kind in reply.json()["kinds"] for each in kind["maps"])  # fmt: skip
    assert numbers <= 1.4 * cells + 100  # characters: one byte each, in base 64


def test_the_search_tree(http: TestClient, translator: Translator) -> None:
    found = http.post("search-tree", json={**BODY, "beam_size": 3}).raise_for_status().json()
    SearchTreeReply.model_validate(found)
    expected = translator.search_tree(TEXT, DecodingOptions(beam_size=3, n_best=3))
    assert [end["text"] for end in found["ends"]] == [end.text for end in expected.ends]
    assert [node["parent"] for node in found["nodes"]] == [node.parent for node in expected.nodes]
    assert [node["token"] for node in found["nodes"]] == [node.token for node in expected.nodes]
    assert [node["total"] for node in found["nodes"]] == pytest.approx([node.total for node in expected.nodes])


def test_the_cost_of_a_word(http: TestClient, translator: Translator) -> None:
    body = {**BODY, "prefix": "das ", "word": "Haus"}
    found = http.post("force-word", json=body).raise_for_status().json()
    ForceWordReply.model_validate(found)
    expected = force_word(translator, TEXT, "das ", "Haus")
    assert found["cost"] == pytest.approx(expected.cost)
    assert found["cost"] == pytest.approx(found["chosen"]["log_probability"] - found["forced"]["log_probability"])
    assert (found["chosen"]["text"], found["forced"]["text"]) == (expected.original.target, expected.with_word.target)
    again = {**body, "translation": found["forced"]["text"]}
    assert http.post("force-word", json=again).json()["cost"] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("path", "change", "status", "message"),
    [
        ("inspect", {"text": " "}, 400, "blank"),
        ("inspect", {"text": "ein haus " * 200}, 400, "at most 200 are accepted"),
        ("inspect", {"translation": "haus " * 300}, 400, "at most 200 are accepted"),
        ("inspect", {"target": "zz"}, 400, "zz is not supported"),
        ("search-tree", {"text": "ein haus " * 200}, 400, "at most 200 are accepted"),
        ("search-tree", {"beam_size": 11}, 422, "beam_size"),
        ("force-word", {"word": ""}, 400, "blank"),
        ("force-word", {"word": "haus", "prefix": "haus " * 300}, 400, "at most 200 are accepted"),
        ("force-word", {}, 422, "word"),
    ],
)
def test_errors(http: TestClient, path: str, change: dict[str, object], status: int, message: str) -> None:
    reply = http.post(path, json={**BODY, **change})
    assert reply.status_code == status, reply.text
    assert message in json.dumps(reply.json()["error"])


def test_the_drawing_of_a_model(http: TestClient, folder: Path) -> None:
    reply = http.get("diagram", params={"model": "model"}).raise_for_status()
    assert reply.headers["content-type"] == "image/svg+xml"
    assert reply.text == diagram(folder).svg
    assert http.get("diagram", params={"model": "other"}).status_code == 404
