"""Fast tokenizers of Hugging Face models (``tokenizer.json``), in Headway's order of ids.

The file of the library `tokenizers` describes normaliser, pre-tokeniser, model and decoder; all of it is kept, but for
what breaks the rule that text makes no special id. There are two ways in: *added tokens* are found in text before the
model sees it, and a Unigram model finds any piece of its vocabulary, "</s>" too. So special tokens get names in the
file that text cannot spell (between spaces, which every pre-tokeniser replaces or removes), and whatever would still be
one becomes ``UNK``. Templates that put tokens around a text are dropped: that is the framing's part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from headway.errors import BundleError
from headway.text.foreign import ForeignTokenizer
from headway.text.tokenizer import NUM_SPECIAL, UNK, readable_piece, refuse_surrogates

__all__ = ["FastTokenizer", "library_tokens", "special_ids"]


class FastTokenizer(ForeignTokenizer):
    """A tokenizer of the library `tokenizers`.

    Args:
        library: The content of a ``tokenizer.json``, as JSON gives it.
        order: The library's id of each of ours. Ids that the library does not know are reserved.
        reserved: Further ids of ours that text never makes, such as language codes.
        origin: What an error calls the file.
    """

    kind = "huggingface"

    def __init__(
        self,
        library: dict[str, Any],
        order: Sequence[int],
        reserved: Iterable[int] = (),
        origin: str = "tokenizer.json",
    ) -> None:
        known, marked = library_tokens(library, origin), special_ids(library)
        byte_level = _is_byte_level(library)
        reserved = set(reserved) | {new for new, old in enumerate(order) if old not in known}
        special = {*reserved, *range(NUM_SPECIAL)}
        unspelled = {old for new, old in enumerate(order) if new in special} | marked
        self._content_library = _without_special(library, unspelled)
        self._order = tuple(order)
        names = [_name(new, old, known, byte_level, special) for new, old in enumerate(order)]
        super().__init__(names, reserved | {new for new, old in enumerate(order) if old in marked})
        self._ours = [UNK] * (max([*known, *order], default=0) + 1)
        for new, old in enumerate(order):
            if new not in self.reserved:
                self._ours[old] = new
        try:
            self._library = tokenizers.Tokenizer.from_str(json.dumps(self._content_library))
        except Exception as error:  # the library raises Exception itself
            raise BundleError(f"{origin}: the library `tokenizers` cannot read it ({error})") from None
        self._library.encode_special_tokens = True  # not saved by the library: text is searched for no special token

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; what the vocabulary does not hold is ``UNK``."""
        for number, text in enumerate(texts, start=1):
            refuse_surrogates(text, number)
        ours = self._ours
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[ours[index] for index in encoding.ids] for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, as the library's decoder joins it; reserved ids are skipped."""
        text: str = self._library.decode([self._order[index] for index in self.kept(ids)], skip_special_tokens=False)
        return text

    def library_json(self) -> dict[str, Any]:
        """The library's own file, special tokens unspelled; its ids are the old ones."""
        copy: dict[str, Any] = json.loads(json.dumps(self._content_library))
        return copy

    @property
    def spelled(self) -> tuple[str, ...]:
        """The token of each id, as the library spells it; what the library does not know by its name here."""
        known = library_tokens(self._content_library, "")
        unigram = not isinstance(self._content_library["model"]["vocab"], dict)
        tokens = [known.get(old, self._names[new]) for new, old in enumerate(self._order)]
        return tuple(
            token if unigram or new not in self.reserved else token.strip(" ") for new, token in enumerate(tokens)
        )

    @property
    def order(self) -> tuple[int, ...]:
        """The library's id of each of ours."""
        return self._order

    @classmethod
    def restored(cls, saved: dict[str, Any], path: Path) -> FastTokenizer:
        """The tokenizer of a file whose JSON was read already."""
        try:
            return cls(saved["library"], saved["order"], saved["reserved"], str(path))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BundleError(f"{path}: damaged ({error!r}); copy or import it again") from None

    def saved(self) -> dict[str, Any]:
        """Order, reserved ids and the library's own file."""
        return {"order": self._order, "reserved": sorted(self.reserved), "library": self._content_library}


def library_tokens(library: dict[str, Any], origin: str) -> dict[int, str]:
    """The token of each id that a ``tokenizer.json`` knows; :class:`BundleError` where it is none."""
    try:
        vocabulary = library["model"]["vocab"]
        pairs = vocabulary.items() if isinstance(vocabulary, dict) else ((v[0], i) for i, v in enumerate(vocabulary))
        tokens = {int(index): str(token) for token, index in pairs}
        added = {int(token["id"]): str(token["content"]) for token in library.get("added_tokens") or []}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise BundleError(f"{origin}: not a fast tokenizer of Hugging Face's (no model with a vocabulary)") from None
    return tokens | added


def special_ids(library: dict[str, Any]) -> set[int]:
    """The ids of the added tokens that are marked special."""
    return {int(token["id"]) for token in library.get("added_tokens") or [] if token.get("special")}


def _without_special(library: dict[str, Any], ids: set[int]) -> dict[str, Any]:
    """A copy in which the tokens of ``ids`` have names that text cannot spell, and nothing is put around a text."""
    copy: dict[str, Any] = json.loads(json.dumps(library))
    copy.update(post_processor=None, truncation=None, padding=None)
    model = copy["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {_unspelled(t) if index in ids else t: index for t, index in model["vocab"].items()}
    else:
        model["vocab"] = [
            [_unspelled(t) if index in ids else t, score] for index, (t, score) in enumerate(model["vocab"])
        ]
    if model.get("unk_token") is not None and _unspelled(model["unk_token"]) in model["vocab"]:
        model["unk_token"] = _unspelled(model["unk_token"])
    for token in copy.get("added_tokens") or []:
        if token["id"] in ids:
            token.update(content=_unspelled(token["content"]), special=True, normalized=False)
    return copy


def _unspelled(token: str) -> str:
    return token if token.startswith(" ") and token.endswith(" ") else f" {token} "


def _is_byte_level(library: dict[str, Any]) -> bool:
    decoder = library.get("decoder") or {}
    return "ByteLevel" in {decoder.get("type"), *(step.get("type") for step in decoder.get("decoders", []))}


def _name(new: int, old: int, known: dict[int, str], byte_level: bool, special: set[int]) -> str:
    token = known.get(old)
    if token is None:
        return f"<unused {new}>"
    if new in special:
        return token.strip(" ")
    return readable_piece(token) if byte_level else token.replace("▁", " ")
