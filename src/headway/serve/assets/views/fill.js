// The view Fill: a masked language model fills in the hidden words of a text.

import { isAbort } from "../api.js";
import { make, percent } from "../dom.js";
import { meter } from "../meter.js";

const MASK = "[MASK]";
const DELAY_MS = 300;
const COUNT = 8;

export function mount(container, context, state = {}) {
  return new FillView(container, context, state);
}

class FillView {
  constructor(container, context, state) {
    this.context = context;
    const { t } = context, models = context.models.filter((model) => model.kind === "masked_language_model");
    this.input = make("textarea", { dir: "auto", rows: 3, placeholder: t("fill.placeholder", { mask: MASK }) });
    this.input.value = state.text ?? "";
    this.model = make("select", {}, ...models.map(({ name }) => make("option", { value: name }, name)));
    if (state.model) this.model.value = state.model;
    this.hide = make("button", { type: "button" }, t("fill.hide"));
    this.undo = make("button", { type: "button", hidden: true }, t("fill.undo"));
    this.failure = make("p", { class: "error", role: "alert" });
    this.status = make("p", { class: "quiet", role: "status" });
    this.list = make("ol", { class: "fillings", "aria-label": t("fill.result") });
    const choice = make("label", { class: "field" }, make("span", {}, t("fill.model")), this.model);
    choice.hidden = models.length < 2;
    container.append(
      make("h1", {}, t("view.fill")), make("p", { class: "quiet about" }, t("fill.about", { mask: MASK })),
      make("section", { class: "card" }, choice,
        make("label", { class: "field" }, make("span", {}, t("fill.text")), this.input),
        make("div", { class: "row" }, this.hide, this.undo)),
      make("section", { class: "card results", "aria-label": t("fill.result") }, this.status, this.failure, this.list));
    this.input.addEventListener("input", () => this.#later());
    this.model.addEventListener("change", () => this.#fill());
    this.hide.addEventListener("click", () => this.#hideSelection());
    this.undo.addEventListener("click", () => this.#use(this.before, false));
    this.#fill();
    this.input.focus({ preventScroll: true });
  }

  state() {
    return { text: this.input.value, model: this.model.value };
  }

  unmount() {
    clearTimeout(this.timer);
    this.running?.abort();
  }

  #later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#fill(), DELAY_MS);
  }

  /** Puts a mask in the place of the selected text, or of the word at the caret. */
  #hideSelection() {
    const { value } = this.input;
    let { selectionStart: start, selectionEnd: end } = this.input;
    if (start === end) {
      while (start > 0 && /[\p{L}\p{N}]/u.test(value[start - 1])) start -= 1;
      while (end < value.length && /[\p{L}\p{N}]/u.test(value[end])) end += 1;
    }
    this.input.setRangeText(MASK, start, end, "end");
    this.input.focus();
    this.#fill();
  }

  #use(text, keep = true) {
    this.before = keep ? this.input.value : null;
    this.undo.hidden = !keep;
    this.input.value = text;
    this.context.announce(text);
    this.#fill();
    (keep ? this.undo : this.input).focus();
  }

  async #fill() {
    clearTimeout(this.timer);
    this.running?.abort();
    const { t, api, describe } = this.context, text = this.input.value;
    this.failure.textContent = "";
    if (!text.includes(MASK)) {
      this.list.replaceChildren();
      this.status.textContent = text.trim() ? t("fill.none") : "";
      return;
    }
    const { signal } = (this.running = new AbortController());
    try {
      const body = { text, model: this.model.value, top: COUNT };
      const { fillings } = await api.post("fill", body, { signal, patient: true });
      this.status.textContent = t("fill.found", { count: fillings.length });
      this.list.replaceChildren(...fillings.map((filling) => this.#item(filling)));
    } catch (error) {
      if (isAbort(error)) return;
      this.status.textContent = "";
      this.list.replaceChildren();
      this.failure.textContent = describe(error);
    }
  }

  #item({ text, words, probability }) {
    const { language } = this.context;
    const button = make("button", { type: "button" },
      make("b", { dir: "auto" }, words.map((word) => word || "␣").join(" … ")),
      make("span", { class: "share" }, meter(probability), percent(probability, language)),
      make("span", { class: "quiet whole", dir: "auto" }, text));
    button.addEventListener("click", () => this.#use(text));
    return make("li", {}, button);
  }
}
