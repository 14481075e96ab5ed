"""docs/inspection.md: its commands and Python examples run with tiny models."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from headway.cli import app
from headway.inspection.capture import Kind
from headway.inspection.page_data import MAX_DRAWN_TOKENS
from headway.inspection.results import MAX_WEIGHTS, Inspection
from headway.predict import LanguageModel, MaskedLanguageModel, Translator
from headway.predict.classification.classifier import Classifier

GUIDE = (Path(__file__).parents[1] / "docs" / "inspection.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (headway .*?)(?:  +#.*)?$", GUIDE, re.MULTILINE)


@pytest.fixture(scope="module")
def home(
    make_translator: Callable[..., Translator],
    make_classifier: Callable[..., Classifier],
    make_language_model: Callable[..., LanguageModel],
    make_masked_language_model: Callable[..., MaskedLanguageModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("guide")
    make_translator().bundle.save(folder / "MODEL", "# Card")
    make_classifier(pooling="attention").bundle.save(folder / "CLASSIFIER", "# Card")
    make_language_model().bundle.save(folder / "LANGUAGE_MODEL", "# Card")
    make_masked_language_model().bundle.save(folder / "MASKED_MODEL", "# Card")
    return folder


@pytest.mark.slow
def test_its_commands_run(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(home)
    assert len(COMMANDS) >= 8
    for command in COMMANDS:
        app(shlex.split(command)[1:], standalone_mode=False)
        told = capsys.readouterr()
        assert told.out.startswith('{"format"') if " -o - " in command else told.err.startswith("written: "), command
    written = {path.name for path in home.iterdir() if path.is_file()}
    assert written == {
        *(
            "inspection.html",
            "heads.png",
            "head.png",
            "attention.svg",
            "steps.txt",
            "seen.json",
            "continued.json",
            "hidden.json",
        )
    }
    assert Inspection.from_json((home / "seen.json").read_text(encoding="utf-8")).source == "Das rote Haus."


def test_its_python_runs(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(home)
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(examples) == 3
    names: dict[str, object] = {}
    for example in examples:
        exec(example, names)
    assert "torch.Size([1, 2, 5, 5])" in capsys.readouterr().out
    assert (home / "seen.html").is_file()


def test_its_limits_and_kinds_are_the_codes() -> None:
    assert re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE) == list(get_args(Kind))
    assert f"more than {MAX_DRAWN_TOKENS} tokens" in GUIDE
    assert f"than {MAX_WEIGHTS // 1_000_000} million attention weights" in GUIDE
