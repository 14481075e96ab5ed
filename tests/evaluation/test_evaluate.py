"""Scores: worked out by hand, equal to sacreBLEU's scores, with intervals that behave as statistics predicts."""

from __future__ import annotations

import math
import random
import re
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from headway.errors import ConfigError, DataError
from headway.evaluation import (
    METRICS,
    Comparison,
    Score,
    bleu,
    chrf,
    compare_labels,
    compare_translations,
    evaluate,
    exact_match,
    paired_bootstrap,
    paired_randomization,
    ter,
    token_accuracy,
    tokenization_for,
)
from headway.evaluation import tokenization as evaluation_tokenization
from headway.evaluation.feature_weights import tune_feature_weights

WORDS = ("the", "a", "Haus,", "cat", "sat", "on", "mat.", "of", "It", "(not)", "–", "naïve", "3.14", "U.S.", "we're")


def corpus(sentences: int, errors: float, seed: int = 0) -> tuple[list[str], list[str]]:
    """Return references of random words, and hypotheses in which a share of the words was replaced."""
    draw = random.Random(seed)
    references = [draw.choices(WORDS, k=draw.randint(3, 25)) for _ in range(sentences)]
    noise = random.Random(seed + 1 + round(errors * 100))
    hypotheses = [[noise.choice(WORDS) if noise.random() < errors else word for word in ref] for ref in references]
    return [" ".join(words) for words in hypotheses], [" ".join(words) for words in references]


def flags(pattern: str) -> tuple[list[str], list[str]]:
    """Return hypotheses that are right where ``pattern`` has a 1, and their references."""
    return ["right" if flag == "1" else "wrong" for flag in pattern], ["right"] * len(pattern)


class TestByHand:
    def test_bleu_from_its_precisions(self) -> None:
        # The reference has one "the", so 6 of 7 words match. The pairs "on the" and "the mat" do not match. Of triples,
        # only "the cat sat" and "cat sat on" match; of 4-grams, only "the cat sat on". Equal lengths: no penalty.
        score = bleu(["the cat sat on the mat today"], ["the cat sat on a mat today"])
        assert score.value == pytest.approx(100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** (1 / 4))

    def test_bleu_brevity(self) -> None:
        # Every n-gram matches, but there are only 4 tokens instead of 6.
        assert bleu(["the cat sat on"], ["the cat sat on the mat"]).value == pytest.approx(100 * math.exp(1 - 6 / 4))

    def test_bleu_smoothing(self) -> None:
        # Precisions 3/4, 2/3 and 1/2; the only 4-gram does not match, and the first zero counts as half a match.
        assert bleu(["a b c x"], ["a b c d"]).value == pytest.approx(100 * (3 / 4 * 2 / 3 * 1 / 2 * 0.5) ** (1 / 4))

    def test_bleu_sums_counts_over_the_corpus(self) -> None:
        # Words 5/8, pairs 3/6, triples 2/4, 4-grams 1/2: not the mean of 100 and a score near 0.
        score = bleu(["a b c d", "e x y z"], ["a b c d", "e f g h"])
        assert score.value == pytest.approx(100 * (5 / 8 * 3 / 6 * 2 / 4 * 1 / 2) ** (1 / 4))

    def test_bleu_case(self) -> None:
        assert bleu(["The Cat Sat Here"], ["the cat sat here"]).value == 0
        assert bleu(["The Cat Sat Here"], ["the cat sat here"], lowercase=True).value == pytest.approx(100)

    def test_chrf(self) -> None:
        # Letters: precision 2/2, recall 2/3. Pairs: 1/1 and 1/2. The hypothesis has no triples; they are not counted.
        precision, recall = 1, (2 / 3 + 1 / 2) / 2
        expected = 100 * 5 * precision * recall / (4 * precision + recall)
        assert chrf(["ab"], ["abc"]).value == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("hypothesis", "reference", "edits"),
        [("a b d", "a b c d", 1 / 4), ("c a b", "a b c", 1 / 3), ("x y", "a", 2 / 1), ("A b", "a b", 0)],
    )
    def test_ter(self, hypothesis: str, reference: str, edits: float) -> None:
        assert ter([hypothesis], [reference]).value == pytest.approx(100 * edits)

    def test_ter_case(self) -> None:
        assert ter(["A b"], ["a b"], lowercase=False).value == pytest.approx(50)

    def test_exact_match(self) -> None:
        # The second pair differs in case, the third in a space at the end.
        assert exact_match(["a b", "A b", "a b ", "é"], ["a b", "a b", "a b", "é"]).value == 50

    @pytest.mark.parametrize(
        ("hypotheses", "references", "matches", "positions"),
        [
            (["a b c"], ["a x c"], 2, 3),
            (["a b c", "a b", "", "d  e\tf"], ["a x c", "a b c", "", "d e f"], 7, 9),
            (["b c"], ["a b c"], 0, 3),
            ([""], ["a"], 0, 1),
            (["", " "], [" ", ""], 1, 1),
        ],
    )
    def test_token_accuracy(self, hypotheses: list[str], references: list[str], matches: int, positions: int) -> None:
        assert token_accuracy(hypotheses, references).value == pytest.approx(100 * matches / positions)

    @pytest.mark.parametrize("name", METRICS)
    @pytest.mark.parametrize("is_right", [True, False])
    def test_all_right_or_all_wrong(self, name: str, is_right: bool) -> None:
        """All samples of the bootstrap have the same score, so it says nothing of the width. A rate has Wilson's."""
        references = [f"a b c d {number}" for number in range(50)]
        (score,) = evaluate(references if is_right else [""] * 50, references, metrics=[name], bootstrap=50)
        assert score.value == pytest.approx(100 if is_right is (name != "ter") else 0)
        if name == "exact_match":  # z^2 / (n + z^2) is the width with 0 of n or n of n, z = 1.96
            width = 100 * 1.96**2 / (50 + 1.96**2)
            assert [score.low, score.high] == pytest.approx([100 - width, 100] if is_right else [0, width], abs=0.01)
            assert "ci:wilson" in score.signature
        else:
            assert (score.low, score.high) == (None, None)
            assert "(no interval: all bootstrap samples have the same score)" in str(score)


