"""Quality against sentence length: how much a fixed-length vector can store, and what attention adds.

A recurrent encoder-decoder without attention encodes every sentence as one vector, however long the sentence is (Cho et
al. 2014). Bahdanau et al. (2015) let the decoder attend to all encoder states, because the vector seemed too small for
long sentences. Their figure 2 shows BLEU against length. The Transformer has attention and no recurrence.

All three models are trained on rows of one to three joined sentences of Multi30k for the same number of steps. Every
point of the curves is the BLEU of the same test sentences; only the number of sentences per row differs. A model that
translates long rows as well as short ones has a flat line. In the shaded part, rows are longer than in training. The
full version has 9 runs; the Transformer's 3 are shared with the positions experiment. The models differ in size, as the
table shows.

The bars show a model's BLEU on long rows as a share of its BLEU on single sentences, so that a model that is worse at
every length is not mistaken for one that forgets. Black lines are 95 % intervals of the mean over seeds.

The ranking after so few steps may differ from the ranking after long training: a Transformer needs more steps than a
recurrent model with attention.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from headway.experiments.comparison import by_variant, ci_half_width, judge_greater, mean_ci, mean_diff
from headway.experiments.corpus import MULTI30K
from headway.experiments.experiment import OURS, Claim, Experiment, Numbers, Settings, Verdict
from headway.experiments.figures import label, shared_legend, subplots
from headway.experiments.length_sweep import LONGEST_SEEN, draw_bleu_curves, length_sweep, relative_bleu

FIXED, ATTENDING, TRANSFORMER = "recurrent, fixed vector", "recurrent, with attention", "Transformer"
MODEL_NAMES = (FIXED, ATTENDING, TRANSFORMER)
MIN_BLEU_RATIO = 0.9  # "does not deteriorate" means at least this share of the BLEU of single sentences

TITLE = "Quality against sentence length"
CLAIMS = (
    Claim("A fixed-length vector forgets long sentences; attention does not so much.", "Bahdanau et al. 2015, 1"),
    Claim("With attention, quality does not deteriorate with length.", "Bahdanau et al. 2015, 5.1"),
    Claim(
        "After as many steps the Transformer is better at long sentences than recurrence with attention.",
        f"{OURS}; the paper, 4, has a reason for it: shorter paths",
    ),
)


def measure(settings: Settings) -> Numbers:
    """Measure BLEU of the three models over row length."""
    widths = {"d_model": 48, "d_embedding": 32} if settings.quick else {"d_model": 256, "d_embedding": 128}
    recurrent: dict[str, Any] = {"kind": "recurrent", **widths, "dropout": 0.0 if settings.quick else 0.1}
    return length_sweep(
        settings,
        {
            FIXED: {"model": {**recurrent, "attention": "none"}},
            ATTENDING: {"model": {**recurrent, "attention": "bahdanau"}},
            TRANSFORMER: {},
        },
    )


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by BLEU in the longest rows of training, absolute and relative to the BLEU of single sentences."""
    kept = {name: relative_bleu(numbers, name, LONGEST_SEEN, 1) for name in MODEL_NAMES}
    long = by_variant(numbers["runs"], "bleu", sentences=LONGEST_SEEN)
    condition, share = f"in rows of {LONGEST_SEEN} sentences", "share of the BLEU of single sentences that"
    more, better = mean_diff(kept[ATTENDING], kept[FIXED]), mean_diff(long[TRANSFORMER], long[ATTENDING])
    return (
        judge_greater(more, f"{share} is kept {condition}, with attention minus without"),
        judge_greater(mean_ci(kept[ATTENDING]), f"{share} attention keeps {condition}", threshold=MIN_BLEU_RATIO),
        judge_greater(better, f"BLEU {condition} of the Transformer minus recurrence with attention"),
    )


def draw(numbers: Numbers) -> Figure:
    """Draw BLEU over row length, and the share of BLEU that is kept in long rows."""
    picture, (curves, kept) = subplots(TITLE, ncols=2, size=(13.0, 5.4))
    draw_bleu_curves(curves, numbers)
    for number, name in enumerate(MODEL_NAMES):
        values = relative_bleu(numbers, name, LONGEST_SEEN, 1)
        reach = ci_half_width(values) if len(values) > 1 else 0.0
        share = 100 * fmean(values)
        kept.bar(number, share, width=0.6, yerr=100 * reach, capsize=5)
        kept.text(number - 0.15, share / 2, f"{share:.0f}", ha="center", va="center", color="white", weight="bold")
    label(kept, f"Share kept in rows of {LONGEST_SEEN} sentences", "", "% of the BLEU of single sentences")
    kept.set_xticks(range(len(MODEL_NAMES)), [name.replace(", ", ",\n") for name in MODEL_NAMES])
    kept.set_ylim(bottom=0)
    kept.grid(visible=False, axis="x")
    shared_legend(picture, curves)
    return picture


EXPERIMENT = Experiment("sentence-length", TITLE, __doc__, CLAIMS, measure, judge, draw, data_files=MULTI30K)
