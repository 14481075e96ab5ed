"""Ahead-of-time compilation, and results that do not depend on the cache of compiled code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway import kernels

if not kernels.is_available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

COMPILE = "from headway.kernels.compile_ahead import compile_decoding_kernels as run; run()"
START = "from headway import kernels; kernels.start_compiling()"
WAIT = "from headway.kernels import code_cache; assert code_cache._background.wait() == 0"
DECODE = """
import torch
from headway.engine import SearchTransformer
from headway.models.transformer import Transformer, TransformerConfig
from headway.decode import DecodingOptions, Request, SearchVocabulary, search
torch.manual_seed(0)
model = Transformer(TransformerConfig.preset("tiny"), 50, 50).eval()
options = DecodingOptions(beam_size=3, max_length=8)
requests = [Request(source=[5, 6, 7, 2], limit=8), Request(source=[8, 9, 2], limit=8)]
found = search(SearchTransformer(model, "int8"), requests, options, SearchVocabulary(1, 2))
print(found)
"""


def run(code: str, cache: Path, threads: int = 1) -> str:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.mark.slow
def test_decoding_compiles_nothing_that_was_not_compiled_ahead_and_the_cache_changes_no_result(tmp_path: Path) -> None:
    cold = run(DECODE, tmp_path / "cold")
    run(COMPILE, tmp_path / "ahead")
    compiled = sorted((tmp_path / "ahead").rglob("*.nbc"))
    assert compiled
    for threads in (1, 2):
        assert run(DECODE, tmp_path / "ahead", threads) == cold
    assert sorted((tmp_path / "ahead").rglob("*.nbc")) == compiled
    assert run(f"{START}\n{DECODE}\n{WAIT}", tmp_path / "background") == cold
    assert len(list((tmp_path / "background").rglob("*.nbc"))) == len(compiled)
