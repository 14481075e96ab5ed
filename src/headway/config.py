"""The base of all configuration: TOML in, frozen validated models out, errors in the user's language.

Each part of Headway owns a subclass of :class:`Config` for its section; the recipe that joins them lives with training.
An unknown key is refused with the nearest spelling, a value out of range with the range. Overrides (``a.b=c``) come
from the command line. :func:`to_toml` writes what :func:`read_toml` reads back equal.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from headway.errors import ConfigError

__all__ = ["Config", "applied_preset", "listed", "nearest", "override", "read_toml", "to_toml"]

_SHOWN, _LONGEST = 20, 40  # words in an error message, and characters of each

ConfigT = TypeVar("ConfigT", bound="Config")


class Config(BaseModel):
    """A frozen, validated section of a recipe. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls: type[ConfigT], data: Any, origin: str) -> ConfigT:
        """Validate keys and values read from ``origin`` (a file name or "options"), raising :class:`ConfigError`."""
        try:
            return cls.model_validate(dict(data) if isinstance(data, Mapping) else data)
        except ValidationError as error:
            problems = [_explain(cls, problem) for problem in error.errors()]
            raise ConfigError(f"{origin}: " + "; ".join(problems)) from None

    def as_dict(self) -> dict[str, Any]:
        """Plain values as TOML and JSON hold them; keys whose value is None are left out."""
        return self.model_dump(mode="json", exclude_none=True)


def applied_preset(data: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """``data`` with what its key ``preset``, if any, stands for; keys beside it win."""
    if "preset" not in data:
        return dict(data)
    rest = {key: value for key, value in data.items() if key != "preset"}
    if not isinstance(data["preset"], str) or data["preset"] not in presets:
        raise ValueError(f"preset = {data['preset']!r}: expected one of {', '.join(presets)}")
    return {**presets[data["preset"]], **rest}


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that ends an error message: the nearest known word, or what is known where none is near."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {_clipped(close[0])!r}?" if close else "known: " + listed(known)


def listed(words: Sequence[str]) -> str:
    """Words in an error message: as many of them, and as much of each, as somebody reads."""
    more = f", … ({len(words):,} in all)" if len(words) > _SHOWN else ""
    return ", ".join(map(_clipped, words[:_SHOWN])) + more


def _clipped(word: str) -> str:
    return word if len(word) <= _LONGEST else word[: _LONGEST - 1] + "…"


def _explain(model: type[BaseModel], problem: Mapping[str, Any]) -> str:
    keys, section = _place(model, problem["loc"])
    key = ".".join(keys)
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}; {nearest(keys[-1], section.model_fields)}"
        case "missing":
            return f"key {key!r} is missing"
        case "union_tag_invalid":
            known = str(problem["ctx"]["expected_tags"]).replace("'", "").split(", ")
            tag = str(problem["ctx"]["tag"])
            return f"{key}.{str(problem['ctx']['discriminator']).strip(chr(39))} = {tag!r}: {nearest(tag, known)}"
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message[:1].lower() + message[1:]
    if not key:
        return message
    if isinstance(problem["input"], (dict, BaseModel)):
        return f"{key}: {message}"
    return f"{key} = {problem['input']!r}: {message}"


def _place(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[list[str], type[BaseModel]]:
    """The keys that a location stands for, and the section that the last of them is in.

    In a union told apart by a tag, pydantic's location names the tag, which is no key.
    """
    keys: list[str] = []
    owner, inner = model, [model]
    for part in location:
        if len(inner) > 1:  # a union: this part is the tag
            inner = [each for each in inner if part in _tags(each)] or inner[:1]
            continue
        keys.append(str(part))
        if isinstance(part, str) and inner:
            owner = inner[0]
            inner = _models_in(owner.model_fields[part].annotation) if part in owner.model_fields else []
    return keys, owner


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The model classes inside an annotation such as ``tuple[Corpus, ...] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models_in(part)]


def _tags(model: type[BaseModel]) -> list[str]:
    """What a model's fields of one possible value have as that value."""
    literals = (get_args(field.annotation) for field in model.model_fields.values())
    return [values[0] for values in literals if len(values) == 1 and isinstance(values[0], str)]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; :class:`ConfigError` names the file, and the line where the syntax breaks."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a TOML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; expected a TOML file") from None
    except ValueError as error:  # TOMLDecodeError, or Python's own for a number of thousands of digits
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def override(data: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """A copy of ``data`` with each ``section.key=value`` put in; the value is TOML, or else taken as a string."""
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
    """Write nested plain values as TOML: scalars of a table first, then its sub-tables; tables in lists inline."""
    return "\n".join(_table_lines(data, ())).strip() + "\n"


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    scalars = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = ["", f"[{'.'.join(map(_key, path))}]"] if path and (scalars or not table) else []
    lines += [f"{_key(key)} = {_inline(value)}" for key, value in scalars.items() if value is not None]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _table_lines(value, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _inline(key)


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_inline(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inside} }}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
