"""One head against many heads: with d_k = d_v = d_model / h, all models have the same number of weights.

A single head computes one distribution of attention weights per query. Several heads compute several distributions, but
they share the width, so each head compares queries and keys in fewer dimensions.

The paper varies the number of heads in table 3, rows (A): at d_model = 512, 1, 4, 8, 16 and 32 heads reach 24.9, 25.5,
25.8, 25.8 and 25.4 BLEU. The full version trains 1, 4 and 32 heads of 128, 32 and 4 dimensions (9 runs; those with 1
and 4 heads are shared with other experiments). Each dot is one run. If the shaded bars overlap a lot, the difference
may be due to chance.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from headway.experiments.comparison import by_variant, judge_best, row_cells, strip_plot
from headway.experiments.corpus import MULTI30K, experiment_corpus
from headway.experiments.experiment import Claim, Experiment, Numbers, Settings, Verdict
from headway.experiments.figures import subplots
from headway.experiments.training import sweep

ONE, MIDDLE, MANY = "1 head", "4 heads", "too many heads"
MIN_BLEU_DIFFERENCE = 0.5  # BLEU; the paper's own differences are .9 and .4

CLAIMS = (
    Claim("Single-head attention is worse than the best setting (there by 0.9 BLEU).", "paper, 6.2, table 3 (A)"),
    Claim.quote("quality also drops off with too many heads", "paper, 6.2, table 3 (A)"),
)


def measure(settings: Settings) -> Numbers:
    """Measure BLEU with one head, with the common recipe's four, and with so many that each has only a few units."""
    many = 16 if settings.quick else 32
    counts = {ONE: 1, MIDDLE: 4, MANY: many}
    variants = {name: {"model": {"num_heads": count}} for name, count in counts.items()} | {MIDDLE: {}}
    runs = sweep(settings, experiment_corpus(settings), variants)
    table = [{"heads": count, **row_cells(runs, name)} for name, count in counts.items()]
    return {"runs": runs, "many": many, "tables": {"Means over seeds, with standard deviations": table}}


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Compare one head, and too many heads, with the best of the other settings."""
    bleu = _by_heads(numbers, "bleu")
    return _judge_worse(bleu, ONE), _judge_worse(bleu, f"{numbers['many']} heads")


def _judge_worse(bleu: dict[str, list[float]], setting: str) -> Verdict:
    others, what = [name for name in bleu if name != setting], f"BLEU of the best other setting ({{}}) minus {setting}"
    return judge_best(bleu, others, setting, what, margin=MIN_BLEU_DIFFERENCE)


def _by_heads(numbers: Numbers, key: str) -> dict[str, list[float]]:
    """Return the values of each setting; the settings are named after their number of heads."""
    values = by_variant(numbers["runs"], key)
    return {ONE: values[ONE], MIDDLE: values[MIDDLE], f"{numbers['many']} heads": values[MANY]}


def draw(numbers: Numbers) -> Figure:
    """Draw BLEU and loss against the number of heads."""
    picture, (bleu, loss) = subplots("One head against many, at equal size", ncols=2, size=(12.0, 3.6))
    strip_plot(bleu, _by_heads(numbers, "bleu"), "Quality (dots: seeds)", "BLEU of the test set (higher is better)")
    title, x = "Loss of the development set", "nats per target token (lower is better)"
    strip_plot(loss, _by_heads(numbers, "loss"), title, x)
    loss.set_yticks(loss.get_yticks(), [])
    return picture


EXPERIMENT = Experiment("heads", "One head against many", __doc__, CLAIMS, measure, judge, draw, data_files=MULTI30K)
