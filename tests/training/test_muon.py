"""Muon: updates that are orthogonal matrices, for the matrices of the blocks only."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from headway.errors import ConfigError
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.nn.blocks import CausalBlock
from headway.training.muon import Muon, orthogonalize
from headway.training.optim import OptimizerConfig, make_optimizer
from headway.training.snapshot import Progress, Snapshot, load_snapshot, optimizer_moments, prefixed_tensors
from headway.weights import named_weights

SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 16, "decoder_layers": 2, "max_length": 8}


@pytest.mark.parametrize("in_bfloat16", [False, True])
@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 6, 20), (2, 20, 6)])
def test_singular_values_become_about_one_and_directions_stay(shape: tuple[int, int, int], in_bfloat16: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(shape, generator=generator)
    result = orthogonalize(matrices, in_bfloat16=in_bfloat16).float()
    values = torch.linalg.svdvals(result)
    assert values.min() > 0.6
    assert values.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    torch.testing.assert_close(left @ right, result, rtol=0, atol=0.3)
    assert torch.cosine_similarity((left @ right).flatten(1), result.flatten(1)).min() > 0.97


def test_a_matrix_of_zeros_stays_zero() -> None:
    assert not orthogonalize(torch.zeros(1, 4, 4), in_bfloat16=False).any()


def optimizer_of(model: DecoderOnly, **settings: Any) -> torch.optim.Optimizer:
    optimizer = make_optimizer(model, OptimizerConfig(kind="muon", **settings), list(model.decoder.blocks))
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    return optimizer


def test_matrices_of_blocks_are_orthogonal_and_all_others_adam_s() -> None:
    torch.manual_seed(0)
    model = DecoderOnly(DecoderOnlyConfig.parse(SIZES, "test"), 11)
    other = copy.deepcopy(model)
    optimizer, adam = optimizer_of(model), make_optimizer(other, OptimizerConfig())
    for group in adam.param_groups:
        group["lr"] = 0.01
    for weight, twin in zip(model.parameters(), other.parameters(), strict=True):
        weight.grad = torch.randn(weight.shape)
        twin.grad = weight.grad.clone()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer.step()
    adam.step()
    in_blocks = 0
    for (name, weight), twin in zip(model.named_parameters(), other.parameters(), strict=True):
        if name.startswith("decoder.blocks") and weight.dim() == 2:
            in_blocks += 1
            # Rates are those of Adam: the root mean square of an update is about 0.2 times the rate.
            update = (weight.detach() - before[name]) / 0.01
            assert update.square().mean().sqrt() == pytest.approx(0.2, rel=0.25)
            values = torch.linalg.svdvals(update) / (0.2 * max(weight.shape) ** 0.5)
            assert values.min() > 0.6
            assert values.max() < 1.3
        else:
            torch.testing.assert_close(weight, twin)
    assert in_blocks == 2 * 4


def test_queries_keys_and_values_get_orthogonal_updates_of_their_own() -> None:
    """The fused projection is three linear maps, here of 8 rows (queries) and of 4 (keys, values)."""
    torch.manual_seed(0)
    model = DecoderOnly(DecoderOnlyConfig.parse(SIZES | {"num_kv_heads": 1}, "test"), 11)
    optimizer = optimizer_of(model)
    weight = cast("CausalBlock", model.decoder.blocks[0]).attention.projection.weight
    before = weight.detach().clone()
    for each in model.parameters():
        each.grad = torch.randn(each.shape)
    assert weight.grad is not None
    weight.grad[8:] *= 100  # the keys' and values' gradients do not make the queries' update smaller
    optimizer.step()
    update = (weight.detach() - before) / 0.01
    for part in torch.split(update, [8, 4, 4]):
        values = torch.linalg.svdvals(part) / (0.2 * max(part.shape) ** 0.5)
        assert values.min() > 0.6
        assert values.max() < 1.3


def test_a_run_that_began_with_one_update_for_the_whole_matrix_keeps_it() -> None:
    """Its recipe does not have the key."""
    begun = OptimizerConfig.parse_saved({"kind": "muon"}, "begun")
    resumed = OptimizerConfig.parse({"kind": "muon"}, "recipe").with_inert_values_of(begun)
    assert not resumed.muon_splits_attention
    model = DecoderOnly(DecoderOnlyConfig.parse(SIZES, "test"), 11)
    optimizer = make_optimizer(model, resumed, list(model.decoder.blocks))
    for group in optimizer.param_groups:
        if group.get("orthogonal"):
            assert all(group["heights"] == (len(weight),) for weight in group["params"])
    weight = cast("CausalBlock", model.decoder.blocks[0]).attention.projection.weight
    before = weight.detach().clone()
    for each in model.parameters():
        each.grad = torch.randn(each.shape)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.step()
    values = torch.linalg.svdvals((weight.detach() - before) / 0.01) / (0.2 * max(weight.shape) ** 0.5)
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_momentum_is_nesterov_s_and_decay_is_decoupled() -> None:
    """The second gradient alone would be orthogonal to the first; with momentum the update leans to both."""
    weight = nn.Parameter(torch.full((2, 2), 3.0))
    group = {"params": [weight], "orthogonal": True, "weight_decay": 0.5}
    optimizer = Muon([group], momentum=0.5, betas=(0.9, 0.98), epsilon=1e-9)
    optimizer.param_groups[0]["lr"] = 0.1
    weight.grad = torch.zeros(2, 2)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 3.0 * (1 - 0.1 * 0.5)))
    weight.grad = torch.eye(2)
    optimizer.step()
    torch.testing.assert_close(optimizer.state[weight]["momentum"], torch.eye(2) / 2)


def test_the_precision_is_that_of_the_training() -> None:
    updates = []
    for precision in (False, True, False):
        weight = nn.Parameter(torch.zeros(8, 8))
        optimizer = Muon([{"params": [weight], "orthogonal": True}], momentum=0.5, betas=(0.9, 0.98), epsilon=1e-9)
        optimizer.uses_bfloat16, optimizer.param_groups[0]["lr"] = precision, 0.1
        weight.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
        optimizer.step()
        updates.append(weight.detach().clone())
    assert torch.equal(updates[0], updates[2])
    assert not torch.equal(updates[0], updates[1])


def test_restored_counters_are_on_the_device_of_their_weights() -> None:
    model = DecoderOnly(DecoderOnlyConfig.parse(SIZES, "test"), 12)
    optimizer = optimizer_of(model)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    tensors = prefixed_tensors(weights=named_weights(model), moments=optimizer_moments(model, optimizer))
    with torch.device("meta"):
        other = DecoderOnly(DecoderOnlyConfig.parse(SIZES, "test"), 12)
    restored = optimizer_of(other)
    load_snapshot(Snapshot(Progress(step=1), tensors), Path("checkpoint"), other, restored)
    devices = {value.device.type for state in restored.state.values() for value in state.values()}
    assert devices == {"meta"}


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.kind = 'muon' trains a Transformer's blocks"):
        make_optimizer(nn.Linear(2, 2), OptimizerConfig(kind="muon"))
