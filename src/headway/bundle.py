"""The model folder, or bundle: everything that a trained model needs, in one folder that can be copied and published.

    config.json           format version, task, languages or labels, model configuration, names of the tokenizer files
    model.safetensors     the weights, each once, under names that never change
    tokenizer.json        one joint vocabulary, or source.tokenizer.json and target.tokenizer.json
    README.md             the model card

Nothing in it is a pickle, and nothing in it is run. Folders of older format versions load for ever. Version 2
is that of imported models: its tokenizers may be those of another toolkit (a SentencePiece model stands beside its JSON
as tokenizer.spm), and config.json contains the special tokens around a sentence ("framing").
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headway.config import Config, nearest
from headway.errors import BundleError, ConfigError
from headway.models.classifier import EncoderClassifier
from headway.models.registry import (
    AnyConfig,
    Model,
    Output,
    TranslationModel,
    architecture_of,
    build_model,
    parse_model_config,
)
from headway.storage import atomic_write_folder
from headway.text.base import TextTokenizer
from headway.text.loading import load_tokenizer
from headway.text.special_tokens import SpecialTokenTemplate
from headway.text.tokenizer import language_of

__all__ = [
    "AnyBundle",
    "Bundle",
    "ClassifierBundle",
    "TaskConfig",
    "load_bundle",
    "load_weights",
    "named_weights",
    "own_template",
    "placed_like",
    "read_model_config",
    "read_task",
    "read_template",
    "read_tokenizers",
    "read_weights",
    "write_weights",
]

FORMAT = 2  # the newest that is read; see Bundle.save for which is written
_JOINT, _SOURCE, _TARGET = "tokenizer", "source.tokenizer", "target.tokenizer"


class TaskConfig(Config):
    """What a model is for."""

    kind: Literal["translation", "classification"] = Field(
        "translation", description="One sequence to another, or a text to one of several labels."
    )
    source_language: str = Field("source", description="Language of the sources, as a BCP 47 tag such as de.")
    target_language: str = Field("target", description="Language of the targets; classification has none.")


@dataclass(frozen=True)
class Bundle:
    """A translation model with its tokenizers and its task.

    ``imported_template`` is the special-token template of an imported model; None for Headway's own models, which all
    have the same one (:attr:`token_template`).
    """

    output: ClassVar[Output] = "tokens"
    purpose: ClassVar[str] = "translates"
    labels: ClassVar[tuple[str, ...]] = ()

    task: TaskConfig
    model: TranslationModel
    source_tokenizer: TextTokenizer
    target_tokenizer: TextTokenizer
    imported_template: SpecialTokenTemplate | None = None

    @property
    def tokenizers(self) -> dict[str, TextTokenizer]:
        """The tokenizer of each side: source and target."""
        return {"source": self.source_tokenizer, "target": self.target_tokenizer}

    @property
    def token_template(self) -> SpecialTokenTemplate:
        """The special tokens around a sentence: for Headway's own models a language tag, if any, and the end symbol."""
        return self.imported_template or own_template(self.source_tokenizer)

    def save(self, folder: Path, card: str) -> None:
        """Write the folder, whole or not at all. ``card`` becomes README.md."""
        joint = self.source_tokenizer.fingerprint == self.target_tokenizer.fingerprint
        names = (_JOINT, _JOINT) if joint else (_SOURCE, _TARGET)
        facts: dict[str, Any] = {"tokenizers": {"source": names[0], "target": names[1]}}
        if self.imported_template is not None:
            facts["framing"] = self.imported_template.as_dict()
        tokenizers = {names[0]: self.source_tokenizer, names[1]: self.target_tokenizer}
        version = 1 if self.imported_template is None else 2
        _save(folder, self.task, self.model, card, tokenizers, {"format": version, **facts})

    @classmethod
    def load(cls, folder: Path) -> Bundle:
        """Read a model folder; :class:`BundleError` names the file that is missing, damaged or foreign."""
        return _load_as(cls, folder)

    @classmethod
    def assemble(
        cls,
        task: TaskConfig,
        model: Model,
        tokenizers: tuple[TextTokenizer, TextTokenizer],
        _labels: tuple[str, ...],
        template: SpecialTokenTemplate | None,
    ) -> Bundle:
        """Make a bundle of the parts of a model folder."""
        return cls(task, cast("TranslationModel", model), *tokenizers, template)


