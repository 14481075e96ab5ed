// The Translate view: two panes, and below them notices, documents, other versions and the glossary.

import { UnreachableError, isAbort } from "../api.js";
import { copyButton } from "../copy_button.js";
import { focusField, isolated, make, percent } from "../dom.js";
import { languageName } from "../lists.js";
import { AlternativesMenu } from "../translate/alternatives.js";
import { Documents } from "../translate/documents.js";
import { Editing } from "../translate/editing.js";
import { GlossaryTable } from "../translate/glossary.js";
import { GlossaryEffects } from "../translate/glossary_effects.js";
import { LanguageChoice } from "../translate/language_choice.js";
import { LinkedScrolling } from "../translate/linked_scrolling.js";
import { Notices } from "../translate/notices.js";
import { Output, confidenceLegend } from "../translate/output.js";
import { SentenceTranslator, splitLines } from "../translate/sentence_translator.js";
import { SourceMarks } from "../translate/source_marks.js";
import { SourcePointing } from "../translate/source_pointing.js";
import { Versions } from "../translate/versions.js";
import { browserCode } from "../translate/words.js";

const DELAY_MS = 120; // delay after the last key press
const MAX_DELAY_MS = 700; // maximum delay while the user keeps typing
const SLOW_MS = 250; // the page shows that a translation is in progress if it takes longer than this

export function mount(container, context, state = {}) {
  return new TranslateView(container, context, state);
}

class TranslateView {
  constructor(container, context, state) {
    this.context = context;
    this.translator = state.translator ?? new SentenceTranslator(context.api);
    this.effects = new GlossaryEffects(context.api, this.translator);
    this.#build(container, state);
    this.glossary.element.open = Boolean(state.glossaryOpen);
    this.input.value = state.text ?? "";
    this.onBack = () => this.#update();
    document.addEventListener("serviceback", this.onBack);
    this.#update();
    focusField(this.input);
  }

  state() {
    return {
      text: this.input.value, ...this.languages.state, glossaryOpen: this.glossary.element.open,
      translator: this.translator, documents: this.documents.state,
    };
  }

  unmount() {
    document.removeEventListener("serviceback", this.onBack);
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.turn = null; // identifies the update that waits for a reply
    this.comparing?.abort();
    this.checking?.abort();
    const { languages, versions, translator, documents, glossary, menu } = this;
    for (const part of [languages, versions, translator, documents, glossary, menu]) part.close();
  }

  // ---- building

