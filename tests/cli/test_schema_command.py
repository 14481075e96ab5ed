"""``headway schema``: the JSON Schemas accept and refuse the same input as the parsers."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from headway.bundle import load_bundle
from headway.cli.commands.schema import bundle_schema, glossary_schema, recipe_schema, serve_schema
from headway.errors import ConfigError, DataError, HeadwayError
from headway.models.registry import ARCHITECTURES
from headway.predict import Glossary
from headway.serve.config import ServeConfig
from headway.tasks import parse_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
SCHEMA = Draft202012Validator(recipe_schema())
MINIMAL: dict[str, Any] = {"data": {"train": [{"files": ["a", "b"]}], "dev": {"files": ["c", "d"]}}}


def accepted(data: dict[str, Any]) -> bool:
    try:
        parse_recipe(data, "test")
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("name", ["recipe", "bundle", "glossary", "serve"])
def test_the_schemas_are_valid_schemas(name: str) -> None:
    ended = run("schema", name)
    assert ended.code == 0, ended
    Draft202012Validator.check_schema(json.loads(ended.out))


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_fits_and_names_the_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    SCHEMA.validate(tomllib.loads(text))
    assert "#:schema ./schema/recipe.json\n" in text


def test_the_stored_schema_is_the_current_one() -> None:
    stored = (RECIPES / "schema" / "recipe.json").read_text(encoding="utf-8")
    assert stored == json.dumps(recipe_schema(), indent=2, ensure_ascii=False) + "\n", "run: make generated"


def fields() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Return the section, name and schema of every key of a recipe."""
    whole = recipe_schema()
    for section, node in whole["properties"].items():
        names = [node["$ref"]] if "$ref" in node else [option["$ref"] for option in node["anyOf"]]
        for name in names:
            for key, schema in whole["$defs"][name.removeprefix("#/$defs/")]["properties"].items():
                yield section, key, schema


def section_of(section: str, key: str) -> dict[str, Any]:
    """Return a section of a recipe in which ``key`` is allowed."""
    if section != "model":
        return dict(MINIMAL.get(section, {}))
    kind = next(
        kind for kind, each in ARCHITECTURES.items() if key == "preset" or key in each.config_class.model_fields
    )
    return {"kind": kind}


@pytest.mark.parametrize(("section", "key"), sorted({(section, key) for section, key, _ in fields()}))
def test_wrong_types_and_unknown_keys_are_refused_by_both(section: str, key: str) -> None:
    for name, wrong in ((key, {"a": {"b": 1}}), (key, [[1]]), (f"{key}_x", 1)):
        if name == "languages":
            continue
        data = {**MINIMAL, section: {**section_of(section, key), name: wrong}}
        assert not accepted(data), (section, name, wrong)
        assert not SCHEMA.is_valid(data), (section, name, wrong)


@pytest.mark.parametrize(
    ("section", "key", "schema"),
    [each for each in fields() if {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} & each[2].keys()],
)
def test_numbers_out_of_range_are_refused_by_both(section: str, key: str, schema: dict[str, Any]) -> None:
    edges = [(schema[name], step) for name, step in (("minimum", -1), ("maximum", 1)) if name in schema]
    edges += [(schema[name], 0) for name in ("exclusiveMinimum", "exclusiveMaximum") if name in schema]
    for edge, step in edges:
        data = {**MINIMAL, section: {**section_of(section, key), key: edge + step}}
        assert not accepted(data), (section, key, edge)
        assert not SCHEMA.is_valid(data), (section, key, edge)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": {"preset": "tiny"}},
        {"model": {"kind": "recurrent", "preset": "luong"}},
        {"model": {"kind": "transformer", "d_model": 64, "num_heads": 4}},
        {"task": {"kind": "classification"}, "data": {"train": [{"files": ["a.tsv"]}]}, "model": {"max_length": 9},
         "validation": {"metric": "loss"}},
        {"training": {"steps": 3, "seed": 7}, "optimizer": {"schedule": "constant"}},
    ],
)  # fmt: skip
def test_good_recipes_are_accepted_by_both(changes: dict[str, Any]) -> None:
    data = {**MINIMAL, **changes}
    assert accepted(data)
    SCHEMA.validate(data)


@pytest.mark.parametrize(
    "changes",
    [{"model": {"preset": "huge"}}, {"model": {"kind": "x"}}, {"task": {"kind": "x"}}, {"data": {}}, {"x": {}},
     {"data": {"train": "a"}}, {"optimizer": {"schedule": "x"}}],
)  # fmt: skip
def test_bad_recipes_are_refused_by_both(changes: dict[str, Any]) -> None:
    data = {**MINIMAL, **changes}
    assert not accepted(data)
    assert not SCHEMA.is_valid(data)


def test_model_folders_fit(
    tmp_path: Path, make_translator: Callable[..., Any], make_classifier: Callable[..., Any]
) -> None:
    validator = Draft202012Validator(bundle_schema())
    for name, made in (("one", make_translator()), ("two", make_classifier())):
        made.bundle.save(tmp_path / name, "# Card")
        path = tmp_path / name / "config.json"
        config = json.loads(path.read_text())
        validator.validate(config)
        for key in ("format", "task", "model", "tokenizers"):
            damaged = {other: value for other, value in config.items() if other != key}
            path.write_text(json.dumps(damaged))
            assert not validator.is_valid(damaged)
            with pytest.raises(HeadwayError):
                load_bundle(tmp_path / name)


def test_rows_of_a_glossary() -> None:
    validator = Draft202012Validator(glossary_schema())
    assert validator.is_valid([["Haus", "house|home"], ["Mars", "Mars", "exact"]])
    for row in (["Haus"], ["", "house"], ["Haus", "house", "never"], ["a", "b", "exact", "d"]):
        assert not validator.is_valid([row])


PIECES = st.lists(st.sampled_from(["a", " ", "|", "\u3000", "\t", "\n", "\x7f", "ß", "😀", "*"]), max_size=4).map(
    "".join
)
ROWS = st.tuples(PIECES, PIECES) | st.tuples(PIECES, PIECES, st.sampled_from(["ignore", "exact", "", " ", "no"]))


@given(row=ROWS | st.tuples(PIECES) | st.tuples(*[PIECES] * 4))
@settings(derandomize=True, max_examples=500)
def test_the_schema_of_a_glossary_accepts_what_the_parser_accepts(row: tuple[str, ...]) -> None:
    try:
        Glossary([row])
        accepted = True
    except DataError:
        accepted = False
    assert Draft202012Validator(glossary_schema()).is_valid([list(row)]) == accepted


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"port": 70000},
        {"workers": 0},
        {"prot": 5000},
        {"models": [{"path": "a", "precision": "int4"}]},
        {"models": [{"name": "a"}]},
        {"limits": {"queue_seconds": 0}},
        {"keys": [{"name": "a", "sha256": "foo"}]},
    ],
)
def test_the_schema_of_the_service_accepts_what_the_parser_accepts(changes: dict[str, Any]) -> None:
    """The example in the docs is valid, and is not with a wrong value."""
    page = (RECIPES.parent / "docs" / "serving.md").read_text(encoding="utf-8")
    example = page.partition("## serve.toml")[2].partition("```toml\n")[2].partition("```")[0]
    data = tomllib.loads(example) | changes
    try:
        ServeConfig.parse(data, "test")
        accepted = True
    except ConfigError:
        accepted = False
    assert Draft202012Validator(serve_schema()).is_valid(data) == accepted == (not changes)
