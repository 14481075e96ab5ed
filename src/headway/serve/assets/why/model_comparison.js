// Two models side by side: the words in which their translations differ, and the translation that each model prefers.

import { isAbort } from "../api.js";
import { isolated, make } from "../dom.js";
import { fillModels } from "../lists.js";
import { marked } from "./differences.js";
import { factorText } from "./factor.js";

export class ModelComparison {
  constructor(context) {
    const { t } = (this.context = context);
    this.other = make("select", {});
    this.about = make("p", { class: "quiet" });
    this.columns = make("div", { class: "side-by-side" });
    this.same = make("p", { class: "quiet" });
    this.failure = make("p", { class: "error", role: "alert" });
    this.element = make("section", { class: "card", "aria-label": t("why.models") },
      make("h2", {}, t("why.models")),
      make("label", { class: "row" }, make("span", {}, t("why.models.other")), this.other), this.about, this.columns, this.same,
      this.failure);
    this.element.hidden = true;
    this.other.addEventListener("change", () => this.#compare());
  }

  close() {
    this.running?.abort();
    this.element.hidden = true;
  }

  /** Compares a translation by `model` with that of another model. `isChanged`: it differs from the model's own one. */
  show(request, translation, isChanged, model, models) {
    const others = models.filter((name) => name !== model);
    if (!others.length) {
      this.close();
      return;
    }
    Object.assign(this, { request, translation, isChanged, model });
    const { t } = this.context;
    fillModels(this.other, others);
    this.element.hidden = false;
    this.about.textContent = t("why.models.about", { text: t("quoted", { text: isolated(request.text) }) });
    this.#compare();
  }

  async #compare() {
    this.running?.abort();
    const { signal } = (this.running = new AbortController());
    const { api, t, describe } = this.context, { model, translation } = this, other = this.other.value;
    const { text, source, target } = this.request;
    this.failure.textContent = "";
    this.columns.replaceChildren();
    this.same.textContent = "";
    try {
      const body = { text, source, target, model: other, protect: false };
      const { translations: [found] } = await api.post("translate", body, { signal });
      if (found.error !== undefined) throw Object.assign(new Error(found.error), { status: 400 });
      const pair = { source_texts: [text, text], target_texts: [translation, found.text], source, target };
      const [ours, theirs] = await Promise.all(
        [model, other].map((name) => api.post("score", { ...pair, model: name }, { signal })));
      this.columns.replaceChildren(
        this.#column(model, translation, found.text, ours.scores, this.isChanged),
        this.#column(other, found.text, translation, [...theirs.scores].reverse(), false));
      if (translation === found.text) this.same.textContent = t("why.models.same");
    } catch (error) {
      if (!isAbort(error)) this.failure.textContent = describe(error);
    }
  }

  #column(name, text, otherText, [own, others], isChanged) {
    const { t, language } = this.context, { target } = this.request;
    const factor = Math.exp(own.log_probability - others.log_probability);
    const shown = (value) => factorText(value, language);
    const [more, less] = isChanged ? ["why.models.yours.more", "why.models.yours.less"] : ["why.models.prefers", "why.models.doubts"];
    const said = text === otherText ? ""
      : factor >= 1 ? t(more, { factor: shown(factor) }) : t(less, { factor: shown(1 / factor) });
    const title = isChanged ? make("span", {}, ` (${t("why.models.yours")})`)
      : make("span", { class: "visually-hidden" }, `: ${t("why.models.own")}`);
    return make("div", {}, make("h3", {}, name, title),
      make("p", { class: "translation", dir: "auto", lang: target }, ...marked(text, otherText, target)),
      make("p", { class: "quiet" }, said));
  }
}
