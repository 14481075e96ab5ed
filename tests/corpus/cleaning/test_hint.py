"""A damaged training corpus is noticed before training, and a clean one is not mentioned."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.corpus.cleaning.hint import cleaning_hint
from headway.data.readers import Corpus

SHARED = [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
GOOD = [(f"Das ist Satz Nummer {number}.", f"This is sentence number {number}.") for number in range(97)]
BAD = [("Das ist eine Kopie.", "Das ist eine Kopie."), ("Ich habe 3 Hunde.", "I have 4 dogs."), ("", "Nothing.")]


def hint_of(folder: Path, pairs: list[tuple[str, str]]) -> str | None:
    for side, language in enumerate(("de", "en")):
        (folder / f"train.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    hint = cleaning_hint([Corpus(files=("train.de", "train.en"))], folder)
    assert hint is not None
    return str(hint) if hint.is_needed else None


def test_a_clean_corpus_is_not_mentioned(tmp_path: Path) -> None:
    assert hint_of(tmp_path, GOOD) is None


def test_a_damaged_corpus_is_mentioned_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"headway corpus clean {tmp_path}/train.de {tmp_path}/train.en -o clean --from de --to en"
    said = hint_of(tmp_path, [*GOOD, *BAD])
    assert said is not None
    assert said.startswith("3.0% of a sample of 100 training pairs look wrong")
    assert said.endswith(command)
    monkeypatch.setattr("headway.corpus.cleaning.repairs._ftfy", repairs_without_package)
    monkeypatch.setattr("headway.corpus.cleaning.measures.language_detector", detector_without_package)
    assert hint_of(tmp_path, [*GOOD, *BAD]) == said


def repairs_without_package() -> None:
    from headway.errors import MissingPackageError

    raise MissingPackageError("the repair", "ftfy")


def detector_without_package() -> None:
    from headway.errors import MissingPackageError

    raise MissingPackageError("the detection", "py3langid")


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["multi30k", "tatoeba-de-en"])
def test_the_corpora_of_the_recipes_are_not_mentioned(folder: str) -> None:
    corpus = next((data / folder for data in SHARED if (data / folder).exists()), None)
    if corpus is None:
        pytest.skip("needs ../shared/data")
    hint = cleaning_hint([Corpus(files=("train.de", "train.en"))], corpus)
    assert hint is not None
    assert not hint.is_needed
