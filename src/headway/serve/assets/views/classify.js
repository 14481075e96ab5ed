// The Classify view: the probability of each label of a text, and its probability without each word.

import { isolated, make, makeTabStop, moveFocus, percent } from "../dom.js";
import { meter } from "../meter.js";
import { TextView } from "../text_view.js";

const MAX_STRENGTH = 42; // color strength of the strongest word in percent; a stronger color would hide its letters
const MIN_EFFECT = 0.02; // change of the probability that gets the full color, unless a word has a larger effect

const MAX_NAMED = 20; // maximum number of labels to list

/** Replaces the underscores in a label's name with spaces. */
const readable = (label) => label.replaceAll("_", " ");

export function mount(container, context, state = {}) {
  return new Classify(container, context, state).view;
}

class Classify {
  constructor(container, context, state) {
    this.context = context;
    const { t } = context;
    this.status = make("p", { class: "note", role: "status", hidden: true });
    this.labels = make("div", { class: "labels", role: "group", "aria-label": t("classify.result") });
    this.named = make("p", { class: "quiet" });
    this.why = make("h2", {});
    this.words = make("p", { class: "words", dir: "auto" });
    this.word = make("p", { class: "quiet", "aria-live": "polite" });
    this.reasons = make("div", { hidden: true }, this.why, this.words, this.word,
      make("p", { class: "quiet" }, make("span", { class: "for" }, t("classify.for")), " · ",
        make("span", { class: "against" }, t("classify.against")), " · ", t("classify.strength")));
    for (const type of ["pointerover", "focusin"]) this.words.addEventListener(type, (event) => this.#point(event.target));
    this.words.addEventListener("keydown", (event) => this.#key(event));
    this.view = new TextView(container, context, state, {
      name: "classify", capability: "labels", rows: 4, controls: [this.named], results: [this.status, this.labels, this.reasons],
      show: (text, signal) => this.#show(text, signal), clear: () => this.#clear(),
    });
    this.view.select.addEventListener("change", () => this.#nameLabels());
    this.#nameLabels();
    this.view.update();
  }

  /** Lists the labels of the model, or the first labels if there are many. */
  #nameLabels() {
    const { t, models } = this.context, { labels } = models.find(({ name }) => name === this.view.model);
    const some = labels.slice(0, MAX_NAMED).map(readable).join(", ");
    this.named.textContent = t("classify.labels", { list: some + (labels.length > MAX_NAMED ? ", …" : "") });
  }

  #clear() {
    this.labels.replaceChildren();
    this.reasons.hidden = this.status.hidden = true;
  }

  async #show(text, signal) {
    const { t, api, announce, language } = this.context;
    const body = { text, model: this.view.model };
    const { classifications: [found] } = await api.post("classify", body, { signal, retryWhenBusy: true });
    if (found.error !== undefined) throw Object.assign(new Error(found.error), { status: 400 });
    this.status.hidden = !found.truncated;
    this.status.textContent = found.truncated ? t("classify.truncated") : "";
    const labels = Object.entries(found.probabilities).sort((one, other) => other[1] - one[1]);
    this.labels.replaceChildren(...labels.map(([label, probability]) => this.#label(label, probability, text)));
    announce(`${readable(found.label)}, ${percent(found.probability, language)}`);
    await this.#explain(text, found.label, signal);
  }

  #label(label, probability, text) {
    const { language } = this.context;
    const button = make("button", { type: "button", "aria-pressed": "false" },
      make("b", { dir: "auto" }, readable(label)),
      make("span", { class: "share" }, meter(probability), percent(probability, language)));
    button.dataset.label = label;
    button.addEventListener("click", () => this.view.run((signal) => this.#explain(text, label, signal)));
    return button;
  }

  async #explain(text, label, signal) {
    const { t, api } = this.context;
    const { probability, parts } = await api.post("occlude", { text, label, model: this.view.model }, { signal, retryWhenBusy: true });
    for (const button of this.labels.children) {
      button.setAttribute("aria-pressed", String(button.dataset.label === label));
    }
    const strongest = Math.max(MIN_EFFECT, ...parts.map((part) => Math.abs(probability - part.probability)));
    this.why.textContent = t("classify.why", { label: readable(label) });
    this.words.replaceChildren(...parts.flatMap((part) => [this.#word(part, probability, strongest), " "]));
    makeTabStop(this.words.firstElementChild, this.words.children);
    this.word.textContent = t("classify.point");
    this.reasons.hidden = !parts.length;
  }

  /** Shows the probability of the label without a word. */
  #point(word) {
    if (word.dataset.without) this.word.textContent = `${isolated(word.textContent)}: ${word.dataset.without}`;
  }

  // The Tab key reaches only one word; the arrow keys move to the others.
  #key(event) {
    const words = [...this.words.children];
    const rightToLeft = getComputedStyle(this.words).direction === "rtl";
    const next = moveFocus(event, words, { horizontal: true, rightToLeft });
    if (next) makeTabStop(next, words);
  }

  #word({ text, probability: without }, probability, strongest) {
    const { t, language } = this.context, share = Math.abs(probability - without) / strongest;
    const side = without > probability ? "against" : "for";
    const element = make("span", { class: `reason ${side}`, tabindex: -1 }, text);
    element.dataset.without = t("classify.without", { percent: percent(without, language) });
    element.style.background = `color-mix(in srgb, var(--${side}) ${Math.round(MAX_STRENGTH * share)}%, transparent)`;
    return element;
  }
}
