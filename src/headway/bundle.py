"""The model folder, or bundle: everything that is needed to use a trained model, in one folder that can be copied and
published.

    config.json           format version, task, languages or labels, model configuration, tokenizer file names
    model.safetensors     the weights, under names that never change; tied weights are stored once
    tokenizer.json        one joint vocabulary, or source.tokenizer.json and target.tokenizer.json
    README.md             the model card

If config.json contains "quantization" (added in format version 3), model.safetensors contains 8-bit integers
(:mod:`headway.engine.int8_weights`). The folder of a translation model may also contain calibration.json and
shortlist.safetensors (:mod:`headway.predict`), and the folder of a language model may contain int8_check.json. A model
folder contains neither pickles nor code. Older format versions can still be loaded. Version 2 is used for imported
models and classifiers. An imported model may have a tokenizer from another toolkit (a SentencePiece model is saved as
tokenizer.spm next to tokenizer.json). Its config.json contains the special-token template under the key ``framing`` and
the :class:`~headway.decode.DecodingOptions` that came with the model under ``search``, or, for a language model, the
:class:`~headway.predict.GenerationOptions` under ``generation``. The key ``normalize`` is true if texts must be
normalized before they are tokenized.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor

from headway.config import Config, KindName, flatten_items
from headway.decode.generation_options import DEFAULT_GENERATION, GenerationOptions
from headway.decode.request import PAPER_OPTIONS, DecodingOptions
from headway.errors import BundleError, ConfigError
from headway.kinds import Capability, KindRegistry
from headway.models.base import (
    ArchitectureConfig,
    ClassificationModel,
    ContinuationModel,
    FillingModel,
    Model,
    TranslationModel,
)
from headway.models.registry import architecture_of, build_model, parse_model_config
from headway.storage import atomic_write_folder
from headway.text.base import BOS, TextTokenizer
from headway.text.loading import load_tokenizer
from headway.text.normalization import normalize, normalize_characters
from headway.text.special_tokens import SpecialTokenTemplate
from headway.text.tokenizer import language_of_tag
from headway.torch_internals import skip_initialization
from headway.weights import (
    Shape,
    check_weights,
    load_weights,
    map_weights,
    named_weights,
    read_shapes,
    read_weights,
    shapes_of,
    write_aligned_weights,
    write_weights,
)

FORMAT_VERSION = (
    3  # newest format version that can be read; AnyBundle.save writes the oldest version that can describe the model
)
_QUANTIZED_KINDS = ("transformer", "decoder_only")  # architectures that can be stored in 8-bit integers
_JOINT, _SOURCE, _TARGET = "tokenizer", "source.tokenizer", "target.tokenizer"


class TaskConfig(Config):
    """Configuration of a model's task."""

    kind: Annotated[str, KindName(lambda: BUNDLE_TYPES, "headway.tasks.register")] = Field(
        "translation",
        description="Whether a model converts one sequence to another, assigns a label to a text, continues it, or "
        "fills in its hidden words.",
    )
    source_language: str = Field("source", description="Language of the source texts, as a BCP 47 tag such as de.")
    target_language: str = Field("target", description="Language of the target texts. Not used for classification.")


class Quantization(Config):
    """Configuration of the integer format in which a model folder stores its weights."""

    kind: Literal["int8"] = Field("int8", description="Integer type of the weights of linear layers.")
    embeddings: bool = Field(False, description="Whether embeddings are also stored as integers.")

    def describe(self) -> str:
        """Return a human-readable description of the weights' data types."""
        return f"8-bit integers; embeddings in {'8-bit integers' if self.embeddings else 'float32'}"


ANY_LANGUAGE = "mul"
"""Language code of the source or target side if it has several languages (ISO 639-2 and BCP 47)."""


