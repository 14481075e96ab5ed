import importlib
import json
import pkgutil
import string
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

import headway
from headway.config import Config, Inert, apply_overrides, format_list, read_toml, spelling_hint, to_toml
from headway.errors import ConfigError


class Corpus(Config):
    path: str
    weight: float = Field(1.0, gt=0)


class Training(Config):
    steps: int = Field(100, ge=1)
    rate: float = 0.5
    schedule: Literal["constant", "linear"] = "constant"
    note: str | None = None


class Recipe(Config):
    training: Training = Training()
    corpora: tuple[Corpus, ...] = ()
    spare: Corpus | None = None

    @model_validator(mode="after")
    def _spare_is_another(self) -> "Recipe":
        if self.spare in self.corpora:
            raise ValueError("spare is listed in corpora; choose another")
        return self


# Parsing.


def test_missing_keys_have_their_defaults() -> None:
    recipe = Recipe.parse({"training": {"steps": 5}, "corpora": [{"path": "a"}]}, "r.toml")
    assert recipe == Recipe(training=Training(steps=5), corpora=(Corpus(path="a"),))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"trainin": {}}, "unknown key 'trainin'; did you mean 'training'?"),
        ({"zzz": 1}, "unknown key 'zzz'; known: corpora, spare, training"),
        ({"training": {"step": 1}}, "unknown key 'training.step'; did you mean 'steps'?"),
        ({"corpora": [{"path": "a"}, {"pth": "b", "path": "c"}]}, "unknown key 'corpora.1.pth'; did you mean 'path'?"),
        ({"spare": {"path": "a", "wait": 1}}, "unknown key 'spare.wait'; did you mean 'weight'?"),
        ({"corpora": [{}]}, "key 'corpora.0.path' is missing"),
        ({"training": {"steps": 0}}, "training.steps = 0: input should be greater than or equal to 1"),
        ({"training": {"steps": "many"}}, "training.steps = 'many': input should be a valid integer"),
        ({"training": {"schedule": "cosine"}}, "training.schedule = 'cosine': input should be 'constant' or 'linear'"),
        ({"training": {"rate": float("nan")}}, "training.rate = nan: input should be a finite number"),
        ({"training": 3}, "training = 3: input should be a valid dictionary"),
        ({"corpora": [{"path": "a"}], "spare": {"path": "a"}}, "spare is listed in corpora; choose another"),
    ],
)
def test_errors_name_the_key_and_what_is_accepted(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe.parse(data, "r.toml")
    assert str(caught.value).startswith(f"r.toml: {message}")
    assert "\n" not in str(caught.value)


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(
        ConfigError, match=r"^options: training.steps = 0: .*; unknown key 'training.stps'; did you mean"
    ):
        Recipe.parse({"training": {"steps": 0, "stps": 1}}, "options")


def test_nearest() -> None:
    assert spelling_hint("beem_size", ["beam_size", "alpha"]) == "did you mean 'beam_size'?"
    assert spelling_hint("q", ["beam_size", "alpha"]) == "known: alpha, beam_size"
    assert spelling_hint("q", [f"{'long ' * 20}{number:02}" for number in range(30)]).startswith("known: long long")
    assert len(spelling_hint("q", [f"{'long ' * 20}{number}" for number in range(3000)])) < 1000


def test_listed() -> None:
    assert format_list(["b", "a"]) == "b, a"
    assert format_list([str(number) for number in range(1000)]).endswith("18, 19, … (1,000 in all)")
    assert format_list(["x" * 41]) == "x" * 39 + "…"


def test_a_section_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Training().steps = 3  # type: ignore[misc]


def test_as_dict_and_parse_are_inverse() -> None:
    recipe = Recipe(training=Training(steps=5), corpora=(Corpus(path="ä"), Corpus(path="b", weight=2)))
    plain = recipe.as_dict()
    assert plain == {
        "training": {"steps": 5, "rate": 0.5, "schedule": "constant"},
        "corpora": [{"path": "ä", "weight": 1.0}, {"path": "b", "weight": 2.0}],
    }
    assert Recipe.parse(plain, "") == recipe


# Overrides.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-1.5e-3", -0.0015),
        ("true", True),
        ('"3"', "3"),
        ("linear", "linear"),
        ("de-en", "de-en"),
        ("runs/a b.txt", "runs/a b.txt"),
        ("", ""),
        ('["a", "b"]', ["a", "b"]),
        ('[{path = "a"}]', [{"path": "a"}]),
        (" 7 ", 7),
        ("a=b", "a=b"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_an_override_is_toml_or_a_string(text: str, value: object) -> None:
    found = apply_overrides({}, [f"training.note={text}"])["training"]["note"]
    assert found == value
    assert type(found) is type(value)


def test_overrides_change_a_copy_from_left_to_right() -> None:
    data = {"training": {"steps": 1, "rate": 2.0}, "corpora": [{"path": "a"}]}
    found = apply_overrides(data, ["training.steps=5", "new.deep.key=x", "training.steps=6", "top=1"])
    assert found == {
        "training": {"steps": 6, "rate": 2.0}, "corpora": [{"path": "a"}], "new": {"deep": {"key": "x"}}, "top": 1,
    }  # fmt: skip
    assert data == {"training": {"steps": 1, "rate": 2.0}, "corpora": [{"path": "a"}]}


@pytest.mark.parametrize("assignment", ["steps", "=3", "training.=3", ".steps=3", "a..b=1", ""])
def test_an_override_needs_a_key_and_a_value(assignment: str) -> None:
    with pytest.raises(ConfigError, match=r"expected section\.key=value, for example training.steps=1000"):
        apply_overrides({}, [assignment])


@pytest.mark.parametrize("assignment", ["steps.deep=1", "corpora.path=b"])
def test_only_sections_have_keys(assignment: str) -> None:
    part = assignment.split(".")[0]
    with pytest.raises(ConfigError, match=f"--set '{assignment}': '{part}' is not a section"):
        apply_overrides({"steps": 1, "corpora": [{"path": "a"}]}, [assignment])


# TOML.


def test_toml_leaves_out_none() -> None:
    data = {
        "a": 1,
        "section": {"x": 0.5, "deeper": {"s": 'q"\n'}, "none": None},
        "list": [{"k": True}, {}],
        "empty": {},
    }
    assert tomllib.loads(to_toml(data)) == {
        "a": 1,
        "section": {"x": 0.5, "deeper": {"s": 'q"\n'}},
        "list": [{"k": True}, {}],
        "empty": {},
    }


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=6) | TEXT
SCALARS = st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_written_toml_is_read_back_equal(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "round.toml"
    path.write_text(to_toml(data), encoding="utf-8")
    found = read_toml(path)
    assert found == data
    assert json.dumps(found, sort_keys=True) == json.dumps(data, sort_keys=True)  # tells 1 from 1.0 and from true


def test_a_recipe_is_read_back_equal_from_toml(tmp_path: Path) -> None:
    recipe = Recipe(training=Training(rate=1e-9, note="\x7f\x00 ü"), corpora=(Corpus(path="C:\\x"),))
    (tmp_path / "r.toml").write_text(to_toml(recipe.as_dict()), encoding="utf-8")
    assert Recipe.parse(read_toml(tmp_path / "r.toml"), "r.toml") == recipe


def test_broken_toml_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text("[training]\nsteps = 3\nrate = = 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"r\.toml: not valid TOML: .*line 3"):
        read_toml(path)


def test_files_that_are_not_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"cannot be read .*; expected a TOML file"):
        read_toml(tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes("a = 'ü'".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.toml: not UTF-8 text; expected a TOML file"):
        read_toml(latin)
    with pytest.raises(ConfigError, match=r"cannot be read .*; expected a TOML file"):
        read_toml(latin / "r.toml")
    latin.write_text("a = " + "9" * 5000)
    with pytest.raises(ConfigError, match=r"latin\.toml: not valid TOML"):
        read_toml(latin)


class Inner(Config):
    """A nested config."""

    size: int = 3
    new: Annotated[bool, Inert(False)] = True


class Outer(Config):
    """A config with options of several kinds."""

    kind: Literal["outer"] = "outer"
    name: str
    limit: int | None = None
    inner: Inner = Field(default_factory=Inner)
    items: tuple[Inner, ...] = ()


def test_missing_keys_of_saved_files_are_inert() -> None:
    found = Outer.parse_saved({"name": "a", "items": [{"size": 1}, {"new": True}]}, "file")
    assert (found.inner.new, [item.new for item in found.items]) == (False, [False, True])
    assert Outer.parse({"name": "a", "items": [{}]}, "recipe").items[0].new


def test_active_options_are_those_that_are_not_inert() -> None:
    assert Outer.parse_saved({"name": "a"}, "file").active_options() == {"kind": "outer", "name": "a"}
    found = Outer.parse({"name": "a", "limit": 2, "items": [{"size": 3, "new": False}, {"size": 4}]}, "recipe")
    items = [{}, {"size": 4, "new": True}]
    assert found.active_options() == {"kind": "outer", "name": "a", "limit": 2, "inner": {"new": True}, "items": items}


def test_what_has_begun_keeps_inert_values_unless_an_option_is_set() -> None:
    begun = Outer.parse_saved({"name": "a", "items": [{"size": 1}]}, "run")
    resumed = Outer.parse({"name": "a", "items": [{"size": 1}]}, "recipe").with_inert_values_of(begun)
    assert resumed == begun
    given = Outer.parse({"name": "b", "inner": {"new": True}, "items": [{"size": 1}]}, "recipe").with_inert_values_of(
        begun
    )
    assert (given.name, given.inner.new, given.items[0].new) == ("b", True, False)


def test_none_is_inert_only_as_the_default() -> None:
    """A saved file does not contain None, so a missing key would not say whether it was None."""
    pytest.importorskip("starlette", reason="the configurations of the service need the extra serve")
    for module in pkgutil.walk_packages(headway.__path__, "headway."):
        if module.name != "headway.serve.ray":
            importlib.import_module(module.name)
    waiting = [Config]
    for config in waiting:
        waiting += config.__subclasses__()
        for name, value in config.inert_values().items():
            default = config.model_fields[name].default
            assert (value is None) == (default is None and config.model_fields[name].default_factory is None), name
