"""Draw an inspection as a picture for a paper or a lecture.

A picture shows all heads of one kind of attention side by side, or one map enlarged with the probability of each token,
or a classifier's prediction with the attribution of each token. Heat maps use a single hue from light to dark; other
colors are from the palette of Okabe and Ito (2008).
"""

from __future__ import annotations

import math
import textwrap
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from headway.errors import LengthError
from headway.inspection.capture import Kind
from headway.inspection.page_data import MAX_DRAWN_TOKENS
from headway.inspection.picture_files import COLORS, figure_style, font_families
from headway.inspection.results import KIND_NAMES, AttentionMap, Inspection, Side
from headway.text.visible_tokens import make_visible

_NUMBERED = 24  # up to this many rows or columns, cells show their weights as numbers
_LABELED = 32  # up to this many tokens, small maps have labels
_LEAST_HEIGHT = 1.2  # minimum height of a panel with an axis label, in inches
_BLUE, _ORANGE = COLORS[:2]
_STYLE: dict[str, Any] = {"font.size": 10, "axes.titlesize": 10}
_AXES: dict[Side, str] = {
    "source": "source token",
    "input": "token already read",
    "target": "token being predicted",
    "text": "",
}


def plot_inspection(
    inspection: Inspection, *, kind: Kind | None = None, layer: int | None = None, head: int | None = None
) -> Figure:
    """Return the picture of an inspection.

    Args:
        inspection: The inspection to draw.
        kind: The kind of attention. None means the most informative kind or, for a classifier, its labels and
            attributions.
        layer: The layer to enlarge, counted from 1, or negative from the end. If ``head`` is None, heads are averaged.
        head: The head to enlarge. The layer is then the last layer unless ``layer`` is set.

    Raises:
        ConfigError: There is no such attention, layer or head.
        LengthError: The text is too long to draw.
    """
    if inspection.longer_length() > MAX_DRAWN_TOKENS:
        raise LengthError(
            f"a text of {inspection.longer_length():,} tokens is too long to draw: more than {MAX_DRAWN_TOKENS} are "
            "illegible; inspect part of it, or write a .json file, which contains everything"
        )
    spoken = [*inspection.source_tokens, *(step.token for step in inspection.steps), *(inspection.labels or ())]
    with figure_style({**_STYLE, "font.family": font_families("".join(map(make_visible, spoken)))}):
        if inspection.labels is not None and (kind, layer, head) == (None, None, None):
            return _decision(inspection)
        if not inspection.maps and (kind, layer, head) == (None, None, None):
            return _probabilities(inspection)
        shown = inspection.select_map(kind, -1 if layer is None else layer, head)
        maps = inspection.maps_of_kind(shown.kind)
        if layer is None and head is None and sum(len(attention_map.heads) for attention_map in maps) > 1:
            return _overview(inspection, maps)
        return _large(inspection, shown, len(maps))


def _overview(inspection: Inspection, maps: tuple[AttentionMap, ...]) -> Figure:
    """Draw one panel per layer (rows) and head (columns) on a common color scale."""
    rows, columns = ([*map(make_visible, inspection.tokens(side))] for side in (maps[0].row_side, maps[0].column_side))
    across = len(maps[0].heads)
    labels = 1.0 if max(len(rows), len(columns)) <= _LABELED else 0.0
    panel = [min(max(0.14 * len(tokens), 1.3), 4.5 if labels else 2.0) for tokens in (columns, rows)]
    size = (max(across * panel[0] + 1.8 + labels, 6.5), len(maps) * (panel[1] + 0.3) + 1.2 + labels)
    picture = Figure(figsize=size, layout="constrained")
    grid = picture.subplots(len(maps), across, squeeze=False, sharex=True, sharey=True)
    for line, attention_map in zip(grid, maps, strict=True):
        for axes, head, weights in zip(line, attention_map.heads, attention_map.weights, strict=True):
            image = _heat(axes, weights.numpy(), 1.0)
            axes.set_title(f"layer {attention_map.layer}, head {head}", fontsize=9)
            _ticks(axes, rows if labels else [], columns if labels else [], 6)
            axes.label_outer()
    _title(picture, inspection, f"{KIND_NAMES[maps[0].kind]}: all layers and heads")
    if maps[0].row_side != "text":
        picture.supylabel(f"{_AXES[maps[0].row_side]} (query)", fontsize=_size(picture, 0.8))
    picture.supxlabel(f"{_AXES[maps[0].column_side]} (key)", fontsize=_size(picture, 0.8))
    _color_bar(picture, image, list(grid.flat), "right")
    return picture