@dataclass(frozen=True)
class ClassifierBundle:
    """A classifier with its tokenizer and the names of its classes, in the order of its logits."""

    output: ClassVar[Output] = "label"
    purpose: ClassVar[str] = "classifies texts"

    task: TaskConfig
    model: EncoderClassifier
    tokenizer: TextTokenizer
    labels: tuple[str, ...]

    @property
    def tokenizers(self) -> dict[str, TextTokenizer]:
        """The tokenizer of the only side: the source."""
        return {"source": self.tokenizer}

    def save(self, folder: Path, card: str) -> None:
        """Write the folder, whole or not at all. ``card`` becomes README.md."""
        facts = {"format": 2, "labels": list(self.labels), "tokenizers": {"source": _JOINT, "target": _JOINT}}
        _save(folder, self.task, self.model, card, {_JOINT: self.tokenizer}, facts)

    @classmethod
    def load(cls, folder: Path) -> ClassifierBundle:
        """Read a model folder; :class:`BundleError` names the file that is missing, damaged or foreign."""
        return _load_as(cls, folder)

    @classmethod
    def assemble(
        cls,
        task: TaskConfig,
        model: Model,
        tokenizers: tuple[TextTokenizer, TextTokenizer],
        labels: tuple[str, ...],
        _template: SpecialTokenTemplate | None,
    ) -> ClassifierBundle:
        """Make a bundle of the parts of a model folder."""
        return cls(task, cast("EncoderClassifier", model), tokenizers[0], labels)


AnyBundle = Bundle | ClassifierBundle

# The registry: how the folder of each kind of task is read.
_BUNDLES: dict[str, type[Bundle] | type[ClassifierBundle]] = {
    "translation": Bundle,
    "classification": ClassifierBundle,
}

BundleT = TypeVar("BundleT", Bundle, ClassifierBundle)


def _load_as(kind: type[BundleT], folder: Path) -> BundleT:
    bundle = load_bundle(folder)
    if not isinstance(bundle, kind):
        raise BundleError(f"{folder}: a model that {bundle.purpose}; expected one that {kind.purpose}")
    return bundle


def _save(
    folder: Path,
    task: TaskConfig,
    model: Model,
    card: str,
    tokenizers: dict[str, TextTokenizer],
    facts: dict[str, Any],
) -> None:
    config = {"format": facts["format"], "task": task.as_dict(), "model": model.config.as_dict(), **facts}
    with atomic_write_folder(folder) as aside:
        write_weights(named_weights(model), aside / "model.safetensors")
        for name, tokenizer in tokenizers.items():
            tokenizer.save(aside, name)
        (aside / "README.md").write_text(card, encoding="utf-8")
        (aside / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_bundle(folder: Path) -> AnyBundle:
    """Read a model folder of any task; :class:`BundleError` names the file that is missing, damaged or foreign."""
    config = _read_config(folder)
    task = _task(folder, config)
    model_config, template = _model_config(folder, config), _template(folder, config)
    with _explained(folder):
        bundle_type = _BUNDLES[task.kind]
        labels = _labels(config["labels"]) if bundle_type.output == "label" else ()
    source, target = _tokenizers(folder, config)
    if template is not None:
        with _explained(folder):
            _check_template(template, source, target)
    path = folder / "model.safetensors"
    shapes = _stored_shapes(path)
    target_size = len(labels) or target.vocab_size
    _check_weights(_expected_shapes(folder, model_config, source.vocab_size, target_size, len(shapes)), shapes, path)
    with _WithoutRandomValues():
        model = build_model(model_config, source.vocab_size, target_size)
    if architecture_of(model_config).output != bundle_type.output:
        raise _foreign(folder, ValueError(f"a {model.config.kind} is no model for {task.kind}"))
    load_weights(model, read_weights(path), path)
    model.eval()
    return bundle_type.assemble(task, model, (source, target), labels, template)


def read_task(folder: Path) -> TaskConfig:
    """What the model in ``folder`` is for."""
    return _task(folder, _read_config(folder))


def _task(folder: Path, config: dict[str, Any]) -> TaskConfig:
    with _explained(folder):
        return TaskConfig.parse(config["task"], "task")


def read_model_config(folder: Path) -> AnyConfig:
    """How the model in ``folder`` is built."""
    return _model_config(folder, _read_config(folder))


def _model_config(folder: Path, config: dict[str, Any]) -> AnyConfig:
    with _explained(folder):
        return parse_model_config(config["model"], "model")


def read_template(folder: Path) -> SpecialTokenTemplate | None:
    """What stands around the sentences of the model in ``folder``, if it is an imported one; else None."""
    return _template(folder, _read_config(folder))


def _template(folder: Path, config: dict[str, Any]) -> SpecialTokenTemplate | None:
    with _explained(folder):
        return SpecialTokenTemplate.parse(config["framing"], "framing") if "framing" in config else None


def own_template(tokenizer: TextTokenizer) -> SpecialTokenTemplate:
    """Return the special tokens around the sentences of a model that Headway trained from scratch."""
    languages = {language_of(tag): tokenizer.tag_id(tag) for tag in tokenizer.tags}
    return (
        SpecialTokenTemplate(source_prefix=("target_language",), languages=languages)
        if languages
        else SpecialTokenTemplate()
    )


def read_tokenizers(folder: Path) -> tuple[TextTokenizer, TextTokenizer]:
    """The source's and the target's tokenizer of a model folder; the same object where they are one."""
    return _tokenizers(folder, _read_config(folder))


def _tokenizers(folder: Path, config: dict[str, Any]) -> tuple[TextTokenizer, TextTokenizer]:
    with _explained(folder):
        names = config["tokenizers"]
        source_name, target_name = _inside(folder, names["source"]), _inside(folder, names["target"])
    source = load_tokenizer(folder, source_name)
    return source, source if target_name == source_name else load_tokenizer(folder, target_name)


def _inside(folder: Path, name: object) -> str:
    """Return the name of a tokenizer's files, which must be in ``folder`` itself and may not be links out of it.

    A link that stays within one repository of the Hugging Face cache (``snapshots/REVISION`` links to ``blobs``) is
    accepted.
    """
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"tokenizer {name!r}: expected the name of a file in this folder, without its ending")
    home = folder.resolve()
    root = home.parent.parent if home.parent.name == "snapshots" else home
    for path in (folder / f"{name}.json", folder / f"{name}.spm"):
        if not path.resolve().is_relative_to(root):
            raise ValueError(f"{path.name} is a link to a file outside the folder; replace it by a copy of that file")
    return name


