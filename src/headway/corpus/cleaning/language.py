"""Language probabilities for batches of texts, computed with py3langid's model.

py3langid counts the byte n-grams of a text with a finite automaton, and classifies the counts with naive Bayes. The
temperature of the softmax is the square root of the number of bytes. py3langid's own function processes one text at a
time. Here, the automaton advances on all texts of a batch in parallel, with one NumPy operation for each position, so
that a text takes only microseconds. The probabilities equal those from ``LanguageIdentifier.rank``, up to the order of
summation. They do not depend on the other texts in the batch.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from headway.errors import ConfigError, MissingPackageError
from headway.text.languages import base_language

_MAX_CHARACTERS = 2000  # maximum number of characters of a text that are used
_BATCH_FEATURES = 4096  # number of rows of the likelihood table to sum at a time
_VARIANTS = {"nb": "no", "nn": "no", "fil": "tl", "in": "id"}  # other codes that py3langid may use for a language


class LanguageDetector:
    """Detects the languages of texts.

    Attributes:
        languages: The codes of all languages that the model supports.

    Raises:
        MissingPackageError: py3langid is not installed.
    """

    def __init__(self) -> None:
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ModuleNotFoundError:
            raise MissingPackageError("language detection", "py3langid") from None
        model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        classes: list[str] = list(model.nb_classes)
        self.languages = list(dict.fromkeys(classes))
        self._column_of = np.array([self.languages.index(name) for name in classes])
        self._next = np.asarray(model.tk_nextmove)
        self._row_offset = np.asarray(model.tk_row).astype(np.int64) << 8
        self._feature = np.asarray(model.tk_output, dtype=np.int32)
        self._log_likelihood = np.asarray(model.nb_ptc, dtype=np.float32)
        self._log_prior = np.asarray(model.nb_pc, dtype=np.float32)

    def column(self, code: str) -> int:
        """Return the column of a language in the result of :meth:`probabilities`.

        Raises:
            ConfigError: The model does not support the language.
        """
        name = base_language(code)
        candidates = [name, _VARIANTS.get(name, name)]
        for known, language in enumerate(self.languages):
            if language in candidates or base_language(language) in candidates:
                return known
        raise ConfigError(
            f"language {code!r} cannot be detected by py3langid; it detects {', '.join(sorted(self.languages))}; "
            "correct the code, or remove 'language' from the rules"
        )

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the probability of each language for each text, as an array of shape (texts, languages)."""
        encoded = [_encode(text) for text in texts]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        rows, features, counts = self._count_features(b"".join(encoded), lengths)
        # A text without features gets equal probabilities.
        scores = np.zeros((len(texts), len(self._log_prior)), dtype=np.float32)
        weights = np.log1p(counts.astype(np.float32))
        firsts = np.flatnonzero(np.diff(rows, prepend=-1))  # the first feature of each text that has any
        begin = 0
        while begin < len(firsts):
            end = begin + max(int(np.searchsorted(firsts[begin:], firsts[begin] + _BATCH_FEATURES)), 1)
            part = slice(firsts[begin], firsts[end] if end < len(firsts) else len(rows))
            terms = self._log_likelihood[features[part]] * weights[part, None]
            sums = np.add.reduceat(terms, firsts[begin:end] - firsts[begin], axis=0)
            scores[rows[firsts[begin:end]]] = sums + self._log_prior
            begin = end
        scores /= np.sqrt(np.maximum(lengths, 1)).astype(np.float32)[:, None]
        np.exp(scores - scores.max(axis=1, keepdims=True), out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        merged = np.zeros((len(texts), len(self.languages)), dtype=np.float32)
        for column, language in enumerate(self._column_of):  # a language in two scripts has two columns
            merged[:, language] += scores[:, column]
        return merged

    def _count_features(
        self, content: bytes, lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each feature of each text, the index of the text, the index of the feature, and its count."""
        letters = np.frombuffer(content, dtype=np.uint8)
        starts = np.cumsum(lengths) - lengths
        order = np.argsort(-lengths, kind="stable")  # so that at each position, the texts that continue come first
        starts, sorted_lengths = starts[order], lengths[order]
        ends = np.searchsorted(-sorted_lengths, -np.arange(int(lengths.max(initial=0))), side="left")
        states = np.zeros(len(lengths), dtype=np.int64)
        num_features = len(self._log_likelihood)
        keys: list[NDArray[np.int64]] = []
        for position, left in enumerate(ends.tolist()):
            current = self._next[self._row_offset[states[:left]] + letters[starts[:left] + position]]
            states[:left] = current
            feature = self._feature[current]
            hits = np.flatnonzero(feature >= 0)
            keys.append(order[hits] * num_features + feature[hits])
        if not keys:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty, empty
        unique, counts = np.unique(np.concatenate(keys), return_counts=True)
        return unique // num_features, unique % num_features, counts


@cache
def language_detector() -> LanguageDetector:
    """Return the detector. It is loaded only once, because loading takes half a second."""
    return LanguageDetector()


def _encode(text: str) -> bytes:
    """Return the input bytes of the automaton, prepared in the same way as in py3langid."""
    text = text[:_MAX_CHARACTERS]
    if text.isupper():
        text = text.lower()
    return unicodedata.normalize("NFC", text).encode("utf-8", errors="surrogatepass")
