// "Why not this word?": forces another word at a position, and shows the resulting translation and its cost.

import { isAbort } from "../api.js";
import { isolated, make, percent } from "../dom.js";
import { meter } from "../meter.js";
import { findAlternativeWords, mergedByWord } from "../translate/alternative_words.js";
import { insteadOf } from "../translate/alternatives.js";
import { marked } from "./differences.js";
import { visible } from "../write/story.js";
import { factorText } from "./factor.js";

const COUNT = 7; // number of alternative tokens to request
const NEARLY = 1.05; // smaller factors are treated as equal probability

export class ForcedWordPanel {
  constructor(context) {
    const { t } = (this.context = context);
    this.title = make("p", {});
    this.own = make("p", { class: "quiet" });
    this.suggestions = make("div", { class: "row suggestions", role: "group", "aria-label": t("why.suggestions") });
    this.word = make("input", { autocomplete: "off", autocapitalize: "off", spellcheck: "false", dir: "auto" });
    this.send = make("button", { class: "primary" }, t("why.force"));
    this.form = make("form", { class: "row" },
      make("label", { class: "row" }, make("span", {}, t("why.other")), this.word), this.send);
    this.result = make("div", { class: "forced", role: "status" });
    this.failure = make("p", { class: "error", role: "alert" });
    this.about = make("p", { class: "quiet" }, t("why.suggestions"));
    this.element = make("div", { class: "forced-word" }, this.title, this.own, this.about, this.suggestions, this.form, this.failure, this.result);
    this.element.hidden = true;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#force(this.word.value.trim());
    });
  }

  close() {
    this.running?.abort();
    this.suggesting?.abort();
    this.element.hidden = true;
  }

  /**
   * Opens the panel for a word of a translation, which has `text` and `tokens`. The word has `start`, `end` and
   * `probability`. `request` contains the source text, languages and model.
   */
  async open(request, { text: translation, tokens }, { start, end, probability }) {
    this.close();
    const { t, api, describe, language } = this.context;
    const before = translation.slice(0, start), current = translation.slice(start, end);
    Object.assign(this, { request, translation, before, prefixes: new Map() }); // word -> the text before it, if it differs from `before`
    this.title.textContent = t("why.title", { word: isolated(current) });
    this.own.textContent = probability === null ? "" : t("why.sure", { percent: percent(probability, language) });
    this.word.value = "";
    this.result.replaceChildren();
    this.suggestions.replaceChildren();
    this.about.hidden = true;
    this.failure.textContent = "";
    this.element.hidden = false;
    const { signal } = (this.suggesting = new AbortController());
    try {
      const found = await findAlternativeWords(api, request, { ...request, protect: false }, {
        translation: { text: translation, tokens }, span: [start, end], count: COUNT, signal,
      });
      this.#suggest(found.filter(({ word }) => word !== current));
    } catch (error) {
      if (!isAbort(error)) this.failure.textContent = describe(error);
    }
  }

  /** Shows words that the model could have generated. */
  #suggest(entries) {
    const { language, t } = this.context;
    this.about.hidden = !entries.length;
    this.suggestions.replaceChildren(...mergedByWord(entries).map(({ name, probability, replaced, translation, span }) => {
      const button = make("button", { type: "button" },
        make("bdi", {}, name), insteadOf(replaced, t), " ", meter(probability), " ", percent(probability, language));
      if (replaced !== null) this.prefixes.set(name, translation.text.slice(0, span[0]));
      button.addEventListener("click", () => {
        this.word.value = name;
        this.#force(name);
      });
      return button;
    }));
  }

  async #force(word) {
    const { t, api, describe } = this.context;
    this.running?.abort();
    if (!word) {
      this.result.replaceChildren(); // the result belongs to another word
      this.failure.textContent = t("word.empty");
      this.word.focus();
      return;
    }
    const { signal } = (this.running = new AbortController());
    this.failure.textContent = "";
    this.result.replaceChildren(t("loading"));
    try {
      const { request, before, prefixes, translation } = this;
      const body = { ...request, prefix: prefixes.get(word) ?? before, word, translation };
      const found = await api.post("force-word", body, { signal });
      this.result.replaceChildren(...this.#answer(found));
      this.result.scrollIntoView({ block: "nearest" });
    } catch (error) {
      if (isAbort(error)) return;
      this.result.replaceChildren();
      this.failure.textContent = describe(error);
    }
  }

  #answer({ cost, chosen, forced }) {
    const { t, language } = this.context, factor = Math.exp(Math.abs(cost));
    const key = factor < NEARLY ? "why.cost.same" : cost > 0 ? "why.cost.less" : "why.cost.more";
    const said = t(key, {
      factor: factorText(factor, language),
      cost: Math.abs(cost).toLocaleString(language, { maximumFractionDigits: 2 }),
    });
    // The word was chosen or rejected where the tokens begin to differ; later differences are its consequence.
    const at = forced.steps.findIndex((step, place) => step.token !== chosen.steps[place]?.token);
    const { token, probability, rank } = forced.steps[Math.max(at, 0)];
    const here = at < 0 ? [] : [make("p", { class: "quiet" },
      t("why.place", { token: isolated(visible(token)), percent: percent(probability, language), rank: rank.toLocaleString(language) }))];
    return [
      make("p", { class: "translation", dir: "auto", lang: this.request.target }, ...marked(forced.text, chosen.text, this.request.target)),
      make("p", { class: "cost" }, said), ...here,
    ];
  }
}
