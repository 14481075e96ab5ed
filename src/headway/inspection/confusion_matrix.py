"""Draw a classifier's confusion matrix: which classes are mistaken for which.

The color of a cell shows its share of the row, that is, of all texts with the same true class. The scale is a single
hue, safe for color-blind readers, and uses the square root of the share so that small shares remain visible. Cells
contain counts and, if they fit, shares.
"""

from __future__ import annotations

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from headway.evaluation.classification import ClassificationReport
from headway.inspection.picture_files import figure_style, font_families

_SHARES = 12  # up to this many classes, cells show shares
_COUNTS = 30  # up to this many classes, nonempty cells show counts
_NAMED = 60  # up to this many classes, axes show class names
_LONGEST = 24  # maximum number of characters shown of a name
_STYLE = {"font.size": 9}


def plot_confusion_matrix(report: ClassificationReport) -> Figure:
    """Return the confusion matrix as a matplotlib figure."""
    counts = np.array(report.confusion)
    size = len(counts)
    totals = counts.sum(1, keepdims=True)
    shares = 100 * counts / np.maximum(totals, 1)
    with figure_style({**_STYLE, "font.family": font_families("".join(report.labels))}):
        side = min(max(2.4 + 0.72 * size, 4.6), 14)
        picture = Figure(figsize=(side + 1.2, side), layout="constrained")
        axes = picture.add_subplot()
        image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=100))
        axes.set_xlabel("predicted class")
        axes.set_ylabel("true class (texts)")
        axes.set_title(
            f"{report.scores[0].value:.1f} % of {int(counts.sum()):,} texts are correct", loc="left", weight="bold"
        )
        if size <= _NAMED:
            names = [_short(label) for label in report.labels]
            axes.set_xticks(range(size), names, rotation=45, ha="right", rotation_mode="anchor")
            rows = [f"{name} ({total:,})" for name, total in zip(names, totals[:, 0].tolist(), strict=True)]
            axes.set_yticks(range(size), rows)
        for (row, column), share in np.ndenumerate(shares):
            if size <= _SHARES:
                text = f"{counts[row, column]:,}\n{share:.1f} %"
            elif size <= _COUNTS and counts[row, column]:
                text = f"{counts[row, column]:,}"
            else:
                continue
            axes.text(column, row, text, ha="center", va="center", color="white" if share > 35 else "black")
        bar = picture.colorbar(image, ax=axes, shrink=0.8, ticks=[0, 1, 5, 10, 25, 50, 75, 100])
        bar.set_label("share of the true class's texts (%)")
    return picture


def _short(label: str) -> str:
    label = " ".join(label.split())
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"
