"""The views Why, Write, Fill and Classify in Chromium, by mouse and by keyboard: they show what the API answers.

The models were never trained, so what they say is nonsense; that the page shows the same nonsense is what is tested.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import torch
from browser import accessibility_problems, chromium, needs_chromium, open_page
from playwright.sync_api import Browser, Locator, Page, Route, expect
from running_service import RunningService, running, unpack_model, wait_until

from headway.predict import Classifier, LanguageModel, MaskedLanguageModel
from headway.text.base import EOS

pytestmark = [pytest.mark.slow, needs_chromium]
TEXT = "red tea"
MASKED = "ein [MASK] rote [MASK]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory,
    make_classifier: Callable[..., Classifier],
    make_language_model: Callable[..., LanguageModel],
    make_masked_language_model: Callable[..., MaskedLanguageModel],
) -> Iterator[RunningService]:
    """A model of each kind, and a second translation model for the same languages."""
    folder = tmp_path_factory.mktemp("served")
    translator = unpack_model(folder)
    make_classifier().bundle.save(folder / "classifier", "A test.")
    writer = make_language_model("characters", max_length=2048).bundle
    with torch.no_grad():
        # The last norm's outputs add up to its biases, 16, so that the logit of EOS is -16,000: no text ends by itself.
        writer.model.get_parameter("decoder.norm.bias").fill_(1)
        writer.model.projection.weight[EOS] = -1000
    writer.save(folder / "writer", "A test.")
    make_masked_language_model("characters").bundle.save(folder / "filler", "A test.")
    paths = {"first": translator, "second": translator}
    paths |= {name: folder / name for name in ("classifier", "writer", "filler")}
    lines = [f'[[models]]\nname = "{name}"\npath = "{path}"\nprecision = "auto"' for name, path in paths.items()]
    (folder / "serve.toml").write_text("\n".join(["workers = 1", *lines]))
    with running(["--config", str(folder / "serve.toml")]) as started:
        yield started


def api(service: RunningService, path: str, **body: object) -> Any:
    return httpx.post(f"{service.url}/api/v1/{path}", json=body, timeout=30).raise_for_status().json()


def opened(page: Page, name: str) -> Locator:
    """Open a view, and return it."""
    page.goto(page.url.partition("#")[0] + f"#{name}")
    view = page.locator(f".view-{name}")
    expect(view.locator("textarea").first).to_be_focused()
    return view


@pytest.fixture
def page(browser: Browser, service: RunningService) -> Iterator[Page]:
    with open_page(browser, service.url) as started:
        yield started


# Why


def test_the_words_the_tree_and_the_attention_are_those_of_the_api(page: Page, service: RunningService) -> None:
    view = opened(page, "why")
    page.keyboard.type(TEXT)
    seen = api(service, "inspect", text=TEXT, source="en", target="de")
    expect(view.locator(".translation").first).to_have_text(seen["target"])
    tree = api(service, "search-tree", text=TEXT, source="en", target="de")
    expect(view.locator(".tree .end")).to_have_count(len(tree["ends"]))
    rows = view.locator(".steps tbody tr")
    expect(rows).to_have_count(len(seen["steps"]))
    read = " ".join(f"\u2068{token}\u2069" for token in seen["sides"]["input"])
    expect(rows.last.locator("td").nth(1)).to_have_text(read)
    expect(view.locator(".attention .chips").first.locator(".chip")).to_have_count(len(seen["steps"]))
    before = view.locator(".said").text_content()
    view.locator("canvas.matrix").focus()
    page.keyboard.press("ArrowRight")
    expect(view.locator(".said")).not_to_have_text(before or "")
    view.get_by_label("Encoder self-attention").check()
    expect(view.locator(".attention .chips").first.locator(".chip")).to_have_count(len(seen["sides"]["source"]))


def test_another_word_by_keyboard(page: Page, service: RunningService) -> None:
    view = opened(page, "why")
    page.keyboard.type(TEXT)
    word = view.locator(".translation [role=button]").first
    word.focus()
    page.keyboard.press("Enter")
    panel = view.locator(".forced-word")
    panel.get_by_label("Another word").fill("Haus")
    page.keyboard.press("Enter")
    expected = api(service, "force-word", text=TEXT, source="en", target="de", prefix="", word="Haus")
    expect(panel.locator(".translation")).to_have_text(expected["forced"]["text"])
    factor = math.exp(abs(expected["cost"]))
    expect(panel.locator(".cost")).to_contain_text("equally" if factor < 1.05 else "times")


def test_a_suggested_word_by_mouse(page: Page) -> None:
    view = opened(page, "why")
    page.keyboard.type(TEXT)
    view.locator(".translation [role=button]").first.click()
    suggestion = view.locator(".suggestions button").first
    suggestion.hover()
    page.wait_for_timeout(300)  # the change of the color
    edge = """meter => {
        const { borderTopWidth, borderTopColor, backgroundColor } = getComputedStyle(meter);
        return borderTopWidth === "0px" ? backgroundColor : borderTopColor;
    }"""
    ground = suggestion.evaluate("button => getComputedStyle(button).backgroundColor")
    assert suggestion.locator(".meter").evaluate(edge) != ground
    word = suggestion.locator("bdi").text_content() or ""
    suggestion.click()
    expect(view.locator(".forced .translation")).to_contain_text(
        re.compile(rf"^\W*{re.escape(word)}\b")
    )  # a whole word
    expect(view.locator(".forced .cost")).not_to_be_empty()
    view.get_by_label("Another word").fill("")
    page.keyboard.press("Enter")
    expect(view.locator(".forced .cost")).to_have_count(0)  # it was about another word


def test_a_tree_that_is_too_wide_grows_down(browser: Browser, service: RunningService) -> None:
    with open_page(browser, service.url, viewport={"width": 1280, "height": 800}) as page:
        view = opened(page, "why")
        view.locator("textarea").fill(" ".join([TEXT] * 12))
        tree = view.locator(".tree")
        expect(tree).to_have_class("tree down")
        assert tree.evaluate("tree => tree.scrollWidth <= tree.clientWidth")
        best = tree.locator(".best")
        lefts = {round(box["x"]) for box in map(Locator.bounding_box, best.all()) if box is not None}
        assert len(lefts) == 1  # the best translation reads from top to bottom
        tops = [box["y"] for box in map(Locator.bounding_box, best.all()) if box is not None]
        assert tops == sorted(tops)


def test_translate_leads_to_the_comparison_of_models(page: Page) -> None:
    page.get_by_label("Text to translate").get_by_role("textbox").fill(TEXT)
    expect(page.locator(".output .word").first).to_be_visible()
    page.get_by_role("button", name="Compare the models").click()
    view = page.locator(".view-why")
    expect(view.locator("textarea")).to_have_value(TEXT)
    expect(view.locator(".side-by-side h3").first).to_be_in_viewport()


def test_any_sentence_of_the_text_is_compared(page: Page) -> None:
    page.get_by_label("Text to translate").get_by_role("textbox").fill(f"{TEXT}\nein haus")
    expect(page.locator(".output p").last.locator(".word").first).to_be_visible()
    page.get_by_role("button", name="Compare the models").click()
    view = page.locator(".view-why")
    expect(view.locator(".side-by-side h3").first).to_be_in_viewport()
    view.get_by_label("Sentence of your text").select_option(label="2. ein haus")
    expect(view.locator("textarea")).to_have_value("ein haus")
    expect(view.get_by_text("Translations of “\u2068ein haus\u2069”")).to_be_visible()
    view.get_by_label("Sentence", exact=True).fill("haus")
    expect(view.get_by_label("Sentence of your text")).to_be_hidden()


def test_without_a_text_why_says_how_to_compare_models(page: Page) -> None:
    page.get_by_role("button", name="Compare the models").click()
    view = page.locator(".view-why")
    expect(view.get_by_text("Enter a sentence to see how two models translate it")).to_be_visible()
    view.locator("textarea").fill(TEXT)
    expect(view.locator(".side-by-side h3").first).to_be_visible()


def test_why_takes_the_sentence_of_translate_if_it_has_none(page: Page) -> None:
    page.get_by_role("link", name="Why").click()
    sentence = page.locator(".view-why").get_by_label("Sentence", exact=True)
    expect(sentence).to_have_value("")
    page.get_by_role("link", name="Translate").click()
    page.get_by_label("Text to translate").get_by_role("textbox").fill(TEXT)
    expect(page.locator(".output .word").first).to_be_visible()
    page.get_by_role("link", name="Why").click()
    expect(sentence).to_have_value(TEXT)
    page.get_by_role("link", name="Translate").click()
    page.get_by_label("Text to translate").get_by_role("textbox").fill("nest")
    expect(page.locator(".versions summary")).to_contain_text("nest")
    page.get_by_role("link", name="Why").click()
    expect(sentence).to_have_value("nest")
    page.get_by_role("link", name="Translate").click()
    page.get_by_label("Text to translate").get_by_role("textbox").fill("ice\nnest")
    expect(page.locator(".versions summary")).to_contain_text("ice")
    page.get_by_role("link", name="Why").click()
    expect(sentence).to_have_value("nest")
    expect(page.locator(".view-why").get_by_label("Sentence of your text")).to_have_value("1")
    sentence.fill("ein haus")
    page.get_by_role("link", name="Translate").click()
    page.get_by_role("link", name="Why").click()
    expect(sentence).to_have_value("ein haus")


def test_buttons_lead_to_the_sections_of_why(page: Page) -> None:
    view = opened(page, "why")
    page.keyboard.type(TEXT)
    view.get_by_role("button", name="What the model attends to").click()
    expect(view.get_by_role("heading", name="What the model attends to")).to_be_focused()
    expect(view.get_by_role("heading", name="What the model attends to")).to_be_in_viewport()


def test_the_attention_section_is_german_in_the_german_page(browser: Browser, service: RunningService) -> None:
    with open_page(browser, service.url, locale="de-DE") as page:
        view = opened(page, "why")
        view.locator("textarea").fill(TEXT)
        expect(view.locator(".said")).to_have_text(re.compile(r"^„.*“ \(Zeile 1\) blickt vor allem auf: „.*“ \d,\d+"))
        expect(view.get_by_text("<eos> das Ende des Textes")).to_be_visible()


def test_two_models_that_agree_have_no_marks(page: Page) -> None:
    view = opened(page, "why")
    page.keyboard.type(TEXT)
    expect(view.locator(".side-by-side h3")).to_contain_text(["first", "second"])
    expect(view.locator(".side-by-side mark")).to_have_count(0)  # they are the same model


@pytest.mark.parametrize(("locale", "message"), [("en-US", "at most 200 are"), ("de-DE", "höchstens 200 sind möglich")])
def test_a_text_that_is_too_long_gets_a_plain_message(
    browser: Browser, service: RunningService, locale: str, message: str
) -> None:
    with open_page(browser, service.url, requests_fail=True, locale=locale) as page:
        view = opened(page, "why")
        view.locator("textarea").fill("ein haus " * 200)
        expect(view.get_by_role("alert").first).to_contain_text(message)
        expect(view.locator(".results")).to_be_hidden()


def test_translate_hands_its_sentence_and_the_word_to_why(page: Page) -> None:
    text = page.get_by_label("Text to translate").get_by_role("textbox")
    text.fill(TEXT)
    word = page.locator(".output .word").last
    chosen = word.text_content() or ""
    word.click()
    page.get_by_role("menuitem", name=f"Why “\u2068{chosen}\u2069”?").click()
    view = page.locator(".view-why")
    expect(view.locator("textarea")).to_have_value(TEXT)
    expect(view.locator(".translation").first).not_to_be_empty()
    expect(view.locator(".forced-word")).to_contain_text(f"Why “\u2068{chosen}\u2069”, and not another word?")
    expect(view.get_by_role("button", name="Show the model's own translation")).to_be_hidden()  # it is shown
    expect(view.locator(".translation .token.open")).to_be_focused()
    expect(view.locator(".attention .said")).to_contain_text(f"{chosen[0]}")
    expect(view.locator(".attention .said")).not_to_contain_text("(row 1)")


# Write


def start_writing(view: Locator, **options: str) -> None:
    view.locator(".more summary").click()
    for label, value in options.items():
        view.get_by_label(label.replace("_", " ")).fill(value)


def test_a_text_is_written_and_continued_from_another_token(page: Page, service: RunningService) -> None:
    view = opened(page, "write")
    page.keyboard.type("ein")
    start_writing(view, Temperature="0", Tokens_to_write="8")
    view.get_by_role("button", name="Write", exact=True).click()
    options = {"temperature": 0, "max_new_tokens": 8}
    (whole,) = api(service, "generate", prompt="ein", options=options)["continuations"][0]
    expect(view.locator(".text")).to_have_text("ein" + whole["text"], use_inner_text=False)
    tokens = view.locator(".token")
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    other = view.locator("[role=menuitemradio]:not([aria-disabled])").first
    other.focus()
    name = (other.locator("b").text_content() or "").replace("␣", " ")
    first = whole["tokens"][0]
    page.keyboard.press("Enter")
    expect(view.locator(".token.chosen")).to_have_count(1)
    expect(view.get_by_role("button", name="Continue")).to_be_visible()
    (more,) = api(service, "generate", prompt="ein" + first + name, options=options)["continuations"][0]
    expect(view.locator(".text")).to_have_text("ein" + first + name + more["text"])
    view.locator(".token.chosen").focus()
    page.keyboard.press("Control+z")  # the prompt stays
    expect(view.locator(".token").nth(1)).to_be_focused()
    expect(view.locator(".text")).to_have_text("ein" + whole["text"])
    expect(view.locator(".controls textarea")).to_have_value("ein")


@pytest.mark.parametrize("language", ["en", "de"])
def test_five_prompts_to_start_from(page: Page, language: str) -> None:
    view = opened(page, "write")
    page.get_by_label("Language of this page").select_option(language)
    buttons, field = view.locator(".starts button"), view.locator(".controls textarea")
    expect(buttons).to_have_count(5)
    texts = set()
    for number in range(5):
        buttons.nth(number).click()
        expect(field).to_be_focused()
        texts.add(field.input_value())
    assert len(texts - {""}) == 5


def test_a_stop_text_ends_the_text_and_is_not_part_of_it(page: Page, service: RunningService) -> None:
    options = {"temperature": 0, "max_new_tokens": 12}
    (whole,) = api(service, "generate", prompt="ein", options=options)["continuations"][0]
    stop = whole["text"][6:8]
    before = whole["text"][: whole["text"].index(stop)]
    view = opened(page, "write")
    page.keyboard.type("ein")
    start_writing(view, Temperature="0", Tokens_to_write="12")
    view.get_by_label("Stop texts").fill(f"never written\n{stop}")
    view.get_by_role("button", name="Write", exact=True).click()
    expect(view.get_by_role("status")).to_contain_text("stop text")
    expect(view.locator(".text")).to_have_text("ein" + before, use_inner_text=False)


def test_each_control_says_what_it_does(page: Page) -> None:
    view = opened(page, "write")
    view.locator(".help summary").click()
    expect(view.locator(".help dt")).to_have_count(6)
    for field in view.locator(".settings input, .settings textarea").all():
        about = field.get_attribute("aria-describedby")
        assert view.locator(f"#{about}").text_content()


def test_the_menu_of_a_token_shows_how_the_text_would_go_on(page: Page, service: RunningService) -> None:
    view = opened(page, "write")
    page.keyboard.type("ein")
    start_writing(view, Temperature="0", Tokens_to_write="8")
    view.get_by_role("button", name="Write", exact=True).click()
    expect(view.locator(".token")).to_have_count(8)
    view.locator(".token").first.click()
    other = view.locator("[role=menuitemradio]:not([aria-disabled])").first
    name = (other.locator("b").text_content() or "").replace("␣", " ")
    (more,) = api(service, "generate", prompt="ein" + name, options={"temperature": 0, "max_new_tokens": 12})[
        "continuations"
    ][0]
    expect(other.locator(".name")).to_have_text(f"{name.replace(' ', '␣')}{more['text']}")


def test_the_probabilities_of_tokens_are_shown(page: Page) -> None:
    view = opened(page, "write")
    start_writing(view, Temperature="0", Tokens_to_write="4")
    view.get_by_role("button", name="Write", exact=True).click()
    expect(view.get_by_role("button", name="Continue")).to_be_focused()
    view.locator(".token").first.hover()
    expect(view.locator(".token-info")).to_contain_text("sure of it")


def test_what_is_written_is_copied_and_its_status_is_never_stale(browser: Browser, service: RunningService) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    with open_page(browser, service.url, permissions=permissions) as page:
        view = opened(page, "write")
        page.keyboard.type("ein")
        start_writing(view, Temperature="0", Tokens_to_write="4")
        view.get_by_role("button", name="Write", exact=True).click()
        expect(view.get_by_role("status")).to_contain_text("adds more")
        view.get_by_role("button", name="Copy").click()
        expect(view.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == view.locator(".text").text_content()
        view.locator(".controls textarea").fill("eine")
        expect(view.get_by_role("status")).to_be_empty()


def test_a_continuation_is_undone_or_written_again(page: Page) -> None:
    view = opened(page, "write")
    page.keyboard.type("ein")
    start_writing(view, Temperature="0", Tokens_to_write="4")
    undo, text = view.get_by_role("button", name="Undo"), view.locator(".text")
    expect(undo).to_be_disabled()
    view.get_by_role("button", name="Write", exact=True).click()
    expect(view.locator(".token")).to_have_count(4)
    undo.click()
    expect(view.locator(".token")).to_have_count(0)
    expect(undo).to_be_disabled()
    view.get_by_role("button", name="Write", exact=True).click()
    expect(view.locator(".token")).to_have_count(4)
    view.get_by_role("button", name="Clear").click()
    undo.click()
    expect(view.get_by_role("status")).to_contain_text("adds more")
    first = text.text_content() or ""
    view.get_by_role("button", name="Continue").click()
    expect(view.locator(".token")).to_have_count(8)
    undo.click()
    expect(text).to_have_text(first)
    view.get_by_label("Tokens to write").fill("6")
    view.get_by_role("button", name="Again").click()
    expect(view.locator(".token")).to_have_count(6)
    page.get_by_label("Language of this page").select_option("de")
    page.get_by_role("button", name="Rückgängig").click()
    expect(page.locator(".view-write .text")).to_have_text(first)
    expect(page.locator(".view-write").get_by_role("status")).to_contain_text("setzt den Text fort")


STOP_AFTER_FOUR_TOKENS = """view => new MutationObserver((_, observer) => {
    const stop = [...view.querySelectorAll("button")].find(each => each.textContent.trim() === "Stop");
    if (view.querySelectorAll(".token").length >= 4 && stop) {
        observer.disconnect();
        stop.click();
    }
}).observe(view, { childList: true, subtree: true, attributes: true })"""


def test_stop_ends_the_work_on_the_server(page: Page, service: RunningService) -> None:
    view = opened(page, "write")
    start_writing(view, Temperature="2", Tokens_to_write="1000")
    view.evaluate(STOP_AFTER_FOUR_TOKENS)  # a click from here could come after the last token
    view.get_by_role("button", name="Write", exact=True).click()
    expect(view.get_by_role("status")).to_contain_text("Stopped")
    count = view.locator(".token").count()
    assert count < 1000

    def is_idle() -> bool:
        return "headway_batch_sequences 0.0" in httpx.get(f"{service.url}/metrics").text

    wait_until(is_idle)
    assert view.locator(".token").count() == count


# Fill and Classify


def test_masks_are_filled_in(page: Page, service: RunningService) -> None:
    view = opened(page, "fill")
    page.keyboard.type(MASKED)
    fillings = api(service, "fill", text=MASKED, top=8)["fillings"]
    expect(view.locator(".fillings .whole")).to_have_text([each["text"] for each in fillings])
    view.locator(".fillings button").nth(1).click()
    expect(view.locator("textarea")).to_have_value(fillings[1]["text"])
    expect(view.get_by_role("button", name="Undo")).to_be_focused()
    page.keyboard.press("Enter")
    expect(view.locator("textarea")).to_have_value(MASKED)


def test_each_change_by_a_button_is_undone(page: Page) -> None:
    view = opened(page, "fill")
    page.keyboard.type("das [mask] rote haus")
    view.locator(".fillings button").first.click()  # masks may be in lower case
    filled = view.locator("textarea").input_value()
    assert "[mask]" not in filled.lower()
    view.locator("textarea").focus()
    page.keyboard.press("End")
    view.get_by_role("button", name="Hide the word at the cursor").click()
    page.keyboard.press("Control+z")
    expect(view.locator("textarea")).to_have_value(filled)
    view.get_by_role("button", name="Undo").click()
    expect(view.locator("textarea")).to_have_value("das [mask] rote haus")
    expect(view.get_by_role("button", name="Undo")).to_be_hidden()


@pytest.mark.parametrize(("before", "word"), [("ein rotes", "Haus"), ("लाल", "किताब")])  # with combining marks
def test_a_word_is_hidden_at_the_caret(page: Page, before: str, word: str) -> None:
    view = opened(page, "fill")
    page.keyboard.type(f"{before} {word}")
    view.get_by_role("button", name="Hide the word at the cursor").click()
    expect(view.locator("textarea")).to_have_value(f"{before} [MASK]")
    expect(view.locator(".fillings li").first).to_be_visible()


def test_without_a_word_at_the_caret_nothing_is_hidden(page: Page) -> None:
    view = opened(page, "fill")
    page.keyboard.type("ein haus, ")
    view.get_by_role("button", name="Hide the word at the cursor").click()
    expect(view.locator("textarea")).to_have_value("ein haus, ")
    expect(view.get_by_text("The cursor is not in a word")).to_be_visible()
    page.keyboard.press("Backspace")
    expect(view.get_by_text("The cursor is not in a word")).to_have_count(0)


def test_labels_and_what_they_rest_on(page: Page, service: RunningService) -> None:
    view = opened(page, "classify")
    page.keyboard.type("das rote Haus")
    (found,) = api(service, "classify", text="das rote Haus")["classifications"]
    ranked = sorted(found["probabilities"], key=lambda label: -found["probabilities"][label])
    expect(view.locator(".labels b")).to_have_text(ranked)
    expect(view.get_by_text("Labels of this model:")).to_contain_text(ranked[-1])
    expect(view.locator("h2")).to_contain_text(found["label"])
    expect(view.locator(".reason")).to_have_text(["das", "rote", "Haus"])
    view.locator(".labels button").nth(2).focus()
    page.keyboard.press("Enter")
    expect(view.locator("h2")).to_contain_text(ranked[2])
    found = api(service, "occlude", text="das rote Haus", label=ranked[2])
    for at, part in enumerate(found["parts"]):
        side = "against" if part["probability"] > found["probability"] else "for"
        expect(view.locator(".reason").nth(at)).to_have_class(f"reason {side}")


def test_the_figures_of_words_by_keyboard(page: Page) -> None:
    view = opened(page, "classify")
    page.keyboard.type("das rote Haus")
    words = view.locator(".reason")
    expect(words).to_have_count(3)
    view.locator(".labels button").last.focus()
    page.keyboard.press("Tab")
    expect(words.first).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(words.nth(1)).to_be_focused()
    expect(view.locator("[aria-live]")).to_contain_text("rote\u2069: without it the label has a probability of")
    page.keyboard.press("Tab")
    expect(view.locator(".reason:focus")).to_have_count(0)


@pytest.mark.parametrize(("name", "text"), [("fill", MASKED), ("classify", "das rote Haus")])
def test_without_a_text_there_are_no_results(page: Page, name: str, text: str) -> None:
    view = opened(page, name)
    expect(view.locator(".results")).to_be_hidden()
    page.keyboard.type(text)
    expect(view.locator(".results button").first).to_be_visible()
    view.locator("textarea").fill("")
    expect(view.locator(".results")).to_be_hidden()


def test_a_text_may_be_longer_than_what_the_model_reads(page: Page) -> None:
    view = opened(page, "write")
    page.keyboard.type("ein")
    view.locator(".more summary").click()
    length = view.get_by_label("Tokens to write")
    for wrong, used in (("-3", "1"), ("5000", "1000"), ("", "100")):
        length.fill(wrong)
        length.blur()
        expect(length).to_have_value(used)


# All of them


def filled(page: Page, name: str) -> Locator:
    """Open a view and let it show a result."""
    view = opened(page, name)
    text = {"why": TEXT, "write": "ein", "fill": MASKED, "classify": "das rote Haus"}[name]
    view.locator("textarea").first.fill(text)
    match name:
        case "why":
            view.locator(".translation [role=button]").first.click()
            view.locator(".suggestions button").first.click()
            expect(view.locator(".forced .cost")).not_to_be_empty()
        case "write":
            view.locator("button.primary").click()
            expect(view.locator(".token").nth(2)).to_be_attached()
            expect(view.locator("button.primary")).to_be_visible()
            view.locator(".token").nth(1).click()
            expect(view.locator("[role=menuitemradio]").first).to_be_visible()
        case "fill":
            expect(view.locator(".fillings li").first).to_be_visible()
        case "classify":
            expect(view.locator(".reason").first).to_be_visible()
    return view


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["why", "write", "fill", "classify"])
def test_nothing_is_inaccessible(browser: Browser, service: RunningService, name: str, scheme: Any) -> None:
    with open_page(browser, service.url, color_scheme=scheme) as page:
        filled(page, name)
        assert accessibility_problems(page) == []


@pytest.mark.parametrize("name", ["why", "write", "fill", "classify"])
def test_a_phone_shows_it_in_german_without_scrolling_sideways(
    browser: Browser, service: RunningService, name: str
) -> None:
    with open_page(browser, service.url, viewport={"width": 360, "height": 740}, locale="de-DE") as page:
        view = filled(page, name)
        expect(page.locator("html")).to_have_attribute("lang", "de")
        expect(view.locator("h1")).to_have_text(
            {"why": "Warum", "write": "Schreiben", "fill": "Ausfüllen", "classify": "Einordnen"}[name]
        )
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 360


@pytest.mark.parametrize(("name", "text"), [("why", TEXT), ("fill", MASKED), ("classify", "das rote Haus")])
def test_a_view_goes_on_when_the_service_is_back(
    browser: Browser, service: RunningService, name: str, text: str
) -> None:
    with open_page(browser, service.url, requests_fail=True) as page:
        view = opened(page, name)
        page.route("**/*", lambda route: route.abort())
        page.keyboard.type(text)
        expect(view.get_by_role("alert").filter(visible=True).first).to_contain_text("The service does not answer")
        page.unroute("**/*")
        expect(page.locator("#gone")).to_be_hidden()
        expect(view.locator(".results button, .results [role=button]").first).to_be_visible()


def test_a_phone_shows_both_languages_and_the_models(browser: Browser, service: RunningService) -> None:
    with open_page(browser, service.url, viewport={"width": 390, "height": 844}) as page:
        for label in ("Translate from", "Translate into"):
            box = page.get_by_label(label).bounding_box()
            assert box is not None
            assert box["width"] > 60, label
        expect(page.get_by_role("combobox", name="Model")).to_be_in_viewport()
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 390


def test_a_change_of_the_language_keeps_the_model_for_translations(page: Page) -> None:
    page.get_by_role("combobox", name="Model").select_option("second")
    page.get_by_label("Language of this page").select_option("de")
    expect(page.get_by_role("combobox", name="Modell")).to_have_value("second")


def test_a_change_of_the_language_keeps_what_is_written(page: Page) -> None:
    view = filled(page, "write")
    page.keyboard.press("Escape")
    text = view.locator(".text").text_content() or ""
    page.get_by_label("Language of this page").focus()
    page.get_by_label("Language of this page").select_option("de")
    expect(page.locator(".view-write .text")).to_have_text(text)
    expect(page.locator(".view-write h1")).to_have_text("Schreiben")
    expect(page.get_by_label("Sprache dieser Seite")).to_be_focused()


def test_a_view_that_cannot_be_loaded_is_loaded_when_the_service_is_back(
    browser: Browser, service: RunningService
) -> None:
    with open_page(browser, service.url, requests_fail=True) as page:
        expect(page.locator("#views a")).to_have_count(5)
        page.route("**/*", lambda route: route.abort())
        page.locator("#views a").last.click()
        expect(page.locator("#gone")).to_be_visible()
        page.unroute("**/*")
        expect(page.locator("#gone")).to_be_hidden()
        expect(page.locator(".view-classify textarea")).to_be_visible()


def test_the_link_to_the_content_stays_in_the_view(page: Page) -> None:
    opened(page, "fill")
    page.locator("#skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page.locator(".view-fill textarea")).to_be_visible()


def test_the_reason_is_shown_if_the_service_stays_unable(browser: Browser, service: RunningService) -> None:
    message, requests = "The model classifier cannot be loaded: it needs 900 MB", list[str]()

    def refuse(route: Route) -> None:
        requests.append(route.request.url)
        error = {"error": {"status": 503, "message": message}}
        route.fulfill(status=503, json=error, headers={"Retry-After": "1"})

    with open_page(browser, service.url, requests_fail=True) as page:
        view = opened(page, "classify")
        page.route("**/api/v1/classify", refuse)
        page.keyboard.type("Haus")
        expect(view.get_by_role("alert")).to_contain_text(message)
        assert len(requests) == 4
