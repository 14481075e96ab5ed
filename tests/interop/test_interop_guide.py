"""docs/interop.md: its example runs, and everything that it names exists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from foreign import marian

from headway.cli import app
from headway.interop.exporting import export_to
from headway.interop.huggingface.causal_families import CAUSAL_FAMILIES
from headway.interop.huggingface.classifier_families import CLASSIFIER_FAMILIES
from headway.interop.huggingface.families import FAMILIES
from headway.interop.huggingface.masked_families import MASKED_FAMILIES
from headway.interop.huggingface.t5_importing import T5_FAMILIES
from headway.interop.onnx import OnnxModel

GUIDE = (Path(__file__).parents[2] / "docs" / "interop.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> list[str]:
    """Return the first column of the table whose heading starts with the given text."""
    table = GUIDE[GUIDE.index(f"| {heading}") :].partition("\n\n")[0]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def test_its_tables_of_families_are_complete() -> None:
    kinds: dict[str, Mapping[str, object]] = {
        "family": {**FAMILIES, **T5_FAMILIES},
        "language model": CAUSAL_FAMILIES,
        "masked model": MASKED_FAMILIES,
        "classifier": CLASSIFIER_FAMILIES,
    }
    for heading, families in kinds.items():
        named = [re.findall(r"`(\w+)`", cell) for cell in first_cells(f"{heading} (`model_type`)")]
        assert sorted(name for names in named for name in names) == sorted(families)


def test_every_command_that_it_names_exists() -> None:
    known = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback is not None
    }
    named = set(re.findall(r"headway ([a-z]+)", GUIDE))
    assert {"import", "export", "translate"} <= named
    assert named <= known


def test_its_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    marian(tmp_path / "opus-mt-de-en", scale_embedding=True)
    capsys.readouterr()
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    printed = capsys.readouterr().out.strip()
    assert printed
    export_to("onnx", names["found"].bundle, Path("opus-onnx"))
    assert OnnxModel.load(Path("opus-onnx")).max_length == 1024
    assert names["headway"].load("opus-onnx").translate("Der Frosch schläft.").text == printed
