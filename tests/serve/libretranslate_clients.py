"""Call a service at a URL with Python clients of LibreTranslate, and print what they got as JSON.

Arguments: the URL, a key, and a wrong key.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import argostranslate.apis
import deep_translator
import translate

URL, KEY, WRONG_KEY = sys.argv[1:]
TEXTS = ["Guten Morgen", "Grüße – 5 & 6?", "Zwei\nZeilen"]


def refusal(call: Callable[[], Any]) -> str:
    """Return the error that a call raises."""
    try:
        return f"no error, but {call()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


found: dict[str, Any] = {}
for slash in ("", "/"):
    api = argostranslate.apis.LibreTranslateAPI(URL + slash, KEY)
    other = argostranslate.apis.LibreTranslateAPI(URL + slash, WRONG_KEY)
    found[f"argostranslate{slash}"] = {
        "texts": [api.translate(text, "en", "de") for text in TEXTS],
        "auto": api.translate("Good morning to all of you", "auto", "de"),
        "languages": refusal(api.languages),
        "detected": api.detect("Good morning to all of you")[0]["language"],
        "unknown": refusal(lambda api=api: api.translate("a", "en", "zz")),  # type: ignore[misc]
        "wrong key": refusal(lambda other=other: other.translate("a", "en", "de")),  # type: ignore[misc]
    }


def deep(key: str, **languages: str) -> deep_translator.LibreTranslator:
    return deep_translator.LibreTranslator(api_key=key, custom_url=URL + "/", **languages)


found["deep_translator"] = {
    "texts": [deep(KEY, source="en", target="de").translate(text) for text in TEXTS],
    "list": deep(KEY, source="English", target="German").translate_batch(TEXTS),
    "auto": deep(KEY, source="auto", target="de").translate("Good morning to all of you"),
    "unknown": refusal(lambda: deep(KEY, source="en", target="fr").translate("a b")),
    "wrong key": refusal(lambda: deep(WRONG_KEY, source="en", target="de").translate("a b")),
}


def simple(key: str, to: str = "de", source: str = "en") -> translate.Translator:
    return translate.Translator(
        to_lang=to, from_lang=source, provider="libre", secret_access_key=key, base_url=URL + "/"
    )


found["translate"] = {
    "texts": [simple(KEY).translate(text) for text in TEXTS],
    "auto": simple(KEY, source="autodetect").translate("Good morning to all of you"),
    "unknown": refusal(lambda: simple(KEY, "fr").translate("a b")),
    "wrong key": refusal(lambda: simple(WRONG_KEY).translate("a b")),
}
print(json.dumps(found))
