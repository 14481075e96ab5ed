"""The files of the page: what a browser gets, and the policy for what it may load and call."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from in_process import application
from running_service import unpack_model
from starlette.testclient import TestClient

import headway
import headway.inspection
import headway.serve.page
from headway.predict import DecodingTrace, Flag, TokenAlternative, TracedStep

PACKAGE = Path(headway.__file__).parent
ASSETS = Path(headway.serve.page.__file__).parent / "assets"
FILES = sorted(path for path in ASSETS.rglob("*") if path.is_file())
SHARED = [
    Path(headway.inspection.__file__).parent / "assets" / name for name in headway.serve.page.SHARED_INSPECTION_FILES
]
MAX_BYTES = 400_000


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    return application(unpack_model(tmp_path_factory.mktemp("model")))


def test_the_page_and_its_files_are_served_with_a_policy_that_forbids_inline_code(http: TestClient) -> None:
    for path in ["/", *(f"/page/{each.relative_to(ASSETS)}" for each in FILES)]:
        reply = http.get(path)
        assert reply.status_code == 200, path
        policy = dict(each.split(" ", 1) for each in reply.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert {policy[each] for each in ("script-src", "connect-src")} == {"'self'"}
        assert "unsafe" not in reply.headers["content-security-policy"]
        assert policy["img-src"] == "'self' blob:"  # pictures that scripts of the page have fetched with a key
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert http.get("/").text == (ASSETS / "index.html").read_text(encoding="utf-8")
    assert "javascript" in http.get("/page/main.js").headers["content-type"]  # otherwise browsers do not run modules
    assert "javascript" in http.get("/page/inspection/attention.js").headers["content-type"]


def test_the_page_has_no_inline_code_and_is_small() -> None:
    html = (ASSETS / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|style=|<script(?![^>]* src=)| on\w+=", html)
    assert sum(path.stat().st_size for path in (*FILES, *SHARED)) <= MAX_BYTES


def test_no_file_names_another_host() -> None:
    for path in FILES:
        urls = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w./]*", path.read_text(encoding="utf-8"))
        assert set(urls) <= {"http://www.w3.org/2000/svg"}, path


def test_both_languages_have_the_same_texts_with_the_same_values() -> None:
    def texts(language: str) -> dict[str, set[str]]:
        code = (ASSETS / "strings" / f"{language}.js").read_text(encoding="utf-8")
        found = re.findall(r'^  "([\w.]+)": "(.*)",$', code, re.MULTILINE)
        assert len(found) == len(dict(found)), "a text is defined twice"
        assert len(found) == sum(line.startswith('  "') for line in code.splitlines())
        return {name: set(re.findall(r"\{\w+\}", text)) for name, text in found}

    english = texts("en")
    assert english == texts("de")
    code = "".join(path.read_text(encoding="utf-8") for path in FILES if path.suffix == ".js")
    assert set(re.findall(r'\bt\("([\w.]+)"', code)) <= english.keys()


def test_the_steps_of_a_decoding_have_the_words_of_the_trace() -> None:
    english = (ASSETS / "strings" / "en.js").read_text(encoding="utf-8")
    best = (TokenAlternative("a", 0.0),)
    steps = (
        TracedStep(1, 1, 1, 0.0, ("<bos>",), best, best, given=True),
        TracedStep(2, 1, 1, 0.0, ("<bos>", "a"), (), best),
    )
    encoder, given, dropped = str(DecodingTrace("single", ("b",), steps)).splitlines()
    for name, line in (("why.steps.encoder", encoder), ("why.steps.given", given), ("why.dropped", dropped)):
        (text,) = re.findall(rf'"{re.escape(name)}": "(.*?)(?: {{\w+}})?",', english)
        assert text in line
    (step,) = re.findall(r'"why.steps.step": "(.*)",', english)
    assert given.startswith(f"{step} 1: ")


def test_each_flag_has_a_text_for_sentences_and_for_documents() -> None:
    english = (ASSETS / "strings" / "en.js").read_text(encoding="utf-8")
    for kind in (*get_args(Flag), "unlikely", "glossary", "failed"):
        assert f'"notice.{kind}":' in english
        assert f'"documents.{kind}":' in english


def test_the_translated_messages_are_those_of_the_code() -> None:
    """Each part of a message between two values is in a string of the package."""
    code = (ASSETS / "strings" / "de_messages.js").read_text(encoding="utf-8")
    messages = dict(re.findall(r'^  "(.*?)":\s+"(.*)",$', code, re.MULTILINE))
    assert len(messages) == sum(line.startswith('  "') for line in code.splitlines())
    strings = {text.casefold() for path in PACKAGE.rglob("*.py") for text in string_parts(path)}
    for message, translation in messages.items():
        assert set(re.findall(r"\{\w+\}", translation)) <= set(re.findall(r"\{\w+\}", message)), message
        for part in re.split(r"\{\w+\}|; expected |; |: ", message):
            assert any(part.strip().casefold() in text for text in strings), part


def string_parts(path: Path) -> Iterator[str]:
    """Return the strings of a module; those with values in them without the values."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.split(r"\{[^}]*\}", node.value)


@pytest.mark.parametrize(
    "path",
    [
        "/page/missing.js",
        "/page//etc/passwd",
        "/page/..%2fapp.py",
        "/page/%00",
        "/page/views",
        "/page/inspection/page.html",
    ],
)
def test_only_the_files_of_the_page_are_served(http: TestClient, path: str) -> None:
    reply = http.get(path)
    assert reply.status_code == 404
    assert reply.json()["error"]["status"] == 404


def test_a_browser_asks_whether_a_file_has_changed(http: TestClient) -> None:
    first = http.get("/page/main.js")
    again = http.get("/page/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["cache-control"] == "no-cache"


def test_other_methods_on_the_path_of_the_page_belong_to_an_api(http: TestClient) -> None:
    assert http.head("/").status_code == 200
    other = http.post("/", json={})
    assert other.status_code >= 400
    assert "content-security-policy" not in other.headers
