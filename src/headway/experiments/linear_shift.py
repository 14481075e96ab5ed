"""Sinusoidal positions: is PE(pos + k) a linear function of PE(pos), and what are the wavelengths?

    PE(pos, 2i) = sin(w_i pos), PE(pos, 2i+1) = cos(w_i pos), w_i = 10000^(-2i/d)     (Vaswani et al. 2017, 3.5)

Sine and cosine of pos are not linear in pos. But each pair of dimensions is a point on a circle, and by the addition
theorems a shift by k rotates it by the angle w_i k, which does not depend on pos:

    [sin(w (pos + k))]   [ cos(w k)  sin(w k)] [sin(w pos)]
    [cos(w (pos + k))] = [-sin(w k)  cos(w k)] [cos(w pos)]

so that PE(pos + k) = R_k PE(pos) with one block-diagonal rotation R_k for all positions. A head can learn such a
matrix, and so attend to "k positions back". The experiment measures the error of that equation in float64 and with the
float32 table that models use. As a control that can fail, it fits the best linear map by least squares and measures how
well this map predicts the shifted table, for sinusoids and for random vectors of the same size (such as learned
positions before training).

A pair's wavelength is measured from the table: 2 pi divided by the angle between the pair at neighboring positions. By
the formula, wavelengths start at 2 pi and grow by the same factor from pair to pair, but the exponent 2i/d of the last
pair is (d-2)/d, not 1. tensor2tensor, the paper's own code, spaces the exponents so that the last one is 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from headway.experiments.experiment import Claim, Experiment, Numbers, Settings
from headway.experiments.figures import heat_map, label, subplots
from headway.experiments.verdicts import Verdict, decide
from headway.nn.positions import sinusoids

BASE = 10000.0
WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
SHIFTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
REPORTED_WIDTHS = (16, 128, 512)  # widths in the verdict's text and in the panel of wavelengths
DRAWN_WIDTH_AND_SHIFT = (16, 3)  # width and shift of the matrix that is drawn

CLAIMS = (
    Claim.quote("for any fixed offset k, PE_pos+k can be represented as a linear function of PE_pos", "paper, 3.5"),
    Claim.quote("The wavelengths form a geometric progression", "paper, 3.5"),
    Claim("The wavelengths go from 2π to 10000 · 2π.", "paper, 3.5"),
)


def measure(settings: Settings) -> Numbers:
    """Measure errors over widths and shifts, errors of the control, and the wavelength of every pair."""
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
            "shortest wavelength (positions)": wavelengths[str(width)][0],
            "longest wavelength (positions)": wavelengths[str(width)][-1],
            "as 10000^((d-2)/d) · 2π (positions)": BASE ** ((width - 2) / width) * 2 * math.pi,
            "10000 · 2π (positions)": BASE * 2 * math.pi,
        }
        for width in widths
    ]
    return {
        "shifts": SHIFTS,
        "errors": errors,
        "control": [_control(seed, width=64, positions=1024) for seed in settings.seeds],
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
    if kind == "float32":
        table = sinusoids(positions + shift, width)
    else:
        angles = torch.arange(positions + shift, dtype=torch.float64)[:, None] * _frequencies(width)
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    rotated = table[:positions] @ rotation(width, shift).T.to(table.dtype)
    return float((rotated - table[shift:]).abs().max())


def _control(seed: int, *, width: int, positions: int) -> dict[str, list[float]]:
    """Return the relative RMS residual of the best linear map, by kind of table and shift."""
    generator = torch.Generator().manual_seed(seed)
    length = positions + SHIFTS[-1]
    tables = {
        "sinusoids": sinusoids(length, width).double(),
        "random vectors": torch.randn(length, width, generator=generator, dtype=torch.float64),
    }
    residuals: dict[str, list[float]] = {kind: [] for kind in tables}
    for kind, table in tables.items():
        before = table[:positions]
        inverse = torch.linalg.pinv(before)  # stable even if long wavelengths make columns nearly equal
        for shift in SHIFTS:
            after = table[shift : shift + positions]
            error = before @ (inverse @ after) - after
            residuals[kind].append(float((error.square().mean() / after.square().mean()).sqrt()))
    return residuals


def _wavelengths(width: int) -> list[float]:
    """Return the wavelengths in positions, measured between positions 0 and 1 of a model's table."""
    first = sinusoids(2, width)[1].double()
    return [2 * math.pi / turned for turned in torch.atan2(first[0::2], first[1::2]).tolist()]


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by the errors of rotation and control, and by ratios and limits of the wavelengths."""
    ratios = [np.divide(waves[1:], waves[:-1]) for waves in numbers["wavelengths"].values()]
    off = max(float(abs(width_ratios / width_ratios[0] - 1).max()) for width_ratios in ratios)
    reason = f"within each width, the ratio of neighboring wavelengths is constant up to {off:.1g}"
    return _judge_shift(numbers), decide(reason, supported=off < 1e-5), _judge_ends(numbers)


def _judge_shift(numbers: Numbers) -> Verdict:
    exact, single = (_all(numbers["errors"].values(), kind) for kind in ("float64", "float32"))
    fitted, random = (_all(numbers["control"], kind) for kind in ("sinusoids", "random vectors"))
    reason = (
        f"R_k PE(pos) differs from PE(pos+k) by at most {max(exact):.1g} in float64 and {max(single):.1g} with a "
        f"model's float32 table. The relative error of a fitted linear map is {min(random):.0%} for random vectors and "
        f"{max(fitted):.1g} for sinusoids"
    )
    wrong, told_apart = max(exact) > 1e-9 or max(single) > 1e-4, min(random) >= 0.1
    if not wrong and not told_apart:
        reason += ": the measurement cannot distinguish them"
    return decide(reason, supported=told_apart and not wrong, refuted=wrong)


def _all(rows: Iterable[Mapping[str, list[float]]], name: str) -> list[float]:
    return [value for row in rows for value in row[name]]


def _turns(numbers: Numbers) -> dict[str, list[float]]:
    """Return the wavelengths of each width divided by 2π."""
    return {width: [wave / (2 * math.pi) for wave in waves] for width, waves in numbers["wavelengths"].items()}


def _judge_ends(numbers: Numbers) -> Verdict:
    ends = {width: (turns[0], turns[-1]) for width, turns in _turns(numbers).items()}
    texts = {width: f"d = {width}: {low:.4g} · 2π to {high:,.0f} · 2π" for width, (low, high) in ends.items()}
    reason = "; ".join(text for width, text in texts.items() if int(width) in REPORTED_WIDTHS)
    off = max(max(abs(low - 1), abs(high / BASE - 1)) for low, high in ends.values())
    if off >= 0.01:
        reason += ". The last exponent is (d−2)/d, not 1, so the upper end is never reached"
    return decide(reason, supported=off < 0.01)


def draw(numbers: Numbers) -> Figure:
    """Draw the matrix, its error over k, and the wavelengths."""
    picture, (matrix, error, waves) = subplots("PE(pos+k) as a linear function of PE(pos)", 1, 3, size=(22, 6.5))
    image = heat_map(matrix, numbers["rotation"], cmap="RdBu", vmin=-1, vmax=1, aspect="equal")
    picture.colorbar(image, ax=matrix, label="entry (no unit)")
    width, shift = DRAWN_WIDTH_AND_SHIFT
    label(matrix, f"The rotation R_k for k = {shift}, d = {width}", "dimension of PE(pos)", "dimension of PE(pos+k)")
    _draw_errors(error, numbers)
    for width, style in zip(REPORTED_WIDTHS, ("o-", "s-", "^-"), strict=True):
        waves.plot(_turns(numbers)[str(width)], style, markersize=4, label=f"d = {width}")
    waves.axhline(BASE, color="#777777", linestyle=":", label="10000 · 2π, as the paper says")
    waves.legend(loc="lower right")
    label(waves, "Wavelengths of the pairs", "pair of dimensions, i", "wavelength (2π positions)", log="y")
    return picture


def _draw_errors(axes: Axes, numbers: Numbers) -> None:
    shifts, errors, control = numbers["shifts"], numbers["errors"].values(), numbers["control"]
    for kind, name, style in (("float64", "R_k in float64", "C0o-"), ("float32", "R_k with a float32 table", "C1o--")):
        axes.plot(shifts, np.max([seed_errors[kind] for seed_errors in errors], axis=0).clip(1e-17), style, label=name)
    for kind, style in (("sinusoids", "C2s--"), ("random vectors", "C3^--")):
        axes.plot(
            shifts, np.mean([seed_errors[kind] for seed_errors in control], axis=0), style, label=f"fitted map: {kind}"
        )
    x, y = "shift k (positions)", "error (entries are at most 1)"
    label(axes, "Error of the linear map", x, y, log="xy", xticks=shifts[::2])
    axes.set_ylim(1e-17, 1e2)
    axes.legend(loc="center right", bbox_to_anchor=(1, 0.72))


EXPERIMENT = Experiment("linear-shift", "PE(pos+k) is a rotation of PE(pos)", __doc__, CLAIMS, measure, judge, draw)
