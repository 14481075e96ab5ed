"""Names of models on the Hugging Face Hub, which commands and Python functions accept instead of a model folder.

    hf:Helsinki-NLP/opus-mt-de-en           the model at the revision "main"
    hf:Helsinki-NLP/opus-mt-de-en@REVISION  a branch, a tag or a commit of it
    huggingface:...                         a synonym

A local folder with the same name takes precedence, with or without ``hf:``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ConfigError

SCHEMES = ("hf", "huggingface")
DEFAULT_REVISION = "main"

# The rules of the Hub's own client. They also ensure that a name is safe as a folder name.
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?!.*(?:--|\.\.))(?:{_PART}/)?{_PART}(?<!\.git)")
_MAX_LENGTH = 96  # maximum number of characters in a name
_REVISION = re.compile(r"(?!.*(?:\.\.|//))[A-Za-z0-9][A-Za-z0-9_./+-]{0,99}(?<!/)")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubName:
    """The name and the revision of a model on the Hub.

    Attributes:
        name: NAME or ORGANIZATION/NAME.
        revision: A branch, a tag, or the hash of a commit.
    """

    name: str
    revision: str = DEFAULT_REVISION

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _MAX_LENGTH:
            raise ConfigError(
                "no such folder, and not a name on the Hugging Face Hub",
                where=f"{SCHEMES[0]}:{self.name}",
                accepted="hf:ORGANIZATION/NAME, such as hf:Helsinki-NLP/opus-mt-de-en, or hf:NAME@REVISION",
            )
        if not _REVISION.fullmatch(self.revision):
            raise ConfigError(
                f"revision {self.revision!r} is not valid",
                where=f"{SCHEMES[0]}:{self.name}",
                accepted="a branch, a tag or the hash of a commit",
            )

    @classmethod
    def parse(cls, text: str, revision: str | None = None) -> HubName:
        """Parse a name with or without the prefix ``hf:`` and the suffix ``@REVISION``.

        Raises:
            ConfigError: The text is not a valid name, or contradicts ``revision``.
        """
        scheme, colon, name = text.partition(":")
        name, at_sign, given = (name if colon and scheme in SCHEMES else text).partition("@")
        if at_sign and revision not in (None, given):
            raise ConfigError(f"{text}: revision = {revision!r} contradicts the name; leave one of them out")
        return cls(name, given if at_sign else revision or DEFAULT_REVISION)

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{SCHEMES[0]}:{self.name}{revision}"

    @property
    def title(self) -> str:
        """The name without the organization."""
        return self.name.rpartition("/")[2]

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a commit, whose content never changes."""
        return bool(_COMMIT.fullmatch(self.revision))


def parse_model_source(source: str | Path, *, revision: str | None = None, base: Path | None = None) -> Path | HubName:
    """Parse ``source`` as the path of a local folder or the name of a model on the Hub.

    Args:
        source: A path, or a name that begins with ``hf:`` or ``huggingface:``.
        revision: The revision, for a name without ``@REVISION``.
        base: The folder that relative paths refer to. None means the working directory.

    Raises:
        ConfigError: The name or its revision is not valid, or a revision is passed for a local folder.
    """
    text = source if isinstance(source, str) else source.as_posix()
    scheme, colon, name = text.partition(":")
    candidates = (text, name) if colon and scheme in SCHEMES else (text,)
    paths = [Path(candidate) if base is None else base / candidate for candidate in candidates if candidate]
    local = paths[0] if len(candidates) == 1 else next((path for path in paths if path.is_dir()), None)
    if local is not None:
        if revision is not None:
            raise ConfigError(f"revision {revision!r}: {local} is a folder, which has no revisions; leave it out")
        return local
    return HubName.parse(text, revision)
