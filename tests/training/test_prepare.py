"""Tokenizers and stores of a recipe: built once, rebuilt if necessary, with language tags, and from a model folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from listening import Heard, prepare, prepare_shard

from headway import kernels
from headway.bundle import Bundle, TaskConfig
from headway.cli import app
from headway.cli.commands.prepare import prepare as prepare_command
from headway.config import to_toml
from headway.data.store_builder import Shard
from headway.decode.request import DecodingOptions
from headway.errors import CheckpointError, ConfigError
from headway.models.registry import build_model
from headway.models.transformer import TransformerConfig
from headway.predict import load_translator
from headway.tasks import parse_recipe, task_of, train
from headway.text.base import EOS
from headway.text.tokenizer import Tokenizer, TokenizerConfig
from headway.training.cache_keys import CacheKey
from headway.training.fine_tuning import complete_recipe
from headway.training.prepare import warm_up_kernels
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.training.task import RunData

GERMAN = ["ein Haus", "das rote Haus", "der Baum", "ein roter Baum und ein Haus", "das Haus und der Baum"] * 4
ENGLISH = ["a house", "the red house", "the tree", "a red tree and a house", "the house and the tree"] * 4
TINY = {"d_model": 16, "num_heads": 2, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, lines in {"train.de": GERMAN, "train.en": ENGLISH, "dev.de": GERMAN[:5], "dev.en": ENGLISH[:5]}.items():
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        os.utime(folder / name, ns=(10**18, 10**18))
    return folder


def recipe(corpus: Path, **changes: dict[str, Any]) -> Recipe:
    sections: dict[str, dict[str, Any]] = {
        "data": {
            "folder": str(corpus),
            "train": [{"files": ["train.de", "train.en"]}],
            "dev": {"files": ["dev.de", "dev.en"]},
            "max_tokens": 60,
        },
        "tokenizer": {"vocab_size": 300},
        "model": TINY,
        "training": {"steps": 2, "log_every": 1, "precision": "float32", "device": "cpu"},
        "validation": {"every": 2},
        "checkpoints": {"average": 0},
    }
    for section, keys in changes.items():
        sections[section] = {**sections.get(section, {}), **keys}
    return parse_recipe(sections, "test")


def both_ways(corpus: Path, **changes: dict[str, Any]) -> Recipe:
    """A recipe for German to English and English to German in one model."""
    forth = {"files": ["train.de", "train.en"], "target_language": "en"}
    back = {"files": ["train.en", "train.de"], "target_language": "de"}
    dev = {"files": ["dev.en", "dev.de"], "target_language": "de"}
    return recipe(corpus, **{**changes, "data": {"train": [forth, back], "dev": dev, **changes.get("data", {})}})


def sources(prepared: RunData) -> list[list[int]]:
    rows = np.arange(len(prepared.train) * prepared.train.num_segmentations)
    return [[token for token in row if token] for row in prepared.train.batch(rows).source.tolist()]


def bundle(folder: Path, **options: Any) -> Bundle:
    """A model folder with random weights; the recipes' corpora trained its vocabulary."""
    tags = options.pop("tags", ())
    joint = options.get("joint", True)
    config = TokenizerConfig.parse({"vocab_size": 310, **options}, "test")
    source = Tokenizer.train(GERMAN + ENGLISH, config, tags=tags)
    target = source if joint else Tokenizer.train(ENGLISH, config)
    model = build_model(
        TransformerConfig.parse({**TINY, "tie": "all" if joint else "target"}, "test"),
        source.vocab_size,
        target.vocab_size,
    )
    made = Bundle(TaskConfig(), model, source, target)
    made.save(folder, "a model")
    return made


def stores(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for place in ("tokens/train-0", "tokens/dev", "tokenizer")
        for path in (run / place).iterdir()
    }


