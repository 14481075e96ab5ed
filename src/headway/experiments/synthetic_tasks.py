"""Made-up tasks that isolate one claim each: positions, heads, relative positions, and short paths.

Rewriting: a Transformer of 1 + 1 layers copies, reverses or sorts 4 to 8 symbols. It then writes 8 symbols, and 16,
twice as many as in training. The number of symbols to write is given, so the result does not depend on whether a model
finds the end of the text.

Look back: at each of 16 positions, one causal layer names the symbol 3 positions earlier. The curve shows how many
steps this takes to learn. A test with 32 positions shows whether it also works beyond the training length.

Two look-ups: one attention layer reads 8 pairs of a key and a value. Each query has two keys and asks for both values.
A single head has to mix the two values, and narrow heads cannot distinguish 64 keys. All layers are 32 units wide.

Recall: four architectures of one to four layers read 4 to 32 pairs, then 8 queries for one key each. The path from a
pair to its query is one step in a Transformer and in an LSTM with attention. It grows with the distance in an LSTM, and
with its logarithm in dilated convolutions. Accuracy p is judged as (p - g) / (1 - g), with g of guessing.

Every batch of 64 sequences is drawn anew, so there is no training set to memorize. For the recall task, the learning
rate of each architecture was chosen from three with seed 0, which no verdict uses. The other comparisons keep the rate,
because depth, norm and optimizer are the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from headway.experiments.code_hash import code_hash
from headway.experiments.experiment import Claim, Numbers, Settings, read_declarations
from headway.experiments.figures import label, shared_legend, subplots
from headway.experiments.layer_measurements import KERNEL_SIZE, CausalConvolution
from headway.experiments.verdicts import Effect, Regime, Tested, add_variance, difference
from headway.inspection.picture_files import MARKERS
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.attention import MultiHeadAttention
from headway.nn.block_config import BlockConfig
from headway.nn.blocks import CausalStack
from headway.nn.masks import Causal
from headway.nn.positions import make_positions
from headway.text.base import BOS

ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "copy": lambda x: x,
    "reverse": lambda x: x.flip(1),
    "sort": lambda x: x.sort(1).values,
}
LOOK_BACK_TASK, LOOK_UPS, RECALL = "look back", "two look-ups", "recall"
POSITIONS = ("sinusoidal", "learned", "rotary", "none")
HEADS = (1, 2, 4, 8, 16, 32)
ARCHITECTURES = ("Transformer", "LSTM with attention", "LSTM", "convolutions")
PAIRS = (4, 8, 16, 32)  # pairs of a dictionary
SYMBOLS, FIRST_SYMBOL = 16, 4  # number of symbols; smaller ids are special tokens
LOOK_BACK = 3  # positions
KEYS, VALUES, QUERIES = 64, 16, 8  # possible keys (more than the width), possible values, queries after the pairs
WIDTH = 32
STRIDE = 25  # steps that a point of the curve of learning averages
_BATCH, _TEST_BATCHES = 64, 8
_WARMUP = 50  # steps
SEEDS = (2, 3, 4, 5, 6)  # seed 0 chose rates, and seed 1 the steps of each task
RATE, RATES = 3e-3, (1e-3, 3e-3, 1e-2)  # of most tasks; to choose from where architectures differ
SMALLEST_SHARE, SMALLEST_SPEED = 0.05, 0.32  # share of right answers; log2 of a ratio of steps: a factor of 1.25
LEARNED = 0.95  # share of right answers of a model that has learned its task
SAMPLING_ERROR = 0.001  # of the share of right answers in a test, where all of them are right or wrong
PAPERS_BLEU = {1: "24.9", 4: "25.5", 8: "25.8", 16: "25.8", 32: "25.4"}  # table 3 (A), by number of heads
REWRITING = "rewriting"
REFERENCES = {  # the models that must learn a task before anything is decided with it
    **dict.fromkeys((*ORDERS, REWRITING, LOOK_BACK_TASK), "sinusoidal"),
    LOOK_UPS: "4 heads",
    RECALL: "Transformer",
}
VARIANTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*ORDERS, LOOK_BACK_TASK), POSITIONS),
    LOOK_UPS: tuple(f"{heads} heads" for heads in HEADS),
    RECALL: ARCHITECTURES,
}

COMPARISONS = read_declarations("claims.toml")["synthetic-tasks"]
TITLE = "Made-up tasks: positions, heads, short paths"
CLAIMS = tuple(Claim(text, source, literature) for *_, source, literature, text in COMPARISONS)

Batch = tuple[tuple[Tensor, ...], Tensor]
"""Inputs of a model, and the expected symbols (rows, positions, answers), which are -1 where none is asked for."""


@dataclass(frozen=True)
class Setup:
    """A task and a model that learns it.

    Attributes:
        draw: Returns a random batch of a length.
        make: Returns an untrained model.
        lengths: The lengths of training batches, which take turns.
        tests: The lengths that are tested.
        steps: Steps of training.
    """

    draw: Callable[[int], Batch]
    make: Callable[[], nn.Module]
    lengths: tuple[int, ...]
    tests: tuple[int, ...]
    steps: int


def make_setup(task: str, variant: str) -> Setup:
    """Return a task with one of its models: a kind of positions, a number of heads, or an architecture."""
    if task in ORDERS:
        sizes = {"d_model": WIDTH, "num_heads": 4, "d_ff": 2 * WIDTH, "encoder_layers": 1, "decoder_layers": 1}
        config = TransformerConfig.parse({**sizes, "dropout": 0.0, "positions": variant}, task)
        make = partial(Transformer, config, FIRST_SYMBOL + SYMBOLS, FIRST_SYMBOL + SYMBOLS)
        return Setup(partial(draw_rewriting, ORDERS[task]), make, (4, 5, 6, 7, 8), (8, 16), 1500)
    if task == LOOK_BACK_TASK:
        labeler = partial(Labeler, partial(_mixer, "Transformer", variant), variant, (SYMBOLS,), (1, SYMBOLS))
        return Setup(draw_look_back, labeler, (16,), (16, 32), 800)
    answers = 2 if task == LOOK_UPS else 1
    # First token of a position: a pair's key, or the first asked key. Second token: its value, or the second asked key.
    vocab = (KEYS, VALUES + 1 + KEYS)
    labeler = partial(Labeler, partial(_mixer, variant, "none"), "none", vocab, (answers, VALUES))
    lengths, steps = ((8,), 1500) if task == LOOK_UPS else (PAIRS, 2000)
    return Setup(partial(draw_look_ups, answers), labeler, lengths, lengths, steps)


def draw_rewriting(order: Callable[[Tensor], Tensor], length: int) -> Batch:
    """Draw sources, and what a decoder reads and writes."""
    source = torch.randint(FIRST_SYMBOL, FIRST_SYMBOL + SYMBOLS, (_BATCH, length))
    target = order(source)
    return (source, F.pad(target[:, :-1], (1, 0), value=BOS)), target.unsqueeze(-1)


def draw_look_back(length: int) -> Batch:
    """Draw symbols, and at each position the earlier one that is asked for."""
    symbols = torch.randint(SYMBOLS, (_BATCH, length))
    return (symbols.unsqueeze(-1),), F.pad(symbols[:, :-LOOK_BACK], (LOOK_BACK, 0), value=-1).unsqueeze(-1)


def draw_look_ups(answers: int, pairs: int) -> Batch:
    """Draw dictionaries, and queries for ``answers`` keys each. A position has two tokens: key and value, or the query.

    Both keys of a query differ. The second token of a query for one key is the one after all values.
    """
    keys = torch.rand(_BATCH, KEYS).argsort(1)[:, :pairs]
    values = torch.randint(VALUES, (_BATCH, pairs))
    asked = torch.rand(_BATCH, QUERIES, pairs).argsort(2)[:, :, :answers]
    asked_keys, expected = (x.unsqueeze(1).expand(-1, QUERIES, -1).gather(2, asked) for x in (keys, values))
    second = VALUES + 1 + asked_keys[..., 1] if answers == 2 else torch.full_like(asked_keys[..., 0], VALUES)
    queries = torch.stack([asked_keys[..., 0], second], -1)
    tokens = torch.cat([torch.stack([keys, values], -1), queries], 1)
    return (tokens,), F.pad(expected, (0, 0, pairs, 0), value=-1)


@cache
def guessing_accuracy(pairs: int) -> float:
    """Return the accuracy of a model that always answers with the most frequent value among the pairs it has read."""
    values = np.random.default_rng(0).integers(VALUES, size=(20_000, pairs))
    return fmean(int(np.bincount(row).max()) for row in values) / pairs


class Labeler(nn.Module):
    """Labels each position: embeds its tokens, adds the vectors and a position, lets positions interact, projects."""

    def __init__(
        self, make_mixer: Callable[[], nn.Module], positions: str, vocab: tuple[int, ...], answers: tuple[int, int]
    ) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, WIDTH) for size in vocab)
        self.positions = make_positions(positions, WIDTH, 2 * max(PAIRS))  # type: ignore[arg-type]
        self.mixer = make_mixer()
        self.answers = answers
        self.output = nn.Linear(WIDTH, answers[0] * answers[1])

    def forward(self, tokens: Int[Tensor, "B T I"]) -> Float[Tensor, "B T A V"]:
        """Return the logits of the answers at each position."""
        vectors = [embedding(tokens[..., place]) for place, embedding in enumerate(self.embeddings)]
        logits: Tensor = self.output(self.mixer(self.positions(torch.stack(vectors).sum(0)), mask=Causal()))
        return logits.unflatten(-1, self.answers)  # type: ignore[no-any-return, no-untyped-call]


def _mixer(kind: str, positions: str) -> nn.Module:
    """Return a causal module in which positions interact: attention of some heads alone, or an architecture."""
    if kind.endswith("heads"):
        return MultiHeadAttention(WIDTH, int(kind.split()[0]))
    if kind == "Transformer":
        keys = {"d_model": WIDTH, "num_heads": 1, "d_ff": 2 * WIDTH, "positions": positions}
        return CausalStack(1, BlockConfig.parse(keys, kind))
    return ConvolutionalMixer() if kind == "convolutions" else RecurrentMixer(attends="attention" in kind)


class RecurrentMixer(nn.Module):
    """An LSTM, whose states may attend to all earlier ones."""

    def __init__(self, *, attends: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.attention = MultiHeadAttention(WIDTH, 1) if attends else None

    def forward(self, x: Float[Tensor, "B T D"], mask: Causal) -> Float[Tensor, "B T D"]:
        """Return the states, with what they attend to."""
        states: Tensor = self.lstm(x)[0]
        return states if self.attention is None else states + self.attention(states, mask=mask)


class ConvolutionalMixer(nn.Module):
    """Dilated causal convolutions with residual connections and norms, which reach back 80 positions."""

    def __init__(self) -> None:
        super().__init__()
        dilations = [KERNEL_SIZE**layer for layer in range(4)]
        self.layers = nn.ModuleList(CausalConvolution(WIDTH, WIDTH, KERNEL_SIZE, dilation=each) for each in dilations)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in dilations)

    def forward(self, x: Float[Tensor, "B T D"], mask: Causal) -> Float[Tensor, "B T D"]:
        """Return what the last layer computes, which is causal without a mask."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(x + layer(x).relu())
        return x


