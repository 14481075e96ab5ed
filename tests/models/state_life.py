"""Decoding states of any model, step by step: each row is compared with its whole prefix, scored on its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.text.base import BOS

Tokens = Callable[..., Tensor]


def continue_and_compare(model: Any, random_tokens: Tokens) -> None:
    """Continue texts of different lengths at random, and compare each with its whole, read in one pass.

    Rows are reordered, repeated, leave and enter. ``model`` is a language model, and ``random_tokens`` draws tokens of
    a given shape.
    """
    random.seed(0)
    texts = [[BOS], [BOS, *random_tokens(5).tolist()], [BOS, *random_tokens(2).tolist()]]
    with torch.inference_mode():
        state = model.start([text[:-1] for text in texts])
        for step in range(12):
            found = model.step(state, torch.tensor([text[-1] for text in texts])).logits()
            for row, text in zip(found, texts, strict=True):
                torch.testing.assert_close(row, model(torch.tensor([text]))[0, -1], atol=1e-5, rtol=1e-4)
            texts = [[*text, int(random_tokens(1))] for text in texts]
            if step == 3:
                new = [BOS, *random_tokens(7).tolist()]
                model.admit(state, [new[:-1]])
                texts.append(new)
            if step == 6:
                kept = torch.tensor([3, 1])
                model.reorder_rows(state, kept, kept)
                texts = [texts[3], texts[1]]
            if step == 8:  # two beams of each
                model.reorder_rows(state, torch.tensor([0, 0, 1, 1]))
                texts = [list(texts[row]) for row in (0, 0, 1, 1)]
            if step == 10:
                new = [BOS, *random_tokens(2).tolist()]
                model.admit(state, [new[:-1]])
                texts += [new, list(new)]


@dataclass
class Row:
    """The source and the prefix of a row of a state."""

    source: Tensor
    prefix: list[int]


@dataclass(frozen=True)
class StateLife:
    """``model`` is a search model that also scores whole targets; ``random_tokens`` draws tokens of a given shape."""

    model: Any
    random_tokens: Tokens

    def advance_and_compare(self, state: Any, rows: list[Row]) -> None:
        """Append a random token to each row, and compare each row with its whole prefix, scored in one pass."""
        tokens = self.random_tokens(len(rows))
        logits = self.model.step(state, tokens).logits()
        for row, token, found in zip(rows, tokens.tolist(), logits, strict=True):
            row.prefix.append(token)
            expected = self.model(row.source.unsqueeze(0), torch.tensor([row.prefix]))[0, -1]
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)

    def started(self, sentences: int, beams: int) -> tuple[Any, list[Row]]:
        """Return a new state for random sources of different lengths, and its rows."""
        lengths = [random.randint(1, 6) for _ in range(sentences)]
        sources = [self.random_tokens(length) for length in lengths]
        state = self.model.start([source.tolist() for source in sources])
        self.model.reorder_rows(state, torch.arange(sentences).repeat_interleave(beams))
        return state, [Row(source, []) for source in sources for _ in range(beams)]

    def admitted(self, state: Any, sentences: int, beams: int) -> list[Row]:
        """Add random sources to a state, and return their rows."""
        sources = [self.random_tokens(random.randint(1, 6)) for _ in range(sentences)]
        self.model.admit(state, [source.tolist() for source in sources])
        return [Row(source, []) for source in sources for _ in range(beams)]

    def reorder_admit_and_leave(self, steps: int) -> None:
        """Reorder and repeat beams, drop and reorder sequences, and add new ones, in random turns."""
        beams = 2
        state, rows = self.started(3, beams)
        for _ in range(steps):
            match random.choice(["advance", "advance", "reorder", "leave", "admit"]):
                case "advance":
                    self.advance_and_compare(state, rows)
                case "reorder":
                    chosen = [
                        first + random.randrange(beams) for first in range(0, len(rows), beams) for _ in range(beams)
                    ]
                    self.model.reorder_rows(state, torch.tensor(chosen))
                    rows = [Row(rows[row].source, list(rows[row].prefix)) for row in chosen]
                case "leave" if len(rows) > beams:
                    sentences = random.sample(range(len(rows) // beams), len(rows) // beams - 1)
                    chosen = [sentence * beams + beam for sentence in sentences for beam in reversed(range(beams))]
                    self.model.reorder_rows(state, torch.tensor(chosen), torch.tensor(sentences))
                    rows = [rows[row] for row in chosen]
                case "admit" if len(rows) < 10:
                    rows += self.admitted(state, random.randint(1, 2), beams)
        self.advance_and_compare(state, rows)
