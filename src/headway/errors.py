"""All exceptions that a user of Headway can encounter.

    HeadwayError
    ├── ConfigError          a recipe, option or argument: unknown key, value out of range, conflicting values
    ├── DataError            a corpus: missing, empty, not UTF-8, files of different lengths, a bad row
    ├── LengthError          a sequence longer than a model or a limit allows
    │   └── ContextLengthError  a prompt that leaves no room for new tokens in a language model's context
    ├── BundleError          a model folder: a missing, truncated, damaged or foreign file
    ├── HubError             a model on the Hugging Face Hub: missing, access denied, damaged or unreachable
    ├── CheckpointError      a run folder that cannot be resumed as asked
    ├── TrainingError        training that cannot continue (out of memory, nothing to train on)
    │   └── DivergenceError  the loss or the gradients are infinite in many consecutive steps
    ├── ShapeError           a tensor of the wrong shape or type for a layer or model
    ├── MissingPackageError  an optional package that a command needs is not installed
    └── OutputError          a file that cannot be written (disk full, no permission)

Each message is a single line with the problem, its location (file, line, key), the accepted values and a suggested fix.
The command line prints it and exits with code 2; a traceback appears only with ``--debug``.
"""

from __future__ import annotations

import re
from typing import ClassVar

_INTERPRETED = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters, including line breaks
    "\u2028\u2029"  # other line breaks
    "\u202a-\u202e\u2066-\u2069"  # change the direction of the following text
    "\ufeff"  # the byte order mark, which is invisible
    "\ud800-\udfff"  # lone surrogates, which cannot be encoded in UTF-8
    "]"
)


def escape_unprintable(text: str) -> str:
    """Return a text with the characters that a terminal interprets replaced with escapes such as \\x1b.

    Names in files from other sources may contain sequences that change a terminal's title, colors or content. Invisible
    characters that scripts and emoji need are kept: joiners, direction marks, tags.
    """
    return _INTERPRETED.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


class HeadwayError(Exception):
    """Base class of all errors that a user can cause or encounter. The module docstring shows the hierarchy.

    The message has the form ``where: what; expected accepted; hint``. Missing parts are omitted.

    Args:
        what: Description of the problem.
        where: Location of the problem: a file, line, key or option.
        accepted: Description of the values that are accepted.
        hint: Suggested fix.
    """

    def __init__(
        self, what: str = "", *, where: str | None = None, accepted: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what)
        self.what, self.where, self.accepted, self.hint = what, where, accepted, hint

    def __str__(self) -> str:
        start = f"{self.where}: {self.what}" if self.where else self.what
        expected = [f"expected {self.accepted}"] if self.accepted else []
        return escape_unprintable("; ".join([start, *expected, *filter(None, [self.hint])]))

    def with_location(self, where: str) -> HeadwayError:
        """Return a copy of this error whose location begins with ``where``."""
        copy = type(self).__new__(type(self), *self.args)
        copy.args = self.args
        copy.__dict__.update(self.__dict__, where=f"{where}: {self.where}" if self.where else where)
        return copy


class ConfigError(HeadwayError):
    """A recipe, an option or an argument is wrong."""


class DataError(HeadwayError):
    """A corpus is missing or damaged, or contains an invalid example."""


class LengthError(HeadwayError):
    """A sequence is longer than a model or a limit allows."""


class ContextLengthError(LengthError):
    """A prompt leaves no room for new tokens in a language model's context.

    Attributes:
        number: Index of the prompt among the prompts of a call, counted from 1.
        num_tokens: Number of tokens in the prompt.
        context_length: Maximum number of tokens in the context.
    """

    def __init__(
        self, what: str = "", *, number: int = 1, num_tokens: int = 0, context_length: int = 0, hint: str | None = None
    ) -> None:
        super().__init__(what, hint=hint)
        self.number, self.num_tokens, self.context_length = number, num_tokens, context_length


class BundleError(HeadwayError):
    """A model folder is missing, damaged or not in Headway's format."""


class HubError(HeadwayError):
    """A model on the Hugging Face Hub does not exist, is not accessible, is damaged, or cannot be reached."""


class CheckpointError(HeadwayError):
    """A run folder cannot be resumed, or does not match the recipe."""


class TrainingError(HeadwayError):
    """Training cannot continue."""


class DivergenceError(TrainingError):
    """Losses or gradients were infinite in many consecutive steps."""


class ShapeError(HeadwayError):
    """A tensor passed to a layer, a loss or a model has the wrong shape or type."""


class MissingPackageError(HeadwayError):
    """An optional package is not installed.

    Args:
        feature: The feature that needs the package, used as the subject of the message.
        package: Name of the package: a key of :data:`EXTRAS`.
    """

    EXTRAS: ClassVar[dict[str, str]] = {
        "babel": "quickstart",
        "ctranslate2": "ctranslate2",
        "fastapi": "serve",
        "ftfy": "clean",
        "greenlet": "serve",
        "httptools": "serve",
        "huggingface_hub": "hub",
        "lxml": "documents",
        "markdown-it-py": "documents",
        "matplotlib": "plots",
        "onnx": "onnx",
        "onnxruntime": "onnx",
        "prometheus_client": "serve",
        "py3langid": "clean",
        "pyppmd": "quickstart",
        "pyyaml": "marian",
        "python_multipart": "serve",
        "ray": "ray",
        "sacremoses": "moses",
        "scipy": "plots",
        "sentencepiece": "sentencepiece",
        "tensorboard": "tensorboard",
        "starlette": "serve",
        "transformers": "huggingface",
        "translate-toolkit": "documents",
        "uvicorn": "serve",
    }

    def __init__(self, feature: str, package: str) -> None:
        # pip does not reinstall Headway itself, neither from a wheel nor as an editable install: it installs only the
        # extra's packages.
        super().__init__(
            f"{feature} needs the package {package!r}, which is not installed",
            hint=f"pip install 'headway[{self.EXTRAS[package]}]'",
        )
        self.args = (feature, package)  # pickle passes these arguments to the constructor


class OutputError(HeadwayError):
    """A result cannot be written."""