def train_and_test(task: str, variant: str, seed: int, rate: float, *, quick: bool) -> Numbers:
    """Train a model, and return shares of right answers: over training, and for each length by position."""
    setup, begin = make_setup(task, variant), time.process_time()
    steps = 4 * STRIDE if quick else setup.steps
    torch.manual_seed(seed)
    model = setup.make()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    shares = list[float]()
    for step in range(steps):
        inputs, expected = setup.draw(setup.lengths[step % len(setup.lengths)])
        logits = model(*inputs).view(*expected.shape, -1)
        loss = F.cross_entropy(logits.flatten(0, -2), expected.flatten(), ignore_index=-1)
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / _WARMUP, (steps - step) / max(steps - _WARMUP, 1))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        shares.append(float((logits.argmax(-1) == expected)[expected >= 0].float().mean()))
    curve = [sum(shares[start : start + STRIDE]) / STRIDE for start in range(0, steps - STRIDE + 1, STRIDE)]
    seconds = time.process_time() - begin
    right = {str(length): _test(model.eval(), setup.draw, length) for length in setup.tests}
    return {"curve": curve, "right": right, "seconds": seconds}


@torch.inference_mode()
def _test(model: nn.Module, draw: Callable[[int], Batch], length: int) -> list[float | None]:
    """Return the share of right answers at each position, None where none is asked for."""
    right = []
    for _ in range(_TEST_BATCHES):
        inputs, expected = draw(length)
        if isinstance(model, Transformer):  # read what the model has written, not what it should have written
            source, prefix = inputs[0], inputs[1][:, :1]
            for _ in range(length):
                written = model(source, prefix)[:, -1:].argmax(-1)
                prefix = torch.cat([prefix, written], 1)
            answers = prefix[:, 1:].unsqueeze(-1)
        else:
            answers = model(*inputs).argmax(-1)
        right.append((answers == expected).double().mean((0, 2)))
    asked = (expected >= 0)[0, :, 0].tolist()
    means = torch.stack(right).mean(0).tolist()
    return [share if is_asked else None for share, is_asked in zip(means, asked, strict=True)]


