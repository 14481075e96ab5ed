"""Normalize language codes, which occur in several forms: ``de``, ``deu``, ``ger``, ``de-AT`` and ``deu_Latn``."""

from __future__ import annotations

import re

# Two-letter codes (ISO 639-1) for three-letter codes (ISO 639-2 or ISO 639-3), as in deu_Latn. The standard variety of
# a macrolanguage, such as lvs, is mapped to the code of the macrolanguage.
_THREE_LETTERS = {
    "afr": "af", "ara": "ar", "arb": "ar", "bel": "be", "ben": "bn", "bul": "bg", "cat": "ca", "ces": "cs", "zho": "zh",
    "cym": "cy", "dan": "da", "deu": "de", "ell": "el", "eng": "en", "epo": "eo", "est": "et", "eus": "eu", "fas": "fa",
    "fin": "fi", "fra": "fr", "gle": "ga", "glg": "gl", "heb": "he", "hin": "hi", "hrv": "hr", "hun": "hu", "hye": "hy",
    "ind": "id", "isl": "is", "ita": "it", "jpn": "ja", "kat": "ka", "kor": "ko", "lat": "la", "lav": "lv", "lit": "lt",
    "mkd": "mk", "msa": "ms", "mlt": "mt", "nld": "nl", "nno": "nn", "nob": "nb", "pol": "pl", "por": "pt",
    "ron": "ro", "rus": "ru", "slk": "sk", "slv": "sl", "spa": "es", "sqi": "sq", "srp": "sr", "swa": "sw", "swe": "sv",
    "tam": "ta", "tel": "te", "tgl": "tl", "tha": "th", "tur": "tr", "ukr": "uk", "urd": "ur", "vie": "vi", "yid": "yi",
    "als": "sq", "amh": "am", "asm": "as", "aym": "ay", "ayr": "ay", "aze": "az", "azj": "az", "bak": "ba", "bam": "bm",
    "bod": "bo", "bos": "bs", "dzo": "dz", "ekk": "et", "ewe": "ee", "fao": "fo", "fij": "fj", "fil": "tl", "gaz": "om",
    "grn": "gn", "guj": "gu", "hat": "ht", "hau": "ha", "ibo": "ig", "jav": "jv", "kan": "kn", "kas": "ks", "kaz": "kk",
    "khk": "mn", "khm": "km", "kik": "ki", "kin": "rw", "kir": "ky", "kmr": "ku", "kon": "kg", "kur": "ku", "lao": "lo",
    "lim": "li", "lin": "ln", "ltz": "lb", "lug": "lg", "lvs": "lv", "mal": "ml", "mar": "mr", "mlg": "mg", "mon": "mn",
    "mri": "mi", "mya": "my", "nep": "ne", "npi": "ne", "nya": "ny", "oci": "oc", "ori": "or", "orm": "om", "ory": "or",
    "pan": "pa", "pbt": "ps", "pes": "fa", "plt": "mg", "pus": "ps", "que": "qu", "quy": "qu", "run": "rn", "sag": "sg",
    "san": "sa", "sin": "si", "smo": "sm", "sna": "sn", "snd": "sd", "som": "so", "sot": "st", "srd": "sc", "ssw": "ss",
    "sun": "su", "swh": "sw", "tat": "tt", "tgk": "tg", "tir": "ti", "tsn": "tn", "tso": "ts", "tuk": "tk", "twi": "tw",
    "uig": "ug", "uzb": "uz", "uzn": "uz", "wol": "wo", "xho": "xh", "ydd": "yi", "yor": "yo", "zsm": "ms", "zul": "zu",
    "aka": "ak", "bis": "bi", "bre": "br", "che": "ce", "chv": "cv", "cmn": "zh", "cor": "kw", "cos": "co", "div": "dv",
    "fry": "fy", "ful": "ff", "fuv": "ff", "gla": "gd", "glv": "gv", "ido": "io", "iku": "iu", "ina": "ia", "kal": "kl",
    "kau": "kr", "knc": "kr", "kom": "kv", "nav": "nv", "oji": "oj", "oss": "os", "roh": "rm",
    "sme": "se", "tah": "ty", "ton": "to", "ven": "ve", "wln": "wa", "zha": "za",
    # Bibliographic codes of ISO 639-2.
    "alb": "sq", "arm": "hy", "baq": "eu", "bur": "my", "chi": "zh", "cze": "cs", "dut": "nl", "fre": "fr", "geo": "ka",
    "ger": "de", "gre": "el", "ice": "is", "mac": "mk", "mao": "mi", "may": "ms", "per": "fa", "rum": "ro", "slo": "sk",
    "tib": "bo", "wel": "cy",
}  # fmt: skip
# Withdrawn codes, and the codes of Norwegian, which mean Bokmål in nearly all models.
_OTHER_CODES = {"in": "id", "iw": "he", "ji": "yi", "no": "nb", "nor": "nb"}
_PARTS = re.compile(r"[-_]")
_MAX_PARTS = 8  # maximum number of parts of a code; the rest is treated as a single part, so that the code is unknown


def normalize_language_code(code: str) -> str:
    """Return a language code in lower case, with a two-letter code if there is one: deu_Latn becomes de-latn."""
    language, *rest = _PARTS.split(code.strip().lower(), maxsplit=_MAX_PARTS)
    language = _THREE_LETTERS.get(language, language)
    return "-".join([_OTHER_CODES.get(language, language), *rest])


def base_language(code: str) -> str:
    """Return a language code in lower case, without region and script: pt-BR becomes pt."""
    return normalize_language_code(code).partition("-")[0]
