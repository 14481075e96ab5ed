"""Fast tokenizers of Hugging Face models (``tokenizer.json``), with ids in Headway's order.

The file of the library `tokenizers` describes the normalizer, pre-tokenizer, model and decoder. All of these are kept,
except for features by which encoding a text could return special ids. There are two such features: *added tokens* are
matched in text before the model is applied, and a Unigram model matches any piece of its vocabulary, including "</s>".
Therefore special tokens in the file get names that cannot occur in text (they start and end with a space, and every
pre-tokenizer replaces or removes spaces). Special tokens that are matched nevertheless become ``UNK``. Templates that
add tokens around a text are removed, because the model folder's
:class:`~headway.text.special_tokens.SpecialTokenTemplate` replaces them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from headway.errors import BundleError, ConfigError
from headway.text.base import NUM_SPECIAL, UNK
from headway.text.imported import ImportedTokenizer, byte_token_values
from headway.text.merge_closure import symbols_of_merges
from headway.text.tokenizer import piece_bytes, readable_piece


class FastTokenizer(ImportedTokenizer):
    """A tokenizer based on the library `tokenizers`.

    Args:
        library: The parsed content of a ``tokenizer.json``.
        library_ids: The library's id for each of Headway's ids. Ids that do not exist in the library are reserved.
        reserved_ids: Additional ids that encoding a text never returns, such as language codes.
        origin: Name of the file in error messages.

    Attributes:
        library_json: Content of ``tokenizer.json`` with the library's own ids, and with names of special tokens that
            cannot occur in text.
    """

    kind = "huggingface"

    def __init__(
        self,
        library: dict[str, Any],
        library_ids: Sequence[int],
        reserved_ids: Iterable[int] = (),
        origin: str = "tokenizer.json",
    ) -> None:
        known, marked = tokens_by_id(library, origin), special_ids(library)
        byte_level = self._is_byte_level = _is_byte_level(library)
        reserved = set(reserved_ids) | {new for new, old in enumerate(library_ids) if old not in known}
        special = {*reserved, *range(NUM_SPECIAL)}
        unspelled = {old for new, old in enumerate(library_ids) if new in special} | marked
        self.library_json = _without_special(library, unspelled)
        self.library_ids = tuple(library_ids)
        names = [_name(new, old, known, byte_level, special) for new, old in enumerate(library_ids)]
        spelled = {new: known[old] for new, old in enumerate(library_ids) if old in known}
        super().__init__(
            names,
            reserved | {new for new, old in enumerate(library_ids) if old in marked},
            byte_tokens=_byte_tokens(library, spelled),
        )
        self._headway_ids = dict.fromkeys(known, UNK)  # ids may have gaps
        for new, old in enumerate(library_ids):
            self._headway_ids[old] = UNK if new in self.reserved_ids else new
        with _library_errors(f"{origin}: the library `tokenizers` cannot read it"):
            self._library = tokenizers.Tokenizer.from_str(json.dumps(self.library_json))
        # do not match special tokens in text (this setting is not stored in the file)
        self._library.encode_special_tokens = True

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        with _library_errors("the library `tokenizers` cannot encode a text with this model's tokenizer"):
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        return [[self._headway_ids[index] for index in encoding.ids] for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, joined by the library's decoder. Reserved ids are skipped."""
        library_ids = [self.library_ids[index] for index in self._text_ids(ids)]
        with _library_errors("the library `tokenizers` cannot decode tokens with this model's tokenizer"):
            text: str = self._library.decode(library_ids, skip_special_tokens=False)
        return text

    @property
    def pieces(self) -> Sequence[str]:
        """The token of each id as spelled by the library, or a placeholder if the id does not exist in the library."""
        known = tokens_by_id(self.library_json, "")
        unigram = not isinstance(self.library_json["model"]["vocab"], dict)
        tokens = [known.get(old, self._names[new]) for new, old in enumerate(self.library_ids)]
        return tuple(
            token if unigram or new not in self.reserved_ids else token.strip(" ") for new, token in enumerate(tokens)
        )

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        """The tokens that the library matches in text before it applies the model, with Headway's ids."""
        added = self.library_json.get("added_tokens") or []
        numbered = ({**token, "id": self._headway_ids[token["id"]]} for token in added)
        return [token for token in numbered if token["id"] not in self.reserved_ids]

    def mandatory_ids(self) -> frozenset[int]:
        """Return the ids of special tokens, languages, added tokens, bytes and the library's unknown token."""
        kept = set(super().mandatory_ids())
        model, spelled = self.library_json["model"], self._spelled()
        added = {token["content"] for token in self.added_tokens}
        unknown = model.get("unk_id") if model.get("unk_token") is None else None
        for index, token in enumerate(spelled):
            is_byte = self._is_byte_level and len(token) == 1
            if is_byte or token in added or token == model.get("unk_token") or self.library_ids[index] == unknown:
                kept.add(index)
        return frozenset(kept)

    def _spelled(self) -> Sequence[str]:
        known = tokens_by_id(self.library_json, "")
        return [known.get(old, "") for old in self.library_ids]

    def with_required_ids(self, ids: Iterable[int]) -> set[int]:
        """Return ``ids`` and the ids of all tokens that encoding needs to produce them.

        The additional tokens are the intermediate results of merges and, in a unigram model, the token with the lowest
        score, which determines the score of unknown characters.
        """
        needed, model, spelled = set(ids), self.library_json["model"], self._spelled()
        index_of = {token: index for index, token in enumerate(spelled) if token and index not in self.reserved_ids}
        if model["type"] == "BPE":
            if model.get("continuing_subword_prefix"):
                raise ConfigError("the vocabulary of a tokenizer with a continuing_subword_prefix cannot be reduced")
            ranks = {pair: rank for rank, pair in enumerate(_merges(model))}
            for index in needed - self.mandatory_ids():
                symbols = _symbols(spelled[index], model.get("end_of_word_suffix") or "")
                made = symbols_of_merges(symbols, lambda *pair: ranks.get(pair))
                needed |= {index_of[token] for token in made if token in index_of}
        elif model["type"] == "Unigram":
            last = min(model["vocab"], key=lambda entry: entry[1])[0]
            needed |= {index_of[last]} if last in index_of else set()
        return needed

    def restrict_vocabulary(self, ids: Sequence[int]) -> FastTokenizer:
        """Return a tokenizer with only these ids; see :meth:`TextTokenizer.restrict_vocabulary`."""
        library, tokens = copy.deepcopy(self.library_json), tokens_by_id(self.library_json, "")
        model, kept = library["model"], {self.library_ids[index] for index in ids}
        in_model = tokens_by_id({**library, "added_tokens": []}, "")
        order = [old for old in sorted(in_model) if old in kept]
        order += [old for old in sorted(tokens.keys() - in_model.keys()) if old in kept]
        new_ids = {old: new for new, old in enumerate(order)}
        if isinstance(model["vocab"], dict):
            model["vocab"] = {token: new_ids[old] for token, old in model["vocab"].items() if old in kept}
        else:
            model["vocab"] = [entry for old, entry in enumerate(model["vocab"]) if old in kept]
            if model.get("unk_id") is not None:
                model["unk_id"] = new_ids[model["unk_id"]]
        if "merges" in model:
            known = model["vocab"].keys()
            model["merges"] = [list(pair) for pair in _merges(model) if {*pair, "".join(pair)} <= known]
        added = [token for token in library.get("added_tokens") or [] if token["id"] in kept]
        for token in added:
            token["id"] = new_ids[token["id"]]
        library["added_tokens"] = sorted(added, key=lambda token: int(token["id"]))
        library_ids = []
        for index in ids:
            old = self.library_ids[index]
            library_ids.append(
                new_ids.setdefault(old, len(new_ids))
            )  # ids that do not exist in the library are numbered after its own ids
        reserved = [new for new, old in enumerate(ids) if old in self.reserved_ids]
        return FastTokenizer(library, library_ids, reserved, "the smaller vocabulary")

    @classmethod
    def from_saved(cls, saved: dict[str, Any], path: Path) -> FastTokenizer:
        """Create the tokenizer from the parsed content of its file."""
        return cls(saved["library"], saved["order"], saved["reserved"], str(path))

    def _fields(self) -> Mapping[str, Any]:
        return {"order": self.library_ids, "reserved": sorted(self.reserved_ids), "library": self.library_json}


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the merges of a model. In older files, a merge is a string with a space between the tokens."""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return [(left, right) for left, right in pairs]


def _symbols(token: str, suffix: str) -> list[str]:
    """Return the symbols of a token before any merges.

    The last symbol includes the end-of-word ``suffix``.
    """
    if not suffix or not token.endswith(suffix):
        return list(token)
    *symbols, last = list(token.removesuffix(suffix)) or [""]
    return [*symbols, last + suffix]


@contextmanager
def _library_errors(problem: str) -> Iterator[None]:
    """Convert errors of the library `tokenizers`, including panics of its Rust code, to :class:`BundleError`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # the library has no more specific class, and its panics are not Exceptions
        raise BundleError(f"{problem} ({' '.join(str(error).split())})") from None


