"""In every family, keys of config.json that published models contain are accepted, and others are refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from drawn_models import transformers

from headway.errors import BundleError
from headway.interop.huggingface.causal_families import CAUSAL_FAMILIES
from headway.interop.huggingface.checkpoint import ModelFamily, read_checkpoint_config
from headway.interop.huggingface.classifier_families import CLASSIFIER_FAMILIES
from headway.interop.huggingface.families import FAMILIES
from headway.interop.huggingface.masked_families import MASKED_FAMILIES
from headway.interop.huggingface.t5_importing import T5_FAMILIES

TABLES: list[Mapping[str, Any]] = [FAMILIES, T5_FAMILIES, CAUSAL_FAMILIES, MASKED_FAMILIES, CLASSIFIER_FAMILIES]
each_family = pytest.mark.parametrize(
    ("table", "name"),
    [(table, name) for table in TABLES for name in table],
    ids=[table[name].architecture for table in TABLES for name in table],
)

# What transformers 4 wrote of every model if the value was not the default, with values of published models.
VERSION_4: dict[str, Any] = {
    "_attn_implementation_autoset": True,
    "_name_or_path": "facebook/some-model",
    "add_cross_attention": False,
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "diversity_penalty": 0.0,
    "do_sample": True,
    "early_stopping": True,
    "encoder_no_repeat_ngram_size": 3,
    "exponential_decay_length_penalty": [5, 1.1],
    "finetuning_task": "mnli",
    "gradient_checkpointing": True,
    "id2label": {"0": "no", "1": "yes"},
    "is_decoder": False,
    "label2id": {"no": 0, "yes": 1},
    "length_penalty": 2.0,
    "max_length": 142,
    "min_length": 56,
    "no_repeat_ngram_size": 3,
    "num_beam_groups": 1,
    "num_beams": 4,
    "num_return_sequences": 1,
    "output_attentions": True,
    "output_hidden_states": True,
    "output_past": True,
    "output_scores": True,
    "prefix": " ",
    "problem_type": None,
    "pruned_heads": {},
    "remove_invalid_values": True,
    "repetition_penalty": 1.1,
    "return_dict": True,
    "return_dict_in_generate": True,
    "sep_token_id": 2,
    "suppress_tokens": None,
    "task_specific_params": {"summarization": {"num_beams": 4}},
    "temperature": 0.7,
    "tf_legacy_loss": False,
    "tie_encoder_decoder": False,
    "tokenizer_class": "SomeTokenizer",
    "top_k": 40,
    "top_p": 0.9,
    "torch_dtype": "float16",
    "torchscript": False,
    "transformers_version": "4.30.2",
    "typical_p": 1.0,
    "use_bfloat16": False,
    "use_cache": True,
}
_OLD_BART = {
    "_num_labels": 3,
    "activation_dropout": 0.1,
    "add_bias_logits": True,
    "add_final_layer_norm": False,
    "bos_token_id": 0,
    "classif_dropout": 0.1,
    "classifier_dropout": 0.1,
    "decoder_layerdrop": 0.1,
    "decoder_start_token_id": 2,
    "encoder_layerdrop": 0.1,
    "eos_token_ids": [2],
    "extra_pos_embeddings": 2,
    "force_bos_token_to_be_generated": True,
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 2,
    "gradient_checkpointing": False,
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "normalize_before": False,
    "normalize_embedding": True,
    "num_hidden_layers": 12,
    "replacing_rate": 0,
    "static_position_embeddings": False,
    "student_decoder_layers": [0, 6, 11],
    "student_encoder_layers": None,
    "unk_token_id": 3,
    "xla_device": True,
}
_T5 = {
    "decoder_start_token_id": 0,
    "dense_act_fn": "gelu_new",
    "feed_forward_proj": "gated-gelu",
    "gradient_checkpointing": False,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "is_gated_act": True,
    "n_positions": 512,
    "output_past": True,
    "tie_word_embeddings": False,
}
# Further keys of published models of each family, with their values.
PUBLISHED: dict[str, dict[str, Any]] = {
    "marian": {
        **_OLD_BART,
        "bad_words_ids": [[58100]],
        "decoder_vocab_size": 58101,
        "do_blenderbot_90_layernorm": False,
        "extra_pos_embeddings": 58101,
        "force_bos_token_to_be_generated": False,
        "forced_bos_token_id": None,
        "normalize_embedding": False,
        "static_position_embeddings": True,
    },
    "m2m_100": {"forced_bos_token_id": None, "init_std": 0.02, "num_hidden_layers": 12, "decoder_layerdrop": 0.05},
    "bart": _OLD_BART,
    "mbart": {**_OLD_BART, "add_final_layer_norm": True, "normalize_before": True, "save_step": 5},
    "fsmt": {"decoder": {"vocab_size": 42024, "model_type": "fsmt_decoder"}, "langs": ["en", "de"], "init_std": 0.02},
    "t5": _T5,
    "mt5": _T5,
    "pegasus": {
        **_OLD_BART,
        "add_final_layer_norm": True,
        "extra_pos_embeddings": 1,
        "normalize_before": True,
        "static_position_embeddings": True,
    },
}


def read(folder: Path, table: Mapping[str, Any], name: str, **values: Any) -> None:
    """Read a config.json with these values."""
    config = {"model_type": name, "architectures": [table[name].architecture], **values}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    read_checkpoint_config(folder, table)


def test_every_kind_of_family_is_tested() -> None:
    assert {type(family) for table in TABLES for family in table.values()} == set(ModelFamily.__subclasses__())


@each_family
def test_what_the_installed_version_writes_is_accepted(table: Mapping[str, Any], name: str, tmp_path: Path) -> None:
    """Every key of the configuration class, also those that files leave out because they have their defaults."""
    config = transformers.CONFIG_MAPPING[name](architectures=[table[name].architecture])
    read(tmp_path, table, name, **config.to_dict())


@each_family
def test_what_older_versions_wrote_is_accepted(table: Mapping[str, Any], name: str, tmp_path: Path) -> None:
    published = PUBLISHED.get(name, {})
    read(tmp_path, table, name, **{**VERSION_4, **published})
    for key, value in published.items():
        read(tmp_path, table, name, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logit_scale", 0.0625),
        ("attention_multiplier", 0.25),
        ("qk_norm", True),
        ("final_logit_softcapping", 30.0),
        ("residual_multiplier", 0.22),
        ("do_blenderbot_90_layernorm", True),
        ("prefix", "translate English to German: "),
        ("pruned_heads", {"0": [1]}),
        ("tie_encoder_decoder", True),
        ("suppress_tokens", [5]),
        ("quantization_config", {"bits": 4}),
        ("auto_map", {"AutoModel": "modeling.Model"}),
        ("a_key_of_next_year", "value"),
    ],
)
def test_other_keys_are_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    for table in TABLES:
        for name, family in table.items():
            with pytest.raises(BundleError) as caught:
                read(tmp_path, table, name, **{key: value})
            assert str(caught.value) == f"{tmp_path}/config.json: {key} = {value!r} is not supported for {family.title}"
            read(tmp_path, table, name, **{key: None})
