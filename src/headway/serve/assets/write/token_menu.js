// The menu of a token: its alternatives with their probabilities, and the text that would follow each of them.

import { make, moveFocus, percent } from "../dom.js";
import { meter } from "../meter.js";
import { visible } from "./story.js";

const PREVIEWED = 12; // number of tokens to preview after an alternative
const MAX_READ = 2000; // number of characters before the token that are sent for the preview
const oneLine = (text) => text.replace(/\s+/g, " ");

const isPart = (token) => /^<0x[0-9A-F]{2}>$/.test(token); // one byte of a character
const isSpecial = (token) => /^<\w+>$/.test(token);

export class TokenMenu {
  /**
   * @param {HTMLElement} parent A positioned element in which to show the menu.
   * @param context The context of the view.
   * @param {Story} story The generated text.
   * @param {object} hooks `choose(index, alternative)` is called with another token for a position. `request()` returns the
   *   model and the prompt, or null while the model is generating.
   */
  constructor(parent, context, story, hooks) {
    Object.assign(this, { parent, context, story, hooks, index: null });
    this.title = make("p", { class: "quiet" });
    this.menu = make("div", { role: "menu" });
    this.element = make("div", { class: "token-menu" }, this.title, this.menu);
    this.element.hidden = true;
    parent.append(this.element);
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape" || event.key === "Tab") {
        event.preventDefault();
        this.hide();
      } else moveFocus(event, [...this.element.querySelectorAll("button")]);
    });
    this.listening = new AbortController();
    document.addEventListener("pointerdown", (event) => {
      if (!this.element.hidden && !this.element.contains(event.target)) this.hide(false);
    }, { signal: this.listening.signal });
  }

  /** Aborts the requests, and removes all listeners outside the menu. */
  close() {
    this.listening.abort();
    this.previewing?.abort();
  }

  hide(returnFocus = true) {
    this.previewing?.abort();
    this.element.hidden = true;
    const element = this.story.element(this.index);
    element?.classList.remove("open");
    if (returnFocus) element?.focus();
  }

  open(index) {
    const { t, language } = this.context, piece = this.story.pieces[index];
    if (!this.element.hidden) this.hide(false);
    this.index = index;
    this.title.textContent = t("write.instead", { word: visible(piece.text) });
    this.menu.setAttribute("aria-label", this.title.textContent);
    const previews = new Map(); // alternative -> element of its preview
    const items = piece.alternatives.map((alternative) => {
      const isCurrent = alternative.text === piece.text;
      const usable = !isCurrent && !isPart(alternative.text) && !isSpecial(alternative.text);
      const name = alternative.text === "<eos>" ? t("write.eos") : visible(alternative.text);
      const preview = make("span", { class: "quiet" });
      if (isCurrent) preview.textContent = oneLine(this.story.pieces.slice(index + 1, index + 1 + PREVIEWED).map(({ text }) => text).join(""));
      if (usable) previews.set(alternative, preview);
      const item = make("button", {
        type: "button", role: "menuitemradio", "aria-checked": String(isCurrent), "aria-disabled": usable ? null : "true",
      },
        make("span", { class: "tick", "aria-hidden": "true" }, isCurrent ? "✓" : ""),
        make("span", { class: "name", dir: "auto" }, make("b", {}, name), preview),
        make("span", { class: "share" }, meter(alternative.probability), percent(alternative.probability, language)));
      item.addEventListener("click", () => {
        if (isCurrent) this.hide();
        if (!usable) return;
        this.hide(false);
        this.hooks.choose(index, alternative);
      });
      return item;
    });
    if (!items.length) this.title.append(" ", t("alternatives.none"));
    this.menu.replaceChildren(...items);
    this.element.hidden = false;
    this.story.element(index).classList.add("open");
    this.#place(index);
    (items.find((item) => item.getAttribute("aria-checked") === "true") ?? items[0])?.focus();
    this.#preview(index, previews);
  }

  /** Shows the most probable continuation of the text after each alternative. */
  async #preview(index, previews) {
    const request = this.hooks.request(), alternatives = [...previews.keys()];
    if (!request || !alternatives.length) return;
    const { signal } = (this.previewing = new AbortController());
    const before = request.begun + this.story.pieces.slice(0, index).map(({ text }) => text).join("");
    const body = {
      prompt: alternatives.map(({ text }) => before.slice(-MAX_READ) + text), model: request.model,
      options: { temperature: 0, max_new_tokens: PREVIEWED, beyond_context: "slide" },
    };
    try {
      const { continuations } = await this.context.api.post("generate", body, { signal });
      continuations.forEach(([{ text }], at) => (previews.get(alternatives[at]).textContent = oneLine(text)));
    } catch {
      // The alternatives can be chosen without previews.
    }
  }

  /** Positions the menu below its token, inside the parent. */
  #place(index) {
    const { parent, element } = this;
    const outer = parent.getBoundingClientRect(), word = this.story.element(index).getClientRects()[0];
    const left = Math.max(8, Math.min(word.left - outer.left, outer.width - element.offsetWidth - 8));
    element.style.left = `${left}px`;
    element.style.top = `${word.bottom - outer.top + 6}px`;
    element.scrollIntoView({ block: "nearest" });
  }
}
