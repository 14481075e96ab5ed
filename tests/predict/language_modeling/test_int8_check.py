"""Language models with outlier channels: int8 predicts the tokens of float32, or "auto" generates in another form."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headway
from headway import kernels
from headway.bundle import LanguageModelBundle
from headway.engine import to_search_model
from headway.engine.int8_check import INT8_CHECK_FILE, Int8Check, write_int8_check
from headway.errors import BundleError, ConfigError
from headway.models.decoder_only import DecoderOnly
from headway.nn.blocks import CausalBlock, GatedFeedForward
from headway.predict import LanguageModel, load_language_model
from headway.serve.config import ServeConfig
from headway.serve.workers.loader import _precision_note
from headway.text.base import BOS, EOS
from headway.text.special_tokens import SpecialTokenTemplate

pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")

LLAMA = {"norm_kind": "rms", "bias": "none", "activation": "swiglu", "positions": "rotary", "num_kv_heads": 1}
FORMS: dict[str, dict[str, Any]] = {
    "GPT-2": {"activation": "gelu_tanh"},
    "GPT-NeoX": {"positions": "rotary", "rotary_fraction": 0.25, "parallel": True, "tie": "none"},
    "Llama": {**LLAMA, "tie": "none"},
    "Qwen2": {**LLAMA, "bias": "qkv"},
    "Qwen3": {**LLAMA, "qk_norm": True},
}
POST_NORM = {"activation": "gelu", "norm": "post"}  # GPT (2018)
OUTLIERS = [3, 17, 40]


@pytest.fixture
def make(make_language_model: Callable[..., LanguageModel]) -> Callable[[str], DecoderOnly]:
    """Return a function that makes a model of a form, with gains as different as those of trained models."""

    def make(form: str) -> DecoderOnly:
        model = make_language_model(
            "characters", d_model=64, d_ff=128, max_length=64, **{**FORMS, "post-norm": POST_NORM}[form]
        ).bundle.model
        assert isinstance(model, DecoderOnly)
        torch.manual_seed(1)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.uniform_(0.5, 1.5) if name.endswith("weight") else weight.normal_(std=0.1)
        return model

    return make


def following(model: DecoderOnly) -> list[tuple[nn.Module, list[nn.Linear]]]:
    """Return each norm whose gains the layers after it can undo, and these layers."""
    found: list[tuple[nn.Module, list[nn.Linear]]] = []
    for block in model.decoder.blocks:
        assert isinstance(block, CausalBlock)
        inner = block.feed_forward
        layers = [inner.gate, inner.inner] if isinstance(inner, GatedFeedForward) else [inner.inner]
        norms = [block.get_submodule(f"{name}_residual.norm") for name in ("attention", "feed_forward")]
        found += [(norms[0], [block.attention.projection]), (norms[1], layers)]
    return found + [(model.decoder.norm, [model.projection])] * (model.config.tie == "none")


@torch.no_grad()
def with_gains(model: DecoderOnly, factor: float) -> DecoderOnly:
    """Multiply the gains of a few channels, and divide the weights that read them: the function stays."""
    for norm, layers in following(model):
        for gain in norm.parameters():
            gain[OUTLIERS] *= factor
        for layer in layers:
            layer.weight[:, OUTLIERS] /= factor
    return model


def stepwise(search_model: Any, tokens: Tensor) -> Tensor:
    state = search_model.start([()] * len(tokens))
    return torch.stack([search_model.step(state, column).logits() for column in tokens.unbind(1)], 1)


def random_tokens(model: DecoderOnly, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, model.embedding.weight.size(0), (24, 20), generator=generator)


def agreement(model: DecoderOnly) -> float:
    """Return the share of equal top tokens in float32 and int8, on other tokens than the check's."""
    tokens = random_tokens(model)
    with torch.inference_mode():
        found = stepwise(to_search_model(model, "int8"), tokens)
        return float((found.argmax(-1) == model(tokens).argmax(-1)).float().mean())


def opened(model: DecoderOnly, make_language_model: Callable[..., LanguageModel], **settings: Any) -> LanguageModel:
    """Return the predictor of an imported model, of which "auto" asks for the check."""
    like = make_language_model("characters").bundle
    bundle = LanguageModelBundle(like.task, model, like.tokenizer, SpecialTokenTemplate(source_prefix=(BOS,)))
    return LanguageModel(bundle, **{"precision": "auto", **settings})


@pytest.mark.parametrize("form", FORMS)
def test_gains_that_the_next_layer_undoes_change_no_bit_of_int8(form: str, make: Callable[[str], DecoderOnly]) -> None:
    plain, outlying = make(form), with_gains(make(form), 128)
    found, expected = (stepwise(to_search_model(each, "int8"), random_tokens(each)) for each in (outlying, plain))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("factor", [1, 10, 100])
