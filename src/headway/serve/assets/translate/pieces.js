// Splits a text into lines and sentences, and translates the sentences that are not known yet.
//
// A text is translated in pieces, so that the first sentences of a long one appear at once, and a change of one sentence
// sends only this sentence. Sentences that are already translated are remembered until the page is closed.

import { isAbort } from "../api.js";

const FIRST_BATCH = 4; // sentences
const BATCH = 16;
const LANES = 2; // requests at a time
const MAX_LINE = 4000; // characters; longer lines are cut, because browsers are slow with them
const FIRST_SPLIT = { lines: 20, characters: 4000 }; // of the first request that splits lines
const SPLIT = { lines: 500, characters: 50000 };
const MAX_REMEMBERED = 20000; // sentences, and lines

// A line in which a sentence can end before the end of the line.
const MAY_HAVE_SENTENCES = /[^\p{L}\p{N}\p{M}\s,'’"“”„()\-–%].*[\p{L}\p{N}]/u;

/** Returns the lines of a text; they concatenate to the text. */
export function splitLines(text) {
  return text.split(/(?<=\n)/).flatMap((line) => {
    const parts = [];
    while (line.length > MAX_LINE) {
      const head = line.slice(0, MAX_LINE);
      const ends = [...head.matchAll(/[.!?…。！？؟।]\s*/g)];
      const end = ends.length ? ends.at(-1).index + ends.at(-1)[0].length : head.lastIndexOf(" ") + 1 || MAX_LINE;
      parts.push(line.slice(0, end));
      line = line.slice(end);
    }
    return [...parts, line];
  });
}

/** Returns the lines from a place on, as many as fit into the limits, but at least one. */
function firstLines(lines, from, { lines: most, characters: room }) {
  let to = from;
  for (let left = room; to < lines.length && to - from < most; to++) {
    left -= lines[to].length;
    if (left < 0 && to > from) break;
  }
  return lines.slice(from, to);
}

export class Pieces {
  /** @param api The client of the API. */
  constructor(api) {
    this.api = api;
    this.splits = new Map(); // language and line -> sentences
    this.results = new Map(); // settings and sentence -> translation, or { error }
    this.running = new AbortController();
  }

  /** Returns the known sentences of a line, or null. */
  sentences(line, language) {
    if (!MAY_HAVE_SENTENCES.test(line)) return [line];
    return this.splits.get(`${language}\n${line}`) ?? null;
  }

  result(request, sentence) {
    return this.results.get(resultKey(request, sentence));
  }

  remember(request, sentence, result) {
    this.results.set(resultKey(request, sentence), result);
  }

  /** Ends what is going on. */
  stop() {
    this.running.abort();
  }

  /**
   * Translates what is not known, and ends what was going on for an earlier text.
   *
   * @param lines The lines of the text.
   * @param request The fields of /api/v1/translate but `text`.
   * @param changed Is called whenever there are new sentences or translations.
   * Throws the first error, and an AbortError if there is a newer text.
   */
  async translate(lines, request, changed) {
    this.stop();
    const { signal } = (this.running = new AbortController());
    for (const memory of [this.splits, this.results]) {
      if (memory.size > MAX_REMEMBERED) memory.clear();
    }
    const missing = [], seen = new Set(), wake = [];
    let isSplit = false;
    const split = async () => {
      for (let at = 0, most = FIRST_SPLIT; at < lines.length; most = SPLIT) {
        const some = firstLines(lines, at, most);
        at += some.length;
        await this.#split(some, request.source, signal, changed);
        for (const line of some) {
          for (const sentence of this.sentences(line, request.source).map((each) => each.trim())) {
            if (sentence && !seen.has(sentence) && this.result(request, sentence) === undefined) missing.push(sentence);
            seen.add(sentence);
          }
        }
        wake.splice(0).forEach((resume) => resume());
      }
      isSplit = true;
      wake.splice(0).forEach((resume) => resume());
    };
    let size = FIRST_BATCH;
    const lane = async () => {
      while (missing.length || !isSplit) {
        const batch = missing.splice(0, size);
        if (!batch.length) {
          await new Promise((resume) => wake.push(resume));
          continue;
        }
        size = BATCH;
        await this.#batch(batch, request, signal, changed);
      }
    };
    try {
      await Promise.all([split(), ...Array.from({ length: LANES }, lane)]);
    } catch (error) {
      if (!isAbort(error)) this.stop();
      throw error;
    }
  }

  /** Asks for the sentences of the lines whose sentences are not known. */
  async #split(lines, language, signal, changed) {
    const text = [...new Set(lines)].filter((line) => !this.sentences(line, language));
    if (!text.length) return;
    const { sentences } = await this.api.post("sentences", { text, language }, { signal, patient: true });
    text.forEach((line, at) => this.splits.set(`${language}\n${line}`, sentences[at]));
    changed();
  }

  async #batch(batch, request, signal, changed) {
    for await (const { index, translation } of this.api.stream(
      "translate", { ...request, text: batch }, { signal, patient: true })) {
      this.remember(request, batch[index], translation);
      changed();
    }
  }
}

const requestKeys = new WeakMap();

function resultKey(request, sentence) {
  if (!requestKeys.has(request)) requestKeys.set(request, JSON.stringify(request));
  return `${requestKeys.get(request)}\n${sentence}`;
}
