"""Several processes train exactly as one, even if one is interrupted, killed or fails. Two communicate by gloo here."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from headway.config import to_toml
from headway.errors import CheckpointError, ConfigError, HeadwayError, TrainingError
from headway.storage import lock_run_folder
from headway.tasks import parse_recipe, train
from headway.tasks.translation import TranslationObjective
from headway.training import distributed, loop, snapshot
from headway.training.distributed import World, join_world
from headway.training.loop import Result
from headway.training.optim import clip_and_step, learning_rate
from headway.training.recipe import Recipe
from headway.weights import read_weights

STEPS = 8


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(1)
    words = ["ein", "Haus", "Hund", "rot", "und", "sehr"]
    for name, count in (("train", 80), ("dev", 10)):
        lines = [" ".join(rng.choice(words, rng.integers(1, 6))) for _ in range(count)]
        (folder / f"{name}.de").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        (folder / f"{name}.en").write_text("".join(line.upper() + "\n" for line in lines), encoding="utf-8")
    return folder


def recipe(corpus: Path, **sections: dict[str, Any]) -> Recipe:
    """Eight steps of four micro-batches with dropout; each step is recorded, every third is saved."""
    plain: dict[str, dict[str, Any]] = {
        "data": {
            "folder": str(corpus),
            "train": [{"files": ["train.de", "train.en"]}],
            "dev": {"files": ["dev.de", "dev.en"]},
            "max_tokens": 40,
        },
        "tokenizer": {"kind": "whitespace"},
        "model": {"d_model": 18, "num_heads": 2, "d_ff": 15, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.2},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 2, "clip_norm": 1.0},
        "training": {"steps": STEPS, "accumulate": 4, "precision": "float32", "device": "cpu", "log_every": 1}
        | {"ema": 0.9},
        "validation": {"every": 4, "metric": "loss"},
        "checkpoints": {"every": 3, "keep": 5, "average": 2},
    }
    return parse_recipe({name: {**plain[name], **sections.get(name, {})} for name in plain}, "test")


def losses(run: Path) -> dict[str, float]:
    """Return every loss in the metrics: of each training step, and on the development set."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    found = [(f"{line['kind']} {line['step']}", float(line["loss"])) for line in lines]
    assert len(dict(found)) == len(found), "a record stands there twice"
    return dict(found)


