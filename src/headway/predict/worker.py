"""What a process of a :class:`~headway.predict.pool.TranslatorPool` does: load a translator, and answer for it.

Orders come on standard input, answers go to standard output: pickles, each in a pickle of its bytes, so that one that
cannot be read takes no other with it. The first order is a function that makes the translator, each other one the name
of a method and its arguments; an answer is a result and an error, one of which is None. A closed input ends the process
whatever it is doing, so that none outlives the one that started it.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from queue import SimpleQueue
from threading import Thread

from headway.errors import HeadwayError
from headway.predict.translating import TextTranslator

__all__ = ["main"]


def main() -> None:
    """Answer until there are no more orders."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what prints shall not come between the answers
    orders: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_read, args=(orders,), daemon=True).start()
    translator: TextTranslator | None = None
    while True:
        order = orders.get()
        result: object = None
        error: Exception | None = None
        try:
            if translator is None:
                translator = pickle.loads(order)()
            else:
                method, positional, named = pickle.loads(order)
                result = getattr(translator, method)(*positional, **named)
        except HeadwayError as raised:
            error = raised
        except Exception as raised:
            raised.add_note(f"in a process of the pool:\n{traceback.format_exc()}")
            error = raised
        try:
            pickle.dump(_answer(result, error), answers)
            answers.flush()
        except BrokenPipeError:
            os._exit(0)


def _read(orders: SimpleQueue[bytes]) -> None:
    try:
        while True:
            orders.put(pickle.load(sys.stdin.buffer))
    finally:
        os._exit(0)  # without writing what is left to write: nobody is there


def _answer(result: object, error: Exception | None) -> bytes:
    """The answer, or why there is none."""
    try:
        message = pickle.dumps((result, error))
        if error is not None:
            pickle.loads(message)  # which fails where an exception makes its message of other arguments
    except Exception:
        told = "".join(traceback.format_exception(error)) if error else traceback.format_exc()
        message = pickle.dumps((None, RuntimeError(f"in a process of the pool:\n{told}")))
    return message
