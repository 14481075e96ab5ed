"""Damaged and hostile model folders: a command that cannot use one ends with exit code 2 and a one-line error.

It never prints a traceback, and never allocates memory for data that the files do not contain.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import assert_refused, run

from headway import kernels

QUICK, THOROUGH = 12, 400  # damaged copies of each model
HUGE = 10_000_000
NOTES = ("has no form that is optimized for search", "and computes in float32 with the dequantized weights")
INTEGERS = 60  # damaged copies of a folder with weights in 8-bit integers
STRANGE: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, HUGE, 10**30, 0.5, -0.5, 1e308, float("inf"), float("nan")),
    *("", "x", "..", "../../../etc/passwd", "/etc/passwd", "\0", "\ud800", "x" * 10_000),
    *([], {}, [[]], [None], [1, 2], {"a": 1}, ["a", "a"], {"kind": "transformer"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def models(
    make_translator: Callable[..., Any], make_classifier: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Small models of every kind."""
    from headway.bundle import Bundle, Quantization, TaskConfig
    from headway.models.recurrent import RecurrentConfig
    from headway.models.registry import build_model
    from headway.predict.translation.calibration import Calibration, write_calibration
    from headway.text.special_tokens import SpecialTokenTemplate

    home = tmp_path_factory.mktemp("models")
    bundle = make_translator("bpe", positions="learned", max_length=40, score="general").bundle
    bundle.save(home / "transformer", "# Card")
    scale = {"mean": [2.0, 1.0], "variance": [1.0, 2.0], "min_variance": 0.1}
    scales = {f"{name}_scale": scale for name in ("token", "character", "target")}
    facts = {"tokenizer": bundle.source_tokenizer.fingerprint, "texts": 459, "vocab_size": 300, "threshold": 1.5}
    write_calibration(Calibration.parse({**facts, **scales, "counts": {"5": 3, "6": 1}}, "test"), home / "transformer")
    languages = {"languages": {"de": 7, "en": 8}, "source_language": "de", "target_language": "en"}
    slots = {"source_prefix": ["source_language"], "target_prefix": ["target_language"]}
    template = SpecialTokenTemplate.parse({**slots, **languages}, "test")
    Bundle(bundle.task, bundle.model, bundle.source_tokenizer, bundle.target_tokenizer, template).save(
        home / "imported", "# Card"
    )
    characters = make_translator("characters").bundle.source_tokenizer
    options = {"kind": "recurrent", "d_model": 8, "attention": "bahdanau"}
    recurrent = build_model(RecurrentConfig.parse(options, ""), characters.vocab_size, characters.vocab_size)
    Bundle(TaskConfig(), recurrent, characters, characters).save(home / "recurrent", "# Card")
    make_classifier(positions="learned").bundle.save(home / "classifier", "# Card")
    if kernels.is_available():
        wide = make_translator("bpe", d_model=32, num_heads=4, d_ff=32).bundle
        wide.save(home / "integers", "# Card", quantization=Quantization(embeddings=True))
    return home


MODELS = ["transformer", "imported", "recurrent", "classifier"]


def used(folder: Path) -> list[Any]:
    """Run the commands that read a whole model folder."""
    use = "classify" if folder.name == "classifier" else "translate"
    extra = [] if use == "classify" else ["--max-length", "5"]
    return [run("info", folder), run(use, folder, "das Haus", *extra)]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yield the path of keys and indices to every value in nested JSON; in long lists, only to the first values."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:8]) if isinstance(value, list) else ()
    return [found for key, item in inner for found in ((*path, key), *places(item, (*path, key)))]


def damage_json(path: Path, draw: random.Random) -> str:
    """Drop a key, or replace its value with an unusual value or with another value from the file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    where = draw.choice(places(data))
    owner = data
    for key in where[:-1]:
        owner = owner[key]
    match draw.choice(["drop", "replace", "replace", "swap", "add"]):
        case "drop":
            del owner[where[-1]]
        case "replace":
            owner[where[-1]] = draw.choice(STRANGE)
        case "swap":
            other = data
            for key in draw.choice(places(data)):
                other = other[key] if isinstance(other, (dict, list)) else other
            owner[where[-1]] = json.loads(json.dumps(other))
        case "add":
            data[draw.choice(["framing", "labels", "extra", "tokenizers"])] = draw.choice(STRANGE)
    path.write_text(json.dumps(data), encoding="utf-8")
    return f"{path.name}: {where}"


def damage_bytes(path: Path, draw: random.Random) -> str:
    """Flip bytes, truncate the content, append to it, or replace it."""
    content = bytearray(path.read_bytes())
    kind = draw.choice(["flip", "flip", "cut", "append", "junk", "empty", "header"])
    match kind:
        case "flip":
            for _ in range(draw.choice([1, 1, 3, 50])):
                content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        case "cut":
            del content[draw.randrange(len(content)) :]
        case "append":
            content += draw.randbytes(draw.choice([1, 100]))
        case "junk":
            content[:] = draw.randbytes(draw.choice([1, 9, 1000]))
        case "empty":
            content.clear()
        case "header":
            for _ in range(3):
                content[draw.randrange(min(300, len(content)))] = draw.randrange(256)
    path.write_bytes(content)
    return f"{path.name}: {kind}"


def damage(folder: Path, draw: random.Random) -> str:
    """Damage one file of a model folder, and return a description of the damage."""
    files = sorted(path for path in folder.iterdir() if path.name != "README.md")
    path = draw.choice([*files, folder / "config.json"])
    if path.suffix == ".json" and draw.random() < 0.7:
        return damage_json(path, draw)
    if draw.random() < 0.05:
        path.unlink()
        return f"{path.name}: removed"
    return damage_bytes(path, draw)


def fuzz(origin: Path, tmp_path: Path, seeds: range) -> int:
    """Run commands on damaged copies of a model folder, and return how many were refused."""
    refused = 0
    for seed in seeds:
        folder = tmp_path / origin.name
        shutil.copytree(origin, folder)
        what = damage(folder, random.Random(seed))
        for ended in used(folder):
            assert ended.code in (0, 2), (seed, what, ended)
            if ended.code == 2:
                refused += 1
                # A changed option may make the model search in another form, which one more line says.
                lines = [line for line in ended.err.splitlines() if line and not any(note in line for note in NOTES)]
                assert len(lines) == 1, (seed, what, ended)
                assert_refused(replace(ended, err=lines[0]), "")
        shutil.rmtree(folder)
    return refused


@pytest.mark.parametrize("name", [MODELS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS[1:])])
def test_a_damaged_folder_is_refused_in_one_line(models: Path, tmp_path: Path, name: str) -> None:
    assert all(ended.code == 0 for ended in used(models / name)), "the models themselves are fine"
    assert fuzz(models / name, tmp_path, range(QUICK)) > QUICK / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_many_damaged_folders_are_refused_in_one_line(models: Path, tmp_path: Path, name: str) -> None:
    assert fuzz(models / name, tmp_path, range(QUICK, THOROUGH)) > THOROUGH / 2


@pytest.mark.slow
@pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")
def test_damaged_folders_with_integers_are_refused_in_one_line(models: Path, tmp_path: Path) -> None:
    assert all(ended.code == 0 for ended in used(models / "integers")), "the model itself is fine"
    assert fuzz(models / "integers", tmp_path, range(INTEGERS)) > INTEGERS / 2
