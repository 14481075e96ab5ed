// The menu of a word: alternatives to it with their probabilities, and a field for any other word.

import { ApiError, isAbort } from "../api.js";
import { isolated, make, moveFocus, percent } from "../dom.js";
import { meter } from "../meter.js";
import { findAlternativeWords, firstToken, mergedByWord } from "./alternative_words.js";

const COUNT = 7;
const MAX_PREVIEW = 80; // maximum number of characters

/** Returns a note if an alternative replaces more than its word, otherwise nothing. */
export const insteadOf = (replaced, t) =>
  replaced === null ? "" : make("span", { class: "quiet" }, ` (${t("alternatives.instead", { text: isolated(replaced) })})`);

export class AlternativesMenu {
  /**
   * @param {HTMLElement} parent A positioned element in which to show the menu.
   * @param context The context of the view.
   * @param {(place: object, translation: object, span: [number, number]) => void} choose Called with another translation,
   *   and with the span of the chosen word in it.
   */
  constructor(parent, context, choose) {
    Object.assign(this, { parent, context, choose });
    this.menu = make("div", { role: "menu" });
    this.element = make("div", { class: "alternatives", hidden: true }, this.menu);
    parent.append(this.element);
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.listening = new AbortController();
    document.addEventListener("pointerdown", (event) => {
      if (!this.element.hidden && !this.element.contains(event.target)) this.hide(false);
    }, { signal: this.listening.signal });
  }

  /** Aborts the requests, and removes all listeners outside the menu. */
  close() {
    this.hide(false);
    this.listening.abort();
  }

  hide(returnFocus) {
    this.running?.abort();
    this.element.hidden = true;
    const { place } = this;
    this.place = null;
    place?.element.classList.remove("open");
    if (returnFocus && place?.element.isConnected) place.element.focus();
  }

