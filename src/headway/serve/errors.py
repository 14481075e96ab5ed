"""The exceptions of the service, which :mod:`headway.serve.http_errors` maps to replies.

Errors in a text itself, such as a word that a model cannot generate, are a :class:`headway.errors.HeadwayError`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # workers import this module without an HTTP library
    from starlette.responses import Response


class RetryLaterError(Exception):
    """The request is refused for now. It may be sent again after ``retry_after`` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


class BadRequestError(Exception):
    """The request is invalid. The message contains the reason."""


class RefusedError(Exception):
    """The request is refused with a reply that is specific to its API, such as an error with a special code."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class BadKeyError(Exception):
    """The key is missing or wrong."""


class RateExceededError(RetryLaterError):
    """The key has sent too many requests."""


class QuotaExceededError(Exception):
    """The monthly character quota of the key is used up."""


class TooLargeError(Exception):
    """The request is larger than the service accepts. The message contains the limit."""


class OverloadedError(RetryLaterError):
    """The queue is full. It will probably have room after ``retry_after`` seconds."""


class UnknownLanguageError(Exception):
    """No model translates this pair of languages.

    Attributes:
        side: "source" or "target" if no model supports that language, or "pair" if only the combination is unsupported.
        source: The requested or detected source language.
        target: The requested target language.
        detected_index: Index in the request of a text whose detected language is ``source``, or None if the client has
            specified the language.
        text_prefix: Beginning of the message: "text N: ", counted from 1, if the request has several texts and the
            language was detected, otherwise "".
    """

    def __init__(self, message: str, side: Literal["source", "target", "pair"], source: str, target: str) -> None:
        super().__init__(message)
        self.side, self.source, self.target = side, source, target
        self.detected_index: int | None = None
        self.text_prefix = ""

    def at_text(self, index: int, num_texts: int) -> UnknownLanguageError:
        """Return a copy of the error for the text at ``index``, whose language was detected."""
        error = UnknownLanguageError(str(self), self.side, self.source, self.target)
        error.detected_index = index
        error.text_prefix = text_number_prefix(index, num_texts)
        error.args = (f"{error.text_prefix}{self}",)
        return error


def text_number_prefix(index: int, num_texts: int) -> str:
    """Return the beginning of a message about a text: "text N: ", counted from 1, or "" if there is only one text."""
    return f"text {index + 1}: " if num_texts > 1 else ""


class UnknownModelError(Exception):
    """There is no model with this name, or no model of the kind that the request needs."""


class UnknownGlossaryError(Exception):
    """No glossary has this id, or it belongs to another key."""


class UnknownDictionaryError(Exception):
    """The glossary has no dictionary for the pair of languages in the message."""


class GlossariesFullError(Exception):
    """The key's glossaries would exceed a limit. The message contains the limit."""


class UnknownJobError(Exception):
    """No job has this id, or it belongs to another key."""


class JobNotDoneError(Exception):
    """The job has no result yet or has failed. The message is its status."""


class JobsFullError(RetryLaterError):
    """The key has the maximum number of jobs, or its jobs use the maximum amount of memory."""


class UnknownDocumentError(Exception):
    """No document has this id, or it belongs to another key."""


class DocumentNotDoneError(Exception):
    """The document has no result yet or has failed. The message is its status."""


class DocumentsFullError(RetryLaterError):
    """The key has the maximum number of documents."""


class ModelNotReadyError(RetryLaterError):
    """A model is not loaded: loading takes too long or has failed, or the model does not fit into memory.

    The message contains the reason.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(max(1, math.ceil(retry_after)))
        self.args = message, retry_after  # pickle passes these arguments when it restores the error in another process

    def __str__(self) -> str:
        return str(self.args[0])


class UnavailableError(Exception):
    """No worker can do the job now."""


class TimedOutError(Exception):
    """The request has taken longer than its time limit."""


class WorkerError(Exception):
    """A job failed with an unexpected exception, whose traceback the worker has logged."""
