"""The import of a CTranslate2 folder or of a model of Marian needs little more memory than the model in float32."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import marian_models
import pytest
import torch

from headway.bundle import Bundle, TaskConfig
from headway.interop.exporting import export_to
from headway.models.registry import build_model
from headway.models.transformer import TransformerConfig
from headway.text.tokenizer import Tokenizer, TokenizerConfig

pytestmark = pytest.mark.slow

TOKENS = 4000
PEAK = """
import re, sys, warnings
from pathlib import Path
from headway.interop.importing import import_from

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024

warnings.simplefilter("ignore")
import_from(sys.argv[1])  # of a small model: imports what imports need
before = peak()
model = import_from(sys.argv[2]).bundle.model
print((peak() - before) / sum(weight.numel() * 4 for weight in model.parameters()))
"""


def ctranslate2(folder: Path, quantization: str | None, d_model: int) -> Path:
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + TOKENS)))
    tokenizer = Tokenizer.train([letters], TokenizerConfig(kind="characters"))
    torch.manual_seed(0)
    config = TransformerConfig.preset("base", d_model=d_model, d_ff=4 * d_model)
    model = build_model(config, tokenizer.vocab_size, tokenizer.vocab_size)
    bundle = Bundle(TaskConfig(source_language="de", target_language="en"), model.eval(), tokenizer, tokenizer)
    export_to("ctranslate2", bundle, folder, quantization=quantization)
    return folder


def marian(folder: Path, d_model: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(marian_models, "WIDTH", d_model)
    monkeypatch.setattr(marian_models, "INNER", 4 * d_model)
    return marian_models.write(folder, enc_depth=6, dec_depth=6, dim_emb=d_model, transformer_dim_ffn=4 * d_model)


@pytest.mark.parametrize("form", ["float32", "int8", "marian"])
def test_it_is_at_most_a_fifth_more_than_the_weights(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for name, d_model in (("small", 64), ("large", 768)):
        if form == "marian":
            paths.append(marian(tmp_path / name, d_model, monkeypatch))
        else:
            paths.append(ctranslate2(tmp_path / name, None if form == "float32" else form, d_model))
    found = subprocess.run([sys.executable, "-c", PEAK, *map(str, paths)], capture_output=True, text=True, check=True)
    assert 0.8 < float(found.stdout) < 1.2
