"""Made-up tasks that small models learn in seconds, the models, and their training.

    copy, reverse, sort    write the symbols of the source in this order; as many are written as the source has
    look back              name, at each position, the symbol LOOK_BACK positions earlier
    two look-ups           read pairs of a key and a value, then name the values of two asked keys at once
    recall                 the same with one asked key

Every batch is drawn anew, so models see no sequence twice, and a batch is a test until the model is updated with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headway.experiments.experiment import Numbers
from headway.experiments.layer_measurements import KERNEL_SIZE, CausalConvolution
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
        config: dict[str, Any] = {
            "d_model": WIDTH,
            "num_heads": 4,
            "d_ff": 2 * WIDTH,
            "encoder_layers": 1,
            "decoder_layers": 1,
        }
        config |= {"dropout": 0.0, "positions": variant}
        size = FIRST_SYMBOL + SYMBOLS
        make = lambda: Transformer(TransformerConfig.parse(config, task), size, size)  # noqa: E731
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
        logits: Tensor = self.output(self.mixer(self.positions(torch.stack(vectors).sum(0))))
        return logits.unflatten(-1, self.answers)  # type: ignore[no-any-return, no-untyped-call]


def _mixer(kind: str, positions: str) -> nn.Module:
    """Return a causal module in which positions interact: attention of some heads alone, or an architecture."""
    if kind.endswith("heads"):
        return _Causal(MultiHeadAttention(WIDTH, int(kind.split()[0])))
    if kind == "Transformer":
        keys = {"d_model": WIDTH, "num_heads": 1, "d_ff": 2 * WIDTH, "positions": positions}
        return _Causal(CausalStack(1, BlockConfig.parse(keys, kind)))
    return ConvolutionalMixer() if kind == "convolutions" else RecurrentMixer(attends="attention" in kind)


class _Causal(nn.Module):
    """A module that takes a mask, with the causal one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        mixed: Tensor = self.inner(x, mask=Causal())
        return mixed


class RecurrentMixer(nn.Module):
    """An LSTM, whose states may attend to all earlier ones."""

    def __init__(self, *, attends: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.attention = MultiHeadAttention(WIDTH, 1) if attends else None

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the states, with what they attend to."""
        states: Tensor = self.lstm(x)[0]
        return states if self.attention is None else states + self.attention(states, mask=Causal())


class ConvolutionalMixer(nn.Module):
    """Dilated causal convolutions with residual connections and norms, which reach back 80 positions."""

    def __init__(self) -> None:
        super().__init__()
        dilations = [KERNEL_SIZE**layer for layer in range(4)]
        self.layers = nn.ModuleList(CausalConvolution(WIDTH, WIDTH, KERNEL_SIZE, dilation=each) for each in dilations)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in dilations)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return what the last layer computes."""
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
