"""The flags ``unlikely`` and ``forced``: their scores and thresholds, what they mark, and the cases without them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headway.decode import DecodingOptions, Sampling
from headway.errors import DataError
from headway.predict import Glossary, Source, Translator
from headway.predict.translation.calibrate import calibrate
from headway.predict.translation.calibration import (
    CALIBRATION_FILE,
    MIN_TEXTS,
    Calibration,
    SurpriseScale,
    constraint_cost_limit,
    read_calibration,
)
from headway.predict.translation.calibration import _tail_rank as tail_rank

Make = Callable[..., Translator]
WORDS = ["ein", "das", "rote", "grüne", "Haus", "Baum", "und", "der"]
IDENTITY = {"mean": (0.0, 0.0), "variance": (1.0, 0.0), "min_variance": 0.1}  # each surprise is its own score
IGNORED = {"mean": (0.0, 0.0), "variance": (1e30, 0.0), "min_variance": 0.1}


def calibration(translator: Translator | None = None, **changes: Any) -> Calibration:
    """Four tokens of kind 5 and one of kind 6, of a vocabulary of 50. Only the source's surprise per token counts."""
    values = {
        "tokenizer": translator.bundle.source_tokenizer.fingerprint if translator else "",
        "texts": MIN_TEXTS,
        "vocab_size": 50,
        "counts": {5: 4, 6: 1},
        "token_scale": IDENTITY,
        "character_scale": IGNORED,
        "target_scale": IGNORED,
        "threshold": 1.0,
    }
    return Calibration.parse(values | changes, "test")


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def calibrated(make_translator: Make) -> Translator:
    translator = make_translator()
    translator.calibration = calibrate(translator, sentences(MIN_TEXTS, 1))
    return translator


class TestScore:
    def test_is_the_mean_surprise_of_the_tokens(self) -> None:
        """With 0.1 added to each of 50 counts, p(5) = 4.1 / 10, p(6) = 1.1 / 10, and p of any other token 0.1 / 10."""
        found = calibration()
        for ids, p in (([5], 0.41), ([6], 0.11), ([7], 0.01), ([5, 7], math.sqrt(0.41 * 0.01))):
            for threshold, flagged in ((-math.log(p) - 1e-9, True), (-math.log(p) + 1e-9, False)):
                limited = found.model_copy(update={"threshold": threshold})
                assert limited.is_unlikely("text", ids, ()) is flagged

    def test_counts_characters(self) -> None:
        """Tokens 7 and 7 have 2 log 100 = 9.2 nats: 2.3 per character of "four", 0.92 of ten characters."""
        found = calibration(token_scale=IGNORED, character_scale=IDENTITY)
        assert found.is_unlikely("four", [7, 7], ())
        assert not found.is_unlikely("characters", [7, 7], ())

    def test_counts_the_translation(self) -> None:
        found = calibration(token_scale=IGNORED, target_scale=IDENTITY)
        assert found.is_unlikely("text", [7], (-1.5, -0.6))
        assert not found.is_unlikely("text", [7], (-1.5, -0.4))
        assert not found.is_unlikely("text", [7], ())

    def test_is_standardized_by_length(self) -> None:
        """At length 4, the mean is 1 + 8 / 4 = 3 and the variance 2 + 28 / 4 = 9."""
        scale = SurpriseScale(mean=(1.0, 8.0), variance=(2.0, 28.0), min_variance=1.0)
        assert scale.standardize(9.0, 4) == pytest.approx(2.0)
        assert SurpriseScale(mean=(0.0, 0.0), variance=(-9.0, 0.0), min_variance=4.0).standardize(1.0, 3) == 0.5


class TestThreshold:
    @pytest.mark.parametrize("count", [1, 458, 459, 661, 662, 1000, 1014, 4000])
    def test_rank_is_the_largest_that_limits_false_alarms(self, count: int) -> None:
        def fewer(rank: int) -> float:
            return sum(math.comb(count, x) * 0.01**x * 0.99 ** (count - x) for x in range(rank))

        assert fewer(tail_rank(count)) <= 0.01 < fewer(tail_rank(count) + 1)

    def test_needs_459_texts(self, make_translator: Make) -> None:
        assert (tail_rank(MIN_TEXTS - 1), tail_rank(MIN_TEXTS)) == (0, 1)
        assert calibrate(make_translator(), [*sentences(458, 1), " ", ""]) is None

    def test_scale_follows_a_line_in_the_inverse_length(self) -> None:
        """Surprises of 2 + 3 / n, plus and minus 0.5 in turn: the variance is 0.25, and the largest ones score 1."""
        values = [(2 + 3 / n + sign * 0.5, n) for n in (1, 2, 3, 4) for sign in (1, -1)]
        scale = SurpriseScale.fit(values, tail_rank=1)
        assert scale.mean == pytest.approx((2.0, 3.0))
        assert scale.variance == pytest.approx((0.25, 0.0), abs=1e-9)
        assert scale.standardize(*values[0]) == pytest.approx(1.0)

    def test_tail_quantile_is_the_unit(self) -> None:
        """Surprises 0 to 9 of one length: mean 4.5. By the third largest, 7 - 4.5 is one unit."""
        scale = SurpriseScale.fit([(float(value), 5) for value in range(10)], tail_rank=1)
        assert scale.standardize(9.0, 5) == pytest.approx(1.0)
        assert scale.standardize(4.5, 5) == pytest.approx(0.0)

    def test_equal_texts_can_be_calibrated_on(self, make_translator: Make) -> None:
        translator = make_translator()
        translator.calibration = calibrate(translator, ["das rote Haus"] * MIN_TEXTS)
        assert translator.translate("das rote Haus").unlikely is False
        assert translator.translate("QXZ 12345").unlikely is True


