"""``headway diagram``."""

from __future__ import annotations

from pathlib import Path

from command_line import assert_refused, run


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
