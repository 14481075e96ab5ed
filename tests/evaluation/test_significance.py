"""Comparison of systems: exact p-values of small cases by hand, agreement with sacreBLEU, and properties."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import product

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from headway.errors import ConfigError, DataError
from headway.evaluation import (
    METRICS,
    compare_labels,
    compare_language_models,
    compare_translations,
    mcnemar,
    paired_randomization,
)

WORDS = ("the", "a", "Haus,", "cat", "sat", "on", "mat.", "of", "It", "(not)")


def corpus(sentences: int, errors: float, seed: int) -> tuple[list[str], list[str]]:
    """Return noisy hypotheses and their references, which do not depend on ``errors`` and ``seed``."""
    draw = random.Random(0)
    references = [draw.choices(WORDS, k=draw.randint(3, 20)) for _ in range(sentences)]
    noise = random.Random(seed)
    hypotheses = [[noise.choice(WORDS) if noise.random() < errors else word for word in ref] for ref in references]
    return [" ".join(words) for words in hypotheses], [" ".join(words) for words in references]


class TestMcNemar:
    @pytest.mark.parametrize(("only_baseline", "only_system"), [(0, 0), (3, 3), (0, 5), (2, 9), (9, 2)])
    def test_equals_the_enumeration_of_all_assignments(self, only_baseline: int, only_system: int) -> None:
        n, fewer = only_baseline + only_system, min(only_baseline, only_system)
        extreme = sum(min(sum(signs), n - sum(signs)) <= fewer for signs in product((0, 1), repeat=n))
        baseline = [True] * only_baseline + [False] * only_system + [True] * 4 + [False] * 4
        system = [False] * only_baseline + [True] * only_system + [True] * 4 + [False] * 4
        assert mcnemar(baseline, system) == pytest.approx(extreme / 2**n)

    def test_thousands_of_disagreements(self) -> None:
        # Nearly normal: (b - c) / sqrt(b + c) standard deviations, with continuity correction.
        b, c = 2600, 2400
        expected = math.erfc((b - c - 1) / math.sqrt(b + c) / math.sqrt(2))
        assert mcnemar([True] * b + [False] * c, [False] * b + [True] * c) == pytest.approx(expected, rel=0.01)


class TestRandomization:
    @pytest.mark.parametrize("metric", METRICS)
    def test_a_system_equals_itself(self, metric: str) -> None:
        hypotheses, references = corpus(20, 0.3, 1)
        assert paired_randomization(hypotheses, hypotheses, references, metric=metric, trials=50) == 1

    @pytest.mark.parametrize(("better", "worse"), [(6, 1), (5, 3), (4, 4)])
    def test_equals_the_enumeration_of_all_swaps(self, better: int, worse: int) -> None:
        # Only sentences on which the systems differ matter: each swap turns a +1 into a -1.
        system = ["right"] * better + ["wrong"] * worse + ["right"] * 5
        baseline = ["wrong"] * better + ["right"] * worse + ["right"] * 5
        references = ["right"] * (better + worse + 5)
        signs = list(product((-1, 1), repeat=better + worse))
        exact = sum(abs(sum(each)) >= abs(better - worse) for each in signs) / len(signs)
        found = paired_randomization(baseline, system, references, metric="exact_match", trials=4000)
        assert found == pytest.approx(exact, abs=4 * math.sqrt(0.25 / 4000))

    def test_agrees_with_sacrebleu_if_the_systems_differ(self) -> None:
        baseline, references = corpus(60, 0.35, 1)
        system, _ = corpus(60, 0.3, 2)
        _, theirs = PairedTest(
            [("baseline", baseline), ("system", system)], {"bleu": BLEU()}, [references], "ar", n_samples=2000
        )()
        ours = paired_randomization(baseline, system, references, trials=2000)
        result = theirs["BLEU"][1]
        assert not isinstance(result, str)
        assert result.p_value is not None
        assert 0.01 < result.p_value < 0.99, "the comparison would show nothing"
        assert ours == pytest.approx(result.p_value, abs=6 * math.sqrt(0.25 / 2000))

    @pytest.mark.parametrize("test", ["ar", "bs"])
    def test_sacrebleu_calls_identical_systems_different(self, test: str) -> None:
        """The reason for our own tests of significance. If this fails, sacreBLEU's tests may replace them."""
        hypotheses, references = corpus(20, 0.3, 1)
        systems: list[tuple[str, Sequence[str]]] = [("baseline", hypotheses), ("system", hypotheses)]
        _, theirs = PairedTest(systems, {"bleu": BLEU()}, [references], test, n_samples=100)()
        result = theirs["BLEU"][1]
        assert not isinstance(result, str)
        assert result.p_value == pytest.approx(1 / 101)


