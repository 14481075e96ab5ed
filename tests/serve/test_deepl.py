"""DeepL's API, called by its Python client and by plain requests."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import deepl
import httpx
import pytest
from deepl.api_data import GlossaryInfo, ModelType, MultilingualGlossaryDictionaryEntries
from running_service import RunningService, running, unpack_model, wait_until

from headway.predict import MarkupOptions, Source, TranslateOptions, Translation, Translator, load_translator
from headway.predict.phrases import WordPhrase
from headway.serve.apis.deepl_glossaries import _escaped, _unescaped

TEXTS = ["Ein Hund.", "  Hallo Welt. Guten Morgen!", "a b c d e", "Hallo!"]
KEY = {"authorization": "DeepL-Auth-Key any"}
LETTERS = "abcdeghikl"  # the model's vocabulary consists of some letters


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model from English to German, and of a configuration that uses it in both directions."""
    folder = tmp_path_factory.mktemp("deepl")
    unpack_model(folder)
    models = '[{ path = "model" }, { path = "model", name = "back", source = ["de"], target = ["en"] }]'
    (folder / "serve.toml").write_text(f'models = {models}\nworkers = 1\nglossary_folder = "glossaries"\n')
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[RunningService]:
    with running(["--config", str(folder / "serve.toml")]) as found:
        yield found


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    return load_translator(folder / "model", precision="int8")


@pytest.fixture
def client(service: RunningService) -> Iterator[deepl.DeepLClient]:
    with contextlib.closing(deepl.DeepLClient("any", server_url=service.url)) as found:
        yield found


@pytest.fixture
def http(service: RunningService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60, headers=KEY) as found:
        yield found


def expected(translator: Translator, texts: list[str]) -> list[str]:
    return [each.text for each in translator.translate([Source(text, split_sentences=True) for text in texts])]


def text_of(result: Any) -> str:
    assert isinstance(result, deepl.TextResult)
    return result.text


# Texts.


def test_one_text_and_a_list(client: deepl.DeepLClient, translator: Translator) -> None:
    found = client.translate_text(TEXTS, source_lang="EN", target_lang="de")
    assert isinstance(found, list)
    assert [each.text for each in found] == expected(translator, TEXTS)
    assert {each.detected_source_lang for each in found} == {"EN"}
    assert [each.billed_characters for each in found] == list(map(len, TEXTS))
    before = client.get_usage().character.count
    assert text_of(client.translate_text(TEXTS[0], source_lang="EN", target_lang="DE")) == found[0].text
    usage = client.get_usage().character
    assert before is not None
    assert usage.count == before + len(TEXTS[0])
    assert not usage.limit_reached


def test_the_language_of_each_text_is_detected(client: deepl.DeepLClient) -> None:
    found = client.translate_text("Guten Morgen, wie geht es Ihnen?", target_lang="EN-US")
    assert isinstance(found, deepl.TextResult)
    assert found.detected_source_lang == "DE"


@pytest.mark.parametrize("target", ["EN", "en-us", "EN-GB"])
def test_regions_of_english(http: httpx.Client, translator: Translator, target: str) -> None:
    fields = {"text": "Hallo!", "source_lang": "de", "target_lang": target}
    (found,) = http.post("/v2/translate", json=fields).json()["translations"]
    assert found == {"detected_source_language": "DE", "text": translator.translate("Hallo!").text}


@pytest.mark.parametrize(
    "options",
    [
        {"formality": deepl.Formality.PREFER_MORE},
        {"formality": "default"},
        {"preserve_formatting": True},
        {"context": "Auf dem Meer."},
        {"split_sentences": deepl.SplitSentences.ALL},
    ],
    ids=str,
)
def test_options_that_change_nothing(
    client: deepl.DeepLClient, translator: Translator, options: dict[str, Any]
) -> None:
    found = client.translate_text(TEXTS[1], source_lang="EN", target_lang="DE", **options)
    assert [text_of(found)] == expected(translator, TEXTS[1:2])


def test_the_type_of_the_model(client: deepl.DeepLClient) -> None:
    found = client.translate_text(
        "Hallo!", source_lang="EN", target_lang="DE", model_type=ModelType.PREFER_QUALITY_OPTIMIZED
    )
    assert isinstance(found, deepl.TextResult)
    assert found.model_type_used == "quality_optimized"


