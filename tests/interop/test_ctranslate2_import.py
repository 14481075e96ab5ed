"""An imported CTranslate2 model computes what CTranslate2 computes: log-probabilities, and texts of both searches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ctranslate2_models import (
    ACTIVATIONS,
    SOURCE,
    SPECIAL,
    Model,
    downgrade,
    opened,
)
from foreign import SENTENCES, bart, fsmt, m2m, marian
from target_scores import log_probabilities, source_ids

from headway.bundle import Bundle
from headway.decode import DecodingOptions, Request, SearchVocabulary, search
from headway.engine import SearchTransformer
from headway.errors import BundleError
from headway.interop.exporting import export_to
from headway.interop.importing import import_ctranslate2, import_huggingface
from headway.interop.supported import require_transformer
from headway.predict import Translator
from headway.text.base import BOS, EOS, PAD, UNK

LIMIT = 25
AREN = Path(__file__).parents[3] / "shared/data/ctranslate2-aren"
TEXTS = ["a", "a b c d", "j i h g f e d c b a", "e e e"]
REFERENCES = ["x", "y y z u", "w v u z y x", "z z"]


def difference(folder: Path, bundle: Bundle, texts: list[str] = TEXTS, references: list[str] = REFERENCES) -> float:
    """Return the largest difference from CTranslate2's log-probabilities, which it computes in float32."""
    tokens = [[text.split(" ") for text in side] for side in (texts, references)]
    scored = opened(folder).score_batch(*tokens)
    theirs = torch.cat([torch.tensor(found.log_probs) for found in scored])
    ours = torch.cat([log_probabilities(bundle, *pair) for pair in zip(texts, references, strict=True)])
    assert theirs.std() > 0.1
    return float((theirs - ours).abs().max())


OPTIONS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"pre_norm": False, "positions": "table", "tie": True},
    "shared vocabulary": {"target": None, "positions": "table"},
    "tied": {"target": None, "tie": True, "source": [*SPECIAL, *"abcxyzuvwdefghij", "<unk>"]},
    "learned positions": {"positions": "learned", "layernorm_embedding": True, "pre_norm": False},
    "norm of embeddings": {"layernorm_embedding": True, "scale": False},
    "without biases": {"biases": False, "output_bias": False, "scale": np.float32(32**0.5)},
    "RMSNorm": {"rms_norm": True, "ffn_glu": True, "activation": ACTIVATIONS.SWISH},
    "one head of keys": {"multi_query_attention": True, "activation": ACTIVATIONS.GELU},
    "scaled queries": {"queries_scale": 0.5, "activation": ACTIVATIONS.GELUTanh},
    "Marian": {
        "pre_norm": False,
        "zero_start": True,
        "activation": ACTIVATIONS.GELUSigmoid,
        "source": ["</s>", "<unk>", *"abcdefghij"],
        "target": ["</s>", "<unk>", *"xyzuvw"],
        "config": {"add_source_eos": True},
    },
    "fairseq": {
        "config": {"decoder_start_token": "</s>", "add_source_eos": True, "add_source_bos": True},
        "layer_norm_epsilon": 1e-3,
    },
    "gate of GELU": {"ffn_glu": True, "activation": ACTIVATIONS.GELUSigmoid, "alignment_layer": 1},
    "gate of GELU by tanh": {"ffn_glu": True, "activation": ACTIVATIONS.GELUTanh},
    "gate of a sigmoid": {"ffn_glu": True, "activation": ACTIVATIONS.Sigmoid, "alignment_heads": 2},
    "no symbols around a source": {"source": ["<unk>", "<blank>", *"abcdefghij"]},
}


def drawn(options: dict[str, Any], seed: int = 0) -> Model:
    config = dict(options.get("config", {}))
    if "layer_norm_epsilon" in options:
        config["layer_norm_epsilon"] = options["layer_norm_epsilon"]
    others = {key: value for key, value in options.items() if key not in ("config", "layer_norm_epsilon")}
    return Model(seed=seed, config=config, **others)


