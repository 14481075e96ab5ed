"""What warm-up and residual connections contribute to training deep stacks.

Warm-up. The paper (5.3) increases the learning rate over the first steps. Xiong et al. (2020) find that post-norm, the
paper's order, needs warm-up because its gradients near the output are large at the start, and that pre-norm does not
need it. Both orders are trained with and without warm-up, which takes a quarter of all steps. With and without it, the
learning rate has the same peak and then decays linearly. A training run whose gradients are infinite in many
consecutive steps is stopped, and counts as random guessing.

Depth. The paper (3.1) puts a residual connection around each sub-layer. The usual explanation is that the gradient
would otherwise vanish on its way from the loss to the first layer: the deeper the stack, the more layers lie between
them. He et al. (2016), who introduced residual connections, disagree: normalization keeps gradients alive, and deep
stacks still train badly without residual connections. Layer norm gives the output of every layer the same scale.
Without it, nothing keeps gradients from vanishing or exploding. A gradient that reaches the first layer need not be
useful, so two things are measured: the gradient of the first encoder block at several depths before training, with and
without layer norm, and the loss after training without residual connections.

The full version has 15 runs of 6 + 6 layers and 300 steps of 1,024 tokens; measuring gradients takes seconds. Post-norm
and pre-norm have different peak learning rates: at 0.003, the rate of the other experiments, a post-norm model of this
depth does not learn, with or without warm-up.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from headway.errors import DivergenceError
from headway.experiments.comparison import column, format_mean_std, judge_greater, mean_ci, mean_diff, strip_plot
from headway.experiments.corpus import MULTI30K, ExperimentCorpus, experiment_corpus
from headway.experiments.experiment import OURS, Claim, Experiment, Numbers, Settings, Verdict, decide
from headway.experiments.figures import label, subplots
from headway.experiments.training import read_metrics, train_variant, vocabulary_size
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.block_config import Norm
from headway.nn.loss import label_smoothed_cross_entropy

WARM, COLD, BARE = "warm-up", "no warm-up", "warm-up, no residual connections"
VARIANTS = (("post", WARM), ("post", COLD), ("post", BARE), ("pre", WARM), ("pre", COLD))
NORMS: tuple[Norm, ...] = ("post", "pre", "none")
MIN_LOSS_GAP = 0.05  # nats; smaller differences do not count
_RATES = {"post": 0.001, "pre": 0.003}  # peak learning rates of the full version
MIN_DECADES_LOST = 1.0  # a gradient "vanishes" if it shrinks by more than this power of ten
VOCAB_SIZE = 200  # vocabulary size of random sentences
NUM_UNTRAINED = 8  # number of untrained models whose gradients are measured; they are cheap, so there are many

TITLE = "Warm-up and residual connections"
CLAIMS = (
    Claim("Without warm-up, post-norm trains worse.", "Xiong et al. 2020, 3.2"),
    Claim("Pre-norm does as well without warm-up.", "Xiong et al. 2020, 4"),
    Claim(
        "Without residual connections, the gradient vanishes before the first layer.", f"{OURS}: a usual explanation"
    ),
    Claim(
        "Without residual connections and without layer normalization, the gradient vanishes before the first layer.",
        f"{OURS}: He et al. 2016, 1, hold that normalization keeps gradients alive",
    ),
    Claim(
        "Without residual connections, a deep stack trains worse.",
        f"{OURS}: He et al. 2016, 4.1, found it with images; the paper, 3.1, does not say why it has them",
    ),
)


def measure(settings: Settings) -> Numbers:
    """Measure the losses of all training runs over seeds, and gradients over depth."""
    corpus = experiment_corpus(settings)
    runs = [
        {"norm": norm, "start": start, "seed": seed, **_train(settings, corpus, seed, norm, start)}
        for seed, (norm, start) in product(settings.seeds, VARIANTS)
    ]
    depths = (1, 2, 4, 8) if settings.quick else (1, 2, 4, 8, 16)
    gradients = [
        {"norm": norm, "residual": residual, "seed": seed}
        | {"sizes": [_first_gradient(norm, residual, depth, seed) for depth in depths]}
        for seed, norm, residual in product(range(3 if settings.quick else NUM_UNTRAINED), NORMS, (True, False))
    ]
    table = [
        {
            "norm": norm,
            "start": start,
            "loss (nats per token)": format_mean_std(runs, "loss", norm=norm, start=start),
            "diverged": int(sum(column(runs, "failed", norm=norm, start=start))),
        }
        for norm, start in VARIANTS
    ]
    tables = {"Loss of the development set after training, over seeds with standard deviations": table}
    return {"runs": runs, "depths": depths, "gradients": gradients, "tables": tables}


def _train(settings: Settings, corpus: ExperimentCorpus, seed: int, norm: str, start: str) -> dict[str, Any]:
    """Return the final loss and the curve of one training run. A diverged run counts as random guessing."""
    steps, layers, tokens = (24, 3, 384) if settings.quick else (300, 6, 1024)
    rate = 1e-2 if settings.quick else _RATES[norm]
    changes: dict[str, dict[str, Any]] = {
        "data": {"max_tokens": tokens},
        "model": {"norm": norm, "residual": start != BARE, "encoder_layers": layers, "decoder_layers": layers},
        "optimizer": {"learning_rate": rate, "warmup_steps": 1 if start == COLD else steps // 4},
        "training": {"steps": steps, "log_every": steps // 20},
    }
    try:
        trained = train_variant(settings, corpus, seed, changes)
    except DivergenceError:
        return {"loss": math.log(vocabulary_size(settings, corpus, seed, changes)), "failed": 1, "curve": []}
    curve = [[line["step"], line["loss"]] for line in read_metrics(trained.run_folder, "train")]
    return {"loss": trained.dev_loss, "failed": 0, "curve": curve}


def _first_gradient(norm: Norm, residual: bool, depth: int, seed: int) -> float:
    """Return the gradient norm of the first encoder block's weights in an untrained model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = {"d_model": 64, "num_heads": 4, "d_ff": 256, "encoder_layers": depth, "decoder_layers": depth}
        config = TransformerConfig.parse({**sizes, "dropout": 0.0, "norm": norm, "residual": residual}, "warmup-depth")
        model = Transformer(config, VOCAB_SIZE, VOCAB_SIZE)
        source, target, shifted = torch.randint(4, VOCAB_SIZE, (3, 8, 12))
    loss = label_smoothed_cross_entropy(model(source, shifted).flatten(0, 1), target.flatten(), 0.1).mean()
    gradients = torch.autograd.grad(loss, list(model.encoder.blocks[0].parameters()))
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by the loss after training, and by the number of powers of ten by which the gradient shrinks with depth."""
    loss = {training: column(numbers["runs"], "loss", norm=training[0], start=training[1]) for training in VARIANTS}
    what = "loss of the development set in nats, without warm-up minus with"
    deepest = numbers["depths"][-1]
    harm = mean_diff(loss["pre", COLD], loss["pre", WARM])
    pre = judge_greater(harm, f"pre-norm, {what}", threshold=MIN_LOSS_GAP).reason  # the claim is that it is not greater
    lost = f"powers of ten that the first block's gradient loses from depth 1 to {deepest} without residual connections"
    residual = "loss of the development set in nats, without residual connections minus with"
    return (
        judge_greater(mean_diff(loss["post", COLD], loss["post", WARM]), f"post-norm, {what}", margin=MIN_LOSS_GAP),
        decide(pre, supported=harm.high < MIN_LOSS_GAP, refuted=harm.low > MIN_LOSS_GAP),
        judge_greater(mean_ci(_decades_lost(numbers, "post")), f"{lost}, post-norm", threshold=MIN_DECADES_LOST),
        judge_greater(mean_ci(_decades_lost(numbers, "none")), f"{lost} and without norm", threshold=MIN_DECADES_LOST),
        judge_greater(mean_diff(loss["post", BARE], loss["post", WARM]), residual, margin=MIN_LOSS_GAP),
    )


def _decades_lost(numbers: Numbers, norm: str) -> list[float]:
    """Return log10 of the ratio of first to last depth's gradient, without residual connections, for each seed."""
    sizes = _log_gradients(numbers, norm, residual=False)
    return [float(lost) for lost in sizes[:, 0] - sizes[:, -1]]