  /**
   * Opens the menu for a word.
   *
   * @param {object} request The fields of /api/v1/translate, except `text`.
   * @param {object} sentence The text, source, target and model of the sentence in which the word was generated.
   */
  async open(place, request, sentence) {
    this.hide(false);
    const { t, api, describe } = this.context;
    this.place = place;
    const { slot, words, index } = place;
    const word = words[index], { text } = slot.result;
    const current = text.slice(word.start, word.end);
    place.element.classList.add("open");
    const title = make("p", { class: "title" }, t("alternatives.title", { word: isolated(current) }));
    this.menu.setAttribute("aria-label", title.textContent);
    this.list = make("div");
    const waiting = make("p", { class: "quiet", tabindex: -1, role: "menuitem", "aria-disabled": "true" }, t("loading"));
    this.list.append(waiting);
    this.menu.replaceChildren(this.list, ...this.#whyButton(place, sentence));
    const later = (slot.result.choices ?? []).filter((choice) => choice.start > word.start)
      .map((choice) => t("quoted", { text: isolated(choice.word) }));
    const risk = make("p", { class: "quiet", id: "risk" }, later.length ? t("alternatives.later", { words: later.join(", ") }) : "");
    this.menu.setAttribute("aria-describedby", risk.id);
    this.element.replaceChildren(title, this.menu, this.#wordForm(place, request), risk);
    this.element.hidden = false;
    this.#place();
    waiting.focus();
    const { signal } = (this.running = new AbortController());
    try {
      const ours = {
        token: firstToken(slot.result, word.start), probability: word.probability ?? 1, span: [word.start, word.end],
        word: current, translation: slot.result, isCurrent: true,
      };
      const others = await findAlternativeWords(api, sentence, { ...request, text: slot.text }, {
        translation: slot.result, span: [word.start, word.end], count: COUNT, signal,
        changed: (entries) => this.#show(place, [ours, ...entries]),
      });
      if (!others.length) this.list.append(make("p", { class: "quiet" }, t("alternatives.none")));
    } catch (error) {
      if (!isAbort(error)) this.list.replaceChildren(make("p", { class: "error" }, describe(error)));
    }
  }

  /** Returns a button that opens the Why view, if that view is offered. */
  #whyButton({ slot, words, index }, sentence) {
    const { t, navigate, offers } = this.context;
    if (!offers("why")) return [];
    const button = make("button", { type: "button", role: "menuitem", class: "why" });
    const { text: translation } = slot.result, { start, end } = words[index];
    button.append(t("alternatives.why", { word: isolated(translation.slice(start, end)) }));
    button.addEventListener("click", () => {
      this.hide(false);
      navigate("why", { ...sentence, translation, position: start });
    });
    return [button];
  }

  /** Returns a field for a word that is not among the alternatives. */
  #wordForm(place, request) {
    const { t, api, describe } = this.context, { slot, words, index } = place, { start } = words[index];
    const input = make("input", { "aria-label": t("alternatives.own"), placeholder: t("alternatives.own"), autocomplete: "off", dir: "auto" });
    const failure = make("p", { class: "error", role: "alert" });
    const form = make("form", {}, input, make("button", {}, t("alternatives.use")), failure);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const word = input.value.trim(), { signal } = this.running;
      failure.textContent = word ? "" : t("word.empty");
      if (!word) {
        input.focus();
        return;
      }
      try {
        const body = { ...request, text: slot.text, prefix: slot.result.text.slice(0, start) + word };
        const { translations: [found] } = await api.post("translate", body, { signal, retryWhenBusy: true });
        if (found.error !== undefined) throw new ApiError(400, found.error);
        this.hide(false);
        this.choose(place, found, [start, start + word.length]);
      } catch (error) {
        if (!isAbort(error)) failure.textContent = describe(error);
      }
    });
    return form;
  }

  /** Shows the entries. Entries with the same word are merged. An entry without a word waits for its translation. */
  #show(place, entries) {
    if (this.place !== place) return; // the menu was closed meanwhile
    const ordered = mergedByWord(entries);
    const focused = document.activeElement;
    this.list.replaceChildren(...ordered.map((entry) => this.#item(entry, place)));
    this.#place();
    if (this.element.contains(focused)) return; // the button that opens Why has the focus
    const items = [...this.list.children], { word } = focused.dataset;
    (items.find((item) => word !== undefined && item.dataset.word === word) ?? items[0]).focus();
  }

  #item({ name, word, span, translation, probability, replaced = null, isCurrent = false }, place) {
    const { t, language } = this.context;
    const rest = translation?.text.slice(span[1]) ?? "";
    const preview = rest.length > MAX_PREVIEW ? `${rest.slice(0, MAX_PREVIEW)}…` : rest;
    const item = make("button", {
      type: "button", role: "menuitemradio", "aria-checked": String(isCurrent), "aria-disabled": word ? null : "true",
    },
      make("span", { class: "tick", "aria-hidden": "true" }, isCurrent ? "✓" : ""),
      make("span", { class: "text", dir: "auto" }, make("b", {}, name), insteadOf(replaced, t), make("span", { class: "quiet" }, preview)),
      make("span", { class: "share" }, meter(probability), percent(probability, language)));
    item.dataset.word = name;
    item.title = isCurrent ? t("alternatives.current") : translation?.text ?? "";
    item.addEventListener("click", () => {
      if (!word) return;
      this.hide(isCurrent);
      if (!isCurrent) this.choose(place, translation, span);
    });
    return item;
  }

  // The Tab key moves from the menu to the field, and from there out of it. The arrow keys move through all items.
  #key(event) {
    const items = [...this.menu.querySelectorAll("[role^=menuitem]")], field = this.element.querySelector("input");
    const isInMenu = this.menu.contains(event.target);
    if (event.key === "Escape" || (event.key === "Tab" && (event.shiftKey || event.target.matches("form button")))) {
      event.preventDefault();
      this.hide(true);
    } else if (event.key === "Tab" && isInMenu) {
      event.preventDefault();
      field.focus();
    } else if (["ArrowUp", "ArrowDown"].includes(event.key)) moveFocus(event, [...items, field]);
    else if (isInMenu) moveFocus(event, items);
  }

  /** Positions the menu below its word, inside the parent and the window. */
  #place() {
    const { parent, element, place } = this;
    const outer = parent.getBoundingClientRect(), word = place.element.getClientRects()[0];
    const left = Math.max(8, Math.min(word.left - outer.left, outer.width - element.offsetWidth - 8));
    element.style.left = `${left}px`;
    element.style.top = `${word.bottom - outer.top + 6}px`;
    element.scrollIntoView({ block: "nearest" });
  }
}
