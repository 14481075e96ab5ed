"""What a process of a :class:`~headway.predict.pool.TranslatorPool` does: load a translator, and answer for it.

Orders come on standard input, answers go to standard output: pickles, each in a pickle of its bytes, so that one that
cannot be read takes no other with it. The first order is a function that makes the translator, each other one the name
of a method and its arguments; an answer is a result and an error, one of which is None. A closed input ends the
process, so that none outlives the one that started it.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback

from headway.errors import HeadwayError
from headway.predict.translating import TextTranslator

__all__ = ["main"]


def main() -> None:
    """Answer until there are no more orders."""
    orders, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what prints shall not come between the answers
    translator: TextTranslator | None = None
    try:
        while True:
            message: bytes = pickle.load(orders)
            result: object = None
            error: Exception | None = None
            try:
                if translator is None:
                    translator = pickle.loads(message)()
                else:
                    method, positional, named = pickle.loads(message)
                    result = getattr(translator, method)(*positional, **named)
            except HeadwayError as raised:
                error = raised
            except Exception as raised:
                raised.add_note(f"in a process of the pool:\n{traceback.format_exc()}")
                error = raised
            pickle.dump(_answer(result, error), answers)
            answers.flush()
    except (EOFError, BrokenPipeError):
        os._exit(0)  # nobody is there to whom it could be written what is left to write


def _answer(result: object, error: Exception | None) -> bytes:
    try:
        return pickle.dumps((result, error))
    except Exception:
        return pickle.dumps((None, RuntimeError(traceback.format_exc())))


if __name__ == "__main__":
    main()
