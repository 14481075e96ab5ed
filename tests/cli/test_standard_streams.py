"""Standard streams: closed descriptors are the null device, and results are UTF-8 in every locale."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_calls import MODEL_CALLS, OTHER_CALLS

from headway.cli import COMMANDS
from headway.cli.standard_streams import TerminalStream, prepare_standard_streams, write_results_as_utf8
from headway.errors import escape_unprintable

pytest_plugins = ["model_folders"]  # the fixtures of that file
SCRIPT = Path(__file__).with_name("forked_commands.py")
RECIPE = """
[task]
source_language = "de"
target_language = "en"
[data]
train = [{files = ["many", "many"]}]
dev = {files = ["source", "target"]}
[tokenizer]
vocab_size = 300
[model]
d_model = 16
num_heads = 2
d_ff = 16
encoder_layers = 1
decoder_layers = 1
[training]
steps = 2
device = "cpu"
[validation]
every = 2
[checkpoints]
every = 1
"""
SWEPT = [
    *{tuple(call.split()[:2]): call for call in MODEL_CALLS}.values(),  # one for each command and kind of model
    *OTHER_CALLS,
    "generate language_model --max-new-tokens 1 --seed 3 --precision float32",
    "translate translator -i source -o translated --precision float32",
    "translate nowhere Haus",
]
LOCALES = {
    "latin1": {"LC_ALL": "de_DE.ISO-8859-1"},
    "C": {"LC_ALL": "C"},
    "cp1252": {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "cp1252"},  # as on Windows
}


@contextmanager
def replaced_streams(**streams: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        yield


def test_closed_streams_are_the_null_device() -> None:
    with replaced_streams(stdin=None, stdout=None, stderr=None):
        prepare_standard_streams()
        with sys.stdin as stdin, sys.stdout as stdout, sys.stderr as stderr:
            assert (stdin.read(), stdin.isatty(), stdout.isatty()) == ("", False, False)
            assert stdout.write("text") == stderr.write("text") == 4
            assert all(os.get_inheritable(stream.fileno()) for stream in (stdin, stdout, stderr))


def test_help_is_in_the_encoding_of_the_locale_and_results_are_utf8() -> None:
    content = io.BytesIO()
    with io.TextIOWrapper(content, encoding="latin-1") as stdout, replaced_streams(stdout=stdout):
        prepare_standard_streams()
        print("größer … 日本")
        write_results_as_utf8()
        print("größer … 日本 \udcff")  # a file name that is not UTF-8
        sys.stdout.flush()
        help_line, result = content.getvalue().splitlines()
    assert help_line.decode("latin-1") == "größer ? ??"
    assert result == "größer … 日本 ".encode() + b"\xff"


def test_control_characters_in_results_are_escaped_on_a_terminal_only() -> None:
    joiners = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}👩\u200d🔬 \u202aא\u202c"
    text = f"a\tb\x1b]0;title\x07\rc\x9b31m\x7f\r\n{joiners} \udcff\n"
    shown = text.replace("\x1b", "\\x1b").replace("\x07", "\\x07").replace("\rc", "\\rc")
    shown = shown.replace("\x9b", "\\x9b").replace("\x7f", "\\x7f")
    main, terminal = os.openpty()
    tty.setraw(terminal)
    for descriptor, expected in ((terminal, shown), (os.memfd_create("file"), text)):
        with os.fdopen(descriptor, "w", encoding="latin-1") as stdout, replaced_streams(stdout=stdout):
            write_results_as_utf8()
            assert isinstance(sys.stdout, TerminalStream) == (descriptor == terminal)
            print(text, end="")
            sys.stdout.writelines([text])
            sys.stdout.flush()
            whole = expected.encode("utf-8", "surrogateescape") * 2
            content = b"" if descriptor == terminal else os.pread(descriptor, 1000, 0)
            while descriptor == terminal and len(content) < len(whole):
                content += os.read(main, 1000)
        assert content == whole
    os.close(main)


@pytest.fixture(scope="module")
def sweep_folder(folders: dict[str, Path]) -> Path:
    home = folders["source"].parent
    (home / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    return home


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Return the function that runs commands in an environment. Each environment has one process, which forks."""
    locales = tmp_path_factory.mktemp("locales")
    subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", locales / "de_DE.ISO-8859-1"], check=True, capture_output=True
    )
    processes: dict[str, subprocess.Popen[str]] = {}

    def run_commands(environment: dict[str, str], jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        key = json.dumps(environment)
        if key not in processes:
            variables = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
            variables |= {"LOCPATH": str(locales), "OMP_NUM_THREADS": "1", **environment}
            processes[key] = subprocess.Popen(
                [sys.executable, SCRIPT], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        process, results = processes[key], []
        assert process.stdin is not None
        assert process.stdout is not None
        for job in jobs:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            results.append(json.loads(process.stdout.readline()))
        return results

    yield run_commands
    for process in processes.values():
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("call", SWEPT)
def test_commands_in_other_locales_and_with_closed_descriptors(
    call: str, sweep_folder: Path, forked: Callable[..., list[dict[str, Any]]]
) -> None:
    """The folder's name has brackets, spaces, characters of patterns and another script."""
    names = {path.name for path in sweep_folder.iterdir()} | {"exported", "imported", "run", "distilled"}
    words = [str(sweep_folder / word) if word in names else word for word in call.split()]

    def outputs(environment: dict[str, str], *closed: int | None) -> list[dict[str, Any]]:
        jobs = [{"words": words, "folder": str(sweep_folder), "closed": descriptor} for descriptor in closed]
        results = forked(environment, jobs)
        for result in results:
            assert "Traceback" not in result["err"], result
            misread = str(sweep_folder).encode().decode("latin-1")
            for home in (str(sweep_folder), misread, escape_unprintable(misread)):  # as each locale reads it
                result["out"] = result["out"].replace(home, "")
            result["out"] = result["out"].split()  # names that are read otherwise change the widths of columns
        return results

    (usual,) = outputs({"LC_ALL": "C.UTF-8"}, None)
    assert usual["code"] == (2 if "nowhere" in call else 0), usual
    for closed, environment in enumerate(LOCALES.values()):
        for result in outputs(environment, *sorted({0, closed})):
            assert result["code"] == usual["code"], (environment, result)
            assert result["out"] in (usual["out"], [] if closed == 1 else usual["out"]), (environment, result)


@pytest.mark.slow
@pytest.mark.parametrize("environment", LOCALES.values(), ids=LOCALES)
def test_help_of_every_command_in_other_locales(
    environment: dict[str, str], sweep_folder: Path, forked: Callable[..., list[dict[str, Any]]]
) -> None:
    jobs = [
        {"words": [*command.split(), "--help"], "folder": str(sweep_folder), "closed": None} for command in COMMANDS
    ]
    for job, result in zip(jobs, forked(environment, jobs), strict=True):
        assert (result["code"], result["err"]) == (0, ""), (job, result)
        assert result["out"].count("\n") > 5
