"""The command line. Each command is a plain function in its own file of ``commands/``, and imports heavy packages only
when it runs.

Results go to standard output, progress and messages to standard error. The exit code is 0 after success, 2 after an
error that the user can correct (printed as one line, with a traceback only with ``--debug``), and 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import typer

from headway.cli import commands
from headway.cli.command_groups import CommandGroup
from headway.cli.model_folders import with_model_folders
from headway.cli.standard_streams import prepare_standard_streams, with_utf8_results
from headway.contention import adapt_openmp_waiting
from headway.errors import HeadwayError, MissingPackageError, escape_unprintable
from headway.torchrun import is_main_process, let_main_report_first

__all__ = ["COMMANDS", "app", "main", "repeat_lost_interrupts"]


class _Application(typer.Typer):
    """An application that prepares its commands once per process, which takes 50 ms, instead of once per call."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._prepared(*arguments, **keywords)

    @cached_property
    def _prepared(self) -> Callable[..., Any]:
        return typer.main.get_command(self)


app = _Application(
    name="headway",
    help="The Transformer of 'Attention Is All You Need': train, evaluate, understand and run it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_SOON_S = 0.01  # delay before a lost interrupt is repeated


def _register_commands() -> tuple[str, ...]:
    """Register the command of each file in ``commands/``, and return the names in the order of the help.

    A package in ``commands/`` is a group of commands: ``corpus/join.py`` is ``headway corpus join``.
    """
    modules = {file.name: import_module(f"{commands.__name__}.{file.name}") for file in iter_modules(commands.__path__)}
    names = list[str]()
    for name in sorted(modules, key=lambda name: (list(CommandGroup).index(modules[name].GROUP), name)):
        module = modules[name]
        if "__path__" not in vars(module):  # the module is not a package
            _register(app, name, module, str(module.GROUP))
            names.append(_command_name(name))
            continue
        group = typer.Typer(help=module.__doc__, no_args_is_help=True, add_completion=False)
        app.add_typer(group, name=name, rich_help_panel=str(module.GROUP))
        for file in sorted(inner.name for inner in iter_modules(vars(module)["__path__"])):
            _register(group, file, import_module(f"{module.__name__}.{file}"), None)
            names.append(f"{name} {file}")
    return tuple(names)


def _register(group: typer.Typer, name: str, module: ModuleType, panel: str | None) -> None:
    command_class = vars(module).get("COMMAND_CLASS")
    register = group.command(_command_name(name), cls=command_class, rich_help_panel=panel)
    register(with_utf8_results(with_model_folders(getattr(module, name))))


def _command_name(file_name: str) -> str:
    return file_name.rstrip("_").replace("_", "-")


COMMANDS = _register_commands()  # the names of all commands


def _print_version(wanted: bool) -> bool:
    if wanted:
        from headway.version import __version__

        print(f"headway {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback if an error occurs."),
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
) -> None:
    """Define the options that precede a command. The option ``--debug`` is handled by :func:`main`."""


def main() -> None:
    """Run the command in ``sys.argv``."""
    prepare_standard_streams()
    arguments = [word for word in sys.argv[1:] if word != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    warnings.showwarning = _warn
    try:
        with repeat_lost_interrupts(), adapt_openmp_waiting():
            app(arguments)
    except (HeadwayError, OSError, ImportError, MemoryError, RuntimeError) as error:
        message = _message(error, next((word for word in arguments if not word.startswith("-")), ""))
        if debug or message is None:
            raise
        print(f"headway: {let_main_report_first()}{message}", file=sys.stderr)
        if isinstance(error, OSError):
            _drop_standard_output()
        sys.exit(2)
    except SystemExit as end:  # Typer raises SystemExit without a message
        if isinstance(end.__context__, BrokenPipeError):  # the program that reads the output has exited (`| head`)
            sys.exit(141)
        if end.code:
            let_main_report_first()
        if end.__context__ is not None and isinstance(end.__context__.__cause__, KeyboardInterrupt):
            print("headway: interrupted", file=sys.stderr)
            exec("")  # otherwise, a SIGINT that arrived while Python executed a string may kill `python -m headway`
        raise


def _message(error: Exception, command: str) -> str | None:
    """Return a one-line message for the user, or None if the error is a bug in Headway."""
    if isinstance(error, HeadwayError):
        return str(error)
    if isinstance(error, OSError):
        return escape_unprintable(f"{error.filename or 'standard output'}: {error.strerror or error}")
    if isinstance(error, ImportError):
        package = (error.name or "").partition(".")[0]
        return (
            str(MissingPackageError(f"headway {command}", package)) if package in MissingPackageError.EXTRAS else None
        )
    if isinstance(error, MemoryError) or "memory" in str(error):
        detail = str(error).partition("\n")[0] or "none left in the system"
        return f"out of memory ({detail}); try shorter texts, or fewer --workers"
    return None


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    if is_main_process():
        print(f"headway: warning: {escape_unprintable(str(message))}", file=sys.stderr)


def _drop_standard_output() -> None:
    """Redirect standard output to the null device, so that Python does not fail again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def repeat_lost_interrupts() -> Iterator[None]:
    """Repeat an interrupt that Python has lost, if the command is still running.

    Python discards exceptions raised in a finalizer (``__del__``) or in a callback from compiled code, including
    ``KeyboardInterrupt``. Both occur often during compilation. A command that loses an interrupt and then waits for
    input would never end.
    """
    main = threading.main_thread().ident
    if threading.get_ident() != main or not hasattr(signal, "pthread_kill"):  # missing on Windows
        yield
        return
    report, timers = sys.unraisablehook, list[threading.Timer]()

    def on_unraisable(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            report(lost)
            return
        # Send a signal later, because an exception raised here would also be lost. A signal also ends a blocking read.
        timers.append(threading.Timer(_SOON_S, signal.pthread_kill, (main, signal.SIGINT)))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = on_unraisable
    try:
        yield
    finally:
        sys.unraisablehook = report
        for timer in timers:
            timer.cancel()
