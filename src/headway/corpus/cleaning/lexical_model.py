"""Score sentence pairs with word translations that are learned from the corpus itself.

IBM model 1 relates the words of both sides, in both directions (:mod:`headway.text.lexicon`), with a Dirichlet prior.
If c(f, e) is the expected number of times that e is the translation of f,

    t(e | f) = (c(f, e) - d + (alpha + d_f) b(e | f)) / (c(f) + alpha)

The base measure b(e | f) is a mixture of the word's frequency p(e) and a copy of f, which accounts for names and
numbers. The absolute discount d removes counts that come from a single sentence pair, because a pair must not explain
itself. The discounts of a word f sum to d_f, which is redistributed according to b.

The gain of a word is log(l + (1 - l) mean_f t(e | f) / p(e)), where the mean is over the words of the other sentence
and the empty word, and l is the share of words that no word of the other sentence generates. In random pairs, the gain
is about 0 or negative.

The score of a pair is computed in two steps for each direction. First, the gain of each word minus the word's mean gain
in the corpus is averaged over the words. Second, this average is standardized by its mean and standard deviation in
random pairs of the same lengths. So random pairs of any length have scores of about 0. In spite of the discount, a bad
pair in the corpus explains itself a little. Some random pairs are therefore added to the corpus, so that the same is
true of random pairs.

A second score, the coverage, estimates whether both sides have the same content
(:mod:`headway.corpus.cleaning.coverage`). Its features are means, sums, and the largest sum of missing gains at the end
of a side, computed from the gains and from their differences to the mean gains.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Int

from headway import kernels
from headway.corpus.cleaning.artificial_pairs import swap_texts, truncate_texts
from headway.corpus.cleaning.coverage import CoverageModel
from headway.corpus.cleaning.mixture import is_probably_good
from headway.errors import DataError
from headway.text.lexicon import ITERATIONS, Cooccurrences
from headway.text.words import split_words

_SAMPLE = 200_000  # maximum number of pairs to learn the model from
_FREQUENT = 4  # words that are rarer on both sides are represented by their first characters
_BEGINNING = 5  # characters
_PRIOR = 2.0  # alpha, as a number of pseudo-observations
_COPIES = 0.1  # weight of the copy in the base measure
_DISCOUNT = 0.9  # d, in observations
_INDEPENDENT = 0.2  # l
_JUDGED = 20_000  # maximum number of pairs to learn scores and coverages from
_TRUNCATED_PAIRS, _MAX_TRUNCATED_SHARE = 10_000, 0.1
_LEAST_DEVIATION = 1e-3
# Maximum number of random pairs, and their maximum share of the pairs that the lexicon is learned from.
_RANDOM_PAIRS, _MAX_RANDOM_SHARE = 5_000, 0.05

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Sentences:
    """The word ids of sentences, concatenated. Sentence n is ``ids[starts[n] : starts[n + 1]]``."""

    ids: Int[npt.NDArray[np.int32], " T"]
    starts: Int[npt.NDArray[np.int64], " N1"]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Int[npt.NDArray[np.int64], " N"]:
        return np.diff(self.starts)

    def to_lists(self) -> list[list[int]]:
        ids = self.ids.tolist()
        return [ids[start:end] for start, end in zip(self.starts[:-1], self.starts[1:], strict=True)]

    def largest_ends(self, values: Float[np.ndarray, " T"]) -> Float[np.ndarray, " N"]:
        """Return, for each sentence, the largest sum of values from any word to the end. 0 for an empty sentence."""
        sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        smallest = np.minimum.reduceat(sums, self.starts[:-1])
        return np.where(self.lengths > 0, sums[self.starts[1:]] - smallest, 0.0)

    def means(self, values: Float[np.ndarray, " T"]) -> Float[np.ndarray, " N"]:
        """Return the mean value of the words in each sentence. 0 for an empty sentence."""
        sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        means: Floats = (sums[self.starts[1:]] - sums[self.starts[:-1]]) / np.maximum(self.lengths, 1)
        return means


def _words(text: str) -> list[str]:
    return [word for word in split_words(text.casefold()) if word != " "]


class _Vocabulary:
    """Maps the words of both sides to ids. Rare words are represented by their first characters, or are unknown."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.unknown = len(words)
        self._ids = {word: number for number, word in enumerate(words)}

    @classmethod
    def learn(cls, sources: Iterable[str], targets: Iterable[str]) -> _Vocabulary:
        counts = [Counter(word for text in texts for word in _words(text)) for texts in (sources, targets)]
        known = {word for side in counts for word, count in side.items() if count >= _FREQUENT}
        known |= counts[0].keys() & counts[1].keys()
        rare = Counter[str]()
        for side in counts:
            for word, count in side.items():
                if word not in known:
                    rare[_beginning(word)] += count
        return cls(sorted(known | {word for word, count in rare.items() if count > 1}))

    def encode(self, texts: Iterable[str]) -> _Sentences:
        ids, starts = list[int](), [0]
        for text in texts:
            ids += map(self._id, _words(text))
            starts.append(len(ids))
        return _Sentences(np.array(ids, np.int32), np.array(starts, np.int64))

    def _id(self, word: str) -> int:
        number = self._ids.get(word)
        return self._ids.get(_beginning(word), self.unknown) if number is None else number


