// The view Translate: two panes, and below them what the model doubts, other versions and the glossary.

import { ApiError, UnreachableError, isAbort } from "../api.js";
import { copyButton } from "../copy_button.js";
import { focusField, isolated, make, percent } from "../dom.js";
import { AlternativesMenu } from "../translate/alternatives.js";
import { Documents } from "../translate/documents.js";
import { GlossaryTable } from "../translate/glossary.js";
import { GlossaryEffects } from "../translate/glossary_effects.js";
import { Output } from "../translate/output.js";
import { SentenceTranslator, splitLines } from "../translate/sentence_translator.js";
import { SourceMarks } from "../translate/source_marks.js";
import { browserCode } from "../translate/words.js";

const DELAY_MS = 120; // after the last key
const MAX_DELAY_MS = 700; // of somebody who types on
const DETECTED_CHARACTERS = 2000;
const MAX_NOTICES = 3; // sentences of a kind
const VERSIONS = 4;
const AUTO = "auto";

export function mount(container, context, state = {}) {
  return new TranslateView(container, context, state);
}

class TranslateView {
  constructor(container, context, state) {
    const { detected = null, detectedText = "" } = state;
    Object.assign(this, { context, detected, detectedText });
    this.translator = state.translator ?? new SentenceTranslator(context.api);
    this.effects = new GlossaryEffects(context.api, this.translator);
    this.#build(container, state);
    this.#fillLanguages(state.source ?? context.settings.get("source"), state.target ?? context.settings.get("target"));
    if (state.model) select(this.model, state.model);
    this.glossary.element.open = Boolean(state.glossaryOpen);
    this.input.value = state.text ?? "";
    this.onBack = () => this.#update();
    document.addEventListener("serviceback", this.onBack);
    this.#update();
    focusField(this.input);
  }

  state() {
    return {
      text: this.input.value, source: this.source.value, target: this.target.value, model: this.model.value,
      detected: this.detected, detectedText: this.detectedText, glossaryOpen: this.glossary.element.open,
      translator: this.translator, documents: this.documents.state,
    };
  }

  unmount() {
    document.removeEventListener("serviceback", this.onBack);
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.turn = null; // of an update that waits for a reply
    this.detecting?.abort();
    this.asking?.abort();
    this.comparing?.abort();
    this.translator.stop();
    this.documents.stop();
    this.glossary.close();
    this.menu.remove();
  }

  // ---- building

