"""``headway schema``: print JSON Schemas of the file formats that people and programs write."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headway.cli.command_groups import CommandGroup

if TYPE_CHECKING:
    from pydantic import BaseModel

GROUP = CommandGroup.UNDERSTAND
JsonSchema = dict[str, Any]
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(
    name: Annotated[
        Literal["recipe", "bundle", "glossary", "serve", "clean"],
        typer.Argument(
            help="recipe: a TOML recipe; bundle: a model folder's config.json; glossary: a glossary's rows; serve: "
            "serve.toml; clean: clean.toml, the configuration of headway corpus clean."
        ),
    ],
) -> None:
    """Print the JSON Schema of a file format, for editors and for programs that write such files.

    Recipes refer to their schema in a comment, so that editors with a TOML language server (taplo) can complete and
    check their keys.
    """
    makers: dict[str, Callable[[], JsonSchema]] = {
        "recipe": recipe_schema, "bundle": bundle_schema, "glossary": glossary_schema, "serve": serve_schema,
        "clean": clean_schema,
    }  # fmt: skip
    print(json.dumps(makers[name](), indent=2, ensure_ascii=False))


def recipe_schema() -> JsonSchema:
    """Return the JSON Schema of a recipe. It omits constraints between keys, such as "num_heads divides d_model"."""
    from headway.tasks import TASKS
    from headway.training.recipe import Recipe

    whole = _schema_of(Recipe, "Headway recipe", nullable=False)
    for task in TASKS.values():
        task_schema = _cleaned(task.recipe_type.model_json_schema(), nullable=False)
        whole["$defs"] = dict(sorted({**task_schema["$defs"], **whole["$defs"]}.items()))
        sections = {name: node for name, node in task_schema["properties"].items() if name != "model"}
        _add_keys(whole, {"properties": sections}, whole["$defs"])
    while unused := [name for name in whole["$defs"] if f'"#/$defs/{name}"' not in json.dumps(whole)]:
        whole["$defs"] = {name: node for name, node in whole["$defs"].items() if name not in unused}
    return whole


def _add_keys(node: JsonSchema, extra: JsonSchema, definitions: Mapping[str, JsonSchema]) -> None:
    """Add a task's additional keys: keys of ``extra`` that ``node`` does not have, including keys of nested tables."""
    node, extra = (
        definitions[schema_node["$ref"].removeprefix("#/$defs/")] if "$ref" in schema_node else schema_node
        for schema_node in (node, extra)
    )
    for key, schema in extra.get("properties", {}).items():
        _add_keys(node["properties"].setdefault(key, schema), schema, definitions)
    if "items" in extra:
        _add_keys(node["items"], extra["items"], definitions)


def bundle_schema() -> JsonSchema:
    """Return the JSON Schema of a model folder's config.json."""
    from pydantic import BaseModel, Field

    from headway.bundle import FORMAT_VERSION, TaskConfig
    from headway.models.registry import ModelConfig
    from headway.text.special_tokens import SpecialTokenTemplate

    pattern, description = r"^\w[\w.-]*$", "Name of the tokenizer's files, without extension."

    class TokenizerNames(BaseModel):
        source: str = Field(pattern=pattern, description=description)
        target: str = Field(pattern=pattern, description=description)

    class ConfigFile(BaseModel):
        format: int = Field(ge=1, le=FORMAT_VERSION, description="Version of the format.")
        task: TaskConfig
        model: ModelConfig
        tokenizers: TokenizerNames
        labels: list[str] = Field(
            [], min_length=1, json_schema_extra={"uniqueItems": True},
            description="Names of the classes, in the order of the logits.",
        )  # fmt: skip
        framing: SpecialTokenTemplate = SpecialTokenTemplate()

    whole = _schema_of(ConfigFile, "Headway model folder: config.json", nullable=True)
    for name in ("labels", "framing"):
        del whole["properties"][name]["default"]  # the keys have no default: a file without them is invalid
    return whole


def glossary_schema() -> JsonSchema:
    """Return the JSON Schema of a glossary's rows; a row is a line of a TSV or CSV file."""
    from headway.predict.translation.glossary import CASE_RULES, SOURCE_PATTERN, TARGET_PATTERN

    columns = [
        {"type": "string", "pattern": SOURCE_PATTERN, "description": "Source phrase, matched as whole words."},
        {"type": "string", "pattern": TARGET_PATTERN, "description": "Target phrase; alternatives are separated by |."},
        {
            "enum": [*CASE_RULES, ""],
            "description": "exact: source and target must match the case of the entry. ignore (default): the case of "
            "the source does not matter, and the target may also begin with a capital letter.",
        },
    ]
    row = {"type": "array", "prefixItems": columns, "items": False, "minItems": 2}
    return {"$schema": _DIALECT, "title": "Headway glossary", "type": "array", "items": row}


def serve_schema() -> JsonSchema:
    """Return the JSON Schema of serve.toml."""
    from headway.serve.config import ServeConfig

    return {"$schema": _DIALECT, **_cleaned(ServeConfig.model_json_schema(), nullable=False), "title": "serve.toml"}


def clean_schema() -> JsonSchema:
    """Return the JSON Schema of clean.toml."""
    from headway.corpus.cleaning.config import CleaningConfig

    return {"$schema": _DIALECT, **_cleaned(CleaningConfig.model_json_schema(), nullable=False), "title": "clean.toml"}


def _schema_of(config: type[BaseModel], title: str, *, nullable: bool) -> JsonSchema:
    """Return the schema of ``config``, whose key ``model`` contains the options of any single architecture.

    ``kind`` may be omitted for an architecture that is the default of a task. As in the parser, ``preset`` may replace
    the options for the model's size.
    """
    from pydantic.json_schema import models_json_schema

    from headway.models.registry import ARCHITECTURES
    from headway.tasks import TASKS

    whole = _cleaned(config.model_json_schema(), nullable=nullable)
    _, schemas = models_json_schema([(entry.config_class, "validation") for entry in ARCHITECTURES.values()])
    whole["$defs"] = dict(sorted({**_cleaned(schemas["$defs"], nullable=nullable), **whole["$defs"]}.items()))
    defaults = {task.recipe_type.default_model for task in TASKS.values()}
    options: list[JsonSchema] = []
    for kind, architecture in ARCHITECTURES.items():
        name = architecture.config_class.__name__
        if presets := architecture.config_class.presets:
            whole["$defs"][name]["properties"]["preset"] = {
                "enum": sorted(presets), "description": "Name of a published model whose sizes become the defaults."
            }  # fmt: skip
        options.append({"$ref": f"#/$defs/{name}"} | ({} if kind in defaults else {"required": ["kind"]}))
    description = "The model: one architecture and its options."
    whole["properties"]["model"] = {"anyOf": options, "description": description}
    return {"$schema": _DIALECT, **whole, "title": title}


def _cleaned(node: Any, *, nullable: bool) -> Any:
    """Return the schema without generated titles and, unless ``nullable``, without null, which TOML lacks."""
    if isinstance(node, list):
        return [_cleaned(child, nullable=nullable) for child in node]
    if not isinstance(node, dict):
        return node
    result = {
        key: {name: _cleaned(child, nullable=nullable) for name, child in value.items()}
        if key in ("properties", "$defs")
        else _cleaned(value, nullable=nullable)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str)) and key != "discriminator"
    }
    if nullable or "anyOf" not in result:
        return result
    options = [child for child in result.pop("anyOf") if child != {"type": "null"}]
    if result.get("default", 0) is None:
        del result["default"]
    return {**options[0], **result} if len(options) == 1 else {**result, "anyOf": options}
