"""Base class of all configuration: TOML files are parsed into frozen, validated pydantic models.

Each package defines a subclass of :class:`Config` for its section, and the recipe in ``training`` combines them. An
error about an unknown key suggests the most similar known key, and an error about a value lists the accepted values. On
the command line, ``section.key=value`` overrides a value.

Every option has an *inert* value, which gives the same behavior as before the option existed. It is the default, unless
the annotation of the field contains :class:`Inert`. A key that is missing from a file that Headway wrote
(:meth:`Config.parse_saved`) gets its inert value, because the option did not exist when the file was written. Cache
keys contain only the options that are not inert (:meth:`Config.active_options`). Therefore neither a new option nor a
new default makes a saved file invalid.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError, PydanticKnownError, core_schema

from headway.errors import ConfigError

# Maximum number of words in a list in an error message, and maximum length of each word.
_MAX_WORDS, _MAX_CHARACTERS = 20, 40
_MAX_PROBLEMS = 20  # maximum number of problems in an error message

ANY_VALUE = None
"""Stands for all values of an option in a table of supported values (:meth:`Config.unsupported_option`)."""

ConfigT = TypeVar("ConfigT", bound="Config")


@dataclass(frozen=True)
class Inert:
    """Marks the inert value of an option, if it is not the default: the behavior from before the option existed.

    It is part of the field's annotation: ``Annotated[bool, Inert(False)] = True``. None cannot be inert unless it is
    also the default, because files do not contain None.
    """

    value: Any


@dataclass(frozen=True)
class ConfigByKind:
    """Marks a field whose values are configs of different classes, selected by the key ``kind``.

    It is part of the field's annotation, like ``Field(discriminator="kind")`` for a fixed union of classes. The table
    is read at each validation, so kinds can be added after the config with this field has been defined.

    Args:
        table: Function that returns the table of kinds.
        config_class: Function that maps a table entry to its config class.
        register: The name of the function that adds to the table, for messages.
    """

    table: Callable[[], Mapping[str, Any]]
    config_class: Callable[[Any], type[Config]]
    register: str

    def all_classes(self) -> list[type[Config]]:
        """Return the config classes of all kinds."""
        return list(map(self.config_class, self.table().values()))

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        serializer = core_schema.simple_ser_schema("any")
        return core_schema.with_info_plain_validator_function(self._validated, serialization=serializer)

    def __get_pydantic_json_schema__(
        self, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "object"}  # more classes may be registered later

    def _validated(self, value: Any, info: Any) -> Config:
        table = self.table()
        if isinstance(value, Config):
            kind = str(dict(value).get("kind"))
            if kind in table and isinstance(value, self.config_class(table[kind])):
                return value
        if not isinstance(value, Mapping):
            raise PydanticKnownError("model_attributes_type")
        if "kind" not in value:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        kind = value["kind"]
        if not isinstance(kind, str) or kind not in table:
            facts = {"kind": str(kind), "hint": unregistered_hint(str(kind), table, self.register)}
            raise PydanticCustomError("unknown_kind", "unknown kind", facts)
        try:
            return self.config_class(table[kind]).model_validate(value, context=info.context)
        except ValidationError as error:  # include the kind in the location, as pydantic does for a union
            details = [
                InitErrorDetails(
                    type=problem["type"],
                    loc=(kind, *problem["loc"]),
                    input=problem["input"],
                    ctx=problem.get("ctx", {}),
                )
                for problem in error.errors(include_url=False)
            ]
            raise ValidationError.from_exception_data(error.title, details) from None


@dataclass(frozen=True)
class KindName:
    """Marks a field whose values are names in a table. It is part of the field's annotation; the field's type is
    ``str``.

    Args:
        table: Function that returns the table.
        register: The name of the function that adds to the table, for messages.
    """

    table: Callable[[], Mapping[str, Any]]
    register: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": list(self.table()), "type": "string"}

    def _checked(self, kind: str) -> str:
        table = self.table()
        try:
            table[kind]
        except KeyError:
            raise ValueError(unregistered_hint(kind, table, self.register)) from None
        return kind


class Config(BaseModel):
    """A frozen and validated set of options. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls: type[ConfigT], data: Any, origin: str) -> ConfigT:
        """Validate ``data``. Missing keys have their default values.

        Raises:
            ConfigError: A key or value is invalid. The message begins with ``origin``, for example a file name.
        """
        return cls._validated(data, origin)

    @classmethod
    def parse_saved(cls: type[ConfigT], data: Any, origin: str) -> ConfigT:
        """Validate ``data`` that this or an earlier version of Headway wrote. Missing keys have inert values.

        Raises:
            ConfigError: A key or value is invalid. The message begins with ``origin``, for example a file name.
        """
        return cls._validated(data, origin, context=_SAVED)

    @classmethod
    def _validated(cls: type[ConfigT], data: Any, origin: str, context: object = None) -> ConfigT:
        try:
            return cls.model_validate(dict(data) if isinstance(data, Mapping) else data, context=context)
        except ValidationError as error:
            problems = [_message(cls, problem) for problem in error.errors(include_url=False)[:_MAX_PROBLEMS]]
            raise ConfigError(f"{origin}: " + "; ".join(problems)) from None

    @model_validator(mode="before")
    @classmethod
    def _fill_in_inert_values(cls, data: Any, info: Any) -> Any:
        if info.context is not _SAVED or not isinstance(data, Mapping):
            return data
        return {**_inert_but_not_default(cls), **data}

    @classmethod
    def inert_values(cls) -> dict[str, Any]:
        """Return the inert value of each option that has the same default in all configs."""
        return {
            name: _declared_inert(field)[0] if _declared_inert(field) else field.get_default(call_default_factory=True)
            for name, field in cls.model_fields.items()
            if not field.is_required() and not field.default_factory_takes_validated_data
        }

    def active_options(self) -> dict[str, Any]:
        """Return the options that are not inert, as JSON values, and the kind of the config if it has one."""
        inert, kinds, plain = self.inert_values(), _kind_keys(type(self)), self.model_dump(mode="json")
        active: dict[str, Any] = {}
        for name in type(self).model_fields:
            value, usual = getattr(self, name), inert.get(name)
            if name in kinds or name not in inert or (not isinstance(value, Config) and value != usual):
                active[name] = plain[name]
            if isinstance(value, Config) and ((inner := value.active_options()) or type(value) is not type(usual)):
                active[name] = inner
            elif isinstance(value, tuple) and name in active:
                items = zip(value, plain[name], strict=True)
                active[name] = [item.active_options() if isinstance(item, Config) else json for item, json in items]
        return active

    def unsupported_option(self, supported: Mapping[str, Sequence[Any] | None]) -> str | None:
        """Return the name of the first option whose value is not supported, or None if all values are.

        Args:
            supported: The supported values of each option; :data:`ANY_VALUE` means all. An option that is not listed
                must have its inert value, so a new option that is not listed yet is supported as long as it has no
                effect.
        """
        inert = self.inert_values()
        for name in type(self).model_fields:
            values = supported.get(name, (inert.get(name),))
            if values is not ANY_VALUE and getattr(self, name) not in values:
                return name
        return None

    @property
    def is_default(self) -> bool:
        """Whether all options have the values that they would have if all keys were missing, in a recipe or in a saved
        file.
        """
        return self in (type(self)(), type(self).parse_saved({}, ""))

    def with_inert_values_of(self: ConfigT, saved: ConfigT) -> ConfigT:
        """Return this config, but with the inert values of ``saved`` for options that were not set.

        A run started with ``saved`` can thus be resumed even if an option was added later and its default is not inert.
        """
        inert = self.inert_values()

        def kept(name: str) -> Any:
            ours, theirs = getattr(self, name), getattr(saved, name)
            if name not in self.model_fields_set and name in inert and theirs == inert[name]:
                return theirs
            if isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
                return tuple(_with_inert_values_of(*pair) for pair in zip(ours, theirs, strict=True))
            return _with_inert_values_of(ours, theirs)

        kept_values = {name: kept(name) for name in type(self).model_fields}
        changes = {name: value for name, value in kept_values.items() if value != getattr(self, name)}
        return self.model_copy(update=changes) if changes else self

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for TOML or JSON. Keys whose value is None are omitted."""
        return self.model_dump(mode="json", exclude_none=True)


_SAVED = object()  # validation context for saved files


def _declared_inert(field: FieldInfo) -> list[Any]:
    """Return a list with the inert value in a field's annotation, or an empty list if there is none."""
    return [entry.value for entry in field.metadata if isinstance(entry, Inert)]