def test_splitting(client: deepl.DeepLClient, translator: Translator) -> None:
    def translate(text: str, how: str) -> str:
        return text_of(client.translate_text(text, source_lang="EN", target_lang="DE", split_sentences=how))

    text = "Hallo Welt. Guten Morgen!"
    whole = translator.translate(text).text
    assert translate(text, "0") == whole
    assert translate(text, "1") == " ".join(expected(translator, ["Hallo Welt.", "Guten Morgen!"])) != whole
    assert translate("Ein\n Hund. \r\n\n Zwei.", "nonewlines") == translate("Ein Hund. Zwei.", "1")
    assert translate("Ein Hund.\nHallo!", "1") == "\n".join(expected(translator, ["Ein Hund.", "Hallo!"]))


@pytest.mark.parametrize(
    ("text", "options", "markup"),
    [
        ("<p>Ein <b>Hund</b>.<br>Hallo!</p><p><code>x</code> Welt</p>", {"tag_handling": "html"}, {"kind": "html"}),
        (
            "<a>Ein <b>Hund</b>. Hallo <c>Welt</c></a>\n<a>Guten Morgen</a>",
            {"tag_handling": "xml", "splitting_tags": "b,d", "non_splitting_tags": ["a"], "ignore_tags": ["c", "e,f"]},
            {"kind": "xml", "splitting_tags": ["b", "d"], "non_splitting_tags": ["a"], "ignore_tags": ["c", "e", "f"]},
        ),
        (
            "<a>Ein <b>Hund</b></a><a>Hallo!</a>",
            {"tag_handling": "xml", "outline_detection": False, "tag_handling_version": "v2"},
            {"kind": "xml", "outline_detection": False},
        ),
    ],
    ids=["html", "xml", "without-outline"],
)
def test_tags(
    client: deepl.DeepLClient, translator: Translator, text: str, options: dict[str, Any], markup: dict[str, Any]
) -> None:
    found = text_of(client.translate_text(text, source_lang="EN", target_lang="DE", **options))
    (alone,) = translator.translate_each(
        [Source(text, split_sentences=True)], TranslateOptions(markup=MarkupOptions.parse(markup, "markup"))
    )
    assert isinstance(alone, Translation)
    assert found == alone.text
    assert sorted(re.findall("<[^>]*>", found)) == sorted(re.findall("<[^>]*>", text))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tag_handling": "markdown"}, "Value for 'tag_handling' not supported"),
        ({"formality": "more"}, "'formality' is not supported for given 'target_lang'"),
        ({"formality": "rude"}, "Value for 'formality' not supported"),
        ({"split_sentences": "2"}, "Value for 'split_sentences' not supported"),
        ({"model_type": "best"}, "Value for 'model_type' not supported"),
        ({"style_rule": "x"}, "Value for 'style_id' not supported: no model follows style rules"),
        ({"custom_instructions": ["Be brief"]}, "Value for 'custom_instructions' not supported: no model follows"),
        ({"glossary_ids": ["a", "b"]}, "Value for 'glossary_ids' not supported: a translation uses at most one"),
        ({"source_lang": "zz"}, "Value for 'source_lang' not supported"),
        ({"target_lang": "zz"}, "Value for 'target_lang' not supported"),
        ({"target_lang": "EN"}, "deprecated"),  # says the client
        ({"target_lang": "PT-BR"}, "Value for 'target_lang' not supported"),
        ({"glossary": "unknown"}, "There is no glossary unknown"),
    ],
    ids=str,
)
def test_what_is_refused(client: deepl.DeepLClient, options: dict[str, Any], message: str) -> None:
    languages = {"source_lang": "EN", "target_lang": "DE"}
    with pytest.raises(deepl.DeepLException, match=message) as refused:
        client.translate_text("Hallo!", **(languages | options))
    assert refused.value.http_status_code in (None, 404 if "glossary" in options else 400)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "content",
    [
        {"params": {"text": ["Hallo!", "Ein Hund."], "source_lang": "EN", "target_lang": "DE"}},
        {"data": {"text": ["Hallo!", "Ein Hund."], "source_lang": "EN", "target_lang": "DE"}},
        {"json": {"text": ["Hallo!", "Ein Hund."], "source_lang": "EN", "target_lang": "DE"}},
    ],
    ids=["query", "form", "json"],
)
def test_forms_of_requests(http: httpx.Client, translator: Translator, method: str, content: dict[str, Any]) -> None:
    found = http.request(method, "/v2/translate", **content).json()["translations"]
    assert [each["text"] for each in found] == expected(translator, ["Hallo!", "Ein Hund."])
    assert all(list(each) == ["detected_source_language", "text"] for each in found)