def _beginning(word: str) -> str:
    return word if len(word) <= _BEGINNING else word[:_BEGINNING] + "-"


@dataclass(frozen=True, eq=False)
class _Direction:
    """The translation probabilities and gains of one side's words, given the words of the other side.

    Attributes:
        row_starts: The start of each word's row in ``row_words``. The last two rows belong to unknown words and to the
            empty word.
        row_words: The words e that f generates, in ascending order within the row of f.
        gains: t(e | f) / p(e) for each entry of ``row_words``.
        unseen_gains: For each f, t(e | f) / p(e) of all words that are not in its row.
        typical: The mean gain of each word e in the corpus. The last entry is for unknown words.
    """

    row_starts: Int[npt.NDArray[np.int64], " V2"]
    row_words: Int[npt.NDArray[np.int32], " K"]
    gains: Float[npt.NDArray[np.float32], " K"]
    unseen_gains: Float[npt.NDArray[np.float32], " V1"]
    typical: Float[npt.NDArray[np.float32], " V"]

    @classmethod
    def learn(cls, sources: _Sentences, targets: _Sentences, size: int) -> _Direction:
        """Learn t(e | f) from sentence pairs. Word ids are less than ``size``; the last id is the unknown word."""
        frequency = np.bincount(targets.ids, minlength=size) + 0.5
        frequency /= frequency.sum()
        cooccurrences = Cooccurrences.count(sources.to_lists(), targets.to_lists(), size, size)
        origin, word = np.divmod(cooccurrences.pairs, size)
        base = (1 - _COPIES) * frequency[word] + _COPIES * (origin == word)
        probability = base
        for _ in range(ITERATIONS):
            counts = cooccurrences.add_expected_counts(probability)
            totals = np.bincount(origin, counts, minlength=size + 1)
            probability = (counts + _PRIOR * base) / (totals[origin] + _PRIOR)
        del cooccurrences
        seen = counts > _DISCOUNT
        keys = np.union1d(origin[seen] * size + word[seen], np.arange(size - 1) * (size + 1))
        kept = np.zeros(len(keys))
        kept[np.searchsorted(keys, origin[seen] * size + word[seen])] = counts[seen] - _DISCOUNT
        origin, word = np.divmod(keys, size)
        of_base = (totals + _PRIOR - np.bincount(origin, kept, minlength=size + 1)) / (totals + _PRIOR)
        ratios = kept / (totals[origin] + _PRIOR) / frequency[word]
        ratios += of_base[origin] * (1 - _COPIES + _COPIES * (origin == word) / frequency[word])
        direction = cls(
            np.searchsorted(origin, np.arange(size + 2)),
            word.astype(np.int32),
            ratios.astype(np.float32),
            ((1 - _COPIES) * of_base).astype(np.float32),
            np.zeros(size, np.float32),
        )
        evidence = direction.evidence(sources, targets)
        count = np.bincount(targets.ids, minlength=size)
        typical = (np.bincount(targets.ids, evidence, minlength=size) + evidence.mean()) / (count + 1)
        return cls(**{**vars(direction), "typical": typical.astype(np.float32)})

    def evidence(self, sources: _Sentences, targets: _Sentences) -> Float[npt.NDArray[np.float32], " T"]:
        """Return the gain of each target word."""
        means = np.empty(len(targets.ids), np.float32)
        compute_mean_gains = _mean_gains
        if kernels.is_available():
            from headway.kernels.lexicon import compute_mean_gains
        compute_mean_gains(
            sources.ids,
            sources.starts,
            targets.ids,
            targets.starts,
            self.row_starts,
            self.row_words,
            self.gains,
            self.unseen_gains,
            len(self.unseen_gains) - 1,
            means,
        )
        gains: npt.NDArray[np.float32] = np.log(_INDEPENDENT + (1 - _INDEPENDENT) * means)
        return gains


