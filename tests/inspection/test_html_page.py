"""The page: self-contained, safe for any text, and with the numbers of the inspection."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch

from headway.errors import ConfigError
from headway.inspection.html_page import render_html
from headway.inspection.page_data import MAX_DRAWN_TOKENS, REPLY_MAX_WEIGHT, is_right_to_left, page_data
from headway.inspection.results import (
    AttentionMap,
    Inspection,
    LabelAttribution,
)
from headway.predict import TokenAlternative
from headway.predict.language_modeling.predicted_tokens import PredictedToken
from headway.text.visible_tokens import make_visible

HOSTILE = '</script><script>alert("x")</script><!--<img src=x onerror=alert(1)>&lt;\u2028]]>'


def inspection(tokens: tuple[str, ...] = ("das", " rote", " Haus", "<eos>"), heads: int = 2) -> Inspection:
    steps = tuple(
        PredictedToken(token, -0.5, 1, False, (TokenAlternative(token, -0.5), TokenAlternative(HOSTILE, -1.5)))
        for token in ("red", HOSTILE, "<eos>")
    )
    sizes = {"encoder": (len(tokens), len(tokens)), "decoder": (3, 3), "cross": (3, len(tokens))}
    maps = tuple(
        AttentionMap(kind, layer, tuple(range(1, heads + 1)), torch.rand(heads, *size).softmax(2), f"{kind}.{layer}")  # type: ignore[arg-type]
        for kind, size in sizes.items()
        for layer in (1, 2)
    )
    return Inspection(
        model=f"runs/{HOSTILE}",
        architecture="transformer",
        source="".join(tokens),
        source_tokens=tokens,
        maps=maps,
        target=f"red{HOSTILE}",
        steps=steps,
        alignment=((1, 0), (2, 1)),
        alignment_layer=1,
    )


class Reader(HTMLParser):
    """Parses the page like a browser."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("aria-labelledby", "aria-describedby", "for"):
                self.references += (value or "").split()
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


