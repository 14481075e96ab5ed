"""Translation in several processes, each with its own translator.

The threads of a process share one Python interpreter. A small model spends a fifth of its time in Python code, so more
than a few threads would wait for each other. Processes do not wait for each other, but each process loads the whole
model and takes a second or two to start.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any

from headway.contention import adapt_openmp_waiting
from headway.errors import ConfigError, HeadwayError
from headway.parent_process import end_with_parent
from headway.predict.results import Candidate, Source, Translation, WordAlignment
from headway.predict.translation.glossary import Glossary
from headway.predict.translation.options import DEFAULT_OPTIONS, TranslateOptions
from headway.predict.translation.text_translator import TextTranslator


class TranslatorPool(TextTranslator):
    """A pool of ``workers`` processes, each with a translator.

        with TranslatorPool(partial(load_translator, "runs/quickstart-en-de/best"), workers=8) as pool:
            for translation in pool.translate_lines(lines):
                ...

    Each process uses one thread, or the number of threads in the environment variable OMP_NUM_THREADS. Translations do
    not depend on the number of processes, except for rounding (with int8, they are identical). The processes end when
    the pool is closed, when a call is interrupted, and when the process that created the pool ends, even if that
    process is killed.

    Args:
        load: A function without arguments that returns a translator. It is called in each process. On a machine with a
            GPU, it should load the model with ``device="cpu"``; otherwise all processes share the GPU.
        workers: Number of processes.

    Raises:
        ConfigError: ``workers`` is less than 1, or ``load`` cannot be sent to another process.
        HeadwayError: A process ended unexpectedly. Errors raised by ``load`` are propagated unchanged.
    """

    def __init__(self, load: Callable[[], TextTranslator], workers: int) -> None:
        import cloudpickle
        from loky import ProcessPoolExecutor

        if workers < 1:
            raise ConfigError(f"workers = {workers}: expected 1 or more; one worker per core is best")
        try:
            message = cloudpickle.dumps(load)
        except Exception as error:
            raise ConfigError(
                f"a pool cannot send {load!r} to its processes ({error}); pass a function that can be pickled, such as "
                "functools.partial(load_translator, FOLDER)"
            ) from None
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        self.lines_ahead = workers * TextTranslator.lines_ahead
        self._workers = workers
        self._closed = False
        self._executor = ProcessPoolExecutor(
            workers,
            initializer=_start_worker,
            initargs=(message, os.getpid()),
            # By default, loky restarts a process whose memory has grown by 300 MB. A model needs more at its first use.
            env={"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads, "LOKY_MAX_MEMORY_LEAK_SIZE": "1e15"},
        )
        try:
            with _sigint_ignored():  # inherited by the processes; only the process that owns the pool handles Ctrl-C
                ready = self._submit(None)
            ready.result()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<TranslatorPool: {self._workers} processes{', closed' if self._closed else ''}>"

    def translate_each(
        self,
        texts: Sequence[str | Source],
        options: TranslateOptions = DEFAULT_OPTIONS,
        glossary: Glossary | None = None,
    ) -> list[Translation | HeadwayError]:
        """Translate a list of texts; see :meth:`TextTranslator.translate_each`."""
        sizes = [len(text if isinstance(text, str) else text.text) for text in texts]
        shares = _shares(sizes, self._workers)
        futures = [
            self._submit("translate_each", [texts[index] for index in share], options, glossary) for share in shares
        ]
        results: dict[int, Translation | HeadwayError] = {}
        try:
            for share, future in zip(shares, futures, strict=True):
                results.update(zip(share, _result_of(future), strict=True))
        except Exception:
            for future in futures:
                future.cancel()
            raise
        except BaseException:
            self.close()
            raise
        return [results[index] for index in range(len(texts))]

    def word_alignment(self, candidate: Candidate) -> WordAlignment:
        """Return the word alignment of a candidate; see :meth:`TextTranslator.word_alignment`."""
        alignment: WordAlignment = _result_of(self._submit("word_alignment", candidate))
        return alignment

    def close(self) -> None:
        """End the processes immediately."""
        self._closed = True
        self._executor.shutdown(kill_workers=True)

    def __enter__(self) -> TranslatorPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _submit(self, method: str | None, *arguments: Any) -> Future[Any]:
        """Call a method of the translator in a free process. With None, only wait until a translator is loaded."""
        if self._closed:
            raise HeadwayError("this pool of translators is closed")
        with _readable_failure():
            future: Future[Any] = self._executor.submit(_call, method, *arguments)
            return future


def _result_of(future: Future[Any]) -> Any:
    with _readable_failure():
        return future.result()


@contextlib.contextmanager
def _readable_failure() -> Iterator[None]:
    """Raise a :class:`HeadwayError` if a process of the pool has ended unexpectedly."""
    try:
        yield
    except BrokenProcessPool as error:
        raise HeadwayError(
            f"a process of the pool ended unexpectedly ({' '.join(str(error).split())}); if the system killed it, "
            "the machine may be out of memory: each process loads the whole model, so try fewer workers"
        ) from None


@contextlib.contextmanager
def _sigint_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may change signal handlers
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _shares(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Divide the texts among the workers with balanced lengths. Return the indices of each worker's texts.

    Smaller shares would balance the load better, but the last steps of each share decode only a few sentences. With
    1,000 sentences, seven shares take 6 % longer than two shares.
    """
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    return [share for start in range(workers) if (share := order[start::workers])]


# The rest of this file runs in the worker processes.

_loaded: TextTranslator | Exception
_waiting: contextlib.AbstractContextManager[None]


def _start_worker(load: bytes, parent: int) -> None:
    """Load the translator. If loading fails, each call raises the error."""
    global _loaded, _waiting
    from headway.hardware import keep_freed_memory

    _waiting = adapt_openmp_waiting()
    _waiting.__enter__()  # stays entered until the process ends
    os.dup2(2, 1)  # only the process that owns the pool writes to standard output
    keep_freed_memory()
    end_with_parent(parent)
    try:
        _loaded = pickle.loads(load)()
    except Exception as error:
        _loaded = error
    gc.freeze()  # loky collects garbage between calls; PyTorch's many objects would make this take 0.1 s


def _call(method: str | None, *arguments: Any) -> Any:
    try:
        if isinstance(_loaded, Exception):
            raise _loaded
        return None if method is None else getattr(_loaded, method)(*arguments)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # the exception cannot be pickled, because its constructor does not accept its own args
            raise RuntimeError(f"in a process of the pool:\n{traceback.format_exc()}") from None
        raise
