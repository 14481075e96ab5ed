"""The errors of the service's files, which :mod:`headway.serve.http_errors` maps to replies.

Errors of the text itself, such as a word that a model cannot force, are a :class:`headway.errors.HeadwayError`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # workers import this file, but no HTTP library
    from starlette.responses import Response


class RetryLaterError(Exception):
    """The request is refused for now. ``retry_after`` is the delay before sending it again, in whole seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


class BadRequestError(Exception):
    """The request is not valid; the message gives the reason."""


class RefusedError(Exception):
    """The request gets a reply that only its API has, such as an error with a special code."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class BadKeyError(Exception):
    """The key is missing or wrong."""


class RateExceededError(RetryLaterError):
    """The key has sent too many requests."""


class QuotaExceededError(Exception):
    """The key's characters of this month are used up."""


class TooLargeError(Exception):
    """The request has more texts or characters than the service accepts. The message contains the maximum number."""


class OverloadedError(RetryLaterError):
    """The queue is full. There will probably be room after ``retry_after`` seconds."""


class UnknownLanguageError(Exception):
    """No model translates from this language, or into it from the source language.

    Attributes:
        side: Whether the source or the target language is unknown; "pair" if both are known.
        source: The source language.
        target: The target language.
        detected_index: The index of the text, among those of the request, whose detected language is ``source``. None
            if the client named the language.
        place: "text N: ", counted from 1, if the request has several texts and the language was detected. Otherwise "".
    """

    def __init__(self, message: str, side: Literal["source", "target", "pair"], source: str, target: str) -> None:
        super().__init__(message)
        self.side, self.source, self.target = side, source, target
        self.detected_index: int | None = None
        self.place = ""

    def at_text(self, index: int, num_texts: int) -> UnknownLanguageError:
        """Return the error for a text whose language was detected."""
        error = UnknownLanguageError(str(self), self.side, self.source, self.target)
        error.detected_index = index
        error.place = place_of_text(index, num_texts)
        error.args = (f"{error.place}{self}",)
        return error


def place_of_text(index: int, num_texts: int) -> str:
    """Return the beginning of a message about one of several texts: "text N: ", counted from 1; "" for a single one."""
    return f"text {index + 1}: " if num_texts > 1 else ""


class UnknownModelError(Exception):
    """There is no model of this name, or of the kind that the request needs."""


class UnknownGlossaryError(Exception):
    """There is no glossary with this id, or it belongs to another key."""


class UnknownDictionaryError(Exception):
    """The glossary has no dictionary for a pair of languages, which the message names."""


class GlossariesFullError(Exception):
    """The service does not store more glossaries. The message contains the limit."""


class UnknownJobError(Exception):
    """There is no job with this id, or it belongs to another key."""


class JobNotDoneError(Exception):
    """The job has no result. The message is its status."""


class JobsFullError(RetryLaterError):
    """The key has the maximum number of jobs, or its jobs use the maximum amount of memory."""


class UnknownDocumentError(Exception):
    """There is no document with this id, or it belongs to another key."""


class DocumentNotDoneError(Exception):
    """The document has no result. The message is its status."""


class DocumentsFullError(RetryLaterError):
    """The key has the maximum number of documents."""


class ModelNotReadyError(RetryLaterError):
    """A model is not loaded: it takes too long, has failed, or does not fit into memory.

    The message gives the reason.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(max(1, math.ceil(retry_after)))
        self.args = message, retry_after  # the arguments with which pickle restores the error in other processes

    def __str__(self) -> str:
        return str(self.args[0])


class UnavailableError(Exception):
    """No worker can do the job now."""


class TimedOutError(Exception):
    """The request has taken longer than its time limit."""


class WorkerError(Exception):
    """A job failed because of a defect. The worker has logged the traceback."""