class TestWhole:
    def test_it_needs_nothing_else(self) -> None:
        text = render_html(inspection(("ein", " Satz")))
        shape = Reader(text)
        names = {name for _, attributes in shape.tags for name in attributes}
        assert not names & {"src", "href", "action", "data", "poster", "srcset"}
        assert not {tag for tag, _ in shape.tags} & {"link", "img", "iframe", "object", "base"}
        outside_of_data = text.replace(shape.scripts[0], "")
        addresses = set(re.findall(r"\w+://[^\s\"']+", outside_of_data))
        assert addresses == {"http://www.w3.org/2000/svg"}  # a name, never fetched
        assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket|import\(", outside_of_data)

    def test_its_policy_forbids_every_request(self) -> None:
        shape = Reader(render_html(inspection()))
        policy = next(a["content"] or "" for tag, a in shape.tags if tag == "meta" and "http-equiv" in a)
        assert "default-src 'none'" in policy
        assert "http" not in policy

    def test_it_starts_as_a_page_for_every_reader(self) -> None:
        text = render_html(inspection())
        shape = Reader(text)
        assert text.startswith("<!DOCTYPE html>")
        assert dict(shape.tags)["html"] == {"lang": "en"}
        assert any(a.get("name") == "viewport" for tag, a in shape.tags if tag == "meta")
        assert not re.search(r"transition|animation|@keyframes|requestAnimationFrame", text)  # nothing is animated
        assert "light dark" in text
        assert len(shape.ids) == len(set(shape.ids))
        assert set(shape.references) <= set(shape.ids)
        assert "{{" not in text.replace(shape.scripts[0], "")

    def test_whatever_answers_to_the_pointer_answers_to_the_keyboard(self) -> None:
        program = Reader(render_html(inspection())).scripts[1]
        entered = re.findall(r'(\w+)\.addEventListener\("pointerenter"', program)
        assert sorted(entered) == ["chip", "line", "text"]
        assert not re.search(r"^(import|export) ", program, re.MULTILINE)  # there is nothing to import from
        for name in entered:
            assert f'{name}.addEventListener("focus"' in program
        # The definition first; then tokens, heads, steps, and tokens of the alignment.
        assert program.count("moveFocus(event, ") == 5
        (said,) = re.findall(r".*this\.said\.textContent = .*", program)
        assert "if (" in said  # screen readers announce only changes

    def test_every_element_that_the_program_asks_for_is_there(self) -> None:
        shape = Reader(render_html(inspection()))
        asked = set(re.findall(r'\$\("([\w-]+)"\)', shape.scripts[1]))
        assert len(asked) > 15
        assert asked <= set(shape.ids)


class TestHostileTexts:
    def test_text_is_never_markup(self) -> None:
        shape = Reader(render_html(inspection((HOSTILE, "a"))))
        kinds = [attributes.get("type") for tag, attributes in shape.tags if tag == "script"]
        assert kinds == ["application/json", "module"]
        assert not any(name.startswith("on") for _, attributes in shape.tags for name in attributes)
        assert shape.data["source"] == HOSTILE + "a"
        assert shape.data["model"] == f"runs/{HOSTILE}"

    def test_no_character_of_the_data_can_end_it(self) -> None:
        data = Reader(render_html(inspection((HOSTILE,)))).scripts[0]
        assert not set("<>&") & set(data)

    def test_the_program_never_writes_markup(self) -> None:
        program = Reader(render_html(inspection())).scripts[1]
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", program)

    def test_braces_in_a_text_are_no_places(self) -> None:
        shape = Reader(render_html(inspection(("{{js}}", "\\1"))))
        assert shape.data["sides"]["source"] == ["{{js}}", "\\1"]


class TestNumbers:
    def test_weights_survive_the_packing(self) -> None:
        seen = inspection()
        data = Reader(render_html(seen)).data
        assert [kind["id"] for kind in data["kinds"]] == ["cross", "encoder", "decoder"]
        for kind in data["kinds"]:
            for packed, each in zip(kind["maps"], seen.maps_of_kind(kind["id"]), strict=True):
                numbers = np.frombuffer(base64.b64decode(packed["weights"]), "<u2").reshape(each.weights.shape)
                np.testing.assert_allclose(numbers / 65535, each.weights.numpy(), rtol=0, atol=0.51 / 65535)
                assert (packed["layer"], packed["heads"]) == (each.layer, list(each.heads))

    def test_weights_of_one_byte(self) -> None:
        seen = inspection()
        data = page_data(seen, REPLY_MAX_WEIGHT)
        for kind in data["kinds"]:
            for packed, each in zip(kind["maps"], seen.maps_of_kind(kind["id"]), strict=True):
                numbers = np.frombuffer(base64.b64decode(packed["weights"]), "u1").reshape(each.weights.shape)
                np.testing.assert_allclose(numbers / data["max_weight"], each.weights.numpy(), rtol=0, atol=0.51 / 255)

    def test_probabilities_and_alignment(self) -> None:
        data = Reader(render_html(inspection())).data
        assert data["steps"][0]["probability"] == pytest.approx(0.6065, abs=1e-4)  # e^-0.5
        assert data["log_probability"] == -1.5
        assert data["alignment"] == [[1, 0], [2, 1]]
        assert data["sides"]["input"] == ["<bos>", "red", make_visible(HOSTILE)]

    def test_what_is_shown_first(self) -> None:
        seen = inspection()
        assert Reader(render_html(seen)).data["view"] == {"kind": "cross", "layer": 2, "head": 0}
        assert Reader(render_html(seen, "encoder", 1, -1)).data["view"] == {"kind": "encoder", "layer": 1, "head": 2}
        with pytest.raises(ConfigError, match="layer 3: expected 1 to 2"):
            render_html(seen, "cross", 3)

    def test_a_text_too_long_to_draw_says_so_and_shows_the_rest(self) -> None:
        seen = inspection(("a",) * (MAX_DRAWN_TOKENS + 1), heads=1)
        data = Reader(render_html(seen)).data
        assert data["kinds"] == []
        assert "201 tokens" in data["omitted"]
        assert ".json" in data["omitted"]
        assert len(data["steps"]) == 3
        assert Reader(render_html(inspection(("a",) * MAX_DRAWN_TOKENS, heads=1))).data["omitted"] is None

    def test_a_model_without_attention(self) -> None:
        bare = replace(inspection(), maps=(), alignment=(), alignment_layer=None)
        data = Reader(render_html(bare)).data
        assert (data["kinds"], data["view"]) == ([], None)
        with pytest.raises(ConfigError, match="it has no attention at all"):
            render_html(bare, "cross")
        for layer, head in ((77, None), (None, 99)):
            with pytest.raises(ConfigError, match="has no attention to show"):
                render_html(bare, layer=layer, head=head)

    def test_a_classifier(self) -> None:
        seen = Inspection(
            model="m",
            architecture="classifier",
            source="ab",
            source_tokens=("a", "b"),
            maps=(AttentionMap("pooling", 1, (1,), torch.tensor([[[0.25, 0.75]]])),),
            labels={HOSTILE: 0.75, "y": 0.25},
            attribution=LabelAttribution(HOSTILE, (0.5, -0.5)),
        )
        data = Reader(render_html(seen)).data
        assert data["labels"] == [[HOSTILE, 0.75], ["y", 0.25]]
        assert data["attribution"] == {"label": HOSTILE, "values": [0.5, -0.5]}
        assert data["kinds"][0]["rows"] == "text"
        assert len(data["sides"]["text"]) == 1


def test_direction() -> None:
    assert is_right_to_left("שלום world, מה שלומך")
    assert is_right_to_left("السلام")
    assert not is_right_to_left("Hello שלום")
    assert not is_right_to_left("123")
    shown = Reader(render_html(replace(inspection(), source="שלום"))).data["right_to_left"]
    assert (shown["source"], shown["target"]) == (True, False)
