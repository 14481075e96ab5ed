import math

import pytest
import torch

from headway.errors import ConfigError
from headway.nn import Dropout, TokenEmbedding


def test_vectors_are_scaled_by_the_root_of_the_width() -> None:
    embedding = TokenEmbedding(5, 9)
    tokens = torch.tensor([[4, 0], [1, 1]])
    assert torch.equal(embedding(tokens), 3 * embedding.weight[tokens])


def test_vectors_may_stay_as_they_are() -> None:
    embedding = TokenEmbedding(5, 9, scaled=False)
    tokens = torch.tensor([[4, 0], [1, 1]])
    assert torch.equal(embedding(tokens), embedding.weight[tokens])


def test_embeddings_start_with_unit_variance_once_scaled() -> None:
    # 64,000 draws: the sample variance has a standard error of sqrt(2 / 64000) = 0.0056.
    embedding = TokenEmbedding(1000, 64)
    assert float(embedding.weight.detach().std()) == pytest.approx(64**-0.5, rel=0.02)
    assert float(embedding(torch.arange(1000).unsqueeze(0)).detach().var()) == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, math.nan])
def test_dropout_refuses_values_that_are_not_probabilities(p: float) -> None:
    with pytest.raises(ConfigError, match=f"dropout = {p}: expected a probability of at least 0 and less than 1"):
        Dropout(p)


def test_dropout_zeroes_a_share_and_scales_the_rest() -> None:
    # 40,000 elements kept with 0.7: standard deviation of the share is sqrt(.7 x .3 / 40000) = 0.0023.
    dropped = Dropout(0.3)(torch.ones(200, 200))
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 1 / 0.7))
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.012)


def test_dropout_does_nothing_in_evaluation_or_at_zero() -> None:
    x = torch.randn(10, 10)
    assert torch.equal(Dropout(0.9).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout()(x), x)


def test_dropout_differs_from_call_to_call_and_repeats_with_the_seed() -> None:
    dropout, x = Dropout(0.5), torch.ones(3, 50)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


def test_gradients_pass_where_dropout_kept() -> None:
    x = torch.ones(20, 20, requires_grad=True)
    dropped = Dropout(0.5)(x)
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    assert torch.equal(gradient, dropped.detach())


@pytest.mark.parametrize("p", [1e-9, 0.999999])
def test_dropout_keeps_finite_at_the_edges(p: float) -> None:
    assert Dropout(p)(torch.ones(5, 3)).isfinite().all()