  #build(container, state) {
    const { context } = this, { t } = context;
    this.source = make("select", { "aria-label": t("translate.from") });
    this.target = make("select", { "aria-label": t("translate.to") });
    this.model = make("select", {});
    this.compare = make("button", { type: "button", class: "plain" }, t("translate.compare"));
    this.modelChoice = make("div", { class: "model" },
      make("label", {}, t("translate.model"), " ", this.model), this.compare);
    this.modelChoice.hidden = true;
    this.swap = make("button", { type: "button", class: "plain swap", "aria-label": t("translate.swap") }, "⇄");
    this.swap.title = t("translate.swap");
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
    this.word = make("p", { class: "word-info quiet", "aria-live": "polite" });
    this.notices = make("ul", { class: "notices" });
    this.versions = make("details", { class: "card versions", hidden: true },
      make("summary", {}, t("versions.title")), make("p", { class: "quiet" }, t("versions.about")), make("ol"));
    const targetPane = make("section", { class: "card pane", "aria-label": t("translate.result") },
      make("div", { class: "scroll" }, this.hint, this.outputBox),
      make("div", { class: "bar" }, this.word, this.status, this.copy));
    const inputBox = make("div", { class: "input" }, this.input);
    const sourcePane = make("section", { class: "card pane", "aria-label": t("translate.text") },
      inputBox, make("div", { class: "bar" }, this.count, this.clear));
    this.glossary = new GlossaryTable(context, () => this.#update());
    const side = (...controls) => make("div", { class: "side" }, ...controls);
    this.documents = new Documents(context, container, () => this.#documentFields(), state.documents);
    container.append(
      make("h1", { class: "visually-hidden" }, t("view.translate")),
      make("div", { class: "languages" }, side(this.source), this.swap, side(this.target, this.modelChoice)),
      make("div", { class: "panes" }, sourcePane, targetPane),
      this.notices,
      this.documents.element,
      make("div", { class: "more" }, this.versions, this.glossary.element));

    this.marks = new SourceMarks(this.input);
    this.output = new Output(this.outputBox, {
      sentences: (line) => this.translator.sentences(line, this.request?.source),
      result: (sentence) => this.request && this.translator.result(this.request, sentence),
      languages: () => [this.request.source, this.request.target],
      point: (place) => this.#point(place),
      choose: (place) => this.menu.open(place, this.request, this.#lastStep(place.slot)),
      undo: ({ slot }) => slot.result.chosen && this.#undo(this.request, slot),
    });
    this.menu = new AlternativesMenu(targetPane, context, (place, translation, position) =>
      this.#choose(place, translation, position));

    this.input.addEventListener("input", () => this.#later());
    this.input.addEventListener("scroll", () => this.#follow());
    this.source.addEventListener("change", () => {
      context.settings.set("source", this.source.value);
      this.#fillTargets(this.target.value);
      this.#update();
    });
    this.target.addEventListener("change", () => {
      context.settings.set("target", this.target.value);
      this.#fillModels();
      this.#update();
    });
    this.model.addEventListener("change", () => this.#update());
    this.compare.addEventListener("click", () => this.#compareModels());
    this.swap.addEventListener("click", () => this.#swap());
    this.clear.addEventListener("click", () => {
      this.input.value = "";
      this.input.focus();
      this.#update();
    });
    this.versions.addEventListener("toggle", () => this.#showVersions());
  }

  /** The fields of a new document. If its language is to be detected, the service chooses the dictionary. */
  #documentFields() {
    const source = this.source.value, target = this.target.value, fields = { source, target };
    if (!this.modelChoice.hidden) fields.model = this.model.value;
    const sources = source === AUTO ? [...new Set(this.context.languages.map((each) => each.source))] : [source];
    const dictionaries = this.glossary.dictionaries(sources.map((code) => ({ source: code, target })));
    if (dictionaries.length) fields.dictionaries = JSON.stringify(dictionaries);
    return fields;
  }

  // ---- languages

  #name(code) {
    const pair = this.context.languages.find((each) => each.source === code || each.target === code);
    try {
      const names = new Intl.DisplayNames([this.context.language], { type: "language", fallback: "none" });
      const name = names.of(browserCode(code));
      if (name) return name;
    } catch {
      // not a code that browsers know
    }
    return pair?.source === code ? pair.source_name : pair?.target_name ?? code;
  }

  #options(codes) {
    const named = codes.map((code) => [code, this.#name(code)]);
    named.sort((one, other) => one[1].localeCompare(other[1], this.context.language));
    return named.map(([code, name]) => make("option", { value: code }, name));
  }

  #fillLanguages(source, target) {
    const codes = [...new Set(this.context.languages.map((each) => each.source))];
    this.source.replaceChildren(...this.#options(codes));
    if (codes.length > 1) this.source.prepend(make("option", { value: AUTO }));
    if (codes.length > 1) this.#showDetected();
    select(this.source, source);
    this.#fillTargets(target);
  }

  /** The language of the text: as chosen, or as detected; null as long as it is not known. */
  get sourceCode() {
    return this.source.value === AUTO ? this.detected : this.source.value;
  }

  #fillTargets(target) {
    const from = this.sourceCode;
    const pairs = this.context.languages.filter((each) => from === null || each.source === from);
    const codes = [...new Set(pairs.map((each) => each.target))].filter((code) => code !== from);
    this.target.replaceChildren(...this.#options(codes));
    select(this.target, target);
    this.#fillModels();
  }

  #fillModels() {
    const names = this.context.languages
      .filter((each) => each.source === this.sourceCode && each.target === this.target.value).map((each) => each.model);
    const { value } = this.model;
    this.model.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    select(this.model, value);
    this.modelChoice.hidden = names.length < 2;
    this.compare.hidden = this.#directModels.length < 2 || !this.context.offers("why");
    const canSwap = this.context.languages.some(
      (each) => each.source === this.target.value && (this.sourceCode === null || each.target === this.sourceCode));
    this.swap.hidden = !canSwap;
  }

  /** The models that translate the present languages without a third one. */
  get #directModels() {
    const source = this.sourceCode, target = this.target.value;
    return this.context.languages.filter((each) => each.source === source && each.target === target && each.pivot === null);
  }

  /** Shows in the view Why how the models translate the sentence that was pointed at last, or the first one. */
  #compareModels() {
    const slots = this.output.slots.filter((slot) => slot.text), slot = slots.includes(this.slot) ? this.slot : slots[0];
    const state = { source: this.sourceCode, target: this.target.value, model: this.model.value, showsModels: true };
    this.context.navigate("why", { ...state, text: slot?.text ?? "" });
  }

  /** Swaps the languages, and the texts if the translation is complete. */
  #swap() {
    const [source, target] = [this.sourceCode, this.target.value];
    const text = this.output.isTranslationOf(this.input.value) ? this.output.text.trim() : "";
    select(this.source, target);
    this.#fillTargets(source);
    for (const side of ["source", "target"]) this.context.settings.set(side, this[side].value);
    if (text) this.input.value = text;
    this.#update();
  }

  /** The pair of languages as the service describes it, with the third language if two models translate it. */
  get #pair() {
    const { source, target } = this.request;
    return this.context.languages.find((each) => each.source === source && each.target === target);
  }

  /** Returns what the model that has written a sentence's translation has read: its text, languages and model. */
  #lastStep({ text, result }) {
    const { source, target, model } = this.request, { pivot, second_model } = this.#pair;
    return pivot === null ? { text, source, target, model } : { text: result.pivot, source: pivot, target, model: second_model };
  }

  /** Finds the language of the text; a change of the language begins anew. */
  async #detect() {
    const text = this.input.value.trim().slice(0, DETECTED_CHARACTERS);
    if (this.source.value !== AUTO || !text || text === this.detectedText) return;
    this.detecting?.abort();
    const { signal } = (this.detecting = new AbortController());
    const [{ code }] = await this.context.api.post("detect", { text }, { signal });
    if (!this.context.languages.some((each) => each.source === code)) {
      throw new ApiError(400, this.context.t("translate.notFrom", { language: this.#name(code) }));
    }
    this.detectedText = text;
    if (code === this.detected) return;
    this.detected = code;
    this.#showDetected();
    this.#fillTargets(this.target.value);
    if (this.request && this.request.source !== code) this.#update();
  }

  #showDetected() {
    const { t } = this.context, code = this.detected;
    this.source.options[0].textContent =
      code === null ? t("translate.detect") : t("translate.detected", { language: this.#name(code) });
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
    const { t, language } = this.context;
    const text = this.input.value;
    this.count.textContent = text ? t("translate.characters", { count: text.length.toLocaleString(language) }) : "";
    this.clear.hidden = this.copy.hidden = !text;
    this.hint.hidden = Boolean(text.trim());
    this.marks.show([]);
    this.menu.close(false);
    this.#report(null);
    const turn = (this.turn = {});
    try {
      const detecting = this.#detect();
      if (this.sourceCode === null && text.trim()) await detecting;
      if (turn !== this.turn) return;
      this.glossary.element.hidden = this.sourceCode === null;
      if (this.sourceCode === null) return;
      const lines = text.trim() ? splitLines(text) : [];
      this.#useRequest(lines);
      const isNew = !this.output.isTranslationOf(text);
      this.status.textContent = "";
      const slow = setTimeout(() => turn === this.turn && (this.status.textContent = t("translate.working")), 500);
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
      if (this.glossary.refuse(error.message)) this.#update(); // without the entry that it is about
      else this.#report(error);
    }
  }

  /** Finds the sentences in which the glossary has changed more than its own words. */
  async #compareWithoutGlossary() {
    this.comparing?.abort();
    this.comparing = new AbortController();
    await this.effects.compare(this.request, this.output.slots, this.comparing.signal);
    this.#showNotices();
  }

  /** Forms the request of the present settings. Everything is shown anew if they have changed. */
  #useRequest(lines) {
    const source = this.sourceCode, target = this.target.value;
    const model = this.modelChoice.hidden ? null : this.model.value;
    this.glossary.use(source, target, model, this.#name(source), this.#name(target));
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
    const { input } = this, room = input.scrollHeight - input.clientHeight, pane = this.outputBox.parentElement;
    if (document.activeElement !== input || pane.matches(":hover") || room <= 0) return;
    const share = input.scrollTop / room, line = this.output.lineAt(share * input.value.length);
    if (!line) return;
    const own = line.getBoundingClientRect(), outer = pane.getBoundingClientRect();
    pane.scrollTop += (1 - share) * (own.top - outer.top) + share * (own.bottom - outer.bottom);
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

  #choose({ slot, words, index }, translation, position) {
    const { before = slot.result } = slot.result;
    const chosen = { ...translation, before, chosen: true, position: words[index].start };
    this.#replace(this.request, slot.text, chosen);
    this.#focusWord(slot, position);
  }

  /** Goes back to the model's own translation of a sentence. */
  #undo(request, slot) {
    const { before, position = 0 } = slot.result;
    this.#replace(request, slot.text, before);
    this.#focusWord(slot, position); // the button is gone
  }

  #focusWord(slot, position) {
    const element = this.output.wordAt(slot, position);
    if (element) this.output.focus(element);
  }

  #replace(request, sentence, result) {
    this.translator.remember(request, sentence, result);
    this.output.refreshSentence(sentence);
    this.#showNotices();
    this.#showVersions();
    this.context.announce(result.text);
  }

  // ---- what is said about the translation

  #point(place) {
    const { t, language } = this.context;
    this.marks.show([]);
    if (!place) {
      this.word.textContent = this.outputBox.querySelector(".word") ? t("word.help") : "";
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
    if (word.probability !== null) said.push(t("word.probability", { percent: percent(word.probability, language) }));
    if (word.source.length) {
      const from = word.source.map((span) => t("quoted", { text: isolated(slot.text.slice(...span)) })).join(", ");
      said.push(t("word.from", { words: from }));
    }
    said.push(t("word.click"));
    this.word.textContent = said.join(" · ");
  }

  #showNotices() {
    const slots = this.output.slots.filter((slot) => slot.result);
    this.notices.replaceChildren(...this.#pivotNotice(slots), ...this.#warnings(slots), ...this.#changes(slots));
  }

  #quoted(text, most = 50) {
    const shown = text.length > most ? `${text.slice(0, most - 1)}…` : text;
    return this.context.t("quoted", { text: isolated(shown) });
  }

