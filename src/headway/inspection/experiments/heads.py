"""One head against many, at equal size: d_k = d_v = d_model / h, so that all have the same number of weights.

The paper varies this in table 3, rows (A): at d_model = 512, 1, 4, 8, 16 and 32 heads reach 24.9, 25.5, 25.8, 25.8 and
25.4 BLEU. The full form trains 1, 4 and 32 heads at d_model = 128 (9 runs, those of 4 heads shared with other
experiments).
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from headway.inspection.experiments.comparing import column, difference, judge_greater, mean_with_spread, strips
from headway.inspection.experiments.corpora import corpora
from headway.inspection.experiments.drawing import label, panels
from headway.inspection.experiments.experiment import Claim, Experiment, Numbers, Settings, Verdict
from headway.inspection.experiments.training import sweep

ONE, MIDDLE, MANY = "1 head", "4 heads", "too many heads"
NOTICEABLE = 0.5  # BLEU; the paper's own differences are .9 and .4

CLAIMS = (
    Claim("Single-head attention is worse than the best setting (there by 0.9 BLEU).", "paper, 6.2, table 3 (A)"),
    Claim("Quality also drops off with too many heads.", "paper, 6.2, table 3 (A)"),
)


def measure(settings: Settings) -> Numbers:
    """BLEU with one head, with the common recipe's four, and with as many as leave each only a few units."""
    many = 16 if settings.quick else 32
    variants: dict[str, dict[str, Any]] = {
        ONE: {"model": {"num_heads": 1}},
        MIDDLE: {},
        MANY: {"model": {"num_heads": many}},
    }
    runs = sweep(settings, corpora(settings), variants)
    table = [
        {
            "heads": {ONE: 1, MIDDLE: 4, MANY: many}[name],
            "BLEU": mean_with_spread(column({"runs": runs}, "bleu", variant=name)),
            "loss (nats a token)": mean_with_spread(column({"runs": runs}, "loss", variant=name)),
        }
        for name in variants
    ]
    return {"runs": runs, "many": many, "tables": {"Means over seeds, with standard deviations": table}}


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Four heads against one, and against many."""
    bleu = {name: column(numbers, "bleu", variant=name) for name in (ONE, MIDDLE, MANY)}
    return (
        judge_greater(difference(bleu[MIDDLE], bleu[ONE]), "BLEU of 4 heads less that of 1 head", least=NOTICEABLE),
        judge_greater(
            difference(bleu[MIDDLE], bleu[MANY]),
            f"BLEU of 4 heads less that of {numbers['many']} heads",
            least=NOTICEABLE,
        ),
    )


def draw(numbers: Numbers) -> Figure:
    """BLEU and loss by the number of heads."""
    picture, (bleu, loss) = panels("One head against many, at equal size", columns=2, size=(12.0, 3.6))
    names = {ONE: ONE, MIDDLE: MIDDLE, MANY: f"{numbers['many']} heads"}
    for axes, key in ((bleu, "bleu"), (loss, "loss")):
        strips(axes, {shown: column(numbers, key, variant=name) for name, shown in names.items()})
    label(bleu, "Quality (dots: seeds)", "BLEU of the test set (more is better)", "")
    label(loss, "Loss of the development set", "nats for each target token (less is better)", "")
    loss.set_yticks(loss.get_yticks(), [])
    return picture


def explain(numbers: Numbers) -> str:
    """What is compared, and how to read it."""
    return (
        "One head sees the sentence in one way only: its weights are one distribution for each query. Many heads see "
        "it in many ways, but the width is shared out among them, so each compares queries and keys in fewer units. "
        f"With {numbers['many']} heads hardly any are left to each.\n\nEach dot is one training; where the shaded bars "
        "overlap much, chance alone may part the two."
    )


EXPERIMENT = Experiment("heads", "One head against many", CLAIMS, measure, judge, draw, explain)
