"""Pictures of inspections: the right numbers with the right names, for any text."""

from __future__ import annotations

import logging
import struct
import warnings
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from headway.errors import ConfigError, LengthError
from headway.inspection.attention_plots import plot_inspection
from headway.inspection.page_data import MAX_DRAWN_TOKENS
from headway.inspection.picture_files import font_families, save_picture
from headway.inspection.results import AttentionMap, Inspection, LabelAttribution
from headway.predict.language_modeling.predicted_tokens import PredictedToken

SOURCE = ("das", " Haus", "<eos>")


@pytest.fixture
def seen() -> Inspection:
    steps = tuple(
        PredictedToken(token, log_p, 1, False, ()) for token, log_p in (("the", -0.1), (" $x", -0.7), ("<eos>", 0.0))
    )
    maps = [AttentionMap("cross", n, (1, 2), torch.rand(2, 3, 3).softmax(2), "cross") for n in (1, 2)]
    maps.append(AttentionMap("encoder", 1, (1, 2), torch.rand(2, 3, 3).softmax(2), "encoder"))
    return Inspection("runs/best", "transformer", "das Haus", SOURCE, tuple(maps), "the $x", steps=steps)


@pytest.fixture
def decided() -> Inspection:
    pooling = AttentionMap("pooling", 1, (1,), torch.tensor([[[0.7, 0.2, 0.1]]]), "pooling")
    told = LabelAttribution("good", (1.0, -0.5, 0.0))
    labels = {"good": 0.9, "bad": 0.1}
    return Inspection("m", "classifier", "das Haus", SOURCE, (pooling,), labels=labels, attribution=told)


def panels(picture: Figure) -> list[Axes]:
    return [axes for axes in picture.axes if axes.get_label() != "<colorbar>"]


def heat(axes: Axes) -> object:
    return np.asarray(axes.images[0].get_array())


def widths(axes: Axes) -> list[float]:
    return [each.get_width() for each in axes.patches if isinstance(each, Rectangle)]


def title(picture: Figure) -> str:
    return picture.get_suptitle()


def labels(axes: Axes) -> tuple[list[str], list[str]]:
    return [each.get_text() for each in axes.get_yticklabels()], [each.get_text() for each in axes.get_xticklabels()]


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("attends", [True, False])
def test_few_tokens_leave_room_for_their_label(seen: Inspection, steps: int, attends: bool) -> None:
    maps = (AttentionMap("cross", 1, (1,), torch.rand(1, steps, 3), "cross"),) if attends else ()
    picture = plot_inspection(replace(seen, steps=seen.steps[:steps], maps=maps))
    picture.draw_without_rendering()
    (heading,) = (each for each in picture.findobj(Text) if each.get_text() == title(picture))
    beside = picture.axes[0].yaxis.label.get_window_extent()
    assert beside.y1 <= heading.get_window_extent().y0
    assert beside.y0 >= 0


class TestOverview:
    def test_a_panel_for_each_layer_and_head(self, seen: Inspection) -> None:
        picture = plot_inspection(seen)
        assert title(picture) == "Cross-attention: all layers and heads\nruns/best"
        named = [axes.get_title(loc="left") for axes in panels(picture)]
        assert named == [f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2)]
        maps = [weights for each in seen.maps_of_kind("cross") for weights in each.weights]
        for axes, weights in zip(panels(picture), maps, strict=True):
            np.testing.assert_array_equal(heat(axes), weights.numpy())
            assert axes.images[0].get_clim() == (0, 1)

    def test_of_a_long_path_the_title_has_the_end(self, seen: Inspection) -> None:
        picture = plot_inspection(replace(seen, model=f"{'runs/' * 60}last/best"))
        picture.draw_without_rendering()
        (text,) = (each for each in picture.findobj(Text) if each.get_text() == title(picture))
        assert title(picture).endswith("runs/last/best")
        assert text.get_window_extent().x1 <= picture.bbox.x1

    def test_its_axes_say_what_they_are(self, seen: Inspection) -> None:
        picture = plot_inspection(seen, kind="cross")
        assert picture.get_supylabel() == "token being predicted (query)"
        assert picture.get_supxlabel() == "source token (key)"
        assert labels(panels(picture)[2]) == (["the", "␣$x", "<eos>"], ["das", "␣Haus", "<eos>"])
        (bar,) = (axes for axes in picture.axes if axes.get_label() == "<colorbar>")
        assert bar.get_ylabel() == "attention weight (each row sums to 1)"


class TestLarge:
    @pytest.mark.parametrize(
        ("asked", "layer", "head"),
        [({"layer": 1}, 1, None), ({"layer": -1, "head": 2}, 2, 2), ({"head": 1}, 2, 1)],
    )
    def test_one_map_with_probabilities(
        self, seen: Inspection, asked: dict[str, int], layer: int, head: int | None
    ) -> None:
        picture = plot_inspection(seen, **asked)  # type: ignore[arg-type]
        what = "mean of 2 heads" if head is None else f"head {head}"
        assert title(picture) == f"Cross-attention, layer {layer} of 2, {what}\nruns/best"
        large, bars = panels(picture)
        weights = seen.maps_of_kind("cross")[layer - 1].weights
        np.testing.assert_array_equal(heat(large), (weights.mean(0) if head is None else weights[head - 1]).numpy())
        assert widths(bars) == pytest.approx([0.904837, 0.496585, 1.0], abs=1e-5)  # e^log P
        assert bars.get_xlabel() == "P(token | source,\ntokens before)"
        assert labels(large) == (["the", "␣$x", "<eos>"], ["das", "␣Haus", "<eos>"])

    def test_what_is_given_to_the_model_has_no_bar(self, seen: Inspection) -> None:
        first, *others = seen.steps
        picture = plot_inspection(replace(seen, steps=(replace(first, forced=True), *others)), layer=1)
        bars = panels(picture)[1]
        assert len(bars.patches) == 2
        assert "given" in [text.get_text() for text in bars.texts]

    def test_self_attention_has_no_probabilities(self, seen: Inspection) -> None:
        (large,) = panels(plot_inspection(seen, kind="encoder", layer=1))
        assert (large.get_xlabel(), large.get_ylabel()) == ("source token (key)", "source token\n(query)")

    def test_cells_carry_their_numbers(self, seen: Inspection) -> None:
        exact = AttentionMap("encoder", 1, (1,), torch.tensor([[[1.0, 0, 0], [0.25, 0.75, 0], [0.333, 0.333, 0.334]]]))
        (large,) = panels(plot_inspection(replace(seen, maps=(exact,))))
        assert [text.get_text() for text in large.texts] == ["1", ".25", ".75", ".33", ".33", ".33"]