  #pivotNotice(slots) {
    if (!slots.length || this.#pair.pivot === null) return [];
    return [make("li", { class: "about" }, this.context.t("notice.pivot", { language: this.#name(this.#pair.pivot) }))];
  }

  /** What may be wrong with translations. Sentences with the same warning share an item. */
  #warnings(slots) {
    const { t, serviceMessage } = this.context, found = new Map(); // warning -> its sentences
    const warn = (text, slot) => found.set(text, [...(found.get(text) ?? []), this.#quoted(slot.text)]);
    for (const slot of slots) {
      const { error, unlikely, flags, glossary } = slot.result;
      if (error !== undefined) {
        warn(t("notice.failed", { message: serviceMessage(error) }), slot);
        continue;
      }
      if (unlikely) warn(t("notice.unlikely"), slot);
      for (const flag of flags) warn(t(`notice.${flag}`), slot);
      for (const { met, source, targets } of glossary ?? []) {
        if (!met) warn(t("notice.glossary", { source, target: targets.join(" / ") }), slot);
      }
    }
    return [...found].map(([text, own]) => {
      const sentences = [...new Set(own)], some = sentences.slice(0, MAX_NOTICES).join(", ");
      const more = sentences.length > MAX_NOTICES ? t("notice.more", { count: sentences.length - MAX_NOTICES }) : "";
      const where = slots.length > 1 ? make("span", { class: "quiet" }, ` ${some}${more}`) : "";
      return make("li", {}, text, where);
    });
  }

  /** Translations that a person or the glossary has changed, each with a button that goes back. */
  #changes(slots) {
    const { t } = this.context, { request } = this;
    const item = (about, label, action) => {
      const button = make("button", { type: "button" }, label);
      button.addEventListener("click", action);
      return make("li", { class: "change" }, make("span", {}, about), button);
    };
    const fresh = [...new Map(slots.filter((slot) => !slot.isStale).map((slot) => [slot.text, slot])).values()];
    const chosen = fresh.filter(({ result }) => result.chosen).map((slot) =>
      item(t("notice.chosen", { text: this.#quoted(slot.text) }), t("notice.undo"), () => this.#undo(request, slot)));
    const affected = fresh.filter((slot) => this.effects.translationWithout(slot)).slice(0, MAX_NOTICES).map((slot) => {
      const other = this.effects.translationWithout(slot), version = { ...other, before: slot.result, chosen: true };
      const about = t("notice.effect", { text: this.#quoted(slot.text), other: this.#quoted(other.text, 200) });
      return item(about, t("notice.use"), () => this.#replace(request, slot.text, version));
    });
    return [...chosen, ...affected];
  }

  /** Shows an error, or that there is none. */
  #report(error) {
    this.failure?.remove();
    if (!error || error instanceof UnreachableError) return; // the banner of the page says that the service is gone
    this.failure = make("p", { class: "error", role: "alert" }, this.context.describe(error));
    this.notices.before(this.failure);
  }

  /** Other translations of the sentence that was pointed at last, or of the first one. */
  async #showVersions() {
    const slots = this.output.slots.filter((slot) => slot.result?.text);
    const slot = slots.includes(this.slot) ? this.slot : slots[0];
    this.versions.hidden = !slot;
    if (!slot || !this.versions.open) return;
    const { api, describe } = this.context, list = this.versions.querySelector("ol");
    const { request } = this, { text } = slot;
    const key = slot.isStale ? null : JSON.stringify([request, text]);
    if (key !== this.versionsOf) {
      this.versionsOf = key;
      this.asking?.abort();
      list.replaceChildren(); // they belong to another sentence
      if (key === null) return; // the sentence is translated first
      const original = slot.result.before ?? slot.result;
      const { signal } = (this.asking = new AbortController());
      try {
        const body = { ...request, text, options: { n_best: VERSIONS, beam_size: VERSIONS } };
        const [{ alternatives, ...best }] = (await api.post("translate", body, { signal })).translations;
        list.replaceChildren(...[best, ...alternatives].map((each) => {
          const version = { ...each, unlikely: best.unlikely, before: original, chosen: true };
          const button = make("button", { type: "button", class: "plain", dir: "auto" }, each.text);
          button.addEventListener("click", () => this.#replace(request, text, version));
          return make("li", {}, button);
        }));
      } catch (error) {
        if (isAbort(error)) return;
        this.versionsOf = null; // so that they are asked for again
        list.replaceChildren(make("li", { class: "error" }, describe(error)));
      }
    }
    for (const button of list.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.textContent === slot.result.text));
    }
  }
}

function select(list, value) {
  const values = [...list.options].map((option) => option.value);
  list.value = values.includes(value) ? value : values[0] ?? "";
  list.disabled = values.length < 2;
}
