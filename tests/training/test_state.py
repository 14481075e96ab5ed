"""Checkpoints: everything is restored bit for bit, and damaged files are never used."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway import storage
from headway.errors import CheckpointError, HeadwayError, OutputError
from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.training import checkpoints as checkpoints_module
from headway.training import snapshot as state
from headway.training.checkpoints import Checkpoints
from headway.training.optim import OptimizerConfig, make_optimizer
from headway.training.snapshot import (
    Progress,
    Snapshot,
    average_weights,
    checkpoint_folders,
    load_snapshot,
    optimizer_moments,
    prefixed_tensors,
    read_snapshot,
    write_snapshot,
)
from headway.weights import named_weights

SIZES = {"d_model": 4, "num_heads": 1, "d_ff": 4, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


class Trainee:
    """A model with its optimizer, and steps that change both."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model: Transformer = build_model(TransformerConfig.parse(SIZES, "test"), 8, 8)
        self.optimizer = make_optimizer(self.model, OptimizerConfig())
        self.optimizer.param_groups[0]["lr"] = 0.01

    def step(self, seed: int) -> None:
        tokens = torch.randint(0, 8, (2, 5), generator=torch.Generator().manual_seed(seed))
        self.model(tokens, tokens).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, folder: Path, progress: Progress, *, keep: int = 5, keep_best: int = 0, **options: Any) -> Path:
        """Save, and wait for it."""
        with Checkpoints(folder, keep=keep, keep_best=keep_best) as checkpoints:
            checkpoints.save(self.take(progress, **options))
        return folder / f"step-{progress.step}"

    def take(self, progress: Progress, ema: dict[str, Tensor] | None = None, **options: Any) -> Snapshot:
        """Return a snapshot of the current weights and moments."""
        weights, moments = named_weights(self.model), optimizer_moments(self.model, self.optimizer)
        return Snapshot(progress, prefixed_tensors(weights=weights, moments=moments, ema=ema or {}), **options)

    def restore(self, folder: Path) -> Progress | None:
        snapshot = self.snapshot(folder)
        return snapshot.progress if snapshot else None

    def snapshot(self, folder: Path, keep: int = 99, keep_best: int = 0) -> Snapshot | None:
        """Load the newest intact checkpoint, and return its content."""
        found = Checkpoints(folder, keep=keep, keep_best=keep_best).load_newest()
        if found is None:
            return None
        path, snapshot = found
        load_snapshot(snapshot, path, self.model, self.optimizer)
        return snapshot

    def tensors(self) -> list[Tensor]:
        """Weights and moments."""
        moments = [self.optimizer.state[parameter] for parameter in self.model.parameters()]
        names = ("step", "exp_avg", "exp_avg_sq")
        return [*self.model.state_dict().values(), *(each[name] for each in moments for name in names)]


def equal(one: Trainee, other: Trainee) -> bool:
    pairs = list(zip(one.tensors(), other.tensors(), strict=True))
    return all(torch.equal(mine, yours) for mine, yours in pairs)


PROGRESS = Progress(step=2, epoch=3, batch=17, best=0.1 + 0.2, best_step=1, stale=4, elapsed_s=1 / 3, loss=1e17 / 3)


@pytest.fixture
def trained() -> Trainee:
    trainee = Trainee(0)
    trainee.step(0)
    trainee.step(1)
    return trainee


@pytest.fixture
def folder(tmp_path: Path, trained: Trainee) -> Path:
    """Two checkpoints, step-1 and step-2."""
    earlier = Trainee(0)
    earlier.step(0)
    earlier.save(tmp_path, Progress(step=1))
    trained.save(tmp_path, PROGRESS)
    return tmp_path


def test_weights_moments_and_progress_are_restored_bit_for_bit(folder: Path, trained: Trainee) -> None:
    other = Trainee(99)
    assert other.restore(folder) == PROGRESS
    assert equal(other, trained)
    assert not equal_weights(other, Trainee(99))
    other.step(5)
    trained.step(5)
    assert equal(other, trained)


