"""Positional encoding as a picture, with and without dropout (Vaswani et al. 2017, sections 3.5 and 5.4).

The encodings are what models add to their embeddings (:class:`headway.nn.positions.SinusoidalPositions`), and dropout
is theirs too. Is a position still known when dropout has zeroed a tenth of its encoding? Each dropped-out encoding is
compared with all clean ones; it is told where the right one is the nearest.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from headway.inspection.experiments.drawing import COLOURS, label, panels
from headway.inspection.experiments.experiment import Claim, Experiment, Numbers, Settings, Verdict
from headway.nn.dropout import Dropout
from headway.nn.positions import SinusoidalPositions

WIDTH, SHOWN = 128, 64
RATES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
PAPER_RATE = 0.1

CLAIMS = (
    Claim("Every position has an encoding of its own.", "paper, 3.5 (information about the position of the tokens)"),
    Claim("How alike two encodings are depends on their distance alone.", "paper, 3.5 (attend by relative positions)"),
    Claim("Dropout of 0.1 on the sum leaves positions readable.", "paper, 5.4 (P_drop = 0.1)"),
)


def measure(settings: Settings) -> Numbers:
    """The picture, distances and products of encodings, and how many positions are told after dropout."""
    positions = 256 if settings.quick else 5_000
    table = SinusoidalPositions(WIDTH)(torch.zeros(1, positions, WIDTH))[0]
    told = {str(rate): [_told(table, rate, seed) for seed in settings.seeds] for rate in RATES}
    torch.manual_seed(settings.seeds[0])
    dropped = Dropout(PAPER_RATE).train()(table[:SHOWN])
    nearest = _nearest(table)
    likeness = table.double() @ table.double().T
    bands = [likeness.diagonal(distance) for distance in range(SHOWN)]
    rows = [
        {
            "dropout": rate,
            "positions told (%)": 100 * sum(shares) / len(shares),
            "fewest of the seeds (%)": 100 * min(shares),
        }
        for rate, shares in zip(RATES, told.values(), strict=True)
    ]
    return {
        "positions": positions,
        "clean": table[:SHOWN].tolist(),
        "dropped": dropped.tolist(),
        "zeros": float((dropped == 0)[table[:SHOWN] != 0].float().mean()),
        "nearest": nearest,
        "likeness": [float(band.mean()) for band in bands],
        "likeness_spread": max(float(band.max() - band.min()) for band in bands),
        "told": told,
        "tables": {f"{positions} positions, d = {WIDTH}": rows},
    }


def _nearest(table: Float[Tensor, "N D"]) -> float:
    """The smallest distance of two positions."""
    distances = torch.cdist(table, table, compute_mode="donot_use_mm_for_euclid_dist")
    return float((distances + torch.diag(torch.full((len(table),), torch.inf))).min())


def _told(table: Float[Tensor, "N D"], rate: float, seed: int) -> float:
    """The share of positions whose encoding is still nearest to its clean self after dropout."""
    torch.manual_seed(seed)
    dropped = Dropout(rate).train()(table)
    return float((torch.cdist(dropped, table).argmin(-1) == torch.arange(len(table))).float().mean())


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """By the nearest two, by what varies at a fixed distance, by the share of positions told at the paper's rate."""
    own = Verdict(
        "supported" if numbers["nearest"] > 0.01 else "refuted",
        f"of {numbers['positions']} positions the nearest two are {numbers['nearest']:.3f} apart (a vector is "
        f"{(WIDTH / 2) ** 0.5:.0f} long)",
    )
    spread = numbers["likeness_spread"]
    alike = Verdict(
        "supported" if spread < 1e-3 else "refuted",
        f"at a fixed distance the dot product of two encodings varies by {spread:.1g} at most "
        f"(it is {numbers['likeness'][0]:.0f} at distance 0)",
    )
    told = numbers["told"][str(PAPER_RATE)]
    reason = (
        f"after dropout of {PAPER_RATE} the right position is the nearest for {min(told):.1%} or more of "
        f"{numbers['positions']} positions, chance being {1 / numbers['positions']:.2%}; "
        f"{numbers['zeros']:.1%} of the entries were zeroed"
    )
    readable = Verdict("supported" if min(told) > 0.9 else "refuted" if max(told) < 0.5 else "inconclusive", reason)
    return own, alike, readable


def draw(numbers: Numbers) -> Figure:
    """The picture without and with dropout; likeness over distance; positions told over the rate of dropout."""
    picture, (clean, dropped, likeness, told) = panels("Positional encoding as a picture", 2, 2, size=(16, 10.5))
    for axes, name, title in (
        (clean, "clean", "Without dropout"),
        (dropped, "dropped", f"With dropout of {PAPER_RATE}"),
    ):
        image = axes.imshow(numbers[name], cmap="RdBu", vmin=-1.12, vmax=1.12, aspect="auto", interpolation="nearest")
        axes.grid(False)
        picture.colorbar(image, ax=axes, label="value (no unit)")
        label(axes, title, "dimension (even: sine, odd: cosine)", "position (tokens)")
    likeness.plot(range(len(numbers["likeness"])), numbers["likeness"], color=COLOURS[0])
    label(likeness, "How alike are two positions?", "distance (positions)", "dot product (no unit)")
    likeness.set_ylim(bottom=0)
    rates = [float(rate) for rate in numbers["told"]]
    means = [100 * sum(shares) / len(shares) for shares in numbers["told"].values()]
    told.plot(rates, means, "o-", color=COLOURS[0])
    told.axvline(PAPER_RATE, color="#777777", linestyle=":")
    told.annotate("the paper's 0.1", (PAPER_RATE, 8), xytext=(5, 0), textcoords="offset points", color="#555555")
    told.set_ylim(-3, 103)
    label(told, "Positions recognised after dropout", "dropout (probability)", "nearest to its clean self (%)")
    return picture


def explain(numbers: Numbers) -> str:
    """How to read the picture."""
    half = next((d for d, value in enumerate(numbers["likeness"]) if value < 0.75 * numbers["likeness"][0]), None)
    return (
        "Each row is a position, each column a dimension. On the left the sines and cosines turn fast, one turn in "
        "2π ≈ 6.3 positions; to the right ever more slowly, until a column hardly changes over the rows shown (its "
        "cosines stay near 1, its sines near 0: hence the stripes). Fast columns tell neighbours apart, slow ones tell "
        "early from late, as the digits of a number do.\n\n"
        f"Dropout zeroes a random tenth of the entries (here {numbers['zeros']:.1%}; white speckles) and multiplies "
        "the rest by 1/0.9; the pattern is spread over so many dimensions that it survives. In a model dropout acts on "
        "the sum of embedding and encoding, so both lose the same entries. "
        + (f"Likeness falls by a quarter within {half} positions, then slowly and in waves." if half else "")
    )


EXPERIMENT = Experiment("position-picture", "Positional encoding as a picture", CLAIMS, measure, judge, draw, explain)
