// The menu of a word: what the model could have written there instead, and how probable each is.

import { isAbort } from "../api.js";
import { isolated, make, moveFocus, percent } from "../dom.js";
import { meter } from "../meter.js";
import { tokenSpans, wordsOf } from "./words.js";

const COUNT = 7;
const MIN_PROBABILITY = 0.001; // of what is shown beyond the first few
const FEW = 3;
const END = "<eos>";
const MAX_PREVIEW = 40; // characters

export class AlternativesMenu {
  /**
   * @param {HTMLElement} parent An element with a position, in which the menu is shown.
   * @param context The context of the view.
   * @param {(place: object, translation: object, position: number) => void} choose Is called with another translation.
   */
  constructor(parent, context, choose) {
    Object.assign(this, { parent, context, choose });
    this.element = make("div", { class: "alternatives", role: "menu", hidden: true });
    parent.append(this.element);
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" || event.key === "Tab") {
        event.preventDefault();
        this.close(true);
      } else moveFocus(event, this.#items());
    });
    this.listening = new AbortController();
    document.addEventListener("pointerdown", (event) => {
      if (!this.element.hidden && !this.element.contains(event.target)) this.close(false);
    }, { signal: this.listening.signal });
  }

  remove() {
    this.close(false);
    this.listening.abort();
  }

  close(returnFocus) {
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
   * @param {object} request The fields of /api/v1/translate but `text`.
   * @param {object} sentence What the model that has written the word has read: its text, source, target and model.
   */
  async open(place, request, sentence) {
    this.close(false);
    const { t, api, describe } = this.context;
    this.place = place;
    const { slot, words, index } = place;
    const word = words[index], { text } = slot.result;
    const prefix = text.slice(0, word.start).trimEnd();
    const current = text.slice(word.start, word.end);
    place.element.classList.add("open");
    const title = make("p", { class: "title" }, t("alternatives.title", { word: isolated(current) }));
    this.element.setAttribute("aria-label", title.textContent);
    this.list = make("div");
    const waiting = make("p", { class: "quiet", tabindex: -1, role: "menuitem", "aria-disabled": "true" }, t("loading"));
    this.list.append(waiting);
    this.element.replaceChildren(title, this.list, ...this.#whyButton(place, sentence));
    this.element.hidden = false;
    this.#place();
    waiting.focus();
    const { signal } = (this.running = new AbortController());
    try {
      const { alternatives } = await api.post("alternatives", { ...sentence, prefix, count: COUNT }, { signal });
      const ownToken = firstToken(slot.result, word.start);
      const others = alternatives.filter(({ token }) => token !== END && token.trim() !== ownToken);
      const entries = others
        .map(({ token, log_probability }) => ({ token, probability: Math.exp(log_probability) }))
        .filter(({ probability }, at) => at < FEW || probability >= MIN_PROBABILITY);
      const span = [word.start, word.end];
      const ours = { token: ownToken, probability: word.probability ?? 1, span, word: current, translation: slot.result, isCurrent: true };
      this.#show(place, [ours, ...entries]);
      await Promise.all(entries.map(async (entry) => {
        const translation = await this.#continuation(slot, prefix, entry.token, request, signal);
        const found = translation && wordsOf(translation, slot.text, request.target, request.source)
          .find(({ end }) => end > prefix.length);
        Object.assign(entry, found ? {
          translation, span: [found.start, found.end], word: translation.text.slice(found.start, found.end),
          probability: found.probability ?? entry.probability,
        } : { probability: 0 });
        this.#show(place, [ours, ...entries]);
      }));
      if (!entries.some((entry) => entry.word)) this.list.append(make("p", { class: "quiet" }, t("alternatives.none")));
    } catch (error) {
      if (!isAbort(error)) this.list.replaceChildren(make("p", { class: "error" }, describe(error)));
    }
  }

  /** Returns the way to the view Why, if there is one. */
  #whyButton({ slot, words, index }, sentence) {
    const { t, navigate, offers } = this.context;
    if (!offers("why")) return [];
    const button = make("button", { type: "button", role: "menuitem", class: "why" });
    const { text: translation } = slot.result, { start, end } = words[index];
    button.append(t("alternatives.why", { word: isolated(translation.slice(start, end)) }));
    button.addEventListener("click", () => {
      this.close(false);
      navigate("why", { ...sentence, translation, position: start });
    });
    return [button];
  }

  /** Returns the translation that begins with a prefix and a token, or null if there is none. */
  async #continuation(slot, prefix, token, request, signal) {
    const { tokens, text } = slot.result;
    const joined = tokens.join("").trim() === text.trim() ? "" : " "; // tokens of whole words contain no spaces
    // A token that is a space is what the model puts before its first choice.
    const body = { ...request, text: slot.text, prefix: token.trim() ? prefix + joined + token : prefix };
    const { translations } = await this.context.api.post("translate", body, { signal, retryWhenBusy: true });
    return translations[0].error === undefined ? translations[0] : null;
  }

  /** Shows the entries; those with the same word are one. An entry without a word waits for its translation. */
  #show(place, entries) {
    if (this.place !== place) return; // closed meanwhile
    const byWord = new Map();
    for (const entry of entries) {
      if (entry.probability === 0) continue;
      const name = entry.word ?? `${entry.token.trim()}…`;
      const known = byWord.get(name);
      const better = !known || (!known.isCurrent && entry.translation?.log_probability > known.translation?.log_probability);
      byWord.set(name, { ...(better ? entry : known), name, probability: Math.max(entry.probability, known?.probability ?? 0) });
    }
    const ordered = [...byWord.values()].sort((one, other) => other.probability - one.probability);
    const focused = document.activeElement;
    this.list.replaceChildren(...ordered.map((entry) => this.#item(entry, place)));
    this.#place();
    if (this.element.contains(focused)) return; // it is the button of Why
    const items = [...this.list.children], { word } = focused.dataset;
    (items.find((item) => word !== undefined && item.dataset.word === word) ?? items[0]).focus();
  }

  #item({ name, word, span, translation, probability, isCurrent = false }, place) {
    const { t, language } = this.context;
    const rest = translation?.text.slice(span[1]) ?? "";
    const preview = rest.length > MAX_PREVIEW ? `${rest.slice(0, MAX_PREVIEW)}…` : rest;
    const item = make("button", {
      type: "button", role: "menuitemradio", "aria-checked": String(isCurrent), "aria-disabled": word ? null : "true",
    },
      make("span", { class: "tick", "aria-hidden": "true" }, isCurrent ? "✓" : ""),
      make("span", { class: "text", dir: "auto" }, make("b", {}, name), make("span", { class: "quiet" }, preview)),
      make("span", { class: "share" }, meter(probability), percent(probability, language)));
    item.dataset.word = name;
    item.title = isCurrent ? t("alternatives.current") : translation?.text ?? "";
    item.addEventListener("click", () => {
      if (!word) return;
      this.close(isCurrent);
      if (!isCurrent) this.choose(place, translation, span[0]);
    });
    return item;
  }

  #items() {
    return [...this.element.querySelectorAll("[role^=menuitem]")];
  }

  /** Places the menu below its word, inside of the parent and of the window. */
  #place() {
    const { parent, element, place } = this;
    const outer = parent.getBoundingClientRect(), word = place.element.getClientRects()[0];
    const left = Math.max(8, Math.min(word.left - outer.left, outer.width - element.offsetWidth - 8));
    element.style.left = `${left}px`;
    element.style.top = `${word.bottom - outer.top + 6}px`;
  }
}

/** Returns the first token, without white space, of the word at a position of a translation, or null. */
function firstToken({ text, tokens }, position) {
  const at = tokenSpans(tokens, text).findIndex((span) => span && span[1] > position);
  return at < 0 ? null : tokens[at].trim();
}
