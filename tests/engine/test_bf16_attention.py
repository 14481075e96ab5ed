"""Attention in training by one kernel per direction, compared with its definition in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from headway import kernels
from headway.engine.accelerate import accelerate
from headway.engine.attention import attend_in_bfloat16
from headway.nn.attention import MultiHeadAttention
from headway.nn.masks import DocumentMask

if not kernels.is_available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

from headway.kernels import bf16_attention, bf16_tiles
from headway.kernels.jit import SerialAndParallel

if not bf16_tiles.uses_bf16_dot():
    pytest.skip("no AVX-512 BF16", allow_module_level=True)

BFLOAT16 = torch.bfloat16


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    torch.set_num_threads(count)
    return count


def defined(projected: Tensor, memory: Tensor | None, mask: Tensor, num_heads: int) -> Tensor:
    """Return equation 1 for each head; a query that may attend to nothing yields zeros."""
    if memory is None:
        query, key, value = projected.chunk(3, -1)
    else:
        query, (key, value) = projected, memory.chunk(2, -1)
    query, key, value = (torch.unflatten(x, -1, (num_heads, -1)).transpose(1, 2) for x in (query, key, value))
    scores = (query @ key.mT / math.sqrt(query.size(-1))).masked_fill(~mask.unsqueeze(1), -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return (weights @ value).transpose(1, 2).flatten(2)


def made_up(batch: int, length: int, places: int | None, width: int) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Return projections (and those of a memory), a mask and an error. Some of the last queries attend to nothing."""
    torch.manual_seed(length)
    projected = torch.randn(batch, length, 3 * width if places is None else width)
    memory = None if places is None else torch.randn(batch, places, 2 * width).to(BFLOAT16)
    mask = torch.rand(batch, length, length if places is None else places) < 0.7
    mask[-1, -1] = False
    return projected.to(BFLOAT16), memory, mask, torch.randn(batch, length, width).to(BFLOAT16)


SHAPES = [
    # batch, queries, keys (None: as many as queries), heads, width of a head
    (1, 1, None, 1, 32),
    (3, 14, None, 4, 64),
    (2, 17, None, 2, 96),
    (2, 7, 33, 2, 64),
    (3, 40, 15, 1, 128),
    (1, 3, 1, 2, 32),
]


@pytest.mark.parametrize(("batch", "length", "places", "heads", "size"), SHAPES)
@pytest.mark.slow_but_every(3)
def test_outputs_and_gradients_are_the_definitions(
    batch: int, length: int, places: int | None, heads: int, size: int
) -> None:
    projected, memory, mask, error = made_up(batch, length, places, heads * size)
    inputs = [x.requires_grad_() for x in (projected, memory) if x is not None]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    out = attend_in_bfloat16(projected, memory, mask, heads)
    expected = defined(exact[0], None if memory is None else exact[1], mask, heads)
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)
    out.backward(error)  # type: ignore[no-untyped-call]
    expected.backward(error.double())  # type: ignore[no-untyped-call]
    for found, other in zip(inputs, exact, strict=True):
        assert found.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(found.grad.double(), other.grad, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("shape", [(1, 1, 9), (1, 9, 9), (4, 1, 9)])
def test_a_mask_may_be_that_of_all_sentences_or_queries(shape: tuple[int, int, int]) -> None:
    projected, _, _, _ = made_up(4, 9, None, 64)
    mask = torch.rand(shape) < 0.6
    expected = attend_in_bfloat16(projected, None, mask.expand(4, 9, 9), 2)
    assert torch.equal(attend_in_bfloat16(projected, None, mask, 2), expected)


@pytest.mark.slow_but_every(3)
def test_first_keys_give_the_bits_of_the_same_mask_as_a_tensor() -> None:
    found = []
    starts = torch.rand(4, 37, generator=torch.Generator().manual_seed(1)) < 0.2
    for mask in (DocumentMask.from_starts(starts), DocumentMask.from_starts(starts).to_tensor()):
        projected, _, _, error = made_up(4, 37, None, 64)
        projected.requires_grad_()
        out = attend_in_bfloat16(projected, None, mask, 2)
        out.backward(error)  # type: ignore[no-untyped-call]
        assert projected.grad is not None
        found.append((out.detach(), projected.grad))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_what_a_mask_shuts_has_no_part_and_no_gradient() -> None:
    projected, memory, mask, error = made_up(2, 5, 11, 64)
    assert memory is not None
    mask[:, :, 6:] = False
    found = []
    for there in (0.0, 300.0):
        inputs = memory.detach().clone()
        inputs[:, 6:] = there
        inputs.requires_grad_()
        out = attend_in_bfloat16(projected, inputs, mask, 2)
        out.backward(error)  # type: ignore[no-untyped-call]
        assert inputs.grad is not None
        assert not inputs.grad[:, 6:].any()
        assert inputs.grad[:, :6].any()
        found.append(out.detach())
    assert torch.equal(*found)


def test_a_sentence_comes_to_the_same_bits_in_any_batch_and_with_any_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def results(first: int, last: int) -> list[Tensor]:
        projected, memory, mask, error = made_up(6, 13, 21, 128)
        assert memory is not None
        inputs = [x[first:last].contiguous().requires_grad_() for x in (projected, memory)]
        out = attend_in_bfloat16(inputs[0], inputs[1], mask[first:last], 2)
        out.backward(error[first:last])  # type: ignore[no-untyped-call]
        return [out.detach(), *(x.grad for x in inputs if x.grad is not None)]

    together = results(0, 6)
    assert all(torch.equal(whole[2:4], part) for whole, part in zip(together, results(2, 4), strict=True))
    monkeypatch.setattr(SerialAndParallel, "__call__", lambda kernel, *arguments: kernel.serial(*arguments))
    assert all(torch.equal(*pair) for pair in zip(together, results(0, 6), strict=True))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("to_memory", [True, False])
@pytest.mark.slow_but_every(3)
def test_multi_head_attention_trains_by_it(bias: bool, to_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result equals the result without kernels."""
    torch.manual_seed(0)
    attention = accelerate(MultiHeadAttention(64, 2, bias=bias)).train()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x, memory = torch.randn(3, 8, 64), torch.randn(3, 10, 64) if to_memory else None
    mask = torch.rand(3, 8, 10 if to_memory else 8) < 0.8

    def gradients() -> list[Tensor]:
        attention.zero_grad()
        with torch.autocast("cpu", BFLOAT16):
            out = attention(x, memory, mask=mask)
        out.float().pow(2).sum().backward()
        return [out.detach().float(), *(each.grad for each in attention.parameters() if each.grad is not None)]

    calls: list[int] = []
    attend = bf16_attention.attention_forward

    def counted(*arguments: Any) -> None:
        calls.append(1)
        attend(*arguments)

    monkeypatch.setattr(bf16_attention, "attention_forward", counted)
    found = gradients()
    assert len(calls) == 1
    monkeypatch.setattr(kernels, "is_available", lambda: False)
    expected = gradients()
    assert len(calls) == 1
    for pair in zip(found, expected, strict=True):
        torch.testing.assert_close(*pair, rtol=5e-2, atol=5e-2 * float(pair[1].abs().max()))