@dataclass(frozen=True, eq=False)
class _Lexicon:
    """The word translation tables for both directions, and the usual length ratio."""

    vocabulary: _Vocabulary
    forward: _Direction
    reverse: _Direction
    log_ratio: float  # the median of log(target characters / source characters)

    @classmethod
    def learn(cls, sources: Sequence[str], targets: Sequence[str]) -> _Lexicon:
        vocabulary = _Vocabulary.learn(sources, targets)
        of_source, of_target = vocabulary.encode(sources), vocabulary.encode(targets)
        size = vocabulary.unknown + 1
        forward, reverse = _Direction.learn(of_source, of_target, size), _Direction.learn(of_target, of_source, size)
        return cls(vocabulary, forward, reverse, float(np.median(_log_ratios(sources, targets))))

    def features(self, sources: Sequence[str], targets: Sequence[str]) -> _PairFeatures:
        """Return the scores and features of pairs."""
        of_source, of_target = self.vocabulary.encode(sources), self.vocabulary.encode(targets)
        log_ratios = _log_ratios(sources, targets) - self.log_ratio
        columns = [np.log1p(of_source.lengths), np.log1p(of_target.lengths), log_ratios, np.abs(log_ratios)]
        excesses = []
        for direction, given, explained in (
            (self.forward, of_source, of_target),
            (self.reverse, of_target, of_source),
        ):
            gains = direction.evidence(given, explained)
            excess = gains - direction.typical[explained.ids]
            excesses.append(explained.means(excess))
            missing_end = explained.largest_ends(-excess)
            columns += [explained.means(gains), excesses[-1], missing_end, missing_end / (explained.lengths + 1)]
            columns += [explained.lengths * column for column in columns[-4:-2]]
        return _PairFeatures(np.stack(excesses, axis=1), np.stack(columns, axis=1))


@dataclass(frozen=True, eq=False)
class _PairFeatures:
    """The features from which pairs are scored.

    Attributes:
        excesses: For both directions, the words' gains minus their mean gains in the corpus, averaged over a sentence.
        all: All features, beginning with the logarithms of the two lengths and the length ratio. For each direction,
            they include means and sums of the gains and of their differences from the mean gains, and the largest sum
            of missing gains at the end of the sentence.
    """

    excesses: Float[npt.NDArray[np.float64], "N 2"]
    all: Float[npt.NDArray[np.float64], "N F"]

    @property
    def length_terms(self) -> Float[npt.NDArray[np.float64], "N 6"]:
        """The terms of a quadratic function of the two log lengths."""
        source, target = self.all[:, 0], self.all[:, 1]
        return np.stack([np.ones_like(source), source, target, source**2, target**2, source * target], axis=1)


