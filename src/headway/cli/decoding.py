"""Command-line options for decoding and text generation, which are derived from the fields of configuration classes.

Names, types, defaults and help texts are declared only once, in :class:`DecodingOptions`, :class:`Sampling` and
:class:`GenerationOptions`. The classes are imported when a command with these options runs or prints its help, so that
the list of commands can be printed without loading PyTorch.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from headway.decode.request import DecodingOptions

_GIVEN: ContextVar[Mapping[str, Any]] = ContextVar("given", default=MappingProxyType({}))
_PANEL = "Search"


def decoding_options() -> DecodingOptions:
    """Return the decoding options that the user gave to the running command.

    Raises:
        ConfigError: A value is out of range, or two options cannot be combined.
    """
    from headway.decode.request import DecodingOptions, Sampling
    from headway.errors import ConfigError

    given = _given_options()
    sampling = {name: given.pop(name) for name in Sampling.model_fields if name in given}
    if given.pop("sample", False):
        return DecodingOptions.parse({**given, "sampling": sampling}, "options")
    if sampling:
        raise ConfigError(f"{_flag(next(iter(sampling)))} is a sampling option; add --sample, or leave it out")
    return DecodingOptions.parse(given, "options")


def generation_options(model: Path) -> dict[str, Any]:
    """Return the text generation options from the command line, keyed by the field of :class:`GenerationOptions`.

    Raises:
        BundleError: ``model`` is not a model folder.
        ConfigError: A value is out of range, or two options, or an option and a default of the model, cannot be
            combined.
    """
    from headway.bundle import read_config
    from headway.decode.generation_options import GenerationOptions

    given = _given_options()
    GenerationOptions.from_defaults(read_config(model).defaults.generation, given)
    return given


def _given_options() -> dict[str, Any]:
    given = _GIVEN.get().items()
    return {name: value for name, value in given if value is not None and value is not False and value != []}


@cache
def _decoding_parameters() -> list[Any]:
    from headway.decode.request import DecodingOptions, Sampling

    fields = dict(DecodingOptions.model_fields)
    help_text = fields.pop("sampling").description
    sample = Annotated[bool, typer.Option("--sample", help=help_text, rich_help_panel=_PANEL)]
    signature = [
        *(_parameter(name, field) for name, field in fields.items()),
        inspect.Parameter("sample", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=sample),
        *(_parameter(name, field, "With --sample: ") for name, field in Sampling.model_fields.items()),
    ]
    return _typer_parameters(signature)


@cache
def _generation_parameters() -> list[Any]:
    from headway.decode.generation_options import GenerationOptions

    return _typer_parameters([_parameter(name, field) for name, field in GenerationOptions.model_fields.items()])


def _typer_parameters(signature: list[inspect.Parameter]) -> list[Any]:
    """Return the command-line parameters that Typer creates from a function's signature."""

    def search() -> None:
        """Do nothing. Only the signature is used."""

    search.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(search)
    return list(typer.main.get_command(app).params)


def _parameter(name: str, field: FieldInfo, condition: str = "") -> inspect.Parameter:
    """Return the option for a field. Its default is None, so that the field's own default applies."""
    description = field.description or ""
    text = condition + (description[:1].lower() + description[1:] if condition else description)
    if field.default == ():
        text += " May be repeated."
    elif "Default:" not in text:
        text += f" Default: {'none' if field.default is None else field.default}."
    option = typer.Option(_flag(name), help=text, show_default=False, rich_help_panel=_PANEL)
    kind = Annotated[_plain(field.annotation) | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _plain(annotation: Any) -> Any:
    """Return ``annotation`` without None, and a list type (a repeatable option) for a variable-length tuple."""
    if get_origin(annotation) in (Union, UnionType):
        return next(part for part in get_args(annotation) if part is not type(None))
    return list[str] if annotation == tuple[str, ...] else annotation


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class _GeneratedOptionsCommand(TyperCommand):
    """A command with generated options in addition to the parameters of its function.

    Attributes:
        generated: Function that returns the generated options as command-line parameters.
    """

    generated: ClassVar[staticmethod[..., list[Any]]]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the function, followed by the generated options."""
        return [*super().get_params(ctx), *self.generated()]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and store the generated options separately from the parameters of the function."""
        rest = super().parse_args(ctx, args)
        token = _GIVEN.set({parameter.name: ctx.params.pop(parameter.name) for parameter in self.generated()})
        ctx.call_on_close(partial(_GIVEN.reset, token))
        return rest


class DecodingCommand(_GeneratedOptionsCommand):
    """A command with all decoding options. Its function gets them from :func:`decoding_options`."""

    generated = staticmethod(_decoding_parameters)


class GenerationCommand(_GeneratedOptionsCommand):
    """A command with all text generation options. Its function gets them from :func:`generation_options`."""

    generated = staticmethod(_generation_parameters)