class TestOthers:
    def test_a_classifiers_decision(self, decided: Inspection) -> None:
        picture = plot_inspection(decided)
        found, told, pooled = panels(picture)
        assert title(picture) == "Classification\nm"
        assert widths(found) == [0.9, 0.1]
        assert labels(found)[0] == ["good", "bad"]
        assert told.get_title(loc="left") == "Attribution for “good”"
        assert widths(told) == [1.0, -0.5, 0.0]
        assert told.patches[0].get_facecolor() != told.patches[1].get_facecolor()
        assert widths(pooled) == pytest.approx([0.7, 0.2, 0.1])
        assert labels(told)[0] == labels(pooled)[0] == ["das", "␣Haus", "<eos>"]
        assert title(plot_inspection(decided, kind="pooling")) == "Attention pooling, layer 1 of 1, head 1\nm"

    def test_many_labels(self, decided: Inspection) -> None:
        many = {f"label {n}": 1 / 40 for n in range(40)}
        found = panels(plot_inspection(replace(decided, labels=many)))[0]
        assert found.get_title(loc="left") == "The 12 most probable of 40 labels"
        assert len(found.patches) == 12

    def test_a_model_without_attention(self, seen: Inspection) -> None:
        bare = replace(seen, maps=())
        (bars,) = panels(plot_inspection(bare))
        assert len(bars.patches) == 3
        assert labels(bars)[0] == ["the", "␣$x", "<eos>"]
        with pytest.raises(ConfigError, match="no attention to show"):
            plot_inspection(bare, layer=1)


class TestFile:
    def test_png(self, seen: Inspection, tmp_path: Path) -> None:
        output = tmp_path / "new" / "heads.PNG"
        save_picture(plot_inspection(seen, layer=1), output)
        content = output.read_bytes()
        assert content.startswith(b"\x89PNG\r\n")
        width, height = struct.unpack(">II", content[16:24])
        size = plot_inspection(seen, layer=1).get_size_inches()
        assert (width, height) == pytest.approx(tuple(160 * size), abs=1)

    def test_svg_and_pdf(self, seen: Inspection, tmp_path: Path) -> None:
        save_picture(plot_inspection(seen, layer=1), tmp_path / "heads.svg")
        first = (tmp_path / "heads.svg").read_bytes()
        save_picture(plot_inspection(seen, layer=1), tmp_path / "heads.svg")
        assert (tmp_path / "heads.svg").read_bytes() == first  # the same inspection, the same file
        assert "␣$x" in " ".join(ElementTree.fromstring(first).itertext())
        save_picture(plot_inspection(seen, kind="encoder", layer=1), tmp_path / "heads.pdf")
        assert (tmp_path / "heads.pdf").read_bytes().startswith(b"%PDF")

    def test_of_another_kind(self, seen: Inspection, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"heads\.gif: expected a picture whose name ends in \.png, \.svg, \.pdf"):
            save_picture(plot_inspection(seen), tmp_path / "heads.gif")

    def test_a_text_too_long_to_draw(self, seen: Inspection, tmp_path: Path) -> None:
        long = replace(seen, source_tokens=("a",) * (MAX_DRAWN_TOKENS + 1))
        with pytest.raises(LengthError, match=r"a text of 201 tokens is too long to draw: .*write a \.json"):
            save_picture(plot_inspection(long), tmp_path / "heads.png")
        assert list(tmp_path.iterdir()) == []


class TestFonts:
    def test_most_scripts_need_no_other_font(self) -> None:
        assert font_families("Grüße, Привет, Γειά, שלום, سلام ␣↵⇥∅◌") == ["DejaVu Sans"]

    def test_what_no_font_draws_is_said_once_and_drawn_all_the_same(
        self, seen: Inspection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("headway.inspection.picture_files.font_manager.findSystemFonts", list)
        strange = replace(seen, source_tokens=("\U00013000", " Haus", "<eos>"))
        with warnings.catch_warnings(record=True) as told, caplog.at_level(logging.WARNING):
            warnings.simplefilter("always")
            save_picture(plot_inspection(strange, layer=1), tmp_path / "heads.png")
        assert len(told) == 1
        assert "no installed font contains '\U00013000'" in str(told[0].message)
        assert caplog.records == []
        assert (tmp_path / "heads.png").is_file()

    def test_a_font_that_is_installed_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A font of matplotlib that has mathematical letters which the first font lacks."""
        from matplotlib import get_data_path

        other = Path(get_data_path()) / "fonts" / "ttf" / "STIXNonUni.ttf"
        broken = Path(__file__)
        monkeypatch.setattr(
            "headway.inspection.picture_files.font_manager.findSystemFonts", lambda: [str(broken), str(other)]
        )
        assert font_families("a\ue000") == ["DejaVu Sans", "STIXNonUnicode"]
