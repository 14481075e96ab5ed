"""``headway calibrate``, the file that it writes, and how commands report the flag ``unlikely``."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import assert_refused, run, write_lines

from headway.errors import BundleError
from headway.predict import Translator, load_translator
from headway.predict.translation.calibrate import calibrate
from headway.predict.translation.calibration import (
    CALIBRATION_FILE,
    MIN_TEXTS,
    read_calibration,
    write_calibration,
)

WORDS = ["ein", "das", "rote", "grüne", "Haus", "Baum", "und", "der"]


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def translator(make_translator: Callable[..., Translator]) -> Translator:
    found = make_translator()
    found.calibration = calibrate(found, sentences(MIN_TEXTS, 1))
    return found


@pytest.fixture
def folder(translator: Translator, tmp_path: Path) -> Path:
    translator.bundle.save(tmp_path / "model", "# Card")
    assert translator.calibration is not None
    write_calibration(translator.calibration, tmp_path / "model")
    return tmp_path / "model"


def test_a_calibration_is_stored_in_the_model_folder(translator: Translator, folder: Path) -> None:
    assert read_calibration(translator.bundle, folder) == translator.calibration
    found = load_translator(folder, precision="float32")
    texts = [*sentences(20, 4), "QXZ 12345"]
    assert found.translate(texts) == translator.translate(texts)
    (folder / CALIBRATION_FILE).unlink()
    assert load_translator(folder, precision="float32").translate("QXZ 12345").unlikely is None


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a calibration file, or damaged"),
        ("[1]", "not a calibration file, or damaged"),
        ({"threshold": "high"}, "threshold = 'high'"),
        ({"counts": {"5": -1}}, "counts.5 = -1"),
        ({"extra": 1}, "unknown key 'extra'"),
        ({"token_scale": {"mean": [0, 0], "variance": [1, 0], "min_variance": 0}}, "min_variance = 0"),
        ({"tokenizer": "other"}, "made for a model with a different vocabulary"),
    ],
)
def test_a_damaged_calibration_is_refused(folder: Path, content: Any, message: str) -> None:
    path = folder / CALIBRATION_FILE
    whole = json.loads(path.read_text())
    path.write_text(content if isinstance(content, str) else json.dumps(whole | content))
    assert_refused(run("translate", folder, "das Haus"), rf"calibration\.json: .*{message}")
    with pytest.raises(BundleError, match="calibrate"):
        load_translator(folder)


@pytest.mark.slow
def test_the_command_calibrates(folder: Path, tmp_path: Path) -> None:
    (folder / CALIBRATION_FILE).unlink()
    assert "not calibrated" in run("info", folder).out
    source = write_lines(tmp_path / "dev", sentences(MIN_TEXTS, 1))
    train = write_lines(tmp_path / "train", ["7 7 7"] * 300)
    ended = run("calibrate", folder, "--source", source, "--train", train, "--precision", "float32")
    assert (ended.code, ended.out) == (0, f"{folder}: calibrated on 459 texts of {source}\n")
    found = load_translator(folder).calibration
    assert found is not None
    assert found.counts[load_translator(folder).bundle.source_tokenizer.encode("7 7")[0]] >= 300
    assert "calibrated on 459 texts" in run("info", folder).out
    assert found.max_constraint_cost is None
    few = write_lines(tmp_path / "few", ["das Haus"])
    differ = run("calibrate", folder, "--source", source, "--reference", few)
    assert_refused(differ, "dev has 459 lines and .*few has 1; expected a reference for each source")
    assert_refused(run("calibrate", folder, "--source", few), "few: too few texts .* calibration needs at least 459")
    assert load_translator(folder).calibration == found


def test_a_glossary_that_fits_badly_is_reported(translator: Translator, folder: Path, tmp_path: Path) -> None:
    """Every cost is above the limit, and a text to which no entry applies has no cost."""
    assert translator.calibration is not None
    write_calibration(translator.calibration.model_copy(update={"max_constraint_cost": 1e-6}), folder)
    source = write_lines(tmp_path / "in", ["das rote Haus", "der Baum"])
    glossary = write_lines(tmp_path / "terms.tsv", ["Haus\tQXZ"])
    files = ["--source", source, "--reference", source, "--glossary", glossary]
    report = json.loads(run("evaluate", folder, *files, "--format", "json").out)
    assert report["glossary"] == {"terms": 1, "met": 1, "forced_translations": 1}
    ended = run("evaluate", folder, *files)
    assert ended.out.splitlines()[-2:] == ["glossary terms met: 1 of 1", "translations flagged forced: 1 of 2"]
    assert "forced 1" in run("translate", folder, "-i", source, "--glossary", glossary).err
    assert "glossary" not in json.loads(run("evaluate", folder, *files[:4], "--format", "json").out)


@pytest.mark.slow
def test_the_command_line_reports_the_flag(folder: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", ["das rote Haus", "QXZ 12345"])
    ended = run("translate", folder, "-i", source)
    assert len(ended.out.splitlines()) == 2
    assert "unlikely 1" in ended.err
    lines = run("translate", folder, "-i", source, "--format", "json").out.splitlines()
    assert [json.loads(line)["unlikely"] for line in lines] == [False, True]
    (folder / CALIBRATION_FILE).unlink()
    ended = run("translate", folder, "-i", source, "--format", "json")
    assert all("unlikely" not in json.loads(line) for line in ended.out.splitlines())
    assert "suspicious lines" not in ended.err
