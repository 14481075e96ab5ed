from __future__ import annotations

import io

import pytest
import training
from contest import ContestantError, Settings, Speed
from flops import Product
from rich.console import Console


def contestant(name: str, rate: float, axes: dict[str, tuple[object, ...]], precision: str) -> training.Contestant:
    def run(seconds: float, settings: Settings) -> Speed:
        if not rate:
            raise ContestantError("it ended after 0 steps")
        return Speed(rate * settings.max_tokens, 1.0, 50e9, 3 << 30, round(seconds), 1.0)

    return training.Contestant(name, precision, run, Settings(), axes)


def drawn(results: list[training.Result]) -> list[list[str]]:
    limits = {"float32": Product(1, 1, 1, 100e9), "bfloat16": Product(1, 1, 1, 400e9)}
    text = io.StringIO()
    Console(file=text, width=300).print(training.results_table(results, limits))
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.getvalue().splitlines() if "│" in line]


@pytest.mark.parametrize("sweep_seconds", [None, 2.0])
def test_each_runs_with_its_best_settings_and_the_plain_loop_with_headways(sweep_seconds: float | None) -> None:
    entries = [
        contestant("headway", 2.0, {"max_tokens": (2_048, 8_192)}, "bfloat16"),
        contestant("plain", 1.0, {}, "float32"),
        contestant("peer", 0.5, {"max_tokens": (2_048,)}, "float32"),
        contestant("broken", 0.0, {"workers": (1,)}, "float32"),
    ]
    results = training.hold("base", entries, 9.0, sweep_seconds, Console(file=io.StringIO()))
    own = 8_192 if sweep_seconds else 4_096
    assert [result.trial.settings.max_tokens for result in results] == [own, own, 4_096, 4_096]
    assert [len(result.tried) for result in results] == ([3, 0, 2, 2] if sweep_seconds else [0, 0, 0, 0])
    assert [result.trial.speed.steps for result in results if result.trial.speed] == [9, 9, 9]

    lines = drawn(results)
    assert [line[0] for line in lines] == ["headway", "plain", "peer", "broken"]
    # 50 GFLOP/s of 400 in bfloat16, of 100 in float32; Headway's tokens over each one's own.
    assert [line[5] for line in lines[:3]] == ["12%", "50%", "50%"]
    assert [line[6] for line in lines[:3]] == ["1.0 x", "2.0 x", "8.0 x" if sweep_seconds else "4.0 x"]
    assert lines[0][7] == "3.00"
    assert lines[3][-1] == "it ended after 0 steps"
