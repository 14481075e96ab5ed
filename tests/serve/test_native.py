"""The native API for all kinds of models: its replies equal those of the Python objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_service import running, unpack_model

import headway
from headway.predict import Classifier, LanguageModel, MaskedLanguageModel
from headway.predict.classification.occlusion import occlude

TEXTS = ["ein haus", "zwei rote hunde", "wasser"]


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory,
    make_classifier: Callable[..., Classifier],
    make_language_model: Callable[..., LanguageModel],
    make_masked_language_model: Callable[..., MaskedLanguageModel],
) -> dict[str, Path]:
    """A model of each kind. None was ever trained."""
    folder = tmp_path_factory.mktemp("served")
    for name, make in (
        ("classifier", make_classifier),
        ("writer", make_language_model),
        ("filler", make_masked_language_model),
    ):
        make().bundle.save(folder / name, "A test.")
    return {"translator": unpack_model(folder)} | {each: folder / each for each in ("classifier", "writer", "filler")}


@pytest.fixture(scope="module")
def http(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    config = tmp_path_factory.mktemp("config") / "serve.toml"
    lines = [f'[[models]]\nname = "{name}"\npath = "{folder}"' for name, folder in folders.items()]
    for at in (0, 2):  # those that decode; the others ignore the default precision
        lines[at] += '\nprecision = "float32"'
    config.write_text("\n".join(lines))
    with (
        running(["--config", str(config), "--workers", "1"]) as service,
        httpx.Client(base_url=f"{service.url}/api/v1", timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, Any]:
    return {name: headway.load(folder) for name, folder in folders.items()}


def test_sentences_concatenate_to_the_text(http: httpx.Client) -> None:
    texts = ["Das ist z. B. Dr. Meier.  Er kommt am 3. Oktober!\nOder?", "", " "]
    found = http.post("/sentences", json={"text": texts, "language": "de"}).json()["sentences"]
    assert [each.strip() for each in found[0]] == ["Das ist z. B. Dr. Meier.", "Er kommt am 3. Oktober!", "Oder?"]
    assert ["".join(each) for each in found] == texts
    refused = http.post("/sentences", content=b'{"text": "\\ud800", "language": "de"}')
    assert refused.status_code == 422  # not valid Unicode


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"text"', b"\xff\xff", b"[" * 5000, b"null"])
@pytest.mark.parametrize("kind", ["application/json", "application/x+json", "text/plain", None])
def test_bodies_that_cannot_be_read_are_refused_alike_by_all_routes(
    http: httpx.Client, content: bytes, kind: str | None
) -> None:
    headers = {} if kind is None else {"content-type": kind}
    direct, other = (http.post(path, content=content, headers=headers) for path in ("/translate", "/detect"))
    assert direct.status_code in (400, 422)
    assert (direct.status_code, direct.json()) == (other.status_code, other.json())


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [("utf-8-sig", "application/json"), ("utf-16", "application/json"), ("utf-8", "application/x+json")],
)
def test_bodies_in_other_forms_of_json_are_translated(http: httpx.Client, encoding: str, kind: str) -> None:
    body = {"text": "Ein Hund", "source": "en", "target": "de"}
    content = json.dumps(body).encode(encoding)
    other = http.post("/translate", content=content, headers={"content-type": kind})
    assert other.json() == http.post("/translate", json=body).json()


def test_an_alignment_may_leave_out_its_weights(http: httpx.Client) -> None:
    body = {"text": "Ein Hund", "source": "en", "target": "de", "options": {"n_best": 2}}
    whole, best, pairs = (
        http.post("/translate", json={**body, "alignment": alignment}).json()["translations"]
        for alignment in ("all", True, "pairs")
    )
    assert best[0]["alignment"].pop("attention")
    assert [other["alignment"].pop("attention") for other in best[0]["alternatives"]] == [[]]
    for candidate in (whole[0], *whole[0]["alternatives"]):
        assert candidate["alignment"].pop("attention")
    assert whole == best == pairs


def test_a_request_may_contain_the_entries_of_a_glossary(http: httpx.Client) -> None:
    body = {"text": "Ein Hund", "source": "en", "target": "de", "glossary": [["Hund", "anger"], ["Katze", "enge"]]}
    own = http.post("/translate", json=body).json()["translations"][0]
    assert "anger" in own["text"].split()
    assert own["glossary"] == [{"source": "Hund", "targets": ["anger"], "met": True}]
    dictionary = {"source": "en", "target": "de", "entries": body["glossary"]}
    stored = http.post("/glossaries", json={"name": "terms", "dictionaries": [dictionary]}).json()["id"]
    assert http.post("/translate", json={**body, "glossary": stored}).json()["translations"][0] == own
    http.delete(f"/glossaries/{stored}")


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"source": "auto"}, 400, "require a source language"),
        ({"glossary": [["Hund", ""]]}, 400, "glossary"),
        ({"glossary": []}, 422, "glossary"),
    ],
)
def test_entries_that_cannot_be_used_are_refused(
    http: httpx.Client, change: dict[str, Any], status: int, message: str
) -> None:
    body = {"text": "Ein Hund", "source": "en", "target": "de", "glossary": [["Hund", "anger"]], **change}
    reply = http.post("/translate", json=body)
    assert reply.status_code == status
    assert message in reply.json()["error"]["message"]


def test_alternatives(http: httpx.Client, models: dict[str, Any]) -> None:
    body = {"text": "Ein Hund", "source": "en", "target": "de", "prefix": "und ", "count": 4}
    found = http.post("/alternatives", json=body).json()["alternatives"]
    expected = models["translator"].alternatives("Ein Hund", "und", count=4)
    assert [each["token"] for each in found] == [each.token for each in expected]
    assert [each["log_probability"] for each in found] == pytest.approx([each.log_probability for each in expected])
    found = http.post("/alternatives", json=body | {"count": 1000}).json()["alternatives"]
    assert len(found) == models["translator"].bundle.target_tokenizer.vocab_size


def test_classifications(http: httpx.Client, models: dict[str, Any]) -> None:
    found = http.post("/classify", json={"text": [*TEXTS, ""]}).json()["classifications"]
    for ours, theirs in zip(found, models["classifier"].classify(TEXTS), strict=False):
        assert ours["label"] == theirs.label
        assert ours["probabilities"] == pytest.approx(theirs.probabilities)
    assert "empty" in found[-1]["error"]


def test_fillings(http: httpx.Client, models: dict[str, Any]) -> None:
    text = "ein [MASK] hunde"
    found = http.post("/fill", json={"text": text, "top": 3}).json()["fillings"]
    expected = models["filler"].fill(text, top=3)
    assert [each["text"] for each in found] == [each.text for each in expected]


def test_explanations_of_labels(http: httpx.Client, models: dict[str, Any]) -> None:
    classifier = models["classifier"]
    for label in (None, *classifier.labels):
        found = http.post("/explain", json={"text": TEXTS[1], "label": label}).json()
        expected = asdict(classifier.explain(TEXTS[1], label))
        assert found["label"] == expected["label"]
        for level in ("tokens", "words"):
            for ours, theirs in zip(found[level], expected[level], strict=True):
                assert ours == pytest.approx(theirs)


def test_labels_without_each_word(http: httpx.Client, models: dict[str, Any]) -> None:
    for label in (None, *models["classifier"].labels):
        found = http.post("/occlude", json={"text": TEXTS[1], "label": label}).json()
        expected = occlude(models["classifier"], TEXTS[1], label)
        assert (found["label"], found["probability"]) == (expected.label, pytest.approx(expected.probability))
        assert [part["text"] for part in found["parts"]] == ["zwei", "rote", "hunde"]
        probabilities = [part.probability for part in expected.parts]
        assert [part["probability"] for part in found["parts"]] == pytest.approx(probabilities)


@pytest.mark.parametrize("name", ["writer", "filler"])
def test_scores_of_texts(http: httpx.Client, models: dict[str, Any], name: str) -> None:
    found = http.post("/score-texts", json={"text": TEXTS, "model": name}).json()["scores"]
    for ours, theirs in zip(found, models[name].score(TEXTS), strict=True):
        assert ours["tokens"] == list(theirs.tokens)
        assert ours["token_log_probabilities"] == pytest.approx(theirs.token_log_probabilities)
        assert ours["eos_log_probability"] == pytest.approx(theirs.eos_log_probability)
        assert ours["log_probability"] == pytest.approx(theirs.log_probability)


@pytest.mark.parametrize("stride", [None, 3])
def test_perplexity(http: httpx.Client, models: dict[str, Any], stride: int | None) -> None:
    texts = [*TEXTS, "ein haus " * 20]  # longer than the context
    found = http.post("/perplexity", json={"text": texts, "stride": stride}).json()
    expected = asdict(models["writer"].perplexity(texts, stride=stride))
    assert found.pop("signature") == expected.pop("signature")
    assert found == pytest.approx(expected)


def test_streamed_tokens(http: httpx.Client, folders: dict[str, Path]) -> None:
    options = {"temperature": 3.0, "seed": 2, "max_new_tokens": 6}
    body = {"prompt": "ein", "options": options, "stream": True, "alternatives": 3}
    lines = http.post("/generate", json=body).text.split("\n\n")
    *events, last = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    model: Any = headway.load(folders["writer"], precision="float32")  # the precision of the service
    stream = model.stream_tokens("ein", alternatives=3, **options)
    for event, part in zip(events, stream, strict=True):
        assert event["text"] == part.text
        for ours, theirs in zip(event["tokens"], part.tokens, strict=True):
            assert ours["token"] == theirs.token
            assert [each["token"] for each in ours["alternatives"]] == [each.token for each in theirs.alternatives]
            assert ours["log_probability"] == pytest.approx(theirs.log_probability, abs=1e-4)
    assert last["continuation"]["text"] == "".join(event["text"] for event in events)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/alternatives", {"text": "a", "source": "en", "target": "de", "count": 0}, 422, "count"),
        ("/generate", {"prompt": "a", "alternatives": 3}, 400, "alternatives requires stream"),
        ("/alternatives", {"text": "a", "source": "en", "target": "zz"}, 400, "zz is not supported"),
        ("/explain", {"text": ""}, 400, "empty"),
        ("/explain", {"text": "a", "label": "nothing"}, 400, "unknown label 'nothing'"),
        ("/occlude", {"text": " "}, 400, "empty"),
        ("/occlude", {"text": "a", "label": "nothing"}, 400, "unknown label 'nothing'"),
        ("/score-texts", {"text": "a", "model": "translator"}, 404, "There is no model translator"),
        ("/perplexity", {"text": ["", ""]}, 400, "at least one character"),
        ("/perplexity", {"text": "a", "stride": 1000}, 400, "stride"),
        ("/perplexity", {"text": "a", "model": "filler"}, 404, "There is no model filler"),
    ],
)
def test_errors(http: httpx.Client, path: str, body: Any, status: int, message: str) -> None:
    reply = http.post(path, json=body)
    assert reply.status_code == status, reply.text
    assert reply.json()["error"]["status"] == status
    assert message in reply.json()["error"]["message"]
