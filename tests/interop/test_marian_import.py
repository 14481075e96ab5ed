"""An imported model of Marian computes what CTranslate2's conversion of it computes, and the import of the same weights
in the form of `transformers`.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import ctranslate2.converters
import marian_models
import numpy as np
import pytest
import torch
from ctranslate2_models import opened
from foreign import SENTENCES, marian, pieces, spm
from marian_models import PRE_NORM, SOURCE, write
from safetensors.numpy import load_file, save_file
from target_scores import log_probabilities

from headway.bundle import Bundle
from headway.decode import DecodingOptions
from headway.errors import BundleError
from headway.interop.importing import import_from, import_huggingface, import_marian
from headway.predict import Translator
from headway.text.sentencepiece import SentencePieceTokenizer

TEXTS = ["a", "a b c d", "j i h g f e d c b a", "e e e"]
REFERENCES = ["x", "y y z u", "w v u z y x", "z z"]
PRE_NORM_OPTIONS = {key.replace("-", "_"): value for key, value in PRE_NORM.items()}
SHARED = [*SOURCE, *"xyzuvw"]


def imported(path: Path) -> Bundle:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not normalize the keys")
        return import_marian(path).bundle


def converted(weights: Path, folder: Path) -> Path:
    """Convert a model with CTranslate2's own converter."""
    names = ["source.yml", "target.yml"] if (weights.parent / "source.yml").exists() else ["vocab.yml", "vocab.yml"]
    files = [str(weights.parent / name) for name in names]
    ctranslate2.converters.MarianConverter(str(weights), files).convert(str(folder))
    return folder


CASES: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "tied": {"target": None, "source": SHARED, "tie": "all"},
    "output tied": {"tie": "target", "transformer_ffn_activation": "relu", "transformer_postprocess_emb": "nd"},
    "pre-norm": PRE_NORM_OPTIONS | {"transformer_ffn_activation": "gelu"},
    "GELU": {"transformer_ffn_activation": "gelu", "compressed": True},
}


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("case", CASES)
def test_every_option_computes_what_the_conversion_to_ctranslate2_computes(case: str, tmp_path: Path) -> None:
    weights = write(tmp_path / "marian", **CASES[case])
    bundle = imported(weights)
    tokens = [[text.split(" ") for text in side] for side in (TEXTS, REFERENCES)]
    scored = opened(converted(weights, tmp_path / "ct2")).score_batch(*tokens)
    for text, reference, theirs in zip(TEXTS, REFERENCES, scored, strict=True):
        ours = log_probabilities(bundle, text, reference)
        torch.testing.assert_close(ours, torch.tensor(theirs.log_probs), atol=1e-3, rtol=0)


