"""The search model compared with the trained model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from headway import kernels
from headway.decode import DecodingOptions, Request, SearchVocabulary, search_all
from headway.decode.ranking import top_tokens
from headway.engine import (
    Precision,
    SearchTransformer,
    torch_backend,
)
from headway.models.transformer import Transformer, TransformerConfig

needs_int8 = pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm, gated": {"norm": "pre", "activation": "swiglu"},
    "gelu, narrow keys": {"activation": "gelu", "d_key": 6, "d_value": 10},
    "learned positions, bias, nothing tied": {
        "positions": "learned",
        "max_length": 40,
        "output_bias": True,
        "embedding_norm": True,
        "scale_embedding": False,
        "tie": "none",
    },
    "one decoder layer": {"decoder_layers": 1, "norm": "pre"},
    "rotary, no residual": {"positions": "rotary", "d_key": 6, "residual": False},
    "windows": {"encoder_window": 4, "decoder_window": 3},
    "windows, rotary": {"encoder_window": 3, "decoder_window": 5, "positions": "rotary", "norm": "pre"},
    "no positions, no norm": {"positions": "none", "norm": "none", "encoder_layers": 1, "decoder_layers": 1},
}


def make(vocab_size: int = 150, **changes: Any) -> Transformer:
    torch.manual_seed(3)
    config = TransformerConfig.preset("tiny", **{"d_model": 32, "num_heads": 4, "d_ff": 48, **changes})
    model = Transformer(config, vocab_size, vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # also move biases and norms away from their initial values
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def sources(*lengths: int) -> list[list[int]]:
    torch.manual_seed(len(lengths))
    return [torch.randint(4, 150, (length,)).tolist() for length in lengths]


def test_beams_that_split_swap_and_leave_have_the_logits_of_their_own_prefixes() -> None:
    """The same for each value of each option: tests/engine/test_random_configs.py."""
    model = make()
    engine = SearchTransformer(model)
    source = sources(7, 3, 5)
    state = engine.start(source)
    sentences, prefixes = [0, 1, 2], [[1], [1], [1]]
    generator = torch.Generator().manual_seed(0)
    for step in range(30):
        logits = engine.step(state, torch.tensor([prefix[-1] for prefix in prefixes])).logits()
        beams = len(prefixes) // len(sentences)
        with torch.inference_mode():
            for row, prefix in enumerate(prefixes):
                sentence = sentences[row // beams]
                expected = model(torch.tensor([source[sentence]]), torch.tensor([prefix]))[0, -1]
                torch.testing.assert_close(logits[row], expected, atol=2e-4, rtol=1e-4)
        kept = None
        if step in (9, 20):  # the first sentence leaves
            kept, sentences = torch.arange(1, len(sentences)), sentences[1:]
        new_beams = 4 if step < 15 else 3
        old = range(len(sentences)) if kept is None else kept.tolist()
        rows = torch.cat([s * beams + torch.randint(beams, (new_beams,), generator=generator) for s in old])
        engine.reorder_rows(state, rows, kept)
        chosen = torch.randint(4, 150, (len(rows),), generator=generator).tolist()
        prefixes = [[*prefixes[row], token] for row, token in zip(rows.tolist(), chosen, strict=True)]


def test_slots_that_no_beam_descends_from_are_dropped() -> None:
    engine = SearchTransformer(make())
    state = engine.start(sources(4), beams=4)
    for _ in range(120):
        engine.step(state, torch.full((4,), 9)).logits()
        engine.reorder_rows(state, torch.zeros(4, dtype=torch.long))  # all beams continue the first one
    assert state.prefix_kv.num_entries < 120 * 4 / 2


def test_sentences_that_join_later_are_not_disturbed_and_disturb_nobody() -> None:
    model = make()
    engine = SearchTransformer(model)
    early, late = sources(6, 2), sources(9)
    state = engine.start(early, beams=2)
    prefix, newcomer = [1], [1]
    for token in (20, 30, 40):
        engine.step(state, torch.tensor([prefix[-1]] * 4)).logits()
        prefix.append(token)
    engine.admit(state, late)
    for token in (50, 60, 70):
        logits = engine.step(state, torch.tensor([prefix[-1]] * 4 + [newcomer[-1]] * 2)).logits()
        with torch.inference_mode():
            expected = [
                model(torch.tensor([ids]), torch.tensor([tokens]))[:, -1]
                for ids, tokens in ((early[0], prefix), (early[1], prefix), (late[0], newcomer))
            ]
        torch.testing.assert_close(logits[::2], torch.cat(expected), atol=2e-4, rtol=1e-4)
        engine.reorder_rows(state, torch.tensor([1, 0, 3, 2, 5, 4]))
        prefix.append(token)
        newcomer.append(token + 1)


@needs_int8
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_compiled_blocks_give_the_bits_of_their_parts(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.engine import int8

    engine, found = SearchTransformer(make(**changes), "int8"), []
    for compiled in (True, False):
        monkeypatch.setattr(int8, "uses_one_thread", lambda compiled=compiled: compiled)
        state = engine.start(sources(5, 3, 8), beams=2)
        for tokens in ([1] * 6, [20, 21, 22, 23, 24, 25], [30, 31, 32, 33, 34, 35]):
            logits = engine.step(state, torch.tensor(tokens)).logits()
            engine.reorder_rows(state, torch.tensor([1, 0, 3, 3, 4, 4]))
        engine.admit(state, sources(7))
        found.append((logits, engine.step(state, torch.tensor([9, 10, 11, 12, 13, 14, 1, 1])).logits()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


PRECISIONS = ["float32", pytest.param("int8", marks=needs_int8)]


def assert_ranks_all(model: Transformer, precision: Precision, count: int, forbidden: Sequence[int] = ()) -> None:
    """Assert that top-k by chunks equals top-k over all logits."""
    engine, tokens = SearchTransformer(model, precision), torch.tensor([1, 1])
    step = engine.step(engine.start(sources(5, 3)), tokens)
    expected = top_tokens(step.logits(), count, forbidden, 2)
    found = step.top_k(count, forbidden, 2)
    left = expected.log_probs > -torch.inf
    assert torch.equal(found.tokens[left], expected.tokens[left])
    assert (found.tokens < model.projection.out_features).all(), "the search goes on with what is left out, too"
    torch.testing.assert_close(found.log_probs, expected.log_probs)
    torch.testing.assert_close(found.eos_log_prob, expected.eos_log_prob)


@pytest.fixture(params=[0, torch_backend._RANKED_TOGETHER], ids=["in parts", "at once"])
def _how_vocabularies_are_ranked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few rows, all logits are ranked at once; with many, chunk by chunk."""
    monkeypatch.setattr(torch_backend, "_RANKED_TOGETHER", request.param)
    if kernels.is_available():
        from headway.engine import int8

        monkeypatch.setattr(int8, "_ROWS_TOGETHER", request.param)


