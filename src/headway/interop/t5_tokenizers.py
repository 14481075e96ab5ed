"""Special features of the tokenizers of models related to T5: the bytes of ByT5, and the language codes of MADLAD-400.

ByT5 (Xue et al. 2022, "ByT5: Towards a Token-Free Future with Pre-trained Byte-to-Byte Models") has a vocabulary of the
special tokens <pad>, </s> and <unk>, the 256 bytes in order, and 125 sentinels (<extra_id_0> and so on), which occur
only in pretraining. Its folders contain no vocabulary.

In MADLAD-400 (Kudugunta et al. 2023), a token before the source, such as "<2de>", selects the target language. The
tokenizer puts the piece for the beginning of a word before this token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.errors import BundleError
from headway.interop.json_objects import read_json
from headway.text.tokenizer import byte_symbols

_SPECIAL = ("<pad>", "</s>", "<unk>")
_SENTINELS = 125
_SENTINEL = re.compile(r"<extra_id_\d+>")


def is_byt5(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether tokenizer_config.json (``config``) or config.json names ByT5's tokenizer."""
    named = config.get("tokenizer_class") or (read_json(folder / "config.json") or {}).get("tokenizer_class")
    return named == "ByT5Tokenizer"


def byt5_tokenizer_json(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ByT5's tokenizer as the content of a ``tokenizer.json``: byte-level BPE without merges.

    Raises:
        BundleError: The folder adds other tokens to the tokenizer.
    """
    listed = [str(token.get("content")) for token in (config.get("added_tokens_decoder") or {}).values()]
    listed += (read_json(folder / "added_tokens.json") or {}).keys()
    if other := [token for token in listed if token not in _SPECIAL and not _SENTINEL.fullmatch(token)]:
        raise BundleError(f"{folder}: the added token {other[0]!r} ({len(other)} in total) is not supported for ByT5")
    sentinels = (f"<extra_id_{number}>" for number in range(_SENTINELS))
    vocabulary = {token: index for index, token in enumerate((*_SPECIAL, *byte_symbols(), *sentinels))}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": token, **special} for token, index in vocabulary.items() if len(token) > 1
        ],
        "pre_tokenizer": bytes_,
        "decoder": bytes_,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def language_code_prefix(
    encode: Callable[[list[str]], list[list[int]]], languages: Mapping[str, int], origin: Path
) -> tuple[int, ...]:
    """Return the ids that precede the id of a language code at the beginning of a text.

    Args:
        encode: Function that returns the ids of each text.
        languages: The id of each language code. The token for "de" is "<2de>".
        origin: The path of the tokenizer file.

    Raises:
        BundleError: A language code changes the ids of the text after it.
    """
    text, before = "a b", set[tuple[int, ...]]()
    alone, *rows = encode([text, *(f"<2{language}> {text}" for language in languages)])
    for (language, index), ids in zip(languages.items(), rows, strict=True):
        place = ids.index(index) if index in ids else len(ids)
        if ids[place + 1 :] != alone:
            raise BundleError(f"{origin}: the language code <2{language}> changes how the text after it is segmented")
        before.add(tuple(ids[:place]))
    if len(before) > 1:
        raise BundleError(f"{origin}: the tokens before a language code depend on the language")
    return next(iter(before), ())
