from __future__ import annotations

import io
from dataclasses import dataclass
from typing import cast

import pytest
import training
from contest import ContestantError, Running, Settings, Speed
from flops import Product
from rich.console import Console


@dataclass
class Steady:
    """A contestant that trains at a constant rate and records its turns."""

    name: str
    tokens_per_s: float
    turns: list[str]

    def __enter__(self) -> Steady:
        return self

    def __exit__(self, *error: object) -> None:
        self.turns.append(f"{self.name} ended")

    def turn(self, seconds: float) -> Speed:
        if not self.tokens_per_s:
            raise ContestantError("it ended after 0 steps")
        self.turns.append(f"{self.name} {seconds:g}")
        return Speed(self.tokens_per_s, 1.0, 50e9, 3 << 30, round(seconds), 1.0)


def contestant(
    name: str, rate: float, axes: dict[str, tuple[object, ...]], precision: str, turns: list[str]
) -> training.Contestant:
    def begin(settings: Settings) -> Running:
        return cast("Running", Steady(name, rate * settings.max_tokens, turns))

    return training.Contestant(name, precision, begin, Settings(), axes)


def hold(entries: list[training.Contestant], peaks: list[float], sweep_seconds: float | None) -> list[training.Result]:
    """Run two rounds of nine seconds, with the given bfloat16 peak in each round."""
    rates = iter(peaks)

    def measure() -> dict[str, Product]:
        return {"float32": Product(1, 1, 1, 100e9), "bfloat16": Product(1, 1, 1, next(rates))}

    console = Console(file=io.StringIO())
    return training.run_contest(
        "base", entries, measure, rounds=2, seconds=9.0, sweep_seconds=sweep_seconds, console=console
    )


def drawn(results: list[training.Result]) -> list[list[str]]:
    text = io.StringIO()
    Console(file=text, width=300).print(training.results_table(results))
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.getvalue().splitlines() if "│" in line]


@pytest.mark.parametrize("sweep_seconds", [None, 2.0])
def test_each_runs_with_its_best_settings_and_the_plain_loop_with_headways(sweep_seconds: float | None) -> None:
    turns: list[str] = []
    entries = [
        contestant("headway", 2.0, {"max_tokens": (2_048, 8_192)}, "bfloat16", turns),
        contestant("plain", 1.0, {}, "float32", turns),
        contestant("peer", 0.5, {"max_tokens": (2_048,)}, "float32", turns),
        contestant("broken", 0.0, {"workers": (1,)}, "float32", turns),
    ]
    results = hold(entries, [400e9] * 4, sweep_seconds)
    own = 8_192 if sweep_seconds else 4_096
    assert [result.settings.max_tokens for result in results] == [own, own, 4_096, 4_096]
    assert [len(result.tried) for result in results] == ([3, 0, 2, 2] if sweep_seconds else [0, 0, 0, 0])

    lines = drawn(results)
    assert [line[0] for line in lines] == ["headway", "plain", "peer", "broken"]
    # Utilization: 50 GFLOP/s of 400 in bfloat16, and of 100 in float32. Ratio: Headway's tokens over the contestant's.
    assert [line[5].split()[0] for line in lines[:3]] == ["12%", "50%", "50%"]
    assert [line[6].split()[0] for line in lines[:3]] == ["1.0", "2.0", "8.0" if sweep_seconds else "4.0"]
    assert lines[0][7] == "3.00"
    assert lines[3][-1] == "it ended after 0 steps"


def test_headway_takes_turns_with_each_of_the_others_and_each_round_has_its_own_peak() -> None:
    turns: list[str] = []
    entries = [
        contestant("headway", 2.0, {}, "bfloat16", turns),
        contestant("plain", 1.0, {}, "float32", turns),
        contestant("peer", 0.5, {}, "float32", turns),
    ]
    entries = [training.Contestant(e.name, e.precision, e.begin, e.start, {"workers": ()}) for e in entries]
    results = hold(entries, [100e9, 200e9, 300e9, 400e9], None)
    rounds = ["{0} 0", *["headway 9", "{0} 9"] * 2, "{0} ended"]
    expected = [turn.format(name) for name in ("plain", "peer") for turn in rounds]
    assert turns == ["headway 0", *expected, "headway ended"]
    assert [each.peak.flop_per_s for each in results[0].rounds] == [100e9, 200e9, 300e9, 400e9]
    # 50 GFLOP/s is a half, a quarter, a sixth and an eighth of the four peaks.
    assert drawn(results)[0][5] == "21% (12% to 50%)"
