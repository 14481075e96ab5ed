"""Models that are tables of probabilities, a Transformer small enough to enumerate, and a search in plain lists."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from headway.decode import DecodingOptions, Hypothesis, Request, SearchModel, SearchVocabulary, Step, search
from headway.models.transformer import Transformer, TransformerConfig

PAD, BEGIN, END = 0, 1, 2
Prefix = tuple[int, ...]
Distribution = Callable[[int, Prefix], Sequence[float]]
LogProbs = Callable[[Prefix], Sequence[float]]


@dataclass
class TableState:
    """The sentence of each sequence, and the prefix of each row."""

    sentences: list[int]
    rows: list[Prefix]


class TableModel:
    """A model with P(next token | sentence, prefix) from a function. A sentence is named by its first source token."""

    device = torch.device("cpu")
    max_length = None

    def __init__(self, distribution: Distribution) -> None:
        self.distribution = distribution
        self.rows_seen: list[int] = []

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> TableState:
        return TableState([source[0] for source in sources], [() for _ in range(len(sources) * beams)])

    def admit(self, state: TableState, sources: Sequence[Sequence[int]]) -> None:
        new = self.start(sources, beams=len(state.rows) // len(state.sentences))
        state.sentences = state.sentences + new.sentences
        state.rows = state.rows + new.rows

    def step(self, state: TableState, tokens: Tensor, *, attention: bool = False) -> Step:
        return Step(self.logits(state, tokens))

    def logits(self, state: TableState, tokens: Tensor) -> Tensor:
        self.rows_seen.append(len(state.rows))
        state.rows = [(*row, token) for row, token in zip(state.rows, tokens.tolist(), strict=True)]
        width = len(state.rows) // len(state.sentences)
        return torch.tensor(
            [self.distribution(state.sentences[at // width], row[1:]) for at, row in enumerate(state.rows)]
        ).log()

    def reorder_rows(self, state: TableState, rows: Tensor, sequences: Tensor | None = None) -> None:
        state.rows = [state.rows[row] for row in rows.tolist()]
        if sequences is not None:
            state.sentences = [state.sentences[at] for at in sequences.tolist()]


def random_distribution(seed: int, vocab_size: int) -> Distribution:
    def distribution(sentence: int, prefix: Prefix) -> Sequence[float]:
        dice = random.Random(repr((seed, sentence, prefix)))
        weights = [dice.random() ** 3 + 1e-3 for _ in range(vocab_size)]
        return [weight / sum(weights) for weight in weights]

    return distribution


def log_probs_of(distribution: Distribution, sentence: int = 0) -> LogProbs:
    return lambda prefix: [math.log(p) if p else -math.inf for p in distribution(sentence, prefix)]


def run(
    model: SearchModel[Any], requests: Sequence[Request], banned: Iterable[int] = (), **options: Any
) -> list[list[Hypothesis]]:
    """Run a search with these options."""
    parsed = DecodingOptions.parse(options, "test")
    return search(model, requests, parsed, SearchVocabulary(BEGIN, END, banned=tuple(banned)))


def numbered(limits: Iterable[int]) -> list[Request]:
    """Return requests for sentences 0, 1, ... of a table."""
    return [Request(source=(number,), limit=limit) for number, limit in enumerate(limits)]


def tiny_transformer(seed: int = 3, vocab_size: int = 8) -> Transformer:
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 2, "tie": "target"}
    model = Transformer(TransformerConfig.parse(sizes, "test"), 12, vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return model


def sentences(count: int = 5, seed: int = 7) -> list[Request]:
    """Return sources of different lengths, with limits for their targets."""
    dice = random.Random(seed)
    lengths = [4, 1, 7, 2, 5] + [dice.randint(1, 8) for _ in range(count)]
    limits = [6, 9, 3, 0, 7] + [dice.randint(0, 8) for _ in range(count)]
    return [
        Request(source=(*(dice.randrange(3, 12) for _ in range(length)), END), limit=limit)
        for length, limit in list(zip(lengths, limits, strict=True))[:count]
    ]


@functools.cache
@torch.no_grad()
def uncached(model: Transformer, source: tuple[int, ...], prefix: Prefix) -> list[float]:
    """Return the model's log-probabilities after a prefix, computed in one call without a cache."""
    last: list[float] = model(torch.tensor([source]), torch.tensor([[BEGIN, *prefix]]))[0, -1].log_softmax(-1).tolist()
    return last


