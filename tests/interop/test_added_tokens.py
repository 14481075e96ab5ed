"""Added tokens of folders without tokenizer.json are found in text as `transformers` finds them."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from causal_models import byte_level
from causal_models import tokenizer as causal_tokenizer
from foreign import WORDS, m2m, marian, spm, transformers
from masked_models import tokenizer as masked_tokenizer
from tokenizers import AddedToken

from headway.errors import BundleError, ConfigError
from headway.interop.tokenizer_exporting import tokenizer_files
from headway.interop.tokenizer_importing import (
    read_language_model_tokenizer,
    read_masked_tokenizer,
    read_tokenizer_files,
)
from headway.interop.vocabulary_order import VocabularyOrder
from headway.text.base import EOS, TextTokenizer
from headway.text.loading import load_tokenizer
from headway.text.special_tokens import SpecialTokens

FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
COMBINATIONS = [dict(zip(FLAGS, flags, strict=True)) for flags in itertools.product((False, True), repeat=4)]
TOKENS = [{"content": f"<Ent{number}>", **flags} for number, flags in enumerate(COMBINATIONS)]
TOKENS += [{"content": content} for content in ("QQ7", "QQ", "Q7 Q", "Straße")]


def texts(count: int) -> list[str]:
    """Return texts with added tokens at words, between words, and beside each other."""
    draw, result = random.Random(0), []
    words = [*WORDS.split(), *(str(token["content"]) for token in TOKENS), "QQ77", "qq7", "<ent3>", "<Ent1"]
    for _ in range(count):
        parts = (
            draw.choice(words) + draw.choice(["", "", " ", " ", "  ", ".", "\t"]) for _ in range(draw.randint(1, 9))
        )
        result.append("".join(parts))
    return result


def masked(family: str) -> Callable[[Path], Any]:
    def write(folder: Path) -> Any:
        learned = masked_tokenizer(family if family == "roberta" else "bert").get_vocab()
        names = sorted(learned, key=learned.__getitem__)
        if family == "roberta":
            write_byte_level(folder, {name: index for index, name in enumerate(names)})
            return transformers.RobertaTokenizer
        (folder / "vocab.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
        return transformers.BertTokenizer if family == "bert" else transformers.DistilBertTokenizer

    return write


def write_byte_level(folder: Path, vocabulary: dict[str, int]) -> None:
    learned = json.loads(byte_level())["model"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = "".join(" ".join(pair) + "\n" for pair in learned["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")


def gpt2(folder: Path) -> Any:
    names = [*json.loads(byte_level())["model"]["vocab"], "<|endoftext|>"]
    write_byte_level(folder, {name: index for index, name in enumerate(dict.fromkeys(names))})
    return transformers.GPT2Tokenizer


def bart(folder: Path) -> Any:
    names = ["<s>", "<pad>", "</s>", "<unk>", *json.loads(byte_level())["model"]["vocab"], "<mask>"]
    write_byte_level(folder, {name: index for index, name in enumerate(names)})
    return transformers.BartTokenizer


def in_python(maker: Callable[[Path], Path], name: str) -> Callable[[Path], Any]:
    def write(folder: Path) -> Any:
        folder.rmdir()
        maker(folder)
        return getattr(transformers, name)

    return write


WRITERS: dict[str, Callable[[Path], Any]] = {
    "marian": in_python(marian, "MarianTokenizer"),
    "m2m_100": in_python(m2m, "M2M100Tokenizer"),
    "bart": bart,
    "gpt2": gpt2,
    **{family: masked(family) for family in ("bert", "distilbert", "roberta")},
}


def read(folder: Path, family: str, size: int) -> tuple[TextTokenizer, VocabularyOrder]:
    order = VocabularyOrder.for_language_model(size, pad=None, start=None, end=0, unknown=None)
    if family == "gpt2":
        return read_language_model_tokenizer(folder, family).make_tokenizer(order), order
    if family in ("bert", "distilbert", "roberta"):
        side = read_masked_tokenizer(folder, family)
        order = VocabularyOrder.from_special_ids(size, **side.special_ids)
        return side.make_tokenizer(order), order
    source = read_tokenizer_files(folder, family).source
    end = 0 if family == "marian" else 2
    order = VocabularyOrder.for_language_model(size, pad=None, start=None, end=end, unknown=source.unknown_id)
    return source.make_tokenizer(order), order


def with_tokens(family: str, folder: Path, place: str) -> Any:
    """Write a folder whose tokens are in ``place``. Return the tokenizer of `transformers`."""
    folder.mkdir()
    tokenizer_class = WRITERS[family](folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    first = len(tokenizer_class.from_pretrained(folder)) + 108 * (family == "m2m_100")  # languages and unused rows
    if place == "added_tokens.json":
        config.pop("added_tokens_decoder", None)
        ids = {str(token["content"]): first + number for number, token in enumerate(TOKENS)}
        (folder / place).write_text(json.dumps(ids))
    else:
        defaults = dict.fromkeys(FLAGS, False)
        added = {str(first + number): {**defaults, **token, "special": False} for number, token in enumerate(TOKENS)}
        config["added_tokens_decoder"] = {**config.get("added_tokens_decoder", {}), **added}
    path.write_text(json.dumps(config))
    return tokenizer_class.from_pretrained(folder)


def assert_same_ids(family: str, folder: Path, place: str, count: int) -> TextTokenizer:
    theirs = with_tokens(family, folder, place)
    ours, order = read(folder, family, len(theirs) + 120)
    num_found, added = 0, {theirs.convert_tokens_to_ids(token["content"]) for token in TOKENS}
    for text in texts(count):
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert [order.order[index] for index in ours.encode(text)] == expected, repr(text)
        num_found += not added.isdisjoint(expected)
    assert num_found > count / 3
    return ours


@pytest.mark.slow
@pytest.mark.parametrize("place", ["added_tokens.json", "added_tokens_decoder"])
@pytest.mark.parametrize("family", WRITERS)
def test_added_tokens_get_the_ids_of_transformers(family: str, place: str, tmp_path: Path) -> None:
    assert_same_ids(family, tmp_path / "folder", place, 1000)


def test_a_tokenizer_with_added_tokens_is_saved_and_loaded(tmp_path: Path) -> None:
    tokenizer = assert_same_ids("marian", tmp_path / "folder", "added_tokens_decoder", 60)
    tokenizer.save(tmp_path, "tokenizer")
    loaded = load_tokenizer(tmp_path, "tokenizer")
    assert loaded.encode_batch(texts(60)) == tokenizer.encode_batch(texts(60))
    assert loaded.fingerprint == tokenizer.fingerprint
    text = "der <Ent0> Hund"
    assert "<Ent0>" in loaded.decode(loaded.encode(text))
    with pytest.raises(ConfigError, match=r"the added token '<Ent0>' cannot be exported"):
        tokenizer_files(loaded, loaded, SpecialTokens((), (EOS,), ()), ("de", "en"))


def test_flags_in_tokenizer_config_replace_those_in_tokenizer_json(tmp_path: Path) -> None:
    theirs = causal_tokenizer("gpt2")
    theirs.add_tokens([AddedToken("QQ", lstrip=True), AddedToken("<Ent>", normalized=True)])
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    flags = {**dict.fromkeys(FLAGS, False), "special": False}
    tokens = {str(theirs.convert_tokens_to_ids(token)): {"content": token, **flags} for token in ("QQ", "<Ent>")}
    tokens[min(tokens)]["rstrip"] = True
    path.write_text(json.dumps({**config, "added_tokens_decoder": tokens}))
    ours, order = read(tmp_path, "gpt2", len(theirs))
    text = "der QQ Hund <Ent> und"
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)(text).input_ids
    assert expected != theirs(text).input_ids
    assert [order.order[index] for index in ours.encode(text)] == expected
    tokens[str(int(max(tokens)) + 1)] = {"content": "more", **flags}
    path.write_text(json.dumps({**config, "tokenizer_class": "RobertaTokenizer", "added_tokens_decoder": tokens}))
    with pytest.raises(BundleError, match=r"'<\|endoftext\|>' of tokenizer.json is not in added_tokens_decoder"):
        read_language_model_tokenizer(tmp_path, "gpt2")


def test_tokens_of_qwen2_follow_its_class_whatever_the_folder_names(tmp_path: Path) -> None:
    theirs = causal_tokenizer("qwen2")
    theirs.add_tokens(["QQ"])
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    token = {"content": "QQ", **dict.fromkeys(FLAGS, False), "special": False}
    decoder = {str(theirs.convert_tokens_to_ids("QQ")): token}
    changes = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": decoder}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(BundleError, match="without which transformers' Qwen2Tokenizer assigns it a different id"):
        read_language_model_tokenizer(tmp_path, "qwen2")


def test_added_tokens_after_special_ones_keep_their_ids(tmp_path: Path) -> None:
    theirs = masked_tokenizer("modernbert")
    theirs.add_tokens(["QQ", "<Ent>"])
    theirs.save_pretrained(tmp_path)
    side = read_masked_tokenizer(tmp_path, "modernbert")
    order = VocabularyOrder.from_special_ids(len(theirs), **side.special_ids)
    text = "der QQ Hund<Ent> und"
    ids = [order.order[index] for index in side.make_tokenizer(order).encode(text)]
    assert ids == theirs(text, add_special_tokens=False).input_ids


def test_an_id_that_the_library_does_not_give_is_refused(tmp_path: Path) -> None:
    theirs = causal_tokenizer("gpt2")
    theirs.add_tokens(["QQ"])
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"][-1]["id"] += 5
    path.write_text(json.dumps(content))
    with pytest.raises(BundleError, match=r"the added token 'QQ' has the id \d+, but transformers assigns it"):
        read_language_model_tokenizer(tmp_path, "gpt2")


def test_what_is_not_supported_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(spm("bpe"))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<ent1>": 500, "[PAD]": 501}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    with pytest.raises(
        BundleError, match=r"the added token '<ent1>' \(1 in total\) is not supported without a tokenizer"
    ):
        read_language_model_tokenizer(tmp_path, "llama")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[PAD]": 501}))
    read_language_model_tokenizer(tmp_path, "llama")
    for damaged in ('{"a": "b"}', "[]"):
        (tmp_path / "added_tokens.json").write_text(damaged)
        with pytest.raises(BundleError, match=r"added_tokens.json: damaged"):
            read_language_model_tokenizer(tmp_path, "llama")


def test_an_added_token_with_the_id_of_a_language_is_refused(tmp_path: Path) -> None:
    """M2M100Tokenizer gives a new token the id of its first language."""
    folder = m2m(tmp_path / "folder")
    (folder / "tokenizer_config.json").unlink()
    size = len(json.loads((folder / "vocab.json").read_text()))
    (folder / "added_tokens.json").write_text(json.dumps({"<ent1>": size}))
    with pytest.raises(BundleError, match=r"the added token '<ent1>' has the id of another token, '__af__'"):
        read_tokenizer_files(folder, "m2m_100")


def test_the_file_without_a_special_token_is_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    with pytest.raises(BundleError, match=r"vocab.txt: does not contain the special token '\[PAD\]'"):
        read_masked_tokenizer(tmp_path, "bert")
