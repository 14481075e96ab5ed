// The displayed translation: lines, sentences and words. Words are shaded by their probability.

import { isUndo, make, percent } from "../dom.js";
import { sentenceGap, wordsOf } from "./words.js";

const SURE = 0.9; // words with at least this probability have no shade
const UNSURE = 0.5;
const DOUBTFUL = 0.2;

/** Returns the CSS class for the probability of a word. */
export const confidenceClass = (probability) =>
  probability === null || isAtLeast(probability, SURE) ? "" : isAtLeast(probability, UNSURE) ? "shade-1" : isAtLeast(probability, DOUBTFUL) ? "shade-2" : "shade-3";

/** Compares percentages as they are displayed: 89.6 % is displayed as 90 %. */
const isAtLeast = (probability, limit) => Math.round(100 * probability) >= 100 * limit;

/** Returns a legend for the shades of words or tokens. */
export function confidenceLegend({ t, language }, title = "confidence.word") {
  const limits = [[SURE, "shade-1"], [UNSURE, "shade-2"], [DOUBTFUL, "shade-3"]];
  const signs = limits.flatMap(([most, shade]) =>
    [" ", make("span", { class: `sign ${shade}` }, t("confidence.below", { percent: percent(most, language) }))]);
  return make("p", { class: "quiet" }, t(title), ...signs);
}

