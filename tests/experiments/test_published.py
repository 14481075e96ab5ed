"""What docs/experiments publishes: records, table and page agree, and verdicts follow from the recorded numbers."""

from __future__ import annotations

import json
import re
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from pictures import overlapping_texts

from headway.experiments import EXPERIMENT_NAMES, load_experiment
from headway.experiments.experiment import Claim, ExperimentRecord
from headway.experiments.figures import figure_style
from headway.experiments.pool_runs import PoolFolder
from headway.experiments.report import verdict_table
from headway.experiments.verdicts import Verdict, settle

FOLDER = Path(__file__).parents[2] / "docs" / "experiments"


@cache
def records() -> list[ExperimentRecord]:
    found = list[ExperimentRecord]()
    for name in EXPERIMENT_NAMES:
        fields: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        fields["claims"] = tuple(Claim(**each) for each in fields["claims"])
        fields["verdicts"] = tuple(Verdict(**each) for each in fields["verdicts"])
        found.append(ExperimentRecord(**fields))
    return found


def test_the_records_are_those_of_the_experiments() -> None:
    published = {path.stem for path in FOLDER.glob("*.json")}
    assert published == {path.stem for path in FOLDER.glob("*.png")} == set(EXPERIMENT_NAMES)


def test_verdicts_follow_from_the_recorded_numbers() -> None:
    judged = settle([load_experiment(record.name).judge(record.numbers) for record in records()])
    for record, verdicts in zip(records(), judged, strict=True):
        assert verdicts == record.verdicts, record.name
        assert record.claims == load_experiment(record.name).claims, record.name


def test_the_table_and_the_page_show_them() -> None:
    assert (FOLDER / "report.md").read_text(encoding="utf-8") == verdict_table(records())
    page = unescape((FOLDER / "report.html").read_text(encoding="utf-8"))
    for record in records():
        for claim, verdict in zip(record.claims, record.verdicts, strict=True):
            assert claim.text in page
            assert f"{verdict.outcome}</span>: {verdict.reason}" in page


def test_a_claim_that_is_not_decided_says_what_it_lacks() -> None:
    for record in records():
        for verdict in record.verdicts:
            if verdict.outcome == "not decidable here":
                assert re.search(r"would (take|be detected|detect)|not within|cannot test", verdict.reason)


def test_the_documentation_lists_all_experiments() -> None:
    text = (FOLDER.parent / "experiments.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE) == list(EXPERIMENT_NAMES)


@pytest.mark.parametrize("path", sorted((FOLDER / "pool").glob("*.json.xz")), ids=lambda path: path.name)
def test_records_of_the_pool_are_small_and_whole(path: Path) -> None:
    assert path.stat().st_size <= 50_000
    record = PoolFolder(path.parent, path.parent).read(path.name.removesuffix(".json.xz"))
    assert record is not None
    if record["recipe"]["task"].get("kind") == "classification":
        assert all(len(values) == 2000 for values in record.get("measured", {}).get("labels", {}).values())
    else:
        assert record["diverged"] or len(record["log_probs"]) == len(record["translations"]["4"]) == 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENT_NAMES)
def test_no_text_of_a_figure_covers_another(name: str) -> None:
    (record,) = (record for record in records() if record.name == name)
    with figure_style():
        assert overlapping_texts(load_experiment(name).draw(record.numbers)) == []
