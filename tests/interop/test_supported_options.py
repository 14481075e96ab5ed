"""Each value of each option of a model is either supported by an export or refused with the name of the option."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from config_variants import undeclared, variants
from drawn_models import transformers
from pydantic import Field
from torch import Tensor

from headway.bundle import (
    AnyBundle,
    Bundle,
    ClassifierBundle,
    LanguageModelBundle,
    MaskedLanguageModelBundle,
    TaskConfig,
)
from headway.errors import ConfigError
from headway.interop import ctranslate2 as ctranslate2_export
from headway.interop import onnx
from headway.interop.exporting import export_to
from headway.interop.huggingface import exporting as huggingface_export
from headway.interop.huggingface import masked_exporting, modeling_headway
from headway.interop.reference import export_reference
from headway.interop.supported import Supported, refuse_unsupported
from headway.models.classifier import ClassifierConfig
from headway.models.decoder_only import DecoderOnlyConfig
from headway.models.masked import MaskedConfig
from headway.models.registry import build_model
from headway.models.transformer import TransformerConfig
from headway.nn.block_config import BlockConfig
from headway.text.base import BOS, EOS, MASK, PAD
from headway.text.tokenizer import Tokenizer

SOURCE = torch.tensor([[4, 5, 6, 7, EOS], [8, 4, EOS, PAD, PAD]])
TARGET = torch.tensor([[BOS, 5, 6, 4], [BOS, 9, 4, 7]])


def made(config: Any) -> Any:
    """A model with random weights, so that every part affects the results. Its tokens are letters."""
    tokenizer = Tokenizer("characters", list("abcdefghij"))
    torch.manual_seed(0)
    if isinstance(config, MaskedConfig):
        tokenizer = Tokenizer("characters", list("abcdefghi"), tags=[MASK])
        masked = build_model(config, tokenizer.vocab_size, tokenizer.vocab_size)
        bundle: Any = MaskedLanguageModelBundle(TaskConfig(kind="masked_language_model"), masked.eval(), tokenizer)
    elif isinstance(config, DecoderOnlyConfig):
        model = build_model(config, tokenizer.vocab_size, tokenizer.vocab_size)
        bundle = LanguageModelBundle(TaskConfig(kind="language_model"), model.eval(), tokenizer)
    elif isinstance(config, ClassifierConfig):
        classifier = build_model(config, tokenizer.vocab_size, 3)
        bundle = ClassifierBundle(TaskConfig(kind="classification"), classifier.eval(), tokenizer, ("a", "b", "c"))
    else:
        translator = build_model(config, tokenizer.vocab_size, tokenizer.vocab_size)
        bundle = Bundle(TaskConfig(), translator.eval(), tokenizer, tokenizer)
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return bundle


def by_onnxruntime(folder: Path, bundle: AnyBundle) -> Tensor:
    if isinstance(bundle, Bundle):
        return onnx.OnnxModel.load(folder)(SOURCE, TARGET)
    if isinstance(bundle, LanguageModelBundle):
        session = onnx.open_session(folder / "language_model.onnx")
        shapes = {given.name: given.shape for given in session.get_inputs()[2:]}
        empty = [torch.empty(2, heads, 0, width) for _, heads, _, width in shapes.values()]
        inputs = [SOURCE, torch.zeros(2, dtype=torch.long), *empty]
        return onnx.run_session(session, ["logits"], ["tokens", "positions", *shapes], inputs)[0]
    masked = isinstance(bundle, MaskedLanguageModelBundle)
    name, given = ("masked_language_model", "tokens") if masked else ("classifier", "source")
    return onnx.run_session(onnx.open_session(folder / f"{name}.onnx"), ["logits"], [given], [SOURCE])[0]


def by_transformers(folder: Path, bundle: Bundle | ClassifierBundle) -> Tensor:
    mask = (SOURCE != PAD).long()
    if isinstance(bundle, Bundle):
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
        found: Tensor = model(input_ids=SOURCE, attention_mask=mask, decoder_input_ids=TARGET).logits
        return found
    classifier: Any = modeling_headway.HeadwayForSequenceClassification.from_pretrained(folder)
    logits: Tensor = classifier(SOURCE, mask).logits
    return logits


def by_ctranslate2(folder: Path, bundle: Bundle | ClassifierBundle) -> Tensor:
    """Return the log-probabilities of the targets and of the end symbol, instead of logits."""
    assert isinstance(bundle, Bundle)
    names = [["<pad>", "<bos>", "<eos>", "<unk>", *"abcdefghij"][token] for token in range(14)]
    engine = ctranslate2.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=1, compute_type="float32")
    rows = [
        [[names[token] for token in row.tolist() if token not in (PAD, BOS)] for row in side]
        for side in (SOURCE, TARGET)
    ]
    return torch.tensor([each.log_probs for each in engine.score_batch(*rows)])


def ours(bundle: Bundle | ClassifierBundle, form: str) -> Tensor:
    logits: Tensor = bundle.model(SOURCE, TARGET) if isinstance(bundle, Bundle) else bundle.model(SOURCE)
    if form != "ctranslate2":
        return logits
    ends = torch.full((len(TARGET), 1), EOS)
    return logits.log_softmax(-1).gather(2, torch.cat([TARGET[:, 1:], ends], 1).unsqueeze(2)).squeeze(2)


COMPUTE: dict[str, Callable[[Path, Any], Tensor]] = {
    "onnx": by_onnxruntime,
    "huggingface": by_transformers,
    "ctranslate2": by_ctranslate2,
}
EXPORTS: list[tuple[str, type[BlockConfig]]] = [
    ("onnx", TransformerConfig),
    ("huggingface", TransformerConfig),
    ("ctranslate2", TransformerConfig),
    ("onnx", ClassifierConfig),
    ("onnx", MaskedConfig),
    ("onnx", DecoderOnlyConfig),
    ("huggingface", ClassifierConfig),
]


def listed(form: str, config: BlockConfig) -> Supported:
    if form == "huggingface":
        kind = {"post": "marian", "pre": "pegasus", "none": "marian"}[config.norm]
        return huggingface_export.SUPPORTED["classifier" if isinstance(config, ClassifierConfig) else kind]
    return onnx.SUPPORTED if form == "onnx" else ctranslate2_export.SUPPORTED


def refused(form: str, config: BlockConfig) -> str | None:
    """Return the option that an exporter names when it refuses a config."""
    try:
        refuse_unsupported(config, form, listed(form, config), __name__)
    except ConfigError as error:
        return str(error).split(" = ")[0]
    return None


def combined(form: str, config: type[BlockConfig]) -> tuple[list[BlockConfig], dict[str, BlockConfig]]:
    """Return a few configs that cover all supported values of all options, and each variant that is refused."""
    found: Any = variants(config)
    (_, base), *rest = found
    waiting = {name: {key: value for key, value in each if value != getattr(base, key)} for name, each in rest}
    together, refusals = [base], {}
    while waiting:
        keys, used = dict[str, Any](), []
        for name, changes in waiting.items():
            try:
                made = config.parse({**base.as_dict(), **keys, **changes}, name)
            except ConfigError:  # this combination is refused
                continue
            if all(keys.get(key, value) == value for key, value in changes.items()) and refused(form, made) is None:
                keys |= changes
                used.append(name)
        if not used:
            refusals = {name: config.parse({**base.as_dict(), **changes}, name) for name, changes in waiting.items()}
            break
        together.append(config.parse({**base.as_dict(), **keys}, "combined"))
        waiting = {name: changes for name, changes in waiting.items() if name not in used}
    return together, refusals


@pytest.mark.slow
@pytest.mark.parametrize(("form", "config"), EXPORTS)
@torch.no_grad()
def test_every_value_of_every_option_is_exported_or_refused_by_name(
    form: str, config: type[BlockConfig], tmp_path: Path
) -> None:
    assert undeclared(config) == [], "give values for these fields in config_variants.py"
    together, refusals = combined(form, config)
    for number, supported in enumerate(together):
        bundle, folder = made(supported), tmp_path / str(number)
        export_to(form, bundle, folder)
        expected = ours(bundle, form)
        scale = max(1.0, float(expected.std()))
        found = COMPUTE[form](folder, bundle)
        torch.testing.assert_close(found / scale, expected / scale, atol=2e-4, rtol=2e-4)
    for name, unsupported in refusals.items():
        option = refused(form, unsupported)
        assert option is not None
        assert getattr(unsupported, option) != getattr(together[0], option), name
        with pytest.raises(ConfigError, match=rf"^{option} = .* cannot be exported to .*; supported: "):
            export_to(form, made(unsupported), tmp_path / "out")
    assert not (tmp_path / "out").exists()


class WithNewOption(TransformerConfig):
    """A config with a newly added option."""

    window: int | None = Field(None, description="An option that no exporter has been taught.")


@pytest.mark.parametrize(
    "supported",
    [
        onnx.SUPPORTED,
        *huggingface_export.SUPPORTED.values(),
        masked_exporting.SUPPORTED["bert"],
        ctranslate2_export.SUPPORTED,
    ],
)
def test_a_new_option_is_refused_until_an_exporter_lists_it(supported: Supported) -> None:
    """With its default value, a model computes the same as before the option existed."""
    refuse_unsupported(WithNewOption.preset("tiny"), "elsewhere", supported, "headway.interop.onnx")
    refusal = "window = 7 cannot be exported to elsewhere; supported: the default (headway/interop/onnx.py lists what"
    with pytest.raises(ConfigError, match=f"^{re.escape(refusal)} can be exported\\)$"):
        refuse_unsupported(WithNewOption.preset("tiny", window=7), "elsewhere", supported, "headway.interop.onnx")
    refuse_unsupported(WithNewOption.preset("tiny", window=7), "elsewhere", {**supported, "window": (None, 7)}, "x")


def test_the_page_in_the_docs_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "export_options.md"
    expected = export_reference()
    assert page.read_text(encoding="utf-8") == expected, "run: make generated"
