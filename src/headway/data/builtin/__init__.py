"""The built-in parallel corpus of ``headway quickstart``: a small, real translation task that needs no download.

The texts are generated with Babel from Unicode CLDR, which describes how each language writes dates, numbers, measures
and names. Word order and inflection differ between languages, so this is real translation in a small domain.
``moments.py``, ``quantities.py`` and ``names.py`` define the text forms. ``corpus.py`` draws values, checks pairs, and
splits and saves the corpus.
"""

from headway.data.builtin.corpus import CATEGORIES, BuiltinCorpus, LocalizedPair, build_corpus, write_corpus

__all__ = ["CATEGORIES", "BuiltinCorpus", "LocalizedPair", "build_corpus", "write_corpus"]
