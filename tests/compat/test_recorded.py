"""Artifacts of earlier commits load, resume and return the same results as when they were recorded (:mod:`record`).

Results are compared in float32. Logits (here log-probabilities, which are logits up to a constant) may differ by 1e-3,
a thousand times the rounding of float32 and far below the effect of a changed formula. Losses of ten steps may differ
by 1e-2, because differences of rounding accumulate over the steps. :mod:`record` checks that the losses of a run
without its optimizer's state differ by more.
"""

from __future__ import annotations

import json
import math
import statistics
import tarfile
from functools import reduce
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from observing import EXPORT_FORMATS, RECORDED, checked_command, command, losses, observe
from orders import observed_orders
from unpacking import unpack_archive

import headway
from headway.data.draws import ORDER_VERSION
from headway.interop.huggingface.causal_families import CAUSAL_FAMILIES
from headway.interop.huggingface.classifier_families import CLASSIFIER_FAMILIES
from headway.interop.huggingface.families import FAMILIES
from headway.interop.huggingface.masked_families import MASKED_FAMILIES
from headway.interop.huggingface.t5_importing import T5_FAMILIES
from headway.models.registry import ARCHITECTURES
from headway.storage import checksum
from headway.tasks import TASKS
from headway.text.loading import imported_tokenizers
from headway.text.tokenizer import TokenizerKind

LOGITS, LOSSES = 1e-3, 1e-2


def unpack(archive: Path, folder: Path) -> dict[str, Any]:
    """Extract ``archive`` into ``folder`` and return what was recorded beside the artifact."""
    unpack_archive(archive, folder)
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return expected


def archives(kind: str) -> list[Path]:
    return sorted(RECORDED.glob(f"{kind}*.tar.xz"))