def _large(inspection: Inspection, shown: AttentionMap, layers: int) -> Figure:
    """Draw one map, with numbers in its cells if they fit, and the predicted tokens' probabilities beside it."""
    rows, columns = (list(map(make_visible, inspection.tokens(side))) for side in (shown.row_side, shown.column_side))
    cell = 0.42 if max(len(rows), len(columns)) <= _NUMBERED else 0.24 if len(rows) <= 60 else 0.16
    predicted = shown.row_side == "target"
    width, height = max(cell * len(columns), 2.5), max(cell * len(rows), _LEAST_HEIGHT)
    picture = Figure(figsize=(width + 2.6 + 2.4 * predicted, height + 2.4), layout="constrained")
    ratios = {"width_ratios": [width, 1.8]} if predicted else {}
    panels = picture.subplots(1, 1 + predicted, squeeze=False, sharey=True, gridspec_kw=ratios)[0]
    weights = shown.weights.mean(0).numpy()
    largest = float(weights.max()) or 1.0
    image = _heat(panels[0], weights, largest)
    if cell * len(rows) < height:  # square cells would be too low for the label beside them
        panels[0].set_aspect("auto")
    _ticks(panels[0], rows, columns, 10 if cell > 0.3 else 7)
    panels[0].set_xlabel(f"{_AXES[shown.column_side]} (key)")
    if shown.row_side != "text":
        _row_label(panels[0], f"{_AXES[shown.row_side]} (query)", height)
    if cell > 0.3:
        _numbers(panels[0], weights, largest)
    if predicted:
        _probability_bars(panels[1], inspection)
        panels[1].tick_params(labelleft=False)
    heads = f"head {shown.heads[0]}" if len(shown.heads) == 1 else f"mean of {len(shown.heads)} heads"
    _title(picture, inspection, f"{KIND_NAMES[shown.kind]}, layer {shown.layer} of {layers}, {heads}")
    _color_bar(picture, image, list(panels), "bottom")
    return picture


def _probabilities(inspection: Inspection) -> Figure:
    """Draw the tokens and their probabilities, for a model without attention."""
    height = max(0.26 * len(inspection.steps), _LEAST_HEIGHT)
    picture = Figure(figsize=(7, height + 1.6), layout="constrained")
    axes = picture.subplots()
    axes.set_ylim(len(inspection.steps) - 0.5, -0.5)
    _ticks(axes, list(map(make_visible, inspection.tokens("target"))), [], 10)
    _row_label(axes, _AXES["target"], height)
    _probability_bars(axes, inspection)
    _title(picture, inspection, "Predictions (this model has no attention)")
    return picture


def _decision(inspection: Inspection) -> Figure:
    """Draw a classifier's labels and, for each token, its attribution and its pooling weight."""
    assert inspection.labels is not None
    tokens = list(map(make_visible, inspection.source_tokens))
    pooling = next((attention_map for attention_map in inspection.maps if attention_map.kind == "pooling"), None)
    attribution = inspection.attribution
    beside = (attribution is not None) + (pooling is not None)
    shown = list(inspection.labels.items())[:12]
    height = max(0.22 * len(tokens) * bool(beside), 0.32 * len(shown)) + 1.9
    picture = Figure(figsize=(4.5 + 3.6 * beside, height), layout="constrained")
    panels = picture.subplots(1, 1 + beside, squeeze=False)[0]
    _label_bars(panels[0], shown, len(inspection.labels))
    # Make the bars as thin as in the panels beside them.
    panels[0].set_ylim(max(len(shown), 0.6 * len(tokens) * bool(beside)) - 0.5, -0.5)
    rest = list(panels[1:])
    if attribution is not None:
        axes = rest.pop(0)
        values = np.array(attribution.values)
        axes.barh(range(len(tokens)), values, color=np.where(values < 0, _ORANGE, _BLUE))
        axes.axvline(0, color="#888888", linewidth=0.8)
        axes.set_title(f"Attribution for “{attribution.label}”")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("gradient × input, in logits\n(blue: for, orange: against)")
        _token_axis(axes, tokens)
    if pooling is not None:
        axes = rest.pop(0)
        axes.barh(range(len(tokens)), pooling.weights.mean((0, 1)).numpy(), color=_BLUE)
        axes.set_title("Attention pooling")
        axes.set_xlabel("attention weight\n(all sum to 1)")
        _token_axis(axes, tokens)
    _title(picture, inspection, "Classification")
    return picture