@dataclass(frozen=True)
class DefaultOptions:
    """The settings that came with a pretrained model, used as its default options.

    Attributes:
        search: Default decoding options of a translation model.
        generation: Default generation options of a language model.
    """

    search: DecodingOptions = PAPER_OPTIONS
    generation: GenerationOptions = DEFAULT_GENERATION

    def as_dict(self) -> dict[str, Any]:
        """Return the options that were set explicitly, by name. A name with no such options is omitted."""
        given = {name: getattr(self, name).model_dump(mode="json", exclude_unset=True) for name in vars(self)}
        return {name: options for name, options in given.items() if options}

    @classmethod
    def parse_saved(cls, data: Mapping[str, Any]) -> DefaultOptions:
        """Parse the output of :meth:`as_dict`.

        Raises:
            ConfigError: An option is invalid.
        """
        return cls(
            DecodingOptions.parse_saved(data.get("search", {}), "search"),
            GenerationOptions.parse_saved(data.get("generation", {}), "generation"),
        )


NO_DEFAULTS = DefaultOptions()

# file in a run folder with the name of the model folder that training chose at its end
CHOSEN_MODEL_FILE = "chosen_model"


@dataclass(frozen=True)
class BundleConfig:
    """The validated content of config.json in a model folder."""

    folder: Path
    task: TaskConfig
    model: ArchitectureConfig
    labels: tuple[str, ...]  # empty for translation models
    imported_token_template: SpecialTokenTemplate | None  # None for models that were not imported
    tokenizer_names: tuple[str, str]
    normalize: bool = False
    quantization: Quantization | None = None  # None for weights in floating point
    defaults: DefaultOptions = NO_DEFAULTS

    @property
    def capability(self) -> Capability:
        """What the model can do with a text, such as "translates"."""
        return BUNDLE_TYPES[self.task.kind].capability

    @property
    def target_language(self) -> str:
        """The code of the language that a translation model translates into by default."""
        return _default_target_language(self.imported_token_template, self.task)

    def load_tokenizers(self) -> tuple[TextTokenizer, TextTokenizer]:
        """Load the source and target tokenizers, which are one object if the vocabulary is joint."""
        source_name, target_name = self.tokenizer_names
        source = load_tokenizer(self.folder, source_name)
        return source, source if target_name == source_name else load_tokenizer(self.folder, target_name)


BundleT = TypeVar("BundleT", bound="AnyBundle")