@pytest.mark.parametrize(
    ("method", "path", "fields", "status", "message"),
    [
        ("POST", "/v2/translate", {"target_lang": "DE"}, 400, "Parameter 'text' not specified."),
        ("POST", "/v2/translate", {"text": ["a"]}, 400, "Parameter 'target_lang' not specified."),
        ("POST", "/v2/translate", {"text": ["a", 1], "target_lang": "DE"}, 400, "Value for 'text' not supported."),
        ("POST", "/v2/translate", {"text": ["a"], "target_lang": 1}, 400, "Value for 'target_lang' not supported."),
        (
            "POST",
            "/v2/translate",
            {"text": ["a"], "target_lang": "DE", "glossary_id": "x"},
            400,
            "Use of a glossary requires the source_lang parameter to be specified",
        ),
        ("POST", "/v2/translate", [1], 400, "the body is not a JSON object"),
        ("POST", "/v2/translate", {"text": ["x" * 100_001], "source_lang": "EN", "target_lang": "DE"}, 413, None),
        ("POST", "/v2/languages", {"type": "both"}, 400, None),
        ("POST", "/v2/document", {}, 400, "the body is not a form with a file (multipart/form-data)"),
        (
            "POST",
            "/v2/write/rephrase",
            {"text": ["x"], "target_lang": "DE"},
            400,
            "Value for 'target_lang' not supported: no model rephrases or corrects texts",
        ),
        ("POST", "/v2/write/other", {}, 404, "Not Found"),
        ("DELETE", "/v2/translate", None, 405, "Method Not Allowed"),
        ("POST", "/v3/style_rules", {}, 400, "Style rules are not supported: no model follows them"),
        ("POST", "/v2/glossaries", {"name": "x"}, 400, "Parameter 'source_lang' not specified."),
        ("POST", "/v3/glossaries", {"name": "x"}, 400, "Glossary dictionaries must be provided"),
        ("POST", "/v3/glossaries", {"name": "x", "dictionaries": 5}, 400, "Value for 'dictionaries' not supported."),
        ("GET", "/v2/glossaries/x/entries", None, 404, "There is no glossary x"),
        ("PATCH", "/v3/glossaries/x", {"name": "y"}, 404, "There is no glossary x"),
    ],
)
def test_errors(http: httpx.Client, method: str, path: str, fields: Any, status: int, message: str | None) -> None:
    reply = http.request(method, path, json=fields)
    assert reply.status_code == status, reply.text
    assert list(reply.json()) == ["message"]
    if message is not None:
        assert reply.json()["message"] == message


def test_a_key_is_required_even_if_any_is_accepted(service: RunningService) -> None:
    fields = {"text": "Hallo!", "source_lang": "EN", "target_lang": "DE"}
    url = f"{service.url}/v2/translate"
    assert httpx.post(url, data=fields).status_code == 403
    assert httpx.post(url, data=fields, headers={"authorization": "Bearer any"}).status_code == 403
    assert httpx.post(url, data=fields | {"auth_key": "any"}).status_code == 200
    assert httpx.get(url, params=fields | {"auth_key": "any"}).status_code == 200
    assert httpx.get(f"{service.url}/v2/usage").json() == {"message": "Invalid API key"}


def test_languages(client: deepl.DeepLClient) -> None:
    assert [(each.code, each.name) for each in client.get_source_languages()] == [("DE", "German"), ("EN", "English")]
    assert [(each.code, each.supports_formality) for each in client.get_target_languages()] == [
        ("DE", False),
        ("EN-GB", False),
        ("EN-US", False),
    ]
    pairs = client.get_glossary_languages()
    assert [(each.source_lang, each.target_lang) for each in pairs] == [("de", "en"), ("en", "de")]


# Glossaries.


