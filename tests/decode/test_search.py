import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.decode import Hypothesis, SearchModel, SearchState, beam_search, greedy_search, length_penalty
from headway.errors import ConfigError
from headway.models.transformer import Transformer, TransformerConfig

PAD, BEGIN, END = 0, 1, 2
Prefix = tuple[int, ...]
Distribution = Callable[[int, Prefix], Sequence[float]]


# A model that is a table of probabilities: all that search asks of one.


@dataclass
class TableState:
    """The sentence of each memory, the prefix of each row."""

    sentences: list[int]
    rows: list[Prefix]

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]
        if sentences is not None:
            self.sentences = [self.sentences[sentence] for sentence in sentences.tolist()]

    def join(self, other: "TableState") -> None:
        self.sentences += other.sentences
        self.rows += other.rows


class TableModel:
    """P(next token | sentence, prefix) by a function; a sentence is named by its first source token."""

    def __init__(self, distribution: Distribution) -> None:
        self.distribution = distribution
        self.rows_seen: list[int] = []

    def start(self, source: Tensor) -> TableState:
        return TableState(source[:, 0].tolist(), [() for _ in source])

    def advance(self, state: TableState, tokens: Tensor) -> Tensor:
        self.rows_seen.append(len(state.rows))
        state.rows = [(*row, token) for row, token in zip(state.rows, tokens.tolist(), strict=True)]
        width = len(state.rows) // len(state.sentences)
        return torch.tensor(
            [self.distribution(state.sentences[at // width], row[1:]) for at, row in enumerate(state.rows)]
        ).log()


def random_distribution(seed: int, vocab_size: int) -> Distribution:
    def distribution(sentence: int, prefix: Prefix) -> Sequence[float]:
        dice = random.Random(repr((seed, sentence, prefix)))
        weights = [dice.random() ** 3 + 1e-3 for _ in range(vocab_size)]
        return [weight / sum(weights) for weight in weights]

    return distribution


def sources(count: int) -> Tensor:
    return torch.arange(count).unsqueeze(1)


# A search to hold ours against: one sentence, plain lists, nothing cached.


def plain_beam_search(
    log_probs: Callable[[Prefix], list[float]], limit: int, beam_size: int, alpha: float, forbidden: Sequence[int]
) -> list[Hypothesis]:
    beams: list[tuple[float, Prefix]] = [(0.0, ())]
    finished: list[Hypothesis] = []
    for step in range(limit + 1):
        extensions = [
            (total + gain, prefix, token)
            for total, prefix in beams
            for token, gain in enumerate(log_probs(prefix))
            if token not in forbidden and (token == END or step < limit)
        ]
        survivors = sorted(extensions, key=lambda extension: -extension[0])[:beam_size]
        for total, prefix, token in survivors:
            if token == END:
                finished.append(Hypothesis(prefix, total, total / length_penalty(step + 1, alpha)))
        beams = [(total, (*prefix, token)) for total, prefix, token in survivors if token != END]
        bound = max((total for total, _ in beams), default=-math.inf) / length_penalty(limit + 1, alpha)
        if max((hypothesis.score for hypothesis in finished), default=-math.inf) >= bound:
            break
    return sorted(finished, key=lambda hypothesis: -hypothesis.score)[:beam_size]


def assert_same(found: Sequence[Hypothesis], expected: Sequence[Hypothesis], tolerance: float = 1e-4) -> None:
    assert [hypothesis.tokens for hypothesis in found] == [hypothesis.tokens for hypothesis in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=tolerance)
        assert one.score == pytest.approx(other.score, abs=tolerance)


# A Transformer small enough to enumerate.


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    torch.manual_seed(3)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 2, "tie": "target"}
    model = Transformer(TransformerConfig.parse(sizes, "test"), 12, 8).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return model


def batch(count: int = 5) -> tuple[Tensor, list[int]]:
    """Padded sources of different lengths, and limits for them."""
    torch.manual_seed(7)
    lengths = [4, 1, 7, 2, 5][:count]
    rows = [torch.cat([torch.randint(3, 12, (length,)), torch.tensor([END])]) for length in lengths]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), [6, 9, 3, 0, 7][:count]


@torch.no_grad()
def forced(model: Transformer, source: Tensor, tokens: Prefix) -> float:
    """Log-probability of the tokens and the end, scored in one call without a cache."""
    real = source[source != PAD].unsqueeze(0)
    log_probs = model(real, torch.tensor([[BEGIN, *tokens]])).log_softmax(-1)[0]
    return float(log_probs.gather(1, torch.tensor([*tokens, END]).unsqueeze(1)).sum())


# Worked by hand.


def test_length_penalty_by_hand() -> None:
    # ((5 + length) / 6)^alpha: none for a length of 1, 2^alpha for 7.
    assert length_penalty(1, 0.6) == 1
    assert length_penalty(7, 0.6) == pytest.approx(1.5157, abs=1e-4)
    assert length_penalty(4, 1.0) == pytest.approx(1.5)
    assert length_penalty(100, 0.0) == 1


def two_ways(_sentence: int, prefix: Prefix) -> Sequence[float]:
    # Token 3 looks better at first (.6 against .4), but what follows it is spread; 4 is surely followed by the end.
    table: dict[Prefix, list[float]] = {
        (): [0, 0, 0, 0.6, 0.4],
        (3,): [0, 0, 0.4, 0.3, 0.3],
        (4,): [0, 0, 1, 0, 0],
    }
    return table.get(prefix, [0, 0, 1, 0, 0])


def test_greedy_takes_the_garden_path_and_a_beam_does_not() -> None:
    model = TableModel(two_ways)
    (greedy,) = greedy_search(model, sources(1), [5], begin=BEGIN, end=END, alpha=0.0)
    assert greedy.tokens == (3,)
    assert greedy.log_probability == pytest.approx(math.log(0.6 * 0.4))
    (beam,) = beam_search(model, sources(1), [5], begin=BEGIN, end=END, beam_size=2, alpha=0.0)
    assert [hypothesis.tokens for hypothesis in beam] == [(4,), (3,)]
    assert [hypothesis.score for hypothesis in beam] == pytest.approx([math.log(0.4), math.log(0.24)])


def test_the_penalty_can_make_a_longer_hypothesis_win() -> None:
    # P = .55 for nothing at all, .45 for six tokens 3: with the end that is 7 tokens, penalty 2^alpha.
    def distribution(_sentence: int, prefix: Prefix) -> Sequence[float]:
        if not prefix:
            return [0, 0, 0.55, 0.45]
        return [0, 0, 0, 1] if len(prefix) < 6 else [0, 0, 1, 0]

    for alpha, tokens, score in ((0.0, (), math.log(0.55)), (1.0, (3,) * 6, math.log(0.45) / 2)):
        (found,) = beam_search(
            TableModel(distribution), sources(1), [9], begin=BEGIN, end=END, beam_size=2, alpha=alpha
        )
        assert found[0].tokens == tokens
        assert found[0].score == pytest.approx(score)


def test_the_table_speaks_the_protocol() -> None:
    model = TableModel(two_ways)
    assert isinstance(model, SearchModel)
    assert isinstance(model.start(sources(2)), SearchState)


# Against the plain search.


@given(
    seed=st.integers(0, 10_000),
    vocab_size=st.integers(3, 6),
    beam_size=st.integers(1, 9),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    limits=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    forbidden=st.sampled_from([(), (PAD,), (PAD, BEGIN)]),
)
@settings(derandomize=True)  # a near-tie, one in many thousands, falls differently in float32 and in Python's floats
def test_equals_the_plain_search(
    seed: int, vocab_size: int, beam_size: int, alpha: float, limits: list[int], forbidden: tuple[int, ...]
) -> None:
    # Vocabularies smaller than the beam are among these: then there are fewer prefixes than places for them.
    distribution = random_distribution(seed, vocab_size)
    found = beam_search(
        TableModel(distribution), sources(len(limits)), limits,
        begin=BEGIN, end=END, beam_size=beam_size, alpha=alpha, forbidden=forbidden,
    )  # fmt: skip
    for sentence, (hypotheses, limit) in enumerate(zip(found, limits, strict=True)):

        def log_probs(prefix: Prefix, sentence: int = sentence) -> list[float]:
            return [math.log(p) for p in distribution(sentence, prefix)]

        assert_same(hypotheses, plain_beam_search(log_probs, limit, beam_size, alpha, forbidden))


@pytest.mark.parametrize("beam_size", [1, 3, 9])
def test_cached_search_equals_the_plain_search_without_a_cache(transformer: Transformer, beam_size: int) -> None:
    source, limits = batch(3)
    found = beam_search(transformer, source, limits, begin=BEGIN, end=END, beam_size=beam_size, forbidden=(PAD, BEGIN))
    for row, hypotheses, limit in zip(source, found, limits, strict=True):
        real = row[row != PAD].unsqueeze(0)

        @torch.no_grad()
        def log_probs(prefix: Prefix, real: Tensor = real) -> list[float]:
            last: list[float] = transformer(real, torch.tensor([[BEGIN, *prefix]]))[0, -1].log_softmax(-1).tolist()
            return last

        assert_same(hypotheses, plain_beam_search(log_probs, limit, beam_size, 0.6, (PAD, BEGIN)))


@given(seed=st.integers(0, 10_000), limits=st.lists(st.integers(0, 6), min_size=1, max_size=4))
@settings(derandomize=True)
def test_greedy_is_a_beam_of_one(seed: int, limits: list[int]) -> None:
    model = TableModel(random_distribution(seed, 5))
    greedy = greedy_search(model, sources(len(limits)), limits, begin=BEGIN, end=END, forbidden=(PAD,))
    beams = beam_search(model, sources(len(limits)), limits, begin=BEGIN, end=END, beam_size=1, forbidden=(PAD,))
    for hypothesis, beam in zip(greedy, beams, strict=True):
        assert_same([hypothesis], beam)


def test_greedy_is_a_beam_of_one_for_a_transformer(transformer: Transformer) -> None:
    source, limits = batch()
    greedy = greedy_search(transformer, source, limits, begin=BEGIN, end=END)
    beams = beam_search(transformer, source, limits, begin=BEGIN, end=END, beam_size=1)
    assert len({hypothesis.tokens for hypothesis in greedy}) > 2, "too alike to tell anything"
    for hypothesis, beam in zip(greedy, beams, strict=True):
        assert_same([hypothesis], beam)


# The truth by enumeration.


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_wide_enough_finds_every_target(seed: int) -> None:
    distribution = random_distribution(seed, 5)
    allowed, limit, alpha = (3, 4), 3, 0.6
    targets = [target for length in range(limit + 1) for target in itertools.product(allowed, repeat=length)]
    assert len(targets) == 1 + 2 + 4 + 8

    def log_probability(target: Prefix) -> float:
        steps = [(target[:at], token) for at, token in enumerate((*target, END))]
        return sum(math.log(distribution(0, prefix)[token]) for prefix, token in steps)

    expected = [
        Hypothesis(target, log_probability(target), log_probability(target) / length_penalty(len(target) + 1, alpha))
        for target in targets
    ]
    (found,) = beam_search(
        TableModel(distribution), sources(1), [limit],
        begin=BEGIN, end=END, beam_size=len(targets), alpha=alpha, n_best=len(targets), forbidden=(PAD, BEGIN),
    )  # fmt: skip
    assert_same(found, sorted(expected, key=lambda hypothesis: -hypothesis.score))


def test_a_wide_beam_finds_a_transformers_best_target(transformer: Transformer) -> None:
    source, _ = batch(3)
    allowed, limit = (3, 4, 5), 3
    targets = [target for length in range(limit + 1) for target in itertools.product(allowed, repeat=length)]
    forbidden = (PAD, BEGIN, 6, 7)
    found = beam_search(
        transformer,
        source,
        [limit] * 3,
        begin=BEGIN,
        end=END,
        beam_size=len(targets),
        n_best=len(targets),
        forbidden=forbidden,
    )
    for row, hypotheses in zip(source, found, strict=True):
        scores = {target: forced(transformer, row, target) / length_penalty(len(target) + 1, 0.6) for target in targets}
        assert {hypothesis.tokens for hypothesis in hypotheses} == set(targets)
        assert hypotheses[0].tokens == max(scores, key=lambda target: scores[target])
        assert hypotheses[0].score == pytest.approx(max(scores.values()), abs=1e-4)


# Properties.


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_sentence_decodes_the_same_alone_and_in_any_batch(transformer: Transformer, beam_size: int) -> None:
    source, limits = batch()

    def search(rows: list[int], width: int) -> list[list[Hypothesis]]:
        chosen = [limits[row] for row in rows]
        return beam_search(transformer, source[rows, :width], chosen, begin=BEGIN, end=END, beam_size=beam_size)

    together = search([0, 1, 2, 3, 4], source.size(1))
    for row in range(5):
        assert_same(search([row], int((source[row] != PAD).sum()))[0], together[row])
    for row, hypotheses in zip([3, 0, 4], search([3, 0, 4], source.size(1)), strict=True):
        assert_same(hypotheses, together[row])
    alone = greedy_search(transformer, source[:1, :5], limits[:1], begin=BEGIN, end=END)
    assert_same(alone, greedy_search(transformer, source, limits, begin=BEGIN, end=END)[:1])


def test_n_best_is_sorted_and_distinct_and_its_scores_are_forced_log_probabilities(transformer: Transformer) -> None:
    source, limits = batch()
    found = beam_search(transformer, source, limits, begin=BEGIN, end=END, beam_size=6, alpha=0.8)
    assert [len(hypotheses) for hypotheses in found] == [6, 6, 6, 1, 6]  # a limit of 0 leaves one target
    for row, hypotheses in zip(source, found, strict=True):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis.tokens for hypothesis in hypotheses}) == len(hypotheses)
        for hypothesis in hypotheses:
            expected = forced(transformer, row, hypothesis.tokens)
            assert hypothesis.log_probability == pytest.approx(expected, abs=1e-4)
            penalty = ((5 + len(hypothesis.tokens) + 1) / 6) ** 0.8
            assert hypothesis.score == pytest.approx(expected / penalty, abs=1e-4)