class AnyBundle(ABC):
    """Base class of the bundles of all tasks. Subclasses are frozen dataclasses.

    Attributes:
        capability: What the models can do with a text, such as "translates".
        purpose: The capability as a verb phrase, for error messages.
        task: Configuration of the model's task.
        model: The PyTorch model.
        labels: The names of the classes, in the order of the logits. Empty if the model is not a classifier.
        imported_token_template: The special-token template of an imported model, or of a model that contains part of a
            language model. None for other models that Headway trained.
        normalize: Whether texts are normalized before they are tokenized (:meth:`normalized`).
        search: Default decoding options that came with an imported translation model.
        generation: Default generation options that came with an imported language model.
    """

    capability: ClassVar[Capability]
    purpose: ClassVar[str]
    task: TaskConfig
    model: Model
    labels: tuple[str, ...] = ()
    imported_token_template: SpecialTokenTemplate | None = None
    normalize: bool = False
    search: DecodingOptions = PAPER_OPTIONS
    generation: GenerationOptions = DEFAULT_GENERATION

    @property
    def target_language(self) -> str:
        """The code of the language that a translation model translates into by default."""
        return _default_target_language(self.imported_token_template, self.task)

    def normalized(self, text: str) -> str:
        """Return the model's input for a text: normalized (:mod:`headway.text.normalization`), or unchanged."""
        return normalize(text) if self.normalize else text

    @classmethod
    @abstractmethod
    def assemble(cls, config: BundleConfig, model: Model, source: TextTokenizer, target: TextTokenizer) -> AnyBundle:
        """Return the bundle of a model that was loaded from a folder with this ``config``."""

    @property
    @abstractmethod
    def tokenizers(self) -> dict[str, TextTokenizer]:
        """The tokenizers, by side: "source", and "target" if the model has two sides."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the properties that a service reports about the model: languages, labels or context length."""

    @property
    def format_version(self) -> int:
        """The oldest version of the format that can describe the model."""
        return 2

    @classmethod
    def load(cls: type[BundleT], folder: str | Path) -> BundleT:
        """Read a model folder.

        Raises:
            BundleError: A file is missing, damaged or of the wrong kind. The message names the file.
        """
        folder = Path(folder)
        outline = cls.load_without_weights(folder)
        config, source, path = read_config(folder), outline.tokenizers["source"], folder / "model.safetensors"
        target = outline.tokenizers.get("target", source)
        model = build_without_initialization(config.model, source.vocab_size, len(config.labels) or target.vocab_size)
        if config.quantization is None:
            load_weights(model, read_weights(path), path)
        else:
            from headway.engine.int8_weights import check_dtypes, set_int8_weights

            tensors = map_weights(path)
            check_dtypes(tensors, path)
            set_int8_weights(model, tensors, quantize_embeddings=config.quantization.embeddings)
        model.eval()
        return replace(cast("Any", outline), model=model)  # type: ignore[no-any-return]

    @classmethod
    def load_without_weights(cls: type[BundleT], folder: str | Path) -> BundleT:
        """Read a model folder without its weights. The weights of the returned model are on PyTorch's meta device.

        Raises:
            BundleError: A file is missing, or its header shows that it is damaged or of the wrong kind.
        """
        folder = Path(folder)
        config = read_config(folder)
        bundle_type = BUNDLE_TYPES[config.task.kind]
        if not issubclass(bundle_type, cls):
            raise BundleError(f"{folder}: a model that {bundle_type.purpose}; expected one that {cls.purpose}")
        if architecture_of(config.model).capability != bundle_type.capability:
            raise _config_error(folder, ValueError(f"a {config.model.kind} model cannot do {config.task.kind}"))
        source, target = config.load_tokenizers()
        if config.imported_token_template is not None:
            with _config_errors(folder):
                _check_template(config.imported_token_template, source, target)
        path = folder / "model.safetensors"
        shapes = read_shapes(path)
        model = _without_weights(config, source.vocab_size, len(config.labels) or target.vocab_size, len(shapes))
        check_weights(_expected_shapes(config, model, shapes), shapes, path)
        return cast("BundleT", bundle_type.assemble(config, model, source, target))

    def save(self, folder: str | Path, model_card: str, *, quantization: Quantization | None = None) -> None:
        """Write the model folder atomically.

        Args:
            folder: Path of the folder. An existing folder is replaced when the new one is complete.
            model_card: The content of README.md.
            quantization: How to store weights as integers. None means that their data types are kept.

        Raises:
            ConfigError: The model or the machine does not support the quantization.
        """
        source = self.tokenizers["source"]
        target = self.tokenizers.get("target", source)
        joint = target is source or target.fingerprint == source.fingerprint
        names = {"source": _JOINT, "target": _JOINT} if joint else {"source": _SOURCE, "target": _TARGET}
        config: dict[str, Any] = {
            "format": self.format_version if quantization is None else 3,
            "task": self.task.as_dict(),
            "model": self.model.config.as_dict(),
            **({"labels": list(self.labels)} if self.labels else {}),
            "tokenizers": names,
            **({"normalize": True} if self.normalize else {}),
            **({} if quantization is None else {"quantization": quantization.as_dict()}),
        }
        if self.imported_token_template is not None:
            config["framing"] = self.imported_token_template.as_dict()
        config |= DefaultOptions(self.search, self.generation).as_dict()
        with atomic_write_folder(Path(folder)) as aside:
            if quantization is None:
                write_weights(named_weights(self.model), aside / "model.safetensors")
            else:
                write_aligned_weights(_in_integers(self.model, quantization), aside / "model.safetensors")
            for name, tokenizer in {names["source"]: source, names["target"]: target}.items():
                tokenizer.save(aside, name)
            (aside / "README.md").write_text(model_card, encoding="utf-8")
            content = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
            (aside / "config.json").write_text(content, encoding="utf-8")


