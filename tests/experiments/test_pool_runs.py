from __future__ import annotations

import json
import lzma
import shutil
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from headway.errors import CheckpointError, DataError, DivergenceError
from headway.evaluation import bleu
from headway.experiments import pool_runs
from headway.experiments.changed_transformer import ARCHITECTURE
from headway.experiments.choices import COMPARISONS
from headway.experiments.corpus import made_up_text
from headway.experiments.experiment import Settings
from headway.experiments.pool import VARIANTS, PoolRun, Variant, all_runs, merge_sections, recipe_sections
from headway.experiments.pool_runs import PoolFolder, describe_pool, work_on_pool, write_record
from headway.jobs.named_leases import NamedLeases
from headway.models.registry import ARCHITECTURES, register
from headway.tasks import parse_recipe
from headway.training.recipe import Recipe

BASELINE = next(variant.base for variant in VARIANTS if variant.name == "baseline")
TUNED = Variant("tuned", BASELINE, {"model": {"norm": "pre"}}, 1, (1e-3, 2e-3))


@pytest.fixture
def folder(tmp_path: Path) -> PoolFolder:
    return PoolFolder(tmp_path / "records", tmp_path / "work")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a corpus in the files of Multi30k."""
    data, random = tmp_path / "data", Random(1)
    (data / "multi30k").mkdir(parents=True)
    for name, count in (("train", 40), ("val", 4), ("test_2016_flickr", 6)):
        text = made_up_text(count, random)
        (data / "multi30k" / f"{name}.de").write_text(text.upper())
        (data / "multi30k" / f"{name}.en").write_text(text)
    (data / "ag-news").mkdir()
    for name, count in (("train", 24), ("dev", 6)):
        texts = made_up_text(count, random).splitlines()
        (data / "ag-news" / f"{name}.tsv").write_text(
            "".join(f"{'ab'[number % 2]}\t{text}\n" for number, text in enumerate(texts))
        )
    return Settings(quick=False, seeds=(), data_folder=data, work_folder=tmp_path / "work", say=lambda _: None)


@pytest.fixture(autouse=True)
def own_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process must not see the architecture that the pool registers."""
    monkeypatch.setattr(ARCHITECTURES, "_entries", dict(ARCHITECTURES._entries))
    register(ARCHITECTURE)


def trial(loss: float, *, diverged: bool = False) -> dict[str, Any]:
    record = {"diverged": diverged, "curve": {"dev": [[1, 9.0], [2, loss]]}, "cpu_seconds_per_step": 1.0}
    return {**record, "variant": "", "recipe": {}, "data": {}}


def test_every_recipe_is_valid_and_differs_from_the_baseline() -> None:
    recipes = dict[str, str]()
    for run in all_runs():
        sections = recipe_sections(run.variant, run.seed, run.rate)
        assert sections["training"]["precision"] in ("bfloat16", "float32")  # never "auto"
        names = ["a.tsv"] if run.variant.classifies else ["a", "b"]
        sections["data"] |= {"train": [{"files": names}], "dev": {"files": names}}
        recipes[run.name] = parse_recipe(sections, run.name).model_dump_json() + str(run.variant.pairs)
    assert len(recipes) == len(all_runs())  # names are unique
    shared = {name for name, count in Counter(recipes.values()).items() if count > 1}
    # Only the baseline at its best rate, which is undecided here, has the baseline's recipe.
    assert {name for name, recipe in recipes.items() if recipe in shared} == {
        f"{name}-seed{seed}" for name in ("baseline", "baseline-tuned") for seed in range(1, 9)
    } | {f"{name}-seed{seed}" for name in ("news-as-written", "news-as-written-tuned") for seed in range(1, 4)}


def test_both_sides_of_a_claim_are_tried_with_as_many_rates() -> None:
    rates = {variant.name: len(variant.rates) for variant in VARIANTS}
    assert set(rates.values()) == {0, 3}
    for claim in COMPARISONS:
        assert len({rates[side] for side in claim.sides}) == 1, claim.key


def test_a_rate_is_chosen_by_the_loss_of_the_development_set(folder: PoolFolder) -> None:
    run = PoolRun(TUNED, 1)
    assert folder.chosen_rate(PoolRun(TUNED, 0, 1e-3)) == 1e-3
    write_record(folder.path("tuned-rate0.001-seed0"), trial(3.0))
    assert folder.chosen_rate(run) is None  # the other trial is missing
    write_record(folder.path("tuned-rate0.002-seed0"), trial(2.0))
    assert folder.chosen_rate(run) == 2e-3
    write_record(folder.path("tuned-rate0.002-seed0"), trial(1.0, diverged=True))
    assert folder.chosen_rate(run) == 1e-3