def each(kind: str, but: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Run a test with each archive of a kind, except ``but``."""
    found = [path for path in archives(kind) if path.name.partition(".")[0] not in but]
    return pytest.mark.parametrize("archive", found, ids=[path.name.partition(".")[0] for path in found])


def assert_as_recorded(found: dict[str, Any], recorded: dict[str, Any]) -> None:
    """Compare numbers within the tolerance. Texts must be equal or have equal scores."""
    assert found.keys() == recorded.keys()
    for key in ("scores", "next", "log_probabilities"):
        if key in recorded:
            assert_near(found[key], recorded[key])
    for beam, translations in recorded.get("translations", {}).items():
        for mine, theirs in zip(found["translations"][beam], translations, strict=True):
            assert mine["score"] == pytest.approx(theirs["score"], abs=LOGITS * max(1, len(theirs["text"])))
            assert mine["text"] == theirs["text"] or is_tie(mine["score"], theirs["score"])


def is_tie(mine: float, theirs: float) -> bool:
    return abs(mine - theirs) < LOGITS


def assert_near(found: Any, recorded: Any) -> None:
    """Compare numbers in nested lists and tables."""
    if isinstance(recorded, dict):
        assert found.keys() == recorded.keys()
        for key, value in recorded.items():
            assert_near(found[key], value)
    elif isinstance(recorded, list):
        assert len(found) == len(recorded)
        for mine, theirs in zip(found, recorded, strict=True):
            assert_near(mine, theirs)
    else:
        assert math.isclose(found, recorded, rel_tol=0, abs_tol=LOGITS), f"{found} is not {recorded}"


@pytest.mark.slow_but_every(8)
@each("bundle-")
def test_a_model_folder_answers_as_recorded(archive: Path, tmp_path: Path) -> None:
    expected = unpack(archive, tmp_path)
    assert_as_recorded(observe(tmp_path / "model", expected["texts"]), expected["observed"])


@pytest.mark.slow_but_every(4)
@each("run-", but=("run-sharded",))
def test_a_run_resumes_with_the_recorded_losses(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = unpack(archive, tmp_path)
    monkeypatch.chdir(tmp_path)
    before = losses(Path("run"))
    checked_command("train", "recipe.toml", "--run", "run")
    after = losses(Path("run"))
    assert after.items() >= before.items()
    found = {key: loss for key, loss in after.items() if key not in before}
    recorded: dict[str, float] = expected["losses"]
    assert found.keys() == recorded.keys()
    assert sum(key.startswith("train") for key in found) == 10
    if expected["dropout"]:
        assert_plausible(*(list(each.values())[:10] for each in (found, recorded)))
    else:
        assert found == pytest.approx(recorded, abs=LOSSES)


def test_a_run_with_sharding_is_refused_and_its_model_still_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.1.0 removed sharding. The error names the key, or the checkpoint if the key has been left out."""
    unpack(RECORDED / "run-sharded.tar.xz", tmp_path)
    monkeypatch.chdir(tmp_path)
    code, said = command("train", "recipe.toml", "--run", "run")
    assert (code, said.count("\n")) == (2, 1), said
    assert "training: sharding = 'full': version 0.1.0 removed sharding (FSDP2). Remove the key" in said
    recipe = Path("recipe.toml")
    recipe.write_text(recipe.read_text(encoding="utf-8").replace('sharding = "full"\n', ""), encoding="utf-8")
    code, said = command("train", "recipe.toml", "--run", "run")
    assert code == 2, said
    assert "step-6: its weights are split into shards" in said
    assert "training.start_from" in said
    assert headway.load("run/best").translate("in 4 m").text


def assert_plausible(found: list[float], recorded: list[float]) -> None:
    """Check that the means of two curves with different dropout differ less than their single steps do."""
    assert abs(statistics.mean(found) - statistics.mean(recorded)) < 2 * statistics.stdev(recorded)


@pytest.mark.slow_but_every(8)
@each("import-")
def test_a_hugging_face_folder_imports_as_recorded(archive: Path, tmp_path: Path) -> None:
    expected = unpack(archive, tmp_path)
    foreign = tmp_path / "foreign"
    if (foreign / "source.spm").exists():
        pytest.importorskip("sentencepiece")
    checked_command("import", f"huggingface:{foreign}", "-o", tmp_path / "anew")
    for model in ("model", "anew"):
        assert_as_recorded(observe(tmp_path / model, expected["texts"]), expected["observed"])


@pytest.mark.parametrize("archive", [RECORDED / "export-onnx.tar.xz"])
def test_an_onnx_folder_answers_as_recorded(archive: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    expected = unpack(archive, tmp_path)
    assert_as_recorded(observe(tmp_path / "exported", expected["texts"]), expected["observed"])


@pytest.mark.slow_but_every(4)
@each("export-huggingface")
def test_an_exported_hugging_face_folder_can_be_imported(archive: Path, tmp_path: Path) -> None:
    expected = unpack(archive, tmp_path)
    if "classifier" in archive.name:
        pytest.skip("transformers does not have this architecture, or the import needs a token for hidden tokens")
    checked_command("import", f"huggingface:{tmp_path / 'exported'}", "-o", tmp_path / "back")
    assert_as_recorded(observe(tmp_path / "back", expected["texts"]), expected["observed"])


@pytest.mark.slow_but_every(4)
@each("export-")
def test_the_export_is_the_recorded_one(archive: Path, tmp_path: Path) -> None:
    """Check that file names are equal, and the contents of all files except prose and graphs."""
    form = archive.name.removesuffix(".tar.xz").split("-")[1]
    for package in {"ctranslate2": ["ctranslate2"], "onnx": ["onnx", "onnxruntime"]}.get(form, []):
        pytest.importorskip(package)
    unpack(archive, tmp_path)
    if not (tmp_path / "model").exists():
        pytest.skip("only the exported folder was recorded")
    checked_command("export", tmp_path / "model", "--to", form, "-o", tmp_path / "anew")
    recorded, anew = (
        {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "exported", tmp_path / "anew")
    )
    assert anew.keys() == recorded.keys()
    for name, path in recorded.items():
        if name.suffix == ".json":
            assert_contains(json.loads(anew[name].read_text()), json.loads(path.read_text()))
        elif name.suffix == ".onnx":
            assert graph_signature(anew[name]) == graph_signature(path), name
        elif name.suffix not in (".md", ".py"):
            assert anew[name].read_bytes() == path.read_bytes(), name


def assert_contains(anew: Any, recorded: Any) -> None:
    """Compare the files of an export. The options of our own models may be more than when they were recorded."""
    if not isinstance(recorded, dict):
        assert anew == recorded
        return
    assert anew.keys() == recorded.keys()
    for key, value in recorded.items():
        ours = key in ("classifier", "model") and isinstance(value, dict)
        assert (_without_new_options(anew[key], value) if ours else anew[key]) == value, key


def _without_new_options(anew: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_new_options(anew[key], value) if isinstance(value, dict) else anew[key]
        for key, value in recorded.items()
        if key in anew
    }


def graph_signature(path: Path) -> list[tuple[str, Any, str]]:
    """Return the names, shapes and types of a graph's inputs and outputs, on which its users rely."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return [(one.name, one.shape, one.type) for one in (*session.get_inputs(), *session.get_outputs())]


@each("store-")
def test_a_run_that_has_not_begun_keeps_its_tokenizers_and_stores(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack(archive, tmp_path)
    monkeypatch.chdir(tmp_path)
    before = saved_by_preparation()
    assert len(before) > 5
    as_then = ["--set", "data.normalize=false"]  # texts were not normalized yet
    # Its segmentations are those of the order of that time, and of no later one.
    order = ["--set", "data.order_version=1"] if "bpe-dropout" in archive.name else []
    checked_command("prepare", "recipe.toml", "--run", "run", *as_then, *order)
    assert saved_by_preparation() == before
    if order:
        checked_command("prepare", "recipe.toml", "--run", "run", *as_then)
        after = saved_by_preparation()
        changed = {str(Path(name).parent) for name, content in before.items() if after[name] != content}
        assert changed == {"run/tokens/train-0"}


def saved_by_preparation() -> dict[str, tuple[bytes, int]]:
    """Return the content of each file of tokenizers and stores, and a number that changes if a store is built again."""
    folders = [path for path in (Path("run/tokenizer"), *Path("run/tokens").iterdir()) if path.is_dir()]
    files = [*Path("run/tokens").glob("labels.json"), *(path for folder in folders for path in folder.iterdir())]
    return {
        str(path): (path.read_bytes(), path.stat().st_ino if path.parent.parent.name == "tokens" else 0)
        for path in files
    }


@pytest.mark.parametrize("version", range(1, ORDER_VERSION + 1))
def test_the_batches_of_an_epoch_are_the_recorded_ones(version: int, tmp_path: Path) -> None:
    expected = unpack(RECORDED / (f"orders-{version}.tar.xz" if version > 1 else "orders.tar.xz"), tmp_path)["orders"]
    found = json.loads(json.dumps(observed_orders(order_version=version)))
    assert found.keys() == expected.keys()
    for name, batches in expected.items():
        assert found[name] == batches, name


def test_no_archive_was_recorded_again() -> None:
    lines = [line.split() for line in (RECORDED / "SOURCE").read_text(encoding="utf-8").splitlines()]
    assert {name: digest for _, digest, name in lines} == {path.name: checksum(path)[:16] for path in archives("")}


def test_every_kind_is_recorded(tmp_path: Path) -> None:
    """Kinds of architectures, tasks, tokenizers, families of imports and formats of exports."""
    names = [path.name.removesuffix(".tar.xz") for path in archives("")]
    contents = {path.name.removesuffix(".tar.xz"): json_files(path) for path in archives("")}

    def found(prefix: str, file: str, *keys: str) -> set[str]:
        values = set()
        for name, files in contents.items():
            for path, content in files.items():
                if name.startswith(prefix) and path.endswith(file):
                    value = reduce(lambda table, key: table[key], keys, content)
                    values.add(value)
        return values

    assert found("bundle-", "model/config.json", "model", "kind") == set(ARCHITECTURES)
    assert found("run-", "best/config.json", "model", "kind") == set(ARCHITECTURES)
    assert found("run-", "best/config.json", "task", "kind") == set(TASKS)
    assert {name.replace("-", "_") for name in names if name.startswith("store-")} >= {
        f"store_{each}" for each in TASKS
    }
    tokenizers = {content["kind"] for files in contents.values() for content in files.values() if is_tokenizer(content)}
    assert tokenizers == {*get_args(TokenizerKind), *imported_tokenizers()}
    imports = {name.removeprefix("import-") for name in names if name.startswith("import-")}
    classifiers = {f"classifier-{family}" for family in CLASSIFIER_FAMILIES}
    assert imports == {*FAMILIES, *T5_FAMILIES, *CAUSAL_FAMILIES, *MASKED_FAMILIES, *classifiers}


@pytest.mark.slow_but_every(8)
@pytest.mark.parametrize("form", EXPORT_FORMATS)
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_export_is_recorded_or_refused(form: str, kind: str, tmp_path: Path) -> None:
    name = f"export-{form}.tar.xz" if kind == "transformer" else f"export-{form}-{kind}.tar.xz"
    if (RECORDED / name).exists():
        return
    unpack(next(path for path in archives("bundle-") if path.name.startswith(f"bundle-{kind}-default")), tmp_path)
    code, said = command("export", tmp_path / "model", "--to", form, "-o", tmp_path / "anew")
    assert code == 2, "the format supports the architecture; record it"
    assert "cannot be exported" in said


def json_files(archive: Path) -> dict[str, Any]:
    """Return the contents of the JSON files in an archive, by their paths in it."""
    with tarfile.open(archive) as file:
        members = [member for member in file if member.name.endswith(".json")]
        return {member.name: json.loads(cast("Any", file.extractfile(member)).read()) for member in members}


def is_tokenizer(content: Any) -> bool:
    return isinstance(content, dict) and content.get("format") == "headway-tokenizer"


def test_resolved_recipes_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only error of each recipe is its missing data, which is checked after the recipe has been accepted."""
    unpack(RECORDED / "recipes.tar.xz", tmp_path)
    monkeypatch.chdir(tmp_path)
    recipes = sorted(tmp_path.glob("*.toml"))
    assert len(recipes) >= 10
    for recipe in recipes:
        code, said = command("train", recipe, "--run", tmp_path / recipe.stem, "--set", "data.folder=missing")
        assert code == 2, said
        assert "missing/" in said
        assert "no such file" in said