def never_ending(_sentence: int, _prefix: Prefix) -> Sequence[float]:
    return [0, 0, 0.01, 0.66, 0.33]


def test_limits_force_the_end_sentence_by_sentence() -> None:
    limits = [3, 0, 5]
    greedy = greedy_search(TableModel(never_ending), sources(3), limits, begin=BEGIN, end=END)
    for hypothesis, limit in zip(greedy, limits, strict=True):
        assert hypothesis.tokens == (3,) * limit
        assert hypothesis.log_probability == pytest.approx(limit * math.log(0.66) + math.log(0.01))
    beams = beam_search(TableModel(never_ending), sources(3), limits, begin=BEGIN, end=END, beam_size=3, alpha=1.0)
    assert [beam[0].tokens for beam in beams] == [(3,) * limit for limit in limits]
    assert all(
        len(hypothesis.tokens) <= limit for beam, limit in zip(beams, limits, strict=True) for hypothesis in beam
    )


@pytest.mark.parametrize("beam_size", [1, 3, 8])
def test_forbidden_tokens_never_appear(transformer: Transformer, beam_size: int) -> None:
    source, limits = batch()
    usual = beam_search(transformer, source, limits, begin=BEGIN, end=END)
    forbidden = sorted({token for beam in usual for hypothesis in beam for token in hypothesis.tokens})[:2]
    assert len(forbidden) == 2, "these are what the search would choose"
    beams = beam_search(transformer, source, limits, begin=BEGIN, end=END, beam_size=beam_size, forbidden=forbidden)
    greedy = greedy_search(transformer, source, limits, begin=BEGIN, end=END, forbidden=forbidden)
    for hypothesis in itertools.chain(greedy, *beams):
        assert not set(hypothesis.tokens) & {*forbidden, END}
        assert math.isfinite(hypothesis.score)


