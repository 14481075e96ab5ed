// The Fill view: a masked language model fills in the hidden words of a text.

import { isUndo, make, percent } from "../dom.js";
import { meter } from "../meter.js";
import { TextView } from "../text_view.js";

const MASK = "[MASK]";
const ANY_MASK = /\[mask\]/gi; // the mask as users may type it
const COUNT = 8;
const IN_WORD = /[\p{L}\p{N}\p{M}]/u;

export function mount(container, context, state = {}) {
  return new Fill(container, context, state).view;
}

class Fill {
  constructor(container, context, state) {
    this.context = context;
    const { t } = context;
    this.hide = make("button", { type: "button" }, t("fill.hide"));
    this.undo = make("button", { type: "button", hidden: true }, t("fill.undo"));
    this.problem = make("span", { class: "quiet", role: "status" });
    this.status = make("p", { class: "quiet", role: "status" });
    this.list = make("ol", { class: "fillings", "aria-label": t("fill.result") });
    this.view = new TextView(container, context, state, {
      name: "fill", capability: "fills", rows: 3, values: { mask: MASK },
      controls: [make("div", { class: "row" }, this.hide, this.undo, this.problem)], results: [this.status, this.list],
      show: (text, signal) => this.#show(text, signal), clear: () => this.#clear(""),
    });
    this.hide.addEventListener("click", () => this.#hideSelection());
    container.addEventListener("keydown", (event) => {
      if (!isUndo(event) || !this.history.length) return;
      event.preventDefault();
      this.#undo();
    });
    this.history = []; // the texts before each change by a button
    this.undo.addEventListener("click", () => this.#undo());
    this.view.input.addEventListener("input", () => {
      this.history = []; // the browser handles undo of typed text
      this.undo.hidden = true;
      this.problem.textContent = "";
    });
    this.view.update();
  }

  /** Replaces the selected text, or the word at the caret, with a mask. */
  #hideSelection() {
    const { t } = this.context, { input } = this.view, { value } = input;
    let { selectionStart: start, selectionEnd: end } = input;
    if (start === end) {
      while (start > 0 && IN_WORD.test(value[start - 1])) start -= 1;
      while (end < value.length && IN_WORD.test(value[end])) end += 1;
    }
    if (start < end) {
      this.#keep();
      input.setRangeText(MASK, start, end, "end");
      this.view.update();
    }
    this.problem.textContent = start < end ? "" : t("fill.noWord");
    input.focus();
  }

  #keep() {
    this.history.push(this.view.text);
    this.undo.hidden = false;
  }

  #use(text) {
    this.#keep();
    this.context.announce(text);
    this.view.use(text);
    this.undo.focus();
  }

  #undo() {
    const text = this.history.pop();
    this.undo.hidden = !this.history.length;
    this.context.announce(text);
    this.view.use(text);
    (this.undo.hidden ? this.view.input : this.undo).focus();
  }

  #clear(status) {
    this.list.replaceChildren();
    this.status.textContent = status;
  }

  async #show(typed, signal) {
    const { t, api } = this.context, text = typed.replace(ANY_MASK, MASK);
    if (!text.includes(MASK)) {
      this.#clear(t("fill.none"));
      return;
    }
    const { fillings } = await api.post("fill", { text, model: this.view.model, top: COUNT }, { signal, retryWhenBusy: true });
    this.status.textContent = t("fill.found", { count: fillings.length });
    this.list.replaceChildren(...fillings.map((filling) => this.#item(filling)));
  }

  #item({ text, words, probability }) {
    const { t, language } = this.context;
    const button = make("button", { type: "button" },
      make("b", { dir: "auto" }, words.map((word) => word.trim() || t("fill.space")).join(" … ")),
      make("span", { class: "share" }, meter(probability), percent(probability, language)),
      make("span", { class: "quiet whole", dir: "auto" }, text));
    button.addEventListener("click", () => this.#use(text));
    return make("li", {}, button);
  }
}
