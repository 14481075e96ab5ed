// Splits a text into lines and sentences, and translates the sentences that are not known yet.
//
// A text is translated in pieces, so that the first sentences of a long one appear at once, and a change of one sentence
// sends only this sentence. Sentences that are already translated are remembered until the page is closed.

import { isAbort } from "../api.js";

const FIRST_BATCH = 4; // sentences
const BATCH = 16;
const LANES = 2; // requests at a time
const MAX_LINE = 4000; // characters; longer lines are cut, because browsers are slow with them
const MAX_SPLIT = 50000; // characters of a request
const MAX_SPLIT_LINES = 500;
const MAX_REMEMBERED = 20000; // sentences

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
    if (this.results.size > MAX_REMEMBERED) this.results.clear();
    this.results.set(resultKey(request, sentence), result);
  }

  forget(request, sentence) {
    this.results.delete(resultKey(request, sentence));
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
    await this.#split(lines, request.source, signal, changed);
    const all = lines.flatMap((line) => this.sentences(line, request.source)).map((each) => each.trim());
    const missing = [...new Set(all)].filter((each) => each && !this.results.has(resultKey(request, each)));
    let size = FIRST_BATCH;
    const lane = async () => {
      while (missing.length) {
        const batch = missing.splice(0, size);
        size = BATCH;
        await this.#batch(batch, request, signal, changed);
      }
    };
    const lanes = Array.from({ length: LANES }, lane);
    try {
      await Promise.all(lanes);
    } catch (error) {
      if (!isAbort(error)) this.stop();
      throw error;
    }
  }

  async #split(lines, language, signal, changed) {
    let unknown = [...new Set(lines)].filter((line) => !this.sentences(line, language));
    while (unknown.length) {
      let count = 0, characters = 0;
      for (const line of unknown.slice(0, MAX_SPLIT_LINES)) {
        characters += line.length;
        if (count && characters > MAX_SPLIT) break;
        count += 1;
      }
      const text = unknown.slice(0, count);
      unknown = unknown.slice(count);
      const { sentences } = await this.api.post("sentences", { text, language }, { signal, patient: true });
      if (this.splits.size > MAX_REMEMBERED) this.splits.clear();
      text.forEach((line, at) => this.splits.set(`${language}\n${line}`, sentences[at]));
      changed();
    }
  }

  async #batch(batch, request, signal, changed) {
    const left = new Set(batch.keys());
    for await (const { index, translation } of this.api.stream(
      "translate", { ...request, text: batch }, { signal, patient: true })) {
      this.remember(request, batch[index], translation);
      left.delete(index);
      changed();
    }
  }
}

const requestKeys = new WeakMap();

function resultKey(request, sentence) {
  if (!requestKeys.has(request)) requestKeys.set(request, JSON.stringify(request));
  return `${requestKeys.get(request)}\n${sentence}`;
}