class TestTranslations:
    @pytest.mark.slow
    def test_other_text_is_found_and_own_text_is_not(self, calibrated: Translator) -> None:
        own = calibrated.translate(sentences(200, 2))
        assert sum(bool(each.unlikely) for each in own) <= 6  # 1 % is expected at most
        other = ["QXZ 12345", "собака бежит по траве", "%&/()=?", "deen huBa reto nud", "vwxyz kjhg"]
        assert [each.unlikely for each in calibrated.translate(other)] == [True] * 5

    def test_flags_do_not_depend_on_the_batch(self, calibrated: Translator) -> None:
        texts = [*sentences(20, 3), "QXZ 12345", "rote rote huBa"]
        together = [each.unlikely for each in calibrated.translate(texts)]
        assert together == [calibrated.translate(text).unlikely for text in texts]

    def test_a_blank_text_is_not_unlikely(self, calibrated: Translator) -> None:
        assert calibrated.translate(" ").unlikely is False

    def test_without_a_calibration_there_is_no_flag(self, make_translator: Make) -> None:
        assert make_translator().translate("QXZ 12345").unlikely is None

    @pytest.mark.slow
    def test_a_text_in_parts_is_unlikely_if_a_part_is(self, make_translator: Make) -> None:
        translator = make_translator(settings={"max_source_tokens": 8})
        translator.calibration = calibrate(translator, [f"{sentence}." for sentence in sentences(MIN_TEXTS, 1)])
        own, other = "das rote Haus.", "QX 12."
        assert translator.translate(f"{own} {own}").unlikely is False
        assert translator.translate(f"{own} {other}").unlikely is True

    @pytest.mark.parametrize(
        ("text", "options"),
        [
            ("das Haus", DecodingOptions(sampling=Sampling())),
            (Source("das Haus", prefix="ein"), DecodingOptions()),
            (Source("das Haus", include=("Baum",)), DecodingOptions()),
        ],
        ids=["sampled", "prefix", "include"],
    )
    def test_tokens_that_the_model_did_not_choose_are_not_judged(
        self, make_translator: Make, text: str | Source, options: DecodingOptions
    ) -> None:
        """Every translation is improbable by this calibration, and no source."""
        translator = make_translator()
        translator.calibration = calibration(token_scale=IGNORED, target_scale=IDENTITY, threshold=0.01)
        assert translator.translate("das Haus").unlikely is True
        assert translator.translate(text, options).unlikely is False

    def test_a_calibration_for_other_languages_does_not_apply(self, make_translator: Make) -> None:
        translator = make_translator()
        translator.calibration = calibration(target_language="fr")
        assert translator.translate("das Haus").unlikely is None

    @pytest.mark.slow
    def test_training_text_makes_rare_tokens_likely(self, make_translator: Make) -> None:
        """A digit never occurs in the calibration set, but in every training text."""
        translator = make_translator()
        for training, flagged in (([], True), (["7 7 7"] * 300, False)):
            found = calibrate(translator, sentences(MIN_TEXTS, 1), training)
            assert found is not None
            ignored = SurpriseScale.parse(IGNORED, "test")
            translator.calibration = found.model_copy(update={"target_scale": ignored})
            assert translator.translate("das rote 7 und das rote Haus").unlikely is flagged


