"""Read the tokenizers of Hugging Face model folders.

The model families differ in their files and in the ids of pieces:

    OPUS-MT (Marian)   source.spm, target.spm, vocab.json (pieces of both sides -> ids), sometimes target_vocab.json
    M2M-100            sentencepiece.bpe.model, vocab.json; the languages' ids follow the pieces' ids
    mBART              tokenizer.json; or sentencepiece.bpe.model with fairseq's ids: <s> <pad> </s> <unk>, then the
                       model's pieces from the fourth on, the languages, <mask>
    BART               tokenizer.json; or vocab.json and merges.txt of byte-level BPE
    T5, mT5            tokenizer.json; or spiece.model of SentencePiece, with its own ids
    ByT5               none, because its tokens are bytes
    FSMT               vocab-src.json, vocab-tgt.json, merges.txt; Moses tokenization before the merges
    GPT-2              tokenizer.json; or vocab.json and merges.txt of byte-level BPE
    Llama, Mistral     tokenizer.json; or tokenizer.model of SentencePiece
    BERT, DistilBERT   tokenizer.json; or vocab.txt of WordPiece
    RoBERTa            tokenizer.json; or vocab.json and merges.txt of byte-level BPE
    any family         tokenizer.json

A :class:`ForeignVocabulary` contains the ids in the folder. The tokenizer that it creates uses Headway's ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.errors import BundleError
from headway.interop.json_objects import read_json
from headway.interop.t5_tokenizers import byt5_tokenizer_json, is_byt5, language_code_prefix
from headway.interop.tokenizer_overrides import apply_overrides, bert_normalizer
from headway.interop.vocabulary_order import VocabularyOrder
from headway.text.added_tokens import AddedToken
from headway.text.base import TextTokenizer
from headway.text.huggingface import FastTokenizer, library_ids, tokens_by_id
from headway.text.moses import MosesTokenizer
from headway.text.sentencepiece import SentencePieceTokenizer, sentencepiece_ids, sentencepiece_pieces

_SPM = "sentencepiece.bpe.model"
_FILES = {  # files of each family's own tokenizer; for Marian and FSMT, they take precedence over tokenizer.json
    "marian": ("source.spm", "target.spm", "vocab.json"),
    "fsmt": ("vocab-src.json", "vocab-tgt.json", "merges.txt"),
    "m2m_100": (_SPM, "vocab.json"),
    "mbart": (_SPM,),
    "bart": ("vocab.json", "merges.txt"),
    "t5": ("spiece.model",),
    "mt5": ("spiece.model",),
}
_SPECIAL = frozenset({"<s>", "</s>", "<pad>", "<unk>", "<mask>"})
# The languages of M2M-100's vocabularies in the order of their ids. Its tokenizer files do not list them. The
# id of the first language follows the id of the last piece in ``vocab.json``. The lists are from fairseq's ``m2m_100``
# examples (Fan et al., "Beyond English-Centric Multilingual Machine Translation", 2020) and its WMT 2021 models.
# ``language_codes`` in ``tokenizer_config.json`` selects one of the lists.
_M2M_LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
        "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
        "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
# How each family spells language codes.
_CODES = {
    "marian": re.compile(r">>(.+)<<"),
    "m2m_100": re.compile(r"__([a-z]+)__|([a-z]{3}_[A-Z][a-z]{3})"),
    "mbart": re.compile(r"([a-z]{2,3}_[A-Z]{2})"),
    **dict.fromkeys(("t5", "mt5"), re.compile(r"<2([a-z]{2,3}(?:[-_][A-Za-z0-9]+)*)>")),  # MADLAD-400
}


@dataclass(frozen=True)
class ForeignVocabulary:
    """The vocabulary of one side, with the ids in the folder that it was read from.

    Attributes:
        unknown_id: The id of the unknown token.
        languages: The id of each language code.
        make_tokenizer: Function that creates the tokenizer, with Headway's ids as given by a :class:`VocabularyOrder`.
        language_code_prefix: For families whose texts begin with a language code: the ids before the code's id.
    """

    unknown_id: int
    languages: Mapping[str, int]
    make_tokenizer: Callable[[VocabularyOrder], TextTokenizer]
    language_code_prefix: tuple[int, ...] = ()


@dataclass(frozen=True)
class ForeignVocabularies:
    """The vocabularies of source and target, and the languages named in ``tokenizer_config.json``."""

    source: ForeignVocabulary
    target: ForeignVocabulary
    source_language: str | None
    target_language: str | None


def read_tokenizer_files(folder: Path, family: str) -> ForeignVocabularies:
    """Read the tokenizers in a Hugging Face folder whose ``model_type`` is ``family``.

    Raises:
        BundleError: A file is missing or damaged. The message lists the files that the family can have.
    """
    config = read_json(folder / "tokenizer_config.json") or {}
    source, target = _sides(folder, family, config)
    return ForeignVocabularies(
        source,
        target,
        _language(config, ("src_lang", "source_lang"), source.languages),
        _language(config, ("tgt_lang", "target_lang"), source.languages),
    )


@dataclass(frozen=True)
class LanguageModelVocabulary:
    """The vocabulary of a language model, with the ids of the original tokenizer files.

    Attributes:
        unknown_id: The id of the unknown token. None if no text needs an unknown token.
        prefix: The ids that the family's tokenizer puts before a text.
        make_tokenizer: Function that creates the tokenizer, with Headway's ids as given by a :class:`VocabularyOrder`.
    """

    unknown_id: int | None
    prefix: tuple[int, ...]
    make_tokenizer: Callable[[VocabularyOrder], TextTokenizer]


def read_language_model_tokenizer(folder: Path, family: str) -> LanguageModelVocabulary:
    """Read the tokenizer in a language model's folder whose ``model_type`` is ``family``.

    Raises:
        BundleError: A file is missing, damaged or not supported.
    """
    config, path = read_json(folder / "tokenizer_config.json") or {}, folder / "tokenizer.json"
    if family == "qwen2":  # transformers uses this class, whatever class the folder names
        config["tokenizer_class"] = "Qwen2Tokenizer"
    library = read_json(path)
    if library is not None:
        _add_tokens(library, folder, config)
        apply_overrides(library, config, family, path)
        return _prompt_library(library, config, path, _template_prefix(library.get("post_processor"), path))
    if family == "gpt2" and (folder / "vocab.json").is_file():
        library = _byte_level(folder, config)
        prefix = _configured_prefix(folder, config, library["model"]["vocab"], "<|endoftext|>", by_default=False)
        return _prompt_library(library, config, path, prefix)
    path = folder / "tokenizer.model"
    if family not in ("llama", "mistral") or not path.is_file():
        alternatives = {"gpt2": ", or vocab.json and merges.txt"}.get(family, "")
        alternatives = ", or tokenizer.model" if family in ("llama", "mistral") else alternatives
        raise BundleError(
            f"{folder}: no tokenizer that Headway supports; expected for {family}: tokenizer.json{alternatives}"
        )
    vocabulary = {piece: index for index, piece in enumerate(sentencepiece_pieces(_bytes(path), str(path)))}
    _refuse_added_tokens(folder, config)
    prefix = _configured_prefix(folder, config, vocabulary, "<s>", by_default=True)
    side = _pieces(path, vocabulary, {}, path)
    return LanguageModelVocabulary(side.unknown_id, prefix, side.make_tokenizer)


def _configured_prefix(
    folder: Path, config: dict[str, Any], ids: Mapping[str, int], begin: str, *, by_default: bool
) -> tuple[int, ...]:
    """Return the ids before a text, as defined by tokenizer_config.json, for folders without a ``tokenizer.json``.

    If there is a ``tokenizer.json``, only its template is used, as in `transformers` 5: ``add_bos_token`` and
    ``add_eos_token`` have no effect.
    """
    if config.get("add_eos_token"):
        raise BundleError(f"{folder / 'tokenizer_config.json'}: add_eos_token = true is not supported")
    adds_begin, begin_id = config.get("add_bos_token"), ids.get(_content(config.get("bos_token")) or begin)
    if begin_id is None or not (by_default if adds_begin is None else adds_begin):
        return ()
    return (begin_id,)


def _prompt_library(
    library: dict[str, Any], config: dict[str, Any], origin: Path, prefix: tuple[int, ...]
) -> LanguageModelVocabulary:
    """Return the vocabulary of a ``tokenizer.json``."""
    tokens = tokens_by_id(library, str(origin))
    ids = {token: index for index, token in tokens.items()}

    def tokenizer(vocabulary: VocabularyOrder) -> TextTokenizer:
        if (last := max(tokens)) > max(vocabulary.order):
            raise BundleError(
                f"{origin}: token {tokens[last]!r} has the id {last}, but vocab_size in config.json is "
                f"{max(vocabulary.order) + 1}"
            )
        return FastTokenizer(library, vocabulary.order, (), str(origin))

    unknown = library["model"].get("unk_token")
    if unknown is None and library["model"].get("unk_id") is not None:
        unknown = tokens[library["model"]["unk_id"]]
    unknown = unknown or _content(config.get("unk_token"))
    return LanguageModelVocabulary(ids.get(unknown or ""), prefix, tokenizer)


def _template_prefix(processor: dict[str, Any] | None, origin: Path) -> tuple[int, ...]:
    """Return the ids that a post-processor of `tokenizers` puts before a text. It must not put any ids after it."""
    kind = "ByteLevel" if processor is None else processor.get("type")
    if processor is None or kind == "ByteLevel":  # ByteLevel changes only offsets
        return ()
    if kind == "Sequence":
        parts = [_template_prefix(part, origin) for part in processor["processors"]]
        return tuple(index for part in parts for index in part)
    items = processor["single"] if kind == "TemplateProcessing" else []
    if not items or "Sequence" not in items[-1]:
        raise BundleError(
            f"{origin}: a post_processor of type {kind} that puts tokens after a text is not supported; a language "
            "model continues the text"
        )
    names = [item["SpecialToken"]["id"] for item in items[:-1]]
    return tuple(int(index) for name in names for index in processor["special_tokens"][name]["ids"])


@dataclass(frozen=True)
class MaskedVocabulary:
    """The vocabulary of a masked language model, with the ids in the folder that it was read from.

    Attributes:
        special_ids: The ids of the "pad", "start" (before a text), "end" (after it) and "unknown" tokens.
        make_tokenizer: Function that creates the tokenizer, with Headway's ids as given by a :class:`VocabularyOrder`.
    """

    special_ids: Mapping[str, int]
    make_tokenizer: Callable[[VocabularyOrder], TextTokenizer]


_MASKED_NAMES = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"}
_ROBERTA_NAMES = {"pad": "<pad>", "cls": "<s>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


def read_masked_tokenizer(folder: Path, family: str) -> MaskedVocabulary:
    """Read the tokenizer in a masked language model's folder whose ``model_type`` is ``family``.

    Raises:
        BundleError: A file is missing or damaged, or does not define a mask token.
    """
    config, path = read_json(folder / "tokenizer_config.json") or {}, folder / "tokenizer.json"
    defaults = _ROBERTA_NAMES if family == "roberta" else _MASKED_NAMES
    names = {name: _content(config.get(f"{name}_token")) or default for name, default in defaults.items()}
    library = read_json(path)
    if library is not None:
        _add_tokens(library, folder, config)
        apply_overrides(library, config, family, path)
    elif family == "roberta" and (folder / "vocab.json").is_file():
        path = folder / "vocab.json"
        library = _byte_level(folder, config)
    elif family in ("bert", "distilbert") and (folder / "vocab.txt").is_file():
        path = folder / "vocab.txt"
        library = _word_piece(path, config, names["unk"])
    if library is None:
        alternatives = {"roberta": ", or vocab.json and merges.txt", "modernbert": ""}.get(family, ", or vocab.txt")
        raise BundleError(
            f"{folder}: no tokenizer that Headway supports; expected for {family}: tokenizer.json{alternatives}"
        )
    ids = {token: index for index, token in tokens_by_id(library, str(path)).items()}
    if missing := [name for name in names.values() if name not in ids]:
        raise BundleError(f"{path}: does not contain the special token {missing[0]!r}")
    added = [
        *(token for token in library.get("added_tokens") or [] if token["content"] not in names.values()),
        *({**_SPECIAL_TOKEN, "id": ids[name], "content": name} for name in names.values()),
    ]
    # The library assigns ids to tokens that are not in the vocabulary in the order of the list.
    library["added_tokens"] = sorted(added, key=lambda token: int(token["id"]))

    def tokenizer(vocabulary: VocabularyOrder) -> TextTokenizer:
        return FastTokenizer(library, vocabulary.order, (), str(path))

    special = {"pad": "pad", "start": "cls", "end": "sep", "unknown": "unk"}
    return MaskedVocabulary({ours: ids[names[theirs]] for ours, theirs in special.items()}, tokenizer)


_SPECIAL_TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def _word_piece(path: Path, config: dict[str, Any], unknown: str) -> dict[str, Any]:
    """Convert BERT's ``vocab.txt``, with one token per line in order of ids, to the content of ``tokenizer.json``."""
    tokens = _bytes(path).decode("utf-8", errors="replace").removesuffix("\n").split("\n")
    model = {
        "type": "WordPiece",
        "unk_token": unknown,
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {token.removesuffix("\r"): index for index, token in enumerate(tokens)},
    }
    library = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": bert_normalizer(config),
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": model,
    }
    _add_tokens(library, path.parent, config)
    return library


