"""Attention within the documents of a block: fast forms that build no (B, T, T) mask, compared with the definition."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from fast_and_plain import attention_outcome
from torch import Tensor

from headway import kernels
from headway.engine import attention as fast_attention
from headway.engine.accelerate import accelerate
from headway.engine.attention import attend_by_kernels
from headway.engine.local_attention import LocalMultiHeadAttention
from headway.nn import DocumentMask, MultiHeadAttention
from headway.nn.attention import observe_attention

needs_kernels = pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")
LENGTH = 21


def documents(rows: int = 3) -> DocumentMask:
    """Return the mask of rows that contain one document, several documents, and documents of one token."""
    starts = torch.zeros(rows, LENGTH, dtype=torch.bool)
    starts[1, [0, 4, 5, 17]] = True
    starts[2] = True
    return DocumentMask.from_starts(starts)


def refuse_dense_masks(patch: pytest.MonkeyPatch) -> None:
    def refuse(mask: DocumentMask) -> Tensor:
        raise AssertionError("a fast path built the (B, T, T) mask")

    patch.setattr(DocumentMask, "to_tensor", refuse)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_compute_the_same_bits_from_first_keys_and_from_a_tensor(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mask, bias = documents(), torch.randn(3 * 16)
    found = []
    for each in (mask, mask.to_tensor()):
        torch.manual_seed(1)
        projected = torch.randn(3, LENGTH, 3 * 16).to(dtype).requires_grad_()
        out = attend_by_kernels(projected, None, bias, each, 2)
        out.backward(torch.randn(out.shape).to(dtype))  # type: ignore[no-untyped-call]
        assert projected.grad is not None
        found.append((out.detach(), projected.grad))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@needs_kernels
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"rotary": True}, {"dropout": 0.3}, {"score": "additive"}, {"num_kv_heads": 1}, {"window": (2, 0)}],
    ids=str,
)
def test_attention_equals_the_plain_form(
    options: dict[str, Any], long: bool, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``long``: attention as for long sequences, one document after the other, or in blocks if there is a window."""
    torch.manual_seed(0)
    plain = MultiHeadAttention(32, 2, **options).train(training)
    layer = accelerate(deepcopy(plain))
    assert type(layer) is not MultiHeadAttention
    x = torch.randn(3, LENGTH, 32)
    expected = attention_outcome(plain, x, documents().to_tensor())
    for found, other in zip(attention_outcome(plain, x, documents()), expected, strict=True):
        assert torch.equal(found, other)
    if long:
        monkeypatch.setattr(fast_attention, "_fused_is_faster", lambda *_: True)
        monkeypatch.setattr("headway.engine.local_attention._MIN_BLOCK", 2)
        monkeypatch.setattr("headway.engine.local_attention._MIN_LENGTH", 1)
    refuse_dense_masks(monkeypatch)
    for found, other in zip(attention_outcome(layer, x, documents()), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-4)


@needs_kernels
def test_long_sequences_with_a_window_that_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window moves the first key on within a document, so documents are not computed one by one."""
    torch.manual_seed(0)
    plain = MultiHeadAttention(32, 2, window=(9, 0))
    layer, x = accelerate(deepcopy(plain)), torch.randn(3, LENGTH, 32)
    assert isinstance(layer, LocalMultiHeadAttention)
    expected = attention_outcome(plain, x, documents().to_tensor())
    monkeypatch.setattr(fast_attention, "_fused_is_faster", lambda *_: True)
    refuse_dense_masks(monkeypatch)
    for found, other in zip(attention_outcome(layer, x, documents()), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-4)


def test_observed_weights_are_zero_between_documents() -> None:
    layer = accelerate(MultiHeadAttention(32, 2)).eval()
    seen: list[Tensor] = []
    with observe_attention(lambda _, weights: seen.append(weights)), torch.inference_mode():
        layer(torch.randn(3, LENGTH, 32), mask=documents())
    assert torch.equal(seen[0] > 0, documents().to_tensor().unsqueeze(1).expand_as(seen[0]))
