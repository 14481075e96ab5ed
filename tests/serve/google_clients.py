"""Call a service at a URL with the Python clients of Google, v2 and v3, and print what they got as JSON.

Arguments: the URL, a key, keys that accept one request for v2 and v3, a wrong key, and the id of a glossary.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from google.api_core.exceptions import GoogleAPICallError
from google.auth.api_key import Credentials
from google.cloud import translate_v2, translate_v3
from google.oauth2.credentials import Credentials as Token

URL, KEY, LIMITED_V2, LIMITED_V3, WRONG_KEY, GLOSSARY = sys.argv[1:]
TEXTS = ["Guten Morgen", "Grüße – 5 & 6?", "Zwei\nZeilen"]
AUTO = "Good morning to all of you"
PARENTS = ("projects/one", "projects/one/locations/global")


def refusal(call: Callable[[], Any]) -> Any:
    """Return the name, the status and the message of the error that a call raises."""
    try:
        return f"no error, but {call()!r}"
    except GoogleAPICallError as error:
        return [type(error).__name__, error.code, error.message]


def v2(key: str = KEY, url: str = URL, credentials: Any = None) -> translate_v2.Client:
    return translate_v2.Client(
        credentials=credentials or Credentials(key), client_options={"api_endpoint": url}, target_language="de"
    )


def v2_texts(found: list[dict[str, Any]]) -> list[str]:
    return [each["translatedText"] for each in found]


def v3(key: str = KEY) -> translate_v3.TranslationServiceClient:
    return translate_v3.TranslationServiceClient(
        credentials=Credentials(key), transport="rest", client_options={"api_endpoint": URL}
    )


def v3_translate(client: translate_v3.TranslationServiceClient, parent: str = PARENTS[1], **fields: Any) -> Any:
    request = {"contents": TEXTS, "mime_type": "text/plain", "target_language_code": "de", "parent": parent} | fields
    return client.translate_text(request=request)


def v3_texts(found: Any) -> list[str]:
    return [each.translated_text for each in found.translations]


second, third = v2(), v3()
english = {"source_language_code": "en"}
auto_v2, auto_v3 = second.translate(AUTO, format_="text"), v3_translate(third, contents=[AUTO]).translations[0]
terms = v3_translate(
    third,
    contents=["a b"],
    glossary_config={"glossary": f"{PARENTS[1]}/glossaries/{GLOSSARY}"},
    **english,
)
found: dict[str, Any] = {
    "v2": {
        "one": second.translate(TEXTS[0], source_language="en", format_="text")["translatedText"],
        "list": v2_texts(second.translate(TEXTS, source_language="en", format_="text")),
        "html": v2_texts(second.translate(["abc <b>de</b>"], source_language="en")),
        "prefix": v2_texts(v2(url=f"{URL}/google").translate(TEXTS, source_language="en", format_="text")),
        "token": v2_texts(v2(credentials=Token(KEY)).translate(TEXTS, source_language="en", format_="text")),
        "model": second.translate("a", source_language="en", model="nmt")["model"],
        "auto": [auto_v2["translatedText"], auto_v2["detectedSourceLanguage"]],
        "detected": [each["language"] for each in second.detect_language([AUTO, AUTO])],
        "languages": second.get_languages(),
        "unknown target": refusal(lambda: second.translate("a", source_language="en", target_language="zz")),
        "unknown source": refusal(lambda: second.translate("a", source_language="zz")),
        "custom model": refusal(lambda: second.translate("a", source_language="en", customization_ids="x")),
        "wrong key": refusal(lambda: v2(WRONG_KEY).translate("a", source_language="en")),
        "limit": [
            v2(LIMITED_V2).translate(TEXTS[0], source_language="en", format_="text")["translatedText"],
            refusal(lambda: v2(LIMITED_V2).translate("a", source_language="en")),
        ],
    },
    "v3": {
        "lists": [v3_texts(v3_translate(third, parent, **english)) for parent in PARENTS],
        "html": v3_texts(v3_translate(third, mime_type="", contents=["abc <b>de</b>"], **english)),
        "model": v3_translate(third, model=f"{PARENTS[1]}/models/general/nmt", **english).translations[0].model,
        "auto": [auto_v3.translated_text, auto_v3.detected_language_code],
        "detected": [
            third.detect_language(request={"parent": parent, "content": AUTO}).languages[0].language_code
            for parent in PARENTS
        ],
        "languages": [
            [
                [each.language_code, each.display_name, each.support_source, each.support_target]
                for each in own.languages
            ]
            for own in (
                third.get_supported_languages(request={"parent": parent, "display_language_code": "en"})
                for parent in PARENTS
            )
        ],
        "glossary": [v3_texts(terms), [each.translated_text for each in terms.glossary_translations]],
        "unknown target": refusal(lambda: v3_translate(third, target_language_code="zz", **english)),
        "unknown source": refusal(lambda: v3_translate(third, source_language_code="zz")),
        "custom model": refusal(lambda: v3_translate(third, model=f"{PARENTS[1]}/models/own", **english)),
        "transliteration": refusal(
            lambda: v3_translate(third, transliteration_config={"enable_transliteration": True}, **english)
        ),
        "unknown glossary": refusal(
            lambda: v3_translate(third, glossary_config={"glossary": f"{PARENTS[1]}/glossaries/x"}, **english)
        ),
        "wrong key": refusal(lambda: v3_translate(v3(WRONG_KEY), **english)),
        "limit": [
            v3_texts(v3_translate(v3(LIMITED_V3), **english)),
            refusal(lambda: v3_translate(v3(LIMITED_V3), **english)),
        ],
    },
}
print(json.dumps(found))
