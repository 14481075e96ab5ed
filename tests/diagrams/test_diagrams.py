"""Drawings of architectures: legible, true to the model, and different for models that compute something else."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from config_variants import CONFIGS, random_config, variants
from documented import DRAWINGS, FOLDER, drawn
from drawing_checks import faults
from matplotlib.font_manager import findfont
from matplotlib.ft2font import FT2Font, LoadFlags
from torch.nn import functional as F

import headway
from headway.config import Config
from headway.diagrams.attention_steps import attention_steps
from headway.diagrams.draw import LEVELS, add_caption, draw
from headway.diagrams.drawing import Box, Drawing, Text
from headway.diagrams.head import draw_head
from headway.diagrams.head_input import HeadInput, first_attention
from headway.diagrams.layers import mask_rows
from headway.diagrams.svg import to_svg
from headway.diagrams.text_width import _CHARACTERS
from headway.engine.accelerate import accelerate
from headway.errors import ConfigError
from headway.inspection.diagram import diagram
from headway.models.base import Model
from headway.models.classifier import ClassifierConfig
from headway.models.decoder_only import DecoderOnlyConfig
from headway.models.recurrent import RecurrentConfig
from headway.models.registry import ARCHITECTURES, build_model
from headway.models.transformer import TransformerConfig
from headway.nn.attention import MultiHeadAttention, masked_softmax
from headway.nn.scores import ScoreKind, make_score

NAMED = [
    TransformerConfig.preset("tiny", tie="none", norm="pre", encoder_window=5, positions="rotary", score="cosine"),
    RecurrentConfig.preset("luong"),
    DecoderOnlyConfig.preset("tiny", parallel=True),
]
QUICK = ("transformer", "recurrent")  # the drawings that the quick tests compare


def outline(config: Any, vocab_size: int = 300) -> Model:
    """Return a model without weights. Two classes, if it labels texts."""
    labels = ARCHITECTURES[config.kind].capability == "labels"
    with torch.device("meta"):
        model: Model = build_model(config, vocab_size, 2 if labels else vocab_size)
    return model


def check(config: Any, *, shapes: tuple[bool, ...] = (False, True)) -> None:
    """Check the drawings of all levels that a model has."""
    model = outline(config)
    for level, has_shapes in product(LEVELS, shapes):
        try:
            drawing = add_caption(draw(model, level=level, shapes=has_shapes))
        except ConfigError:  # the model has no such level
            continue
        assert faults(drawing) == [], f"{level}, shapes {has_shapes}: {config}"
        ElementTree.fromstring(to_svg(drawing))


@pytest.mark.parametrize("config", NAMED, ids=lambda config: config.kind)
def test_nothing_overlaps_or_is_cut(config: Config) -> None:
    check(config, shapes=(True,))


@pytest.mark.slow
@pytest.mark.parametrize("config_class", CONFIGS)
def test_every_preset_and_variant_is_legible_and_different_and_counts_its_weights(config_class: Any) -> None:
    presets = [config_class.preset(preset) for preset in getattr(config_class, "presets", {})]
    seen: dict[str, Config] = {}
    for config in [*presets, *(config for _, config in variants(config_class))]:
        model = outline(config)
        drawing = add_caption(draw(model))
        assert seen.setdefault(to_svg(drawing), config) == config
        assert sum(drawing.weights) == sum(weight.numel() for weight in model.parameters()), config
        check(config, shapes=(True, False) if config in presets else (True,))


@pytest.mark.slow
@pytest.mark.parametrize("config_class", CONFIGS)
def test_training_draws_the_accelerated_model_like_the_plain_one(config_class: Any) -> None:
    for seed in range(5):
        config: Any = random_config(config_class, seed)
        check(config, shapes=(False,))
        model = build_model(config, 300, 2 if ARCHITECTURES[config.kind].capability == "labels" else 300)
        drawing = draw(model)
        assert draw(accelerate(model)) == drawing


@pytest.mark.parametrize("config", NAMED, ids=lambda config: config.kind)
def test_the_numbers_in_the_boxes_add_up_to_the_model(config: Any) -> None:
    model = outline(config)
    total = sum(weight.numel() for weight in model.parameters())
    drawing = draw(model, shapes=True)
    assert sum(drawing.weights) == total
    assert drawing.caption.startswith(f"{total:,} weights.")


def test_the_drawn_lines_of_code_compute_what_the_layer_computes() -> None:
    torch.manual_seed(1)
    query, key, value = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 5, 6), torch.randn(2, 3, 5, 7)
    mask = torch.rand(4, 5) < 0.7
    mask[:, 0] = True
    kinds: tuple[ScoreKind, ...] = get_args(ScoreKind)
    for kind, has_bias in product(kinds, (False, True)):
        score, bias = make_score(kind, 6, 3), torch.randn(3, 4, 5) * has_bias
        names: dict[str, Any] = {"query": query, "key": key, "value": value, "mask": mask, "score": score}
        names |= {"bias": bias, "math": math, "F": F}
        for _, code in attention_steps(kind, 6, has_bias=has_bias):
            exec(code, names)
        expected = masked_softmax(score(query, key) + bias, mask) @ value
        torch.testing.assert_close(names["output"], expected)


def test_the_widths_of_letters_are_those_of_the_widest_font() -> None:
    font = FT2Font(findfont("DejaVu Sans"))
    font.set_size(1000, 72)
    for width, characters in _CHARACTERS.items():
        for character in characters:
            assert (
                font.load_char(ord(character), flags=LoadFlags.NO_HINTING).linearHoriAdvance / 65536 <= width + 0.5
            ), character


def test_figure_one_is_in_the_drawing_of_the_base_model() -> None:
    drawn = diagram("transformer:base", shapes=True)
    for words in ("Inputs", "Outputs (shifted right)", "Input embedding", "N = 6 ×", "∿", "Positional",
                  "Add &amp; norm", "Softmax",
                  "Output probabilities", "Masked multi-head", "same weights", "B × T × 37,000"):  # fmt: skip
        assert words in drawn.svg, words
    assert "keys" not in drawn.title
    assert drawn.svg == headway.diagram("transformer:base", shapes=True).svg
    assert drawn._repr_svg_() == drawn.svg


def test_pre_norm_untied_and_windowed_models_look_different() -> None:
    def words(**options: Any) -> str:
        return draw(outline(TransformerConfig.preset("tiny", **options))).description()

    assert "Add & norm" in words()
    assert "Add & norm" not in words(norm="pre")
    assert words().count("same weights") == 2  # of both embeddings, and of the projection
    assert words(tie="target").count("same weights") == 1
    assert "same weights" not in words(tie="none")
    assert "window of 5: itself, 2\u00a0before, 2\u00a0after" in words(encoder_window=5)
    assert "window of 5: itself, 4\u00a0before" in words(decoder_window=5)


def test_the_output_of_a_pre_norm_stack_is_normed_at_each_level() -> None:
    model = outline(TransformerConfig.preset("tiny", norm="pre"))
    for level in ("model", "block"):
        norms = [shape for shape in draw(model, level=level).shapes if isinstance(shape, Box) and shape.style == "norm"]
        assert len(norms) == 2 + 3 + 2  # of the sub-layers of an encoder and a decoder block, and of both stacks


def test_lines_have_junctions_where_they_part_and_none_where_they_cross() -> None:
    drawing = Drawing("")
    drawing.arrow(0, 0, 30)  # upright
    drawing.arrow(-10, 20, 10, along="x")  # crosses it
    assert drawing.junctions() == []
    drawing.arrow(0, 10, 10, along="x")  # starts on it
    drawing.arrow(20, 0, 10, 15, 30)  # two lines that part at (20, 10), and bend before they end
    drawing.arrow(20, 0, 10, 25, 30)
    assert drawing.junctions() == [(0, 10), (20, 10)]


def test_masks_of_windows_are_bands_of_three_positions() -> None:
    assert mask_rows(False, None)[2] == (True,) * 6
    assert mask_rows(True, None)[2] == (True, True, True, False, False, False)
    assert mask_rows(False, (3, 3))[2] == (False, True, True, True, False, False)
    assert mask_rows(True, (6, 0))[3] == (False, True, True, True, False, False)
    assert mask_rows(True, (0, 0))[3] == (False, False, False, True, False, False)


def lines(drawing: Drawing) -> list[str]:
    """Return the lines of text in a drawing."""
    shown = [shape.lines if isinstance(shape, Box) else (shape.text,) for shape in drawing.shapes
             if isinstance(shape, Box | Text)]  # fmt: skip
    return [line for group in shown for line in group]


def test_recurrent_attention_sums_all_states_in_four_steps() -> None:
    drawing = draw(outline(RecurrentConfig(attention="bahdanau", bidirectional=True)))
    assert {"1 Scores with h₀", "2 Softmax", "3 Weighted sum", "c₁ = α₁z₁ + α₂z₂ + α₃z₃ + α₄z₄", "4 Use c₁",
            "α₁", "α₄", "z = z₄→", "and z₁←", "same weights"} <= set(lines(drawing))  # fmt: skip
    assert lines(drawing).count("same weights") == 2  # of both embeddings, and of the projection
    without = draw(outline(RecurrentConfig.preset("cho")))
    assert without.title == "Recurrent encoder-decoder without attention"
    assert "z = z₄" in lines(without)
    assert lines(without).count("z") == 3 + 3  # read by each cell and each maxout layer
    assert lines(drawing).count("c₂") == 2
    luong = lines(draw(outline(RecurrentConfig.preset("luong"))))
    assert {"c₂", "c₃", "cell₀ ="} <= set(luong)
    assert "c₀ = V′z" not in luong


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_each_gate_of_a_cell_has_weights_of_its_own(cell: Any) -> None:
    drawing = draw(outline(RecurrentConfig(cell=cell)), level="cell")
    for gate in {"gru": "urn", "lstm": "figo"}[cell]:
        box = next(shape for shape in drawing.shapes if isinstance(shape, Box) and f"W_{gate} xₜ" in shape.lines[1])
        assert len(box.lines) == 3
        assert f"U_{gate} hₜ₋₁" in box.lines[2]
    assert faults(add_caption(drawing)) == []


@pytest.mark.parametrize(
    ("kv_heads", "name", "option"),
    [
        (4, "Multi-head attention", ""),
        (2, "Grouped-query attention", "each of 2 key/value heads serves 2 query heads"),
        (1, "Multi-query attention", "one key/value head serves 4 query heads"),
    ],
)
def test_attention_is_named_after_the_sharing_of_keys(kv_heads: int, name: str, option: str) -> None:
    model = outline(DecoderOnlyConfig.preset("tiny", num_heads=4, num_kv_heads=kv_heads))
    drawing = add_caption(draw(model, level="attention"))
    text = " ".join(lines(drawing))
    assert name in lines(drawing)
    assert option in text
    assert "filled: the query may attend" in text
    assert "num_heads\u00a0=\u00a04" in text


def test_the_numbers_of_a_head_name_their_rows_and_columns() -> None:
    torch.manual_seed(1)
    drawing = Drawing("")
    layer = MultiHeadAttention(16, 4)
    mask = torch.ones(3, 3, dtype=torch.bool)
    head = HeadInput("encoder", layer, torch.randn(3, 16), [5, 6, 7], mask)
    draw_head(head, ["three", "days", " "], drawing)
    texts = [shape for shape in drawing.shapes if isinstance(shape, Text)]
    assert sum(shape.text == "three" for shape in texts) == 7 + 2  # rows of all matrices, and columns of two
    assert sum(shape.text == "days" and shape.role == "bold" for shape in texts) == 5  # not in keys and values
    assert sum(shape.text == "␣" for shape in texts) == 7 + 2
    assert "encoder self-attention" in drawing.caption
    assert "“days”" in drawing.caption
    assert faults(add_caption(drawing)) == []


def test_the_input_and_the_mask_of_a_head_are_those_of_its_layer() -> None:
    config = ClassifierConfig(d_model=16, num_heads=2, d_ff=16, convolution=3, max_length=5, pad_to_max_length=True)
    model: Any = build_model(config, 20, 2).eval()
    read: list[torch.Tensor] = []
    projection = model.encoder.blocks[0].attention.projection
    projection.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    tokens = [5, 6, 2]
    model(torch.tensor([tokens]))
    head = first_attention(model, tokens)
    torch.testing.assert_close(head.x, read[0][0])
    assert head.tokens == [*tokens, 0, 0]
    assert head.mask[0].tolist() == [True, True, True, False, False]  # not at padding


def test_a_drawing_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"'cell'.*model, block, attention"):
        diagram("transformer:tiny", level="cell")
    with pytest.raises(ConfigError, match="expected one of tiny, small"):
        diagram("transformer:huge")
    with pytest.raises(ConfigError, match="did you mean 'recurrent'"):
        diagram("recurent:cho")
    with pytest.raises(ConfigError, match=r"\.svg"):
        diagram("transformer:tiny").save("model.png")
    with pytest.raises(ConfigError, match="not a model folder"):
        diagram("transformer:tiny", text="Elle est jolie")


def test_a_recipe_is_drawn(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[data]\ntrain = [{files = ["a.de", "a.en"]}]\n[tokenizer]\nvocab_size = 900\n[model]\npreset = "tiny"\n'
    )
    assert "vocabulary of 900 tokens" in diagram(recipe).caption


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in DRAWINGS]
)
def test_the_drawings_of_the_documentation_are_up_to_date(name: str) -> None:
    assert drawn(name) == (FOLDER / f"{name}.svg").read_text(encoding="utf-8"), "run make diagrams"