def _sides(folder: Path, family: str, config: dict[str, Any]) -> tuple[ForeignVocabulary, ForeignVocabulary]:
    files = _FILES.get(family, ())
    complete = bool(files) and all((folder / name).is_file() for name in files)
    if complete and family == "marian":
        return _opus(folder, config)
    if complete and family == "fsmt":
        return _moses(folder, config)
    if family == "t5" and is_byt5(folder, config):
        side = _fast(byt5_tokenizer_json(folder, config), family, config, folder / "tokenizer_config.json")
        return side, side
    if (library := read_json(folder / "tokenizer.json")) is not None:
        _add_tokens(library, folder, config)
        apply_overrides(library, config, family, folder / "tokenizer.json")
        side = _fast(library, family, config, folder / "tokenizer.json")
        if (library := read_json(folder / "target/tokenizer.json")) is not None:  # exported with two vocabularies
            return side, _fast(library, family, config, folder / "target")
    elif not complete:
        listed = " and ".join(filter(None, (", ".join(files[:-1]), *files[-1:])))
        known = f"tokenizer.json, or {listed}" if files else "tokenizer.json"
        raise BundleError(f"{folder}: no tokenizer that Headway supports; expected for {family}: {known}")
    elif family == "m2m_100":
        side = _m2m(folder, config)
    elif family == "mbart":
        side = _fairseq(folder, config)
    elif family in ("t5", "mt5"):
        side = _t5_pieces(folder, config, family)
    else:
        side = _fast(_byte_level(folder, config), family, config, folder / "vocab.json")
    return side, side