def tokens_by_id(library: dict[str, Any], origin: str) -> dict[int, str]:
    """Return the tokens of a ``tokenizer.json`` by id, or raise :class:`BundleError` if the content is invalid."""
    try:
        vocabulary = library["model"]["vocab"]
        pairs = vocabulary.items() if isinstance(vocabulary, dict) else ((v[0], i) for i, v in enumerate(vocabulary))
        tokens = {int(index): str(token) for token, index in pairs}
        added = {int(token["id"]): str(token["content"]) for token in library.get("added_tokens") or []}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise BundleError(f"{origin}: not a fast Hugging Face tokenizer (no model with a vocabulary)") from None
    return tokens | added


def library_ids(library: dict[str, Any], texts: list[str], origin: str) -> list[list[int]]:
    """Return the library's own ids of each text, according to ``tokenizer.json``. Texts may contain special tokens."""
    with _library_errors(f"{origin}: the library `tokenizers` cannot read it"):
        read = tokenizers.Tokenizer.from_str(json.dumps({**library, "padding": None, "truncation": None}))
        encodings = read.encode_batch_fast(texts, add_special_tokens=False)
    return [list(encoding.ids) for encoding in encodings]


def special_ids(library: dict[str, Any]) -> set[int]:
    """Return the ids of the added tokens that are marked as special."""
    return {int(token["id"]) for token in library.get("added_tokens") or [] if token.get("special")}


