from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import learning
import pytest
from contest import ContestantError


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "POLL_S", 0.05)


def racer(name: str, folder: Path, code: str) -> learning.Racer:
    def marks() -> list[int]:
        return sorted(int(path.stem) for path in folder.glob(f"{name}-run/*.mark"))

    return learning.Racer(name, [sys.executable, "-c", code], marks, float)


def test_what_each_reached_is_noted_with_its_time_until_both_have_ended(tmp_path: Path) -> None:
    (tmp_path / "slow-run").mkdir()
    (tmp_path / "fast-run").mkdir()
    fast = racer("fast", tmp_path, "import pathlib; pathlib.Path('fast-run/100.mark').touch()")
    wait = "import pathlib, time\nwhile not pathlib.Path('fast-is-seen').exists(): time.sleep(0.01)\n"
    slow = racer("slow", tmp_path, wait + "pathlib.Path('slow-run/7.mark').touch()")
    slow_marks = slow.marks

    def slow_marks_after_fast() -> list[int]:
        if fast.seen:
            (tmp_path / "fast-is-seen").touch()
        return slow_marks()

    slow.marks = slow_marks_after_fast
    learning.race([fast, slow], tmp_path, 60)
    [(fast_s, fast_step)], [(slow_s, slow_step)] = fast.seen, slow.seen
    assert (fast_step, slow_step) == (100, 7)
    assert fast_s < slow_s < 60


def test_when_the_time_is_up_both_are_stopped(tmp_path: Path) -> None:
    endless = racer("endless", tmp_path, "import time; print('begun', flush=True); time.sleep(600)")
    learning.race([endless], tmp_path, 0.5)
    assert endless.seen == []
    assert (tmp_path / "endless.log").read_text() in ("", "begun\n")


def test_one_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContestantError, match=r"broken ended with status 3; see .*broken\.log"):
        learning.race([racer("broken", tmp_path, "raise SystemExit(3)")], tmp_path, 60)


def test_headways_scores_are_its_runs(tmp_path: Path) -> None:
    ours = learning.headway(tmp_path / "data", tmp_path, steps=300, every=100)
    assert ours.marks() == []
    (tmp_path / "headway").mkdir()
    lines = ['{"kind": "train", "step": 50}', '{"kind": "dev", "step": 100, "BLEU": 1.5}']
    (tmp_path / "headway" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert ours.marks() == [100]
    assert ours.score(100) == 1.5


def test_curves_are_drawn(tmp_path: Path) -> None:
    results: dict[str, Any] = {"corpus": "c", "processor": "p", "scores": {"a": [(60, 1, 2.0)], "b": []}}
    learning.draw(results, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
