"""Translate the lines of a corpus with all options of ``headway translate``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_serializer

from headway.config import Config
from headway.corpus.lines import LineReader, one_line
from headway.corpus.text_map import TextOperation
from headway.decode.request import DecodingOptions
from headway.errors import ConfigError, HeadwayError
from headway.jobs.line_map import Line

if TYPE_CHECKING:
    from headway.predict import Candidate, Source, TextTranslator, Translation, Translator
    from headway.predict.translation.options import TranslateOptions

FLAG_PREFIX, TERM_MET_PREFIX, TERM_NOT_MET_PREFIX = "flag:", "term met:", "term not met:"


class TranslationSettings(Config):
    """Options of ``headway translate`` that determine translations and their format."""

    model: str
    other_models: tuple[str, ...] = ()
    pivot: str | None = None
    pivot_candidates: int = 1
    pivot_language: str | None = None
    target_language: str | None = None
    source_language: str | None = None
    prefix: str = ""
    include: tuple[str, ...] = ()
    ban: tuple[str, ...] = ()
    glossary: str | None = None
    markup: Literal["html", "xml"] | None = None
    protect: bool = True
    mbr: bool = False
    alignment: bool = False
    alignment_layer: int | None = None
    avoid_flagged: bool = True
    max_source_tokens: int | None = None
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    shortlist: bool = False
    input_format: Literal["text", "jsonl"] = "text"
    format: Literal["text", "json"] = "text"
    search: DecodingOptions = Field(default_factory=DecodingOptions)

    @field_serializer("search")
    def _given(self, search: DecodingOptions) -> dict[str, Any]:
        return search.model_dump(mode="json", exclude_unset=True)  # unset options keep the model's defaults

    def check(self) -> None:
        """Check that the options are compatible.

        Raises:
            ConfigError: Two options exclude each other, or one requires another.
        """
        from headway.predict.translation.pivot import DEFAULT_NUM_PIVOTS

        if self.mbr and self.search.n_best == 1:
            raise ConfigError("--mbr chooses among several candidates; add --n-best, for example --n-best 4")
        if self.alignment_layer is not None and not self.alignment:
            raise ConfigError(
                "--alignment-layer has no effect without --alignment; add --alignment, or omit --alignment-layer"
            )
        if self.pivot is None and (self.pivot_candidates != DEFAULT_NUM_PIVOTS or self.pivot_language is not None):
            raise ConfigError("--pivot-candidates and --pivot-language need --pivot, a second model")

    @property
    def paths(self) -> list[Path]:
        """The models and files that translations depend on."""
        return [Path(path) for path in (self.model, *self.other_models, self.pivot, self.glossary) if path is not None]

    def load(self, note: Callable[[str], None] = lambda note: None) -> TextTranslator:
        """Load the translator. ``note`` is called with messages, such as why a model cannot use the fast search."""
        return self.load_with_description(note)[0]

    def load_with_description(
        self, note: Callable[[str], None] = lambda note: None
    ) -> tuple[TextTranslator, dict[str, str]]:
        """Load the translator. Also return the precision and the device of its searches, for messages."""
        from headway.predict.translation.pivot import PivotTranslator

        first = self._load_ensemble(self.model, self.other_models, note)
        if self.pivot is None:
            return first, {"precision": first.precision, "device": str(first.device)}
        second = self._load_ensemble(self.pivot, (), note)
        pivoted = PivotTranslator(first, second, pivot_language=self.pivot_language, candidates=self.pivot_candidates)
        precisions = dict.fromkeys((first.precision, second.precision))
        return pivoted, {"precision": " and ".join(precisions), "device": str(first.device)}

    def _load_ensemble(self, folder: str, others: Sequence[str], note: Callable[[str], None]) -> Translator:
        from headway.predict.translation.translator import Translator, load_translator

        translators = [load_translator(other, device=self.device, precision=self.precision) for other in others]
        first = load_translator(
            folder,
            device=self.device,
            max_source_tokens=self.max_source_tokens,
            avoid_flagged=self.avoid_flagged,
            alignment_layer=self.alignment_layer,
            precision=self.precision,
            shortlist=self.shortlist,
        )
        translators.insert(0, first)
        for reason in dict.fromkeys(one.plain_search_reason for one in translators if one.plain_search_reason):
            note(reason)
        for precision_note in dict.fromkeys(filter(None, (one.precision_note() for one in translators))):
            note(f"the model {precision_note}")
        return Translator.ensemble(translators)

    def options(self) -> TranslateOptions:
        """Return the options for :meth:`TextTranslator.translate_each`."""
        from headway.predict.translation.options import TranslateOptions

        return TranslateOptions.of(
            self.search,
            {
                "target_language": self.target_language,
                "source_language": self.source_language,
                "alignment": self.alignment,
                "markup": self.markup,
                "protect": self.protect,
            },
        )

    def line_reader(self, name: str) -> LineReader:
        """Return the parser for the lines of the input ``name``."""
        return LineReader(name, self.input_format, self.prefix, self.include, self.ban)

    def rerank(self, result: Translation | HeadwayError) -> Translation | HeadwayError:
        """Order the candidates by expected chrF if minimum Bayes risk decoding was requested. Errors are returned."""
        from headway.predict.reranking.rerank import minimum_bayes_risk
        from headway.predict.results import Translation

        if not self.mbr or not isinstance(result, Translation):
            return result
        return minimum_bayes_risk(result, sampled=self.search.sampling is not None)


class TranslationWriter:
    """Formats translations as output lines: the best text, all candidates, or JSON."""

    def __init__(self, translator: TextTranslator, settings: TranslationSettings) -> None:
        self._translator, self._format = translator, settings.format
        self._listed = settings.search.n_best > 1 and not settings.mbr

    def format_lines(self, number: int, _: Source | HeadwayError, result: Translation | HeadwayError) -> str:
        """Return the output for line ``number`` of the input, with line ends. For an error, the text is empty."""
        if self._format == "json":
            whole = {"error": str(result)} if isinstance(result, HeadwayError) else self.as_dict(result)
            return json.dumps(whole, ensure_ascii=False) + "\n"
        if isinstance(result, HeadwayError):
            return f"{number}\t\t\n" if self._listed else "\n"
        if not self._listed:
            return self._as_text(result.candidates[0]) + "\n"
        return "".join(
            f"{number}\t{candidate.score:.4f}\t{self._as_text(candidate)}\n" for candidate in result.candidates
        )

    def _as_text(self, candidate: Candidate) -> str:
        line = one_line(candidate.text)
        if self._listed or candidate.alignment is not None:
            line = line.replace("\t", " ")  # tabs separate the columns
        if candidate.alignment is None:
            return line
        return line + "\t" + " ".join(f"{i}-{j}" for i, j in self._translator.word_alignment(candidate).pairs)

    def json_value(self, translation: Translation) -> Any:
        """Return a translation as a JSON value: the text, a list of texts, or a dictionary."""
        if self._format == "json":
            return self.as_dict(translation)
        texts = [candidate.text for candidate in translation.candidates]
        return texts if self._listed else texts[0]

    def as_dict(self, translation: Translation) -> dict[str, Any]:
        """Return a translation with all its candidates as a dictionary for JSON."""
        candidates = [self._candidate_dict(candidate) for candidate in translation.candidates]
        judged = {} if translation.unlikely is None else {"unlikely": translation.unlikely}
        return {"source": translation.source, **candidates[0], **judged, "candidates": candidates}

    def _candidate_dict(self, candidate: Candidate) -> dict[str, Any]:
        """Return all fields of a candidate that have a value, and its word alignment if it has an alignment."""
        whole = {name: value for name, value in asdict(candidate).items() if value is not None}
        if candidate.alignment is not None:
            whole["words"] = asdict(self._translator.word_alignment(candidate))
        return whole


class TranslateOperation(TextOperation["Source", "Translation"]):
    """Translates with a model, an ensemble, or through a third language.

    Args:
        settings: The models, and the options of the translation.
    """

    def __init__(self, settings: TranslationSettings) -> None:
        from headway.predict import Glossary

        self._settings = settings
        self._translator, self.processor = settings.load_with_description()
        self._options = settings.options()
        self._glossary = None if settings.glossary is None else Glossary.load(Path(settings.glossary))
        self._writer = TranslationWriter(self._translator, settings)
        self._reader = settings.line_reader("corpus")

    def warm_up(self) -> None:
        """Translate a short text, so that the model's weights are converted and its kernels compiled."""
        self._translator.translate_each(["a", "b"], self._options, self._glossary)

    def parse(self, lines: Sequence[Line], first_line: int) -> list[Source | HeadwayError]:
        """Return the source in each line, or its error."""
        return self._reader.parse([line[0] for line in lines], first_line)

    def make_item(self, texts: tuple[str, ...]) -> Source:
        """Return a text as a source with the requirements that apply to all translations."""
        return self._reader.source(texts[0])

    def run(self, items: Sequence[Source]) -> list[Translation | HeadwayError]:
        """Return the translation of each source, or its error."""
        results = self._translator.translate_each(items, self._options, self._glossary)
        return [self._settings.rerank(result) for result in results]

    def format_line(self, number: int, item: Source | HeadwayError, result: Translation | HeadwayError) -> str:
        """Return the output for a line."""
        return self._writer.format_lines(number, item, result)

    def json_value(self, item: Source, result: Translation) -> Any:
        """Return a translation as a JSON value."""
        return self._writer.json_value(result)

    def counter_keys(self, result: Translation) -> Iterable[str]:
        """Return keys for the translation's flags, and for each glossary term whether it was satisfied."""
        from headway.predict.translation.quality import translation_flags

        yield from (f"{FLAG_PREFIX}{name}" for name in translation_flags(result))
        for term in result.glossary or ():
            yield f"{TERM_MET_PREFIX if term.met else TERM_NOT_MET_PREFIX}{term.source} -> {'|'.join(term.targets)}"
