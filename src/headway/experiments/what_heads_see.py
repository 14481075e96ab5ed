"""What the heads of a trained model attend to, and how much its loss depends on each.

As in figures 3 to 5 of the paper, the first three panels show one query each, with all heads of a layer side by side,
each in its color. The sentences, from the test set, were chosen because they show the effect, and so were the paper's;
so the report counts in how many models of the pool's baseline it occurs, and decides nothing. German separates verbs
("sieht ... zu" means "watches"), and its pronouns agree with their antecedents, so that no parser is needed to say what
a head should find. The black frame marks what the query belongs to or, for attention from English to German, what an
aligner links to it.

A head's cost is what the model loses without it, in nats per token of the test set, with the 95 % interval over
sentences; gray points are the other models' heads, in order of cost, because heads have no names that models share.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from textwrap import fill

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headway.experiments.corpus import MULTI30K
from headway.experiments.experiment import Numbers, Settings
from headway.experiments.figures import label, subplots
from headway.experiments.step_by_step import read_examples
from headway.experiments.verdicts import Verdict, decide, resampled_error
from headway.inspection.query_plot import draw_query

TITLE, DATA_FILES, READS_POOL = "What heads see", MULTI30K, True
DRAWN_SEED = 3  # of the model whose heads are drawn
NUM_HEADS, KINDS = 4, {"cross": "decoder to source", "decoder": "decoder", "encoder": "encoder"}  # of each layer
PANELS = (
    ("A verb and its distant particle: “sieht ... zu” (watches)", ("zu",)),
    ("One head for the antecedent of a pronoun: “ihrer” (her)", ("Frau", "neben")),
    ("A verb that German puts last: “treffen” (to hit)", ()),
)
"""For each of the queries, a title and the tokens that heads should find, or () for the one that the aligner links."""

SOUGHT = ((0, ("zu",)), (1, ("Frau",)), (1, ("Frau", "neben")), (2, ()))  # by the claims: query and tokens
MUCH = 0.5  # of a head's weight


def measure(settings: Settings) -> Numbers:
    """Return the drawn attention, the weights that claims are about, and the costs of heads."""
    baselines = read_examples(settings)
    costs = [row for record, _ in baselines for row in _costs(record)]
    return {
        "queries": next((examples["queries"] for record, examples in baselines if record["seed"] == DRAWN_SEED), []),
        "weights": [[_largest(examples["queries"][at], sought) for _, examples in baselines] for at, sought in SOUGHT],
        "costs": costs,
        "tables": {"Costs of heads (nats per token)": costs},
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
    heads, tokens, rows = record["measured"]["heads"], sum(record["num_tokens"]), list[Numbers]()
    costs = (np.array(heads["whole"]) - np.array(heads["without"])) / tokens  # heads x blocks of sentences
    for number, (kind, cost) in enumerate(zip(heads["kinds"], costs, strict=True)):
        layer = f"{KINDS[kind]} {1 + heads['kinds'][:number].count(kind) // NUM_HEADS}"
        error = resampled_error(cost[:, None], lambda sums: float(sums[0]))
        row = {"seed": record["seed"], "layer": layer, "head": 1 + number % NUM_HEADS}
        rows.append({**row, "cost": float(cost.sum()), "error": error})
    return rows


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Count the models with a head that has more than half of its weight on what is sought.

    One sentence that was chosen because it shows an effect cannot decide a claim about heads, so no claim is decided.
    """
    verdicts = list[Verdict]()
    for weights in numbers["weights"]:
        hits, shown = sum(weight > MUCH for weight in weights), ", ".join(f"{weight:.2f}" for weight in weights)
        reason = (
            f"in {hits} of {len(weights)} models (weights: {shown or 'none'}), a head has more than half of its "
            "weight there; one chosen sentence is no test, which would take many that were chosen without looking"
        )
        verdicts.append(decide(reason, supported=False, refuted=False))
    return tuple(verdicts)


def draw(numbers: Numbers) -> Figure:
    """Draw three queries, and the cost of each head."""
    picture, panels = subplots(TITLE, 2, 3, size=(24, 19), height_ratios=[3, 2])
    queries = numbers["queries"]
    for number, (title, sought) in enumerate(PANELS):
        what = "no trained model is recorded"
        if queries:
            query = queries[number]
            names = [f"head {head}" for head in range(1, 1 + len(query["weights"]))]
            is_source = query["kind"] == "encoder"
            places: Numbers = {"query": query["row"] if is_source else None, "outlined": _positions(query, sought)}
            draw_query(panels[number], query["tokens"], query["weights"], names, **places)
            what = fill(f"“{query['word']}” of “{query['pair'][0 if is_source else 1]}”", 55)
        label(panels[number], f"{title}\n{what}", "attention weight (those of a head add up to 1)", "source token")
    grid = panels[3].get_gridspec()
    assert grid is not None
    for panel in panels[3:]:
        panel.remove()
    _draw_costs(picture.add_subplot(grid[1, :]), numbers["costs"])
    return picture


def _draw_costs(axes: Axes, costs: Sequence[Numbers]) -> None:
    """Draw the costs of one model's heads, sorted within each layer, and those of the other models as gray points."""
    layers, seeds = (list(dict.fromkeys(row[key] for row in costs)) for key in ("layer", "seed"))
    for (number, layer), seed in product(enumerate(layers), seeds):
        heads = [row for row in costs if (row["layer"], row["seed"]) == (layer, seed)]
        heads.sort(key=lambda row: -float(row["cost"]))
        values, x = np.array([row["cost"] for row in heads]), np.arange(NUM_HEADS) + (NUM_HEADS + 0.5) * number
        if seed != DRAWN_SEED:
            name = None if axes.get_legend_handles_labels()[1] else "heads of the other models"
            axes.plot(x + 0.3, values, "o", color="#888888", markersize=5, label=name)
            continue
        errors, colors = [1.96 * row["error"] for row in heads], colormaps["PuOr"](0.5 + np.clip(2 * values, -0.5, 0.5))
        axes.bar(x, values, yerr=errors, width=0.8, color=colors, edgecolor="#555555", capsize=3)
        axes.annotate(layer, (x[0] - 0.4, 0.97), xycoords=("data", "axes fraction"), fontweight="bold")
        for place, row in zip(x, heads, strict=True):
            axes.annotate(str(row["head"]), (place, 0), (0, -14), textcoords="offset points", ha="center")
    axes.axhline(0, color="#555555", linewidth=1)
    if costs:
        axes.legend(loc="center")
    axes.set_xticks([])
    axes.set_ylim(bottom=-0.012)
    title = f"Cost of removing a head (bars: seed {DRAWN_SEED}, with 95 % intervals over sentences; dark: costly)"
    label(axes, title, "number of the head, in order of cost within its layer", "nats per token")
