"""docs/recurrent.md: its recipe parses, its example runs, and its tables name every form."""

import re
import textwrap
import tomllib
from pathlib import Path
from typing import get_args

from headway.models.recurrent import RecurrentConfig
from headway.nn.scores import ScoreKind

GUIDE = (Path(__file__).parents[1] / "docs" / "recurrent.md").read_text(encoding="utf-8")


def test_its_recipe_parses() -> None:
    (block,) = re.findall(r"^    \[model\]\n(?:    .*\n)+", GUIDE, re.MULTILINE)
    config = RecurrentConfig.parse(tomllib.loads(textwrap.dedent(block))["model"], "guide")
    assert (config.attention, config.input_feeding, config.d_model) == ("luong", True, 256)


def test_its_example_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    printed: list[object] = []
    exec(compile(block, "guide", "exec"), {"print": printed.append})
    assert printed == [(2, 1, 3, 4)]


def test_its_tables_name_every_option() -> None:
    named = set(re.findall(r"`([a-z_]+)`", "".join(line for line in GUIDE.splitlines() if line.startswith("|"))))
    options = {"attention", "context"}
    for key in options:
        assert {value for value in _literals(key) if value} <= named
    assert set(get_args(ScoreKind)) <= named


def _literals(key: str) -> set[str]:
    annotation = RecurrentConfig.model_fields[key].annotation
    values = get_args(annotation)
    return {literal for value in values for literal in (get_args(value) or (value,)) if isinstance(literal, str)}
