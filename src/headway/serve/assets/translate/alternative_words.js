// The words that a model could have generated at a position of a translation.

import { tokenSpans, wordsOf } from "./words.js";

const MIN_PROBABILITY = 0.001; // minimum probability of a first token, except for the first few
const FEW = 3;
const SPECIAL = /^<\w+>$/; // the end-of-text token, or one byte of a character

/**
 * Finds alternative words. The model predicts tokens; the continuation of each token shows the word that it begins.
 *
 * @param api The client for the API.
 * @param {object} sentence The text, source, target and model of the sentence.
 * @param {object} request The fields of /api/v1/translate for the continuations.
 * @param {object} translation The text and tokens of the translation.
 * @param {[number, number]} span The span of the current word in the translation.
 * @param {number} count The number of tokens to request.
 * @param {AbortSignal} signal Aborts the requests.
 * @param {(entries: object[]) => void} changed Called with the entries, first with their tokens and probabilities, then
 *   whenever an entry is complete. A complete entry has `word`, the `translation` that contains it, and its `span` there.
 *   `replaced` is the text that it replaces if it begins before the current word ("25 km" for "255"), otherwise null.
 *   An entry without a word is removed.
 *
 * Returns the entries.
 */
export async function findAlternativeWords(api, sentence, request, { translation, span: [start, end], count, signal, changed = () => {} }) {
  const { text, tokens } = translation, prefix = text.slice(0, start).trimEnd();
  const { alternatives } = await api.post("alternatives", { ...sentence, prefix, count }, { signal });
  const ownToken = firstToken(translation, start);
  let entries = alternatives
    .filter(({ token }) => !SPECIAL.test(token) && token.trim() !== ownToken)
    .map(({ token, log_probability }) => ({ token, probability: Math.exp(log_probability) }))
    .filter(({ probability }, at) => at < FEW || probability >= MIN_PROBABILITY);
  changed(entries);
  const joined = tokens.join("").trim() === text.trim() ? "" : " "; // tokens of whole words contain no spaces
  await Promise.all(entries.map(async (entry) => {
    // The model puts a token that is a space before its first choice.
    const begun = entry.token.trim() ? prefix + joined + entry.token : prefix;
    const asked = { ...request, prefix: begun };
    const { translations: [found] } = await api.post("translate", asked, { signal, retryWhenBusy: true });
    const word = found.error === undefined &&
      wordsOf(found, request.text, request.target, request.source).find(({ end }) => end > prefix.length);
    if (word) {
      const span = [word.start, word.end], probability = word.probability ?? entry.probability;
      const replaced = text.slice(span[0], start).trim() ? text.slice(span[0], end) : null;
      Object.assign(entry, { translation: found, span, word: found.text.slice(...span), probability, replaced });
    } else entries = entries.filter((each) => each !== entry);
    if (!signal.aborted) changed(entries);
  }));
  return entries;
}

/** Returns the entries sorted by probability, with a `name`. Entries with the same word are merged. */
export function mergedByWord(entries) {
  const byWord = new Map();
  for (const entry of entries) {
    const name = entry.word ?? `${entry.token.trim()}…`; // the word is not known yet
    const known = byWord.get(name);
    const better = !known || (!known.isCurrent && entry.translation?.log_probability > known.translation?.log_probability);
    byWord.set(name, { ...(better ? entry : known), name, probability: Math.max(entry.probability, known?.probability ?? 0) });
  }
  return [...byWord.values()].sort((one, other) => other.probability - one.probability);
}

/** Returns the first token, without white space, of the word at a position of a translation, or null. */
export function firstToken({ text, tokens }, position) {
  const at = tokenSpans(tokens, text).findIndex((span) => span && span[1] > position);
  return at < 0 ? null : tokens[at].trim();
}
