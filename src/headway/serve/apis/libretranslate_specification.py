"""The description of the LibreTranslate API that /spec returns, in LibreTranslate's format (Swagger 2.0)."""

from __future__ import annotations

from typing import Any

from headway.version import __version__

_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}
_ERROR = {"type": "object", "properties": {"error": _TEXT}}
_ONE_OR_LIST = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_DETECTED = {"type": "object", "properties": {"confidence": {"type": "number"}, "language": _TEXT}}
_LANGUAGE = {
    "type": "object",
    "properties": {"code": _TEXT, "name": _TEXT, "targets": {"type": "array", "items": _TEXT}},
}
_KEY = ("api_key", _TEXT, False, "API key")
_SOURCE = ("source", _TEXT, True, "Source language code, or auto")
_TARGET = ("target", _TEXT, True, "Target language code")


def _operation(
    summary: str, result: dict[str, Any], *fields: tuple[str, dict[str, Any], bool, str], errors: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Return the description of an operation.

    Args:
        summary: Summary of the operation.
        result: Schema of the reply.
        fields: For each form field: its name, its schema, whether it is required, and its description.
        errors: HTTP statuses of error replies.
    """
    described = [
        {"in": "formData", "name": name, "schema": schema, "required": required, "description": description}
        for name, schema, required, description in fields
    ]
    failed = {str(status): {"description": "Error", "schema": _ERROR} for status in errors}
    replies = {"200": {"description": "Success", "schema": result}, **failed}
    return {"summary": summary, "tags": ["translate"], "parameters": described, "responses": replies}


SPECIFICATION: dict[str, Any] = {
    "swagger": "2.0",
    "info": {"title": "LibreTranslate", "version": __version__, "description": "Served by Headway."},
    "basePath": "/",
    "consumes": ["application/json", "application/x-www-form-urlencoded", "multipart/form-data"],
    "produces": ["application/json"],
    "paths": {
        "/translate": {
            "post": _operation(
                "Translate text from a language to another",
                {
                    "type": "object",
                    "properties": {
                        "translatedText": _ONE_OR_LIST,
                        "alternatives": {"type": "array", "items": _TEXT},
                        "detectedLanguage": _DETECTED,
                    },
                },
                ("q", _ONE_OR_LIST, True, "Text or texts to translate"),
                _SOURCE,
                _TARGET,
                ("format", {"type": "string", "enum": ["text", "html"]}, False, "Format of the texts"),
                ("alternatives", {"type": "integer"}, False, "Number of alternative translations"),
                _KEY,
                errors=(400, 403, 429, 500),
            )
        },
        "/detect": {
            "post": _operation(
                "Detect the language of a single text",
                {"type": "array", "items": _DETECTED},
                ("q", _TEXT, True, "Text"),
                _KEY,
                errors=(400, 403, 429, 500),
            )
        },
        "/languages": {
            "get": _operation("Retrieve list of supported languages", {"type": "array", "items": _LANGUAGE})
        },
        "/translate_file": {
            "post": _operation(
                "Translate file from a language to another",
                {"type": "object", "properties": {"translatedFileUrl": _TEXT}},
                ("file", {"type": "file"}, True, "File to translate"),
                _SOURCE,
                _TARGET,
                _KEY,
                errors=(400, 403, 429, 500),
            )
        },
        "/suggest": {
            "post": _operation(
                "Submit a suggestion to improve a translation",
                {"type": "object", "properties": {"success": _FLAG}},
                ("q", _TEXT, True, "Original text"),
                ("s", _TEXT, True, "Suggested translation"),
                _SOURCE,
                _TARGET,
                errors=(403,),
            )
        },
        "/frontend/settings": {"get": _operation("Retrieve frontend specific settings", {"type": "object"})},
        "/health": {"get": _operation("Check the service", {"type": "object", "properties": {"status": _TEXT}})},
        "/spec": {"get": _operation("Describe the API", {"type": "object"})},
    },
}
