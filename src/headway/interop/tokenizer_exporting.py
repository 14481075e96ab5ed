"""Export tokenizers as Hugging Face `transformers` files, which convert text to the same ids as in Headway.

Headway's own and imported fast tokenizers become a fast tokenizer (``tokenizer.json``) that ``AutoTokenizer`` loads.
Its template contains the special tokens that surround a sentence, for one choice of languages. ``split_special_tokens``
in ``tokenizer_config.json`` prevents special tokens from being recognized in text. A pair of SentencePiece models is
exported as the files of ``MarianTokenizer``, as in OPUS-MT folders, and a pair of Moses tokenizers as the files of
``FSMTTokenizer``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import ConfigError
from headway.text.base import BOS, EOS, NUM_SPECIAL, PAD, SPECIALS, UNK, TextTokenizer
from headway.text.huggingface import FastTokenizer
from headway.text.imported import ImportedTokenizer
from headway.text.moses import MosesTokenizer
from headway.text.sentencepiece import SentencePieceTokenizer
from headway.text.special_tokens import SpecialTokens
from headway.text.tokenizer import Tokenizer


def tokenizer_files(
    source: TextTokenizer, target: TextTokenizer, special: SpecialTokens, task_languages: tuple[str, str]
) -> dict[str, bytes]:
    """Return the content of each file, keyed by its path in the folder.

    If each side has its own vocabulary, the target's fast tokenizer is in the folder ``target``. ``AutoTokenizer``
    loads it with ``subfolder="target"``.
    """
    if isinstance(source, SentencePieceTokenizer) and isinstance(target, SentencePieceTokenizer):
        return _marian(source, target, special, task_languages)
    if isinstance(source, MosesTokenizer) and isinstance(target, MosesTokenizer):
        return _fsmt(source, target)
    for side in (source, target):
        if isinstance(side, SentencePieceTokenizer | MosesTokenizer):
            raise ConfigError(f"a {side.kind} tokenizer on only one side cannot be exported to `transformers`")
    files = _fast(source, special)
    if source.fingerprint != target.fingerprint:
        plain = SpecialTokens((), (EOS,), ())
        files |= {f"target/{name}": content for name, content in _fast(target, plain).items()}
    return files


def language_model_tokenizer_files(
    tokenizer: TextTokenizer, prefix: Sequence[int], exported_ids: Sequence[int], max_length: int
) -> dict[str, bytes]:
    """Return the files of a language model's fast tokenizer, which prepends ``prefix`` to a text.

    ``exported_ids`` contains the ids to export, in the order of the exported vocabulary. Special ids (the first four)
    that are not exported are replaced by EOS.
    """
    if isinstance(tokenizer, SentencePieceTokenizer | MosesTokenizer):
        raise ConfigError(f"a language model with a {tokenizer.kind} tokenizer cannot be exported to `transformers`")
    numbers = {new: number for number, new in enumerate(exported_ids)}
    prefix = tuple(new if new in numbers else EOS for new in prefix)
    files = _fast(tokenizer, SpecialTokens(prefix, (), ()))
    library, config = (json.loads(files[name]) for name in ("tokenizer.json", "tokenizer_config.json"))
    model = library["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {token: numbers[new] for token, new in model["vocab"].items() if new in numbers}
        if model.get("unk_token") not in model["vocab"]:
            model["unk_token"] = None
    else:
        model["vocab"] = [model["vocab"][new] for new in exported_ids]
        model["unk_id"] = numbers.get(UNK)
    library["added_tokens"] = [
        {**token, "id": numbers[token["id"]]} for token in library["added_tokens"] if token["id"] in numbers
    ]
    for token in library["post_processor"]["special_tokens"].values():
        token["ids"] = [numbers[new] for new in token["ids"]]
    for name, new in (("pad_token", PAD), ("bos_token", BOS), ("unk_token", UNK)):
        if new not in numbers:
            config[name] = None if new == UNK else config["eos_token"]
    settings = config | {"model_max_length": max_length, "padding_side": "left"}
    return {"tokenizer.json": _json(library), "tokenizer_config.json": _json(settings)}


def masked_lm_tokenizer_files(
    tokenizer: TextTokenizer, max_length: int, *, pairs: bool, finds_mask: bool
) -> dict[str, bytes]:
    """Return the files of a masked language model's fast tokenizer, which adds BOS before a text and EOS after it.

    Args:
        tokenizer: The tokenizer to export.
        max_length: Maximum length of a text in tokens, including BOS and EOS.
        pairs: Whether the tokenizer marks the second text of a pair with the segment 1.
        finds_mask: Whether the name of the mask token in a text is recognized as a hidden word, as in `headway fill`.
            It then includes the space before it, which belongs to the hidden word unless tokens are characters. The
            names of the other special tokens are then also recognized, because `transformers` recognizes all of them or
            none.
    """
    if isinstance(tokenizer, SentencePieceTokenizer | MosesTokenizer):
        raise ConfigError(f"a model with a {tokenizer.kind} tokenizer cannot be exported to `transformers`")
    files = _fast(tokenizer, SpecialTokens((BOS,), (EOS,), ()))
    library, config = (json.loads(files[name]) for name in ("tokenizer.json", "tokenizer_config.json"))
    template, names = library["post_processor"], unique_token_names(tokenizer)
    end = {"SpecialToken": {"id": names[EOS], "type_id": int(pairs)}}
    second = {"Sequence": {"id": "B", "type_id": int(pairs)}}
    template["pair"] = [*template["single"], second, end]
    config |= {"cls_token": names[BOS], "sep_token": names[EOS], "model_max_length": max_length}
    if pairs:
        config["model_input_names"].insert(1, "token_type_ids")
    if tokenizer.mask_id is not None:
        config["mask_token"] = names[tokenizer.mask_id]
        config["split_special_tokens"] = not finds_mask
        (mask,) = (token for token in library["added_tokens"] if token["id"] == tokenizer.mask_id)
        mask["lstrip"] = tokenizer.kind != "characters"
    return {"tokenizer.json": _json(library), "tokenizer_config.json": _json(config)}


def unique_token_names(tokenizer: TextTokenizer) -> list[str]:
    """Return a unique name for each id, for tools that identify tokens by name.

    The name is the spelling of the token in its library. Names of special tokens are enclosed in angle brackets until
    they differ from all other names.
    """
    if isinstance(tokenizer, Tokenizer):
        spelled = dict(zip(tokenizer.vocabulary.values(), tokenizer.vocabulary, strict=True))
        names = [*SPECIALS, *tokenizer.tags]
        if tokenizer.kind == "whitespace":  # tokens contain no spaces, so they cannot equal these names
            names = [f" {name} " for name in names]
    else:
        assert isinstance(tokenizer, ImportedTokenizer)
        names = list(tokenizer.pieces)
        spelled = {index: name for index, name in enumerate(names) if index not in tokenizer.reserved_ids}
    result = [spelled.get(index, "") for index in range(tokenizer.vocab_size)]
    taken = set(spelled.values())
    unspelled = [index for index in range(tokenizer.vocab_size) if index not in spelled]
    # Ids that may duplicate another token come last, so that the other token keeps the name.
    for index in sorted(unspelled, key=lambda index: index == BOS or (index != EOS and names[index] == names[EOS])):
        name = names[index]
        while name in taken:
            name = f"<{name}>"
        taken.add(name)
        result[index] = name
    return result


def _fast(tokenizer: TextTokenizer, special: SpecialTokens) -> dict[str, bytes]:
    names = unique_token_names(tokenizer)
    if isinstance(tokenizer, Tokenizer):
        library, ids = _own_library(tokenizer, names), [*range(NUM_SPECIAL + len(tokenizer.tags))]
    else:
        assert isinstance(tokenizer, FastTokenizer)
        library, ids = _reordered(tokenizer, names), sorted(tokenizer.reserved_ids)
    found_in_text = [] if isinstance(tokenizer, Tokenizer) else tokenizer.added_tokens
    library["added_tokens"] = [*(_added(index, names[index]) for index in ids), *found_in_text]
    library["post_processor"] = _template(special, names)
    tokens = {"pad_token": names[PAD], "bos_token": names[BOS], "eos_token": names[EOS], "unk_token": names[UNK]}
    config = _config("PreTrainedTokenizerFast", tokens) | {"model_input_names": ["input_ids", "attention_mask"]}
    return {"tokenizer.json": _json(library), "tokenizer_config.json": _json(config)}


def _config(tokenizer_class: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``tokenizer_config.json``."""
    common = {"split_special_tokens": True, "clean_up_tokenization_spaces": False}
    return {"tokenizer_class": tokenizer_class, **fields, **common}