def test_the_baseline_needs_no_second_runs_if_its_own_rate_is_the_best(folder: PoolFolder) -> None:
    tuned = Variant("baseline-tuned", BASELINE, rates=(5e-3, 1e-2), untuned="baseline")
    for rate, loss in ((5e-3, 2.0), (1e-2, 2.1)):
        write_record(folder.path(f"baseline-tuned-rate{rate:g}-seed0"), trial(loss))
    assert folder.record_name(PoolRun(tuned, 3)) == "baseline-seed3"
    write_record(folder.path("baseline-tuned-rate0.01-seed0"), trial(1.9))
    assert folder.record_name(PoolRun(tuned, 3)) == "baseline-tuned-seed3"


def test_a_damaged_record_is_named(folder: PoolFolder) -> None:
    path = folder.path("baseline-seed1")
    path.parent.mkdir()
    path.write_bytes(lzma.compress(b"{}")[:-9])
    with pytest.raises(DataError, match=r"baseline-seed1.*damaged"):
        folder.read("baseline-seed1")


def test_a_run_leaves_a_record_from_which_its_scores_can_be_computed(
    folder: PoolFolder, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"preset": "tiny", "d_model": 8, "num_heads": 1, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 1}
    training = {"steps": 4, "device": "cpu", "compile": "off", "log_every": 2}
    small = {**BASELINE, "model": model, "training": training, "validation": {"metric": "loss", "every": 2}}
    small["checkpoints"] = {"every": 2, "keep": 2, "average": 2}
    changes = {"model": {"tie": "none"}}
    variants = (
        Variant("baseline", small, seeds=1, measured=("fit", "tokens")),
        Variant("other", small, changes, pairs=20),
    )
    monkeypatch.setattr("headway.experiments.pool.VARIANTS", variants)
    monkeypatch.setattr(pool_runs, "engine_hash", lambda: "a hash")  # which takes seconds
    work_on_pool(folder, settings, max_runs=1)
    record = folder.read("baseline-seed1")
    assert record is not None
    sources, references = (
        (settings.work_folder.parent / "data" / "multi30k" / f"test_2016_flickr.{language}").read_text().splitlines()
        for language in ("de", "en")
    )
    assert len(record["log_probs"]) == len(record["log_probs_of_average"]) == len(sources)
    # A model that has hardly been trained: each of a reference's tokens and its end have about the same probability.
    assert all(count > 1 for count in record["num_tokens"])
    assert all(score < 0 for score in record["log_probs"])
    assert bleu(record["translations"]["4"], references).value < 100
    assert [step for step, _ in record["curve"]["dev"]] == [2, 4]
    assert "1 runs done, 0 running, 3 missing; about" in describe_pool(folder)
    assert set(record["measured"]) == {"fit", "tokens"}
    # An older version has measured less: the record is completed from the weights, without training again.
    (run,) = (run for run in all_runs() if run.name == "baseline-seed1")
    older = {**record, "measured": {"fit": record["measured"]["fit"]}}
    write_record(folder.path(run.name), older)
    assert folder.lacking(run, older) == ["tokens"]
    monkeypatch.delattr(pool_runs, "train")
    monkeypatch.setattr(pool_runs, "engine_hash", lambda: "another hash")
    path = settings.work_folder.parent / "data" / "multi30k" / "val.de"
    text = path.read_text()
    path.write_text("other text\n")
    with pytest.raises(DataError, match="not what baseline-seed1 was trained on"):
        work_on_pool(folder, settings, max_runs=1)
    path.write_text(text)
    work_on_pool(folder, settings, max_runs=1)
    completed = folder.read(run.name)
    assert completed is not None
    engines = {key: by["engine"] for key, by in completed.pop("measured_by").items()}
    assert engines == {"fit": "a hash", "tokens": "another hash"}
    del record["measured_by"]
    assert completed == record
    shutil.rmtree(folder.work / "runs")  # without weights, it stays as it is
    assert folder.lacking(run, older) == []


