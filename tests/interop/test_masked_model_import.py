"""Imported masked language models compute the same logits, and their tokenizers the same ids, as in `transformers`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import transformers
from masked_models import FAMILIES, published
from safetensors.torch import load_file, save_file

import headway
from headway.cli.commands.import_ import import_
from headway.errors import BundleError
from headway.interop.huggingface.masked_importing import import_masked
from headway.interop.importing import import_masked_language_model
from headway.predict import MaskedLanguageModel
from headway.text.base import BOS, EOS

TEXTS = ["der kleine Frosch schläft.", "the BIG dog, naïve café!", "wir sehen 2024 漢字 unseen", "a"]


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_ids_are_the_same(name: str, tmp_path: Path) -> None:
    model, encoder = published(name, tmp_path / "hf")
    import_(f"huggingface:{tmp_path / 'hf'}", tmp_path / "ours")
    ours = headway.load(tmp_path / "ours")
    assert isinstance(ours, MaskedLanguageModel)
    bundle = ours.bundle
    order: Any = bundle.tokenizer.library_ids  # type: ignore[attr-defined]
    rows = [[BOS, *bundle.tokenizer.encode(text), EOS] for text in TEXTS]
    assert [[order[new] for new in row] for row in rows] == encoder(TEXTS).input_ids
    assert bundle.tokenizer.mask_id is not None
    assert order[bundle.tokenizer.mask_id] == encoder.mask_token_id
    for row in rows:
        row[-2] = bundle.tokenizer.mask_id
    batch = encoder(TEXTS, padding=True, return_tensors="pt")
    for index, row in enumerate(rows):
        batch.input_ids[index, len(row) - 2] = encoder.mask_token_id
    with torch.inference_mode():
        expected = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        width = max(map(len, rows))
        found = bundle.model(torch.tensor([row + [0] * (width - len(row)) for row in rows]))
    theirs = torch.empty_like(expected)
    theirs[..., list(order)] = found
    assert (theirs - expected)[batch.attention_mask.bool()].abs().max() <= 1e-4
    assert expected.abs().max() > 1


def test_special_tokens_in_a_text_are_ordinary_text(tmp_path: Path) -> None:
    published("bert", tmp_path)
    tokenizer = import_masked_language_model(tmp_path).bundle.tokenizer
    assert not {BOS, EOS, tokenizer.mask_id} & {*tokenizer.encode("a [CLS] b [SEP] [MASK]")}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bert", {"do_lower_case": False}),
        ("bert", {"do_lower_case": False, "tokenizer_class": "BertTokenizerFast"}),
        ("bert", {"do_lower_case": False, "tokenizer_class": None}),
        ("bert", {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}),
        ("bert", {"strip_accents": False}),
        ("bert", {"tokenize_chinese_chars": False}),
        ("distilbert", {"do_lower_case": False, "tokenizer_class": "DistilBertTokenizer"}),
        ("roberta", {"add_prefix_space": True}),
        ("modernbert", {"add_prefix_space": True, "tokenizer_class": "RobertaTokenizer"}),
    ],
)
def test_the_tokenizer_class_overrides_tokenizer_json(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    published(name, tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    tokenizer: Any = import_masked_language_model(tmp_path).bundle.tokenizer
    found = [[tokenizer.library_ids[new] for new in (BOS, *tokenizer.encode(text), EOS)] for text in TEXTS]
    assert found == transformers.AutoTokenizer.from_pretrained(tmp_path)(TEXTS).input_ids


def test_settings_of_bert_that_tokenizer_json_does_not_override_are_the_defaults(tmp_path: Path) -> None:
    """Without tokenizer_config.json, BERT's tokenizer lowers the case, even if tokenizer.json does not."""
    published("bert", tmp_path)
    path = tmp_path / "tokenizer.json"
    library = json.loads(path.read_text())
    path.write_text(json.dumps({**library, "normalizer": {**library["normalizer"], "lowercase": False}}))
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer: Any = import_masked_language_model(tmp_path).bundle.tokenizer
    found = [[tokenizer.library_ids[new] for new in (BOS, *tokenizer.encode(text), EOS)] for text in TEXTS]
    assert found == transformers.AutoTokenizer.from_pretrained(tmp_path)(TEXTS).input_ids
    path.write_text(json.dumps({**library, "normalizer": {"type": "NFC"}}))
    with pytest.raises(BundleError, match="BertTokenizer of transformers would replace the normalizer"):
        import_masked_language_model(tmp_path)


