"""Apply trained models to text: translate it, or classify it.

Python code, the commands, the interactive prompt, process pools and servers all use these objects. The modules for
translation, in the order in which they are used:

- :mod:`~headway.predict.text_translator`: the interface, ``translate`` and ``translate_lines``.
- :mod:`~headway.predict.translator`: Translator, the class that combines the steps below.
- :mod:`~headway.predict.marked_translation`: translates the segments of texts with markup
  (:mod:`~headway.predict.markup`) or placeholders (:mod:`~headway.predict.placeholders`), and puts tags and
  placeholders into the translations (:mod:`~headway.predict.marked_text`).
- :mod:`~headway.predict.plan`: converts texts to search requests (:mod:`~headway.predict.segment` splits long texts,
  :mod:`~headway.predict.phrases` tokenizes prefixes, terminology and banned phrases), and merges the candidates of a
  text's parts into its translation.
- :mod:`~headway.predict.glossary`: glossaries, and the entries that apply to a text.
- :mod:`~headway.predict.find_candidates`: finds candidates for search requests (:mod:`~headway.predict.quality` flags
  suspected errors, :mod:`~headway.predict.alignment` aligns tokens).
- :mod:`~headway.predict.calibration`: the flag ``unlikely``, which marks texts far from the model's domain.
- :mod:`~headway.predict.pivot`: translation through a third language, by two models.
- :mod:`~headway.predict.pool`: translation in several processes.
- :mod:`~headway.predict.rerank`: reranks given candidates by scores or by agreement.
- :mod:`~headway.predict.noisy_channel`: reranks them with a language model and a model of the reverse direction.
- :mod:`~headway.predict.shortlisting`: learns the shortlist of a model, and stores it in the model folder.
- :mod:`~headway.predict.results`: inputs and results.

The modules for classification are :mod:`~headway.predict.classifier`, and two that find the words that a label depends
on: :mod:`~headway.predict.occlusion` leaves out words, and :mod:`~headway.predict.attribution` computes gradients.

Several threads may call a Translator or a Classifier at the same time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.predict.attribution import Attribution, Explanation
    from headway.predict.classifier import Classification, Classifier, load_classifier
    from headway.predict.continuation import Continuation, GeneratedToken, StreamPart, TextStream, TokenStream
    from headway.predict.glossary import Glossary
    from headway.predict.language_model import (
        GenerationOptions,
        LanguageModel,
        Perplexity,
        Prompt,
        load_language_model,
    )
    from headway.predict.markup import MarkupKind, MarkupOptions
    from headway.predict.masked_language_model import Filling, MaskedLanguageModel, load_masked_language_model
    from headway.predict.noisy_channel import (
        NoisyChannelWeights,
        noisy_channel_features,
        rank_by_noisy_channel,
        tune_noisy_channel,
    )
    from headway.predict.occlusion import OccludedPart, Occlusion, occlude
    from headway.predict.pivot import PivotTranslator
    from headway.predict.pool import TranslatorPool
    from headway.predict.rerank import RankedText, minimum_bayes_risk, rank_by_agreement, rank_by_models
    from headway.predict.results import (
        Alignment,
        Candidate,
        Flag,
        GlossaryTerm,
        ScoredTarget,
        Source,
        TokenAlternative,
        Translation,
        WordAlignment,
    )
    from headway.predict.scored_text import ScoredText, TextScorer
    from headway.predict.search_tree import SearchEnd, SearchNode, SearchTree
    from headway.predict.text_translator import TextTranslator
    from headway.predict.translator import Translator, load_translator

__all__ = [
    "Alignment",
    "Attribution",
    "Candidate",
    "Classification",
    "Classifier",
    "Continuation",
    "Explanation",
    "Filling",
    "Flag",
    "GeneratedToken",
    "GenerationOptions",
    "Glossary",
    "GlossaryTerm",
    "LanguageModel",
    "MarkupKind",
    "MarkupOptions",
    "MaskedLanguageModel",
    "NoisyChannelWeights",
    "OccludedPart",
    "Occlusion",
    "Perplexity",
    "PivotTranslator",
    "Prompt",
    "RankedText",
    "ScoredTarget",
    "ScoredText",
    "SearchEnd",
    "SearchNode",
    "SearchTree",
    "Source",
    "StreamPart",
    "TextScorer",
    "TextStream",
    "TextTranslator",
    "TokenAlternative",
    "TokenStream",
    "Translation",
    "Translator",
    "TranslatorPool",
    "WordAlignment",
    "load_classifier",
    "load_language_model",
    "load_masked_language_model",
    "load_translator",
    "minimum_bayes_risk",
    "noisy_channel_features",
    "occlude",
    "rank_by_agreement",
    "rank_by_models",
    "rank_by_noisy_channel",
    "tune_noisy_channel",
]


# Modules are imported when they are first needed, because most of them import PyTorch.
_HOMES = {
    "Alignment": "results",
    "Attribution": "attribution",
    "Candidate": "results",
    "Classification": "classifier",
    "Classifier": "classifier",
    "Continuation": "continuation",
    "Explanation": "attribution",
    "Filling": "masked_language_model",
    "Flag": "results",
    "GeneratedToken": "continuation",
    "GenerationOptions": "language_model",
    "Glossary": "glossary",
    "GlossaryTerm": "results",
    "LanguageModel": "language_model",
    "MarkupKind": "markup",
    "MarkupOptions": "markup",
    "MaskedLanguageModel": "masked_language_model",
    "NoisyChannelWeights": "noisy_channel",
    "OccludedPart": "occlusion",
    "Occlusion": "occlusion",
    "Perplexity": "language_model",
    "PivotTranslator": "pivot",
    "Prompt": "language_model",
    "RankedText": "rerank",
    "ScoredTarget": "results",
    "ScoredText": "scored_text",
    "SearchEnd": "search_tree",
    "SearchNode": "search_tree",
    "SearchTree": "search_tree",
    "Source": "results",
    "StreamPart": "continuation",
    "TextScorer": "scored_text",
    "TextStream": "continuation",
    "TextTranslator": "text_translator",
    "TokenAlternative": "results",
    "TokenStream": "continuation",
    "Translation": "results",
    "Translator": "translator",
    "TranslatorPool": "pool",
    "WordAlignment": "results",
    "load_classifier": "classifier",
    "load_language_model": "language_model",
    "load_masked_language_model": "masked_language_model",
    "load_translator": "translator",
    "minimum_bayes_risk": "rerank",
    "noisy_channel_features": "noisy_channel",
    "occlude": "occlusion",
    "rank_by_agreement": "rerank",
    "rank_by_models": "rerank",
    "rank_by_noisy_channel": "noisy_channel",
    "tune_noisy_channel": "noisy_channel",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
