import math

import pytest
import torch
from table_models import (
    BEGIN,
    END,
    PAD,
    Prefix,
    TableModel,
    numbered,
    random_distribution,
    run,
    sentences,
    tiny_transformer,
)

from headway.decode import Ensemble, length_penalty
from headway.errors import ConfigError
from headway.models.transformer import Transformer
from headway.nn import record_attention


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    return tiny_transformer()


@torch.no_grad()
def coverage_penalty(model: Transformer, source: tuple[int, ...], target: Prefix) -> float:
    """Compute equation 14 of Wu et al. 2016 with beta = 1 from one pass over the whole target."""
    with record_attention(model.decoder.blocks[-1].get_submodule("cross_attention")) as seen:
        model(torch.tensor([source]), torch.tensor([[BEGIN, *target]]))
    shares = seen[0][0].mean(0).sum(0)  # heads, then target positions, including the one that predicts the end
    return sum(math.log(min(float(share), 1.0)) for share in shares)


@pytest.mark.parametrize("weight", [0.2, 3.0])
def test_scores_hold_the_penalty_of_equation_14(transformer: Transformer, weight: float) -> None:
    requests = sentences(4)
    found = run(transformer, requests, (PAD, BEGIN), coverage_penalty=weight, n_best=3)
    penalties = []
    for request, hypotheses in zip(requests, found, strict=True):
        for one in hypotheses:
            penalty = weight * coverage_penalty(transformer, request.source, one.tokens)
            expected = one.log_probability / length_penalty(len(one.tokens) + 1, 0.6) + penalty
            assert one.score == pytest.approx(expected, abs=1e-3)
            penalties.append(penalty)
        assert [one.score for one in hypotheses] == sorted((one.score for one in hypotheses), reverse=True)
    assert max(penalties) <= 0
    assert min(penalties) < -0.1 * weight, "too small to tell anything"


def test_the_penalty_changes_what_is_best(transformer: Transformer) -> None:
    requests = sentences(5)
    plain = run(transformer, requests, (PAD, BEGIN))
    covering = run(transformer, requests, (PAD, BEGIN), coverage_penalty=5)
    longer = [len(one[0].tokens) - len(other[0].tokens) for one, other in zip(covering, plain, strict=True)]
    assert min(longer) >= 0
    assert max(longer) > 0, "what is left out of a short translation costs"


def test_steps_attend_as_they_advance(transformer: Transformer) -> None:
    source = [[5, 6, 7, END], [8, 9, END]]
    tokens = torch.tensor([BEGIN, BEGIN])
    with torch.no_grad():
        logits = transformer.step(transformer.start(source), tokens).logits()
        attended = transformer.step(transformer.start(source), tokens, attention=True)
    assert attended.attention is not None
    assert attended.logits().flatten().tolist() == pytest.approx(logits.flatten().tolist(), abs=1e-5)
    assert attended.attention.sum(1).tolist() == pytest.approx([1, 1])
    assert attended.attention[1, 3] == 0, "padding"


def test_an_ensemble_attends_as_the_mean(transformer: Transformer) -> None:
    members = [transformer, tiny_transformer(4)]
    source, tokens = [[5, 6, 7, END]], torch.tensor([BEGIN])
    ensemble = Ensemble(members)
    with torch.no_grad():
        found = ensemble.step(ensemble.start(source), tokens, attention=True).attention
        each = [model.step(model.start(source), tokens, attention=True).attention for model in members]
    assert found is not None
    assert each[0] is not None
    assert each[1] is not None
    assert found.flatten().tolist() == pytest.approx(((each[0] + each[1]) / 2).flatten().tolist(), abs=1e-6)


def test_a_model_that_does_not_tell_is_refused() -> None:
    table = TableModel(random_distribution(0, 4))
    with pytest.raises(ConfigError, match=r"= 0\.5: this TableModel does not return attention weights"):
        run(table, numbered([3]), coverage_penalty=0.5)
    with pytest.raises(ConfigError, match=r"= 0\.5: this Ensemble does not return attention weights"):
        run(Ensemble([table, table]), numbered([3]), coverage_penalty=0.5)