def _own_library(tokenizer: Tokenizer, names: Sequence[str]) -> dict[str, Any]:
    vocabulary = {name: index for index, name in enumerate(names)}
    library: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None}
    words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    match tokenizer.kind:
        case "bpe":
            digits = {"type": "Digits", "individual_digits": True}
            both = {"type": "Sequence", "pretokenizers": [digits, words]}
            model = {"type": "BPE", "vocab": vocabulary, "merges": [list(pair) for pair in tokenizer.merge_ranks]}
            return {
                **library,
                "pre_tokenizer": both if tokenizer.split_digits else words,
                "decoder": words,
                "model": model,
            }
        case "characters":
            cut = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
            decoder: dict[str, Any] | None = {"type": "Fuse"}
        case "whitespace":
            cut = {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}
            decoder = None  # without a decoder, the library joins tokens with spaces
        case "words":
            raise ConfigError(
                "tokenizer.kind = 'words' cannot be exported to `transformers`, whose tokenizers drop the space before "
                "an unknown word; supported: bpe, characters, whitespace. ONNX folders keep Headway's tokenizer"
            )
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": names[UNK]}
    return {**library, "pre_tokenizer": cut, "decoder": decoder, "model": model}


def _reordered(tokenizer: FastTokenizer, names: Sequence[str]) -> dict[str, Any]:
    """Return the content of ``tokenizer.json``, with ids in Headway's order.

    A Unigram model recognizes each piece of its vocabulary in text, so its special tokens keep names that cannot occur
    in text.
    """
    library = copy.deepcopy(tokenizer.library_json)
    model = library["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {name: index for index, name in enumerate(names)}
        if model.get("unk_token") is not None:
            model["unk_token"] = names[UNK]
    else:
        scores = dict(enumerate(score for _, score in model["vocab"]))
        model["vocab"] = [[name, scores.get(old, 0.0)] for name, old in zip(names, tokenizer.library_ids, strict=True)]
        model["unk_id"] = UNK
    return library


def _added(index: int, name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": name, **flags, "special": True}


def _template(special: SpecialTokens, names: Sequence[str]) -> dict[str, Any]:
    """Return the template that adds special tokens around a text, or around the concatenation of two texts."""
    sides = special.source_prefix, special.source_suffix
    before, after = ([{"SpecialToken": {"id": names[i], "type_id": 0}} for i in ids] for ids in sides)
    one, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    used = {names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]} for ids in sides for i in ids}
    return {
        "type": "TemplateProcessing",
        "single": [*before, one, *after],
        "pair": [*before, one, other, *after],
        "special_tokens": used,
    }


