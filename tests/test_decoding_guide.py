"""docs/decoding.md: its commands and Python examples run with a tiny model, and its tables list all options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

import headway
from headway.bundle import TaskConfig
from headway.cli import app
from headway.decode import DecodingOptions, Sampling
from headway.predict import Flag, LanguageModel, Translator
from headway.predict.translation.calibration import MIN_TEXTS

GUIDE = (Path(__file__).parents[1] / "docs" / "decoding.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (headway .*?)(?:  +#.*)?$", GUIDE, re.MULTILINE)
RECORD = re.findall(r"^    (\{.*\})$", GUIDE, re.MULTILINE)


@pytest.fixture(scope="module")
def home(
    make_translator: Callable[..., Translator],
    make_language_model: Callable[..., LanguageModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with the guide's files: models with the same byte tokenizer, a language model, and texts."""
    folder = tmp_path_factory.mktemp("guide")
    for name, seed in (("MODEL", 1), ("MODEL2", 2)):
        make_translator("bpe", seed=seed).bundle.save(folder / name, "# Card")
    for source, target in (("de", "en"), ("en", "fr")):
        task = TaskConfig(source_language=source, target_language=target)
        bundle = replace(make_translator("bpe").bundle, task=task)
        bundle.save(folder / f"{source}-{target}".upper(), "# Card")
    for name in ("one.fr", "four.fr", "test_2016_flickr.fr"):
        (folder / name).write_text("la maison rouge\nun arbre\n", encoding="utf-8")
    make_language_model().bundle.save(folder / "LANGUAGE_MODEL", "# Card")
    (folder / "input.en").write_text("the red house\na tree\n", encoding="utf-8")
    (folder / "input.de").write_text("das rote Haus\nein Baum\n", encoding="utf-8")
    for name in ("train.de", "train.en"):
        (folder / name).write_text("das rote Haus\nund ein Baum\n", encoding="utf-8")
    for name in ("test.de", "test.en", "baseline.en"):
        (folder / name).write_text("das rote Haus\nein Baum\n", encoding="utf-8")
    for name, line in (("dev.de", "ein Baum\n"), ("dev.en", "a tree\n")):
        (folder / name).write_text(line * MIN_TEXTS, encoding="utf-8")
    (folder / "terms.tsv").write_text("Haus\tBaum\nrote\tgrüne|und\texact\n", encoding="utf-8")
    (folder / "input.jsonl").write_text(RECORD[0] + "\n", encoding="utf-8")
    return folder


@pytest.mark.slow
def test_its_commands_run(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands run in order, because some read the output of earlier ones. Targets are short, to save time."""
    monkeypatch.chdir(home)
    assert len(COMMANDS) > 15
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        short = ["--max-length", "6"] if words[0] == "translate" and "--max-length" not in words else []
        app([*words, *short], standalone_mode=False)
        out = capsys.readouterr().out
        assert out or "-o" in words, command


@pytest.mark.slow
def test_its_python_runs(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(home)
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(examples) == 9
    names: dict[str, object] = {}
    for example in examples:
        exec(example, names)
    assert isinstance(names["model"], headway.Translator)
    assert capsys.readouterr().out


def table(model: type[BaseModel]) -> str:
    """Return the guide's table of a config: one row for each field."""
    rows = []
    for name, field in model.model_fields.items():
        if name != "sampling":
            default = "none" if field.default is None else field.default
            rows.append(f"| `{name}` | `{default}` | {field.description} |\n")
    return "".join(rows)


@pytest.mark.parametrize("model", [DecodingOptions, Sampling])
def test_its_tables_are_the_fields(model: type[BaseModel]) -> None:
    assert table(model) in GUIDE


def test_every_flag_is_explained() -> None:
    assert re.findall(r"^\| `(\w+)` \| [^`]", GUIDE, re.MULTILINE)[: len(get_args(Flag))] == list(get_args(Flag))
