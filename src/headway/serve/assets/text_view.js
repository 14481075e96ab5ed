// The common parts of the Fill and Classify views: a text field, a choice of the model, and results that are updated
// while the user types.

import { UnreachableError, isAbort } from "./api.js";
import { focusField, make } from "./dom.js";
import { choose, fillModels } from "./lists.js";

const DELAY_MS = 300; // delay after the last key press

export class TextView {
  /**
   * @param {object} options
   * @param {string} options.name The name of the view, which is the prefix of its text keys.
   * @param {string} options.capability The capability of the view's models.
   * @param {number} options.rows The height of the field, in lines.
   * @param {object} options.values Values for placeholders in the view's texts.
   * @param {Node[]} options.controls Elements below the field.
   * @param {Node[]} options.results Elements that show the results. They are hidden while there is no text.
   * @param {(text: string, signal: AbortSignal) => Promise<void>} options.show Shows the results for a text.
   * @param {() => void} options.clear Removes the results.
   */
  constructor(container, context, state, { name, capability, rows, values = {}, controls = [], results, show, clear }) {
    Object.assign(this, { context, show, clear });
    const { t } = context, models = context.models.filter((model) => model.capability === capability);
    this.input = make("textarea", { dir: "auto", rows, placeholder: t(`${name}.placeholder`, values) });
    this.input.value = state.text ?? "";
    this.select = make("select", {});
    fillModels(this.select, models.map((model) => model.name));
    if (state.model) choose(this.select, state.model);
    this.failure = make("p", { class: "error", role: "alert" });
    this.results = make("section", { class: "card results", "aria-label": t(`${name}.result`) }, this.failure, ...results);
    const choice = make("label", { class: "field" }, make("span", {}, t(`${name}.model`)), this.select);
    choice.hidden = models.length < 2;
    container.append(
      make("h1", {}, t(`view.${name}`)), make("p", { class: "quiet about" }, t(`${name}.about`, values)),
      make("section", { class: "card" }, choice,
        make("label", { class: "field" }, make("span", {}, t(`${name}.text`)), this.input), ...controls),
      this.results);
    this.input.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.update(), DELAY_MS);
    });
    this.select.addEventListener("change", () => this.update());
    this.onBack = () => this.isInterrupted && this.update();
    document.addEventListener("serviceback", this.onBack);
    focusField(this.input);
  }

  get text() {
    return this.input.value;
  }

  get model() {
    return this.select.value;
  }

  state() {
    return { text: this.text, model: this.model };
  }

  unmount() {
    document.removeEventListener("serviceback", this.onBack);
    clearTimeout(this.timer);
    this.running?.abort();
  }

  /** Replaces the text. */
  use(text) {
    this.input.value = text;
    this.update();
  }

  /** Shows the results for the text in the field. */
  update() {
    clearTimeout(this.timer);
    const { text } = this;
    this.results.hidden = !text.trim();
    this.run(async (signal) => (text.trim() ? this.show(text, signal) : this.clear()));
  }

  /** Aborts earlier work, and runs `work`. If it fails, removes the results, and shows the error. */
  async run(work) {
    this.running?.abort();
    const { signal } = (this.running = new AbortController());
    this.failure.textContent = "";
    this.isInterrupted = false;
    try {
      await work(signal);
    } catch (error) {
      if (isAbort(error)) return;
      this.clear();
      this.isInterrupted = error instanceof UnreachableError;
      this.failure.textContent = this.context.describe(error);
    }
  }
}
