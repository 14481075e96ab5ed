"""Import and export of Hugging Face folders: texts are translated to the same texts as in `transformers`.

`transformers` and Headway search in the same way with these settings (see also test_huggingface_search.py):
  stopping "first"         early_stopping=True
  normalization "average"  its length penalty
  forbidden tokens         its suppress_tokens: padding, the unknown token and the token that decoding begins with
  EndAtLimit               at the limit, a text ends with the end symbol, whose probability counts
  avoid_flagged=False      no flagged text is replaced
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import (
    MBART_LANGUAGES,
    SENTENCES,
    bart,
    corpus,
    fsmt,
    m2m,
    marian,
    mbart,
    mbart50,
    nllb,
    pegasus,
    pieces,
    spm,
    transformers,
)
from torch import Tensor

from headway import cli
from headway.bundle import Bundle, TaskConfig
from headway.decode import DecodingOptions
from headway.errors import BundleError, ConfigError, HeadwayError, MissingPackageError, OutputError
from headway.interop.exporting import export_to
from headway.interop.importing import ImportedBundle, import_from, import_huggingface
from headway.interop.tokenizer_exporting import unique_token_names
from headway.models.registry import build_model
from headway.models.transformer import TransformerConfig
from headway.predict import Translator
from headway.text.base import EOS
from headway.text.tokenizer import Tokenizer, TokenizerConfig
from headway.weights import named_weights

MAKERS: dict[str, Callable[[Path], Path]] = {
    "marian": marian,
    "m2m": m2m,
    "nllb": nllb,
    "bart": bart,
    "mbart": mbart,
    "fsmt": fsmt,
    "pegasus": pegasus,
}
TARGETS = {"m2m": "__en__", "nllb": "eng_Latn", "mbart": "en_XX"}  # tokens at the beginning of a target
LIMIT = 25
each_family = pytest.mark.parametrize("family", MAKERS)
each_beam = pytest.mark.parametrize("beam_size", [1, 4])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("families")
    return {family: make(home / family) for family, make in MAKERS.items()}


@pytest.fixture(scope="module")
def imported(folders: dict[str, Path]) -> dict[str, ImportedBundle]:
    return {family: import_huggingface(folder) for family, folder in folders.items()}


class EndAtLimit(transformers.LogitsProcessor):  # type: ignore[misc]
    """Headway's rule for texts at the limit."""

    def __init__(self, end: int) -> None:
        self.end = end

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        if ids.size(1) <= LIMIT:
            return scores
        only = torch.full_like(scores, -torch.inf)
        only[:, self.end] = scores[:, self.end]
        return only


def ours(bundle: Bundle, texts: list[str], beam_size: int, target_language: str | None = None) -> list[str]:
    options = DecodingOptions(
        beam_size=beam_size, length_penalty=1.0, normalization="average", stopping="first", max_length=LIMIT
    )
    translator = Translator(bundle, avoid_flagged=False)
    found = translator.translate(texts, options, target_language=target_language, protect=False)
    return [each.text for each in found]


