"""Costs of whole models: the pool's variants relative to the baseline, and two model families over batch and length.

Costs do not depend on what a model has learned, so all models here have random weights. A step is one of training, with
batches of the corpus, in float32. Decoding translates the first 64 sentences of the test set with a beam of 4, each to
the length of its reference, in 8-bit integers where the search supports the variant and otherwise in float32. Memory is
what a step needs for weights, gradients, Adam's moments, and the activations that autograd saves. Variants that differ
from the baseline only in seeds, schedule, smoothing or dropout have no row.

Models take turns: one step of each, then the next round. So other load that lasts longer than a round affects them
equally. In each round, the baseline has several turns. Ratios are medians over rounds, with 95 % intervals.

The paper (section 1) says that recurrence "precludes parallelization within training examples, which becomes critical
at longer sequence lengths, as memory constraints limit batching across examples". So the Transformer and recurrent
models without attention, with dot products and with additive attention also run forward and backward over batches of
sentences of one length n. The Transformer is measured twice: as it is trained, with our kernels, and in plain PyTorch.
Both store the weights of attention, because dropout applies to them. Additive attention has a hidden layer for each
pair of positions. Their memory is that of float32, because autocast would copy keys and states again at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from headway.data.batching import PaddedBatch
from headway.data.store import fingerprint
from headway.decode import DecodingOptions, Request, search
from headway.engine.accelerate import accelerate
from headway.engine.search_model import to_search_model
from headway.engine.search_support import Precision, unsupported_reason
from headway.experiments.changed_transformer import ARCHITECTURE
from headway.experiments.corpus import MULTI30K, find_data, made_up_text, pair_files, write_files
from headway.experiments.experiment import Numbers, Settings, decide_claims, hardware
from headway.experiments.figures import label, plot_lines, subplots
from headway.experiments.layer_measurements import saved_bytes, time_in_turns
from headway.experiments.model_measurements import TEST, read_pairs
from headway.experiments.pool import VARIANTS, Variant, merge_sections, recipe_sections
from headway.experiments.verdicts import Verdict, median_interval
from headway.hardware import autocast, processor_has_bfloat16
from headway.models.registry import register
from headway.predict.translation.find_candidates import search_vocabulary
from headway.tasks import parse_recipe, task_of
from headway.text.base import EOS
from headway.training.fine_tuning import complete_recipe
from headway.training.optim import clip_and_step, make_optimizer
from headway.training.report import Listener
from headway.training.stream import BatchStream, TokenBatch, to_device

CPU = torch.device("cpu")
BASELINE, TRANSFORMER, PLAIN = "baseline", "Transformer", "Transformer, plain PyTorch"
RECURRENT = {
    "recurrent, no attention": "recurrent-final-state",
    "recurrent, dot products": "recurrent-dot",
    "recurrent, additive attention": "recurrent-additive",
}
COSTS = {"step": "time of a step", "decoding": "time of decoding", "memory": "memory of a step"}
_GROWS = 1.1  # memory of a token that grows by less than a tenth does not count as growing

TITLE, DATA_FILES = "What a model costs", MULTI30K


class UntrainedModel:
    """A model of the pool with random weights, and the computations that are measured."""

    def __init__(self, variant: Variant, corpus: Path, work: Path, *, is_fast: bool = True) -> None:
        sections = merge_sections(recipe_sections(variant, 1, None), {"data": pair_files(corpus)})
        folder = work / f"prepared-{fingerprint(sections['tokenizer'], sections['data'])[:10]}"
        recipe = complete_recipe(parse_recipe(sections, variant.name), folder)
        task = task_of(recipe)
        data = task.prepare(recipe, folder, Listener())
        assert data is not None
        torch.manual_seed(1)
        self.model, self.tokenizers = task.build_model(recipe, data), data.tokenizers
        self.num_weights = sum(weight.numel() for weight in self.model.parameters())
        trained = accelerate(self.model) if is_fast else self.model
        self.objective = task.build_objective(trained, recipe, data)
        self.optimizer = make_optimizer(trained, recipe.optimizer)
        self.precision, self.clip_norm = recipe.training.precision, recipe.optimizer.clip_norm
        self.stream = BatchStream(data.train, recipe, CPU)

    def step(self) -> None:
        """Train on the next batch."""
        for batch in self.stream.next_step().micro_batches.values():
            self.compute_gradient(batch)
        clip_and_step(self.optimizer, self.clip_norm)
        self.optimizer.zero_grad()

    def compute_gradient(self, batch: TokenBatch) -> None:
        """Compute the gradient of the loss of a batch."""
        self.objective.train()
        with autocast(CPU, self.precision):
            loss = self.objective(batch) / len(batch.targets)
        loss.backward()

    def saved_bytes(self, batch: TokenBatch, precision: str = "float32") -> int:
        """Return what autograd saves for the backward pass of a batch, in bytes."""
        with autocast(CPU, precision):
            return saved_bytes(self.objective.train(), batch)

    def step_bytes(self) -> int:
        """Return the bytes of weights, gradients, two moments, and activations of the first batch."""
        (batch,) = self.stream.next_step().micro_batches.values()
        return int(4 * 4 * self.num_weights) + self.saved_bytes(batch, self.precision)

    def search(self, pairs: list[tuple[str, str]]) -> tuple[Precision, Callable[[], Any]]:
        """Return the precision of the search, and a function that translates to the lengths of the references."""
        model, special = self.model.eval(), self.tokenizers.token_template.fill()
        model.projection.weight[EOS] = 0  # never among the most probable tokens, so only the limits end a search
        sides = zip((self.tokenizers.source, self.tokenizers.target), zip(*pairs, strict=True), strict=True)
        encoded = zip(*(tokenizer.encode_batch(list(texts)) for tokenizer, texts in sides), strict=True)
        requests = [Request(source=tuple(special.add_to_source(one)), limit=len(other)) for one, other in encoded]
        precision: Precision = "float32" if unsupported_reason(model, "int8") else "int8"
        vocabulary, searched = search_vocabulary(self.tokenizers.target), to_search_model(model, precision)
        return precision, partial(search, searched, requests, DecodingOptions(), vocabulary)


def variants_with_costs() -> list[Variant]:
    """Return a variant of translation with each architecture, vocabulary, batch and precision."""
    firsts = dict[str, Variant]()
    for variant in sorted(VARIANTS, key=lambda variant: "steps" in variant.changes.get("training", {})):
        sections = recipe_sections(variant, 1, None)
        sections["model"].pop("dropout", None)
        key = [sections[name] for name in ("model", "tokenizer", "data")], sections["training"]["precision"]
        if not variant.classifies and (key[1] == "float32" or processor_has_bfloat16()):
            firsts.setdefault(repr(key), variant)
    return list(firsts.values())


def measure(settings: Settings) -> Numbers:
    """Time steps and decoding of all variants in turns, then both families over batch and length."""
    register(ARCHITECTURE)
    variants, work = {variant.name: variant for variant in variants_with_costs()}, settings.work_folder
    rounds = 2 if settings.quick else 9
    if settings.quick:
        sizes, random = {"train": 200, "val": 10, TEST: 8}, Random(1)
        files = {f"{name}.{side}": made_up_text(size, random) for name, size in sizes.items() for side in ("de", "en")}
        corpus = write_files(files, work, "pairs")
        variants = {name: variants[name] for name in (BASELINE, *RECURRENT.values())}
    else:
        corpus = find_data(settings, MULTI30K, "Multi30k")
    models = {name: UntrainedModel(variant, corpus, work) for name, variant in variants.items()}
    settings.say("model-costs: timing steps")
    bytes_ = {name: model.step_bytes() for name, model in models.items()}
    steps = _time_with_baseline({name: model.step for name, model in models.items()}, rounds)
    settings.say("model-costs: timing the search")
    with torch.inference_mode():
        searches = {name: model.search(read_pairs(corpus, TEST, 64)) for name, model in models.items()}
        searching = {name: search for name, (_, search) in searches.items()}
        decoding = _time_with_baseline(searching, rounds)
    costs = {
        name: {"step": _ratio(steps[name], steps[BASELINE]), "decoding": _ratio(decoding[name], decoding[BASELINE])}
        | {"memory": bytes_[name] / bytes_[BASELINE], "search": searches[name][0], "weights": model.num_weights}
        for name, model in models.items()
    }
    plain = UntrainedModel(variants[BASELINE], corpus, work, is_fast=False)
    families = {TRANSFORMER: models[BASELINE], PLAIN: plain} | {name: models[key] for name, key in RECURRENT.items()}
    lengths, num_tokens = ((8, 32), 128) if settings.quick else ((8, 32, 128, 512), 4096)
    grid = list[dict[str, Any]]()
    for n, batch in ((length, batch) for length in lengths for batch in (1, num_tokens // length)):
        settings.say(f"model-costs: timing {batch} x {n} tokens")
        tokens = to_device(PaddedBatch(*np.random.default_rng(1).integers(4, 20, (2, batch, n))), CPU)
        passes = [(name, partial(model.compute_gradient, tokens)) for name, model in families.items()]
        seconds = time_in_turns(passes, 2 if settings.quick else 6)
        grid += [
            {"model": name, "batch": batch, "n": n, "seconds": seconds[name], "bytes": model.saved_bytes(tokens)}
            for name, model in families.items()
        ]
    base = {"seconds": steps[BASELINE], "decoding": decoding[BASELINE], "bytes": bytes_[BASELINE]}
    tables = {
        "Costs as multiples of the baseline's": [{"variant": name} | cost_columns(row) for name, row in costs.items()],
        "Forward and backward pass over batches of sentences of n tokens on each side": [
            {"model": row["model"], "batch": row["batch"], "n": row["n"], "ms (median)": 1e3 * median(row["seconds"])}
            | {"saved for the backward pass (MiB)": row["bytes"] / 2**20}
            for row in grid
        ],
    }
    measured = {"costs": costs, "baseline": base, "grid": grid, "precision": plain.precision}
    return {**measured, "regime": f"{hardware()}, {plain.precision}", "tables": tables}


def _time_with_baseline(functions: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each function in each round, in which the baseline takes further turns."""
    turns = list[tuple[str, Callable[[], Any]]]()
    for number, turn in enumerate(functions.items()):
        turns += [(BASELINE, functions[BASELINE]), turn] if number % 16 == 8 else [turn]
    return time_in_turns(turns, rounds)