class TestReuse:
    def test_the_second_time_nothing_is_built(
        self, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No corpus is read, because size and time of its files are unchanged."""
        prepare(recipe(corpus), tmp_path / "run", Listener())
        for path in corpus.iterdir():
            path.write_bytes(bytes(path.stat().st_size))
            os.utime(path, ns=(10**18, 10**18))
        heard = Heard()
        prepared = prepare(recipe(corpus), tmp_path / "run", heard)
        assert not any("tokeniz" in message for message in heard.messages)
        assert heard.messages[0].startswith("train.de + train.en: 20 of 20 examples kept")
        assert prepared.tokenizers.source.decode(sources(prepared)[0]) == GERMAN[0]

    @pytest.mark.parametrize(
        "changes",
        [
            {"tokenizer": {"min_frequency": 9}},
            {"data": {"filter": {"max_length": 5}}},
            {"data": {"bpe_dropout": 0.1}},
            {"data": {"bpe_dropout": 0.1, "segmentations": 3}},
            {"data": {"bpe_dropout": 0.1}, "training": {"seed": 2}},
        ],
        ids=str,
    )
    def test_changes_that_affect_the_store_rebuild_it(
        self, corpus: Path, tmp_path: Path, changes: dict[str, dict[str, Any]]
    ) -> None:
        found = [
            prepare(recipe(corpus, **kind), tmp_path / "run", Listener()).train.batch(np.arange(1)).source.tolist()
            and (tmp_path / "run" / "tokens" / "train-0" / "store.json").read_text()
            for kind in (recipe_before(changes), changes)
        ]
        assert found[0] != found[1]

    def test_another_tokenizer_of_equal_size_is_detected(self, corpus: Path, tmp_path: Path) -> None:
        run = tmp_path / "run"
        first = prepare(recipe(corpus), run, Listener())
        own = first.tokenizers.source
        assert isinstance(own, Tokenizer)
        foreign = Tokenizer("bpe", own._tokens[::-1], own._merges)
        foreign.save(run / "tokenizer", "joint")
        after = prepare(recipe(corpus), run, Listener())
        assert after.tokenizers.source.vocab_size == own.vocab_size
        assert sources(after) == [[*foreign.encode(text), EOS] for text in GERMAN] != sources(first)

    def test_another_corpus_for_a_begun_run_is_refused(self, corpus: Path, tmp_path: Path) -> None:
        train(recipe(corpus), tmp_path / "run")
        (corpus / "train.de").write_text("anders\n" * 20)
        with pytest.raises(
            CheckpointError, match=r"trained on files that differ from .* \(the content of train.de has changed\)"
        ):
            prepare(recipe(corpus), tmp_path / "run", Listener())

    def test_another_option_for_a_begun_run_is_refused_by_name(self, corpus: Path, tmp_path: Path) -> None:
        train(recipe(corpus), tmp_path / "run")
        changed = recipe(corpus, tokenizer={"vocab_size": 301})
        with pytest.raises(CheckpointError, match=r"\(tokenizer.vocab_size was 300, is 301\)"):
            prepare(changed, tmp_path / "run", Listener())

    def test_a_message_says_why_a_store_is_built_again(self, corpus: Path, tmp_path: Path) -> None:
        prepare(recipe(corpus), tmp_path / "run", Listener())
        heard = Heard()
        prepare(recipe(corpus, data={"filter": {"max_length": 5}}), tmp_path / "run", heard)
        because = "tokenized again, because filter.max_length was 256, is 5"
        assert [message for message in heard.messages if "again" in message] == [f"train.de + train.en: {because}"]

    def test_a_message_names_the_tokenizer_instead_of_its_hash(self, corpus: Path, tmp_path: Path) -> None:
        prepare(recipe(corpus), tmp_path / "run", Listener())
        heard = Heard()
        prepare(recipe(corpus, tokenizer={"min_frequency": 9}), tmp_path / "run", heard)
        because = "tokenized again, because the source tokenizer has changed; the target tokenizer has changed"
        assert f"train.de + train.en: {because}" in heard.messages

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_store_of_version_1_has_segmentations_of_its_order(
        self, corpus: Path, tmp_path: Path, version: int
    ) -> None:
        """Stores whose key has version 1 were built before there was another order."""
        data: dict[str, Any] = {"bpe_dropout": 0.1, "order_version": version, "normalize": False}
        keys: list[CacheKey] = []

        def spy(*arguments: Any) -> CacheKey:
            keys.append(CacheKey(*arguments))
            return keys[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headway.training.prepare.CacheKey", spy)
            prepare(recipe(corpus, data=data), tmp_path / "run", Listener())
        with_dropout = [key for key in keys if key.options.get("bpe_dropout")]
        assert [key.version_1 is None for key in with_dropout] == [version == 2]


def recipe_before(changes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the recipe to compare a change with; it has BPE-dropout if the change is about BPE-dropout."""
    special = "training" in changes or "segmentations" in changes.get("data", {})
    return {"data": {"bpe_dropout": 0.1}} if special else {}


class TestShards:
    def test_shards_build_the_same_as_one_process(
        self, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prepare(recipe(corpus), tmp_path / "one", Listener())
        monkeypatch.setattr("headway.data.store_builder._CHUNK_EXAMPLES", 8)
        monkeypatch.setattr("headway.data.store_builder.num_cores", lambda: 1)
        heard = Heard()
        assert prepare_shard(recipe(corpus), tmp_path / "two", heard, Shard(2, 2)) is None
        assert heard.messages[-1] == "train.de + train.en: some parts are built by other shards"
        prepared = prepare_shard(recipe(corpus), tmp_path / "two", heard, Shard(1, 2))
        assert prepared is not None
        assert len(prepared.train) == 20
        assert stores(tmp_path / "two") == stores(tmp_path / "one")

    def test_the_command(self, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path, run = tmp_path / "tiny.toml", tmp_path / "run"
        path.write_text(
            f'[data]\nfolder = "{corpus}"\ntrain = [{{ files = ["train.de", "train.en"] }}]\n'
            'dev = { files = ["dev.de", "dev.en"] }\n'
        )
        prepare_command(path, ["tokenizer.vocab_size=300"], run, "2/2")
        assert "part 2 of 2 is done; other parts are missing" in capsys.readouterr().err
        prepare_command(path, ["tokenizer.vocab_size=300"], run, "1/2")
        assert "20 examples, " in capsys.readouterr().err
        prepare(recipe(corpus), tmp_path / "other", Listener())
        assert stores(run) == stores(tmp_path / "other")
        with pytest.raises(ConfigError, match="--shard '3/2': expected I/N"):
            prepare_command(path, [], run, "3/2")


@pytest.mark.slow
@pytest.mark.parametrize("r_drop", [0.0, 1.0])
def test_training_compiles_nothing_after_a_rehearsal(corpus: Path, tmp_path: Path, r_drop: float) -> None:
    path, kept = tmp_path / "recipe.toml", tmp_path / "compiled"
    training = {"precision": "auto", "r_drop": r_drop}
    whole = recipe(corpus, model={**TINY, "d_model": 64, "d_ff": 64, "dropout": 0.1}, training=training)
    path.write_text(to_toml(whole.as_dict()), encoding="utf-8")

    def compiled_after(command: str) -> set[str]:
        arguments = [sys.executable, "-m", "headway", command, str(path), "--run", str(tmp_path / "run")]
        subprocess.run(arguments, check=True, capture_output=True, env={**os.environ, "NUMBA_CACHE_DIR": str(kept)})
        return {file.name for file in kept.rglob("*.nbc")}

    by_preparing = compiled_after("prepare")
    assert by_preparing or not kernels.is_available()
    assert compiled_after("train") == by_preparing
    assert (tmp_path / "run" / "best").exists()


def test_preparing_for_a_gpu_needs_no_gpu(corpus: Path, tmp_path: Path) -> None:
    heard, chosen = Heard(), recipe(corpus, training={"device": "cuda"})
    warm_up_kernels(task_of(chosen), chosen, prepare(chosen, tmp_path / "run", Listener()), heard)
    assert heard.messages == []


def test_a_rehearsal_restores_random_states_and_truncates_long_examples(corpus: Path, tmp_path: Path) -> None:
    heard, chosen = Heard(), recipe(corpus, model={**TINY, "positions": "learned", "max_length": 7})
    prepared, before = prepare(chosen, tmp_path / "run", Listener()), torch.get_rng_state()
    warm_up_kernels(task_of(chosen), chosen, prepared, heard)
    assert not any("tokeniz" in message for message in heard.messages)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("sample", "length", "expected"), [(20, 10, 20), (20, 390, 10), (20, 10**4, 1), (1, 10**4, 1)])
def test_a_vocabulary_is_trained_on_fewer_examples_if_they_are_long(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: int, length: int, expected: int
) -> None:
    (corpus / "long.tsv").write_text("".join(f"{'x' * length}\t{number:08}\n" for number in range(40)))
    seen = spy_on_tokenizer_texts(monkeypatch)
    data = {"train": [{"files": ["long.tsv"]}]}
    chosen = recipe(corpus, data=data, tokenizer={"sample_lines": sample, "joint": False}, model={"tie": "target"})
    prepare(chosen, tmp_path / "run", Listener())
    assert [len(texts) for texts in seen] == [expected, expected]


@pytest.mark.parametrize("sample", [1, 3, 7, 19, 20, 30, 40, 10**9])
def test_a_vocabulary_is_trained_on_examples_spread_evenly_over_all_corpora(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: int
) -> None:
    """Two corpora of 15 and 25 examples, whose sources are numbers."""
    for name, numbers in {"few": range(15), "more": range(15, 40)}.items():
        (corpus / f"{name}.de").write_text("".join(f"{number}\n" for number in numbers))
        (corpus / f"{name}.en").write_text("number\n" * len(numbers))
    seen = spy_on_tokenizer_texts(monkeypatch)
    train_sets = [{"files": ["few.de", "few.en"]}, {"files": ["more.de", "more.en"]}]
    options = {"sample_lines": sample, "joint": False}
    chosen = recipe(corpus, data={"train": train_sets}, tokenizer=options, model={"tie": "target"})
    prepare(chosen, tmp_path / "run", Listener())
    sources, targets = seen
    drawn = [int(text) for text in sources]
    assert len(drawn) == len(targets) == min(sample, 40)
    assert {later - earlier for earlier, later in pairwise(drawn)} <= {40 // len(drawn), 40 // len(drawn) + 1}


def spy_on_tokenizer_texts(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return a list that receives the texts of each tokenizer that is trained."""
    seen: list[list[str]] = []
    real = Tokenizer.train

    def spy(texts: Iterable[str], *rest: Any, **options: Any) -> Tokenizer:
        seen.append(list(texts))
        return real(seen[-1], *rest, **options)

    monkeypatch.setattr(Tokenizer, "train", spy)
    return seen


class TestTags:
    def test_each_source_begins_with_its_language_tag(self, corpus: Path, tmp_path: Path) -> None:
        prepared = prepare(both_ways(corpus), tmp_path / "run", Listener())
        tokenizer = prepared.tokenizers.source
        assert tokenizer.tags == ("<2de>", "<2en>")
        english, german = tokenizer.tag_id("<2en>"), tokenizer.tag_id("<2de>")
        expected = [[english, *tokenizer.encode(text), EOS] for text in GERMAN]
        expected += [[german, *tokenizer.encode(text), EOS] for text in ENGLISH]
        assert sources(prepared) == expected
        assert prepared.dev is not None
        dev = prepared.dev.batch(np.arange(3))
        assert set(dev.source[:, 0]) == {german}
        assert not np.isin(dev.target, [german, english]).any()

    def test_with_two_vocabularies_the_source_has_the_tags(self, corpus: Path, tmp_path: Path) -> None:
        chosen = both_ways(corpus, tokenizer={"joint": False}, model={"tie": "target"})
        prepared = prepare(chosen, tmp_path / "run", Listener())
        assert prepared.tokenizers.source.tags == ("<2de>", "<2en>")
        assert prepared.tokenizers.target.tags == ()

    @pytest.mark.slow
    def test_training_validation_translation_and_commands_use_tags(
        self, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A small model memorizes to translate a text or to copy it, depending only on its tag."""
        keep = {"files": ["train.en", "train.en"], "target_language": "en"}
        back = {"files": ["train.en", "train.de"], "target_language": "de"}
        chosen = both_ways(
            corpus,
            data={
                "train": [keep, back],
                "max_tokens": 400,
                "dev": {"files": ["dev.en", "dev.de"], "target_language": "de"},
            },
            tokenizer={"kind": "whitespace"},
            model={"d_model": 64, "d_ff": 128},
            optimizer={"learning_rate": 0.005, "warmup_steps": 20, "schedule": "inverse_sqrt"},
            training={"steps": 120, "log_every": 60},
            validation={"every": 120, "beam_size": 1},
        )
        result = train(chosen, tmp_path / "run")
        assert result.model_folder is not None
        model = load_translator(result.model_folder, device="cpu")
        assert model.target_languages == ("de", "en")
        texts = ENGLISH[:5]
        assert [found.text for found in model.translate(texts, target_language="de")] == GERMAN[:5]
        assert [
            found.text for found in model.translate_lines(texts, DecodingOptions(beam_size=1), target_language="en")
        ] == texts
        scores = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert scores[-1]["BLEU"] == pytest.approx(100)
        assert model.translate("  ", target_language="de").text == ""
        files = ["--source", str(corpus / "dev.en"), "--reference", str(corpus / "dev.de")]
        app(["translate", str(result.model_folder), "the tree", "--to", "de"], standalone_mode=False)
        app(["evaluate", str(result.model_folder), *files, "--to", "de", "--format", "json"], standalone_mode=False)
        translated, scores_of_command = capsys.readouterr().out.splitlines()
        assert translated == "der Baum"
        assert json.loads(scores_of_command)["scores"][0]["value"] == pytest.approx(100)
        for language, asked in ((None, "none was given"), ("fr", "got 'fr'")):
            with pytest.raises(ConfigError, match=rf"one must be selected: {asked}; choose one of de, en \(.*--to"):
                model.translate("a", target_language=language)

    def test_a_model_with_one_language_takes_no_language(self, tmp_path: Path) -> None:
        bundle(tmp_path / "model")
        model = load_translator(tmp_path / "model", device="cpu")
        assert model.target_languages == ()
        with pytest.raises(
            ConfigError, match=r"target language 'en': this model has only one target language, .*omit it"
        ):
            model.translate("a", target_language="en")

    @pytest.mark.parametrize(
        ("train_languages", "dev_language", "message"),
        [
            (["en", None], "en", "some corpora have a target_language and others do not; set it for all or for none"),
            (["en", "de"], None, "dev: target_language is not set, but the corpora in train have: de, en"),
            (["en", "de"], "fr", "dev: target_language is fr, but the corpora in train have: de, en"),
            ([None, None], "en", "dev: target_language is en, but the corpora in train have: none"),
            (["<2en>"], "en", "train.0.target_language = '<2en>'"),
        ],
    )
    def test_all_corpora_or_none_have_a_target_language(
        self, corpus: Path, train_languages: list[str | None], dev_language: str | None, message: str
    ) -> None:
        def entry(language: str | None) -> dict[str, Any]:
            return {"files": ["train.de", "train.en"], **({"target_language": language} if language else {})}

        data = {"train": [entry(language) for language in train_languages], "dev": entry(dev_language)}
        with pytest.raises(ConfigError, match=message):
            recipe(corpus, data=data)


class TestTechniques:
    def test_temperature_reaches_the_epochs(self, corpus: Path, tmp_path: Path) -> None:
        """Sizes 20 and 5, temperature 2: shares 2/3 and 1/3 of 25 examples, so each of the 5 is seen 1 or 2 times."""
        (corpus / "few.de").write_text("".join(line + "\n" for line in GERMAN[:5]))
        (corpus / "few.en").write_text("".join(line + "\n" for line in ENGLISH[:5]))
        two = [{"files": ["train.de", "train.en"]}, {"files": ["few.de", "few.en"]}]
        prepared = prepare(recipe(corpus, data={"train": two, "temperature": 2}), tmp_path / "run", Listener())
        plans = [prepared.train.plan_epoch(1, epoch, max_batch_tokens=60, pool_size=99) for epoch in range(200)]
        orders = [np.concatenate(list(plan)) for plan in plans]
        counts = np.array([np.bincount(order, minlength=25) for order in orders])
        assert set(counts[:, 20:].ravel()) == {1, 2}
        # 25/3/5 = 5/3 times each. 1,000 draws with p = 2/3: a standard deviation of 0.015; five of them are allowed.
        assert counts[:, 20:].mean() == pytest.approx(5 / 3, abs=0.075)
        assert counts[:, :20].mean() == pytest.approx(5 / 6, abs=0.03)

    def test_bpe_dropout_varies_training_text_but_not_dev_text(self, corpus: Path, tmp_path: Path) -> None:
        chosen = recipe(corpus, data={"bpe_dropout": 0.3, "segmentations": 4})
        prepared = prepare(chosen, tmp_path / "run", Listener())
        tokenizer, found = prepared.tokenizers.source, sources(prepared)
        assert prepared.train.num_segmentations == 4
        assert [tokenizer.decode(row) for row in found] == [text for text in GERMAN for _ in range(4)]
        assert len({tuple(row) for row in found[12:16]}) > 1
        assert prepared.dev is not None
        dev = prepared.dev.batch(np.arange(3)).source.tolist()
        assert [[token for token in row if token] for row in dev] == [[*tokenizer.encode(t), EOS] for t in GERMAN[:3]]

    def test_bpe_dropout_needs_merges(self, corpus: Path, tmp_path: Path) -> None:
        chosen = recipe(corpus, data={"bpe_dropout": 0.1}, tokenizer={"kind": "characters"})
        with pytest.raises(
            ConfigError, match=r"data\.bpe_dropout = 0\.1: only Headway's own bpe tokenizer reports its merges"
        ):
            prepare(chosen, tmp_path / "run", Listener())


class TestStartFrom:
    def test_the_tokenizers_are_those_of_the_model_folder(self, corpus: Path, tmp_path: Path) -> None:
        """A run that has begun uses its own copy."""
        given = bundle(tmp_path / "model")
        chosen = recipe(corpus, training={"start_from": str(tmp_path / "model")})
        prepared = prepare(chosen, tmp_path / "run", Listener())
        assert prepared.tokenizers.source.fingerprint == given.source_tokenizer.fingerprint
        assert prepared.tokenizers.source is prepared.tokenizers.target
        run = tmp_path / "run"
        (run / "recipe.toml").write_text(
            to_toml(complete_recipe(chosen, run).as_dict()), encoding="utf-8"
        )  # as train() does
        (run / "checkpoints" / "step-1").mkdir(parents=True)
        shutil.rmtree(tmp_path / "model")
        heard = Heard()
        again = prepare(chosen, tmp_path / "run", heard)
        assert again.tokenizers.source.fingerprint == given.source_tokenizer.fingerprint
        assert not any("tokeniz" in message for message in heard.messages)

    @pytest.mark.parametrize(
        ("options", "tokenizer", "message"),
        [
            (
                {"kind": "characters"},
                {"kind": "bpe"},
                "tokenizer.kind = 'bpe', but .* has 'characters'; set the key to",
            ),
            ({"split_digits": True}, {"split_digits": False}, "tokenizer.split_digits = False, but .* has True"),
            ({"joint": False}, {"joint": True}, "tokenizer.joint = True, but .* has False"),
        ],
    )
    def test_conflicts_are_refused(
        self, corpus: Path, tmp_path: Path, options: dict[str, Any], tokenizer: dict[str, Any], message: str
    ) -> None:
        bundle(tmp_path / "model", **options)
        start = {"start_from": str(tmp_path / "model")}
        with pytest.raises(ConfigError, match=message):
            prepare(recipe(corpus, training=start, tokenizer=tokenizer), tmp_path / "run", Listener())

    def test_missing_keys_are_taken_from_the_model(self, corpus: Path, tmp_path: Path) -> None:
        bundle(tmp_path / "model", split_digits=True)
        chosen = recipe(corpus, training={"start_from": str(tmp_path / "model")})
        tokenizer = prepare(chosen, tmp_path / "run", Listener()).tokenizers.source
        assert isinstance(tokenizer, Tokenizer)
        assert tokenizer.split_digits

    @pytest.mark.parametrize(
        ("tags", "make", "message"),
        [
            (["<2en>"], both_ways, r"its vocabulary has no tag <2de> \(it has <2en>\), and no tags can be added"),
            ([], both_ways, r"its vocabulary has no tag <2de> \(it has none\)"),
            (
                ["<2en>"],
                recipe,
                "the model expects the target language as one of the tags <2en>; set target_language in every corpus",
            ),
        ],
    )
    def test_tags_must_fit(
        self, corpus: Path, tmp_path: Path, tags: list[str], make: Callable[..., Recipe], message: str
    ) -> None:
        bundle(tmp_path / "model", tags=tags)
        with pytest.raises(ConfigError, match=message):
            prepare(make(corpus, training={"start_from": str(tmp_path / "model")}), tmp_path / "run", Listener())

    def test_more_tags_than_needed_are_accepted(self, corpus: Path, tmp_path: Path) -> None:
        bundle(tmp_path / "model", tags=["<2fr>", "<2en>", "<2de>"])
        chosen = both_ways(corpus, training={"start_from": str(tmp_path / "model")})
        prepared = prepare(chosen, tmp_path / "run", Listener())
        assert sources(prepared)[0][0] == prepared.tokenizers.source.tag_id("<2en>") == 5
