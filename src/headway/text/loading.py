"""Load saved tokenizers, trained by Headway or imported.

The modules of imported tokenizers are imported only when such a tokenizer is loaded, because they import other
libraries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.errors import BundleError
from headway.text.base import TextTokenizer
from headway.text.imported import IMPORTED_FORMAT_VERSION, ImportedTokenizer
from headway.text.tokenizer import Tokenizer


def load_tokenizer(folder: Path, name: str) -> TextTokenizer:
    """Load ``folder/name.json``, a saved tokenizer of any kind.

    Raises:
        BundleError: The file is missing, damaged, or not a tokenizer.
    """
    path = folder / f"{name}.json"
    data = _read(path)
    if data.get("version") == IMPORTED_FORMAT_VERSION:
        return _parse_imported(data, path)
    if data.get("version") != 1:
        raise BundleError(
            f"{path}: version {data.get('version')!r} is unknown (known: 1, 2); install a newer version of Headway"
        )
    return Tokenizer.from_saved(data, path)


def imported_tokenizers() -> dict[str, type[ImportedTokenizer]]:
    """Return the class of each kind of imported tokenizer."""
    from headway.text.huggingface import FastTokenizer
    from headway.text.moses import MosesTokenizer
    from headway.text.sentencepiece import SentencePieceTokenizer

    return {tokenizer.kind: tokenizer for tokenizer in (FastTokenizer, SentencePieceTokenizer, MosesTokenizer)}


def _parse_imported(data: dict[str, Any], path: Path) -> TextTokenizer:
    """Create an imported tokenizer from ``data``, the parsed content of the file ``path``."""
    kind = imported_tokenizers().get(str(data.get("kind")))
    if kind is None:
        raise BundleError(f"{path}: kind {data.get('kind')!r} is unknown; install a newer version of Headway")
    try:
        return kind.from_saved(data, path)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise BundleError(f"{path}: damaged ({error!r}); copy the file or import the model again") from None


def _read(path: Path) -> dict[str, Any]:
    """Return the parsed content of a tokenizer file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{path}: no such file; expected a tokenizer saved with the model") from None
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise BundleError(f"{path}: {reason}; expected a tokenizer saved by Headway") from None
    except (ValueError, RecursionError):
        raise BundleError(f"{path}: not valid JSON; the file is truncated or damaged: copy or save it again") from None
    if not isinstance(data, dict) or data.get("format") != "headway-tokenizer":
        raise BundleError(f"{path}: not a tokenizer saved by Headway (format is not 'headway-tokenizer')")
    return data