def test_a_glossary_of_version_2(client: deepl.DeepLClient) -> None:
    entries = {"Hund": "cat", 'Sag "Hallo", du': "a, b c"}
    lines = '"Hund",cat,EN,DE\n"Sag ""Hallo"", du","a, b c"\n\n'
    creations: list[Callable[[], GlossaryInfo]] = [
        lambda: client.create_glossary("mine", "EN", "DE", entries),
        lambda: client.create_glossary_from_csv("mine", "en", "de", lines),
    ]
    for create in creations:
        glossary = create()
        assert (glossary.name, glossary.source_lang, glossary.target_lang) == ("mine", "EN", "DE")
        assert glossary.entry_count == 2
        assert glossary.ready
        assert client.get_glossary_entries(glossary) == entries
        assert [each.glossary_id for each in client.list_glossaries()] == [glossary.glossary_id]
        assert client.get_glossary(glossary.glossary_id).creation_time == glossary.creation_time
        found = client.translate_text_with_glossary(["Ein Hund.", 'Jetzt sag "Hallo", du!'], glossary)
        assert isinstance(found, list)
        assert "cat" in found[0].text.lower()
        assert "a, b c" in found[1].text.lower()
        client.delete_glossary(glossary)
        with pytest.raises(deepl.GlossaryNotFoundException):
            client.get_glossary(glossary.glossary_id)
    assert client.list_glossaries() == []


@pytest.mark.parametrize("target", ["C*", "*", "**", "*x", "*x*", "a*b", "x"])
def test_asterisks_of_entries_mean_themselves(target: str) -> None:
    row = _escaped(target, 1)
    assert WordPhrase.parse(row) == WordPhrase(target)
    assert _unescaped(row) == target


def test_ten_thousand_entries(client: deepl.DeepLClient, service: RunningService) -> None:
    words = ["".join(LETTERS[int(digit)] for digit in f"{number:04}") for number in range(10_000)]
    entries = {f"Wort {word}": f"Wort {word[::-1]}" for word in words}
    glossary = client.create_glossary("many", "EN", "DE", entries)
    try:
        assert glossary.entry_count == 10_000
        assert client.get_glossary_entries(glossary) == entries
        client.translate_text("Hallo!", source_lang="EN", target_lang="DE", glossary=glossary)
        before = service.cpu_seconds()
        asked = [f"Ein Wort {word}." for word in words[::500]]
        found = client.translate_text(asked, source_lang="EN", target_lang="DE", glossary=glossary)
        assert service.cpu_seconds() - before < 10  # the glossary is built once, in half a second
        assert isinstance(found, list)
        for word, each in zip(words[::500], found, strict=True):
            assert f"Wort {word[::-1]}" in each.text
    finally:
        client.delete_glossary(glossary)


def test_a_glossary_of_version_3(client: deepl.DeepLClient) -> None:
    def dictionary(source: str, target: str, entries: dict[str, str]) -> MultilingualGlossaryDictionaryEntries:
        return MultilingualGlossaryDictionaryEntries(source, target, entries)

    def entries(source: str, target: str) -> dict[str, str]:
        (found,) = client.get_multilingual_glossary_entries(glossary, source, target).dictionaries
        return dict(line.split("\t") for line in str(found.entries).split("\n"))

    both = [dictionary("EN", "DE", {"Hund": "cat", "Welt": "sun"}), dictionary("DE", "EN-US", {"cat": "Hund"})]
    glossary = client.create_multilingual_glossary("two", both)
    assert [(each.source_lang, each.target_lang, each.entry_count) for each in glossary.dictionaries] == [
        ("EN", "DE", 2),
        ("DE", "EN", 1),
    ]
    assert client.list_glossaries() == []  # of version 2, which has one dictionary
    assert [each.glossary_id for each in client.list_multilingual_glossaries()] == [glossary.glossary_id]
    found = client.translate_text("Ein Hund.", source_lang="EN", target_lang="DE", glossary=glossary)
    assert "cat" in text_of(found).lower()
    found = client.translate_text("Eine cat.", source_lang="DE", target_lang="EN-GB", glossary=glossary)
    assert "hund" in text_of(found).lower()

    assert client.update_multilingual_glossary_name(glossary, "new").name == "new"
    client.update_multilingual_glossary_dictionary(glossary, dictionary("EN", "DE", {"Hund": "bat", "Tag": "day"}))
    assert entries("EN", "DE") == {"Hund": "bat", "Welt": "sun", "Tag": "day"}
    replaced = client.replace_multilingual_glossary_dictionary_from_csv(glossary, "EN", "DE", '"Hund","a, b"')
    assert replaced.entry_count == 1
    assert entries("EN", "DE") == {"Hund": "a, b"}
    assert entries("DE", "EN") == {"cat": "Hund"}

    client.delete_multilingual_glossary_dictionary(glossary, source_lang="EN", target_lang="DE")
    with pytest.raises(deepl.DeepLException, match="no dictionary for en to de"):
        client.translate_text("Ein Hund.", source_lang="EN", target_lang="DE", glossary=glossary.glossary_id)
    with pytest.raises(deepl.GlossaryNotFoundException):
        client.get_multilingual_glossary_entries(glossary, "EN", "DE")
    assert [each.glossary_id for each in client.list_glossaries()] == [glossary.glossary_id]
    client.delete_multilingual_glossary(glossary)
    with pytest.raises(deepl.GlossaryNotFoundException):
        client.get_multilingual_glossary(glossary.glossary_id)