def measure(settings: Settings) -> Numbers:
    """Choose a learning rate for each architecture, and train all variants with each seed, one seed after the other."""
    code = code_hash(train_and_test)[:8]

    def run(task: str, variant: str, seed: int, rate: float) -> Numbers:
        key = f"{code}-{task}-{variant}-seed{seed}-rate{rate}".replace(" ", "-")
        return settings.cached(key, lambda: train_and_test(task, variant, seed, rate, quick=settings.quick))

    rates = dict[str, float]()
    for variant in ARCHITECTURES:
        trials = {rate: run(RECALL, variant, 0, rate)["curve"][-1] for rate in RATES[:: 3 if settings.quick else 1]}
        rates[variant] = max(trials, key=trials.__getitem__)
    runs = list[Numbers]()
    for seed, (task, variants) in product(SEEDS[: len(settings.seeds)], VARIANTS.items()):
        settings.say(f"synthetic-tasks: seed {seed}, {task}")
        for variant in variants:
            result = run(task, variant, seed, rates.get(variant, RATE) if task == RECALL else RATE)
            runs.append({"task": task, "variant": variant, "seed": seed, **result})
    tables = {
        f"{task.capitalize()}: right answers (%) by length, and steps until 95 %, means over seeds": [
            {"model": variant}
            | {f"length {n}": 100 * fmean(_shares(runs, (task,), variant, n)) for n in make_setup(task, variant).tests}
            | {"steps": fmean(_steps(runs, task, variant)), "seconds": fmean(_column(runs, task, variant, "seconds"))}
            for variant in variants
        ]
        for task, variants in VARIANTS.items()
    }
    return {"runs": runs, "rates": rates, "tables": tables}


