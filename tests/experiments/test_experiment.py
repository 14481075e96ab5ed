"""The framework of the experiments: measurements are never lost, and the page shows everything."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from headway.errors import ConfigError, DataError
from headway.experiments import EXPERIMENT_NAMES, load_experiment
from headway.experiments.code_hash import code_hash, tokens_of
from headway.experiments.experiment import (
    Claim,
    Experiment,
    ExperimentRecord,
    Numbers,
    Settings,
    measure_experiment,
    publish,
    to_json_values,
)
from headway.experiments.figures import figure_style, label, shared_legend, subplots
from headway.experiments.report import write_report
from headway.experiments.verdicts import Verdict
from headway.inspection.picture_files import save_picture

NASTY = '<b title="&">it\'s</b>'


def draw(numbers: Numbers) -> Figure:
    picture, (axes,) = subplots("A line", size=(4, 3))
    axes.plot([1, 2], numbers["values"])
    label(axes, "Values", "step", "value (units)")
    return picture


def run_experiment(experiment: Experiment, settings: Settings, folder: Path, *, command: str = "") -> ExperimentRecord:
    measure_experiment(experiment, settings, folder, command=command)
    return publish([experiment], folder)[0]


class Stub:
    """An experiment that counts its measurements."""

    def __init__(self, name: str = "stub") -> None:
        self.measured = 0
        self.experiment = Experiment(
            name,
            f"Title {NASTY}",
            f"First paragraph {NASTY}\nof two lines\n\n    x = y\n",
            (Claim(f"Claim one {NASTY}", f"source {NASTY}"), Claim("“Claim two”", "paper, 1")),
            self.measure,
            lambda numbers: (
                Verdict("holds exactly", f"because {NASTY}"),
                Verdict("does not hold", f"{numbers['values'][0]}"),
            ),
            draw,
            data_files=("corpus/a.txt",),
            reads_pool=True,
        )

    def measure(self, settings: Settings) -> Numbers:
        self.measured += 1
        rows = [{"name": NASTY, "count": 12345, "share": 0.123456, "no": None, "fast": True, "list": [1, 2]}]
        return {"values": (1.5, float("nan")), "tables": {f"Caption {NASTY}": rows}}


@pytest.fixture(autouse=True)
def _cheap_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of the whole engine takes seconds."""
    monkeypatch.setattr("headway.experiments.experiment.engine_hash", lambda: "a hash")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(True, (1, 2), None, tmp_path / "work", lambda line: None)


