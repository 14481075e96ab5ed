"""Apply trained models to text: translate it, continue it, classify it, or measure how probable it is.

Python code, the commands, the interactive prompt, process pools and servers all use these objects.

=========================================  ===========================================================================
:mod:`~headway.predict.translation`        Translator, and the steps of a translation; glossaries; process pools
:mod:`~headway.predict.markup`             texts with tags or placeholders that translations must keep
:mod:`~headway.predict.language_modeling`  LanguageModel and MaskedLanguageModel
:mod:`~headway.predict.classification`     Classifier, and explanations of its labels
:mod:`~headway.predict.reranking`          rank given candidates
:mod:`~headway.predict.results`            inputs and results as plain values
:mod:`~headway.predict.decoding_trace`     record searches step by step, as readable tokens
:mod:`~headway.predict.phrases`            tokenize required and banned phrases
:mod:`~headway.predict.shared_weights`     copy a model without copying its weights
=========================================  ===========================================================================

Several threads may call one object of these classes at the same time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.predict.classification.attribution import Attribution, Explanation
    from headway.predict.classification.classifier import Classification, Classifier, load_classifier
    from headway.predict.classification.occlusion import OccludedPart, Occlusion, occlude
    from headway.predict.decoding_trace import (
        DecodedText,
        DecodingTrace,
        TracedContinuations,
        TracedStep,
        TracedTranslation,
        trace_generation,
        trace_translation,
    )
    from headway.predict.language_modeling.answer_scores import TokenLogProbs, score_answers
    from headway.predict.language_modeling.continuation import (
        Continuation,
        GeneratedToken,
        StreamPart,
        TextStream,
        TokenStream,
    )
    from headway.predict.language_modeling.language_model import (
        LanguageModel,
        Prompt,
        load_language_model,
    )
    from headway.predict.language_modeling.masked_language_model import (
        Filling,
        MaskedLanguageModel,
        load_masked_language_model,
    )
    from headway.predict.language_modeling.perplexity import Perplexity
    from headway.predict.language_modeling.scored_text import ScoredText, TextScorer
    from headway.predict.markup.html import MarkupKind, MarkupOptions
    from headway.predict.reranking.noisy_channel import (
        NoisyChannelWeights,
        noisy_channel_features,
        rank_by_noisy_channel,
        tune_noisy_channel,
    )
    from headway.predict.reranking.rerank import RankedText, minimum_bayes_risk, rank_by_agreement, rank_by_models
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
    from headway.predict.translation.glossary import Glossary
    from headway.predict.translation.options import TranslateOptions
    from headway.predict.translation.pivot import PivotTranslator
    from headway.predict.translation.pool import TranslatorPool
    from headway.predict.translation.search_tree import SearchEnd, SearchNode, SearchTree
    from headway.predict.translation.text_translator import TextTranslator
    from headway.predict.translation.translator import Translator, load_translator

__all__ = [
    "Alignment",
    "Attribution",
    "Candidate",
    "Classification",
    "Classifier",
    "Continuation",
    "DecodedText",
    "DecodingTrace",
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
    "TokenLogProbs",
    "TokenStream",
    "TracedContinuations",
    "TracedStep",
    "TracedTranslation",
    "TranslateOptions",
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
    "score_answers",
    "trace_generation",
    "trace_translation",
    "tune_noisy_channel",
]


# Modules are imported when they are first needed, because most of them import PyTorch.
_MODULES = {
    "Alignment": "results",
    "Attribution": "classification.attribution",
    "Candidate": "results",
    "Classification": "classification.classifier",
    "Classifier": "classification.classifier",
    "Continuation": "language_modeling.continuation",
    "DecodedText": "decoding_trace",
    "TracedStep": "decoding_trace",
    "DecodingTrace": "decoding_trace",
    "Explanation": "classification.attribution",
    "Filling": "language_modeling.masked_language_model",
    "Flag": "results",
    "GeneratedToken": "language_modeling.continuation",
    "GenerationOptions": "language_modeling.language_model",
    "Glossary": "translation.glossary",
    "GlossaryTerm": "results",
    "LanguageModel": "language_modeling.language_model",
    "MarkupKind": "markup.html",
    "MarkupOptions": "markup.html",
    "MaskedLanguageModel": "language_modeling.masked_language_model",
    "NoisyChannelWeights": "reranking.noisy_channel",
    "OccludedPart": "classification.occlusion",
    "Occlusion": "classification.occlusion",
    "Perplexity": "language_modeling.perplexity",
    "PivotTranslator": "translation.pivot",
    "Prompt": "language_modeling.language_model",
    "RankedText": "reranking.rerank",
    "ScoredTarget": "results",
    "ScoredText": "language_modeling.scored_text",
    "SearchEnd": "translation.search_tree",
    "SearchNode": "translation.search_tree",
    "SearchTree": "translation.search_tree",
    "Source": "results",
    "StreamPart": "language_modeling.continuation",
    "TextScorer": "language_modeling.scored_text",
    "TextStream": "language_modeling.continuation",
    "TextTranslator": "translation.text_translator",
    "TokenAlternative": "results",
    "TokenLogProbs": "language_modeling.answer_scores",
    "TokenStream": "language_modeling.continuation",
    "TracedContinuations": "decoding_trace",
    "TracedTranslation": "decoding_trace",
    "Translation": "results",
    "Translator": "translation.translator",
    "TranslateOptions": "translation.options",
    "TranslatorPool": "translation.pool",
    "WordAlignment": "results",
    "load_classifier": "classification.classifier",
    "load_language_model": "language_modeling.language_model",
    "load_masked_language_model": "language_modeling.masked_language_model",
    "load_translator": "translation.translator",
    "minimum_bayes_risk": "reranking.rerank",
    "noisy_channel_features": "reranking.noisy_channel",
    "occlude": "classification.occlusion",
    "rank_by_agreement": "reranking.rerank",
    "rank_by_models": "reranking.rerank",
    "rank_by_noisy_channel": "reranking.noisy_channel",
    "score_answers": "language_modeling.answer_scores",
    "trace_generation": "decoding_trace",
    "trace_translation": "decoding_trace",
    "tune_noisy_channel": "reranking.noisy_channel",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