class TestTranslations:
    def test_table(self) -> None:
        baseline, references = corpus(50, 0.5, 1)
        better, _ = corpus(50, 0.1, 2)
        table = compare_translations(
            {"old": baseline, "new": better, "same": baseline}, references, samples=100, trials=100, max_differences=3
        )
        assert table.systems == ("old", "new", "same")
        assert [(row.metric, row.system) for row in table.rows] == [
            (metric, system) for metric in ("BLEU", "chrF2", "TER") for system in table.systems
        ]
        rows = {(row.metric, row.system): row for row in table.rows}
        for metric in ("BLEU", "chrF2", "TER"):
            old, new, same = (rows[metric, system] for system in table.systems)
            assert old.delta is None
            assert old.p_values is None
            assert new.delta == pytest.approx(new.value - old.value)
            assert new.delta is not None
            assert (new.delta < 0) == (metric == "TER")
            assert new.p_values == pytest.approx({"bootstrap": 1 / 101, "randomization": 1 / 101})
            assert same.p_values == {"bootstrap": 1, "randomization": 1}
            assert "bs:100|" in new.signature
            assert "ar:100|" in new.signature
        spreads = [each.spread for each in table.differences]
        assert len(spreads) == 3
        assert spreads == sorted(spreads, reverse=True)
        for each in table.differences:
            assert each.outputs == (baseline[each.number - 1], better[each.number - 1], baseline[each.number - 1])
            assert each.reference == references[each.number - 1]

    def test_sentences_on_which_all_agree_are_not_listed(self) -> None:
        table = compare_translations({"a": ["x", "y"], "b": ["x", "z"]}, ["x", "y"], samples=40, trials=40)
        assert [each.number for each in table.differences] == [2]
        assert table.differences[0].scores == pytest.approx((100, 0))


class TestLabels:
    def test_table(self) -> None:
        truth = ["a", "b"] * 30
        wrong = ["b", "a"]
        old = truth[:40] + wrong * 10
        new = truth[:56] + wrong * 2
        table = compare_labels({"old": old, "new": new}, truth, samples=200, max_differences=100)
        before, after = table.rows
        assert (before.value, after.value) == pytest.approx((100 * 40 / 60, 100 * 56 / 60))
        assert after.delta is not None
        assert after.delta == pytest.approx(100 * 16 / 60)
        assert after.p_values is not None
        assert after.p_values["mcnemar"] == pytest.approx(2 / 2**16)
        assert after.low is not None
        assert after.high is not None
        assert 0 < after.low < after.delta < after.high
        assert [each.number for each in table.differences] == list(range(41, 57))


class TestErrors:
    def test_one_system(self) -> None:
        with pytest.raises(ConfigError, match="1 systems: expected at least two"):
            compare_translations({"a": ["x"]}, ["x"])

    def test_lengths_name_the_system(self) -> None:
        with pytest.raises(DataError, match="b: 2 outputs but 1 references"):
            compare_labels({"a": ["x"], "b": ["x", "y"]}, ["x"])

    def test_too_few_samples_or_trials(self) -> None:
        with pytest.raises(ConfigError, match="samples = 3: expected at least 40"):
            compare_translations({"a": ["x"], "b": ["x"]}, ["x"], samples=3)
        with pytest.raises(ConfigError, match="trials = 3: expected at least 40"):
            compare_translations({"a": ["x"], "b": ["x"]}, ["x"], trials=3)


class TestLanguageModels:
    def test_bits_per_byte_and_their_difference(self) -> None:
        """In documents of 8 and 16 bytes, the baseline needs 16 and 32 bits, and the other half of it."""
        nats = math.log(2)
        before = [-16 * nats, -32 * nats] * 5
        table = compare_language_models(
            {"one": before, "two": [each / 2 for each in before]}, [8, 16] * 5, {"one": "context:4", "two": "context:8"}
        )
        baseline, other = table.rows
        assert baseline.metric == "bits per byte"
        assert baseline.value == pytest.approx(2)
        assert other.value == pytest.approx(1)
        assert other.delta == pytest.approx(-1)
        assert other.low == pytest.approx(-1)  # the same difference in every document
        assert other.high == pytest.approx(-1)
        assert other.signature == "n:10|bs:1000|ar:10000|seed:12345|context:8"
        # Of the 1,024 ways to swap the documents' outputs, the 2 that swap all or none are as different.
        assert other.p_values is not None
        assert other.p_values["randomization"] == pytest.approx(2 / 1024, abs=0.002)

    def test_equal_models_do_not_differ(self) -> None:
        values = [-random.Random(seed).random() for seed in range(20)]
        table = compare_language_models({"a": values, "b": values}, [3] * 20, {"a": "", "b": ""})
        assert table.rows[1].delta == 0
        assert table.rows[1].p_values == {"bootstrap": 1, "randomization": 1}

    def test_what_does_not_fit_is_refused(self) -> None:
        signatures = {"a": "", "b": ""}
        with pytest.raises(DataError, match="1 documents: expected at least two"):
            compare_language_models({"a": [-1.0], "b": [-2.0]}, [3], signatures)
        with pytest.raises(DataError, match="b: 1 log-probabilities for 2 documents"):
            compare_language_models({"a": [-1.0, -1.0], "b": [-2.0]}, [3, 3], signatures)
        with pytest.raises(ConfigError, match="1 systems: expected at least two"):
            compare_language_models({"a": [-1.0, -1.0]}, [3, 3], signatures)