class TestForced:
    """The costs are computed from the log-probabilities of translations with and without the constraints."""

    def flags(self, translator: Translator, text: str | Source, limit: float | None, glossary: Glossary | None) -> bool:
        translator.calibration = calibration(max_constraint_cost=limit)
        return "forced" in translator.translate(text, glossary=glossary).flags

    def test_limit_is_the_99th_percentile_and_at_least_5_nats(self) -> None:
        costs = [float(cost) for cost in range(1, 201)]
        random.Random(1).shuffle(costs)
        assert constraint_cost_limit(costs) == 198.0  # 2 of 200 costs, 1 %, are higher
        assert constraint_cost_limit(costs[:99]) is None
        assert constraint_cost_limit([0.0] * 99 + [50.0]) == 5.0

    @pytest.mark.parametrize("has_glossary", [False, True])
    def test_a_constraint_that_costs_more_than_the_limit_sets_the_flag(
        self, make_translator: Make, has_glossary: bool
    ) -> None:
        translator = make_translator()
        free = translator.translate("das rote Haus").candidates[0]
        glossary = Glossary([("Haus", "grüne|grün"), ("Baum", "der")]) if has_glossary else None
        text = "das rote Haus" if has_glossary else Source("das rote Haus", include=("grüne",))
        constrained = translator.translate(text, glossary=glossary).candidates[0]
        cost = free.log_probability - constrained.log_probability
        assert cost > 1
        assert self.flags(translator, text, cost - 0.01, glossary)
        assert not self.flags(translator, text, cost + 0.01, glossary)
        assert not self.flags(translator, text, None, glossary)  # calibrations of older versions have no limit

    def test_unmet_constraints_share_the_cost_and_those_that_cost_nothing_do_not(self, make_translator: Make) -> None:
        """The second phrase of the second text is met by the prefix, also without constraints."""
        translator = make_translator()
        free = translator.translate(Source("das rote Haus", prefix="ein")).candidates[0]
        for phrases, count in ((("grüne", "QX"), 2), (("grüne", "ein"), 1)):
            text = Source("das rote Haus", prefix="ein", include=phrases)
            cost = (free.log_probability - translator.translate(text).candidates[0].log_probability) / count
            assert self.flags(translator, text, cost - 0.01, None)
            assert not self.flags(translator, text, cost + 0.01, None)

    def test_what_the_best_translation_contains_costs_nothing(self, make_translator: Make) -> None:
        """The search with the constraint divides its beam, and loses 139 nats."""
        translator = make_translator()
        (word,) = translator.translate("ein Hund").text.split()
        assert not self.flags(translator, Source("ein Hund", include=(word,)), 1.0, None)

    def test_a_prefix_and_samples_are_not_constraints(self, make_translator: Make) -> None:
        translator = make_translator()
        assert not self.flags(translator, Source("das Haus", prefix="QX"), 0.001, None)
        translator.calibration = calibration(max_constraint_cost=0.001)
        sampled = translator.translate(
            "das Haus", DecodingOptions(sampling=Sampling()), glossary=Glossary([("Haus", "QX")])
        )
        assert "forced" not in sampled.flags

    def test_the_flag_of_a_part_is_one_of_the_text(self, make_translator: Make) -> None:
        translator = make_translator(settings={"max_source_tokens": 8})
        glossary = Glossary([("Haus", "QX")])
        assert self.flags(translator, "das rote. das Haus.", 0.001, glossary)
        assert not self.flags(translator, "das rote. der Baum.", 0.001, glossary)

    def test_there_is_a_reference_for_each_source(self, make_translator: Make) -> None:
        with pytest.raises(DataError, match="2 sources but 1 references"):
            calibrate(make_translator(), ["das Haus", ""], references=["a"])

    @pytest.mark.slow
    def test_words_of_references_calibrate_it(self, make_translator: Make) -> None:
        """All texts and references are equal, and so are the costs. Blank texts keep the pairs apart."""
        translator = make_translator()
        calibrated = calibrate(
            translator, ["das rote Haus", " "] * MIN_TEXTS, references=["... grüne!", "Baum"] * MIN_TEXTS
        )
        assert calibrated is not None
        forced = translator.translate(Source("das rote Haus", include=("grüne",)))
        cost = (
            translator.translate("das rote Haus").candidates[0].log_probability - forced.candidates[0].log_probability
        )
        assert cost > 5
        assert calibrated.max_constraint_cost == pytest.approx(cost, abs=1e-3)


class TestTraining:
    def recipe(self, folder: Path, dev: Sequence[str]) -> Any:
        from headway.tasks.translation import TranslationRecipe

        """Only the first 100 references have words, which suffices for the flag ``forced``."""
        for name, lines in {"train": sentences(20, 1), "dev": dev}.items():
            for language, texts in (("de", lines), ("en", [*lines[:100], *["1"] * (len(lines) - 100)])):
                (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in texts), encoding="utf-8")
        files = {name: {"files": [f"{name}.de", f"{name}.en"]} for name in ("train", "dev")}
        data = {"folder": str(folder), "train": [files["train"]], "dev": files["dev"]}
        return TranslationRecipe.parse({"data": data}, "test")

    @pytest.mark.parametrize(("count", "calibrates"), [(MIN_TEXTS - 1, False), (MIN_TEXTS, True)])
    def test_a_large_development_set_calibrates_the_model(
        self, make_translator: Make, tmp_path: Path, count: int, calibrates: bool
    ) -> None:
        from headway.tasks.translation import TranslationTask

        bundle = make_translator().bundle
        bundle.save(tmp_path / "model", "# Card")
        recipe = self.recipe(tmp_path, sentences(count, 5))
        TranslationTask().complete_model_folder(tmp_path / "model", recipe)
        assert (tmp_path / "model" / CALIBRATION_FILE).exists() is calibrates
        if calibrates:
            found = read_calibration(bundle, tmp_path / "model")
            assert found is not None
            assert found.max_constraint_cost is not None
            tokens = bundle.source_tokenizer.encode_batch([*sentences(count, 5), *sentences(20, 1)])
            assert sum(found.counts.values()) == sum(map(len, tokens))