@dataclass(frozen=True)
class Bundle(AnyBundle):
    """A translation model with its tokenizers and its task.

    ``imported_token_template`` is the special-token template of an imported model, or of a model whose encoder comes
    from a language model. It is None for other models that Headway trained, which all use the default template
    (:attr:`token_template`).
    """

    capability: ClassVar[Capability] = "translates"
    purpose: ClassVar[str] = "translates"

    task: TaskConfig
    model: TranslationModel
    source_tokenizer: TextTokenizer
    target_tokenizer: TextTokenizer
    imported_token_template: SpecialTokenTemplate | None = None
    normalize: bool = False
    search: DecodingOptions = PAPER_OPTIONS

    @property
    def tokenizers(self) -> dict[str, TextTokenizer]:
        """The tokenizers of both sides, by name: "source" and "target"."""
        return {"source": self.source_tokenizer, "target": self.target_tokenizer}

    @property
    def format_version(self) -> int:
        """The oldest version of the format that can describe the model."""
        return 1 if self.imported_token_template is None else 2

    @cached_property
    def token_template(self) -> SpecialTokenTemplate:
        """The special-token template of a sentence. Default: EOS, and a language tag if the model has tags."""
        return self.imported_token_template or default_token_template(self.source_tokenizer)

    def describe(self) -> dict[str, Any]:
        """Return the languages of the model, and whether calls must name them."""
        sources, targets = self.token_template.source_languages, self.token_template.target_languages
        # any target language can also be the source
        read = targets if self.task.source_language == ANY_LANGUAGE else ()
        return {
            "source_languages": sources or read or (self.task.source_language,),
            "target_languages": targets or (self.task.target_language,),
            "takes_source_language": bool(sources),
            "takes_target_language": bool(targets),
        }

    @classmethod
    def assemble(cls, config: BundleConfig, model: Model, source: TextTokenizer, target: TextTokenizer) -> Bundle:
        """Return the bundle of a model that was loaded from a folder with this ``config``."""
        template = config.imported_token_template
        return cls(
            config.task,
            cast("TranslationModel", model),
            source,
            target,
            template,
            config.normalize,
            config.defaults.search,
        )


class _OneSidedBundle(AnyBundle):
    """Base class of the bundles of models that use a single tokenizer."""

    tokenizer: TextTokenizer

    @property
    def tokenizers(self) -> dict[str, TextTokenizer]:
        """The tokenizer, under the name "source". There is no target tokenizer."""
        return {"source": self.tokenizer}


@dataclass(frozen=True)
class ClassifierBundle(_OneSidedBundle):
    """A classifier with its tokenizer and the names of its classes, in the order of its logits."""

    capability: ClassVar[Capability] = "labels"
    purpose: ClassVar[str] = "classifies texts"

    task: TaskConfig
    model: ClassificationModel
    tokenizer: TextTokenizer
    labels: tuple[str, ...]
    normalize: bool = False

    def describe(self) -> dict[str, Any]:
        """Return the labels of the model."""
        return {"labels": self.labels}

    @classmethod
    def assemble(cls, config: BundleConfig, model: Model, source: TextTokenizer, _: TextTokenizer) -> ClassifierBundle:
        """Return the bundle of a classifier that was loaded from a folder with this ``config``."""
        return cls(config.task, cast("ClassificationModel", model), source, config.labels, config.normalize)


