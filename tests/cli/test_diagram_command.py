"""``headway diagram``."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import assert_refused, run

pytest_plugins = ["model_folders"]  # the fixtures of that file


def test_a_preset_is_drawn_into_a_file_or_printed(tmp_path: Path) -> None:
    output = tmp_path / "model.svg"
    ended = run("diagram", "transformer:tiny", "-o", output, "--shapes")
    assert (ended.code, ended.err) == (0, f"written: {output}\n")
    assert output.read_text(encoding="utf-8").startswith("<svg")
    assert run("diagram", "transformer:tiny", "-o", "-", "--shapes").out == output.read_text(encoding="utf-8")


def test_mistakes_are_refused(tmp_path: Path) -> None:
    assert_refused(run("diagram", "transformer:tiny", "-o", tmp_path / "model.png"), ".svg")
    assert_refused(run("diagram", "nothing"), "no such folder or recipe")
    assert_refused(run("diagram", "transformer:tiny", "--text", "a"), "not a model folder")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["ab", "ein langer Text"])
@pytest.mark.parametrize("level", ["model", "attention"])
@pytest.mark.parametrize("name", ["translator", "classifier", "language_model", "masked"])
def test_a_model_is_drawn_with_a_text(folders: dict[str, Path], name: str, level: str, text: str) -> None:
    ended = run("diagram", folders[name], "-o", "-", "--level", level, "--text", text)
    assert ended.code == 0, ended.err
    assert text in ended.out


@pytest.mark.slow
def test_a_block_has_no_drawing_of_a_text(folders: dict[str, Path]) -> None:
    assert_refused(run("diagram", folders["translator"], "--level", "block", "--text", "a"), "cannot show a text")
