"""The layer types of the paper's table 1 in their simplest form, and functions that measure them.

The self-attention of the table has no projections. "whole self-attention" is the layer as models use it, with
projections of query, key, value and output. n is the sequence length and d the width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from headway.nn.attention import MultiHeadAttention, scaled_dot_product_attention

KERNEL_SIZE = 3  # width k of the convolution
PATH_WIDTH = 32  # of layers in which paths are searched
WINDOW = 8  # neighborhood r of restricted self-attention
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "self-attention": lambda n, d: n * n * d,
    "whole self-attention": lambda n, d: n * n * d + 2 * n * d * d,
    "recurrent": lambda n, d: n * d * d,
    "convolution": lambda n, d: KERNEL_SIZE * n * d * d,
    "restricted self-attention": lambda n, d: WINDOW * n * d,
}
"""Functions of n and d: the multiplications by table 1, which lacks the whole layer, without constant factors."""


def make_layer(kind: str, d: int, *, dilation: int = 1) -> nn.Module:
    """Return a layer from (B, n, d) to (B, n, d)."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "self-attention": lambda: Weightless(lambda x: scaled_dot_product_attention(x, x, x)),
        "fused self-attention": lambda: Weightless(_fused_attention),
        "whole self-attention": lambda: MultiHeadAttention(d, max(d // 64, 1)),
        "recurrent": lambda: Recurrent(d, d, batch_first=True),
        "convolution": lambda: CausalConvolution(d, d, KERNEL_SIZE, dilation=dilation),
        "restricted self-attention": lambda: Weightless(_restricted_attention),
    }
    return makers[kind]()


class Weightless(nn.Module):
    """A layer that applies a function, and has no weights."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Apply the function."""
        return self.function(x)


def _fused_attention(x: Tensor) -> Tensor:
    """Return softmax(X X^T / sqrt(d)) X by PyTorch's fused kernel, which never stores all weights."""
    heads = x.unsqueeze(1)
    return F.scaled_dot_product_attention(heads, heads, heads).squeeze(1)


def _restricted_attention(x: Tensor) -> Tensor:
    """Return attention of each position to the WINDOW nearest ones, half of them before it, without projections."""
    sides = (WINDOW // 2, WINDOW - 1 - WINDOW // 2)
    windows = F.pad(x, (0, 0, *sides)).unfold(1, WINDOW, 1)  # (B, N, D, R)
    inside = F.pad(x.new_ones(x.size(1)), sides).unfold(0, WINDOW, 1) > 0
    scores = torch.matmul(x.unsqueeze(2), windows).squeeze(2) * x.size(-1) ** -0.5
    weights = scores.masked_fill(~inside, -torch.inf).softmax(-1)
    return torch.matmul(windows, weights.unsqueeze(-1)).squeeze(-1)


class Recurrent(nn.RNN):
    """h_t = tanh(W x_t + U h_(t-1) + b), with PyTorch's own kernel."""

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:  # type: ignore[override]
        """Return the state after each input."""
        states: Tensor = super().forward(x)[0]
        return states


class CausalConvolution(nn.Conv1d):
    """Convolution over a position and KERNEL - 1 earlier positions, which are ``dilation`` apart."""

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Convolve with zeros before the first position, so that the length does not change."""
        before = (KERNEL_SIZE - 1) * self.dilation[0]
        return super().forward(F.pad(x.transpose(1, 2), (before, 0))).transpose(1, 2)


def count_multiplications(kind: str, n: int, d: int) -> int:
    """Count the multiplications of matrix products in a forward pass of one sequence."""
    counter = FlopCounterMode(display=False)
    layer, x = make_layer(kind, d), torch.randn(1, n, d)
    with counter:
        layer(x)
    return int(counter.get_total_flops()) // 2


def time_in_turns(turns: Sequence[tuple[str, Callable[[], Any]]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds that each function takes in each round, by its name, after a warm-up round.

    The functions take turns, so that other load that lasts longer than a round affects them equally. The time of a
    function with several turns is their mean.
    """
    seconds: dict[str, list[float]] = {name: [] for name, _ in turns}
    for number in range(rounds + 1):
        times: dict[str, list[float]] = {name: [] for name, _ in turns}
        for name, function in turns:
            begin = time.perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - begin)
        for name, values in times.items() if number else ():
            seconds[name].append(fmean(values))
    return seconds


def saved_bytes(module: nn.Module, x: Any) -> int:
    """Return the number of bytes that autograd saves for the backward pass of ``module(x)``.

    The output counts, because it is the input of the next layer. Weights and a tensor ``x`` do not count.
    """
    saved: list[Tensor] = []  # keeps the tensors alive, so that their addresses stay unique

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        saved.append(module(x))
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    for tensor in (*module.parameters(), *([x] if isinstance(x, Tensor) else [])):
        sizes.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(sizes.values())


def graph_depth(kind: str, n: int, d: int) -> int:
    """Return the longest chain of dependent operations: the depth of autograd's graph."""
    x = torch.randn(1, n, d, requires_grad=True)
    nodes, depth = {make_layer(kind, d)(x).grad_fn}, 0
    while nodes:  # the operations that are ``depth`` edges away from the output
        nodes = {successor for node in nodes for successor, _ in node.next_functions if successor is not None}
        depth += 1
    return depth


def distances_after(layer: Callable[[Tensor], Tensor], distances: Float[Tensor, "N S"]) -> Float[Tensor, "M S"]:
    """Return the distance of each output position of a layer from each source (positions x sources).

    An output depends on an input if its gradient is not 0, and is one step further away than the nearest such input.

    Args:
        layer: A function of a sequence (1, positions, PATH_WIDTH).
        distances: The distances of the inputs.
    """
    x, direction = torch.randn(1, len(distances), PATH_WIDTH), torch.randn(PATH_WIDTH)
    gradients: Tensor = jacobian(lambda x: layer(x)[0] @ direction, x)  # type: ignore[no-untyped-call]
    depends = gradients.abs().sum((1, 3)) > 0
    return 1 + torch.where(depends[:, :, None], distances, torch.inf).amin(1)


def path_length(kind: str, n: int) -> int:
    """Return the number of layers (recurrent: steps of the cell) between the first input and the last output."""
    distances, depth = torch.where(torch.eye(n).bool(), 0.0, torch.inf), 0
    if kind == "recurrent":
        cell, state = nn.RNNCell(PATH_WIDTH, PATH_WIDTH), torch.full((n,), torch.inf)
        for source in distances:
            inputs = torch.stack([source, state])
            (state,) = distances_after(lambda x: cell(x[:, 0], x[:, 1]).unsqueeze(1), inputs)
        return int(state[0])
    while not distances[-1, 0].isfinite():
        dilation = KERNEL_SIZE**depth if kind == "dilated convolution" else 1
        layer = make_layer(kind.removeprefix("dilated "), PATH_WIDTH, dilation=dilation)
        distances = distances_after(layer, distances)
        depth += 1
    return depth
