"""Count the characters that each key has used in the current calendar month."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import NonNegativeInt

from headway.config import Config
from headway.errors import ConfigError
from headway.storage import atomic_write_text


class _Record(Config):
    """The content of the file: a month such as "2026-11", and the number of characters for each key."""

    month: str
    characters: dict[str, NonNegativeInt]


class Usage:
    """Counts characters by key. The counts are reset at the beginning of each month, in local time.

    Args:
        path: File in which to store the counts. None means that the counts are lost when the service stops.
        month: Returns the current month.

    Raises:
        ConfigError: The file cannot be read, or was not written by this class.
    """

    def __init__(self, path: Path | None, month: Callable[[], str] = lambda: time.strftime("%Y-%m")) -> None:
        self._path, self._present_month = path, month
        record = _Record(month=month(), characters={}) if path is None or not path.exists() else _read(path)
        self._month, self._characters = record.month, dict(record.characters)
        self._has_changed = True  # the first call of save shows whether the file can be written

    def characters(self, key: str) -> int:
        """Return the number of characters that a key has used this month."""
        return self._characters.get(key, 0) if self._month == self._present_month() else 0

    def add(self, key: str, characters: int) -> None:
        """Add characters to a key's count. A negative number undoes an earlier count of the same month."""
        total = max(0, self.characters(key) + characters)
        if self._month != self._present_month():
            self._month, self._characters = self._present_month(), {}
        self._characters[key] = total
        self._has_changed = True

    def save(self) -> None:
        """Write the file if a count has changed. Other threads may add characters meanwhile.

        Raises:
            OutputError: The file cannot be written.
        """
        if self._path is None or not self._has_changed:
            return
        self._has_changed = False
        record = _Record(month=self._month, characters=dict(self._characters))
        try:
            atomic_write_text(self._path, json.dumps(record.as_dict(), indent=1) + "\n", private=True)
        except BaseException:
            self._has_changed = True
            raise


def _read(path: Path) -> _Record:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"usage_file: {path} cannot be read ({error}); correct or remove it") from None
    return _Record.parse_saved(data, str(path))
