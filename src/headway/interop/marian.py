"""Import a Transformer trained by Marian: an .npz file with weights and options, and .yml or .spm vocabularies.

    model.npz              arrays; special:model.yml contains the options as text
    decoder.yml            optional: file names of the model and its vocabularies, and search settings
    *.yml                  a vocabulary: TOKEN: ID
    *.spm                  a SentencePiece model. It is a vocabulary itself, or source.spm and target.spm split texts
                           into the tokens of .yml vocabularies (OPUS-MT)

Marian computes (``src/models/transformer.h``)

    post-norm   x = norm(x + f(x))       transformer-preprocess ""    transformer-postprocess dan
    pre-norm    x = x + f(norm(x))       transformer-preprocess n     transformer-postprocess da, -postprocess-top n

with sinusoids in halves and embeddings multiplied by sqrt(d_model). Decoding begins with a vector of zeros. Marian's
matrices multiply from the right, so they are transposed. Its GELU, x * sigmoid(1.702 x), equals silu(1.702 x) / 1.702,
so the weights before and after it are scaled.

Departure: in a pre-norm layer, Marian normalizes only the queries of self-attention, not the keys and values. The
imported model normalizes all three, as after CTranslate2's converter, and a warning is issued.

Guided alignment has no weights and is ignored. Options that affect the result are either applied or rejected with an
error that names them, and every array must be known. Nothing is unpickled.
"""

from __future__ import annotations

import math
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from headway.bundle import build_without_initialization
from headway.decode.request import DecodingOptions
from headway.errors import BundleError, MissingPackageError
from headway.interop.huggingface.importing import NEVER_GENERATED_BIAS
from headway.interop.huggingface.tensor_maps import copy_table_rows
from headway.interop.search_settings import parse_marian_search
from headway.interop.stored_vocabulary import StoredVocabulary, sentencepiece_tokenizers, whitespace_tokenizers
from headway.interop.vocabulary_order import VocabularyOrder
from headway.models.transformer import Transformer, TransformerConfig
from headway.text.base import BOS, EOS, TextTokenizer
from headway.text.sentencepiece import sentencepiece_pieces
from headway.text.special_tokens import SpecialTokenTemplate
from headway.weights import named_weights, shapes_of

TOOLKIT_NAME = "Marian"
_OPTIONS = "special:model.yml"
_END, _UNKNOWN = "</s>", "<unk>"
_GELU_SIGMOID = 1.702
_EPSILON = 1e-6  # epsilon of Marian's layer norms
_MAX_OPTIONS = 2**20  # maximum size of the options in bytes
_LAYOUTS: dict[tuple[str, str, str], Literal["post", "pre"]] = {("", "dan", ""): "post", ("n", "da", "n"): "pre"}
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "silu"}
_FIXED: dict[str, tuple[Any, ...]] = {  # supported values of options that affect the result
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-pool": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-tied-layers": ([],),
    "transformer-train-positions": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-postprocess-emb": ("", "d", "n", "nd"),
    "lemma-dim-emb": (0,),
    "factors-dim-emb": (0,),
    "factors-combine": ("sum",),
    "lemma-dependency": ("",),
    "ulr": (False,),
}
_FACTORS = ("lemma-dim-emb", "factors-dim-emb", "factors-combine", "lemma-dependency")
_SIDES = ("source", "target")
_MAX_COMPRESSION, _COMPRESSION_FREE = 200, 2**20  # maximum compression factor of arrays larger than this many bytes
_ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}


@dataclass(frozen=True)
class MarianModel:
    """An imported model in evaluation mode, with its tokenizers and its special tokens.

    Attributes:
        model: The imported Transformer.
        source: The source tokenizer.
        target: The target tokenizer; the same object as ``source`` if it is shared.
        template: The special tokens that surround a text, with languages if the vocabulary contains language codes.
        description: Names the files that were used.
        search: The search settings in decoder.yml.
    """

    model: Transformer
    source: TextTokenizer
    target: TextTokenizer
    template: SpecialTokenTemplate
    description: str
    search: DecodingOptions


def is_marian(path: Path) -> bool:
    """Return whether a path is a file with Marian weights, or a folder that contains such a file."""
    return path.suffix == ".npz" if path.is_file() else path.is_dir() and next(path.glob("*.npz"), None) is not None


