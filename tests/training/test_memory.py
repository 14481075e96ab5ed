"""Memory: the estimate, its comparison with what is available, and the messages if memory is short."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from headway.data.batching import PaddedBatch, TokenDataset, plan_batches
from headway.data.epoch_plan import EpochPlan
from headway.errors import TrainingError
from headway.models.registry import blocks_of, build_model
from headway.models.transformer import TransformerConfig
from headway.tasks.translation import TranslationObjective
from headway.training import memory
from headway.training.memory import (
    BatchShape,
    MemoryEstimate,
    available_memory,
    check_memory,
    estimate_memory,
    explain_out_of_memory,
    largest_batch_shapes,
    saved_activations,
)
from headway.training.optim import OptimizerConfig, make_optimizer
from headway.training.stream import to_device

CPU = torch.device("cpu")
SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 2}
GIB = 1 << 30


def objective(r_drop: float = 0.0) -> TranslationObjective:
    return TranslationObjective(build_model(TransformerConfig.parse(SIZES, "test"), 50, 50), 0.1, r_drop)


def adam(parts: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(parts.parameters())


def estimate(total_gib: float, allocated_gib: float = 0.0) -> MemoryEstimate:
    return MemoryEstimate(BatchShape(8, 10, 20), int(total_gib * GIB), 0, 0, int(allocated_gib * GIB))


class Lengths(TokenDataset):
    """A dataset that knows only the lengths of its examples."""

    def __init__(self) -> None:
        pass

    def lengths(self, side: str, segmentation: int) -> NDArray[np.int32]:
        return np.array([4, 12, 6, 4, 6, 4] if side == "source" else [4, 2, 6, 4, 6, 4], np.int32)

    def plan(self, order: list[int]) -> EpochPlan:
        """Batches of at most 12 tokens, in random order."""
        lengths = self.lengths("source", 0), self.lengths("target", 0)
        return EpochPlan.from_single_pool(
            plan_batches(*lengths, np.array(order, np.int64), 12, 100, np.random.default_rng(0))
        )


def saved_bytes(trained: TranslationObjective, rows: int, source: int, target: int, precision: str) -> int:
    """Return the bytes that autograd saves in a training pass."""
    batch = to_device(PaddedBatch(np.full((rows, source), 3), np.ones((rows, target), np.int64)), CPU)
    with saved_activations(trained, precision) as saved:
        trained(batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def test_weights_gradients_and_moments_by_hand() -> None:
    """In float32, 4 bytes per weight for the weight, its gradient, each of Adam's two moments and the moving average
    (5 x 4); a checkpoint copies all of these but the gradient (4 x 4)."""
    whole = objective()
    size = 4 * sum(parameter.numel() for parameter in whole.parameters())
    found = estimate_memory(whole, adam(whole), [BatchShape(4, 5, 6)], "float32", has_ema=True)
    assert found.fixed_bytes == 9 * size
    assert found.logits_bytes == 4 * 6 * 50 * 12
    assert found.allocated_bytes == size + size  # weights and average: no step has made moments yet
    assert found.total_bytes == 9 * size + found.activation_bytes + found.logits_bytes


def test_moments_that_exist_are_already_allocated() -> None:
    """After a step, Adam has two tensors as large as each weight, and a step counter of four bytes for each."""
    whole = objective()
    optimizer = adam(whole)
    whole(to_device(PaddedBatch(np.full((2, 3), 4), np.full((2, 3), 4)), CPU)).backward()
    optimizer.step()
    size = 4 * sum(parameter.numel() for parameter in whole.parameters())
    found = estimate_memory(whole, optimizer, [BatchShape(2, 3, 3)], "float32")
    assert found.allocated_bytes == 3 * size + 4 * len(list(whole.parameters()))


def test_frozen_weights_have_neither_gradients_nor_moments() -> None:
    whole = objective()
    some = list(whole.parameters())[:3]
    size = sum(parameter.nbytes for parameter in some)
    weights = sum(parameter.nbytes for parameter in whole.parameters())
    found = estimate_memory(whole, torch.optim.Adam(some), [BatchShape(2, 5, 6)], "float32")
    assert found.fixed_bytes == weights + size + 2 * size + (
        weights + 2 * size
    )  # gradients, moments, the checkpoint's copy
    found = estimate_memory(whole, torch.optim.Adafactor(some), [BatchShape(2, 5, 6)], "float32")
    assert found.fixed_bytes == weights + size + weights  # Adafactor's moments are not counted


def test_muon_has_one_moment_for_each_matrix() -> None:
    """The moments of the estimate, of which a checkpoint has a copy, are those that a step makes."""
    whole = objective()
    optimizer = make_optimizer(whole.model, OptimizerConfig(kind="muon"), blocks_of(whole.model))
    before = estimate_memory(whole, optimizer, [BatchShape(2, 3, 3)], "float32")
    whole(to_device(PaddedBatch(np.full((2, 3), 4), np.full((2, 3), 4)), CPU)).backward()
    optimizer.step()
    made = sum(tensor.nbytes for state in optimizer.state.values() for tensor in state.values() if tensor.dim())
    weights = sum(parameter.nbytes for parameter in whole.parameters())
    assert weights < made < 2 * weights
    assert before.fixed_bytes == 3 * weights + 2 * made  # weights, gradients, the checkpoint's copy; moments twice


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("r_drop", [0.0, 1.0])
def test_two_and_three_rows_predict_nine(precision: str, r_drop: float) -> None:
    """The activations of nine rows are also measured directly here."""
    whole = objective(r_drop)
    nine = saved_bytes(whole, 9, 7, 11, precision)
    found = estimate_memory(whole, adam(whole), [BatchShape(9, 7, 11)], precision)
    assert found.activation_bytes == int(nine * memory._PEAK_PER_SAVED["cpu"])
    assert nine > saved_bytes(whole, 8, 7, 11, precision)


def test_saved_activations_of_a_product_by_hand() -> None:
    """For sqrt(x) W with x (B, 3, 4), autograd saves the root, and the weight, which is not an activation."""

    class Product(TranslationObjective):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.weight = nn.Parameter(torch.ones(4, 2))
            self.root = nn.Parameter(torch.ones(4))

        def forward(self, batch: object) -> torch.Tensor:
            rows = getattr(batch, "source").size(0)  # noqa: B009
            return (self.root.expand(rows, 3, 4).sqrt() @ self.weight).sum()

    assert saved_bytes(Product(), 5, 3, 3, "float32") == 5 * 3 * 4 * 4


def test_estimating_changes_nothing() -> None:
    whole = objective().eval()
    before, weights = torch.get_rng_state(), [parameter.clone() for parameter in whole.parameters()]
    estimate_memory(whole, adam(whole), [BatchShape(3, 4, 5)], "float32")
    assert torch.equal(torch.get_rng_state(), before)
    assert not whole.training
    assert all(torch.equal(old, new) for old, new in zip(weights, whole.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in whole.parameters())


def test_the_shape_that_needs_most_is_chosen() -> None:
    whole = objective()
    shapes = [BatchShape(2, 5, 5), BatchShape(20, 5, 5), BatchShape(1, 9, 9)]
    assert estimate_memory(whole, adam(whole), shapes, "float32").batch_shape == shapes[1]


def test_without_batches_there_are_no_activations() -> None:
    whole = objective()
    found = estimate_memory(whole, adam(whole), [], "float32")
    assert (found.activation_bytes, found.logits_bytes) == (0, 0)
    weights = sum(parameter.nbytes for parameter in whole.parameters())
    assert found.total_bytes == 7 * weights  # weights, gradients, two moments, and a copy of weights and moments


def test_the_largest_shapes_of_a_plan() -> None:
    """Three pairs of four tokens on each side, two of six, and one of twelve and two.

    By tokens, target tokens twice: 3 x 12 = 36, 2 x 18 = 36 and 16. By pairs of tokens: 3 x 48 = 144, 2 x 108 = 216 and
    144 + 4 + 24 = 172. The second shape is the largest by pairs; by tokens it ties with the first.
    """
    corpora = Lengths()
    found = largest_batch_shapes(corpora, corpora.plan([5, 4, 3, 2, 1, 0]), 12)
    assert BatchShape(2, 6, 6) in found
    assert set(found) <= {BatchShape(2, 6, 6), BatchShape(3, 4, 4)}
    assert largest_batch_shapes(corpora, corpora.plan([1, 0]), 12) == [BatchShape(1, 12, 2)]
    assert largest_batch_shapes(corpora, corpora.plan([]), 12) == []


class TestComparison:
    def test_enough_or_unknown_memory_causes_no_warning(self) -> None:
        check_memory(estimate(2.0), 2 * GIB)  # warnings are errors in tests
        check_memory(estimate(2.0), None)

    def test_allocated_memory_counts_as_available(self) -> None:
        check_memory(estimate(3.0, allocated_gib=1.0), 2 * GIB)
        with pytest.warns(UserWarning, match="needs about"):
            check_memory(estimate(3.1, allocated_gib=1.0), 2 * GIB)

    @pytest.mark.parametrize("gib", [2.5, 500.0])
    def test_too_little_memory_is_only_a_warning(self, gib: float) -> None:
        """The estimate may be wrong, and the user knows better, or will see."""
        message = (
            rf"needs about {gib} GiB: .*8 rows x \(10 source \+ 20 target tokens\), but only 2\.0 GiB are free; "
            r"lower data\.max_tokens \(and raise training\.accumulate to keep the step size\), "
            r"or choose a smaller model\. The estimate may be off by a factor of 1\.5, so training starts anyway"
        )
        with pytest.warns(UserWarning, match=message):
            check_memory(estimate(gib), 2 * GIB)


class TestAvailable:
    def test_on_this_machine(self) -> None:
        found = available_memory(CPU)
        assert found is None or 0 <= found < 1 << 50

    def test_processes_share_the_machines_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory, "_group_limits", lambda *_: [])
        monkeypatch.setattr(memory, "_available", lambda _: 4000)
        assert available_memory(CPU) == 4000
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
        assert available_memory(CPU) == 1000

    def test_from_meminfo(self, tmp_path: Path) -> None:
        (tmp_path / "meminfo").write_text("MemTotal:  100 kB\nMemAvailable:   40 kB\n")
        assert memory._available(tmp_path / "meminfo") == 40 * 1024
        (tmp_path / "meminfo").write_text("MemTotal:  100 kB\n")
        assert memory._available(tmp_path / "meminfo") is None
        assert memory._available(tmp_path / "missing") is None

    def test_limits_of_all_control_groups_above(self, tmp_path: Path) -> None:
        """Limit 100, 70 used, 30 of these by file pages: 60 left. In the group above 95 of 50 are used: 0 left."""
        (tmp_path / "cgroup").write_text("1:name=other:/x\n0::/outer/inner\n")
        self.group(tmp_path / "root" / "outer" / "inner", limit="100", used=70, cached=30)
        self.group(tmp_path / "root" / "outer", limit="50", used=95, cached=0)
        self.group(tmp_path / "root", limit="max", used=95, cached=0)
        self.group(tmp_path, limit="1", used=0, cached=0)  # above the root, so it does not apply
        assert list(memory._group_limits(tmp_path / "cgroup", tmp_path / "root")) == [60, 0]

    def test_without_control_groups(self, tmp_path: Path) -> None:
        assert list(memory._group_limits(tmp_path / "missing", tmp_path)) == []
        (tmp_path / "cgroup").write_text("0::/\n")
        assert list(memory._group_limits(tmp_path / "cgroup", tmp_path)) == []

    def group(self, folder: Path, *, limit: str, used: int, cached: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")


class TestExhaustion:
    @pytest.mark.parametrize(
        "error",
        [
            torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"),
            MemoryError(),
        ],
    )
    def test_the_error_names_the_batch_and_what_to_lower(self, error: Exception) -> None:
        batch = PaddedBatch(np.ones((3, 4), np.int64), np.ones((3, 6), np.int64))
        message = r"out of memory at a batch of 3 rows x \(4 source \+ 6 target tokens\); lower data\.max_tokens"

        class Greedy(nn.Module):
            def forward(self, _: object) -> None:
                raise error

        with pytest.raises(TrainingError, match=message), explain_out_of_memory(BatchShape.of(to_device(batch, CPU))):
            Greedy()(batch)

    def test_other_errors_are_unchanged(self) -> None:
        with pytest.raises(RuntimeError, match="shapes"), explain_out_of_memory(BatchShape(1, 2, 3)):
            raise RuntimeError("shapes cannot be multiplied")