def _opus(folder: Path, config: dict[str, Any]) -> tuple[ForeignVocabulary, ForeignVocabulary]:
    vocabulary = _vocabulary(folder / "vocab.json")
    separate = (folder / "target_vocab.json").is_file()
    if separate:
        _refuse_added_tokens(folder, config)
    added = _found_in_text(folder, config)
    sides = {
        "source.spm": vocabulary,
        "target.spm": _vocabulary(folder / "target_vocab.json") if separate else vocabulary,
    }
    source, target = (
        _pieces(folder / name, side, language_codes("marian", side), folder / "vocab.json", added)
        for name, side in sides.items()
    )
    return source, target


def _moses(folder: Path, config: dict[str, Any]) -> tuple[ForeignVocabulary, ForeignVocabulary]:
    languages = config.get("langs")
    if not isinstance(languages, list) or len(languages) != 2:
        raise BundleError(
            f"{folder / 'tokenizer_config.json'}: langs = {languages!r}; expected the source and the target language, "
            "whose Moses rules are applied"
        )
    _refuse_added_tokens(folder, config)
    merges = _merges(folder / "merges.txt")
    lower_case = bool(config.get("do_lower_case", False))

    def side(name: str, language: str) -> ForeignVocabulary:
        vocabulary, origin = _vocabulary(folder / name), folder / name

        def tokenizer(ids: VocabularyOrder) -> TextTokenizer:
            pieces, reserved = _numbered(ids, vocabulary, ())
            return MosesTokenizer(language, merges, pieces, reserved, lower_case=lower_case, origin=str(origin))

        return ForeignVocabulary(_unknown(vocabulary, origin), {}, tokenizer)

    return side("vocab-src.json", str(languages[0])), side("vocab-tgt.json", str(languages[1]))


