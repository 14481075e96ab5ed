"""Measure the time of the vocabulary loss, forward and backward, with an output bias, relative to the time without a
bias.

Three forms take turns: without a bias, with the bias as an argument, and with the bias as a column of the weight, as in
earlier versions.

    python benchmarks/output_bias.py --rounds 20
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from headway.engine.loss import projected_cross_entropy


def main() -> None:
    """Print the medians of the ratios within each round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in {"rows": 2048, "vocabulary": 32_000, "width": 512, "rounds": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    hidden = torch.randn(arguments.rows, arguments.width, requires_grad=True)
    weight = (torch.randn(arguments.vocabulary, arguments.width) * arguments.width**-0.5).requires_grad_()
    bias = torch.randn(arguments.vocabulary, requires_grad=True)
    targets = torch.randint(arguments.vocabulary, (arguments.rows,))

    def as_column() -> torch.Tensor:
        ones = hidden.new_ones(len(hidden), 1)
        columns = torch.cat([hidden, ones], 1), torch.cat([weight, bias.unsqueeze(1)], 1)
        return projected_cross_entropy(*columns, targets, 0.1)

    forms: dict[str, Callable[[], torch.Tensor]] = {
        "without": lambda: projected_cross_entropy(hidden, weight, targets, 0.1),
        "as an argument": lambda: projected_cross_entropy(hidden, weight, targets, 0.1, bias=bias),
        "as a column": as_column,
    }
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(arguments.rounds + 1):
        for name, form in forms.items():
            hidden.grad = weight.grad = bias.grad = None
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16):
                loss = form()
            loss.backward()  # type: ignore[no-untyped-call]
            seconds[name].append(time.perf_counter() - start)
    base = seconds["without"][1:]  # the first round compiles
    for name, times in seconds.items():
        ratios = [mine / other for mine, other in zip(times[1:], base, strict=True)]
        print(f"{name:15} {statistics.median(times[1:]):.4f} s, {statistics.median(ratios):.3f} times the one without")


if __name__ == "__main__":
    main()
