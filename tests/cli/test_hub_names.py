"""Names of models on the Hub: what they stand for, and loading a converted model without a network or the client."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, get_args, get_type_hints

import pytest
from command_line import assert_refused, run

import headway
from headway.cli import commands
from headway.cli.model_folders import MODEL
from headway.errors import BundleError, ConfigError, MissingPackageError
from headway.interop.hub import model_folder
from headway.interop.hub.converted import ConvertedModel, client_cache, converted_folder, record_converted
from headway.interop.hub.names import HubName, parse_model_source
from headway.interop.hub.needed_files import needed_files, repository_format
from headway.serve.config import ModelConfig, ServeConfig, model_name, read_config

NAME = HubName("tiny/opus-mt-de-en")
COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache, the folder ``tmp_path``, and a process in which the client cannot be imported."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hf"


@pytest.fixture
def converted(make_translator: Callable[[], Any]) -> Path:
    """Return the folder of a model that is recorded as converted."""
    folder = converted_folder(NAME, "0" * 32)
    make_translator().bundle.save(folder, "# Card")
    record_converted(ConvertedModel(NAME, COMMIT, folder))
    return folder


@pytest.mark.parametrize(
    ("text", "name", "revision"),
    [
        ("hf:gpt2", "gpt2", "main"),
        ("huggingface:Helsinki-NLP/opus-mt-de-en", "Helsinki-NLP/opus-mt-de-en", "main"),
        ("hf:a/b.c_d-1@v1.0", "a/b.c_d-1", "v1.0"),
        ("hf:a/b@refs/pr/3", "a/b", "refs/pr/3"),
        (f"hf:a/b@{COMMIT}", "a/b", COMMIT),
        (Path("hf:a/b"), "a/b", "main"),
    ],
)
def test_a_name_has_an_organization_and_a_revision(text: str | Path, name: str, revision: str) -> None:
    assert parse_model_source(text) == HubName(name, revision)
    assert HubName(name, revision).is_commit is (revision == COMMIT)
    assert HubName.parse(str(HubName(name, revision))) == HubName(name, revision)


@pytest.mark.parametrize(
    "name",
    ["", "a/b/c", "../x", "a/..", "a--b", ".git", "a.git", "-a", "a/", "/tmp/x", "ä", "a b", "a\n", "x" * 97,
     "a@", "a@..", "a@-x", "a@x/../y", "a@x\0", "https://huggingface.co/a/b"],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"not a name on the Hugging Face Hub|revision .* is not valid"):
        parse_model_source(f"hf:{name}")


@pytest.mark.parametrize("path", ["runs/x/best", "a:b", "HF:a", Path("x"), "hf", "C:\\models"])
def test_anything_else_is_a_path(path: str | Path) -> None:
    assert parse_model_source(path) == Path(path)


def test_a_local_folder_of_the_name_wins(tmp_path: Path) -> None:
    (tmp_path / "tiny" / "opus").mkdir(parents=True)
    assert parse_model_source("hf:tiny/opus") == Path("tiny/opus")
    (tmp_path / "hf:tiny" / "opus").mkdir(parents=True)
    assert parse_model_source("hf:tiny/opus") == Path("hf:tiny/opus")
    assert parse_model_source("hf:opus", base=tmp_path / "tiny") == tmp_path / "tiny" / "opus"
    with pytest.raises(ConfigError, match="which has no revisions"):
        model_folder("hf:tiny/opus", revision="v1")
    with pytest.raises(ConfigError, match="contradicts the name"):
        model_folder("hf:x@v2", revision="v1")


def test_the_cache_is_that_of_the_client(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_cache() == home / "hub"
    assert converted_folder(NAME) == home / "hub-headway" / "tiny--opus-mt-de-en"
    monkeypatch.setenv("HF_HUB_CACHE", "~/elsewhere")
    assert client_cache() == Path.home() / "elsewhere"
    for variable in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(variable)
    assert client_cache() == Path.home() / ".cache" / "huggingface" / "hub"
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    code = "from huggingface_hub.constants import HF_HUB_CACHE as c; import headway.interop.hub.converted as h"
    exec(f"{code}; assert str(h.client_cache()) == c or 'HF_HOME' in __import__('os').environ", {})


def test_a_converted_model_is_loaded_without_the_client(converted: Path) -> None:
    expected = headway.load(converted).translate("a b").text
    assert headway.load("hf:tiny/opus-mt-de-en").translate("a b").text == expected
    assert headway.load("huggingface:tiny/opus-mt-de-en", revision="main").translate("a b").text == expected
    for words in (("translate", f"{NAME}", "a b"), ("translate", f"{NAME}", "--with", f"{NAME}", "a b")):
        ended = run(*words)
        assert ended.out == expected + "\n", ended.err
    assert f"{converted}" in run("info", NAME).out
    assert headway.diagram(str(NAME)).title


def test_every_command_that_takes_a_model_takes_a_name() -> None:
    takes = set()
    for module in iter_modules(commands.__path__):
        function = getattr(import_module(f"{commands.__name__}.{module.name}"), module.name.rstrip("_"), None)
        hints = {} if function is None else get_type_hints(function, include_extras=True)
        for name in {"model", "models", "teacher", "channel", "other_models"} & hints.keys():
            if module.name != "serve":  # whose models are those of serve.toml, too
                assert MODEL in get_args(hints[name]), f"{module.name}: {name}"
            takes.add(module.name)
    assert {"translate", "generate", "fill", "classify", "score", "serve", "info", "evaluate", "export"} <= takes


def test_another_revision_is_not_that_of_main(converted: Path) -> None:
    assert_refused(run("info", f"{NAME}@v2"), r"hf:tiny/opus-mt-de-en@v2 needs the package 'huggingface_hub'")
    with pytest.raises(MissingPackageError, match=r"pip install 'headway\[hub\]'"):
        headway.load(str(NAME), revision="v2")
    assert not list(converted_folder(NAME).glob("revisions/v2*"))


def test_nothing_is_left_of_a_model_that_cannot_be_fetched(home: Path) -> None:
    assert_refused(run("translate", "hf:nobody/nothing", "a"), "needs the package")
    assert not list(home.glob("*/*"))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"commit": 1, "folder": "' + "0" * 32 + '"}', '{"commit": "a", "folder": "../x"}']
)
def test_a_damaged_record_is_none(converted: Path, content: str) -> None:
    (converted_folder(NAME) / "revisions" / "main.json").write_text(content)
    with pytest.raises(MissingPackageError):
        model_folder(str(NAME))


def test_models_lists_and_removes(converted: Path) -> None:
    ended = run("models")
    size = sum(file.stat().st_size for file in converted.iterdir())
    assert ended.out == f"{NAME}  {size / 1e6:>9,.1f} MB  {COMMIT[:8]}  {converted}\n"
    assert f'"bytes": {size}' in run("models", "--format", "json").out
    assert_refused(run("models", "--remove", "hf:other"), r"not converted; converted models: hf:tiny/opus-mt-de-en$")
    assert run("models", "--remove", NAME.name).out == f"removed: {converted}\n"
    assert not converted_folder(NAME).exists()
    assert (run("models").code, run("models").out) == (0, "")


def test_recording_deletes_what_no_revision_uses(converted: Path, make_translator: Callable[[], Any]) -> None:
    newer = converted_folder(NAME, "1" * 32)
    make_translator().bundle.save(newer, "# Card")
    record_converted(ConvertedModel(HubName(NAME.name, "v2"), COMMIT, newer))
    assert converted.is_dir()
    record_converted(ConvertedModel(NAME, COMMIT, newer))
    assert not converted.exists()
    assert model_folder(str(NAME)) == model_folder(f"{NAME}@v2") == newer


def test_exports_of_a_name_are_not_written_among_the_converted_models(converted: Path, tmp_path: Path) -> None:
    ended = run("export", NAME, "--to", "onnx")
    assert ended.code == 0, ended.err
    assert (tmp_path / "opus-mt-de-en-onnx").is_dir()


def test_the_service_takes_names(converted: Path, tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    config = tmp_path / "etc" / "serve.toml"
    config.parent.mkdir()
    config.write_text('[[models]]\npath = "hf:tiny/opus-mt-de-en"\n[[models]]\npath = "../local"\n', encoding="utf-8")
    read = read_config(config, {}, {})
    assert [model.path for model in read.models] == [str(NAME), str(tmp_path / "etc" / ".." / "local")]
    assert model_name(ModelConfig(path="hf:a/b@v1")) == "b"
    specs = ServeConfig(models=(ModelConfig(path=str(NAME)),)).specs()
    assert [(spec.name, spec.folder) for spec in specs] == [("opus-mt-de-en", str(converted))]


def test_the_check_of_the_service_says_what_the_start_downloads(converted: Path) -> None:
    ended = run("serve", NAME, "hf:other/model", "--check", "--port", 0)
    assert "hf:other/model has not been downloaded yet; the service downloads it when it starts" in ended.out, ended.err


WEIGHTS = {"model.safetensors", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "rust_model.ot"}


@pytest.mark.parametrize(
    ("names", "needed"),
    [
        (
            {*WEIGHTS, "source.spm", "target.spm", "vocab.json", "tokenizer.json", "metadata.json"},
            {"model.safetensors", "source.spm", "target.spm", "vocab.json"},
        ),
        (
            {"pytorch_model.bin", "vocab.json", "merges.txt", "onnx/model.onnx"},
            {"pytorch_model.bin", "vocab.json", "merges.txt"},
        ),
        (
            {"model.safetensors.index.json", "pytorch_model.bin", "tokenizer.json", "vocab.txt", "modeling_x.py"},
            {"model.safetensors.index.json", "tokenizer.json"},
        ),
        (
            {*WEIGHTS, "sentencepiece.bpe.model", "vocab.json", "tokenizer_config.json", "README.md"},
            {"model.safetensors", "sentencepiece.bpe.model", "vocab.json", "tokenizer_config.json", "README.md"},
        ),
        ({"x.py", "setup.sh"}, set()),
    ],
)
def test_only_one_form_of_weights_and_tokenizer_is_needed(names: set[str], needed: set[str]) -> None:
    assert set(needed_files("huggingface", {"config.json", *names})) == {"config.json", *needed}


def test_a_model_folder_on_the_hub_needs_no_conversion() -> None:
    names = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
        "run.py",
        "model.svg",
        "old/config.json",
    ]
    assert repository_format(names, {"format": 1, "task": {}}) == "headway"
    needed = needed_files("headway", names)
    assert sorted(needed) == ["README.md", "config.json", "model.safetensors", "model.svg", "tokenizer.json"]


@pytest.mark.parametrize(
    ("names", "config", "form", "needed"),
    [
        (
            ["model.bin", "shared_vocabulary.json", "shared_vocabulary.txt", "source.spm", "target.spm", "x.py"],
            {"add_source_eos": False},
            "ctranslate2",
            ["model.bin", "shared_vocabulary.json", "source.spm", "target.spm"],
        ),
        (["m.npz", "v.yml", "decoder.yml", "old/n.npz", "m.npz.bak"], {}, "marian", ["decoder.yml", "m.npz", "v.yml"]),
        (["de_en.argosmodel", "index.json"], {}, "argos", ["de_en.argosmodel"]),
        (["model.bin", "m.npz"], {"model_type": "marian"}, "huggingface", []),
    ],
)
def test_the_format_of_a_repository_is_found_by_its_files(
    names: list[str], config: dict[str, Any], form: str, needed: list[str]
) -> None:
    assert repository_format(names, config) == form
    assert sorted(needed_files(repository_format(names, config) or "headway", names)) == needed


def test_files_without_a_model_have_no_format() -> None:
    assert repository_format(["model.bin", "source.spm", "x.onnx"], {}) is None


def test_a_folder_of_transformers_says_how_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(BundleError, match="headway import huggingface:gpt2 converts it"):
        headway.load("hf:gpt2")