def _m2m(folder: Path, config: dict[str, Any]) -> ForeignVocabulary:
    vocabulary = _vocabulary(folder / "vocab.json")
    name = config.get("language_codes", "m2m100")
    if name not in _M2M_LANGUAGES:
        raise BundleError(
            f"{folder / 'tokenizer_config.json'}: language_codes = {name!r}; known: {', '.join(_M2M_LANGUAGES)}"
        )
    languages = {language: len(vocabulary) + place for place, language in enumerate(_M2M_LANGUAGES[name].split())}
    codes = {f"__{language}__": index for language, index in languages.items()}
    return _pieces(folder / _SPM, vocabulary | codes, languages, folder / "vocab.json", _found_in_text(folder, config))


def _fairseq(folder: Path, config: dict[str, Any]) -> ForeignVocabulary:
    _refuse_added_tokens(folder, config)
    pieces = sentencepiece_pieces(_bytes(folder / _SPM), str(folder / _SPM))
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    vocabulary |= {piece: index + 1 for index, piece in enumerate(pieces) if index >= 3}
    listed = config.get("additional_special_tokens") or config.get("extra_special_tokens")
    if not listed:
        listed = (read_json(folder / "special_tokens_map.json") or {}).get("additional_special_tokens")
    if not listed:
        raise BundleError(
            f"{folder}: neither tokenizer_config.json nor special_tokens_map.json lists the languages "
            "(additional_special_tokens); save the tokenizer again with transformers, which writes tokenizer.json"
        )
    codes = {str(code): len(pieces) + 1 + place for place, code in enumerate(listed)}
    vocabulary |= codes | {"<mask>": len(pieces) + 1 + len(codes)}
    return _pieces(folder / _SPM, vocabulary, language_codes("mbart", codes), folder / _SPM)


