"""What heads attend to: cross-attention as word alignment, and the contribution of each head.

Attention over the memory shows which source words are being translated (Bahdanau et al. 2015, 5.2.1). In the maps of
one pair, each row is the prediction of one target token, each column a source token, and brightness is the head's
attention. Heads that align have one bright cell per row; others attend to the end of the sentence or to many tokens.

There are no manual alignments of this text, so attention is compared with a dictionary that is derived from counts in
the training text. A source word and a target word are linked if each is the other's best match by the Dice coefficient,

    dice(s, t) = 2 n(s, t) / (n(s) + n(t)),

where n counts sentences. Such links are few but mostly correct. The bars show how many links the mean attention of each
decoder layer finds, and how many the baseline finds. The baseline is the diagonal, which links each target word to the
source word at the same relative position. Dots are seeds.

A head is removed by setting its weights to zero, and the test sentences are translated again. The loss in BLEU is the
head's contribution (Michel et al. 2019): if it is near 0, other heads can replace the head. The full version uses the 3
runs of the common recipe, or the given model (--model), and 200 test sentences for each head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.bundle import Bundle
from headway.errors import ConfigError
from headway.evaluation import bleu
from headway.experiments.comparison import judge_greater, mean_ci, mean_diff
from headway.experiments.corpus import MULTI30K, ExperimentCorpus, TextPair, experiment_corpus
from headway.experiments.experiment import Claim, Experiment, Numbers, Settings, Verdict
from headway.experiments.figures import heat_map, label, subplots
from headway.experiments.training import cache_key, encode_pairs, greedy_translate, load_bundle_on_device, model_folders
from headway.models.transformer import Transformer
from headway.nn.attention import observe_attention, record_attention
from headway.predict.translation import alignment
from headway.text.base import BOS, EOS

MAX_COST = 0.5  # BLEU; in table 3 (A), the paper counts 0.4 and more as a difference between numbers of heads
NUM_SENTENCES = 200  # number of sentences to align, and to translate without each head
CROSS_ATTENTION = "cross-attention"
ATTENTION_KINDS = (  # kind, stack, and name of the attention layer in the stack's blocks
    ("encoder self-attention", "encoder", "attention"),
    ("decoder self-attention", "decoder", "attention"),
    (CROSS_ATTENTION, "decoder", "cross_attention"),
)

CLAIMS = (
    Claim("Attention over the source finds the words that are being translated.", "Bahdanau et al. 2015, 5.2.1"),
    Claim("Most heads can be removed one at a time at little cost.", "Michel et al. 2019, 3.2"),
    Claim("Heads over the source matter more than those of self-attention.", "Michel et al. 2019, 5"),
)


def measure(settings: Settings) -> Numbers:
    """Measure the alignment and every head's contribution for each model, and the attention maps of one pair."""
    corpus = experiment_corpus(settings)
    links, pairs, models = _dictionary(corpus), corpus.test_pairs[:NUM_SENTENCES], model_folders(settings, corpus)
    runs = []
    for folder in models:
        key = cache_key(settings, folder, "heads-by-layer", pairs, sorted(links))
        runs.append(settings.cached(key, partial(_examine, settings, folder, pairs, links)))
    costs = [
        {"heads of": row["kind"], "layer": row["layer"] + 1}
        | {f"head {head}": cost for head, cost in enumerate(costs, start=1)}
        for row, costs in zip(runs[0]["heads"], _costs(runs).mean(0).tolist(), strict=True)
    ]
    shares = np.mean([run["attention"] for run in runs], axis=0).tolist()
    tables = {
        "BLEU that is lost without a head, mean over seeds": costs,
        "Share of dictionary links that a decoder layer's attention finds, mean over seeds": [
            {"layer": layer, "links found": share} for layer, share in enumerate(shares, start=1)
        ],
    }
    example = min(pairs, key=lambda pair: abs(len(pair[0].split()) - 8))  # short enough to be read in a figure
    return {"runs": runs, "example": _maps(load_bundle_on_device(models[0]), example), "tables": tables}


