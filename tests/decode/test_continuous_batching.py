import random
from collections.abc import Sequence
from typing import Any

import pytest
from continuous_batching import decode_continuously
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

from headway.decode import DecodingOptions, Ensemble, Hypothesis, Request, SearchModel, SearchVocabulary
from headway.engine import SearchTransformer
from headway.models.transformer import Transformer


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    return tiny_transformer()


def streamed(
    model: SearchModel[Any], requests: Sequence[Request], max_rows: int, max_batch_tokens: int = 1000, **options: Any
) -> list[list[Hypothesis]]:
    """Return the results of requests that enter and leave a batch of at most ``max_rows`` rows."""
    parsed, vocabulary = DecodingOptions.parse(options, "test"), SearchVocabulary(BEGIN, END, banned=(PAD, BEGIN))
    return decode_continuously(
        model, requests, parsed, vocabulary, max_rows=max_rows, max_batch_tokens=max_batch_tokens
    )


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
def test_continuous_batching_finds_what_each_sentence_alone_does(
    transformer: Transformer, options: dict[str, Any]
) -> None:
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


def test_phrases_in_continuous_batching(transformer: Transformer) -> None:
    requests = [
        Request(source=request.source, limit=9, include=(((6, 7),), ((5,),))[: number % 3])
        for number, request in enumerate(sentences(6))
    ]
    for request, found in zip(requests, streamed(transformer, requests, 8, beam_size=3), strict=True):
        assert_same(found, run(transformer, [request], (PAD, BEGIN), beam_size=3)[0])
        assert found[0].unmet == ()


def test_an_ensemble_in_continuous_batching() -> None:
    model = Ensemble([tiny_transformer(1), tiny_transformer(2)])
    requests = sentences(6)
    for request, found in zip(requests, streamed(model, requests, 8, beam_size=2), strict=True):
        assert_same(found, run(model, [request], (PAD, BEGIN), beam_size=2)[0])


def name_in_tokens(sentence: int, prefix: Prefix) -> Sequence[float]:
    """Sentence n has n tokens."""
    return [0, 0, 1, 0] if len(prefix) >= sentence else [0, 0, 0, 1]


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
