"""Tokenizers of a model folder, whatever their kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.text.foreign import VERSION
from headway.text.huggingface import FastTokenizer
from headway.text.interface import TextTokenizer
from headway.text.moses import MosesTokenizer
from headway.text.sentencepiece import SentencePieceTokenizer
from headway.text.tokenizer import Tokenizer

__all__ = ["load_tokenizer"]

_FOREIGN = {kind.kind: kind for kind in (FastTokenizer, SentencePieceTokenizer, MosesTokenizer)}


def load_tokenizer(folder: Path, name: str) -> TextTokenizer:
    """Read ``folder/name.json``; :class:`~headway.errors.BundleError` says what is wrong with it."""
    path = folder / f"{name}.json"
    saved = _foreign(path)
    return Tokenizer.load(folder, name) if saved is None else _FOREIGN[saved["kind"]].restored(saved, path)


def _foreign(path: Path) -> dict[str, Any] | None:
    """The content of an imported tokenizer's file; None for others, which :class:`Tokenizer` reads or explains."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    imported = isinstance(saved, dict) and saved.get("version") == VERSION and saved.get("kind") in _FOREIGN
    return saved if imported else None