@pytest.fixture(scope="module")
def alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of one process."""
    run = tmp_path_factory.mktemp("alone")
    train(recipe(corpus), run)
    assert list(losses(run)) == [
        *(f"train {step}" for step in range(1, 5)),
        "dev 4",
        *(f"train {step}" for step in range(5, 9)),
        "dev 8",
        "ema 8",
        "average 8",
    ]
    return run


class Pair:
    """Two connected processes that execute the functions they receive."""

    def __init__(self, meeting: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for rank in range(2):
            mine, yours = context.Pipe()
            context.Process(target=_serve, args=(rank, meeting, yours), daemon=True).start()
            self._pipes.append(mine)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return the result or user error of ``function`` in each process; raise any other error."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        answers = []
        for pipe in self._pipes:
            assert pipe.poll(100), "no answer"
            answers.append(pipe.recv())
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, HeadwayError):
                raise answer
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)


def _serve(rank: int, meeting: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send(function(*arguments))
        except Exception as error:
            error.add_note(traceback.format_exc())
            pipe.send(error)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    both = Pair(tmp_path_factory.mktemp("meeting") / "file")
    yield both
    both.close()


def train_interrupted(chosen: Recipe, run: Path, step: int, rank: int) -> Result:
    """Train, and raise SIGINT in one process in the middle of ``step``."""

    def interrupt(number: int, *rest: Any) -> float:
        if number == step and not heard and (not dist.is_initialized() or rank == dist.get_rank()):
            heard.append(number)
            signal.raise_signal(signal.SIGINT)
        return learning_rate(number, *rest)

    heard: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "learning_rate", interrupt)
        return train(chosen, run)


def gradient_norms(chosen: Recipe, run: Path) -> list[float]:
    """Return the norm of all gradients before clipping at each step. Adam would hide a wrong factor."""

    def note(optimizer: torch.optim.Optimizer, clip_norm: float | None = None) -> torch.Tensor:
        gradients = [weight.grad for group in optimizer.param_groups for weight in group["params"]]
        norms.append(sum(float(each.square().sum()) for each in gradients if each is not None) ** 0.5)
        return clip_and_step(optimizer, clip_norm)

    norms: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "clip_and_step", note)
        train(chosen, run)
    return norms


def train_with_one_infinite_loss(chosen: Recipe, run: Path) -> Result:
    """Train; the fifth pass of process 1, in its third step, returns an infinite loss."""
    passes: list[int] = []

    def forward(self: TranslationObjective, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = plain(self, batch)
        passes.append(len(passes) + 1)
        return loss * float("inf") if passes[-1] == 5 and dist.get_rank() == 1 else loss

    plain = TranslationObjective.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationObjective, "forward", forward)
        return train(chosen, run)


def train_in_own_folder(chosen: Recipe, folder: Path) -> Result:
    """Train as if each process had its own file system."""
    return train(chosen, folder / str(dist.get_rank()))


def assert_same_losses(run: Path, expected: Path) -> None:
    assert losses(run) == pytest.approx(losses(expected), rel=2e-4)


class TestLossesEqualThoseOfOneProcess:
    @pytest.mark.slow
    def test_with_dropout(self, corpus: Path, alone: Path, pair: Pair, tmp_path: Path) -> None:
        first, second = pair(train, recipe(corpus), tmp_path)
        assert first == second
        assert first.model_folder in [tmp_path / name for name in ("best", "ema", "average")]
        assert_same_losses(tmp_path, alone)
        names = [sorted(path.name for path in run.iterdir()) for run in (tmp_path, alone)]
        assert names[0] == names[1]
        (start,) = json.loads((tmp_path / "environment.json").read_text())
        assert start["processes"] == 2

    def test_other_dropout_gives_other_losses(
        self, corpus: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The tolerance above distinguishes dropout seeds from the first step on."""
        plain = loop._dropout_seed
        monkeypatch.setattr(loop, "_dropout_seed", lambda seed, step, index: plain(seed, step, index // 2))
        train(recipe(corpus, training={"steps": 1}), tmp_path)
        assert losses(tmp_path)["train 1"] != pytest.approx(losses(alone)["train 1"], rel=2e-3)

    @pytest.mark.slow
    def test_gradients_are_summed_over_the_targets_of_all_processes(
        self, corpus: Path, pair: Pair, tmp_path: Path
    ) -> None:
        chosen = recipe(corpus)
        expected = gradient_norms(chosen, tmp_path / "one")
        assert len(expected) == STEPS
        for found in pair(gradient_norms, chosen, tmp_path / "two"):
            assert found == pytest.approx(expected, rel=2e-3)

    @pytest.mark.slow
    def test_if_one_process_has_more_batches_and_passes_skip_blocks(
        self, corpus: Path, pair: Pair, tmp_path: Path
    ) -> None:
        chosen = recipe(corpus, training={"accumulate": 3}, model={"layer_dropout": 0.5})
        pair(train, chosen, tmp_path / "two")
        train(chosen, tmp_path / "one")
        assert_same_losses(tmp_path / "two", tmp_path / "one")

    @pytest.mark.slow
    def test_of_a_masked_language_model(self, corpus: Path, pair: Pair, tmp_path: Path) -> None:
        """The processes add up their numbers of targets, which are known only when a block is read."""
        sections = {
            "task": {"kind": "masked_language_model"},
            "data": {"folder": str(corpus), "train": [{"files": ["train.de"]}], "max_tokens": 40, "dev_fraction": 0.1},
            "tokenizer": {"kind": "whitespace"},
            "model": {"d_model": 18, "num_heads": 2, "d_ff": 15, "encoder_layers": 1, "max_length": 10},
            "training": {"steps": 6, "accumulate": 3, "precision": "float32", "device": "cpu", "log_every": 1},
            "validation": {"every": 6},
            "checkpoints": {"every": 6, "average": 0},
        }
        chosen = parse_recipe(sections, "test")
        assert [each.step for each in pair(train, chosen, tmp_path / "two")] == [6, 6]
        train(chosen, tmp_path / "one")
        assert_same_losses(tmp_path / "two", tmp_path / "one")

    def test_a_run_moves_from_two_processes_to_one_and_back(
        self, corpus: Path, alone: Path, pair: Pair, tmp_path: Path
    ) -> None:
        chosen = recipe(corpus)
        assert [each.step for each in pair(train_interrupted, chosen, tmp_path, 2, 1)] == [2, 2]
        with pytest.warns(UserWarning, match=r"processes was 2, is 1\): the resumed run is just as good"):
            assert train_interrupted(chosen, tmp_path, 5, 0).step == 5
        assert [each.interrupted for each in pair(train, chosen, tmp_path)] == [False, False]
        assert_same_losses(tmp_path, alone)

    def test_all_processes_skip_a_step_with_an_infinite_loss_in_one(
        self, corpus: Path, pair: Pair, tmp_path: Path
    ) -> None:
        first, second = pair(train_with_one_infinite_loss, recipe(corpus, data={"dev": None}), tmp_path)
        assert first == second
        lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        assert [line["skipped_steps"] for line in lines] == [0, 0, 1, 0, 0, 0, 0, 0]
        folders = (tmp_path / "checkpoints" / f"step-{step}" for step in (3, 6))
        tensors = [
            tensor
            for folder in folders
            for tensor in snapshot.read_snapshot(folder).tensors_of_kind("weights").values()
        ]
        assert tensors
        assert all(tensor.isfinite().all() for tensor in tensors)


class TestRunFolder:
    def test_a_folder_in_use_by_another_training_is_refused(self, corpus: Path, pair: Pair, tmp_path: Path) -> None:
        with lock_run_folder(tmp_path):
            first, second = pair(train, recipe(corpus), tmp_path)
        assert isinstance(first, CheckpointError)
        assert isinstance(second, TrainingError)
        assert f"process {os.getpid()} is training in this folder" in str(first)
        assert str(second) == f"process 0 failed: {first}"

    def test_a_folder_that_processes_do_not_share_is_refused(self, corpus: Path, pair: Pair, tmp_path: Path) -> None:
        pair(train_interrupted, recipe(corpus), tmp_path / "0", 1, 0)
        for error in pair(train_in_own_folder, recipe(corpus), tmp_path):
            assert isinstance(error, CheckpointError)
            assert (
                "ranks disagree on which checkpoint to resume from; put the run folder on a file system shared by all"
                in str(error)
            )


def with_world(function: Callable[[World], Any]) -> Any:
    with join_world("cpu") as world:
        return function(world)


def _vote(world: World) -> tuple[bool, bool, float, list[int]]:
    seen = world.run_on_main_first(lambda: [world.rank])
    return world.any(world.rank == 1), world.any(False), float(world.sum(torch.tensor(world.rank + 1.0))), seen


def _fail_on_main(world: World) -> None:
    world.run_on_main(lambda: (_ for _ in ()).throw(CheckpointError("runs/x: held")))


def _fail(message: str, _: World) -> None:
    raise RuntimeError(message)


class TestWorld:
    def test_agreement_and_sums(self, pair: Pair) -> None:
        assert pair(with_world, _vote) == [(True, False, 3.0, [0]), (True, False, 3.0, [1])]

    def test_all_processes_report_the_error_of_process_0(self, pair: Pair) -> None:
        first, second = pair(with_world, _fail_on_main)
        assert (type(first), str(first)) == (CheckpointError, "runs/x: held")
        assert (type(second), str(second)) == (TrainingError, "process 0 failed: runs/x: held")

    def test_a_lost_connection_is_explained_and_other_errors_are_unchanged(self, pair: Pair) -> None:
        gloo = "[third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"
        for rank, error in enumerate(pair(with_world, partial(_fail, gloo))):
            assert isinstance(error, TrainingError)
            assert str(error).startswith(f"process {rank} lost the connection to another process of this job")
            assert "Run the same command again" in str(error)
        with pytest.raises(RuntimeError, match="a bug"):
            pair(with_world, partial(_fail, "a bug"))

    def test_entries_of_dead_processes_in_the_store_are_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Three processes connect through a store that three others with the same ranks have used."""
        store = dist.HashStore()  # type: ignore[attr-defined]
        monkeypatch.setattr(distributed, "rendezvous", lambda _: iter([(store, 0, 0)]))
        with ThreadPoolExecutor(3) as pool:
            for place in ("old", "new"):
                stores = list(pool.map(distributed._clean_store, range(3), [3] * 3))
                assert not any(each.check(["address"]) for each in stores)
                stores[1].set("address", place)
                assert [each.get("address") for each in stores] == [place.encode()] * 3

    def test_one_process_does_not_wait(self) -> None:
        world = World(torch.device("cpu"))
        assert world.is_main
        assert world.run_on_main(lambda: 3) == world.run_on_main_first(lambda: 3) == 3
        assert [world.any(True), world.any(False)] == [True, False]
        assert float(world.sum(torch.tensor(2.0))) == 2.0

    def test_torchrun_with_one_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
            monkeypatch.setenv(name, value)
        with join_world("cpu") as world:
            assert (world.rank, world.world_size, dist.is_initialized()) == (0, 1, False)

    @pytest.mark.parametrize(
        ("variables", "message"),
        [
            ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK = 2, WORLD_SIZE = 2: expected RANK from 0 to WORLD_SIZE - 1"),
            ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK = -1, WORLD_SIZE = 2: expected"),
            ({"RANK": "1"}, "RANK = 1, WORLD_SIZE = not set: .*torchrun --nproc-per-node .*unset both"),
            ({"WORLD_SIZE": "2"}, "RANK = not set, WORLD_SIZE = 2: expected"),
            ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK = 'one': expected a number, as torchrun sets it"),
            ({"RANK": "1", "WORLD_SIZE": "2"}, "process 1 of 2 cannot connect to the others .*MASTER_ADDR"),
        ],
    )
    def test_wrong_variables_are_named(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
    ) -> None:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError, match=message), join_world("cpu"):
            pass

    def test_more_processes_than_gpus_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        for name, value in {"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "3"}.items():
            monkeypatch.setenv(name, value)
        expected = r"LOCAL_RANK = 2: each process needs a GPU, but this machine has 2; lower --nproc-per-node"
        with pytest.raises(ConfigError, match=expected), join_world("cuda"):
            pass


class TestTorchrun:
    """The documented command."""

    def command(self, folder: Path, chosen: Recipe) -> list[str]:
        file = folder / "recipe.toml"
        file.write_text(to_toml(chosen.as_dict()), encoding="utf-8")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        return [*torchrun, "--max-restarts=1", "-m", "--", "headway", "train", str(file), f"--run={folder / 'run'}"]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1"}

    @pytest.mark.slow
    def test_a_killed_process_is_restarted_and_the_run_resumes(self, corpus: Path, pair: Pair, tmp_path: Path) -> None:
        """After the kill, the run equals an undisturbed run of two processes bit for bit."""
        chosen = recipe(corpus, training={"steps": 120, "log_every": 10}, checkpoints={"every": 10}, data={"dev": None})
        pair(train, chosen, tmp_path / "undisturbed")
        log, checkpoints = tmp_path / "log", tmp_path / "run" / "checkpoints"
        with log.open("w") as file, self.started(self.command(tmp_path, chosen), file) as agent:
            wait_until(lambda: snapshot.checkpoint_folders(checkpoints) != [])
            os.kill(worker(agent.pid, rank=1), signal.SIGKILL)
            assert agent.wait(100) == 0, log.read_text()
        assert log.read_text().count("resuming after step") == 1
        assert losses(tmp_path / "run") == losses(tmp_path / "undisturbed")
        found, expected = (
            read_weights(run / "checkpoints" / "step-120" / "model.safetensors")
            for run in (tmp_path / "run", tmp_path / "undisturbed")
        )
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []

    @contextmanager
    def started(self, command: list[str], log: IO[str]) -> Iterator[subprocess.Popen[str]]:
        agent = subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log, text=True)
        try:
            yield agent
        finally:
            if agent.poll() is None:
                agent.kill()
                agent.wait()

    @pytest.mark.slow
    def test_a_user_error_is_reported_once(self, corpus: Path, tmp_path: Path) -> None:
        command = self.command(tmp_path, recipe(corpus, training={"accumulate": 1}))
        command[command.index("--max-restarts=1")] = "--max-restarts=0"
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 1
        assert done.stderr.count("2 processes share the batches of a step, but training.accumulate = 1") == 1


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def worker(agent: int, rank: int) -> int:
    """Return the process id of a worker of torchrun."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    for child in children:
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(children)
