"""Models whose weights are stored in 8-bit integers compute what converting the original weights gives."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway import kernels
from headway.bundle import Bundle, LanguageModelBundle, Quantization, TaskConfig, load_bundle
from headway.engine import Shortlist, to_search_model
from headway.engine.int8_weights import StoredLinear, dequantize_weights, expected_shapes
from headway.errors import BundleError, ConfigError
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.models.transformer import Transformer, TransformerConfig
from headway.predict import LanguageModel, Translator
from headway.predict.shared_weights import copy_sharing_weights
from headway.text.tokenizer import Tokenizer, TokenizerConfig
from headway.weights import named_weights

pytestmark = pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")

SIZES = {"d_model": 32, "num_heads": 4, "d_ff": 48}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm, gated, inputs tied": {"norm": "pre", "activation": "swiglu", "tie": "inputs"},
    "narrow keys, target tied, pre-norm": {"d_key": 6, "d_value": 10, "tie": "target", "norm": "pre"},
    "nothing tied, learned": {"positions": "learned", "max_length": 40, "tie": "none", "output_bias": True},
    "rotary, no biases, RMS": {
        "positions": "rotary", "norm": "pre", "norm_kind": "rms", "bias": "none", "qk_norm": True, "num_kv_heads": 2,
    },
}  # fmt: skip
SOURCES = [[5, 9, 7, 2], [30, 2], [8, 21, 13, 40, 11, 19, 2]]


def tokenizer(size: int = 61) -> Tokenizer:
    letters = "".join(map(chr, range(ord("a"), ord("a") + size)))
    return Tokenizer.train([letters], TokenizerConfig(kind="characters"))


def shaken(model: Any) -> Any:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def translation_bundle(**options: Any) -> Bundle:
    text = tokenizer()
    config = TransformerConfig.preset("tiny", **SIZES, **options)
    model = shaken(Transformer(config, text.vocab_size, text.vocab_size))
    return Bundle(TaskConfig(source_language="de", target_language="en"), model, text, text)


def language_model_bundle(**options: Any) -> LanguageModelBundle:
    text = tokenizer()
    config = DecoderOnlyConfig.preset("tiny", **SIZES, max_length=32, **options)
    return LanguageModelBundle(TaskConfig(kind="language_model"), shaken(DecoderOnly(config, text.vocab_size)), text)


def stored(bundle: Any, folder: Path, *, embeddings: bool) -> Any:
    bundle.save(folder, "# Card\n", quantization=Quantization(embeddings=embeddings))
    return load_bundle(folder)


def search_logits(model: Any) -> torch.Tensor:
    searched = to_search_model(model, "int8")
    state = searched.start(SOURCES)
    rows = [searched.step(state, torch.tensor(tokens)).logits() for tokens in ([1, 1, 1], [9, 12, 33], [50, 4, 4])]
    return torch.stack(rows)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stored_translation_model_searches_bit_for_bit_like_the_converted_one(variant: str, tmp_path: Path) -> None:
    bundle = translation_bundle(**VARIANTS[variant])
    loaded = stored(bundle, tmp_path / "int8", embeddings=False)
    assert torch.equal(search_logits(loaded.model), search_logits(bundle.model))


@pytest.mark.parametrize("options", [{}, {"parallel": True}, {"tie": "none", "activation": "swiglu", "bias": "none"}])
def test_a_stored_language_model_searches_bit_for_bit_like_the_converted_one(
    options: dict[str, Any], tmp_path: Path
) -> None:
    bundle = language_model_bundle(**options)
    loaded = stored(bundle, tmp_path / "int8", embeddings=False)
    assert torch.equal(search_logits(loaded.model), search_logits(bundle.model))


def test_loading_and_searching_convert_no_weight_to_floating_point(tmp_path: Path) -> None:
    loaded = stored(translation_bundle(norm="pre"), tmp_path / "int8", embeddings=True)
    search_logits(loaded.model)
    assert [module for module in loaded.model.modules() if isinstance(module, StoredLinear)]
    assert all(vars(module)["lazy"]._weight is None for module in loaded.model.modules() if "lazy" in vars(module))
    assert loaded.model.device.type == "cpu"


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("embeddings", [False, True])
def test_weights_in_float_are_near_the_original_ones(variant: str, embeddings: bool, tmp_path: Path) -> None:
    """An integer differs from its number by at most 1, which is less than 1/60 of the largest number of its row."""
    bundle = translation_bundle(**VARIANTS[variant])
    loaded = stored(bundle, tmp_path / "int8", embeddings=embeddings)
    original, restored = named_weights(bundle.model), named_weights(loaded.model)
    assert original.keys() == restored.keys()
    for name, weight in original.items():
        torch.testing.assert_close(restored[name], weight, atol=0.05 * float(weight.abs().max()), rtol=0.0)
    tokens = torch.tensor([[5, 9, 2]]), torch.tensor([[1, 7]])
    with torch.inference_mode():
        expected, actual = bundle.model(*tokens), loaded.model(*tokens)
    assert float((expected - actual).abs().mean()) < 0.05 * float(expected.std())


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("tie", ["all", "target", "inputs", "none"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_embeddings_in_integers_are_looked_up_as_their_whole_table_says(tie: str, norm: str, tmp_path: Path) -> None:
    model = stored(translation_bundle(tie=tie, norm=norm), tmp_path / "int8", embeddings=True).model
    tokens = torch.tensor([[5, 9, 2], [63, 0, 4]])
    for embedding in (model.source_embedding, model.target_embedding):
        assert torch.equal(embedding(tokens), embedding.weight[tokens] * embedding.scale)
    assert (model.target_embedding.weight is model.projection.weight) == (tie in ("all", "target"))


def test_a_gain_of_zero_loses_no_column_of_a_tied_embedding(tmp_path: Path) -> None:
    bundle = translation_bundle(norm="pre")
    with torch.no_grad():
        named_weights(bundle.model)["decoder.norm.weight"][3] = 0
    embedding = stored(bundle, tmp_path / "int8", embeddings=True).model.source_embedding.weight
    original = named_weights(bundle.model)["source_embedding.weight"]
    torch.testing.assert_close(embedding, original, atol=0.01 * float(original.abs().max()), rtol=0.0)


def test_a_model_moved_away_from_integers_has_ordinary_weights(tmp_path: Path) -> None:
    loaded = stored(translation_bundle(), tmp_path / "int8", embeddings=True)
    plain = dequantize_weights(copy_sharing_weights(loaded.model))
    assert plain.int8_weights is None
    assert not any(parameter.is_meta for parameter in plain.parameters())
    assert loaded.model.int8_weights is not None  # only the copy has changed
    for name, weight in named_weights(loaded.model).items():
        assert torch.equal(named_weights(plain)[name], weight)


def test_translations_alignments_and_scores_of_a_stored_model(tmp_path: Path) -> None:
    bundle = translation_bundle()
    loaded = stored(bundle, tmp_path / "int8", embeddings=False)
    original, smaller = (Translator(one, precision="int8") for one in (bundle, loaded))
    texts = ["abc", "hij k"]
    found = smaller.translate(texts, alignment=True)
    assert [one.text for one in found] == [one.text for one in original.translate(texts)]
    assert found[0].candidates[0].alignment
    assert smaller.score(["abc"], ["abd"])[0].log_probability == pytest.approx(
        original.score(["abc"], ["abd"])[0].log_probability, rel=0.05
    )
    assert smaller.precision_note() is None
    note = Translator(loaded, precision="float32").precision_note()
    assert note is not None
    assert "8-bit integers, and computes in float32" in note


def test_a_language_model_with_integers_generates_in_int8_without_a_check(tmp_path: Path) -> None:
    loaded = stored(language_model_bundle(), tmp_path / "int8", embeddings=True)
    model = LanguageModel(loaded, precision="auto", device="cpu")
    assert (model.precision, model.int8_check, model.precision_note()) == ("int8", None, None)
    assert model.generate("abc", max_new_tokens=3)


def test_a_shortlist_works_with_stored_integers(tmp_path: Path) -> None:
    bundle = translation_bundle(norm="pre", output_bias=True)
    loaded = stored(bundle, tmp_path / "int8", embeddings=False)
    size = bundle.source_tokenizer.vocab_size
    shortlist = Shortlist(np.array([2, 5], np.int32), np.tile(np.arange(4, 24, dtype=np.int32), (size, 1)))

    def best(model: Any) -> Any:
        searched = to_search_model(model, "int8", shortlist=shortlist)
        return searched.step(searched.start(SOURCES), torch.tensor([1, 1, 1])).top_k(4, [0, 1, 3], 2)

    expected, actual = best(bundle.model), best(loaded.model)
    assert all(torch.equal(getattr(expected, name), getattr(actual, name)) for name in ("tokens", "log_probs"))


def test_a_folder_from_a_machine_with_other_blocks_is_packed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integers packed in blocks of another size, as a machine with or without AVX-512 writes them."""
    from headway.kernels import int8_gemm, int8_linear

    bundle = translation_bundle(norm="pre")
    expected = search_logits(bundle.model)
    other = 16 if int8_gemm.BLOCK == 32 else 32
    with monkeypatch.context() as patch:
        patch.setattr(int8_gemm, "BLOCK", other)
        patch.setattr(int8_linear, "BLOCK", other)
        loaded = stored(bundle, tmp_path / "int8", embeddings=False)
    assert loaded.model.int8_weights.layers[0].weight.size(2) == other
    assert torch.equal(search_logits(loaded.model), expected)


