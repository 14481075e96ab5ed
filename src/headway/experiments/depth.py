"""What residual connections and norms do for the gradient of a deep stack.

The paper (3.1) puts a residual connection around each sub-layer. The usual explanation is that the gradient would
otherwise vanish on its way from the loss to the first layer: the deeper the stack, the more layers lie between them. He
et al. (2016), who introduced residual connections, disagree: normalization keeps gradients alive, and deep stacks still
train badly without residual connections. Layer norm gives the output of every layer the same scale. Without it, nothing
keeps gradients from vanishing or exploding.

The gradient of the first encoder block is measured in untrained models of several depths, with and without layer norm.
A gradient that reaches the first layer need not be useful: the pool measures what residual connections are worth.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from headway.experiments.experiment import Numbers, Settings
from headway.experiments.figures import label, subplots
from headway.experiments.verdicts import Regime, Tested, mean_effect
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.block_config import Norm
from headway.nn.loss import label_smoothed_cross_entropy

NORMS: tuple[Norm, ...] = ("post", "pre", "none")
SMALLEST = 1.0  # powers of ten; a gradient that changes by less neither vanishes nor explodes
VOCAB_SIZE = 200  # vocabulary size of random sentences
NUM_UNTRAINED = 8  # number of untrained models whose gradients are measured; they are cheap, so there are many

TITLE = "Residual connections and the gradient"


def measure(settings: Settings) -> Numbers:
    """Measure gradients over depth."""
    depths = (1, 2, 4, 8) if settings.quick else (1, 2, 4, 8, 16)
    gradients: list[dict[str, Any]] = [
        {"norm": norm, "residual": residual, "seed": seed}
        | {"sizes": [_first_gradient(norm, residual, depth, seed) for depth in depths]}
        for seed, norm, residual in product(range(3 if settings.quick else NUM_UNTRAINED), NORMS, (True, False))
    ]
    caption = f"Gradient norm of the first encoder block, for {', '.join(map(str, depths))} layers"
    return {"depths": depths, "gradients": gradients, "tables": {caption: gradients}}


def _first_gradient(norm: Norm, residual: bool, depth: int, seed: int) -> float:
    """Return the gradient norm of the first encoder block's weights in an untrained model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = {"d_model": 64, "num_heads": 4, "d_ff": 256, "encoder_layers": depth, "decoder_layers": depth}
        config = TransformerConfig.parse({**sizes, "dropout": 0.0, "norm": norm, "residual": residual}, "depth")
        model = Transformer(config, VOCAB_SIZE, VOCAB_SIZE)
        source, target, shifted = torch.randint(4, VOCAB_SIZE, (3, 8, 12))
    loss = label_smoothed_cross_entropy(model(source, shifted).flatten(0, 1), target.flatten(), 0.1).mean()
    gradients = torch.autograd.grad(loss, list(model.encoder.blocks[0].parameters()))
    size = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    return size if math.isfinite(size) else float(np.finfo(np.float32).max)


def judge(numbers: Numbers) -> tuple[Tested, ...]:
    """Judge by how many powers of ten the gradient shrinks with depth or, with residual connections, grows."""
    regime = Regime(f"untrained models of width 64, {len(numbers['gradients']) // 6} seeds")
    verdicts = list[Tested]()
    for norm, residual in (("post", False), ("none", False), ("none", True)):
        sizes = _log_gradients(numbers, norm, residual=residual)
        changes = (sizes[:, -1] - sizes[:, 0] if residual else sizes[:, 0] - sizes[:, -1]).tolist()
        what = f"powers of ten that the first block's gradient {'gains' if residual else 'loses'}"
        what += f" from depth 1 to {numbers['depths'][-1]}, {'post-norm' if norm == 'post' else 'without norm'}"
        verdicts.append(Tested(mean_effect(changes), SMALLEST, regime, what))
    return tuple(verdicts)


def _log_gradients(numbers: Numbers, norm: str, *, residual: bool) -> NDArray[np.float64]:
    """Return log10 of the gradients (seeds x depths). Zeros count as float32's smallest number."""
    rows = [row["sizes"] for row in numbers["gradients"] if (row["norm"], row["residual"]) == (norm, residual)]
    return np.log10([[max(size, 1e-45) for size in sizes] for sizes in rows])


def draw(numbers: Numbers) -> Figure:
    """Draw gradients over depth."""
    picture, (axes,) = subplots(TITLE, size=(10.0, 5.5))
    for norm, style in zip(NORMS, ("C2o", "C3s", "C4^"), strict=True):
        for residual, dash in ((True, "-"), (False, "--")):
            means = 10 ** _log_gradients(numbers, norm, residual=residual).mean(0)
            name = f"{'no ' if norm == 'none' else f'{norm}-'}norm, {'' if residual else 'no '}residual"
            axes.plot(numbers["depths"], means, style + dash, label=name)
    axes.legend(fontsize=9, handlelength=4)
    x, y = "layers in encoder and in decoder", "gradient norm, first encoder block"
    label(axes, "Gradient at the first layer", x, y, log="xy", xticks=numbers["depths"])
    return picture