@pytest.mark.slow_but_every(5)
@pytest.mark.usefixtures("_how_vocabularies_are_ranked")
@pytest.mark.parametrize("vocab_size", [150, 8192, 8200, 20_000])
@pytest.mark.parametrize("forbidden", [(), (0, 1, 3), (0, 2, 149), (2, 0, 0, 2)])
@pytest.mark.parametrize("count", [1, 6, 140])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_ranking_by_parts_equals_ranking_all_logits(
    vocab_size: int, forbidden: tuple[int, ...], count: int, precision: Precision
) -> None:
    assert_ranks_all(make(vocab_size, output_bias=True), precision, count, forbidden)


@pytest.mark.usefixtures("_how_vocabularies_are_ranked")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_part_may_have_no_token_left(precision: Precision) -> None:
    assert_ranks_all(make(8194), precision, 6, (0, 8192, 8193))
    ruled_out_by_the_model = make(8300, output_bias=True)
    with torch.no_grad():
        ruled_out_by_the_model.projection.bias[8190:] = -torch.inf
    assert_ranks_all(ruled_out_by_the_model, precision, 6, (0,))
    engine = SearchTransformer(make(), precision)
    nothing = engine.step(engine.start(sources(5)), torch.tensor([1])).top_k(3, range(150), 2)
    assert (nothing.log_probs == -torch.inf).all()
    assert nothing.eos_log_prob.isfinite()


@pytest.mark.usefixtures("_how_vocabularies_are_ranked")
@pytest.mark.parametrize("largest", [20.0, 700.0, 1e6, 1e30])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_certain_token_has_probability_1(largest: float, precision: Precision) -> None:
    """Probabilities do not exceed 1, because the search assumes that scores only decrease."""
    model = make(9000, output_bias=True)
    with torch.no_grad():
        model.projection.weight.zero_()
        model.projection.bias.zero_()
        model.projection.bias[77] = largest * 1.2345678
    engine = SearchTransformer(model, precision)
    best = engine.step(engine.start(sources(3)), torch.tensor([1])).top_k(3, (0, 1), 2)
    assert best.tokens[0, 0] == 77
    assert -1e-4 < float(best.log_probs[0, 0]) <= 0
    assert (best.log_probs <= 0).all()


@pytest.mark.usefixtures("_how_vocabularies_are_ranked")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_of_equal_logits_the_first_tokens_come_first(precision: Precision) -> None:
    model = make(194, output_bias=True)
    with torch.no_grad():
        model.projection.weight.zero_()
        model.projection.bias.fill_(-torch.inf)
        for token, logit in ((192, 3.0), (193, 2.0), (70, 2.0), (2, 2.0)):
            model.projection.bias[token] = logit
    assert_ranks_all(model, precision, 4)
    assert_ranks_all(model, precision, 9)  # four tokens are left, and the last block's other 62 columns are no tokens


