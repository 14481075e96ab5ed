"""The view Translate in Chromium, by mouse and by keyboard: it shows what the API answers.

The model was never trained, so its translations are nonsense; that the page shows the same nonsense is what is tested.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import accessibility_problems, chromium, needs_chromium, open_page
from playwright.sync_api import Browser, FilePayload, Page, Request, Route, expect
from running_service import RunningService, running, unpack_model

pytestmark = [pytest.mark.slow, needs_chromium]
TEXT = "red tea"
KEY = "secret"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[RunningService]:
    """One model from English to German, and the same as one from German to English and one from German to Italian."""
    (folder.parent / "serve.toml").write_text(
        f'workers = 1\n[[models]]\nname = "there"\npath = "{folder}"\n'
        f'[[models]]\nname = "back"\npath = "{folder}"\nsource = ["de"]\ntarget = ["en"]\n'
        f'[[models]]\nname = "on"\npath = "{folder}"\nsource = ["de"]\ntarget = ["it"]\n'
        "[limits]\ndocuments = 100\n"  # all tests together upload more than the default
    )
    with running(["--config", str(folder.parent / "serve.toml")]) as started:
        yield started


@pytest.fixture
def page(browser: Browser, service: RunningService) -> Iterator[Page]:
    with open_page(browser, service.url) as opened:
        opened.get_by_label("Translate from").select_option("en")
        opened.get_by_label("Text to translate").get_by_role("textbox").focus()
        yield opened


def api(service: RunningService, path: str, **fields: object) -> Any:
    body = {"source": "en", "target": "de", **fields}
    return httpx.post(f"{service.url}/api/v1/{path}", json=body, timeout=30).raise_for_status().json()


def translation(service: RunningService, text: str, **fields: object) -> Any:
    return api(service, "translate", text=text, **fields)["translations"][0]


def texts(request: Request) -> Any:
    body: Any = request.post_data_json
    return body["text"]


def wait_until(page: Page, condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("nothing happened for 60 seconds")


def output(page: Page) -> Any:
    return page.locator(".output")


def type_and_wait(page: Page, service: RunningService, text: str = TEXT) -> str:
    page.keyboard.type(text)
    expected = str(translation(service, text)["text"])
    expect(output(page)).to_have_text(expected)
    return expected


def test_each_sentence_of_each_line_is_translated_while_one_types(page: Page, service: RunningService) -> None:
    page.keyboard.type("red tea. a tin. \n\nice")  # the field has the focus
    first, second, third = (translation(service, text)["text"] for text in ("red tea.", "a tin.", "ice"))
    expect(output(page).locator("p")).to_have_text([f"{first} {second}", "", third])
    expect(page.locator("#announcement")).to_have_text("The translation is complete.")


def test_requests_for_an_earlier_text_are_ended(page: Page, service: RunningService) -> None:
    waiting: list[Route] = []
    page.route("**/api/v1/translate", lambda route: waiting.append(route))
    failed: list[Request] = []
    page.on("requestfailed", lambda request: failed.append(request))
    page.keyboard.insert_text("red")
    wait_until(page, lambda: len(waiting) == 1)
    assert texts(waiting[0].request) == ["red"]
    page.keyboard.insert_text(" tea")
    wait_until(page, lambda: len(waiting) == 2)
    wait_until(page, lambda: bool(failed))
    assert [texts(request) for request in failed] == [["red"]]
    waiting[1].continue_()
    expect(output(page)).to_have_text(translation(service, TEXT)["text"])


def test_an_alternative_continues_the_translation_by_mouse(page: Page, service: RunningService) -> None:
    before = type_and_wait(page, service)
    page.locator(".word").first.click()
    tokens = api(service, "alternatives", text=TEXT, count=7)["alternatives"]
    items = page.get_by_role("menuitemradio")
    expect(page.locator(".alternatives [aria-disabled]")).to_have_count(0)
    chosen = page.locator(".alternatives [aria-checked=false]").first
    word = chosen.locator("b").inner_text()
    assert any(word.startswith(each["token"].strip()) for each in tokens)
    chosen.click()
    expect(items).to_have_count(0)
    expect(output(page)).not_to_have_text(before)
    after = output(page).inner_text()
    assert after.startswith(word)
    assert after in {translation(service, TEXT, prefix=each["token"])["text"] for each in tokens}
    page.get_by_role("button", name="Undo").click()
    expect(output(page)).to_have_text(before)
    expect(page.locator(".word").first).to_be_focused()


def test_another_word_is_typed_into_the_menu(page: Page, service: RunningService) -> None:
    before = type_and_wait(page, service)
    output(page).locator(".word").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".alternatives [role=menuitemradio]").first).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".alternatives").get_by_role("alert")).to_have_text("Enter a word.")
    page.keyboard.type("Mio")
    page.keyboard.press("Enter")
    expected = translation(service, TEXT, prefix="Mio")["text"]
    assert expected != before
    expect(output(page)).to_have_text(expected)
    expect(output(page).locator(".word").first).to_be_focused()


def test_changes_are_undone_one_by_one_and_lost_choices_are_named(page: Page, service: RunningService) -> None:
    texts_shown = [type_and_wait(page, service)]
    chosen = ""
    for index in (-1, 0):  # the second choice is before the first one
        word = output(page).locator(".word").nth(index)
        word.click()
        item = page.locator(".alternatives [role=menuitemradio]:not([aria-disabled])[aria-checked=false]").first
        expect(page.locator(".alternatives [aria-disabled]")).to_have_count(0)
        warning = page.locator(".alternatives").get_by_text(f"may be lost: “\u2068{chosen}\u2069”")
        expect(warning).to_have_count(1 if chosen else 0)
        chosen = chosen or item.get_attribute("data-word") or ""
        item.click()
        expect(output(page)).not_to_have_text(texts_shown[-1])
        texts_shown.append((output(page).text_content() or "").strip())
    notice = page.locator(".notices .change")
    assert chosen not in texts_shown[-1], "the test needs a model that does not repeat the choice"
    expect(notice).to_contain_text("Everything after the changed word was translated again.")
    expect(notice).to_contain_text(f"no longer contains your earlier choice: “\u2068{chosen}\u2069”")
    for text in reversed(texts_shown[:-1]):
        notice.get_by_role("button", name="Undo").click()
        expect(output(page)).to_have_text(text)
    expect(notice).to_have_count(0)


def test_a_word_is_undone_by_keyboard_and_the_source_stays(page: Page, service: RunningService) -> None:
    before = type_and_wait(page, service)
    page.locator(".word").nth(1).click()
    expect(page.locator(".alternatives [aria-disabled]")).to_have_count(0)
    page.locator(".alternatives [aria-checked=false]").first.click()
    expect(output(page)).not_to_have_text(before)
    expect(page.locator(".word:focus")).to_have_count(1)
    page.keyboard.press("Control+z")
    expect(output(page)).to_have_text(before)
    expect(page.locator(".word").nth(1)).to_be_focused()
    expect(page.locator("textarea")).to_have_value(TEXT)


def test_the_translation_follows_the_source_that_is_read(page: Page, service: RunningService) -> None:
    page.locator("textarea").fill("".join(f"red tea {number}\n" for number in range(100)))
    page.locator("textarea").focus()
    page.locator("textarea").evaluate("element => element.scrollTo(0, element.scrollHeight)")
    expect(page.locator(".output p").last).to_be_in_viewport()
    page.locator("textarea").evaluate("element => element.scrollTo(0, 0)")
    expect(page.locator(".output p").first).to_be_in_viewport()
    expect(page.locator(".output p").last).not_to_be_in_viewport()


def test_an_alternative_continues_the_translation_by_keyboard(page: Page, service: RunningService) -> None:
    before = type_and_wait(page, service)
    page.keyboard.press("Tab")  # Clear
    page.keyboard.press("Tab")  # the first word
    expect(page.locator(".word").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".alternatives [aria-disabled]")).to_have_count(0)
    expect(page.locator("[role=menuitemradio]:focus")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator(".alternatives")).to_be_hidden()
    expect(page.locator(".word").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".alternatives [aria-disabled]")).to_have_count(0)
    expect(page.locator(".alternatives [aria-checked=true]")).to_have_count(1)
    page.keyboard.press("Home")
    if page.evaluate("document.activeElement.ariaChecked") == "true":
        page.keyboard.press("ArrowDown")
    word = page.evaluate("document.activeElement.dataset.word")
    page.keyboard.press("Enter")
    expect(output(page)).not_to_have_text(before)
    expect(page.locator(".word").first).to_be_focused()
    assert output(page).inner_text().startswith(word)


def test_new_alternatives_do_not_take_the_focus_from_why(page: Page, service: RunningService) -> None:
    type_and_wait(page, service)
    waiting: list[Route] = []
    page.route("**/api/v1/translate", lambda route: waiting.append(route))
    page.locator(".word").first.click()
    wait_until(page, lambda: len(waiting) > 0)
    page.keyboard.press("End")
    expect(page.get_by_role("menuitem", name="Why")).to_be_focused()

    def all_are_shown() -> bool:
        while waiting:
            waiting.pop().continue_()
        return page.locator(".alternatives [aria-disabled]").count() == 0

    wait_until(page, all_are_shown)
    expect(page.get_by_role("menuitem", name="Why")).to_be_focused()


def test_pointing_at_a_word_marks_its_source_and_names_its_probability(page: Page, service: RunningService) -> None:
    type_and_wait(page, service)
    word = page.locator(".word").first
    word.hover()
    expect(page.locator(".word-info")).to_contain_text("the model is")
    assert page.locator(".boxes i").count() >= 1
    # The boxes are where the words of the source are, not just somewhere.
    mark, field = page.locator(".boxes i").first.bounding_box(), page.locator("textarea").bounding_box()
    assert mark is not None
    assert field is not None
    assert field["x"] < mark["x"] < field["x"] + 120
    assert field["y"] < mark["y"] < field["y"] + 40
    page.locator("textarea").hover()
    expect(page.locator(".boxes i")).to_have_count(0)
    page.locator("textarea").focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.locator(".boxes i").count() >= 1


def test_pointing_at_a_word_of_the_source_marks_its_translation(page: Page, service: RunningService) -> None:
    type_and_wait(page, service)
    words = page.locator(".word")
    words.first.hover()
    marked = page.locator(".boxes i").first.bounding_box()
    assert marked is not None
    place = marked["x"] + marked["width"] / 2, marked["y"] + marked["height"] / 2
    page.mouse.move(*place)
    expect(words.first).to_have_class(re.compile("related"))
    expect(page.locator(".boxes i").first).to_be_visible()
    page.mouse.move(place[0], place[1] + 150)
    expect(page.locator(".related")).to_have_count(0)
    page.locator("textarea").focus()
    page.keyboard.press("Home")
    expect(page.locator(".related").first).to_be_visible()
    page.keyboard.press("End")
    expect(page.locator(".related")).to_have_count(0)


def test_words_are_shaded_by_their_probability(page: Page, service: RunningService) -> None:
    plain = (text for text in ("red tea", "a tin", "ice", "nest") if translation(service, text)["text"].isalpha())
    text = next(plain)  # its translation is one word
    type_and_wait(page, service, text)
    probability = math.exp(sum(translation(service, text)["token_log_probabilities"][:-1]))  # without EOS
    number = sum(probability < limit for limit in (0.9, 0.5, 0.2))
    assert page.locator(".word").get_attribute("class") == ("word" if number == 0 else f"word shade-{number}")


@pytest.mark.parametrize(
    ("source", "text", "kept"),
    [
        ("It is 5 km away.", "Es sind 5 km.", "5"),
        ("It is 5 km away.", "Es sind 6 km.", ""),  # a mistake
        ("1,000.5 miles", "1.000,5 Meilen", "1.000,5"),
        ("Write to me@example.org, {name}!", "{name}, an me@example.org!", "{name}me@example.org"),
        ("red tea", "roter Tee", ""),
    ],
)
def test_what_is_kept_from_the_source_is_never_unsure(page: Page, source: str, text: str, kept: str) -> None:
    find = """async ([source, text]) => {
        const { wordsOf } = await import("./page/translate/words.js");
        const words = wordsOf({ text, tokens: [text], token_log_probabilities: [-2, 0] }, source, "de", "en");
        return words.filter(({ isKept }) => isKept).map(({ start, end }) => text.slice(start, end)).join("");
    }"""
    assert page.evaluate(find, [source, text]) == kept


def test_other_versions_are_the_n_best_list(page: Page, service: RunningService) -> None:
    type_and_wait(page, service)
    page.get_by_text("Other versions of").click()
    found = translation(service, TEXT, options={"n_best": 4, "beam_size": 4})
    texts = [found["text"], *(each["text"] for each in found["alternatives"])]
    buttons = page.locator(".versions li button")
    expect(buttons).to_have_text(texts)
    first = math.exp(found["log_probability"])
    share = page.locator(".versions li .share").first
    expect(share).to_have_text(page.evaluate(f"async () => (await import('./page/dom.js')).percent({first}, 'en')"))
    buttons.nth(2).focus()
    page.keyboard.press("Enter")
    expect(output(page)).to_have_text(texts[2])
    expect(page.locator(".versions li [aria-pressed=true]")).to_have_text([texts[2]])
    expect(buttons.nth(2)).to_be_focused()


def test_a_version_is_never_used_for_another_sentence(page: Page, service: RunningService) -> None:
    type_and_wait(page, service)
    page.get_by_text("Other versions of").click()
    old = page.locator(".versions li button").nth(2).element_handle()
    waiting: list[Route] = []
    page.route("**/api/v1/translate", lambda route: waiting.append(route))
    page.locator("textarea").fill("ice")
    wait_until(page, lambda: len(waiting) == 1)
    expect(page.locator(".versions li")).to_have_count(0)
    old.evaluate("button => button.click()")  # as if the click had come a moment earlier
    waiting[0].continue_()
    wait_until(page, lambda: len(waiting) == 2)  # for the versions
    expect(output(page)).to_have_text(translation(service, "ice")["text"])


def test_versions_belong_to_the_sentence_that_was_clicked_last(page: Page) -> None:
    page.locator("textarea").fill("red tea\nice")
    words = [page.locator(".output p").nth(line).locator(".word").first for line in (0, 1)]
    title = page.locator(".versions summary")
    expect(title).to_have_text("Other versions of “\u2068red tea\u2069”")
    words[1].hover()
    expect(page.locator(".word-info")).to_contain_text("from “\u2068ice\u2069”")
    expect(title).to_have_text("Other versions of “\u2068red tea\u2069”")
    words[1].click()
    expect(title).to_have_text("Other versions of “\u2068ice\u2069”")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowUp")
    expect(words[0]).to_be_focused()
    expect(title).to_have_text("Other versions of “\u2068red tea\u2069”")


def test_an_alternative_that_continues_a_number_says_what_it_replaces(page: Page, service: RunningService) -> None:
    candidates = [f"{first} {second}" for first in ("a", "red", "ice") for second in ("b", "tea", "tin", "nest")]
    found = {text: translation(service, text)["text"] for text in candidates}
    text = next(text for text in candidates if re.fullmatch(r"(.* )?\d \w+", found[text]))
    number, word = found[text].split()[-2:]
    reply = {"alternatives": [{"token": "7", "log_probability": -1.0}]}
    page.route("**/api/v1/alternatives", lambda route: route.fulfill(json=reply))
    type_and_wait(page, service, text)
    page.locator(".word").last.click()
    item = page.get_by_role("menuitemradio", name=f"{number}7")
    expect(item).to_contain_text(f"instead of “\u2068{number} {word}\u2069”")
    page.get_by_role("menuitem", name="Why").click()
    suggestion = page.locator(".suggestions button", has_text=f"{number}7")
    expect(suggestion).to_contain_text(f"instead of “\u2068{number} {word}\u2069”")
    suggestion.click()
    expect(page.locator(".forced .translation")).to_contain_text(f"{number}7")
    expect(page.locator(".forced .translation")).not_to_contain_text(f"{number} {number}7")


def test_versions_are_asked_for_again_after_an_error(browser: Browser, service: RunningService) -> None:
    with open_page(browser, service.url, requests_fail=True) as page:
        page.get_by_label("Translate from").select_option("en")
        page.locator("textarea").focus()
        type_and_wait(page, service)
        page.route("**/api/v1/translate", lambda route: route.fulfill(status=500, json={}), times=1)
        summary = page.get_by_text("Other versions of")
        summary.click()
        expect(page.locator(".versions .error")).to_be_visible()
        summary.click()
        summary.click()
        expect(page.locator(".versions li button")).to_have_count(4)


def test_a_glossary_is_edited_in_place_and_kept(page: Page, service: RunningService) -> None:
    before = type_and_wait(page, service)
    page.locator(".glossary summary").click()
    page.get_by_label("English, row 1").fill("tea")
    page.keyboard.press("Tab")
    page.keyboard.type("anger")
    expected = translation(service, TEXT, glossary=[["tea", "anger"]])["text"]
    assert "anger" in expected
    expect(output(page)).to_have_text(expected)
    expect(page.get_by_label("English, row 2")).to_be_visible()
    page.reload()
    page.locator(".glossary summary").click()
    expect(page.get_by_label("German, row 1")).to_have_value("anger")
    page.locator("textarea").fill(TEXT)
    expect(output(page)).to_have_text(expected)
    page.get_by_role("button", name="Remove row 1").click()
    expect(output(page)).to_have_text(before)
    expect(page.get_by_label("English, row 1")).to_have_value("")
    expect(page.get_by_label("English, row 2")).to_have_count(0)
    expect(page.get_by_role("button", name="Remove row")).to_have_count(0)  # the last row is for a new entry


def fill_glossary(page: Page, *rows: tuple[str, str]) -> None:
    for number, (source, target) in enumerate(rows, start=1):
        page.get_by_label(f"English, row {number}").fill(source)
        page.get_by_label(f"German, row {number}").fill(target)


@pytest.mark.parametrize(
    ("locale", "message"),
    [("en-US", "Not used: “tea” is translated as “rot”"), ("de-DE", "Nicht benutzt: Für „tea“ steht hier „rot“")],
)
def test_a_glossary_entry_that_is_refused_is_marked_and_the_others_are_used(
    browser: Browser, service: RunningService, locale: str, message: str
) -> None:
    with open_page(browser, service.url, requests_fail=True, locale=locale) as page:
        page.locator(".languages select").first.select_option("en")
        page.locator("textarea").fill(TEXT)
        page.locator(".glossary summary").click()
        rows = page.locator(".glossary tbody tr:not(.problem)")
        for at, row in enumerate((["tea", "anger"], ["tea", "rot"], ["red", "haus"])):
            for input_, text in zip(rows.nth(at).locator("input").all(), row, strict=True):
                input_.fill(text)
        expected = translation(service, TEXT, glossary=[["tea", "anger"], ["red", "haus"]])["text"]
        expect(output(page)).to_have_text(expected)
        expect(page.locator(".glossary").get_by_role("alert")).to_contain_text(message)
        expect(rows.nth(1).locator("input[aria-invalid=true]")).to_have_count(2)
        expect(page.locator(".glossary .badge")).to_have_text("2")
        rows.nth(0).locator("input").last.fill("rot")  # now both say the same
        expect(rows.locator("input[aria-invalid=true]")).to_have_count(0)
        expected = translation(service, TEXT, glossary=[["tea", "rot"], ["red", "haus"]])["text"]
        expect(output(page)).to_have_text(expected)
        page.reload()
        page.locator(".glossary summary").click()
        expect(rows).to_have_count(4)
        rows.nth(0).locator("input").last.fill("anger")
        expect(page.locator(".glossary .badge")).to_have_text("2")
        page.reload()  # the entries are checked although there is no text
        expect(page.locator(".glossary").get_by_role("alert")).to_contain_text(message)
        expect(page.locator(".glossary .badge")).to_have_text("2")


def test_a_late_check_of_the_glossary_does_not_stop_a_translation(page: Page, service: RunningService) -> None:
    page.locator(".glossary summary").click()
    fill_glossary(page, ("tea", "anger"))
    wait_until(page, lambda: "anger" in page.evaluate("localStorage.getItem('headway') ?? ''"))
    waiting: list[Route] = []

    def hold_checks(route: Route) -> None:
        if texts(route.request) == "":
            waiting.append(route)
        else:
            route.continue_()

    page.route("**/api/v1/translate", hold_checks)
    page.reload()
    wait_until(page, lambda: bool(waiting))
    page.locator("textarea").fill(TEXT)
    expected = translation(service, TEXT, glossary=[["tea", "anger"]])["text"]
    expect(output(page)).to_have_text(expected)
    expect(page.locator(".word-info")).to_contain_text("required by the glossary")


def test_other_words_that_a_glossary_changes_are_shown_and_can_be_undone(page: Page, service: RunningService) -> None:
    free = type_and_wait(page, service)
    page.locator(".glossary summary").click()
    fill_glossary(page, ("tea", "anger"))
    expected = translation(service, TEXT, glossary=[["tea", "anger"]])["text"]
    expect(output(page)).to_have_text(expected)
    assert len(set(free.split()) - set(expected.split())) > 1, "the test needs a model that changes other words"
    notice = page.locator(".notices li", has_text="the glossary has also changed other parts")
    expect(notice).to_contain_text(free)
    expect(page.get_by_text("required by the glossary")).to_be_visible()  # in the legend
    notice.get_by_role("button", name="Use the version without the glossary").click()
    expect(output(page)).to_have_text(free)
    page.get_by_role("button", name="Undo").click()
    expect(output(page)).to_have_text(expected)
    expect(output(page).locator(".word", has_text="anger")).to_have_class("word required")


def test_words_that_a_glossary_adds_to_those_that_it_should_replace_are_shown(
    page: Page, service: RunningService
) -> None:
    expected = translation(service, TEXT, glossary=[["tea", "anger"]], alignment="pairs")
    free = {**expected, "text": expected["text"].replace("anger", "").strip(), "glossary": None}

    def leave_out(route: Route) -> None:
        if "glossary" in (route.request.post_data_json or {}):
            route.continue_()
        else:
            route.fulfill(json={"translations": [free]})

    page.route("**/api/v1/translate", leave_out)
    page.locator(".glossary summary").click()
    fill_glossary(page, ("tea", "anger"))
    page.locator("textarea").fill(TEXT)
    notice = page.locator(".notices li", has_text="words of the glossary were added, and did not replace others")
    expect(notice).to_contain_text(free["text"])


@pytest.mark.parametrize(
    ("text", "phrase", "found"),
    [
        ("Party likes Art.", "art", [12, 15]),  # a whole word
        ("Die Hauses sind", "Haus*", [4, 10]),
        ("das Rathaus", "*haus", [4, 11]),
        ("um 5 o'clock (A/B)", "o'clock (a/b)", [5, 18]),
        ("C:\\Haus [1]", "c:\\haus [1]", [0, 11]),
        ("Haus", "Hau", None),
        ("我喜欢红茶", "红茶", [3, 5]),  # no spaces between words
    ],
)
def test_phrases_are_found_as_whole_words(page: Page, text: str, phrase: str, found: list[int] | None) -> None:
    find = "async ([text, phrase]) => (await import('./page/translate/words.js')).findPhrase(text, phrase)"
    assert page.evaluate(find, [text, phrase]) == found


@pytest.mark.parametrize(
    ("phrases", "text", "free", "effect"),
    [
        (["BRD"], "BRD, 3 Kilometer", "Deutschland, 3 Kilometer", None),
        (["Bundesrepublik Deutschland"], "Bundesrepublik Deutschland, 3 Meter", "Deutschland, 3 Meter", None),
        (["BRD"], "Deutschland BRD, 3 Meter", "Deutschland, 3 Meter", "added"),
        (["BRD", "Std"], "Deutschland, Std 3 Meter pro BRD", "Deutschland, 3 Meter pro Stunde", "added"),
        (["BRD"], "BRD, 3 Meter", "Deutschland, 3 Kilometer", "changed"),
        (["BRD"], "BRD", "Deutschland, 3 Kilometer", "changed"),
        (["BRD"], "BRD 3 Kilometer", "Deutschland, 3 Kilometer", "changed"),  # the comma
        (["T-Shirt"], "Das T-Shirt ist rot.", "Das Hemd ist rot.", None),
        (["Hemd"], "Das Hemd ist rot.", "Das T-Shirt ist rot.", None),
        (["€"], "3 €", "3 €", None),
    ],
)
def test_what_a_glossary_does_beyond_its_words(
    page: Page, phrases: list[str], text: str, free: str, effect: str | None
) -> None:
    find = """async ([phrases, text, free]) => {
        const { effectOf } = await import("./page/translate/glossary_effects.js");
        const glossary = phrases.map((each) => ({ met: true, targets: [each] }));
        return effectOf({ text, glossary }, { text: free }, "de");
    }"""
    assert page.evaluate(find, [phrases, text, free]) == effect


def test_the_line_about_a_word_ends_with_its_translation(page: Page, service: RunningService) -> None:
    type_and_wait(page, service)
    output(page).locator(".word").first.focus()
    expect(page.locator(".word-info")).to_contain_text("sure of it")
    page.evaluate("document.activeElement.blur()")
    output(page).locator(".word").first.hover()
    page.locator("textarea").fill("ice")
    expect(output(page)).to_have_text(translation(service, "ice")["text"])
    expect(page.locator(".word-info p").first).to_be_empty()


def test_an_incomplete_row_of_the_glossary_is_marked_and_kept(page: Page) -> None:
    page.locator("textarea").fill(TEXT)
    page.locator(".glossary summary").click()
    page.get_by_label("English, row 1").fill("tea")
    page.keyboard.press("Tab")
    expect(page.locator(".glossary").get_by_role("alert")).to_have_count(0)  # it is still being edited
    page.keyboard.press("Tab")  # to the button that removes the row
    expect(page.locator(".glossary").get_by_role("alert")).to_contain_text("one side is empty")
    expect(page.locator(".glossary .badge")).to_have_text("")
    wait_until(page, lambda: "tea" in page.evaluate("localStorage.getItem('headway') ?? ''"))
    page.reload()
    page.locator(".glossary summary").click()
    expect(page.get_by_label("English, row 1")).to_have_value("tea")
    page.get_by_label("German, row 1").fill("anger")
    expect(page.locator(".glossary").get_by_role("alert")).to_have_count(0)
    expect(page.locator(".glossary .badge")).to_have_text("1")


def test_a_removed_row_of_the_glossary_comes_back(page: Page, service: RunningService) -> None:
    before = type_and_wait(page, service)
    page.locator(".glossary summary").click()
    fill_glossary(page, ("tea", "anger"), ("red", "haus"))
    undo = page.get_by_role("button", name="Undo the removal")
    expect(undo).to_be_hidden()
    for name in ("tea", "red"):
        expect(page.get_by_label("English, row 1")).to_have_value(name)
        page.get_by_role("button", name="Remove row 1").click()
    expect(output(page)).to_have_text(before)
    page.keyboard.press("Control+z")
    undo.click()
    expect(undo).to_be_hidden()
    for number, name in enumerate(("tea", "red", ""), start=1):
        expect(page.get_by_label(f"English, row {number}")).to_have_value(name)
    expect(page.locator("textarea")).to_have_value(TEXT)
    expected = translation(service, TEXT, glossary=[["tea", "anger"], ["red", "haus"]])["text"]
    expect(output(page)).to_have_text(expected)


@pytest.mark.parametrize("locale", ["en-US", "de-DE"])
def test_on_a_phone_a_glossary_fits_and_a_tap_meets_its_button(
    browser: Browser, service: RunningService, locale: str
) -> None:
    phone: Any = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with open_page(browser, service.url, locale=locale, **phone) as page:
        page.locator(".languages select").first.select_option("en")
        page.locator("textarea").fill(TEXT)
        page.locator(".glossary summary").tap()
        for input_, text in zip(page.locator(".glossary input").all(), ("tea", "anger"), strict=False):
            input_.fill(text)
        wait_until(page, lambda: "anger" in page.evaluate("localStorage.getItem('headway') ?? ''"))
        before = translation(service, TEXT, glossary=[["tea", "anger"]])["text"]
        expect(output(page)).to_have_text(before)
        expect(page.locator(".notices button")).to_be_visible()
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 360
        page.locator(".word").first.tap()
        expect(page.locator(".alternatives [aria-disabled]")).to_have_count(0)
        page.locator(".alternatives [aria-checked=false]").first.tap()
        expect(output(page)).not_to_have_text(before)
        undo = page.locator(".notices .change button").first
        undo.scroll_into_view_if_needed()
        place = undo.bounding_box()
        assert place is not None
        page.touchscreen.tap(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
        expect(output(page)).to_have_text(before)


def test_two_tabs_share_a_glossary(page: Page) -> None:
    other = page.context.new_page()
    other.goto(page.url)
    for each in (page, other):
        each.locator("textarea").fill(TEXT)
        each.locator(".glossary summary").click()
    page.get_by_label("English, row 1").fill("tea")
    page.get_by_label("German, row 1").fill("anger")
    expect(other.get_by_label("German, row 1")).to_have_value("anger")
    other.get_by_label("English, row 2").fill("red")
    other.get_by_label("German, row 2").fill("rot")
    expect(page.get_by_label("German, row 2")).to_have_value("rot")
    page.get_by_role("button", name="Dark").click()  # another setting
    page.reload()
    page.locator(".glossary summary").click()
    expect(page.get_by_label("German, row 1")).to_have_value("anger")
    expect(page.get_by_label("German, row 2")).to_have_value("rot")


EDIT_AND_CHANGE_THE_LANGUAGE = """() => {
    const [source, target] = document.querySelectorAll(".glossary tbody input");
    for (const [input, value] of [[source, "tea"], [target, "anger"]]) {
        input.value = value;
        input.dispatchEvent(new Event("input"));
    }
    const languages = document.querySelector("[aria-label='Translate into']");
    languages.value = "it";
    languages.dispatchEvent(new Event("change"));
}"""


def test_a_change_of_the_languages_keeps_the_last_edit_of_the_glossary(page: Page) -> None:
    page.locator(".glossary summary").click()
    page.evaluate(EDIT_AND_CHANGE_THE_LANGUAGE)  # faster than any edit is saved
    expect(page.get_by_label("Italian, row 1")).to_have_value("")
    page.get_by_label("Translate into").select_option("de")
    expect(page.get_by_label("German, row 1")).to_have_value("anger")


def test_a_document_is_translated_and_saved(page: Page, service: RunningService) -> None:
    document = FilePayload(name="letter.txt", mimeType="text/plain", buffer=b"red tea\n\nice\n")
    page.locator("input[type=file]").set_input_files(document)
    with page.expect_download(timeout=60_000) as download:
        page.get_by_role("button", name="Save the translation").click(timeout=60_000)
    assert download.value.suggested_filename == "letter.de.txt"
    expected = [translation(service, text)["text"] for text in ("red tea", "ice")]
    assert download.value.path().read_text(encoding="utf-8").split("\n\n") == [expected[0], f"{expected[1]}\n"]
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page.locator(".documents > li")).to_have_count(0)


def test_a_document_without_text_is_named(page: Page) -> None:
    document = FilePayload(name="empty.txt", mimeType="text/plain", buffer=b"\n")
    page.locator("input[type=file]").set_input_files(document)
    expect(page.locator(".documents > li")).to_contain_text("no text to translate", timeout=60_000)
    expect(page.get_by_role("button", name="Save the translation")).to_have_count(0)


def test_the_glossary_applies_to_documents(page: Page, service: RunningService) -> None:
    page.locator(".glossary summary").click()
    page.get_by_label("English, row 1").fill("tea")
    page.get_by_label("German, row 1").fill("anger")
    document = FilePayload(name="letter.txt", mimeType="text/plain", buffer=b"red tea\n")
    page.locator("input[type=file]").set_input_files(document)
    with page.expect_download(timeout=60_000) as download:
        page.get_by_role("button", name="Save the translation").click(timeout=60_000)
    expected = translation(service, "red tea", glossary=[["tea", "anger"]])["text"]
    assert download.value.path().read_text(encoding="utf-8") == f"{expected}\n"


def test_what_may_be_wrong_with_a_document_is_said_beside_it(page: Page) -> None:
    warnings = [{"kind": "unlikely", "num_texts": 5, "examples": ["red tea", "ice", "a tin"]}]

    def warn(route: Route) -> None:
        reply = route.fetch()
        route.fulfill(response=reply, json=reply.json() | {"warnings": warnings, "num_texts": 7})

    page.route("**/api/v1/documents/*", warn)
    document = FilePayload(name="letter.txt", mimeType="text/plain", buffer=b"red tea\n")
    page.locator("input[type=file]").set_input_files(document)
    said = page.locator(".documents .warnings > li")
    expect(said.locator("summary")).to_contain_text("may be made up (texts: 5 of 7)", timeout=60_000)
    said.locator("summary").click()
    examples = [f"“\u2068{text}\u2069”" for text in ("red tea", "ice", "a tin")]
    expect(said.locator("li")).to_have_text([*examples, "and 2 more"])


def test_words_of_a_translation_through_a_third_language_have_alternatives(page: Page, service: RunningService) -> None:
    page.get_by_label("Translate into").select_option("it")
    text = "ice"
    page.locator("textarea").fill(text)
    found = translation(service, text, target="it")
    expect(output(page)).to_have_text(found["text"])
    expect(page.locator(".notices")).to_contain_text("Translated through German")
    page.locator(".word").first.click()
    expect(page.locator(".alternatives [aria-disabled]")).to_have_count(0)
    expect(page.locator(".alternatives [aria-checked=true]")).to_have_count(1)
    page.locator(".alternatives [aria-checked=false]").first.click()
    expect(output(page)).not_to_have_text(found["text"])
    page.locator(".word").first.click()
    page.get_by_role("menuitem", name="Why").click()
    expect(page.locator(".view-why textarea")).to_have_value(found["pivot"])
    expect(page.locator(".view-why .forced-word")).to_be_visible()


def test_flags_are_explained(page: Page) -> None:
    def flag(route: Route) -> None:
        reply = route.fetch()
        event = json.loads(reply.text().removeprefix("data: "))
        event["translation"] |= {"flags": ["repeated", "copied"], "unlikely": True}
        route.fulfill(response=reply, body=f"data: {json.dumps(event)}\n\n")

    page.route("**/api/v1/translate", flag)
    page.keyboard.type(TEXT)
    expect(page.locator(".notices li")).to_have_count(3)
    expect(page.locator(".notices")).to_contain_text("The translation repeats itself and is probably wrong.")


def test_languages_are_swapped_with_the_text(page: Page, service: RunningService) -> None:
    before = type_and_wait(page, service)
    page.get_by_role("button", name="Swap the languages").click()
    expect(page.locator("textarea")).to_have_value(before)
    expect(page.get_by_label("Translate from")).to_have_value("de")
    expect(output(page)).to_have_text(translation(service, before, source="de", target="en")["text"])


def test_swapping_the_languages_of_an_incomplete_translation_keeps_the_text(
    page: Page, service: RunningService
) -> None:
    type_and_wait(page, service)
    page.route("**/api/v1/translate", lambda route: None)  # nothing more is translated
    page.locator("textarea").fill("red tea\nice")
    page.get_by_role("button", name="Swap the languages").click()
    expect(page.get_by_label("Translate from")).to_have_value("de")
    expect(page.locator("textarea")).to_have_value("red tea\nice")


def test_a_language_that_no_model_translates_is_named(page: Page) -> None:
    page.get_by_label("Translate from").select_option("auto")
    page.locator("textarea").fill("Buongiorno a tutti, come state oggi, amici miei?")
    expect(page.get_by_role("alert").filter(visible=True)).to_contain_text("No model translates from Italian")
    page.locator("textarea").fill("Guten Morgen, meine lieben Freunde")
    expect(page.locator(".output .word").first).to_be_visible()
    expect(page.get_by_role("alert").filter(visible=True)).to_have_count(0)


def test_the_language_is_detected(page: Page, service: RunningService) -> None:
    page.get_by_label("Translate from").select_option("auto")
    page.locator("textarea").fill("Das ist ein ganz normaler deutscher Satz.")
    chosen = page.get_by_label("Translate from").locator("option:checked")
    expect(chosen).to_have_text("German (detected)", timeout=60_000)  # on a busy machine
    expect(page.get_by_label("Translate into")).to_have_value("en")
    expect(output(page)).not_to_have_text("")
    page.locator("textarea").fill("This is an ordinary sentence of the English language.")
    expect(chosen).to_have_text("English (detected)")


def test_the_translation_is_copied(browser: Browser, service: RunningService) -> None:
    with open_page(browser, service.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.get_by_label("Translate from").select_option("en")
        page.locator("textarea").focus()
        expected = type_and_wait(page, service)
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == expected
        page.route("**/api/v1/translate", lambda route: None)
        page.locator("textarea").fill(f"{TEXT}\nice")
        page.get_by_role("button", name="Copy", exact=True).click()
        expect(page.get_by_role("button", name="Copied, but incomplete")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(browser: Browser, service: RunningService, scheme: str, width: int) -> None:
    size = {"width": width, "height": 800}
    with open_page(browser, service.url, color_scheme=scheme, viewport=size) as page:
        page.locator("textarea").wait_for()
        assert accessibility_problems(page) == []
        page.get_by_label("Translate from").select_option("en")
        page.locator("textarea").focus()
        type_and_wait(page, service)
        for each in ("versions", "glossary"):
            page.locator(f".{each} summary").click()
        page.locator(".versions li").first.wait_for()
        assert accessibility_problems(page) == []
        page.locator(".word").first.click()
        expect(page.locator(".alternatives [aria-disabled]")).to_have_count(0)
        assert accessibility_problems(page) == []
        document = FilePayload(name="letter.txt", mimeType="text/plain", buffer=b"red tea\n")
        page.locator("input[type=file]").set_input_files(document)
        page.get_by_role("button", name="Save the translation").wait_for(timeout=60_000)
        page.locator(".about-models summary").click()
        page.locator(".about-models img").nth(2).wait_for()  # of the third model
        expect(page.locator(".about-models img").first).to_have_js_property("complete", True)
        assert page.locator(".about-models img").first.evaluate("image => image.naturalWidth") > 300
        assert accessibility_problems(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"


def test_the_language_and_the_theme_of_the_page_are_kept(page: Page, service: RunningService) -> None:
    expected = type_and_wait(page, service)
    page.get_by_label("Language of this page").select_option("de")
    expect(page.get_by_label("Zu übersetzender Text").get_by_role("textbox")).to_have_value(TEXT)
    expect(output(page)).to_have_text(expected)
    page.get_by_role("button", name="Dunkel").click()
    page.reload()
    assert page.evaluate("[document.documentElement.lang, document.documentElement.dataset.theme]") == ["de", "dark"]
    stored = page.evaluate("localStorage.headway")
    assert TEXT not in stored
    assert expected not in stored


def test_a_change_of_the_language_of_the_page_keeps_documents_and_chosen_versions(
    page: Page, service: RunningService
) -> None:
    before = type_and_wait(page, service)
    page.get_by_text("Other versions of").click()
    versions = page.locator(".versions li button")
    chosen = versions.nth(2).inner_text()
    versions.nth(2).click()
    expect(output(page)).to_have_text(chosen)
    document = FilePayload(name="letter.txt", mimeType="text/plain", buffer=b"red tea\n")
    page.locator("input[type=file]").set_input_files(document)
    expect(page.get_by_role("button", name="Save the translation")).to_be_visible(timeout=60_000)
    page.get_by_label("Language of this page").select_option("de")
    expect(output(page)).to_have_text(chosen)
    with page.expect_download() as download:
        page.get_by_role("button", name="Übersetzung speichern").click()
    assert download.value.path().read_text(encoding="utf-8") == f"{before}\n"
    page.get_by_role("button", name="Rückgängig").click()
    expect(output(page)).to_have_text(before)


def test_a_change_of_the_language_of_the_page_continues_an_upload(page: Page) -> None:
    waiting: list[Route] = []
    page.route("**/api/v1/documents", lambda route: waiting.append(route), times=1)
    document = FilePayload(name="letter.txt", mimeType="text/plain", buffer=b"red tea\n")
    page.locator("input[type=file]").set_input_files(document)
    wait_until(page, lambda: len(waiting) == 1)
    page.get_by_label("Language of this page").select_option("de")
    expect(page.get_by_role("button", name="Übersetzung speichern")).to_be_visible(timeout=60_000)


def test_right_to_left_text_runs_from_right_to_left(page: Page) -> None:
    page.locator("textarea").fill("שלום עולם")
    assert page.evaluate("getComputedStyle(document.querySelector('textarea')).direction") == "rtl"


def test_a_long_text_is_translated_from_its_beginning_on(page: Page) -> None:
    """benchmarks/page.py measures the times of typing meanwhile."""
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url.rpartition("/")[2]))
    page.keyboard.insert_text("\n".join(f"{number} tins. a nest is an art." for number in range(3500))[:100_000])
    page.locator(".word").first.wait_for(timeout=120_000)
    first = requests.index("translate")
    wait_until(page, lambda: "sentences" in requests[first:])
    assert requests.index("translate") < len(requests) - 1 - requests[::-1].index("sentences"), (
        "the first sentences do not wait until all lines are split"
    )


def test_parts_of_a_very_long_line_are_joined_by_spaces(browser: Browser, service: RunningService) -> None:
    with open_page(browser, service.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.get_by_label("Translate from").select_option("en")
        page.locator("textarea").fill("red tea. " * 500)
        expect(output(page).locator("p")).to_have_count(2)
        expect(output(page).locator(".stale")).to_have_count(0)
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied", exact=True)).to_be_visible()
        expected = " ".join([translation(service, "red tea.")["text"]] * 500)
        assert page.evaluate("navigator.clipboard.readText()") == expected


SENTENCES = """async texts => {
    const { SentenceTranslator } = await import("./page/translate/sentence_translator.js");
    const translator = new SentenceTranslator(null), start = performance.now();
    translator.sentences("!".repeat(200_000), "en");
    return [performance.now() - start, texts.filter(text => translator.sentences(text, "en") === null)];
}"""


def test_lines_without_letters_do_not_keep_the_page_busy(page: Page) -> None:
    several = ["one. two", "\U0001f600 one", "one\u2028two. one"]
    milliseconds, split_by_the_service = page.evaluate(SENTENCES, [*several, "one two.", "one, two", "..."])
    assert milliseconds < 5000, "linear time takes milliseconds, quadratic time half a minute"
    assert split_by_the_service == several


def test_the_page_goes_on_when_the_service_is_back(browser: Browser, folder: Path) -> None:
    with running([str(folder), "--workers", "1"]) as only, open_page(browser, only.url, requests_fail=True) as page:
        page.locator("textarea").focus()
        banner = page.locator("#gone")
        expect(banner).to_be_hidden()
        page.route("**/*", lambda route: route.abort())
        page.keyboard.type(TEXT)
        expect(banner).to_contain_text("The service does not answer")
        page.unroute("**/*")
        expect(banner).to_be_hidden()
        expect(output(page)).to_have_text(translation(only, TEXT)["text"])


def test_requests_that_always_fail_are_repeated_after_growing_pauses(browser: Browser, service: RunningService) -> None:
    with open_page(browser, service.url, requests_fail=True) as page:
        page.get_by_label("Translate from").select_option("en")
        failed: list[Request] = []
        page.on("requestfailed", lambda request: failed.append(request))
        page.route("**/api/v1/translate", lambda route: route.abort())
        page.locator("textarea").fill(TEXT)
        page.wait_for_timeout(5000)
        assert len(failed) == 2, "at once and after 2 seconds; the next pause takes 4"
        page.unroute("**/api/v1/translate")
        expect(output(page)).to_have_text(translation(service, TEXT)["text"])


@pytest.mark.parametrize("text", ["red tea", "red tea. a tin."])  # the first request is for a translation or sentences
def test_a_reply_that_is_not_from_the_service_is_reported_once(page: Page, text: str) -> None:
    requests: list[Request] = []

    def log_in(route: Route) -> None:
        requests.append(route.request)
        route.fulfill(content_type="text/html", body="<h1>Log in</h1>")

    for path in ("translate", "sentences"):
        page.route(f"**/api/v1/{path}", log_in)
    page.locator("textarea").fill(text)
    expect(page.locator(".error")).to_contain_text("such as a proxy")
    expect(page.locator("#gone")).to_be_hidden()
    assert len(requests) == 1


def test_a_document_continues_when_the_service_is_back(browser: Browser, service: RunningService) -> None:
    with open_page(browser, service.url, requests_fail=True) as page:
        page.get_by_label("Translate from").select_option("en")
        document = FilePayload(name="letter.txt", mimeType="text/plain", buffer=b"red tea\n")
        for number, path in enumerate(("documents", "documents/*"), start=1):
            page.route(f"**/api/v1/{path}", lambda route: route.abort(), times=1)
            page.locator("input[type=file]").set_input_files(document)
            expect(page.locator("#gone")).to_be_visible()
            expect(page.get_by_role("button", name="Save the translation")).to_have_count(number, timeout=60_000)


def test_a_key_is_asked_for_once(browser: Browser, folder: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    config = tmp_path / "serve.toml"
    config.write_text(f'workers = 1\n[[models]]\npath = "{folder}"\n[[keys]]\nname = "someone"\nsha256 = "{digest}"\n')
    with running(["--config", str(config)]) as service, open_page(browser, service.url, requests_fail=True) as page:
        page.get_by_label("API key").fill("abc–def")  # a header cannot contain the dash
        page.keyboard.press("Enter")
        expect(page.locator("#key:invalid")).to_be_visible()
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_contain_text("is not valid for this service")
        expect(page.get_by_label("API key")).to_have_value("wrong")
        page.get_by_label("API key").fill(KEY)
        page.keyboard.press("Enter")
        page.locator("textarea").fill(TEXT)
        expect(output(page)).not_to_have_text("")
        page.reload()
        page.locator("textarea").fill(TEXT)
        expect(output(page)).not_to_have_text("")
