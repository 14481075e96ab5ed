// What a glossary changes beyond its own words: a model that must use a phrase may also write the rest differently.

import { differences } from "../why/differences.js";
import { overlap, requiredSpans, wordSpans } from "./words.js";

const MAX_COMPARED = 20; // sentences of a text
const LETTER = /[\p{L}\p{N}]/u;

export class GlossaryEffects {
  /** Translations without the glossary are remembered by the translator, which often knows them already. */
  constructor(api, translator) {
    Object.assign(this, { api, translator, effects: new WeakMap() }); // translation -> its effect
  }

  /** Compares the sentences in which the glossary has put phrases with their translations without it. */
  async compare({ glossary, ...free }, slots, signal) {
    if (!glossary) return;
    const forced = slots.filter(({ result }) => !result?.chosen && result?.glossary?.some(({ met }) => met)).slice(0, MAX_COMPARED);
    const text = [...new Set(forced.map((slot) => slot.text))].filter((each) => !this.translator.result(free, each));
    if (text.length) {
      const { translations } = await this.api.post("translate", { ...free, text }, { signal, retryWhenBusy: true });
      translations.forEach((translation, at) => this.translator.remember(free, text[at], translation));
    }
    for (const { text, result } of forced) {
      const other = this.translator.result(free, text), kind = other.error === undefined && effectOf(result, other, free.target);
      if (kind) this.effects.set(result, { kind, other });
    }
  }

  /**
   * Returns what the glossary has done to a sentence: `kind` and the `other` translation, without it; or null if it has
   * only replaced words by its own.
   */
  effect({ result }) {
    return this.effects.get(result) ?? null;
  }
}

/**
 * Returns "added" if not every new glossary phrase replaces a word, "changed" if other words or signs differ, too, and otherwise
 * null.
 */
export function effectOf(translation, other, language) {
  const spans = (text) => wordSpans(text, language).filter((span) => LETTER.test(text.slice(...span)));
  const words = (text) => spans(text).map((span) => text.slice(...span).toLowerCase());
  const required = requiredSpans(translation);
  const ours = spans(translation.text), isRequired = ours.map((span) => required.some((each) => overlap(each, span)));
  const [isOurs, isTheirs] = differences(words(translation.text), words(other.text)), numGone = isTheirs.filter(Boolean).length;
  const isNew = (phrase) => ours.every((span, at) => isOurs[at] || !overlap(phrase, span));
  if (numGone < required.filter(isNew).length) return "added";
  const hasOther = isOurs.some((isOther, at) => isOther && !isRequired[at]) || signs(translation.text) !== signs(other.text);
  return hasOther || numGone > isRequired.filter(Boolean).length ? "changed" : null;
}

/** Returns what is no letter, digit or space. */
const signs = (text) => text.replace(/[\p{L}\p{M}\p{N}\s]/gu, "");
