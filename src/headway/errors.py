"""Every exception that a user of Headway can meet.

    HeadwayError
    ├── ConfigError        a recipe, an option or an argument: unknown key, value out of range, parts that do not fit
    ├── DataError          a corpus: missing, empty, not UTF-8, files of different lengths, a bad row
    ├── LengthError        a sequence longer than what a model or a limit allows
    ├── BundleError        a model folder: missing, truncated, foreign or damaged file
    ├── CheckpointError    a run folder that cannot be resumed as asked
    ├── TrainingError      training that cannot go on (out of memory, nothing to train on)
    │   └── DivergenceError  its loss or gradients stay infinite
    ├── MissingPackageError  an optional package that a command needs and that is not installed
    └── OutputError        a file that cannot be written (disk full, no permission)

Each message is one line that says what was wrong, where (file, line, key), what is accepted and what to try. The
command line prints it and exits with code 2; a traceback appears only with ``--debug``.
"""

__all__ = [
    "BundleError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DivergenceError",
    "HeadwayError",
    "LengthError",
    "MissingPackageError",
    "OutputError",
    "TrainingError",
]


class HeadwayError(Exception):
    """The root of all errors that a user can cause or meet."""


class ConfigError(HeadwayError):
    """A recipe, an option or an argument is wrong."""


class DataError(HeadwayError):
    """A corpus cannot be read as asked."""


class LengthError(HeadwayError):
    """A sequence is longer than what a model or a limit allows."""


class BundleError(HeadwayError):
    """A model folder is missing, damaged or not one of ours."""


class CheckpointError(HeadwayError):
    """A run folder cannot be resumed as asked."""


class TrainingError(HeadwayError):
    """Training cannot go on."""


class DivergenceError(TrainingError):
    """Training gave infinite losses or gradients, step after step."""


class MissingPackageError(HeadwayError):
    """An optional package is not installed.

    Args:
        purpose: What needs it, as the start of the message.
        package: Its name.
        extra: The extra of Headway's that installs it.
    """

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        super().__init__(purpose, package, extra)  # which pickles keep

    def __str__(self) -> str:
        purpose, package, extra = self.args
        return f"{purpose} needs the package {package!r}, which is not installed; pip install 'headway[{extra}]'"


class OutputError(HeadwayError):
    """A result cannot be written."""
