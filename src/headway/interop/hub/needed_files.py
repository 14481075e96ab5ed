"""Which files of a repository on the Hub an import reads: the weights once, and one tokenizer.

A repository often has the same weights in several formats, and the same tokenizer in several forms. The order of
preference is that in which :mod:`headway.interop.importing` looks for files in a folder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

CONFIG_FILE = "config.json"
_ABOUT = (
    *(CONFIG_FILE, "generation_config.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "README.md"),
)
WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
_TOKENIZERS = (
    ("source.spm", "target.spm", "vocab.json"),  # Marian
    ("vocab-src.json", "vocab-tgt.json", "merges.txt"),  # FSMT
    ("tokenizer.json",),
    ("sentencepiece.bpe.model", "vocab.json"),  # M2M-100
    ("sentencepiece.bpe.model",),  # mBART
    ("spiece.model",),
    ("tokenizer.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
)
_COMPANIONS = {"source.spm": "target_vocab.json", "tokenizer.json": "target/tokenizer.json"}
_OF_MODEL_FOLDERS = (".json", ".safetensors", ".spm", ".onnx")


def is_model_folder(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is that of a model folder of Headway, which needs no conversion."""
    return "format" in config and "task" in config


def needed_files(names: Collection[str], config: Mapping[str, Any]) -> list[str]:
    """Return the files that an import needs, without those that an index of weights lists.

    Args:
        names: All files of the repository.
        config: The content of config.json.
    """
    if is_model_folder(config):
        paths = [PurePosixPath(name) for name in names]
        return [str(path) for path in paths if path.suffix in _OF_MODEL_FOLDERS and len(path.parts) == 1] + [
            name for name in ("README.md", "model.svg") if name in names
        ]
    weights = next(([name] for name in WEIGHTS if name in names), [])
    tokenizer = next((files for files in _TOKENIZERS if all(name in names for name in files)), ())
    companions = [_COMPANIONS[name] for name in tokenizer if _COMPANIONS.get(name) in names]
    return [*(name for name in _ABOUT if name in names), *weights, *tokenizer, *companions]


def is_index(name: str) -> bool:
    """Return whether a file lists the files of the weights."""
    return name.endswith(".index.json")