def _t5_pieces(folder: Path, config: dict[str, Any], family: str) -> ForeignVocabulary:
    model = folder / "spiece.model"
    vocabulary = {piece: index for index, piece in enumerate(sentencepiece_pieces(_bytes(model), str(model)))}
    languages = language_codes(family, vocabulary)
    side = _pieces(model, vocabulary, languages, model, _found_in_text(folder, config))

    def encode(texts: list[str]) -> list[list[int]]:
        return sentencepiece_ids(_bytes(model), str(model), texts)

    return replace(side, language_code_prefix=language_code_prefix(encode, languages, model))


def _pieces(
    model: Path,
    vocabulary: Mapping[str, int],
    languages: Mapping[str, int],
    origin: Path,
    added: Sequence[Mapping[str, Any]] = (),
) -> ForeignVocabulary:
    """Return the vocabulary of a side that has a SentencePiece model. ``vocabulary`` maps its pieces to ids.

    ``added`` contains the tokens that are recognized in text before the model tokenizes it.
    """
    content = _bytes(model)
    flags = ("content", "single_word", "lstrip", "rstrip")
    tokens = [AddedToken(**{name: token[name] for name in flags}) for token in added]
    taken = {index: piece for piece, index in vocabulary.items()}
    for token in added:
        if taken.get(token["id"], token["content"]) != token["content"]:
            raise BundleError(
                f"{origin}: the added token {token['content']!r} has the id of another token, {taken[token['id']]!r}"
            )

    def tokenizer(ids: VocabularyOrder) -> TextTokenizer:
        ids.to_headway_ids(token["id"] for token in added)  # raise an error for ids without a row in the weights
        numbered = {**vocabulary, **{token["content"]: token["id"] for token in added}}
        pieces, reserved = _numbered(ids, numbered, languages.values())
        return SentencePieceTokenizer(content, pieces, reserved, str(model), tokens)

    return ForeignVocabulary(_unknown(vocabulary, origin), languages, tokenizer)


