"""The version has one place, ``headway/version.py``, which the build and the citation agree with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import headway
from headway.version import __version__

ROOT = Path(__file__).parents[1]


def test_the_build_reads_the_version_from_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "headway.version.__version__"}
    assert headway.__version__ == __version__


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [__version__]
