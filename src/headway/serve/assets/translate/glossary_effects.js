// The changes that a glossary causes besides its own words: a model that must use a phrase may also change other words.

import { differences } from "../why/differences.js";
import { overlap, requiredSpans, wordSpans } from "./words.js";

const MAX_COMPARED = 20; // maximum number of sentences to compare per text
const LETTER = /[\p{L}\p{N}]/u;

export class GlossaryEffects {
  /** The translator caches translations without the glossary, and often has them already. */
  constructor(api, translator) {
    Object.assign(this, { api, translator, effects: new WeakMap() }); // translation -> its effect
  }

  /** Compares the sentences that contain glossary phrases with their translations without the glossary. */
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
      while (other.chosen) other = other.before; // the model's own translation
      const kind = other.error === undefined && effectOf(result, other, free.target);
      if (kind) this.effects.set(result, { kind, other });
    }
  }

  /**
   * Returns the effect of the glossary on a sentence: its `kind` and the `other` translation, without the glossary.
   * Returns null if the glossary has only replaced words with its own.
   */
  effect({ result }) {
    return this.effects.get(result) ?? null;
  }
}

/**
 * Returns "added" if not every new glossary phrase replaces a word, "changed" if other words or symbols also differ, and
 * otherwise null.
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

/** Returns the ranges of words that differ, as [start, end). */
function stretches(spans, isDifferent) {
  const found = [];
  spans.forEach(([start, end], at) => {
    if (isDifferent[at]) found.push(isDifferent[at - 1] ? [found.pop()[0], end] : [start, end]);
  });
  return found;
}

/** Returns the characters outside the given spans that are neither letters, digits nor spaces. */
function signs(text, spans) {
  const outside = Array.from({ length: text.length }, (_, at) => (spans.some(([start, end]) => start <= at && at < end) ? "" : text[at]));
  return outside.join("").replace(/[\p{L}\p{M}\p{N}\s]/gu, "");
}
