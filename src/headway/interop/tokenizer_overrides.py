"""Apply the settings of ``tokenizer_config.json`` that override ``tokenizer.json`` in `transformers` 5.

Most `transformers` tokenizer classes keep the vocabulary in ``tokenizer.json`` but build the normalizer and the
pre-tokenizer themselves, from settings in ``tokenizer_config.json`` or from default values:

    BertTokenizer, DistilBertTokenizer                do_lower_case, strip_accents, tokenize_chinese_chars
    RobertaTokenizer, BartTokenizer, GPT2Tokenizer,
    GPTNeoXTokenizer, Qwen2Tokenizer, LlamaTokenizer  add_prefix_space

``PreTrainedTokenizerFast`` uses ``tokenizer.json`` as it is. Settings that a ``tokenizer.json`` cannot express are
rejected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.errors import BundleError
from headway.interop.json_objects import read_json

_GENERIC = "PreTrainedTokenizerFast"
# The class that `transformers` uses for a family if the folder does not name a class. For families that are not listed,
# such as Mistral and ModernBERT, it always uses the generic class.
_DEFAULT_CLASSES = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "bart": "RobertaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "llama": _GENERIC,
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
}
_BERT = ("BertTokenizer", "DistilBertTokenizer")
_BYTE_LEVEL = ("RobertaTokenizer", "BartTokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer")


def apply_overrides(library: dict[str, Any], config: Mapping[str, Any], family: str, origin: Path) -> None:
    """Change ``library`` in the same way as the folder's tokenizer class does.

    Args:
        library: The content of ``tokenizer.json``.
        config: The content of ``tokenizer_config.json``.
        family: The ``model_type``.
        origin: The path of ``tokenizer.json``.

    Raises:
        BundleError: A setting cannot be applied to this ``tokenizer.json``.
    """
    name = _tokenizer_class(config, family, origin.parent)
    if name in _BERT:
        if (library.get("normalizer") or {}).get("type") != "BertNormalizer":
            raise BundleError(
                f"{origin}: {name} of transformers would replace the normalizer with a BertNormalizer; to keep the "
                f"normalizer, set tokenizer_class to {_GENERIC} in tokenizer_config.json"
            )
        library["normalizer"] = bert_normalizer(config)
    elif name in _BYTE_LEVEL:
        adds_space = bool(config.get("add_prefix_space"))
        steps = [step for step in _steps(library, "pre_tokenizer") if step.get("type") == "ByteLevel"]
        if adds_space and not steps:
            raise BundleError(
                f"{origin.with_name('tokenizer_config.json')}: add_prefix_space = true is not supported, because "
                "tokenizer.json has no ByteLevel pre_tokenizer"
            )
        for step in steps:
            step["add_prefix_space"] = adds_space
        if name == "GPTNeoXTokenizer":
            library["post_processor"] = (
                None  # this class also drops the template, and therefore the tokens around a text
            )
    elif name == "LlamaTokenizer":
        _check_llama_prefix_space(library, config, origin)


def _tokenizer_class(config: Mapping[str, Any], family: str, folder: Path) -> str:
    """Return the tokenizer class that `transformers` uses for a folder, without the suffix "Fast" of older versions."""
    if family not in _DEFAULT_CLASSES:
        return _GENERIC
    named = config.get("tokenizer_class") or (read_json(folder / "config.json") or {}).get("tokenizer_class")
    if named is None:
        return _DEFAULT_CLASSES[family]
    return str(named).removesuffix("Fast")


def bert_normalizer(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return BERT's normalizer as in ``tokenizer.json``."""
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": bool(config.get("tokenize_chinese_chars", True)),
        "strip_accents": config.get("strip_accents"),
        "lowercase": bool(config.get("do_lower_case", True)),
    }


def _check_llama_prefix_space(library: dict[str, Any], config: Mapping[str, Any], origin: Path) -> None:
    if any(step.get("type") == "ByteLevel" for part in ("pre_tokenizer", "decoder") for step in _steps(library, part)):
        return  # Llama 3, for which `transformers` uses the generic class
    setting = config.get("add_prefix_space")
    adds_space = any(
        step.get("type") == "Prepend" or (step.get("type") == "Metaspace" and _metaspace_adds_space(step))
        for part in ("normalizer", "pre_tokenizer")
        for step in _steps(library, part)
    )
    if adds_space != (setting is None or bool(setting)):
        raise BundleError(
            f"{origin.with_name('tokenizer_config.json')}: add_prefix_space = {json.dumps(setting)} contradicts "
            f"tokenizer.json; set it to {json.dumps(adds_space)} to use tokenizer.json as it is"
        )


def _metaspace_adds_space(step: Mapping[str, Any]) -> bool:
    if "prepend_scheme" in step:
        return bool(step["prepend_scheme"] != "never")
    return bool(step.get("add_prefix_space", True))  # the older form


def _steps(library: Mapping[str, Any], part: str) -> list[dict[str, Any]]:
    """Return the steps of a part of ``tokenizer.json``, such as "normalizer", as a flat list."""
    pending, steps = [library.get(part)], list[dict[str, Any]]()
    while pending:
        step = pending.pop(0)
        if step is not None and step.get("type") == "Sequence":
            pending = [*step[f"{part}s".replace("_", "")], *pending]
        elif step is not None:
            steps.append(step)
    return steps