def equal_weights(one: Trainee, other: Trainee) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(mine, yours) for mine, yours in pairs)


def test_without_checkpoints_there_is_nothing_to_restore(tmp_path: Path) -> None:
    assert Trainee(0).restore(tmp_path / "missing") is None


def test_a_moving_average_and_a_score_are_restored(tmp_path: Path, trained: Trainee) -> None:
    ema = {name: tensor.detach() / 3 for name, tensor in named_weights(trained.model).items()}
    trained.save(tmp_path, PROGRESS, ema=ema, score=-1 / 3, is_regular=False)
    snapshot = Trainee(99).snapshot(tmp_path)
    assert snapshot is not None
    assert equal_tensors(snapshot.tensors_of_kind("ema"), ema)
    assert (snapshot.score, snapshot.is_regular) == (-1 / 3, False)
    assert equal_tensors(
        average_weights([tmp_path / "step-2"]), snapshot.tensors_of_kind("weights")
    )  # not the moving average


def equal_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rewrite_state(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change state.json and remove its own checksum, as in the first version."""
    content = json.loads((path / "state.json").read_text())
    del content["checksum"]
    change(content)
    (path / "state.json").write_text(json.dumps(content))


def test_a_checkpoint_without_score_or_checksum_of_its_state_still_loads(folder: Path, trained: Trainee) -> None:
    rewrite_state(folder / "step-2", lambda content: (content.pop("score"), content.pop("regular")))
    other = Trainee(99)
    snapshot = other.snapshot(folder)
    assert snapshot is not None
    assert (snapshot.progress, snapshot.score, snapshot.is_regular, snapshot.tensors_of_kind("ema")) == (
        PROGRESS,
        None,
        True,
        {},
    )
    assert equal(other, trained)


def test_a_newer_format_is_not_reported_as_damage(folder: Path) -> None:
    rewrite_state(folder / "step-2", lambda content: content.update(format=2, checksums="elsewhere"))
    message = (
        r"step-2: written by a newer version of Headway \(format 2; this version supports up to 1\); update Headway"
    )
    with pytest.raises(CheckpointError, match=message):
        Trainee(99).restore(folder)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adafactor])
def test_moments_of_every_optimizer_are_restored(tmp_path: Path, kind: type[torch.optim.Optimizer]) -> None:
    """Three steps equal two steps, a save, a restore and the third step."""
    trainees = [Trainee(seed) for seed in (0, 99)]
    for trainee in trainees:
        trainee.optimizer = kind(trainee.model.parameters(), lr=0.01)  # type: ignore[call-arg]
    first, second = trainees
    first.step(0)
    first.step(1)
    first.save(tmp_path, Progress(step=2))
    second.restore(tmp_path)
    for trainee in trainees:
        trainee.step(2)
    assert equal_tensors(named_weights(first.model), named_weights(second.model))
    mine, yours = (optimizer_moments(each.model, each.optimizer) for each in trainees)
    assert mine
    assert equal_tensors(mine, yours)


class TestInTheBackground:
    @pytest.fixture
    def gate(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
        """Writing waits until this event is set."""
        gate, write = threading.Event(), write_snapshot

        def late(folder: Path, snapshot: Snapshot) -> None:
            assert gate.wait(30)
            write(folder, snapshot)

        monkeypatch.setattr(checkpoints_module, "write_snapshot", late)
        yield gate
        gate.set()

    def test_training_continues_and_the_file_has_the_state_of_the_save(
        self, tmp_path: Path, trained: Trainee, gate: threading.Event
    ) -> None:
        before = {name: tensor.clone() for name, tensor in named_weights(trained.model).items()}
        moments = {name: each.clone() for name, each in optimizer_moments(trained.model, trained.optimizer).items()}
        progress = Progress(step=2)
        with Checkpoints(tmp_path, keep=5) as checkpoints:
            checkpoints.save(trained.take(progress))
            assert checkpoint_folders(tmp_path) == []  # nothing is written yet, and here we are
            trained.step(2)
            progress.step = 3
            gate.set()
            checkpoints.wait()
            assert checkpoint_folders(tmp_path) == [tmp_path / "step-2"]
        snapshot = read_snapshot(tmp_path / "step-2")
        assert snapshot.progress == Progress(step=2)
        assert equal_tensors(snapshot.tensors_of_kind("weights"), before)
        assert equal_tensors(snapshot.tensors_of_kind("moments"), moments)
        assert not equal_tensors(before, named_weights(trained.model))

    def test_the_next_save_waits_and_reuses_the_memory(
        self, tmp_path: Path, trained: Trainee, gate: threading.Event
    ) -> None:
        checkpoints = Checkpoints(tmp_path, keep=5)
        checkpoints.save(trained.take(Progress(step=2)))
        threading.Timer(0.1, gate.set).start()
        trained.step(2)
        checkpoints.save(trained.take(Progress(step=3)))
        assert (tmp_path / "step-2").is_dir()
        checkpoints.wait()
        assert not equal_tensors(
            *(read_snapshot(tmp_path / f"step-{step}").tensors_of_kind("weights") for step in (2, 3))
        )
        assert equal_tensors(
            read_snapshot(tmp_path / "step-3").tensors_of_kind("weights"), named_weights(trained.model)
        )

    @pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own elsewhere")
    def test_the_writer_has_a_low_priority(
        self, tmp_path: Path, trained: Trainee, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        niceness: list[int] = []
        monkeypatch.setattr(
            checkpoints_module, "write_snapshot", lambda *_: niceness.append(os.getpriority(os.PRIO_PROCESS, 0))
        )
        with Checkpoints(tmp_path, keep=5) as checkpoints:
            checkpoints.save(trained.take(Progress(step=2)))
        assert niceness == [max(10, os.getpriority(os.PRIO_PROCESS, 0))]

    def test_leaving_waits(self, tmp_path: Path, trained: Trainee, gate: threading.Event) -> None:
        threading.Timer(0.1, gate.set).start()
        checkpoints = Checkpoints(tmp_path, keep=5)
        checkpoints.save(trained.take(Progress(step=2)))
        with pytest.raises(KeyboardInterrupt), checkpoints:
            raise KeyboardInterrupt
        assert checkpoint_folders(tmp_path) == [tmp_path / "step-2"]


class TestFullDisk:
    @pytest.fixture
    def full(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A folder with two checkpoints and no room for another."""

        def no_room(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(state, "write_weights", no_room)
        return folder

    MESSAGE = r"step-3: cannot be written \(No space left on device\); its previous content is unchanged"

    @pytest.mark.parametrize("call", ["save", "wait", "load_newest", "leave"])
    def test_the_next_call_raises_the_error_and_nothing_is_lost(self, full: Path, trained: Trainee, call: str) -> None:
        checkpoints = Checkpoints(full, keep=1)
        checkpoints.save(trained.take(Progress(step=3)))
        calls: dict[str, Callable[[], object]] = {
            "save": lambda: checkpoints.save(trained.take(Progress(step=4))),
            "wait": checkpoints.wait,
            "load_newest": checkpoints.load_newest,
            "leave": lambda: checkpoints.__exit__(None, None, None),
        }
        with pytest.raises(OutputError, match=self.MESSAGE):
            calls[call]()
        assert sorted(path.name for path in full.iterdir()) == ["step-1", "step-2"]
        checkpoints.wait()  # it has been told

    def test_another_error_is_not_replaced(self, full: Path, trained: Trainee) -> None:
        checkpoints = Checkpoints(full, keep=1)
        checkpoints.save(trained.take(Progress(step=3)))
        with pytest.warns(UserWarning, match=self.MESSAGE):
            checkpoints.__exit__(ZeroDivisionError, ZeroDivisionError(), None)


class TestDamage:
    @pytest.mark.slow_but_every(3)
    @pytest.mark.parametrize("file", [*FILES, "ema.safetensors"])
    @pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "delete", "garbage"])
    def test_the_checkpoint_before_a_damaged_one_is_used(
        self, folder: Path, trained: Trainee, file: str, damage: str
    ) -> None:
        trained.save(folder, PROGRESS, ema=named_weights(trained.model))
        path = folder / "step-2" / file
        content = bytearray(path.read_bytes())
        match damage:
            case "flip":
                content[-20] ^= 1
                path.write_bytes(content)
            case "truncate":
                path.write_bytes(content[:-10])
            case "empty":
                path.write_bytes(b"")
            case "garbage":
                path.write_bytes(b"[1, 2]")
            case _:
                path.unlink()
        trainee = Trainee(99)
        with pytest.warns(UserWarning, match=r"step-2 is damaged \(.+\); resuming from step-1 instead"):
            assert trainee.restore(folder) == Progress(step=1)
        earlier = Trainee(0)
        earlier.step(0)
        assert equal(trainee, earlier)

    @pytest.mark.parametrize("file", FILES[:2])
    def test_a_flipped_bit_is_detected_anywhere(self, folder: Path, file: str) -> None:
        path = folder / "step-2" / file
        content = path.read_bytes()
        for place in range(0, len(content), len(content) // 50):
            path.write_bytes(content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :])
            with pytest.warns(UserWarning, match=f"step-2 is damaged .{file} does not match its checksum"):
                assert Trainee(99).restore(folder) == Progress(step=1)

    def test_two_damaged_ones_are_both_named(self, folder: Path, trained: Trainee) -> None:
        trained.save(folder, Progress(step=3))
        (folder / "step-3" / "model.safetensors").unlink()
        shutil.rmtree(folder / "step-2")
        (folder / "step-2").mkdir()
        with pytest.warns(UserWarning, match="damaged") as caught:
            assert Trainee(99).restore(folder) == Progress(step=1)
        assert [str(each.message).split(" is damaged")[0] for each in caught] == [
            str(folder / "step-3"),
            str(folder / "step-2"),
        ]
        assert all("resuming from step-1 instead" in str(each.message) for each in caught)

    @pytest.mark.slow
    def test_no_flipped_byte_of_the_state_gives_a_wrong_position(self, folder: Path) -> None:
        """A flip in white space changes nothing and may pass; any other is detected."""
        path = folder / "step-2" / "state.json"
        content = path.read_bytes()
        passed = 0
        trainee = Trainee(99)
        for place in range(0, len(content), 2):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                progress = trainee.restore(folder)
            assert progress == (Progress(step=1) if caught else PROGRESS)
            passed += not caught
        assert passed < len(content) / 8

    def test_a_file_that_cannot_be_read_now_is_not_reported_as_damage(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A temporary failure of a disk must not lose the checkpoint: resuming from another would remove it."""
        trainee = Trainee(1)
        for step in (1, 2):
            trainee.save(tmp_path, Progress(step=step))
        checksum = storage.checksum

        def failing(path: Path) -> str:
            if path.parent.name == "step-2":
                raise OSError(errno.EIO, "Input/output error")
            return checksum(path)

        monkeypatch.setattr(state, "checksum", failing)
        with pytest.raises(
            CheckpointError, match=r"step-2: cannot be read \(Input/output error\); make it readable, then run"
        ):
            trainee.restore(tmp_path)
        monkeypatch.undo()
        found = trainee.restore(tmp_path)
        assert found is not None
        assert found.step == 2

    def test_all_damaged(self, folder: Path) -> None:
        for name in ("step-1", "step-2"):
            (folder / name / "state.json").write_text("{")
        message = r"every checkpoint is damaged \(step-2: .+; step-1: .+\); restore one from a copy, .* --fresh"
        with pytest.raises(CheckpointError, match=message):
            Trainee(0).restore(folder)

    def test_a_checkpoint_of_another_model_is_refused(self, folder: Path) -> None:
        model = build_model(TransformerConfig.parse(SIZES | {"d_ff": 8}, "test"), 8, 8)
        with pytest.raises(HeadwayError, match=r"step-2.model\.safetensors: weight"):
            load_snapshot(
                read_snapshot(folder / "step-2"), folder / "step-2", model, make_optimizer(model, OptimizerConfig())
            )


class TestPruning:
    def names(self, folder: Path) -> list[str]:
        return [path.name for path in checkpoint_folders(folder)]

    def test_the_newest_are_kept_by_step_and_not_by_name(self, tmp_path: Path, trained: Trainee) -> None:
        for step in (8, 9, 10, 100):
            trained.save(tmp_path, Progress(step=step), keep=3)
        assert self.names(tmp_path) == ["step-100", "step-10", "step-9"]

    def test_the_next_save_removes_an_interruption_s_checkpoint(self, tmp_path: Path, trained: Trainee) -> None:
        for step in (10, 20, 23):
            trained.save(tmp_path, Progress(step=step), keep=5, is_regular=step != 23)
        assert self.names(tmp_path) == ["step-23", "step-20", "step-10"]
        trained.save(tmp_path, Progress(step=30), keep=5)
        assert self.names(tmp_path) == ["step-30", "step-20", "step-10"]

    def test_the_newest_save_is_kept_and_damaged_later_ones_are_removed(self, tmp_path: Path, trained: Trainee) -> None:
        for step in (10, 20, 30):
            trained.save(tmp_path, Progress(step=step), keep=5)
        trained.save(tmp_path, Progress(step=15), keep=1)
        assert self.names(tmp_path) == ["step-15"]

    def test_another_interval_removes_no_regular_checkpoint(self, tmp_path: Path, trained: Trainee) -> None:
        for step in (10, 20, 27):
            trained.save(tmp_path, Progress(step=step), keep=5)
        assert self.names(tmp_path) == ["step-27", "step-20", "step-10"]

    def test_remains_of_a_killed_save_are_removed(self, tmp_path: Path, trained: Trainee) -> None:
        (tmp_path / ".step-5.part").mkdir()
        trained.save(tmp_path, Progress(step=10))
        assert [path.name for path in tmp_path.iterdir()] == ["step-10"]

    def test_other_folders_are_left_alone(self, tmp_path: Path, trained: Trainee) -> None:
        for name in ("step-x", "step-7.part", ".step-9.1.part", "step-"):
            (tmp_path / name).mkdir()
        trained.save(tmp_path, Progress(step=1), keep=1)
        assert self.names(tmp_path) == ["step-1"]
        assert (tmp_path / "step-x").is_dir()

    def test_saving_the_same_step_again_replaces_it(self, tmp_path: Path, trained: Trainee) -> None:
        trained.save(tmp_path, Progress(step=1, stale=1))
        trained.save(tmp_path, Progress(step=1, stale=2))
        assert Trainee(0).restore(tmp_path) == Progress(step=1, stale=2)

    def test_the_best_are_kept_in_addition_to_the_newest(self, tmp_path: Path, trained: Trainee) -> None:
        """60 and 50 are the newest two, 10 is the best, and 20 wins the tie with 40."""
        for step, score in {10: 3.0, 20: 2.0, 30: None, 40: 2.0, 50: 1.0, 60: None}.items():
            trained.save(tmp_path, Progress(step=step), keep=2, keep_best=2, score=score)
        assert self.names(tmp_path) == ["step-60", "step-50", "step-20", "step-10"]

    def test_an_irregular_checkpoint_does_not_count_whatever_its_score(self, tmp_path: Path, trained: Trainee) -> None:
        for step, score, regular in ((10, 1.0, True), (20, 0.0, True), (30, 0.0, True), (33, 9.0, False)):
            trained.save(tmp_path, Progress(step=step), keep=2, keep_best=1, score=score, is_regular=regular)
        assert self.names(tmp_path) == ["step-33", "step-30", "step-20", "step-10"]
        trained.save(tmp_path, Progress(step=40), keep=2, keep_best=1, score=0.5)
        assert self.names(tmp_path) == ["step-40", "step-30", "step-10"]

    def test_resuming_removes_checkpoints_that_a_killed_process_left(
        self, tmp_path: Path, trained: Trainee, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "_remove", lambda *_: None)
            for step in (10, 20, 23, 30):
                trained.save(tmp_path, Progress(step=step), keep=2, is_regular=step != 23)
        assert trained.snapshot(tmp_path, keep=2) is not None
        assert self.names(tmp_path) == ["step-30", "step-20"]

    @given(
        scores=st.lists(st.none() | st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=7),
        stops=st.lists(st.tuples(st.integers(0, 34), st.sampled_from(["kill", "interrupt"])), max_size=4),
        keep=st.integers(1, 3),
        keep_best=st.integers(0, 2),
    )
    @settings(max_examples=25)
    def test_interrupted_and_undisturbed_runs_keep_the_same_checkpoints(
        self, scores: list[float | None], stops: list[tuple[int, str]], keep: int, keep_best: int
    ) -> None:
        """Every fifth step is saved; each stop comes after a step and is followed by a resumption."""

        def run(stops: list[tuple[int, str]]) -> list[str]:
            with TemporaryDirectory() as name:
                folder, waiting = Path(name), list(stops)
                step = 0
                while step < 5 * len(scores):
                    step += 1
                    regular = step % 5 == 0
                    stop = waiting.pop(0)[1] if waiting and waiting[0][0] == step else None
                    if regular or stop == "interrupt":
                        score = scores[step // 5 - 1] if regular else 9.0
                        options = {"score": score, "is_regular": regular}
                        TRAINEE.save(folder, Progress(step=step), keep=keep, keep_best=keep_best, **options)
                    if stop is not None:
                        restored = TRAINEE.snapshot(folder, keep, keep_best)
                        step = restored.progress.step if restored else 0
                return self.names(folder)

        assert run(stops) == run([])


TRAINEE = Trainee(0)


class TestAverage:
    def test_by_hand(self, tmp_path: Path) -> None:
        """(1 + 2 + 6) / 3 = 3."""
        trainee, paths = Trainee(0), []
        for step, value in enumerate((1.0, 2.0, 6.0)):
            with torch.no_grad():
                for parameter in trainee.model.parameters():
                    parameter.fill_(value)
            paths.append(trainee.save(tmp_path, Progress(step=step)))
        mean = average_weights(paths)
        assert mean.keys() == load_file(paths[0] / "model.safetensors").keys()
        assert all(torch.equal(tensor, torch.full_like(tensor, 3.0)) for tensor in mean.values())
        assert {tensor.dtype for tensor in mean.values()} == {torch.float32}

    def test_small_differences_are_not_lost(self, tmp_path: Path) -> None:
        """In float32, 2^24 + 1 is 2^24, so a float32 sum of 2^24, 1 and 1 would forget both ones."""
        trainee, paths = Trainee(0), []
        for step, value in enumerate((2.0**24, 1.0, 1.0)):
            with torch.no_grad():
                for parameter in trainee.model.parameters():
                    parameter.fill_(value)
            paths.append(trainee.save(tmp_path, Progress(step=step)))
        expected = torch.tensor((2.0**24 + 2) / 3, dtype=torch.float64).float()
        assert all(bool((tensor == expected).all()) for tensor in average_weights(paths).values())

    def test_a_damaged_checkpoint_is_named(self, folder: Path) -> None:
        path = folder / "step-1" / "model.safetensors"
        weights = load_file(path)
        save_file({name: tensor + 1 for name, tensor in weights.items()}, path)
        with pytest.raises(CheckpointError, match=r"step-1 is damaged \(.*checksum\); remove this folder"):
            average_weights(checkpoint_folders(folder))
        shutil.rmtree(folder / "step-1")
        assert average_weights(checkpoint_folders(folder))


def test_of_equal_scores_the_checkpoint_with_the_lower_loss_is_kept(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=1, keep_best=1) as checkpoints:
        for step, (score, loss) in enumerate([(5.0, 2.0), (5.0, 1.0), (5.0, 1.5), (4.0, 0.5), (3.0, 0.1)], start=1):
            checkpoints.save(Snapshot(Progress(step=step), {}, score=score, dev_loss=loss))
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["step-5", "step-2"]