  #build(container, state) {
    const { context } = this, { t } = context;
    this.languages = new LanguageChoice(context, state, {
      changed: () => this.#update(), swap: () => this.#swap(), compare: () => this.#compareModels(),
    });
    this.input = make("textarea", {
      dir: "auto", rows: 1, spellcheck: "false", placeholder: t("translate.placeholder"), "aria-label": t("translate.text"),
    });
    this.count = make("span", { class: "quiet" });
    this.clear = make("button", { type: "button", class: "plain" }, t("translate.clear"));
    this.outputBox = make("div", { class: "output", role: "group", "aria-label": t("translate.result") });
    this.hint = make("p", { class: "hint" }, t("translate.hint"));
    this.status = make("span", { class: "quiet", role: "status" });
    this.copy = copyButton(context, () => this.output.text,
      () => t(this.output.isTranslationOf(this.input.value) ? "copied" : "translate.copiedPart"));
    this.word = make("p", { "aria-live": "polite" });
    this.fromGlossary = make("span", { class: "sign required" }, t("word.required"));
    this.help = make("p", { class: "help away" }, ...confidenceLegend(context).childNodes, this.fromGlossary, " ", t("word.help"));
    this.notices = new Notices(context, this.effects, {
      undo: (sentence) => this.editing.undo(sentence),
      use: (sentence, translation) => {
        this.editing.use(sentence, translation);
        this.editing.focusWord(sentence, 0); // the button that had the focus was removed
      },
    });
    this.versions = new Versions(context, (sentence, translation) => this.editing.use(sentence, translation));
    const scrolled = make("div", { class: "scroll" }, this.hint, this.outputBox);
    const targetPane = make("section", { class: "card pane", "aria-label": t("translate.result") },
      scrolled,
      make("div", { class: "bar" }, make("div", { class: "word-info quiet" }, this.word, this.help), this.status, this.copy));
    const inputBox = make("div", { class: "input" }, this.input);
    const sourcePane = make("section", { class: "card pane", "aria-label": t("translate.text") },
      inputBox, make("div", { class: "bar" }, this.count, this.clear));
    this.glossary = new GlossaryTable(context, () => this.#update());
    this.documents = new Documents(context, container, () => this.#documentFields(), state.documents);
    container.append(
      make("h1", { class: "visually-hidden" }, t("view.translate")),
      this.languages.element,
      make("div", { class: "panes" }, sourcePane, targetPane),
      this.notices.element,
      this.documents.element,
      make("div", { class: "more" }, this.versions.element, this.glossary.element));

    this.marks = new SourceMarks(this.input);
    this.output = new Output(this.outputBox, {
      sentences: (line) => this.translator.sentences(line, this.request?.source),
      result: (sentence) => this.request && this.translator.result(this.request, sentence),
      languages: () => [this.request.source, this.request.target],
      point: (place) => this.#point(place),
      choose: (place) => {
        this.#selectSentence(place.slot);
        if (!place.slot.isStale) this.menu.open(place, this.request, this.#lastStep(place.slot));
      },
      undo: ({ slot }) => slot.isStale || !slot.result.chosen || this.editing.undo(slot.text),
    });
    this.editing = new Editing(this.translator, this.output, {
      request: () => this.request,
      changed: (text) => {
        this.#showNotices();
        this.#showVersions();
        this.context.announce(text);
      },
    });
    this.sourcePointing = new SourcePointing(this.input, this.marks, this.output);
    this.scrolling = new LinkedScrolling(this.input, scrolled, this.output);
    this.menu = new AlternativesMenu(targetPane, context, (place, translation, span) =>
      this.editing.chooseWord(place, translation, span));

    this.input.addEventListener("input", () => this.#later());
    this.clear.addEventListener("click", () => {
      this.input.value = "";
      this.input.focus();
      this.#update();
    });
  }

  /** The fields to send with a new document. If its language is to be detected, the service chooses the dictionary. */
  #documentFields() {
    const { source, target, sources } = this.languages.documentLanguages, fields = { source, target };
    if (this.languages.model !== null) fields.model = this.languages.model;
    const dictionaries = this.glossary.dictionaries(sources.map((code) => ({ source: code, target })));
    if (dictionaries.length) fields.dictionaries = JSON.stringify(dictionaries);
    return fields;
  }

  // ---- languages

  /** Opens the Why view to compare the models' translations of a sentence. */
  #compareModels() {
    const { sourceCode: source, targetCode: target, model } = this.languages;
    this.context.navigate("why", { source, target, model, ...this.sentence, showsModels: true });
  }

  /** The last selected or the first sentence as a state of the Why view. Null if there is none, or if it needs two models. */
  get sentence() {
    const sentences = [...new Set(this.output.slots.map((slot) => slot.text).filter(Boolean))];
    if (!sentences.length || this.#pair.pivot !== null) return null;
    const { sourceCode: source, targetCode: target, model } = this.languages;
    return { source, target, model, text: sentences.includes(this.slot?.text) ? this.slot.text : sentences[0], sentences };
  }

  /** Swaps the languages, and the texts if the translation is complete. */
  #swap() {
    const text = this.output.isTranslationOf(this.input.value) ? this.output.text.trim() : "";
    this.languages.swap();
    if (text) this.input.value = text;
    this.#update();
  }

  /** The pair of languages of the current translation. */
  get #pair() {
    return this.languages.pair(this.request.source, this.request.target);
  }

