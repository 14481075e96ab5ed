"""Translators in processes of their own, which share what is to be translated.

Threads of one process translate beside each other but for what is Python, which only one of them can be in at a time:
of a small model's time a fifth, so that more than a few threads wait for each other. Processes do not. Each holds the
whole model, so that memory is the price, and a second or two until they are there.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from headway.decode import DecodingOptions
from headway.errors import ConfigError, HeadwayError
from headway.predict.results import Candidate, Source, Translation, WordAlignment
from headway.predict.translating import PAPER, TextTranslator

__all__ = ["TranslatorPool"]

_PATIENCE_S = 60.0  # with a process that has closed its output, and has to end


class TranslatorPool(TextTranslator):
    """As many translators as there are ``workers``, each in a process of its own.

        with TranslatorPool(partial(load_translator, "runs/quickstart/best"), workers=8) as pool:
            for translation in pool.translate_lines(lines):
                ...

    A process has one thread, or as many as the environment variable OMP_NUM_THREADS says. What comes out does not
    depend on the number of processes but for rounding, in int8 not at all. Close the pool to end the processes. They
    end, too, when a call is interrupted, and when the process that started them ends, however it may.

    Args:
        load: What makes a translator: a function that a new interpreter can import, with its arguments.
        workers: Processes.

    Raises:
        ConfigError: There are to be none, or ``load`` cannot be handed over.
        HeadwayError: What ``load`` raises; or a process does not start, or ends by itself.
    """

    def __init__(self, load: Callable[[], TextTranslator], workers: int) -> None:
        if workers < 1:
            raise ConfigError(f"workers = {workers}: expected 1 or more, best one for each core")
        message = _handed_over(load)
        self.lines_ahead = workers * TextTranslator.lines_ahead
        self._workers: list[_Worker] = []
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="pool")
        self._closed = False
        try:
            for _ in range(workers):
                self._workers.append(_Worker(message))
            for worker in self._workers:
                worker.answer()
                self._free.put(worker)
        except BaseException:
            self.close()
            raise

    def translate_each(
        self,
        texts: Sequence[str | Source],
        options: DecodingOptions = PAPER,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        alignment: bool = False,
    ) -> list[Translation | HeadwayError]:
        """See :meth:`TextTranslator.translate_each`."""
        told = {"target_language": target_language, "source_language": source_language, "alignment": alignment}
        sizes = [len(text if isinstance(text, str) else text.text) for text in texts]
        parts = _parts(sizes, len(self._workers))
        asked = [self._ask("translate_each", [texts[index] for index in part], options, **told) for part in parts]
        results: dict[int, Translation | HeadwayError] = {}
        try:
            for part, future in zip(parts, asked, strict=True):
                results.update(zip(part, future.result(), strict=True))
        except Exception:
            for future in asked:
                future.cancel()
            raise
        except BaseException:
            self.close()
            raise
        return [results[index] for index in range(len(texts))]

    def words(self, candidate: Candidate) -> WordAlignment:
        """See :meth:`TextTranslator.words`."""
        found: WordAlignment = self._ask("words", candidate).result()
        return found

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        self._closed = True
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> TranslatorPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, method: str, *positional: Any, **named: Any) -> Future[Any]:
        """What the method of a translator that is free will return."""
        if self._closed:
            raise HeadwayError("this pool of translators is closed")

        def ask(order: bytes) -> Any:
            worker = self._free.get()
            try:
                return worker.ask(order)
            finally:
                self._free.put(worker)

        return self._threads.submit(ask, pickle.dumps((method, positional, named)))


def _handed_over(load: Callable[[], TextTranslator]) -> bytes:
    """What makes a translator, as it goes to another process."""
    try:
        message = pickle.dumps(load)
        if getattr(getattr(load, "func", load), "__module__", None) == "__main__":
            raise pickle.PicklingError("it is in __main__, where they have something else")
    except Exception as error:
        raise ConfigError(
            f"a pool cannot hand {load!r} over to its processes ({error}); give a function of a module, such as "
            "functools.partial(load_translator, FOLDER)"
        ) from None
    return message


class _Worker:
    """A process, as :mod:`headway.predict.worker` describes it."""

    def __init__(self, load: bytes) -> None:
        one = os.environ.get("OMP_NUM_THREADS", "1")
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path if isinstance(path, str))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", "import headway.predict.worker as worker; worker.main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": one, "RAYON_NUM_THREADS": one, "PYTHONPATH": paths},
                start_new_session=True,  # an interrupt from the keyboard is for the process that has the pool
            )
        except OSError as error:
            raise HeadwayError(f"a process of the pool does not start: {error.strerror}; try fewer workers") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        self._send(load)

    def ask(self, order: bytes) -> Any:
        """The answer to an order; what the process raises is raised here."""
        self._send(order)
        return self.answer()

    def answer(self) -> Any:
        """The answer to the order before."""
        try:
            message: bytes = pickle.load(self._answers)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise self._ended() from None
        result, error = pickle.loads(message)
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._orders, self._answers):
            with suppress(OSError):  # of what could not be sent
                pipe.close()

    def _send(self, order: bytes) -> None:
        try:
            pickle.dump(order, self._orders)
            self._orders.flush()
        except (OSError, ValueError):
            raise self._ended() from None

    def _ended(self) -> HeadwayError:
        code = self._process.wait(_PATIENCE_S)
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return HeadwayError(
            f"a process of the pool has ended {how}; where that is SIGKILL, the memory may not be enough: "
            "every process holds the whole model, so try fewer workers"
        )


def _parts(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """The texts' indices in a part for each worker, which has as many texts of each length as the others.

    Smaller parts would even out what happens to a processor meanwhile, but every part ends in some dozen steps for its
    last few sentences: of a thousand, seven parts in place of two take 6 % longer.
    """
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    return [part for start in range(workers) if (part := order[start::workers])]