def _without_special(library: dict[str, Any], ids: set[int]) -> dict[str, Any]:
    """Return a copy in which the tokens of ``ids`` cannot occur in text, and which adds no tokens around a text."""
    library = copy.deepcopy(library)
    library.update(post_processor=None, truncation=None, padding=None)
    model = library["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {_unspelled(t) if index in ids else t: index for t, index in model["vocab"].items()}
    else:
        model["vocab"] = [
            [_unspelled(t) if index in ids else t, score] for index, (t, score) in enumerate(model["vocab"])
        ]
    if model.get("unk_token") is not None and _unspelled(model["unk_token"]) in model["vocab"]:
        model["unk_token"] = _unspelled(model["unk_token"])
    for token in library.get("added_tokens") or []:
        if token["id"] in ids:
            token.update(content=_unspelled(token["content"]), special=True, normalized=False)
    return library


def _unspelled(token: str) -> str:
    return token if token.startswith(" ") and token.endswith(" ") else f" {token} "


def _is_byte_level(library: dict[str, Any]) -> bool:
    return "ByteLevel" in _decoder_kinds(library)


def _byte_tokens(library: dict[str, Any], tokens: Mapping[int, str]) -> dict[int, bytes]:
    """Return the bytes of the tokens that the library decodes as bytes (all tokens if its decoder is byte-level)."""
    if _decoder_kinds(library) <= {"ByteLevel", "Fuse"} and _is_byte_level(library):
        return {index: piece_bytes(token) for index, token in tokens.items()}
    if "ByteFallback" in _decoder_kinds(library):
        return byte_token_values(tokens)
    return {}


def _decoder_kinds(library: dict[str, Any]) -> set[str]:
    """Return the types of the library's decoders."""
    decoder = library.get("decoder") or {}
    return {step["type"] for step in decoder.get("decoders", [decoder]) if "type" in step}


def _name(new: int, old: int, known: dict[int, str], byte_level: bool, special: set[int]) -> str:
    token = known.get(old)
    if token is None:
        return f"<unused {new}>"
    if new in special:
        return token.strip(" ")
    return readable_piece(token) if byte_level else token.replace("▁", " ")
