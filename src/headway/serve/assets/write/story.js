// The text that a language model generates, in pieces of mostly one token each. Pieces are shaded by their probability.

import { isolated, make, makeTabStop, percent } from "../dom.js";
import { confidenceClass } from "../translate/output.js";

const SHOWN = 4; // number of alternatives in the description of a piece

export const SPACE = "␣"; // shown in place of a space at the beginning or end of a token

/** Returns text with white space made visible. */
export const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^\s+|\s+$/g, (spaces) => SPACE.repeat(spaces.length));

export class Story {
  /**
   * @param {HTMLElement} place The element to fill.
   * @param context The context of the view.
   * @param {object} hooks `point(piece | null)` is called for the piece that is hovered or has the focus, and
   *   `choose(index)` for a piece that is clicked.
   *
   * A piece has `text`, `probability`, and `alternatives`: tokens with their probabilities, best first.
   */
  constructor(place, context, hooks) {
    Object.assign(this, { place, context, hooks, pieces: [], waiting: [] });
    this.prompt = make("span", { class: "prompt" });
    this.end = make("span", {});
    place.append(this.prompt, this.end);
    const index = (target) => [...this.#elements()].indexOf(target.closest?.(".token"));
    const point = (target) => hooks.point(this.pieces[index(target)] ?? null);
    place.addEventListener("pointerover", (event) => point(event.target));
    place.addEventListener("pointerleave", () => point(document.activeElement));
    place.addEventListener("focusin", (event) => point(event.target));
    place.addEventListener("click", (event) => {
      const at = index(event.target);
      if (at >= 0 && getSelection().isCollapsed) hooks.choose(at);
    });
    place.addEventListener("keydown", (event) => this.#key(event, index(event.target)));
  }

  get text() {
    return this.pieces.map((piece) => piece.text).join("");
  }

  /** The index of the piece that has the focus, or -1. */
  get focused() {
    return [...this.#elements()].indexOf(document.activeElement);
  }

  #elements() {
    return this.place.querySelectorAll(".token");
  }

  element(index) {
    return this.#elements()[index];
  }

  /** Starts over after a prompt. */
  begin(prompt) {
    this.prompt.textContent = prompt;
    this.use([]);
  }

  /** Shows other pieces. */
  use(pieces) {
    for (const element of this.#elements()) element.remove();
    this.pieces = [];
    this.waiting = [];
    for (const piece of pieces) this.#append(piece);
  }

  /** Adds a part of a stream. Tokens that end within a character wait for the rest of the character. */
  add({ text, tokens }) {
    this.waiting.push(...tokens);
    if (!text) return;
    const [first] = this.waiting;
    const total = this.waiting.reduce((sum, token) => sum + token.log_probability, 0);
    const alternatives = first?.alternatives.map((each) => ({ text: each.token, probability: Math.exp(each.log_probability) }));
    this.#append({ text, probability: first ? Math.exp(total) : null, alternatives: alternatives ?? [] });
    this.waiting = [];
  }

  /** Drops the tokens of an incomplete character. */
  finish() {
    this.waiting = [];
  }

  /** Replaces a piece with one of its alternatives, and removes the pieces after it. */
  replaceFrom(index, { text, probability }) {
    const kept = this.pieces.slice(0, index), { alternatives } = this.pieces[index];
    this.use([...kept, { text, probability, alternatives, isChosen: true }]);
  }

  focus(index) {
    this.#activate(index);
    this.element(index)?.focus();
  }

  /** Returns the description of a piece. */
  describe({ text, probability, alternatives }) {
    const { t, language } = this.context;
    const quoted = (each) => t("quoted", { text: isolated(visible(each)) });
    const said = [quoted(text)];
    if (probability !== null) said.push(t("word.probability", { percent: percent(probability, language) }));
    const others = alternatives.filter((each) => each.text !== text).slice(0, SHOWN);
    if (others.length) {
      const list = others.map((each) => `${quoted(each.text)} ${percent(each.probability, language)}`);
      said.push(t("write.others", { list: list.join(", ") }));
    }
    return said.join(" · ");
  }

  #append(piece) {
    const { language } = this.context;
    this.pieces.push(piece);
    const element = make("span", { class: `token ${confidenceClass(piece.probability)}`, role: "button", tabindex: this.pieces.length > 1 ? -1 : 0 }, piece.text);
    if (piece.text.includes("\n")) element.classList.add("newline");
    if (piece.isChosen) element.classList.add("chosen");
    const share = piece.probability === null ? "" : `, ${percent(piece.probability, language)}`;
    element.setAttribute("aria-label", visible(piece.text) + share);
    element.setAttribute("aria-haspopup", "menu");
    this.end.before(element);
  }

  #activate(index) {
    const elements = this.#elements();
    makeTabStop(elements[index], elements);
  }

  #key(event, at) {
    if (at < 0) return;
    const forward = getComputedStyle(this.place).direction === "rtl" ? -1 : 1;
    const steps = { ArrowRight: forward, ArrowLeft: -forward, Home: -at, End: this.pieces.length - 1 - at };
    if (event.key in steps) {
      event.preventDefault();
      this.focus(Math.min(Math.max(at + steps[event.key], 0), this.pieces.length - 1));
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.hooks.choose(at);
    }
  }
}
