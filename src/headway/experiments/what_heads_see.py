"""What the heads of a trained model attend to, how much its loss depends on each, and how many are needed.

As in figures 3 to 5 of the paper, the first three panels show one query each, with all heads of a layer side by side,
each in its color. The sentences, from the test set, were chosen because they show the effect, and so were the paper's;
so the report counts in how many models of the pool's baseline it occurs, and decides nothing. German separates verbs
("sieht ... zu" means "watches"), and its pronouns agree with their antecedents, so that no parser is needed to say what
a head should find. The black frame marks what the query belongs to or, for attention from English to German, what an
aligner links to it.

A head's cost is what the model loses without it, in nats per token of the test set, with the 95 % interval over
sentences; gray points are the other models' heads, in order of cost, because heads have no names that models share.
The last panel shows the loss over the number of heads, with the width of all heads together constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from textwrap import fill

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headway.experiments.corpus import MULTI30K
from headway.experiments.experiment import Numbers, Settings
from headway.experiments.figures import label, subplots
from headway.experiments.pool import all_runs
from headway.experiments.pool_runs import PoolFolder
from headway.experiments.step_by_step import read_examples
from headway.experiments.verdicts import Verdict, decide, resampled_error
from headway.inspection.query_plot import draw_query

TITLE, DATA_FILES, READS_POOL = "What heads see", MULTI30K, True
DRAWN_SEED = 3  # of the model whose heads are drawn
HEADS = {"1-head": 1, "baseline": 4, "16-heads": 16}
PAPER = {1: 5.29, 4: 5.00, 8: 4.92, 16: 4.91, 32: 5.01}  # perplexity, table 3 (A)
PANELS = (
    ("A verb and its distant particle: “sieht ... zu” (watches)", ("zu",)),
    ("One head for the antecedent of a pronoun: “ihrer” (her)", ("Frau", "neben")),
    ("A verb that German puts last: “treffen” (to hit)", ()),
)
"""For each of the queries, a title and the tokens that heads should find, or () for the one that the aligner links."""

SOUGHT = ((0, ("zu",)), (1, ("Frau",)), (1, ("Frau", "neben")), (2, ()))  # by the claims: query and tokens
MUCH = 0.5  # of a head's weight


def measure(settings: Settings) -> Numbers:
    """Return the drawn attention, the weights that claims are about, costs of heads, and losses over their number."""
    baselines = read_examples(settings)
    folder = PoolFolder(settings.pool_folder or settings.work_folder, settings.work_folder)
    runs = [(run.variant.name, folder.record_of(run)) for run in all_runs() if run.variant.name in HEADS and run.seed]
    tokens = next((sum(record["num_tokens"]) for name, record in runs if record and name == "baseline"), None)
    losses = [
        {"heads": HEADS[name], "seed": record["seed"], "loss": -sum(record["log_probs"]) / tokens}
        for name, record in runs
        if record and tokens and not record["diverged"]
    ]
    return {
        "queries": next((examples["queries"] for record, examples in baselines if record["seed"] == DRAWN_SEED), []),
        "weights": [[_largest(examples["queries"][at], sought) for _, examples in baselines] for at, sought in SOUGHT],
        "costs": {str(record["seed"]): _costs(record) for record, _ in baselines},
        "losses": losses,
        "tables": {"Loss over the number of heads (nats per token)": losses},
    }


def _positions(query: Numbers, sought: Sequence[str]) -> list[int]:
    """Return the positions of the tokens ``sought``, or of the token that the aligner links to the query."""
    tokens = [token.strip() for token in query["tokens"]]
    return [tokens.index(token) for token in sought] or [query["linked"]]


def _largest(query: Numbers, sought: Sequence[str]) -> float:
    """Return the largest weight that a head gives to a token; for several tokens, the smallest such weight."""
    return min(max(float(head[place]) for head in query["weights"]) for place in _positions(query, sought))


def _costs(record: Numbers) -> list[Numbers]:
    """Return the cost of each head in nats per token, and its error over the choice of sentences."""
    heads, tokens = record["measured"]["heads"], sum(record["num_tokens"])
    rows = (np.array(heads["whole"]) - np.array(heads["without"])) / tokens
    errors = [resampled_error(row[:, None], lambda sums: float(sums[0])) for row in rows]
    costs = zip(heads["kinds"], rows.sum(1), errors, strict=True)
    return [{"kind": kind, "cost": float(cost), "error": error} for kind, cost, error in costs]


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Count the models with a head that has more than half of its weight on what is sought.

    One sentence that was chosen because it shows an effect cannot decide a claim about heads, so no claim is decided.
    """
    verdicts = list[Verdict]()
    for weights in numbers["weights"]:
        hits, shown = sum(weight > MUCH for weight in weights), ", ".join(f"{weight:.2f}" for weight in weights)
        reason = (
            f"in {hits} of {len(weights)} models (largest weights: {shown or 'none'}), a head has more than half of "
            "its weight there; one sentence, which was chosen because it shows this, cannot test the claim"
        )
        verdicts.append(decide(reason, supported=False, refuted=False))
    return tuple(verdicts)