def _label_bars(axes: Axes, shown: list[tuple[str, float]], of: int) -> None:
    axes.barh(range(len(shown)), [probability for _, probability in shown], color=_BLUE)
    for row, (_, probability) in enumerate(shown):
        axes.annotate(f"{probability:.3f}", (probability, row), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(shown)), [make_visible(label).replace("␣", " ") for label, _ in shown])
    _probability_axis(axes, 1.18, "probability")
    axes.set_title("Labels" if len(shown) == of else f"The {len(shown)} most probable of {of} labels")


def _token_axis(axes: Axes, tokens: list[str]) -> None:
    _ticks(axes, tokens, [], 8)
    axes.set_ylim(len(tokens) - 0.5, -0.5)
    axes.set_ylabel("token")
    axes.spines[["top", "right"]].set_visible(False)


def _heat(axes: Axes, weights: Any, largest: float) -> AxesImage:
    return axes.imshow(weights, cmap="Blues", vmin=0, vmax=largest, aspect="equal", interpolation="nearest")


def _ticks(axes: Axes, rows: list[str], columns: list[str], size: int) -> None:
    axes.set_yticks(range(len(rows)), rows, fontsize=size)
    if columns or rows == []:
        axes.set_xticks(range(len(columns)), columns, fontsize=size, rotation=60, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0)


def _numbers(axes: Axes, weights: Any, largest: float) -> None:
    for (row, column), weight in np.ndenumerate(weights):
        if weight >= 0.005:
            color = "white" if weight > 0.6 * largest else "black"
            number = "1" if weight >= 0.995 else f"{weight:.2f}"[1:]
            axes.text(column, row, number, ha="center", va="center", fontsize=7, color=color)


def _probability_bars(axes: Axes, inspection: Inspection) -> None:
    """Draw the probability of each predicted token; forced tokens have none."""
    for row, step in enumerate(inspection.steps):
        probability = math.exp(step.log_probability)
        if not step.forced:
            axes.barh(row, probability, color=_BLUE, height=0.7)
        text = "given" if step.forced else f"{probability:.2f}"
        place = 0 if step.forced else probability
        axes.annotate(text, (place, row), (3, 0), textcoords="offset points", va="center", fontsize=7)
    _probability_axis(axes, 1.25, "P(token | source,\ntokens before)")
    axes.tick_params(length=0)


def _probability_axis(axes: Axes, limit: float, label: str) -> None:
    axes.set_xlim(0, limit)
    axes.set_xticks([0, 0.5, 1])
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)


def _row_label(axes: Axes, text: str, height: float) -> None:
    """Label the y axis of a panel of this height in inches, and wrap the label to the panel's height."""
    letters = max(int(height * 72 / (0.6 * mpl.rcParams["font.size"])), 1)
    axes.set_ylabel(textwrap.fill(text, letters))


def _title(picture: Figure, inspection: Inspection, title: str) -> None:
    size, name = _size(picture), inspection.model
    room = int(picture.get_figwidth() * 72 / (0.64 * size))  # characters per line; their width is estimated generously
    name = name if len(name) <= room else "…" + name[1 - room :]  # the end of a path is the most informative part
    picture.suptitle(f"{title}\n{name}", x=0.01, ha="left", fontsize=size)


def _size(picture: Figure, scale: float = 1.0) -> float:
    """Return a font size that stays legible when the picture is scaled to the width of a page."""
    return scale * max(12.0, picture.get_figwidth())


def _color_bar(picture: Figure, image: AxesImage, panels: list[Axes], location: Literal["right", "bottom"]) -> None:
    bar = picture.colorbar(image, ax=panels, location=location, shrink=0.6, aspect=40, pad=0.02)
    bar.set_label("attention weight (each row sums to 1)", fontsize=_size(picture, 0.8))
    bar.outline.set_visible(False)
