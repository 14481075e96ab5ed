import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from table_models import (
    BEGIN,
    END,
    PAD,
    Prefix,
    TableModel,
    TableState,
    assert_same,
    numbered,
    random_distribution,
    run,
    sentences,
    tiny_transformer,
)

from headway.decode import DecodingOptions, Ensemble, Hypothesis, Request, SearchModel, search_stream
from headway.engine import SearchTransformer
from headway.errors import ConfigError
from headway.models.transformer import Transformer


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    return tiny_transformer()


def streamed(
    model: SearchModel[Any], requests: Sequence[Request], max_rows: int, max_batch_tokens: int = 1000, **options: Any
) -> list[list[Hypothesis]]:
    """Return the results of a stream in order; each position must occur once."""
    parsed = DecodingOptions.parse(options, "test")
    found: dict[int, list[Hypothesis]] = {}
    for position, hypotheses in search_stream(
        model, iter(requests), parsed,
        bos=BEGIN, eos=END, banned=(PAD, BEGIN), max_rows=max_rows, max_batch_tokens=max_batch_tokens,
    ):  # fmt: skip
        assert position not in found
        found[position] = hypotheses
    assert sorted(found) == list(range(len(requests)))
    return [found[position] for position in range(len(requests))]


def varied(requests: Sequence[Request]) -> list[Request]:
    """Return requests, some with a forced prefix and some with banned phrases."""
    return [
        Request(
            source=request.source,
            limit=request.limit + 2,
            prefix=(5, 4)[: number % 3],
            banned=((6,), (3, 3)) if number % 2 else (),
            seed=number,
        )
        for number, request in enumerate(requests)
    ]


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 3, "n_best": 3},
        {"beam_size": 3, "stopping": "first"},
        {"beam_size": 2, "min_length": 2},
        {"beam_size": 4, "groups": 2, "n_best": 2},
        {"beam_size": 2, "coverage_penalty": 0.3},
        {"sampling": {"temperature": 1.3}, "n_best": 2},
        {"beam_size": 2, "no_repeat_ngram": 2, "repetition_penalty": 1.3, "min_length": 1},
    ],
    ids=str,
)
def test_a_stream_finds_what_each_sentence_alone_does(transformer: Transformer, options: dict[str, Any]) -> None:
    requests = varied(sentences(8))
    alone = [run(transformer, [request], (PAD, BEGIN), **options)[0] for request in requests]
    assert len({str([one.tokens for one in beam]) for beam in alone}) > 4, "too alike to tell anything"
    order = random.Random(0).sample(range(8), 8)
    for place, beam in zip(
        order, streamed(transformer, [requests[place] for place in order], 13, **options), strict=True
    ):
        assert_same(beam, alone[place])
    if not options.get("coverage_penalty"):  # only the model itself returns attention
        for beam, expected in zip(
            streamed(SearchTransformer(transformer), requests, 13, **options), alone, strict=True
        ):
            assert_same(beam, expected)


def test_phrases_in_a_stream(transformer: Transformer) -> None:
    requests = [
        Request(source=request.source, limit=9, include=(((6, 7),), ((5,),))[: number % 3])
        for number, request in enumerate(sentences(6))
    ]
    for request, found in zip(requests, streamed(transformer, requests, 8, beam_size=3), strict=True):
        assert_same(found, run(transformer, [request], (PAD, BEGIN), beam_size=3)[0])
        assert found[0].unmet == ()


def test_an_ensemble_in_a_stream() -> None:
    model = Ensemble([tiny_transformer(1), tiny_transformer(2)])
    requests = sentences(6)
    for request, found in zip(requests, streamed(model, requests, 8, beam_size=2), strict=True):
        assert_same(found, run(model, [request], (PAD, BEGIN), beam_size=2)[0])


def name_in_tokens(sentence: int, prefix: Prefix) -> Sequence[float]:
    """Sentence n has n tokens."""
    return [0, 0, 1, 0] if len(prefix) >= sentence else [0, 0, 0, 1]


def test_the_batch_is_filled_again_when_a_quarter_is_free() -> None:
    model = TableModel(name_in_tokens)
    requests = [Request(source=(length,), limit=99) for length in (1, 9, 9, 9, 9, 9, 9, 9, 2, 2)]
    found = streamed(model, requests, 8, beam_size=1)
    assert [len(beam[0].tokens) for beam in found] == [1, 9, 9, 9, 9, 9, 9, 9, 2, 2]
    # One of eight has left after two steps: an eighth is free, too little to let others in. When seven leave after ten
    # steps, two enter. A stream that let them in at once would see 7 and then 1 + 7 rows.
    assert model.rows_seen == [8, 8] + [7] * 8 + [2] * 3
    model = TableModel(name_in_tokens)
    streamed(model, [Request(source=(length,), limit=99) for length in (1, 1, 9, 9, 9, 9, 9, 9, 2, 2)], 8, beam_size=1)
    assert model.rows_seen[:5] == [8] * 5, "a quarter is free: two enter"


@pytest.mark.parametrize(("max_rows", "beam_size"), [(1, 1), (7, 2), (12, 4)])
def test_no_more_rows_than_allowed(max_rows: int, beam_size: int) -> None:
    model = TableModel(random_distribution(3, 5))
    streamed(model, numbered([4] * 23), max_rows, beam_size=beam_size)
    assert max(model.rows_seen) <= max_rows
    assert max(model.rows_seen) > max_rows - beam_size


def test_no_more_source_tokens_than_allowed() -> None:
    starts: list[tuple[int, int]] = []

    class Watched(TableModel):
        def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> TableState:
            starts.append((len(sources), max(map(len, sources))))
            return super().start(sources, beams=beams)

    lengths = [3, 3, 3, 3, 4, 50, 2, 2]
    requests = [Request(source=(1, *[0] * (length - 1)), limit=3) for length in lengths]
    streamed(Watched(name_in_tokens), requests, 100, max_batch_tokens=12, beam_size=1)
    # Four sources of three tokens; a fifth would make 20. The one of 50 exceeds the budget and runs in its own batch.
    assert starts == [(4, 3), (1, 4), (1, 50), (2, 2)]


def test_requests_are_read_as_they_are_needed() -> None:
    read: list[int] = []

    def requests() -> Iterator[Request]:
        for number in range(1000):
            read.append(number)
            yield Request(source=(number % 3,), limit=9)

    stream = search_stream(
        TableModel(name_in_tokens), requests(), DecodingOptions(beam_size=2),
        bos=BEGIN, eos=END, max_rows=16, max_batch_tokens=1000,
    )  # fmt: skip
    assert not read
    for done in range(1, 30):
        next(stream)
        assert len(read) <= done + 8 + 8, "what has finished, but not all of it taken yet, what is decoded"
    assert len(read) > 30


def test_nothing_in_nothing_out() -> None:
    assert streamed(TableModel(name_in_tokens), [], 4) == []


@pytest.mark.parametrize(
    ("max_rows", "max_batch_tokens", "options"),
    [(3, 10, {}), (4, 0, {}), (1, 10, {"sampling": {}, "n_best": 2})],
    ids=str,
)
def test_a_stream_needs_room_for_a_sentence(max_rows: int, max_batch_tokens: int, options: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=f"max_rows = {max_rows}, max_batch_tokens = {max_batch_tokens}: expected room for a"
    ):
        streamed(TableModel(name_in_tokens), numbered([1]), max_rows, max_batch_tokens, **options)
