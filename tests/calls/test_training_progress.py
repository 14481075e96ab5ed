"""The bar of a training run: in a terminal, below a notebook's cell, and nowhere else."""

from __future__ import annotations

import builtins
import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headway.calls.progress import NotebookListener, show_training_progress
from headway.training.report import Listener

RECORD = {"loss": 1.25, "target_tokens_per_s": 1000.0, "elapsed_s": 2.0, "learning_rate": 0.1}


class ZMQInteractiveShell:
    """The name by which rich recognizes a notebook."""


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The outputs of a notebook's cell: each one that is added or replaced."""
    shown = list[str]()
    module: Any = ModuleType("IPython.display")

    def display(html: Any, display_id: bool) -> Any:
        assert display_id
        shown.append(html.data)
        return SimpleNamespace(update=lambda newer: shown.append(newer.data))

    module.HTML, module.display = (lambda data: SimpleNamespace(data=data)), display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    return shown


def test_a_notebook_shows_one_bar(outputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with show_training_progress("tokens", True) as listener:
        assert isinstance(listener, NotebookListener)
        listener.on_message("<b> & \x1b[2J")
        listener.on_step(3, 8, RECORD)
        listener.on_validation(3, {"loss": 0.5, "bleu": 12.0})
        listener.on_step(8, 8, RECORD)
    last = outputs[-1]
    for words in ("8/8", "loss 1.250", "1,000 tokens/s", "dev after step 3: loss 0.50", "&lt;b&gt; &amp;"):
        assert words in last
    assert "\x1b" not in last
    assert capsys.readouterr() == ("", "")


def test_no_bar_is_shown_if_none_is_wanted(outputs: list[str]) -> None:
    with show_training_progress("tokens", False) as listener:
        assert type(listener) is Listener
    assert outputs == []


def test_a_terminal_shows_a_bar_and_a_file_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal in (True, False):
        stream: Any = io.StringIO()
        stream.isatty = lambda is_terminal=is_terminal: is_terminal
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with show_training_progress("tokens", True) as listener:
            listener.on_step(3, 8, RECORD)
        assert ("training" in stream.getvalue() and "3/8" in stream.getvalue()) == is_terminal
        assert bool(stream.getvalue()) == is_terminal
