"""docs/layers.md: its listings print what it shows, its greedy loop is a beam of one, and its training step learns."""

from __future__ import annotations

import doctest
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

from headway.decode import DecodingOptions
from headway.predict import Translator, load_translator

GUIDE = (Path(__file__).parents[1] / "docs" / "layers.md").read_text(encoding="utf-8")
BASE, GREEDY, TRAINING = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
LISTINGS = re.findall(r"```pycon\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture(autouse=True)
def as_users_have_it() -> Iterator[None]:
    """Turn off jaxtyping's own checks, which only run in tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_its_listings_print_what_it_shows() -> None:
    """All are one session, in order."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    session = parser.get_doctest("\n".join(LISTINGS), {}, "layers.md", "layers.md", 0)
    report: list[str] = []
    assert runner.run(session, out=report.append).failed == 0, "".join(report)
    assert runner.summarize(verbose=False).attempted > 10


@pytest.mark.slow
def test_the_base_model_has_the_papers_size(capsys: pytest.CaptureFixture[str]) -> None:
    exec(BASE, {})
    shown = re.findall(r"  # (63,082,496|torch\.Size\(.*?\))", BASE)
    assert capsys.readouterr().out.splitlines() == shown


@pytest.fixture
def greedy_decode(make_translator: Callable[..., Translator], tmp_path: Path) -> tuple[Translator, Callable[..., str]]:
    make_translator(seed=11).bundle.save(tmp_path / "model", "card")
    code = GREEDY.replace("runs/quickstart-en-de/best", str(tmp_path / "model"))
    names: dict[str, Any] = {"print": lambda *_: None}
    exec(code, names)
    return load_translator(tmp_path / "model", precision="float32"), names["greedy_decode"]


def test_its_greedy_loop_is_a_beam_of_one(greedy_decode: tuple[Translator, Callable[..., str]]) -> None:
    translator, decode = greedy_decode
    texts = ["ein Haus", "das rote Haus", "der Baum und das Haus", "grüne und rote", "Haus"]
    expected = [each.text for each in translator.translate(texts, DecodingOptions(beam_size=1))]
    assert len(set(expected)) > 2
    assert [decode(text) for text in texts] == expected


def test_its_greedy_loop_has_ten_lines() -> None:
    (body,) = re.findall(r"def greedy_decode.*?:\n(.*?)\n\n", GREEDY, re.DOTALL)
    assert len(body.splitlines()) == 10


def test_its_training_step_learns(capsys: pytest.CaptureFixture[str]) -> None:
    exec(TRAINING, {})
    first, last = map(float, capsys.readouterr().out.split(" -> "))
    assert last < 0.7 * first
