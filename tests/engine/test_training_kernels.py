"""The training kernels, and the PyTorch operations that replace them, compared with definitions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headway import kernels
from headway.engine.accelerate import accelerate
from headway.engine.attention import KernelMultiHeadAttention, attend_by_kernels, attention_weights
from headway.engine.layers import KernelDropout, KernelLayerNorm, bias_activation, dropout_add, relu_dropout
from headway.engine.loss import projected_cross_entropy
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import gelu_tanh
from headway.nn.loss import label_smoothed_cross_entropy

if not kernels.is_available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

TYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    torch.set_num_threads(count)
    return count


@pytest.fixture(params=["kernels", "operations"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run once with the kernels, and once with PyTorch's operations as if there were no kernels."""
    if request.param == "operations":
        monkeypatch.setattr(kernels, "is_available", lambda: False)
    name: str = request.param
    return name


# The loss.


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [2, 17, 300, 8_000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_logits_become_the_gradient_of_their_loss(dtype: torch.dtype, size: int, smoothing: float) -> None:
    from headway.kernels.softmax import cross_entropy_

    torch.manual_seed(size)
    logits, targets = (torch.randn(9, size) * 5).to(dtype), torch.randint(size, (9,))
    exact = logits.double().requires_grad_()
    log_sum, chosen = exact.logsumexp(1), exact.gather(1, targets.unsqueeze(1)).squeeze(1)
    expected = (log_sum - (1 - smoothing) * chosen).sum()
    expected.backward()  # type: ignore[no-untyped-call]
    bits = logits.view(torch.uint16) if dtype == torch.bfloat16 else logits
    assert cross_entropy_(bits.numpy(), targets.numpy(), smoothing) == pytest.approx(expected.item(), rel=1e-6)
    assert exact.grad is not None
    rtol, atol = (2**-8, 1e-6) if dtype == torch.bfloat16 else (1e-5, 1e-7)
    torch.testing.assert_close(logits.double(), exact.grad, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_logit_that_is_no_number_makes_a_loss_that_is_none(dtype: torch.dtype) -> None:
    from headway.kernels.softmax import cross_entropy_

    for broken in (math.nan, -math.nan, math.inf):
        logits = torch.randn(2, 40).to(dtype)
        logits[1, 7] = broken
        bits = logits.view(torch.uint16) if dtype == torch.bfloat16 else logits
        assert not math.isfinite(cross_entropy_(bits.numpy(), np.array([3, 4]), 0.1))
        assert logits[0].isfinite().all()
        assert logits[1].isnan().any()


def test_unlikely_targets_and_large_logits_keep_their_loss() -> None:
    from headway.kernels.softmax import cross_entropy_

    logits = torch.zeros(1, 20)
    logits[0, 3], logits[0, 4] = 1e4, -1e4
    assert cross_entropy_(logits.numpy(), np.array([4]), 0.0) == pytest.approx(2e4)
    assert logits[0, 3] == 1
    assert logits[0, 4] == -1


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("width", [16, 32])  # a width without and with a kernel for products in bfloat16
def test_the_projected_loss_is_the_definitions(autocast: bool, width: int) -> None:
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(2_100, width), torch.randn(50, width), torch.randint(50, (2_100,))
    bias = 2 * torch.randn(50)
    found, expected = ([x.clone().requires_grad_() for x in (hidden, weight, bias)] for _ in range(2))
    with torch.autocast("cpu", enabled=autocast):
        loss = projected_cross_entropy(found[0], found[1], targets, 0.1, bias=found[2])
    loss.backward()  # type: ignore[no-untyped-call]
    defined = label_smoothed_cross_entropy(F.linear(*expected), targets, 0.1).sum()
    defined.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(defined.item(), rel=1e-3 if autocast else 1e-5)
    for one, other in zip(found, expected, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert F.cosine_similarity(one.grad.flatten(), other.grad.flatten(), 0) > (0.9999 if autocast else 0.999999)


# The weights of attention.


def plainly(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    return scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0.0)


@pytest.mark.slow_but_every(7)
@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("queries", "places"), [(1, 1), (3, 5), (7, 16), (20, 33), (40, 40)])
@pytest.mark.parametrize("kind", ["padding", "causal", "each"])
def test_weights_and_their_gradients_are_the_softmax_of_open_places(
    dtype: torch.dtype, queries: int, places: int, kind: str
) -> None:
    torch.manual_seed(places)
    mask = {
        "padding": (torch.arange(places) < torch.tensor([[places], [1], [places // 2]]))[:, None, None],
        "causal": (torch.arange(places) <= torch.arange(queries).unsqueeze(1))[None],
        "each": torch.rand(3, 1, queries, places) < 0.5,  # some rows are fully masked
    }[kind]
    made = [torch.randn(3, 2, length, 8).to(dtype) for length in (queries, places)]
    query, key = (x.clone().requires_grad_() for x in made)
    ours = attention_weights(query, key, mask)
    other_query, other_key = (x.float().requires_grad_() for x in made)
    theirs = plainly(other_query, other_key, mask)
    rtol, atol = (0.05, 0.02) if dtype == torch.bfloat16 else (1e-5, 1e-6)
    torch.testing.assert_close(ours.float(), theirs, rtol=rtol, atol=atol)
    assert (ours[~mask.expand(ours.shape)] == 0).all()
    pull = torch.randn(theirs.shape)
    (ours.float() * pull).sum().backward()  # type: ignore[no-untyped-call]
    (theirs * pull).sum().backward()  # type: ignore[no-untyped-call]
    for mine, other in ((query.grad, other_query.grad), (key.grad, other_key.grad)):
        assert mine is not None
        assert other is not None
        torch.testing.assert_close(mine.float(), other, rtol=0.1, atol=0.1 if dtype == torch.bfloat16 else 1e-5)


# Dropout.


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.97])
def test_masks_have_the_probability_that_was_asked_for(dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(1)
    x = torch.ones(400, 1001, dtype=dtype)
    out = KernelDropout(p).train()(x).double()
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / (1 - round(p * 2**16) / 2**16)).to(dtype).item()}
    kept = (out > 0).double()
    error = math.sqrt(p * (1 - p) / x.numel())
    assert kept.mean().item() == pytest.approx(1 - p, abs=5 * error)
    # Neighbors in a word, neighbors in a row, and rows are independent.
    for one, other in ((kept[:, :-1], kept[:, 1:]), (kept[:, :-4], kept[:, 4:]), (kept[:-1], kept[1:])):
        covariance = ((one - one.mean()) * (other - other.mean())).mean().item()
        assert abs(covariance) < 6 * p * (1 - p) / math.sqrt(one.numel())


@pytest.mark.usefixtures("by")
def test_masks_depend_only_on_the_generator(threads: int) -> None:
    masks = []
    for count in (threads, 1, 2):
        torch.set_num_threads(count)
        torch.manual_seed(7)
        masks.append([KernelDropout(0.3).train()(torch.ones(50, 999)) for _ in range(2)])
    assert not torch.equal(*masks[0])
    for other in masks[1:]:
        assert all(torch.equal(*pair) for pair in zip(masks[0], other, strict=True))


def test_random_words_are_those_of_splitmix64() -> None:
    from headway.kernels.dropout import dropout

    def words(seed: int, count: int) -> list[int]:
        found, state, bits = [], seed, 2**64 - 1
        for _ in range(count):
            state = (state + 0x9E3779B97F4A7C15) & bits
            word = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & bits
            word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & bits
            found.append(word ^ (word >> 31))
        return found

    assert words(0, 1) == [0xE220A8397B1DCDAF], "what its authors' program prints first"
    halves = [(word >> shift) & 0xFFFF for word in words(12345, 5_000) for shift in (0, 16, 32, 48)]
    out = np.empty(19_998, dtype=np.float32)
    dropout(np.ones(19_998, dtype=np.float32), out, 12345, 2**14)
    assert out.tolist() == [np.float32(4 / 3) if half >= 2**14 else 0.0 for half in halves[:19_998]]


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", TYPES)
def test_dropped_elements_pass_no_gradient_and_a_residual_passes_all(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dropout = KernelDropout(0.25).train()
    x, residual = (torch.rand(7, 30, 50).add(1).to(dtype).requires_grad_() for _ in range(2))
    out = dropout_add(dropout, x, residual)
    kept = (out - residual).detach() != 0
    assert 0.7 < kept.double().mean().item() < 0.8
    expected = residual + torch.where(kept, x / 0.75, 0.0)
    torch.testing.assert_close(out, expected.to(dtype), rtol=2**-6 if dtype == torch.bfloat16 else 1e-6, atol=0)
    pull = torch.randn(out.shape).to(dtype)
    out.backward(pull)  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert residual.grad is not None
    torch.testing.assert_close(x.grad, torch.where(kept, pull / 0.75, 0.0).to(dtype), rtol=2**-7, atol=1e-6)
    assert torch.equal(residual.grad, pull)


@pytest.mark.usefixtures("by")
def test_a_residual_may_be_of_another_type() -> None:
    x, residual = torch.ones(30, 50, dtype=torch.bfloat16), torch.full((30, 50), 1e-3)
    out = dropout_add(KernelDropout(0.5).train(), x, residual)
    assert out.dtype == torch.float32
    assert set(torch.unique(out).tolist()) == {torch.tensor(1e-3).item(), torch.tensor(2.001).item()}


# Feed-forward layers.


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("p", "width"), [(0.0, 40), (0.25, 40), (0.25, 37)])
def test_the_inner_layer_is_relu_of_the_biased_product_thinned(dtype: torch.dtype, p: float, width: int) -> None:
    torch.manual_seed(width)
    x, bias = torch.randn(3, 90, width).to(dtype).requires_grad_(), torch.randn(width).requires_grad_()
    out = relu_dropout(KernelDropout(p).train(), x, bias)
    other_x, other_bias = (each.detach().double().requires_grad_() for each in (x, bias))
    dense = F.relu(other_x + other_bias) / (1 - p)
    kept = (out != 0).double().detach()
    assert kept.sum() == pytest.approx((dense > 0).sum().item() * (1 - p), rel=0.05)
    rtol, atol = (2**-6, 1e-2) if dtype == torch.bfloat16 else (1e-5, 1e-6)
    torch.testing.assert_close(out.double(), dense * kept, rtol=rtol, atol=atol)
    pull = torch.randn(out.shape).to(dtype)
    out.backward(pull)  # type: ignore[no-untyped-call]
    (dense * kept).backward(pull.double())  # type: ignore[no-untyped-call]
    for mine, exact in ((x.grad, other_x.grad), (bias.grad, other_bias.grad)):
        assert mine is not None
        assert exact is not None
        assert F.cosine_similarity(mine.double().flatten(), exact.flatten(), 0) > (
            0.999 if dtype == torch.bfloat16 else 0.999999
        )


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [1, 40, 67])
@pytest.mark.parametrize("activation", [F.gelu, gelu_tanh, F.silu])
def test_biased_activations_and_their_gradients_are_pytorchs(
    dtype: torch.dtype, width: int, activation: Callable[[Tensor], Tensor]
) -> None:
    torch.manual_seed(width)
    x, bias = (2 * torch.randn(3, 90, width)).to(dtype).requires_grad_(), torch.randn(width).requires_grad_()
    out, pull = bias_activation(activation, x, bias), torch.randn(3, 90, width).to(dtype)
    out.backward(pull)  # type: ignore[no-untyped-call]
    exact_x, exact_bias = (each.detach().double().requires_grad_() for each in (x, bias))
    exact = activation(exact_x + exact_bias)
    exact.backward(pull.double())  # type: ignore[no-untyped-call]
    rtol, atol = (2**-8, 1e-6) if dtype == torch.bfloat16 else (1e-5, 1e-6)
    assert x.grad is not None
    assert bias.grad is not None
    torch.testing.assert_close(out.double(), exact, rtol=rtol, atol=atol)
    torch.testing.assert_close(x.grad.double(), exact_x.grad, rtol=rtol, atol=atol)
    torch.testing.assert_close(bias.grad.double(), exact_bias.grad, rtol=1e-5, atol=1e-4)  # sums of 270 numbers


def test_damaged_activations_stay_damaged() -> None:
    damaged, bias = torch.full((1, 50), math.nan), torch.zeros(50)
    for p in (0.0, 0.1):
        assert relu_dropout(KernelDropout(p).train(), damaged, bias).isnan().any()
    for activation in (F.gelu, gelu_tanh, F.silu):
        assert bias_activation(activation, damaged, bias).isnan().all()


# Layer normalization.


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 7), (130, 64), (70, 300)])
def test_layer_norm_and_its_gradients_are_pytorchs(dtype: torch.dtype, rows: int, width: int) -> None:
    torch.manual_seed(rows)
    ours, theirs = KernelLayerNorm(width).train(), torch.nn.LayerNorm(width).double()
    for name, parameter in ours.named_parameters():
        torch.nn.init.normal_(parameter)
        theirs.get_parameter(name).data.copy_(parameter)
    x = (torch.randn(2, rows, width) * 3 + 5).to(dtype).requires_grad_()
    other = x.detach().double().requires_grad_()
    out, expected, pull = ours(x), theirs(other), torch.randn(2, rows, width).to(dtype)
    assert out.dtype == dtype
    out.backward(pull)
    expected.backward(pull.double())
    rtol, atol = (2**-7, 0.02) if dtype == torch.bfloat16 else (1e-4, 1e-4)
    torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=atol)
    assert x.grad is not None
    assert other.grad is not None
    torch.testing.assert_close(x.grad.double(), other.grad, rtol=rtol, atol=atol)
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        wanted = theirs.get_parameter(name).grad
        assert wanted is not None
        torch.testing.assert_close(parameter.grad.double(), wanted, rtol=1e-4, atol=1e-3)


