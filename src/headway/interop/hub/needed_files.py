"""Select the files of a repository on the Hub that an import needs: one copy of the weights, and one tokenizer.

A repository often contains the same weights in several formats, and the same tokenizer in several forms. They are
preferred in the order in which :mod:`headway.interop.importing` searches a folder for files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from headway.errors import HubError

RepositoryFormat = Literal["headway", "huggingface", "ctranslate2", "argos", "marian"]

CONFIG_FILE = "config.json"
_ABOUT = (
    *(CONFIG_FILE, "generation_config.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "README.md"),
)
WEIGHT_FILES = (
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
_CTRANSLATE2_TOKENIZERS = (
    ("source.spm", "target.spm"),
    ("source.model", "target.model"),
    ("sentencepiece.model",),
    ("sentencepiece.bpe.model",),
    ("spm.model",),
    ("spiece.model",),
    ("tokenizer.model",),
    ("flores200_sacrebleu_tokenizer_spm.model",),
    ("vocab-src.json", "vocab-tgt.json", "merges.txt"),
    ("tokenizer.json",),
)
_CTRANSLATE2_WEIGHTS = "model.bin"
_VOCABULARIES = ("shared_vocabulary", "source_vocabulary", "target_vocabulary")
_COMPANIONS = {"source.spm": "target_vocab.json", "tokenizer.json": "target/tokenizer.json"}
_OF_MODEL_FOLDERS = (".json", ".safetensors", ".spm", ".onnx")
_NAME = re.compile(r"\w[\w.+-]*", re.ASCII)  # a file in the repository's main folder


def is_model_folder(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json belongs to a Headway model folder, which needs no conversion."""
    return "format" in config and "task" in config


def repository_format(names: Collection[str], config: Mapping[str, Any]) -> RepositoryFormat | None:
    """Return the format of the model in a repository, or None if the repository contains no model that can be imported.

    Args:
        names: All files of the repository.
        config: The content of config.json; empty if there is no such file.
    """
    if is_model_folder(config):
        return "headway"
    if _with_ending(names, ".argosmodel"):
        return "argos"
    if _CTRANSLATE2_WEIGHTS in names and _vocabularies(names):
        return "ctranslate2"
    if "model_type" in config:
        return "huggingface"
    return "marian" if _with_ending(names, ".npz") else None


def needed_files(model_format: RepositoryFormat, names: Collection[str]) -> list[str]:
    """Return the files that an import needs, except the files that an index of the weights lists.

    Args:
        model_format: The format of the model.
        names: All files of the repository.

    Raises:
        HubError: The repository has several models.
    """
    about = [name for name in _ABOUT if name in names]
    match model_format:
        case "headway":
            paths = [PurePosixPath(name) for name in names]
            return [str(path) for path in paths if path.suffix in _OF_MODEL_FOLDERS and len(path.parts) == 1] + [
                name for name in ("README.md", "model.svg") if name in names
            ]
        case "argos":
            return [_only(_with_ending(names, ".argosmodel"))]
        case "marian":
            others = [*_with_ending(names, ".yml"), *_with_ending(names, ".spm")]
            return [*about, _only(_with_ending(names, ".npz")), *others]
        case "ctranslate2":
            files = [*_vocabularies(names), *(name for name in ("vmap.txt",) if name in names)]
            return [*about, _CTRANSLATE2_WEIGHTS, *files, *_tokenizer(names, _CTRANSLATE2_TOKENIZERS)]
    weights = next(([name] for name in WEIGHT_FILES if name in names), [])
    return [*about, *weights, *_tokenizer(names, _TOKENIZERS)]


def _tokenizer(names: Collection[str], forms: Collection[tuple[str, ...]]) -> list[str]:
    files = next((files for files in forms if all(name in names for name in files)), ())
    return [*files, *(_COMPANIONS[name] for name in files if _COMPANIONS.get(name) in names)]


def _vocabularies(names: Collection[str]) -> list[str]:
    """Return CTranslate2's vocabulary files, each in only one format."""
    forms = ([f"{name}.json", f"{name}.txt"] for name in _VOCABULARIES)
    return [next(file for file in files if file in names) for files in forms if any(file in names for file in files)]


def _with_ending(names: Collection[str], ending: str) -> list[str]:
    return sorted(name for name in names if name.endswith(ending) and _NAME.fullmatch(name))


def _only(files: list[str]) -> str:
    if len(files) > 1:
        listed = ", ".join(files[:5])
        raise HubError(f"the repository contains several models ({listed}); download one of them, and import its file")
    return files[0]


def is_weight_index(name: str) -> bool:
    """Return whether a file is an index of the files with the weights."""
    return name.endswith(".index.json")
