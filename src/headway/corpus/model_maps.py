"""Score, classify and continue the lines of a corpus, like ``headway score``, ``classify`` and ``generate``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from headway.config import Config
from headway.corpus.labels import format_label_line
from headway.corpus.lines import decode_line, one_line
from headway.corpus.text_map import TextOperation
from headway.errors import ConfigError, HeadwayError
from headway.jobs.line_map import Line

if TYPE_CHECKING:
    from headway.predict import Classification, Continuation, ScoredText

_Record = dict[str, Any]


class ModelSettings(Config):
    """Options of an operation with one model."""

    model: str
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    format: Literal["text", "json"] = "text"
    target_language: str | None = None
    source_language: str | None = None
    generation: dict[str, Any] = Field(default_factory=dict)

    @property
    def paths(self) -> list[Path]:
        """The models and files that results depend on."""
        return [Path(self.model)]

    def check(self) -> None:
        """Do nothing, because these options can be combined freely."""


def _texts(lines: Sequence[Line]) -> list[tuple[str, ...] | HeadwayError]:
    """Return the texts in each line, or its error."""
    return [*map(_decoded, lines)]


def _decoded(line: Line) -> tuple[str, ...] | HeadwayError:
    try:
        return tuple(map(decode_line, line))
    except HeadwayError as error:
        return error


class ScoreOperation(TextOperation[tuple[str, ...], _Record]):
    """Scores texts with a language model, or pairs of source and target with a translation model.

    Args:
        settings: The model, and the options of the scoring.
    """

    def __init__(self, settings: ModelSettings) -> None:
        from headway.bundle import read_config
        from headway.tasks import load

        self._settings = settings
        folder = Path(settings.model)
        capability = read_config(folder).capability
        if capability == "labels":
            raise ConfigError(f"{folder} is a classifier, which assigns no probability to texts")
        self._score: Callable[[Sequence[tuple[str, ...]]], Sequence[_Record | HeadwayError]]
        if capability == "translates":
            self.num_texts = 2
            translator = load(folder, device=settings.device, precision=settings.precision)
            self.processor = {"precision": translator.precision}
            self._translator, self._score = translator, self._score_pairs
        elif capability == "continues":
            model = load(folder, device=settings.device, precision=settings.precision)
            self.processor = {"precision": model.precision}
            self._score = lambda items: _score_texts(items, lambda texts: model.score(texts, precision="auto"))
        else:
            masked = load(folder, device=settings.device)
            self.processor = {"precision": "float32"}
            self._score = lambda items: _score_texts(items, masked.score)

    def warm_up(self) -> None:
        """Score a short text, so that the kernels are compiled."""
        self._score([("a",) * self.num_texts])

    def _score_pairs(self, pairs: Sequence[tuple[str, ...]]) -> list[_Record | HeadwayError]:
        results = self._translator.score_each(
            [pair[0] for pair in pairs],
            [pair[1] for pair in pairs],
            target_language=self._settings.target_language,
            source_language=self._settings.source_language,
            as_searched=self._translator.precision != "float32",
        )
        return [result if isinstance(result, HeadwayError) else asdict(result) for result in results]

    def parse(self, lines: Sequence[Line], first_line: int) -> list[tuple[str, ...] | HeadwayError]:
        """Return the text or the pair of texts in each line, or its error."""
        return _texts(lines)

    def make_item(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Return the texts unchanged."""
        return texts

    def run(self, items: Sequence[tuple[str, ...]]) -> Sequence[_Record | HeadwayError]:
        """Return the score of each item."""
        return self._score(items)

    def format_line(self, number: int, item: tuple[str, ...] | HeadwayError, result: _Record | HeadwayError) -> str:
        """Return the log-probability and the number of tokens, or a JSON object."""
        if isinstance(result, HeadwayError):
            return json.dumps({"error": str(result)}, ensure_ascii=False) + "\n" if self._is_json else "\n"
        if self._is_json:
            return json.dumps(result, ensure_ascii=False) + "\n"
        return f"{result['log_probability']:.4f}\t{len(result['tokens'])}\n"

    @property
    def _is_json(self) -> bool:
        return self._settings.format == "json"

    def json_value(self, item: tuple[str, ...], result: _Record) -> Any:
        """Return the log-probability or, in JSON format, the complete result."""
        return result if self._is_json else result["log_probability"]


