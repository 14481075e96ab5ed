"""Every recipe parses and trains two steps on generated text in files of the same names."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headway.bundle import load_bundle
from headway.data.readers import Corpus
from headway.tasks import load_recipe, train

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))

# Sizes that train in seconds; everything else is as in the recipe.
SMALLER = (
    "tokenizer.vocab_size=300",
    "training.steps=2",
    "training.log_every=1",
    "training.device=cpu",
    "data.max_tokens=300",
    "validation.every=2",
    "validation.beam_size=1",
    "checkpoints.every=1",
    "checkpoints.keep=2",
    "checkpoints.average=2",
)


MODELS = {
    "transformer": ("d_model=16", "num_heads=2", "d_ff=16", "encoder_layers=1", "decoder_layers=1"),
    "recurrent": ("d_model=16", "d_embedding=16"),
    "recurrent_lm": ("d_model=16",),
    "decoder_only": ("d_model=16", "num_heads=2", "d_ff=16", "decoder_layers=1"),
    "masked": ("d_model=16", "num_heads=2", "d_ff=16"),
    "classifier": ("d_model=16", "num_heads=2", "d_ff=16"),
    "sequence_classifier": (),  # the sizes of the model that it starts from
}


def write(corpus: Corpus, folder: Path, count: int, *, labeled: bool) -> None:
    """Write short lines, and as targets their words in reverse order, or as labels whether they contain "rot"."""
    rng = random.Random(count)
    sources = [rng.choices(["Haus", "Baum", "ein", "der", "rot", "grün"], k=rng.randint(1, 6)) for _ in range(count)]
    pairs = [(" ".join(words), " ".join(reversed(words))) for words in sources]
    if labeled:
        pairs = [("red" if "rot" in words else "other", " ".join(words)) for words in sources]
    match corpus.format:
        case "text":
            for side, name in enumerate(corpus.files):
                (folder / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
        case "tsv":
            text = "".join("\t".join(pair) + "\n" for pair in pairs)
            (folder / corpus.files[0]).write_text(text, encoding="utf-8")
        case other:
            raise NotImplementedError(f"generated text as {other}")


def pretrain(folder: Path) -> Path:
    """Train the recipe of a masked model, and return its folder."""
    folder.mkdir()
    path = next(each for each in RECIPES if each.stem == "books-bert")
    sizes = [f"model.{size}" for size in MODELS["masked"]]
    recipe = load_recipe(path, [*SMALLER, *sizes, f"data.folder={folder}"])
    assert recipe.data.dev is not None
    for corpus in (*recipe.data.train, recipe.data.dev):
        write(corpus, folder, 60, labeled=False)
    found = train(recipe, folder / "run").model_folder
    assert found is not None
    return found


def test_there_are_recipes() -> None:
    assert {path.stem for path in RECIPES} >= {"multi30k-de-en", "multi30k-de-en-deep-shallow", "tatoeba-de-en"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_validated(path: Path) -> None:
    data = load_recipe(path).data
    assert data.dev is not None or data.as_dict()["dev_fraction"] > 0


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_trains(path: Path, tmp_path: Path) -> None:
    written = load_recipe(path)
    changes = [*SMALLER, *(f"model.{size}" for size in MODELS[written.model.kind]), f"data.folder={tmp_path}"]
    if written.tokenizer.kind != "bpe":
        changes.remove("tokenizer.vocab_size=300")
    recipe = load_recipe(path, changes)
    if recipe.training.start_from is not None:
        start = f"training.start_from={pretrain(tmp_path / 'pretrained')}"
        recipe = load_recipe(path, [*SMALLER, start, f"data.folder={tmp_path}"])
    labeled = recipe.task.kind == "classification"
    for corpus in recipe.data.train:
        write(corpus, tmp_path, 60, labeled=labeled)
    if recipe.data.dev is not None:
        write(recipe.data.dev, tmp_path, 5, labeled=labeled)
    result = train(recipe, tmp_path / "run")
    assert result.step == 2
    assert result.model_folder is not None
    assert result.model_folder.parent == tmp_path / "run"
    if recipe.validation.metric != "loss" and result.scores:  # of an average
        names = {"bleu": "BLEU", "accuracy": "accuracy", "macro_f1": "macro F1"}
        assert names[recipe.validation.metric] in result.scores
    assert load_bundle(result.model_folder).task == recipe.task