def _column(runs: Sequence[Numbers], task: str, variant: str, key: str) -> list[Any]:
    """Return a value of each seed's run."""
    return [run[key] for run in runs if (run["task"], run["variant"]) == (task, variant)]


def _shares(runs: Sequence[Numbers], tasks: Sequence[str], variant: str, length: int) -> list[float]:
    """Return each seed's share of right answers, a mean over tasks; of looking back only at positions in question."""
    first = max(make_setup(LOOK_BACK_TASK, variant).lengths) if (*tasks, length) == (LOOK_BACK_TASK, 32) else 0
    by_task = [
        [fmean(share for share in right[str(length)][first:] if share is not None) for right in each]
        for each in (_column(runs, task, variant, "right") for task in tasks)
    ]
    return [fmean(values) for values in zip(*by_task, strict=True)]


def _steps(runs: Sequence[Numbers], task: str, variant: str) -> list[int]:
    """Return the steps after which each seed's model gives 95 % right answers; all steps if it never does."""
    curves = _column(runs, task, variant, "curve")
    return [STRIDE * next((n for n, share in enumerate(curve, 1) if share >= LEARNED), len(curve)) for curve in curves]


def judge(numbers: Numbers) -> tuple[Tested, ...]:
    """Judge each comparison, if the reference has learned the task."""
    return tuple(_judge(task, (one, other), sign == "=", numbers) for task, one, sign, other, *_ in COMPARISONS)


def _judge(task: str, sides: Sequence[str], equal: bool, numbers: Numbers) -> Tested:
    """Judge whether the first side, a variant and "speed" or the length of a test, surpasses or equals the other."""
    tasks, runs = tuple(ORDERS) if task == REWRITING else (task,), numbers["runs"]
    variants, lengths = zip(*(side.rsplit(" ", 1) for side in sides), strict=True)
    if lengths[0] == "speed":
        values = [[-math.log2(steps) for steps in _steps(runs, task, variant)] for variant in variants]
        what, smallest = f"doublings of speed, {' minus '.join(variants)}", SMALLEST_SPEED
    else:
        values = [_shares(runs, tasks, *at) for at in zip(variants, map(int, lengths), strict=True)]
        names = [", length ".join(at) for at in zip(variants, lengths, strict=True)]
        what, smallest = f"share of right answers, {' minus '.join(names)}", SMALLEST_SHARE
    reference, num_seeds = REFERENCES[task], len(values[0])
    setup = make_setup(tasks[0], reference)
    reached = fmean(_shares(runs, tasks, reference, max(setup.lengths)))
    obstacle, wanted = f"only {num_seeds} of {len(SEEDS)} seeds are trained", len(SEEDS)
    if num_seeds == len(SEEDS):
        missed = f"{reference} gives {reached:.0%} right answers at the training length, less than {LEARNED:.0%}"
        obstacle, wanted = missed if reached < LEARNED else "", 4 * len(SEEDS)
    hours = sum(run["seconds"] for run in runs if run["task"] in tasks) / num_seeds / 3600
    cost = f"{wanted} seeds and {wanted * hours:.1f} hours of a core{' to detect half of that' if not obstacle else ''}"
    chosen = [numbers["rates"][variant] for variant in variants] if task == RECALL else [RATE]
    rates = " and ".join(dict.fromkeys(f"{rate:g}" for rate in chosen))
    conditions = f"width {WIDTH}, {setup.steps:,} steps, learning rate {rates}, {num_seeds} seeds"
    if task == RECALL:
        guesses = [guessing_accuracy(int(length)) for length in lengths]
        values = [[(share - low) / (1 - low) for share in each] for each, low in zip(values, guesses, strict=True)]
        if max(map(fmean, values)) < SMALLEST_SHARE and not obstacle:
            obstacle, cost = "neither has learned more than to guess", "longer training"
        what = what.replace("answers", "answers beyond guessing")
    effect = add_variance(difference(*values), Effect(0.0, SAMPLING_ERROR, 1000))
    return Tested(effect, smallest, Regime(conditions, obstacle, cost), what, equal, task)


