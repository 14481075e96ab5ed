"""A service with models de-en and en-fr also translates de-fr, says so, and gives what Python gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_service import RunningService, running, unpack_model

from headway.decode import DecodingOptions
from headway.predict import Glossary, PivotTranslator, load_translator
from headway.serve.directions import Directions
from headway.serve.errors import UnknownLanguageError
from headway.serve.model_info import ModelInfo, PivotModels


def models(*pairs: str) -> list[ModelInfo]:
    """Return models whose names are their languages: "de-en", or "de,nl-en" for several."""
    found = []
    for pair in pairs:
        source, target = pair.split("-", 1)
        found.append(ModelInfo(pair, "translation", "translates", tuple(source.split(",")), tuple(target.split(","))))
    return found


def test_a_direct_model_comes_first() -> None:
    directions = Directions(models("de-en", "en-fr", "de-fr"), pivot_candidates=4)
    found = directions.find("de", "fr")
    assert isinstance(found.model, ModelInfo)
    assert (found.model.name, found.pivot) == ("de-fr", None)


def test_two_models_translate_what_none_does() -> None:
    directions = Directions(models("de-en", "en_US-fr,pt-BR"), pivot_candidates=3)
    found = directions.find("DE-at", "pt")
    assert found.model == PivotModels("de-en", "en_US-fr,pt-BR", ("en", "en_US"), 3)
    assert (found.source, found.target, found.pivot) == ("de", "pt-BR", "en")
    pairs = {(each.source, each.target): each.second for each in directions.pairs()}
    assert {pair for pair, second in pairs.items() if second is not None} == {("de", "fr"), ("de", "pt-BR")}


@pytest.mark.parametrize(
    ("names", "source", "target", "unknown"),
    [
        (("de-en", "en-de"), "de", "de", "de"),  # there and back is no translation
        (("de-en", "en-fr"), "fr", "de", "fr"),
        (("de-en", "es-fr"), "de", "fr", "fr"),
        (("de-en", "en-fr", "fr-es"), "de", "es", "es"),  # three models
    ],
)
def test_pairs_that_two_models_do_not_translate(names: tuple[str, ...], source: str, target: str, unknown: str) -> None:
    with pytest.raises(UnknownLanguageError, match=unknown):
        Directions(models(*names), pivot_candidates=4).find(source, target)


def test_pivoting_can_be_off() -> None:
    off = Directions(models("de-en", "en-fr"), pivot_candidates=0)
    with pytest.raises(UnknownLanguageError):
        off.find("de", "fr")
    assert len(off.pairs()) == 2
    with pytest.raises(UnknownLanguageError):
        Directions(models("de-en", "en-fr"), pivot_candidates=4).find("de", "fr", direct=True)


# A running service, whose second model is loaded on demand.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def service(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    path = tmp_path_factory.mktemp("configured") / "serve.toml"
    path.write_text(
        "workers = 1\n"
        f"[[models]]\npath = '{folder}'\nname = 'a'\nsource = ['de']\ntarget = ['en']\n"
        f"[[models]]\npath = '{folder}'\nname = 'b'\nsource = ['en']\ntarget = ['fr']\nload = 'demand'\n"
        f"[[models]]\npath = '{folder}'\nname = 'c'\nsource = ['fr']\ntarget = ['es']\nload = 'demand'\n"
    )
    with running(["--config", str(path)]) as found:
        yield found


@pytest.fixture(scope="module")
def expected(folder: Path) -> PivotTranslator:
    first, second = (load_translator(folder, precision="int8") for _ in range(2))
    return PivotTranslator(first, second, pivot_language=("en", "en"))


def post(service: RunningService, path: str, **content: Any) -> httpx.Response:
    return httpx.post(f"{service.url}{path}", timeout=60, **content)


@pytest.mark.slow
def test_the_native_api_gives_what_python_gives(service: RunningService, expected: PivotTranslator) -> None:
    texts = ["Ein Hund läuft.", "a {name} b"]
    body = {"text": texts, "source": "de", "target": "fr", "options": {"n_best": 2}, "alignment": True}
    reply = post(service, "/api/v1/translate", json=body)
    assert reply.headers["x-pivot-language"] == "en"
    for ours, theirs in zip(
        reply.json()["translations"],
        expected.translate(texts, DecodingOptions(n_best=2), alignment=True),
        strict=True,
    ):
        assert (ours["text"], ours["pivot"]) == (theirs.text, theirs.candidates[0].pivot)
        assert ours["score"] == theirs.score
    html = {"text": "<p>Ein <b>Hund</b></p>", "source": "de", "target": "fr", "markup": "html"}
    (found,) = post(service, "/api/v1/translate", json=html).json()["translations"]
    assert found["text"] == expected.translate(html["text"], markup="html").text
    direct = post(service, "/api/v1/translate", json=body | {"target": "en"})
    assert "x-pivot-language" not in direct.headers
    assert "pivot" not in direct.json()["translations"][0]


def test_two_models_on_demand(service: RunningService, expected: PivotTranslator) -> None:
    body = {"text": "Ein Hund", "source": "en", "target": "es"}
    reply = post(service, "/api/v1/translate", json=body)
    assert reply.json()["translations"][0]["text"] == expected.translate("Ein Hund").text
    assert reply.headers["x-pivot-language"] == "fr"


def test_other_apis(service: RunningService, expected: PivotTranslator) -> None:
    text, translation = "Zwei Männer", expected.translate("Zwei Männer").text
    reply = post(service, "/translate", json={"q": text, "source": "de", "target": "fr"})
    assert reply.json() == {"translatedText": translation}
    assert reply.headers["x-pivot-language"] == "en"
    key = {"authorization": "DeepL-Auth-Key any"}
    content = {"json": {"text": [text], "source_lang": "DE", "target_lang": "FR"}, "headers": key}
    reply = post(service, "/v2/translate", **content)
    assert reply.json()["translations"][0]["text"] == translation
    assert reply.headers["x-pivot-language"] == "en"


def test_lists_of_languages(service: RunningService) -> None:
    pairs = {(each["source"], each["target"]): each for each in httpx.get(f"{service.url}/api/v1/languages").json()}
    assert pairs["de", "fr"]["pivot"] == "en"
    assert pairs["de", "en"]["pivot"] is None
    found = {each["code"]: each["targets"] for each in httpx.get(f"{service.url}/languages").json()}
    assert found["de"] == ["en", "fr"]


def test_glossaries(service: RunningService, expected: PivotTranslator) -> None:
    dictionary = {"source": "de", "target": "fr", "entries": [["Hund", "chien"]]}
    made = post(service, "/api/v1/glossaries", json={"name": "terms", "dictionaries": [dictionary]}).json()
    body = {"text": "Ein Hund", "source": "de", "target": "fr", "glossary": made["id"]}
    (found,) = post(service, "/api/v1/translate", json=body).json()["translations"]
    assert found["text"] == expected.translate("Ein Hund", glossary=Glossary([("Hund", "chien")])).text
    assert found["glossary"] == [{"source": "Hund", "targets": ["chien"], "met": True}]


def test_scores_need_one_model(service: RunningService) -> None:
    body = {"source_texts": ["a"], "target_texts": ["b"], "source": "de", "target": "fr"}
    assert post(service, "/api/v1/score", json=body).status_code == 400