def theirs(folder: Path, texts: list[str], beam_size: int, target: Path | None = None, **options: Any) -> list[str]:
    """Return the translation by `transformers` of each text on its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MarianTokenizer recommends a package
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        decoder = transformers.AutoTokenizer.from_pretrained(target) if target else tokenizer
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    end = model.config.eos_token_id
    special = {tokenizer.pad_token_id, tokenizer.unk_token_id, model.config.decoder_start_token_id}
    model.generation_config.forced_eos_token_id = None
    model.generation_config.max_length = None
    settings: dict[str, Any] = {
        "num_beams": beam_size,
        "do_sample": False,
        "length_penalty": 1.0,
        "early_stopping": beam_size > 1,
    }
    settings |= {"suppress_tokens": sorted(special - {end}), "max_new_tokens": LIMIT + 1}
    settings["logits_processor"] = transformers.LogitsProcessorList([EndAtLimit(end)])
    found = []
    for text in texts:
        ids = model.generate(**tokenizer(text, return_tensors="pt"), **{**settings, **options})
        found.append(decoder.batch_decode(ids, skip_special_tokens=True)[0])
    return found


def forced(family: str, folder: Path) -> dict[str, Any]:
    """Return the first target token, for families whose tokenizer knows it although generate() does not."""
    if family not in TARGETS:
        return {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(TARGETS[family])}


def agree(found: list[str], expected: list[str]) -> None:
    assert found == expected
    assert len(set(found)) > 2, "the model must tell sentences apart"


# Import.


@pytest.mark.slow_but_every(3)
@each_family
@each_beam
def test_an_imported_model_translates_as_the_original(
    family: str, beam_size: int, folders: dict[str, Path], imported: dict[str, ImportedBundle]
) -> None:
    texts = [text.replace("\t", " ") for text in SENTENCES[:6]]  # FSMT's tokenizer drops this
    expected = theirs(folders[family], texts, beam_size, **forced(family, folders[family]))
    if family == "m2m":  # this version's tokenizer does not skip its languages
        expected = [text.removeprefix("__en__").removeprefix("__de__").strip() for text in expected]
    agree(ours(imported[family].bundle, texts, beam_size), expected)


@each_family
def test_a_saved_import_is_the_same_and_needs_no_transformers(
    family: str, imported: dict[str, ImportedBundle], tmp_path: Path
) -> None:
    bundle = imported[family].bundle
    bundle.save(tmp_path / "model", imported[family].card)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["format"] == 2
    loaded = Bundle.load(tmp_path / "model")
    assert (loaded.task, loaded.token_template) == (bundle.task, bundle.token_template)
    assert ours(loaded, SENTENCES, 1) == ours(bundle, SENTENCES, 1)
    if family == "marian":
        code = f"import headway, sys; print(headway.load({str(tmp_path / 'model')!r}).translate('der Hund').text)"
        check = "assert not {'transformers', 'ctranslate2', 'onnx'} & {*sys.modules}"
        subprocess.run([sys.executable, "-c", f"{code}\n{check}"], check=True, capture_output=True)


def test_languages_are_taken_over(folders: dict[str, Path], imported: dict[str, ImportedBundle]) -> None:
    templates = {family: found.bundle.token_template for family, found in imported.items()}
    assert (templates["m2m"].source_language, templates["m2m"].target_language) == ("de", "en")
    assert len(templates["m2m"].languages) == 100
    assert templates["nllb"].target_languages == ("deu_Latn", "eng_Latn", "rus_Cyrl")
    assert templates["marian"].languages == templates["bart"].languages == {}
    assert imported["marian"].bundle.task == TaskConfig(source_language="de", target_language="en")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["nllb"], src_lang="rus_Cyrl")
    bundle = imported["nllb"].bundle
    special = bundle.token_template.fill(source_language="rus_Cyrl", target_language="deu_Latn")
    names = unique_token_names(bundle.source_tokenizer)
    ids = special.add_to_source(bundle.source_tokenizer.encode("мир"))
    assert [names[index] for index in ids] == tokenizer.convert_ids_to_tokens(tokenizer("мир").input_ids)
    assert [names[index] for index in special.target_prefix] == ["deu_Latn"]
    other = import_huggingface(folders["nllb"], source_language="eng_Latn", target_language="rus_Cyrl").bundle
    assert (other.token_template.source_language, other.token_template.target_language) == ("eng_Latn", "rus_Cyrl")
    assert (other.task.source_language, other.task.target_language) == ("eng_Latn", "rus_Cyrl")


def test_nllb_may_put_the_language_after_a_text(folders: dict[str, Path], tmp_path: Path) -> None:
    """As models that were trained before NLLB's tokenizer was corrected need it."""
    folder = shutil.copytree(folders["nllb"], tmp_path / "nllb")
    edit("tokenizer_config.json", legacy_behaviour=True)(folder)
    bundle = import_huggingface(folder).bundle
    assert bundle.token_template.source_prefix == ()
    assert bundle.token_template.source_suffix == (EOS, "source_language")
    texts = SENTENCES[:4]
    agree(ours(bundle, texts, 1), theirs(folder, texts, 1, **forced("nllb", folder)))
    assert ours(bundle, texts, 1) != ours(import_huggingface(folders["nllb"]).bundle, texts, 1)
    edit("tokenizer_config.json", tokenizer_class="M2M100Tokenizer")(folder)  # which does not have this setting
    assert import_huggingface(folder).bundle.token_template.source_prefix == ("source_language",)