@dataclass(frozen=True, eq=False)
class _RandomPairs:
    """The mean and the deviation of random pairs' excesses, as functions of the lengths.

    Attributes:
        means: Weights of the length terms that predict the mean, for both directions.
        log_deviations: Weights of the length terms that predict the logarithm of the absolute deviation.
        scale: Ratio of the standard deviation to the predicted absolute deviation.
    """

    means: Float[npt.NDArray[np.float64], "6 2"]
    log_deviations: Float[npt.NDArray[np.float64], "6 2"]
    scale: Float[npt.NDArray[np.float64], " 2"]

    @classmethod
    def learn(cls, features: _PairFeatures) -> _RandomPairs:
        """Fit the functions to random pairs by least squares."""
        terms = features.length_terms
        means = np.linalg.lstsq(terms, features.excesses, rcond=None)[0]
        deviations = features.excesses - terms @ means
        logs = np.linalg.lstsq(terms, np.log(np.abs(deviations) + _LEAST_DEVIATION), rcond=None)[0]
        scale = (deviations / np.exp(terms @ logs)).std(axis=0) + _LEAST_DEVIATION
        return cls(means.astype(np.float64), logs.astype(np.float64), scale)

    def standard_scores(self, features: _PairFeatures) -> Floats:
        """Standardize both excesses by random pairs, and return their sum divided by the square root of 2."""
        terms = features.length_terms
        scores = (features.excesses - terms @ self.means) / np.exp(terms @ self.log_deviations) / self.scale
        total: Floats = scores.sum(axis=1) / np.sqrt(2)
        return total


_Pairs = tuple[list[str], list[str]]


@dataclass(frozen=True, eq=False)
class _ShortenedPairs:
    """Pairs in which one side was truncated.

    The lexicon learns from these pairs instead of the whole pairs, because truncated pairs that are really in the
    corpus also explain themselves a little.

    Attributes:
        learned_sources: The sources that the lexicon learns from.
        learned_targets: The targets of ``learned_sources``.
        by_target: Whole pairs, and the same pairs with truncated targets.
        by_source: Whole pairs, and the same pairs with truncated sources.
    """

    learned_sources: list[str]
    learned_targets: list[str]
    by_target: tuple[_Pairs, _Pairs]
    by_source: tuple[_Pairs, _Pairs]

    @classmethod
    def of(
        cls, sources: Sequence[str], targets: Sequence[str], known: float, dice: np.random.Generator
    ) -> _ShortenedPairs:
        """Truncate some of the pairs. The lexicon learns from the share ``known`` of the truncated pairs."""
        pairs = [*zip(sources, targets, strict=True)]
        groups, left = list[tuple[_Pairs, _Pairs]](), dict(enumerate(pairs))
        numbers = np.linspace(0, len(pairs) - 1, min(_TRUNCATED_PAIRS, round(_MAX_TRUNCATED_SHARE * len(pairs))))
        for side, chosen in ((1, numbers[::2].astype(int)), (0, numbers[1::2].astype(int))):
            texts = [pairs[number][side] for number in chosen]
            whole: _Pairs = ([], [])
            shorter: _Pairs = ([], [])
            for number, text, truncated in zip(chosen.tolist(), texts, truncate_texts(texts, dice), strict=True):
                if truncated == text:
                    continue
                pair = (pairs[number][0], truncated) if side == 1 else (truncated, pairs[number][1])
                if dice.random() < known:
                    left[number] = pair
                else:
                    del left[number]
                for group, texts_of_pair in ((whole, pairs[number]), (shorter, pair)):
                    group[0].append(texts_of_pair[0])
                    group[1].append(texts_of_pair[1])
            groups.append((whole, shorter))
        learned = [*left.values()]
        return cls([source for source, _ in learned], [target for _, target in learned], *groups)


