"""The kinds of imported tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.errors import BundleError
from headway.text.base import TextTokenizer
from headway.text.huggingface import FastTokenizer
from headway.text.imported import ImportedTokenizer
from headway.text.moses import MosesTokenizer
from headway.text.sentencepiece import SentencePieceTokenizer

_IMPORTED: dict[str, type[ImportedTokenizer]] = {
    kind.kind: kind for kind in (FastTokenizer, SentencePieceTokenizer, MosesTokenizer)
}


def parse_imported(data: dict[str, Any], path: Path) -> TextTokenizer:
    """Create the imported tokenizer that ``data``, the parsed content of the file ``path``, describes.

    Raises:
        BundleError: The kind is unknown, or a value is missing or invalid.
    """
    kind = _IMPORTED.get(str(data.get("kind")))
    if kind is None:
        raise BundleError(f"{path}: kind {data.get('kind')!r} is unknown; install a newer Headway")
    try:
        return kind.from_saved(data, path)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise BundleError(f"{path}: damaged ({error!r}); copy or import it again") from None