def draw(numbers: Numbers) -> Figure:
    """Draw right answers of all tasks: over orders, heads, steps, positions and pairs."""
    title = "Tasks that isolate one claim each (lines: means, dots: seeds)"
    picture, (near, far, heads, learning, places, recall) = subplots(title, 2, 3, size=(21, 12))
    runs, right = numbers["runs"], "right answers (%)"
    for axes, length, words in ((near, 8, "8 symbols, as in training"), (far, 16, "16 symbols, not trained")):
        for index, variant in enumerate(POSITIONS):
            shares = [_shares(runs, (order,), variant, length) for order in ORDERS]
            places_of_dots = [place + 0.12 * (index - 1.5) for place in range(3)]
            _draw_means(axes, places_of_dots, shares, index, label=variant, linestyle="none")
        axes.set_xticks(range(3), list(ORDERS))
        label(axes, f"Rewriting {words}", "task", right)
    for index, variant in enumerate(POSITIONS):
        curves = _column(runs, LOOK_BACK_TASK, variant, "curve")
        steps = [STRIDE * (number + 0.5) for number in range(len(curves[0]))]
        _draw_means(learning, steps, list(zip(*curves, strict=True)), index, dots=False, label=variant)
        by_place = [row["32"][LOOK_BACK:] for row in _column(runs, LOOK_BACK_TASK, variant, "right")]
        _draw_means(places, range(LOOK_BACK, 32), list(zip(*by_place, strict=True)), index, dots=False)
    places.axvspan(15.5, 31.5, color="#000000", alpha=0.06, linewidth=0)
    _draw_means(heads, HEADS, [_shares(runs, (LOOK_UPS,), f"{count} heads", 8) for count in HEADS], 0)
    for index, variant in enumerate(ARCHITECTURES):
        shares = [_shares(runs, (RECALL,), variant, pairs) for pairs in PAIRS]
        line = "--" if index == 1 else "-"  # it may cover the first line
        _draw_means(recall, PAIRS, shares, index, label=variant, linestyle=line)
    label(heads, f"Two look-ups at once, width {WIDTH}", "heads (below: BLEU of the paper's models)", right, log="x")
    heads.set_xticks(HEADS, [f"{count}\n{PAPERS_BLEU.get(count, '–')}" for count in HEADS])
    label(learning, f"Learning to look {LOOK_BACK} back", "steps of training", right)
    label(places, f"Looking {LOOK_BACK} back (shaded: not trained)", "position", right)
    label(recall, "Recalling one pair", "pairs read before", right, log="x", xticks=PAIRS)
    for axes in picture.axes:
        axes.set_ylim(-3, 103)
        if axes not in (heads, recall):
            axes.axhline(100 / SYMBOLS, color="#777777", linestyle=":", label="guessing")
    heads.axhline(100 * guessing_accuracy(8), color="#777777", linestyle="-.", label="naming the most frequent value")
    recall.plot(PAIRS, [100 * guessing_accuracy(pairs) for pairs in PAIRS], "-.", color="#777777")
    shared_legend(picture, heads, near)
    recall.legend(loc="center right")
    return picture


def _draw_means(axes: Axes, x: Sequence[float], shares: Any, index: int, *, dots: bool = True, **style: str) -> None:
    """Draw the mean of each place as a line or marker in percent, and its values as dots."""
    means: Any = {"color": f"C{index}", "marker": MARKERS[index] if dots else "", **style}
    axes.plot(x, [100 * fmean(values) for values in shares], **means)
    for place, values in zip(x, shares, strict=True) if dots else ():
        axes.plot([place] * len(values), [100 * value for value in values], ".", color=f"C{index}", alpha=0.5)
