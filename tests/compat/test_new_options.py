"""A new option invalidates nothing: begun runs resume, token stores are found, and saved files load.

One class of configs after another gets one more option, and recorded artifacts are read with it. The option is inert by
default, or it is inert only in files that do not contain it, and has another default in new ones.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from observing import RECORDED, checked_command, losses
from pydantic import Field
from pydantic.fields import FieldInfo
from test_recorded import LOSSES, saved_by_preparation, unpack

import headway
from headway.bundle import load_bundle, read_config
from headway.config import Config, Inert
from headway.errors import CheckpointError
from headway.tasks import load_recipe, task_of
from headway.text.tokenizer import TokenizerConfig
from headway.training.fine_tuning import complete_recipe, recipe_of_run
from headway.training.recipe import CheckpointConfig, Recipe, check_resumable
from headway.training.report import Listener

NAME = "new_option"
IN_STORES = {"TokenizerConfig", "FilterConfig", "Corpus", "TextCorpus"}
RUNS = ("adam", "classifier", "decoder-only", "recurrent-lm", "masked", "sequence-classifier", "started")
STORES = tuple(path.name.removesuffix(".tar.xz") for path in sorted(RECORDED.glob("store-*")))


def config_classes() -> list[type[Config]]:
    """Return all classes of configs in the package."""
    pytest.importorskip("starlette", reason="the configurations of the service need the extra serve")
    for module in pkgutil.walk_packages(headway.__path__, "headway."):
        if module.name != "headway.serve.ray":  # needs the package ray
            importlib.import_module(module.name)

    def below(config: type[Config]) -> Iterator[type[Config]]:
        for each in config.__subclasses__():
            if each.__module__.startswith("headway."):
                yield each
                yield from below(each)

    return list(dict.fromkeys(below(Config)))


CLASSES = config_classes()
QUICK = {"TokenizerConfig", "TextCorpus", "DecoderOnlyConfig"}


def each_class() -> pytest.MarkDecorator:
    marks = {name: () if name in QUICK else (pytest.mark.slow,) for name in (one.__name__ for one in CLASSES)}
    return pytest.mark.parametrize(
        "config", [pytest.param(one, marks=marks[one.__name__], id=one.__name__) for one in CLASSES]
    )


@contextmanager
def one_more_option(config: type[Config], *, default: bool) -> Iterator[None]:
    """Give a class, and the classes that inherit from it, one more option, whose inert value is False."""
    annotation: Any = Annotated[bool, Inert(False)] if default else bool
    classes = [each for each in CLASSES if issubclass(each, config)]
    for each in classes:
        each.__pydantic_fields__[NAME] = FieldInfo.from_annotated_attribute(annotation, Field(default))
        setattr(each, NAME, False)  # of configs that were made before, as parts of the package
    rebuild()
    try:
        yield
    finally:
        for each in classes:
            del each.__pydantic_fields__[NAME]
            delattr(each, NAME)
        rebuild()


def rebuild() -> None:
    for _ in range(2):  # a class may be listed before a class of one of its fields
        for each in CLASSES:
            each.model_rebuild(force=True)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Recorded runs and stores, by name."""
    home = tmp_path_factory.mktemp("artifacts")
    for name in (*(f"run-{each}" for each in RUNS), *STORES):
        unpack_artifact(name, home / name)
    return {path.name: path for path in home.iterdir()}


def unpack_artifact(name: str, folder: Path) -> None:
    """Extract an artifact. A store is valid only for texts that are not normalized, and one with BPE-dropout only in
    the order of the data that it was built in."""
    unpack(RECORDED / f"{name}.tar.xz", folder)
    if name in STORES:
        path = folder / "recipe.toml"
        recipe = path.read_text(encoding="utf-8")
        recipe = recipe.replace("\nbpe_dropout", "\norder_version = 1\nbpe_dropout")
        path.write_text(recipe.replace("[data]\n", "[data]\nnormalize = false\n"), encoding="utf-8")


def prepared(folder: Path, config: type[Config] | None = None) -> Recipe:
    """Prepare what the recipe in ``folder`` needs, and return the recipe.

    If ``config`` is given, the new option is True in all configs of this class.
    """
    with chdir(folder):
        recipe = load_recipe(Path("recipe.toml"))
        recipe = recipe if config is None else changed(recipe, config)
        recipe = complete_recipe(recipe, Path("run"))
        if begun := recipe_of_run(recipe, Path("run")):
            check_resumable(begun, recipe, Path("run"))
        assert task_of(recipe).prepare(recipe, Path("run"), Listener()) is not None
    return recipe


