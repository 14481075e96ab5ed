"""Exported language models compute the same logits in `transformers`, and their tokenizers return the same ids."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import torch
from causal_models import published
from config_variants import undeclared, variants
from foreign import transformers
from own_causal_models import FORMS, LLAMA, YARN, logits, made
from torch import Tensor

from headway.bundle import LanguageModelBundle
from headway.errors import ConfigError
from headway.interop.exporting import export_to
from headway.interop.importing import import_language_model
from headway.interop.tokenizer_exporting import unique_token_names
from headway.models.decoder_only import DecoderOnlyConfig
from headway.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from headway.predict import LanguageModel
from headway.text.base import BOS, PAD, UNK
from headway.text.tokenizer import Tokenizer

TEXTS = ["abcj", "b a<bos>d", "é"]


@pytest.mark.parametrize("name", FORMS)
def test_logits_and_ids_are_the_same(name: str, tmp_path: Path) -> None:
    model_type, options = FORMS[name]
    bundle = made(**options)
    export_to("huggingface", bundle, tmp_path / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert model.config.model_type == model_type
    for text in TEXTS:
        ids = [BOS, *bundle.tokenizer.encode(text)]
        assert tokenizer(text).input_ids == ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        difference = logits(model, ids) - logits(bundle.model, ids)
        assert difference.abs().max() <= 1e-4
    long = torch.randint(4, bundle.tokenizer.vocab_size, (39,), generator=torch.Generator().manual_seed(1)).tolist()
    assert (logits(model, long) - logits(bundle.model, long)).abs().max() <= 1e-4
    again = import_language_model(tmp_path / "hf").bundle
    assert again.prompt_prefix == (BOS,)
    assert again.model.config.model_copy(update={"dropout": 0.1}) == bundle.model.config
    assert (logits(again.model, long) - logits(bundle.model, long)).abs().max() <= 1e-5


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("form", ["gpt2", "gpt_neox", "llama2", "llama3", "qwen2"])
def test_an_imported_model_goes_back(form: str, tmp_path: Path) -> None:
    """Rows that stand for missing special tokens are not exported; the order of the ids may change."""
    before, encoder = published(form, tmp_path / "hf")
    bundle = import_language_model(tmp_path / "hf").bundle
    export_to("huggingface", bundle, tmp_path / "back")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert model.config.vocab_size == before.config.vocab_size
    for text in ("der kleine Frosch 2024", "  naïve 😀"):
        old, new = encoder(text).input_ids, tokenizer(text).input_ids
        assert tokenizer.convert_ids_to_tokens(new) == encoder.convert_ids_to_tokens(old)
        first, second = logits(before, old).log_softmax(-1).sort(-1)[0], logits(model, new).log_softmax(-1).sort(-1)[0]
        assert (first - second).abs().max() <= 1e-4
        best = [tokens.convert_ids_to_tokens(logits(each, ids).argmax(-1).tolist())
                for tokens, each, ids in ((encoder, before, old), (tokenizer, model, new))]  # fmt: skip
        assert best[0] == best[1]
        assert tokenizer.decode(new, skip_special_tokens=True) == encoder.decode(old, skip_special_tokens=True)
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.eos_token == encoder.eos_token


def exported_logits(form: str, folder: Path, bundle: LanguageModelBundle, ids: list[int]) -> Tensor:
    if form == "huggingface":
        return logits(transformers.AutoModelForCausalLM.from_pretrained(folder), ids)
    names = unique_token_names(bundle.tokenizer)
    engine = ctranslate2.Generator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    return torch.from_numpy(np.array(engine.forward_batch([[names[new] for new in ids]])))[0]


@pytest.mark.slow
@pytest.mark.parametrize("base", ["gpt2", "neox", "llama"])
@pytest.mark.parametrize("form", ["huggingface", "ctranslate2"])
def test_every_value_of_every_option_is_exported_or_refused_by_name(form: str, base: str, tmp_path: Path) -> None:
    assert undeclared(DecoderOnlyConfig) == []
    (_, defaults), *others = list[Any](variants(DecoderOnlyConfig))
    tokenizer = Tokenizer("characters", list("abcdefghij"))
    ids, exported = torch.randint(4, 14, (20,), generator=torch.Generator().manual_seed(1)).tolist(), 0
    for number, (name, variant) in enumerate(others):
        changes = {key: value for key, value in variant.as_dict().items() if value != getattr(defaults, key)}
        if changes.keys() & FORMS[base][1].keys():
            continue  # covered by another base
        try:
            bundle = made(tokenizer, **{**FORMS[base][1], **changes})
        except ConfigError:
            continue  # not a value for this base
        try:
            export_to(form, bundle, tmp_path / str(number))
        except ConfigError as error:
            option = re.match(r"(\w+) = .* cannot be exported to .*; supported: ", str(error))
            assert option is not None
            assert option[1] in changes or "norm_kind" in changes, name  # norm_kind decides on the form
            continue
        ids = ids[: bundle.model.config.max_length]
        expected = logits(bundle.model, ids)
        scale = max(1.0, float(expected.std()))
        found = exported_logits(form, tmp_path / str(number), bundle, ids)
        torch.testing.assert_close(found / scale, expected / scale, atol=2e-4, rtol=2e-4, msg=name)
        exported += 1
    assert exported > 10


GENERATORS: dict[str, dict[str, Any]] = {
    "gpt2": {"activation": "gelu_tanh"},
    "post": {"norm": "post", "positions": "sinusoidal", "scale_embedding": True, "output_bias": True},
    "neox": {**FORMS["neox"][1], "num_kv_heads": 2},
    "linear": {"positions": "rotary", "bias": "none", "rotary_scaling": {"kind": "linear", "factor": 2.0}},
    "llama": {**LLAMA, "num_kv_heads": 1, "tie": "none", "norm_epsilon": 0.3},
    "qwen2": {**LLAMA, "bias": "qkv", "rotary_fraction": 0.5, "activation": "geglu"},
    "qwen3": FORMS["qwen3"][1],
}


@pytest.mark.parametrize("name", GENERATORS)
def test_ctranslate2_computes_the_same_logits_and_text(name: str, tmp_path: Path) -> None:
    bundle = made(**GENERATORS[name])
    export_to("ctranslate2", bundle, tmp_path / "ct2")
    names = unique_token_names(bundle.tokenizer)
    ids = torch.randint(4, len(names), (30,), generator=torch.Generator().manual_seed(1)).tolist()
    found = exported_logits("ctranslate2", tmp_path / "ct2", bundle, ids)
    assert (found - logits(bundle.model, ids)).abs().max() <= 1e-4
    engine = ctranslate2.Generator(str(tmp_path / "ct2"), device="cpu", compute_type="float32", intra_threads=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ct2")
    prompt = tokenizer.convert_ids_to_tokens(tokenizer.encode("abc"))
    never = [[names[new]] for new in (PAD, BOS, UNK)]
    (result,) = engine.generate_batch(
        [prompt], max_length=8, include_prompt_in_result=False, suppress_sequences=never, sampling_topk=1
    )
    expected = LanguageModel(bundle).generate("abc", temperature=0, max_new_tokens=8)[0]
    assert result.sequences[0] == [names[each] for each in expected.ids]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {**LLAMA, "rotary_scaling": YARN},
            "rotary_scaling = 'yarn' cannot be exported to CTranslate2; supported: lin",
        ),
        ({"decoder_window": 4}, "decoder_window = 4 cannot be exported to CTranslate2"),
        ({**LLAMA, "d_value": 5}, "d_value = 5 cannot be exported to CTranslate2"),
        ({"norm": "none"}, "norm = 'none' cannot be exported to CTranslate2; supported: post, pre"),
        ({"residual": False}, "residual = False cannot be exported to CTranslate2"),
    ],
)
def test_what_ctranslate2_does_not_have_is_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        export_to("ctranslate2", made(**options), tmp_path / "ct2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "sinusoidal"}, "positions = 'sinusoidal' cannot be exported to Hugging Face's GPT-2; supported"),
        ({"output_bias": True}, "output_bias = True cannot be exported to Hugging Face's GPT-2; supported: false"),
        ({"decoder_window": 4}, "decoder_window = 4 cannot be exported to Hugging Face's GPT-2"),
        ({"scale_embedding": True}, "scale_embedding = True cannot be exported"),
        ({**LLAMA, "decoder_window": 4, "bias": "all"}, "bias = 'all' cannot be exported to Hugging Face's Mistral"),
        ({**LLAMA, "parallel": True}, "parallel = True cannot be exported to Hugging Face's Llama"),
        ({**LLAMA, "rotary_fraction": 0.5}, "rotary_fraction = 0.5 cannot be exported to Hugging Face's Llama"),
        ({**LLAMA, "d_key": 6, "d_value": 4}, "d_value = 4 cannot be exported to Hugging Face's Llama"),
    ],
)
def test_what_a_form_does_not_have_is_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        export_to("huggingface", made(**options), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    bundle = made()
    with pytest.raises(ConfigError, match="a language model has no languages to choose"):
        export_to("huggingface", bundle, tmp_path / "hf", target_language="de")
    recurrent = RecurrentLM(RecurrentLMConfig(d_model=8, num_layers=1), bundle.tokenizer.vocab_size)
    with pytest.raises(
        ConfigError, match=r"model\.kind = 'recurrent_lm' cannot be exported to Hugging Face `transformers`;"
    ):
        export_to("huggingface", LanguageModelBundle(bundle.task, recurrent, bundle.tokenizer), tmp_path / "hf")
