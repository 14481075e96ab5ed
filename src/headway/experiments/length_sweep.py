"""Translation quality against row length, for several experiments.

Models are trained on rows of one to three sentences and tested on the same sentences in rows of one to six. Rows of
four and six sentences are longer than nearly all rows seen in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from statistics import fmean

from matplotlib.axes import Axes

from headway.experiments.comparison import column, format_mean_std
from headway.experiments.corpus import MAX_JOINED_SENTENCES, experiment_corpus, join_groups
from headway.experiments.experiment import Numbers, Settings
from headway.experiments.figures import label, plot_lines
from headway.experiments.training import Changes, encode_pairs, load_bundle_on_device, measure_bleu, train_variant

LENGTHS = (1, 2, 3, 4, 6)  # numbers of sentences per row of the test set
LONGEST_SEEN, TWICE = MAX_JOINED_SENTENCES, 2 * MAX_JOINED_SENTENCES
_QUICK: Changes = {"data": {"max_tokens": 512}, "training": {"steps": 60}}  # longer rows are harder to learn


def length_sweep(settings: Settings, variants: Mapping[str, Changes]) -> Numbers:
    """Measure BLEU for each variant, seed and row length of :data:`LENGTHS`, and the mean lengths in source tokens."""
    corpus = experiment_corpus(settings, join=True)
    more = _QUICK if settings.quick else {}
    rows, weights = [], dict[str, int]()
    for seed, (name, changes) in product(settings.seeds, variants.items()):
        trained = train_variant(settings, corpus, seed, {**more, **changes})
        for count in LENGTHS:
            score = measure_bleu(settings, trained, join_groups(corpus.test_pairs, count))
            rows.append({"variant": name, "seed": seed, "sentences": count, "bleu": score})
        bundle = load_bundle_on_device(trained.model_folder)
        weights[name] = sum(parameter.numel() for parameter in bundle.model.parameters())
    tokens = [fmean(len(ids) for ids, _ in encode_pairs(bundle, join_groups(corpus.test_pairs, n))) for n in LENGTHS]
    table = [
        {
            "sentences in a row": count,
            "source tokens (mean)": length,
            **{name: format_mean_std(rows, "bleu", variant=name, sentences=count) for name in variants},
        }
        for count, length in zip(LENGTHS, tokens, strict=True)
    ]
    tables = {
        f"BLEU over seeds, with standard deviations; rows of more than {LONGEST_SEEN} were not trained on": table,
        "Size of the models": [{"model": name, "weights": count} for name, count in weights.items()],
    }
    return {"runs": rows, "tokens": tokens, "weights": weights, "tables": tables}


def relative_bleu(numbers: Numbers, variant: str, length: int, base_length: int) -> list[float]:
    """Return, for each seed, BLEU in rows of ``length`` sentences divided by BLEU in rows of ``base_length`` sentences.

    The result is 0 if the divisor is 0.
    """
    long, short = (column(numbers["runs"], "bleu", variant=variant, sentences=count) for count in (length, base_length))
    return [a / b if b else 0.0 for a, b in zip(long, short, strict=True)]


def draw_bleu_curves(axes: Axes, numbers: Numbers) -> None:
    """Draw one line per variant (the mean over seeds), with each seed as a faint point, and shade untrained lengths.

    The caller draws the legend outside the panel, because lines could cross it inside.
    """
    axes.axvspan(LONGEST_SEEN + 0.5, LENGTHS[-1] + 0.3, color="#000000", alpha=0.06, linewidth=0)
    axes.annotate(
        "longer than trained on", (LENGTHS[-1] + 0.25, 1.0), xycoords=("data", "axes fraction"), ha="right", va="top"
    )
    bleu = {
        name: [column(numbers["runs"], "bleu", variant=name, sentences=count) for count in LENGTHS]
        for name in numbers["weights"]
    }
    plot_lines(axes, LENGTHS, {name: [fmean(values) for values in scores] for name, scores in bleu.items()})
    for number, scores in enumerate(bleu.values()):
        axes.plot(LENGTHS, scores, f"C{number}o", alpha=0.35, markersize=4)
    ticks = [f"{count}\n({tokens:.0f})" for count, tokens in zip(LENGTHS, numbers["tokens"], strict=True)]
    axes.set_xticks(LENGTHS, ticks)
    axes.set_xlim(LENGTHS[0] - 0.3, LENGTHS[-1] + 0.3)
    axes.set_ylim(bottom=0)
    label(axes, "The same sentences, joined", "sentences in a row (mean source tokens)", "BLEU of the test set")
