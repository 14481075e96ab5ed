"""FLOP utilization: count the FLOP of a training step, and measure the machine's peak rate of matrix products.

Model FLOP are the FLOP of the matrix products in the model's definition (Vaswani et al. 2017, section 3), over real
tokens only: the projections of attention, scores and weighted sums, the feed-forward layers, and the logits of the real
targets. A multiplication and its addition count as two operations. A backward pass has two products for every forward
product, so a step counts as three forward passes. Self-attention of the decoder counts T x T scores, because equation 1
multiplies all queries with all keys before the mask is applied (counting half of them would change the figures of
translation by 0.1 %). Embedding look-ups, norms, softmax, dropout, the optimizer and padding are not counted.

Sentences include EOS on both sides. The figures are valid for ``d_key = d_value = d_model / num_heads`` and
feed-forward layers without gates.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from headway.models.transformer import TransformerConfig


def training_flop(config: TransformerConfig, vocab_size: int, source: ArrayLike, target: ArrayLike) -> float:
    """Return the model FLOP, forward and backward, of sentences with these lengths (equal-sized arrays, in tokens)."""
    s, t = np.asarray(source, np.float64), np.asarray(target, np.float64)
    d_model, d_ff = config.d_model, config.d_ff
    square, feed_forward = 2 * d_model**2, 4 * d_model * d_ff  # FLOP per token
    attended = 4 * d_model  # FLOP per pair of query and key: its score, and its term of the weighted sum
    encoder_block = s * (4 * square + feed_forward) + attended * s * s
    self_attention = t * 4 * square + attended * t * t
    cross_attention = (t + s) * 2 * square + attended * t * s  # queries and outputs for T, keys and values for S
    decoder_block = self_attention + cross_attention + t * feed_forward
    logits = t * 2 * d_model * vocab_size
    forward = config.encoder_layers * encoder_block + config.decoder_layers * decoder_block + logits
    return float(3 * forward.sum())


@dataclass(frozen=True)
class Product:
    """One shape of matrix product and its best rate, in FLOP/s."""

    rows: int
    inner: int
    columns: int
    flop_per_s: float

    def __str__(self) -> str:
        return f"{self.rows} x {self.inner} x {self.columns}"


def best_product(
    dtype: torch.dtype,
    device: torch.device,
    config: TransformerConfig,
    vocab_size: int,
    rows: int,
    cubes: Sequence[int] = (2048,),
    repeats: int = 5,
) -> Product:
    """Return the fastest of these products: cubes, and the three products of each layer for ``rows`` tokens.

    A layer from I to O units multiplies x (N x I) with its transposed weight (O x I). In the backward pass, it
    multiplies the gradient (N x O) with the weight, and the transposed gradient with x. The operands have the layer's
    memory layout.
    """
    d_model, d_ff = config.d_model, config.d_ff
    shape = partial(torch.empty, device="meta")
    best = [_rate(shape(n, n), shape(n, n), dtype, device, repeats) for n in cubes]
    layers = [(d_model, d_model), (d_model, 3 * d_model), (d_model, d_ff), (d_ff, d_model), (d_model, vocab_size)]
    for inner, outer in layers:
        x, gradient, weight = shape(rows, inner), shape(rows, outer), shape(outer, inner)
        best += [
            _rate(left, right, dtype, device, repeats)
            for left, right in ((x, weight.T), (gradient, weight), (gradient.T, x))
        ]
    return max(best, key=lambda product: product.flop_per_s)


def _rate(left: Tensor, right: Tensor, dtype: torch.dtype, device: torch.device, repeats: int) -> Product:
    """Return the best of ``repeats`` timings of ``left @ right``, whose arguments give only shapes and layouts."""
    left, right = (torch.empty_like(side, dtype=dtype, device=device).normal_() for side in (left, right))
    in_a_row = 20 if device.type == "cuda" else 1  # so that the time does not include launching
    shortest = float("inf")
    for _ in range(repeats + 1):  # the first one is a warm-up
        wait(device)
        begin = time.perf_counter()
        for _ in range(in_a_row):
            left @ right
        wait(device)
        shortest = min(shortest, (time.perf_counter() - begin) / in_a_row)
    rows, inner = left.shape
    columns = right.size(1)
    return Product(rows, inner, columns, 2 * rows * inner * columns / shortest)


def wait(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
