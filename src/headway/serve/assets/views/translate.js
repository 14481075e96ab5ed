// The view Translate: two panes, and below them notices, documents, other versions and the glossary.

import { UnreachableError, isAbort } from "../api.js";
import { copyButton } from "../copy_button.js";
import { focusField, isolated, make, percent } from "../dom.js";
import { languageName } from "../lists.js";
import { AlternativesMenu } from "../translate/alternatives.js";
import { Documents } from "../translate/documents.js";
import { GlossaryTable } from "../translate/glossary.js";
import { GlossaryEffects } from "../translate/glossary_effects.js";
import { LanguageChoice } from "../translate/language_choice.js";
import { Notices } from "../translate/notices.js";
import { Output, confidenceLegend } from "../translate/output.js";
import { SentenceTranslator, splitLines } from "../translate/sentence_translator.js";
import { SourceMarks } from "../translate/source_marks.js";
import { Versions } from "../translate/versions.js";
import { browserCode, findPhrase } from "../translate/words.js";

const DELAY_MS = 120; // after the last key
const MAX_DELAY_MS = 700; // of somebody who types on
const SLOW_MS = 250; // a translation that takes longer is said to be in progress

const CARET_KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];

/** Returns the position of the character at a place of the window in the text of a textarea, or null if browsers cannot say it. */
function positionAt(textarea, x, y) {
  const found = document.caretPositionFromPoint?.(x, y);
  return found?.offsetNode === textarea ? found.offset : null;
}

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
    this.turn = null; // of an update that waits for a reply
    this.comparing?.abort();
    this.languages.close();
    this.versions.close();
    this.translator.stop();
    this.documents.stop();
    this.glossary.close();
    this.menu.remove();
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
    this.word = make("span", { "aria-live": "polite" });
    this.fromGlossary = make("span", { class: "sign required" }, t("word.required"));
    this.help = make("span", { hidden: true }, ...confidenceLegend(context).childNodes, this.fromGlossary, " ", t("word.help"));
    this.notices = new Notices(context, this.effects, {
      undo: (sentence) => this.#undo(sentence),
      use: (sentence, translation) => {
        this.#use(sentence, translation);
        this.#focusWord(sentence, 0); // the button is gone
      },
    });
    this.versions = new Versions(context, (sentence, translation) => this.#use(sentence, translation));
    this.scrolled = make("div", { class: "scroll" }, this.hint, this.outputBox);
    const targetPane = make("section", { class: "card pane", "aria-label": t("translate.result") },
      this.scrolled,
      make("div", { class: "bar" }, make("p", { class: "word-info quiet" }, this.word, this.help), this.status, this.copy));
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
      choose: (place) => place.slot.isStale || this.menu.open(place, this.request, this.#lastStep(place.slot)),
      undo: ({ slot }) => slot.isStale || !slot.result.chosen || this.#undo(slot.text),
    });
    this.menu = new AlternativesMenu(targetPane, context, (place, translation, span) =>
      this.#choose(place, translation, span));

    this.input.addEventListener("input", () => this.#later());
    this.input.addEventListener("pointermove", ({ clientX, clientY }) => this.#pointAtSource(positionAt(this.input, clientX, clientY)));
    this.input.addEventListener("pointerleave", () => this.#pointAtSource(null));
    this.input.addEventListener("keyup", ({ key }) => CARET_KEYS.includes(key) && this.#pointAtSource(this.input.selectionStart));
    this.input.addEventListener("scroll", () => this.#follow());
    this.scrolled.addEventListener("scroll", () => this.#lead());
    this.clear.addEventListener("click", () => {
      this.input.value = "";
      this.input.focus();
      this.#update();
    });
  }

  /** The fields of a new document. If its language is to be detected, the service chooses the dictionary. */
  #documentFields() {
    const { source, target, sources } = this.languages.documentLanguages, fields = { source, target };
    if (this.languages.model !== null) fields.model = this.languages.model;
    const dictionaries = this.glossary.dictionaries(sources.map((code) => ({ source: code, target })));
    if (dictionaries.length) fields.dictionaries = JSON.stringify(dictionaries);
    return fields;
  }

  // ---- languages

  /** Shows in the view Why how the models translate the sentence that was pointed at last, or the first one. */
  #compareModels() {
    const { sentences } = this, text = sentences.includes(this.slot?.text) ? this.slot.text : sentences[0] ?? "";
    const { sourceCode: source, targetCode: target, model } = this.languages;
    this.context.navigate("why", { source, target, model, text, sentences, showsModels: true });
  }

  /** The different sentences of the text. */
  get sentences() {
    return [...new Set(this.output.slots.map((slot) => slot.text).filter(Boolean))];
  }

  /** Swaps the languages, and the texts if the translation is complete. */
  #swap() {
    const text = this.output.isTranslationOf(this.input.value) ? this.output.text.trim() : "";
    this.languages.swap();
    if (text) this.input.value = text;
    this.#update();
  }

  /** The pair of languages of the present translation. */
  get #pair() {
    return this.languages.pair(this.request.source, this.request.target);
  }

  /** Returns what the model that has written a sentence's translation has read: its text, languages and model. */
  #lastStep({ text, result }) {
    const { source, target, model } = this.request, { pivot, second_model } = this.#pair;
    return pivot === null ? { text, source, target, model } : { text: result.pivot, source: pivot, target, model: second_model };
  }

  /** Finds the language of the text; a change of the language begins anew. */
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
    const { t, language } = this.context;
    const text = this.input.value;
    this.count.textContent = text ? t("translate.characters", { count: text.length.toLocaleString(language) }) : "";
    this.clear.hidden = this.copy.hidden = !text;
    this.hint.hidden = Boolean(text.trim());
    this.#pointAtSource(null);
    this.marks.show([]);
    this.menu.close(false);
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
      const isNew = !this.output.isTranslationOf(text);
      this.status.textContent = "";
      const slow = setTimeout(() => turn === this.turn && (this.status.textContent = t("translate.working")), SLOW_MS);
      try {
        if (!lines.length && this.request.glossary) await this.context.api.post("translate", { ...this.request, text: [""] }); // is it accepted?
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
      if (this.glossary.refuse(error.message)) this.#update(); // without the entry that it is about
      else this.#report(error);
    }
  }

  /** Finds the sentences in which the glossary has changed more than its own words. */
  async #compareWithoutGlossary() {
    const { signal } = (this.comparing = new AbortController());
    try {
      await this.effects.compare(this.request, this.output.slots, signal);
      this.#showNotices();
    } catch {
      // the translation is complete; only what is said about it is missing
    }
  }

  /** Forms the request of the present settings. Everything is shown anew if they have changed. */
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

  /** Scrolls the translation to the lines of the source that are in sight, while a person writes or reads there. */
  #follow() {
    const { input, scrolled } = this, room = input.scrollHeight - input.clientHeight;
    const isRead = input.matches(":hover") || document.activeElement === input;
    if (!isRead || scrolled.matches(":hover") || room <= 0) return;
    const share = input.scrollTop / room, line = this.output.lineAt(share * input.value.length);
    if (!line) return;
    const own = line.getBoundingClientRect(), outer = scrolled.getBoundingClientRect();
    scrolled.scrollTop += (1 - share) * (own.top - outer.top) + share * (own.bottom - outer.bottom);
  }

  /** Scrolls the source to the lines of the translation that are in sight, while a person reads there. */
  #lead() {
    const { input, scrolled } = this, room = scrolled.scrollHeight - scrolled.clientHeight;
    if (!scrolled.matches(":hover") || room <= 0) return;
    const share = scrolled.scrollTop / room, { top, left, width, height } = scrolled.getBoundingClientRect();
    const line = document.elementFromPoint(left + width / 2, top + share * (height - 1))?.closest(".output p");
    if (!line) return;
    const position = this.output.startOf(line) / input.value.length; // of the line, which is at the same share of the pane
    input.scrollTop = position * input.scrollHeight - share * input.clientHeight;
  }

  #refreshSoon() {
    this.frame ??= requestAnimationFrame(() => this.#refresh());
  }

  #refresh() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.output.refresh();
    this.#follow();
    if (!this.output.pointed) this.#point(null);
    this.#showNotices();
    this.#showVersions();
  }

  /** Uses a translation with another word, and names the words chosen earlier that it does not contain any more. */
  #choose({ slot, words, index }, translation, [start, end]) {
    const { text } = translation, position = words[index].start, earlier = slot.result.choices ?? [];
    const before = earlier.filter((choice) => choice.start < position);
    const after = earlier.filter((choice) => choice.start > position)
      .map(({ word }) => ({ word, start: findPhrase(text, word, end)?.[0] ?? null }));
    const choices = [...before, { start, word: text.slice(start, end) }, ...after.filter((choice) => choice.start !== null)];
    const lost = after.filter((choice) => choice.start === null).map(({ word }) => word);
    this.#use(slot.text, { ...translation, position, choices, lost });
    this.#focusWord(slot.text, start);
  }

  /** Uses another translation of a sentence. */
  #use(sentence, translation) {
    const before = this.translator.result(this.request, sentence);
    if (translation.text !== before.text) this.#replace(sentence, { ...translation, before, chosen: true });
  }

  /** Goes back to the translation of a sentence before the last change. */
  #undo(sentence) {
    const { before, position = 0 } = this.translator.result(this.request, sentence);
    this.#replace(sentence, before);
    this.#focusWord(sentence, position); // the button may be gone
  }

  #focusWord(sentence, position) {
    const slot = this.output.slots.find(({ text }) => text === sentence), element = slot && this.output.wordAt(slot, position);
    if (element) this.output.focus(element);
  }

  #replace(sentence, result) {
    this.translator.remember(this.request, sentence, result);
    this.output.refreshSentence(sentence);
    this.#showNotices();
    this.#showVersions();
    this.context.announce(result.text);
  }

  // ---- what is said about the translation

  /** Marks the word at a position of the source, and the words of the translation that come from it. */
  #pointAtSource(position) {
    if (position === this.sourcePosition) return;
    this.sourcePosition = position;
    if (!this.output.pointed) this.marks.show(this.output.markFrom(position));
  }

  #point(place) {
    const { t, language } = this.context;
    this.marks.show([]);
    this.help.hidden = Boolean(place) || !this.outputBox.querySelector(".word");
    this.fromGlossary.hidden = !this.outputBox.querySelector(".word.required");
    if (!place) {
      this.word.textContent = "";
      return;
    }
    if (this.slot !== place.slot) {
      this.slot = place.slot;
      this.#showVersions();
    }
    const { slot, words, index } = place, word = words[index];
    const start = this.output.position(slot);
    this.marks.show(word.source.map(([from, to]) => [start + from, start + to]));
    const said = [isolated(slot.result.text.slice(word.start, word.end))];
    if (word.isRequired) said.push(t("word.required"));
    else if (word.probability !== null) said.push(t("word.probability", { percent: percent(word.probability, language) }));
    if (word.source.length) {
      const from = word.source.map((span) => t("quoted", { text: isolated(slot.text.slice(...span)) })).join(", ");
      said.push(t("word.from", { words: from }));
    }
    said.push(t("word.click"));
    this.word.textContent = said.join(" · ");
  }

  #showNotices() {
    const { pivot } = this.#pair;
    this.notices.show(this.output.slots, pivot && languageName(pivot, this.context));
  }

  /** Shows an error, or that there is none. */
  #report(error) {
    this.failure?.remove();
    if (!error || error instanceof UnreachableError) return; // the banner of the page says that the service is gone
    this.failure = make("p", { class: "error", role: "alert" }, this.context.describe(error));
    this.notices.element.before(this.failure);
  }

  /** Shows other translations of the sentence that was pointed at last, or of the first one. */
  #showVersions() {
    const slots = this.output.slots.filter((slot) => slot.result?.text);
    this.versions.show(slots.includes(this.slot) ? this.slot : slots[0], this.request);
  }
}