def _score_texts(
    items: Sequence[tuple[str, ...]], score: Callable[[list[str]], list[ScoredText]]
) -> list[_Record | HeadwayError]:
    records: list[_Record | HeadwayError] = []
    for scored in score([texts[0] for texts in items]):
        ends = [] if scored.eos_log_probability is None else [scored.eos_log_probability]
        values = {"tokens": scored.tokens, "token_log_probabilities": [*scored.token_log_probabilities, *ends]}
        records.append({"log_probability": scored.log_probability, **values})
    return records


class ClassifyOperation(TextOperation[str, "Classification"]):
    """Classifies texts.

    Args:
        settings: The model, and the options of the classification.
    """

    def __init__(self, settings: ModelSettings) -> None:
        from headway.predict import load_classifier

        self._is_json = settings.format == "json"
        self._classifier = load_classifier(settings.model, device=settings.device)
        self.processor = {"precision": "float32"}

    def warm_up(self) -> None:
        """Classify a short text, so that the kernels are compiled."""
        self._classifier.warm_up()

    def parse(self, lines: Sequence[Line], first_line: int) -> list[str | HeadwayError]:
        """Return the text in each line, or its error."""
        return [item if isinstance(item, HeadwayError) else item[0] for item in _texts(lines)]

    def make_item(self, texts: tuple[str, ...]) -> str:
        """Return the only text."""
        return texts[0]

    def run(self, items: Sequence[str]) -> list[Classification | HeadwayError]:
        """Return the label of each text, or its error."""
        return self._classifier.classify_each(items)

    def format_line(self, number: int, item: str | HeadwayError, result: Classification | HeadwayError) -> str:
        """Return the label and its probability, or a JSON object."""
        if isinstance(result, HeadwayError):
            return json.dumps({"error": str(result)}, ensure_ascii=False) + "\n" if self._is_json else "\n"
        if not self._is_json:
            return format_label_line(result)
        return json.dumps({"text": item, **asdict(result)}, ensure_ascii=False) + "\n"

    def json_value(self, item: str, result: Classification) -> Any:
        """Return the label or, in JSON format, the complete result."""
        return asdict(result) if self._is_json else result.label

    def counter_keys(self, result: Classification) -> Iterable[str]:
        """Return the key under which truncated texts are counted, if the text was truncated."""
        return ["flag:truncated"] * result.truncated


class GenerateOperation(TextOperation[str, "list[Continuation]"]):
    """Continues texts with a language model.

    Args:
        settings: The model, and the options of the generation.
    """

    def __init__(self, settings: ModelSettings) -> None:
        from headway.predict import load_language_model

        self._settings = settings
        self._model = load_language_model(settings.model, device=settings.device, precision=settings.precision)
        self.processor = {"precision": self._model.precision}

    def warm_up(self) -> None:
        """Continue a short text, so that the kernels are compiled."""
        self._model.warm_up()

    def parse(self, lines: Sequence[Line], first_line: int) -> list[str | HeadwayError]:
        """Return the prompt in each line, or its error."""
        return [item if isinstance(item, HeadwayError) else item[0] for item in _texts(lines)]

    def make_item(self, texts: tuple[str, ...]) -> str:
        """Return the only text, which is the prompt."""
        return texts[0]

    def run(self, items: Sequence[str]) -> list[list[Continuation] | HeadwayError]:
        """Return the continuations of each prompt, or its error."""
        options, results = self._settings.generation, list[Any]()
        for prompt in items:
            try:
                self._model.check_prompt(prompt, **options)
                results.append(None)
            except HeadwayError as error:
                results.append(error)
        valid = [prompt for prompt, error in zip(items, results, strict=True) if error is None]
        continuations = iter(self._model.generate(valid, **options))
        return [next(continuations) if error is None else error for error in results]

    def format_line(self, number: int, item: str | HeadwayError, result: list[Continuation] | HeadwayError) -> str:
        """Return a line for each continuation, which includes the prompt, or a JSON object."""
        is_json = self._settings.format == "json"
        if isinstance(result, HeadwayError) or isinstance(item, HeadwayError):
            return json.dumps({"error": str(result)}, ensure_ascii=False) + "\n" if is_json else "\n"
        if is_json:
            record = {"prompt": item, "continuations": [asdict(one) for one in result]}
            return json.dumps(record, ensure_ascii=False) + "\n"
        return "".join(one_line(item + one.text) + "\n" for one in result)

    def json_value(self, item: str, result: list[Continuation]) -> Any:
        """Return the text of the continuation, a list of texts if there are several, or complete results as JSON."""
        if self._settings.format == "json":
            return [asdict(one) for one in result]
        texts = [one.text for one in result]
        return texts[0] if len(texts) == 1 else texts
