"""Import a `transformers` folder (config.json and weights): the Transformer, the order of its vocabularies, and its
special tokens.

Every tensor in the file must be known, and every option in config.json that affects inference is either applied or
rejected with an error that names it. The following options are ignored: LayerDrop (training only), weight
initialization, and ``max_position_embeddings`` for sinusoids, which have no limit. For the settings of ``generate()``,
see :mod:`headway.interop.search_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from headway.errors import BundleError
from headway.interop.huggingface.checkpoint import (
    Checkpoint,
    parse_checked_config,
    read_checkpoint_config,
    read_tensors,
)
from headway.interop.huggingface.families import (
    ACTIVATIONS,
    FAMILIES,
    OPTION_NAMES,
    OUTPUT_BIAS_TENSOR,
    EncoderDecoderFamily,
    embedding_tensor_names,
    tensor_names,
)
from headway.interop.json_objects import read_json
from headway.interop.supported import SIZE_OPTIONS
from headway.interop.vocabulary_order import VocabularyOrder
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.positions import sinusoids
from headway.text.base import BOS, EOS, PAD
from headway.text.special_tokens import SpecialTokenTemplate, TemplateItem
from headway.weights import load_weights, named_weights, shapes_of

_IGNORED = {"model.encoder.version", "model.decoder.version"}  # written by fairseq; without effect on the model
NEVER_GENERATED_BIAS = -1e4  # gives probability 0 in every precision; finite, because 0 times infinity would be NaN
_UNUSED_POSITIONS = 2  # number of rows before the first position in learned tables
_SINUSOID_TABLES = {
    f"model.{side}.embed_positions.{name}" for side in ("encoder", "decoder") for name in ("weight", "weights")
}


@dataclass(frozen=True)
class ImportedModel:
    """An imported model in evaluation mode, the orders of its vocabularies, and its special tokens.

    ``token_template`` contains no languages yet; they are defined by the tokenizer. ``family`` is the model family's
    name for messages.
    """

    model: Transformer
    source_vocabulary: VocabularyOrder
    target_vocabulary: VocabularyOrder
    token_template: SpecialTokenTemplate
    family: str


def import_model(
    folder: str | Path, *, decoder_start_id: int | None = None, unknown_ids: tuple[int, int] | None = None
) -> ImportedModel:
    """Import the encoder-decoder in a `transformers` folder.

    Args:
        folder: The `transformers` folder.
        decoder_start_id: Id of the first decoder token. None means the id that config.json defines. (Some mBART models
            define no such id, because they start with the target language's code.)
        unknown_ids: Ids of the unknown tokens of source and target. None means the ids that the folder or the family
            defines.

    Raises:
        BundleError: Something in the folder is missing, unknown or unsupported.
    """
    folder = Path(folder)
    checkpoint = read_checkpoint_config(folder, FAMILIES)
    path, tensors = read_tensors(folder)
    config = parse_checked_config(checkpoint, lambda: _model_config(checkpoint), shapes_of(tensors))
    source, target = _vocabularies(checkpoint, decoder_start_id, unknown_ids)
    template = _template(checkpoint, target)
    tables = _tables(checkpoint, path, tensors, source, target)
    config = config.model_copy(update={"tie": tables.tie, "output_bias": bool(tables.bias.any())})
    _check_names(checkpoint, path, set(tensors), set(tensor_names(config).values()))
    _check_sinusoids(path, tensors, config)
    return ImportedModel(_build(config, path, tensors, tables), source, target, template, checkpoint.family.title)


def _vocabularies(
    checkpoint: Checkpoint[EncoderDecoderFamily], start: int | None, unknown: tuple[int, int] | None
) -> tuple[VocabularyOrder, VocabularyOrder]:
    """Return the orders of the source and target vocabularies."""
    pad, end = checkpoint.token_id("pad_token_id"), checkpoint.token_id("eos_token_id")
    if start is None:
        start = _start(checkpoint)
    if checkpoint.family.positions_start_after_padding and start == pad:
        raise checkpoint.bundle_error(
            f"decoder_start_token_id = {start} is the padding token, which has no position in "
            f"{checkpoint.family.title}; expected a different token, such as the end symbol"
        )
    unknowns = unknown or (_unknown(checkpoint, "vocab.json"), _unknown(checkpoint, "target_vocab.json", "vocab.json"))
    sizes = checkpoint.vocab_sizes
    try:
        source, target = (
            VocabularyOrder.from_special_ids(size, pad=pad, start=start, end=end, unknown=old)
            for size, old in zip(sizes, unknowns, strict=True)
        )
    except BundleError as error:
        raise checkpoint.bundle_error(str(error)) from None
    return source, target


def _start(checkpoint: Checkpoint[EncoderDecoderFamily]) -> int:
    start = checkpoint.generation_setting("decoder_start_token_id")
    if not isinstance(start, int):
        raise checkpoint.bundle_error(
            f"decoder_start_token_id = {start!r}: expected the id of the token that decoding begins with (for mBART, "
            "the target language's code)"
        )
    return start


def _unknown(checkpoint: Checkpoint[EncoderDecoderFamily], *vocabularies: str) -> int:
    """Return the unknown token's id, as defined by config.json, the family, or the first existing vocabulary file."""
    if checkpoint["unk_token_id"] is not None:
        return checkpoint.token_id("unk_token_id")
    if checkpoint.family.unknown_id is not None:
        return checkpoint.family.unknown_id
    for name in vocabularies:
        content = read_json(checkpoint.path.with_name(name))
        if content is not None and isinstance(content.get("<unk>"), int):
            return int(content["<unk>"])
    raise checkpoint.bundle_error(
        f"the unknown token is not defined; expected <unk> in {vocabularies[-1]}, or unk_token_id in config.json"
    )


def _template(checkpoint: Checkpoint[EncoderDecoderFamily], target: VocabularyOrder) -> SpecialTokenTemplate:
    """Return the special tokens that surround a sentence. They have the same ids in both vocabularies.

        Marian, FSMT, Pegasus           X </s>
        BART                        <s> X </s>              target: its forced first token, often <s>
        M2M-100, NLLB          [source] X </s>              target: [target]
        mBART-50               [source] X </s>              target: [target]
        mBART                           X </s> [source]     decoding begins with the target language's code

    mBART-50 is recognized by its first decoder token, the end symbol.
    """
    prefix: tuple[TemplateItem, ...] = ()
    suffix: tuple[TemplateItem, ...] = (EOS,)
    forced = checkpoint.generation_setting("forced_bos_token_id")
    if forced is None and checkpoint["force_bos_token_to_be_generated"]:  # transformers before 4.3
        forced = checkpoint.token_id("bos_token_id")
    begins: tuple[TemplateItem, ...] = () if forced is None else target.to_headway_ids([forced])
    match checkpoint.family.title:
        case "BART":
            prefix = target.to_headway_ids([checkpoint.token_id("bos_token_id")])
        case "mBART" if target.order[BOS] != target.order[EOS]:
            suffix = (EOS, "source_language")
        case "M2M-100" | "mBART":
            prefix, begins = ("source_language",), ("target_language",)
    return SpecialTokenTemplate(source_prefix=prefix, source_suffix=suffix, target_prefix=begins)


def _model_config(checkpoint: Checkpoint[EncoderDecoderFamily]) -> TransformerConfig:
    """Return the model's config except ``tie`` and ``output_bias``, which are determined by its tensors."""
    family = checkpoint.family
    options: dict[str, Any] = {"tie": "none", **family.model_options}
    for key, option in OPTION_NAMES.items():
        value = checkpoint.positive_int(key) if option in SIZE_OPTIONS else checkpoint[key]
        if options.setdefault(option, value) != value:
            encoder = f"{key.replace('decoder', 'encoder')} = {options[option]}"
            raise checkpoint.bundle_error(f"{encoder} and {key} = {value}: Headway needs the same value for both")
    activation, d_model = options["activation"], options["d_model"]
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise checkpoint.bundle_error(f"activation_function = {activation!r}: expected one of {', '.join(ACTIVATIONS)}")
    options["activation"] = ACTIVATIONS[activation]
    if options["positions"] == "learned":
        options["max_length"] = checkpoint.positive_int("max_position_embeddings")
    if family.positions_start_after_padding:
        if d_model % 2:
            raise checkpoint.bundle_error(
                f"d_model = {d_model} is not supported; {family.title}'s sinusoids need an even number"
            )
        options["position_offset"] = checkpoint.token_id("pad_token_id") + 1
    return TransformerConfig.parse(options, str(checkpoint.path))


@dataclass(frozen=True)
class _Tables:
    """The embeddings, the output projection and its bias. Rows correspond to tokens in Headway's order."""

    source: Float[Tensor, "S D"]
    target: Float[Tensor, "V D"]
    output: Float[Tensor, "V D"]
    bias: Float[Tensor, " V"]

    @property
    def tie(self) -> Literal["all", "target", "none"]:
        """Which tables are equal, as a value of the option ``tie``.

        The values of the tables are compared; config.json is ignored, as in `transformers` since 5.0.
        """
        if not torch.equal(self.target, self.output):
            return "none"
        return "all" if torch.equal(self.source, self.target) else "target"


def _build(config: TransformerConfig, path: Path, tensors: Mapping[str, Tensor], tables: _Tables) -> Transformer:
    """Build the model and load its weights."""
    model = Transformer(config, len(tables.source), len(tables.target))
    expected = named_weights(model)
    weights = {
        "source_embedding.weight": tables.source,
        "target_embedding.weight": tables.target,
        "projection.weight": tables.output,
        "projection.bias": tables.bias,
    }
    for ours, theirs in tensor_names(config).items():
        weights[ours] = tensors[theirs][_UNUSED_POSITIONS:] if ours.endswith("_positions.table") else tensors[theirs]
        if weights[ours].shape != expected[ours].shape:
            raise BundleError(
                f"{path}: tensor {theirs!r} has shape {list(tensors[theirs].shape)}, which does not match config.json: "
                f"Headway's {ours!r} would have {list(weights[ours].shape)} instead of {list(expected[ours].shape)}"
            )
    load_weights(model, {name: weights[name] for name in expected}, path)
    return model.eval()


def _tables(
    checkpoint: Checkpoint[EncoderDecoderFamily],
    path: Path,
    tensors: Mapping[str, Tensor],
    source: VocabularyOrder,
    target: VocabularyOrder,
) -> _Tables:
    """Return the tables. A table may have several names; the first tensor that exists is used."""
    (source_rows, target_rows), d_model = checkpoint.vocab_sizes, checkpoint.positive_int("d_model")
    bias = torch.zeros(target_rows)
    if checkpoint.family.has_output_bias and OUTPUT_BIAS_TENSOR in tensors:
        bias = _table(path, tensors, [OUTPUT_BIAS_TENSOR], 1, target_rows)[0]
    bias = _without_bad_words(checkpoint, bias)[list(target.order)]
    if target.order[BOS] in (target.order[PAD], target.order[EOS]):
        bias[BOS] = NEVER_GENERATED_BIAS  # the softmax must not include the duplicated row
    names = embedding_tensor_names(checkpoint.family, tied=checkpoint["tie_word_embeddings"])
    sides = (source_rows, source.order), (target_rows, target.order), (target_rows, target.order)
    source_table, target_table, output = (
        _table(path, tensors, name, rows, d_model)[list(order)]
        for name, (rows, order) in zip(names, sides, strict=True)
    )
    return _Tables(source_table, target_table, output, bias)


def _without_bad_words(checkpoint: Checkpoint[EncoderDecoderFamily], bias: Float[Tensor, " V"]) -> Float[Tensor, " V"]:
    """Return a copy of the output bias in which forbidden tokens have such a low value that they are never generated.

    Padding is never generated anyway. As in transformers, the end symbol cannot be forbidden.
    """
    bias, kept = bias.clone(), [checkpoint.token_id("pad_token_id"), checkpoint.token_id("eos_token_id")]
    words = checkpoint.generation_setting("bad_words_ids") or []
    for word in words if isinstance(words, list) else [words]:
        match word:
            case [int(token)] if not isinstance(token, bool) and 0 <= token < len(bias):
                if token not in kept:
                    bias[token] = NEVER_GENERATED_BIAS
            case _:
                raise checkpoint.bundle_error(
                    f"bad_words_ids contains {word!r}, but only lists with a single token id are supported; remove "
                    "it, and ban the phrase when translating (--ban)"
                )
    return bias


def _check_names(
    checkpoint: Checkpoint[EncoderDecoderFamily], path: Path, int8_weight_names: set[str], required_names: set[str]
) -> None:
    """Raise :class:`BundleError` for missing and unknown tensors."""
    family = checkpoint.family
    known = required_names.union(_IGNORED, *embedding_tensor_names(family, tied=True))
    known |= {OUTPUT_BIAS_TENSOR} if family.has_output_bias else set()
    known |= _SINUSOID_TABLES if family.model_options["positions"] == "sinusoidal" else set()
    if foreign := sorted(int8_weight_names - known):
        raise BundleError(
            f"{path}: unknown tensor {foreign[0]!r} ({len(foreign)} in total), which {family.title} does not have"
        )
    if missing := sorted(required_names - int8_weight_names):
        raise BundleError(f"{path}: tensor {missing[0]!r} is missing ({len(missing)} in total)")


def _table(path: Path, tensors: Mapping[str, Tensor], names: Sequence[str], *shape: int) -> Tensor:
    """Return the first tensor in ``names`` that exists. It must have ``shape``, which is derived from config.json."""
    name = next((name for name in names if name in tensors), None)
    if name is None:
        raise BundleError(f"{path}: tensor {names[-1]!r} is missing; expected {' or '.join(names)}")
    if tensors[name].shape != shape:
        raise BundleError(
            f"{path}: tensor {name!r} has shape {list(tensors[name].shape)}; config.json requires {list(shape)}"
        )
    return tensors[name]


def _check_sinusoids(path: Path, tensors: Mapping[str, Tensor], config: TransformerConfig) -> None:
    """Check that stored sinusoid tables are equal to Headway's, within the precision of their data type."""
    for name in sorted(_SINUSOID_TABLES & tensors.keys() if config.positions == "sinusoidal" else ()):
        table = tensors[name]
        inclusive = config.sinusoid_spacing == "inclusive"
        expected = sinusoids(len(table), config.d_model, interleaved=False, last_exponent=inclusive)
        stored = table.float()[config.position_offset :]
        if table.shape != expected.shape or not torch.allclose(stored, expected[config.position_offset :], atol=0.01):
            raise BundleError(
                f"{path}: tensor {name!r} does not contain this family's sinusoids; other values are not supported"
            )
