"""Format translations together with traces of the searches that led to them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence

from headway.cli.traces import format_traces, traces_as_json
from headway.corpus.translation import TranslationSettings, TranslationWriter
from headway.errors import HeadwayError
from headway.predict import (
    DecodingTrace,
    Glossary,
    Source,
    TranslateOptions,
    Translation,
    Translator,
    trace_translation,
)


class TracedTranslations(TranslationWriter):
    """Translates lines one by one, and formats each translation after its search traces."""

    def __init__(self, translator: Translator, settings: TranslationSettings) -> None:
        super().__init__(translator, settings)
        self._traced_translator, self._is_json = translator, settings.format == "json"
        # Search traces of the translations that have not been written yet.
        self._searches: deque[Sequence[DecodingTrace]] = deque()

    def translate_each(
        self, sources: Sequence[str | Source], options: TranslateOptions, glossary: Glossary | None
    ) -> list[Translation | HeadwayError]:
        """Translate the lines that :meth:`lines` will format."""
        return [self._translate(source, options, glossary) for source in sources]

    def _translate(
        self, source: str | Source, options: TranslateOptions, glossary: Glossary | None
    ) -> Translation | HeadwayError:
        try:
            traced = trace_translation(self._traced_translator, source, options, glossary)
        except HeadwayError as error:
            return error
        self._searches.append(traced.searches)
        return traced.translation

    def format_lines(self, number: int, source: Source | HeadwayError, result: Translation | HeadwayError) -> str:
        """Return the output for line ``number`` of the input. An error is formatted as without traces."""
        if isinstance(result, HeadwayError):
            return super().format_lines(number, source, result)
        searches = self._searches.popleft()
        if self._is_json:
            whole = {**self.as_dict(result), "trace": traces_as_json(searches)}
            return json.dumps(whole, ensure_ascii=False) + "\n"
        return "\n" * (number > 1) + format_traces(searches, {"Translation": result.text})
