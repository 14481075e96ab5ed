"""Registries of kinds: Headway's tasks and architectures, and the ones that other packages register.

A kind is the name of a task (``task.kind``) or of an architecture (``model.kind``) in recipes and model folders. Each
table maps these names to the classes and properties that the rest of Headway uses:

- :data:`headway.models.registry.ARCHITECTURES`: the configuration class, model class and properties of each
  architecture;
- :data:`headway.bundle.BUNDLE_TYPES`: for each task, the class that reads and writes its model folders;
- :data:`headway.tasks.TASKS`: for each task, an object that defines how its models are trained, scored and loaded.

Commands, the service, inspection and exports do not check the kind but the capability: what a model can do with a text.
A task declares the capability of its models; an architecture declares the capability that its models can be trained
for.

    translates    turns one sequence into another
    labels        assigns one of several labels to a text
    continues     continues a text, and assigns it a probability
    fills         fills in the hidden tokens of a text

Therefore a new kind of task with one of these capabilities works with all commands, service endpoints and
:mod:`headway.predict` functions that require the capability.

:func:`headway.models.registry.register` and :func:`headway.tasks.register` add kinds. An installed package declares an
entry point in the group ``headway.kinds`` that names a module calling these functions:

    [project.entry-points."headway.kinds"]
    my_package = "my_package.kinds"

These modules are imported when a table is listed, or when a kind is not found in it. Commands, serving processes and
``headway.load`` therefore find the registered kinds, and models of the built-in kinds still load fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from threading import RLock
from typing import Any, Generic, Literal, TypeVar

from headway.errors import ConfigError

Capability = Literal["translates", "labels", "continues", "fills"]

ENTRY_POINT_GROUP = "headway.kinds"

EntryT = TypeVar("EntryT")


class KindRegistry(Mapping[str, EntryT], Generic[EntryT]):
    """A registry of kinds, to which other packages can add entries.

    Args:
        key: The recipe key that selects a kind ("task.kind" or "model.kind"), for error messages.
        entries: The built-in kinds.
        definition: Function that returns the class or function that defines an entry. Default: the entry itself.
    """

    def __init__(
        self,
        key: str,
        entries: Mapping[str, EntryT],
        definition: Callable[[EntryT], Any] = lambda entry: entry,
    ) -> None:
        self.key, self._entries, self._definition = key, dict(entries), definition

    def register(self, kind: str, entry: EntryT) -> None:
        """Add a kind. Adding the same entry again does nothing.

        An entry defined in a notebook is replaced if its cell runs again, that is, if it has the same name in the
        module ``__main__``.

        Raises:
            ConfigError: The table has another entry with this name.
        """
        known = self._entries.setdefault(kind, entry)
        if known is entry:
            return
        old, new = ((part.__module__, part.__qualname__) for part in map(self._definition, (known, entry)))
        if old != new or new[0] != "__main__":
            raise ConfigError(f"{self.key} = {kind!r} is already registered; choose another name")
        self._entries[kind] = entry

    def __getitem__(self, kind: str) -> EntryT:
        if kind not in self._entries:
            _import_packages()
        return self._entries[kind]

    def __iter__(self) -> Iterator[str]:
        _import_packages()
        return iter(tuple(self._entries))  # another thread may register a kind meanwhile

    def __len__(self) -> int:
        _import_packages()
        return len(self._entries)


_importing = RLock()  # reentrant: a module may look up kinds while it is being imported
_begun: set[str] = set()  # modules whose import has started
_failed: dict[str, ConfigError] = {}  # modules whose import failed, so their registrations may be incomplete


@cache
def _modules() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _import_packages() -> None:
    """Import the modules of other packages that register kinds, unless they have already been imported.

    Raises:
        ConfigError: A module cannot be imported. The message names its package.
    """
    with _importing:
        for module in _modules():
            if module.value in _failed:
                raise _failed[module.value]
            if module.value in _begun:
                continue
            _begun.add(module.value)
            try:
                module.load()
            except Exception as error:
                package = module.dist.name if module.dist else module.name
                _failed[module.value] = ConfigError(
                    f"the package {package} registers model kinds, but {module.value} cannot be imported "
                    f"({type(error).__name__}: {error}); repair or uninstall it"
                )
                raise _failed[module.value] from error