def _ratio(seconds: list[float], baseline: list[float]) -> list[float]:
    """Return the median ratio over rounds, and its interval."""
    ratios = [one / other for one, other in zip(seconds, baseline, strict=True)]
    return [median(ratios), *median_interval(ratios)]


def cost_columns(costs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the costs of a variant as columns of a table, which are empty if the variant has no row of costs."""
    shown = {
        COSTS[key]: "{:.3g} [{:.3g}, {:.3g}]".format(*costs[key]) if costs else None for key in ("step", "decoding")
    }
    others = {"search in": "search", COSTS["memory"]: "memory", "weights": "weights"}
    return shown | {caption: costs[key] if costs else None for caption, key in others.items()}


def _rows(numbers: Numbers, model: str, *, alone: bool = False) -> list[dict[str, Any]]:
    """Return the rows of a model over n, with as many tokens at each n or, ``alone``, with a batch of one sentence."""
    return [row for row in numbers["grid"] if row["model"] == model and (row["batch"] == 1) is alone]


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by the time and the memory of long and of short sequences at an equal number of tokens."""
    ends = {name: (rows[0], rows[-1]) for name in (TRANSFORMER, PLAIN, *RECURRENT) for rows in [_rows(numbers, name)]}
    short, long = (f"{row['batch']} sequences of {row['n']}" for row in ends[TRANSFORMER])
    slower = {
        name: [slow / fast for fast, slow in zip(first["seconds"], last["seconds"], strict=True)]
        for name, (first, last) in ends.items()
    }
    ratios = {name: _ratio(slower[name], slower[TRANSFORMER]) for name in RECURRENT}
    growth = {name: last["bytes"] / first["bytes"] for name, (first, last) in ends.items()}
    values = {"short": short, "long": long, "transformer": growth[TRANSFORMER], "plain": growth[PLAIN]}
    values |= {"slower": median(slower[TRANSFORMER])}
    values |= {"ratios": "; ".join(f"{name} {{:.3g}} [{{:.3g}}, {{:.3g}}]".format(*ratios[name]) for name in RECURRENT)}
    values |= {"growths": ", ".join(f"{growth[name]:.3g} ({name})" for name in RECURRENT)}
    lows, highs = [low for _, low, _ in ratios.values()], [high for _, _, high in ratios.values()]
    faster = {"supported": min(lows) > 1, "refuted": max(highs) < 1, "exact": False, "regime": numbers["regime"]}
    names = "recurrent, additive attention", "recurrent, dot products", TRANSFORMER
    return decide_claims("model-costs", values, faster, *({"supported": growth[name] > _GROWS} for name in names))


def draw(numbers: Numbers) -> Figure:
    """Draw the costs of the variants as multiples of the baseline's, and time and memory of a token over n."""
    picture, (variants, times, memory) = subplots(TITLE, 1, 3, size=(26, 13))
    costs = numbers["costs"]
    for number, (key, words) in enumerate(COSTS.items()):
        values = [row[key] if key == "memory" else row[key][0] for row in costs.values()]
        variants.plot(values, list(costs), "os^"[number], label=words, linestyle="none")
    variants.axvline(1, color="#777777", linestyle=":")
    variants.invert_yaxis()
    label(variants, "Costs of the variants", "times the baseline's", "variant", log="x")
    equal = {name: _rows(numbers, name) for name in (TRANSFORMER, *RECURRENT, PLAIN)}
    lengths = [row["n"] for row in equal[TRANSFORMER]]
    tokens = lengths[0] * equal[TRANSFORMER][0]["batch"]
    for number, name in enumerate((TRANSFORMER, *RECURRENT)):
        for alone, words, style in ((True, "batch of 1", "o:"), (False, f"{tokens:,} tokens", "^-")):
            rows = _rows(numbers, name, alone=alone)
            micros = [1e6 * median(row["seconds"]) / (row["batch"] * row["n"]) for row in rows]
            times.plot(lengths, micros, style, color=f"C{number}", label=f"{name}, {words}")
    plot_lines(memory, lengths, {name: [row["bytes"] / 2**20 for row in rows] for name, rows in equal.items()})
    for axes, title, y in (
        (times, "Time of a token", "µs, forward and backward (median)"),
        (memory, f"Memory of {tokens:,} tokens", "MiB saved for the backward pass"),
    ):
        label(axes, title, "length n (tokens)", y, log="xy", xticks=lengths)
    times.set_ylim(top=5 * times.get_ylim()[1])
    for axes in (variants, times, memory):
        axes.legend(loc="upper right" if axes is times else "best")
    return picture
