"""Cases of which the quick suite runs a part, and the slow one the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def slow_but_every(count: int, cases: Iterable[tuple[str, Any]]) -> list[ParameterSet]:
    """Return the named cases for ``pytest.mark.parametrize``; all but one of each ``count`` are slow."""
    return [
        pytest.param(case, id=name, marks=() if at % count == 0 else pytest.mark.slow)
        for at, (name, case) in enumerate(cases)
    ]
