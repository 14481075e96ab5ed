"""docs/moving.md: its options and defaults of ours are those of the code, and its map of weights gives the same logits.

The model of The Annotated Transformer is written from the description of that page, in as few lines as possible and
without Headway's layers.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor, nn

import headway.models
import headway.nn
from headway.cli import app
from headway.decode.request import DecodingOptions, length_penalty
from headway.predict.translation.plan import MAX_EXTRA_TOKENS

DOCS = Path(__file__).parents[1] / "docs"
GUIDE = (DOCS / "moving.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
D, H, F, N, V, W = 16, 4, 24, 2, 13, 17
SIZES: dict[str, int] = {"d_model": D, "num_heads": H, "d_ff": F, "layers": N}


def weights() -> dict[str, Tensor]:
    """Return random weights under the names of the state dict of ``make_model``."""
    attention = {
        f"linears.{i}.{kind}": (D, D)[: 1 + (kind == "weight")] for i in range(4) for kind in ("weight", "bias")
    }
    feed_forward = {"w_1.weight": (F, D), "w_1.bias": (F,), "w_2.weight": (D, F), "w_2.bias": (D,)}
    shapes: dict[str, tuple[int, ...]] = {}
    for side, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "src_attn"])):
        for layer in (f"{side}.layers.{i}" for i in range(N)):
            for name in attentions:
                shapes |= {f"{layer}.{name}.{key}": shape for key, shape in attention.items()}
            shapes |= {f"{layer}.feed_forward.{key}": shape for key, shape in feed_forward.items()}
            for number in range(len(attentions) + 1):
                shapes |= {f"{layer}.sublayer.{number}.norm.{key}": (D,) for key in ("a_2", "b_2")}
        shapes |= {f"{side}.norm.{key}": (D,) for key in ("a_2", "b_2")}
    shapes |= {"src_embed.0.lut.weight": (V, D), "tgt_embed.0.lut.weight": (W, D)}
    shapes |= {"src_embed.1.pe": (1, 50, D), "tgt_embed.1.pe": (1, 50, D)}
    shapes |= {"generator.proj.weight": (W, D), "generator.proj.bias": (W,)}
    return {name: torch.randn(shape) * (0.3 if len(shape) > 1 else 1) for name, shape in shapes.items()}


class Annotated:
    """The model of these weights: pre-norm, a norm after each stack, sines and cosines alternating."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        return self.weights[f"{name}.a_2"] * centered / (x.std(-1, keepdim=True) + 1e-6) + self.weights[f"{name}.b_2"]

    def embed(self, side: str, tokens: Tensor) -> Tensor:
        x = self.weights[f"{side}_embed.0.lut.weight"][tokens] * math.sqrt(D)
        for position in range(tokens.size(1)):
            for i in range(0, D, 2):
                angle = position / 10000 ** (i / D)
                x[:, position, i] += math.sin(angle)
                x[:, position, i + 1] += math.cos(angle)
        return x

    def attend(self, name: str, query: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            torch.unflatten(self.linear(f"{name}.linears.{i}", x), -1, (H, -1)).transpose(1, 2)
            for i, x in enumerate((query, memory, memory))
        )
        scores = (q @ k.transpose(2, 3) / math.sqrt(D // H)).masked_fill(~mask[:, None], -1e9)
        return self.linear(f"{name}.linears.3", (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        return self.linear(f"{name}.w_2", self.linear(f"{name}.w_1", x).relu())

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        source_mask = (source != 0)[:, None]
        target_mask = torch.ones(target.size(1), target.size(1)).tril()[None] > 0
        x = self.embed("src", source)
        for layer in (f"encoder.layers.{i}" for i in range(N)):
            y = self.norm(f"{layer}.sublayer.0.norm", x)
            x = x + self.attend(f"{layer}.self_attn", y, y, source_mask)
            x = x + self.feed_forward(f"{layer}.feed_forward", self.norm(f"{layer}.sublayer.1.norm", x))
        memory, x = self.norm("encoder.norm", x), self.embed("tgt", target)
        for layer in (f"decoder.layers.{i}" for i in range(N)):
            y = self.norm(f"{layer}.sublayer.0.norm", x)
            x = x + self.attend(f"{layer}.self_attn", y, y, target_mask)
            y = self.norm(f"{layer}.sublayer.1.norm", x)
            x = x + self.attend(f"{layer}.src_attn", y, memory, source_mask)
            x = x + self.feed_forward(f"{layer}.feed_forward", self.norm(f"{layer}.sublayer.2.norm", x))
        return self.linear("generator.proj", self.norm("decoder.norm", x))


def test_its_map_gives_the_logits_of_the_other_model() -> None:
    names: dict[str, Any] = {}
    exec(EXAMPLE, names)
    given = weights()
    source, target = torch.randint(1, V, (3, 7)), torch.randint(1, W, (3, 5))
    source[1, 4:] = 0
    with torch.no_grad():
        ours = names["load_annotated"](given, **SIZES)(source, target)
        torch.testing.assert_close(ours, Annotated(given).logits(source, target), rtol=1e-4, atol=1e-4)


def test_every_name_of_ours_exists() -> None:
    table = re.search(r"\| paper \| Headway .*?\n\n", GUIDE, re.DOTALL)
    assert table is not None
    ours = [row.split("|")[2] for row in table[0].splitlines()[2:] if row]
    known = set(headway.nn.__all__) | set(headway.models.__all__)
    named = {name for cell in ours for name in re.findall(r"`([A-Za-z_]+)`", cell)} - {"greedy_decode"}
    assert len(named) > 12
    assert named <= known


def test_every_option_that_it_names_exists() -> None:
    fields = headway.models.TransformerConfig.model_fields
    named = set(re.findall(r"`(\w+) = ", GUIDE)) - {"schedule"}
    assert len(named) > 6
    assert named <= fields.keys()
    assert issubclass(headway.models.Transformer, nn.Module)


def section(heading: str) -> str:
    return re.split(r"^## ", GUIDE.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]


def first_cells(heading: str, column: int = 1) -> list[str]:
    """Return a column of the first table in a section, without its head."""
    rows = [line for line in section(heading).splitlines() if line.startswith("| ")]
    return [re.split(r"(?<!\\)\|", row)[column].strip() for row in rows[1:]]


@cache
def options_of(*words: str) -> dict[str, Any]:
    """Return the options of a command, by their names on the command line."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    parameters = command.get_params(typer.Context(command))
    return {name: option for option in parameters for name in (*option.opts, *option.secondary_opts)}


def given_defaults(cell: str) -> list[tuple[list[str], list[str]]]:
    """Return the names in a cell, and the defaults in the parentheses that follow them."""
    found = re.findall(r"((?:`[^`]+`(?:, )?)+) ?(?:\(([^()]*)\))?", cell)
    return [(re.findall(r"`([^`]+)`", names), defaults.split(", ") if defaults else []) for names, defaults in found]


def value(text: str) -> object:
    """Return what a default in a table stands for."""
    known: dict[str, object] = {"none": None, "true": True, "false": False}
    with suppress(ValueError):
        return float(text)
    return known.get(text, text.strip('"'))


def test_every_command_of_ours_has_the_options_that_it_shows() -> None:
    calls = re.findall(r"`headway ([^`]*)`", GUIDE)
    assert len(calls) > 15
    for call in calls:
        name, *words = call.split()
        known = options_of(name)
        assert {word for word in words if word.startswith("-")} <= known.keys(), call


def test_every_option_of_translating_exists_and_has_its_default() -> None:
    checked = 0
    for cell in first_cells("Translating", 2):
        for names, defaults in given_defaults(cell):
            assert set(names) <= options_of("translate").keys(), cell
            field = DecodingOptions.model_fields.get(names[0].removeprefix("--").replace("-", "_"))
            if len(names) == 1 and field is not None and defaults and defaults[0].isdecimal():
                assert field.default == int(defaults[0]), cell
                checked += 1
    assert checked >= 2
    assert "((5 + n) / 6)^0.6" in section("Translating")
    assert DecodingOptions().length_penalty == 0.6
    assert length_penalty(7, 2.0) == ((5 + 7) / 6) ** 2
    assert length_penalty(7, 2.0, "average") == 7**2
    assert (MAX_EXTRA_TOKENS, DecodingOptions().normalization) == (50, "gnmt")


def test_every_key_of_a_recipe_exists_and_has_its_default() -> None:
    known = documented_keys("recipe.md", {"[model]": "'transformer'", "[validation]": "'translation'"})
    checked = 0
    for cell in first_cells("Training"):
        (names, defaults), *_ = given_defaults(cell)
        assert set(names) <= known.keys(), cell
        for name, default in zip(names, defaults if len(names) == len(defaults) else defaults[:1] * 2, strict=False):
            assert value(known[name]) == value(default), cell
            checked += 1
    assert checked > 30
    for text in re.findall(r"`([a-z]+\.[a-z_.]+) = ", section("Training")):
        assert text in known, text


def test_every_key_of_serving_exists_and_has_its_default() -> None:
    known, options = documented_keys("serve_toml.md", {}), options_of("serve")
    checked = 0
    for cell in first_cells("Serving", 2)[1:]:
        for names, defaults in given_defaults(cell):
            for name in names:
                if name.startswith("--"):
                    assert name in options
                elif name not in ("/metrics", "[[keys]]"):
                    assert {name, f"keys.{name}"} & known.keys(), name
            if defaults and defaults[0].isdecimal():  # of the last of the names
                assert value(known[names[-1].removeprefix("--")]) == value(defaults[0]), cell
                checked += 1
    assert checked >= 4


def documented_keys(page: str, kinds: dict[str, str]) -> dict[str, str]:
    """Return the default of each key on a page that is generated from the configuration, by its dotted name.

    ``kinds`` chooses the section of a table that has several.
    """
    text, keys = (DOCS / page).read_text(encoding="utf-8"), dict[str, str]()
    for part in re.split(r"^## `", text, flags=re.MULTILINE)[1:]:
        heading = part.splitlines()[0]
        table = re.match(r"\[*([\w.]*)\]*", heading)
        assert table is not None
        wanted = kinds.get(f"[{table[1]}]")
        if (wanted is None and " with " in heading) or (wanted is not None and wanted not in heading):
            continue
        prefix = "" if heading.startswith("serve.toml") else f"{table[1]}."
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", part, re.MULTILINE)
        keys |= {f"{prefix}{name}": default.strip("`") for name, default in rows}
    return keys