def import_marian_model(path: Path) -> MarianModel:
    """Import a Marian model.

    Args:
        path: The .npz file, or a folder that contains it.

    Raises:
        BundleError: A file is missing or damaged, or Headway does not support an option, which the message names.
        MissingPackageError: A package that the import needs is not installed.
    """
    weights_path = path if path.is_file() else _weights_file(path)
    arrays = StoredArrays(weights_path)
    options = _options(arrays)
    files = _vocabulary_files(weights_path, options)
    config = _config(arrays, options)
    sizes = [arrays.shape(name)[0] for name in _tables(arrays)[:2]]
    source, target = (_vocabulary(file, size) for file, size in zip(files, sizes, strict=True))
    if files[0] == files[1] and sizes[0] == sizes[1]:
        source = target
    model = _build(arrays, config, source, target, gelu=options.get("transformer-ffn-activation") == "gelu")
    first, second, description = _tokenizers(weights_path.parent, files, source, target)
    search = parse_marian_search(_decoder_settings(weights_path))
    return MarianModel(model, first, second, _template(source), f"{weights_path.name}, {description}", search)


class StoredArrays:
    """The arrays in one of Marian's .npz files. An array is read when it is accessed.

    Args:
        path: The path of the file.

    Attributes:
        path: The path of the file.
        accessed: The names of the arrays that have been accessed.

    Raises:
        BundleError: The file is not an archive of arrays, or an array is damaged or consists of Python objects.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.accessed: set[str] = set()
        self._arrays: dict[str, _StoredArray] = {}
        with self._errors(), zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.filename.endswith(".npy"):
                    self._arrays[entry.filename.removesuffix(".npy")] = self._header(archive, entry)

    def _header(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> _StoredArray:
        with archive.open(entry) as file:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in read:
                raise ValueError(f"{entry.filename} has version {version} of NumPy's format")
            shape, is_fortran, dtype = read[version](file)
            start = file.tell()
        if dtype.hasobject or dtype.kind not in "fiuS":
            raise ValueError(f"{entry.filename} contains {dtype}; expected numbers")
        if is_fortran and len(shape) > 1:
            raise ValueError(f"{entry.filename} is stored by columns; expected rows")
        if math.prod(shape) * dtype.itemsize != entry.file_size - start:
            raise ValueError(f"{entry.filename} has {entry.file_size - start:,} bytes for the shape {list(shape)}")
        if entry.file_size > _MAX_COMPRESSION * entry.compress_size + _COMPRESSION_FREE:
            raise ValueError(f"{entry.filename} is compressed more than {_MAX_COMPRESSION} times")
        return _StoredArray(entry.filename, tuple(shape), dtype, start)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array without reading it."""
        return self._array(name).shape

    def __getitem__(self, name: str) -> Tensor:
        values = np.frombuffer(self.read_bytes(name), dtype=self._array(name).dtype).reshape(self.shape(name))
        if values.dtype.kind != "f":
            raise BundleError(f"{self.path}: the array {name!r} contains {values.dtype}; expected real numbers")
        return torch.from_numpy(values.astype(np.float32))

    def read_bytes(self, name: str) -> bytes:
        """Return the bytes of an array."""
        array = self._array(name)
        with self._errors(), zipfile.ZipFile(self.path) as archive, archive.open(array.entry) as file:
            file.read(array.start)
            return file.read()

    def _array(self, name: str) -> _StoredArray:
        if name not in self._arrays:
            raise BundleError(f"{self.path}: the array {name!r} is missing, but models with these options need it")
        self.accessed.add(name)
        return self._arrays[name]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (
            *(zipfile.BadZipFile, zlib.error, ValueError, SyntaxError, EOFError, MemoryError),
            *(NotImplementedError, RuntimeError),
        ) as error:
            reason = str(error).split("\n")[0]
            raise BundleError(f"{self.path}: not Marian's weights, or damaged ({reason}); copy it again") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise BundleError(f"{self.path}: cannot be read ({reason})") from None

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


@dataclass(frozen=True)
class _StoredArray:
    """The name of an array in the archive, its shape and type, and the file offset of its values."""

    entry: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int


