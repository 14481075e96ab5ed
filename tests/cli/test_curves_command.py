"""``headway curves``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Ended, assert_refused, run


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    record = {"kind": "train", "step": 5, "learning_rate": 1e-3, "loss": 2.0, "target_tokens_per_s": 9, "elapsed_s": 1}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    return tmp_path / "mine"


def test_draws_in_the_working_directory_and_says_so(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("curves", trained) == Ended(0, "", "written: curves.png\n")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_several_runs_and_options(trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "picture.svg"
    assert run("curves", trained, trained, "-o", output, "--x", "minutes") == Ended(0, "", f"written: {output}\n")
    assert "minutes of training" in output.read_text(encoding="utf-8")


def test_a_run_without_a_step_is_left_out_with_a_line(trained: Path, tmp_path: Path) -> None:
    (waiting := tmp_path / "waiting").mkdir()
    (waiting / "metrics.jsonl").write_text("")
    output = tmp_path / "c.svg"
    left_out = f"{waiting}: skipped, because no training step has been recorded yet\n"
    assert run("curves", waiting, trained, "-o", output) == Ended(0, "", f"{left_out}written: {output}\n")
    assert_refused(run("curves", waiting, "-o", output), r"metrics\.jsonl: no training step recorded yet")


def test_refusals(trained: Path, tmp_path: Path) -> None:
    assert_refused(run("curves", tmp_path / "gone", "-o", tmp_path / "c.png"), r"gone/metrics\.jsonl: cannot be read")
    assert_refused(run("curves", trained, "-o", tmp_path / "c.bmp"), r"c\.bmp: expected a picture")
    assert run("curves").code == 2
    assert run("curves", trained, "--x", "hours").code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
