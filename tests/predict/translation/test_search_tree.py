"""The tree of a search agrees with what the search returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from headway.decode import DecodingOptions, Sampling
from headway.errors import ConfigError, DataError, LengthError
from headway.predict import SearchTree, Translator

TEXT = "das rote Haus und der Baum"


def path(tree: SearchTree, node: int | None) -> list[int]:
    """Return the nodes from the first token to this one."""
    found: list[int] = []
    while node is not None:
        found.insert(0, node)
        node = tree.nodes[node].parent
    return found


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("stopping", ["exact", "first"])
def test_its_ends_are_the_candidates(make_translator: Callable[..., Translator], beam_size: int, stopping: str) -> None:
    translator = make_translator(settings={"avoid_flagged": False})
    options = DecodingOptions.parse({"beam_size": beam_size, "n_best": beam_size, "stopping": stopping}, "options")
    tree = translator.search_tree(TEXT, options)
    candidates = translator.translate(TEXT, options).candidates
    assert [end.text for end in tree.ends] == [each.text for each in candidates]
    for end, candidate in zip(tree.ends, candidates, strict=True):
        nodes = [tree.nodes[at] for at in path(tree, end.node)]
        assert [node.token for node in nodes] == [*candidate.tokens, "<eos>"]
        assert [node.log_probability for node in nodes] == pytest.approx(candidate.token_log_probabilities, abs=1e-5)
        assert nodes[-1].total == pytest.approx(candidate.log_probability, abs=1e-4)
        assert end.score == pytest.approx(candidate.score, abs=1e-4)


def test_a_level_has_at_most_the_hypotheses_of_the_beam(make_translator: Callable[..., Translator]) -> None:
    tree = make_translator().search_tree(TEXT, DecodingOptions(beam_size=3, n_best=3))
    assert all(node.parent is None or node.parent < at for at, node in enumerate(tree.nodes))
    levels = Counter(len(path(tree, at)) for at, node in enumerate(tree.nodes) if node.token != "<eos>")
    assert max(levels.values()) == 3
    dropped = set(range(len(tree.nodes))) - {node.parent for node in tree.nodes} - {end.node for end in tree.ends}
    assert dropped  # a beam of 3 does not follow everything


def test_what_has_no_tree(make_translator: Callable[..., Translator]) -> None:
    translator = make_translator()
    with pytest.raises(DataError, match="blank"):
        translator.search_tree(" ")
    with pytest.raises(LengthError, match="parts"):
        translator.search_tree("das rote Haus. " * 300)
    with pytest.raises(ConfigError, match="a single beam"):
        translator.search_tree(TEXT, DecodingOptions(sampling=Sampling()))