export class Output {
  /**
   * @param {HTMLElement} container The element to fill.
   * @param {object} hooks
   * @param {(line: string) => string[] | null} hooks.sentences Returns the sentences of a line, if they are known.
   * @param {(sentence: string) => object | undefined} hooks.result Returns a translation, if it is known.
   * @param {() => [string, string]} hooks.languages Returns the codes of the source and target language.
   * @param {(place: object | null) => void} hooks.point Called with the word that is hovered or has the focus.
   * @param {(place: object) => void} hooks.choose Called with a word that is clicked.
   * @param {(place: object) => void} hooks.undo Called with the word that has the focus when the user presses Ctrl+Z.
   *
   * A place has `slot`, `words`, `index` and `element`. A slot is a sentence with its text and result; if `isStale`, the
   * result belongs to an earlier text.
   */
  constructor(container, hooks) {
    Object.assign(this, { container, hooks, lines: [], places: new WeakMap(), incomplete: new Set(), related: [] });
    container.addEventListener("pointerover", (event) => this.#point(event.target));
    container.addEventListener("pointerleave", () => this.#point(this.#open ?? document.activeElement));
    container.addEventListener("focusin", (event) => this.#point(event.target));
    container.addEventListener("focusout", () => this.#point(this.#open ?? container.querySelector(".word:hover")));
    container.addEventListener("click", (event) => {
      const place = this.places.get(event.target);
      if (place && getSelection().isCollapsed) {
        this.#activate(place.element);
        hooks.choose(place);
        this.#point(place.element);
      }
    });
    container.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Shows the translations of new lines. With `all`, redraws everything, because the settings have changed. */
  setLines(lines, all = false) {
    const old = this.lines;
    let same = 0, sameEnd = 0;
    const most = Math.min(old.length, lines.length);
    while (same < most && old[same].line === lines[same]) same += 1;
    while (sameEnd < most - same && old[old.length - 1 - sameEnd].line === lines[lines.length - 1 - sameEnd]) sameEnd += 1;
    const replaced = old.slice(same, old.length - sameEnd);
    const after = old[old.length - sameEnd]?.element ?? null;
    const entries = lines.slice(same, lines.length - sameEnd).map((line) => {
      const entry = replaced.shift() ?? { element: make("p", { dir: "auto" }), slots: [] };
      entry.line = line;
      if (!entry.element.isConnected) this.container.insertBefore(entry.element, after);
      this.incomplete.add(entry);
      return entry;
    });
    for (const entry of replaced) {
      entry.element.remove();
      this.incomplete.delete(entry);
    }
    this.lines = [...old.slice(0, same), ...entries, ...old.slice(old.length - sameEnd)];
    if (all) this.lines.forEach((entry) => this.incomplete.add(entry));
    this.refresh();
  }

  /** Shows new sentences and translations. */
  refresh() {
    for (const entry of this.incomplete) {
      if (this.#refreshLine(entry)) this.incomplete.delete(entry);
    }
    if (this.pointed && !this.pointed.isConnected) this.#point(null); // the word has another translation
    if (!this.active?.isConnected) {
      this.active = null;
      const first = this.container.querySelector(".word");
      if (first) this.#activate(first);
    }
  }

  /** Redraws a sentence. */
  refreshSentence(sentence) {
    for (const entry of this.lines) {
      if (entry.slots.some((slot) => slot.text === sentence)) this.incomplete.add(entry);
    }
    this.refresh();
  }

  /** Returns whether the line is complete. */
  #refreshLine(entry) {
    const sentences = this.hooks.sentences(entry.line);
    if (!sentences) {
      entry.element.classList.add("stale");
      return false;
    }
    entry.element.classList.remove("stale");
    while (entry.slots.length > sentences.length) entry.slots.pop().element.remove();
    let isComplete = true, offset = 0;
    sentences.forEach((sentence, at) => {
      let slot = entry.slots[at];
      if (!slot) {
        slot = { element: make("span", { class: "sentence" }), entry };
        entry.slots.push(slot);
        entry.element.append(slot.element);
      }
      slot.text = sentence.trim();
      slot.offset = offset + (sentence.length - sentence.trimStart().length);
      offset += sentence.length;
      const result = slot.text ? this.hooks.result(slot.text) : null;
      if (result === undefined) isComplete = false;
      slot.isStale = result === undefined;
      slot.element.classList.toggle("stale", slot.isStale);
      if (result === undefined || result === slot.result) return;
      slot.result = result;
      this.#showSentence(slot, at > 0);
    });
    return isComplete;
  }

  #showSentence(slot, follows) {
    const { result, element } = slot;
    const [source, target] = this.hooks.languages();
    element.replaceChildren(follows ? sentenceGap(target) : "");
    element.classList.remove("failed", "flagged");
    slot.words = [];
    if (!result) return;
    if (result.error !== undefined) {
      element.classList.add("failed");
      element.append(slot.text);
      return;
    }
    element.classList.toggle("flagged", result.flags.length > 0 || result.unlikely === true);
    slot.words = wordsOf(result, slot.text, target, source);
    let from = 0;
    slot.words.forEach((word, index) => {
      element.append(result.text.slice(from, word.start));
      const look = word.isRequired ? "required" : word.isKept ? "" : confidenceClass(word.probability);
      const shown = make("span", { class: look ? `word ${look}` : "word" }, result.text.slice(word.start, word.end));
      this.places.set(shown, { slot, words: slot.words, index, element: shown });
      element.append(shown);
      from = word.end;
    });
    element.append(result.text.slice(from));
  }

  /** Returns the element of the word at a position of a sentence's translation. */
  wordAt(slot, position) {
    const index = slot.words.findIndex((word) => word.end > position);
    return slot.element.querySelectorAll(".word")[index] ?? null;
  }

  /** The translation as text. */
  get text() {
    if (!this.lines.length) return "";
    const gap = sentenceGap(this.hooks.languages()[1]);
    return this.lines.map(({ line, slots }, at) => {
      const own = slots.map((slot) => slot.result?.text ?? (slot.result ? slot.text : "")).filter(Boolean).join(gap);
      if (line.endsWith("\n")) return `${own}\n`;
      const isCut = at < this.lines.length - 1; // a long line, which the next one continues
      return own && isCut ? own + gap : own;
    }).join("");
  }

  /** Whether everything that is shown is the complete translation of a text. */
  isTranslationOf(text) {
    return this.incomplete.size === 0 && this.lines.map(({ line }) => line).join("") === text;
  }

  /** Returns all sentences that are shown. */
  get slots() {
    return this.lines.flatMap((entry) => entry.slots);
  }

  #entryAt(position) {
    let end = 0;
    return this.lines.find(({ line }) => (end += line.length) > position) ?? null;
  }

  /** Returns the element of the line at a position of the source text. */
  lineAt(position) {
    return (this.#entryAt(position) ?? this.lines.at(-1))?.element ?? null;
  }

  /**
   * Marks the words that come from the word at a position in the source text, or no words if there is no position. Returns
   * the spans of all source words that the marked words come from.
   */
  markFrom(position) {
    for (const element of this.related) element.classList.remove("related");
    this.related = [];
    const entry = position === null ? null : this.#entryAt(position), found = [];
    if (!entry || entry.element.classList.contains("stale")) return found;
    for (const slot of entry.slots.filter(({ words, isStale }) => words && !isStale)) {
      const start = this.position(slot), at = position - start, elements = slot.element.querySelectorAll(".word");
      slot.words.forEach(({ source }, index) => {
        if (!source.some(([from, to]) => from <= at && at < to)) return;
        elements[index].classList.add("related");
        this.related.push(elements[index]);
        found.push(...source.map(([from, to]) => [start + from, start + to]));
      });
    }
    return found;
  }

  /** Returns the position of a line in the source text. */
  startOf(element) {
    let start = 0;
    for (const { line, element: own } of this.lines) {
      if (own === element) break;
      start += line.length;
    }
    return start;
  }

  /** Returns the position of a sentence in the source text. */
  position({ entry, offset }) {
    return this.startOf(entry.element) + offset;
  }

  /** The word whose menu is open, or null. */
  get #open() {
    return this.container.querySelector(".word.open");
  }

  focus(element) {
    this.#activate(element);
    element.focus();
  }

  // The Tab key reaches only one word; the arrow keys move to the others.
  #activate(element) {
    if (this.active && this.active !== element) {
      for (const name of ["tabindex", "role", "aria-haspopup"]) this.active.removeAttribute(name);
    }
    this.active = element;
    for (const [name, value] of [["tabindex", 0], ["role", "button"], ["aria-haspopup", "menu"]]) {
      element.setAttribute(name, value);
    }
  }

  #point(element) {
    const place = element && this.places.get(element);
    if (place?.element === this.pointed) return;
    this.pointed?.classList.remove("pointed");
    this.pointed = place?.element ?? null;
    this.pointed?.classList.add("pointed");
    this.hooks.point(place ?? null);
  }

  #key(event) {
    const place = this.places.get(event.target);
    if (place && isUndo(event)) {
      event.preventDefault(); // otherwise the browser would change the source
      this.hooks.undo(place);
    }
    if (!place || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.hooks.choose(place);
      return;
    }
    const forward = getComputedStyle(place.element.closest("p")).direction === "rtl" ? -1 : 1;
    const step = { ArrowRight: forward, ArrowLeft: -forward }[event.key];
    const sentenceStep = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    let next = null;
    if (step) {
      const words = [...this.container.querySelectorAll(".word")];
      next = words[words.indexOf(place.element) + step];
    } else if (sentenceStep) {
      const slots = this.slots.filter((slot) => slot.words?.length);
      next = slots[slots.indexOf(place.slot) + sentenceStep]?.element.querySelector(".word");
    } else if (event.key === "Home" || event.key === "End") {
      const words = place.slot.element.querySelectorAll(".word");
      next = words[event.key === "Home" ? 0 : words.length - 1];
    } else return;
    event.preventDefault();
    if (next) this.focus(next);
  }
}
