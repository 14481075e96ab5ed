// The view Classify: how probable each label of a text is, and which words a label rests on.

import { isAbort } from "../api.js";
import { make, percent } from "../dom.js";
import { meter } from "../meter.js";

const DELAY_MS = 300;
const MAX_STRENGTH = 42; // percent of the color of the strongest word: more would hide its letters

export function mount(container, context, state = {}) {
  return new ClassifyView(container, context, state);
}

class ClassifyView {
  constructor(container, context, state) {
    this.context = context;
    const { t } = context, models = context.models.filter((model) => model.kind === "classification");
    this.input = make("textarea", { dir: "auto", rows: 4, placeholder: t("classify.placeholder") });
    this.input.value = state.text ?? "";
    this.model = make("select", {}, ...models.map(({ name }) => make("option", { value: name }, name)));
    if (state.model) this.model.value = state.model;
    this.failure = make("p", { class: "error", role: "alert" });
    this.status = make("p", { class: "note", role: "status", hidden: true });
    this.labels = make("div", { class: "labels", role: "group", "aria-label": t("classify.result") });
    this.why = make("h2", {});
    this.words = make("p", { class: "words", dir: "auto" });
    this.reasons = make("div", { hidden: true }, this.why, this.words,
      make("p", { class: "quiet" }, make("span", { class: "for" }, t("classify.for")), " · ",
        make("span", { class: "against" }, t("classify.against")), " · ", t("classify.strength")));
    const choice = make("label", { class: "field" }, make("span", {}, t("classify.model")), this.model);
    choice.hidden = models.length < 2;
    container.append(
      make("h1", {}, t("view.classify")), make("p", { class: "quiet about" }, t("classify.about")),
      make("section", { class: "card" }, choice,
        make("label", { class: "field" }, make("span", {}, t("classify.text")), this.input)),
      make("section", { class: "card results", "aria-label": t("classify.result") },
        this.status, this.failure, this.labels, this.reasons));
    this.input.addEventListener("input", () => this.#later());
    this.model.addEventListener("change", () => this.#classify());
    this.#classify();
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
    this.timer = setTimeout(() => this.#classify(), DELAY_MS);
  }

  async #classify() {
    clearTimeout(this.timer);
    this.running?.abort();
    const { t, api, announce, language } = this.context, text = this.input.value;
    this.failure.textContent = "";
    this.status.hidden = true;
    if (!text.trim()) {
      this.labels.replaceChildren();
      this.reasons.hidden = true;
      return;
    }
    const { signal } = (this.running = new AbortController());
    await this.#reporting(async () => {
      const body = { text, model: this.model.value };
      const { classifications: [found] } = await api.post("classify", body, { signal, patient: true });
      if (found.error !== undefined) throw Object.assign(new Error(found.error), { status: 400 });
      this.status.hidden = !found.truncated;
      this.status.textContent = found.truncated ? t("classify.truncated") : "";
      const labels = Object.entries(found.probabilities).sort((one, other) => other[1] - one[1]);
      this.labels.replaceChildren(...labels.map(([label, probability]) => this.#label(label, probability, text)));
      announce(`${found.label}, ${percent(found.probability, language)}`);
      await this.#explain(text, found.label, signal);
    });
  }

  #label(label, probability, text) {
    const { language } = this.context;
    const button = make("button", { type: "button", "aria-pressed": "false" },
      make("b", { dir: "auto" }, label),
      make("span", { class: "share" }, meter(probability), percent(probability, language)));
    button.dataset.label = label;
    button.addEventListener("click", () => {
      this.running?.abort();
      const { signal } = (this.running = new AbortController());
      this.#reporting(() => this.#explain(text, label, signal));
    });
    return button;
  }

  async #explain(text, label, signal) {
    const { t, api } = this.context;
    const { words } = await api.post("explain", { text, label, model: this.model.value }, { signal, patient: true });
    for (const button of this.labels.children) {
      button.setAttribute("aria-pressed", String(button.dataset.label === label));
    }
    const strongest = Math.max(...words.map((word) => Math.abs(word.value))) || 1;
    this.why.textContent = t("classify.why", { label });
    this.words.replaceChildren(...words.flatMap((word) => [this.#word(word, strongest), " "]));
    this.reasons.hidden = false;
  }

  #word({ text, value }, strongest) {
    const { t, language } = this.context, share = Math.abs(value) / strongest;
    const side = value < 0 ? "against" : "for";
    const element = make("span", { class: `reason ${side}`, tabindex: 0, role: "img" }, text);
    const strength = t(`classify.word.${side}`, { percent: percent(share, language) });
    element.title = strength;
    element.setAttribute("aria-label", `${text}: ${strength}`);
    element.style.background = `color-mix(in srgb, var(--${side}) ${Math.round(MAX_STRENGTH * share)}%, transparent)`;
    return element;
  }

  async #reporting(work) {
    try {
      await work();
    } catch (error) {
      if (isAbort(error)) return;
      this.labels.replaceChildren();
      this.reasons.hidden = true;
      this.failure.textContent = this.context.describe(error);
    }
  }
}
