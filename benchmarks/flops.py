"""What a training step must multiply, and how fast the machine multiplies: the two sides of every share of a peak.

Model FLOP are those of the matrix products that the definition asks for (Vaswani et al. 2017, section 3), two for each
multiplication and addition, over real tokens only: the projections of the attentions, scores and weighted sums, the
feed-forward layers, and the logits of the real targets. A backward pass has two products for every forward one, so a
step counts three times the forward pass. Self-attention of the decoder counts T x T scores: equation 1 multiplies all
queries with all keys, and the mask comes after (half of them would change the figures of translation by 0.1 %).
Embedding look-ups, norms, softmax, dropout and the optimiser count nothing, and neither does padding.

A sentence has its end symbol on both sides. The figures hold for ``d_key = d_value = d_model / num_heads`` and feed-
forward layers without gates.
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
    """The model FLOP, forward and backward, of sentences with these lengths (two arrays of equal size, in tokens)."""
    s, t = np.asarray(source, np.float64), np.asarray(target, np.float64)
    d_model, d_ff = config.d_model, config.d_ff
    square, feed_forward = 2 * d_model**2, 4 * d_model * d_ff  # FLOP a token
    attended = 4 * d_model  # FLOP for each pair of query and key: its score, and its share of the sum
    encoder_block = s * (4 * square + feed_forward) + attended * s * s
    self_attention = t * 4 * square + attended * t * t
    cross_attention = (t + s) * 2 * square + attended * t * s  # queries and outputs from T, keys and values from S
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
    """The fastest of these products: cubes, and each layer's three for ``rows`` tokens, laid out as a layer has them.

    A layer from I to O units multiplies x (N x I) with its transposed weight (O x I), in the backward pass the gradient
    (N x O) with the weight, and the transposed gradient with x.
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
    """The best of ``repeats`` timings of ``left @ right``, of which only shapes and layout are given."""
    left, right = (torch.empty_like(side, dtype=dtype, device=device).normal_() for side in (left, right))
    in_a_row = 20 if device.type == "cuda" else 1  # so that launching is no part of it
    shortest = float("inf")
    for _ in range(repeats + 1):  # the first one warms up: it cannot be the best
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
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
