"""docs/paper.toml and docs/paper.md: each statement of the paper and its expositions names what decides it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from paper_page import SOURCES, choices_page, decision, page

from headway.experiments import EXPERIMENT_NAMES, load_experiment

ROOT = Path(__file__).parents[2]
TEXTS: dict[str, list[list[str]]] = tomllib.loads((ROOT / "docs" / "paper.toml").read_text(encoding="utf-8"))


def test_the_paper_and_its_five_expositions_are_covered() -> None:
    assert list(TEXTS) == list(SOURCES)


@pytest.mark.parametrize("text", TEXTS)
def test_each_entry_points_to_something_that_exists(text: str) -> None:
    for place, statement, by, *words in TEXTS[text]:
        assert place
        assert statement.endswith((".", "?"))
        kind, _, what = by.removeprefix("opposite of ").partition(" ")
        if kind == "experiment":
            assert len([claim for claim in load_experiment(what).claims if words[0] in claim.text]) == 1, (by, words)
            continue
        assert not words, by
        if kind == "test":
            file, _, name = what.partition("::")
            assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), by
        else:
            assert re.match(r"(open|not testable here), because \w", by), by


def test_a_statement_has_the_opposite_verdict_of_its_opposite() -> None:
    claim = "two convolutions with kernel size 1"
    assert decision("experiment exact-checks", claim)[0] == "holds exactly"
    assert decision("opposite of experiment exact-checks", claim)[0] == "does not hold"
    assert decision("opposite of test tests/nn/test_blocks.py::test_post_norm_by_formula")[0] == "does not hold"


def test_the_pages_are_up_to_date() -> None:
    assert (ROOT / "docs" / "paper.md").read_text(encoding="utf-8") == page(TEXTS)
    assert (ROOT / "docs" / "choices.md").read_text(encoding="utf-8") == choices_page()


def test_every_experiment_on_the_paper_is_named() -> None:
    named = {entry[2].rpartition(" ")[2] for entries in TEXTS.values() for entry in entries if len(entry) == 4}
    assert named == set(EXPERIMENT_NAMES) - {"scaling-laws"}  # about other papers
