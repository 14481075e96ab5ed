"""The decoder-only Transformer: causality, GPT-2's form and initialization, and decoding from prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from state_life import continue_and_compare
from torch import Tensor

from headway.decode import DecodingOptions, Request, SearchModel, SearchVocabulary, search
from headway.decode.request import Sampling
from headway.decode.sampling import sampling_keys
from headway.errors import ConfigError, LengthError
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig

VOCABULARY, BOS, EOS = 20, 1, 2


def build(**options: Any) -> DecoderOnly:
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 24, "decoder_layers": 2, "max_length": 30}
    torch.manual_seed(0)
    return DecoderOnly(DecoderOnlyConfig.parse({**sizes, **options}, "test"), VOCABULARY).eval()


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(4, VOCABULARY, shape)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
def test_no_position_sees_later_tokens(positions: str) -> None:
    model, tokens = build(positions=positions), random_tokens(2, 9)
    changed = tokens.clone()
    changed[:, 5:] = random_tokens(2, 4)
    torch.testing.assert_close(model(tokens)[:, :5], model(changed)[:, :5])
    assert not torch.allclose(model(tokens)[:, 5], model(changed)[:, 5])


def test_a_window_limits_what_a_position_sees() -> None:
    model, tokens = build(decoder_layers=1, decoder_window=3, positions="rotary"), random_tokens(1, 9)
    changed = tokens.clone()
    changed[:, :4] = random_tokens(1, 4)
    torch.testing.assert_close(model(tokens)[:, 6:], model(changed)[:, 6:])
    assert not torch.allclose(model(tokens)[:, 5], model(changed)[:, 5])


@pytest.mark.parametrize("preset", ["llama2-7b", "llama2-13b", "llama3-8b"])
def test_presets_that_no_device_can_train_are_refused(preset: str) -> None:
    expected = (
        rf"preset = '{preset}': version 0\.1\.0 removed this.*the largest presets are 'llama3\.2-1b' and 'gpt2-xl'"
    )
    with pytest.raises(ConfigError, match=expected):
        DecoderOnlyConfig.parse({"preset": preset, "dropout": 0.1}, "test")


def test_the_gpt2_preset_has_the_published_number_of_weights() -> None:
    config = DecoderOnlyConfig.parse({"preset": "gpt2"}, "test")
    with torch.device("meta"):
        model = DecoderOnly(config, 50_257)
    # Radford et al. 2019 say 117M; the released checkpoint of that model has 124,439,808 weights.
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


@torch.no_grad()
def test_weights_start_as_in_gpt2() -> None:
    model = build(d_model=256, num_heads=4, d_ff=1024, decoder_layers=8)
    block = model.decoder.blocks[0]
    stds = {
        "embedding": model.embedding.weight.std(),
        "positions": model.positions.get_parameter("table").std(),
        "attention": block.get_parameter("attention.projection.weight").std(),
        "inner": block.get_parameter("feed_forward.inner.weight").std(),
    }
    for name, std in stds.items():
        assert float(std) == pytest.approx(0.02, rel=0.05), name
    for name in ("attention.output.weight", "feed_forward.outer.weight"):
        assert float(block.get_parameter(name).std()) == pytest.approx(0.02 / 4, rel=0.05), name  # sqrt(2 * 8) = 4
    assert model.projection.weight is model.embedding.weight


def test_an_untied_projection_has_weights_of_its_own() -> None:
    assert build(tie="none").projection.weight is not build(tie="none").embedding.weight
    assert "projection.weight" in dict(build(tie="none").named_parameters())
    assert "projection.weight" not in dict(build().named_parameters())


def test_an_encoder_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no encoder"):
        build(encoder_window=3)


def test_a_sequence_beyond_the_learned_positions_is_refused() -> None:
    with pytest.raises(LengthError, match="longer than the 30 positions"):
        build()(random_tokens(1, 31))


# Decoding.

OPTIONS: list[dict[str, Any]] = [
    {},
    {"positions": "rotary"},
    {"positions": "sinusoidal", "activation": "swiglu"},
    {"decoder_window": 3},
    {"decoder_window": 3, "positions": "rotary", "d_value": 5},
    {"positions": "relative_bias", "relative_buckets": 4, "relative_max_distance": 4, "parallel": True},
    {"norm": "post", "tie": "none", "output_bias": True},
    {"score": "additive"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_step_by_step_equals_one_pass(options: dict[str, Any]) -> None:
    model = build(**options)
    assert isinstance(model, SearchModel)
    continue_and_compare(model, random_tokens)


def test_beams_of_a_prompt_are_searched_as_separate_rows() -> None:
    model = build()
    prompt = tuple(random_tokens(4).tolist())
    request = Request(source=(BOS, *prompt[:-1]), first_token=prompt[-1], limit=5)
    (found,) = search(
        model, [request], DecodingOptions(beam_size=4, n_best=4, length_penalty=0.0), SearchVocabulary(BOS, EOS)
    )
    assert len(found) == 4
    for hypothesis in found:
        tokens = torch.tensor([[BOS, *prompt, *hypothesis.tokens]])
        log_probs = model(tokens)[0].log_softmax(-1)[len(prompt) :]
        continued = torch.tensor([*hypothesis.tokens, EOS])
        expected = log_probs.gather(1, continued.unsqueeze(1)).sum()
        assert hypothesis.log_probability == pytest.approx(float(expected.detach()), abs=1e-4)


def test_a_prompt_of_one_token_needs_no_source() -> None:
    request = Request(source=(), first_token=BOS, limit=3)
    (found,) = search(build(), [request], DecodingOptions(beam_size=1), SearchVocabulary(BOS, EOS))
    assert len(found[0].tokens) <= 3


def test_the_draws_of_a_prompt_depend_on_all_its_tokens() -> None:
    requests = [Request(source=(BOS, 5), first_token=last, limit=12) for last in (6, 6, 7)]
    one, same, other = (sampling_keys(request, Sampling(), 2) for request in requests)
    assert one == same
    assert not set(one) & set(other)
