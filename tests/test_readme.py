import re
from pathlib import Path

import pytest
import torch

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "headway.load" not in code]


def test_the_examples_that_need_no_model_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == 1
    torch.manual_seed(0)
    exec(EXAMPLES[0], {})
    printed = capsys.readouterr().out
    assert "0.2992, 0.5329, 0.1679" in printed
    assert printed.endswith("torch.Size([2, 10, 512])\n")


def test_every_command_it_names_exists() -> None:
    from headway.cli import app

    known = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback is not None
    }
    named = set(re.findall(r"headway ([a-z]+)", README))
    assert named - {"doctor"} <= known
    assert known <= named
