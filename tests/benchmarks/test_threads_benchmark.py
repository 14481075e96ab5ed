from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import threads
import typer

from headway import kernels
from headway.predict import Candidate, TranslateOptions, Translation, Translator


@pytest.mark.slow
def test_threads_on_a_tiny_model_give_equal_results(
    make_translator: Callable[..., Translator], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_translator().bundle.save(tmp_path / "model", "A tiny model.")
    (tmp_path / "source").write_text("das rote Haus\nein Baum\n\nder grüne Baum und das Haus\n" * 10, encoding="utf-8")
    with pytest.raises(typer.Exit) as ended:
        threads.main(tmp_path / "model", tmp_path / "source", lines=30, threads=3)
    assert ended.value.exit_code == 0
    printed = capsys.readouterr().out
    assert "30 lines, 3 threads" in printed
    assert "float32: 0 results differ, 0 of them in the alignment" in printed
    assert ("int8: 0 results depend on the other sentences" in printed) == kernels.is_available()


def test_results_that_differ_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A translator that returns a different text at each call."""
    numbers = iter(range(1000))

    def translate_each(texts: list[str], options: TranslateOptions) -> list[Translation]:
        candidate = Candidate(str(next(numbers)), 0.0, 0.0, ())
        return [Translation(text, (candidate,)) for text in texts]

    monkeypatch.setattr(threads, "load_translator", lambda *_, **__: SimpleNamespace(translate_each=translate_each))
    assert not threads._compare(Path("model"), ["a", "b", "c"], 2, "float32")
    assert "float32: 3 results differ, 0 of them in the alignment" in capsys.readouterr().out
