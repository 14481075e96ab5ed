"""Damaged, truncated and malicious files of CTranslate2, Argos Translate, Marian and T5 are refused in one line.

Nothing is written, and nothing outside a temporary folder is read or unpacked.
"""

from __future__ import annotations

import json
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import marian_models
import numpy as np
import pytest
from argos_packages import packed
from ctranslate2_models import Entry, Model, file_content, read_file
from foreign import t5

from headway.errors import BundleError, HeadwayError
from headway.interop.importing import import_from

FUZZED = 80  # damaged copies of each file


def changed(data: bytes, draw: np.random.Generator) -> bytes:
    """Return a copy that is truncated, or has other, fewer or more bytes somewhere."""
    content, place = bytearray(data), int(draw.integers(len(data)))
    count = int(draw.integers(1, 64))
    match int(draw.integers(6)):
        case 0:
            del content[place:]
        case 1:
            del content[place : place + count]
        case 2:
            content[place:place] = draw.bytes(count)
        case 3:
            content[place : place + 4] = struct.pack("<I", int(draw.choice([0, 1, 2**16, 2**31 - 1, 2**32 - 1])))
        case 4:
            content[place : place + count] = content[:count]
        case _:
            content[place] ^= 1 << int(draw.integers(8))
    return bytes(content)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small model of each format."""
    home = tmp_path_factory.mktemp("models")
    ct2 = Model(layers=(1, 1), target=None, source=["<blank>", "<s>", "</s>", *"abc", "<unk>"]).save(
        home / "ct2", "int8"
    )
    (ct2 / "vmap.txt").write_text("\ta b\na\tb c\na b\tc\n")
    marian = marian_models.write(home / "marian", enc_depth=1, dec_depth=1).parent
    return {"ct2": ct2, "marian": marian, "argos": packed("sentencepiece"), "t5": t5(home / "t5")}


def refused(path: Path) -> str | None:
    """Return the message of the error with which an import is refused, or None if it succeeds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_from(str(path))
    except HeadwayError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file"),
    [
        *(("ct2", file) for file in ("model.bin", "config.json", "shared_vocabulary.json", "vmap.txt")),
        *(("marian", file) for file in ("model.npz", "source.yml", "decoder.yml")),
        *(("t5", file) for file in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")),
        ("argos", ""),
    ],
)
def test_random_damage_is_refused_or_harmless(name: str, file: str, models: dict[str, Path], tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    if models[name].is_dir():
        copy = shutil.copytree(models[name], tmp_path / "copy")
        path = copy / file
    else:
        copy = path = Path(shutil.copy(models[name], tmp_path / models[name].name))
    data, messages = path.read_bytes(), 0
    head = min(len(data), 4000)  # most of the bytes are values of weights
    for number in range(FUZZED):
        part = head if number % 2 else len(data)
        path.write_bytes(changed(data[:part], draw) + data[part:])
        message = refused(copy)
        assert message is None or "\n" not in message
        messages += message is not None
    assert messages > FUZZED // 4


def variables_of(folder: Path) -> dict[str, Entry]:
    return read_file(folder / "model.bin")[2]


def with_entry(name: str, shape: tuple[int, ...], dtype: str = "float32", data: bytes = b"") -> Callable[..., bytes]:
    def content(variables: dict[str, Entry]) -> bytes:
        return file_content(6, "TransformerSpec", 7, {**variables, name: (shape, dtype, data)})

    return content


Q = "encoder/layer_0/self_attention/linear_0/weight"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda _: b"", "truncated: 4 bytes expected at byte 0"),
        (lambda _: struct.pack("<I", 7), "binary version 7 of CTranslate2 is not supported; supported: 1 to 6"),
        (lambda _: b"PK\3\4" + bytes(40), "binary version .* is not supported"),
        (lambda v: file_content(6, "TransformerSpec", 7, v)[:5000], "truncated: .* bytes expected at byte"),
        (lambda v: file_content(6, "TransformerSpec", 7, v) + b"x", "1 bytes follow the last entry"),
        (lambda v: file_content(6, "TransformerDecoderSpec", 8, v), "decoder-only models .* are not supported"),
        (
            lambda v: file_content(6, "WhisperSpec", 3, v),
            "specification 'WhisperSpec' .* not supported; supported: enc",
        ),
        (lambda v: file_content(6, "TransformerSpec", 8, v), "revision 8 of TransformerSpec is not supported"),
        (with_entry("x", (2**31, 2**31), "int8"), r"a variable of the shape \[2147483648, 2147483648\] has 0 bytes"),
        (with_entry("x", (1,), "int8", b"\1"), "unknown variable 'x', which models with these options do not have"),
        (
            with_entry(Q, (96, 31), "int8", bytes(96 * 31)),
            r"has the shape \[96, 31\]; the other variables require \[96",
        ),
        (with_entry(f"{Q}_scale", (96,), "float32", bytes(4 * 96)), "contains numbers that are not positive"),
        (with_entry("decoder/alibi", (), "int8", b"\1"), "ALiBi positions are not supported"),
        (with_entry(Q.replace("linear_0/weight", "relative_position_keys"), (1,), "int8", b"\1"), "Shaw et al"),
        (with_entry(Q.replace("weight", "weight_zero"), (1,), "int8", b"\1"), "AWQ quantization are not supported"),
        (with_entry("encoder/embeddings_1/weight", (1,), "int8", b"\1"), "source features are not supported"),
        (with_entry("encoder/num_heads", (), "int16", struct.pack("h", 7)), "num_heads = 7 does not divide the width"),
        (with_entry("decoder/pre_norm", (), "int8", b"\0"), "pre_norm = false with a norm after the last layer"),
        (with_entry("decoder/activation", (), "int8", b"\5"), "the activation tanh is not supported"),
        (with_entry("decoder/scale_embeddings", (), "float32", struct.pack("f", 3)), "multiplied by 3, which is not"),
    ],
)
def test_what_is_wrong_with_a_model_of_ctranslate2_is_named(
    content: Callable[[dict[str, Entry]], bytes], message: str, models: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(models["ct2"], tmp_path / "copy")
    (folder / "model.bin").write_bytes(content(variables_of(folder)))
    with pytest.raises(BundleError, match=message):
        import_from(str(folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("decoder/layer_0/self_attention/relative_asymmetric_position_keys", "relative positions of Shaw"),
        ("encoder/layer_0/self_attention/relative_left_max_position", "relative positions of Shaw"),
        ("encoder/layer_0/self_attention/relative_attention_bias", r"relative attention biases \(T5\)"),
        ("encoder/layer_0/self_attention/sliding_window", "sliding windows"),
        ("decoder/layer_0/self_attention/v_norm/gamma", "norms of values"),
        ("decoder/layer_0/pre_feedforward_layer_norm/gamma", "norms before and after each sub-layer"),
        ("decoder/layer_0/shared_layer_norm/gamma", "parallel sub-layers"),
        ("decoder/layer_0/layer_scalar", "scaled layers"),
        ("decoder/project_in/weight", "projections of embeddings"),
        ("decoder/final_logit_softcapping", "soft-capped logits"),
        ("decoder/scale_outputs", "scaled outputs"),
    ],
)
def test_layers_that_headway_does_not_have_are_refused_by_name(
    name: str, message: str, models: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(models["ct2"], tmp_path / "copy")
    (folder / "model.bin").write_bytes(with_entry(name, (1,), "int8", b"\1")(variables_of(folder)))
    with pytest.raises(BundleError, match=f"{message}.* are not supported"):
        import_from(str(folder))


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        for name, data in files.items():
            written.writestr(name, data)
    return path


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as stored:
        return {name: stored.read(name) for name in stored.namelist()}


def test_what_is_wrong_with_a_package_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    whole = contents(models["argos"])
    root = next(name for name in whole if name.endswith("metadata.json")).removesuffix("metadata.json")
    metadata = json.loads(whole[f"{root}metadata.json"])

    def edited(**changes: object) -> dict[str, bytes]:
        return {**whole, f"{root}metadata.json": json.dumps(metadata | changes).encode()}

    without_model = {name: data for name, data in whole.items() if "model.bin" not in name}
    without_tokenizer = {name: data for name, data in whole.items() if "sentencepiece" not in name}
    for number, (files, message) in enumerate(
        [
            ({"x": b""}, "no file metadata.json in the archive"),
            ({**whole, "other/metadata.json": b"{}"}, "several files metadata.json in the archive"),
            (edited(type="sbd"), "packages of type 'sbd' are not supported"),
            (edited(from_code=None), "expected from_code and to_code"),
            (edited(target_prefix="<2xx>"), "target_prefix = '<2xx>' is not in the vocabulary"),
            (without_model, "no CTranslate2 model in the folder model"),
            (without_tokenizer, "no tokenizer in the package; expected sentencepiece.model or bpe.model"),
            (
                {**whole, f"{root}model/model.bin": bytes(2**24)},
                "16,777,216 bytes, compressed to .* than packages contain",
            ),
            ({**whole, f"{root}metadata.json": b"["}, "damaged"),
        ]
    ):
        path = archive(tmp_path / f"{number}.argosmodel", files)
        with pytest.raises(BundleError, match=message) as caught:
            import_from(str(path))
        assert str(caught.value).startswith(str(path))
    (tmp_path / "not.argosmodel").write_bytes(b"no archive")
    with pytest.raises(BundleError, match="not an Argos Translate package"):
        import_from(str(tmp_path / "not.argosmodel"))


def test_files_of_a_package_stay_in_its_folder(models: dict[str, Path], tmp_path: Path) -> None:
    """Names that lead out of the folder are not unpacked, whatever else the archive contains."""
    whole = contents(models["argos"])
    root = next(name for name in whole if name.endswith("metadata.json")).removesuffix("metadata.json")
    evil = {f"{root}../../evil": b"x", "/evil": b"x", f"{root}model/../../evil": b"x", "..\\evil": b"x"}
    import_from(str(archive(tmp_path / "a.argosmodel", evil | whole)))
    assert not [*tmp_path.parent.rglob("evil")]
