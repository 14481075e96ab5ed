"""Decide whether a language model may generate in int8, by comparing its most probable tokens in int8 and float32.

Some pretrained models have outliers: channels with much larger values than the others. Outliers leave too few 8-bit
levels for the other channels (Dettmers et al. 2022, "LLM.int8()"). How much they change a model can only be measured.
The check runs the model on passages of a built-in text and compares the most probable token at each position. The
choice of text hardly matters, because outliers are properties of the weights.

The check computes one position at a time, like generation. It takes about as long as generating the same number of
tokens, so ``headway import`` stores the result in the model folder. Models trained with Headway are not checked,
because each process would have to repeat the check.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from headway.config import Config
from headway.data.builtin.poem import read_poem
from headway.decode.inference import in_inference_mode
from headway.engine import SearchDecoderOnly, search_precision, to_search_model
from headway.errors import BundleError, ConfigError
from headway.models.decoder_only import DecoderOnly
from headway.storage import atomic_write_text
from headway.text.base import NUM_SPECIAL, UNK, TextTokenizer
from headway.weights import check_readable

INT8_CHECK_FILE = "int8_check.json"
"""Name of the file that stores the check's result in a model folder."""

MIN_AGREEMENT = 0.96
"""Minimum agreement for int8: 94 %, plus two standard deviations of a proportion measured on 512 tokens."""

_SURE_AGREEMENT = 0.98  # if the first quarter of the passages reaches this agreement, the others are skipped
_TOKENS, _LENGTH = 512, 32  # total number of tokens, and number of tokens per passage
_CHARACTERS = 16 * _TOKENS  # characters to tokenize, which are enough even if tokens are long
_MAX_UNKNOWN = 0.2  # share of unknown tokens above which random tokens are used instead of the text


class Int8Check(Config):
    """The agreement between a language model in int8 and in float32.

    Attributes:
        format: Version of the check and of its file format.
        tokens: Number of compared positions.
        agreement: Share of positions at which the most probable token is the same.
    """

    format: Literal[1] = 1
    tokens: int = Field(ge=1)
    agreement: float = Field(ge=0, le=1)

    @property
    def passed(self) -> bool:
        """Whether the model may generate in int8."""
        return self.agreement >= MIN_AGREEMENT

    def describe(self) -> str:
        """Return a sentence that describes the result."""
        share = f"{100 * self.agreement:.1f} % of {self.tokens:,} tokens of a test text"
        needed = "" if self.passed else f"; int8 needs {100 * MIN_AGREEMENT:.0f} %"
        return f"the most probable token is the same in int8 and float32 for {share}{needed}"


@runtime_checkable
class ChoosesPrecision(Protocol):
    """A model that may switch from int8 to another precision because of a check."""

    def precision_note(self) -> str | None:
        """Return why the model does not generate in int8 although int8 would be fastest, or None."""


def measure_int8_agreement(model: DecoderOnly, tokenizer: TextTokenizer, prefix: Sequence[int]) -> Int8Check | None:
    """Check a model in int8 on the CPU. Return None if the model or the machine does not support int8."""
    if search_precision(model, "auto", torch.device("cpu")) != "int8":
        return None
    int8_model = cast("SearchDecoderOnly", to_search_model(model, "int8"))
    return check_int8(model, int8_model, tokenizer, prefix)


@in_inference_mode
def check_int8(
    model: DecoderOnly, int8_model: SearchDecoderOnly, tokenizer: TextTokenizer, prefix: Sequence[int]
) -> Int8Check:
    """Compare a model in float32 with the same model in int8.

    Args:
        model: The model in float32.
        int8_model: The same model in int8.
        tokenizer: The model's tokenizer.
        prefix: Special tokens that the model expects before a text.
    """
    length = max(min(_LENGTH, model.config.max_length - len(prefix)), 1)
    rows = torch.tensor(_test_tokens(tokenizer)[: _TOKENS // length * length]).view(-1, length)
    equal = compared = 0
    for part in torch.tensor_split(rows, [len(rows) // 4]):
        equal += _count_equal(model, int8_model, part, prefix)
        compared += part.numel()
        if equal >= _SURE_AGREEMENT * compared:
            break
    return Int8Check(tokens=compared, agreement=equal / compared)


def _count_equal(
    model: DecoderOnly, int8_model: SearchDecoderOnly, rows: Int[Tensor, "B T"], prefix: Sequence[int]
) -> int:
    """Return the number of positions in ``rows`` after which both models predict the same most probable token."""
    inputs = torch.cat([torch.tensor(prefix, dtype=torch.long).expand(len(rows), -1), rows], dim=1)
    hidden, state = model.hidden(inputs), int8_model.start([()] * len(rows))
    equal = 0
    for position, tokens in enumerate(inputs.unbind(1)):
        logits = int8_model.step(state, tokens).logits()
        if position >= len(prefix):
            same = logits.argmax(1) == model.projection(hidden[:, position]).argmax(1)
            equal += int((same & ~logits.isnan().any(1)).sum())
    return equal


def _test_tokens(tokenizer: TextTokenizer) -> list[int]:
    """Return the first tokens of a poem, or random tokens if too many of the poem's tokens are unknown."""
    tokens = tokenizer.encode(read_poem()[:_CHARACTERS])[:_TOKENS]
    if len(tokens) == _TOKENS and tokens.count(UNK) <= _MAX_UNKNOWN * _TOKENS:
        return tokens
    return random.Random(0).choices(range(NUM_SPECIAL, tokenizer.vocab_size), k=_TOKENS)


def write_int8_check(check: Int8Check, folder: Path) -> None:
    """Write the result of a check to a model folder."""
    atomic_write_text(folder / INT8_CHECK_FILE, json.dumps(check.as_dict()) + "\n")


def read_int8_check(folder: Path) -> Int8Check | None:
    """Return the result stored in a model folder, or None if there is none.

    Raises:
        BundleError: The file is damaged.
    """
    path = folder / INT8_CHECK_FILE
    if not path.exists():
        return None
    check_readable(path)
    try:
        return Int8Check.parse_saved(json.loads(path.read_text(encoding="utf-8")), "content")
    except (ConfigError, OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path}: not the result of an int8 check, or damaged ({error}); delete it") from None
