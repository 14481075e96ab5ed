"""``headway distill``: from a teacher and a recipe to a trained student, with and without interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from command_line import assert_refused, run, write_lines
from test_commands import LINES, TARGETS, write_recipe

from headway.bundle import Bundle
from headway.config import read_toml
from headway.corpus.lines import one_line
from headway.tasks import parse_recipe


@dataclass(frozen=True)
class Lesson:
    """A teacher, and the recipe that it was trained with."""

    teacher: Path
    recipe: Path


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    folder = tmp_path_factory.mktemp("lesson")
    for split, count in (("train", 20), ("dev", 3)):
        write_lines(folder / f"{split}.de", LINES[:count])
        write_lines(folder / f"{split}.en", TARGETS[:count])
    recipe = write_recipe(folder, folder)
    assert run("train", recipe, "--run", folder / "run", "--set", "model.positions=learned", *LIMIT).code == 0
    return Lesson(folder / "run" / "best", recipe)


LIMIT = ("--set", "model.max_length=40")  # limits the length of a hardly trained model's translations


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return Bundle.load(folder).model.state_dict()


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


@pytest.mark.slow
def test_translates_then_trains(lesson: Lesson, tmp_path: Path) -> None:
    ended = run("distill", lesson.teacher, lesson.recipe, "--run", tmp_path / "run", "--beam-size", 1)
    assert ended.code == 0, ended.err
    assert ended.out == ""
    assert f"20 sources to translate with {lesson.teacher}, beam 1" in ended.err
    assert "translated 20 of 20 sources" in ended.err
    assert "step 6/6" in ended.err
    model = tmp_path / "run" / "average"
    assert ended.err.endswith(f"translate with: headway translate {model}\n")
    translated = run(
        "translate", lesson.teacher, "--precision", "float32", "--beam-size", 1, stdin="\n".join(LINES).encode()
    ).out.split("\n")
    rows = read(tmp_path / "run" / "distilled" / "train-0.jsonl")
    assert [one_line(row["target"]) for row in rows] == translated[:-1]
    # Training directly on the distilled text gives the same result.
    assert run("train", tmp_path / "run" / "recipe.toml", "--run", tmp_path / "again").code == 0
    again = weights(tmp_path / "again" / "average")
    assert all(torch.equal(tensor, again[name]) for name, tensor in weights(model).items())


@pytest.mark.slow
def test_the_same_command_again_translates_and_trains_no_more(lesson: Lesson, tmp_path: Path) -> None:
    command = ("distill", lesson.teacher, lesson.recipe, "--run", tmp_path / "run", "--beam-size", 1)
    assert run(*command, "--set", "training.steps=4").code == 0
    ended = run(*command)
    assert ended.code == 0
    assert "\n0 sources to translate" in "\n" + ended.err
    assert "resuming after step 4" in ended.err
    assert_refused(run(*command[:-1], 2), r"not trained on the translations .* beam size 2 .*--fresh")
    assert_refused(run(*command, "--keep-original"), r"trained with a different recipe")


@pytest.mark.slow
def test_a_fresh_start_keeps_the_translations(lesson: Lesson, tmp_path: Path) -> None:
    command = ("distill", lesson.teacher, lesson.recipe, "--run", tmp_path / "run", "--beam-size", 1)
    assert run(*command).code == 0
    ended = run(*command, "--fresh", "--keep-original")
    assert ended.code == 0, ended.err
    assert f"the earlier run is now {tmp_path / 'run.1'}" in ended.err
    assert "\n0 sources to translate" in ended.err
    assert "resuming" not in ended.err
    student = parse_recipe(read_toml(tmp_path / "run" / "recipe.toml"), "student")
    assert [corpus.fields for corpus in student.data.train] == [("source", "target"), ("source", "original")]


def test_the_run_folder_has_the_recipes_name(lesson: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("distill", lesson.teacher, lesson.recipe, "--beam-size", 1).code == 0
    assert (tmp_path / "runs" / "tiny-distilled" / "average").is_dir()


# Runs the command with chunks of one source, and waits for a signal in the fourth.
_WAITS = """
import time
from headway import cli, distillation
convert, begun = distillation._TeacherMap.convert, []

def convert_or_wait(*arguments):
    begun.append(arguments)
    if len(begun) == 4:
        time.sleep(600)
    return convert(*arguments)

distillation._CHUNK_PAIRS, distillation._TeacherMap.convert = 1, convert_or_wait
cli.main()
"""


def start(command: list[object]) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", _WAITS, *map(str, command)], stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.slow), pytest.param(signal.SIGINT, id="interrupted")],
)
@pytest.mark.slow
def test_stopped_while_translating(
    lesson: Lesson, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finished translations are kept, and the result equals that of an uninterrupted command."""
    corpus = LINES[:5]
    write_lines(tmp_path / "train.de", corpus)
    write_lines(tmp_path / "train.en", corpus)
    for name in ("dev.de", "dev.en"):
        (tmp_path / name).write_bytes((lesson.recipe.parent / name).read_bytes())
    command: list[object] = [
        "distill",
        lesson.teacher,
        lesson.recipe,
        "--set",
        f"data.folder={tmp_path}",
        "--beam-size",
        2,
    ]
    jobs, finished = tmp_path / "run" / "distilled" / "jobs", "*/plan/results/*/*"
    process = start([*command, "--run", tmp_path / "run"])
    assert process.stderr is not None
    while len(list(jobs.glob(finished))) < 3 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == (130 if number == signal.SIGINT else -number), said
    assert number == signal.SIGKILL or "stopped; finished translations are kept; resume with: " in said
    kept = {path: path.stat().st_mtime_ns for path in jobs.glob(finished)}
    assert len(kept) == 3
    monkeypatch.setattr("headway.distillation._CHUNK_PAIRS", 1)
    assert run(*command, "--run", tmp_path / "run").code == 0
    assert run(*command, "--run", tmp_path / "whole").code == 0
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    assert not list((tmp_path / "run").glob("distilled/**/*.part"))
    for name in ("distilled/train-0.jsonl", "best/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_refusals(lesson: Lesson, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    wrong = run("distill", lesson.recipe.parent, lesson.recipe, "--run", folder)
    assert_refused(wrong, r"not a model folder; .*config\.json")
    wrong = run("distill", lesson.teacher, lesson.recipe, "--run", folder, "--set", "task.source_language=fr")
    assert_refused(wrong, r"translates de to en, but the recipe asks for fr to en")
    assert_refused(run("distill", lesson.teacher, tmp_path / "gone.toml"), r"gone\.toml: no such file")
    assert not folder.exists()


def test_several_processes_are_refused(lesson: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    ended = run("distill", lesson.teacher, lesson.recipe, "--run", tmp_path / "run")
    assert_refused(ended, "translates in one process, but torchrun has started several; run it without")
    assert not (tmp_path / "run").exists()