def _log_gradients(numbers: Numbers, norm: str, *, residual: bool) -> NDArray[np.float64]:
    """Return log10 of the gradients (seeds x depths). Zeros and overflows count as float32's smallest number."""
    rows = [row["sizes"] for row in numbers["gradients"] if (row["norm"], row["residual"]) == (norm, residual)]
    return np.log10([[max(size or 0.0, 1e-45) for size in sizes] for sizes in rows])


def draw(numbers: Numbers) -> Figure:
    """Draw the training losses (one panel per norm), the final losses, and gradients over depth."""
    picture, (post, pre, final, gradients) = subplots(TITLE, 2, 2, size=(14.0, 9.5))
    for norm, axes in (("post", post), ("pre", pre)):
        _draw_curves(axes, numbers, norm)
    pre.sharey(post)
    losses = {
        f"{norm}-norm,\n{start}".replace(", ", ",\n"): column(numbers["runs"], "loss", norm=norm, start=start)
        for norm, start in VARIANTS
    }
    strip_plot(final, losses, "After training (dots: seeds)", "loss of the development set (nats per token)")
    _draw_gradients(gradients, numbers)
    return picture


def _draw_curves(axes: Axes, numbers: Numbers, norm: str) -> None:
    for number, start in enumerate(start for variant_norm, start in VARIANTS if variant_norm == norm):
        rows = [row["curve"] for row in numbers["runs"] if (row["norm"], row["start"]) == (norm, start)]
        for index, curve in enumerate(rows):
            points = np.reshape(curve, (-1, 2)).T
            axes.plot(*points, f"C{number}", alpha=0.75, linewidth=1.5, label=None if index else start)
    axes.legend()
    label(axes, f"{norm.capitalize()}-norm (one line per seed)", "step", "training loss (nats per token)")


def _draw_gradients(axes: Axes, numbers: Numbers) -> None:
    for norm, style in zip(NORMS, ("C2o", "C3s", "C4^"), strict=True):
        for residual, dash in ((True, "-"), (False, "--")):
            means = 10 ** _log_gradients(numbers, norm, residual=residual).mean(0)
            name = f"{'no ' if norm == 'none' else f'{norm}-'}norm, {'' if residual else 'no '}residual"
            axes.plot(numbers["depths"], means, style + dash, label=name)
    axes.legend(fontsize=9, handlelength=4)
    x, y = "layers in encoder and in decoder", "gradient norm, first encoder block"
    label(axes, "Gradient at the first layer", x, y, log="xy", xticks=numbers["depths"])


EXPERIMENT = Experiment("warmup-depth", TITLE, __doc__, CLAIMS, measure, judge, draw, data_files=MULTI30K)
