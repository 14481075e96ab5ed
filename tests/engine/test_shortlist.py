"""Decoding with a shortlist: each sentence uses its own tokens, in every precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from continuous_batching import decode_continuously
from safetensors.numpy import save_file
from torch import Tensor

from headway import kernels
from headway.bundle import Bundle
from headway.cli import app
from headway.decode import DecodingOptions, Request, Sampling, SearchVocabulary, search
from headway.engine import Precision, SearchTransformer, Shortlist
from headway.engine.shortlist_file import write_shortlist
from headway.errors import BundleError, ConfigError, DataError
from headway.models.transformer import Transformer, TransformerConfig
from headway.predict import Translator, load_translator
from headway.predict.translation.shortlisting import learn_shortlist, shortlist_coverage

VOCABULARY, END = 90, 2
FORBIDDEN = (0, 1, 3)
SEARCHED = SearchVocabulary(1, END, banned=FORBIDDEN)
PRECISIONS = [
    "float32",
    pytest.param("int8", marks=pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba")),
]


def model(**changes: object) -> Transformer:
    torch.manual_seed(1)
    sizes = {"d_model": 32, "num_heads": 4, "d_ff": 48, "output_bias": True, "tie": "none", **changes}
    made = Transformer(TransformerConfig.preset("tiny", **sizes), VOCABULARY, VOCABULARY).eval()
    with torch.no_grad():
        made.projection.bias.normal_()
    return made


def shortlist(each: int) -> Shortlist:
    """Return random lists of different lengths."""
    random = np.random.default_rng(5)
    table = random.integers(4, VOCABULARY, (VOCABULARY, each)).astype(np.int32)
    table[:4] = 0
    table[random.random(table.shape) < 0.3] = 0
    return Shortlist(np.array([END, 7, 8], dtype=np.int32), table)


def sources(*lengths: int) -> list[tuple[int, ...]]:
    return [(*torch.randint(4, VOCABULARY, (length,)).tolist(), END) for length in lengths]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("each", [1, 5, 40])
@pytest.mark.parametrize("beams", [1, 3])
def test_the_best_are_those_of_the_list_with_its_probabilities(precision: Precision, each: int, beams: int) -> None:
    """Compare with logits over the whole vocabulary with the same weights, while sentences leave and others join."""
    lists = shortlist(each)
    engine = SearchTransformer(model(), precision, shortlist=lists)
    rows = sources(6, 1, 4)
    mine, plain = (engine.start(rows) for _ in range(2))
    for step in range(5):
        chosen: tuple[Tensor, Tensor | None] | None = None
        if step == 1:
            chosen = torch.arange(3).repeat_interleave(beams), None
        elif step == 2:
            kept = [2, 0]
            rows = [rows[at] for at in kept]
            chosen = torch.cat([torch.arange(beams) + beams * at for at in kept]), torch.tensor(kept)
        for state in (mine, plain):
            if chosen is not None:
                engine.reorder_rows(state, *chosen)
        if step == 3:
            joining = sources(9, 2)
            for state in (mine, plain):
                engine.admit(state, joining)
            rows = [*rows, *joining]
        each_has = beams if step else 1
        tokens = torch.randint(4, VOCABULARY, (len(rows) * each_has,))
        found = engine.step(mine, tokens).top_k(4, FORBIDDEN, END)
        logits = engine.step(plain, tokens).logits()
        for row, of_row in enumerate(logits):
            listed = lists.allowed_tokens([rows[row // each_has]])[0]
            log_probs = torch.full((VOCABULARY,), -math.inf)
            log_probs[listed] = of_row[listed].log_softmax(0)
            torch.testing.assert_close(found.eos_log_prob[row], log_probs[END], atol=1e-5, rtol=1e-5)
            log_probs[list(FORBIDDEN)] = -math.inf
            expected = log_probs.topk(4)
            count = min(4, found.tokens.size(1))
            torch.testing.assert_close(found.log_probs[row], expected.values[:count], atol=1e-5, rtol=1e-5)
            there = expected.values[:count].isfinite()
            assert found.tokens[row, there].tolist() == expected.indices[:count][there].tolist()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_list_of_all_tokens_changes_nothing(precision: Precision) -> None:
    requests = [Request(source=source, limit=12) for source in sources(3, 8, 5)]
    everything = Shortlist(np.arange(1, VOCABULARY, dtype=np.int32), np.zeros((VOCABULARY, 1), dtype=np.int32))
    options = DecodingOptions(beam_size=4, n_best=3)
    weights = model()
    with torch.no_grad():
        weights.projection.bias[0] = -1e4  # the padding token, which no list contains
    results = [
        search(engine, requests, options, SEARCHED)
        for engine in (
            SearchTransformer(weights, precision),
            SearchTransformer(weights, precision, shortlist=everything),
        )
    ]
    for ours, theirs in zip(*results, strict=True):
        assert [each.tokens for each in ours] == [each.tokens for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-5)


@pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba")
def test_neighbors_do_not_change_what_a_sentence_becomes() -> None:
    engine = SearchTransformer(model(), "int8", shortlist=shortlist(6))
    requests = [Request(source=source, limit=10) for source in sources(4, 11, 7, 2, 9)]
    options = DecodingOptions(beam_size=3)
    alone = [search(engine, [one], options, SEARCHED)[0] for one in requests]
    together = search(engine, requests, options, SEARCHED)
    streamed = decode_continuously(engine, requests, options, SEARCHED, max_rows=6, max_batch_tokens=100)
    assert alone == together == streamed


RULES: list[dict[str, Any]] = [
    {"prefix": (70, 71, 72)},
    {"include": (((73,),),)},
    {"banned": ((74,),)},
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: next(iter(rule)))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_neighbors_rules_do_not_change_what_a_sentence_becomes(precision: Precision, rule: dict[str, Any]) -> None:
    lists = shortlist(3)
    engine = SearchTransformer(model(), precision, shortlist=lists)
    plain, ruled = sources(5, 5)
    options = DecodingOptions(beam_size=3, min_length=2)
    batch = [Request(source=plain, limit=10), Request(source=ruled, limit=10, **rule)]
    alone = search(engine, batch[:1], options, SEARCHED)[0]
    beside = search(engine, batch, options, SEARCHED)[0]
    assert [each.tokens for each in alone] == [each.tokens for each in beside]
    assert {*alone[0].tokens} <= {*lists.allowed_tokens([plain])[0].tolist()}


@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(sampling=Sampling(temperature=3.0)),
        DecodingOptions(sampling=Sampling(temperature=3.0, top_k=20)),
        DecodingOptions(repetition_penalty=1.3),
        DecodingOptions(no_repeat_ngram=2),
        DecodingOptions(beam_size=6, groups=3, n_best=3),
        DecodingOptions(beam_size=8, stopping="first"),
        DecodingOptions(beam_size=2, min_length=4),
    ],
    ids=str,
)
def test_every_search_keeps_to_the_list(options: DecodingOptions) -> None:
    lists = shortlist(2)
    engine = SearchTransformer(model(), shortlist=lists)
    limits = (9, 4, 6, 9)
    requests = [Request(source=each, limit=limit) for each, limit in zip(sources(3, 6, 1, 4), limits, strict=True)]
    found = decode_continuously(engine, requests, options, SEARCHED, max_rows=16, max_batch_tokens=100)
    for at, request in enumerate(requests):
        allowed = {*lists.allowed_tokens([request.source])[0].tolist()}
        assert found[at]
        assert all({*each.tokens} <= allowed for each in found[at])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("damaged", ["listed", "unlisted", "decoder"])
def test_damaged_weights_are_seen(precision: Precision, damaged: str) -> None:
    weights, (source,) = model(), sources(3)
    lists = shortlist(2)
    listed = lists.allowed_tokens([source])[0].tolist()
    with torch.no_grad():
        if damaged == "decoder":
            next(weights.decoder.parameters()).fill_(math.nan)
        else:
            row = listed[-1] if damaged == "listed" else next(t for t in range(10, VOCABULARY) if t not in listed)
            weights.projection.weight[row] = math.nan
    engine = SearchTransformer(weights, precision, shortlist=lists)
    request = Request(source=source, limit=5)
    if damaged == "unlisted":
        assert search(engine, [request], DecodingOptions(), SEARCHED)[0]
    else:
        with pytest.raises(BundleError, match="its weights are damaged"):
            search(engine, [request], DecodingOptions(), SEARCHED)


def test_a_forced_prefix_and_a_phrase_have_all_tokens() -> None:
    lists = shortlist(2)
    engine = SearchTransformer(model(), shortlist=lists)
    (source,) = sources(3)
    outside = next(t for t in range(10, VOCABULARY) if t not in lists.allowed_tokens([source])[0])
    for asked in ({"prefix": (outside, outside)}, {"include": (((outside,),),)}):
        request = Request(source=source, limit=8, **asked)
        best = search(engine, [request], DecodingOptions(beam_size=4), SEARCHED)[0][0]
        assert outside in best.tokens
        assert not best.unmet


PAIRS = [("ein Haus", "ein Baum"), ("das rote Haus", "der Baum"), ("und", "und das"), ("grüne Haus", "rote Baum")]


def saved(make_translator: Callable[..., Translator], folder: Path, **changes: object) -> Bundle:
    bundle = make_translator(**changes).bundle
    bundle.save(folder, "")
    return bundle


def test_a_shortlist_is_learned_stored_and_used(make_translator: Callable[..., Translator], tmp_path: Path) -> None:
    bundle = saved(make_translator, tmp_path / "m")
    with pytest.raises(ConfigError, match="has no shortlist; learn one"):
        load_translator(tmp_path / "m", shortlist=True)
    ours, theirs = [list(side) for side in zip(*PAIRS, strict=True)]
    found = learn_shortlist(bundle, ours, theirs, targets_per_source=2, num_always=1)
    write_shortlist(found, tmp_path / "m")
    coverage = shortlist_coverage(bundle, found, ours, theirs)
    assert 0 < coverage.mean_tokens < bundle.target_tokenizer.vocab_size
    assert 0.5 < coverage.covered_share <= 1
    source = bundle.source_tokenizer.encode("das Haus")
    allowed = set(found.allowed_tokens([source])[0].tolist())
    assert {*source, END} <= allowed, "names stay as they are, and sentences end"
    for precision in ("float32", "int8") if kernels.is_available() else ("float32",):
        translator = load_translator(tmp_path / "m", precision=precision, shortlist=True)
        translation = translator.translate("das Haus", DecodingOptions(max_length=9))
        assert set(translation.candidates[0].ids) <= allowed


def test_what_cannot_have_a_shortlist_says_so(make_translator: Callable[..., Translator], tmp_path: Path) -> None:
    bundle = saved(make_translator, tmp_path / "m")
    lists = learn_shortlist(bundle, ["ein Haus"], ["ein Baum"])
    with pytest.raises(ConfigError, match="an ensemble averages over whole vocabularies"):
        Translator.ensemble([Translator(bundle, shortlist=lists), Translator(bundle)])
    with pytest.raises(ConfigError, match="a shortlist: score = 'additive'"):
        Translator(make_translator(score="additive").bundle, shortlist=lists)
    with pytest.raises(ConfigError, match="there is no parallel text"):
        learn_shortlist(bundle, ["", ""], ["", ""])
    with pytest.raises(DataError, match="1 sources and 2 targets"):
        learn_shortlist(bundle, ["ein"], ["ein", "das"])
    with pytest.raises(ConfigError, match="a shortlist: score = 'additive'"):
        learn_shortlist(make_translator(score="additive").bundle, ["ein Haus"], ["ein Baum"])
    with pytest.raises(ConfigError, match="a coverage penalty cannot be combined with a shortlist"):
        Translator(bundle, shortlist=lists).translate("ein", DecodingOptions(coverage_penalty=0.2))


def test_other_files_than_a_shortlist_of_this_model_are_refused(
    make_translator: Callable[..., Translator], tmp_path: Path
) -> None:
    bundle = saved(make_translator, tmp_path / "m")
    lists = learn_shortlist(bundle, ["ein Haus"], ["ein Baum"])
    write_shortlist(Shortlist(lists.always_allowed, lists.translations, "others"), tmp_path / "m")
    with pytest.raises(BundleError, match="with different vocabularies; learn it again"):
        load_translator(tmp_path / "m", shortlist=True)
    file = tmp_path / "m" / "shortlist.safetensors"
    for arrays in (
        {"always": lists.always_allowed},
        {"always": lists.always_allowed, "table": lists.translations.astype(np.float32)},
        {"always": lists.always_allowed, "table": lists.translations - 1},
        {"always": lists.always_allowed, "table": lists.translations[0]},
        {"always": lists.always_allowed[lists.always_allowed != END], "table": lists.translations},
    ):
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, file, {"vocabularies": ""})
        with pytest.raises(BundleError, match="not a shortlist, or damaged"):
            load_translator(tmp_path / "m", shortlist=True)
    file.write_bytes(b"torn")
    with pytest.raises(BundleError, match="not a shortlist, or damaged"):
        load_translator(tmp_path / "m", shortlist=True)
    for wrong in (lists.translations[:-1], np.full_like(lists.translations, 60_000)):
        with pytest.raises(ConfigError, match="but the model has"):
            Translator(bundle, shortlist=Shortlist(lists.always_allowed, wrong)).translate("ein")


def test_the_command_learns_one(
    make_translator: Callable[..., Translator], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(make_translator, tmp_path / "m")
    for name, texts in zip(("a", "b"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    words = ["shortlist", str(tmp_path / "m"), "--source", str(tmp_path / "a"), "--target", str(tmp_path / "b")]
    app(words, standalone_mode=False)
    out = capsys.readouterr().out
    assert "target tokens on average" in out
    assert "these cover 100.0% of the tokens" in out
    app(["translate", str(tmp_path / "m"), "das Haus", "--shortlist", "--max-length", "5"], standalone_mode=False)
    assert capsys.readouterr().out