# Attention as one operation.


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("to_memory", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_by_kernels_is_the_definitions(autocast: bool, bias: bool, to_memory: bool, dropout: float) -> None:
    torch.manual_seed(0)
    ours, theirs = (kind(24, 3, bias=bias, dropout=dropout) for kind in (KernelMultiHeadAttention, MultiHeadAttention))
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.load_state_dict(ours.state_dict())
    inputs = [torch.randn(4, 7, 24), torch.randn(4, 9, 24)]
    places = 9 if to_memory else 7
    mask = torch.rand(4, 1 if to_memory else 7, places) < 0.6
    mask[0] = False  # nothing to attend to
    found = []
    for layer in (ours, theirs):
        x, memory = (each.clone().requires_grad_() for each in inputs)
        torch.manual_seed(1)  # the same elements are dropped
        with torch.autocast("cpu", enabled=autocast):
            out = layer(x, memory if to_memory else None, mask=mask)
        out.float().pow(2).sum().backward()
        gradients = [x.grad, memory.grad if to_memory else x.grad, *(each.grad for each in layer.parameters())]
        found.append([out, *gradients])
    assert "_Attention" in str(_ancestors(found[0][0]))
    assert "_Attention" not in str(_ancestors(found[1][0]))
    for one, other in zip(*found, strict=True):
        if autocast:
            assert F.cosine_similarity(one.float().flatten(), other.float().flatten(), 0) > 0.999
        else:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def _ancestors(x: Tensor) -> set[str]:
    """Return the names of the operations that computed a tensor."""
    seen: set[object] = set()
    rest = [x.grad_fn]
    while rest:
        node = rest.pop()
        if node is not None and node not in seen:
            seen.add(node)
            rest += [each for each, _ in node.next_functions]
    return {type(node).__name__ for node in seen}


# All kernels.


@pytest.mark.slow_but_every(5)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "width"), [(5, 7), (150, 100), (64, 256)])
def test_threads_that_share_a_loop_compute_what_one_does(
    dtype: torch.dtype, rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two compiled forms are equal bit for bit, because a run may switch between them."""
    from headway.kernels.jit import SerialAndParallel

    def results() -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.randn(2, rows, width).to(dtype).requires_grad_()
        residual = torch.randn(2, rows, width).to(dtype)
        layer, thin = KernelLayerNorm(width).train(), KernelDropout(0.3).train()
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
        out = relu_dropout(thin, dropout_add(thin, layer(x), residual), torch.randn(width))
        projected = torch.cat((out, x) * 3, -1)  # two heads
        mask = torch.rand(2, 1, rows) < 0.8
        attended = attend_by_kernels(projected, None, torch.randn(6 * width), mask, 2)
        attended.backward(torch.randn(attended.shape).to(dtype))  # type: ignore[no-untyped-call]
        assert x.grad is not None
        gradients = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
        return [out.detach(), attended.detach(), x.grad, *gradients]

    torch.set_num_threads(2)  # also for products
    together = results()
    monkeypatch.setattr(SerialAndParallel, "__call__", lambda kernel, *arguments: kernel.serial(*arguments))
    assert all(torch.equal(*pair) for pair in zip(together, results(), strict=True))


@pytest.mark.slow_but_every(4)
@pytest.mark.parametrize("width", [16, 24])
def test_a_step_is_the_same_wherever_memory_lies(width: int) -> None:
    """Compiled loops that check whether arrays overlap could sum in a different order if arrays are close in memory."""

    def gradients(allocations: int) -> list[Tensor]:
        torch.manual_seed(0)
        config = TransformerConfig.preset(
            "tiny", d_model=width, num_heads=2, d_ff=width, norm="pre", dropout=0.1, feed_forward_dropout=0.1
        )
        model = accelerate(Transformer(config, 50, 50)).train()
        kept = [np.empty(7 * count + 1, dtype=np.float32) for count in range(allocations)]
        source, target = torch.randint(4, 50, (6, 9)), torch.randint(4, 50, (6, 7))
        model.hidden(source, target).pow(2).sum().backward()  # type: ignore[no-untyped-call]
        assert len(kept) == allocations
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    first = gradients(0)
    for allocations in range(1, 30):
        assert all(torch.equal(*pair) for pair in zip(first, gradients(allocations), strict=True))