def _unknown(vocabulary: Mapping[str, int], origin: Path) -> int:
    if "<unk>" not in vocabulary:
        raise BundleError(f"{origin}: does not contain the piece '<unk>', which represents unknown text")
    return vocabulary["<unk>"]


def _numbered(
    ids: VocabularyOrder, vocabulary: Mapping[str, int], languages: Iterable[int]
) -> tuple[list[str], list[int]]:
    """Return the piece of each Headway id, and the ids that encoding a text never yields."""
    names = {index: piece for piece, index in vocabulary.items()}
    special = {index for piece, index in vocabulary.items() if piece in _SPECIAL} | set(languages)
    pieces = [names.get(old, f"<unused {new}>") for new, old in enumerate(ids.order)]
    reserved = [new for new, old in enumerate(ids.order) if old in special or old not in names]
    return pieces, reserved


def _fast(library: dict[str, Any], family: str, config: dict[str, Any], origin: Path) -> ForeignVocabulary:
    tokens = tokens_by_id(library, str(origin))
    ids = {token: index for index, token in tokens.items()}
    unknown = _content(config.get("unk_token")) or "<unk>"
    if unknown not in ids:
        raise BundleError(f"{origin}: does not contain the token {unknown!r}, which represents unknown text")
    languages = language_codes(family, ids)

    def tokenizer(vocabulary: VocabularyOrder) -> TextTokenizer:
        reserved = vocabulary.to_headway_ids(index for index in languages.values() if index in vocabulary.headway_ids)
        return FastTokenizer(library, vocabulary.order, reserved, str(origin))

    before: tuple[int, ...] = ()
    if languages and family in ("t5", "mt5"):
        before = language_code_prefix(lambda texts: library_ids(library, texts, str(origin)), languages, origin)
    return ForeignVocabulary(ids[unknown], languages, tokenizer, before)


