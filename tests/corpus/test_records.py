"""Formats of records in the files of corpus jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.corpus.records import record_format
from headway.errors import ConfigError


@pytest.mark.parametrize("name", ["memory.tmx", "memory.tmx.gz"])
def test_a_translation_memory_has_no_lines(name: str) -> None:
    with pytest.raises(ConfigError, match=r"memory\.tmx.*: a translation memory has no lines; .*corpus clean"):
        record_format([Path("a.txt"), Path(name)], None, "score")
