"""Draw learning curves from the metrics.jsonl files of runs.

Four panels share the same x axis: loss, score (such as BLEU or accuracy, if a run has one), learning rate and speed.
For a classifier, each text counts as one target token. Each run has the same color in all panels, from the
color-blind-safe palette of Okabe and Ito (2008). Curves can also be drawn while a run is still training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from headway.errors import ConfigError, DataError
from headway.inspection.picture_files import COLORS, DASHES, PLOT_STYLE, figure_style, picture_format, save_picture

Dash = Literal["-", "--", ":", "-."]
Styles = list[tuple[str, Dash]]
# Development scores (higher is better). The curve shows the first of these scores that a run has. A run records a score
# listed before BLEU only if it selects the best model by this score.
_METRICS = ("chrF2", "exact match", "BLEU", "accuracy")
_X_LABELS = {"step": "step", "minutes": "minutes of training", "tokens": "million target tokens"}
_STYLE: dict[str, Any] = {**PLOT_STYLE, "font.size": 9, "axes.titlesize": 10}


@dataclass(frozen=True)
class Points:
    """The points of a curve: values ``y`` at positions ``x`` on the chosen x axis, both of shape (N,)."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """The recorded metrics of one run.

    ``train_loss`` includes label smoothing and dropout; ``dev_loss`` does not. Both are in nats per target token.
    ``score`` contains the values of ``metric``. ``dev_loss`` and ``score`` may be empty. ``speed`` is in target tokens
    per second of training.
    """

    name: str
    train_loss: Points
    dev_loss: Points
    score: Points
    metric: str
    learning_rate: Points
    speed: Points
    signatures: frozenset[str]


def draw_curves(runs: Sequence[Path], output: Path, *, x_axis: str = "step") -> list[Path]:
    """Draw the curves of ``runs`` to a single picture file, which is written completely or not at all.

    Returns the runs that were left out because no training step has been recorded yet.

    Args:
        runs: Run folders.
        output: The picture file: .png, .svg or .pdf.
        x_axis: The x axis: "step", "minutes" (of training, without validation) or "tokens" (target tokens).

    Raises:
        ConfigError: There is no run, or the file format or axis is not supported.
        DataError: A folder contains no records or damaged records, or no run has recorded a training step yet.
    """
    if not runs:
        raise ConfigError("no run to draw; pass one or more run folders, such as runs/NAME")
    picture_format(output)
    unique = len({run.resolve().name for run in runs}) == len(runs)
    begun = [run for run in runs if any(record["kind"] == "train" for record in _records(run / "metrics.jsonl"))]
    curves = [read_curves(run, run.resolve().name if unique else str(run), x_axis) for run in begun or runs]
    save_picture(plot_curves(curves, x_axis), output)
    return [run for run in runs if run not in begun]


def read_curves(run: Path, name: str, x_axis: str) -> Curves:
    """Read the curves of the run folder ``run``. ``name`` is their label, and ``x_axis`` selects the x axis."""
    path = run / "metrics.jsonl"
    records = _records(path)
    train = [record for record in records if record["kind"] == "train"]
    dev = [record for record in records if record["kind"] == "dev"]
    if not train:
        hint = "the first record is written after training.log_every steps"
        raise DataError(f"{path}: no training step recorded yet; {hint}")
    steps, places = _axis(train, x_axis)

    def points(source: list[dict[str, Any]], key: str) -> Points:
        scored = [record for record in source if key in record]
        x = np.interp([record["step"] for record in scored], steps, places)
        return Points(x, np.array([record[key] for record in scored], dtype=np.float64))

    metric = next((candidate for candidate in _METRICS if any(candidate in record for record in dev)), "BLEU")
    return Curves(
        name,
        train_loss=points(train, "loss"),
        dev_loss=points(dev, "loss"),
        score=points(dev, metric),
        metric=metric,
        learning_rate=points(train, "learning_rate"),
        speed=points(train, "target_tokens_per_s"),
        signatures=frozenset(
            f"{metric} {record[signature]}" for record in dev if (signature := f"{metric} signature") in record
        ),
    )


def _axis(train: list[dict[str, Any]], x: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the recorded steps and their positions on the x axis, between which other steps are interpolated."""
    steps = np.array([0.0, *(record["step"] for record in train)])
    seconds = np.array([0.0, *(record["elapsed_s"] for record in train)])
    match x:
        case "step":
            return steps, steps
        case "minutes":
            return steps, seconds / 60
        case "tokens":
            rates = np.array([record["target_tokens_per_s"] for record in train])
            return steps, np.append(0.0, np.cumsum(rates * np.diff(seconds))) / 1e6
        case other:
            raise ConfigError(f"x = {other!r}: expected one of {', '.join(_X_LABELS)}")


def _records(path: Path) -> list[dict[str, Any]]:
    """Read the records of metrics.jsonl. The last line may be incomplete; all others must be intact."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        problem = f"{path}: cannot be read ({error.strerror}); expected a run folder that headway train has written"
        raise DataError(problem) from None
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if _is_record(record):
            records.append(record)
        elif number < len(lines):
            raise DataError(f"{path}, line {number}: not a record of headway train; remove it, or restore the file")
    return records


def _is_record(record: object) -> bool:
    """Return whether ``record`` contains all numbers that are drawn for its kind of record."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return False
    needed = {
        "train": ["loss", "learning_rate", "target_tokens_per_s", "elapsed_s"],
        "dev": ["loss", *(metric for metric in _METRICS if metric in record)],
    }.get(record["kind"], [])
    return all(type(record.get(key)) in (int, float) for key in ("step", *needed))


