"""Random models in CTranslate2's format, made by its own specification classes, and files of its older versions."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import common_spec, transformer_spec

SPECIAL = ["<blank>", "<s>", "</s>"]
SOURCE = [*SPECIAL, *"abcdefghij", "<unk>"]
TARGET = [*SPECIAL, *"xyzuvw", "<unk>"]
WIDTH, HEADS, INNER = 32, 4, 48
NAMES = ["float32", "int8", "int16", "int32", "float16", "bfloat16"]


class Model:
    """A random model. The options are those of ``TransformerSpec.from_config``, and the following.

    Args:
        source: The source's vocabulary.
        target: The target's vocabulary. None means a shared one.
        tie: Whether the output projection is the target embedding, and with a shared vocabulary the source's, too.
        positions: "sinusoids" (CTranslate2's own), "table" (the paper's), or "learned".
        zero_start: Whether decoding begins with a vector of zeros.
        scale: The attribute ``scale_embeddings``.
        queries_scale: A factor of queries.
        biases: Whether linear layers have biases.
        config: Keys of config.json.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        source: Sequence[str] = SOURCE,
        target: Sequence[str] | None = TARGET,
        tie: bool = False,
        positions: str = "sinusoids",
        zero_start: bool = False,
        scale: Any = True,
        queries_scale: float | None = None,
        biases: bool = True,
        output_bias: bool = True,
        layers: tuple[int, int] = (2, 3),
        config: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._draw = np.random.default_rng(seed)
        self._biases = biases
        self.source, self.target = list(source), list(source if target is None else target)
        spec = transformer_spec.TransformerSpec.from_config(layers, HEADS, **options)
        kv_heads = 1 if options.get("multi_query_attention") else HEADS
        for side, size in ((spec.encoder, len(self.source)), (spec.decoder, len(self.target))):
            embeddings = side.embeddings[0] if side is spec.encoder else side.embeddings
            embeddings.weight = self._values(size, WIDTH)
            side.scale_embeddings = scale
            if positions != "sinusoids":
                side.position_encodings.encodings = self._table(positions)
            for norm in ("layer_norm", "layernorm_embedding"):
                if hasattr(side, norm):
                    self._norm(getattr(side, norm), WIDTH)
            for layer in side.layer:
                self._attention(layer.self_attention, kv_heads, queries_scale)
                if hasattr(layer, "attention"):
                    self._attention(layer.attention, kv_heads, queries_scale)
                self._norm(layer.ffn.layer_norm, WIDTH)
                self._linear(layer.ffn.linear_0, INNER, WIDTH)
                self._linear(layer.ffn.linear_1, WIDTH, INNER)
                if hasattr(layer.ffn, "linear_0_noact"):
                    self._linear(layer.ffn.linear_0_noact, INNER, WIDTH)
        if tie and target is None:
            spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight
        spec.decoder.projection.weight = (
            spec.decoder.embeddings.weight if tie else self._values(len(self.target), WIDTH)
        )
        if output_bias:
            spec.decoder.projection.bias = self._values(len(self.target))
            spec.decoder.projection.bias[self.target.index("</s>")] += 2  # so that texts end
        spec.decoder.start_from_zero_embedding = zero_start
        spec.register_source_vocabulary(self.source)
        spec.register_target_vocabulary(self.target)
        for key, value in (config or {}).items():
            setattr(spec.config, key, value)
        self.spec = spec

    def save(self, folder: Path, quantization: str | None = None) -> Path:
        """Write the folder with CTranslate2's own code."""
        folder.mkdir(parents=True, exist_ok=True)
        self.spec.validate()
        self.spec.optimize(quantization=quantization)
        self.spec.save(str(folder))
        return folder

    def _values(self, *shape: int) -> Any:
        return (self._draw.standard_normal(shape) * 0.4).astype(np.float32)

    def _table(self, kind: str) -> Any:
        if kind == "learned":
            return self._values(20, WIDTH)
        angles = np.arange(600)[:, None] / 10000 ** (np.arange(0, WIDTH, 2) / WIDTH)
        return np.stack([np.sin(angles), np.cos(angles)], 2).reshape(600, WIDTH).astype(np.float32)

    def _norm(self, norm: Any, width: int) -> None:
        norm.gamma = 1 + self._values(width)
        if hasattr(norm, "beta"):
            norm.beta = self._values(width)

    def _linear(self, linear: Any, rows: int, columns: int) -> None:
        linear.weight = self._values(rows, columns)
        if self._biases:
            linear.bias = self._values(rows)

    def _attention(self, attention: Any, kv_heads: int, queries_scale: float | None) -> None:
        self._norm(attention.layer_norm, WIDTH)
        kv = WIDTH // HEADS * kv_heads
        if len(attention.linear) == 2:
            self._linear(attention.linear[0], WIDTH + 2 * kv, WIDTH)
        else:
            self._linear(attention.linear[0], WIDTH, WIDTH)
            self._linear(attention.linear[1], 2 * kv, WIDTH)
        self._linear(attention.linear[-1], WIDTH, WIDTH)
        attention.linear[-1].weight *= 4  # so that targets depend on sources and positions
        if queries_scale is not None:
            attention.queries_scale = np.float32(queries_scale)


