"""CTranslate2 computes the same results from an exported folder as Headway.

The two search in the same way with these settings:
  length_penalty=0                 Both rank by probability. With patience=1, CTranslate2 stops if no prefix can become
                                   better than the best finished text, like Headway with the stopping rule "exact".
  min_decoding_length=0            A text may be empty.
  disable_unk, suppress_sequences  Forbid <unk>, padding and the begin symbol, which Headway never chooses.
At the limit, Headway adds the end symbol, whose probability counts, and CTranslate2 truncates without a cost. Texts
that reach the limit are therefore skipped.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import torch
from foreign import SENTENCES, bart, fsmt, m2m, marian, mbart
from torch import Tensor

from headway.bundle import Bundle, TaskConfig
from headway.decode import DecodingOptions, Request, SearchVocabulary, search
from headway.engine import SearchTransformer, Shortlist
from headway.errors import ConfigError, MissingPackageError
from headway.interop.ctranslate2 import supported_quantization_types, write_ctranslate2
from headway.interop.exporting import export_to
from headway.interop.importing import import_huggingface
from headway.interop.supported import require_transformer
from headway.interop.tokenizer_exporting import unique_token_names
from headway.models.registry import build_model
from headway.models.transformer import TransformerConfig
from headway.predict import Translator
from headway.text.base import BOS, EOS, PAD, UNK
from headway.text.tokenizer import Tokenizer
from headway.weights import named_weights

SIZES: dict[str, Any] = {"d_model": 32, "num_heads": 4, "d_ff": 48, "encoder_layers": 2, "decoder_layers": 3}
LIMIT = 25


def drawn(*, joint: bool = True, **options: Any) -> Bundle:
    """Return a model with random weights, so that every part affects the results. Its tokens are letters."""
    one = Tokenizer("characters", list("abcdefghij"))
    other = one if joint else Tokenizer("characters", list("xyzuvw"))
    torch.manual_seed(0)
    config = TransformerConfig.parse({**SIZES, **options}, "test")
    model = build_model(config, one.vocab_size, other.vocab_size).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.4 + ("norm" in name and name.endswith("weight")))
    return Bundle(TaskConfig(), model, one, other)


def sentences(bundle: Bundle) -> tuple[list[list[int]], list[list[int]]]:
    """Return random sources, which end with the end symbol, and random targets."""
    draw = torch.Generator().manual_seed(1)
    sizes = bundle.source_tokenizer.vocab_size, bundle.target_tokenizer.vocab_size
    sources, targets = (
        [torch.randint(4, size, (length,), generator=draw).tolist() for length in (1, 5, 9, 3)] for size in sizes
    )
    return [[*source, EOS] for source in sources], targets


def log_probabilities(bundle: Bundle, source: list[int], target: list[int]) -> Tensor:
    """Return Headway's log-probabilities of each target token and of the end symbol."""
    with torch.no_grad():
        logits = bundle.model(torch.tensor([source]), torch.tensor([[BOS, *target]]))
    found: Tensor = logits.log_softmax(-1)[0].gather(1, torch.tensor([*target, EOS]).unsqueeze(1))[:, 0]
    return found


def opened(folder: Path) -> Any:
    return ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=1, compute_type="float32")


def scored(folder: Path, bundle: Bundle, sources: list[list[int]], targets: list[list[int]]) -> list[Tensor]:
    """Return CTranslate2's log-probabilities for one padded batch, computed in float32 for any stored type."""
    ids = (bundle.source_tokenizer, sources), (bundle.target_tokenizer, targets)
    tokens = [[[unique_token_names(side)[index] for index in row] for row in rows] for side, rows in ids]
    return [torch.tensor(found.log_probs) for found in opened(folder).score_batch(*tokens)]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"activation": "gelu", "tie": "none"},
    {"activation": "silu", "scale_embedding": False, "output_bias": True},
    *({"activation": gate} for gate in ("glu", "reglu", "geglu", "geglu_tanh", "swiglu")),
    {"positions": "learned", "max_length": 16, "embedding_norm": True},
    {"norm": "pre", "embedding_norm": True, "output_bias": True},
    {"sinusoid_layout": "halves", "sinusoid_spacing": "inclusive", "position_offset": 2},
    {"positions": "rotary", "rotary_fraction": 0.5, "rotary_base": 500.0, "norm_epsilon": 1e-3},
    {"joint": False, "tie": "target"},
    {"joint": False, "tie": "none", "norm": "pre", "activation": "swiglu"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())) or "paper")