@dataclass(frozen=True)
class LanguageModelBundle(_OneSidedBundle):
    """A language model with its tokenizer.

    ``imported_token_template`` contains the special tokens that an imported model expects before a prompt. It is None
    for models that Headway trained: their prompts begin with BOS.
    """

    capability: ClassVar[Capability] = "continues"
    purpose: ClassVar[str] = "continues texts"

    task: TaskConfig
    model: ContinuationModel
    tokenizer: TextTokenizer
    imported_token_template: SpecialTokenTemplate | None = None
    normalize: bool = False
    generation: GenerationOptions = DEFAULT_GENERATION

    def normalized(self, text: str) -> str:
        """Return the model's input for a text: with normalized characters, or unchanged."""
        return normalize_characters(text) if self.normalize else text

    @property
    def prompt_prefix(self) -> tuple[int, ...]:
        """The special tokens before a prompt: BOS, or the prefix that the tokenizer of an imported model adds."""
        template = self.imported_token_template
        return (BOS,) if template is None else template.fill().source_prefix

    @property
    def extra_eos_ids(self) -> tuple[int, ...]:
        """Additional tokens that end a text like EOS: the tokens after EOS in the template of an imported model."""
        template = self.imported_token_template
        return () if template is None else template.fill().source_suffix[1:]

    @property
    def context_length(self) -> int | None:
        """The length of the longest text that the model was trained on, in tokens with BOS.

        None for a model that carries its state, whose context is the entire preceding text.
        """
        return None if self.model.carries_state else self.model.config.max_length

    def describe(self) -> dict[str, Any]:
        """Return the model's context length in tokens."""
        return {"context_length": self.context_length}

    @classmethod
    def assemble(
        cls, config: BundleConfig, model: Model, source: TextTokenizer, _: TextTokenizer
    ) -> LanguageModelBundle:
        """Return the bundle of a language model that was loaded from a folder with this ``config``."""
        template = config.imported_token_template
        model, normalize = cast("ContinuationModel", model), config.normalize
        return cls(config.task, model, source, template, normalize, config.defaults.generation)


@dataclass(frozen=True)
class MaskedLanguageModelBundle(_OneSidedBundle):
    """A masked language model with its tokenizer, which has a mask token."""

    capability: ClassVar[Capability] = "fills"
    purpose: ClassVar[str] = "fills in hidden words"

    task: TaskConfig
    model: FillingModel
    tokenizer: TextTokenizer
    normalize: bool = False

    def normalized(self, text: str) -> str:
        """Return the model's input for a text: with normalized characters, or unchanged."""
        return normalize_characters(text) if self.normalize else text

    def describe(self) -> dict[str, Any]:
        """Return the length of the longest text that the model was trained on, in tokens with BOS and EOS."""
        return {"context_length": self.model.config.max_length}

    @classmethod
    def assemble(
        cls, config: BundleConfig, model: Model, source: TextTokenizer, _: TextTokenizer
    ) -> MaskedLanguageModelBundle:
        """Return the bundle of a masked language model that was loaded from a folder with this ``config``."""
        if source.mask_id is None:
            raise _config_error(config.folder, ValueError("the tokenizer has no mask token"))
        return cls(config.task, cast("FillingModel", model), source, config.normalize)


_BUNDLE_TYPES: dict[str, type[AnyBundle]] = {
    "translation": Bundle,
    "classification": ClassifierBundle,
    "language_model": LanguageModelBundle,
    "masked_language_model": MaskedLanguageModelBundle,
}
BUNDLE_TYPES: KindRegistry[type[AnyBundle]] = KindRegistry("task.kind", _BUNDLE_TYPES)
"""The class that reads and writes model folders for each task. Other packages add tasks (:mod:`headway.kinds`) with
:func:`headway.tasks.register`.
"""


def load_bundle(folder: str | Path) -> AnyBundle:
    """Read a model folder of any task.

    Raises:
        BundleError: A file is missing, damaged or not from Headway. The message names the file.
    """
    return AnyBundle.load(folder)


def load_without_weights(folder: str | Path) -> AnyBundle:
    """Read a model folder of any task without its weights; see :meth:`AnyBundle.load_without_weights`.

    Raises:
        BundleError: A file is missing, damaged or not from Headway. The message names the file.
    """
    return AnyBundle.load_without_weights(folder)