@pytest.mark.parametrize(
    ("name", "metric"), [("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())], ids=["bleu", "chrf", "ter"]
)
class TestAgreementWithSacreBleu:
    def test_value_and_signature(self, name: str, metric: Metric) -> None:
        hypotheses, references = corpus(80, 0.3)
        (score,) = evaluate(hypotheses, references, metrics=[name], bootstrap=0)
        theirs = metric.corpus_score(hypotheses, [references])
        assert score.name == theirs.name
        assert score.value == pytest.approx(theirs.score, abs=1e-9)
        assert score.signature == str(metric.get_signature())
        assert score.low is score.high is None

    def test_interval(self, name: str, metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SACREBLEU_SEED", "7")
        hypotheses, references = corpus(80, 0.3)
        (score,) = evaluate(hypotheses, references, metrics=[name], bootstrap=200, seed=7)
        theirs = type(metric)()
        their_score = theirs.corpus_score(hypotheses, [references], n_bootstrap=200)
        assert score.low is not None
        assert score.high is not None
        assert score.low < score.value < score.high
        assert (score.high - score.low) / 2 == pytest.approx(their_score._ci, rel=1e-4)
        assert score.signature == str(theirs.get_signature())


class TestOptions:
    @pytest.mark.parametrize("word_order", [0, 2])
    def test_chrf(self, word_order: int) -> None:
        hypotheses, references = corpus(30, 0.3)
        metric = CHRF(word_order=word_order, lowercase=True)
        theirs = metric.corpus_score(hypotheses, [references])
        ours = chrf(hypotheses, references, word_order=word_order, lowercase=True)
        assert (ours.name, ours.value, ours.signature) == (theirs.name, theirs.score, str(metric.get_signature()))

    def test_signatures_say_the_settings(self) -> None:
        pair = (["a"], ["a"])
        ten = (["a"] * 9 + ["b"], ["a"] * 10)
        assert "case:lc" in bleu(*pair, lowercase=True).signature
        assert re.fullmatch(
            r"nrefs:1\|bs:50\|seed:3\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:[\d.]+",
            bleu(*ten, bootstrap=50, seed=3).signature,
        )
        assert re.fullmatch(r"nrefs:1\|case:mixed\|tok:none\|version:headway-[\d.]+", exact_match(*pair).signature)
        assert token_accuracy(*ten, bootstrap=50).signature.startswith("nrefs:1|bs:50|seed:12345|case:mixed|tok:white")

    def test_the_named_functions_are_what_evaluate_runs(self) -> None:
        hypotheses, references = corpus(30, 0.3)
        functions = (bleu, chrf, ter, exact_match, token_accuracy)
        named = [function(hypotheses, references, bootstrap=40) for function in functions]
        assert named == evaluate(hypotheses, references, metrics=METRICS, bootstrap=40)

    def test_default_metrics(self) -> None:
        assert [score.name for score in evaluate(["a"], ["a"])] == ["BLEU", "chrF2"]

    def test_printed(self) -> None:
        assert (
            str(Score("BLEU", 40.06, "nrefs:1|case:mixed", 38.94, 41.2)) == "BLEU 40.1 [38.9, 41.2] nrefs:1|case:mixed"
        )
        assert str(Score("BLEU", 40.06, "nrefs:1")) == "BLEU 40.1 nrefs:1"
        assert str(Comparison("BLEU", 1.23, 0.0123, -0.04, 2.5, "nrefs:1")) == "BLEU +1.2 [-0.0, +2.5] p=0.012 nrefs:1"


class TestBootstrap:
    def test_interval_of_a_proportion(self) -> None:
        # 200 of 400 are right: the standard error is 100 * sqrt(0.5 * 0.5 / 400) = 2.5; 95 % are within 1.96 of them.
        score = exact_match(*flags("01" * 200), bootstrap=4000)
        assert [score.low, score.high] == pytest.approx([50 - 1.96 * 2.5, 50 + 1.96 * 2.5], abs=0.5)

    def test_seed_decides(self) -> None:
        hypotheses, references = corpus(50, 0.3)
        assert bleu(hypotheses, references, bootstrap=100) == bleu(hypotheses, references, bootstrap=100)
        assert (
            bleu(hypotheses, references, bootstrap=100, seed=1).low != bleu(hypotheses, references, bootstrap=100).low
        )

    def test_sentences_are_counted_once_and_not_for_each_draw(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hypotheses, references = corpus(20, 0.3)
        counted: list[int] = []
        extract = Metric._extract_corpus_statistics

        def count(metric: Metric, texts: list[str], others: list[list[str]]) -> object:
            counted.append(len(texts))
            return extract(metric, texts, others)

        monkeypatch.setattr(Metric, "_extract_corpus_statistics", count)
        evaluate(hypotheses, references, metrics=("bleu", "chrf"), bootstrap=100)
        assert counted == [20, 20]

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), min_size=1, max_size=12))
    def test_any_text_has_a_score_in_range(self, pairs: list[tuple[str, str]]) -> None:
        hypotheses, references = [first for first, _ in pairs], [second for _, second in pairs]
        for score in evaluate(hypotheses, references, metrics=METRICS, bootstrap=40):
            assert score.value >= 0
            assert score.name == "TER" or score.value <= 100 + 1e-9
            if score.low is None or score.high is None:
                assert score.no_interval_reason is not None
            else:
                assert 0 <= score.low <= score.high
                assert score.name == "TER" or score.high <= 100 + 1e-9


class TestTooFewSentences:
    @pytest.mark.parametrize("count", [1, 9])
    def test_no_interval_and_the_reason(self, count: int) -> None:
        hypotheses, references = (texts[:count] for texts in corpus(10, 0.3))
        for score in evaluate(hypotheses, references, metrics=("bleu", "chrf", "ter", "token_accuracy")):
            assert (score.low, score.high) == (None, None)
            assert f"(no interval: {count} sentence" in str(score)
            assert "at least 10 are needed)" in str(score)
            assert "bs:" not in score.signature
        (rate,) = evaluate(hypotheses, references, metrics=["exact_match"])  # right for any number
        assert rate.low is not None

    def test_ten_are_enough(self) -> None:
        assert all(score.low is not None for score in evaluate(*corpus(10, 0.3)))

    def test_no_p_value(self) -> None:
        hypotheses, references = (texts[:9] for texts in corpus(10, 0.3))
        difference = paired_bootstrap(references, hypotheses, references)
        assert (difference.p_value, difference.low, difference.high) == (None, None, None)
        assert "too few sentences" in str(difference)
        assert paired_randomization(references, hypotheses, references) is None
        table = compare_translations({"a": references, "b": hypotheses}, references, metrics=["chrf"])
        assert (table.rows[1].p_values, table.rows[1].low) == (None, None)
        assert table.no_tests_reason == "9 sentences, but at least 10 are needed"
        labels = compare_labels({"a": ["x"] * 9, "b": ["y"] * 9}, ["x"] * 9)
        assert (labels.rows[1].delta, labels.rows[1].p_values) == (-100, None)
        assert labels.no_tests_reason == "9 texts, but at least 10 are needed"


class TestTokenization:
    CHINESE = ("我们今天去公园散步。", "他昨天买了一本新书。", "这个城市的夏天非常热。") * 4

    @pytest.mark.parametrize(
        ("language", "tokenization"),
        [
            ("zh", "zh"), ("zh-TW", "zh"), ("zho_Hans", "zh"), ("yue_Hant", "zh"), ("th", "char"), ("khm_Khmr", "char"),
            ("lo", "char"), ("my", "char"), ("de", "13a"), ("target", "13a"), ("", "13a"), (None, "13a"),
        ],
    )  # fmt: skip
    def test_of_a_language(self, language: str | None, tokenization: str) -> None:
        assert tokenization_for(language) == tokenization

    @pytest.mark.parametrize("language", ["ja", "jpn_Jpan", "ko", "kor_Hang"])
    def test_of_a_language_whose_package_may_be_missing(self, language: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(evaluation_tokenization, "find_spec", lambda _: None)
        assert tokenization_for(language) == "char"
        with pytest.raises(ConfigError, match=r"pip install 'sacrebleu\[ja\]'"):
            bleu(["a"], ["a"], tokenization="ja-mecab")
        monkeypatch.setattr(evaluation_tokenization, "find_spec", lambda name: name)
        assert tokenization_for(language) == ("ja-mecab" if language.startswith("j") else "ko-mecab")

    def test_nearly_right_chinese_has_a_bleu_and_a_ter(self) -> None:
        """Each hypothesis lacks one of ten characters, so the precisions are 1 and 9/10 of the characters are right."""
        hypotheses = [text[1:] for text in self.CHINESE]
        plain = evaluate(hypotheses, self.CHINESE, metrics=("bleu", "ter"), bootstrap=0)
        right = evaluate(hypotheses, self.CHINESE, metrics=("bleu", "ter"), bootstrap=0, tokenization="zh")
        lengths = sum(map(len, self.CHINESE)), sum(map(len, hypotheses))
        assert plain[0].value < 1
        assert plain[1].value == 100
        assert right[0].value == pytest.approx(100 * math.exp(1 - lengths[0] / lengths[1]))
        assert right[1].value == pytest.approx(100 * len(self.CHINESE) / lengths[0])
        assert "tok:zh" in right[0].signature
        assert "asian:yes" in right[1].signature
        expected = BLEU(trg_lang="zh").corpus_score(hypotheses, [self.CHINESE])
        assert right[0].value == pytest.approx(expected.score)

    def test_comparisons_use_it(self) -> None:
        worse = [text[2:] for text in self.CHINESE]
        better = [text[1:] for text in self.CHINESE]
        table = compare_translations({"a": worse, "b": better}, self.CHINESE, metrics=["bleu"], tokenization="zh")
        delta = bleu(better, self.CHINESE, tokenization="zh").value - bleu(worse, self.CHINESE, tokenization="zh").value
        assert table.rows[1].delta == pytest.approx(delta)
        assert "tok:zh" in table.rows[1].signature
        assert paired_bootstrap(worse, better, self.CHINESE, tokenization="zh").delta == pytest.approx(delta)
        candidates = [[one, two] for one, two in zip(worse, better, strict=True)]
        features = [np.array([[0.0, 0.0], [-1.0, 1.0]])] * len(candidates)  # the second feature prefers the better one
        (weight,) = tune_feature_weights(features, candidates, self.CHINESE, [(0.0, 1.0, 2.0)], "zh")
        assert weight > 1


class TestPairedBootstrap:
    @pytest.mark.parametrize("metric", METRICS)
    def test_a_system_equals_itself(self, metric: str) -> None:
        hypotheses, references = corpus(30, 0.3)
        result = paired_bootstrap(hypotheses, hypotheses, references, metric=metric, samples=50)
        assert (result.delta, result.p_value, result.low, result.high) == (0, 1, 0, 0)

    @pytest.mark.parametrize(("better", "worse"), [(30, 14), (20, 20), (12, 25)])
    def test_p_value_and_interval_of_a_proportion(self, better: int, worse: int) -> None:
        # Per sentence the difference is +1, -1 or 0, so its mean and variance are known and its sum is nearly normal.
        # A sum of whole numbers reaches delta from half a step below it, hence the continuity correction.
        n = 400
        baseline, references = flags("0" * better + "1" * worse + "1" * (n - better - worse))
        system, _ = flags("1" * better + "0" * worse + "1" * (n - better - worse))
        result = paired_bootstrap(baseline, system, references, metric="exact_match", samples=4000)
        delta = (better - worse) / n
        error = math.sqrt(((better + worse) / n - delta**2) / n)
        tail = statistics.NormalDist().cdf(-max(0.0, abs(delta) - 0.5 / n) / error)
        assert result.delta == pytest.approx(100 * delta)
        assert result.p_value == pytest.approx(min(1.0, 2 * tail), abs=0.015)
        assert [result.low, result.high] == pytest.approx(
            [100 * (delta - 1.96 * error), 100 * (delta + 1.96 * error)], abs=0.5
        )
        assert result.signature.startswith("nrefs:1|bs:4000|seed:12345|")

    @pytest.mark.parametrize("metric", ["bleu", "chrf", "token_accuracy"])
    def test_a_clearly_better_system(self, metric: str) -> None:
        baseline, references = corpus(100, 0.5)
        system, _ = corpus(100, 0.2)
        forth = paired_bootstrap(baseline, system, references, metric=metric, samples=200)
        back = paired_bootstrap(system, baseline, references, metric=metric, samples=200)
        assert forth.delta > 5
        assert forth.low is not None
        assert forth.high is not None
        assert 0 < forth.low < forth.delta < forth.high
        assert forth.p_value == back.p_value == 1 / 201
        assert (back.delta, back.low, back.high) == pytest.approx((-forth.delta, -forth.high, -forth.low))

    def test_delta_is_the_difference_of_the_scores(self) -> None:
        baseline, references = corpus(40, 0.5)
        system, _ = corpus(40, 0.2)
        result = paired_bootstrap(baseline, system, references, samples=40)
        assert result.delta == pytest.approx(bleu(system, references).value - bleu(baseline, references).value)


class TestErrors:
    def test_unknown_metric(self) -> None:
        with pytest.raises(ConfigError, match=r"unknown metric 'belu'; did you mean 'bleu'\?"):
            evaluate(["a"], ["a"], metrics=["belu"])
        with pytest.raises(
            ConfigError, match="unknown metric 'xyz'; known: bleu, chrf, exact_match, ter, token_accuracy"
        ):
            paired_bootstrap(["a"], ["a"], ["a"], metric="xyz")

    def test_lengths(self) -> None:
        with pytest.raises(DataError, match="2 hypotheses but 1 references; expected one reference for each"):
            bleu(["a", "b"], ["a"])
        with pytest.raises(DataError, match="1 baseline translations but 2 references"):
            paired_bootstrap(["a"], ["a", "b"], ["a", "b"])
        with pytest.raises(DataError, match="1 translations but 2 references"):
            paired_bootstrap(["a", "b"], ["a"], ["a", "b"])

    def test_nothing(self) -> None:
        with pytest.raises(DataError, match="no hypotheses to score; expected at least one sentence"):
            token_accuracy([], [])

    def test_one_string(self) -> None:
        with pytest.raises(DataError, match="got a single string; expected a list of strings"):
            chrf("abc", "abc")

    def test_too_few_samples(self) -> None:
        for number in (-1, 1, 39):
            with pytest.raises(ConfigError, match=f"bootstrap = {number}: expected 0 .no interval. or at least 40"):
                bleu(["a"], ["a"], bootstrap=number)
        with pytest.raises(ConfigError, match="samples = 10: expected at least 40, better 1000"):
            paired_bootstrap(["a"], ["a"], ["a"], samples=10)
