"""Label smoothing: its effect on confidence, perplexity and BLEU, and the identity behind its loss.

With smoothing eps, the target y becomes the distribution q(k) = (1 - eps) [k = y] + eps / V, and training minimizes

    H(q, p) = -sum_k q(k) log p(k) = KL(q || p) + H(q)                (Szegedy et al. 2016, section 7)

H(q) is a constant. The minimum of the cross-entropy is H(q), not 0, and is reached at p = q, so a model is not rewarded
for being certain. The paper (5.4) uses eps = 0.1 and describes the effects.

The full version trains with eps = 0.1 and with eps = 0 (6 runs; the 3 with smoothing are shared with other
experiments). Confidence is the probability of the token that the model considers most probable. It is measured at every
token of the test set, given the reference tokens before it. With smoothing, the loss is minimal at a confidence near
0.9 instead of 1. A calibrated model is correct as often as it is confident: its accuracy equals its mean confidence.

Perplexity is computed without smoothing for both models, so probability assigned to wrong tokens increases it, while
BLEU depends only on which tokens are chosen. Dots are seeds, and shaded bars are 95 % intervals of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from headway.bundle import Bundle
from headway.experiments.comparison import by_variant, column, format_mean_std, judge_greater, mean_diff, strip_plot
from headway.experiments.corpus import MULTI30K, TextPair, experiment_corpus
from headway.experiments.experiment import Claim, Experiment, Numbers, Settings, Verdict, decide
from headway.experiments.figures import label, subplots
from headway.experiments.training import encode_pairs, load_bundle_on_device, sweep, train_variant
from headway.nn.loss import label_smoothed_cross_entropy
from headway.text.base import BOS

SMOOTHED, HARD = "smoothed by 0.1 (paper)", "not smoothed"
VARIANTS: dict[str, dict[str, Any]] = {SMOOTHED: {}, HARD: {"training": {"label_smoothing": 0.0}}}
SMOOTHING = 0.1
NUM_BINS = 20  # bins of the confidence histogram
TOLERANCE = 1e-4  # nats; the rounding error of a loss near 10 in float32 is about 1e-6

CLAIMS = (
    Claim("Label smoothing hurts perplexity.", "paper, 5.4"),
    Claim("The model learns to be more unsure: its distributions are less peaked.", "paper, 5.4"),
    Claim("But it improves accuracy.", "paper, 5.4 (here: of the next token, given the reference before it)"),
    Claim("And it improves the BLEU score.", "paper, 5.4"),
    Claim("Cross-entropy is the divergence KL(q || p) and the entropy H(q) together.", "Szegedy et al. 2016, 7"),
)


def measure(settings: Settings) -> Numbers:
    """Measure BLEU, loss and confidence of both models, and the error of the identity."""
    corpus = experiment_corpus(settings)
    runs = sweep(settings, corpus, VARIANTS)
    for row in runs:
        trained = train_variant(settings, corpus, row["seed"], VARIANTS[row["variant"]])
        bundle = load_bundle_on_device(trained.model_folder)
        row |= {"perplexity": math.exp(row["loss"]), **_confidence(bundle, corpus.test_pairs)}
    columns = {"perplexity": "perplexity", "entropy": "entropy (nats)", "confidence": "confidence"}
    columns |= {"bleu": "BLEU", "accuracy": "accuracy"}
    table = [
        {
            "": name,
            **{shown: format_mean_std(runs, key, variant=name) for key, shown in columns.items()},
            "error of the identity (nats)": max(column(runs, "identity_error", variant=name)),
        }
        for name in VARIANTS
    ]
    return {"runs": runs, "tables": {"Means over seeds, with standard deviations": table}}


@torch.inference_mode()
def _confidence(bundle: Bundle, pairs: Sequence[TextPair]) -> dict[str, Any]:
    """Return mean confidence, accuracy and entropy over all reference tokens, a histogram of confidence, and the
    error of the identity.
    """
    statistics = []
    for logits, targets in _predictions(bundle, pairs):
        p = logits.softmax(-1)
        top, best = p.max(-1)
        entropy = -(p * p.clamp(min=1e-30).log()).sum(-1)
        error = torch.full_like(top, identity_error(logits, targets))
        statistics.append(torch.stack([top, (best == targets).float(), entropy, error]))
    rows = torch.cat(statistics, dim=1).cpu()
    means = dict(zip(("confidence", "accuracy", "entropy"), rows.mean(1).tolist(), strict=False))
    histogram = np.histogram(rows[0], NUM_BINS, (0, 1))[0] / rows.size(1)
    return {**means, "histogram": histogram, "identity_error": float(rows[3].max())}


def identity_error(logits: Float[Tensor, "N V"], targets: Int[Tensor, " N"]) -> float:
    """Return the largest difference between the training loss and KL(q || p) + H(q), computed from an explicit q."""
    size = logits.size(-1)
    q = F.one_hot(targets, size).double() * (1 - SMOOTHING) + SMOOTHING / size
    divergence = (q * (q.log() - logits.double().log_softmax(-1))).sum(-1)
    cross_entropy = label_smoothed_cross_entropy(logits, targets, SMOOTHING)
    return float((cross_entropy - divergence + (q * q.log()).sum(-1)).abs().max())


def _predictions(bundle: Bundle, pairs: Sequence[TextPair]) -> Iterator[tuple[Float[Tensor, "N V"], Int[Tensor, " N"]]]:
    """Yield the logits and the reference tokens, including EOS, of one batch of pairs at a time."""
    rows = sorted(encode_pairs(bundle, pairs), key=lambda pair: len(pair[1]))
    for start in range(0, len(rows), 32):
        source, target = (
            pad_sequence([torch.tensor(ids) for ids in side], batch_first=True).to(bundle.model.device)
            for side in zip(*rows[start : start + 32], strict=True)
        )
        shifted = F.pad(target[:, :-1], (1, 0), value=BOS)
        real = target != bundle.model.pad
        yield bundle.model(source, shifted)[real].float(), target[real]


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Compare smoothed with unsmoothed models over seeds; judge the identity by its largest error at any token."""

    def compared(key: str, what: str) -> Verdict:
        values = by_variant(numbers["runs"], key)
        return judge_greater(mean_diff(values[SMOOTHED], values[HARD]), f"{what}, smoothed minus not smoothed")

    worst = max(column(numbers["runs"], "identity_error"))
    what = "over all tokens of the test set, the two sides differ by at most"
    return (
        compared("perplexity", "perplexity of the development set"),
        compared("entropy", "mean entropy of the predicted distributions, in nats"),
        compared("accuracy", "share of reference tokens that are the most probable"),
        compared("bleu", "BLEU"),
        decide(f"{what} {worst:.1e} nats ({TOLERANCE:g} is allowed)", supported=worst < TOLERANCE),
    )


