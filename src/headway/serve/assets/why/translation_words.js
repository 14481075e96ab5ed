// The words of a translation as buttons, shaded by their probabilities. The Tab key reaches only one of them; the arrow keys
// move to the others.

import { make, makeTabStop, moveFocus, percent } from "../dom.js";
import { confidenceClass } from "../translate/output.js";
import { tokenSpans, wordsOf } from "../translate/words.js";

export class TranslationWords {
  /**
   * `onChosen(request, translation, word, row)` is called with the request of show(), the `text` and `tokens` of the
   * translation, the word (`start`, `end` and `probability`), and the index of its first step.
   */
  constructor(context, onChosen) {
    Object.assign(this, { context, onChosen });
    this.element = make("p", { class: "translation", role: "toolbar", "aria-label": context.t("translate.result"), dir: "auto" });
    this.element.addEventListener("keydown", (event) => this.#key(event));
  }

  get #buttons() {
    return [...this.element.querySelectorAll("[role=button]")];
  }

  /** Shows the words of an inspected translation of `request`. */
  show(request, { target: text, steps }) {
    const own = steps.filter((step) => !step.forced), firstRow = steps.length - own.length;
    const tokens = own.slice(0, -1).map((step) => step.token), values = own.map((step) => Math.log(step.probability));
    const spans = tokenSpans(tokens, text);
    const words = wordsOf({ text, tokens, token_log_probabilities: values }, request.text, request.target, request.source);
    const children = [];
    let from = 0;
    for (const word of words) {
      const row = firstRow + spans.findIndex((span) => span && span[1] > word.start);
      const button = this.#button(word, text.slice(word.start, word.end), () => this.onChosen(request, { text, tokens }, word, row));
      children.push(text.slice(from, word.start), button);
      from = word.end;
    }
    this.element.lang = request.target;
    this.element.replaceChildren(...children, text.slice(from));
    makeTabStop(this.#buttons[0], this.#buttons);
  }

  /** Chooses the word that begins at a position in the translation, if there is one, and scrolls it into view. */
  choose(position) {
    const button = this.#buttons.find((each) => Number(each.dataset.start) === position);
    if (!button) return;
    makeTabStop(button, this.#buttons);
    button.focus();
    button.click();
    this.element.scrollIntoView();
  }

  focus() {
    this.#buttons[0]?.focus();
  }

  #button({ start, probability }, text, onClick) {
    const share = probability === null ? "" : percent(probability, this.context.language);
    const button = make("span", {
      class: `token ${confidenceClass(probability)}`, role: "button", tabindex: -1, title: share,
      "aria-label": share ? `${text}, ${share}` : text, "data-start": start,
    }, text);
    button.addEventListener("click", () => {
      this.element.querySelector(".open")?.classList.remove("open");
      button.classList.add("open");
      onClick();
    });
    return button;
  }

  #key(event) {
    const options = { horizontal: true, rightToLeft: getComputedStyle(this.element).direction === "rtl" };
    const next = moveFocus(event, this.#buttons, options);
    if (next) makeTabStop(next, this.#buttons);
    else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      event.target.click();
    }
  }
}
