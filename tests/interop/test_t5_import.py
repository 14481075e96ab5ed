"""T5 and its relatives compute the same numbers as in `transformers`, and translate texts to the same texts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_models import V, padded, sentences
from foreign import MADLAD_LANGUAGES, SENTENCES, T5_SIZES, byt5, madlad, mt5, t5, transformers, untied
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from test_huggingface_search import LIMIT, found_by_headway, found_by_transformers
from test_huggingface_weights import assert_equal_logits
from test_import_export import ours, theirs

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from in_process import application

from headway.engine import describe_search_acceleration
from headway.errors import BundleError, ConfigError
from headway.interop.exporting import export_to
from headway.interop.huggingface.t5_importing import T5_FAMILIES, import_t5
from headway.interop.importing import ImportedBundle, import_from, import_huggingface
from headway.interop.tokenizer_importing import read_tokenizer_files
from headway.interop.vocabulary_order import VocabularyOrder
from headway.predict import Translator
from headway.text.base import BOS, EOS, PAD, UNK
from headway.text.loading import load_tokenizer
from headway.weights import named_weights

UNKNOWN = 2
SIZES = {**T5_SIZES, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "vocab_size": V}


def drawn(family: str = "t5", seed: int = 0, **options: Any) -> Any:
    """Return a model of `transformers` with random weights, so that every part affects the results."""
    torch.manual_seed(seed)
    classes = {"t5": ("T5Config", "T5ForConditionalGeneration"), "mt5": ("MT5Config", "MT5ForConditionalGeneration")}
    config, model_class = (getattr(transformers, name) for name in classes[family])
    model = model_class(config(**{**SIZES, **options})).eval()
    model = model if options.get("tie_word_embeddings") else untied(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.3)
            if "layer_norm" in name:
                weight.add_(1)
            elif "relative_attention_bias" in name:
                weight.mul_(5)
        if getattr(model.config, "scale_decoder_outputs", False):
            model.decoder.final_layer_norm.weight.mul_(4)
    return model


def saved(model: Any, folder: Path, **changes: Any) -> Path:
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


# The same numbers.


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("t5", {}),  # version 1.1: GELU by tanh with a gate, an output projection of its own
        ("t5", {"feed_forward_proj": "relu", "tie_word_embeddings": True}),  # the first version, whose output is scaled
        ("t5", {"num_layers": 3, "num_decoder_layers": 1, "d_kv": 4, "feed_forward_proj": "gated-silu"}),
        ("t5", {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}),
        ("t5", {"pad_token_id": 1, "eos_token_id": 3, "decoder_start_token_id": 2}),  # begins with <unk>, as MADLAD-400
        ("t5", {"decoder_start_token_id": 9, "layer_norm_epsilon": 0.1}),
        ("mt5", {}),
        ("mt5", {"tie_word_embeddings": True, "feed_forward_proj": "gelu_new"}),  # never scaled
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_logits_equal_those_of_transformers(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = drawn(family, **options)
    imported = import_t5(saved(model, tmp_path))
    assert_equal_logits(model, imported, lengths=(45, 1, 9))  # longer than the distance with one bucket, and padded


@pytest.mark.parametrize(("beam_size", "alpha"), [(1, 1.0), (4, 0.6)])
def test_searches_find_the_same_tokens(beam_size: int, alpha: float, tmp_path: Path) -> None:
    """A batch of sources, decoded step by step with the cache, beams that are reordered, and without padding."""
    model = drawn(seed=5)
    with torch.no_grad():  # attention to the source decides, and some targets end early
        for name, weight in model.named_parameters():
            weight.mul_(3 if "EncDecAttention" in name else 1)
        model.lm_head.weight[model.config.eos_token_id] *= 2
    imported = import_t5(saved(model, tmp_path))
    torch.manual_seed(5)
    sources = sentences(model, (4, 1, 9, 6, 2, 30, 3, 7), V)
    settings: dict[str, Any] = {"num_beams": beam_size, "length_penalty": alpha, "unknown": UNKNOWN}
    expected = found_by_transformers(model, sources, **settings)
    assert len({tuple(row) for row in expected}) >= 4
    assert min(map(len, expected)) < LIMIT
    assert found_by_headway(imported, sources, beam_size, alpha, unknown=UNKNOWN) == expected
    alone = [found_by_headway(imported, [source], beam_size, alpha, unknown=UNKNOWN)[0] for source in sources]
    assert alone == expected


def test_each_tensor_is_needed_or_known(tmp_path: Path) -> None:
    """If a tensor is missing, the file is refused with its name. Only the output projection may be the embedding."""
    path = saved(drawn(num_layers=1, num_decoder_layers=1), tmp_path) / "model.safetensors"
    tensors = load_file(path)
    for left_out in sorted(tensors):
        save_file({name: tensor for name, tensor in tensors.items() if name != left_out}, path)
        if left_out == "lm_head.weight":
            assert import_t5(tmp_path).model.config.tie == "all"
        else:
            with pytest.raises(BundleError, match=f"tensor '{left_out}' is missing"):
                import_t5(tmp_path)
    old = {
        "encoder.embed_tokens.weight": tensors["shared.weight"].clone(),
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.zeros(8, 4),  # without effect
    }
    save_file(tensors | old, path)
    assert import_t5(tmp_path).model.config.tie == "inputs"
    other = {name: tensor + 1 for name, tensor in old.items()}
    save_file(tensors | other, path)
    weights = named_weights(import_t5(tmp_path).model)
    assert torch.equal(weights["source_embedding.weight"][UNK], tensors["shared.weight"][UNKNOWN] + 1)
    assert torch.equal(weights["target_embedding.weight"][UNK], tensors["shared.weight"][UNKNOWN])
    save_file({**tensors, "encoder.block.0.layer.0.SelfAttention.q.bias": torch.zeros(24)}, path)
    with pytest.raises(BundleError, match=r"unknown tensor 'encoder.block.0.layer.0.SelfAttention.q.bias'"):
        import_t5(tmp_path)


def test_the_begin_symbol_is_a_copy_that_is_never_likely(tmp_path: Path) -> None:
    imported = import_t5(saved(drawn(), tmp_path))
    assert imported.source_vocabulary.order[:4] == (0, 0, 1, 2)
    logits = imported.model(torch.tensor([[7, 9, EOS]]), torch.tensor([[BOS, 8]]))
    assert (logits[..., BOS] < -5000).all()
    apart = import_t5(saved(drawn(decoder_start_token_id=9), tmp_path))
    assert not apart.model.config.output_bias


def test_searches_are_optimized_in_floats_and_say_so(tmp_path: Path) -> None:
    model = import_t5(saved(drawn(), tmp_path)).model
    described = (
        "optimized, in float32 or bfloat16; not in int8 (positions = 'relative_bias' has no form for searches in"
    )
    assert describe_search_acceleration(model).startswith(described)


@pytest.mark.parametrize("family", T5_FAMILIES)
def test_keys_that_are_left_out_have_their_defaults(family: str) -> None:
    config = transformers.CONFIG_MAPPING[family]().to_dict()
    layers = config["num_layers"]
    for key, default in T5_FAMILIES[family].defaults.items():
        assert config[key] == (layers if key == "num_decoder_layers" else default), key


# What is refused.


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "umt5"}, "model_type = 'umt5' is not supported; supported: t5"),
        ({"architectures": ["T5EncoderModel"]}, "expected T5ForConditionalGeneration for T5"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder = false is not supported; expected true for T5"),
        ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj = 'gated-tanh': expected one of relu, gelu"),
        ({"feed_forward_proj": ["relu"]}, r"feed_forward_proj = \['relu'\]: expected one of"),
        ({"dense_act_fn": "gelu"}, "dense_act_fn = 'gelu' contradicts feed_forward_proj = 'gated-gelu'"),
        ({"is_gated_act": False}, "is_gated_act = False contradicts feed_forward_proj = 'gated-gelu'"),
        ({"num_heads": 0}, "num_heads = 0: expected a whole number of at least 1"),
        ({"num_decoder_layers": "2"}, "num_decoder_layers = '2': expected a whole number"),
        ({"num_layers": 10**9}, "num_layers = 1,000,000,000, but the weights are"),
        ({"decoder_start_token_id": [0]}, r"decoder_start_token_id = \[0\]: expected the id of one token"),
        ({"decoder_start_token_id": 99}, "the start token's id 99 is not in the vocabulary, which has 40 tokens"),
        ({"eos_token_id": 2}, "the padding, end and unknown token have the ids 0, 2 and 2; Headway needs three"),
        ({"d_kv": 5}, r"SelfAttention.q.weight' has shape \[24, 16\]; config.json requires \[20, 16\]"),
        ({"relative_attention_num_buckets": 16}, r"relative_attention_bias.weight' has shape \[8, 4\]; .* \[16, 4\]"),
        ({"vocab_size": 41}, r"weight' has shape \[40, 16\]; config.json requires \[41"),
        ({"forced_bos_token_id": 5}, "forced_bos_token_id = 5 is not supported for T5"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=message):
        import_t5(saved(drawn(), tmp_path, **values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dropout_rate": 2}, "dropout = 2: input should be less than 1"),
        ({"relative_attention_num_buckets": 7}, "relative_buckets = 7: input should be a multiple of 2"),
        ({"relative_attention_max_distance": 3}, "relative_max_distance = 3 must be more than half of"),
        ({"relative_attention_max_distance": 10**12}, "relative_max_distance = 1000000000000: input should be less"),
        ({"layer_norm_epsilon": 0}, "norm_epsilon = 0: input should be greater than 0"),
    ],
)
def test_numbers_that_no_transformer_can_have_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        import_t5(saved(drawn(), tmp_path, **values))


# Texts, with the tokenizers of each family.

MAKERS: dict[str, Callable[[Path], Path]] = {"t5": t5, "mt5": mt5, "madlad": madlad, "byt5": byt5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("relatives")
    return {name: make(home / name) for name, make in MAKERS.items()}


@pytest.fixture(scope="module")
def imported(folders: dict[str, Path]) -> dict[str, ImportedBundle]:
    return {name: import_huggingface(folder) for name, folder in folders.items()}


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("name", MAKERS)
def test_texts_are_translated_as_in_transformers(
    name: str, beam_size: int, folders: dict[str, Path], imported: dict[str, ImportedBundle]
) -> None:
    texts = [text for text in SENTENCES if "\u200b" not in text][: 4 if name == "byt5" else None]
    language = "de" if name == "madlad" else None
    expected = theirs(folders[name], [f"<2de> {text}" if language else text for text in texts], beam_size)
    found = ours(imported[name].bundle, texts, beam_size, language)
    if name == "byt5":  # transformers drops bytes that are not UTF-8, and Headway shows them as \ufffd
        found = [text.replace("\ufffd", "") for text in found]
    assert found == expected
    assert len(set(expected)) >= (2 if name == "byt5" else 3)


def test_byt5_reads_and_writes_bytes(folders: dict[str, Path]) -> None:
    side = read_tokenizer_files(folders["byt5"], "t5").source
    order = VocabularyOrder.with_duplicates(384, pad=0, start=0, end=1, unknown=2)
    tokenizer = side.make_tokenizer(order)
    reference = transformers.ByT5Tokenizer()

    @given(st.text(st.characters(exclude_categories=["Cs"])))
    def compare(text: str) -> None:
        ids = tokenizer.encode(text)
        assert [order.order[index] for index in ids] == [byte + 3 for byte in text.encode()]
        assert tokenizer.decode(ids) == text

    compare()
    assert [order.order[index] for index in tokenizer.encode("größer 😀")] == reference("größer 😀").input_ids[:-1]
    # Names of special tokens are ordinary text, and nothing else is ever read.
    assert len(tokenizer.encode("</s><extra_id_0>")) == len("</s><extra_id_0>")
    assert tokenizer.decode([PAD, BOS, EOS, UNK, order.headway_ids[259], order.headway_ids[383]]) == ""
    assert tokenizer.vocab_size == 385


def test_other_tokens_of_byt5_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folders["byt5"] / name).read_bytes())
    (tmp_path / "added_tokens.json").write_text('{"<extra_id_3>": 262, "<mine>": 384}')
    with pytest.raises(BundleError, match=r"the added token '<mine>' \(1 in total\) is not supported for ByT5"):
        read_tokenizer_files(tmp_path, "t5")


@pytest.mark.parametrize("file", ["tokenizer.json", "spiece.model"])
def test_both_files_of_a_tokenizer_give_the_same_ids(file: str, folders: dict[str, Path], tmp_path: Path) -> None:
    for name, family, source in (("t5", "t5", "t5"), ("madlad", "t5", "madlad")):
        folder = tmp_path / name
        folder.mkdir()
        for needed in (file, "tokenizer_config.json"):
            (folder / needed).write_bytes((folders[source] / needed).read_bytes())
        side = read_tokenizer_files(folder, family).source
        reference = transformers.AutoTokenizer.from_pretrained(folders[source])
        size = len(reference) + 5
        order = VocabularyOrder.with_duplicates(
            size, pad=reference.pad_token_id, start=0, end=reference.eos_token_id, unknown=side.unknown_id
        )
        tokenizer = side.make_tokenizer(order)
        for text in ("der kleine Frosch schläft.", "  two  spaces\tand ﬁn", "wir sehen 2024 eine naïve Straße"):
            assert [order.order[index] for index in tokenizer.encode(text)] == reference(text).input_ids[:-1]
        assert side.languages == ({} if name == "t5" else {"de": 3, "en": 4, "zh_Latn": 5})


# Languages.


def test_target_languages_of_madlad_are_tokens_before_the_source(
    folders: dict[str, Path], imported: dict[str, ImportedBundle], tmp_path: Path
) -> None:
    bundle = imported["madlad"].bundle
    assert bundle.token_template.target_languages == tuple(MADLAD_LANGUAGES)  # <2translate> is no language
    assert bundle.token_template.source_languages == ()
    reference = transformers.AutoTokenizer.from_pretrained(folders["madlad"])
    tokenizer, order = bundle.source_tokenizer, import_t5(folders["madlad"], unknown_id=0).source_vocabulary
    for language in MADLAD_LANGUAGES:
        tokens = bundle.token_template.fill(target_language=language)
        ids = [order.order[index] for index in tokens.add_to_source(tokenizer.encode("der Hund"))]
        assert ids == reference(f"<2{language}> der Hund").input_ids
    # A code in a text chooses nothing.
    assert not {order.headway_ids[index] for index in (3, 4, 5)} & set(tokenizer.encode("<2en> Hund <2de>"))
    with pytest.raises(
        ConfigError, match="several languages, and one must be selected: none was given; choose one of de"
    ):
        bundle.token_template.fill()
    chosen = import_from(str(folders["madlad"]), target_language="en").bundle
    assert chosen.token_template.fill() == bundle.token_template.fill(target_language="en")  # type: ignore[union-attr]
    chosen.save(tmp_path / "model", "card")
    assert load_tokenizer(tmp_path / "model", "tokenizer").fingerprint == tokenizer.fingerprint


def test_a_code_that_changes_the_text_after_it_is_refused(tmp_path: Path) -> None:
    """Without a pre-tokenizer that splits words, a piece can span the code and the text."""
    words: Any = ["<pad>", "</s>", "<unk>", "▁", "<2de>", "a", "b", "▁a", "▁b", "<2de>▁a"]
    library = {
        "added_tokens": [],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": [[word, -1.0] for word in words]},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(library))
    with pytest.raises(BundleError, match="the language code <2de> changes how the text after it is segmented"):
        read_tokenizer_files(tmp_path, "t5")


@pytest.mark.parametrize("form", ["huggingface", "ctranslate2", "onnx"])
def test_exports_refuse_the_relative_bias_by_name(
    form: Any, imported: dict[str, ImportedBundle], tmp_path: Path
) -> None:
    if form != "huggingface":
        pytest.importorskip(form)
    with pytest.raises(ConfigError, match=r"(positions|activation|norm_kind|bias) = .* cannot be exported"):
        export_to(form, imported["t5"].bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_padding_of_a_batch_changes_nothing(tmp_path: Path) -> None:
    imported = import_t5(saved(drawn(), tmp_path))
    rows = [[7, 9, 12, 20, EOS], [8, EOS]]
    target = torch.tensor([[BOS, 8, 11], [BOS, 30, 5]])
    together = imported.model(padded(rows, PAD), target)
    for row, number in zip(rows, range(2), strict=True):
        alone = imported.model(torch.tensor([row]), target[number : number + 1])
        torch.testing.assert_close(together[number : number + 1], alone, atol=1e-5, rtol=1e-4)


def test_sentinels_and_unused_rows_are_never_read(
    folders: dict[str, Path], imported: dict[str, ImportedBundle]
) -> None:
    tokenizer = imported["t5"].bundle.source_tokenizer
    size = len(transformers.AutoTokenizer.from_pretrained(folders["t5"])) + 28
    assert tokenizer.vocab_size == size + 1
    assert max(tokenizer.encode("<extra_id_0> </s> der Hund")) < size - 28 - 100 + 1


# A service.


def test_a_service_translates_between_all_languages_of_madlad(imported: dict[str, ImportedBundle]) -> None:
    bundle = imported["madlad"].bundle
    translator = Translator(bundle, precision="float32")
    http, text = application({"model": translator}), SENTENCES[0]
    listed = {entry["code"]: entry["targets"] for entry in http.get("/languages").json()}
    assert listed == dict.fromkeys(MADLAD_LANGUAGES, MADLAD_LANGUAGES)
    assert len(http.get("/api/v1/languages").json()) == 9
    texts = {language: translator.translate(text, target_language=language).text for language in MADLAD_LANGUAGES}
    native = {"text": text, "source": "zh_Latn"}
    for language in ("de", "en"):
        reply = http.post("/api/v1/translate", json={**native, "target": language}).json()
        assert reply["translations"][0]["text"] == texts[language]
    reply = http.post("/translate", json={"q": text, "source": "auto", "target": "en"}).json()
    assert (reply["translatedText"], reply["detectedLanguage"]["language"]) == (texts["en"], "de")
    key = {"authorization": "DeepL-Auth-Key any"}
    reply = http.post("/v2/translate", json={"text": [text], "target_lang": "EN-US"}, headers=key).json()
    assert reply == {"translations": [{"detected_source_language": "DE", "text": texts["en"]}]}
    assert http.post("/api/v1/translate", json={**native, "target": "fr"}).status_code == 400


def test_a_service_passes_the_task_in_a_text_on_to_t5(imported: dict[str, ImportedBundle]) -> None:
    translator = Translator(imported["t5"].bundle, precision="float32")
    http, text = application({"model": translator}), "translate English to German: the frog"
    expected, languages = translator.translate(text).text, {"source": "und", "target": "und"}
    reply = http.post("/api/v1/translate", json={"text": text, **languages}).json()
    assert reply["translations"][0]["text"] == expected
    assert http.post("/translate", json={"q": text, **languages}).json() == {"translatedText": expected}
