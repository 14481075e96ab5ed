import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from headway.deprecation import renamed
from headway.nn import LearnedPositions, SinusoidalPositions
from headway.predict import Classifier, Translator


@pytest.fixture
def package() -> Iterator[types.ModuleType]:
    module = types.ModuleType("example_package")
    vars(module)["NewName"] = object()
    vars(module)["__getattr__"] = lambda name: renamed("example_package", name, {"OldName": "NewName"})
    sys.modules["example_package"] = module
    yield module
    del sys.modules["example_package"]


def test_an_old_name_resolves_to_the_new_one_and_warns_with_it(package: types.ModuleType) -> None:
    with pytest.warns(DeprecationWarning, match=r"example_package\.OldName is now example_package\.NewName"):
        assert package.OldName is package.NewName


@pytest.mark.parametrize(
    ("package_name", "old", "new"),
    [
        ("headway.nn", "BlockOptions", "BlockConfig"),
        ("headway.nn", "Score", "ScoreFunction"),
        ("headway.decode", "Alternative", "NextToken"),
        ("headway.decode", "alternatives", "top_next_tokens"),
        ("headway.predict", "Alternative", "TokenAlternative"),
        ("headway.predict", "Ranked", "RankedText"),
    ],
)
def test_each_renamed_public_name_resolves_and_is_listed(package_name: str, old: str, new: str) -> None:
    renamed_in = importlib.import_module(package_name)
    with pytest.warns(DeprecationWarning, match=f"{package_name}.{old} is now {package_name}.{new}"):
        assert getattr(renamed_in, old) is getattr(renamed_in, new)
    guide = Path(__file__).parent.parent / "docs" / "migration.md"
    rows = [line for line in guide.read_text(encoding="utf-8").splitlines() if f"`{package_name}.{old}`" in line]
    assert [f"`{package_name}.{new}`" in row for row in rows] == [True]


def test_an_unknown_name_is_an_attribute_error(package: types.ModuleType) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Other'"):
        _ = package.Other


def test_old_arguments_of_translators_and_classifiers_keep_working(
    make_translator: Callable[..., Translator], make_classifier: Callable[..., Classifier]
) -> None:
    translator, classifier = make_translator(), make_classifier()
    with pytest.warns(DeprecationWarning, match="argument 'guard' of Translator is now 'avoid_flagged'"):
        assert Translator(translator.bundle, guard=False).avoid_flagged is False
    with pytest.warns(DeprecationWarning, match="argument 'max_tokens' of Classifier is now 'max_batch_tokens'"):
        assert Classifier(classifier.bundle, max_tokens=7).max_batch_tokens == 7
    with pytest.raises(TypeError, match="unexpected keyword argument 'speed'"):
        Translator(translator.bundle, speed=2)
    candidate = translator.translate("das", alignment=True).candidates[0]
    with pytest.warns(DeprecationWarning, match=r"Translator\.words is now Translator\.word_alignment"):
        assert translator.words(candidate) == translator.word_alignment(candidate)


def test_old_methods_of_layers_keep_working() -> None:
    x, positions = torch.zeros(2, 8), torch.arange(2)
    for layer in (SinusoidalPositions(8), LearnedPositions(8, 4)):
        with pytest.warns(DeprecationWarning, match=f"{type(layer).__name__}.at is now {type(layer).__name__}.add_at"):
            old = layer.at
        assert torch.equal(old(x, positions), layer.add_at(x, positions))
