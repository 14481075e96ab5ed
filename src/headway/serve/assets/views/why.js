// The view Why: what a model attends to, what its search has considered, and what another word would cost.

import { UnreachableError, isAbort } from "../api.js";
import { focusField, make, moveFocus, percent, shortened } from "../dom.js";
import { AttentionSection } from "../inspection/attention.js";
import { choose, fillLanguages, fillModels } from "../lists.js";
import { confidenceClass, confidenceLegend } from "../translate/output.js";
import { tokenSpans, wordsOf } from "../translate/words.js";
import { ForcedWordPanel } from "../why/forced_word.js";
import { ModelComparison } from "../why/model_comparison.js";
import { treeList } from "../why/search_tree.js";
import { SPACE } from "../write/story.js";

const DELAY_MS = 400;
const BEAM_SIZE = 4;
const MAX_OPTION = 80; // characters of a sentence in the list

export function mount(container, context, state = context.sentence() ?? {}) {
  return new WhyView(container, context, state);
}

const keyOf = (sentence) => sentence && JSON.stringify([sentence.source, sentence.target, sentence.model, sentence.sentences]);

class WhyView {
  constructor(container, context, state) {
    this.context = context;
    this.given = state.translation ?? null; // by the view Translate, where it may have been changed
    this.position = state.position ?? null; // of the word that Translate asks about
    this.showsModels = state.showsModels ?? false; // Translate asks how the models differ
    this.sentences = state.sentences ?? []; // of the text in Translate
    this.isTyped = state.isTyped ?? false; // here
    this.key = keyOf(context.sentence()); // what Translate has shown
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

  /** Takes what the view Translate shows if that has changed, unless a person has typed a sentence here. */
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
    this.attention?.remove();
    this.resizing.disconnect();
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
    this.translation = make("p", { class: "translation", role: "toolbar", "aria-label": t("translate.result"), dir: "auto" });
    this.probability = make("p", { class: "quiet" });
    this.hint = make("p", { class: "quiet" });
    this.parts = make("nav", { class: "row parts", "aria-label": t("why.parts") });
    this.forced = new ForcedWordPanel(this.context);
    this.own = make("button", { type: "button", hidden: true }, t("why.own"));
    this.tree = make("div", { class: "tree", tabindex: 0, role: "group", "aria-label": t("why.tree") });
    this.treeAbout = make("p", { class: "quiet" });
    this.showDropped = make("input", { type: "checkbox" });
    this.showDropped.checked = true;
    this.attentionPlace = make("div");
    this.comparison = new ModelComparison(this.context);
    const section = (title, about, ...children) => make("section", { class: "card", "aria-label": title },
      make("h2", {}, title), make("p", { class: "quiet" }, about), ...children);
    const words = section(t("why.words"), t("why.words.about"), this.translation, this.probability,
      confidenceLegend(this.context), this.own, this.forced.element);
    this.results = make("div", { class: "results" },
      this.parts,
      ...(this.showsModels ? [this.comparison.element, words] : [words, this.comparison.element]),
      section(t("why.tree"), t("why.tree.about", { beam: BEAM_SIZE }), this.treeAbout,
        make("label", { class: "row" }, this.showDropped, t("why.showDropped")), this.tree),
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
    this.showDropped.addEventListener("change", () => {
      this.tree.classList.toggle("hide-dropped", !this.showDropped.checked);
      this.#fitTree();
    });
    this.resizing = new ResizeObserver(() => this.#fitTree());
    this.resizing.observe(this.tree.parentElement);
    this.translation.addEventListener("keydown", (event) => {
      const words = [...this.translation.querySelectorAll("[role=button]")];
      const options = { horizontal: true, rightToLeft: getComputedStyle(this.translation).direction === "rtl" };
      const next = moveFocus(event, words, options);
      if (next) words.forEach((word) => (word.tabIndex = word === next ? 0 : -1));
      else if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        event.target.click();
      }
    });
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
      const word = this.#showWords(request, seen, isChanged);
      this.#showTree(tree);
      this.#showAttention(seen);
      if (word) {
        for (const each of this.translation.querySelectorAll("[role=button]")) each.tabIndex = each === word ? 0 : -1;
        word.focus();
        word.click();
        this.translation.scrollIntoView();
      }
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

  /**
   * Shows the words of the translation, each of which asks for another one. `isChanged`: it differs from the model's own. Returns
   * the word that the view was opened for.
   */
  #showWords(request, { target: text, steps, log_probability: total }, isChanged) {
    const { t, language } = this.context;
    const own = steps.filter((step) => !step.forced);
    const tokens = own.slice(0, -1).map((step) => step.token), values = own.map((step) => Math.log(step.probability));
    const spans = tokenSpans(tokens, text), firstRow = steps.length - own.length;
    const words = wordsOf({ text, tokens, token_log_probabilities: values }, request.text, request.target, request.source);
    const children = [];
    let from = 0, asked = null;
    for (const { start, end, probability } of words) {
      const word = text.slice(start, end);
      const share = probability === null ? "" : `, ${percent(probability, language)}`;
      const button = make("span", { class: `token ${confidenceClass(probability)}`, role: "button", tabindex: children.length ? -1 : 0 }, word);
      button.setAttribute("aria-label", word + share);
      button.title = probability === null ? "" : percent(probability, language);
      button.addEventListener("click", () => {
        this.translation.querySelector(".open")?.classList.remove("open");
        button.classList.add("open");
        this.forced.open(request, { text, tokens }, { start, end, probability });
        this.#showRow(firstRow + spans.findIndex((span) => span && span[1] > start));
      });
      children.push(text.slice(from, start), button);
      if (start === this.position) asked = button;
      from = end;
    }
    this.translation.lang = request.target;
    this.translation.replaceChildren(...children, text.slice(from));
    const mean = Math.exp(total / own.length);
    const said = t(isChanged ? "why.given" : "why.found", { percent: percent(mean, language) });
    this.probability.textContent = `${said} ${t("why.words.exact")}`;
    const hadFocus = this.own === document.activeElement;
    this.own.hidden = !isChanged;
    if (hadFocus && !isChanged) this.translation.querySelector("[role=button]")?.focus();
    this.position = null;
    return asked;
  }

  /** Shows buttons that lead to the sections below the first one. */
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

  /** Shows what a token of the translation attends to. */
  #showRow(row) {
    if (this.attention?.kind.rows === "target") this.attention.choose(row, null, true);
  }

  #showTree(tree) {
    const { list, dropped } = treeList(tree, this.context);
    const { t } = this.context;
    this.tree.replaceChildren(list);
    const said = [t("why.tree.count", { ends: tree.ends.length, dropped }), t("why.tree.score")];
    if (list.textContent.includes(SPACE)) said.push(t("why.tree.space"));
    this.treeAbout.textContent = said.join(" ");
    this.#fitTree();
  }

  /** Lets the tree grow to the right if there is room, and otherwise down. */
  #fitTree() {
    const { tree } = this;
    tree.classList.remove("down");
    tree.classList.toggle("down", tree.scrollWidth > tree.clientWidth);
  }

  #showAttention(seen) {
    const { language } = this.context;
    const kept = this.attention && { kind: this.attention.kind.id, layer: this.attention.layer, head: this.attention.head };
    this.attention?.remove();
    this.attention = null;
    this.attentionPlace.parentElement.hidden = !seen.kinds.length;
    if (!seen.kinds.length) return;
    const fits = kept && seen.kinds.some((kind) => kind.id === kept.kind && kind.maps.some((map) => map.layer === kept.layer));
    this.attention = new AttentionSection(this.attentionPlace, seen, { language, view: fits ? kept : null });
  }
}