def test_a_training_that_is_killed_or_diverges_before_its_first_line_leaves_a_record(
    folder: PoolFolder, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = (run for run in all_runs() if run.name == "baseline-seed1")
    monkeypatch.setattr(pool_runs, "all_runs", lambda: [run])
    monkeypatch.setattr(pool_runs, "engine_hash", lambda: "a hash")
    endings, folders = [KeyboardInterrupt(), DivergenceError("not a number")], list[Path]()

    def end_early(_: Recipe, run_folder: Path) -> None:
        folders.append(run_folder)
        (run_folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run_folder / "metrics.jsonl").touch()
        (run_folder / "environment.json").write_text("[]")
        raise endings.pop(0)

    def write(path: Path, record: dict[str, Any]) -> None:
        assert (folders[-1] / "checkpoints").is_dir()  # a process that is killed here must not train again
        write_record(path, record)

    monkeypatch.setattr(pool_runs, "train", end_early)
    monkeypatch.setattr(pool_runs, "write_record", write)
    with pytest.raises(KeyboardInterrupt):
        work_on_pool(folder, settings)
    work_on_pool(folder, settings)
    record = folder.read(run.name)
    assert record is not None
    assert record["diverged"]
    assert (record["curve"], record["elapsed_s"]) == ({"train": [], "dev": []}, 0.0)
    assert not (folders[-1] / "checkpoints").exists()


@pytest.mark.slow
def test_classifiers_are_chosen_on_texts_for_training_and_tested_on_others(
    folder: PoolFolder, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = next(variant.base for variant in VARIANTS if variant.name == "news-best")
    small = {
        **base,
        "model": {"d_model": 8, "num_heads": 1, "d_ff": 8, "encoder_layers": 1},
        "training": {**base["training"], "steps": 2, "log_every": 1},
        "validation": {"metric": "loss", "every": 2},
    }
    variant = Variant("news", small, seeds=1, pairs=20, measured=("labels",))
    monkeypatch.setattr("headway.experiments.pool.VARIANTS", (variant,))
    monkeypatch.setattr(pool_runs, "engine_hash", lambda: "a hash")
    work_on_pool(folder, settings, max_runs=1)
    record = folder.read("news-seed1")
    assert record is not None
    assert "log_probs" not in record
    assert {len(values) for values in record["measured"]["labels"].values()} == {6}
    (parts,) = folder.work.glob("labeled-*")
    assert [len((parts / f"{name}.tsv").read_text().splitlines()) for name in ("train", "dev")] == [20, 4]


def test_each_run_is_done_by_one_of_several_workers_and_that_of_a_dead_one_is_taken_over(
    folder: PoolFolder, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, lock = list[str](), threading.Lock()

    def finish(run: PoolRun, folder: PoolFolder, _: Settings) -> None:
        with lock:
            done.append(run.name)
        write_record(folder.path(run.name), trial(1.0))

    monkeypatch.setattr(pool_runs, "_do", finish)
    monkeypatch.setattr(pool_runs, "_POLL_S", 0.01)
    # Two seeds without trials, the trials of the baseline, and its first seeds.
    runs = [run for run in all_runs() if run.variant.name == "learned-positions"][:2]
    runs += [run for run in all_runs() if run.variant.name == "baseline-tuned"][:8]
    monkeypatch.setattr(pool_runs, "all_runs", lambda: runs)
    leases = NamedLeases(folder.work, [run.name for run in runs])
    dead = leases.take(runs[3].name)
    assert dead is not None
    path = next(folder.work.glob("leases-*/leases/0000/3.0"))
    counter, _, owner = path.read_text().partition(" ")
    path.write_text(f"{counter} {json.dumps(json.loads(owner) | {'id': 'dead', 'started': '1'})}\n")
    assert "running" in describe_pool(folder, names=True)
    workers = [threading.Thread(target=work_on_pool, args=(folder, settings)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(done) == sorted({name for run in runs if (name := folder.record_name(run))})


def test_a_run_that_shares_a_record_is_not_trained_while_another_process_trains_the_record(
    folder: PoolFolder, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = Variant("baseline-tuned", BASELINE, rates=(5e-3, 1e-2), untuned="baseline")
    for rate, loss in ((5e-3, 2.0), (1e-2, 2.1)):  # 0.005 is the baseline's own rate
        write_record(folder.path(f"baseline-tuned-rate{rate:g}-seed0"), trial(loss))
    runs = [PoolRun(Variant("baseline", BASELINE), 1), PoolRun(tuned, 1)]
    monkeypatch.setattr(pool_runs, "all_runs", lambda: runs)
    assert NamedLeases(folder.work, [run.name for run in runs]).take("baseline-seed1")
    # While the worker waits, the other process finishes.
    end = SimpleNamespace(sleep=lambda _: write_record(folder.path("baseline-seed1"), trial(1.0)))
    monkeypatch.setattr(pool_runs, "time", end)
    monkeypatch.delattr(pool_runs, "_do")
    work_on_pool(folder, settings)


def test_a_run_whose_folder_is_locked_is_left_for_later(
    folder: PoolFolder, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [PoolRun(Variant("baseline", BASELINE), seed) for seed in (1, 2)]
    tried, said = list[str](), list[str]()

    def refuse_twice(run: PoolRun, folder: PoolFolder, _: Settings) -> None:
        tried.append(run.name)
        if run.name == "baseline-seed1" and tried.count(run.name) < 3:
            raise CheckpointError("process 7 is training there")
        write_record(folder.path(run.name), trial(1.0))

    monkeypatch.setattr(pool_runs, "all_runs", lambda: runs)
    monkeypatch.setattr(pool_runs, "_do", refuse_twice)
    monkeypatch.setattr(pool_runs, "_POLL_S", 0.0)
    work_on_pool(folder, replace(settings, say=said.append))
    assert tried == ["baseline-seed1", "baseline-seed2", "baseline-seed1", "baseline-seed1"]
    assert sum("process 7" in line for line in said) == 1


def test_later_sections_replace_earlier_keys() -> None:
    assert merge_sections({"a": {"x": 1, "y": 2}}, {"a": {"x": 3}, "b": {}}) == {"a": {"x": 3, "y": 2}, "b": {}}