def draw(numbers: Numbers) -> Figure:
    """Draw three queries, the cost of each head, and the loss over the number of heads."""
    picture, panels = subplots(TITLE, 2, 3, size=(24, 19), height_ratios=[3, 2])
    queries = numbers["queries"]
    for number, (title, sought) in enumerate(PANELS):
        what = "no trained model is recorded"
        if queries:
            query = queries[number]
            names = [f"head {head}" for head in range(1, 1 + len(query["weights"]))]
            is_source = query["kind"] == "encoder"
            row = query["row"] if is_source else None
            draw_query(
                panels[number],
                query["tokens"],
                query["weights"],
                names,
                query=row,
                outlined=_positions(query, sought),
            )
            what = fill(f"“{query['word']}” of “{query['pair'][0 if is_source else 1]}”", 55)
        label(panels[number], f"{title}\n{what}", "attention weight (those of a head add up to 1)", "source token")
    grid = panels[3].get_gridspec()
    assert grid is not None
    panels[3].set_subplotspec(grid[1, :2])
    panels[4].remove()
    _draw_costs(panels[3], numbers["costs"])
    _draw_losses(panels[5], numbers["losses"])
    return picture


def _draw_costs(axes: Axes, costs: Mapping[str, Sequence[Numbers]]) -> None:
    """Draw the costs of one model's heads, sorted within each layer, and those of the other models as gray points."""
    for seed, heads in costs.items():
        places = list[str]()
        for start in range(0, len(heads), HEADS["baseline"]):
            layer = heads[start : start + HEADS["baseline"]]
            order = sorted(range(len(layer)), key=lambda head: -layer[head]["cost"])
            values, x = [layer[head]["cost"] for head in order], np.arange(start, start + len(layer)) + start / 8
            if seed != str(DRAWN_SEED):
                name = None if axes.get_legend_handles_labels()[1] else "heads of the other models"
                axes.plot(x + 0.3, values, "o", color="#888888", markersize=5, label=name)
                continue
            errors = [1.96 * layer[head]["error"] for head in order]
            colors = colormaps["PuOr"](0.5 + np.clip(2 * np.array(values), -0.5, 0.5))
            axes.bar(x, values, yerr=errors, width=0.8, color=colors, edgecolor="#555555", capsize=3)
            depth = 1 + sum(place == layer[0]["kind"] for place in places)
            places.append(layer[0]["kind"])
            text = {"cross": "decoder to source", "decoder": "decoder", "encoder": "encoder"}[places[-1]]
            axes.annotate(f"{text} {depth}", (x[0] - 0.4, 0.97), xycoords=("data", "axes fraction"), fontweight="bold")
            for place, head in zip(x, order, strict=True):
                axes.annotate(str(head + 1), (place, 0), (0, -14), textcoords="offset points", ha="center")
    axes.axhline(0, color="#555555", linewidth=1)
    if costs:
        axes.legend(loc="center")
    axes.set_xticks([])
    axes.set_ylim(bottom=-0.012)
    label(axes, "Cost of removing a head", "number of the head, in order of cost within its layer", "nats per token")


def _draw_losses(axes: Axes, losses: Sequence[Numbers]) -> None:
    """Draw the loss over the number of heads, and the paper's."""
    axes.plot(list(PAPER), [math.log(perplexity) for perplexity in PAPER.values()], "s--", color="C1", label="paper")
    means = {heads: [row["loss"] for row in losses if row["heads"] == heads] for heads in HEADS.values()}
    drawn = {heads: fmean(values) for heads, values in means.items() if values}
    axes.plot(list(drawn), list(drawn.values()), "o-", color="C0", label="here: mean and single models")
    axes.plot([row["heads"] for row in losses], [row["loss"] for row in losses], ".", color="C0")
    missing = [str(heads) for heads, values in means.items() if not values]
    note = f"no runs with {' and '.join(missing)} heads are recorded yet" if missing else ""
    axes.annotate(note, (0.5, 0.5), xycoords="axes fraction", ha="center")
    what = "nats per token (paper: log of the perplexity in table 3)"
    label(axes, "Loss over the number of heads h", "heads h, of width d / h each", what, log="x", xticks=list(PAPER))
    axes.legend(loc="upper right")
