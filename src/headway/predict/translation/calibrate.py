"""Calibrate a translator for the flag ``unlikely``: translate texts of its domain, and fit the calibration to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.decode import DecodingOptions
from headway.predict.results import Translation
from headway.predict.translation.calibration import Calibration, fit_calibration
from headway.predict.translation.options import TranslateOptions
from headway.predict.translation.translator import Translator

_MAX_TEXTS = 4000  # maximum number of texts to translate


def calibrate(
    translator: Translator,
    sources: Sequence[str],
    training_sources: Sequence[str] = (),
    *,
    target_language: str | None = None,
    source_language: str | None = None,
) -> Calibration | None:
    """Translate texts of the model's domain, and return the calibration.

    Returns None if fewer than :data:`~headway.predict.translation.calibration.MIN_TEXTS` texts can be translated.

    Args:
        translator: The model.
        sources: Texts that the model was not trained on, such as the development set. At most 4,000 are translated,
            chosen at regular intervals.
        training_sources: Source texts of the training data. They make the token frequencies more exact.
        target_language: The language to translate into, for models with several target languages.
        source_language: The language of the sources, for imported models that need it.
    """
    sources = [source for source in sources if source.strip()][:: max(1, -(-len(sources) // _MAX_TEXTS))]
    # Greedy search and beam search find translations of different probability. The less probable one is used.
    greedy, beam = (
        translator.translate_each(
            sources,
            TranslateOptions(
                decoding=decoding, target_language=target_language, source_language=source_language, protect=False
            ),
        )
        for decoding in (DecodingOptions(beam_size=1), DecodingOptions())
    )
    less_probable = [
        min(translations, key=_mean_log_prob)
        for pair in zip(greedy, beam, strict=True)
        if len(translations := [result for result in pair if isinstance(result, Translation)]) == 2
    ]
    normalized = translator.bundle.normalized
    return fit_calibration(
        [replace(translation, source=normalized(translation.source)) for translation in less_probable],
        translator.bundle.source_tokenizer,
        list(map(normalized, training_sources)),
        target_language=target_language,
        source_language=source_language,
    )


def _mean_log_prob(translation: Translation) -> float:
    log_probs = translation.candidates[0].token_log_probabilities
    return sum(log_probs) / len(log_probs)