def _inert_but_not_default(config: type[Config]) -> dict[str, Any]:
    """Return the inert values that differ from the defaults, including values of nested configs."""
    differing: dict[str, Any] = {}
    for name, value in config.inert_values().items():
        if _declared_inert(config.model_fields[name]):
            differing[name] = value
        elif isinstance(value, Config) and (inner := _inert_but_not_default(type(value))):
            differing[name] = {**{key: getattr(value, key) for key in _kind_keys(type(value))}, **inner}
    return differing


def _with_inert_values_of(ours: Any, theirs: Any) -> Any:
    return ours.with_inert_values_of(theirs) if isinstance(ours, Config) and type(ours) is type(theirs) else ours


def _kind_keys(config: type[BaseModel]) -> list[str]:
    """Return the fields that accept only one string. They distinguish config classes."""
    return [name for name, field in config.model_fields.items() if _only_value(field) is not None]


def _only_value(field: FieldInfo) -> str | None:
    values = get_args(field.annotation)
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None


def apply_preset(data: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Replace the key ``preset`` of ``data``, if any, with the values of that preset. Other keys take precedence."""
    if "preset" not in data:
        return dict(data)
    rest = {key: value for key, value in data.items() if key != "preset"}
    if not isinstance(data["preset"], str) or data["preset"] not in presets:
        raise ValueError(f"preset = {data['preset']!r}: expected one of {', '.join(presets)}")
    return {**presets[data["preset"]], **rest}


def flatten_items(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the items of nested tables, with dotted keys."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in flatten_items(value))
        else:
            yield key, value


def spelling_hint(word: str, known_words: Iterable[str]) -> str:
    """Return a hint for an error message: the most similar known word, or all known words if none is similar."""
    known = sorted(known_words)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {_clipped(close[0])!r}?" if close else "known: " + format_list(known)


def unregistered_hint(kind: str, table: Iterable[str], register: str) -> str:
    """Return a hint for an error message about an unknown kind: known kinds, and the function that registers others."""
    hint = spelling_hint(kind, table)
    end = " " if hint.endswith("?") else ". "
    return f"{hint}{end}If another package or a notebook defines it, first call {register} for it"


def format_list(words: Sequence[str]) -> str:
    """Join words for an error message. Long lists and long words are shortened."""
    more = f", … ({len(words):,} in all)" if len(words) > _MAX_WORDS else ""
    return ", ".join(map(_clipped, words[:_MAX_WORDS])) + more


def _clipped(word: str) -> str:
    return word if len(word) <= _MAX_CHARACTERS else word[: _MAX_CHARACTERS - 1] + "…"


def _message(model: type[BaseModel], problem: Mapping[str, Any]) -> str:
    keys, section = _resolve_location(model, problem["loc"])
    key = ".".join(keys)
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}; {spelling_hint(keys[-1], section.model_fields)}"
        case "missing":
            return f"key {key!r} is missing"
        case "unknown_kind":
            return f"{key}.kind = {problem['ctx']['kind']!r}: {problem['ctx']['hint']}"
        case "union_tag_invalid":
            known = str(problem["ctx"]["expected_tags"]).replace("'", "").split(", ")
            tag = str(problem["ctx"]["tag"])
            return f"{key}.{str(problem['ctx']['discriminator']).strip(chr(39))} = {tag!r}: {spelling_hint(tag, known)}"
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message[:1].lower() + message[1:]
    if not key:
        return message
    if isinstance(problem["input"], (dict, BaseModel)):
        return f"{key}: {message}"
    return f"{key} = {problem['input']!r}: {message}"


def _resolve_location(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[list[str], type[BaseModel]]:
    """Return the keys in a pydantic error location, and the class to which the last key belongs.

    For a tagged union, pydantic's location also contains the tag, which is not a key.
    """
    keys: list[str] = []
    owner, inner = model, [model]
    for part in location:
        if len(inner) > 1:  # a union: this part is the tag
            inner = [option for option in inner if part in _tags(option)] or inner[:1]
            continue
        keys.append(str(part))
        if isinstance(part, str) and inner:
            owner = inner[0]
            inner = _models_of(owner.model_fields[part]) if part in owner.model_fields else []
    return keys, owner


def _models_of(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the possible model classes of a field's values."""
    by_kind: list[type[BaseModel]] = [
        config for item in field.metadata if isinstance(item, ConfigByKind) for config in item.all_classes()
    ]
    return by_kind or _models_in(field.annotation)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the model classes in an annotation such as ``tuple[Corpus, ...] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _tags(model: type[BaseModel]) -> list[str]:
    """Return the values of all fields that accept only one string."""
    return [value for field in model.model_fields.values() if (value := _only_value(field)) is not None]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: The file cannot be read or parsed. The message contains the path and the line of a syntax error.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a TOML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; expected a TOML file") from None
    # TOMLDecodeError, or the error that Python raises for integers with thousands of digits
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def apply_overrides(data: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Return a copy of ``data`` with each ``section.key=value`` applied. A value that is not valid TOML is used as a
    string.
    """
    result = cast("dict[str, Any]", json.loads(json.dumps(data, default=str)))
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise ConfigError(f"--set {assignment!r}: expected section.key=value, for example training.steps=1000")
        section = result
        for part in parts[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise ConfigError(f"--set {assignment!r}: {part!r} is not a section")
        section[parts[-1]] = _toml_value(text.strip())
    return result


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def to_toml(data: Mapping[str, Any]) -> str:
    """Return nested plain values as TOML. Keys whose value is None are omitted."""
    return tomli_w.dumps(json.loads(json.dumps(data), object_hook=_without_none))


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
