"""The HTTP status and message for each exception, which are the same in nearly all APIs."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect

from headway.errors import HeadwayError
from headway.serve.errors import (
    BadKeyError,
    BadRequestError,
    DocumentNotDoneError,
    DocumentsFullError,
    GlossariesFullError,
    JobNotDoneError,
    JobsFullError,
    ModelNotReadyError,
    OverloadedError,
    QuotaExceededError,
    RateExceededError,
    RetryLaterError,
    TimedOutError,
    TooLargeError,
    UnavailableError,
    UnknownDictionaryError,
    UnknownDocumentError,
    UnknownGlossaryError,
    UnknownJobError,
    UnknownLanguageError,
    UnknownModelError,
    WorkerError,
)

_CLOSED_REQUEST = 499  # nginx's status for a client that has disconnected; nobody receives the reply

# The first class that an exception is an instance of determines its status. {} is replaced with its message.
STATUSES: dict[type[Exception], tuple[int, str]] = {
    BadRequestError: (400, "{}"),
    TooLargeError: (413, "{}"),
    BadKeyError: (403, "Invalid API key"),
    QuotaExceededError: (429, "The quota of this key is used up"),
    RateExceededError: (429, "Too many requests"),
    OverloadedError: (429, "The service is busy; try again later"),
    UnknownLanguageError: (400, "{}"),
    UnknownModelError: (404, "{}"),
    UnknownJobError: (404, "There is no job {}"),
    JobNotDoneError: (409, "The job is {}"),
    JobsFullError: (429, "This key has too many jobs; delete finished jobs, or try again later"),
    UnknownDocumentError: (404, "There is no document {}"),
    DocumentNotDoneError: (409, "The document is {}"),
    DocumentsFullError: (429, "This key has too many documents; fetch or delete finished documents"),
    UnknownGlossaryError: (404, "There is no glossary {}"),
    UnknownDictionaryError: (400, "The glossary has no dictionary for {}"),
    GlossariesFullError: (413, "{}"),
    TimedOutError: (504, "The request has exceeded its time limit"),
    UnavailableError: (503, "No worker is available now; try again later"),
    ModelNotReadyError: (503, "{}"),
    WorkerError: (500, "Internal error"),
    HeadwayError: (400, "{}"),
    ClientDisconnect: (_CLOSED_REQUEST, "The client has disconnected"),
    Exception: (500, "Internal error"),
}


@dataclass(frozen=True)
class HttpError:
    """An error reply, without the format of an API.

    Attributes:
        kind: The class in :data:`STATUSES` that matches the exception.
        status: The HTTP status code.
        message: The message for the client.
        headers: Additional headers, such as Retry-After.
    """

    kind: type[Exception]
    status: int
    message: str
    headers: dict[str, str] = field(default_factory=dict)


def http_error(error: Exception) -> HttpError:
    """Return the reply to a request that has failed with this exception."""
    kind = next(kind for kind in STATUSES if isinstance(error, kind))
    status, template = STATUSES[kind]
    headers = {}
    if isinstance(error, RetryLaterError):
        headers["Retry-After"] = str(error.retry_after)
    elif isinstance(error, UnavailableError):
        headers["Retry-After"] = "1"
    return HttpError(kind, status, template.format(error), headers)