@pytest.mark.parametrize(
    ("form", "entries", "reason"),
    [
        ("tsv", "Hund\tcat\nWelt", "line 2 does not have a source phrase and a target phrase"),
        ("tsv", "Hund\tcat\nHund\tbat", "line 2 repeats the source phrase 'Hund'"),
        ("tsv", "Hund\tcat|bat", r"line 1 contains \|"),
        ("tsv", "Hund\tc\u0001t", "contains a control character"),
        ("tsv", "\n\n", "there are no entries"),
        ("csv", 'Hund,"cat\nWelt', "not valid CSV"),
        ("csv", "Hund,cat,EN,FR", "line 1 is for the languages EN and FR"),
        ("csv", 'Hund,"c\nat"', "contains a control character"),
        ("tsv", "Hund\tQ", "contains characters or words that this model's vocabulary does not have"),
        ("xml", "x", "Unsupported entry format specified"),
    ],
)
def test_entries_that_are_refused(http: httpx.Client, form: str, entries: str, reason: str) -> None:
    fields = {"name": "x", "source_lang": "EN", "target_lang": "DE", "entries": entries, "entries_format": form}
    reply = http.post("/v2/glossaries", data=fields)
    assert reply.status_code == 400, reply.text
    assert list(reply.json()) == ["message"]
    assert re.search(reason, reply.json()["message"])
    assert http.get("/v3/glossaries").json() == {"glossaries": []}


def test_glossaries_for_other_languages_are_refused_with_their_names(client: deepl.DeepLClient) -> None:
    message = "Unsupported glossary source and target language pair: No model translates from fr into de"
    with pytest.raises(deepl.DeepLException, match=message) as refused:
        client.create_glossary("x", "FR", "DE", {"a": "b"})
    assert refused.value.http_status_code in (None, 400)
    dictionary = MultilingualGlossaryDictionaryEntries("FR", "DE", {"a": "b"})
    with pytest.raises(deepl.DeepLException, match=message):
        client.create_multilingual_glossary("x", [dictionary])


@pytest.mark.parametrize("quoted", ["a,kk\nb,ll", '"a","kk"\n"b","ll"'])
def test_a_byte_order_mark_before_the_first_entry_is_dropped(
    client: deepl.DeepLClient, http: httpx.Client, quoted: str
) -> None:
    entries = {"a": "kk", "b": "ll"}
    glossary = client.create_glossary_from_csv("marked", "EN", "DE", "\ufeff" + quoted)
    assert client.get_glossary_entries(glossary) == entries
    assert "kk" in text_of(client.translate_text("a c", source_lang="EN", target_lang="DE", glossary=glossary)).lower()
    client.delete_glossary(glossary)
    several = client.create_multilingual_glossary_from_csv("marked", "EN", "DE", "\ufeffa,kk\nb,ll")
    assert str(client.get_multilingual_glossary_entries(several, "EN", "DE").dictionaries[0].entries) == "a\tkk\nb\tll"
    client.delete_multilingual_glossary(several)
    rows = [["\ufeffa", "kk"], ["b", "ll"]]
    native = {"name": "marked", "dictionaries": [{"source": "en", "target": "de", "entries": rows}]}
    created = http.post("/api/v1/glossaries", json=native)
    assert created.status_code in (200, 201), created.text
    assert http.delete(f"/api/v1/glossaries/{created.json()['id']}").status_code < 300
    body = {"text": "a c", "source": "en", "target": "de", "glossary": rows}
    (found,) = http.post("/api/v1/translate", json=body).json()["translations"]
    assert [term["source"] for term in found["glossary"]] == ["a"]


