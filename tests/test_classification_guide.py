"""docs/classification.md: its recipe trains, and its commands and Python examples run with the trained model."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

import headway
from headway.cli import app
from headway.models.classifier import ClassifierConfig
from headway.training.recipe import Recipe

GUIDE = (Path(__file__).parents[1] / "docs" / "classification.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (headway .*)$", GUIDE, re.MULTILINE)
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
(RECIPE,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
LINES = re.findall(r"^    ((?:Sports|Business)\t.*)$", GUIDE, re.MULTILINE)
SMALL = {
    "tokenizer.vocab_size": "300",
    "model.d_model": "8",
    "model.num_heads": "2",
    "model.d_ff": "8",
    "optimizer.warmup_steps": "1",
    "training.steps": "3",
    "training.device": "cpu",
    "validation.every": "3",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the guide uses."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "mine.toml").write_text(RECIPE, encoding="utf-8")
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(LINES * 4) + "\n", encoding="utf-8")
    (folder / "texts.txt").write_text("Shares fall\nThe match ended\n", encoding="utf-8")
    return folder


def test_all_of_it_runs(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands run in order. The first one trains the model, in few steps and with a small size."""
    monkeypatch.chdir(home)
    assert [command.split()[1] for command in COMMANDS] == ["train", *["classify"] * 3, "evaluate", "classify"]
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        if words[0] == "train":
            words += [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
        app(words, standalone_mode=False)
        assert capsys.readouterr().out or "-o" in words or words[0] == "train", command
    assert (home / "labels.tsv").read_text(encoding="utf-8").count("\n") == 2
    assert (home / "matrix.png").is_file()
    names: dict[str, object] = {}
    for example in EXAMPLES:
        exec(example, names)
    assert isinstance(names["model"], headway.Classifier)
    assert set(names["model"].labels) == {"Sports", "Business"}
    assert len(EXAMPLES) == 2
    assert capsys.readouterr().out


def test_every_key_that_it_names_exists() -> None:
    rows = re.findall(r"^\| (`.*?) \|", GUIDE, re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert len(keys) > 8
    assert keys <= set(ClassifierConfig.model_fields)
    sections = re.findall(r"`(data|training|validation)\.(\w+)", GUIDE)
    assert len(sections) > 4
    for section, key in sections:
        assert key in getattr(Recipe.model_fields[section].annotation, "model_fields"), key  # noqa: B009
    assert tomllib.loads(RECIPE)["task"]["kind"] == "classification"


def test_every_file_that_it_names_exists() -> None:
    for path in re.findall(r"`(recipes/[\w./-]+\.toml)`", GUIDE):
        assert (Path(__file__).parents[1] / path).is_file(), path
    for path in re.findall(r"\]\((\w+\.md)\)", GUIDE):
        assert (Path(__file__).parents[1] / "docs" / path).is_file(), path
