"""The tree of a beam search: the hypotheses that were kept and dropped at each step.

A node is a token after a certain prefix. Each step adds the tokens that the beam kept. The last token of a dropped
hypothesis is a leaf that is not the end of a finished hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headway.decode import Hypothesis
from headway.notebook_html import join_fragments, paragraph, table, tree_diagram
from headway.predict.results import abbreviate
from headway.text.base import EOS, TextTokenizer
from headway.text.visible_tokens import make_visible

_DRAWN_NODES = 400


@dataclass(frozen=True)
class SearchNode:
    """A token in one or several hypotheses that the beam has kept.

    Attributes:
        token: The token as displayed. "<eos>" ends a hypothesis.
        parent: The index of the previous token's node. None for a first token.
        log_probability: Log-probability of the token given the tokens before it, in nats.
        total: The sum of the log-probabilities from the first token to this one.
    """

    token: str
    parent: int | None
    log_probability: float
    total: float


@dataclass(frozen=True)
class SearchEnd:
    """A finished hypothesis.

    Attributes:
        node: The index of the hypothesis's last node.
        text: The decoded text of the hypothesis.
        score: The score by which hypotheses are ranked: the log-probability divided by the length penalty.
    """

    node: int
    text: str
    score: float


@dataclass(frozen=True)
class SearchTree:
    """The hypotheses that a beam search has considered.

    Attributes:
        beam_size: Number of hypotheses that are kept at each step.
        nodes: The tokens, each after its parent, in the order of the steps.
        ends: The finished hypotheses, best first.
    """

    beam_size: int
    nodes: tuple[SearchNode, ...]
    ends: tuple[SearchEnd, ...]

    def __repr__(self) -> str:
        best = f", best {abbreviate(self.ends[0].text)} with score {self.ends[0].score:.2f}" if self.ends else ""
        return f"<SearchTree: beam {self.beam_size}, {len(self.nodes):,} tokens, {len(self.ends):,} finished{best}>"

    def _repr_html_(self) -> str:
        ends = table(
            ("finished hypothesis", "score"), [(end.text, f"{end.score:.2f}") for end in self.ends], numbers=(1,)
        )
        if len(self.nodes) > _DRAWN_NODES:
            return join_fragments(ends, paragraph(f"{len(self.nodes):,} tokens: too many to draw", note=True))
        best, node = set[int](), self.ends[0].node if self.ends else None
        while node is not None:
            best.add(node)
            node = self.nodes[node].parent
        drawn = [
            (make_visible(node.token), node.parent, f"probability {math.exp(node.log_probability):.3f}")
            for node in self.nodes
        ]
        note = paragraph("Tokens that the beam has kept; the best hypothesis is bold.", note=True)
        return join_fragments(ends, tree_diagram(drawn, best), note)

    @classmethod
    def of(
        cls,
        steps: Sequence[Sequence[Hypothesis]],
        finished: Sequence[Hypothesis],
        *,
        beam_size: int,
        start: int,
        tokenizer: TextTokenizer,
    ) -> SearchTree:
        """Build the tree from the hypotheses after each step and the finished hypotheses.

        The first ``start`` tokens, such as a language code, are omitted.
        """
        nodes = list[SearchNode]()
        places: dict[tuple[int, ...], int | None] = {(): None}

        def add(hypothesis: Hypothesis, tokens: tuple[int, ...]) -> None:
            """Add the tokens that are not yet in the tree. After a step, only a hypothesis's last token is new."""
            values = hypothesis.token_log_probabilities[start:]
            for length in range(1, len(tokens) + 1):
                path = tokens[:length]
                if path in places:
                    continue
                parent, value = places[path[:-1]], values[length - 1]
                total = value if parent is None else nodes[parent].total + value
                places[path] = len(nodes)
                nodes.append(SearchNode(tokenizer.display(path[-1:])[0], parent, value, total))

        for step in steps:
            for hypothesis in step:
                add(hypothesis, hypothesis.tokens[start:])
        ends = list[SearchEnd]()
        for hypothesis in finished:
            tokens = hypothesis.tokens[start:]
            path = (*tokens, EOS)
            add(hypothesis, path)
            node = places[path]
            assert node is not None
            ends.append(SearchEnd(node, tokenizer.decode(tokens), hypothesis.score))
        return cls(beam_size, tuple(nodes), tuple(ends))
