"""docs/tokenizers.md: its commands and its Python example run, and print what it shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from headway.cli import app
from headway.predict import Translator
from headway.text.tokenizer import TokenizerKind

GUIDE = (Path(__file__).parents[1] / "docs" / "tokenizers.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (headway .*)$", GUIDE, re.MULTILINE)


def test_its_commands_print_what_it_shows(
    make_translator: Callable[..., Translator],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    make_translator().bundle.save(Path("MODEL"), "# Card")
    words = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3
    Path("words.txt").write_text("\n".join(words), encoding="utf-8")
    Path("text.txt").write_text(" ".join(words), encoding="utf-8")
    (shown,) = re.findall(r"```\n(.*?)```", GUIDE, re.DOTALL)
    printed = []
    for command in COMMANDS:
        app(shlex.split(command)[1:], standalone_mode=False)
        printed.append(capsys.readouterr().out)
    assert printed[0] == shown
    assert all(printed)
    assert len(COMMANDS) == 3


def test_its_python_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    exec(example, {})
    *merges, bpe, words, characters = capsys.readouterr().out.splitlines()
    assert merges[0] == "e s 9 ('l', 'o', 'w', 'es', 't')"
    for line, text in ((bpe, "the lowest"), (words, "� �"), (characters, "t�e�lowest")):
        assert line.endswith(f"] {text}")
        assert f"`{text}`" in GUIDE


def test_every_kind_is_described() -> None:
    heading, *rows = re.findall(r"^\| `(\w+)` \|", GUIDE.partition("\n## ")[0], re.MULTILINE)
    assert heading == "kind"
    assert sorted(rows) == sorted(get_args(TokenizerKind))