def test_a_beam_may_be_larger_than_the_vocabulary() -> None:
    # Three tokens, of which two may stand before the end: 1 + 2 + 4 targets of at most 2 tokens, for a beam of 50.
    model = TableModel(lambda _sentence, _prefix: [0.5, 0.2, 0.3])
    (found,) = beam_search(model, sources(1), [2], begin=BEGIN, end=END, beam_size=50)
    assert sorted(hypothesis.tokens for hypothesis in found) == [(), (0,), (0, 0), (0, 1), (1,), (1, 0), (1, 1)]


def ends_after_its_name(sentence: int, prefix: Prefix) -> Sequence[float]:
    """Sentence n surely has n tokens, 3 more probable than 4, the second even more so."""
    if len(prefix) >= sentence:
        return [0, 0, 1, 0, 0]
    return [0, 0, 0, 0.9, 0.1] if prefix else [0, 0, 0, 0.75, 0.25]


def test_finished_sentences_leave() -> None:
    # Sentences of 2, 0 and 1 tokens: 3 rows in the first step, then 2, then 1.
    source = torch.tensor([[2], [0], [1]])
    model = TableModel(ends_after_its_name)
    greedy = greedy_search(model, source, [9, 9, 9], begin=BEGIN, end=END)
    assert [len(hypothesis.tokens) for hypothesis in greedy] == [2, 0, 1]
    assert model.rows_seen == [3, 2, 1]
    # A beam of 2 starts from one row a sentence. The second sentence has one target alone, and its limit of 0 ends it;
    # the third has its two after 2 steps, the first has two of its four after 3: .675 and .225.
    model = TableModel(ends_after_its_name)
    beams = beam_search(model, source, [9, 0, 9], begin=BEGIN, end=END, beam_size=2)
    assert [[hypothesis.tokens for hypothesis in beam] for beam in beams] == [[(3, 3), (4, 3)], [()], [(3,), (4,)]]
    assert model.rows_seen == [3, 4, 2]


