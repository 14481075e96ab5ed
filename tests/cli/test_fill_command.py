"""``headway fill``, and what other commands do with a masked language model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from command_line import assert_refused, run, write_lines

import headway
from headway.bundle import MaskedLanguageModelBundle, TaskConfig
from headway.models.masked import MaskedConfig, MaskedTransformer
from headway.text.base import MASK
from headway.text.tokenizer import Tokenizer, TokenizerConfig

TEXT = f"Ann sees {MASK} here."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model with random weights."""
    torch.manual_seed(0)
    text = "Ann sees dogs here. Bob sees cats there. " * 9
    tokenizer = Tokenizer.train([text], TokenizerConfig.parse({"vocab_size": 320}, "test"), tags=(MASK,))
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "encoder_layers": 1, "max_length": 24}
    model = MaskedTransformer(MaskedConfig.parse(sizes, "test"), tokenizer.vocab_size)
    task = TaskConfig.parse({"kind": "masked_language_model"}, "test")
    path = tmp_path_factory.mktemp("fill") / "model"
    MaskedLanguageModelBundle(task, model, tokenizer).save(path, "card")
    return path


def test_fillings_of_a_text(folder: Path) -> None:
    ended = run("fill", folder, TEXT, "--top", 2)
    assert ended.code == 0, ended.err
    found = headway.load(folder).fill(TEXT, 2)
    assert ended.out == "".join(f"{one.probability:.4f}\t{one.words[0]}\t{one.text}\n" for one in found)


def test_json_and_candidates(folder: Path) -> None:
    words = ("--candidate", "dogs", "--candidate", "dogs there", "--format", "json")
    ended = run("fill", folder, TEXT, *words)
    record = json.loads(ended.out)
    assert record["text"] == TEXT
    fillings = {one["words"][0]: one for one in record["fillings"]}
    assert fillings.keys() == {"dogs", "dogs there"}
    assert fillings["dogs there"]["text"] == "Ann sees dogs there here."
    assert len(fillings["dogs there"]["token_log_probabilities"]) == 2


def test_lines_of_a_file(folder: Path, tmp_path: Path) -> None:
    lines = [f"{name} sees {MASK} here." for name in ("Ann", "Bob")]
    ended = run("fill", folder, "-i", write_lines(tmp_path / "in.txt", lines), "--top", 1)
    blocks = ended.out.split("\n\n")
    assert [block.split("\t")[2][:8] for block in blocks[:2]] == ["Ann sees", "Bob sees"]
    assert blocks[2:] == [""]
    write_lines(tmp_path / "in.txt", [lines[0], "no mask"])
    ended = run("fill", folder, "-i", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
    assert_refused(ended, r"in\.txt, line 2: the text has no \[MASK\]")
    assert not (tmp_path / "out.txt").exists()


def test_mistakes_are_one_line(folder: Path) -> None:
    assert_refused(run("fill", folder, "Ann"), r"the text has no \[MASK\]; expected from 1 to 20")
    assert_refused(run("fill", folder, MASK * 30), r"the text has 30 \[MASK\]")
    assert_refused(run("fill", folder, MASK + " dogs" * 50), "shorten the text")
    assert_refused(run("fill", folder, MASK, "-i", "x"), "use one of them")
    assert_refused(run("fill", folder.parent, MASK), "not a model folder")


def test_other_commands(folder: Path, tmp_path: Path) -> None:
    facts = run("info", folder).out
    assert "masked_language_model" in facts
    assert not re.search("source_language|target_language|^search", facts, re.MULTILINE)
    assert run("tokenize", folder, stdin=b"Ann [MASK]\n").code == 0
    refused = run("export", folder, "--to", "ctranslate2", "-o", tmp_path / "x")
    assert_refused(refused, "a masked language model cannot be exported to ctranslate2; choose huggingface")
    assert_refused(run("evaluate", folder), "fills in hidden words; evaluate it with --pairs")
    assert_refused(run("evaluate", folder, "--data", "x.txt"), "--data does not apply")


def test_scores_and_minimal_pairs(folder: Path, tmp_path: Path) -> None:
    good, bad = "Ann sees dogs here.", "Ann dogs sees here."
    found = headway.load(folder).score([good, bad])
    ended = run("score", folder, good, "--tokens")
    assert ended.out.startswith(f"{found[0].log_probability:.4f}\t{len(found[0].tokens)}\t")
    assert "<eos>" not in ended.out
    assert re.search(r"1 texts, pseudo-perplexity [\d.]+ over \d+ tokens, in float32$", ended.err.strip())
    (tmp_path / "pairs.tsv").write_text(f"{good}\t{bad}\n", encoding="utf-8")
    report = json.loads(run("evaluate", folder, "--pairs", tmp_path / "pairs.tsv", "--format", "json").out)
    assert report["overall"]["value"] == 100 * (found[0].log_probability > found[1].log_probability)
