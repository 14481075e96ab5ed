"""Sinusoidal against learned positions, at the lengths of training and beyond; also rotary positions and none.

The paper (3.5) found nearly identical results with learned vectors (table 3, row E: 25.7 against 25.8 BLEU), and chose
sinusoids because they may extrapolate to longer sequences. Sinusoids are defined at every position, but the model has
never seen their values beyond the longest row of training. Learned vectors exist there (up to 512 positions) but are
still random: they were never trained. Rotary positions (Su et al. 2021) rotate queries and keys of self-attention.
Without positions, the encoder sees a bag of words. The decoder can still infer its position, because the causal mask
lets each position see one more token than the previous position.

Models are trained on rows of one to three joined sentences of Multi30k. Every point of the curves is the BLEU of the
same test sentences; only the number of sentences per row differs. In the shaded part, rows are longer than in training.
The full version has 12 runs; the 3 runs with sinusoids are shared with the sentence-length experiment.

All models were trained for the same small number of steps. The result shows how fast a model learns to use its
positions, not which positions are best after long training.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from headway.experiments.comparison import column, judge_equivalent, judge_greater, mean_ci, mean_diff, strip_plot
from headway.experiments.corpus import MULTI30K
from headway.experiments.experiment import OURS, Claim, Experiment, Numbers, Settings, Verdict
from headway.experiments.figures import shared_legend, subplots
from headway.experiments.length_sweep import LENGTHS, LONGEST_SEEN, TWICE, draw_bleu_curves, length_sweep, relative_bleu

SINUSOIDAL, LEARNED, ROTARY, NONE = "sinusoidal (paper)", "learned", "rotary", "none"
VARIANTS: dict[str, dict[str, Any]] = {
    SINUSOIDAL: {},
    LEARNED: {"model": {"positions": "learned", "max_length": 512}},
    ROTARY: {"model": {"positions": "rotary"}},
    NONE: {"model": {"positions": "none"}},
}
SEEN_ROWS = tuple(count for count in LENGTHS if count <= LONGEST_SEEN)
UNSEEN_ROWS = tuple(count for count in LENGTHS if count > LONGEST_SEEN)
MIN_BLEU_DIFFERENCE = 1.0  # BLEU; "nearly identical" means closer than this
MIN_BLEU_RATIO = 0.8  # "extrapolate" means keeping at least this share of BLEU at twice the longest rows of training

CLAIMS = (
    Claim.quote("the two versions produced nearly identical results", "paper, 3.5, and table 3 (E)"),
    Claim.quote(
        "it may allow the model to extrapolate to sequence lengths longer than the ones encountered during training",
        "paper, 3.5, of sinusoids",
    ),
    Claim(
        "At lengths beyond those of training, sinusoids do better than learned positions.",
        f"{OURS}; what the paper, 3.5, chose them for",
    ),
    Claim.quote(
        "in order for the model to make use of the order of the sequence, we must inject some information about the "
        "relative or absolute position of the tokens in the sequence",
        "paper, 3.5",
    ),
)


def measure(settings: Settings) -> Numbers:
    """Measure BLEU over row length with each kind of positions."""
    return length_sweep(settings, VARIANTS)


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by mean BLEU at trained and longer lengths, and by the share of BLEU kept at twice the longest rows."""
    seen, beyond = ({name: _mean(numbers, name, counts) for name in VARIANTS} for counts in (SEEN_ROWS, UNSEEN_ROWS))
    share = f"share of the BLEU of rows of {LONGEST_SEEN} sentences that is kept in rows of {TWICE} with sinusoids"
    within, longer = "mean BLEU at trained lengths", f"rows of {' and '.join(map(str, UNSEEN_ROWS))} sentences"
    alike, kept = mean_diff(seen[LEARNED], seen[SINUSOIDAL]), relative_bleu(numbers, SINUSOIDAL, TWICE, LONGEST_SEEN)
    further, order = mean_diff(beyond[SINUSOIDAL], beyond[LEARNED]), mean_diff(seen[SINUSOIDAL], seen[NONE])
    return (
        judge_equivalent(alike, f"{within}, learned minus sinusoidal", tolerance=MIN_BLEU_DIFFERENCE),
        judge_greater(mean_ci(kept), share, threshold=MIN_BLEU_RATIO),
        judge_greater(further, f"mean BLEU of {longer}, sinusoidal minus learned", margin=MIN_BLEU_DIFFERENCE),
        judge_greater(order, f"{within}, sinusoidal minus none", margin=MIN_BLEU_DIFFERENCE),
    )


def _mean(numbers: Numbers, variant: str, counts: Sequence[int]) -> list[float]:
    """Return the mean BLEU over the row lengths ``counts``, for each seed."""
    scores = [column(numbers["runs"], "bleu", variant=variant, sentences=count) for count in counts]
    return [fmean(values) for values in zip(*scores, strict=True)]


def draw(numbers: Numbers) -> Figure:
    """Draw BLEU over row length, and its mean over the row lengths of training."""
    title = "Positions, within the lengths of training and beyond"
    picture, (curves, seen) = subplots(title, ncols=2, size=(15.0, 5.0))
    draw_bleu_curves(curves, numbers)
    means = {name: _mean(numbers, name, SEEN_ROWS) for name in VARIANTS}
    strip_plot(seen, means, "At the lengths of training (dots: seeds)", "BLEU, mean of rows of 1, 2 and 3")
    shared_legend(picture, curves)
    return picture


TITLE = "Sinusoidal against learned positions"
EXPERIMENT = Experiment("positions", TITLE, __doc__, CLAIMS, measure, judge, draw, data_files=MULTI30K)
