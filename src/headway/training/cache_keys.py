"""Cache keys of tokenizers and token stores: hashes of the files and options that they were built from.

A key contains only the options that are not inert (:mod:`headway.config`), so a saved result stays valid when an option
is added. The files and options are also saved in readable form, so that an error can name the differences.

Version 1 keys are hashes of all options that existed at that time. Saved results with such a key are still valid:
:data:`_VERSION_1_OPTIONS` lists these options and must never change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headway.config import Config
from headway.data.documents import TextCorpus
from headway.data.readers import Corpus
from headway.data.store import FilterConfig
from headway.errors import ConfigError
from headway.text.tokenizer import TokenizerConfig
from headway.training.recipe import flatten_options, format_option

_VERSION_1_OPTIONS: dict[type[Config], tuple[str, ...]] = {
    TokenizerConfig: ("kind", "vocab_size", "joint", "min_frequency", "split_digits", "sample_lines"),
    FilterConfig: ("max_length", "max_length_ratio"),
    Corpus: ("files", "fields", "source_language", "target_language", "weight"),
    TextCorpus: ("files", "fields", "source_language", "target_language", "weight", "documents"),
}
# Corpus options that are not part of the key: files are hashed, and weights do not affect stores.
_FILES_AND_ORDER = {"files", "weight"}


@dataclass(frozen=True)
class CacheKey:
    """The files and options from which a cached result is built.

    Attributes:
        files: Name and hash of each file. The key does not depend on the names.
        options: Configs and other JSON values, by name.
        version_1: The version 1 key, or None if an option that did not exist in version 1 is not inert.
        changes: Messages for options whose values mean nothing to users, such as lists of hashes: for each option name,
            one message per list item, reported if that item has changed.
    """

    files: Sequence[tuple[str, str]]
    options: Mapping[str, Any]
    version_1: str | None
    changes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def value(self) -> str:
        """The key of a new result."""
        active = {
            name: value.active_options() if isinstance(value, Config) else value for name, value in self.options.items()
        }
        content = json.dumps([[digest for _, digest in self.files], active], sort_keys=True)
        return "2-" + hashlib.blake2b(content.encode(), digest_size=20).hexdigest()

    @property
    def valid_values(self) -> set[str]:
        """The keys of all results that are valid for these files and options."""
        return {self.value, self.version_1 or self.value}

    def description(self) -> dict[str, Any]:
        """Return the files and options as JSON values, to be saved along with the key."""
        plain = {name: value.as_dict() if isinstance(value, Config) else value for name, value in self.options.items()}
        return {"files": [digest for _, digest in self.files], "options": plain}

    def differences(self, saved: Any) -> list[str]:
        """Describe the differences from a saved :meth:`description`. The result is empty if ``saved`` is damaged."""
        try:
            files, options = list(saved["files"]), dict(saved["options"])
            before = {name: self._as_now(name, value) for name, value in options.items()}
            items_before = {name: list(before.pop(name)) for name in self.changes}
        except (TypeError, KeyError, ValueError, ConfigError):
            return []
        before_digests = set(files)
        changed = [f"the content of {name} has changed" for name, digest in self.files if digest not in before_digests]
        if len(files) != len(self.files):
            changed = [f"the number of files was {len(files)}, and is now {len(self.files)}"]
        elif not changed and files != [digest for _, digest in self.files]:
            changed = ["the order of the files has changed"]
        after = json.loads(json.dumps(self.description()["options"]))
        for name, changes in self.changes.items():
            both = zip(changes, items_before[name], after.pop(name), strict=False)
            changed += [change for change, old, new in both if old != new]
        was, now = flatten_options(before), flatten_options(after)
        return changed + [
            f"{key} was {format_option(was.get(key))}, is {format_option(now.get(key))}"
            for key in sorted(was.keys() | now.keys())
            if was.get(key) != now.get(key)
        ]

    def _as_now(self, name: str, saved: Any) -> Any:
        """Return a saved option, with inert values for options that were added since."""
        config = self.options.get(name)
        return type(config).parse_saved(saved, name).as_dict() if isinstance(config, Config) else saved


def corpus_options(corpus: Corpus) -> dict[str, Any]:
    """Return the corpus options that affect a store, for :attr:`CacheKey.options`."""
    return {name: value for name, value in corpus.active_options().items() if name not in _FILES_AND_ORDER}


def is_version_1(configs: Iterable[Config]) -> bool:
    """Return whether all options that did not exist in version 1 are inert."""
    return all(config.active_options().keys() <= {*_VERSION_1_OPTIONS[type(config)]} for config in configs)


def version_1_options(config: Config) -> dict[str, Any]:
    """Return the options that existed in version 1, in the order in which they were hashed."""
    plain = config.as_dict()
    return {name: plain[name] for name in _VERSION_1_OPTIONS[type(config)] if name in plain}
