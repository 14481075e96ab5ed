import json
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.bundle import Bundle, TaskConfig, read_config
from headway.errors import BundleError, OutputError
from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.text.tokenizer import Tokenizer, TokenizerConfig
from headway.weights import read_weights

NOT_OURS = "config.json: not a Headway model's configuration"
KEY_BIAS = "encoder.blocks.0.attention.key.bias"
SMALL: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 2}


def tokenizer(text: str) -> Tokenizer:
    return Tokenizer.train([text], TokenizerConfig(kind="characters"))


def made(source: str = "abc", target: str = "abc", **changes: Any) -> Bundle:
    one, other = tokenizer(source), tokenizer(target)
    torch.manual_seed(0)
    model = build_model(TransformerConfig.parse({**SMALL, **changes}, "test"), one.vocab_size, other.vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return Bundle(TaskConfig(source_language="de", target_language="en"), model.eval(), one, other)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made().save(tmp_path / "model", "# Card")
    return tmp_path / "model"


def logits(bundle: Bundle) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = bundle.model(torch.tensor([[4, 5, 2]]), torch.tensor([[1, 4, 6, 5]]))
    return found


# Round trip.


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie": "target"},
        {"tie": "none"},
        {"norm": "pre", "activation": "geglu", "positions": "learned", "max_length": 9, "d_key": 3, "d_value": 5},
    ],
)
def test_a_loaded_model_computes_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    bundle = made(**changes)
    bundle.save(tmp_path / "model", "# Card")
    loaded = Bundle.load(tmp_path / "model")
    assert torch.equal(logits(loaded), logits(bundle))
    assert loaded.task == bundle.task
    assert loaded.model.config == bundle.model.config
    assert loaded.source_tokenizer.fingerprint == bundle.source_tokenizer.fingerprint
    assert loaded.target_tokenizer.fingerprint == bundle.target_tokenizer.fingerprint
    assert not loaded.model.training
    loaded.save(tmp_path / "again", "# Card")
    for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


def test_one_tokenizer_is_stored_once(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert (folder / "README.md").read_text() == "# Card"
    loaded = Bundle.load(folder)
    assert loaded.source_tokenizer is loaded.target_tokenizer


def test_a_tokenizer_for_each_side(tmp_path: Path) -> None:
    made("abc", "abcdef", tie="target").save(tmp_path / "model", "")
    assert sorted(path.name for path in (tmp_path / "model").glob("*token*")) == [
        "source.tokenizer.json", "target.tokenizer.json",
    ]  # fmt: skip
    loaded = Bundle.load(tmp_path / "model")
    assert (loaded.source_tokenizer.vocab_size, loaded.target_tokenizer.vocab_size) == (7, 10)


@pytest.mark.parametrize(
    ("tie", "stored"),
    [
        ("all", {"source_embedding.weight"}),
        ("target", {"source_embedding.weight", "target_embedding.weight"}),
        ("none", {"source_embedding.weight", "target_embedding.weight", "projection.weight"}),
    ],
)
def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path, tie: str, stored: set[str]) -> None:
    bundle = made(tie=tie)
    bundle.save(tmp_path / "model", "")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert {name for name in weights if not name.startswith(("encoder.", "decoder."))} == stored
    assert sum(weight.numel() for weight in weights.values()) == sum(p.numel() for p in bundle.model.parameters())
    model = Bundle.load(tmp_path / "model").model
    assert isinstance(model, Transformer)
    assert (model.projection.weight is model.target_embedding.weight) == (tie != "none")
    assert (model.source_embedding.weight is model.target_embedding.weight) == (tie == "all")


def test_weight_names_are_an_api(folder: Path) -> None:
    # Renaming a weight needs a migration, because folders of older versions must always load.
    attention = [f"{part}.{kind}" for part in ("query", "key", "value", "output") for kind in ("weight", "bias")]
    norm = [f"norm.{kind}" for kind in ("weight", "bias")]
    encoder = [f"attention.{name}" for name in attention] + [f"attention_residual.{name}" for name in norm]
    encoder += [f"feed_forward.{part}.{kind}" for part in ("inner", "outer") for kind in ("weight", "bias")]
    encoder += [f"feed_forward_residual.{name}" for name in norm]
    decoder = encoder + [f"cross_attention.{name}" for name in attention]
    decoder += [f"cross_attention_residual.{name}" for name in norm]
    expected = {f"encoder.blocks.0.{name}" for name in encoder}
    expected |= {f"decoder.blocks.{block}.{name}" for block in range(2) for name in decoder}
    assert set(load_file(folder / "model.safetensors")) == expected | {"source_embedding.weight"}


