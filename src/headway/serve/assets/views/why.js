// The Why view: what a model attends to, what its search has considered, and what another word would cost.

import { UnreachableError, isAbort } from "../api.js";
import { focusField, make, percent, shortened } from "../dom.js";
import { AttentionSection } from "../inspection/attention.js";
import { choose, fillLanguages, fillModels } from "../lists.js";
import { confidenceLegend } from "../translate/output.js";
import { DecodingSteps } from "../why/decoding_steps.js";
import { ForcedWordPanel } from "../why/forced_word.js";
import { ModelComparison } from "../why/model_comparison.js";
import { SearchTree } from "../why/search_tree.js";
import { section } from "../why/section.js";
import { TranslationWords } from "../why/translation_words.js";

const DELAY_MS = 400;
const BEAM_SIZE = 4;
const MAX_OPTION = 80; // maximum number of characters of a sentence in the list

export function mount(container, context, state = context.sentence() ?? {}) {
  return new WhyView(container, context, state);
}

const keyOf = (sentence) => sentence && JSON.stringify([sentence.source, sentence.target, sentence.model, sentence.sentences]);

class WhyView {
  constructor(container, context, state) {
    this.context = context;
    this.given = state.translation ?? null; // the translation from the Translate view, where it may have been changed
    this.position = state.position ?? null; // position of the word for which Translate has opened this view
    this.showsModels = state.showsModels ?? false; // whether Translate has opened this view to compare the models
    this.sentences = state.sentences ?? []; // the sentences of the text in Translate
    this.isTyped = state.isTyped ?? false; // whether the user has typed the sentence in this view
    this.key = keyOf(context.sentence()); // identifies the sentence in Translate
    this.#build(container, state);
    this.onTheme = () => this.attention?.recolor();
    this.onBack = () => this.isInterrupted && this.#inspect();
    document.addEventListener("themechange", this.onTheme);
    document.addEventListener("serviceback", this.onBack);
    this.#inspect();
    focusField(this.input);
  }

  state() {
    const { given: translation, sentences, showsModels, isTyped } = this;
    return { ...this.#request, translation, sentences, showsModels, isTyped };
  }

  /** Uses the sentence in the Translate view if it has changed, unless the user has typed a sentence here. */
  shown() {
    const text = this.input.value.trim(), sentence = text && this.isTyped ? null : this.context.sentence();
    if (!sentence || keyOf(sentence) === this.key) return;
    this.context.navigate("why", sentence.sentences.includes(text) ? { ...sentence, text } : sentence);
  }

  unmount() {
    clearTimeout(this.timer);
    this.running?.abort();
    this.forced.close();
    this.comparison.close();
    this.attention?.close();
    this.tree.close();
    document.removeEventListener("themechange", this.onTheme);
    document.removeEventListener("serviceback", this.onBack);
  }

  #build(container, state) {
    const { t, settings } = this.context;
    this.pairs = this.context.languages.filter((each) => each.pivot === null); // two models cannot be inspected
    this.input = make("textarea", { dir: "auto", rows: 2, placeholder: t("why.placeholder") });
    this.input.value = state.text ?? "";
    this.sentence = make("select", {});
    this.source = make("select", {});
    this.target = make("select", {});
    this.model = make("select", {});
    const field = (title, control) => make("label", { class: "field" }, make("span", {}, title), control);
    this.sentenceField = field(t("why.sentence"), this.sentence);
    this.sentenceField.hidden = this.sentences.length < 2;
    this.sentence.append(...this.sentences.map((text, at) => make("option", { value: at }, `${at + 1}. ${shortened(text, MAX_OPTION)}`)));
    choose(this.sentence, String(this.sentences.indexOf(this.input.value)));
    this.languagesRow = make("div", { class: "row" }, field(t("translate.from"), this.source), field(t("translate.to"), this.target));
    this.modelField = field(t("why.model"), this.model);
    fillLanguages(this.source, this.pairs.map((each) => each.source), state.source ?? settings.get("source"), this.context);
    this.#fillTargets(state.target ?? settings.get("target"));
    if (state.model) choose(this.model, state.model);
    this.failure = make("p", { class: "error", role: "alert" });
    this.probability = make("p", { class: "quiet" });
    this.hint = make("p", { class: "quiet" });
    this.parts = make("nav", { class: "row parts", "aria-label": t("why.parts") });
    this.forced = new ForcedWordPanel(this.context);
    this.words = new TranslationWords(this.context, (request, translation, word, row) => {
      this.forced.open(request, translation, word);
      if (this.attention?.kind.rows === "target") this.attention.choose(row, null, true);
    });
    this.own = make("button", { type: "button", hidden: true }, t("why.own"));
    this.steps = new DecodingSteps(this.context);
    this.tree = new SearchTree(this.context, BEAM_SIZE);
    this.attentionPlace = make("div");
    this.comparison = new ModelComparison(this.context);
    const words = section(t("why.words"), t("why.words.about"), this.words.element, this.probability,
      confidenceLegend(this.context), this.own, this.forced.element);
    this.results = make("div", { class: "results" },
      this.parts,
      ...(this.showsModels ? [this.comparison.element, words] : [words, this.comparison.element]),
      this.steps.element,
      this.tree.element,
      section(t("why.attention"), t("why.attention.about"), this.attentionPlace));
    this.results.hidden = true;
    container.append(
      make("h1", {}, t("view.why")), make("p", { class: "quiet about" }, t("why.about")),
      make("section", { class: "card" },
        this.sentenceField, field(t("why.text"), this.input),
        make("div", { class: "row" }, this.languagesRow, this.modelField), this.hint, this.failure),
      this.results);
    const again = () => {
      this.given = null;
      this.#later(0);
    };
    this.input.addEventListener("input", () => {
      Object.assign(this, { given: null, position: null, sentences: [], showsModels: false, isTyped: true });
      this.sentenceField.hidden = true;
      this.#later(DELAY_MS);
    });
    this.sentence.addEventListener("change", () => {
      this.input.value = this.sentences[this.sentence.value];
      this.position = null;
      again();
    });
    this.source.addEventListener("change", () => {
      this.#fillTargets(this.target.value);
      again();
    });
    this.target.addEventListener("change", () => {
      this.#fillModels();
      again();
    });
    this.model.addEventListener("change", again);
    this.own.addEventListener("click", again);
  }

