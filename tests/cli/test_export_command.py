"""``headway export --to headway``: model folders with weights in 8-bit integers or with a smaller vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import assert_refused, run, write_lines
from model_folders import WORDS, folders

from headway import kernels
from headway.bundle import load_bundle, read_config

__all__ = ["folders"]

needs_int8 = pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")


@pytest.fixture(scope="module")
def integers(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("int8") / "model"
    options = "--to", "headway", "--quantization", "int8", "--quantize-embeddings"
    ended = run("export", folders["translator"], *options, "-o", output)
    assert ended.code == 0, ended
    return output


@needs_int8
def test_a_folder_with_integers_says_what_it_is_and_translates(folders: dict[str, Path], integers: Path) -> None:
    described = "8-bit integers; embeddings in 8-bit integers"
    assert json.loads(run("info", integers, "--format", "json").out)["stored weights"] == described
    assert f"## Weights in 8-bit integers\n\nExported with headway 0.1.0: {described}." in (
        integers / "README.md"
    ).read_text(encoding="utf-8")
    assert json.loads((integers / "config.json").read_text(encoding="utf-8"))["format"] == 3
    counts = [
        json.loads(run("info", one, "--format", "json").out)["weights"] for one in (folders["translator"], integers)
    ]
    assert counts[0] == counts[1]
    found = run("translate", integers, WORDS[0], "--max-length", 6)
    assert (found.code, found.err) == (0, "")
    in_float = run("translate", integers, WORDS[0], "--max-length", 6, "--precision", "float32")
    assert in_float.code == 0
    assert in_float.err == (
        "headway: the model has weights in 8-bit integers, and computes in float32 with the dequantized weights\n"
    )
    assert run("diagram", integers, "-o", integers.parent / "model.svg").code == 0


@needs_int8
def test_training_and_another_export_need_floating_point(
    folders: dict[str, Path], integers: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    training = f"[training]\nstart_from = '{integers}'\nsteps = 1\n"
    recipe.write_text(f"[data]\ntrain = [{{ files = ['pairs.tsv'] }}]\n{training}", encoding="utf-8")
    expected = (
        "its weights are 8-bit integers .* but training.start_from needs floating-point weights; use the model that"
    )
    assert_refused(run("train", recipe, "--run", tmp_path / "run"), expected)
    again = run("export", integers, "--to", "headway", "--quantization", "int8", "-o", tmp_path / "again")
    assert_refused(again, "an export needs floating-point weights")


def test_a_smaller_vocabulary_translates(folders: dict[str, Path], tmp_path: Path) -> None:
    output, text = tmp_path / "small", write_lines(tmp_path / "text", ["das Haus"])
    ended = run("export", folders["translator"], "--to", "headway", "--keep-text", text, "-o", output)
    assert ended.code == 0, ended
    old, new = (load_bundle(folder).tokenizers["source"].vocab_size for folder in (folders["translator"], output))
    assert new < old
    assert f"source vocabulary: {new:,} of {old:,} tokens" in ended.out
    assert "Cut with headway 0.1.0 to the tokens of the texts text." in (output / "README.md").read_text(
        encoding="utf-8"
    )
    assert run("translate", output, "das Haus", "--max-length", 5).code == 0
    assert read_config(output).quantization is None


@needs_int8
def test_both_at_once(folders: dict[str, Path], tmp_path: Path) -> None:
    options = "--to", "headway", "--keep-languages", "de, en", "--quantization", "int8"
    assert run("export", folders["language_model"], *options, "-o", tmp_path / "small").code == 0
    assert run("generate", tmp_path / "small", "das", "--max-new-tokens", 2).code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "headway"], "a smaller model folder needs --quantization int8, --keep-text FILE"),
        (["--to", "headway", "--quantize-embeddings"], "--quantize-embeddings needs --quantization int8"),
        (["--to", "headway", "--quantization", "int4"], "--quantization 'int4': a model folder stores int8"),
        (["--to", "headway", "--keep-languages", "xx"], "letters of the language 'xx' are unknown"),
        (["--to", "headway", "--keep-text", "missing"], "missing"),
        (["--to", "headway", "--source-language", "de"], "keeps all languages"),
        (["--to", "onnx", "--keep-languages", "de"], "--keep-languages: only for --to headway, but the format is onnx"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    options: list[str], message: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    assert_refused(run("export", folders["translator"], *options, "-o", tmp_path / "x"), message)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["classifier", "masked"])
def test_other_models_have_no_smaller_form(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    ended = run("export", folders[name], "--to", "headway", "--quantization", "int8", "-o", tmp_path / "x")
    assert_refused(ended, "cannot be stored in 8-bit integers")
    ended = run("export", folders[name], "--to", "headway", "--keep-languages", "de", "-o", tmp_path / "x")
    assert_refused(ended, "the vocabulary of such a model cannot be reduced")
