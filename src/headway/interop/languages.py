"""The languages of M2M-100's vocabularies in the order of their ids, which its tokenizer files do not list.

The codes follow the pieces of ``vocab.json``: the first has the id after the last piece. They come from fairseq's
``m2m_100`` examples (Fan et al., "Beyond English-Centric Multilingual Machine Translation", 2020) and its WMT 2021
models; ``language_codes`` in the tokenizer's configuration says which. Codes are separated by spaces.
"""

__all__ = ["M2M_LANGUAGES"]

M2M_LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
        "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
        "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