def in_marians_form(folder: Path, marian: Path) -> Path:
    """Write the model of an OPUS-MT folder of `transformers` as Marian does, without its padding token."""
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    parts = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    arrays: dict[str, Any] = {}

    def linear(theirs: str, letter: str, ours: str) -> None:
        arrays[f"{theirs}_W{letter}"] = np.ascontiguousarray(tensors[f"{ours}.weight"].T)
        arrays[f"{theirs}_b{letter}"] = tensors[f"{ours}.bias"][None]

    def norm(theirs: str, ours: str) -> None:
        arrays[f"{theirs}_ln_scale"] = tensors[f"{ours}.weight"][None]
        arrays[f"{theirs}_ln_bias"] = tensors[f"{ours}.bias"][None]

    for side in ("encoder", "decoder"):
        for layer in range(config[f"{side}_layers"]):
            block, prefix = f"model.{side}.layers.{layer}", f"{side}_l{layer + 1}"
            for name, attention in (("self", "self_attn"), ("context", "encoder_attn"))[: 1 + (side == "decoder")]:
                for letter, part in parts.items():
                    linear(f"{prefix}_{name}", letter, f"{block}.{attention}.{part}")
                norm(f"{prefix}_{name}_Wo", f"{block}.{attention}_layer_norm")
            linear(f"{prefix}_ffn", "1", f"{block}.fc1")
            linear(f"{prefix}_ffn", "2", f"{block}.fc2")
            norm(f"{prefix}_ffn_ffn", f"{block}.final_layer_norm")
    arrays["Wemb"], arrays["decoder_ff_logit_out_b"] = (
        tensors["model.shared.weight"][:-1],
        tensors["final_logits_bias"][:, :-1],
    )
    sizes = {"enc-depth": config["encoder_layers"], "dec-depth": config["decoder_layers"]}
    vocabulary = json.loads((folder / "vocab.json").read_text())
    assert vocabulary.pop("<pad>") == len(vocabulary)
    marian.mkdir()
    text = "".join(f"{marian_models.quoted(token)}: {index}\n" for token, index in vocabulary.items())
    (marian / "vocab.yml").write_text(text, encoding="utf-8")
    for name in ("source.spm", "target.spm"):
        shutil.copy(folder / name, marian)
    return marian_models.save(marian / "model.npz", arrays, marian_models.OPTIONS | sizes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trained model as an OPUS-MT folder of `transformers`, and in Marian's form."""
    home = tmp_path_factory.mktemp("trained")
    folder = marian(home / "opus")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.shared.weight"][-1] = 0  # padding, with which decoding begins: a vector of zeros in Marian
    save_file(tensors, folder / "model.safetensors")
    return folder, in_marians_form(folder, home / "marian")


GREEDY, BEAM = DecodingOptions(beam_size=1, length_penalty=0), DecodingOptions(beam_size=4, length_penalty=0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_a_trained_model_gives_the_texts_of_transformers_and_of_ctranslate2(
    options: DecodingOptions, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, weights = trained
    bundle = import_marian(weights).bundle
    ours = [Translator(bundle, avoid_flagged=False).translate(text, options, protect=False).text for text in SENTENCES]
    other = Translator(import_huggingface(folder).bundle, avoid_flagged=False)
    assert ours == [other.translate(text, options, protect=False).text for text in SENTENCES]
    assert len({*ours}) > 2
    pieces = [bundle.source_tokenizer.display(bundle.source_tokenizer.encode(text)) for text in SENTENCES[:4]]
    theirs = opened(converted(weights, tmp_path / "ct2")).translate_batch(
        [[piece.replace(" ", "▁") for piece in row] for row in pieces],
        beam_size=options.beam_size,
        length_penalty=0,
        patience=1,
        min_decoding_length=0,
        max_decoding_length=60,
        disable_unk=True,
    )
    texts = ["".join(found.hypotheses[0]).replace("▁", " ").strip() for found in theirs]
    assert [text for text in ours[:4] if len(text) < 60] == [text for text in texts if len(text) < 60]


def test_sentencepiece_models_are_vocabularies_or_split_texts(tmp_path: Path) -> None:
    model = spm()
    found = [name for name in pieces(model) if name not in ("<unk>", "<s>", "</s>")]
    tokens = ["</s>", "<unk>", *found]
    opus = write(tmp_path / "opus", source=tokens, target=None, tie="all").parent
    for side in ("source", "target"):
        (opus / f"{side}.spm").write_bytes(model)
    bundle = imported(opus)
    assert isinstance(bundle.source_tokenizer, SentencePieceTokenizer)
    ids = bundle.source_tokenizer.encode("der kleine Frosch")
    assert [bundle.source_tokenizer.pieces[index] for index in ids] == [tokens[index - 2] for index in ids]
    assert bundle.source_tokenizer.decode(ids) == "der kleine Frosch"
    mozilla = write(tmp_path / "mozilla", source=pieces(model), target=None, tie="all").parent
    for file in ("vocab.yml", "decoder.yml"):
        (mozilla / file).unlink()
    (mozilla / "vocab.spm").write_bytes(model)
    other = imported(mozilla)
    assert other.source_tokenizer.decode(other.source_tokenizer.encode("der kleine Frosch")) == "der kleine Frosch"


def test_unusual_tokens_of_a_vocabulary_are_read(tmp_path: Path) -> None:
    source = ["</s>", "<unk>", "null", "yes", "1e3", ":", "a:b", '"', "\\", "#", "~", "é\x85", "'", "x y", *"abc"]
    bundle = imported(write(tmp_path, source=source))
    shown = bundle.source_tokenizer.display(range(4, bundle.source_tokenizer.vocab_size))
    assert shown == source[2:]


def test_language_codes_choose_the_target_language(tmp_path: Path) -> None:
    source = ["</s>", "<unk>", ">>fra<<", ">>spa<<", *"abcdefghij"]
    bundle = import_from(f"marian:{write(tmp_path, source=source)}", target_language="spa").bundle
    assert isinstance(bundle, Bundle)
    assert bundle.token_template.target_languages == ("fra", "spa")
    assert bundle.token_template.fill().source_prefix == (bundle.token_template.languages["spa"],)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "s2s"}, "type = 's2s' is not supported; supported: 'transformer'"),
        ({"type": "multi-transformer"}, "models with several sources are not supported"),
        ({"lemma_dim_emb": 16}, r"lemma-dim-emb = 16 \(factors\) is not supported"),
        ({"transformer_decoder_autoreg": "rnn"}, "transformer-decoder-autoreg = 'rnn' is not supported"),
        ({"transformer_postprocess": "dar"}, "-postprocess = 'dar' .* are not supported; supported: '', 'dan' and ''"),
        ({"transformer_tied_layers": [1, 1, 1]}, r"transformer-tied-layers = \[1, 1, 1\] is not supported"),
        (
            {"transformer_ffn_activation": "tanh"},
            "transformer-ffn-activation = 'tanh' is not supported; supported: relu",
        ),
        ({"enc_depth": 3, "dec_depth": 10**9}, "dec-depth|layers, but"),
        ({"transformer_heads": 0}, "transformer-heads = 0: expected a whole number of at least 1"),
    ],
)
def test_options_that_are_not_supported_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    whole = write(tmp_path)
    with np.load(whole) as stored:
        arrays = dict(stored)
    del arrays["special:model.yml"]
    options = marian_models.OPTIONS | {key.replace("_", "-"): value for key, value in changes.items()}
    marian_models.save(whole, arrays, options)
    with pytest.raises(BundleError, match=message):
        import_marian(whole)


def test_arrays_that_are_unknown_missing_or_objects_are_named(tmp_path: Path) -> None:
    whole = write(tmp_path)
    with np.load(whole) as stored:
        arrays = dict(stored)
    for changed, message in (
        (
            {**arrays, "encoder_l1_self_Wq_QuantMultA": np.zeros(1, np.float32)},
            "unknown array 'encoder_l1_self_Wq_Quant",
        ),
        (
            {name: array for name, array in arrays.items() if name != "decoder_l2_ffn_W1"},
            "'decoder_l2_ffn_W1' is missing",
        ),
        ({**arrays, "Wpos": np.zeros((9, 32), np.float32)}, "learned positions"),
        ({**arrays, "encoder_l1_self_bq": np.array([[None]])}, "expected numbers"),
        ({**arrays, "encoder_l1_self_Wq": np.zeros((32, 31), np.float32)}, r"has the shape \[32, 31\]"),
    ):
        np.savez(whole, **changed)
        with pytest.raises(BundleError, match=message):
            import_marian(whole)
