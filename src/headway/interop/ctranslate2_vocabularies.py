"""Read the vocabularies of a CTranslate2 folder, its special tokens, and its vocabulary map.

    config.json                  names of special tokens, and which of them are added to a source (since version 6)
    shared_vocabulary, or source_vocabulary and target_vocabulary, each .json (a list) or .txt (a token per line)
    vmap.txt                     optional: the target tokens that source tokens may be translated to

Special tokens have different ids in Headway. If the vocabulary has no padding token, no unknown token or no separate
first token, the missing token's row duplicates another row, and a bias keeps its probability at 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from headway.engine import Shortlist
from headway.errors import BundleError
from headway.interop.ctranslate2_variables import StoredVariables
from headway.interop.json_objects import read_json
from headway.interop.stored_vocabulary import StoredVocabulary
from headway.interop.vocabulary_order import VocabularyOrder
from headway.text.base import EOS
from headway.text.special_tokens import SpecialTokenTemplate

TOOLKIT_NAME = "CTranslate2"
_CONFIG_KEYS = {
    *("unk_token", "bos_token", "eos_token", "decoder_start_token", "add_source_bos", "add_source_eos"),
    *("layer_norm_epsilon", "multi_query_attention"),
}
_PAD_NAMES = ("<blank>", "<pad>")


@dataclass(frozen=True)
class TokenSettings:
    """Names of special tokens and where they are added, from config.json or, before version 6, from variables."""

    path: Path
    unk_token: str
    bos_token: str
    eos_token: str
    decoder_start_token: str | None
    add_source_bos: bool
    add_source_eos: bool
    norm_epsilon: float | None
    starts_from_zero: bool

    @classmethod
    def read(cls, folder: Path, variables: StoredVariables) -> TokenSettings:
        """Read the token settings of a folder."""
        path = folder / "config.json"
        stored = read_json(path)
        config: dict[str, Any] = {
            "unk_token": "<unk>",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "add_source_bos": False,
            "add_source_eos": False,
            **(stored or {}),
        }
        if config.get("quantization_type"):
            raise BundleError(
                f"{path}: quantization_type = {config['quantization_type']!r} (AWQ quantization) is not supported"
            )
        for key, value in config.items():
            if key not in _CONFIG_KEYS and value:
                raise BundleError(f"{path}: {key} = {value!r} is not supported for {TOOLKIT_NAME} models")
        if variables.version < 6:
            config |= _old_settings(variables)
        config.setdefault("decoder_start_token", config["bos_token"])
        names = ("unk_token", "bos_token", "eos_token")
        if any(not isinstance(config[name], str) for name in names):
            raise BundleError(f"{path}: damaged ({' and '.join(names)} must be strings); copy it again")
        if not isinstance(config["decoder_start_token"], str | None):
            raise BundleError(f"{path}: damaged (decoder_start_token must be a string or null); copy it again")
        epsilon = config.get("layer_norm_epsilon")
        if epsilon is not None and not (isinstance(epsilon, int | float) and 0 < epsilon < 1):
            raise BundleError(f"{path}: layer_norm_epsilon = {epsilon!r}: expected a number between 0 and 1")
        return cls(
            path,
            config["unk_token"],
            config["bos_token"],
            config["eos_token"],
            config["decoder_start_token"],
            bool(config["add_source_bos"]),
            bool(config["add_source_eos"]),
            epsilon,
            bool(variables.scalar("decoder/start_from_zero_embedding")),
        )


def _old_settings(variables: StoredVariables) -> dict[str, Any]:
    """Return the settings from variables, which contained them before version 6."""
    defaults = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    settings: dict[str, Any] = {name: variables.text(name) or default for name, default in defaults.items()}
    for side in ("bos", "eos"):
        settings[f"add_source_{side}"] = bool(variables.scalar(f"with_source_{side}"))
    with_bos = variables.scalar("with_target_bos")
    start: str | None = settings["eos_token" if with_bos == 0 else "bos_token"]
    settings["decoder_start_token"] = None if variables.scalar("user_decoder_start_tokens") else start
    return settings


def read_vocabularies(
    folder: Path, sizes: Sequence[int], settings: TokenSettings, start_token: str | None
) -> tuple[StoredVocabulary, StoredVocabulary]:
    """Return the vocabularies of both sides. If they are equal, they are the same object.

    Args:
        folder: The CTranslate2 folder.
        sizes: The numbers of rows of the source and target embeddings.
        settings: The names of the special tokens.
        start_token: The first decoder token, for models that let their user choose it.

    Raises:
        BundleError: A file is missing or damaged, or does not contain a token that the model needs.
    """
    shared = _tokens(folder, "shared_vocabulary")
    lists = [shared or _tokens(folder, f"{side}_vocabulary") for side in ("source", "target")]
    for side, tokens in zip(("source", "target"), lists, strict=True):
        if tokens is None:
            raise BundleError(
                f"{folder}: no {side} vocabulary; expected shared_vocabulary.json or .txt, or {side}_vocabulary.json "
                "or .txt"
            )
    start = start_token if settings.decoder_start_token is None else settings.decoder_start_token
    if start is None:
        raise BundleError(
            f"{folder}: the first decoder token is left to the user (decoder_start_token = null), for example a "
            "language code; specify it (target_language=, on the command line --target-language)"
        )
    source, target = (
        _vocabulary(
            folder, cast("list[str]", tokens), size, settings, None if settings.starts_from_zero else start, side
        )
        for side, tokens, size in zip(("source", "target"), lists, sizes, strict=True)
    )
    is_joint = source.tokens == target.tokens and source.order == target.order
    return (target if is_joint else source), target


def _vocabulary(
    folder: Path, tokens: list[str], size: int, settings: TokenSettings, start: str | None, side: str
) -> StoredVocabulary:
    names = [*tokens, *([] if settings.unk_token in tokens else [settings.unk_token])][:size]
    if len(tokens) > size:
        raise BundleError(
            f"{folder}: the {side} vocabulary has {len(tokens):,} tokens, but the weights have {size:,} rows"
        )
    ids = {name: index for index, name in reversed([*enumerate(names)])}
    if side == "target":
        needed = {"eos_token": settings.eos_token} | ({} if start is None else {"decoder_start_token": start})
        for key, name in needed.items():
            if name not in ids:
                raise BundleError(f"{folder}: {key} = {name!r} is not in the {side} vocabulary")
    pad = next((ids[name] for name in _PAD_NAMES if name in ids), None)
    end, unknown = ids.get(settings.eos_token), ids.get(settings.unk_token)
    first = None if start is None else ids.get(start)
    order = VocabularyOrder.with_duplicates(size, pad=pad, start=first, end=end, unknown=unknown)
    words = {settings.unk_token, settings.bos_token, settings.eos_token, *_PAD_NAMES, "<s>", "</s>", "<unk>", "<mask>"}
    special = frozenset(ids[name] for name in words if name in ids)
    return StoredVocabulary(names, order, special)


def _tokens(folder: Path, name: str) -> list[str] | None:
    """Return the tokens of a vocabulary file, or None if the folder does not contain it."""
    path = folder / f"{name}.json"
    try:
        tokens = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise BundleError(f"{path}: damaged (expected a list of tokens); copy it again")
    except FileNotFoundError:
        path = folder / f"{name}.txt"
        try:
            tokens = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{path}: cannot be read ({error}); expected a token per line in UTF-8") from None
        if all(token.endswith("\r") for token in tokens):
            tokens = [token[:-1] for token in tokens]
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path}: damaged ({error}); copy it again") from None
    for token in tokens:
        if any("\ud800" <= character <= "\udfff" for character in token):
            raise BundleError(f"{path}: damaged (a token contains a lone surrogate); copy it again")
    return list(tokens)


def source_template(folder: Path, settings: TokenSettings, source: StoredVocabulary) -> SpecialTokenTemplate:
    """Return the special tokens that CTranslate2 adds to a source by itself."""
    prefix, suffix = list[int](), list[int]()
    for wanted, name, ids in (
        (settings.add_source_bos, settings.bos_token, prefix),
        (settings.add_source_eos, settings.eos_token, suffix),
    ):
        if wanted and name not in source.ids:
            raise BundleError(f"{folder}: {name!r}, which is added to sources, is not in the source vocabulary")
        if wanted:
            ids += source.order.to_headway_ids([source.ids[name]])
    return SpecialTokenTemplate(source_prefix=tuple(prefix), source_suffix=tuple(suffix))


def read_vocabulary_map(
    path: Path, source: StoredVocabulary, target: StoredVocabulary, vocabulary_fingerprints: str
) -> Shortlist | None:
    """Return the shortlist that a vmap.txt defines, or None if there is no such file.

    A line contains source tokens and, after a tab, target tokens that they may be translated to. A line without source
    tokens contains target tokens that are always allowed. CTranslate2 searches the source for the whole sequence of a
    line's tokens. A Headway shortlist has one list for each token, so a line's target tokens are assigned to its first
    token. The resulting list for a source includes all tokens of CTranslate2's list.

    Raises:
        BundleError: The file is damaged.
    """
    try:
        lines = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path}: cannot be read ({error}); expected UTF-8") from None
    source_ids, target_ids = source.ids, target.ids
    always, rows = {EOS}, [set[int]() for _ in range(len(source.order))]
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        key, tab, values = line.partition("\t")
        if not tab:
            raise BundleError(f"{path}, line {number}: expected source tokens, a tab, and target tokens")
        known = [target_ids[token] for token in values.split(" ") if token in target_ids]
        ids = set(target.order.to_headway_ids(known))
        if not key:
            always |= ids
        elif (first := key.split(" ")[0]) in source_ids:
            rows[source.order.to_headway_ids([source_ids[first]])[0]] |= ids
    table = np.zeros((len(rows), max(map(len, rows))), dtype=np.int32)
    for row, ids in zip(table, rows, strict=True):
        row[: len(ids)] = sorted(ids)
    return Shortlist(np.array(sorted(always), dtype=np.int32), table, vocabulary_fingerprints)