def test_there_are_no_style_rules_and_nothing_that_rephrases(client: deepl.DeepLClient) -> None:
    assert client.get_all_style_rules() == []
    with pytest.raises(deepl.DeepLException, match="Style rules are not supported: no model follows them"):
        client.create_style_rule("x", "de")
    with pytest.raises(deepl.DeepLException, match="Style rule not found"):
        client.get_style_rule("x")
    with pytest.raises(deepl.DeepLException, match="Value for 'target_lang' not supported: no model rephrases"):
        client.rephrase_text("a b", target_lang="DE")


def test_forms_of_glossaries(http: httpx.Client) -> None:
    """As deepl-node sends them."""
    fields = {
        "name": "forms",
        "dictionaries[0].source_lang": "en",
        "dictionaries[0].target_lang": "de",
        "dictionaries[0].entries": "Hund\tcat",
        "dictionaries[0].entries_format": "tsv",
        "dictionaries[1].source_lang": "de",
        "dictionaries[1].target_lang": "en",
        "dictionaries[1].entries": "cat,Hund",
        "dictionaries[1].entries_format": "csv",
    }
    reply = http.post("/v3/glossaries", data=fields)
    assert reply.status_code == 201
    url = f"/v3/glossaries/{reply.json()['glossary_id']}"
    assert [each["entry_count"] for each in reply.json()["dictionaries"]] == [1, 1]
    more = {name: value for name, value in fields.items() if "[0]" in name} | {"dictionaries[0].entries": "Welt\tsun"}
    assert [each["entry_count"] for each in http.patch(url, data=more).json()["dictionaries"]] == [1, 2]
    assert http.delete(url).status_code == 204