def read_config(folder: str | Path) -> BundleConfig:
    """Read and validate a model folder's config.json."""
    folder = Path(folder)
    content = _read_json(folder)
    with _config_errors(folder):
        task = TaskConfig.parse_saved(content["task"], "task")
        model = parse_model_config(content["model"], "model")
        template = SpecialTokenTemplate.parse_saved(content["framing"], "framing") if "framing" in content else None
        labels = _labels(content["labels"]) if BUNDLE_TYPES[task.kind].capability == "labels" else ()
        source, target = (_tokenizer_name(folder, content["tokenizers"][side]) for side in ("source", "target"))
        normalize = content.get("normalize", False)
        if not isinstance(normalize, bool):
            raise ValueError(f"normalize: expected true or false, got {normalize!r}")
        quantization = None
        if "quantization" in content:
            quantization = Quantization.parse_saved(content["quantization"], "quantization")
            if model.kind not in _QUANTIZED_KINDS:
                raise ValueError(f"quantization: a {model.kind} model cannot be stored in 8-bit integers")
        defaults = DefaultOptions.parse_saved(content)
    names = source, target
    return BundleConfig(folder, task, model, labels, template, names, normalize, quantization, defaults)


def require_float_weights(folder: str | Path, purpose: str) -> None:
    """Raise :class:`ConfigError` if the weights in a model folder are integers, because ``purpose`` needs floating
    point.
    """
    if read_config(folder).quantization is not None:
        raise ConfigError(
            f"{folder}: its weights are 8-bit integers (headway export --quantization int8), but {purpose} needs "
            "floating-point weights; use the model that it was exported from"
        )


def _default_target_language(template: SpecialTokenTemplate | None, task: TaskConfig) -> str:
    return (template and template.target_language) or task.target_language


def default_token_template(tokenizer: TextTokenizer) -> SpecialTokenTemplate:
    """Return the special-token template of a model that Headway trained from random weights."""
    languages = {language_of_tag(tag): tokenizer.tag_id(tag) for tag in tokenizer.tags}
    return SpecialTokenTemplate(source_prefix=("target_language",) if languages else (), languages=languages)


def _tokenizer_name(folder: Path, name: object) -> str:
    """Check and return the name of a tokenizer's files. They must be in ``folder`` itself and must not link outside it.

    Links within a repository of the Hugging Face cache (from ``snapshots/REVISION`` to ``blobs``) are accepted.
    """
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"tokenizer {name!r}: expected the name of a file in this folder, without its extension")
    home = folder.resolve()
    root = home.parent.parent if home.parent.name == "snapshots" else home
    for path in (folder / f"{name}.json", folder / f"{name}.spm"):
        if not path.resolve().is_relative_to(root):
            raise ValueError(f"{path.name} is a link to a file outside the folder; replace it with a copy of that file")
    return name


