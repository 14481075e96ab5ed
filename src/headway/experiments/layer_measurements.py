"""The layer types of the paper's table 1 in their simplest form, and functions that measure them.

    layer                        multiplications     sequential     longest path
    self-attention               n^2 d               1              1
    recurrent                    n d^2               n              n
    convolution of width k       k n d^2             1              n/k, dilated log_k(n)
    self-attention within r      r n d               1              n/r

The self-attention of the table has no projections. "whole self-attention" is the layer as models use it, with
projections of query, key, value and output. n is the sequence length and d the width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from headway.nn.attention import MultiHeadAttention, scaled_dot_product_attention

KERNEL_SIZE = 3  # width k of the convolution
WINDOW = 8  # neighborhood r of restricted self-attention
LAYER_KINDS = ("self-attention", "whole self-attention", "recurrent", "convolution", "restricted self-attention")


def table1_ops(kind: str, n: int, d: int) -> int:
    """Return the operation count of table 1, without constant factors.

    The table does not contain the whole self-attention layer; its count includes the four projections.
    """
    return {
        "self-attention": n * n * d,
        "whole self-attention": n * n * d + 2 * n * d * d,
        "recurrent": n * d * d,
        "convolution": KERNEL_SIZE * n * d * d,
        "restricted self-attention": WINDOW * n * d,
    }[kind]


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


def time_layers(layers: Mapping[str, nn.Module], x: Float[Tensor, "B N D"], rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each layer's forward and backward pass in each round, after one warm-up round.

    The layers take turns on the same input, so that other load on the machine affects them equally.
    """
    times: dict[str, list[float]] = {name: [] for name in layers}
    for number in range(rounds + 1):
        for name, layer in layers.items():
            begin = time.perf_counter()
            layer(x).sum().backward()
            if x.is_cuda:
                torch.cuda.synchronize()
            if number:
                times[name].append((time.perf_counter() - begin) * 1e3)
    return times


def saved_activation_bytes(layer: nn.Module, x: Float[Tensor, "B N D"]) -> int:
    """Return the number of bytes that autograd saves for the backward pass.

    The output counts, because it is the input of the next layer. The layer's own input and its weights do not count.
    """
    saved: list[Tensor] = []  # keeps the tensors alive, so that their addresses stay unique

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        saved.append(layer(x))
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    for tensor in (x, *layer.parameters()):
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


def path_length(kind: str, n: int, d: int) -> int:
    """Return the smallest number of layers (recurrent: steps) that make the last output depend on the first input."""
    if kind == "recurrent":
        return _steps(n, d)
    x = torch.randn(1, n, d, dtype=torch.float64, requires_grad=True)
    y, gradient, depth = x, torch.zeros_like(x), 0
    while not gradient[0, 0].any():
        dilation = KERNEL_SIZE**depth if kind == "dilated convolution" else 1
        y = make_layer(kind.removeprefix("dilated "), d, dilation=dilation).double()(y)
        (gradient,) = torch.autograd.grad(y[0, -1].sum(), x, retain_graph=True)
        depth += 1
    return depth


def _steps(n: int, d: int) -> int:
    """Return the number of steps between the first input and the last state, found by detaching all earlier states."""
    cell = nn.RNNCell(d, d).double()
    x = torch.randn(n, 1, d, dtype=torch.float64, requires_grad=True)
    gradient, kept = torch.zeros_like(x), -1
    while not gradient[0].any():
        kept += 1
        state = cell(x[0])
        for place in range(1, n):
            state = cell(x[place], state.detach() if place < n - kept else state)
        (gradient,) = torch.autograd.grad(state.sum(), x)
    return kept