def test_no_sentences_are_no_work(transformer: Transformer) -> None:
    nothing = torch.empty(0, 3, dtype=torch.long)
    assert beam_search(transformer, nothing, [], begin=BEGIN, end=END) == []
    assert greedy_search(transformer, nothing, [], begin=BEGIN, end=END) == []


@pytest.mark.parametrize("beam_size", [0, -1])
def test_a_beam_needs_a_prefix(beam_size: int) -> None:
    with pytest.raises(ConfigError, match=f"beam_size = {beam_size}: expected at least 1"):
        beam_search(TableModel(two_ways), sources(1), [5], begin=BEGIN, end=END, beam_size=beam_size)


def test_noise_that_ends_early_does_not_hide_the_sure_translation() -> None:
    """The model is sure of 3 3 3 3; four other first tokens, each improbable, would end at once."""

    def sure(_sentence: int, prefix: Prefix) -> list[float]:
        if prefix == (3,) * len(prefix):
            nearly = [1e-4] * 8
            nearly[END if len(prefix) == 4 else 3] = 1 - 7e-4
            return nearly
        return [1e-4] * END + [1 - 7e-4] + [1e-4] * (7 - END)

    for beam_size in (1, 2, 4, 7):
        (found,) = beam_search(TableModel(sure), sources(1), [9], begin=BEGIN, end=END, beam_size=beam_size)
        assert found[0].tokens == (3, 3, 3, 3)
