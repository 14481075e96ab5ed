"""Beginnings that several prompts share are computed once, with the results of separate calls."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from headway import kernels
from headway.decode import DecodingOptions, Request, Sampling, SearchVocabulary, search_all
from headway.engine import Precision, to_search_model
from headway.engine.prompts import PromptRows, prompt_attention
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig

VARIANTS: dict[str, dict[str, Any]] = {
    "gpt2": {"activation": "gelu_tanh"},
    "llama": {"norm_kind": "rms", "positions": "rotary", "activation": "swiglu", "num_kv_heads": 2, "bias": "none"},
    "scaled rotary positions": {
        "positions": "rotary",
        "rotary_scaling": {"kind": "llama3", "factor": 4.0, "original_length": 64},
        "qk_norm": True,
        "parallel": True,
    },
    "window": {"positions": "rotary", "decoder_window": 70},
    "short window, sinusoidal": {"positions": "sinusoidal", "decoder_window": 5},
    "narrow keys": {"d_key": 6, "d_value": 10, "positions": "none", "norm": "post", "decoder_layers": 1},
}
PRECISIONS = [
    "float32",
    "bfloat16",
    pytest.param("int8", marks=pytest.mark.skipif(not kernels.is_available(), reason="no compiled kernels")),
]
TOLERANCES = {"float32": 1e-4, "bfloat16": 0.2, "int8": 0.3}  # of a row's logits, relative to their norm


def make(**changes: Any) -> DecoderOnly:
    torch.manual_seed(1)
    sizes = {"d_model": 32, "num_heads": 4, "d_ff": 64, "decoder_layers": 3, "max_length": 240}
    model = DecoderOnly(DecoderOnlyConfig.parse({**sizes, **changes}, "test"), 60).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    return model


def make_prompts() -> list[list[int]]:
    """Three groups with common beginnings, two of which agree in the first tokens, and prompts that equal others."""
    draw = random.Random(0)
    first, second, third = (draw.choices(range(4, 60), k=length) for length in (150, 40, 64))
    ends = [draw.choices(range(4, 60), k=length) for length in (30, 3, 0, 70)]
    grouped = [beginning + end for beginning in (first, first[:40] + second, third) for end in ends]
    short = [[7], [7], [7, 8], first[:31], first[:33]]
    return [*grouped, [], grouped[5], first[:100], *short]


def logits_after(model: Any, prompts: list[list[int]], beams: int = 1) -> Tensor:
    """Return the logits of all rows after each of three equal tokens, (R, 3, V)."""
    with torch.inference_mode():
        state = model.start(prompts, beams=beams)
        tokens = torch.full((len(prompts) * beams,), 9)
        return torch.stack([model.step(state, tokens).logits() for _ in range(3)], dim=1)


def assert_near(found: Tensor, expected: Tensor, precision: Precision) -> None:
    errors = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert errors.max() < TOLERANCES[precision]


@pytest.mark.slow_but_every(5)
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_results_are_those_of_each_prompt_alone(precision: Precision, changes: dict[str, Any]) -> None:
    plain, prompts = make(**changes), make_prompts()
    model = to_search_model(plain, precision)
    together = logits_after(model, prompts)
    alone = torch.cat([logits_after(model, [prompt]) for prompt in prompts])
    if precision == "int8":
        assert torch.equal(together, alone)
    assert_near(together, alone, precision)
    assert_near(together, logits_after(plain, prompts), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_prompts_that_join_later_share_their_beginning_and_disturb_nobody(precision: Precision) -> None:
    model, prompts = to_search_model(make(), precision), make_prompts()
    with torch.inference_mode():
        state = model.start(prompts[:3], beams=2)
        model.admit(state, prompts[3:])
        found = model.step(state, torch.full((2 * len(prompts),), 9)).logits()
    expected = logits_after(model, prompts, beams=2)[:, 0]
    if precision == "int8":
        assert torch.equal(found, expected)
    assert_near(found, expected, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_prompts_with_a_common_beginning_take_the_place_of_one_that_has_left(precision: Precision) -> None:
    model, common = to_search_model(make(), precision), [7 + number % 3 for number in range(40)]
    first, joining = [[5, 6, 7], [6, 5], [8, 5, 6, 9] * 12, [9], [4, 6]], [[*common, 5], [*common, 6]]
    kept = torch.tensor([0, 2, 4])
    with torch.inference_mode():
        state = model.start(first, beams=2)
        model.reorder_rows(state, torch.tensor([0, 1, 4, 5, 8, 9]), kept)
        model.admit(state, joining)
        assert state.prefix_kv.slots.tolist() == [0, 2, 4, 1, 3]
        found = model.step(state, torch.full((10,), 9)).logits()
    expected = logits_after(model, [*(first[at] for at in kept), *joining], beams=2)[:, 0]
    if precision == "int8":
        assert torch.equal(found, expected)
    assert_near(found, expected, precision)


@pytest.mark.skipif(not kernels.is_available(), reason="no compiled kernels")
@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(beam_size=3, n_best=3, length_penalty=0.0),
        DecodingOptions(n_best=2, length_penalty=0.0, sampling=Sampling(seed=5)),
    ],
    ids=["beam", "samples"],
)
def test_searches_find_the_same_in_integers(options: DecodingOptions) -> None:
    model = to_search_model(make(), "int8")
    requests = [
        Request(source=tuple(prompt[:-1]), first_token=prompt[-1], limit=6) for prompt in make_prompts() if prompt
    ]

    def search(chosen: list[Request]) -> list[list[tuple[int, ...]]]:
        found = search_all(model, chosen, options, SearchVocabulary(1, 2), max_batch_tokens=1 << 14, max_sequences=64)
        return [[each.tokens for each in hypotheses] for hypotheses in found]

    assert search(requests) == [search([request])[0] for request in requests]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_common_beginnings_are_computed_once(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    beginning = draw.choices(range(4, 60), k=100)
    model, rows = make(), []
    embed = DecoderOnly.embed

    def counted(self: DecoderOnly, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        rows.append(tokens.numel())
        return embed(self, tokens, positions)

    monkeypatch.setattr(DecoderOnly, "embed", counted)
    to_search_model(model, precision).start([[*beginning, *draw.choices(range(4, 60), k=5)] for _ in range(8)])
    assert rows == [100 + 8 * 5]


def test_rows_have_the_tokens_of_their_prompts() -> None:
    prompts = make_prompts()
    packed = PromptRows.pack(prompts, 0, torch.device("cpu"))
    assert packed.positions is not None
    tokens, positions = packed.tokens.squeeze(1).tolist(), packed.positions.tolist()
    assert len(tokens) == len(positions) == sum(span.length - span.shared for span in packed.spans)
    for span, before in zip(packed.spans, [None, *packed.spans], strict=False):
        own = prompts[span.prompt][span.shared :]
        assert tokens[span.own_rows] == own
        assert positions[span.own_rows] == list(range(span.shared, span.length))
        if before is not None:
            assert span.shared_with == before.prompt
        assert prompts[span.shared_with][: span.shared] == prompts[span.prompt][: span.shared]
    # Of the prompts, only those with fewer than 32 tokens in common with any other are computed as a whole.
    whole = [prompts[span.prompt] for span in packed.spans if not span.shared]
    assert sorted(len(prompt) for prompt in whole) == [0, 1, 1, 2, 31, 33, 64]


@pytest.mark.parametrize(
    "prompts",
    [[[4] * 5, [5] * 3], [[4] * 31 + [5], [4] * 31 + [6]], [[4] * 32 + [5] * 90, [4] * 32 + [6]]],
    ids=["different", "too short", "too little saved"],
)
def test_without_much_in_common_rows_are_those_of_the_padded_prompts(prompts: list[list[int]]) -> None:
    packed = PromptRows.pack(prompts, 0, torch.device("cpu"))
    assert packed.positions is None
    padded = packed.tokens.flatten().tolist()
    assert len(padded) == 2 * len(prompts[0])
    assert [padded[span.own_rows] for span in packed.spans] == prompts


def test_attention_does_not_read_what_another_prompt_has_left_behind() -> None:
    prompts = PromptRows.pack([[4] * 40, [5] * 3], 0, torch.device("cpu"))
    query, key, value = (torch.randn(80, heads, 8) for heads in (4, 2, 2))
    expected = prompt_attention(query, key, value, prompts, None)
    key[3:40], value[3:40] = torch.nan, torch.nan
    found = prompt_attention(query, key, value, prompts, None)
    assert found[3:40].isnan().all()
    assert torch.equal(found[40:], expected[40:])