def _labels(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not names or len({str(name) for name in names}) < len(names):
        raise ValueError("labels: expected a list of distinct names")
    return tuple(map(str, names))


def _check_template(template: SpecialTokenTemplate, source: TextTokenizer, target: TextTokenizer) -> None:
    """Raise an error if a token id is outside its vocabulary."""
    source_slots = *template.source_prefix, *template.source_suffix, *template.languages.values()
    for slots, tokenizer in ((source_slots, source), (template.target_prefix, target)):
        for slot in slots:
            if isinstance(slot, int) and not 0 <= slot < tokenizer.vocab_size:
                raise ValueError(f"framing: id {slot} is not in a vocabulary of {tokenizer.vocab_size:,} tokens")


@contextmanager
def _config_errors(folder: Path) -> Iterator[None]:
    """Convert errors about missing or invalid values in config.json to :class:`BundleError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise _config_error(folder, error) from None


def _config_error(folder: Path, error: Exception) -> BundleError:
    detail = f"no {error}" if isinstance(error, KeyError) else error
    return BundleError(f"{folder / 'config.json'}: not a Headway model's configuration ({detail})")


def _read_json(folder: Path) -> dict[str, Any]:
    """Read config.json and check its format version."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise BundleError(f"{folder}: no such folder; expected a model folder such as runs/NAME/best")
    if not path.is_file():
        hint = "expected config.json, model.safetensors and tokenizer files in it"
        if (inside := find_model_folder(folder)) is not None:
            hint = f"did you mean {inside}?"
        elif (folder / "state.json").is_file() and folder.parent.name == "checkpoints":
            run = folder.parent.parent
            hint = (
                f"it is a training checkpoint. {run / 'best'} is the best model, and headway average {run} --last 1 "
                "-o FOLDER creates a model folder from the newest checkpoint"
            )
        raise BundleError(f"{folder}: not a model folder; {hint}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        # raises an error if there are lone surrogates, which cannot be printed
        json.dumps(config, ensure_ascii=False).encode()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: damaged ({error}); copy the folder again from its source") from None
    if not isinstance(config, dict) or type(config.get("format")) is not int or config["format"] < 1:
        hint = f"; headway import huggingface:{folder} converts it" if _is_of_transformers(config) else ""
        raise BundleError(f"{path}: not a Headway model's configuration (no format version){hint}")
    if config["format"] > FORMAT_VERSION:
        raise BundleError(
            f"{path}: format version {config['format']}, but this Headway supports at most {FORMAT_VERSION}; "
            "update Headway"
        )
    return config


def _is_of_transformers(config: object) -> bool:
    return isinstance(config, dict) and "model_type" in config


def find_model_folder(run: Path) -> Path | None:
    """Return the model folder in a run folder: the folder that training chose, otherwise "best", otherwise any."""
    names = ["best", *sorted(path.parent.name for path in run.glob("*/config.json"))]
    with suppress(OSError, UnicodeDecodeError):
        names.insert(0, (run / CHOSEN_MODEL_FILE).read_text(encoding="utf-8").strip())
    return next((run / name for name in names if (run / name / "config.json").is_file()), None)


def build_without_initialization(config: ArchitectureConfig, source_size: int, target_size: int) -> Model:
    """Build a model without initializing its weights, which will be loaded afterwards.

    Args:
        config: The model's configuration.
        source_size: Size of the source vocabulary.
        target_size: Size of the target vocabulary, or number of classes.
    """
    with skip_initialization():
        return build_model(config, source_size, target_size)


def _expected_shapes(config: BundleConfig, model: Model, stored: dict[str, Shape]) -> dict[str, Shape]:
    """Return the expected shapes of the weights file. With quantization, they depend on the ``stored`` shapes."""
    weights = named_weights(model)
    if config.quantization is None:
        return shapes_of(weights)
    from headway.engine.int8_weights import expected_shapes

    return expected_shapes(model, weights, stored, quantize_embeddings=config.quantization.embeddings)


def _in_integers(model: Model, quantization: Quantization) -> dict[str, Tensor]:
    """Return the tensors that are stored in a model folder with integer weights.

    Raises:
        ConfigError: The model or the machine does not support integer weights.
    """
    if model.config.kind not in _QUANTIZED_KINDS:
        raise ConfigError(f"quantization int8: a {model.config.kind} model cannot be stored in 8-bit integers")
    from headway.engine import search_precision
    from headway.engine.int8_weights import tensors_to_store

    search_precision(model, "int8", model.device)
    from headway.engine.int8_recording import quantized_layers  # imports Numba

    layers = quantized_layers(cast("Any", model))
    return tensors_to_store(model, named_weights(model), layers, quantize_embeddings=quantization.embeddings)


def _without_weights(config: BundleConfig, source_size: int, target_size: int, stored: int) -> Model:
    """Build the configured model on the meta device, which allocates no weights.

    Args:
        config: The content of config.json.
        source_size: Size of the source vocabulary.
        target_size: Size of the target vocabulary, or number of classes.
        stored: Number of weights in the folder. Each layer has at least one weight.
    """
    for name, value in flatten_items(config.model.as_dict()):
        if name.endswith("_layers") and value > stored:
            reason = f"model.{name} = {value}, but model.safetensors has {stored} weights"
            raise _config_error(config.folder, ValueError(reason))
    try:
        with torch.device("meta"), skip_initialization():
            return build_model(config.model, source_size, target_size)
    except ConfigError as error:
        path = config.folder / "config.json"
        raise BundleError(f"{path}: does not fit the tokenizers in this folder ({error})") from None
    except (RuntimeError, TypeError, ValueError, OverflowError):  # sizes too large for a tensor
        raise _config_error(config.folder, ValueError("model: sizes too large for any tensor")) from None