@pytest.mark.parametrize("form", FORMS)
def test_top_tokens_are_those_of_float32_or_auto_leaves_int8(
    form: str, factor: float, make: Callable[[str], DecoderOnly], make_language_model: Callable[..., LanguageModel]
) -> None:
    model = with_gains(make(form), factor)
    assert agreement(model) >= 0.94 or opened(model, make_language_model).precision != "int8"


@torch.no_grad()
def with_outliers_inside(model: DecoderOnly) -> DecoderOnly:
    """Make a few units of each gated feed-forward layer large, and divide the weights that read them."""
    for block in model.decoder.blocks:
        assert isinstance(block, CausalBlock)
        assert isinstance(block.feed_forward, GatedFeedForward)
        block.feed_forward.inner.weight[OUTLIERS] *= 1000
        block.feed_forward.outer.weight[:, OUTLIERS] /= 1000
    return model


@torch.no_grad()
def with_outliers_in_the_residual_stream(model: DecoderOnly) -> DecoderOnly:
    """Make a few channels of all embeddings large, and the gains that read them small."""
    model.embedding.weight[:, OUTLIERS] += 100 * model.embedding.weight.std()
    for norm, _ in following(model):
        norm.weight[OUTLIERS] /= 100  # type: ignore[operator, index]
    return model


@torch.no_grad()
def with_large_gains(model: DecoderOnly) -> DecoderOnly:
    """Make a few gains of post-norm blocks large, which are also the residual stream."""
    for block in model.decoder.blocks:
        for residual in (block.attention_residual, block.feed_forward_residual):
            residual.norm.weight[OUTLIERS] *= 100  # type: ignore[union-attr, operator, index]
    return model


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("Llama", with_outliers_inside),
        ("GPT-2", with_outliers_in_the_residual_stream),
        ("GPT-NeoX", with_outliers_in_the_residual_stream),
        ("post-norm", with_large_gains),
    ],
)
def test_outliers_that_folding_cannot_remove(
    form: str,
    change: Callable[[DecoderOnly], DecoderOnly],
    make: Callable[[str], DecoderOnly],
    make_language_model: Callable[..., LanguageModel],
) -> None:
    model = change(make(form))
    assert agreement(model) >= 0.94 or opened(model, make_language_model).precision != "int8"


def test_auto_leaves_int8_if_outliers_are_elsewhere(
    make: Callable[[str], DecoderOnly], make_language_model: Callable[..., LanguageModel]
) -> None:
    model = with_outliers_inside(make("Llama"))
    assert agreement(model) < 0.94
    auto = opened(model, make_language_model)
    assert auto.precision in ("float32", "bfloat16")
    assert (note := auto.precision_note()) is not None
    assert note.startswith(f"generates in {auto.precision}: the most probable token is the same in int8 and")
    assert opened(model, make_language_model, precision="int8").precision == "int8"
    assert auto.generate("a", max_new_tokens=2, temperature=0)[0].ids


@pytest.mark.parametrize("vocabulary", ["characters", "whitespace"])
def test_a_sure_model_generates_in_int8(vocabulary: str, make_language_model: Callable[..., LanguageModel]) -> None:
    """Its next token depends on the last one alone, by a wide margin; a vocabulary of words has none of the poem's."""
    model = make_language_model(vocabulary, tie="none")
    network = model.bundle.model
    assert isinstance(network, DecoderOnly)
    with torch.no_grad():
        for block in network.decoder.blocks:
            assert isinstance(block, CausalBlock)
            block.attention.output.weight.zero_()
            block.feed_forward.outer.weight.zero_()
        network.positions.table.zero_()  # type: ignore[operator]
        normed = network.decoder.norm(network.embedding.weight)
        network.projection.weight.copy_(normed.roll(1, 0))
    bundle = replace(model.bundle, imported_token_template=SpecialTokenTemplate(source_prefix=(BOS,)))
    auto = LanguageModel(bundle, precision="auto")
    assert auto.awaits_int8_check
    assert auto.int8_check is not None
    assert not auto.awaits_int8_check
    assert auto.int8_check.agreement == 1
    assert (auto.precision, auto.precision_note()) == ("int8", None)


@torch.no_grad()
def with_large_keys(model: DecoderOnly) -> DecoderOnly:
    """Multiply the keys of the second layer, and divide its queries: the function stays."""
    block = model.decoder.blocks[1]
    assert isinstance(block, CausalBlock)
    attention = block.attention
    queries, keys, _ = attention.widths
    for weight in (attention.projection.weight, attention.projection.bias):
        weight[:queries] /= 1e6
        weight[queries : queries + keys] *= 1e6
    return model