def _byte_level(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Convert GPT-2's byte-level BPE files to the content of ``tokenizer.json``."""
    space = bool(config.get("add_prefix_space", False))
    alphabet = {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": _vocabulary(folder / "vocab.json"), "merges": _merges(folder / "merges.txt")}
    library = {"version": "1.0", "added_tokens": [], "pre_tokenizer": alphabet, "decoder": alphabet, "model": model}
    _add_tokens(library, folder, config)
    return library


_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _added_tokens(folder: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the added tokens of a folder as in ``tokenizer.json``, in the order of their ids.

    They are listed under ``added_tokens_decoder`` in tokenizer_config.json. Older folders list them in
    added_tokens.json, and other files define which of them are special.
    """
    path, decoder = folder / "tokenizer_config.json", config.get("added_tokens_decoder")
    tokens: list[dict[str, Any]] = []
    try:
        if decoder is not None:
            for index, token in decoder.items():
                special = bool(token.get("special", False))
                defaults = {**_SPECIAL_TOKEN, "special": special, "normalized": not special}
                flags = {name: bool(token.get(name, defaults[name])) for name in _FLAGS}
                tokens.append({"id": int(index), "content": str(token["content"]), **flags})
        else:
            path = folder / "added_tokens.json"
            special_names = _special_names(config | (read_json(folder / "special_tokens_map.json") or {}))
            for content, index in (read_json(path) or {}).items():
                special = content in special_names
                flags = {**_SPECIAL_TOKEN, "special": special, "normalized": not special}
                tokens.append({"id": int(index), "content": content, **flags})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BundleError(f"{path}: damaged (expected an id and a text for each added token); copy it again") from None
    return sorted(tokens, key=lambda token: int(token["id"]))


def _special_names(settings: Mapping[str, Any]) -> set[str]:
    """Return the texts of the special tokens in tokenizer_config.json or special_tokens_map.json."""
    named = [value for key, value in settings.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = settings.get(key) or []
        named += more.values() if isinstance(more, dict) else more
    return {content for content in map(_content, named) if content is not None}


def _add_tokens(library: dict[str, Any], folder: Path, config: dict[str, Any]) -> None:
    """Add a folder's added tokens to the content of a ``tokenizer.json``, which may already contain some of them.

    As in `transformers`, a token that is not in the vocabulary gets the next id, and the flags of a token in
    ``added_tokens_decoder`` replace those in ``tokenizer.json``.
    """
    listed = list(library.get("added_tokens") or [])
    tokens = tokens_by_id({**library, "added_tokens": []}, str(folder / "tokenizer.json"))
    ids, size = {content: index for index, content in tokens.items()}, len(library["model"]["vocab"])
    _check_list_is_complete(config, [token["content"] for token in listed if token["content"] not in ids], folder)
    added: dict[str, dict[str, Any]] = {}
    first = size
    for token in [*listed, *_added_tokens(folder, config)]:
        content = token["content"]
        if not content:
            continue
        if content in added:
            if config.get("added_tokens_decoder") is not None:
                added[content] |= {name: token[name] for name in _FLAGS}
            continue
        index = ids.get(content, first)
        if index != token["id"]:
            raise BundleError(
                f"{folder}: the added token {content!r} has the id {token['id']}, but transformers assigns it the id "
                f"{index}; save the tokenizer again with transformers, which writes tokenizer.json"
            )
        added[content] = dict(token)
        first = max(first, index + 1)
    library["added_tokens"] = list(added.values())


def _check_list_is_complete(config: dict[str, Any], contents: Iterable[str], folder: Path) -> None:
    """Reject an ``added_tokens_decoder`` that lacks some of the added tokens in ``tokenizer.json``.

    `transformers` classes other than the generic class build the tokenizer without these tokens, and assign them
    different ids.
    """
    decoder, kind = config.get("added_tokens_decoder"), str(config.get("tokenizer_class")).removesuffix("Fast")
    if not isinstance(decoder, dict) or kind in ("None", "PreTrainedTokenizer", "TokenizersBackend"):
        return
    named = {_content(token) for token in decoder.values()}
    if missing := [content for content in contents if content not in named]:
        raise BundleError(
            f"{folder / 'tokenizer_config.json'}: the added token {missing[0]!r} of tokenizer.json is not in "
            f"added_tokens_decoder, without which transformers' {kind} assigns it a different id; add it"
        )


def _found_in_text(folder: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the added tokens, except special tokens, that a tokenizer implemented in Python recognizes in text."""
    if config.get("split_special_tokens"):
        return []
    return [token for token in _added_tokens(folder, config) if not token["special"] and token["content"]]


def _refuse_added_tokens(folder: Path, config: dict[str, Any]) -> None:
    if found := _found_in_text(folder, config):
        raise BundleError(
            f"{folder}: the added token {found[0]['content']!r} ({len(found)} in total) is not supported without a "
            "tokenizer.json for this family; save the tokenizer again with transformers, which writes one"
        )


def _merges(path: Path) -> list[tuple[str, str]]:
    """Read the pairs in a ``merges.txt``. The first line may be a version, and lines may end with a count."""
    try:
        lines = _bytes(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}: not UTF-8 ({error.reason}); copy or download it again") from None
    merges = []
    for number, line in enumerate(lines, start=1):
        parts = line.split()
        if len(parts) == 1:
            raise BundleError(f"{path}, line {number}: expected the two pieces of a merge, got {line!r}")
        if parts and not line.startswith("#version"):
            merges.append((parts[0], parts[1]))
    return merges


def language_codes(family: str, ids: Mapping[str, int]) -> dict[str, int]:
    """Return the id of each language code among a family's tokens, in the order of ids."""
    pattern = _CODES.get(family)
    matches = ((pattern.fullmatch(token), index) for token, index in ids.items()) if pattern else ()
    codes = {next(filter(None, match.groups())): index for match, index in matches if match}
    return dict(sorted(codes.items(), key=lambda item: item[1]))


def _language(config: dict[str, Any], keys: tuple[str, ...], known: Mapping[str, int]) -> str | None:
    """Return the configured language of a side, or None if the model does not have this language."""
    named = next((str(config[key]) for key in keys if config.get(key)), None)
    return named if named is None or not known or named in known else None


def _content(token: Any) -> str | None:
    """Return the text of an added token, which is stored as a string or as an object."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _vocabulary(path: Path) -> dict[str, int]:
    data = read_json(path) or {}
    if not data or any(not isinstance(index, int) for index in data.values()):
        raise BundleError(f"{path}: expected a JSON object that maps tokens to ids")
    return data


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
