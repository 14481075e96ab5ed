// The user's changes to translations: another word, another version of a sentence, and undo.

import { findPhrase } from "./words.js";

export class Editing {
  /**
   * @param {SentenceTranslator} translator Stores the changed translations.
   * @param {Output} output Shows the changed translations.
   * @param {object} hooks
   * @param {() => object} hooks.request Returns the fields of /api/v1/translate, except `text`, for the current settings.
   * @param {(text: string) => void} hooks.changed Called with the new translation of a sentence.
   */
  constructor(translator, output, hooks) {
    Object.assign(this, { translator, output, hooks });
  }

  /** Uses a translation with another word, and records the words chosen earlier that it no longer contains. */
  chooseWord({ slot, words, index }, translation, [start, end]) {
    const { text } = translation, position = words[index].start, earlier = slot.result.choices ?? [];
    const before = earlier.filter((choice) => choice.start < Math.min(start, position));
    const after = earlier.filter((choice) => choice.start > position)
      .map(({ word }) => ({ word, start: findPhrase(text, word, end)?.[0] ?? null }));
    const choices = [...before, { start, word: text.slice(start, end) }, ...after.filter((choice) => choice.start !== null)];
    const lost = after.filter((choice) => choice.start === null).map(({ word }) => word);
    this.use(slot.text, { ...translation, position, choices, lost });
    this.focusWord(slot.text, start);
  }

  /** Uses another translation of a sentence. */
  use(sentence, translation) {
    const before = this.translator.result(this.hooks.request(), sentence);
    if (translation.text !== before.text) this.#replace(sentence, { ...translation, before, chosen: true });
  }

  /** Restores the translation of a sentence before the last change. */
  undo(sentence) {
    const { before, position = 0 } = this.translator.result(this.hooks.request(), sentence);
    this.#replace(sentence, before);
    this.focusWord(sentence, position); // the button that had the focus may have been removed
  }

  /** Moves the focus to the word at a position of a sentence's translation. */
  focusWord(sentence, position) {
    const slot = this.output.slots.find(({ text }) => text === sentence), element = slot && this.output.wordAt(slot, position);
    if (element) this.output.focus(element);
  }

  #replace(sentence, result) {
    this.translator.remember(this.hooks.request(), sentence, result);
    this.output.refreshSentence(sentence);
    this.hooks.changed(result.text);
  }
}
