"""``headway inspect``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Ended, assert_refused, run

from headway.inspection.results import Inspection
from headway.predict import Translator
from headway.predict.classification.classifier import Classifier


@pytest.fixture(scope="module")
def folder(
    make_translator: Callable[..., Translator],
    make_classifier: Callable[..., Classifier],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_translator(decoder_layers=2).bundle.save(folder / "translator", "# Card")
    make_classifier(pooling="attention").bundle.save(folder / "classifier", "# Card")
    return folder


def test_a_page_is_what_one_gets(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("inspect", folder / "translator", "das Haus") == Ended(0, "", "written: inspection.html\n")
    text = (tmp_path / "inspection.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert '"view":{"kind":"cross","layer":2,"head":0}' in text.replace("\\u003c", "<")
    run("inspect", folder / "translator", "das Haus", "--kind", "encoder", "--head", "-1")
    assert '"view":{"kind":"encoder","layer":1,"head":2}' in (tmp_path / "inspection.html").read_text(encoding="utf-8")


def test_json_on_standard_output_and_in_a_file(folder: Path, tmp_path: Path) -> None:
    asked = ("inspect", folder / "translator", "das Haus", "ein Baum", "--layer", "2", "--alternatives", "2", "-o")
    printed = run(*asked, "-")
    assert printed.code == 0, printed
    values = json.loads(printed.out)
    assert (values["source"], values["target"], values["target_given"]) == ("das Haus", "ein Baum", True)
    assert values["model"] == str(folder / "translator")
    assert {len(step["alternatives"]) for step in values["steps"]} == {2}
    assert [(each["kind"], each["layer"]) for each in values["maps"]] == [("decoder", 2), ("cross", 2)]
    ended = run(*asked, tmp_path / "seen.json", "--kind", "cross")
    assert ended == Ended(0, "", f"written: {tmp_path / 'seen.json'}\n")
    seen = Inspection.from_json((tmp_path / "seen.json").read_text(encoding="utf-8"))
    assert [(each.kind, each.layer, each.heads) for each in seen.maps] == [("cross", 2, (1, 2))]


def test_pictures(folder: Path, tmp_path: Path) -> None:
    for name, options in (("a.png", ()), ("b.svg", ("--kind", "decoder", "--layer", "1", "--head", "2"))):
        assert run("inspect", folder / "translator", "das Haus", "-o", tmp_path / name, *options).code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "Decoder self-attention, layer 1 of 2, head 2" in (tmp_path / "b.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_steps_as_text_have_the_words_of_a_trace(folder: Path, tmp_path: Path) -> None:
    """The most probable tokens of the model's own translation are those of the search that has found it."""
    file = tmp_path / "steps.txt"
    assert run("inspect", folder / "translator", "das Haus", "-o", file) == Ended(0, "", f"written: {file}\n")
    lines = file.read_text(encoding="utf-8").splitlines()
    traced = run("translate", folder / "translator", "das Haus", "--trace", "--precision", "float32").out.splitlines()
    assert (lines[0], lines[-1]) == (traced[0], traced[-1])
    found = dict(map(parts, traced[1:-1]))
    for line in lines[1:-1]:
        assert re.match(r"Step \d+: <bos> ", line), line
        input_, best = parts(line)
        assert found[input_] == best
    ended = run("inspect", folder / "translator", "das Haus", "-o", file, "--layer", "1")
    assert_refused(ended, "kind, layer and head select attention, which a .txt file does not contain")
    assert_refused(
        run("inspect", folder / "classifier", "das Haus", "-o", file), "a classifier model does not decode step by step"
    )


def parts(line: str) -> tuple[str | None, str]:
    """Return the decoder input of a line and its most probable tokens. The input is None in lines of results."""
    found = re.fullmatch(r"Step .*?: (<bos>.*) → .* \| (.*)", line)
    return (found[1], re.sub(r" <?[\d.]+ %", "", found[2])) if found else (None, line)


def test_a_classifier(folder: Path, tmp_path: Path) -> None:
    printed = run("inspect", folder / "classifier", "das Haus", "Baum", "-o", "-")
    values = json.loads(printed.out)
    assert values["attribution"]["label"] == "Baum"
    assert sum(values["labels"].values()) == pytest.approx(1, abs=1e-5)
    assert [each["kind"] for each in values["maps"]] == ["encoder", "pooling"]
    assert run("inspect", folder / "classifier", "das Haus", "-o", tmp_path / "page.html").code == 0
    assert_refused(run("inspect", folder / "classifier", "das", "Baun"), "unknown label 'Baun'")
    assert_refused(
        run("inspect", folder / "classifier", "das", "--to", "en"), "a classifier has no languages to choose"
    )
    assert_refused(run("inspect", folder / "classifier", "das", "--alternatives", "2"), "predicts no tokens")
    assert_refused(run("inspect", folder / "classifier", "das", "--kind", "cross"), "no such attention")


def test_refusals(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = folder / "translator"
    assert_refused(run("inspect", model, "das", "-o", "a.bmp"), r"a\.bmp: expected a name that ends in \.html")
    assert_refused(run("inspect", model, " "), "the source is blank")
    assert_refused(run("inspect", model, "das", "--layer", "9"), "layer 9: expected 1 to 2, or from the end -1 to -2")
    assert_refused(run("inspect", model, "das", "--head", "0", "-o", "a.png"), "head 0: expected 1 to 2")
    assert_refused(run("inspect", model, "das", "--kind", "pooling"), "no such attention; it has cross")
    assert_refused(run("inspect", tmp_path / "gone", "das"), "gone: no such folder")
    long = "das Haus " * 150
    assert_refused(run("inspect", model, long), r"a source of \d+ tokens is longer than the 256")
    readable = "Haus " * 220
    assert_refused(run("inspect", model, readable, "das", "-o", "a.png"), r"too long to draw: .*\.json")
    assert run("inspect", model, "das", "--kind", "sideways").code == 2
    assert_refused(run("inspect", model, "das", "Haus " * 5000), "5,002 target tokens has [0-9,]+ weights, more than")
    assert list(tmp_path.iterdir()) == []
