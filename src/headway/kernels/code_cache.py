"""A disk cache of compiled code, so that only the first call on a machine waits for the compiler.

Numba writes and reads the files; this module chooses their folders and names. The cache is in ``NUMBA_CACHE_DIR`` if
this variable is set, otherwise next to this module if that folder is writable, otherwise in the user's cache folder.
Code next to this module is also found if its folder is read-only (a container image, a read-only install).

Numba has no public interface for choosing the cache folder, so another version of Numba may lack a private name that
this module uses. In this case, kernels run without the feature that needs the name, and :func:`warn_feature_lost`
warns.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import subprocess
import sys
import time
import warnings
from pathlib import Path
from pickle import UnpicklingError
from types import FunctionType, SimpleNamespace
from typing import Any

import numba

from headway.kernels.processor import cpu_features
from headway.storage import user_cache_folder

_SOURCES = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
_FEATURES = ",".join(sorted(cpu_features())).encode()
# Compiled code contains the functions that it calls and depends on the chosen processor features, so it is valid only
# for one version of all kernels and one set of features. Function names contain this hash, and file names contain
# their function's name. So Numba's own cache cannot confuse versions.
VERSION = hashlib.blake2b(b"".join([*_SOURCES, _FEATURES]), digest_size=4).hexdigest()

_POLL_S = 0.01
_WAIT_S = 120.0  # compiling all kernels takes 20 s of CPU time
_background: subprocess.Popen[bytes] | None = None  # the process that compiles kernels
_lost: set[str] = set()


def warn_feature_lost(what: str, error: Exception) -> None:
    """Warn, once for each ``what``, that a feature does not work with this version of Numba."""
    if what not in _lost:
        _lost.add(what)
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        hint = "'pip check' reports whether Headway supports this version"
        warnings.warn(f"with Numba {numba.__version__}, {what} ({reason}); {hint}", stacklevel=3)


def cache_folders() -> list[Path]:
    """Return the folders that are searched for compiled code. New code is written to the first writable folder."""
    config: Any = numba.config  # Numba sets its attributes at run time
    if config.CACHE_DIR:
        return [Path(config.CACHE_DIR) / "headway"]
    folders = [Path(__file__).parent / "__pycache__"]
    with contextlib.suppress(RuntimeError):  # the user has no home folder
        folders.append(user_cache_folder() / "kernels")
    return folders


@functools.cache
def _cache_class(folder: Path) -> Any:
    """Return a subclass of Numba's function cache that stores compiled code in ``folder``."""
    from numba.core import caching

    locator: Any = SimpleNamespace(
        get_cache_path=lambda: str(folder),
        ensure_cache_path=lambda: folder.mkdir(parents=True, exist_ok=True),
        get_source_stamp=lambda: VERSION,
        get_disambiguator=lambda: "kernel",
        from_function=lambda *_: locator,
    )
    files: Any = type("Files", (caching.CompileResultCacheImpl,), {"_locator_classes": [locator]})
    return type("FolderCache", (caching.FunctionCache,), {"_impl_class": files})


class CodeCache:
    """The compiled code of one function in all cache folders, with the interface of Numba's function cache."""

    def __init__(self, function: FunctionType) -> None:
        self._name = function.__qualname__
        self._folders = cache_folders()
        self._caches = [_cache_class(folder)(function) for folder in self._folders]
        paths = [cache.cache_path for cache in self._caches]
        if paths != list(map(str, self._folders)):  # NUMBA_CACHE_LOCATOR_CLASSES has precedence, for example
            raise ValueError(f"the folders are {paths}")

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of Numba's cache in the first folder, such as its path."""
        return getattr(self._caches[0], name)

    @property
    def is_empty(self) -> bool:
        """Whether no folder contains compiled code of the function."""
        return not any(any(folder.glob(f"*.{self._name}-*.nbi")) for folder in self._folders)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the code compiled for a signature, or None. Wait for the background compilation if it is running."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            is_last = _background is None or _background.poll() is not None
            for cache in self._caches:
                code = _load(cache, signature, target_context)
                if code is not None:
                    return code
            if is_last:
                return None
            if time.monotonic() > deadline:
                _stop_background()
            time.sleep(_POLL_S)

    def save_overload(self, signature: Any, code: Any) -> None:
        """Write code compiled for a signature to the first writable folder."""
        for cache in self._caches:
            try:
                _save(cache, signature, code)
                return
            except OSError:  # a folder that cannot be written
                continue
            except Exception as error:
                warn_feature_lost("compiled kernels are not cached, and each process compiles them again", error)
                return


def _load(cache: Any, signature: Any, target_context: Any) -> Any:
    """Return cached code, or None. Damaged files are treated as missing and are written again."""
    try:
        try:  # load without preparing the compiler, which would take 0.15 s
            from numba.core.runtime import rtsys  # type: ignore[attr-defined]

            rtsys.initialize(target_context)
            load = cache._load_overload
        except Exception as error:
            warn_feature_lost("loading compiled kernels takes longer", error)
            load = cache.load_overload
        code = load(signature, target_context)
        # Numba writes the index before the code. If writing the code fails, the index may refer to an old file with
        # code for other types.
        return None if code is None or tuple(code.signature.args) != tuple(signature) else code
    except (OSError, EOFError, UnpicklingError):
        return None
    except Exception as error:
        warn_feature_lost("compiled kernels in the cache cannot be read and are compiled again", error)
        return None


def _save(cache: Any, signature: Any, code: Any) -> None:
    try:
        cache.save_overload(signature, code)
    except (EOFError, UnpicklingError):  # the index is damaged
        cache.flush()
        cache.save_overload(signature, code)


def use_code_cache(dispatcher: Any, function: FunctionType) -> None:
    """Make a compiled function load and store its code in the folders of :func:`cache_folders`.

    If this is impossible with the installed version of Numba, the function uses Numba's own cache.
    """
    try:
        cache = CodeCache(function)
        _ = dispatcher._cache.load_overload, dispatcher._cache.save_overload  # fails if Numba has renamed them
        dispatcher._cache = cache
    except Exception as error:
        warn_feature_lost(
            "Numba's own cache is used for kernels, which are compiled again if it cannot be written", error
        )
        with contextlib.suppress(Exception):  # no folder can be written
            dispatcher.enable_caching()


def is_uncached(function: Any) -> bool:
    """Return whether the cache contains no code of a function. False if the function uses Numba's own cache."""
    try:
        return bool(function._cache.is_empty)
    except AttributeError:
        return False


def compile_in_background(module_name: str) -> None:
    """Run the module ``module_name``, which compiles kernels, in a separate process that fills the cache.

    A kernel that is called in the meantime waits for this process instead of being compiled twice.
    """
    global _background
    with contextlib.suppress(OSError):  # if the process cannot be started, kernels are compiled when they are called
        command = [sys.executable, "-m", module_name]
        _background = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(_background.kill)


def _stop_background() -> None:
    """Kill the process that compiles kernels, because it hangs or was stopped. Kernels are then compiled here."""
    global _background
    if _background is not None:
        _background.kill()
        _background = None
        warnings.warn(
            f"the process that compiles kernels did not finish a kernel within {_WAIT_S:g} s, so kernels are compiled "
            "in this process; 'headway doctor --compile' compiles them ahead of time",
            stacklevel=2,
        )