def test_every_option_computes_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    bundle = drawn(**options)
    write_ctranslate2(bundle, tmp_path)
    sources, targets = sentences(bundle)
    found = scored(tmp_path, bundle, sources, targets)
    for source, target, theirs in zip(sources, targets, found, strict=True):
        torch.testing.assert_close(theirs, log_probabilities(bundle, source, target), atol=1e-4, rtol=1e-4)


def test_a_shortlist_goes_with_the_model(tmp_path: Path) -> None:
    bundle = drawn(tie="none")
    size = bundle.target_tokenizer.vocab_size
    table = np.zeros((size, 2), dtype=np.int32)
    table[4:, 0], table[4:, 1] = np.arange(4, size), np.roll(np.arange(4, size), 1)
    lists = Shortlist(np.array([EOS, 5], dtype=np.int32), table)
    write_ctranslate2(bundle, tmp_path, shortlist=lists)
    engine = SearchTransformer(require_transformer(bundle, "the test"), shortlist=lists)
    names = unique_token_names(bundle.source_tokenizer)
    for source in sentences(bundle)[0]:
        request = Request(source=tuple(source), limit=LIMIT)
        ours = search(
            engine, [request], DecodingOptions(beam_size=1), SearchVocabulary(BOS, EOS, banned=(PAD, BOS, UNK))
        )
        settings = {"beam_size": 1, "min_decoding_length": 0, "max_decoding_length": LIMIT, "disable_unk": True}
        named = [names[token] for token in source]
        found = opened(tmp_path).translate_batch([named], use_vmap=True, **settings)
        assert found[0].hypotheses[0] == [names[token] for token in ours[0][0].tokens]
        assert {*ours[0][0].tokens} <= {*lists.allowed_tokens([source])[0].tolist()}


def rounded(bundle: Bundle) -> Bundle:
    """Return a copy whose matrices are rounded to 8 bits: each row to multiples of 1/127 of its largest weight."""
    other = drawn(d_model=64, d_ff=256)
    with torch.no_grad():
        for weight in other.model.parameters():
            if weight.dim() == 2:
                scale = 127 / weight.abs().amax(1, keepdim=True)
                weight.copy_((weight * scale).round() / scale)
    return other


def test_quantized_weights_are_near_and_small_and_leave_the_model_alone(tmp_path: Path) -> None:
    bundle = drawn(d_model=64, d_ff=256)
    before = {name: tensor.clone() for name, tensor in named_weights(bundle.model).items()}
    sources, targets = sentences(bundle)
    exact, bits8 = (
        torch.cat([log_probabilities(each, *pair) for pair in zip(sources, targets, strict=True)])
        for each in (bundle, rounded(bundle))
    )
    sizes = {}
    for quantization in supported_quantization_types():
        folder = tmp_path / quantization
        folder.mkdir()
        write_ctranslate2(bundle, folder, quantization=quantization, max_positions=16)
        sizes[quantization] = (folder / "model.bin").stat().st_size
        found = torch.cat(scored(folder, bundle, sources, targets))
        match quantization:
            case "float32":
                torch.testing.assert_close(found, exact, atol=1e-4, rtol=1e-4)
            case "int8" | "int8_float32":
                torch.testing.assert_close(found, bits8, atol=1e-3, rtol=1e-3)
            case "int8_float16":  # biases and norms have 11 bits
                assert (found - bits8).abs().mean() < 0.05
            case "bfloat16" | "int8_bfloat16":  # 8 bits in all weights
                assert (found - exact).abs().mean() < 0.5
            case _:  # more than 8 bits
                assert (found - exact).abs().mean() < (bits8 - exact).abs().mean() / 2
    assert sizes["int8"] < 0.35 * sizes["float32"]
    assert sizes["float16"] < 0.55 * sizes["float32"]
    after = named_weights(bundle.model)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Bundle, Path]]:
    """Imported models, and the folders to which they were exported."""
    home = tmp_path_factory.mktemp("families")
    found = {}
    for name, make in (("marian", marian), ("m2m", m2m), ("bart", bart), ("mbart", mbart), ("fsmt", fsmt)):
        bundle = import_huggingface(make(home / name)).bundle
        files = home / f"{name}-ct2"
        files.mkdir()
        write_ctranslate2(bundle, files)
        found[name] = bundle, files
    return found


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("family", ["marian", "m2m", "bart", "mbart"])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_imported_models_translate_alike(family: str, beam_size: int, imported: dict[str, tuple[Bundle, Path]]) -> None:
    bundle, folder = imported[family]
    special = bundle.token_template.fill()
    sources = [special.add_to_source(ids) for ids in bundle.source_tokenizer.encode_batch(SENTENCES)]
    requests = [Request(source=tuple(ids), limit=LIMIT, prefix=special.target_prefix) for ids in sources]
    options = DecodingOptions(beam_size=beam_size, length_penalty=0)
    ours = search(bundle.model, requests, options, SearchVocabulary(BOS, EOS, banned=(PAD, BOS, UNK)))
    source_names, names = unique_token_names(bundle.source_tokenizer), unique_token_names(bundle.target_tokenizer)
    theirs = opened(folder).translate_batch(
        [[source_names[index] for index in ids] for ids in sources],
        target_prefix=[[names[index] for index in special.target_prefix]] * len(sources)
        if special.target_prefix
        else None,
        beam_size=beam_size,
        length_penalty=0,
        patience=1,
        min_decoding_length=0,
        max_decoding_length=LIMIT,
        disable_unk=True,
        suppress_sequences=[[names[PAD]], [names[BOS]]],
    )
    pairs = [
        ([names[index] for index in one[0].tokens], other.hypotheses[0])
        for one, other in zip(ours, theirs, strict=True)
        if one[0].finished
    ]
    assert len(pairs) >= len(SENTENCES) // 2
    assert [one for one, _ in pairs] == [other for _, other in pairs]
    assert len({tuple(one) for one, _ in pairs}) > 2


