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
      let other = this.translator.result(free, text);
      while (other.chosen) other = other.before; // as the model has written it
      const kind = other.error === undefined && effectOf(result, other, free.target);
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
  const ours = spans(translation.text), theirs = spans(other.text);
  const isRequired = ours.map((span) => required.some((each) => overlap(each, span)));
  const [isOurs, isTheirs] = differences(words(translation.text), words(other.text));
  const isJoined = (at) => at > 0 && /^\S+$/.test(other.text.slice(theirs[at - 1][1], theirs[at][0])); // by a hyphen
  const numGone = isTheirs.filter((isGone, at) => isGone && !(isTheirs[at - 1] && isJoined(at))).length;
  const isNew = (phrase) => {
    const flags = isOurs.filter((_, at) => overlap(phrase, ours[at]));
    return flags.length > 0 && flags.every(Boolean);
  };
  if (numGone < required.filter(isNew).length) return "added";
  const ourSigns = signs(translation.text, [...required, ...stretches(ours, isOurs)]);
  const alreadyThere = requiredSpans({ text: other.text, glossary: translation.glossary });
  const theirSigns = signs(other.text, [...alreadyThere, ...stretches(theirs, isTheirs)]);
  const hasOther = ourSigns !== theirSigns || isOurs.some((isOther, at) => isOther && !isRequired[at]);
  return hasOther || numGone > isRequired.filter(Boolean).length ? "changed" : null;
}

/** Returns the stretches of words that differ, as [start, end). */
function stretches(spans, isDifferent) {
  const found = [];
  spans.forEach(([start, end], at) => {
    if (isDifferent[at]) found.push(isDifferent[at - 1] ? [found.pop()[0], end] : [start, end]);
  });
  return found;
}

/** Returns what is no letter, digit or space in a text outside of some spans. */
function signs(text, spans) {
  const outside = Array.from({ length: text.length }, (_, at) => (spans.some(([start, end]) => start <= at && at < end) ? "" : text[at]));
  return outside.join("").replace(/[\p{L}\p{M}\p{N}\s]/gu, "");
}
