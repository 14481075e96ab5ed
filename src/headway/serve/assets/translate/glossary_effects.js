// What a glossary changes beyond its own words: a model that must use a phrase may also write the rest differently.

import { differences } from "../why/differences.js";
import { wordSpans } from "./words.js";

const MAX_COMPARED = 20; // sentences of a text

export class GlossaryEffects {
  /** Translations without the glossary are remembered by the translator, which often knows them already. */
  constructor(api, translator) {
    Object.assign(this, { api, translator, others: new WeakMap() }); // translation -> the one without the glossary
  }

  /** Compares the sentences in which the glossary has put phrases with their translations without it. */
  async compare({ glossary, ...free }, slots, signal) {
    if (!glossary) return;
    const forced = slots.filter(({ result }) => result?.glossary?.some(({ met }) => met)).slice(0, MAX_COMPARED);
    const text = [...new Set(forced.map((slot) => slot.text))].filter((each) => !this.translator.result(free, each));
    if (text.length) {
      const { translations } = await this.api.post("translate", { ...free, text }, { signal, retryWhenBusy: true });
      translations.forEach((translation, at) => this.translator.remember(free, text[at], translation));
    }
    for (const { text, result } of forced) {
      const other = this.translator.result(free, text);
      if (other.error === undefined && isMoreChanged(result, other, free.target)) this.others.set(result, other);
    }
  }

  /** Returns the translation without the glossary of a sentence in which other words differ as well, or null. */
  translationWithout({ result }) {
    return this.others.get(result) ?? null;
  }
}

/** Returns whether a translation differs from another one in more words than those of its glossary entries. */
function isMoreChanged(translation, other, language) {
  const words = (text) => wordSpans(text, language).map((span) => text.slice(...span).toLowerCase());
  const ours = words(translation.text), theirs = words(other.text), [isOurs, isTheirs] = differences(ours, theirs);
  const phrases = translation.glossary.filter(({ met }) => met).flatMap(({ targets }) => targets.flatMap(words));
  return ours.some((word, at) => isOurs[at] && !phrases.includes(word)) || isTheirs.filter(Boolean).length > phrases.length;
}
