"""Positional encoding as a picture, with and without dropout (Vaswani et al. 2017, sections 3.5 and 5.4).

In the picture each column is a position and each row a dimension; one column is the vector that is added to the
embedding at that position. At the top, sines and cosines have a period of 2 pi, or 6.3 positions. Further down the
period grows until a row hardly changes over the positions shown (cosines stay near 1 and sines near 0, which causes the
stripes). Fast rows distinguish neighbors, and slow rows distinguish early from late positions, like the digits of a
number.

Models add these encodings to their embeddings and apply dropout to the sum. Dropout of 0.1 zeroes a random tenth of the
entries (white speckles) and multiplies the rest by 1 / 0.9. Encoding and embedding therefore lose the same entries. The
embedding is larger than the encoding and acts as noise when the position is read from the sum.

At the start of training, scaled embeddings are normally distributed with variance 1. The sum of such an embedding and
an encoding is compared with all encodings, with and without dropout. Its position counts as identified if the nearest
encoding is the one in the sum. Without dropout, the nearest encoding is the maximum-likelihood position if nothing is
known about the embeddings; a trained model may do better. The same is done with encodings alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from headway.experiments.experiment import Numbers, Settings, decide_claims
from headway.experiments.figures import heat_map, label, plot_lines, subplots
from headway.experiments.verdicts import Verdict
from headway.nn.dropout import Dropout
from headway.nn.positions import SinusoidalPositions

WIDTH, SHOWN_POSITIONS, SLICE = 128, 64, 20
DROPOUT_RATES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
PAPER_DROPOUT = 0.1
MAX_LOST_SHARE = 0.1  # "hardly any" means that a smaller share of positions is lost; equal to the dropout rate
NEAR_DISTANCE = 5  # "nearly identified" means that the nearest encoding is at most this many positions away
INPUT_KINDS = ("encoding alone", "embedding + encoding")

TITLE = "Positional encoding as a picture"


def measure(settings: Settings) -> Numbers:
    """Measure distances and dot products of encodings, and how many positions are identified after dropout."""
    positions = 256 if settings.quick else 5_000
    table = SinusoidalPositions(WIDTH)(torch.zeros(1, positions, WIDTH))[0]
    identified = {
        kind: {str(rate): _identified(table, size, rate, settings.seeds) for rate in DROPOUT_RATES}
        for kind, size in zip(INPUT_KINDS, (0.0, 1.0), strict=True)  # the embeddings' standard deviation
    }
    torch.manual_seed(settings.seeds[0])
    clean = table[:SHOWN_POSITIONS]
    dropped = Dropout(PAPER_DROPOUT).train()(clean)
    likeness = table.double() @ table.double().T
    bands = [likeness.diagonal(distance) for distance in range(SHOWN_POSITIONS)]
    rows = [
        {
            "input of dropout": kind,
            "dropout": float(rate),
            "positions identified (%)": 100 * fmean(shares["right"]),
            f"within {NEAR_DISTANCE} positions (%)": 100 * fmean(shares["near"]),
        }
        for kind, by_rate in identified.items()
        for rate, shares in by_rate.items()
    ]
    return {
        "positions": positions,
        "clean": clean,
        "dropped": dropped,
        "nearest": float(torch.pdist(table).min()),
        "likeness": [float(band.mean()) for band in bands],
        "likeness_spread": max(float(band.max() - band.min()) for band in bands),
        "told": identified,
        "tables": {f"{positions} positions, d = {WIDTH}": rows},
    }


def _identified(table: Float[Tensor, "N D"], size: float, rate: float, seeds: Sequence[int]) -> dict[str, list[float]]:
    """Return the share of positions identified, exactly or nearly, if embeddings have standard deviation ``size``."""
    shares: dict[str, list[float]] = {"right": [], "near": []}
    for seed in seeds:
        torch.manual_seed(seed)  # use the same embeddings at every rate
        dropped = Dropout(rate).train()(table + size * torch.randn(table.shape))
        off = (torch.cdist(dropped, table).argmin(-1) - torch.arange(len(table))).abs()
        for name, most in (("right", 0), ("near", NEAR_DISTANCE)):
            shares[name].append(float((off <= most).float().mean()))
    return shares


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by the nearest pair, the variation at a fixed distance, and the positions lost at the paper's rate."""
    nearest, spread, positions = numbers["nearest"], numbers["likeness_spread"], numbers["positions"]
    whole, dropped = (numbers["told"][INPUT_KINDS[1]][str(rate)] for rate in (0.0, PAPER_DROPOUT))
    lost = [before - after for before, after in zip(whole["right"], dropped["right"], strict=True)]
    values = {"nearest": nearest, "spread": spread, "positions": positions, "likeness": numbers["likeness"][0]}
    values |= {"whole": fmean(whole["right"]), "dropped": fmean(dropped["right"]), "near": fmean(dropped["near"])}
    values |= {"dropout": PAPER_DROPOUT, "distance": NEAR_DISTANCE, "lost": fmean(lost), "most": max(lost)}
    values |= {"length": (WIDTH / 2) ** 0.5, "large": MAX_LOST_SHARE, "guessed": 1 / positions}
    hides = {"supported": max(lost) < MAX_LOST_SHARE, "refuted": min(lost) > MAX_LOST_SHARE, "exact": False}
    return decide_claims("position-picture", values, {"supported": nearest > 0.01}, {"supported": spread < 1e-3}, hides)


