"""The Python examples of docs/serving.md that use plain HTTP run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import docx
import pytest
from running_service import running, unpack_model

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if "httpx" in code]


@pytest.mark.slow
def test_examples_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = docx.Document()
    report.add_paragraph("Ein Hund.")
    report.save(str(tmp_path / "report.docx"))
    monkeypatch.chdir(tmp_path)
    models = f'[{{ path = "{unpack_model(tmp_path)}", source = ["de"], target = ["en"] }}]'
    (tmp_path / "serve.toml").write_text(f"models = {models}\nworkers = 1\n")
    with running(["--config", str(tmp_path / "serve.toml")]) as service:
        results: list[dict[str, Any]] = [{} for _ in EXAMPLES]
        for code, names in zip(EXAMPLES, results, strict=True):
            exec(code.replace("http://localhost:5000", service.url), names)
        jobs, documents = results
        assert len(jobs["found"]) == len(jobs["lines"])
        (tmp_path / "translated.docx").write_bytes(documents["translated"])
        assert len(docx.Document(str(tmp_path / "translated.docx")).paragraphs) == 1


def test_the_container_has_what_its_file_copies() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split())
    assert "--index-url https://download.pytorch.org/whl/cpu" in text