class TestRunning:
    def test_files(self, settings: Settings, tmp_path: Path) -> None:
        record = run_experiment(Stub().experiment, settings, tmp_path, command="headway experiment stub")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["stub.json", "stub.png", "stub.svg"]
        found = json.loads((tmp_path / "stub.json").read_text(encoding="utf-8"))
        assert found["claims"][1] == {"text": "“Claim two”", "source": "paper, 1", "literature": ""}
        assert [each["outcome"] for each in found["verdicts"]] == ["holds exactly", "does not hold"]
        assert found["numbers"]["values"] == [1.5, None]
        code = found["how"].pop("code")
        assert re.fullmatch(r"[0-9a-f]{40}", code)
        how = {"form": "quick", "seeds": [1, 2], "data": None, "pool": None, "code is current": True}
        assert found["how"] == how
        assert found["command"] == "headway experiment stub"
        assert {"hardware", "PyTorch", "headway"} <= found["where"].keys()
        assert found["seconds"] > 0
        assert found["date"]
        assert record.verdicts[1].reason == "1.5"
        assert found["explanation"] == f"First paragraph {NASTY}\nof two lines\n\n    x = y"

    def test_what_was_measured_is_judged_and_drawn_again_but_not_measured(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        stub, lines = Stub(), list[str]()
        first = run_experiment(stub.experiment, settings, tmp_path, command="first")
        (tmp_path / "stub.svg").unlink()
        strict = replace(stub.experiment, judge=lambda _: (Verdict("not decidable here", ""),) * 2)
        again = run_experiment(strict, replace(settings, say=lines.append), tmp_path, command="second")
        assert stub.measured == 1
        assert again.verdicts[0].outcome == "not decidable here"
        assert (again.date, again.command, again.numbers) == (first.date, "first", first.numbers)
        assert (tmp_path / "stub.svg").is_file()
        assert "stub: reusing the numbers of" in lines[0]

    def test_other_files_measure_again_wherever_they_lie(self, settings: Settings, tmp_path: Path) -> None:
        stub, out = Stub(), tmp_path / "out"
        for folder in ("one", "two"):
            (tmp_path / folder / "corpus").mkdir(parents=True)
            (tmp_path / folder / "corpus" / "a.txt").write_text("a text", encoding="utf-8")
            (tmp_path / folder / "other.txt").write_text(folder, encoding="utf-8")
        one, two = (
            replace(settings, data_folder=tmp_path / folder, pool_folder=tmp_path / folder / "corpus")
            for folder in ("one", "two")
        )
        run_experiment(stub.experiment, one, out)
        run_experiment(stub.experiment, two, out)
        assert stub.measured == 1
        (tmp_path / "two" / "corpus" / "a.txt").write_text("b text", encoding="utf-8")
        run_experiment(stub.experiment, replace(two, pool_folder=one.pool_folder), out)
        assert stub.measured == 2
        run_experiment(stub.experiment, two, out)
        assert stub.measured == 3

    def test_what_an_experiment_does_not_take_does_not_matter(self, settings: Settings, tmp_path: Path) -> None:
        stub = Stub()
        deaf = replace(stub.experiment, data_files=(), reads_pool=False)
        run_experiment(deaf, settings, tmp_path)
        run_experiment(deaf, replace(settings, data_folder=tmp_path, pool_folder=tmp_path), tmp_path)
        assert stub.measured == 1

    @pytest.mark.parametrize(
        "change", [{"quick": False}, {"seeds": (1,)}, {"pool_folder": Path("m")}, {"data_folder": Path("d")}]
    )
    def test_other_settings_measure_again(self, settings: Settings, tmp_path: Path, change: dict[str, Any]) -> None:
        stub = Stub()
        run_experiment(stub.experiment, settings, tmp_path)
        run_experiment(stub.experiment, replace(settings, **change), tmp_path)
        assert stub.measured == 2

    def test_a_failed_drawing_loses_no_numbers(self, settings: Settings, tmp_path: Path) -> None:
        stub = Stub()

        def fail(_: Numbers) -> Figure:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_experiment(replace(stub.experiment, draw=fail), settings, tmp_path)
        run_experiment(stub.experiment, settings, tmp_path)
        assert stub.measured == 1

    def test_a_failed_measurement_keeps_what_was_there(self, settings: Settings, tmp_path: Path) -> None:
        run_experiment(Stub().experiment, settings, tmp_path)
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}

        def fail(_: Settings) -> Numbers:
            raise DataError("no data")

        with pytest.raises(DataError):
            run_experiment(replace(Stub().experiment, measure=fail), replace(settings, seeds=(9,)), tmp_path)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

    @pytest.mark.parametrize("text", ["{", "[]"])
    def test_damaged_numbers(self, settings: Settings, tmp_path: Path, text: str) -> None:
        (tmp_path / "stub.json").write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=r"stub\.json: .*remove it to measure again"):
            run_experiment(Stub().experiment, settings, tmp_path)

    def test_partial_results_are_computed_once(self, settings: Settings) -> None:
        def never() -> Numbers:
            raise AssertionError

        assert settings.cached("runs/a", lambda: {"x": (1, 2)}) == {"x": [1, 2]}
        assert settings.cached("runs/a", never) == {"x": [1, 2]}

    def test_plain_values(self) -> None:
        given = {1: (np.float64(1.5), torch.tensor([1, 2])), "b": [float("inf"), None, True, np.int64(3)]}
        assert to_json_values(given) == {"1": [1.5, [1, 2]], "b": [None, None, True, 3]}
        with pytest.raises(TypeError, match="object: cannot be stored as JSON"):
            to_json_values(object())