  #fillTargets(chosen) {
    const { source } = this, pairs = this.pairs.filter((each) => each.source === source.value);
    fillLanguages(this.target, pairs.map((each) => each.target), chosen, this.context);
    this.languagesRow.hidden = source.options.length < 2 && this.target.options.length < 2;
    this.#fillModels();
  }

  get #models() {
    const { source, target } = this;
    return this.pairs
      .filter((each) => each.source === source.value && each.target === target.value).map((each) => each.model);
  }

  #fillModels() {
    fillModels(this.model, this.#models);
    this.modelField.hidden = this.model.options.length < 2;
  }

  get #request() {
    const { source, target, model } = this;
    return { text: this.input.value.trim(), source: source.value, target: target.value, model: model.value };
  }

  #later(delay) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#inspect(), delay);
  }

  async #inspect() {
    this.running?.abort();
    this.forced.close();
    const request = this.#request, { api, describe } = this.context;
    this.failure.textContent = "";
    this.isInterrupted = false;
    this.hint.hidden = Boolean(request.text);
    this.hint.textContent = this.context.t(this.showsModels ? "why.hint.models" : "why.hint");
    if (!request.text) {
      this.results.hidden = true;
      return;
    }
    const { signal } = (this.running = new AbortController());
    const asked = { signal, retryWhenBusy: true };
    try {
      const body = this.given === null ? request : { ...request, translation: this.given };
      const [seen, tree] = await Promise.all([
        api.post("inspect", body, asked), api.post("search-tree", { ...request, beam_size: BEAM_SIZE }, asked),
      ]);
      this.results.hidden = false;
      const isChanged = seen.target_given && tree.ends[0]?.text !== seen.target;
      this.words.show(request, seen);
      this.#showProbability(seen, isChanged);
      this.steps.show(seen);
      this.tree.show(tree);
      this.#showAttention(seen);
      if (this.position !== null) this.words.choose(this.position);
      this.position = null;
      this.comparison.show(request, seen.target, isChanged, request.model, this.#models);
      this.#showParts();
      if (this.showsModels) this.comparison.element.scrollIntoView({ block: "nearest" });
      this.showsModels = false;
    } catch (error) {
      if (isAbort(error)) return;
      this.results.hidden = true;
      this.isInterrupted = error instanceof UnreachableError;
      this.failure.textContent = describe(error);
    }
  }

  /** Shows the probability of the translation. `isChanged` means that it differs from the model's own translation. */
  #showProbability({ steps, log_probability: total }, isChanged) {
    const { t, language } = this.context, count = steps.filter((step) => !step.forced).length;
    const said = t(isChanged ? "why.given" : "why.found", { percent: percent(Math.exp(total / count), language) });
    this.probability.textContent = `${said} ${t("why.words.precision")}`;
    const hadFocus = this.own === document.activeElement;
    this.own.hidden = !isChanged;
    if (hadFocus && !isChanged) this.words.focus();
  }

  /** Shows buttons that scroll to the sections below the first one. */
  #showParts() {
    const [, ...sections] = [...this.results.querySelectorAll(":scope > section")].filter((section) => !section.hidden);
    const buttons = sections.map((section) => {
      const heading = section.querySelector("h2"), button = make("button", { type: "button", class: "plain" }, heading.textContent);
      button.addEventListener("click", () => {
        section.scrollIntoView();
        heading.tabIndex = -1;
        heading.focus({ preventScroll: true });
      });
      return button;
    });
    this.parts.replaceChildren(make("span", { class: "quiet" }, `${this.context.t("why.parts")}:`), ...buttons);
  }

  #showAttention(seen) {
    const { language } = this.context;
    const kept = this.attention && { kind: this.attention.kind.id, layer: this.attention.layer, head: this.attention.head };
    this.attention?.close();
    this.attention = null;
    this.attentionPlace.parentElement.hidden = !seen.kinds.length;
    if (!seen.kinds.length) return;
    const fits = kept && seen.kinds.some((kind) => kind.id === kept.kind && kind.maps.some((map) => map.layer === kept.layer));
    this.attention = new AttentionSection(this.attentionPlace, seen, { language, view: fits ? kept : null });
  }
}
