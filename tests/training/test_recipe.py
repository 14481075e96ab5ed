"""Recipes: which values are refused, and which may change when a run resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.config import to_toml
from headway.errors import CheckpointError, ConfigError
from headway.tasks import load_recipe
from headway.training.recipe import Recipe, changed_keys, check_resumable

MINIMAL = '[data]\ntrain = [{ files = ["a.de", "a.en"] }]\n'


def load(tmp_path: Path, text: str = MINIMAL, *assignments: str) -> Recipe:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return load_recipe(path, assignments)


def test_two_corpus_files_are_enough(tmp_path: Path) -> None:
    recipe = load(tmp_path)
    assert recipe.data.train[0].files == ("a.de", "a.en")
    assert recipe.data.dev is None
    assert recipe.training.label_smoothing == 0.1


def test_assignments_take_precedence_over_the_file(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL + "[training]\nsteps = 5\n", "training.steps=7", "model.preset=tiny")
    assert recipe.training.steps == 7
    assert recipe.model.d_model == 128


def test_a_resolved_recipe_is_read_back_equal(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL, "model.preset=base", "optimizer.clip_norm=1.5", "training.precision=float32")
    assert load(tmp_path, to_toml(recipe.as_dict())) == recipe


def test_a_vocabulary_of_words_has_a_size_but_no_minimum_frequency(tmp_path: Path) -> None:
    words = ["tokenizer.kind=words", "tokenizer.vocab_size=900", "tokenizer.split_digits=true"]
    assert load(tmp_path, MINIMAL, *words).tokenizer.vocab_size == 900
    with pytest.raises(ConfigError, match=r"tokenizer\.min_frequency has no effect without kind = 'bpe'; remove it"):
        load(tmp_path, MINIMAL, *words, "tokenizer.min_frequency=3")
    with pytest.raises(ConfigError, match=r"tokenizer\.vocab_size has no effect without kind = 'bpe' or 'words'"):
        load(tmp_path, MINIMAL, "tokenizer.kind=characters", "tokenizer.vocab_size=900")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.step=5", r"unknown key 'training\.step'; did you mean 'steps'\?"),
        ("optimiser.beta1=0.5", "unknown key 'optimiser'; did you mean 'optimizer'"),
        ("data.dev.flies=['x']", "unknown key 'data.dev.flies'; did you mean 'files'"),
        ("model.dropout=1.5", r"model\.dropout = 1\.5: .*less than 1"),
        ("model.num_heads=7", "num_heads = 7 does not divide d_model = 512"),
        ("model.preset=huge", "expected one of tiny, small, base, big"),
        ("training.steps=0", r"training\.steps = 0: .*greater than or equal to 1"),
        ("training.label_smoothing=1", r"training\.label_smoothing = 1: .*less than 1"),
        ("training.precision=float16", r"training\.precision = 'float16': .*'float32'"),
        ("training.seed=-1", r"training\.seed = -1"),
        ("optimizer.learning_rate=0", r"optimizer\.learning_rate = 0: .*greater than 0"),
        ("optimizer.learning_rate=nan", r"optimizer\.learning_rate = nan: .*finite"),
        ("optimizer.schedule=sine", "inverse_sqrt"),
        ("data.max_tokens=many", r"data\.max_tokens = 'many': .*integer"),
        ("data.train=[]", r"data\.train"),
        ("validation.beam_size=0", r"validation\.beam_size = 0: .*greater than or equal to 1"),
        ("tokenizer.joint=false", "model.tie = 'all' shares one embedding"),
        ("checkpoints.average=6", r"average = 6 exceeds keep = 5"),
        ("checkpoints.keep=0", r"checkpoints\.keep = 0"),
        ("optimizer.kind=sgd", r"optimizer\.kind = 'sgd': .*'adam', 'adafactor' or 'muon'"),
        ("optimizer.final_fraction=2", r"optimizer\.final_fraction = 2: .*less than or equal to 1"),
        ("optimizer.halve_every=0", r"optimizer\.halve_every = 0: .*greater than or equal to 1"),
        ("optimizer.weight_decay=-1", r"optimizer\.weight_decay = -1: .*greater than or equal to 0"),
        ("model.layer_dropout=1", r"model\.layer_dropout = 1: .*less than 1"),
        ("data.segmentations=4", r"data\.segmentations has no effect without data\.bpe_dropout"),
        ("optimizer.momentum=0.9", r"optimizer\.momentum has no effect without kind = 'muon'"),
        ("training.label_smoothing_prior=bigram", r"training\.label_smoothing_prior = 'bigram': .*'unigram'"),
        ("optimizer.halve_every=5", r"optimizer\.halve_every has no effect without schedule = 'halve_every'"),
        ("optimizer.final_fraction=0.1", r"optimizer\.final_fraction has no effect without schedule = 'linear' or"),
        ("model.rotary_base=500", r"rotary_base has no effect with positions = 'sinusoidal'"),
        ("task.kind=summary", r"task\.kind = 'summary'"),
    ],
)
def test_bad_values_are_refused(tmp_path: Path, assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, MINIMAL, assignment)
    assert "recipe.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sharding_is_refused_and_its_default_accepted(tmp_path: Path) -> None:
    """Resolved recipes of older versions contain sharding = "none"."""
    assert load(tmp_path, MINIMAL, "training.sharding=none") == load(tmp_path, MINIMAL)
    expected = (
        r"training: sharding = 'full': version 0\.1\.0 removed sharding .*lower data\.max_tokens and raise accumu"
    )
    with pytest.raises(ConfigError, match=expected):
        load(tmp_path, MINIMAL, "training.sharding=full")


def test_a_recipe_needs_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key 'data' is missing"):
        load(tmp_path, "")


@pytest.mark.parametrize(
    "assignment",
    [
        "data.folder=elsewhere",
        "training.steps=7",
        "training.log_every=7",
        "training.device=cpu",
        "training.compile=off",
        "validation.every=7",
        "validation.patience=7",
        "checkpoints.every=7",
        "checkpoints.keep=7",
        "checkpoints.keep_best=3",
        "checkpoints.average=3",
    ],
)
def test_keys_that_may_change_on_resuming(tmp_path: Path, assignment: str) -> None:
    before, after = load(tmp_path), load(tmp_path, MINIMAL, assignment)
    assert before != after
    assert changed_keys(before, after) == []


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.seed=7", "training.seed was 1, is 7"),
        ("training.accumulate=7", "training.accumulate was 1, is 7"),
        ("training.precision=float32", "training.precision was 'auto', is 'float32'"),
        ("optimizer.clip_norm=7", "optimizer.clip_norm was not set, is 7.0"),
        ("model.dropout=0.7", "model.dropout was 0.1, is 0.7"),
        ("data.max_tokens=7", "data.max_tokens was 4096, is 7"),
        ("data.filter.max_length=7", "data.filter.max_length was 256, is 7"),
        ("validation.metric=loss", "validation.metric was 'bleu', is 'loss'"),
        ("validation.beam_size=7", "validation.beam_size was 1, is 7"),
        ("tokenizer.vocab_size=700", "tokenizer.vocab_size was 8000, is 700"),
    ],
)
def test_keys_that_may_not_change_on_resuming(tmp_path: Path, assignment: str, message: str) -> None:
    assert changed_keys(load(tmp_path), load(tmp_path, MINIMAL, assignment)) == [message]


@pytest.mark.parametrize(
    ("assignments", "fixed"),
    [
        (["optimizer.schedule=linear"], True),
        (["optimizer.schedule=cosine"], True),
        (["optimizer.schedule=constant"], False),
        (["optimizer.schedule=halve_every"], True),
        (["optimizer.schedule=halve_every", "optimizer.halve_every=7"], False),
    ],
)
def test_the_length_is_fixed_if_learning_rates_depend_on_it(
    tmp_path: Path, assignments: list[str], fixed: bool
) -> None:
    before = load(tmp_path, MINIMAL, *assignments, "training.steps=5")
    after = load(tmp_path, MINIMAL, *assignments, "training.steps=6")
    assert changed_keys(before, after) == ["training.steps was 5, is 6"] * fixed


def test_a_corpus_is_compared_file_by_file(tmp_path: Path) -> None:
    other = 'data.train=[{ files = ["a.de", "b.en"], weight = 2.0 }, { files = ["c.de", "c.en"] }]'
    changed = changed_keys(load(tmp_path), load(tmp_path, MINIMAL, other))
    assert "data.train.0.files was ['a.de', 'a.en'], is ['a.de', 'b.en']" in changed
    assert "data.train.0.weight was 1.0, is 2.0" in changed
    assert "data.train.1.files was not set, is ['c.de', 'c.en']" in changed


class TestRefusal:
    def refusal(self, before: Recipe, after: Recipe) -> str:
        with pytest.raises(CheckpointError) as caught:
            check_resumable(before, after, Path("runs/x"))
        return str(caught.value)

    def test_the_error_names_changed_keys_and_those_that_may_change(self, tmp_path: Path) -> None:
        """Forbidden changes are listed with both values, allowed ones are not, and every key that may change exists."""
        changes = ("training.seed=7", "model.dropout=0.5", "training.log_every=9")
        message = self.refusal(load(tmp_path), load(tmp_path, MINIMAL, *changes))
        differs, may_change = message.split("A resumed run may change only: ")
        assert "runs/x was trained with a different recipe" in differs
        assert "model.dropout was 0.1, is 0.5; training.seed was 1, is 7." in differs
        assert "log_every" not in differs
        assert "--fresh" in differs
        for key in may_change.split(", "):
            section, name = key.split(".")
            assert name in type(getattr(load(tmp_path), section)).model_fields
        assert {"training.log_every", "checkpoints.keep_best"} <= set(may_change.split(", "))

    def test_the_length_is_not_offered_if_it_may_not_change(self, tmp_path: Path) -> None:
        linear = load(tmp_path, MINIMAL, "optimizer.schedule=linear")
        message = self.refusal(linear, load(tmp_path, MINIMAL, "optimizer.schedule=linear", "training.steps=6"))
        assert "training.steps" not in message.split("A resumed run may change only")[1]
        assert "training.steps" in self.refusal(load(tmp_path), linear).split("A resumed run may change only")[1]

    def test_the_same_recipe_and_allowed_changes_pass(self, tmp_path: Path) -> None:
        check_resumable(load(tmp_path), load(tmp_path), tmp_path)
        check_resumable(load(tmp_path), load(tmp_path, MINIMAL, "training.steps=7", "checkpoints.every=3"), tmp_path)


def test_r_drop_needs_dropout(tmp_path: Path) -> None:
    still = load(tmp_path, MINIMAL, "training.r_drop=5")
    assert still.training.r_drop == 5
    with pytest.raises(ConfigError, match=r"training\.r_drop = 5\.0 compares two passes with different dropout"):
        load(tmp_path, MINIMAL, "training.r_drop=5", "model.dropout=0")