def test_keys_that_exceed_16_bit_floats_are_named(
    make: Callable[[str], DecoderOnly], make_language_model: Callable[..., LanguageModel]
) -> None:
    model = with_large_keys(make("GPT-2"))
    named = r"keys or values in decoder layer 2 exceed the range of the 16-bit floats .* use precision 'float32'"
    in_int8 = opened(model, make_language_model, precision="int8")
    with pytest.raises(ConfigError, match=named):
        in_int8.generate("abc", max_new_tokens=2)
    with pytest.raises(ConfigError, match=named):
        in_int8.score(["abc"], precision="auto")
    auto = opened(model, make_language_model)
    assert auto.precision != "int8"
    assert auto.generate("abc", max_new_tokens=2)


def test_damaged_weights_are_still_damaged(
    make: Callable[[str], DecoderOnly], make_language_model: Callable[..., LanguageModel]
) -> None:
    model = make("GPT-2")
    with torch.no_grad():
        model.get_parameter("decoder.blocks.0.attention.projection.weight")[70, 3] = torch.nan
    with pytest.raises(BundleError, match="weights are damaged"):
        opened(model, make_language_model, precision="int8").generate("abc", max_new_tokens=2)


def test_models_that_headway_trained_are_not_checked(
    make_language_model: Callable[..., LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "headway.predict.language_modeling.language_model.check_int8", lambda *_: pytest.fail("checked")
    )
    model = LanguageModel(make_language_model("characters").bundle, precision="auto")
    assert model.generate("a", max_new_tokens=2)
    assert (model.precision, model.int8_check, model.awaits_int8_check) == ("int8", None, False)


def test_the_service_leaves_int8_by_default_and_says_what_it_is_asked_to_keep(
    tmp_path: Path, make_language_model: Callable[..., LanguageModel]
) -> None:
    folder = tmp_path / "model"
    make_language_model("characters").bundle.save(folder, "a card")
    for share, default_note, int8_note in (
        (0.5, r"generates in (float32|bfloat16): .* 50\.0 % .* needs 96 %", "generates in int8, as configured: .* 50"),
        (1.0, None, None),
    ):
        write_int8_check(Int8Check(tokens=7, agreement=share), folder)
        for keys, expected in (({}, default_note), ({"precision": "int8"}, int8_note)):
            [spec] = ServeConfig.parse({"models": [{"path": str(folder), **keys}]}, "test").specs()
            model = headway.load(folder, device="cpu", **spec.load_options)
            assert model.precision == "int8" or (keys, share) == ({}, 0.5)
            found = _precision_note(spec, model)
            assert (found is None) == (expected is None)
            assert expected is None or re.match(expected, found or "")


def test_a_stored_check_decides(tmp_path: Path, make_language_model: Callable[..., LanguageModel]) -> None:
    make_language_model("characters").bundle.save(tmp_path / "model", "a card")
    for share, precisions in ((1.0, {"int8"}), (0.5, {"float32", "bfloat16"})):
        write_int8_check(Int8Check(tokens=7, agreement=share), tmp_path / "model")
        assert load_language_model(tmp_path / "model").precision in precisions
        assert load_language_model(tmp_path / "model", precision="float32").precision == "float32"
    (tmp_path / "model" / INT8_CHECK_FILE).write_text("[]")
    with pytest.raises(BundleError, match=f"{INT8_CHECK_FILE}: not the result of an int8 check"):
        load_language_model(tmp_path / "model")


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_scores_in_a_precision_are_those_of_generation(
    precision: Any, make_language_model: Callable[..., LanguageModel]
) -> None:
    """Windows of 6 tokens, one every 2: the first predicts 6 tokens, each other one the last 2 of its own."""
    model = make_language_model("characters", max_length=6)
    text = "the cat on the mat"
    ids = [*model._tokenizer.encode(text), EOS]
    converted = to_search_model(model.bundle.model, precision)
    expected = []
    for at, token in enumerate(ids):
        first = 0 if at < 6 else at // 2 * 2
        prompt = [BOS, *ids[max(first - 4, 0) : first]]
        state = converted.start([prompt[:-1]])
        for each in (prompt[-1], *ids[first:at]):
            step = converted.step(state, torch.tensor([each]))
        expected.append(float(step.logits()[0].float().log_softmax(-1)[token]))
    found = model.score([text], stride=2, precision=precision)[0]
    tolerance = 0.0 if precision == "int8" else 0.1
    assert [*found.token_log_probabilities, found.eos_log_probability] == pytest.approx(expected, abs=1e-5 + tolerance)
    measured = model.perplexity([text, "a"], stride=2, precision=precision)
    assert f"|precision:{precision}|" in measured.signature
    assert measured.loss != model.perplexity([text, "a"], stride=2).loss