def test_opus_models_with_several_target_languages_need_a_code(tmp_path: Path) -> None:
    folder = marian(tmp_path / "opus", languages=["fra", "ron"])
    bundle = import_huggingface(folder).bundle
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    names = unique_token_names(bundle.source_tokenizer)
    ids = bundle.token_template.fill(target_language="ron").add_to_source(bundle.source_tokenizer.encode("der Hund"))
    expected = tokenizer.convert_ids_to_tokens(tokenizer(">>ron<< der Hund").input_ids)
    assert [names[index] for index in ids] == expected
    with pytest.raises(ConfigError, match=r"one must be selected: none was given; choose one of fra, ron "):
        Translator(bundle).translate("der Hund")
    agree(
        ours(bundle, SENTENCES, 1, target_language="ron"), theirs(folder, [f">>ron<<{text}" for text in SENTENCES], 1)
    )
    export_to("huggingface", bundle, tmp_path / "hf", target_language="ron")
    readme = (tmp_path / "hf" / "README.md").read_text()
    assert "Put the code of the target language before the text: `>>ron<< TEXT`." in readme
    asked = [f">>ron<< {text}" for text in SENTENCES]
    assert theirs(tmp_path / "hf", asked, 1) == ours(bundle, SENTENCES, 1, "ron")


def test_mbart_50_is_numbered_as_fairseq_does(tmp_path: Path) -> None:
    folder = mbart50(tmp_path / "mbart")
    bundle = import_huggingface(folder).bundle
    own = pieces(spm())
    # The documented order: <s> <pad> </s> <unk>, the pieces after the model's three special ones, languages, <mask>.
    fairseq = ["<s>", "<pad>", "</s>", "<unk>", *own[3:], *MBART_LANGUAGES, "<mask>"]
    order = [1, 2, 2, 3, 0, *range(4, len(fairseq))]  # <pad>, </s> as the begin symbol, </s>, <unk>, the others
    expected = [fairseq[old] for old in order]
    expected[1] = "<</s>>"  # the name of its own
    assert unique_token_names(bundle.source_tokenizer) == expected
    special = bundle.token_template.fill()
    ids = special.add_to_source(bundle.source_tokenizer.encode("der Hund"))
    assert [expected[index] for index in ids] == ["de_DE", "▁der", "▁Hund", "</s>"]
    assert [expected[index] for index in special.target_prefix] == ["en_XX"]