def _marian(
    source: SentencePieceTokenizer, target: SentencePieceTokenizer, special: SpecialTokens, languages: tuple[str, str]
) -> dict[str, bytes]:
    """Return the files of MarianTokenizer, or only the two SentencePiece models if it cannot add the special tokens.

    MarianTokenizer expects the code of the target language in the text itself (">>ron<< TEXT").
    """
    if added := [*source.added_tokens, *target.added_tokens]:
        raise ConfigError(f"the added token {added[0].content!r} cannot be exported to `transformers`")
    files = {"source.spm": source.model_proto, "target.spm": target.model_proto}
    codes = [source.pieces[index] for index in special.source_prefix]
    if special.source_suffix != (EOS,) or any(not code.startswith(">>") for code in codes):
        return files
    files["vocab.json"] = _json(_numbered(source))
    separate = source.pieces != target.pieces
    if separate:
        files["target_vocab.json"] = _json(_numbered(target))
    config = {
        "source_lang": languages[0],
        "target_lang": languages[1],
        "pad_token": SPECIALS[PAD],
        "eos_token": "</s>",
        "unk_token": SPECIALS[UNK],
        "separate_vocabs": separate,
    }
    return files | {"tokenizer_config.json": _json(_config("MarianTokenizer", config))}


def _fsmt(source: MosesTokenizer, target: MosesTokenizer) -> dict[str, bytes]:
    if source.rules != "fairseq":
        raise ConfigError(
            f"a Moses tokenizer with {source.rules}'s rules cannot be exported to `transformers`, whose FSMTTokenizer "
            "uses fairseq's rules"
        )
    if (source.merges, source.lower_case) != (target.merges, target.lower_case):
        raise ConfigError(
            "the Moses tokenizers of source and target differ in merges or lower-casing, but FSMTTokenizer uses the "
            "same for both; they cannot be exported to `transformers`"
        )
    names = unique_token_names(source), unique_token_names(target)
    merges = "".join(f"{left} {right}\n" for left, right in source.merges)
    config = {
        "langs": [source.language, target.language],
        "do_lower_case": source.lower_case,
        "pad_token": names[0][PAD],
        "bos_token": names[0][BOS],
        "sep_token": names[0][EOS],
        "unk_token": names[0][UNK],
    }
    vocabularies = [{name: index for index, name in enumerate(side)} for side in names]
    return {
        "vocab-src.json": _json(vocabularies[0]),
        "vocab-tgt.json": _json(vocabularies[1]),
        "merges.txt": merges.encode(),
        "tokenizer_config.json": _json(_config("FSMTTokenizer", config)),
    }


def _numbered(tokenizer: SentencePieceTokenizer) -> Mapping[str, int]:
    """Return the id of each piece. If BOS duplicates another token, the piece gets the other token's id."""
    numbered = {piece: index for index, piece in enumerate(tokenizer.pieces) if index != BOS}
    return numbered | {SPECIALS[PAD]: PAD, "</s>": EOS, SPECIALS[UNK]: UNK}


def _json(content: Any) -> bytes:
    return (json.dumps(content, ensure_ascii=False) + "\n").encode()