def test_the_configuration_is_readable(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == 1
    assert config["task"] == {"kind": "translation", "source_language": "de", "target_language": "en"}
    assert config["model"]["d_model"] == 16
    assert config["tokenizers"] == {"source": "tokenizer", "target": "tokenizer"}


def test_saving_again_replaces_the_folder(folder: Path) -> None:
    (folder / "stray").write_text("")
    made("abcd", "abcd").save(folder, "# New")
    assert Bundle.load(folder).source_tokenizer.vocab_size == 8
    assert not (folder / "stray").exists()


def test_a_failed_save_leaves_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Tokenizer, "save", fails)
    with pytest.raises(OutputError, match=r"model: cannot be written \(No space left on device\)"):
        made("xyz", "xyz").save(folder, "")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


# Damage.


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def link_out(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder.parent / "elsewhere.json")
    (folder / "tokenizer.json").symlink_to(folder.parent / "elsewhere.json")


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    data = content if isinstance(content, bytes) else content.encode()

    def damage(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return damage


def cut(name: str, share: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return damage


def edit_weights(edit: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        edit(weights)
        save_file(weights, folder / "model.safetensors")

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "model: no such folder; expected a model folder"),
        (lambda folder: (folder / "config.json").unlink(), "model: not a model folder; expected config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors: missing"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json: no such file"),
        (cut("config.json", 0.5), "config.json: damaged"),
        (write("config.json", b"\xff\xfe"), "config.json: damaged"),
        (write("config.json", "[" * 100_000), "config.json: damaged"),
        (write("config.json", "[]"), f"{NOT_OURS} (no format version)"),
        (
            write("config.json", '{"model_type": "marian", "d_model": 512}'),
            f"{NOT_OURS} (no format version)",
        ),
        (edit_config(format=4), "config.json: format version 4, but this Headway supports at most 3; update Headway"),
        (write("config.json", '{"format": 1}'), f"{NOT_OURS} (no 'task')"),
        (edit_config(model={"d_modl": 1}), f"{NOT_OURS} (model: unknown key 'd_modl'"),
        (edit_config(model=[1]), f"{NOT_OURS}"),
        (edit_config(task={"kind": "summary"}), f"{NOT_OURS} (task: kind = 'summary'"),
        (edit_config(tokenizers=[1]), f"{NOT_OURS}"),
        (edit_config(tokenizers={"source": "tokenizer"}), f"{NOT_OURS} (no 'target')"),
        (edit_config(tokenizers={"source": "tokenizer", "target": "other"}), "other.json: no such file"),
        *(
            (edit_config(tokenizers={"source": name, "target": name}), "expected the name of a file in this folder")
            for name in ("../secret", "/etc/passwd", "..", "", "a/b", "C:\\x", 3, None, "\0")
        ),
        (link_out, "tokenizer.json is a link to a file outside the folder; replace it with a copy"),
        (
            edit_config(model={**SMALL, "d_model": 10_000_000}),
            "weight 'source_embedding.weight' has shape [7, 16]; config.json and the tokenizers require [7, 10000000]",
        ),
        (
            edit_config(model={**SMALL, "encoder_layers": 10**12}),
            f"{NOT_OURS} (model.encoder_layers = 1000000000000, but model.safetensors has 69 weights)",
        ),
        (edit_config(model={**SMALL, "d_ff": 10**30}), f"{NOT_OURS} (model: sizes too large for any tensor)"),
        (edit_config(framing={"source_suffix": [7]}), f"{NOT_OURS} (framing: id 7 is not in a vocabulary of 7 tokens)"),
        (edit_config(framing={"target_prefix": [-1]}), f"{NOT_OURS} (framing: id -1 is not in a vocabulary of 7 token"),
        (edit_config(format=0), f"{NOT_OURS} (no format version)"),
        (edit_config(format=True), f"{NOT_OURS} (no format version)"),
        (cut("model.safetensors", 0.9), "model.safetensors: truncated or not a safetensors file"),
        (cut("model.safetensors", 0), "model.safetensors: truncated or not a safetensors file"),
        (write("model.safetensors", pickle.dumps({"a": 1})), "model.safetensors: truncated or not a safetensors file"),
        (
            edit_weights(lambda weights: weights.pop(KEY_BIAS)),
            f"model.safetensors: weight '{KEY_BIAS}' is missing (1 in all); not this model's weights",
        ),
        (
            edit_weights(lambda weights: weights.update({"encoder.blocks.0.attention.kex.bias": torch.zeros(1)})),
            "model.safetensors: unexpected weight 'encoder.blocks.0.attention.kex.bias' (did you mean "
            f"'{KEY_BIAS}'?)",
        ),
        (
            edit_weights(lambda weights: weights.update({KEY_BIAS: torch.zeros(3)})),
            f"model.safetensors: weight '{KEY_BIAS}' has shape [3]; config.json and the "
            "tokenizers require [16]",
        ),
        (edit_config(model={**SMALL, "decoder_layers": 3}), "model.safetensors: weight 'decoder.blocks.2."),
        (cut("tokenizer.json", 0.5), "tokenizer.json: not valid JSON"),
        (write("tokenizer.json", '{"model": {"type": "BPE"}}'), "tokenizer.json: not a tokenizer saved by Headway"),
        (
            lambda folder: tokenizer("abcdefgh").save(folder, "tokenizer"),
            "model.safetensors: weight 'source_embedding.weight' has shape [7, 16]; "
            "config.json and the tokenizers require [12, 16]",
        ),
    ],
)  # fmt: skip
def test_damage_is_reported(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises(BundleError) as caught:
        Bundle.load(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tokenizers_that_do_not_fit_a_tied_embedding_are_refused(folder: Path) -> None:
    tokenizer("abcdefgh").save(folder, "other")
    edit_config(tokenizers={"source": "tokenizer", "target": "other"})(folder)
    with pytest.raises(
        BundleError, match=r"config\.json: does not fit the tokenizers in this folder \(tie = 'all' needs one"
    ):
        Bundle.load(folder)


def test_a_folder_of_the_hugging_face_cache_may_link_to_its_blobs(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots" / "revision"
    made().save(folder, "# Card")
    (tmp_path / "blobs").mkdir()
    for path in list(folder.iterdir()):
        path.rename(tmp_path / "blobs" / path.name)
        path.symlink_to(Path("../../blobs") / path.name)
    Bundle.load(folder)


def test_loading_draws_no_random_numbers(folder: Path) -> None:
    before = torch.get_rng_state()
    Bundle.load(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_huge_model_is_refused_before_it_is_allocated(folder: Path) -> None:
    """The configured weights need more memory than any machine has."""
    edit_config(model={**SMALL, "d_model": 10_000_000, "d_ff": 10_000_000})(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BundleError, match="and the tokenizers require"):
        Bundle.load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_a_file_is_not_a_model_folder(folder: Path) -> None:
    with pytest.raises(
        BundleError, match=r"config\.json: no such folder; expected a model folder such as runs/NAME/best"
    ):
        Bundle.load(folder / "config.json")


def test_the_error_for_a_run_folder_suggests_its_model(tmp_path: Path) -> None:
    made().save(tmp_path / "run" / "best", "")
    with pytest.raises(BundleError) as caught:
        Bundle.load(tmp_path / "run")
    expected = f"{tmp_path / 'run'}: not a model folder; did you mean {tmp_path / 'run' / 'best'}?"
    assert str(caught.value) == expected


def test_no_pickle_is_read_or_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pickle")

    for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(torch, "save", refuse)
    Bundle.load(folder).save(folder, "")
    for path in folder.iterdir():
        assert not path.read_bytes().startswith((b"\x80", b"PK")), f"{path.name} is a pickle or a zip of pickles"


def test_weights_have_the_permissions_of_the_other_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's umask is unchanged, because other threads write files at the same time."""
    monkeypatch.delattr("os.umask")
    made().save(folder, "# Card")
    modes = {path.name: path.stat().st_mode for path in folder.iterdir()}
    assert set(modes.values()) == {modes["config.json"]}


def test_a_file_that_may_not_be_read_is_not_called_damaged() -> None:
    """Root may read everything, so another user tries."""

    def read() -> None:
        with pytest.raises(BundleError, match=r"model.safetensors: cannot be read \(Permission denied\)"):
            read_weights(home / "model.safetensors")
        with pytest.raises(BundleError, match=r"config.json: cannot be read \(Permission denied\)"):
            read_config(home)

    with TemporaryDirectory() as name:  # other users cannot enter tmp_path
        home = Path(name)
        home.chmod(0o755)
        for file in ("model.safetensors", "config.json"):
            (home / file).touch(0o000)
        process = get_context("fork").Process(target=as_normal_user, args=(read,))
        process.start()
        process.join()
        assert process.exitcode == 0


def as_normal_user(action: Callable[[], None]) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    action()