def test_bart_may_have_gpt2s_files(
    folders: dict[str, Path], imported: dict[str, ImportedBundle], tmp_path: Path
) -> None:
    folder = tmp_path / "bart"
    shutil.copytree(folders["bart"], folder)
    learned = json.loads((folder / "tokenizer.json").read_text())["model"]
    without(folder, "tokenizer.json")
    (folder / "vocab.json").write_text(json.dumps(learned["vocab"]))
    merges = [" ".join(pair) for pair in learned["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    tokenizer, expected = import_huggingface(folder).bundle.source_tokenizer, imported["bart"].bundle.source_tokenizer
    for text in (*SENTENCES, "a </s> b"):
        assert tokenizer.encode(text) == expected.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bart_may_put_a_space_before_a_text(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "bart"
    shutil.copytree(folders["bart"], folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "add_prefix_space": True}))
    tokenizer: Any = import_huggingface(folder).bundle.source_tokenizer
    encoder = transformers.AutoTokenizer.from_pretrained(folder)
    for text in SENTENCES:
        found = [tokenizer.library_ids[token] for token in tokenizer.encode(text)]
        assert found == encoder(text, add_special_tokens=False).input_ids


def test_the_card_names_the_origin_of_the_model(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "opus-mt-de-en"
    shutil.copytree(folders["marian"], folder)
    (folder / "README.md").write_text("---\nlanguage: de\nlicense: cc-by-4.0\n---\nA model.\n")
    card = import_huggingface(folder).card
    for fact in ("opus-mt-de-en", "MarianMT", "License: cc-by-4.0", "from de to en", "sentencepiece"):
        assert fact in card
    assert "not named in" in import_huggingface(folders["marian"]).card
    languages = import_huggingface(folders["nllb"]).card
    assert "deu_Latn, eng_Latn, rus_Cyrl (default: source deu_Latn, target eng_Latn)" in languages


def without(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


@pytest.mark.parametrize(
    ("family", "damage", "message"),
    [
        ("marian", lambda f: without(f, "config.json"), r"config\.json: missing; expected a folder with a"),
        ("marian", lambda f: (f / "config.json").write_text("["), r"config\.json: damaged"),
        ("marian", lambda f: (f / "config.json").write_text("[]"), r"config\.json: damaged \(expected a JSON object\)"),
        ("marian", edit("config.json", model_type="umt5"), r"model_type = 'umt5' is not supported; supported: marian"),
        ("bart", edit("config.json", model_type="umt5"), r"model_type = 'umt5' is not supported; supported: marian"),
        ("marian", lambda f: without(f, "target.spm"), r"expected for marian: tokenizer\.json, or source\.spm, target"),
        ("m2m", lambda f: without(f, "vocab.json"), r"expected for m2m_100: tokenizer\.json, or sentencepiece\.bpe"),
        ("bart", lambda f: without(f, "tokenizer.json"), r"expected for bart: tokenizer\.json, or vocab\.json and"),
        ("bart", edit("config.json", model_type="fsmt"), r"model_type|supported"),
        ("marian", edit("config.json", model_type="fsmt", architectures=None), r"json, or vocab-src\.json, vocab-tgt"),
        ("marian", lambda f: (f / "vocab.json").write_text('{"a": "b"}'), r"vocab\.json: expected a JSON object"),
        ("marian", lambda f: (f / "vocab.json").write_text('{"a": 1}'), r"does not contain the piece '<unk>'"),
        ("bart", edit("tokenizer_config.json", unk_token="[U]"), r"does not contain the token '\[U\]'"),
        ("m2m", edit("tokenizer_config.json", language_codes="x"), r"language_codes = 'x'; known: m2m100, wmt21"),
        ("fsmt", lambda f: (f / "merges.txt").write_text("t h 9\n\nd\n"), r"merges\.txt, line 3: expected the two"),
        ("fsmt", lambda f: (f / "merges.txt").write_bytes(b"\xff \xfe\n"), r"merges\.txt: not UTF-8"),
        ("fsmt", edit("tokenizer_config.json", langs=["de"]), r"langs = \['de'\]; expected the source and the"),
        ("nllb", edit("tokenizer.json", model={}), r"tokenizer\.json: not a fast Hugging Face tokenizer "),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(
    family: str, damage: Callable[[Path], Any], message: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders[family], folder)
    damage(folder)
    with pytest.raises(BundleError, match=message):
        import_huggingface(folder)


def test_an_mbart_whose_languages_nobody_lists(tmp_path: Path) -> None:
    folder = mbart50(tmp_path / "mbart")
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(BundleError, match=r"lists the languages \(additional_special_tokens\); save the tokenizer"):
        import_huggingface(folder)
    (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": MBART_LANGUAGES}))
    assert import_huggingface(folder).bundle.token_template.source_languages == tuple(MBART_LANGUAGES)


def test_an_mbart_that_begins_with_a_language(tmp_path: Path) -> None:
    folder = mbart50(tmp_path / "mbart")
    edit("config.json", decoder_start_token_id=None)(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    edit("tokenizer_config.json", tgt_lang=None)(folder)
    with pytest.raises(ConfigError, match=r"begins with the target language's code, .* one of de_DE, en_XX, ru_RU "):
        import_huggingface(folder)
    with pytest.raises(ConfigError, match=r"target_language 'fr': not a language code of this model; known: de_DE, en"):
        import_huggingface(folder, target_language="fr")
    bundle = import_huggingface(folder, target_language="ru_RU").bundle
    names = unique_token_names(bundle.source_tokenizer)
    assert names[1] == "ru_RU"
    ids = bundle.token_template.fill().add_to_source(bundle.source_tokenizer.encode("der"))
    assert [names[index] for index in ids] == ["▁der", "</s>", "de_DE"]
    assert bundle.task.target_language == "ru_RU"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("opus", r"opus: no such file or folder; expected a Hugging Face or CTranslate2 folder, an Argos"),
        ("huggingfase:x", r"huggingfase:x: no such file or folder; did you mean 'huggingface:'\?"),
        ("huggingface:nowhere", r"nowhere: no such folder; expected a folder with a model's config\.json"),
    ],
)
def test_a_wrong_source_is_named(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        import_from(source)


def test_languages_that_a_model_is_not_told_are_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"target_language 'fr': not a language code .*; this language cannot be"):
        import_huggingface(folders["marian"], target_language="fr")
    with pytest.raises(ConfigError, match=r"source_language 'fr': .* known: deu_Latn, eng_Latn, rus_Cyrl"):
        import_huggingface(folders["nllb"], source_language="fr")


# Export.

END = {"bpe": 8.0, "characters": 8.0, "whitespace": 4.0}  # in a large vocabulary, the largest rival logits are larger
SIZES: dict[str, Any] = {"d_model": 32, "num_heads": 4, "d_ff": 48, "encoder_layers": 1, "decoder_layers": 2}


FEW = [*SENTENCES[:4], "a </s> <eos> b", "der und </s>"]
FORGED = ["a </s> <eos> b", "<pad>", "<|eos|> <bos>", " two  spaces ", "<2en> der <2fr>"]
TEXTS = [*SENTENCES, *FORGED]


def headways(
    kind: str, *, joint: bool = True, tags: tuple[str, ...] = (), norm: str = "post", **options: Any
) -> Bundle:
    """A model of Headway's own, drawn so that targets follow from sources (attention to them is sharp and large) and
    end: one dimension of what is projected is constant, and the end symbol's logit has more of it than the others'."""
    tokens = TokenizerConfig.model_validate({"kind": kind, "vocab_size": 400, **options})
    one = Tokenizer.train(corpus()[:200], tokens, tags=tags)
    other = one if joint else Tokenizer.train(corpus()[200:], tokens)
    tie = "all" if joint else "target"
    torch.manual_seed(0)
    config = TransformerConfig.parse({**SIZES, "tie": tie, "norm": norm}, "test")
    model = build_model(config, one.vocab_size, other.vocab_size).eval()
    last_norm: Any = model.decoder.norm if norm == "pre" else model.decoder.blocks[-1].feed_forward_residual.norm
    with torch.no_grad():
        for name, weight in model.named_parameters():
            small = name.endswith("bias") or "norm" in name
            weight.copy_(torch.randn_like(weight) * (0.1 if small else 2.0 if "cross" in name else 0.5))
            weight.add_("norm.weight" in name)
        last_norm.weight[0], last_norm.bias[0] = 0, 1
        model.projection.weight[:, 0] = 0
        model.projection.weight[2, 0] = END[kind]
    return Bundle(TaskConfig(source_language="de", target_language="en"), model, one, other)


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bpe", {}),
        ("bpe", {"split_digits": True}),
        ("bpe", {"joint": False}),
        ("bpe", {"tags": ("<2en>", "<2fr>")}),
        ("characters", {}),
        ("whitespace", {}),
        ("bpe", {"norm": "pre"}),
    ],
)
def test_an_exported_model_translates_as_headway(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    bundle = headways(kind, **options)
    asked = "en" if "tags" in options else None
    export_to("huggingface", bundle, tmp_path / "hf", target_language=asked)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ids = [
        bundle.token_template.fill(target_language=asked).add_to_source(row)
        for row in bundle.source_tokenizer.encode_batch(TEXTS)
    ]
    assert tokenizer(TEXTS).input_ids == ids
    if kind == "bpe":
        assert tokenizer.batch_decode(ids, skip_special_tokens=True) == TEXTS
    target = None if options.get("joint", True) else tmp_path / "hf" / "target"
    for beam_size in (1, 4):
        agree(ours(bundle, FEW, beam_size, asked), theirs(tmp_path / "hf", FEW, beam_size, target))


def test_export_and_import_give_the_same_model(
    folders: dict[str, Path], imported: dict[str, ImportedBundle], tmp_path: Path
) -> None:
    first = imported["marian"].bundle
    export_to("huggingface", first, tmp_path / "hf")
    again = import_huggingface(tmp_path / "hf").bundle
    assert again.token_template == first.token_template
    before, after = named_weights(first.model), named_weights(again.model)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert ours(again, SENTENCES, 4) == ours(first, SENTENCES, 4)
    agree(ours(first, SENTENCES, 4), theirs(tmp_path / "hf", SENTENCES, 4))


def test_headways_own_model_comes_back(tmp_path: Path) -> None:
    bundle = headways("bpe")
    export_to("huggingface", bundle, tmp_path / "hf")
    again = import_huggingface(tmp_path / "hf").bundle
    assert [again.source_tokenizer.encode(text) for text in FORGED] == [
        bundle.source_tokenizer.encode(text) for text in FORGED
    ]
    assert ours(again, SENTENCES, 1) == ours(bundle, SENTENCES, 1)


def test_what_cannot_be_exported_is_named(imported: dict[str, ImportedBundle], tmp_path: Path) -> None:
    tagged = Tokenizer("whitespace", ["a"], tags=["<2en>"])
    own = Bundle(TaskConfig(), imported["marian"].bundle.model, tagged, tagged)
    cases: list[tuple[str, Bundle, dict[str, Any], str]] = [
        ("onxx", own, {}, r"format 'onxx'; did you mean 'onnx'\?"),
        ("huggingface", own, {"quantization": "int8"}, r"quantization 'int8': only --to ctranslate2 supports it"),
        ("huggingface", own, {}, r"one must be selected: none was given; choose one of en "),
        ("onnx", own, {"target_language": "en"}, r"an ONNX model's languages are chosen at each call; leave"),
        ("huggingface", imported["nllb"].bundle, {}, r"must begin with a language code, which the MarianMT format"),
        ("huggingface", imported["bart"].bundle, {}, r"cannot be exported to Hugging Face"),
    ]
    tokenizer = Tokenizer("words", [" ", "a"])
    words = Bundle(TaskConfig(), own.model, tokenizer, tokenizer)
    message = r"tokenizer\.kind = 'words' cannot be exported to `transformers`, .* ONNX folders keep"
    cases += [(toolkit, words, {}, message) for toolkit in ("huggingface", "ctranslate2")]
    for form, bundle, options, message in cases:
        with pytest.raises(ConfigError, match=message):
            export_to(form, bundle, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["huggingface", "ctranslate2", "onnx"])
def test_an_option_that_no_format_lists_is_refused_unless_it_has_its_default(form: str, tmp_path: Path) -> None:
    class Extended(TransformerConfig):
        clamp: int | None = None

    bundle = headways("bpe")
    bundle.model.config = Extended.parse({**bundle.model.config.as_dict(), "clamp": 3}, "test")
    message = r"^clamp = 3 cannot be exported to .*; supported: the default \(headway/interop/.*\)$"
    with pytest.raises(ConfigError, match=message):
        export_to(form, bundle, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    bundle.model.config = Extended.parse(headways("bpe").model.config.as_dict(), "test")
    export_to("huggingface", bundle, tmp_path / "out")
    assert (tmp_path / "out").exists()


def test_a_failed_export_leaves_what_was_there(
    imported: dict[str, ImportedBundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headway.interop.exporting.exported_card", fails)
    with pytest.raises(OutputError, match=r"out: cannot be written \(No space left on device\)"):
        export_to("huggingface", imported["marian"].bundle, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# The commands.


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["headway", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code, arguments


def test_import_translate_and_export_on_the_command_line(
    folders: dict[str, Path],
    imported: dict[str, ImportedBundle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tmp_path / "model"
    run(monkeypatch, "import", f"huggingface:{folders['nllb']}", "-o", model, "--target-language", "rus_Cyrl")
    assert "tokens, from huggingface:" in capsys.readouterr().out
    run(monkeypatch, "translate", model, "der Hund", "--from", "deu_Latn", "--to", "eng_Latn")
    expected = Translator(imported["nllb"].bundle).translate("der Hund").text
    assert capsys.readouterr().out == f"{expected}\n"
    assert Bundle.load(model).token_template.target_language == "rus_Cyrl"
    run(monkeypatch, "info", model)
    assert "huggingface" in capsys.readouterr().out
    run(monkeypatch, "export", model, "--to", "ctranslate2", "--quantization", "int8")
    assert (tmp_path / "model-ctranslate2" / "model.bin").is_file()
    assert "model-ctranslate2: " in capsys.readouterr().out


def test_import_writes_beside_the_folder_by_default(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "opus"
    shutil.copytree(folders["marian"], folder)
    run(monkeypatch, "import", f"huggingface:{folder}/")
    assert (tmp_path / "opus-headway" / "model.safetensors").is_file()


def test_missing_packages_are_user_errors() -> None:
    assert issubclass(MissingPackageError, HeadwayError)
