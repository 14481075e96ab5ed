"""Training in several processes: only one prints, and only one starts a run over."""

from __future__ import annotations

import gc
import sys
import warnings
from pathlib import Path

import pytest
import typer

from headway import cli
from headway.calls.progress import ProgressListener
from headway.cli.commands.train import train
from headway.cli.commands.translate import without_garbage_collection
from headway.cli.training_runs import print_next_command
from headway.errors import ConfigError, TrainingError
from headway.training import loop
from headway.training.loop import Result
from headway.training.previous_run import move_previous_run_aside


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records the waiting times without waiting."""
    seconds: list[float] = []
    monkeypatch.setattr("time.sleep", seconds.append)
    return seconds


@pytest.fixture(params=[None, "0", "3"])
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    monkeypatch.delenv("RANK", raising=False)
    if request.param is not None:
        monkeypatch.setenv("RANK", request.param)
    return request.param  # type: ignore[no-any-return]


def test_an_error_is_told_by_process_0_and_late_by_the_others(
    rank: str | None, waits: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["headway", "train", "nowhere.toml"])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # restored afterwards
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    who = "process 3: " if rank == "3" else ""
    assert capsys.readouterr().err == f"headway: {who}nowhere.toml: no such file\n"
    assert len(waits) == (rank == "3")


def test_results_warnings_and_progress_come_from_process_0(
    rank: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    print_next_command(Result(7, False, Path("runs/x/best"), {}))
    with pytest.raises(typer.Exit):
        print_next_command(Result(7, True, None, {}))
    cli._warn(UserWarning("the disk is nearly full"))
    ProgressListener().on_message("resuming after step 7")
    said = capsys.readouterr().err
    for words in ("model: runs/x/best", "saved after step 7", "warning: the disk is nearly full", "resuming after"):
        assert (words in said) == (rank != "3")


def test_the_command_to_go_on_is_torchruns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(typer.Exit):
        print_next_command(Result(7, True, None, {}))
    assert capsys.readouterr().err == "stopped and saved after step 7; resume with: the same torchrun command\n"


@pytest.mark.parametrize(("rank", "restarts", "moved"), [("0", "0", True), ("1", "0", False), ("0", "1", False)])
def test_an_earlier_run_is_moved_aside_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, restarts: str, moved: bool
) -> None:
    """Only one process moves the earlier run, and a restart by torchrun does not move the run that it resumes."""

    def stop(*_: object, **__: object) -> Result:
        raise ConfigError("far enough")

    monkeypatch.setattr(loop, "train", stop)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    recipe, run = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text('[data]\ntrain = [{ files = ["a", "b"] }]\n', encoding="utf-8")
    (run / "checkpoints" / "step-3").mkdir(parents=True)
    monkeypatch.setattr(Path, "rename", lambda self, target: renamed.append(target))
    renamed: list[Path] = []
    with pytest.raises(ConfigError, match="far enough"):
        train(recipe, run=run, fresh=True)
    assert renamed == ([tmp_path / "run.1"] if moved else [])


@pytest.mark.parametrize("restarts", ["0", "2"])
def test_an_earlier_run_is_not_put_where_torchrun_would_resume_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: str
) -> None:
    """If a process dies before the first save, the restart does not start over a second time."""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)

    def begin() -> None:
        with move_previous_run_aside(run, fresh=True, say=lambda _: None):
            run.mkdir()
            raise TrainingError("process 0 has lost the connection")

    run = tmp_path / "run"
    (run / "checkpoints" / "step-3").mkdir(parents=True)
    with pytest.raises(TrainingError, match="lost"):
        begin()
    assert (run / "checkpoints" / "step-3").is_dir() == (restarts == "0")
    assert (tmp_path / "run.1" / "checkpoints" / "step-3").is_dir() == (restarts == "2")


def test_imports_are_not_searched_for_garbage() -> None:
    try:
        with without_garbage_collection():
            assert not gc.isenabled()
        assert gc.isenabled()
        frozen = gc.get_freeze_count()
        assert frozen > 0
        with without_garbage_collection():
            pass
        assert gc.get_freeze_count() == frozen, "only the first time"
    finally:
        gc.unfreeze()
