import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_models import (
    BEGIN,
    END,
    PAD,
    Prefix,
    TableModel,
    assert_same,
    log_probability,
    log_probs_of,
    plain_beam_search,
    random_distribution,
    run,
    sentences,
    targets_of,
    tiny_transformer,
)

from headway.decode import Phrase, Request, WordBoundaries, length_penalty
from headway.decode.constraints import Constraints
from headway.models.transformer import Transformer

Include = tuple[tuple[Prefix, ...], ...]
WORDS = (0, 1, 3)  # a vocabulary of four with the end symbol

phrases = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple)
includes = st.lists(st.lists(phrases, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3).map(tuple)


# Whole words. Token 0 is a letter, 1 a letter with a space before it, 3 a comma; 2 ends the target.
SPACED = WordBoundaries(bytes((1, 0, 0, 0)), bytes((1, 1, 0, 0)), separator=3)
Words = tuple[tuple[Phrase, ...], ...]

Drawn = tuple[tuple[tuple[Prefix, int, int], ...], ...]

edges = st.tuples(phrases, st.integers(0, 1), st.integers(0, 1))
word_includes = st.lists(st.lists(edges, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3).map(tuple)


def as_words(drawn: Drawn) -> Words:
    return tuple(
        tuple(
            Phrase(tokens, start & SPACED.start_bits[tokens[0]], end & SPACED.end_bits[tokens[-1]])
            for tokens, start, end in several
        )
        for several in drawn
    )


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    return tiny_transformer()


def holds(sequence: Prefix, part: Prefix) -> bool:
    return any(sequence[at : at + len(part)] == part for at in range(len(sequence) - len(part) + 1))


def unmet_in(target: Prefix, include: Include) -> tuple[int, ...]:
    return tuple(
        number for number, several in enumerate(include) if not any(holds(target, phrase) for phrase in several)
    )


def holds_words(target: Prefix, phrase: Phrase) -> bool:
    """Return whether a phrase occurs between neighbors that its edges allow."""
    length = len(phrase.tokens)
    return any(
        target[at : at + length] == phrase.tokens
        and not (at and phrase.start_bits & SPACED.end_bits[target[at - 1]])
        and not (at + length < len(target) and phrase.end_bits & SPACED.start_bits[target[at + length]])
        for at in range(len(target) - length + 1)
    )


def words_unmet_in(target: Prefix, include: Words) -> tuple[int, ...]:
    return tuple(at for at, several in enumerate(include) if not any(holds_words(target, one) for one in several))


@given(drawn=word_includes, tokens=st.lists(st.sampled_from(WORDS), max_size=9).map(tuple))
@settings(derandomize=True, max_examples=300)
def test_the_automaton_matches_whole_words(drawn: Drawn, tokens: Prefix) -> None:
    include = as_words(drawn)
    constraints = Constraints(include, boundaries=SPACED)
    node = constraints.node_after(tokens)
    assert constraints.unmet(node) == words_unmet_in(tokens, include)
    needed = constraints.num_needed_tokens(node)
    assert (needed == 0) == (not constraints.unmet(node))
    while needed:
        steps = {token: constraints.step(node, token) for token in constraints.advancing_tokens(node)}
        token = min(steps, key=lambda token: constraints.num_needed_tokens(steps[token]))
        node, tokens = steps[token], (*tokens, token)
        assert constraints.num_needed_tokens(node) <= needed - 1
        needed = constraints.num_needed_tokens(node)
    assert words_unmet_in(tokens, include) == ()


@given(seed=st.integers(0, 9999), drawn=word_includes)
@settings(derandomize=True, max_examples=10)
def test_a_wide_beam_finds_the_best_target_with_whole_words(seed: int, drawn: Drawn) -> None:
    include = as_words(drawn)
    model = TableModel(random_distribution(seed, 4))
    request = Request(source=(0,), limit=4, include=include, boundaries=SPACED)
    (found,) = run(model, [request], beam_size=121)
    log_probs = log_probs_of(random_distribution(seed, 4))
    best = min(
        targets_of(WORDS, 4),
        key=lambda target: (
            len(words_unmet_in(target, include)),
            -log_probability(log_probs, target) / length_penalty(len(target) + 1, 0.6),
        ),
    )
    assert len(found[0].unmet) == len(words_unmet_in(best, include))
    if not found[0].unmet:
        assert found[0].tokens == best
    for hypothesis in found:
        assert hypothesis.unmet == words_unmet_in(hypothesis.tokens, include)


@given(seed=st.integers(0, 9999), beam_size=st.integers(2, 4), drawn=word_includes, spare=st.integers(0, 3))
@settings(derandomize=True, max_examples=50)
def test_every_phrase_is_there_as_whole_words_however_small_the_beam(
    seed: int, beam_size: int, drawn: Drawn, spare: int
) -> None:
    include = as_words(drawn)
    limit = sum(min(len(one.tokens) + 1 for one in several) for several in include) + spare
    request = Request(source=(0,), limit=limit, include=include, boundaries=SPACED)
    (found,) = run(TableModel(random_distribution(seed, 4)), [request], beam_size=beam_size)
    assert found
    for hypothesis in found:
        assert hypothesis.unmet == words_unmet_in(hypothesis.tokens, include) == ()


def test_a_phrase_is_closed_though_the_model_would_go_on() -> None:
    """After the letters 1 0, another letter has 99 % of the probability; a beam of two still ends the word."""

    def distribution(_sentence: int, prefix: Prefix) -> list[float]:
        return [0.99, 0.004, 0.003, 0.003] if prefix and prefix[-1] in (0, 1) else [0.3, 0.3, 0.2, 0.2]

    include = ((Phrase((1, 0), end_bits=1),),)
    (found,) = run(
        TableModel(distribution), [Request(source=(0,), limit=9, include=include, boundaries=SPACED)], beam_size=2
    )
    assert found[0].unmet == ()
    (glued,) = run(TableModel(distribution), [Request(source=(0,), limit=9, include=(((1, 0),),))], beam_size=2)
    assert words_unmet_in(glued[0].tokens, include) == (0,)  # its tokens occur, but inside a longer word


@given(include=includes, tokens=st.lists(st.sampled_from(WORDS), max_size=9).map(tuple))
@settings(derandomize=True)
def test_the_automaton_knows_what_occurs_and_what_is_needed(include: Include, tokens: Prefix) -> None:
    constraints = Constraints(include)
    node = constraints.node_after(tokens)
    assert constraints.unmet(node) == unmet_in(tokens, include)
    for number, several in enumerate(include):
        # The fewest tokens that complete an alternative, found by trying all continuations, from the shortest on.
        tries = [
            length
            for length in range(4)
            for phrase in several
            if length <= len(phrase) and holds((*tokens, *phrase[len(phrase) - length :]), phrase)
        ]
        assert constraints.min_tokens_to_meet(node, number) == min(tries)
    # Continued as suggested, each token reduces the number by one, until all constraints are met.
    needed = constraints.num_needed_tokens(node)
    assert needed <= sum(min(map(len, include[number])) for number in constraints.unmet(node))
    while needed:
        reached = [constraints.step(node, token) for token in constraints.advancing_tokens(node)]
        node = min(reached, key=constraints.num_needed_tokens)
        assert constraints.num_needed_tokens(node) <= needed - 1
        needed = constraints.num_needed_tokens(node)
    assert constraints.unmet(node) == ()


def ranked_targets(seed: int, limit: int, include: Include) -> list[tuple[Prefix, float]]:
    """Return every target: first those with the fewest unmet constraints, then by score."""
    log_probs = log_probs_of(random_distribution(seed, 4))
    scored = [
        (target, log_probability(log_probs, target) / length_penalty(len(target) + 1, 0.6))
        for target in targets_of(WORDS, limit)
    ]
    return sorted(scored, key=lambda item: (len(unmet_in(item[0], include)), -item[1]))


@given(seed=st.integers(0, 9999), include=includes, stopping=st.sampled_from(["exact", "first"]))
@settings(derandomize=True, max_examples=10)
def test_a_wide_beam_finds_the_best_target_with_all_phrases(seed: int, include: Include, stopping: str) -> None:
    # At most 4 tokens: often too few for all phrases in a row, but phrases may overlap.
    model = TableModel(random_distribution(seed, 4))
    (found,) = run(model, [Request(source=(0,), limit=4, include=include)], beam_size=121, stopping=stopping)
    (best, score), *_ = ranked_targets(seed, 4, include)
    assert len(found[0].unmet) == len(unmet_in(best, include))
    if not found[0].unmet:  # otherwise only targets of full length were tried
        assert found[0].tokens == best
        assert found[0].score == pytest.approx(score, abs=1e-4)
    for hypothesis in found:
        assert hypothesis.unmet == unmet_in(hypothesis.tokens, include)


def test_n_best_under_constraints_by_enumeration() -> None:
    include: Include = (((3,),), ((0, 1), (1, 0)))
    (found,) = run(
        TableModel(random_distribution(5, 4)), [Request(source=(0,), limit=4, include=include)],
        beam_size=125, n_best=12,
    )  # fmt: skip
    expected = ranked_targets(5, 4, include)[:12]
    assert unmet_in(expected[-1][0], include) == ()
    assert [one.tokens for one in found[:12]] == [target for target, _ in expected]


@given(
    seed=st.integers(0, 9999),
    beam_size=st.integers(2, 5),
    include=includes,
    spare=st.integers(0, 4),
    stopping=st.sampled_from(["exact", "first"]),
)
@settings(derandomize=True, max_examples=20)
def test_every_phrase_is_there_however_small_the_beam(
    seed: int, beam_size: int, include: Include, spare: int, stopping: str
) -> None:
    limit = sum(min(map(len, several)) for several in include) + spare
    distribution = random_distribution(seed, 4)
    requests = [Request(source=(0,), limit=limit, include=include), Request(source=(1,), limit=4)]
    found, free = run(TableModel(distribution), requests, beam_size=beam_size, stopping=stopping)
    assert found
    for hypothesis in found:
        assert hypothesis.unmet == unmet_in(hypothesis.tokens, include) == ()
        assert hypothesis.log_probability == pytest.approx(
            log_probability(log_probs_of(distribution), hypothesis.tokens), abs=1e-4
        )
    assert len({hypothesis.tokens for hypothesis in found}) == len(found)
    expected = plain_beam_search(log_probs_of(distribution, 1), 4, beam_size=beam_size, stopping=stopping)
    assert_same(free, expected)


def test_a_phrase_is_placed_where_the_model_prefers_it() -> None:
    """Not at the front, nor at the end: each token has its place, and 3 of all tokens fits after 0 only."""

    def distribution(_sentence: int, prefix: Prefix) -> list[float]:
        if prefix and prefix[-1] == 0 and 3 not in prefix:
            return [0.02, 0.9, 0.03, 0.05]
        if prefix and prefix[-1] == 3:
            return [0.02, 0.95, 0.02, 0.01]
        if len(prefix) < 2:
            return [0.95, 0.03, 0.01, 0.01]
        return [0.01, 0.01, 0.97, 0.01]

    (plain,) = run(TableModel(distribution), [Request(source=(0,), limit=8)])
    assert plain[0].tokens == (0, 1)
    (found,) = run(TableModel(distribution), [Request(source=(0,), limit=8, include=(((3,),),))])
    assert found[0].tokens == (0, 3, 1)
    assert found[0].finished


@given(seed=st.integers(0, 999), include=includes, prefix=st.lists(st.sampled_from(WORDS), max_size=4).map(tuple))
@settings(derandomize=True, max_examples=15)
def test_the_forced_prefix_counts(seed: int, include: Include, prefix: Prefix) -> None:
    log_probs = log_probs_of(random_distribution(seed, 4))
    request = Request(source=(0,), limit=len(prefix) + 9, include=include, prefix=prefix)
    (found,) = run(TableModel(random_distribution(seed, 4)), [request], beam_size=3)
    for hypothesis in found:
        assert hypothesis.tokens[: len(prefix)] == prefix
        assert unmet_in(hypothesis.tokens, include) == hypothesis.unmet == ()
    if not unmet_in(prefix, include):
        assert_same(found, plain_beam_search(log_probs, request.limit, beam_size=3, forced=prefix))


def test_what_cannot_be_met_is_reported() -> None:
    model = TableModel(random_distribution(2, 4))
    # Forbidden tokens: the second phrase is ignored, and the rest is as if it had not been requested.
    (found,) = run(model, [Request(source=(0,), limit=5, include=(((3,),), ((1, 0),)))], (0,))
    (without,) = run(model, [Request(source=(0,), limit=5, include=(((3,),),))], (0,))
    assert [one.tokens for one in found] == [one.tokens for one in without]
    assert {one.unmet for one in found} == {(1,)}
    # A rule: 3 3 3 repeats a pair.
    (found,) = run(model, [Request(source=(0,), limit=5, include=(((3, 3, 3),), ((1,),)))], no_repeat_ngram=2)
    assert found
    assert all(0 in one.unmet for one in found)
    # Together too long for the limit: as many phrases as possible.
    (found,) = run(model, [Request(source=(0,), limit=4, include=(((3, 3),), ((1, 1),), ((0, 0),)))], beam_size=8)
    assert len(found[0].unmet) == 1


def test_a_model_that_never_gives_a_token_is_no_endless_search() -> None:
    model = TableModel(lambda _sentence, _prefix: [0.5, 0.2, 0.3, 0.0])
    (found,) = run(model, [Request(source=(0,), limit=4, include=(((3,),),))])
    assert found
    assert {one.unmet for one in found} == {(0,)}
    only_end = TableModel(lambda _sentence, _prefix: [0.0, 0.0, 1.0, 0.0])
    (found,) = run(only_end, [Request(source=(0,), limit=4, include=(((3,),),))])
    assert [(one.tokens, one.unmet) for one in found] == [((), (0,))]


def test_phrases_for_a_transformer_alone_and_in_a_batch(transformer: Transformer) -> None:
    dice = random.Random(1)
    includes: list[Include] = [
        tuple(((dice.randrange(3, 8), dice.randrange(3, 8)), (dice.randrange(3, 8),) * 3) for _ in range(number % 3))
        for number in range(5)
    ]
    requests = [
        Request(source=request.source, limit=request.limit + 6, include=include)
        for request, include in zip(sentences(5), includes, strict=True)
    ]
    together = run(transformer, requests, (PAD, BEGIN), beam_size=4)
    for request, include, found in zip(requests, includes, together, strict=True):
        assert found[0].unmet == unmet_in(found[0].tokens, include) == ()
        assert math.isfinite(found[0].score)
        assert END not in found[0].tokens
        assert_same(run(transformer, [request], (PAD, BEGIN), beam_size=4)[0], found)