def test_memory_is_mapped_from_the_file_and_aligned(tmp_path: Path) -> None:
    layers = stored(translation_bundle(), tmp_path / "int8", embeddings=False).model.int8_weights.layers
    mapped = [
        [int(edge, 16) for edge in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith("model.safetensors")
    ]
    addresses = [layer.weight.data_ptr() for layer in layers]
    assert all(any(start <= address < end for start, end in mapped) for address in addresses)
    assert {address % 64 for address in addresses} == {0}


def small(config: Any) -> None:
    config["quantization"] = {"kind": "int4"}


def without_quantization(config: Any) -> None:
    del config["quantization"]


def claims_embeddings(config: Any) -> None:
    config["quantization"]["embeddings"] = True
    config["model"]["tie"] = "none"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (small, "quantization"),
        (without_quantization, "is missing|unexpected weight"),
        (claims_embeddings, "is missing|unexpected weight"),
    ],
)
def test_a_config_that_does_not_fit_the_integers_is_refused(
    change: Callable[[Any], None], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "int8"
    stored(translation_bundle(), folder, embeddings=False)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BundleError, match=message):
        load_bundle(folder)


def test_only_models_with_an_int8_form_can_be_stored_in_integers(tmp_path: Path) -> None:
    bundle = translation_bundle(score="cosine")
    with pytest.raises(ConfigError, match="precision 'int8': score = 'cosine' has no form"):
        bundle.save(tmp_path / "int8", "# Card", quantization=Quantization())
    assert not (tmp_path / "int8").exists()


@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_base_model_in_integers_is_at_most_27_percent_of_its_size_in_float32(tie: str) -> None:
    with torch.device("meta"):
        model = Transformer(TransformerConfig.preset("base", tie=tie), 32_000, 32_000)
    weights = named_weights(model)
    shapes = expected_shapes(model, weights, {}, quantize_embeddings=True)
    integers = [name for name in shapes if name.startswith("int8.") and name.endswith((".weight", ".levels"))]
    size = sum(math.prod(shape) * (1 if name in integers else 4) for name, shape in shapes.items())
    assert size <= 0.27 * sum(4 * weight.numel() for weight in weights.values())


@pytest.mark.slow
def test_a_stored_model_searches_without_the_compiler_of_pytorch(tmp_path: Path) -> None:
    """Its import takes longer than to load a model; operations on tensors without values would import it."""
    translation_bundle().save(tmp_path / "int8", "# Card\n", quantization=Quantization(embeddings=True))
    code = (
        "import sys; from headway.predict import load_translator; "
        "load_translator(sys.argv[1], precision='int8').translate('ab'); print('torch._dynamo' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "int8")], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "False\n"