@pytest.mark.parametrize("weight_file", ["model.safetensors", "pytorch_model.bin"])
def test_the_first_bert_files(weight_file: str, tmp_path: Path) -> None:
    """They have vocab.txt, a pooler, position ids, and the weights of norms under the names gamma and beta."""
    _, encoder = published("bert", tmp_path)
    expected = import_masked_language_model(tmp_path).bundle
    weights = {
        re.sub(r"LayerNorm\.weight", "LayerNorm.gamma", re.sub(r"LayerNorm\.bias", "LayerNorm.beta", name)): weight
        for name, weight in load_file(tmp_path / "model.safetensors").items()
    }
    extra = {
        "bert.pooler.dense.weight": torch.ones(32, 32),
        "bert.embeddings.position_ids": torch.arange(64)[None],
        "cls.seq_relationship.bias": torch.ones(2),
    }
    (tmp_path / "model.safetensors").unlink()
    save = save_file if weight_file.endswith(".safetensors") else torch.save
    save(weights | extra, tmp_path / weight_file)
    names = sorted(encoder.get_vocab(), key=encoder.get_vocab().get)
    (tmp_path / "vocab.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BertForPreTraining"]}))
    found = import_masked_language_model(tmp_path).bundle
    assert [found.tokenizer.encode(text) for text in TEXTS] == [expected.tokenizer.encode(text) for text in TEXTS]
    ids = torch.tensor([[BOS, 7, 8, 9, EOS]])
    with torch.inference_mode():
        assert torch.equal(found.model(ids), expected.model(ids))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, 'position_embedding_type = "relative_key" is not'),
        ("bert", {"hidden_act": "mish"}, "hidden_act = 'mish' is not supported; supported: gelu_new"),
        ("bert", {"architectures": ["BertForSequenceClassification"]}, "expected BertForMaskedLM for BERT"),
        ("bert", {"embedding_size": 16}, "embedding_size = 16 is not supported for BERT"),
        ("bert", {"is_decoder": True}, "is_decoder = true is not supported; expected false for BERT"),
        ("bert", {"tie_word_embeddings": False}, r"tensor 'cls\.predictions\.decoder\.weight' is missing \(1 in total"),
        ("bert", {"max_position_embeddings": 65}, r"shape \[64, 32\]; config.json requires \[65, 32\]"),
        ("roberta", {"is_decoder": True}, "is_decoder = true is not supported; expected false for RoBERTa"),
        ("roberta", {"hidden_act": "relu"}, 'hidden_act = "relu" is not supported; expected "gelu" for RoBERTa'),
        ("distilbert", {"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds = true is not supported"),
        ("modernbert", {"tie_word_embeddings": False}, r"tensor 'decoder\.weight' is missing \(1 in total"),
        ("modernbert", {"norm_bias": True}, "norm_bias = true is not supported; expected false for ModernBERT"),
        ("modernbert", {"layer_types": ["full_attention"] * 5}, "layer_types is not supported; expected full_"),
        ("modernbert", {"classifier_activation": "relu"}, "classifier_activation = 'relu' is not supported; expected"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    published(name, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(BundleError, match=message):
        import_masked_language_model(tmp_path)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    published("bert", tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(BundleError, match=r"expected for bert: tokenizer\.json, or vocab\.txt"):
        import_masked_language_model(tmp_path)
    with pytest.raises(BundleError, match="the pad token's id 999 is not in the vocabulary"):
        import_masked(tmp_path, pad=999, start=1, end=2, unknown=3)
