"""The contestants of the decoding benchmark do the same work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from decoders import ENGINES, Headway
from decoding import LENGTH, floor_seconds, make_model

from headway import kernels
from headway.models.transformer import TransformerConfig
from headway.predict import TranslatorPool
from headway.text.base import NUM_SPECIAL

VOCABULARY = 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding") / "model"
    make_model(folder, TransformerConfig.preset("tiny", d_model=32, d_ff=64), VOCABULARY)
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:transformers")
def test_all_engines_find_the_same_tokens_and_as_many_as_asked(folder: Path) -> None:
    sources = torch.randint(NUM_SPECIAL, VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(1)).tolist()
    found = {
        name: engine(folder, precision="float32", threads=1).decode(sources, 1, 9) for name, engine in ENGINES.items()
    }
    assert [len(tokens) for tokens in found["headway"]] == [9, 9, 9]
    assert found["headway"] == found["ctranslate2"] == found["transformers"]
    pooled = Headway(folder, "float32", workers=2)
    assert pooled.decode(sources, 1, 9) == found["headway"]
    assert isinstance(pooled.translator, TranslatorPool)
    pooled.translator.close()


@pytest.mark.parametrize("precision", ["float32", *(["int8"] if kernels.is_available() else [])])
@pytest.mark.slow
def test_the_floor_grows_with_the_work(precision: str) -> None:
    config = TransformerConfig.preset("tiny")
    assert (
        0
        < floor_seconds(config, 500, 1, 1, precision, 1, "cpu")
        < floor_seconds(config, 500, 512, 4, precision, 1, "cpu")
    )
    assert LENGTH == 20
