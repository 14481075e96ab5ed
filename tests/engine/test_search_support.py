"""Which models have an optimized form for search, in which precisions, and what is reported about the others."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
import torch
from config_variants import PLAIN_SEARCH
from torch import Tensor

from headway import kernels
from headway.config import Inert
from headway.engine import (
    SearchTransformer,
    choose_precision,
    describe_search_acceleration,
    fastest_float_precision,
    search_precision,
    search_support,
    to_search_model,
    unsupported_reason,
)
from headway.errors import ConfigError
from headway.hardware import has_fast_bfloat16
from headway.models.decoder_only import DecoderOnlyConfig
from headway.models.transformer import Transformer, TransformerConfig

needs_int8 = pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")


def make(**changes: Any) -> Transformer:
    sizes = {"d_model": 32, "num_heads": 4, "d_ff": 48, "encoder_layers": 1, "decoder_layers": 2}
    return Transformer(TransformerConfig.parse({**sizes, **changes}, "test"), 20, 20).eval()


def test_auto_follows_the_hardware() -> None:
    cpu = torch.device("cpu")
    without_int8 = "bfloat16" if has_fast_bfloat16(cpu) else "float32"
    assert choose_precision("auto", cpu) == ("int8" if kernels.is_available() else without_int8)
    with pytest.raises(ConfigError, match="int8 is not supported on cuda; use --device cpu or --precision auto"):
        choose_precision("int8", torch.device("cuda"))


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in PLAIN_SEARCH.items() for value in values]
)
def test_models_that_search_in_their_own_form_are_named(name: str, value: str) -> None:
    model = make(**{name: value})
    reason = f"{name} = {value!r} has no form .* the model searches in its own form"
    assert re.match(reason, unsupported_reason(model) or "")
    assert to_search_model(model) is model
    with pytest.raises(ConfigError, match=reason):
        SearchTransformer(model)
    assert unsupported_reason(make()) is None


@pytest.mark.parametrize("value", [3.0, torch.nn.Linear(8, 8)])
def test_attention_with_an_unknown_part_searches_in_its_own_form(value: Any) -> None:
    """A layer may have a part that the configuration does not name."""
    model = make()
    attention: Any = model.get_submodule("decoder.blocks.1.attention")
    attention.gate = value
    reason = "decoder.blocks.1.attention, an attention layer with gate, has no form"
    assert (unsupported_reason(model) or "").startswith(reason)
    assert to_search_model(model) is model


def test_attention_with_an_unknown_buffer_searches_in_its_own_form() -> None:
    model = make()
    model.get_submodule("decoder.blocks.1.attention").register_buffer("slopes", torch.ones(4))
    assert (unsupported_reason(model) or "").startswith("decoder.blocks.1.attention, an attention layer with slopes")


class ScaleNorm(torch.nn.Module):
    """A norm that the conversion does not support."""

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = x / x.norm(dim=-1, keepdim=True)
        return normed


def test_modules_that_are_not_known_exactly_make_a_model_plain() -> None:
    class Special(torch.nn.LayerNorm):
        pass

    changed = {
        "encoder.norm": ScaleNorm(),
        "decoder.blocks.0.feed_forward_residual.norm": Special(32),
    }
    for name, module in changed.items():
        model = make(norm="pre")
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, module)
        assert (unsupported_reason(model) or "").startswith(f"{name}, a {type(module).__name__}, has no form"), name
        assert to_search_model(model, "int8") is model
    model = make()
    model.decoder.blocks[0].feed_forward.activation = torch.tanh  # type: ignore[union-attr]
    assert "decoder.blocks.0.feed_forward, with the activation" in (unsupported_reason(model) or "")
    model = make()
    model.decoder.blocks[1].get_submodule("cross_attention.output").register_forward_hook(lambda *_: None)
    assert "with a hook that must be called" in (unsupported_reason(model) or "")


class WithNewOptions(TransformerConfig):
    """A config with options that no form of a model has been taught."""

    sinks: int | None = None
    temperature: Annotated[float, Inert(1.0)] = 0.5


def test_an_option_that_is_not_listed_makes_a_model_plain_unless_it_is_inert() -> None:
    model, known = make(), make().config.as_dict()
    model.config = WithNewOptions.parse_saved(known, "test")
    assert unsupported_reason(model) is None
    assert isinstance(to_search_model(model), SearchTransformer)
    for keys, option in (({"sinks": 2, "temperature": 1.0}, "sinks = 2"), ({}, "temperature = 0.5")):
        model.config = WithNewOptions.parse({**known, **keys}, "test")
        reason = unsupported_reason(model) or ""
        assert reason.startswith(f"{option} has no form that is optimized for search"), "a default may not be inert"
        assert "headway/engine/search_support.py lists" in reason
        assert to_search_model(model, "int8") is model


def test_no_list_of_values_leaves_out_the_inert_one() -> None:
    for config in (TransformerConfig, DecoderOnlyConfig):
        for name, inert in config.inert_values().items():
            for supported in search_support.SUPPORTED.values():
                assert (values := supported.get(name)) is None or inert in values


@needs_int8
def test_an_option_may_have_a_fast_form_in_some_precisions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    without = {name: values for name, values in search_support.SUPPORTED["int8"].items() if name != "qk_norm"}
    monkeypatch.setitem(search_support.SUPPORTED, "int8", without)
    model, cpu = make(qk_norm=True), torch.device("cpu")
    assert unsupported_reason(model) is None
    reason = "qk_norm = True has no form for searches in int8"
    assert (unsupported_reason(model, "int8") or "").startswith(reason)
    with pytest.raises(ConfigError, match=f"precision 'int8': {reason}"):
        SearchTransformer(model, "int8")
    assert search_precision(model, "auto", cpu) == fastest_float_precision(cpu)
    assert search_precision(make(), "auto", cpu) == "int8"
    assert to_search_model(model, "auto").precision == fastest_float_precision(cpu)  # type: ignore[attr-defined]
    assert describe_search_acceleration(model).startswith(f"optimized, in float32 or bfloat16; not in int8 ({reason}")


def test_the_search_form_of_a_model_is_reported_with_its_reason() -> None:
    assert describe_search_acceleration(Transformer(TransformerConfig.preset("tiny"), 20, 20)).startswith("optimized")
    plain = describe_search_acceleration(Transformer(TransformerConfig.preset("tiny", score="dot"), 20, 20))
    assert plain.startswith("plain: score = 'dot' has no form")