def _labels(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not names or len({str(name) for name in names}) < len(names):
        raise ValueError("labels: expected a list of different names")
    return tuple(map(str, names))


def _check_template(template: SpecialTokenTemplate, source: TextTokenizer, target: TextTokenizer) -> None:
    """Refuse ids that the embeddings have no row for."""
    languages = tuple(template.languages.values())
    for slots, tokenizer in (
        ((*template.source_prefix, *template.source_suffix, *languages), source),
        (template.target_prefix, target),
    ):
        for slot in slots:
            if isinstance(slot, int) and not 0 <= slot < tokenizer.vocab_size:
                raise ValueError(f"framing: id {slot} is not in a vocabulary of {tokenizer.vocab_size:,} tokens")


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Inside, what is missing from config.json or makes no sense there becomes a :class:`BundleError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise _foreign(folder, error) from None


def _foreign(folder: Path, error: Exception) -> BundleError:
    detail = f"no {error}" if isinstance(error, KeyError) else error
    return BundleError(f"{folder / 'config.json'}: not a Headway model's configuration ({detail})")


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not folder.is_dir():
        raise BundleError(f"{folder}: no such folder; expected a model folder such as runs/NAME/best")
    if not path.is_file():
        best = sorted(folder.glob("*/config.json"))
        hint = (
            f"did you mean {best[0].parent}?"
            if best
            else "expected config.json, model.safetensors and tokenizer files in it"
        )
        raise BundleError(f"{folder}: not a model folder; {hint}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(config, ensure_ascii=False).encode()  # no lone surrogates, which cannot be printed
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path}: damaged ({error}); copy the folder again from its source") from None
    if not isinstance(config, dict) or type(config.get("format")) is not int or config["format"] < 1:
        raise BundleError(f"{path}: not a Headway model's configuration (no format version)")
    if config["format"] > FORMAT:
        raise BundleError(f"{path}: format {config['format']} is newer than this Headway's {FORMAT}; update Headway")
    return config


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Each weight once, under its public name; of tied weights the first name stays."""
    state = model.state_dict(keep_vars=True)  # tied weights are one parameter, of which `state` holds on to each
    first_names = {id(tensor): name for name, tensor in reversed(state.items())}
    return {name: tensor.detach() for name, tensor in state.items() if first_names[id(tensor)] == name}


def write_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Write tensors as safetensors."""
    path.touch()
    mode = path.stat().st_mode  # a new file's; safetensors lets only its owner read it
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in weights.items()}, path)
        path.chmod(mode)
    except SafetensorError as error:
        raise OSError(f"cannot write {path.name}: {error}") from None


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; :class:`BundleError` says what is wrong with it."""
    with _explained_weights(path):
        return load_file(path)


def load_weights(model: nn.Module, weights: dict[str, Tensor], origin: Path) -> None:
    """Put ``weights`` into ``model``; names and shapes must fit exactly."""
    expected = named_weights(model)
    _check_weights(
        {name: tuple(tensor.shape) for name, tensor in expected.items()},
        {name: tuple(tensor.shape) for name, tensor in weights.items()},
        origin,
    )
    model.load_state_dict({name: placed_like(weights[name], tensor) for name, tensor in expected.items()}, strict=False)


Shape = tuple[int, ...]


class _WithoutRandomValues(TorchFunctionMode):
    """Inside, ``torch.nn.init`` draws no random numbers: weights that are read from a file replace all of them."""

    _RANDOM = frozenset(
        {"normal_", "trunc_normal_", "uniform_", "orthogonal_"}
        | {f"{name}_{distribution}_" for name in ("xavier", "kaiming") for distribution in ("normal", "uniform")}
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self._RANDOM:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


class _ShortRanges(TorchFunctionMode):
    """Inside, ``torch.arange`` has at most one element, on the CPU, so tables made of it (no weights) are small.

    On the meta device such tables would import sympy and PyTorch's compiler, which takes longer than loading a model.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.arange:
            return torch.zeros(1, dtype=(kwargs or {}).get("dtype", torch.int64), device="cpu")
        return func(*args, **(kwargs or {}))


def _expected_shapes(
    folder: Path, config: AnyConfig, source_size: int, target_size: int, stored: int
) -> dict[str, Shape]:
    """Return the shape of each weight that ``config`` asks for, without allocating any.

    Args:
        folder: The model folder, for messages.
        config: The model's configuration.
        source_size: Size of the source vocabulary.
        target_size: Size of the target vocabulary, or number of classes.
        stored: How many weights the folder has. A model has at least one in each layer.
    """
    for name, value in config.as_dict().items():
        if name.endswith("_layers") and value > stored:
            raise _foreign(folder, ValueError(f"model.{name} = {value}, but model.safetensors has {stored} weights"))
    try:
        with torch.device("meta"), _WithoutRandomValues(), _ShortRanges():
            model = build_model(config, source_size, target_size)
    except ConfigError as error:
        raise BundleError(f"{folder / 'config.json'}: does not fit the tokenizers beside it ({error})") from None
    except (RuntimeError, TypeError, ValueError, OverflowError):  # sizes that no tensor can have
        raise _foreign(folder, ValueError("model: sizes too large for any tensor")) from None
    return {name: tuple(tensor.shape) for name, tensor in named_weights(model).items()}


def _stored_shapes(path: Path) -> dict[str, Shape]:
    """Return the shape of each tensor in a safetensors file; only its header is read."""
    with _explained_weights(path), safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


@contextmanager
def _explained_weights(path: Path) -> Iterator[None]:
    if not path.is_file():
        raise BundleError(f"{path}: missing; a model folder needs it: copy the folder again from its source")
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise BundleError(
            f"{path}: truncated or not a safetensors file ({error}); copy it again from its source"
        ) from None


def _check_weights(expected: Mapping[str, Shape], stored: Mapping[str, Shape], origin: Path) -> None:
    """Raise :class:`BundleError` unless names and shapes are equal."""
    if missing := sorted(expected.keys() - stored.keys()):
        raise BundleError(
            f"{origin}: weight {missing[0]!r} is missing ({len(missing)} in all); not this model's weights"
        )
    if foreign := sorted(stored.keys() - expected.keys()):
        raise BundleError(f"{origin}: unexpected weight {foreign[0]!r} ({nearest(foreign[0], expected)})")
    for name, shape in expected.items():
        if shape != stored[name]:
            raise BundleError(
                f"{origin}: weight {name!r} has shape {list(stored[name])}; "
                f"config.json and the tokenizers ask for {list(shape)}"
            )


def placed_like(tensor: Tensor, template: Tensor) -> Tensor:
    """``tensor`` on the device of ``template``, and split over processes if that is (a DTensor)."""
    tensor = tensor.to(template.device)
    if not hasattr(template, "full_tensor"):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(template, DTensor)
    return distribute_tensor(tensor, template.device_mesh, template.placements)
