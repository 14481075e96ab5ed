"""Hearing what a run says."""

from __future__ import annotations

from headway.train.report import Silence


class Heard(Silence):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def say(self, message: str) -> None:
        self.messages.append(message)