def targets_of(allowed: Sequence[int], longest: int) -> list[Prefix]:
    """Yield every target with at most the given number of tokens."""
    return [target for length in range(longest + 1) for target in itertools.product(allowed, repeat=length)]


def log_probability(log_probs: LogProbs, target: Prefix) -> float:
    return math.fsum(log_probs(target[:at])[token] for at, token in enumerate((*target, END)))


def never(_prefix: Sequence[int]) -> bool:
    return False


def assert_same(
    found: Sequence[Hypothesis],
    expected: Sequence[Hypothesis],
    tolerance: float = 1e-4,
    ends: Callable[[Sequence[int]], bool] = never,
) -> None:
    assert [hypothesis.tokens for hypothesis in found] == [hypothesis.tokens for hypothesis in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=tolerance)
        assert one.score == pytest.approx(other.score, abs=tolerance)
        assert len(one.token_log_probabilities) == len(one.tokens) + (not ends(one.tokens))
        assert one.log_probability == pytest.approx(sum(one.token_log_probabilities), abs=tolerance)
        assert (one.finished, one.unmet) == (other.finished, other.unmet)


Allowed = Callable[[Prefix, int], bool]


def plain_beam_search(
    log_probs: LogProbs,
    limit: int,
    *,
    beam_size: int,
    alpha: float = 0.6,
    normalization: str = "gnmt",
    n_best: int = 1,
    forced: Prefix = (),
    allowed: Allowed = lambda _prefix, _token: True,
    stopping: str = "exact",
    ends: Callable[[Sequence[int]], bool] = never,
) -> list[Hypothesis]:
    """A reference search: one sentence, plain lists, no cache. ``allowed`` excludes tokens; ``ends`` ends targets."""

    def penalty(length: int) -> float:
        return ((5 + length) / 6) ** alpha if normalization == "gnmt" else float(length**alpha)

    beams: list[tuple[float, Prefix]] = [(0.0, ())]  # the score covers only what follows the forced tokens
    finished: list[Hypothesis] = []
    for step in range(limit + 1):
        extensions = [
            (total + (0.0 if step < len(forced) else gain), prefix, token)
            for total, prefix in beams
            for token, gain in enumerate(log_probs(prefix))
            if (token == forced[step] if step < len(forced) else step == limit or allowed(prefix, token))
            and (token == END if step == limit else True)
        ]
        ordered = sorted(
            (extension for extension in extensions if extension[0] > -math.inf), key=lambda extension: -extension[0]
        )
        for total, prefix, token in ordered[:beam_size]:
            if token == END:
                choices = [item for item in enumerate(log_probs(prefix)) if allowed(prefix, item[0])]
                natural = step < limit or max(choices, key=lambda item: item[1], default=(END,))[0] == END
                finished.append(
                    Hypothesis(prefix, log_probability(log_probs, prefix), total / penalty(step + 1), (), natural)
                )
            elif ends((*prefix, token)):
                probability = math.fsum(log_probs(prefix[:at])[each] for at, each in enumerate((*prefix, token)))
                finished.append(Hypothesis((*prefix, token), probability, total / penalty(step + 1)))
        ordered = ordered[:beam_size] if stopping == "exact" else ordered[: 2 * beam_size]
        going = [(total, (*prefix, token)) for total, prefix, token in ordered if token != END]
        beams = [(total, prefix) for total, prefix in going if not ends(prefix)][:beam_size]
        finished.sort(key=lambda hypothesis: -hypothesis.score)
        if not beams or (stopping == "first" and len(finished) >= beam_size):
            break
        bound = max(total for total, _ in beams) / penalty(limit + 1)
        if stopping == "exact" and len(finished) >= n_best and finished[n_best - 1].score >= bound:
            break
    return finished[:beam_size]
