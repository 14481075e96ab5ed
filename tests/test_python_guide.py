"""docs/python.md: its code runs, with fewer steps, and its table names commands and calls that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headway
from headway.cli import app

GUIDE = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = [
    re.sub("^    ", "", block, flags=re.MULTILINE)
    for block in re.findall(r"(?:^    .*\n(?:\n(?=    ))*)+", GUIDE, re.MULTILINE)
]
RECIPE = """
[data]
train = [{ files = ["runs/numbers/data/train.jsonl"] }]
[tokenizer]
kind = "whitespace"
[model]
preset = "tiny"
[training]
steps = 2
device = "cpu"
[checkpoints]
average = 0
"""


def test_a_first_model_takes_about_twenty_lines() -> None:
    assert len([line for line in BLOCKS[0].splitlines() if line]) <= 21


@pytest.mark.slow
@pytest.mark.usefixtures("kinds_of_this_test")
def test_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headway.hardware.keep_freed_memory", lambda: None)  # it would change the process of the tests
    Path("recipe.toml").write_text(RECIPE, encoding="utf-8")
    pairs = [("eins", "one"), ("zwei", "two")] * 8
    names: dict[str, object] = {"__name__": "__main__", "train_pairs": pairs, "dev_pairs": pairs}
    for block in BLOCKS:
        code = block.replace('"steps": 400', '"steps": 2, "device": "cpu"').replace("steps=500", "steps=2")
        code = code.replace('"steps": 2000', '"steps": 2, "device": "cpu"')
        code = code.replace('"recipe.toml", run', '"recipe.toml", training={"steps": 2, "log_every": 1}, run')
        exec(compile(code, "docs/python.md", "exec"), names)
    printed, reported = capsys.readouterr()
    assert printed.count("BLEU") >= 2
    assert reported == ""
    assert Path("block.svg").is_file()


def test_the_shortest_first_model_has_as_many_lines_as_the_table_says() -> None:
    lines = [line for line in BLOCKS[1].splitlines() if line]
    assert lines[-1].startswith("run.model.translate")
    counts = {name: int(count) for name, count in re.findall(r"^\| ([^|]+) \| (\d+) \|", GUIDE, re.MULTILINE)}
    assert counts.pop("Headway") == len(lines)
    assert [name for name, count in counts.items() if count <= len(lines)] == ["fastText"]


def test_its_table_names_commands_and_calls_that_exist() -> None:
    table = GUIDE[GUIDE.index("## Commands and calls") :]
    callbacks = [command.callback for command in app.registered_commands if command.callback is not None]
    known = {callback.__name__.removesuffix("_") for callback in callbacks}
    commands, names = set(re.findall(r"`headway (\w+)`", table)), set(re.findall(r"`headway\.(\w+)`", table))
    calls = names - {"calls", "predict"}
    assert len(commands) >= 9
    assert commands <= known
    assert calls <= set(headway.__all__)
    functions = {name for name in headway.__all__ if name[0].islower()}
    assert functions == calls, "docs/python.md, Commands and calls, has a row for each function of headway.__all__"
