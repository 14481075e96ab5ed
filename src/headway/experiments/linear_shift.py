"""Sinusoidal positions: is PE(pos + k) a linear function of PE(pos), and what are the wavelengths?

    PE(pos, 2i) = sin(w_i pos), PE(pos, 2i+1) = cos(w_i pos), w_i = 10000^(-2i/d)     (Vaswani et al. 2017, 3.5)

Sine and cosine of pos are not linear in pos. But each pair of dimensions is a point on a circle, and by the addition
theorems a shift by k rotates it by the angle w_i k, which does not depend on pos:

    [sin(w (pos + k))]   [ cos(w k)  sin(w k)] [sin(w pos)]
    [cos(w (pos + k))] = [-sin(w k)  cos(w k)] [cos(w pos)]

so that PE(pos + k) = R_k PE(pos) with one block-diagonal rotation R_k for all positions. A head can learn such a
matrix, and so attend to "k positions back". The experiment measures the error of that equation in float64 and with the
float32 table that models use.

A pair's wavelength is measured from the table: 2 pi divided by the angle between the pair at neighboring positions. By
the formula, wavelengths start at 2 pi and grow by the same factor from pair to pair, but the exponent 2i/d of the last
pair is (d-2)/d, not 1. tensor2tensor, the paper's own code, spaces the exponents so that the last one is 1.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from headway.experiments.experiment import Numbers, Settings, decide_claims
from headway.experiments.figures import heat_map, label, subplots
from headway.experiments.verdicts import Verdict
from headway.nn.positions import sinusoids

BASE = 10000.0
WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
SHIFTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
REPORTED_WIDTHS = (16, 128, 512)  # widths in the verdict's text and in the panel of wavelengths
DRAWN_WIDTH_AND_SHIFT = (16, 3)  # width and shift of the matrix that is drawn

TITLE = "PE(pos+k) is a rotation of PE(pos)"


def measure(settings: Settings) -> Numbers:
    """Measure errors over widths and shifts, and the wavelength of every pair."""
    positions = 256 if settings.quick else 8192
    widths = WIDTHS[:: 4 if settings.quick else 1]
    kinds = ("float64", "float32")
    errors = {
        str(width): {kind: [_rotation_error(width, shift, positions, kind) for shift in SHIFTS] for kind in kinds}
        for width in widths
    }
    wavelengths = {str(width): _wavelengths(width) for width in WIDTHS}
    rows = [
        {
            "width d": width,
            **{f"largest error, {kind}": max(errors[str(width)][kind]) for kind in kinds},
            "shortest wavelength (2π positions)": wavelengths[str(width)][0],
            "longest wavelength (2π positions)": wavelengths[str(width)][-1],
            "10000^((d-2)/d)": BASE ** ((width - 2) / width),
        }
        for width in widths
    ]
    return {
        "shifts": SHIFTS,
        "errors": errors,
        "wavelengths": wavelengths,
        "rotation": rotation(*DRAWN_WIDTH_AND_SHIFT),
        "tables": {f"Shifts of 1 to {SHIFTS[-1]} over {positions} positions": rows},
    }


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
    """Judge by the errors of the rotation, and by ratios and limits of the wavelengths."""
    exact, single = (max(max(errors[kind]) for errors in numbers["errors"].values()) for kind in ("float64", "float32"))
    waves = numbers["wavelengths"]
    ratios = [np.divide(values[1:], values[:-1]) for values in waves.values()]
    uneven = max(float(abs(width_ratios / width_ratios[0] - 1).max()) for width_ratios in ratios)
    ends = "; ".join(
        f"d = {width}: {waves[str(width)][0]:.4g} · 2π to {waves[str(width)][-1]:,.0f} · 2π"
        for width in REPORTED_WIDTHS
        if str(width) in waves
    )
    off = max(max(abs(values[0] - 1), abs(values[-1] / BASE - 1)) for values in waves.values())
    if off >= 0.01:
        ends += ". The last exponent is (d−2)/d, not 1, so the upper end is never reached"
    values = {"exact": exact, "single": single, "uneven": uneven, "ends": ends}
    supported = (exact < 1e-9 and single < 1e-4, uneven < 1e-5, off < 0.01)
    return decide_claims("linear-shift", values, *({"supported": holds} for holds in supported))


def draw(numbers: Numbers) -> Figure:
    """Draw the matrix, its error over k, and the wavelengths."""
    picture, (matrix, error, waves) = subplots("PE(pos+k) as a linear function of PE(pos)", 1, 3, size=(22, 6.5))
    image = heat_map(matrix, numbers["rotation"], cmap="RdBu", vmin=-1, vmax=1, aspect="equal")
    picture.colorbar(image, ax=matrix, label="entry (no unit)")
    width, shift = DRAWN_WIDTH_AND_SHIFT
    label(matrix, f"The rotation R_k for k = {shift}, d = {width}", "dimension of PE(pos)", "dimension of PE(pos+k)")
    for kind, name, style in (("float64", "R_k in float64", "C0o-"), ("float32", "R_k with a float32 table", "C1o--")):
        worst = np.max([width_errors[kind] for width_errors in numbers["errors"].values()], axis=0)
        error.plot(numbers["shifts"], worst.clip(1e-17), style, label=name)
    x, y = "shift k (positions)", "largest error (entries are at most 1)"
    label(error, "Error of the linear map", x, y, log="xy", xticks=numbers["shifts"][::2])
    error.set_ylim(1e-14, 1e-4)
    error.legend(loc="upper right")
    for width, style in zip(REPORTED_WIDTHS, ("o-", "s-", "^-"), strict=True):
        waves.plot(numbers["wavelengths"][str(width)], style, markersize=4, label=f"d = {width}")
    waves.axhline(BASE, color="#777777", linestyle=":", label="10000 · 2π, as the paper says")
    waves.legend(loc="lower right")
    label(waves, "Wavelengths of the pairs", "pair of dimensions, i", "wavelength (2π positions)", log="y")
    return picture