def draw(numbers: Numbers) -> Figure:
    """Draw the models' confidence token by token, perplexity and BLEU."""
    picture, (peaks, perplexity, bleu) = subplots("Label smoothing", ncols=3, size=(15.0, 5.0))
    styles: dict[str, Any] = {HARD: {"color": "C0", "fill": True, "alpha": 0.35}, SMOOTHED: {"color": "C1"}}
    for name, style in styles.items():
        shares = 100 * np.mean([row["histogram"] for row in numbers["runs"] if row["variant"] == name], axis=0)
        peaks.stairs(shares, np.linspace(0, 1, NUM_BINS + 1), linewidth=2.5, label=name.split(" (")[0], **style)
    peaks.legend(loc="upper left")
    peaks.set_ylim(top=1.3 * peaks.get_ylim()[1])
    label(peaks, "Confidence of the model", "probability of the most probable token", "% of all tokens")
    perplexities, scores = (
        {name.split(" (")[0]: values for name, values in by_variant(numbers["runs"], key).items()}
        for key in ("perplexity", "bleu")
    )
    strip_plot(perplexity, perplexities, "Perplexity (lower is better)", "perplexity of the development set")
    strip_plot(bleu, scores, "BLEU (higher is better)", "BLEU of the test set")
    bleu.set_yticks(bleu.get_yticks(), [])
    return picture


TITLE = "Label smoothing: less confident, and better?"
EXPERIMENT = Experiment("label-smoothing", TITLE, __doc__, CLAIMS, measure, judge, draw, data_files=MULTI30K)
