"""Load the tokenizers of a model folder, whatever their kind."""

from __future__ import annotations

import json
from pathlib import Path

from headway.errors import BundleError
from headway.text.base import TextTokenizer
from headway.text.huggingface import FastTokenizer
from headway.text.imported import VERSION, ImportedTokenizer
from headway.text.moses import MosesTokenizer
from headway.text.sentencepiece import SentencePieceTokenizer
from headway.text.tokenizer import Tokenizer

__all__ = ["load_tokenizer"]

_IMPORTED: dict[str, type[ImportedTokenizer]] = {
    kind.kind: kind for kind in (FastTokenizer, SentencePieceTokenizer, MosesTokenizer)
}


def load_tokenizer(folder: Path, name: str) -> TextTokenizer:
    """Read ``folder/name.json``; raise :class:`~headway.errors.BundleError` if it is not a tokenizer."""
    path = folder / f"{name}.json"
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        saved = None
    if not isinstance(saved, dict) or saved.get("version") != VERSION or str(saved.get("kind")) not in _IMPORTED:
        return Tokenizer.load(folder, name)  # explains what is wrong with the file
    try:
        return _IMPORTED[saved["kind"]].from_saved(saved, path)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise BundleError(f"{path}: damaged ({error!r}); copy or import it again") from None
