// The generation options: temperature and top-p as sliders, stop texts, and further options behind "More". Each control
// has a description.

import { make } from "../dom.js";

const DEFAULTS = { temperature: 0.8, top_p: 0.95, stops: "", top_k: "", max_new_tokens: 100, seed: "" };
const MAX_SEED = 2 ** 31;
const MAX_STOPS = 200; // the maximum that the service accepts

export class WritingOptions {
  /** `state` contains the values of an earlier instance. By default, the values stored in the browser are used. */
  constructor(context, state) {
    this.context = context;
    this.inputs = {};
    const kept = state ?? context.settings.get("write", {});
    const start = { ...DEFAULTS, ...kept };
    const { t } = context;
    this.element = make("div", { class: "options" },
      this.#slider("temperature", { min: 0, max: 2, step: 0.05 }, start),
      this.#slider("top_p", { min: 0.05, max: 1, step: 0.05 }, start),
      this.#lines("stops", start),
      make("details", { class: "more" }, make("summary", {}, t("write.more")),
        this.#number("max_new_tokens", { min: 1, max: 1000, required: true }, start),
        this.#number("top_k", { min: 1, placeholder: t("write.all") }, start),
        this.#number("seed", { min: 0, placeholder: t("write.random") }, start)));
  }

  get state() {
    return Object.fromEntries(Object.entries(this.inputs).map(([name, input]) => [name, input.value]));
  }

  /** The fields of the request. With temperature 0, the other sampling options have no effect. */
  get values() {
    const { temperature, top_p, stops, top_k, max_new_tokens, seed } = this.state;
    const length = Math.min(Math.max(Math.round(Number(max_new_tokens)) || DEFAULTS.max_new_tokens, 1), 1000);
    const lines = stops.split("\n").filter((line) => line !== "").map((line) => line.replaceAll("\\n", "\n")).slice(0, MAX_STOPS);
    const ends = { max_new_tokens: length, ...(lines.length ? { stop: lines } : {}) };
    if (Number(temperature) === 0) return { temperature: 0, ...ends };
    return {
      temperature: Number(temperature), top_p: Number(top_p), ...ends,
      ...(Number(top_k) >= 1 ? { top_k: Math.round(Number(top_k)) } : {}),
      seed: seed === "" ? Math.floor(Math.random() * MAX_SEED) : Math.abs(Math.round(Number(seed))),
    };
  }

  #slider(name, range, start) {
    const { t, language } = this.context, about = `write-${name}`;
    const input = make("input", { type: "range", ...range, "aria-describedby": about });
    input.value = start[name];
    const output = make("span", { class: "value" });
    const show = () => (output.textContent = Number(input.value).toLocaleString(language, { minimumFractionDigits: 2 }));
    input.addEventListener("input", show);
    show();
    return make("div", { class: "slider" },
      make("label", { class: "field" }, make("span", { class: "name" }, t(`write.${name}`), output), this.#kept(name, input)),
      make("p", { class: "quiet", id: about }, t(`write.${name}.about`)));
  }

  /** Returns a field with one text per line. */
  #lines(name, start) {
    return this.#described(name, make("textarea", { rows: 2, dir: "auto" }), start);
  }

  #number(name, attributes, start) {
    return this.#described(name, make("input", { type: "number", inputmode: "numeric", ...attributes }), start);
  }

  #described(name, input, start) {
    const { t } = this.context, about = `write-${name}`;
    input.setAttribute("aria-describedby", about);
    input.value = start[name];
    return make("div", { class: "described" },
      make("label", { class: "field" }, make("span", { class: "name" }, t(`write.${name}`)), this.#kept(name, input)),
      make("p", { class: "quiet", id: about }, t(`write.${name}.about`)));
  }

  #kept(name, input) {
    this.inputs[name] = input;
    input.addEventListener("change", () => {
      if (input.required && !input.checkValidity()) input.value = String(this.values[name]); // the value that is actually used
      this.context.settings.set("write", this.state);
    });
    return input;
  }
}