# Options.


def _options(arrays: StoredArrays) -> dict[str, Any]:
    if _OPTIONS not in arrays:
        raise BundleError(
            f"{arrays.path}: {_OPTIONS!r} is missing, which contains the options of a {TOOLKIT_NAME} model"
        )
    if math.prod(arrays.shape(_OPTIONS)) > _MAX_OPTIONS:
        raise BundleError(f"{arrays.path}: damaged ({_OPTIONS} has more than {_MAX_OPTIONS:,} bytes); copy it again")
    return _read_yaml(arrays.read_bytes(_OPTIONS).rstrip(b"\0"), f"{arrays.path}: {_OPTIONS}")


def _read_yaml(data: bytes, origin: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise MissingPackageError(f"{origin}: its options", "pyyaml") from None
    try:
        content = yaml.safe_load(data.decode("utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise BundleError(f"{origin}: damaged ({reason}); copy it again") from None
    if not isinstance(content, dict):
        raise BundleError(f"{origin}: damaged (expected options and their values); copy it again")
    return content


def _config(arrays: StoredArrays, options: Mapping[str, Any]) -> TransformerConfig:
    """Return the options of the model."""
    origin = f"{arrays.path}: {_OPTIONS}"
    if str(options.get("type", "")).startswith("multi-") or len(options.get("dim-vocabs") or [0, 0]) > 2:
        raise BundleError(f"{origin}: type = {options.get('type')!r}: models with several sources are not supported")
    for name, supported in _FIXED.items():
        value = options.get(name, supported[0])
        if value not in supported:
            what = " (factors)" if name in _FACTORS else ""
            listed = " or ".join(repr(value) for value in supported)
            raise BundleError(f"{origin}: {name} = {value!r}{what} is not supported; supported: {listed}")
    layout = tuple(
        str(options.get(f"transformer-{name}", default) or "")
        for name, default in (("preprocess", ""), ("postprocess", "dan"), ("postprocess-top", ""))
    )
    norm = _LAYOUTS.get(cast("tuple[str, str, str]", layout))
    if norm is None:
        raise BundleError(
            f"{origin}: transformer-preprocess = {layout[0]!r}, -postprocess = {layout[1]!r} and -postprocess-top = "
            f"{layout[2]!r} are not supported; supported: '', 'dan' and '' (post-norm), or 'n', 'da' and 'n' (pre-norm)"
        )
    if norm == "pre":
        warnings.warn(
            f"{arrays.path}: Marian does not normalize the keys and values of self-attention in pre-norm layers; like "
            "CTranslate2, Headway does, so compare translations with Marian's",
            stacklevel=4,
        )
    activation = options.get("transformer-ffn-activation", "swish")
    if activation not in _ACTIVATIONS:
        raise BundleError(
            f"{origin}: transformer-ffn-activation = {activation!r} is not supported; supported: "
            f"{', '.join(_ACTIVATIONS)}"
        )
    if "Wpos" in arrays:
        raise BundleError(f"{arrays.path}: learned positions (the array 'Wpos') are not supported")
    table = arrays.shape(_tables(arrays)[1])
    hidden = arrays.shape("encoder_l1_ffn_W1")
    if len(table) != 2 or len(hidden) != 2 or not all((*table, *hidden)):
        raise BundleError(f"{arrays.path}: damaged (the embeddings have the shape {list(table)}); copy it again")
    values: dict[str, Any] = {
        "d_model": table[1],
        "num_heads": _count(options, "transformer-heads", origin),
        "d_ff": hidden[1],
        "encoder_layers": _count(options, "enc-depth", origin),
        "decoder_layers": _count(options, "dec-depth", origin),
        "activation": _ACTIVATIONS[activation],
        "norm": norm,
        "norm_epsilon": _EPSILON,
        "sinusoid_layout": "halves",
        "embedding_norm": "n" in str(options.get("transformer-postprocess-emb") or ""),
        "output_bias": True,
        "tie": "none",
    }
    for side in ("encoder", "decoder"):
        if values[f"{side}_layers"] > len(arrays):
            raise BundleError(f"{origin}: {values[f'{side}_layers']:,} layers, but {len(arrays):,} arrays")
    return TransformerConfig.parse(values, origin)


def _count(options: Mapping[str, Any], name: str, origin: str) -> int:
    value = options.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BundleError(f"{origin}: {name} = {value!r}: expected a whole number of at least 1")
    return value


# Files.


def _weights_file(folder: Path) -> Path:
    """Return the .npz file in a folder: the only such file, or the file named by decoder.yml."""
    files = sorted(folder.glob("*.npz"))
    if len(files) > 1 and (folder / "decoder.yml").is_file():
        named = {Path(str(name)).name for name in _listed(_read_settings(folder / "decoder.yml"), "models")}
        files = [file for file in files if file.name in named]
    if len(files) != 1:
        listed = ", ".join(file.name for file in files[:5]) or "none"
        raise BundleError(f"{folder}: expected one .npz file, got {listed}; specify the path of the file")
    return files[0]


def _decoder_settings(weights: Path) -> dict[str, Any]:
    """Return the decoder settings for a file with weights, or an empty dictionary if there is no settings file."""
    for name in (f"{weights.name}.decoder.yml", "decoder.yml"):
        path = weights.with_name(name)
        if path.is_file():
            return _read_settings(path)
    return {}


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        return _read_yaml(path.read_bytes(), str(path))
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None


def _listed(settings: Mapping[str, Any], key: str) -> list[Any]:
    values = settings.get(key)
    return values if isinstance(values, list) else []


def _vocabulary_files(weights: Path, options: Mapping[str, Any]) -> tuple[Path, Path]:
    """Return the files of the source and target vocabularies: the files named by decoder.yml or by the options, or the
    only vocabulary file in the folder.
    """
    folder = weights.parent
    named = _listed(_decoder_settings(weights), "vocabs")
    for names in (named, options.get("vocabs") or []):
        files = [folder / Path(str(name).replace("\\", "/")).name for name in names]
        if len(files) == 2 and all(file.is_file() for file in files):
            return files[0], files[1]
    others = [
        file
        for file in sorted([*folder.glob("*.yml"), *folder.glob("*.spm")])
        if file.name not in ("source.spm", "target.spm")
        and not (file.suffix == ".yml" and re.search("decoder|config|npz|train|valid", file.stem))
    ]
    if len(others) == 1:
        return others[0], others[0]
    listed = ", ".join(map(str, named or options.get("vocabs") or [])) or "no names"
    raise BundleError(
        f"{folder}: no vocabularies for {weights.name}; its options name {listed}; expected two files with these "
        "names, or one .yml or .spm file, in the folder"
    )


def _vocabulary(path: Path, size: int) -> StoredVocabulary:
    """Read a vocabulary for a table with ``size`` rows."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
    if path.suffix == ".spm":
        tokens = sentencepiece_pieces(data, str(path))
    elif path.suffix in (".yml", ".yaml"):
        tokens = _yaml_tokens(data, path, size)
    else:
        what = "factors (.fsv)" if path.suffix == ".fsv" else f"vocabularies {path.suffix}"
        raise BundleError(f"{path}: {what} are not supported; supported: .yml and .spm")
    if len(tokens) > size:
        raise BundleError(
            f"{path}: {len(tokens):,} tokens, but the weights have {size:,} rows; this is not the model's vocabulary"
        )
    ids = {token: index for index, token in reversed([*enumerate(tokens)])}
    if _END not in ids:
        raise BundleError(f"{path}: does not contain {_END}, the end symbol of {TOOLKIT_NAME}")
    order = VocabularyOrder.with_duplicates(size, pad=None, start=None, end=ids[_END], unknown=ids.get(_UNKNOWN))
    special = frozenset(ids[name] for name in (_END, _UNKNOWN, "<s>", "<pad>") if name in ids)
    return StoredVocabulary(tokens, order, special)


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_ESCAPES |= {"N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)


def _yaml_tokens(data: bytes, path: Path, size: int) -> list[str]:
    """Read the tokens of a YAML vocabulary with one token per line: TOKEN: ID, or "? TOKEN" and ": ID".

    A YAML parser would not interpret "null", "yes" or "1e3" as text, and it would treat U+0085 as the end of a line.
    """
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise BundleError(f"{path}: not UTF-8; copy it again") from None
    tokens: dict[int, str] = {}
    key: str | None = None
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        if line.strip() in ("", "---"):
            continue
        if line.startswith("? "):
            key = line[2:]
            continue
        if key is None:
            key, _, value = line.rpartition(":")
        else:
            value = line.removeprefix(":")
        value = value.strip()
        if not key or not value.isdecimal() or not int(value) < size or int(value) in tokens:
            raise BundleError(
                f"{path}, line {number}: expected a token, a colon and an unused id below {size:,}, the number of "
                f"rows of the weights; got {line[:60]!r}"
            )
        tokens[int(value)] = _unquoted(key.strip(" ") if key[:1] in " \"'" else key, path, number)
        key = None
    if not tokens:
        raise BundleError(f"{path}: contains no tokens")
    return [tokens.get(index, f"<unused {index}>") for index in range(max(tokens) + 1)]


def _unquoted(text: str, path: Path, number: int) -> str:
    """Return the text of a YAML scalar."""
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) < 2 or not text[0] == text[-1] == '"':
        return text

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        return chr(int(code, 16)) if code else _ESCAPES.get(match[4], match[4])

    try:
        unescaped = _ESCAPE.sub(character, text[1:-1])
        unescaped.encode()
    except (ValueError, OverflowError):
        raise BundleError(f"{path}, line {number}: {text[:60]} is not valid text; copy the file again") from None
    return unescaped


def _tokenizers(
    folder: Path, files: tuple[Path, Path], source: StoredVocabulary, target: StoredVocabulary
) -> tuple[TextTokenizer, TextTokenizer, str]:
    """Return the tokenizers of both sides, and a description of their files."""
    models = [
        file if file.suffix == ".spm" else folder / f"{side}.spm" for file, side in zip(files, _SIDES, strict=True)
    ]
    if all(file.is_file() for file in models):
        return sentencepiece_tokenizers(source, target, (models[0], models[1]))
    return whitespace_tokenizers(source, target, folder, "source.spm and target.spm")


def _template(source: StoredVocabulary) -> SpecialTokenTemplate:
    """Return the special tokens around a text: the end symbol and, if there are several, a target language code."""
    if not source.languages:
        return SpecialTokenTemplate(source_suffix=(EOS,))
    languages = source.headway_ids(source.languages)
    return SpecialTokenTemplate(source_prefix=("target_language",), source_suffix=(EOS,), languages=languages)


# Weights.


def _tables(arrays: StoredArrays) -> tuple[str, str, str]:
    """Return the names of the source embedding, the target embedding and the output projection."""
    source, target = (name if name in arrays else "Wemb" for name in ("encoder_Wemb", "decoder_Wemb"))
    outputs = (f"decoder_ff_logit_out_{name}" for name in ("W", "Wt"))
    return source, target, next((name for name in outputs if name in arrays), target)


def _build(
    arrays: StoredArrays, config: TransformerConfig, source: StoredVocabulary, target: StoredVocabulary, *, gelu: bool
) -> Transformer:
    """Build the model and copy its weights, one at a time."""
    tables = _tables(arrays)
    tie = "none"
    if tables[1] == tables[2]:
        tie = "all" if tables[0] == tables[1] and source.order == target.order else "target"
    config = config.model_copy(update={"tie": tie})
    sizes = len(source.order), len(target.order)
    with torch.device("meta"):
        expected = shapes_of(named_weights(Transformer(config, *sizes)))
    stored = _names(arrays, config)
    for ours, theirs in stored.items():
        shape = arrays.shape(theirs)
        wanted = expected[ours][::-1] if len(expected[ours]) == 2 else (1, *expected[ours])
        if shape not in (wanted, expected[ours] if len(expected[ours]) == 1 else wanted):
            raise _shape_error(arrays, theirs, wanted)
    d_model, bias = config.d_model, "decoder_ff_logit_out_b"
    rows = arrays.shape(tables[1])[0]
    wanted_tables = [(arrays.shape(tables[0])[0], d_model), (rows, d_model), (rows, d_model)]
    if tables[2].endswith("_W"):
        wanted_tables[2] = (d_model, rows)
    for name, wanted in zip(tables, wanted_tables, strict=True):
        if arrays.shape(name) != wanted:
            raise _shape_error(arrays, name, wanted)
    if bias in arrays and arrays.shape(bias) not in ((1, rows), (rows,)):
        raise _shape_error(arrays, bias, (1, rows))
    if unknown := sorted(set(arrays) - arrays.accessed):
        raise BundleError(
            f"{arrays.path}: unknown array {unknown[0]!r} ({len(unknown)} in total), which models with these options "
            "do not have"
        )
    model = cast("Transformer", build_without_initialization(config, *sizes))
    weights = named_weights(model)
    with torch.no_grad():
        for ours, theirs in stored.items():
            value = arrays[theirs]
            weights[ours].copy_(value.T if weights[ours].dim() == 2 else value.flatten())
            if gelu:
                weights[ours].mul_(_gelu_factor(ours))
        names = ("source_embedding.weight", "target_embedding.weight", "projection.weight")
        for ours, theirs, order in zip(names, tables, (source.order, target.order, target.order), strict=True):
            if ours in weights:
                value = arrays[theirs].T if theirs.endswith("_W") else arrays[theirs]
                copy_table_rows(value.__getitem__, order.order, weights[ours])
        output_bias = weights["projection.bias"].zero_()
        if bias in arrays:
            output_bias.copy_(arrays[bias].flatten()[list(target.order.order)])
        output_bias[list(target.order.duplicates)] = (
            NEVER_GENERATED_BIAS  # the softmax must not include duplicated rows
        )
        weights.get("target_embedding.weight", weights["source_embedding.weight"])[BOS] = 0
    return model.eval()


def _gelu_factor(name: str) -> float:
    """Return the factor of a weight by which GELU's sigmoid approximation becomes silu."""
    if ".feed_forward.inner." in name:
        return _GELU_SIGMOID
    return 1 / _GELU_SIGMOID if name.endswith(".feed_forward.outer.weight") else 1.0


def _names(arrays: StoredArrays, config: TransformerConfig) -> dict[str, str]:
    """Map weight names to array names, except for the embeddings, the projection and its bias."""
    names: dict[str, str] = {}

    def norm(ours: str, theirs: str, *suffixes: str) -> None:
        suffix = next((suffix for suffix in suffixes if f"{theirs}_ln_scale{suffix}" in arrays), suffixes[0])
        names[f"{ours}.weight"], names[f"{ours}.bias"] = f"{theirs}_ln_scale{suffix}", f"{theirs}_ln_bias{suffix}"

    def linear(ours: str, theirs: str, letter: str) -> None:
        names[f"{ours}.weight"], names[f"{ours}.bias"] = f"{theirs}_W{letter}", f"{theirs}_b{letter}"

    for side, ours in zip(("encoder", "decoder"), _SIDES, strict=True):
        suffixes = ("_pre", "") if config.norm == "pre" else ("",)  # early versions of Marian had no suffix
        for layer in range(getattr(config, f"{side}_layers")):
            block, theirs = f"{side}.blocks.{layer}", f"{side}_l{layer + 1}"
            attentions = {"attention": f"{theirs}_self"}
            if side == "decoder":
                attentions["cross_attention"] = f"{theirs}_context"
            for module, prefix in attentions.items():
                for part, letter in _ATTENTION.items():
                    linear(f"{block}.{module}.{part}", prefix, letter)
                norm(f"{block}.{module}_residual.norm", f"{prefix}_Wo", *suffixes)
            linear(f"{block}.feed_forward.inner", f"{theirs}_ffn", "1")
            linear(f"{block}.feed_forward.outer", f"{theirs}_ffn", "2")
            norm(f"{block}.feed_forward_residual.norm", f"{theirs}_ffn_ffn", *suffixes)
        if config.norm == "pre":
            norm(f"{side}.norm", f"{side}_top", "")
        if config.embedding_norm:
            norm(f"{ours}_norm", f"{side}_emb", "_pre")
    return names


def _shape_error(arrays: StoredArrays, name: str, expected: Sequence[int]) -> BundleError:
    return BundleError(
        f"{arrays.path}: the array {name!r} has the shape {list(arrays.shape(name))}; the options require "
        f"{list(expected)}"
    )
