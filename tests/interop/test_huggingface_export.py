"""Headway's models exported to `transformers`, which then computes the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_models import assert_same_weights, drawn, padded, saved, transformers

from headway.errors import ConfigError
from headway.interop.huggingface import export_model, import_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.weights import named_weights


def own(source_size: int = 30, target_size: int = 30, **options: Any) -> Transformer:
    """Return a Headway model with random weights."""
    sizes = {"d_model": 16, "num_heads": 4, "d_ff": 24, "encoder_layers": 2, "decoder_layers": 2}
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.parse({**sizes, **options}, "test"), source_size, target_size).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.5)
    return model


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((30, 30), {}),
        ((30, 30), {"norm": "pre"}),
        ((30, 30), {"norm": "pre", "activation": "silu", "output_bias": True, "scale_embedding": False}),
        ((30, 30), {"sinusoid_layout": "halves", "encoder_layers": 1, "decoder_layers": 3}),
        ((30, 35), {"tie": "target", "activation": "gelu", "output_bias": True}),
        ((30, 35), {"tie": "none", "scale_embedding": False}),
        ((30, 30), {"tie": "none"}),
        ((30, 30), {"d_model": 15, "num_heads": 3, "d_key": 5, "d_value": 5}),
    ],
)
def test_transformers_computes_what_was_exported(
    sizes: tuple[int, int], options: dict[str, Any], tmp_path: Path
) -> None:
    model = own(*sizes, **options)
    export_model(model, tmp_path)
    theirs, loading = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values())
    lengths = (4, 1, 8)
    source = padded([[*torch.randint(3, sizes[0], (n,)).tolist(), 2] for n in lengths], 0)
    target = torch.cat([torch.ones(3, 1, dtype=torch.long), torch.randint(3, sizes[1], (3, 6))], dim=1)
    with torch.no_grad():
        expected = model(source, target)
        found = theirs.eval()(input_ids=source, attention_mask=(source != 0).long(), decoder_input_ids=target).logits
        again = import_model(tmp_path)
        imported = again.model(source, target)
    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(imported, expected, atol=1e-5, rtol=1e-5)
    assert again.source_vocabulary.order == tuple(range(sizes[0]))
    assert again.target_vocabulary.order == tuple(range(sizes[1]))


@pytest.mark.parametrize("family", ["marian", "pegasus"])
def test_what_was_imported_is_exported_bit_for_bit(family: str, tmp_path: Path) -> None:
    model = import_model(saved(drawn(family), tmp_path / "theirs")).model
    export_model(model, tmp_path / "back")
    again = import_model(tmp_path / "back").model
    assert again.config == model.config
    assert_same_weights(again, named_weights(model))


def test_generation_is_set_up_like_headways_search(tmp_path: Path) -> None:
    export_model(own(), tmp_path)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    settings = model.generation_config
    assert (settings.decoder_start_token_id, settings.eos_token_id, settings.pad_token_id) == (1, 2, 0)
    assert (settings.num_beams, settings.length_penalty, settings.suppress_tokens) == (4, 0.6, [0, 1, 3])
    with torch.no_grad():
        found = model.generate(torch.tensor([[5, 6, 2]]), max_length=9)
    assert not {0, 1, 3} & set(found[0, 1 : found[0].tolist().index(2)].tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"positions": "learned"},
            r"positions = 'learned' cannot be exported to .*MarianMT \(for norm = 'post'\)",
        ),
        ({"positions": "rotary"}, "positions = 'rotary' cannot be exported .*; supported: sinusoidal"),
        ({"positions": "none"}, "positions = 'none' cannot be exported"),
        ({"norm": "none"}, "norm = 'none' cannot be exported .*; supported: post, pre"),
        ({"residual": False}, "residual = False cannot be exported .*; supported: true"),
        ({"score": "additive"}, "score = 'additive' cannot be exported .*; supported: scaled_dot"),
        ({"qk_projection": "hidden"}, "qk_projection = 'hidden' cannot be exported .*; supported: linear"),
        ({"position_offset": 2}, "position_offset = 2 cannot be exported .*; supported: 0"),
        ({"sinusoid_spacing": "inclusive"}, "sinusoid_spacing = 'inclusive' cannot be exported .*; supported: paper"),
        ({"embedding_norm": True}, "embedding_norm = True cannot be exported"),
        ({"activation": "swiglu"}, "activation = 'swiglu' cannot be exported .*; supported: relu, gelu, silu"),
        ({"d_key": 3}, "d_key = 3 cannot be exported .*; supported: d_model / num_heads"),
        ({"d_value": 3}, "d_value = 3 cannot be exported"),
        ({"num_heads": 3, "d_key": 5, "d_value": 5}, "d_key = 5 cannot be exported"),
        ({"norm": "pre", "tie": "none"}, r"tie = 'none' cannot .* Pegasus \(for norm = 'pre'\); supported: all"),
    ],
)
def test_what_transformers_cannot_do_is_refused_by_name(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        export_model(own(**options), tmp_path / "out")
    assert not (tmp_path / "out").exists()