@pytest.mark.slow_but_every(4)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_computes_the_same(name: str, tmp_path: Path) -> None:
    folder = drawn(OPTIONS[name]).save(tmp_path)
    bundle = import_ctranslate2(folder).bundle
    assert difference(folder, bundle) < 1e-4
    greedy, beam = (texts_of_both(folder, bundle, TEXTS, beam_size, limit=15) for beam_size in (1, 4))
    assert len(greedy) == len(TEXTS)
    assert [ours for ours, _ in (*greedy, *beam)] == [theirs for _, theirs in (*greedy, *beam)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_random_combinations_compute_the_same(seed: int, tmp_path: Path) -> None:
    """Options in random combinations, in every type of weights."""
    draw = np.random.default_rng(seed)
    names = [name for name in OPTIONS if not {"source", "target"} & OPTIONS[name].keys()]
    options: dict[str, Any] = {}
    for name in draw.permutation(names)[:3]:
        options |= OPTIONS[str(name)]
    for quantization in (None, "int8", "int16", "float16", "bfloat16", "int8_float16", "int8_bfloat16"):
        folder = drawn(options, seed).save(tmp_path / str(quantization), quantization)
        assert difference(folder, import_ctranslate2(folder).bundle) < 1e-3


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("quantization", ["int8", "int16", "float16", "bfloat16", "int8_float16"])
def test_every_type_of_weights_computes_the_same(quantization: str, tmp_path: Path) -> None:
    """Integers are compared with CTranslate2 on dequantized weights, in float32."""
    folder = Model(target=None, tie=True, positions="table", source=[*SOURCE, *"xyzuvw"]).save(tmp_path, quantization)
    imported = import_ctranslate2(folder)
    assert quantization.split("_")[0] in imported.description
    assert difference(folder, imported.bundle) < 1e-3
    assert imported.bundle.model.config.as_dict()["tie"] == "all"


@pytest.mark.parametrize(
    ("version", "revision", "quantization"),
    [(5, 7, "float16"), (4, 7, "int8"), (3, 5, "int16"), (3, 4, None), (2, 3, "int8"), (1, 1, None)],
)
def test_every_version_computes_the_same(version: int, revision: int, quantization: str | None, tmp_path: Path) -> None:
    config = {"decoder_start_token": "</s>", "add_source_eos": True} if version != 3 else {}
    model = Model(target=None, tie=True, source=[*SOURCE, *"xyzuvw"], config=config)
    folder = downgrade(model.save(tmp_path, quantization), version, revision=revision)
    imported = import_ctranslate2(folder)
    assert f"binary version {version}" in imported.description
    assert difference(folder, imported.bundle) < 1e-3


def test_rotary_positions_of_both_layouts_compute_the_same(tmp_path: Path) -> None:
    """CTranslate2 rotates neighbors, or units i and i + K/2, for which the rows of queries and keys are reordered."""
    model = Model(target=None, tie=True, source=[*SOURCE, *"xyzuvw"])
    for side in (model.spec.encoder, model.spec.decoder):
        for layer in side.layer:
            options = {"rotary_dim": np.int32(4), "rotary_interleave": False, "rotary_base": np.float32(500)}
            vars(layer.self_attention).update(options)
    folder = model.save(tmp_path)
    bundle = import_ctranslate2(folder).bundle
    assert bundle.model.config.as_dict()["rotary_fraction"] == 0.5
    assert difference(folder, bundle) < 1e-4


def test_a_vocabulary_map_becomes_a_shortlist(tmp_path: Path) -> None:
    """Targets of several source tokens go to the first; a line without source tokens is for every source."""
    folder = Model(target=None, tie=True, source=[*SOURCE, *"xyzuvw"]).save(tmp_path)
    (folder / "vmap.txt").write_text("\tx\na\ty z\na b\tu\nc\tv unseen\nunseen\tw\n")
    imported = import_ctranslate2(folder)
    assert imported.shortlist is not None
    tokenizer = imported.bundle.target_tokenizer
    for source, targets in (("a", "xyzu"), ("c", "xv"), ("d", "x")):
        listed = imported.shortlist.allowed_tokens([tokenizer.encode(source)])[0].tolist()
        assert sorted(listed) == sorted([EOS, *tokenizer.encode(" ".join(targets))])
    engine = SearchTransformer(require_transformer(imported.bundle, "the test"), shortlist=imported.shortlist)
    request = Request(source=tuple(source_ids(imported.bundle, "a c")), limit=8)
    ours = search(engine, [request], DecodingOptions(beam_size=1), SearchVocabulary(BOS, EOS, banned=(PAD, BOS, UNK)))
    settings = {"beam_size": 1, "min_decoding_length": 0, "max_decoding_length": 8, "disable_unk": True}
    (folder / "vmap.txt").write_text("\tx\na\ty z u\nc\tv\n")
    suppressed = {"suppress_sequences": [["<blank>"], ["<s>"]]}
    theirs = opened(folder).translate_batch([["a", "c"]], use_vmap=True, **settings, **suppressed)
    assert tokenizer.decode(ours[0][0].tokens) == " ".join(theirs[0].hypotheses[0])


@pytest.mark.slow
@pytest.mark.parametrize("make", [marian, m2m, bart, fsmt], ids=lambda make: str(make.__name__))
def test_exported_models_come_back(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """A folder that Headway exports, with the tokenizer files beside the model, gives the same texts."""
    bundle = import_huggingface(make(tmp_path / "original")).bundle
    export_to("ctranslate2", bundle, tmp_path / "ct2")
    template = bundle.token_template
    languages = {"source_language": template.source_language, "target_language": template.target_language}
    back = import_ctranslate2(tmp_path / "ct2", **languages).bundle
    options = DecodingOptions(beam_size=1, max_length=LIMIT)
    texts = [
        [Translator(one, avoid_flagged=False).translate(text, options, protect=False).text for text in SENTENCES]
        for one in (bundle, back)
    ]
    assert texts[0] == texts[1]


def test_decoding_begins_with_the_target_language_only_if_the_model_leaves_it_open(tmp_path: Path) -> None:
    config = {"decoder_start_token": None}
    folder = Model(target=None, source=[*SOURCE, *"xyzuvw"], config=config).save(tmp_path / "open")
    with pytest.raises(BundleError, match=r"left to the user .*; specify it \(target_language="):
        import_ctranslate2(folder)
    with pytest.raises(BundleError, match="decoder_start_token = 'xx' is not in the target vocabulary"):
        import_ctranslate2(folder, target_language="xx")
    assert import_ctranslate2(folder, target_language="x").bundle.target_tokenizer.encode("x y") == [3, 15]
    folder = Model(target=None, source=[*SOURCE, *"xyzuvw"]).save(tmp_path / "fixed")
    bundle = import_ctranslate2(folder, target_language="x").bundle
    assert bundle.task.target_language == "x"
    assert bundle.target_tokenizer.encode("x y") == [14, 15]


def texts_of_both(
    folder: Path, bundle: Bundle, texts: list[str], beam_size: int, limit: int = LIMIT
) -> list[tuple[str, str]]:
    """Return pairs of texts that Headway and CTranslate2 find.

    At its limit, CTranslate2 truncates without a cost, so texts of a beam that do not end are left out.
    """
    requests = [Request(source=tuple(source_ids(bundle, text)), limit=limit) for text in texts]
    options = DecodingOptions(beam_size=beam_size, length_penalty=0)
    (vocabulary,) = (*folder.glob("shared_vocabulary.*"), *folder.glob("target_vocabulary.*"))
    stored, kept = vocabulary.read_text(encoding="utf-8"), bundle.target_tokenizer
    ordinary = kept.display(range(4, kept.vocab_size))  # such as <s>, if decoding begins with </s>
    banned = [[token] for token in ("<blank>", "<s>") if token in stored and token not in ordinary]
    ours = search(bundle.model, requests, options, SearchVocabulary(BOS, EOS, banned=(PAD, BOS, UNK)))
    theirs = opened(folder).translate_batch(
        [text.split(" ") for text in texts],
        beam_size=beam_size,
        length_penalty=0,
        patience=1,
        min_decoding_length=0,
        max_decoding_length=limit,
        disable_unk=True,
        suppress_sequences=banned,
    )
    return [
        (bundle.target_tokenizer.decode(one[0].tokens), " ".join(other.hypotheses[0]))
        for one, other in zip(ours, theirs, strict=True)
        if beam_size == 1 or (one[0].finished and len(other.hypotheses[0]) < limit)
    ]


ARABIC = ["أ ت ز م و ن", "ق ط ر", "م ص ر", "ا ل س و د ا ن"]


@pytest.mark.skipif(not AREN.is_dir(), reason=f"{AREN} is not there")
@pytest.mark.parametrize("form", ["v1-float32", "v1-i16", "v2-float32", "v2-i16", "v2-i8"])
def test_a_trained_model_in_its_first_versions_computes_the_same(form: str) -> None:
    bundle = import_ctranslate2(AREN / form).bundle
    config = bundle.model.config.as_dict()
    assert (config["sinusoid_layout"], config["sinusoid_spacing"], config["position_offset"]) == (
        "halves",
        "inclusive",
        1,
    )
    latin = ["a t z m o n", "q t r", "m s r", "a l s w d a n"]
    assert difference(AREN / form, bundle, ARABIC, latin) < 1e-3
    for beam_size in (1, 4):
        pairs = texts_of_both(AREN / form, bundle, ARABIC, beam_size)
        assert len(pairs) == len(ARABIC)
        assert [ours for ours, _ in pairs] == [theirs for _, theirs in pairs]
