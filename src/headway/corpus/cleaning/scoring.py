"""Score pairs with models, between the two passes, as a job.

The output for a line is one line with its scores in Base64. The lines are repaired again, which takes less time than
reading the results of the first pass.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from headway.config import Config
from headway.corpus.cleaning.coverage import CoverageModel
from headway.corpus.cleaning.cross_entropy import PairEntropies
from headway.corpus.cleaning.lexical_model import LexicalModel
from headway.corpus.cleaning.measuring import CleaningSettings
from headway.jobs.line_map import ConvertedBatch, ConvertedLine, Line

if TYPE_CHECKING:
    from headway.predict import Translator

SCORE_NAMES = ("misaligned", "truncated", "cross_entropy")  # the rules that use these scores as their values
_BYTES_PER_SCORE = 4
_LINE_CHARACTERS = len(SCORE_NAMES) * _BYTES_PER_SCORE // 3 * 4


class ScoringSettings(Config):
    """The options of the scoring job.

    Attributes:
        cleaning: The settings of the cleaning run that uses the scores.
        lexical_model: Path of the lexical model, or None.
        coverage: Path of a coverage model that uses the translation models, or None.
        precision: The precision of the translation models.
    """

    cleaning: CleaningSettings
    lexical_model: str | None = None
    coverage: str | None = None
    precision: Literal["float32", "int8"] = "int8"

    @property
    def paths(self) -> list[Path]:
        """The files and models that scores depend on."""
        models = (self.lexical_model, self.coverage, self.cleaning.model, self.cleaning.reverse_model)
        return [Path(path) for path in models if path is not None]

    def check(self) -> None:
        """Do nothing, because these options can be combined freely."""


class PairScorer:
    """Scores pairs with the lexical model and the translation models that are given in the settings.

    Args:
        settings: The models, their precision, and the cleaning settings.
    """

    def __init__(self, settings: ScoringSettings) -> None:
        cleaning = settings.cleaning
        self._languages = (cleaning.languages[0], cleaning.languages[-1])
        self._lexical = LexicalModel.load(Path(settings.lexical_model)) if settings.lexical_model else None
        self._coverage = CoverageModel.load(Path(settings.coverage)) if settings.coverage else None
        self._translators: tuple[Translator, Translator] | None = None
        if cleaning.model is not None and cleaning.reverse_model is not None:
            from headway.predict import load_translator

            self._translators = (
                load_translator(cleaning.model, device="cpu", precision=settings.precision),
                load_translator(cleaning.reverse_model, device="cpu", precision=settings.precision),
            )

    def scores(self, pairs: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
        """Return the scores of each pair: shape (pairs, ``SCORE_NAMES``). NaN if a score cannot be computed."""
        table = np.full((len(pairs), len(SCORE_NAMES)), np.nan, dtype=np.float32)
        usable = np.array([all(pair) for pair in pairs], dtype=bool)
        if usable.any():
            table[usable] = self._judge([pair for pair in pairs if all(pair)])[0]
        return table

    def features(self, pairs: Sequence[tuple[str, ...]]) -> NDArray[np.float64]:
        """Return the features from which coverage models are learned: shape (pairs, features). Texts are not empty."""
        return self._judge(pairs)[1]

    def _judge(self, pairs: Sequence[tuple[str, ...]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the scores and the features of pairs without empty texts."""
        sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        scores = np.full((len(pairs), len(SCORE_NAMES)), np.nan)
        features = []
        if self._lexical is not None:
            judged = self._lexical.score_pairs(sources, targets)
            scores[:, 0], scores[:, 1] = judged.scores, judged.coverages
            features.append(judged.features)
        if self._translators is not None:
            entropies = PairEntropies.compute(*self._translators, sources, targets, self._languages)
            scores[:, 2] = entropies.dual_cross_entropy
            features.append(entropies.features)
        all_features = np.concatenate(features, axis=1)
        if self._coverage is not None:
            scores[:, 1] = self._coverage.log_odds(all_features)
        return scores, all_features


class ScoreMap:
    """The operation of the scoring job.

    Args:
        settings: The options of the scoring job.

    Attributes:
        processor: Empty, because results do not depend on the processor: translation models compute in int8.
    """

    def __init__(self, settings: ScoringSettings) -> None:
        self._settings = settings.cleaning
        self._scorer = PairScorer(settings)
        self._measurer = settings.cleaning.measurer()
        self.processor: dict[str, Any] = {}

    def convert(self, lines: Sequence[Line], first_line: int, location: str) -> ConvertedBatch:
        """Return the scores of each line."""
        parser = self._settings.parser(Path(location))
        pairs = [next(iter(self._measurer.repair_texts([parser.parse(line)])), ("", "")) for line in lines]
        return ConvertedBatch([*map(ConvertedLine, _encoded(self._scorer.scores(pairs)))])

    def make_failed_line(self, line: Line, number: int, location: str, reason: str) -> ConvertedLine:
        """Return the output for a line that cannot be scored. No rule that uses scores drops it."""
        return ConvertedLine(_encoded(np.full((1, len(SCORE_NAMES)), np.nan, dtype=np.float32))[0], reason)


def _encoded(table: NDArray[np.float32]) -> list[str]:
    text = base64.b64encode(table.astype("<f4").tobytes()).decode("ascii")
    return [text[start : start + _LINE_CHARACTERS] + "\n" for start in range(0, len(text), _LINE_CHARACTERS)]


def decode_scores(output: bytes) -> dict[str, NDArray[np.float32]]:
    """Decode the scores of the lines in a chunk. The keys of the result are the names of the scores."""
    numbers = np.frombuffer(base64.b64decode(output.replace(b"\n", b"")), dtype="<f4")
    return dict(zip(SCORE_NAMES, numbers.reshape(-1, len(SCORE_NAMES)).T, strict=True))
