"""The fields and keys of requests to the DeepL API, which may be JSON, forms or query strings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from headway.serve.apis.keys import KeyLocation
from headway.serve.apis.request_fields import authorization
from headway.serve.apis.request_fields import optional_text as _optional_text
from headway.serve.errors import BadRequestError, UnknownLanguageError

optional_text = partial(_optional_text, problem="Value for '{}' not supported.")

_SCHEME = "deepl-auth-key"
_FORMALITIES = ("default", "less", "more", "prefer_less", "prefer_more")
_NOT_SUPPORTED = {
    "style_id": "no model follows style rules",
    "custom_instructions": "no model follows instructions",
    "translation_memory_id": "there are no translation memories",
    "glossary_ids": "a translation uses at most one glossary (glossary_id)",
}
_FLAGS = {"0": False, "1": True, "false": False, "true": True}


KEY_LOCATION = KeyLocation(lambda head: authorization(head, _SCHEME), field_names=("auth_key",), is_required=True)


def read_texts(fields: dict[str, Any]) -> list[str]:
    """Return the values of the field ``text``."""
    given = fields.get("text")
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list) or not listed:
        raise BadRequestError("Parameter 'text' not specified.")
    if not all(isinstance(text, str) for text in listed):
        raise BadRequestError("Value for 'text' not supported.")
    return listed


def required_text(fields: dict[str, Any], name: str) -> str:
    """Return the string in a field, which must not be empty."""
    value = optional_text(fields, name)
    if value is None:
        raise BadRequestError(f"Parameter '{name}' not specified.")
    return value


def read_choice(fields: dict[str, Any], name: str, accepted: Sequence[str], default: str | None) -> str | None:
    """Return the value of a field, which must be one of ``accepted``, or ``default`` if the field is missing."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, (bool, int)):
        value = str(int(value))
    if value not in accepted:
        raise BadRequestError(f"Value for '{name}' not supported.")
    return value


def read_flag(fields: dict[str, Any], name: str, default: bool = False) -> bool:
    """Return the value of a Boolean field, or ``default`` if the field is missing."""
    value = fields.get(name)
    setting = _FLAGS.get(str(value).lower()) if value is not None else default
    if setting is None:
        raise BadRequestError(f"Value for '{name}' not supported.")
    return setting


def read_names(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    """Return the names in a field, which is a list or a comma-separated string."""
    value = fields.get(name) or []
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise BadRequestError(f"Value for '{name}' not supported.")
    return tuple(filter(None, (part.strip() for item in listed for part in item.split(","))))


def unsupported_language_error(error: UnknownLanguageError) -> BadRequestError:
    """Return the error for a request in languages that no model translates."""
    name = "source_lang" if error.side == "source" else "target_lang"
    detected = "" if error.detected_index is None else f" The detected language is {error.source.upper()}."
    return BadRequestError(f"{error.text_prefix}Value for '{name}' not supported.{detected}")


def check_formality(fields: dict[str, Any]) -> None:
    """Raise :class:`BadRequestError` if a formality is required, not just preferred."""
    if read_choice(fields, "formality", _FORMALITIES, "default") in ("less", "more"):
        raise BadRequestError("'formality' is not supported for given 'target_lang'.")


def check_unsupported_fields(fields: dict[str, Any]) -> None:
    """Raise :class:`BadRequestError` if a field would change the translation in a way that no model supports."""
    for name, reason in _NOT_SUPPORTED.items():
        if fields.get(name):
            raise BadRequestError(f"Value for '{name}' not supported: {reason}")
