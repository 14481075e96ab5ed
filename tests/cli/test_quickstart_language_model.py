"""``headway quickstart --language-model``, shortened to two steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli import app
from headway.data.builtin.poem import read_poem


@pytest.mark.slow
def test_a_model_is_trained_writes_and_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    app(["quickstart", "--language-model", "--steps", "2", "--run", str(run)], standalone_mode=False)
    shown = capsys.readouterr().out
    parts = [(run / "data" / name).read_text(encoding="utf-8") for name in ("train.txt", "held-out.txt")]
    assert "".join(parts) == read_poem()
    assert len(parts[1]) == pytest.approx(0.1 * len(read_poem()), abs=80)
    model, xz, ppmd = (float(shown.split(f"    {name}")[1].split()[0]) for name in ("model", "xz", "PPMd"))
    assert ppmd < xz < model < 8  # two steps teach next to nothing
    assert "The model writes:\n\nOf " in shown
    assert f"generate {run / 'best'}" in shown