ACTIVATIONS = common_spec.Activation


def opened(folder: Path, compute_type: str = "float32") -> Any:
    return ctranslate2.Translator(
        str(folder), device="cpu", inter_threads=1, intra_threads=1, compute_type=compute_type
    )


Entry = tuple[tuple[int, ...], str, bytes]  # shape, type and values of a variable


def read_file(path: Path) -> tuple[str, int, dict[str, Entry], dict[str, str]]:
    """Return the specification, its revision, variables and aliases of a model.bin of version 6."""
    file = io.BytesIO(path.read_bytes())

    def number(code: str) -> int:
        return int(struct.unpack(code, file.read(struct.calcsize(code)))[0])

    def text() -> str:
        return file.read(number("H"))[:-1].decode()

    assert number("I") == 6
    name, revision, variables = text(), number("I"), {}
    for _ in range(number("I")):
        key, rank = text(), number("B")
        shape = tuple(number("I") for _ in range(rank))
        dtype, size = NAMES[number("B")], number("I")
        variables[key] = (shape, dtype, file.read(size))
    return name, revision, variables, {text(): text() for _ in range(number("I"))}


def file_content(
    version: int, name: str, revision: int, variables: dict[str, Entry], aliases: dict[str, str] | None = None
) -> bytes:
    """Return the content of a model.bin of any version."""
    file = io.BytesIO()

    def text(value: str) -> None:
        file.write(struct.pack("H", len(value.encode()) + 1) + value.encode() + b"\0")

    file.write(struct.pack("I", version))
    if version >= 2:
        text(name)
        file.write(struct.pack("I", revision))
    file.write(struct.pack("I", len(variables)))
    for key, (shape, dtype, data) in variables.items():
        text(key)
        file.write(struct.pack("B", len(shape)) + b"".join(struct.pack("I", size) for size in shape))
        width = {"float32": 4, "int8": 1, "int16": 2}.get(dtype, 0)
        kind = (NAMES.index(dtype), len(data)) if version >= 4 else (width, len(data) // width)
        file.write(struct.pack("<BI", *kind))
        file.write(data)
    if version >= 3:
        file.write(struct.pack("I", len(aliases or {})))
        for alias, key in (aliases or {}).items():
            text(alias)
            text(key)
    return file.getvalue()


def downgrade(folder: Path, version: int, *, revision: int = 7) -> Path:
    """Rewrite a folder of version 6 in an older version. The settings of config.json become variables.

    Before revision 5, encoder and decoder share their attributes, and the encoder has one table of embeddings.
    """

    path = folder / "model.bin"
    name, _, variables, aliases = read_file(path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").unlink()
    if version < 3:
        variables |= {alias: variables[key] for alias, key in aliases.items()}
        variables |= {
            f"{alias}_scale": variables[f"{key}_scale"] for alias, key in aliases.items() if f"{key}_scale" in variables
        }
        aliases = {}

    def flag(value: bool) -> Entry:
        return (), "int8", struct.pack("b", value)

    variables["with_source_bos"] = flag(config["add_source_bos"])
    variables["with_source_eos"] = flag(config["add_source_eos"])
    variables["with_target_bos"] = flag(config["decoder_start_token"] == config["bos_token"])
    if version == 5:
        for key in ("unk_token", "bos_token", "eos_token"):
            data = config[key].encode()
            variables[key] = (len(data),), "int8", data
    if revision < 5:
        for key in ("num_heads", "pre_norm", "activation", "embeddings_merge", "alignment_layer", "alignment_heads"):
            for side in ("encoder", "decoder"):
                if f"{side}/{key}" in variables:
                    variables[key] = variables.pop(f"{side}/{key}")
        renamed = {"encoder/embeddings_0/": "encoder/embeddings/"}
        for old, new in renamed.items():
            variables = {key.replace(old, new): value for key, value in variables.items()}
            aliases = {key.replace(old, new): value.replace(old, new) for key, value in aliases.items()}
    path.write_bytes(file_content(version, name, revision, variables, aliases))
    return folder
