"""The tree of prefixes against plain lists: which positions each beam sees, whoever joins, leaves, splits or dies."""

from __future__ import annotations

import random

import pytest
import torch

from headway.nn.prefix_tree import PrefixTree

HEADS, LAYERS = 2, 2


class Watched:
    """A tree, and for each beam of each sentence the numbers of its prefix's positions. A key holds its number."""

    def __init__(self, sentences: int, beams: int) -> None:
        self.tree = PrefixTree(sentences, LAYERS, torch.zeros(sentences, HEADS, 3, 1), 1)
        self.prefixes: list[list[list[float]]] = [[[]] for _ in range(sentences)]
        self.select([[0] * beams] * sentences)

    def step(self, first: int) -> int:
        """Give every beam a position, numbered from ``first``; compare all that are seen; the next number."""
        shape = len(self.prefixes), len(self.prefixes[0])
        count = shape[0] * shape[1]
        new = torch.arange(first, first + count, dtype=torch.float32).view(*shape, 1, 1).expand(*shape, HEADS, 1)
        self.tree.open_step()
        for layer in range(LAYERS):
            keys, values = self.tree.extend(layer, new + layer / 2, -new)
        seen = self.tree.step_bias.expand(-1, HEADS, -1, -1).flatten(0, 1) == 0  # (B * H, W, C)
        self.tree.close_step()
        for sentence, prefixes in enumerate(self.prefixes):
            for beam, prefix in enumerate(prefixes):
                prefix.append(float(first + sentence * shape[1] + beam))
                for row in range(sentence * HEADS, (sentence + 1) * HEADS):
                    assert sorted(keys[row, seen[row, beam], 0].tolist()) == [each + 0.5 for each in prefix]
                    assert sorted((-values[row, seen[row, beam], 0]).tolist()) == prefix
        assert keys.isfinite().all(), "what is masked is multiplied, too"
        return first + count

    def select(self, parents: list[list[int]], kept: list[int] | None = None) -> None:
        """The sentences ``kept`` stay (None: all); ``parents`` are the beams that theirs go on with."""
        beams = len(self.prefixes[0])
        old = list(range(len(self.prefixes))) if kept is None else kept
        rows = [at * beams + parent for at, several in zip(old, parents, strict=True) for parent in several]
        self.tree.select(torch.tensor(rows), None if kept is None else torch.tensor(kept))
        self.prefixes = [
            [list(self.prefixes[at][parent]) for parent in several] for at, several in zip(old, parents, strict=True)
        ]

    def join(self, other: Watched) -> None:
        """Append the sentences of ``other``."""
        self.tree.join(other.tree)
        self.prefixes += other.prefixes


@pytest.mark.parametrize("seed", range(8))
def test_beams_see_their_own_prefixes_through_any_history(seed: int) -> None:
    dice = random.Random(seed)
    beams, number, longest = dice.choice([1, 2, 4]), 0, 0
    watched = Watched(dice.randint(1, 3), beams)
    for _ in range(60):
        number = watched.step(number)
        if dice.random() < 0.2 and len(watched.prefixes) < 5:
            newcomers = Watched(dice.randint(1, 2), beams)
            if dice.random() < 0.7:
                number = newcomers.step(number)
            watched.join(newcomers)
        kept = None
        if dice.random() < 0.1 and len(watched.prefixes) > 1:
            kept = sorted(dice.sample(range(len(watched.prefixes)), dice.randint(1, len(watched.prefixes) - 1)))
        before, beams = beams, dice.choice([beams, beams, beams, 1, 3, 5])
        sentences = len(watched.prefixes if kept is None else kept)
        dying = dice.random() < 0.4  # all go on with one beam
        watched.select([[0 if dying else dice.randrange(before) for _ in range(beams)] for _ in range(sentences)], kept)
        longest = max([longest, *(len(prefixes[0]) for prefixes in watched.prefixes)])
    assert longest > 20, "or nothing was asked"
