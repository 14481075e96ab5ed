from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import peers
import pytest
import torch
import trainees
from contest import Settings

from headway.models.transformer import Transformer
from headway.tasks.translation import TranslationObjective
from headway.text.base import PAD
from headway.training.recipe import Recipe
from headway.training.stream import BatchStream, TokenBatch
from headway.training.task import RunData

WORDS = ["ein", "Hund", "und", "eine", "Katze", "laufen", "über", "den", "Weg", "nach", "Hause"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, RunData, Path]:
    """Random sentences, prepared for the tiny model as in the benchmark."""
    data, workdir = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("work")
    rng = random.Random(1)
    for split, count in {"train": 60, "val": 5}.items():
        for language in (trainees.SOURCE, trainees.TARGET):
            lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(count)]
            (data / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return *trainees.prepare_corpus(data, workdir, "tiny", max_tokens=100), workdir


def test_peers_read_headways_tokens_as_words(corpus: tuple[Recipe, RunData, Path]) -> None:
    _, prepared, workdir = corpus
    folder = peers.write_tokens(prepared, workdir)
    vocabulary = (folder / "vocabulary").read_text().splitlines()
    assert len(set(vocabulary)) == prepared.tokenizers.source.vocab_size - 4  # toolkits add four special tokens
    for language, lengths in {
        "de": prepared.train.lengths("source", 0),
        "en": prepared.train.lengths("target", 0),
    }.items():
        lines = [line.split() for line in (folder / f"train.{language}").read_text().splitlines()]
        assert [len(line) + 1 for line in lines] == lengths.tolist()  # and its own end symbol
        assert {word for line in lines for word in line} <= set(vocabulary)
    assert len((folder / "val.de").read_text().splitlines()) == 5


@pytest.mark.parametrize("name", peers.PEERS)
def test_a_peers_settings_reach_its_configuration(name: str) -> None:
    model = trainees.sizes(trainees.recipe(Path("data"), "base"))
    settings = [
        Settings(max_tokens=1_234, workers=0, pool_size=5_678),
        Settings(max_tokens=4_321, workers=3, pool_size=8_765),
    ]
    configs = [peers.PEERS[name].config(Path("tokens"), Path("run"), model, each) for each in settings]
    assert [config["training"]["batch_size"] for config in configs] == [1_234, 4_321]
    workers = [config.get("num_workers", config["training"].get("num_workers")) for config in configs]
    assert workers == [0, 3]
    assert all(hasattr(Settings(), axis) for axis in peers.PEERS[name].axes)


def test_the_lengths_that_are_reported_are_those_of_the_data(corpus: tuple[Recipe, RunData, Path]) -> None:
    setting, prepared, _ = corpus
    stream = BatchStream(prepared.train, setting, torch.device("cpu"))
    works = [stream.next_step() for _ in stream.epoch_plan]
    for rows, work in zip(stream.epoch_plan, works, strict=True):
        expected = prepared.train.lengths("source", 0)[rows], prepared.train.lengths("target", 0)[rows]
        assert trainees.lengths(work) == tuple(side.tolist() for side in expected)
    assert sum(work.num_target_tokens for work in works) == int(np.sum(prepared.train.lengths("target", 0)))


def batch(*pairs: tuple[list[int], list[int]]) -> TokenBatch:
    def padded(rows: list[list[int]]) -> torch.Tensor:
        width = max(map(len, rows))
        return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])

    target = padded([target for _, target in pairs])
    positions = (target.flatten() != PAD).nonzero().squeeze(1)
    shifted = torch.nn.functional.pad(target[:, :-1], (1, 0), value=1)
    return TokenBatch(padded([source for source, _ in pairs]), shifted, positions, target.flatten()[positions])


def test_the_plain_loops_model_has_headways_weights_and_asks_about_real_targets_only() -> None:
    config = trainees.sizes(trainees.recipe(Path("data"), "tiny"))
    with pytest.warns(UserWarning, match="norm_first"):  # PyTorch warns that a fast path for inference cannot be used
        plain = trainees.PlainTransformer(config, 50)
    headway = Transformer(config, 50, 50)
    assert count(plain) == count(headway)
    pairs = ([5, 6, 7, 8, 2], [9, 10, 2]), ([11, 2], [12, 13, 14, 15, 2])
    for model, loss in ((plain, plain.loss), (headway, TranslationObjective(headway, trainees.LABEL_SMOOTHING))):
        model.eval()
        together, alone = loss(batch(*pairs)), sum(loss(batch(pair)) for pair in pairs)
        torch.testing.assert_close(together, alone)


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
