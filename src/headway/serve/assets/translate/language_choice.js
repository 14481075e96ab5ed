// The choice of languages and model, and language detection.

import { ApiError } from "../api.js";
import { make } from "../dom.js";
import { choose, fillLanguages, fillModels, languageName } from "../lists.js";

const AUTO = "auto";
const DETECTED_CHARACTERS = 2000;

export class LanguageChoice {
  /**
   * @param context The context of the view.
   * @param {object} state The `state` of an earlier instance.
   * @param {object} hooks `changed()` is called when the user has chosen something, `swap()` when the user swaps the
   *   languages, and `compare()` when the user wants to compare the models.
   */
  constructor(context, state, hooks) {
    const { detected = null, detectedText = "" } = state, { t, settings } = context;
    Object.assign(this, { context, detected, detectedText });
    this.source = make("select", { "aria-label": t("translate.from") });
    this.target = make("select", { "aria-label": t("translate.to") });
    this.models = make("select", {});
    this.compare = make("button", { type: "button", class: "plain" }, t("translate.compare"));
    this.modelChoice = make("div", { class: "model" }, make("label", {}, t("translate.model"), " ", this.models), this.compare);
    this.swapping = make("button", { type: "button", class: "plain swap", "aria-label": t("translate.swap") }, "⇄");
    this.swapping.title = t("translate.swap");
    this.element = make("div", { class: "languages" },
      make("div", { class: "side" }, this.source), this.swapping, make("div", { class: "side" }, this.target, this.modelChoice));
    this.#fillSources(state.source ?? settings.get("source"));
    this.#fillTargets(state.target ?? settings.get("target"));
    if (state.model) choose(this.models, state.model);
    this.source.addEventListener("change", () => {
      settings.set("source", this.source.value);
      this.#fillTargets(this.target.value);
      hooks.changed();
    });
    this.target.addEventListener("change", () => {
      settings.set("target", this.target.value);
      this.#fillModels();
      hooks.changed();
    });
    this.models.addEventListener("change", hooks.changed);
    this.compare.addEventListener("click", hooks.compare);
    this.swapping.addEventListener("click", hooks.swap);
  }

  get state() {
    const { detected, detectedText } = this;
    return { source: this.source.value, target: this.target.value, model: this.models.value, detected, detectedText };
  }

  close() {
    this.detecting?.abort();
  }

  /** The chosen or detected language of the text, or null if it is not known yet. */
  get sourceCode() {
    return this.source.value === AUTO ? this.detected : this.source.value;
  }

  get targetCode() {
    return this.target.value;
  }

  /** The chosen model, or null if there is only one. */
  get model() {
    return this.modelChoice.hidden ? null : this.models.value;
  }

  /** The languages of a document for the API, and all possible source languages. */
  get documentLanguages() {
    const source = this.source.value, all = this.context.languages.map((each) => each.source);
    return { source, target: this.target.value, sources: source === AUTO ? [...new Set(all)] : [source] };
  }

  /** Returns the service's entry for a pair of languages, with the third language if two models translate the pair. */
  pair(source, target) {
    return this.#pairs(source, target)[0];
  }

  #pairs(source = this.sourceCode, target = this.target.value) {
    return this.context.languages.filter((each) => each.source === source && each.target === target);
  }

  swap() {
    const source = this.sourceCode;
    choose(this.source, this.target.value);
    this.#fillTargets(source);
    for (const side of ["source", "target"]) this.context.settings.set(side, this[side].value);
  }

  #fillSources(chosen) {
    const codes = new Set(this.context.languages.map((each) => each.source));
    fillLanguages(this.source, codes, chosen, this.context);
    if (codes.size > 1) {
      this.source.prepend(make("option", { value: AUTO }));
      this.#showDetected();
      choose(this.source, chosen);
    }
    this.source.disabled = codes.size < 2;
  }

  #fillTargets(chosen) {
    const from = this.sourceCode;
    const pairs = this.context.languages.filter((each) => from === null || each.source === from);
    const codes = new Set(pairs.map((each) => each.target).filter((code) => code !== from));
    fillLanguages(this.target, codes, chosen, this.context);
    this.target.disabled = codes.size < 2;
    this.#fillModels();
  }

  #fillModels() {
    const names = this.#pairs().map((each) => each.model);
    fillModels(this.models, names);
    this.modelChoice.hidden = names.length < 2;
    this.compare.hidden = this.#pairs().filter((each) => each.pivot === null).length < 2 || !this.context.offers("why");
    this.swapping.hidden = !this.context.languages.some(
      (each) => each.source === this.target.value && (this.sourceCode === null || each.target === this.sourceCode));
  }

  /** Detects the language of a text, unless the user has chosen one. Returns whether the language has changed. */
  async detect(text) {
    const beginning = text.trim().slice(0, DETECTED_CHARACTERS);
    if (this.source.value !== AUTO || !beginning || beginning === this.detectedText) return false;
    this.detecting?.abort();
    const { signal } = (this.detecting = new AbortController());
    const [{ code }] = await this.context.api.post("detect", { text: beginning }, { signal });
    if (!this.context.languages.some((each) => each.source === code)) {
      throw new ApiError(400, this.context.t("translate.notFrom", { language: languageName(code, this.context) }));
    }
    this.detectedText = beginning;
    if (code === this.detected) return false;
    this.detected = code;
    this.#showDetected();
    this.#fillTargets(this.target.value);
    return true;
  }

  #showDetected() {
    const { t } = this.context, code = this.detected;
    this.source.options[0].textContent =
      code === null ? t("translate.detect") : t("translate.detected", { language: languageName(code, this.context) });
  }
}
