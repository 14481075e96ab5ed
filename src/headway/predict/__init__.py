"""Text in, text out. One object owns the way between them; commands, Python and servers all go through it.

translating.py   TextTranslator: the ways to ask for translations
translator.py    Translator: plan, search, check, put together
pool.py          TranslatorPool: several in processes of their own, which share the work
classifier.py    Classifier: a text to its label
attribution.py   which words a label rests on
loading.py       the model in a folder, whatever it is for
results.py       what goes in and what comes out: plain values
planning.py      texts to what search is asked, each checked by itself
segment.py       a text that is too long, in sentences
phrases.py       prefixes, terminology and banned phrases as tokens
quality.py       is something wrong with a translation?
failing.py       errors in the place of results
joining.py       the translations of a text's parts, put together
alignment.py     which target token comes from which source token
scoring.py       how probable a given target is, and what else could come next
rerank.py        another order for candidates that are there
"""

from headway.predict.attribution import Attribution, Explanation
from headway.predict.classifier import Classification, Classifier, load_classifier
from headway.predict.loading import load
from headway.predict.pool import TranslatorPool
from headway.predict.rerank import Ranked, minimum_bayes_risk, rank_by_agreement, rank_by_models
from headway.predict.results import (
    Alignment,
    Alternative,
    Candidate,
    Flag,
    ScoredTarget,
    Source,
    Translation,
    WordAlignment,
)
from headway.predict.translating import TextTranslator
from headway.predict.translator import Translator, load_translator

__all__ = [
    "Alignment",
    "Alternative",
    "Attribution",
    "Candidate",
    "Classification",
    "Classifier",
    "Explanation",
    "Flag",
    "Ranked",
    "ScoredTarget",
    "Source",
    "TextTranslator",
    "Translation",
    "Translator",
    "TranslatorPool",
    "WordAlignment",
    "load",
    "load_classifier",
    "load_translator",
    "minimum_bayes_risk",
    "rank_by_agreement",
    "rank_by_models",
]
