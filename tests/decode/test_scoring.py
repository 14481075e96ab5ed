import math
from typing import Any

import pytest
import torch
from table_models import (
    BEGIN,
    END,
    PAD,
    TableModel,
    log_probs_of,
    numbered,
    random_distribution,
    run,
    sentences,
    tiny_transformer,
    uncached,
)
from torch import Tensor, nn

from headway.decode import Ensemble, SearchVocabulary, score_targets, top_next_tokens
from headway.errors import BundleError, ConfigError
from headway.models.transformer import Transformer


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    return tiny_transformer()


TARGETS = [(3, 4, 5), (), (6, 6, 6, 6, 6, 6, 6), (7,), (5, 5)]
SPECIAL = SearchVocabulary(BEGIN, END)


@pytest.mark.parametrize("max_batch_tokens", [1, 12, 1000])
def test_forced_scores_are_the_models_step_by_step(transformer: Transformer, max_batch_tokens: int) -> None:
    sources = [request.source for request in sentences(5)]
    scores = score_targets(transformer, sources, TARGETS, SPECIAL, max_batch_tokens=max_batch_tokens)
    for source, target, found in zip(sources, TARGETS, scores, strict=True):
        expected = [uncached(transformer, source, target[:at])[token] for at, token in enumerate((*target, END))]
        assert found == pytest.approx(expected, abs=1e-4)
        state = transformer.start([source])
        with torch.no_grad():
            steps = [
                float(transformer.step(state, torch.tensor([token])).logits().log_softmax(-1)[0, following])
                for token, following in zip((BEGIN, *target), (*target, END), strict=True)
            ]
        assert found == pytest.approx(steps, abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"beam_size": 1}, {"sampling": {"temperature": 2.0}}], ids=str)
def test_forced_scores_are_those_that_the_search_reports(transformer: Transformer, options: dict[str, Any]) -> None:
    requests = sentences(5)
    found = [beam[0] for beam in run(transformer, requests, (PAD,), **options)]
    sources = [request.source for request in requests]
    scores = score_targets(transformer, sources, [one.tokens for one in found], SPECIAL)
    for one, score in zip(found, scores, strict=True):
        assert one.token_log_probabilities == pytest.approx(score, abs=1e-4)


def test_what_cannot_be_scored(transformer: Transformer) -> None:
    assert score_targets(transformer, [], [], SPECIAL) == []
    with pytest.raises(ConfigError, match="2 sources but 1 targets: expected one target for each source"):
        score_targets(transformer, [(5, END), (6, END)], [(3,)], SPECIAL)

    class Damaged(nn.Module):
        device = torch.device("cpu")

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            return torch.full((*target.shape, 8), math.nan)

    with pytest.raises(BundleError, match="the model's probabilities are NaN: its weights are damaged"):
        score_targets(Damaged(), [(5, END)], [(3,)], SPECIAL)
    damaged = tiny_transformer()
    nn.init.constant_(damaged.projection.weight, math.nan)
    with pytest.raises(BundleError, match="the model's probabilities are NaN: its weights are damaged"):
        top_next_tokens(damaged, (5, END), (), 3, SPECIAL)


def test_alternatives_are_what_could_come_next(transformer: Transformer) -> None:
    for source in ((5, 6, END), (9, END)):
        for prefix in ((), (3, 4)):
            expected = uncached(transformer, source, prefix)
            found = top_next_tokens(transformer, source, prefix, 3, SPECIAL)
            assert [one.token for one in found] == sorted(range(8), key=lambda token: -expected[token])[:3]
            assert [one.log_probability for one in found] == pytest.approx(sorted(expected, reverse=True)[:3], abs=1e-4)
    assert len(top_next_tokens(transformer, (5, END), (), 99, SPECIAL)) == 8
    with pytest.raises(ConfigError, match="count = 0: expected at least 1"):
        top_next_tokens(transformer, (5, END), (), 0, SPECIAL)


# Ensembles.


def test_an_ensemble_averages_probabilities() -> None:
    shares = [[0.1, 0.0, 0.4, 0.5], [0.3, 0.2, 0.4, 0.1]]
    members = [TableModel(lambda _sentence, _prefix, share=share: share) for share in shares]  # type: ignore[misc]
    ensemble = Ensemble(members)
    logits = ensemble.step(ensemble.start([[0]]), torch.tensor([BEGIN])).logits()
    assert logits.exp().flatten().tolist() == pytest.approx([0.2, 0.1, 0.4, 0.3])


@pytest.mark.parametrize("options", [{}, {"beam_size": 1}, {"sampling": {}}, {"groups": 2}], ids=str)
def test_an_ensemble_searches_as_a_model_of_the_mean(options: dict[str, Any]) -> None:
    one, other = random_distribution(1, 6), random_distribution(2, 6)

    def mean(sentence: int, prefix: tuple[int, ...]) -> list[float]:
        return [(p + q) / 2 for p, q in zip(one(sentence, prefix), other(sentence, prefix), strict=True)]

    requests = numbered([5, 3, 0, 4])
    found = run(Ensemble([TableModel(one), TableModel(other)]), requests, (PAD,), **options)
    expected = run(TableModel(mean), requests, (PAD,), **options)
    assert [[x.tokens for x in beam] for beam in found] == [[x.tokens for x in beam] for beam in expected]
    assert [x.score for beam in found for x in beam] == pytest.approx(
        [x.score for beam in expected for x in beam], abs=1e-4
    )
    # It differs from what either model would find.
    assert found != run(TableModel(one), requests, (PAD,), **options)
    assert log_probs_of(mean)(()) != log_probs_of(one)(())


def test_an_ensembles_forced_scores_are_those_of_its_search(transformer: Transformer) -> None:
    ensemble = Ensemble([transformer, tiny_transformer(4), tiny_transformer(5)])
    requests = sentences(3)
    found = [beam[0] for beam in run(ensemble, requests, (PAD,))]
    scores = score_targets(ensemble, [request.source for request in requests], [one.tokens for one in found], SPECIAL)
    for one, score in zip(found, scores, strict=True):
        assert one.token_log_probabilities == pytest.approx(score, abs=1e-4)


def test_ensembles_that_are_none(transformer: Transformer) -> None:
    with pytest.raises(ConfigError, match="an ensemble needs at least one model"):
        Ensemble([])
    with pytest.raises(ConfigError, match="vocabularies of different sizes, 8 and 9 tokens; all of them must share"):
        run(Ensemble([transformer, tiny_transformer(vocab_size=9)]), sentences(1))
