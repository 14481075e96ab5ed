"""The built-in parallel corpus of ``headway quickstart``: a small, real translation task that needs no download.

The texts come from Unicode CLDR (the data by which software writes dates, numbers, measures and names in each language)
through Babel. Word order and inflection differ between languages, so it is translation, if of a small world.
``moments.py``, ``quantities.py`` and ``names.py`` say what is written; ``corpus.py`` draws, checks, splits and saves.
"""

from headway.data.builtin.corpus import CATEGORIES, BuiltinCorpus, BuiltinPair, build_corpus, write_corpus

__all__ = ["CATEGORIES", "BuiltinCorpus", "BuiltinPair", "build_corpus", "write_corpus"]