def _costs(runs: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Return the BLEU that each run loses without each head (runs x attention layers x heads)."""
    return np.array([[[run["bleu"] - score for score in row["bleu"]] for row in run["heads"]] for run in runs])


def _examine(settings: Settings, folder: Path, pairs: Sequence[TextPair], links: set[TextPair]) -> Numbers:
    """Return BLEU with all heads and without each, and the share of dictionary links found by each layer's attention
    and by the diagonal.
    """
    bundle = load_bundle_on_device(folder)
    model = bundle.model
    if not isinstance(model, Transformer):
        raise ConfigError(f"{folder}: a {model.config.kind} model has no heads to remove; give a Transformer")
    sources, references = zip(*pairs, strict=True)
    places = [_link_positions(pair, links) for pair in pairs]
    total = sum(map(len, places))

    def share(aligned: Iterable[set[tuple[int, int]]]) -> float:
        return sum(len(linked & aligned_pairs) for linked, aligned_pairs in zip(places, aligned, strict=True)) / max(
            total, 1
        )

    def score() -> float:
        return bleu(greedy_translate(bundle, sources), references).value

    def score_without(module: nn.Module, head: int) -> float:
        with remove_head(module, head):
            return score()

    settings.say(f"translating {len(pairs)} sentences without each head in turn")
    heads = [
        {"kind": kind, "layer": layer, "bleu": [score_without(module, head) for head in range(model.config.num_heads)]}
        for kind, layer, module in _attentions(model)
    ]
    return {
        "bleu": score(),
        "heads": heads,
        "attention": [share(_align(bundle, pairs, layer)) for layer in range(len(model.decoder.blocks))],
        "diagonal": share(map(_diagonal, pairs)),
        "links": total,
    }


def _attentions(model: Transformer) -> Iterator[tuple[str, int, nn.Module]]:
    """Yield the kind, layer number and module of every attention layer, kind by kind."""
    for kind, stack, name in ATTENTION_KINDS:
        for layer, block in enumerate(getattr(model, stack).blocks):
            yield kind, layer, getattr(block, name)


@contextmanager
def remove_head(attention: nn.Module, head: int) -> Iterator[None]:
    """Set the weights of ``head`` to zero inside the context, so that it contributes nothing."""

    def remove(module: nn.Module, weights: Tensor) -> Tensor | None:
        if module is not attention:
            return None
        kept = weights.clone()
        kept[:, head] = 0
        return kept

    with observe_attention(remove):
        yield


def _dictionary(corpus: ExperimentCorpus) -> set[TextPair]:
    """Return pairs of words that are each other's best match by Dice and share at least three sentences."""
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    together: Counter[TextPair] = Counter()
    for pair in corpus.read_pairs(corpus.train_name):
        sides = [set(_words(side)) - {""} for side in pair]
        for count, words in zip(counts, sides, strict=True):
            count.update(words)
        together.update(product(sides[0], sides[1]))
    dice = {
        (source, target): 2 * number / (counts[0][source] + counts[1][target])
        for (source, target), number in together.items()
        if number >= 3
    }
    best: dict[tuple[int, str], tuple[float, str]] = {}  # by side and word
    for pair, value in dice.items():
        for side, word in enumerate(pair):
            best[side, word] = max(best.get((side, word), (0.0, "")), (value, pair[1 - side]))
    return {pair for pair in dice if best[0, pair[0]][1] == pair[1] and best[1, pair[1]][1] == pair[0]}


def _words(text: str) -> list[str]:
    return [word.strip(".,").lower() for word in text.split()]


def _link_positions(pair: TextPair, links: set[TextPair]) -> set[tuple[int, int]]:
    """Return the positions of linked words that occur exactly once in their sentence.

    The target is the reference translation, so all models are tested on the same words.
    """
    sources, targets = map(_words, pair)
    return {
        (source_position, target_position)
        for (source_position, source), (target_position, target) in product(enumerate(sources), enumerate(targets))
        if (source, target) in links and sources.count(source) == targets.count(target) == 1
    }


def _diagonal(pair: TextPair) -> set[tuple[int, int]]:
    """Link each target word to the source word at the same relative position."""
    sources, targets = (len(side.split()) for side in pair)
    return {(round(place * (sources - 1) / max(targets - 1, 1)), place) for place in range(targets)}


def _align(bundle: Bundle, pairs: Sequence[TextPair], layer: int) -> Iterator[set[tuple[int, int]]]:
    """Yield, for each pair, the word links that a layer's mean attention finds.

    Each target token is linked to the source token with the largest weight.
    """
    special = bundle.token_template.fill()
    sources, targets = zip(*((source, target[:-1]) for source, target in encode_pairs(bundle, pairs)), strict=True)
    maps = alignment.attention_maps(bundle.model, sources, targets, layer=layer)
    for source, target, weights in zip(sources, targets, maps, strict=True):  # special tokens are not words
        read = slice(len(special.source_prefix), len(source) - len(special.source_suffix))
        said = slice(len(special.target_prefix), None)
        (_, source_words), (_, target_words) = (
            alignment.tokens_to_words(tokenizer.display(ids), subwords=tokenizer.kind != "whitespace")
            for tokenizer, ids in ((bundle.source_tokenizer, source[read]), (bundle.target_tokenizer, target[said]))
        )
        best = [
            (source_token, target_token)
            for target_token, source_token in enumerate(weights[said, read].argmax(1).tolist())
        ]
        yield set(alignment.to_word_alignment(best, source_words, target_words))


@torch.inference_mode()
def _maps(bundle: Bundle, pair: TextPair) -> Numbers:
    """Return the cross-attention weights of one pair, for every head of the layer that is used for alignment."""
    ((source, target),) = encode_pairs(bundle, [pair])
    assert isinstance(bundle.model, Transformer)
    layer = alignment.default_alignment_layer(len(bundle.model.decoder.blocks))
    with record_attention(alignment.alignment_module(bundle.model, layer)) as seen:
        device = bundle.model.device
        bundle.model(torch.tensor([source], device=device), torch.tensor([[BOS, *target[:-1]]], device=device))
    sides = (bundle.source_tokenizer, source), (bundle.target_tokenizer, target)
    tokens = [["(end)" if id_ == EOS else tokenizer.display([id_])[0] for id_ in ids] for tokenizer, ids in sides]
    return {"source": tokens[0], "target": tokens[1], "layer": layer, "weights": seen[0][0].float().tolist()}


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by the share of dictionary links found, and by the BLEU that each head contributes."""
    runs = numbers["runs"]
    costs, cross = _costs(runs), np.array([row["kind"] == CROSS_ATTENTION for row in runs[0]["heads"]])
    cheap, memory, itself = (
        values.mean((1, 2)).tolist() for values in (costs < MAX_COST, costs[:, cross], costs[:, ~cross])
    )
    links = [run["attention"][alignment.default_alignment_layer(len(run["attention"]))] for run in runs]
    difference = mean_diff(links, [run["diagonal"] for run in runs])
    which = f"share of {runs[0]['links']} dictionary links found by attention, minus the share found by the diagonal"
    lost = "BLEU lost without a cross-attention head minus without a self-attention head"
    return (
        judge_greater(difference, which),
        judge_greater(mean_ci(cheap), f"share of heads whose removal costs less than {MAX_COST:g} BLEU", threshold=0.5),
        judge_greater(mean_diff(memory, itself), lost),
    )


def draw(numbers: Numbers) -> Figure:
    """Draw the attention of one layer's heads for one pair and, below it, the contribution of each head."""
    example, runs = numbers["example"], numbers["runs"]
    shown = example["weights"][:4]
    title = "What heads look at (bright: high weight), and what they contribute"
    picture, axes = subplots(title, 2, len(shown), size=(4.0 * len(shown), 9.5))
    for head, (panel, weights) in enumerate(zip(axes, shown, strict=False)):
        targets = [""] * len(example["target"]) if head else example["target"]
        heat_map(panel, weights, row_labels=targets, column_labels=example["source"], cmap="viridis", vmin=0, vmax=1)
        panel.tick_params(axis="x", rotation=90)
        name = f"Layer {example['layer'] + 1}, head {head + 1}"
        label(panel, name, "source token", "" if head else "predicted token")
    grid = axes[0].get_gridspec()
    assert grid is not None
    for panel in axes[len(shown) :]:
        panel.remove()
    _draw_costs(picture.add_subplot(grid[1, : len(shown) - 1]), runs)
    _draw_agreement(picture.add_subplot(grid[1, -1]), runs)
    return picture


def _draw_costs(axes: Axes, runs: list[dict[str, Any]]) -> None:
    costs = _costs(runs).mean(0).tolist()
    most = max(MAX_COST, *map(max, costs))
    names = [f"{row['kind']} {row['layer'] + 1}" for row in runs[0]["heads"]]
    texts = [[f"{cost:.1f}" for cost in row] for row in costs]
    heads = range(1, len(costs[0]) + 1)
    heat_map(axes, costs, texts, row_labels=names, column_labels=heads, dark_above=most / 2, vmin=0, vmax=most)
    whole = fmean(run["bleu"] for run in runs)
    label(axes, f"BLEU lost without a head (all heads: {whole:.1f}; mean over seeds)", "head", "")


def _draw_agreement(axes: Axes, runs: list[dict[str, Any]]) -> None:
    shares = 100 * np.array([[run["diagonal"], *run["attention"]] for run in runs])
    names = ["diagonal", *(f"layer {layer}" for layer in range(1, shares.shape[1]))]
    bars = axes.bar(names, shares.mean(0), color=["#BBBBBB", *["#56B4E9"] * (len(names) - 1)])
    axes.bar_label(bars, fmt="%.0f", label_type="center")
    axes.plot(names, shares.T, "ko", markersize=4)
    axes.set_ylim(0, 110)
    axes.grid(visible=False, axis="x")
    label(axes, "Words aligned correctly", "% of links found (dots: seeds)", "")


TITLE = "What heads look at, and what they are worth"
EXPERIMENT = Experiment(
    "what-heads-see", TITLE, __doc__, CLAIMS, measure, judge, draw, data_files=MULTI30K, takes_model=True
)
