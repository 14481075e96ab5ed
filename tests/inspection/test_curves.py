"""Learning curves: every recorded number is at its position, and a picture has titles and labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from headway.errors import ConfigError, DataError, OutputError
from headway.inspection.curves import draw_curves, plot_curves, read_curves

SIGNATURE = "nrefs:1|tok:13a|version:2.6.0"


def train(step: int, loss: float = 2.0, rate: float = 100.0, elapsed: float = 0.0) -> dict[str, Any]:
    return {
        "kind": "train",
        "step": step,
        "epoch": 0,
        "learning_rate": step * 1e-4,
        "loss": loss,
        "target_tokens_per_s": rate,
        "source_tokens_per_s": rate,
        "elapsed_s": elapsed,
    }


def dev(step: int, loss: float, bleu: float | None = None, signature: str = SIGNATURE) -> dict[str, Any]:
    scores = {} if bleu is None else {"BLEU": bleu, "BLEU signature": signature}
    return {"kind": "dev", "step": step, "loss": loss, "perplexity": 1.0, **scores}


def write(folder: Path, *records: dict[str, Any], end: str = "") -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + end)
    return folder


# 10 steps in 60 s at 100 tokens/s, then 10 steps in 120 s at 50 tokens/s: 6,000 tokens each.
RECORDS = (
    train(10, 4.0, 100.0, 60.0),
    dev(15, 3.0, 10.0),
    train(20, 3.0, 50.0, 180.0),
    dev(20, 2.5, 12.5),
    {"kind": "average", "step": 20, "loss": 2.4, "BLEU": 13.0},
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "mine", *RECORDS)


class TestReading:
    @pytest.mark.parametrize(
        ("x", "of_train", "of_dev"),
        [
            ("step", [10, 20], [15, 20]),
            ("minutes", [1, 3], [2, 3]),  # step 15 is half-way between minutes 1 and 3
            ("tokens", [0.006, 0.012], [0.009, 0.012]),
        ],
    )
    def test_axes(self, run: Path, x: str, of_train: list[float], of_dev: list[float]) -> None:
        curves = read_curves(run, "mine", x)
        for points in (curves.train_loss, curves.learning_rate, curves.speed):
            np.testing.assert_allclose(points.x, of_train)
        for points in (curves.dev_loss, curves.score):
            np.testing.assert_allclose(points.x, of_dev)

    def test_values(self, run: Path) -> None:
        curves = read_curves(run, "mine", "step")
        assert curves.train_loss.y.tolist() == [4.0, 3.0]
        assert curves.dev_loss.y.tolist() == [3.0, 2.5]
        assert curves.score.y.tolist() == [10.0, 12.5]
        assert curves.learning_rate.y.tolist() == [1e-3, 2e-3]
        assert curves.speed.y.tolist() == [100.0, 50.0]
        assert curves.signatures == {f"BLEU {SIGNATURE}"}

    @pytest.mark.parametrize("end", ["", '{"kind": "train", "st', '{"kind": "train", "step": 30}'])
    def test_a_last_line_under_way(self, tmp_path: Path, end: str) -> None:
        run = write(tmp_path / "run", train(10, elapsed=1.0), end=end)
        assert read_curves(run, "run", "step").train_loss.x.tolist() == [10]

    def test_other_kinds_of_records_and_keys_are_no_mistake(self, tmp_path: Path) -> None:
        run = write(tmp_path / "run", {"kind": "new", "step": 1}, {**train(10), "skipped_steps": 1}, train(20))
        assert read_curves(run, "run", "step").train_loss.x.tolist() == [10, 20]


def lines(panel: Axes) -> list[tuple[list[float], list[float], str]]:
    """Return the positions, values and color of what is drawn."""
    found = [line for line in panel.get_lines() if np.size(line.get_xdata())]
    return [(*np.transpose(line.get_xydata()).tolist(), to_hex(line.get_color()).upper()) for line in found]


class TestPicture:
    def test_every_number_is_drawn(self, run: Path) -> None:
        panels = {
            panel.get_title("left"): panel for panel in plot_curves([read_curves(run, "mine", "step")], "step").axes
        }
        blue = "#0072B2"
        assert {title: lines(panel) for title, panel in panels.items()} == {
            "Loss": [([10.0, 20.0], [4.0, 3.0], blue), ([15.0, 20.0], [3.0, 2.5], blue)],
            "BLEU on the development set": [([15.0, 20.0], [10.0, 12.5], blue)],
            "Learning rate": [([10.0, 20.0], [1e-3, 2e-3], blue)],
            "Speed (target tokens per second)": [([10.0, 20.0], [100.0, 50.0], blue)],
        }
        assert all(panel.get_xlabel() == "step" for panel in panels.values())
        assert panels["Loss"].get_yscale() == "log"
        assert [text.get_text() for text in panels["Loss"].texts] == ["best 2.50"]
        assert [text.get_text() for text in panels["BLEU on the development set"].texts] == ["best 12.5"]

    def test_what_a_run_does_not_have_gets_no_panel(self, tmp_path: Path) -> None:
        without = write(tmp_path / "without", train(10), train(20))
        picture = plot_curves([read_curves(without, "without", "step")], "step")
        assert len(picture.axes) == 3
        assert not any(panel.get_legend() for panel in picture.axes)
        both = [
            read_curves(write(tmp_path / "with", *RECORDS), "with", "step"),
            read_curves(without, "without", "step"),
        ]
        panels = plot_curves(both, "step").axes
        assert [len(lines(panel)) for panel in panels] == [3, 1, 2, 2]

    def test_each_run_has_a_color_and_dash_of_its_own(self, run: Path) -> None:
        curves = [read_curves(run, str(number), "step") for number in range(20)]
        styles = {(line.get_color(), line.get_linestyle()) for line in plot_curves(curves, "step").axes[-1].get_lines()}
        assert len(styles) == 20

    def test_labels_do_not_meet(self, tmp_path: Path) -> None:
        runs = [write(tmp_path / str(n), train(10), dev(10, 2.0 + n / 1000, 30.0 + n / 100)) for n in range(4)]
        panels = plot_curves([read_curves(run, run.name, "step") for run in runs], "step").axes
        for panel in panels[:2]:
            heights = sorted(label.xy[1] for label in panel.texts)  # type: ignore[attr-defined]
            assert len(heights) == 4
            assert min(np.diff(heights)) >= 0.0549

    def test_a_loss_that_is_not_finite_is_a_gap(self, tmp_path: Path) -> None:
        run = write(tmp_path / "run", train(10), train(20, float("nan")), train(30), dev(30, float("nan")))
        panel = plot_curves([read_curves(run, "run", "step")], "step").axes[0]
        assert np.isnan(lines(panel)[0][1]).tolist() == [False, True, False]
        assert not panel.texts


def words(path: Path) -> str:
    return " ".join(ElementTree.parse(path).getroot().itertext())


class TestFile:
    @pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("SVG", b"<?xml"), ("pdf", b"%PDF")])
    @pytest.mark.slow_but_every(3)
    def test_kinds(self, run: Path, tmp_path: Path, suffix: str, magic: bytes) -> None:
        output = tmp_path / "new" / f"curves.{suffix}"
        draw_curves([run], output)
        first = output.read_bytes()
        assert first.startswith(magic)
        draw_curves([run], output)
        assert output.read_bytes() == first  # the same runs, the same file
        assert [path.name for path in output.parent.iterdir()] == [output.name]

    def test_says_what_it_shows(self, run: Path, tmp_path: Path) -> None:
        other = write(tmp_path / "other", train(10), dev(10, 2.0, 20.0, "nrefs:1|tok:zh"))
        draw_curves([run], tmp_path / "one.svg", x_axis="minutes")
        text = words(tmp_path / "one.svg")
        for expected in ("mine", "minutes of training", "nats per target token", f"BLEU {SIGNATURE}", "best 12.5"):
            assert expected in text
        draw_curves([run, other], tmp_path / "two.svg", x_axis="tokens")
        text = words(tmp_path / "two.svg")
        for expected in (
            "mine",
            "other",
            "million target tokens",
            f"computed differently: BLEU {SIGNATURE}; BLEU nrefs:1|tok:zh",
        ):
            assert expected in text

    def test_runs_with_the_same_name_are_distinguished_by_their_paths(self, run: Path, tmp_path: Path) -> None:
        (tmp_path / "b").mkdir()
        twin = write(tmp_path / "b" / "mine", *RECORDS)
        draw_curves([run, twin], tmp_path / "two.svg")
        assert {str(run), str(twin)} <= set(words(tmp_path / "two.svg").split())


class TestMistakes:
    def test_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no run to draw; pass one or more run folders"):
            draw_curves([], tmp_path / "curves.png")

    @pytest.mark.parametrize("name", ["curves.jpg", "curves"])
    def test_other_pictures(self, run: Path, tmp_path: Path, name: str) -> None:
        with pytest.raises(ConfigError, match=rf"{name}: expected a picture whose name ends in \.png, \.svg, \.pdf"):
            draw_curves([run], tmp_path / name)

    def test_other_axes(self, run: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="x = 'hours': expected one of step, minutes, tokens"):
            draw_curves([run], tmp_path / "curves.png", x_axis="hours")

    def test_no_records(self, run: Path, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"gone/metrics\.jsonl: cannot be read \(No such file .*expected a run"):
            draw_curves([run, tmp_path / "gone"], tmp_path / "curves.png")
        for number, records in enumerate([(), (dev(5, 2.0),)]):
            empty = write(tmp_path / f"empty-{number}", *records)
            with pytest.raises(DataError, match=r"no training step recorded yet; .*training\.log_every"):
                draw_curves([empty], tmp_path / "curves.png")
        assert not (tmp_path / "curves.png").exists()

    @pytest.mark.parametrize(
        "line",
        ["{", "", "[]", '{"step": 1}', '{"kind": "train", "step": 1}', json.dumps(train(1) | {"loss": "2"})],
    )
    def test_a_broken_record(self, tmp_path: Path, line: str) -> None:
        run = write(tmp_path / "run", train(10), end=line + "\n" + json.dumps(train(20)) + "\n")
        with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: not a record of headway train; remove it"):
            draw_curves([run], tmp_path / "curves.png")

    def test_what_was_there_stays(self, run: Path, tmp_path: Path) -> None:
        (tmp_path / "taken.png").mkdir()
        with pytest.raises(OutputError, match=r"taken\.png: cannot be written"):
            draw_curves([run], tmp_path / "taken.png")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "taken.png"]


def test_a_classifiers_score_is_its_accuracy(tmp_path: Path) -> None:
    record = {"kind": "dev", "step": 10, "loss": 0.4, "accuracy": 91.5, "accuracy signature": "n:20", "macro F1": 90.0}
    curves = read_curves(write(tmp_path / "mine", train(10), record), "mine", "step")
    assert (curves.metric, curves.score.y.tolist(), curves.signatures) == (
        "accuracy",
        [91.5],
        frozenset({"accuracy n:20"}),
    )
    titles = [panel.get_title("left") for panel in plot_curves([curves], "step").axes]
    assert "accuracy on the development set" in titles
