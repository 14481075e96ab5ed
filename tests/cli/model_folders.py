"""The folders of small models and the files that commands read, as a fixture."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import write_lines

from headway.bundle import TaskConfig
from headway.predict import Classifier, LanguageModel, MaskedLanguageModel, Translator

NAME = "a [b] *? [c 日本"  # the name of a folder around all of them
WORDS = ["das rote Haus", "der Baum und das grüne Haus"]


@pytest.fixture(scope="session")
def folders(
    make_translator: Callable[..., Translator],
    make_classifier: Callable[..., Classifier],
    make_language_model: Callable[..., LanguageModel],
    make_masked_language_model: Callable[..., MaskedLanguageModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """The folders of small models, and the files that the commands read."""
    home = tmp_path_factory.mktemp("models") / NAME
    home.mkdir()
    makers: dict[str, Any] = {
        "translator": make_translator,
        "classifier": make_classifier,
        "language_model": make_language_model,
        "masked": make_masked_language_model,
    }
    for name, make in makers.items():
        make().bundle.save(home / name, "# A model\n")
    make_translator(seed=4).bundle.save(home / "translator2", "# A model\n")
    back = replace(make_translator().bundle, task=TaskConfig(source_language="en", target_language="de"))
    back.save(home / "back", "# A model\n")
    make_language_model(seed=4).bundle.save(home / "language_model2", "# A model\n")
    write_lines(home / "source", WORDS)
    write_lines(home / "target", WORDS)
    write_lines(home / "labeled.tsv", ["Haus\tdas rote Haus", "Baum\tder Baum"])
    write_lines(home / "pairs.tsv", ["das Haus\tHaus das"])
    questions = [{"question": word, "choices": ["Haus", "Baum"], "answer": "Baum"} for word in ("das", "der")]
    write_lines(home / "questions.jsonl", list(map(json.dumps, questions)))
    write_lines(home / "candidates", ["1\t-1\tdas", "1\t-2\tder", "2\t-1\tder", "2\t-2\tdas"])
    write_lines(home / "many", [f"das Haus {word}" for word in WORDS * 250])
    return {each.name: each for each in home.iterdir()}
