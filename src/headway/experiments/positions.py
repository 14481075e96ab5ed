"""Sinusoidal positions: their picture, what dropout leaves of them, and why a shift is a linear map.

    PE(pos, 2i) = sin(w_i pos), PE(pos, 2i+1) = cos(w_i pos), w_i = 10000^(-2i/d)     (Vaswani et al. 2017, 3.5)

In the picture each column is a position and each row a dimension; one column is the vector that is added to the
embedding at that position. At the top, sines and cosines have a period of 2 pi, or 6.3 positions. Further down the
period grows until a row hardly changes over the positions shown (cosines stay near 1 and sines near 0, which causes the
stripes). Fast rows distinguish neighbors, and slow rows distinguish early from late positions, like the digits of a
number.

Models add these encodings to their embeddings and apply dropout to the sum (5.4). Dropout of 0.1 zeroes a random tenth
of the entries (white speckles) and multiplies the rest by 1 / 0.9. Encoding and embedding therefore lose the same
entries. The embedding is larger than the encoding and acts as noise when the position is read from the sum.

At the start of training, scaled embeddings are normally distributed with variance 1. The sum of such an embedding and
an encoding is compared with all encodings, with and without dropout. Its position counts as identified if the nearest
encoding is the one in the sum. Without dropout, the nearest encoding is the maximum-likelihood position if nothing is
known about the embeddings; a trained model may do better. The same is done with encodings alone.

Sine and cosine of pos are not linear in pos. But each pair of dimensions is a point on a circle, and by the addition
theorems a shift by k rotates it by the angle w_i k, which does not depend on pos:

    [sin(w (pos + k))]   [ cos(w k)  sin(w k)] [sin(w pos)]
    [cos(w (pos + k))] = [-sin(w k)  cos(w k)] [cos(w pos)]

so that PE(pos + k) = R_k PE(pos) with one block-diagonal rotation R_k for all positions. A head can learn such a
matrix, and so attend to "k positions back". The error of that equation is measured in float64 and with the float32
table that models use.

A pair's wavelength is measured from the table: 2 pi divided by the angle between the pair at neighboring positions. By
the formula, wavelengths start at 2 pi and grow by the same factor from pair to pair, but the exponent 2i/d of the last
pair is (d-2)/d, not 1. tensor2tensor, the paper's own code, spaces the exponents so that the last one is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from headway.experiments.experiment import Numbers, Settings, decide_claims
from headway.experiments.figures import heat_map, label, plot_lines, subplots
from headway.experiments.verdicts import Verdict
from headway.nn.dropout import Dropout
from headway.nn.positions import sinusoids

WIDTH, SHOWN_POSITIONS, SLICE = 128, 64, 20
DROPOUT_RATES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
PAPER_DROPOUT = 0.1
MAX_LOST_SHARE = 0.1  # "hardly any" means that a smaller share of positions is lost; equal to the dropout rate
INPUT_KINDS = ("encoding alone", "embedding + encoding")

BASE = 10000.0
WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
SHIFTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PRECISIONS = ("float64", "float32")
REPORTED_WIDTHS = (16, 128, 512)  # widths in the verdict's text and in the panel of wavelengths
DRAWN_WIDTH_AND_SHIFT = (16, 3)  # width and shift of the matrix that is drawn

TITLE = "Positional encoding: picture, dropout, shifts"


def measure(settings: Settings) -> Numbers:
    """Measure similarities of encodings, how many positions survive dropout, errors of shifts, and wavelengths."""
    positions = 256 if settings.quick else 5_000
    table = sinusoids(positions, WIDTH)
    identified = {
        kind: {str(rate): _identified(table, size, rate, settings.seeds) for rate in DROPOUT_RATES}
        for kind, size in zip(INPUT_KINDS, (0.0, 1.0), strict=True)  # the embeddings' standard deviation
    }
    torch.manual_seed(settings.seeds[0])
    clean = table[:SHOWN_POSITIONS]
    dropped = Dropout(PAPER_DROPOUT).train()(clean)
    similarities = table.double() @ table.double().T
    bands = [similarities.diagonal(distance) for distance in range(SHOWN_POSITIONS)]
    shifted = 256 if settings.quick else 8192
    errors = {
        str(width): {kind: [_rotation_error(width, shift, shifted, kind) for shift in SHIFTS] for kind in PRECISIONS}
        for width in WIDTHS[:: 4 if settings.quick else 1]
    }
    rows = [
        {"input of dropout": kind} | {f"dropout {rate}": 100 * fmean(shares) for rate, shares in by_rate.items()}
        for kind, by_rate in identified.items()
    ]
    return {
        "positions": positions,
        "clean": clean,
        "dropped": dropped,
        "nearest": float(torch.pdist(table).min()),
        "similarity": [float(band.mean()) for band in bands],
        "similarity_spread": max(float(band.max() - band.min()) for band in bands),
        "identified": identified,
        "errors": errors,
        "wavelengths": {str(width): _wavelengths(width) for width in WIDTHS},
        "rotation": rotation(*DRAWN_WIDTH_AND_SHIFT),
        "tables": {f"Identified positions (%) of {positions}, d = {WIDTH}": rows},
    }


def _identified(table: Float[Tensor, "N D"], size: float, rate: float, seeds: Sequence[int]) -> list[float]:
    """Return the share of positions identified with each seed, if embeddings have standard deviation ``size``."""
    shares = list[float]()
    for seed in seeds:
        torch.manual_seed(seed)  # use the same embeddings at every rate
        dropped = Dropout(rate).train()(table + size * torch.randn(table.shape))
        nearest = torch.cdist(dropped, table).argmin(-1)
        shares.append(float((nearest == torch.arange(len(table))).float().mean()))
    return shares


def _frequencies(width: int) -> Float[Tensor, " K"]:
    return BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def rotation(width: int, shift: int) -> Float[Tensor, "D D"]:
    """Return R_k in float64: the block-diagonal matrix that maps PE(pos) to PE(pos + shift)."""
    angles = shift * _frequencies(width)
    blocks = torch.stack([angles.cos(), angles.sin(), -angles.sin(), angles.cos()], dim=-1).view(-1, 2, 2)
    matrix: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return matrix


def _rotation_error(width: int, shift: int, positions: int, kind: str) -> float:
    """Return the largest entry of R_k PE(pos) - PE(pos + k) over all positions.

    The table of encodings is computed in float64 or, for float32, as models compute it.
    """
    angles = torch.arange(positions + shift, dtype=torch.float64)[:, None] * _frequencies(width)
    exact = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    table = sinusoids(positions + shift, width) if kind == "float32" else exact
    rotated = table[:positions] @ rotation(width, shift).T.to(table.dtype)
    return float((rotated - table[shift:]).abs().max())


def _wavelengths(width: int) -> list[float]:
    """Return the wavelengths in 2π positions, measured between positions 0 and 1 of a model's table."""
    first = sinusoids(2, width)[1].double()
    return (1 / torch.atan2(first[0::2], first[1::2])).tolist()


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by errors of shifts, wavelengths, distances and similarities, and the positions that dropout hides."""
    whole, dropped = (numbers["identified"][INPUT_KINDS[1]][str(rate)] for rate in (0.0, PAPER_DROPOUT))
    lost = [before - after for before, after in zip(whole, dropped, strict=True)]
    exact, single = (max(max(errors[kind]) for errors in numbers["errors"].values()) for kind in PRECISIONS)
    waves = numbers["wavelengths"]
    ratios = [np.divide(values[1:], values[:-1]) for values in waves.values()]
    uneven = max(float(abs(width_ratios / width_ratios[0] - 1).max()) for width_ratios in ratios)
    ends = "; ".join(
        f"d = {width}: {waves[str(width)][0]:.4g} · 2π to {waves[str(width)][-1]:,.0f} · 2π"
        for width in REPORTED_WIDTHS
    )
    off = max(max(abs(values[0] - 1), abs(values[-1] / BASE - 1)) for values in waves.values())
    values = {key: numbers[key] for key in ("positions", "nearest", "similarity", "similarity_spread")}
    values |= {"whole": fmean(whole), "dropped": fmean(dropped), "lost": fmean(lost), "most": max(lost)}
    values |= {"dropout": PAPER_DROPOUT, "large": MAX_LOST_SHARE, "guessed": 1 / numbers["positions"]}
    values |= {"length": (WIDTH / 2) ** 0.5, "exact": exact, "single": single, "uneven": uneven, "ends": ends}
    return decide_claims(
        "positions",
        values,
        {"supported": exact < 1e-9 and single < 1e-4},
        {"supported": uneven < 1e-5},
        {"supported": off < 0.01},
        {"supported": numbers["nearest"] > 0.01},
        {"supported": numbers["similarity_spread"] < 1e-3},
        {"supported": max(lost) < MAX_LOST_SHARE, "refuted": min(lost) > MAX_LOST_SHARE, "exact": False},
    )


def draw(numbers: Numbers) -> Figure:
    """Draw the encodings, one of them beside an embedding, similarities, dropout, the rotation, and wavelengths."""
    picture, panels = subplots(TITLE, 3, 3, size=(22, 17))
    clean, dropped, added, similarity, identified, total, matrix, error, waves = panels
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
        label(axes, title, "dimension", "value (no unit)")
    similarity.plot(numbers["similarity"])
    similarity.set_ylim(bottom=0)
    label(similarity, "Similarity of two positions", "distance (positions)", "dot product (no unit)")
    shares = {
        kind: [100 * fmean(values) for values in by_rate.values()] for kind, by_rate in numbers["identified"].items()
    }
    plot_lines(identified, DROPOUT_RATES, shares)
    identified.axvline(PAPER_DROPOUT, color="#777777", linestyle=":", label="the paper's 0.1")
    label(identified, "Positions identified after dropout", "dropout (probability)", "nearest to its own encoding (%)")
    image = heat_map(matrix, numbers["rotation"], cmap="RdBu", vmin=-1, vmax=1, aspect="equal")
    picture.colorbar(image, ax=matrix, label="entry (no unit)")
    width, shift = DRAWN_WIDTH_AND_SHIFT
    label(matrix, f"The rotation R_k for k = {shift}, d = {width}", "dimension of PE(pos)", "dimension of PE(pos+k)")
    names = "R_k in float64", "R_k with a float32 table"
    for kind, name, style in zip(PRECISIONS, names, ("C0o-", "C1o--"), strict=True):
        worst = np.max([width_errors[kind] for width_errors in numbers["errors"].values()], axis=0)
        error.plot(SHIFTS, worst.clip(1e-17), style, label=name)
    x, y = "shift k (positions)", "largest error (entries are at most 1)"
    label(error, "Error of the linear map", x, y, log="xy", xticks=SHIFTS[::2])
    error.set_ylim(1e-14, 1e-4)
    for width, style in zip(REPORTED_WIDTHS, ("o-", "s-", "^-"), strict=True):
        waves.plot(numbers["wavelengths"][str(width)], style, markersize=4, label=f"d = {width}")
    waves.axhline(BASE, color="#777777", linestyle=":", label="10000 · 2π, as the paper says")
    label(waves, "Wavelengths of the pairs", "pair of dimensions, i", "wavelength (2π positions)", log="y")
    for axes in (added, total, identified, error, waves):
        axes.legend()
    return picture
