"""``headway experiment``, with trivial experiments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import assert_refused, run
from matplotlib.figure import Figure

from headway.errors import DataError
from headway.experiments import EXPERIMENT_NAMES
from headway.experiments.experiment import Claim, Experiment, Numbers, Settings
from headway.experiments.verdicts import Verdict

Replace = Callable[[Callable[[str, Settings], Numbers]], None]


@pytest.fixture
def replace_experiments(monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Replace the experiments with ones that measure by the given function of name and settings."""

    def replace(measure: Callable[[str, Settings], Numbers]) -> None:
        def load(name: str) -> Experiment:
            return Experiment(
                name,
                f"About {name}",
                "What is measured.",
                (Claim("It is so.", "paper, 1"),),
                lambda settings: measure(name, settings),
                lambda numbers: (Verdict("reproduced", f"it is {numbers['value']}"),),
                lambda _: Figure(),
                data_files=("corpus.txt",) if name == "choices" else (),
            )

        monkeypatch.setattr("headway.cli.commands.experiment.load_experiment", load)

    return replace


def test_one(replace_experiments: Replace, tmp_path: Path) -> None:
    seen: list[Settings] = []

    def measure(_: str, settings: Settings) -> Numbers:
        seen.append(settings)
        return {"value": 7}

    replace_experiments(measure)
    ended = run("experiment", "scaling", "-o", tmp_path / "out", "--quick", "--seeds", 2)
    assert ended.code == 0
    assert ended.out == "scaling\treproduced\tIt is so.\tit is 7\n"
    assert ended.err.splitlines() == ["[1/1] scaling: About scaling", f"written: {tmp_path}/out/scaling.html"]
    assert (seen[0].quick, seen[0].seeds, seen[0].data_folder) == (True, (1, 2), None)
    assert "it is 7" in (tmp_path / "out" / "scaling.html").read_text(encoding="utf-8")
    record = json.loads((tmp_path / "out" / "scaling.json").read_text(encoding="utf-8"))
    assert record["command"] == "headway experiment scaling -o OUTPUT --seeds 2 --quick"


def test_all_in_order_and_what_is_done_is_done(replace_experiments: Replace, tmp_path: Path) -> None:
    done: list[str] = []

    def measure(name: str, settings: Settings) -> Numbers:
        if name == "choices" and "choices" not in done:
            done.append(name)
            raise KeyboardInterrupt
        done.append(name)
        return {"value": 7}

    replace_experiments(measure)
    words = ("experiment", "all", "-o", tmp_path / "out", "--data", tmp_path)
    ended = run(*words)
    before = EXPERIMENT_NAMES[: EXPERIMENT_NAMES.index("choices")]
    assert ended.code == 130
    assert {path.stem for path in (tmp_path / "out").glob("*.json")} == set(before)
    ended = run(*words)
    assert ended.code == 0
    assert [line.split("\t")[0] for line in ended.out.splitlines()] == list(EXPERIMENT_NAMES)
    assert done == [*before, "choices", *EXPERIMENT_NAMES[EXPERIMENT_NAMES.index("choices") :]]


def failing_choices(error: Exception) -> Callable[[str, Settings], Numbers]:
    def measure(name: str, _: Settings) -> Numbers:
        if name == "choices":
            raise error
        return {"value": 7}

    return measure


def test_one_that_fails_stops_no_other(replace_experiments: Replace, tmp_path: Path) -> None:
    replace_experiments(failing_choices(DataError("no corpus; give one with --data")))
    ended = run("experiment", "all", "-o", tmp_path)
    assert ended.code == 2
    assert len(ended.out.splitlines()) == len(EXPERIMENT_NAMES) - 1
    assert "headway: choices: no corpus; give one with --data" in ended.err
    assert ended.err.splitlines()[-1].startswith(
        f"headway: 1 of {len(EXPERIMENT_NAMES)} experiments failed: choices; the report contains the others"
    )
    assert_refused(run("experiment", "choices", "-o", tmp_path), "no corpus; give one with --data")


def test_any_failure_of_one_stops_no_other(replace_experiments: Replace, tmp_path: Path) -> None:
    replace_experiments(failing_choices(ZeroDivisionError("a mistake of ours")))
    ended = run("experiment", "all", "-o", tmp_path)
    assert ended.code == 2
    assert len(ended.out.splitlines()) == len(EXPERIMENT_NAMES) - 1
    assert "headway: choices: Traceback" in ended.err
    assert "ZeroDivisionError: a mistake of ours" in ended.err
    assert f"1 of {len(EXPERIMENT_NAMES)} experiments failed: choices" in ended.err
    with pytest.raises(ZeroDivisionError):
        run("experiment", "choices", "-o", tmp_path)


def test_options_go_to_those_that_take_them(replace_experiments: Replace, tmp_path: Path) -> None:
    replace_experiments(lambda *_: {"value": 7})
    words = ("-o", tmp_path / "out", "--data", tmp_path)
    assert run("experiment", "all", *words).code == 0

    def command(name: str) -> str:
        return str(json.loads((tmp_path / "out" / f"{name}.json").read_text(encoding="utf-8"))["command"])

    assert command("scaling") == "headway experiment scaling -o OUTPUT --seeds 3"
    assert command("choices") == f"headway experiment choices -o OUTPUT --seeds 3 --data {tmp_path}"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("scaling", "--data", "d"),
            r"--data d: has no effect on scaling; .* that use it: model-costs, choices, step-by-step, .*",
        ),
        (("all", "--quick", "--data", "d"), r"--data d: has no effect with --quick, .* leave out --data or --quick"),
        (("pool", "--quick"), r"--quick has no effect on pool"),
        (("report", "--data", "d"), r"--data has no effect on report"),
        (("report",), r"contains no experiment results; run headway experiment all"),
    ],
)
def test_options_that_would_do_nothing(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    assert_refused(run("experiment", *words, "-o", tmp_path), why)
    assert list(tmp_path.iterdir()) == []


def test_refusals(tmp_path: Path) -> None:
    assert_refused(run("experiment", "scalin", "-o", tmp_path), "no experiment 'scalin'; did you mean 'scaling'")
    gone = tmp_path / "gone"
    assert_refused(
        run("experiment", "choices", "-o", tmp_path, "--data", gone), r"gone: no such folder; expected a folder"
    )
    assert run("experiment", "scaling").code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_report_measures_nothing(replace_experiments: Replace, tmp_path: Path) -> None:
    replace_experiments(lambda *_: {"value": 7})
    run("experiment", "scaling", "-o", tmp_path, "--quick")
    run("experiment", "depth", "-o", tmp_path, "--quick")

    def fail(*_: object) -> Numbers:
        raise AssertionError

    replace_experiments(fail)
    ended = run("experiment", "report", "-o", tmp_path)
    assert ended.code == 0
    assert ended.out == "scaling\treproduced\tIt is so.\tit is 7\ndepth\treproduced\tIt is so.\tit is 7\n"
    assert "it is 7" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (
        "| [depth](depth.png) | It is so. (paper, 1) | reproduced | it is 7 |" in (tmp_path / "report.md").read_text()
    )


def test_the_pool_lists_its_runs(tmp_path: Path) -> None:
    ended = run("experiment", "pool", "-o", tmp_path)
    assert ended.out.startswith("0 runs done, 0 running, ")
    assert "missing\tbaseline-seed1\t0.31 core hours\n" in ended.out  # 4,600 steps of 0.24 s
