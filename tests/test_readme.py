"""The README and docs/layers.md agree with the code."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LAYERS = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")


def test_the_example_of_the_layers_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", LAYERS, re.DOTALL)
    torch.manual_seed(0)
    exec(example, {})
    printed = capsys.readouterr().out
    assert "0.2992, 0.5329, 0.1679" in printed
    assert printed.endswith("torch.Size([2, 10, 512])\n")


def test_every_link_of_the_readme_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_readme_shows_commands_that_exist() -> None:
    from headway.cli import COMMANDS

    shown = set(re.findall(r"^ +headway ([a-z]+) ", README, re.MULTILINE))
    assert {"translate", "train"} <= shown <= set(COMMANDS)
