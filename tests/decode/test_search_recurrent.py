"""Search is independent of the architecture: with a recurrent model, it finds the same as trying all targets."""

import functools
from typing import Any

import pytest
import torch
from table_models import (
    BEGIN,
    PAD,
    Prefix,
    assert_same,
    log_probability,
    plain_beam_search,
    run,
    sentences,
    targets_of,
)

from headway.decode import Request, length_penalty
from headway.errors import ConfigError
from headway.models.recurrent import RecurrentConfig, RecurrentModel

V = 6
ALLOWED = tuple(range(3, V))  # number of tokens; the end symbol is not part of a target


def recurrent(**form: Any) -> RecurrentModel:
    torch.manual_seed(4)
    config = RecurrentConfig.parse({"d_model": 8, "tie": "target", **form}, "test")
    model = RecurrentModel(config, 12, V).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.6)
    return model


FORMS: list[dict[str, Any]] = [
    {"attention": "bahdanau", "cell": "lstm", "decoder_layers": 2},
    {"attention": "luong", "input_feeding": True},
    {"attention": "none"},
]


@pytest.fixture(params=FORMS, ids=["bahdanau", "luong", "cho"], scope="module")
def model(request: pytest.FixtureRequest) -> RecurrentModel:
    return recurrent(**request.param)


@torch.no_grad()
def scores_of(model: RecurrentModel, source: Prefix) -> Any:
    """Return the log-probabilities after a prefix, computed in one call without a cache."""

    @functools.cache
    def log_probs(prefix: Prefix) -> list[float]:
        with torch.no_grad():
            logits = model(torch.tensor([source]), torch.tensor([[BEGIN, *prefix]]))[0, -1]
        found: list[float] = logits.log_softmax(-1).tolist()
        return found

    return log_probs


def test_a_wide_beam_finds_the_best_of_all_targets(model: RecurrentModel) -> None:
    requests = [Request(source=request.source, limit=2) for request in sentences(3)]
    found = run(model, requests, (PAD, BEGIN), beam_size=12, length_penalty=0.6)
    for request, hypotheses in zip(requests, found, strict=True):
        log_probs = scores_of(model, request.source)

        def score(target: Prefix, log_probs: Any = log_probs) -> float:
            return log_probability(log_probs, target) / length_penalty(len(target) + 1, 0.6)

        ordered = sorted(targets_of(ALLOWED, 2), key=score, reverse=True)
        assert hypotheses[0].tokens == ordered[0]
        assert hypotheses[0].score == pytest.approx(score(ordered[0]), abs=1e-4)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_equals_the_plain_search(model: RecurrentModel, beam_size: int) -> None:
    # Sentences end at different times and leave: rows are reordered, repeated and dropped.
    requests = sentences(5)
    found = run(model, requests, (PAD, BEGIN), beam_size=beam_size, n_best=beam_size)
    for request, hypotheses in zip(requests, found, strict=True):
        expected = plain_beam_search(
            scores_of(model, request.source),
            request.limit,
            beam_size=beam_size,
            n_best=beam_size,
            allowed=lambda _prefix, token: token not in (PAD, BEGIN),
        )
        assert_same(hypotheses, expected)


def test_coverage_needs_attention() -> None:
    requests = sentences(3)
    attending = recurrent(attention="luong")
    covering = run(attending, requests, (PAD, BEGIN), beam_size=4, coverage_penalty=3.0)
    plain = run(attending, requests, (PAD, BEGIN), beam_size=4)
    assert all(one[0].score < other[0].score for one, other in zip(covering, plain, strict=True))
    with pytest.raises(ConfigError, match=r"coverage_penalty = 0\.5: this RecurrentModel does not return"):
        run(recurrent(attention="none"), requests, (PAD, BEGIN), coverage_penalty=0.5)
