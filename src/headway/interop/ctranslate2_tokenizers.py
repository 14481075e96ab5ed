"""Find the tokenizers of a CTranslate2 folder, and the special tokens that they add to a text.

CTranslate2's input and output are tokens, so its format has no tokenizer. Folders usually contain the tokenizer files
of the toolkit that the model comes from:

    source.spm and target.spm, or one file such as sentencepiece.model     SentencePiece; pieces are mapped by name
    vocab-src.json, vocab-tgt.json and merges.txt                          FSMT
    tokenizer.json, and target/tokenizer.json if there are two             Hugging Face `tokenizers`, with the same ids
    none of them                                                           tokens separated by spaces

The special tokens are defined by CTranslate2's config.json, by the template in tokenizer.json, or by the language codes
in the vocabulary (M2M-100 and NLLB, mBART, OPUS-MT with several target languages).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import BundleError
from headway.interop.ctranslate2_importing import CTranslate2Model
from headway.interop.json_objects import read_json
from headway.interop.stored_vocabulary import StoredVocabulary, sentencepiece_tokenizers, whitespace_tokenizers
from headway.interop.tokenizer_importing import read_tokenizer_files
from headway.text.base import BOS, EOS, TextTokenizer
from headway.text.huggingface import FastTokenizer, tokens_by_id
from headway.text.special_tokens import SpecialTokenTemplate, TemplateItem

_PAIRS = (("source.spm", "target.spm"), ("source.model", "target.model"))
_SHARED = (
    *("sentencepiece.model", "sentencepiece.bpe.model", "spm.model", "spiece.model", "tokenizer.model"),
    "flores200_sacrebleu_tokenizer_spm.model",
)
_ACCEPTED = "source.spm and target.spm, sentencepiece.model, or tokenizer.json"
_FSMT = ("vocab-src.json", "vocab-tgt.json", "merges.txt")
_END_CLASSES = ("MarianTokenizer", "FSMTTokenizer")  # tokenizer classes that append </s> to a text


@dataclass(frozen=True)
class FolderTokenizers:
    """The tokenizers of a folder, and the special tokens that surround a text.

    Attributes:
        source: The source tokenizer.
        target: The target tokenizer; the same object as ``source`` if it is shared.
        template: The special tokens, with the model's languages.
        description: Names the tokenizer files that were found.
    """

    source: TextTokenizer
    target: TextTokenizer
    template: SpecialTokenTemplate
    description: str


def read_folder_tokenizers(folder: Path, model: CTranslate2Model) -> FolderTokenizers:
    """Read the tokenizers of a CTranslate2 folder.

    Raises:
        BundleError: A file is damaged or does not match the vocabulary, or the vocabulary consists of SentencePiece or
            byte-level pieces but the folder does not contain the files that split a text into these pieces.
    """
    source, target = model.source_vocabulary, model.target_vocabulary
    template = _template(folder, model)
    if (files := _sentencepiece_files(folder)) is not None:
        first, second, description = sentencepiece_tokenizers(source, target, (folder / files[0], folder / files[1]))
        return FolderTokenizers(first, second, template, description)
    if all((folder / name).is_file() for name in _FSMT):
        sides = read_tokenizer_files(folder, "fsmt")
        pair = sides.source.make_tokenizer(source.order), sides.target.make_tokenizer(target.order)
        return FolderTokenizers(*pair, template, "Moses rules and merges.txt")
    if (library := read_json(folder / "tokenizer.json")) is not None:
        return _fast(folder, library, model, template)
    first, second, description = whitespace_tokenizers(source, target, folder, _ACCEPTED)
    return FolderTokenizers(first, second, template, description)


def _sentencepiece_files(folder: Path) -> tuple[str, str] | None:
    for pair in _PAIRS:
        if all((folder / name).is_file() for name in pair):
            return pair
    return next(((name, name) for name in _SHARED if (folder / name).is_file()), None)


def _fast(
    folder: Path, library: dict[str, Any], model: CTranslate2Model, template: SpecialTokenTemplate
) -> FolderTokenizers:
    source, target, path = model.source_vocabulary, model.target_vocabulary, folder / "tokenizer.json"
    first = _fast_tokenizer(path, library, source)
    target_path = folder / "target/tokenizer.json"
    target_library = read_json(target_path)
    if target_library is not None:
        second = _fast_tokenizer(target_path, target_library, target)
    else:
        second = first if source is target else _fast_tokenizer(path, library, target)
    if not template.languages and template.source_prefix == template.source_suffix == ():
        before, after = _around(library.get("post_processor"), path)
        sides = {"source_prefix": before, "source_suffix": after}
        update = {name: source.order.to_headway_ids(ids) for name, ids in sides.items()}
        template = template.model_copy(update=update)
    return FolderTokenizers(first, second, template, "tokenizer.json")


def _fast_tokenizer(path: Path, library: dict[str, Any], vocabulary: StoredVocabulary) -> FastTokenizer:
    known = tokens_by_id(library, str(path))
    for index, token in enumerate(vocabulary.tokens):
        if known.get(index, token) != token:
            raise BundleError(
                f"{path}: token {index} is {known[index]!r}, but {token!r} in CTranslate2's vocabulary; expected the "
                "tokenizer of this model"
            )
    reserved = vocabulary.order.to_headway_ids({*vocabulary.special_ids, *vocabulary.languages.values()})
    return FastTokenizer(library, vocabulary.order.order, reserved, str(path))


def _around(processor: Mapping[str, Any] | None, path: Path) -> tuple[list[int], list[int]]:
    """Return the ids that a post-processor of `tokenizers` adds before and after a text."""
    if processor is None:
        return [], []
    try:
        match processor["type"]:
            case "ByteLevel":  # changes only offsets
                return [], []
            case "TemplateProcessing":
                sides: list[list[int]] = [[]]
                for item in processor["single"]:
                    if "Sequence" in item:
                        sides.append([])
                    else:
                        sides[-1] += map(int, processor["special_tokens"][item["SpecialToken"]["id"]]["ids"])
                before, after = sides
                return before, after
            case "RobertaProcessing" | "BertProcessing":
                return [int(processor["cls"][1])], [int(processor["sep"][1])]
            case kind:
                raise BundleError(f"{path}: a post_processor of type {kind} is not supported")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise BundleError(f"{path}: damaged (post_processor); copy it again") from None


def _template(folder: Path, model: CTranslate2Model) -> SpecialTokenTemplate:
    """Return the special tokens, with languages if the vocabulary has language codes.

    OPUS-MT                 [target] X </s>
    M2M-100, NLLB, mBART-50 [source] X </s>             target: [target]
    mBART                            X </s> [source]    decoding begins with the target language's code
    """
    template, source = model.token_template, model.source_vocabulary
    config = read_json(folder / "tokenizer_config.json") or {}
    tokenizer_class = str(config.get("tokenizer_class")).removesuffix("Fast")
    if (model.starts_from_zero or tokenizer_class in _END_CLASSES) and not template.source_suffix:
        template = template.model_copy(update={"source_suffix": (EOS,)})
    codes = source.languages
    if not codes:
        return template
    known = {key: config[key] if config.get(key) in codes else None for key in ("src_lang", "tgt_lang")}
    languages = source.headway_ids(codes)
    prefix: tuple[TemplateItem, ...] = ("source_language",)
    suffix: tuple[TemplateItem, ...] = (EOS,)
    forced: tuple[TemplateItem, ...] = ("target_language",)
    if any(source.tokens[index].startswith(">>") for index in codes.values()):
        prefix, forced = ("target_language",), ()
        known["src_lang"] = None
    elif model.target_vocabulary.order.order[BOS] in codes.values():
        prefix, suffix, forced = (), (EOS, "source_language"), ()
        known["tgt_lang"] = None
    return SpecialTokenTemplate(
        source_prefix=prefix,
        source_suffix=suffix,
        target_prefix=forced,
        languages=languages,
        source_language=known["src_lang"],
        target_language=known["tgt_lang"],
    )