@figure_style(_STYLE)
def plot_curves(curves: Sequence[Curves], x_axis: str) -> Figure:
    """Return the learning curves of some runs as one figure."""
    scored = dict.fromkeys(run.metric for run in curves if len(run.score.x))
    rows: Any = [["loss", "score" if scored else "loss"], ["rate", "speed"]]
    picture = Figure(figsize=(10, 6.4), layout="constrained")
    panels = picture.subplot_mosaic(rows, sharex=True, gridspec_kw={"height_ratios": [3, 2]})
    styles = [(COLORS[n % len(COLORS)], DASHES[n // len(COLORS) % len(DASHES)]) for n in range(len(curves))]
    _loss_panel(panels["loss"], curves, styles)
    if scored:
        scores = [run.score for run in curves]
        _value_panel(panels["score"], f"{' or '.join(scored)} on the development set", scores, styles, marker="o")
        _label_best(panels["score"], scores, styles, max)
    _value_panel(panels["rate"], "Learning rate", [run.learning_rate for run in curves], styles)
    _value_panel(panels["speed"], "Speed (target tokens per second)", [run.speed for run in curves], styles)
    for name in ("rate", "speed"):
        panels[name].set_ylim(bottom=0)
    panels["rate"].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels["speed"].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    for panel in panels.values():
        panel.set_xlim(left=0)
        panel.tick_params(labelbottom=True)
        panel.xaxis.set_major_locator(MaxNLocator(6))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        panel.set_xlabel(_X_LABELS[x_axis])
    _name_runs(picture, curves, styles)
    return picture


def _loss_panel(panel: Axes, curves: Sequence[Curves], styles: Styles) -> None:
    """Draw the training loss as thin, pale lines and the development loss as thick lines."""
    has_dev = any(len(run.dev_loss.x) for run in curves)
    for run, (color, dash) in zip(curves, styles, strict=True):
        width, alpha = (1.0, 0.6) if has_dev else (1.6, 1.0)
        panel.plot(run.train_loss.x, run.train_loss.y, dash, color=color, linewidth=width, alpha=alpha)
        panel.plot(run.dev_loss.x, run.dev_loss.y, dash, color=color, linewidth=1.8, marker="o", markersize=3)
    panel.set_yscale("log")
    panel.set_ylabel("nats per target token (log scale)")
    panel.set_title("Loss")
    low, high = panel.get_ylim()
    wide = high > 3 * low
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)) if wide else MaxNLocator(6))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if has_dev:
        handles = [
            Line2D([], [], color="#555555", linewidth=1.0, alpha=0.6, label="training (with smoothing and dropout)"),
            Line2D([], [], color="#555555", linewidth=1.8, marker="o", markersize=3, label="development set"),
        ]
        panel.legend(handles=handles, frameon=False, loc="upper right")
        _label_best(panel, [run.dev_loss for run in curves], styles, min)


def _value_panel(panel: Axes, title: str, points: Sequence[Points], styles: Styles, marker: str = "") -> None:
    for series, (color, dash) in zip(points, styles, strict=True):
        panel.plot(series.x, series.y, dash, color=color, linewidth=1.6, marker=marker, markersize=3)
    panel.set_title(title)


def _label_best(panel: Axes, points: Sequence[Points], styles: Styles, best: Any) -> None:
    """Label each run's best value at the right edge in its color; overlapping labels are moved apart."""
    best_values = [
        (float(best(series.y[np.isfinite(series.y)])), color)
        for series, (color, _) in zip(points, styles, strict=True)
        if np.isfinite(series.y).any()
    ]
    panel.set_ylim(panel.get_ylim())  # fix the limits before placing labels
    to_axes = panel.transData + panel.transAxes.inverted()
    heights = [float(to_axes.transform((0, value))[1]) for value, _ in best_values]
    for (value, color), height in zip(best_values, _apart(heights, 0.055), strict=True):
        panel.annotate(
            f"best {value:.1f}" if best is max else f"best {value:.2f}",
            (1.01, height),
            xycoords="axes fraction",
            color=color,
            va="center",
            fontweight="bold",
            annotation_clip=False,
        )


def _apart(heights: list[float], gap: float) -> list[float]:
    """Return the heights, raised where necessary so that each is at least ``gap`` above the next lower one."""
    order = np.argsort(heights, kind="stable")
    moved = list(heights)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    return moved


def _name_runs(picture: Figure, curves: Sequence[Curves], styles: Styles) -> None:
    """Show the name of a single run in the title, or several names in a legend. Write the scores' signatures below."""
    if len(curves) == 1:
        picture.suptitle(curves[0].name, x=0.01, ha="left", fontsize=12, fontweight="bold")
    else:
        handles = [
            Line2D([], [], color=color, linestyle=dash, linewidth=2.5, label=run.name)
            for run, (color, dash) in zip(curves, styles, strict=True)
        ]
        picture.legend(handles=handles, loc="outside upper left", ncols=min(len(curves), 4), frameon=False, fontsize=10)
    signatures = sorted(frozenset().union(*(run.signatures for run in curves)))
    if signatures:
        differ = "computed differently: " if len(signatures) > 1 else ""
        picture.supxlabel(f"{differ}{'; '.join(signatures)}", x=0.01, ha="left", fontsize=7, color="#777777")
