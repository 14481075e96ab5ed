"""The modules that loading a model imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from headway.predict import Translator


def test_loading_a_model_imports_no_symbolic_mathematics(
    make_translator: Callable[..., Translator], tmp_path: Path
) -> None:
    """PyTorch imports sympy and its compiler lazily, which takes longer than loading a model."""
    make_translator().bundle.save(tmp_path / "model", "card")
    code = f"import headway, sys; headway.load({str(tmp_path / 'model')!r}); print('sympy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
