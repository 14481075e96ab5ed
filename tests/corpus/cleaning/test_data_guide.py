"""docs/data.md shows the configuration as it is, and describes every repair and rule."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from headway.corpus.cleaning.config import CleaningConfig
from headway.corpus.cleaning.rules import RULES_BY_NAME

GUIDE = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_configuration_in_the_guide_is_the_default() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    assert tomllib.loads(block) == CleaningConfig().as_dict()


def test_every_repair_and_rule_is_described() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE)
    assert rows == [*CleaningConfig().repairs, "held_out", *CleaningConfig().rules]
    assert set(RULES_BY_NAME) == {"held_out", *CleaningConfig().rules}
