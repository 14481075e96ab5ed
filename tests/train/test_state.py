"""Checkpoints: everything comes back bit for bit, and nothing damaged is ever used."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.errors import CheckpointError, HeadwayError
from headway.models.build import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.train import state
from headway.train.optim import OptimizerConfig, make_optimizer
from headway.train.state import Progress, average_weights, checkpoint_folders, restore

SIZES = {"d_model": 4, "num_heads": 1, "d_ff": 4, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


class Trainee:
    """A model with its optimiser, and steps that change both."""

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

    def save(self, folder: Path, progress: Progress, *, keep: int = 5, regular: bool = True) -> Path:
        return state.save(folder, progress, self.model, self.optimizer, keep, regular=regular)

    def restore(self, folder: Path) -> Progress | None:
        return restore(folder, self.model, self.optimizer)

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


def test_weights_moments_and_progress_come_back_bit_for_bit(folder: Path, trained: Trainee) -> None:
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


class TestDamage:
    @pytest.mark.parametrize("file", FILES)
    @pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "delete", "garbage"])
    def test_the_one_before_a_damaged_checkpoint_is_used(self, folder: Path, file: str, damage: str) -> None:
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
        with pytest.warns(UserWarning, match=r"step-2 is damaged \(.+\); trying the one before it"):
            assert trainee.restore(folder) == Progress(step=1)
        earlier = Trainee(0)
        earlier.step(0)
        assert equal(trainee, earlier)

    def test_no_flipped_byte_of_the_state_gives_a_wrong_position(self, folder: Path) -> None:
        """A flip between values changes nothing and may pass; any other is noticed."""
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

    def test_all_damaged(self, folder: Path) -> None:
        for name in ("step-1", "step-2"):
            (folder / name / "state.json").write_text("{")
        message = "every checkpoint is damaged; start over with --fresh"
        with pytest.warns(UserWarning, match="damaged"), pytest.raises(CheckpointError, match=message):
            Trainee(0).restore(folder)

    def test_a_checkpoint_of_another_model_is_refused(self, folder: Path) -> None:
        model = build_model(TransformerConfig.parse(SIZES | {"d_ff": 8}, "test"), 8, 8)
        with pytest.raises(HeadwayError, match=r"step-2.model\.safetensors: weight"):
            restore(folder, model, make_optimizer(model, OptimizerConfig()))


class TestPruning:
    def names(self, folder: Path) -> list[str]:
        return [path.name for path in checkpoint_folders(folder)]

    def test_the_newest_are_kept_by_number_not_by_name(self, tmp_path: Path, trained: Trainee) -> None:
        for step in (8, 9, 10, 100):
            trained.save(tmp_path, Progress(step=step), keep=3)
        assert self.names(tmp_path) == ["step-100", "step-10", "step-9"]

    def test_what_an_interruption_left_goes_when_the_next_is_saved(self, tmp_path: Path, trained: Trainee) -> None:
        for step in (10, 20, 23):
            trained.save(tmp_path, Progress(step=step), keep=5, regular=step != 23)
        assert self.names(tmp_path) == ["step-23", "step-20", "step-10"]
        trained.save(tmp_path, Progress(step=30), keep=5)
        assert self.names(tmp_path) == ["step-30", "step-20", "step-10"]

    def test_the_newest_save_stays_and_damaged_later_ones_go(self, tmp_path: Path, trained: Trainee) -> None:
        for step in (10, 20, 30):
            trained.save(tmp_path, Progress(step=step), keep=5)
        trained.save(tmp_path, Progress(step=15), keep=1)
        assert self.names(tmp_path) == ["step-15"]

    def test_another_interval_removes_nothing_that_is_regular(self, tmp_path: Path, trained: Trainee) -> None:
        for step in (10, 20, 27):
            trained.save(tmp_path, Progress(step=step), keep=5)
        assert self.names(tmp_path) == ["step-27", "step-20", "step-10"]

    def test_what_a_killed_save_left_is_removed(self, tmp_path: Path, trained: Trainee) -> None:
        (tmp_path / ".step-5.part").mkdir()
        trained.save(tmp_path, Progress(step=10))
        assert [path.name for path in tmp_path.iterdir()] == ["step-10"]

    def test_other_folders_are_none_of_ours(self, tmp_path: Path, trained: Trainee) -> None:
        for name in ("step-x", "step-7.part", ".step-9.1.part", "step-"):
            (tmp_path / name).mkdir()
        trained.save(tmp_path, Progress(step=1), keep=1)
        assert self.names(tmp_path) == ["step-1"]
        assert (tmp_path / "step-x").is_dir()

    def test_saving_the_same_step_again_replaces_it(self, tmp_path: Path, trained: Trainee) -> None:
        trained.save(tmp_path, Progress(step=1, stale=1))
        trained.save(tmp_path, Progress(step=1, stale=2))
        assert Trainee(0).restore(tmp_path) == Progress(step=1, stale=2)


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
        with pytest.raises(CheckpointError, match=r"step-1 is damaged \(.*checksum\); remove that folder"):
            average_weights(checkpoint_folders(folder))
        shutil.rmtree(folder / "step-1")
        assert average_weights(checkpoint_folders(folder))