class TestCode:
    MEASURING = """
from lab_package.helping import SIZE as COUNT, helper
from math import sqrt

def measure(settings):
    return {"values": Inner().value(), "x": sqrt(COUNT)}

class Inner:
    def value(self):
        return helper(1)

def judge(numbers):
    return 1
"""
    HELPING = """
SIZE, other = 3, 4

def helper(x):
    return deeper(x)

def deeper(x):
    return x

def unused():
    return 1
"""

    @pytest.mark.parametrize(
        ("file", "old", "new", "other"),
        [
            ("measuring", "return helper(1)", "return helper(2)", True),
            ("helping", "SIZE, other = 3", "SIZE, other = 5", True),
            ("helping", "    return x", "    return x + 1", True),
            ("measuring", "    return 1", "    return 2", False),  # of judge
            ("helping", "    return 1", "    return 2", False),
            ("helping", "def helper", "# a comment\ndef helper", False),
            ("helping", "    return x", '    "A docstring."\n    return x', False),
        ],
    )
    def test_is_what_measuring_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str, other: bool
    ) -> None:
        package = tmp_path / "lab_package"
        package.mkdir()
        for name, text in (("__init__", ""), ("measuring", self.MEASURING), ("helping", self.HELPING)):
            (package / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in ("lab_package", "lab_package.measuring", "lab_package.helping"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        measure = import_module("lab_package.measuring").measure
        before = code_hash(measure)
        assert code_hash(measure) == before
        path = package / f"{file}.py"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        assert (code_hash(measure) != before) is other

    def test_of_real_ones_differs(self) -> None:
        assert len({code_hash(load_experiment(name).measure) for name in EXPERIMENT_NAMES}) == len(EXPERIMENT_NAMES)

    def test_other_code_measures_again(
        self, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stub, said = Stub(), list[str]()
        settings = replace(settings, say=said.append)
        for code in ("one", "one", "two"):
            monkeypatch.setattr("headway.experiments.experiment.code_hash", lambda _, code=code: code)
            run_experiment(stub.experiment, settings, tmp_path)
        assert stub.measured == 2
        assert said[-1].startswith(f"{tmp_path / 'stub.json'}: measuring again, because this has changed")
        assert said[-1].endswith(": code")


class TestNames:
    @pytest.mark.parametrize("name", EXPERIMENT_NAMES)
    def test_each_is_there(self, name: str) -> None:
        experiment = load_experiment(name)
        assert experiment.name == name
        assert experiment.claims
        assert len(experiment.description) > 200
        assert "`" not in experiment.description  # shown in the report unchanged
        for claim in experiment.claims:
            assert claim.source
            assert claim.text.endswith((".", "?", "”"))
            assert not (claim.text.startswith("“") and claim.source.startswith("ours"))

    def test_an_unknown_one(self) -> None:
        with pytest.raises(ConfigError, match="no experiment 'scalin'; did you mean 'scaling'"):
            load_experiment("scalin")
        with pytest.raises(ConfigError, match=r"no experiment 'zzz'; known: all, choices, .*scaling-laws"):
            load_experiment("zzz")


class Page(HTMLParser):
    """Collects the content of a page, and checks that tags are nested correctly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


class TestReport:
    @pytest.fixture
    def records(self, settings: Settings, tmp_path: Path) -> list[ExperimentRecord]:
        commands = {"one": "headway experiment one", "two": f"headway {NASTY}"}
        return [run_experiment(Stub(name).experiment, settings, tmp_path, command=commands[name]) for name in commands]

    def test_shows_everything_and_escapes_it(self, records: list[ExperimentRecord], tmp_path: Path) -> None:
        write_report(records, tmp_path, tmp_path / "report.html")
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert NASTY not in text
        assert "<b" not in text.split("<body>")[1].replace("<body", "")
        page = Page(text)
        for words in (
            *(
                "Title",
                "Claim one",
                "“Claim two”",
                "source",
                "because",
                "First paragraph",
                "    x = y",
                "Caption",
            ),
            *("headway experiment one", f"headway {NASTY}"),
            *("12,345", "0.1235", "–", "yes", "1, 2", "✓ holds exactly", "✗ does not hold"),
            "2 experiments, 4 claims: holds exactly 2, does not hold 2.",
        ):
            assert words in page.words
        assert page.words.count(NASTY) >= 12
        assert "“Claim one" not in page.words  # our words

    def test_needs_no_network(self, records: list[ExperimentRecord], tmp_path: Path) -> None:
        write_report(records, tmp_path, tmp_path / "report.html")
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        page = Page(text)
        assert not re.search(r"https?:|url\(|@import|<script|<link", text)
        images = [attributes for tag, attributes in page.tags if tag == "img"]
        assert len(images) == 2
        assert all((each["src"] or "").startswith("data:image/svg+xml;base64,") and each["alt"] for each in images)
        places = {attributes["id"] for tag, attributes in page.tags if tag == "section"}
        links = {(attributes["href"] or "").removeprefix("#") for tag, attributes in page.tags if tag == "a"}
        assert links == places == {"one", "two"}

    def test_light_and_dark(self, records: list[ExperimentRecord], tmp_path: Path) -> None:
        write_report(records, tmp_path, tmp_path / "report.html")
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert "prefers-color-scheme: dark" in text
        assert "color-scheme: light dark" in text


class TestDrawing:
    def test_logarithmic_ticks_are_plain_text(self, tmp_path: Path) -> None:
        with figure_style():
            picture, (axes, other) = subplots("Title", 1, 2, size=(8, 3))
            axes.plot([1, 10, 100], [1e-8, 1, 20_000], label="one")
            other.plot([1, 3], [5e11, 3e13], label="two")
            label(axes, "Powers", "x (units)", "y (units)", log="xy")
            label(other, "Large numbers", "x (units)", "y (units)", log="y")
            shared_legend(picture, axes, other)
            save_picture(picture, tmp_path / "a.svg")
            save_picture(picture, tmp_path / "b.svg")
        text = (tmp_path / "a.svg").read_text(encoding="utf-8")
        assert {"10⁻⁸", "10", "100", "one", "two", "5·10¹¹", "10¹²", "2·10¹²"} <= set(
            re.findall(r">([^<>]+)</text>", text)
        )
        assert "mathdefault" not in text
        assert text == (tmp_path / "b.svg").read_text(encoding="utf-8")  # the same numbers, the same file


def test_tokens_leave_out_what_does_not_matter() -> None:
    code = '"""A docstring."""\ndef f(x):\n    """Another."""\n    return (x +  # why\n        1)\n'
    assert tokens_of(code) == tokens_of("def f(x):\n    return (x + 1)\n")
    assert tokens_of(code) != tokens_of("def f(x):\n    return (x + 2)\n")
    assert tokens_of("if a:\n    b\nc\n") != tokens_of("if a:\n    b\n    c\n")
