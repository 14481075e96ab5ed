"""Call a service at a URL with the Python client of Azure, version 1 or 2, and print what it got as JSON.

Arguments: the URL, a key, a key that accepts one request, and a wrong key.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from azure.ai.translation.text import TextTranslationClient, _version, models
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError

URL, KEY, LIMITED_KEY, WRONG_KEY = sys.argv[1:]
TEXTS = ["Guten Morgen", "Grüße – 5 & 6?", "Zwei\nZeilen"]
IS_FIRST = _version.VERSION.startswith("1.")
LANGUAGES: dict[str, Any] = {"to_language": ["de"], "from_language": "en"}


def client(key: str, url: str = URL, **more: Any) -> TextTranslationClient:
    return TextTranslationClient(endpoint=url, credential=AzureKeyCredential(key), retry_total=0, **more)


def refusal(call: Callable[[], Any]) -> Any:
    """Return the status and the code of the error that a call raises, and when to try again."""
    try:
        return f"no error, but {call()!r}"
    except HttpResponseError as error:
        again = error.response.headers.get("Retry-After")
        return [type(error).__name__, error.status_code, error.response.json()["error"]["code"], again is not None]


def texts_of(found: Any) -> list[list[str]]:
    return [[each.text for each in one.translations] for one in found]


good = client(KEY)
found: dict[str, Any] = {
    "version": _version.VERSION,
    "one": texts_of(good.translate(body=TEXTS[:1], **LANGUAGES)),
    "list": texts_of(good.translate(body=TEXTS, **LANGUAGES)),
    "two targets": texts_of(good.translate(body=TEXTS, from_language="en", to_language=["de", "DE-at"])),
    "prefix": texts_of(client(KEY, f"{URL}/azure").translate(body=TEXTS, **LANGUAGES)),
    "region": texts_of(client(KEY, region="westeurope").translate(body=TEXTS[:1], **LANGUAGES)),
    "limit": [
        texts_of(client(LIMITED_KEY).translate(body=TEXTS[:1], **LANGUAGES)),
        refusal(lambda: client(LIMITED_KEY).translate(body=TEXTS[:1], **LANGUAGES)),
    ],
    "wrong key": refusal(lambda: client(WRONG_KEY).translate(body=TEXTS, **LANGUAGES)),
    "unknown target": refusal(lambda: good.translate(body=["a"], from_language="en", to_language=["de", "zz"])),
    "unknown source": refusal(lambda: good.translate(body=["a"], from_language="zz", to_language=["de"])),
    "too many": refusal(lambda: good.translate(body=["a"] * 1025, **LANGUAGES)),
    "other path": refusal(lambda: good.transliterate(body=["a"], language="ja", from_script="Jpan", to_script="Latn")),
    "languages": {code: each.as_dict() for code, each in good.get_supported_languages().translation.items()},
}
detected = good.translate(body=["Good morning to all of you"], to_language=["de"])
found["auto"] = [texts_of(detected), detected[0].detected_language.as_dict()]
if IS_FIRST:
    items = [models.InputTextItem(text=text) for text in TEXTS]
    aligned = good.translate(body=["abc d e, le"], include_alignment=True, **LANGUAGES)
    found |= {
        "items": texts_of(good.translate(body=items, category="general", text_type="Plain", **LANGUAGES)),
        "html": texts_of(good.translate(body=["abc <b>de</b>"], text_type=models.TextType.HTML, **LANGUAGES)),
        "alignment": aligned[0].translations[0].alignment.proj,
        "profanity": refusal(lambda: good.translate(body=["a"], profanity_action="Marked", **LANGUAGES)),
        "custom model": refusal(lambda: good.translate(body=["a"], category="x", allow_fallback=False, **LANGUAGES)),
        "script": refusal(lambda: good.translate(body=["a"], to_script="Latn", **LANGUAGES)),
        "sentences": refusal(lambda: good.translate(body=["a"], include_sentence_length=True, **LANGUAGES)),
    }
else:

    def item(text: str, kind: str = "Plain", **target: Any) -> Any:
        targets = [models.TranslationTarget(language="de", **target)]
        return models.TranslateInputItem(text=text, language="en", text_type=kind, targets=targets)

    found |= {
        "items": texts_of(good.translate(body=[item(text, deployment_name="general") for text in TEXTS])),
        "html": texts_of(good.translate(body=[item("abc <b>de</b>", models.TextType.HTML)])),
        "profanity": refusal(lambda: good.translate(body=[item("a", profanity_action="Marked")])),
        "custom model": refusal(lambda: good.translate(body=[item("a", deployment_name="x", allow_fallback=False)])),
        "script": refusal(lambda: good.translate(body=[item("a", script="Latn")])),
        "tone": refusal(lambda: good.translate(body=[item("a", tone="formal")])),
        "gender": refusal(lambda: good.translate(body=[item("a", gender="female")])),
    }
print(json.dumps(found))