def changed(value: Any, config: type[Config]) -> Any:
    """Return a config with the new option set to True in all configs of one class inside."""
    if isinstance(value, tuple):
        return tuple(changed(each, config) for each in value)
    if not isinstance(value, Config):
        return value
    changes = {name: changed(getattr(value, name), config) for name in type(value).model_fields if name != NAME}
    changes = {name: new for name, new in changes.items() if new != getattr(value, name)}
    return value.model_copy(update={**changes, **({NAME: True} if isinstance(value, config) else {})})


def values_in(value: Any, config: type[Config]) -> list[bool]:
    """Return the values of the new option in all configs of one class inside a config."""
    if isinstance(value, tuple):
        return [found for each in value for found in values_in(each, config)]
    if not isinstance(value, Config):
        return []
    inside = [found for name in type(value).model_fields for found in values_in(getattr(value, name), config)]
    return inside + ([getattr(value, NAME)] if isinstance(value, config) else [])


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return what preparation has saved. A run that has not begun may copy tokenizers and settings again from the model
    that it starts from."""
    with chdir(folder):
        found = saved_by_preparation()
        is_begun = Path("run/checkpoints").exists()
    copied = ("framing.json", "defaults.json")
    return {name: content for name, content in found.items() if is_begun or not name.endswith(copied)}


@each_class()
@pytest.mark.parametrize("default", [False, True], ids=["inert by default", "active by default"])
def test_runs_and_stores_stay_valid(config: type[Config], default: bool, artifacts: dict[str, Path]) -> None:
    before = {name: contents(folder) for name, folder in artifacts.items()}
    with one_more_option(config, default=default):
        for name, folder in artifacts.items():
            if name.startswith("run-"):
                recipe = prepared(folder)
                assert not any(values_in(recipe, config)), "a begun run goes on with the inert value"
            elif not default or config.__name__ not in IN_STORES:
                recipe = prepared(folder)
                takes_options = recipe.training.start_from is not None  # from a model without the option
                assert takes_options or all(value is default for value in values_in(recipe, config))
            assert contents(folder) == before[name], name


@each_class()
@pytest.mark.parametrize("default", [False, True], ids=["inert by default", "active by default"])
def test_saved_models_load_with_the_inert_value(
    config: type[Config], default: bool, artifacts: dict[str, Path]
) -> None:
    with one_more_option(config, default=default):
        for name in RUNS:
            folder = artifacts[f"run-{name}"] / "run" / "best"
            bundle = load_bundle(folder)
            found = read_config(folder)
            for part in (bundle.model.config, bundle.task, found.imported_token_template):
                assert not any(values_in(part, config))
            for side, tokenizer in zip(("source", "target"), bundle.tokenizers.values(), strict=False):
                files = [folder / f"{each}.json" for each in (side, "joint", "tokenizer")]
                content = next(path for path in files if path.exists()).read_bytes()
                assert tokenizer.fingerprint == hashlib.sha256(content).hexdigest()


@each_class()
def test_an_active_option_is_noticed(config: type[Config], artifacts: dict[str, Path], tmp_path: Path) -> None:
    """A begun run refuses it by name, and a store that depends on it is built again."""
    with one_more_option(config, default=False):
        for name, folder in artifacts.items():
            with chdir(folder):
                has_option = bool(values_in(load_recipe(Path("recipe.toml")), config))
            if not has_option or config is CheckpointConfig:  # may change in a begun run
                continue
            if name.startswith("run-"):
                with pytest.raises(CheckpointError, match=f"{NAME} was False, is True"):
                    prepared(folder, config)
            elif config.__name__ in IN_STORES:
                before = contents(folder)
                unpack_artifact(name, tmp_path / name)
                prepared(tmp_path / name, config)
                assert contents(tmp_path / name).keys() >= before.keys()
                assert contents(tmp_path / name) != before


def test_a_begun_run_keeps_the_order_of_its_data(artifacts: dict[str, Path]) -> None:
    """The recipes name no version of the order, except that of a store with BPE-dropout; that of new runs is 2."""
    versions = {name: prepared(folder).data.order_version for name, folder in artifacts.items()}
    is_old = {name: name.startswith("run-") or "bpe-dropout" in name for name in artifacts}
    assert versions == {name: 1 if is_old[name] else 2 for name in artifacts}


def test_a_run_resumes_to_the_recorded_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = unpack(RECORDED / "run-adam.tar.xz", tmp_path)
    monkeypatch.chdir(tmp_path)
    with one_more_option(TokenizerConfig, default=True):
        checked_command("train", "recipe.toml", "--run", "run")
    found = losses(Path("run"))
    assert {key: found[key] for key in expected["losses"]} == pytest.approx(expected["losses"], abs=LOSSES)
