"""Tokenize a text as a model does, and inspect what the model attends to and predicts, from Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headway.bundle import AnyBundle
from headway.calls.run import resolve_model
from headway.errors import ConfigError
from headway.inspection.inspect_text import inspect as inspect_model
from headway.inspection.results import Inspection
from headway.notebook_html import DOUBT_COLOR, join_fragments, paragraph, shaded_words, text
from headway.predict.results import abbreviate
from headway.text.base import MergeStep
from headway.text.visible_tokens import make_visible


@dataclass(frozen=True)
class TokenizedText:
    """A text and its tokens.

    Attributes:
        text: The normalized text.
        tokens: The tokens as they are displayed.
        ids: The tokens' ids in the vocabulary.
        merges: The byte-pair encoding merges, in the order in which they are applied; empty for other tokenizers.
    """

    text: str
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    merges: tuple[MergeStep, ...]

    def __repr__(self) -> str:
        return f"<TokenizedText: {len(self.tokens):,} tokens, {abbreviate('|'.join(self.tokens))}>"

    def _repr_html_(self) -> str:
        numbered = enumerate(zip(self.tokens, self.ids, strict=True))
        words = [(make_visible(token), 0.3 + 0.3 * (index % 2), f"id {id_}") for index, (token, id_) in numbered]
        return join_fragments(paragraph(text(self.text), note=True), paragraph(shaded_words(words, DOUBT_COLOR)))


def tokenize(model: str | Path | Any, text: str, *, side: Literal["source", "target"] = "source") -> TokenizedText:
    """Tokenize a text as a model does, without adding special tokens.

    Args:
        model: A run or its folder, a model folder, or a model that :func:`headway.load` returned.
        text: The text to tokenize.
        side: The side whose vocabulary to use.

    Raises:
        ConfigError: The model has no tokenizer for this side.
        BundleError: ``model`` is not a model folder.
    """
    name = str(model) if isinstance(model, (str, Path)) else "the model"
    return tokenize_side(resolve_model(model).bundle, text, side, name)


def tokenize_side(bundle: AnyBundle, text: str, side: str, name: str) -> TokenizedText:
    """Tokenize a text with a bundle's tokenizer for ``side``. Messages refer to the model as ``name``.

    Raises:
        ConfigError: The bundle has no tokenizer for this side.
    """
    tokenizer = bundle.tokenizers.get(side)
    if tokenizer is None:
        raise ConfigError(f"--side {side}: {name} is a model that {bundle.purpose}, so it has no {side} text")
    text = bundle.normalized(text)
    merges = tuple(tokenizer.merge_steps(text))
    return TokenizedText(text, tuple(tokenizer.tokens(text)), tuple(tokenizer.encode(text)), merges)


def inspect(
    model: str | Path | Any,
    source: str,
    target: str | None = None,
    *,
    alternatives: int | None = None,
    target_language: str | None = None,
    source_language: str | None = None,
    max_new_tokens: int | None = None,
    device: str = "auto",
) -> Inspection:
    """Run a model on a text and return its attention, alignment and predictions, which a notebook shows as a page.

    Args:
        model: A run or its folder, a model folder, or a model that :func:`headway.load` returned.
        source: The source text, the prompt of a language model, or a text with or without [MASK].
        target: The translation, the continuation, or the label to explain. None means the model's own.
        alternatives: Number of most probable tokens at each position. None means five.
        target_language: The language to translate into, if the model has several.
        source_language: The language of the source, for imported models that need it.
        max_new_tokens: Maximum length of a language model's own continuation. None means 20.
        device: The device for a model that is passed as a folder.

    Returns:
        The inspection. Attention maps have the shape (H, T, S): heads, queries (rows), and keys (columns).

    Raises:
        HeadwayError: The text is blank or too long, or an argument does not fit the model.
    """
    is_folder = isinstance(model, (str, Path))
    return inspect_model(
        resolve_model(model, device),
        source,
        target,
        name=str(model) if is_folder else "model",
        alternatives=alternatives,
        target_language=target_language,
        source_language=source_language,
        max_new_tokens=max_new_tokens,
    )