@dataclass(frozen=True, eq=False)
class PairScores:
    """The scores that a lexical model assigns to sentence pairs.

    Attributes:
        scores: How much better the words of each pair explain each other than in random pairs, in standard deviations.
        coverages: The log-odds that neither side is truncated.
        features: The features that coverages are computed from.
    """

    scores: Floats
    coverages: Floats
    features: Float[npt.NDArray[np.float64], "N F"]


class LexicalModel:
    """Scores sentence pairs with word translations; see the module's docstring.

    Attributes:
        scores_of_random_pairs: The result of :meth:`scores` for random pairs with lengths like those of real pairs, for
            :func:`headway.corpus.cleaning.mixture.estimate_posteriors`.
        coverages_of_truncated_pairs: The result of :meth:`coverages` for pairs in which one side was truncated.
        truncated_pairs: Pairs with truncated targets, and pairs with truncated sources. The share of these pairs that
            the model has learned from is the same as for the corpus's pairs.
    """

    def __init__(
        self,
        lexicon: _Lexicon,
        random_pairs: _RandomPairs,
        scores_of_random_pairs: Floats,
        coverage: CoverageModel,
        truncated_pairs: Sequence[Sequence[tuple[str, str]]],
    ) -> None:
        self._lexicon, self._random_pairs, self._coverage = lexicon, random_pairs, coverage
        self.scores_of_random_pairs = scores_of_random_pairs
        self.coverages_of_truncated_pairs = coverage.truncated_pair_coverages
        self.truncated_pairs = truncated_pairs

    @classmethod
    def learn(cls, sources: Sequence[str], targets: Sequence[str], *, corpus_size: int | None = None) -> LexicalModel:
        """Learn the model from a parallel corpus, which may contain some bad pairs. The result is deterministic.

        Args:
            sources: The source sentences. If there are many, 200,000 evenly spaced pairs are used.
            targets: One target for each source.
            corpus_size: The number of pairs in the corpus, if the given pairs are a sample.

        Raises:
            DataError: There is no pair.
        """
        if not sources:
            raise DataError("no pairs to learn word translations from; expected a parallel corpus")
        known = min(len(sources), _SAMPLE) / max(len(sources), corpus_size or 0)
        sources, targets = _evenly_spaced(sources, _SAMPLE), _evenly_spaced(targets, _SAMPLE)
        dice = np.random.default_rng(1)
        num_random = min(_RANDOM_PAIRS, max(1, round(_MAX_RANDOM_SHARE * len(sources))))
        exchanged = swap_texts(targets, dice)
        random = _evenly_spaced(sources, num_random), _evenly_spaced(exchanged, num_random)
        shortened = _ShortenedPairs.of(sources, targets, known, dice)
        lexicon = _Lexicon.learn([*shortened.learned_sources, *random[0]], [*shortened.learned_targets, *random[1]])
        sources, targets = _evenly_spaced(sources, _JUDGED), _evenly_spaced(targets, _JUDGED)
        # The share of random pairs that are new to the lexicon is the same as in the corpus.
        unknown = round(num_random * (1 - known))
        new = (
            [*sources[:unknown], *random[0][unknown:]],
            [*swap_texts(targets, dice)[:unknown], *random[1][unknown:]],
        )
        features_of_random = lexicon.features(*new)
        random_pairs = _RandomPairs.learn(features_of_random)
        scores_of_random = random_pairs.standard_scores(features_of_random)

        def related(features: _PairFeatures) -> npt.NDArray[np.bool_]:
            return is_probably_good(random_pairs.standard_scores(features), scores_of_random)

        features = lexicon.features(sources, targets)
        truncated_features, truncated_pairs = [], []
        for whole, (short_sources, short_targets) in (shortened.by_target, shortened.by_source):
            chosen = related(lexicon.features(*whole))
            truncated_features.append(lexicon.features(short_sources, short_targets).all[chosen])
            short_pairs = zip(short_sources, short_targets, strict=True)
            truncated_pairs.append([*compress(short_pairs, chosen.tolist())])
        coverage = CoverageModel.learn(features.all[related(features)], *truncated_features)
        return cls(lexicon, random_pairs, scores_of_random, coverage, truncated_pairs)

    def score_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> PairScores:
        """Return the scores, the coverages and the features of pairs."""
        features = self._lexicon.features(sources, targets)
        scores = self._random_pairs.standard_scores(features)
        return PairScores(scores, self._coverage.log_odds(features.all), features.all)

    def scores(self, sources: Sequence[str], targets: Sequence[str]) -> Floats:
        """Return the score of each pair; see :class:`PairScores`."""
        return self.score_pairs(sources, targets).scores

    def coverages(self, sources: Sequence[str], targets: Sequence[str]) -> Floats:
        """Return the smaller of two log-odds for each pair: that its target is whole, and that its source is whole."""
        return self.score_pairs(sources, targets).coverages

    def save(self, path: Path) -> None:
        """Write the model to a file (.npz)."""
        lexicon, arrays = self._lexicon, dict[str, Any]()
        parts = {"forward": vars(lexicon.forward), "reverse": vars(lexicon.reverse)}
        parts |= {"random": vars(self._random_pairs), "coverage": self._coverage.arrays()}
        for part, content in parts.items():
            arrays |= {f"{part}.{name}": array for name, array in content.items()}
        with path.open("wb") as file:
            np.savez(
                file,
                words=np.frombuffer("\n".join(lexicon.vocabulary.words).encode(), np.uint8),
                log_ratio=lexicon.log_ratio,
                scores_of_random_pairs=self.scores_of_random_pairs,
                truncated_pairs=np.frombuffer(json.dumps(self.truncated_pairs).encode(), np.uint8),
                **arrays,
            )

    @classmethod
    def load(cls, path: Path) -> LexicalModel:
        """Read the model from a file that :meth:`save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:

            def part(name: str) -> dict[str, Any]:
                return {key.partition(".")[2]: arrays[key] for key in arrays.files if key.startswith(f"{name}.")}

            vocabulary = _Vocabulary(arrays["words"].tobytes().decode().split("\n"))
            directions = (_Direction(**part("forward")), _Direction(**part("reverse")))
            return cls(
                _Lexicon(vocabulary, *directions, float(arrays["log_ratio"])),
                _RandomPairs(**part("random")),
                arrays["scores_of_random_pairs"],
                CoverageModel.from_arrays(part("coverage")),
                [
                    [(source, target) for source, target in group]
                    for group in json.loads(arrays["truncated_pairs"].tobytes())
                ],
            )


def _evenly_spaced(texts: Sequence[str], count: int) -> Sequence[str]:
    if len(texts) <= count:
        return texts
    return [texts[number] for number in np.linspace(0, len(texts) - 1, count).astype(int)]


def _log_ratios(sources: Sequence[str], targets: Sequence[str]) -> Floats:
    of_source, of_target = (np.array([len(text) + 1 for text in texts], np.float64) for texts in (sources, targets))
    return np.log(of_target / of_source)


def _mean_gains(
    sources: npt.NDArray[Any],
    source_starts: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    target_starts: npt.NDArray[Any],
    row_starts: npt.NDArray[Any],
    row_tokens: npt.NDArray[Any],
    gains: npt.NDArray[Any],
    unseen_gains: npt.NDArray[Any],
    empty_word: int,
    out: npt.NDArray[Any],
) -> None:
    """Compute :func:`headway.kernels.lexicon.compute_mean_gains` without compiled code."""
    keys = np.repeat(np.arange(empty_word + 1), np.diff(row_starts)) * empty_word + row_tokens
    for sentence in range(len(source_starts) - 1):
        of_target = slice(target_starts[sentence], target_starts[sentence + 1])
        words = np.append(sources[source_starts[sentence] : source_starts[sentence + 1]], empty_word).astype(np.int64)
        wanted = np.add.outer(targets[of_target], words * empty_word)
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        out[of_target] = np.where(keys[places] == wanted, gains[places], unseen_gains[words]).mean(axis=1)