@pytest.mark.usefixtures("_how_vocabularies_are_ranked")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("where", ["projection.weight", "encoder.blocks.1.feed_forward.inner.weight"])
def test_damaged_weights_are_seen_in_the_ranking(precision: Precision, where: str) -> None:
    model = make()
    with torch.no_grad():
        model.get_parameter(where)[7, 3] = torch.nan
    engine = SearchTransformer(model, precision)
    assert engine.step(engine.start(sources(3)), torch.tensor([1])).top_k(4, (), 2).log_probs.isnan().any()


@pytest.mark.slow_but_every(3)
@needs_int8
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_in_integers_a_row_does_not_depend_on_what_is_beside_it(changes: dict[str, Any]) -> None:
    """Results do not depend on other sentences, on padding, or on the beams that share a cache, bit for bit."""
    model = make(**changes)
    engine = SearchTransformer(model, "int8")
    source = sources(7, 3, 5)
    state, prefixes = engine.start(source), [[1], [1], [1]]
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        logits = engine.step(state, torch.tensor([prefix[-1] for prefix in prefixes])).logits()
        beams = len(prefixes) // 3
        if step in (0, 1, 5, 11):
            for row, prefix in enumerate(prefixes):
                alone = engine.start([source[row // beams]])
                for token in prefix:
                    expected = engine.step(alone, torch.tensor([token])).logits()
                assert torch.equal(logits[row], expected[0])
        rows = torch.cat([s * beams + torch.randint(beams, (4,), generator=generator) for s in range(3)])
        engine.reorder_rows(state, rows)
        chosen = torch.randint(4, 150, (len(rows),), generator=generator).tolist()
        prefixes = [[*prefixes[row], token] for row, token in zip(rows.tolist(), chosen, strict=True)]


@needs_int8
@pytest.mark.parametrize("min_length", [0, 5])
def test_in_integers_a_request_does_not_depend_on_the_rules_of_others(min_length: int) -> None:
    """Results are equal bit for bit, whether others in the batch have phrases to include, prefixes or neither."""
    engine, options = SearchTransformer(make(), "int8"), DecodingOptions(beam_size=4, n_best=4, min_length=min_length)
    rules: list[dict[str, Any]] = [
        {},
        {"include": (((7, 8),),)},
        {},
        {"banned": ((9,), (10, 11))},
        {"prefix": (5, 6)},
        {},
    ]
    requests = [
        Request(source=tuple(source), limit=6 + 3 * number, **own)
        for number, (source, own) in enumerate(zip(sources(7, 3, 5, 4, 6, 12), rules, strict=True))
    ]
    vocabulary, limits = SearchVocabulary(1, 2, banned=(0, 1)), {"max_batch_tokens": 4096, "max_sequences": 64}
    together = search_all(engine, requests, options, vocabulary, **limits)
    assert together == [search_all(engine, [each], options, vocabulary, **limits)[0] for each in requests]


@needs_int8
def test_long_sources_in_integers_stay_near_the_reference() -> None:
    """Targets beyond the length for which the kernel computes self-attention, next to padding."""
    model = make()
    found, expected = [
        engine.step(engine.start(sources(90, 4)), torch.tensor([1, 1])).logits().log_softmax(-1)
        for engine in (SearchTransformer(model, "int8"), SearchTransformer(model))
    ]
    assert (found - expected).abs().mean() / (expected - expected.mean()).abs().mean() < 0.05


@needs_int8
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_in_integers_a_source_of_any_length_does_not_depend_on_its_neighbors(changes: dict[str, Any]) -> None:
    """Results are equal bit for bit for short sources beside long ones, and for long ones beside longer ones."""
    model = make(**{**changes, **({"max_length": 200} if "max_length" in changes else {})})
    engine = SearchTransformer(model, "int8")
    source = sources(4, 64, 90, 65, 150, 1)
    together = engine.step(engine.start(source), torch.ones(6, dtype=torch.long)).logits()
    for ids, found in zip(source, together, strict=True):
        alone = engine.step(engine.start([ids]), torch.tensor([1])).logits()
        assert torch.equal(found, alone[0]), len(ids)


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("int8", marks=needs_int8)])
def test_lower_precisions_stay_near_the_reference(precision: Any) -> None:
    model = make()
    found, expected = [
        engine.step(engine.start(sources(6, 4)), torch.tensor([1, 1])).logits().log_softmax(-1)
        for engine in (SearchTransformer(model, precision), SearchTransformer(model))
    ]
    error = (found - expected).abs().mean() / (expected - expected.mean()).abs().mean()
    assert 0 < error < 0.05


def test_the_model_in_use_is_not_changed() -> None:
    model = make()
    before = [parameter.clone() for parameter in model.parameters()]
    for precision in ("float32", "auto"):
        engine = SearchTransformer(model, precision)
        engine.step(engine.start(sources(4, 2)), torch.tensor([1, 1])).logits()
    assert all(torch.equal(*pair) for pair in itertools.zip_longest(before, model.parameters()))
