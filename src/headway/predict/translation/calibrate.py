"""Calibrate a translator for the flags ``unlikely`` and ``forced``.

In-domain texts are translated, and the calibration is fitted to the translations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.decode import DecodingOptions
from headway.errors import DataError
from headway.predict.phrases import contains_any_phrase
from headway.predict.results import Candidate, Source, Translation
from headway.predict.translation.calibration import Calibration, constraint_cost_limit, fit_calibration
from headway.predict.translation.options import TranslateOptions
from headway.predict.translation.translator import Translator
from headway.text.words import split_words

_MAX_TEXTS = 4000  # maximum number of texts to translate
_MAX_FORCED = 1000  # maximum number of texts to translate with a required word from the reference


def calibrate(
    translator: Translator,
    sources: Sequence[str],
    training_sources: Sequence[str] = (),
    *,
    references: Sequence[str] = (),
    target_language: str | None = None,
    source_language: str | None = None,
) -> Calibration | None:
    """Translate in-domain texts, and return the calibration.

    Returns None if fewer than :data:`~headway.predict.translation.calibration.MIN_TEXTS` texts can be translated.

    Args:
        translator: The translator to calibrate.
        sources: Texts that the model was not trained on, such as the development set. At most 4,000 evenly spaced texts
            are translated.
        training_sources: Source texts from the training data. They make the token frequencies more precise.
        references: A translation of each source, for the flag ``forced``. Without references, this flag is never set.
        target_language: The language to translate into, for models with several target languages.
        source_language: The language of the sources, for imported models that need it.

    Raises:
        DataError: The numbers of sources and references differ.
    """
    if references and len(references) != len(sources):
        raise DataError(f"{len(sources):,} sources but {len(references):,} references; expected one for each source")
    pairs = zip(sources, references or [""] * len(sources), strict=True)
    examples = [pair for pair in pairs if pair[0].strip()][:: max(1, -(-len(sources) // _MAX_TEXTS))]
    sources = [source for source, _ in examples]
    greedy_options, beam_options = (
        TranslateOptions(
            decoding=decoding, target_language=target_language, source_language=source_language, protect=False
        )
        for decoding in (DecodingOptions(beam_size=1), DecodingOptions())
    )
    # Each text is translated by greedy search and by beam search, and the less probable translation is used.
    greedy, beam = (translator.translate_each(sources, options) for options in (greedy_options, beam_options))
    less_probable = [
        min(translations, key=_mean_log_prob)
        for pair in zip(greedy, beam, strict=True)
        if len(translations := [result for result in pair if isinstance(result, Translation)]) == 2
    ]
    normalized = translator.bundle.normalized
    calibration = fit_calibration(
        [replace(translation, source=normalized(translation.source)) for translation in less_probable],
        translator.bundle.source_tokenizer,
        list(map(normalized, training_sources)),
        target_language=target_language,
        source_language=source_language,
    )
    if calibration is None or not references:
        return calibration
    # Require one word of the reference for some sentences, at a different position in each sentence.
    chosen: list[tuple[str, str, Candidate]] = []
    for number, ((source, reference), free) in enumerate(zip(examples, beam, strict=True)):
        words = [word for word in split_words(normalized(reference)) if any(map(str.isalpha, word))]
        if words and isinstance(free, Translation):
            chosen.append((source, words[number % len(words)], free.candidates[0]))
    chosen = chosen[:: max(1, -(-len(chosen) // _MAX_FORCED))]
    tokenizer = translator.bundle.target_tokenizer
    unmet = [choice for choice in chosen if not contains_any_phrase(tokenizer, choice[2].text, (choice[1],))]
    forced = translator.translate_each([Source(source, include=(word,)) for source, word, _ in unmet], beam_options)
    costs = [0.0] * (len(chosen) - len(unmet))
    costs += [
        free.log_probability - result.candidates[0].log_probability
        for (_, _, free), result in zip(unmet, forced, strict=True)
        if isinstance(result, Translation) and not result.candidates[0].unmet
    ]
    return calibration.model_copy(update={"max_constraint_cost": constraint_cost_limit(costs)})


def _mean_log_prob(translation: Translation) -> float:
    log_probs = translation.candidates[0].token_log_probabilities
    return sum(log_probs) / len(log_probs)
