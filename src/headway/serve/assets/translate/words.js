// The words of a translation: their spans, their probabilities, and the source words that they come from.

const UNSPACED = ["ja", "km", "lo", "my", "th", "zh"]; // languages that have no spaces between sentences

/** Converts a model's language code to the format of browsers, or "" if that is impossible: deu_Latn becomes de-Latn. */
export function browserCode(code) {
  try {
    return Intl.getCanonicalLocales(code.replaceAll("_", "-"))[0];
  } catch {
    return "";
  }
}

/** Returns the separator between two sentences in a language. */
export const sentenceGap = (language) => (UNSPACED.includes(browserCode(language).split("-")[0]) ? "" : " ");

const segmenters = new Map();

/** Returns the spans [start, end) of the words and punctuation marks in a text. */
export function wordSpans(text, language) {
  if (!segmenters.has(language)) {
    segmenters.set(language, new Intl.Segmenter(browserCode(language) || undefined, { granularity: "word" }));
  }
  const spans = [];
  for (const { segment, index } of segmenters.get(language).segment(text)) {
    if (segment.trim()) spans.push([index, index + segment.length]);
  }
  return spans;
}

/**
 * Returns the span [start, end) of each token in a text, or null if the token is not found. Tokens and text may differ in
 * white space, and where the service has inserted placeholders.
 */
export function tokenSpans(tokens, text) {
  const MAX_GAP = 60; // maximum number of characters between two tokens
  let from = 0;
  return tokens.map((token) => {
    const core = token.trim();
    if (!core) return null;
    const at = text.indexOf(core, from);
    if (at < 0 || at - from > MAX_GAP) return null;
    from = at + core.length;
    return [at, from];
  });
}

export const overlap = ([start, end], [from, to]) => start < to && from < end;

// A letter of a script that has spaces between words.
const LETTER = "[[\\p{L}\\p{N}]--[\\p{sc=Han}\\p{sc=Hira}\\p{sc=Kana}\\p{sc=Thai}\\p{sc=Laoo}\\p{sc=Khmr}\\p{sc=Mymr}]]";

/**
 * Returns the span [start, end) of the first match of a phrase as whole words, or null. A leading or trailing asterisk
 * matches any letters.
 */
export function findPhrase(text, phrase, from = 0) {
  const core = phrase.replace(/^\*|\*$/g, "").replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  const begin = phrase.startsWith("*") ? `${LETTER}*` : `(?<!${LETTER})`, end = phrase.endsWith("*") ? `${LETTER}*` : `(?!${LETTER})`;
  const pattern = new RegExp(begin + core + end, "ivg");
  pattern.lastIndex = from;
  const found = pattern.exec(text);
  return found && [found.index, found.index + found[0].length];
}

/** Returns the spans [start, end) of the glossary phrases in a translation. */
export function requiredSpans({ text, glossary = [] }) {
  const phrases = glossary?.flatMap(({ met, targets }) => (met ? targets : [])) ?? [];
  return phrases.map((phrase) => findPhrase(text, phrase)).filter(Boolean);
}

// Numbers, addresses, placeholders and other marks that the service copies from the source.
const KEPT = /[\w.+:\/{$%@`-]*[{}$%@`\/][\w.+:\/{}$%@`?=&#~-]*|\p{Nd}+(?:[.,:'’]\p{Nd}+)*/gu;

/** Returns the part of a mark that must be the same in source and translation: a number's digits, or the whole mark. */
const kept = (part) => (/\p{L}/u.test(part) ? "" : part.replace(/\P{Nd}/gu, "")) || part.replace(/[.:?]+$/, "");

/** Returns the spans of a translation that were copied from its source. */
function keptSpans(text, source) {
  const parts = new Set([...source.matchAll(KEPT)].map(([part]) => kept(part)));
  return [...text.matchAll(KEPT)].filter(([part]) => parts.has(kept(part))).map(({ 0: part, index }) => [index, index + part.length]);
}

/**
 * Returns the words of a translation that the API has returned.
 *
 * Each word has `start`, `end`, the `probability` of its tokens given the preceding tokens (null if unknown), `source` (the
 * spans of the source words that its tokens are aligned to), `isRequired` (whether the glossary requires it), and `isKept`
 * (whether it is a number or another part of the source that is never translated, and was copied from the source).
 */
export function wordsOf(translation, source, targetLanguage, sourceLanguage) {
  const { text, tokens, alignment } = translation;
  const inTarget = tokenSpans(tokens, text);
  const inSource = alignment ? tokenSpans(alignment.source_tokens, source) : [];
  const sourceWords = alignment ? wordSpans(source, sourceLanguage) : [];
  const logProbabilities = translation.token_log_probabilities;
  // If a text has several parts, the probabilities also include the end of each part, and do not match the tokens.
  const hasProbabilities = logProbabilities.length === tokens.length + 1;
  const aligned = new Map(), required = requiredSpans(translation), unchanged = keptSpans(text, source);
  for (const [from, to] of alignment?.pairs ?? []) {
    if (inSource[from]) aligned.set(to, inSource[from]);
  }
  let first = 0; // the first token that may belong to the next word
  return wordSpans(text, targetLanguage).map((span) => {
    while (first < tokens.length && (!inTarget[first] || inTarget[first][1] <= span[0])) first += 1;
    let sum = null;
    const source = new Set();
    for (let at = first; at < tokens.length && (!inTarget[at] || inTarget[at][0] < span[1]); at++) {
      if (!inTarget[at] || !overlap(inTarget[at], span)) continue;
      if (hasProbabilities) sum = (sum ?? 0) + logProbabilities[at];
      const from = aligned.get(at);
      if (from) sourceWords.filter((word) => overlap(word, from)).forEach((word) => source.add(word));
    }
    const probability = sum === null ? null : Math.exp(sum);
    return {
      start: span[0], end: span[1], probability, source: [...source].sort((one, other) => one[0] - other[0]),
      isRequired: required.some((each) => overlap(each, span)), isKept: unchanged.some((each) => overlap(each, span)),
    };
  });
}
