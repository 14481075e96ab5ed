"""docs/paper.toml: every statement of the paper and of its expositions points to what decides it, or says why not."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from headway.experiments import EXPERIMENT_NAMES

ROOT = Path(__file__).parents[2]
TEXTS: dict[str, list[list[str]]] = tomllib.loads((ROOT / "docs" / "paper.toml").read_text(encoding="utf-8"))


def test_the_paper_and_its_five_expositions_are_covered() -> None:
    assert set(TEXTS) == {"paper", "notebook", "notes", "summary", "article", "classifier"}


@pytest.mark.parametrize("text", TEXTS)
def test_each_entry_points_to_something_that_exists(text: str) -> None:
    for title, says, by in TEXTS[text]:
        assert title
        assert says.endswith((".", "?"))
        kind, _, what = by.partition(" ")
        if kind == "experiment":
            assert what in EXPERIMENT_NAMES, by
        elif kind == "test":
            file, _, name = what.partition("::")
            assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), by
        else:
            assert re.match(r"(open|not testable here), because \w", by), by


def test_every_experiment_on_the_paper_is_named() -> None:
    named = {by.partition(" ")[2] for entries in TEXTS.values() for _, _, by in entries if by.startswith("experiment ")}
    about_other_papers = {"pretraining", "scaling-laws"}
    assert named == set(EXPERIMENT_NAMES) - about_other_papers