def test_glossaries_of_the_native_api(http: httpx.Client, translator: Translator) -> None:
    rows = [["Hund", "cat|bat"], ["Welt", "sun", "exact"]]
    body = {"name": "native", "dictionaries": [{"source": "en", "target": "de", "entries": rows}]}
    reply = http.post("/api/v1/glossaries", json=body)
    assert reply.status_code == 201
    found = reply.json()
    assert found["dictionaries"] == [{"source": "en", "target": "de", "num_entries": 2}]
    assert http.get("/api/v1/glossaries").json() == [found]
    url = f"/api/v1/glossaries/{found['id']}"
    assert http.get(url).json()["dictionaries"] == body["dictionaries"]
    asked = {"text": "Ein Hund. Welt", "source": "en", "target": "de", "glossary": found["id"]}
    (result,) = http.post("/api/v1/translate", json=asked).json()["translations"]
    assert [(each["source"], each["met"]) for each in result["glossary"]] == [("Hund", True), ("Welt", True)]
    assert http.post("/api/v1/translate", json=asked | {"source": "de", "target": "en"}).status_code == 400
    bad = {"name": "x", "dictionaries": [{"source": "en", "target": "de", "entries": [["a"]]}]}
    assert http.post("/api/v1/glossaries", json=bad).status_code == 400
    assert http.delete(url).status_code == 204
    assert http.post("/api/v1/translate", json=asked).status_code == 404


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node.js")
def test_deepl_node(service: RunningService, translator: Translator, tmp_path: Path) -> None:
    installed = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path), "deepl-node@1.28.0"],
        capture_output=True,
        check=False,
    )
    if installed.returncode:
        pytest.skip("npm cannot install deepl-node")
    script = shutil.copy(Path(__file__).with_name("deepl_node.cjs"), tmp_path)
    done = subprocess.run(["node", script, service.url], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    texts = ["Ein Hund.", "Hallo Welt. Guten Morgen!"]
    assert found["list"] == expected(translator, texts)
    assert found["one"] == {"text": found["list"][0], "detectedSourceLang": "en", "billedCharacters": len(texts[0])}
    assert found["whole"] == translator.translate(texts[1]).text
    assert re.fullmatch("<p>.*<b>.*</b>.*</p>", found["html"])
    assert found["detected"]["detectedSourceLang"] == "de"
    assert "'formality' is not supported" in found["formality"]
    assert "Value for 'target_lang' not supported: no model rephrases" in found["rephrased"]
    assert "language pair: No model translates from fr into de" in found["noModel"]
    assert "Value for 'target_lang' not supported" in found["unknown"]
    assert "deprecated" in found["deprecated"]
    assert (found["sources"], found["targets"]) == (["de", "en"], ["de", "en-GB", "en-US"])
    assert not found["limited"]

    second, entries = found["v2"], {"Hund": "cat", 'Sag "Hallo", du': "a, b c"}
    assert (second["counts"], second["entries"], second["names"]) == ([2, 2], [entries] * 2, ["first", "second"])
    assert {"sourceLang": "en", "targetLang": "de"} in second["pairs"]
    assert "cat" in second["text"].lower()
    third = found["v3"]
    assert (third["created"], third["merged"], third["replaced"]) == (
        [1, 1],
        {"Hund": "cat", "Welt": "sun"},
        {"Hund": "bat"},
    )
    assert "bat" in third["text"].lower()
    assert (third["left"], third["names"]) == (["de"], ["renamed"])
    assert all(each["deleted"].startswith("GlossaryNotFoundError") for each in (second, third))


# Keys and limits.


def test_keys_and_limits(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        f'{{ name = "one", sha256 = "{sha256(b"k1").hexdigest()}" }}',
        f'{{ name = "two", sha256 = "{sha256(b"k2").hexdigest()}", characters_per_month = 10 }}',
        f'{{ name = "three", sha256 = "{sha256(b"k3").hexdigest()}", requests_per_minute = 1 }}',
    ]
    path = tmp_path / "serve.toml"
    path.write_text(
        f'models = [{{ path = "{folder / "model"}" }}]\nworkers = 1\nglossary_folder = "kept"\n'
        f"limits.queue_tokens = 100\nkeys = [{', '.join(keys)}]\n"
    )
    text: dict[str, Any] = {"source_lang": "EN", "target_lang": "DE"}
    with running(["--config", str(path)]) as service, contextlib.ExitStack() as stack:
        clients = {
            key: stack.enter_context(contextlib.closing(deepl.DeepLClient(key, server_url=service.url)))
            for key in ("k1", "k2", "k3", "wrong")
        }
        with pytest.raises(deepl.AuthorizationException):
            clients["wrong"].translate_text("a", **text)
        clients["k2"].translate_text("1234567", **text)
        usage = clients["k2"].get_usage().character
        assert (usage.count, usage.limit) == (7, 10)
        with pytest.raises(deepl.QuotaExceededException):
            clients["k2"].translate_text("1234567", **text)
        clients["k3"].translate_text("a", **text)
        with monkeypatch.context() as patch:
            patch.setattr(deepl.http_client, "max_network_retries", 0)
            with pytest.raises(deepl.TooManyRequestsException):
                clients["k3"].translate_text("a", **text)

        glossary = clients["k1"].create_glossary("kept", "EN", "DE", {"Hund": "cat"})
        assert [each.stem for each in (tmp_path / "kept").iterdir()] == [glossary.glossary_id]
        assert clients["k2"].list_glossaries() == []
        with pytest.raises(deepl.GlossaryNotFoundException):
            clients["k2"].delete_glossary(glossary)

        # The queue is full; the client tries again until it is not.
        body = {"text": ["word " * 60] * 30, "source": "en", "target": "de", "options": {"max_length": 200}}
        busy = threading.Thread(
            target=httpx.post,
            args=(f"{service.url}/api/v1/translate",),
            kwargs={"json": body, "headers": {"x-api-key": "k1"}, "timeout": 60},
        )
        busy.start()
        while "headway_queue_tokens 0" in httpx.get(f"{service.url}/metrics").text:
            time.sleep(0.01)
        clients["k1"].translate_text("Hallo!", **text)
        busy.join()

        def statuses() -> list[int]:
            requests = [json.loads(line) for line in list(service.log) if line.startswith("{")]
            return [each["status"] for each in requests if each["path"] == "/v2/translate"]

        wait_until(lambda: statuses()[-1] == 200)  # the log is read in a thread
        assert 429 in statuses()[-5:-1]