def draw(numbers: Numbers) -> Figure:
    """Draw encodings with and without dropout, one beside an embedding, similarities, and identified positions."""
    picture, (clean, dropped, added, likeness, identified, total) = subplots(TITLE, 2, 3, size=(21, 11))
    titles = {"clean": "Without dropout", "dropped": f"With dropout of {PAPER_DROPOUT}"}
    for axes, (name, title) in zip((clean, dropped), titles.items(), strict=True):
        columns = list(zip(*numbers[name], strict=True))
        image = heat_map(axes, columns, cmap="RdBu", vmin=-1.12, vmax=1.12, interpolation="nearest")
        picture.colorbar(image, ax=axes, label="value (no unit)")
        axes.axvspan(SLICE - 0.5, SLICE + 0.5, fill=False, edgecolor="black", linewidth=1.5)
        label(axes, title, f"position (framed: {SLICE})", "dimension (even: sine, odd: cosine)")
    dimensions, encoding = range(WIDTH), torch.tensor(numbers["clean"][SLICE])
    embedding = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    added.plot(dimensions, embedding, color="#999999", linewidth=1.2, label="embedding (random)")
    added.plot(dimensions, encoding, label=f"encoding of position {SLICE}")
    total.plot(dimensions, embedding + encoding, "C2", label="their sum")
    for axes, title in ((added, f"What is added at position {SLICE}"), (total, "What the model reads there")):
        axes.set_ylim(-4, 5.5)
        axes.legend(loc="upper right")
        label(axes, title, "dimension", "value (no unit)")
    likeness.plot(range(len(numbers["likeness"])), numbers["likeness"])
    label(likeness, "Similarity of two positions", "distance (positions)", "dot product (no unit)")
    likeness.set_ylim(bottom=0)
    by_kind = numbers["told"]
    means = {kind: [100 * fmean(shares["right"]) for shares in by_rate.values()] for kind, by_rate in by_kind.items()}
    plot_lines(identified, [float(rate) for rate in by_kind[INPUT_KINDS[0]]], means)
    identified.legend(loc="lower left", bbox_to_anchor=(0.16, 0.1))
    identified.axvline(PAPER_DROPOUT, color="#777777", linestyle=":")
    identified.annotate("the paper's 0.1", (PAPER_DROPOUT, 2), xytext=(6, 0), textcoords="offset points")
    identified.set_ylim(-3, 103)
    label(identified, "Positions identified after dropout", "dropout (probability)", "nearest to its own encoding (%)")
    return picture
