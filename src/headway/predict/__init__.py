"""Text in, text or label out. Commands, Python, the prompt, process pools and servers all use the same objects.

Translation, in the order of the work:

- :mod:`~headway.predict.text_translator`: the interface, ``translate`` and ``translate_lines``.
- :mod:`~headway.predict.translator`: Translator, the class that joins the steps below.
- :mod:`~headway.predict.plan`: texts to search requests (:mod:`~headway.predict.segment` splits long texts,
  :mod:`~headway.predict.phrases` tokenizes prefixes, terminology and banned phrases), and the candidates of a text's
  parts to its translation.
- :mod:`~headway.predict.glossary`: glossaries, and which of their entries apply to a text.
- :mod:`~headway.predict.find_candidates`: search requests to candidates (:mod:`~headway.predict.quality` flags
  suspected errors, :mod:`~headway.predict.alignment` aligns tokens).
- :mod:`~headway.predict.calibration`: the flag ``unlikely`` of texts far from the model's domain.
- :mod:`~headway.predict.pool`: translation in several processes.
- :mod:`~headway.predict.rerank`: the order of given candidates, by scores or agreement.
- :mod:`~headway.predict.shortlisting`: the shortlist in a model folder.
- :mod:`~headway.predict.results`: inputs and results.

Classification: :mod:`~headway.predict.classifier`, and :mod:`~headway.predict.attribution` for the words that a label
depends on.

A Translator and a Classifier may be called from several threads at the same time.
"""

from headway.predict.attribution import Attribution, Explanation
from headway.predict.classifier import Classification, Classifier, load_classifier
from headway.predict.glossary import Glossary
from headway.predict.pool import TranslatorPool
from headway.predict.rerank import Ranked, minimum_bayes_risk, rank_by_agreement, rank_by_models
from headway.predict.results import (
    Alignment,
    Alternative,
    Candidate,
    Flag,
    GlossaryTerm,
    ScoredTarget,
    Source,
    Translation,
    WordAlignment,
)
from headway.predict.text_translator import TextTranslator
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
    "Glossary",
    "GlossaryTerm",
    "Ranked",
    "ScoredTarget",
    "Source",
    "TextTranslator",
    "Translation",
    "Translator",
    "TranslatorPool",
    "WordAlignment",
    "load_classifier",
    "load_translator",
    "minimum_bayes_risk",
    "rank_by_agreement",
    "rank_by_models",
]