  /** Returns the text, languages and model of a sentence that was translated. */
  #lastStep({ text, result }) {
    const { source, target, model } = this.request, { pivot, second_model } = this.#pair;
    return pivot === null ? { text, source, target, model } : { text: result.pivot, source: pivot, target, model: second_model };
  }

  /** Detects the language of the text. If it has changed, starts over. */
  async #detect() {
    const isNew = await this.languages.detect(this.input.value);
    if (isNew && this.request && this.request.source !== this.languages.sourceCode) this.#update();
  }

  // ---- translating

  #later() {
    clearTimeout(this.timer);
    const now = performance.now();
    this.waitingSince ??= now;
    const delay = Math.max(0, Math.min(DELAY_MS, this.waitingSince + MAX_DELAY_MS - now));
    this.timer = setTimeout(() => this.#update(), delay);
  }

  async #update() {
    clearTimeout(this.timer);
    this.waitingSince = null;
    this.comparing?.abort();
    this.checking?.abort();
    const { t, language } = this.context;
    const text = this.input.value;
    this.count.textContent = text ? t("translate.characters", { count: text.length.toLocaleString(language) }) : "";
    this.clear.hidden = this.copy.hidden = !text;
    this.hint.hidden = Boolean(text.trim());
    this.sourcePointing.clear();
    this.marks.show([]);
    this.menu.hide(false);
    this.#report(null);
    const turn = (this.turn = {});
    try {
      const detecting = this.#detect();
      if (this.languages.sourceCode === null && text.trim()) await detecting;
      if (turn !== this.turn) return;
      this.glossary.element.hidden = this.languages.sourceCode === null;
      if (this.languages.sourceCode === null) return;
      const lines = text.trim() ? splitLines(text) : [];
      this.#useRequest(lines);
      if (!lines.length) await this.#checkGlossary();
      if (turn !== this.turn) return;
      const isNew = !this.output.isTranslationOf(text);
      this.status.textContent = "";
      const slow = setTimeout(() => turn === this.turn && (this.status.textContent = t("translate.working")), SLOW_MS);
      try {
        await Promise.all([this.translator.translate(lines, this.request, () => this.#refreshSoon()), detecting]);
      } finally {
        clearTimeout(slow);
      }
      if (turn !== this.turn) return;
      this.#refresh();
      this.status.textContent = "";
      if (isNew && lines.length) this.context.announce(t("translate.done"));
      await this.#compareWithoutGlossary();
    } catch (error) {
      if (isAbort(error) || turn !== this.turn) return;
      this.status.textContent = "";
      if (this.glossary.refuse(error.message)) this.#update(); // translate again without the refused entry
      else this.#report(error);
    }
  }

  /** Checks whether the model accepts the glossary. Throws an error if it does not. */
  async #checkGlossary() {
    if (!this.request.glossary) return;
    const { signal } = (this.checking = new AbortController());
    await this.context.api.post("translate", { ...this.request, text: "" }, { signal, retryWhenBusy: true });
  }

  /** Finds the sentences in which the glossary has changed other words besides its own. */
  async #compareWithoutGlossary() {
    const { signal } = (this.comparing = new AbortController());
    try {
      await this.effects.compare(this.request, this.output.slots, signal);
      this.#showNotices();
    } catch {
      // The translation is complete; only the notices about it are missing.
    }
  }

  /** Builds the request for the current settings. If they have changed, redraws everything. */
  #useRequest(lines) {
    const { sourceCode: source, targetCode: target, model } = this.languages;
    this.glossary.use(source, target, model, languageName(source, this.context), languageName(target, this.context));
    const request = { source, target, alignment: "pairs" };
    if (model !== null) request.model = model;
    const entries = this.glossary.entries;
    if (entries) request.glossary = entries;
    const changed = JSON.stringify(request) !== JSON.stringify(this.request);
    this.request = request;
    this.input.lang = browserCode(source);
    this.outputBox.lang = browserCode(target);
    this.output.setLines(lines, changed);
    this.#showNotices();
    this.#showVersions();
  }

  #refreshSoon() {
    this.frame ??= requestAnimationFrame(() => this.#refresh());
  }

  #refresh() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.output.refresh();
    this.scrolling.follow();
    if (!this.output.pointed) this.#point(null);
    this.#showNotices();
    this.#showVersions();
  }

  // ---- status and notices

  #point(place) {
    const { t, language } = this.context;
    this.marks.show([]);
    this.sourcePointing.clear();
    // The line keeps its height, so that nothing below moves while the user is about to click there.
    this.help.classList.toggle("away", Boolean(place) || !this.outputBox.querySelector(".word"));
    this.fromGlossary.hidden = !this.request?.glossary || !this.outputBox.querySelector(".word.required");
    if (!place) {
      this.word.textContent = "";
      return;
    }
    if (place.element === document.activeElement) this.#selectSentence(place.slot);
    const { slot, words, index } = place, word = words[index];
    const start = this.output.position(slot);
    this.marks.show(word.source.map(([from, to]) => [start + from, start + to]));
    const said = [isolated(slot.result.text.slice(word.start, word.end))];
    if (word.isRequired) said.push(t("word.required"));
    else if (word.isKept) said.push(t("word.kept"));
    else if (word.probability !== null) said.push(t("word.probability", { percent: percent(word.probability, language) }));
    if (word.source.length) {
      const from = word.source.map((span) => t("quoted", { text: isolated(slot.text.slice(...span)) })).join(", ");
      said.push(t("word.from", { words: from }));
    }
    said.push(t("word.choose"));
    this.word.textContent = said.join(" · ");
  }

  /** Selects the sentence whose other versions are shown. */
  #selectSentence(slot) {
    if (slot === this.slot) return;
    this.slot = slot;
    this.#showVersions();
  }

  #showNotices() {
    const { pivot } = this.#pair;
    this.notices.show(this.output.slots, pivot && languageName(pivot, this.context));
  }

  /** Shows an error, or removes it if there is none. */
  #report(error) {
    this.failure?.remove();
    if (!error || error instanceof UnreachableError) return; // the page's banner reports that the service is unreachable
    this.failure = make("p", { class: "error", role: "alert" }, this.context.describe(error));
    this.notices.element.before(this.failure);
  }

  /** Shows other translations of the sentence that was selected last, or of the first one. */
  #showVersions() {
    const slots = this.output.slots.filter((slot) => slot.result?.text);
    this.versions.show(slots.includes(this.slot) ? this.slot : slots[0], this.request);
  }
}