@pytest.mark.parametrize("family", ["marian", "m2m", "bart", "fsmt"])
def test_the_readmes_code_gives_the_same_text(
    family: str,
    imported: dict[str, tuple[Bundle, Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = imported[family][0]
    export_to("ctranslate2", bundle, tmp_path / "ct2")
    readme = (tmp_path / "ct2" / "README.md").read_text()
    code = readme.split("```python\n")[1].split("```")[0].replace("THIS_FOLDER", str(tmp_path / "ct2"))
    code = code.replace("beam_size=4", f"beam_size=1, max_decoding_length={LIMIT}, min_decoding_length=0")
    options = DecodingOptions(beam_size=1, max_length=LIMIT)
    for text in SENTENCES[:4]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MarianTokenizer recommends a package
            exec(code.replace("TEXT", text), {})
        found = Translator(bundle, avoid_flagged=False).translate(text, options, protect=False)
        assert capsys.readouterr().out == f"{found.text}\n"


# What is refused.


@pytest.mark.parametrize(
    ("options", "quantization", "message"),
    [
        ({"d_key": 5}, None, "d_key = 5 cannot be exported to CTranslate2; supported: d_model / num_heads"),
        ({"d_value": 5}, None, "d_value = 5 cannot be exported"),
        ({"norm": "none"}, None, "norm = 'none' cannot be exported to CTranslate2; supported: post, pre"),
        ({"residual": False}, None, "residual = False cannot be exported to CTranslate2; supported: true"),
        ({"score": "cosine"}, None, "score = 'cosine' cannot be exported to CTranslate2; supported: scaled_dot"),
        ({"qk_projection": "hidden"}, None, "qk_projection = 'hidden' cannot be exported .*; supported: linear"),
        (
            {"positions": "none"},
            None,
            "positions = 'none' cannot be exported .*: sinusoidal, learned, rotary",
        ),
        ({}, "int7", r"quantization 'int7'; did you mean 'int8'\?"),
    ],
)
def test_what_does_not_fit_is_named(
    options: dict[str, Any], quantization: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        export_to("ctranslate2", drawn(**options), tmp_path / "out", quantization=quantization)
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_say_the_same_are_exported(tmp_path: Path) -> None:
    write_ctranslate2(drawn(d_key=8, d_value=8), tmp_path)
    assert (tmp_path / "model.bin").is_file()


def test_the_engine_refuses_what_is_longer_than_the_table(tmp_path: Path) -> None:
    write_ctranslate2(drawn(), tmp_path, max_positions=8)
    with pytest.raises(RuntimeError, match="position"):
        opened(tmp_path).translate_batch([["a"] * 8 + ["<eos>"]])


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(MissingPackageError, match=r"'ctranslate2', which is not installed; pip install 'headway\[ctr"):
        write_ctranslate2(drawn(), tmp_path)
