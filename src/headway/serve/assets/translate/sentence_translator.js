// Splits a text into lines and sentences, and translates the sentences that have not been translated yet.
//
// Sentences are translated separately, so that the first sentences of a long text appear immediately, and after a change
// only the changed sentence is sent. Translations are cached until the page is closed.

const FIRST_BATCH = 1; // number of sentences; each batch is larger than the previous one, up to BATCH
const GROWTH = 4;
const BATCH = 16;
const MAX_CONCURRENT_REQUESTS = 2;
const MAX_LINE = 4000; // number of characters above which lines are split, because browsers are slow with long lines
const FIRST_SPLIT = { lines: 20, characters: 4000 }; // limits of the first request that splits lines into sentences
const SPLIT = { lines: 500, characters: 50000 };
const MAX_REMEMBERED = 20000; // maximum number of cached sentences, and of cached lines

const UP_TO_LAST_LETTER = /^.*[\p{L}\p{N}]/su;
const MAY_END_SENTENCE = /[^\p{L}\p{N}\p{M}\s,'’"“”„()\-–%]/u;

/** Returns whether a sentence can end before the end of the line. Takes linear time, even for lines without letters. */
const mayHaveSentences = (line) => MAY_END_SENTENCE.test(line.match(UP_TO_LAST_LETTER)?.[0] ?? "");

/** Returns the lines of a text, whose concatenation is the text. */
export function splitLines(text) {
  const ended = text.split("\n").map((line) => line + "\n");
  ended.push(ended.pop().slice(0, -1)); // the last line has no end
  if (!ended.at(-1)) ended.pop();
  return ended.flatMap((line) => {
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

/** Returns as many lines from a position on as fit into the limits, but at least one. */
function firstLines(lines, from, { lines: most, characters: room }) {
  let to = from;
  for (let left = room; to < lines.length && to - from < most; to++) {
    left -= lines[to].length;
    if (left < 0 && to > from) break;
  }
  return lines.slice(from, to);
}

/** Adds an entry to a map of maps. */
function remember(memory, group, key, value) {
  if (!memory.has(group)) memory.set(group, new Map());
  memory.get(group).set(key, value);
}

export class SentenceTranslator {
  /** @param api The client of the API. */
  constructor(api) {
    Object.assign(this, { api, requests: new Set() });
    this.splits = new Map(); // language -> line -> sentences
    this.results = new Map(); // settings -> sentence -> translation, or { error }
  }

  /** Returns the known sentences of a line, or null. */
  sentences(line, language) {
    const known = this.splits.get(language)?.get(line);
    if (known) return known;
    if (mayHaveSentences(line)) return null;
    remember(this.splits, language, line, [line]);
    return [line];
  }

  result(request, sentence) {
    return this.results.get(keyOf(request))?.get(sentence);
  }

  remember(request, sentence, result) {
    remember(this.results, keyOf(request), sentence, result);
  }

  /** Aborts all requests. Translations stay in the cache. */
  close() {
    this.#end(new DOMException("nobody needs the text any more", "AbortError"));
    this.#keep(() => false);
  }

  /**
   * Translates the sentences that have no translation yet. Requests for an earlier text continue if their results are
   * needed for this text, and are aborted otherwise.
   *
   * @param lines The lines of the text.
   * @param request The fields of /api/v1/translate, except `text`.
   * @param changed Called whenever there are new sentences or translations.
   * Throws the first error, or an AbortError if there is a newer text.
   */
  async translate(lines, request, changed) {
    this.#end(new DOMException("there is a newer text", "AbortError"));
    for (const memory of [this.splits, this.results]) {
      if ([...memory.values()].reduce((sum, { size }) => sum + size, 0) > MAX_REMEMBERED) memory.clear();
    }
    const text = { request, changed, key: keyOf(request), wanted: new Set(), missing: [], isSplit: false, size: FIRST_BATCH };
    const done = new Promise((resolve, reject) => Object.assign(text, { resolve, reject }));
    this.text = text;
    this.#split(text, lines).catch((error) => this.#fail(error));
    return done;
  }

  /** Rejects the promise of the current text, if it is not complete. Its requests continue. */
  #end(error) {
    this.text?.reject(error);
    this.text = null;
  }

  #fail(error) {
    this.#end(error);
    this.#keep(() => false);
  }

  /** Splits a text into sentences, and translates those that have no translation yet. */
  async #split(text, lines) {
    const { source } = text.request, wantedLines = new Set(lines);
    this.#keep((running) => running.key === text.key && (!running.lines || running.lines.some((line) => wantedLines.has(line))));
    for (let at = 0, most = FIRST_SPLIT; at < lines.length; most = SPLIT) {
      const some = firstLines(lines, at, most);
      at += some.length;
      await this.#ask(text, some);
      if (text !== this.text) return; // there is a newer text
      for (const line of some) {
        for (const each of this.sentences(line, source)) {
          const sentence = each.trim();
          if (sentence && !text.wanted.has(sentence) && !this.result(text.request, sentence)) text.missing.push(sentence);
          text.wanted.add(sentence);
        }
      }
      this.#start();
      const running = [...this.requests].map(({ done }) => done);
      if (most === FIRST_SPLIT && at < lines.length && running.length) {
        await Promise.race(running); // wait for the first sentence before sending a large request
        if (text !== this.text) return;
      }
    }
    text.isSplit = true;
    this.#keep(({ sentences }) => !sentences || sentences.some((sentence) => text.wanted.has(sentence)));
    this.#start();
  }

  /** Requests the sentences of lines whose sentences are unknown and have not been requested yet. */
  async #ask({ request, changed, key }, lines) {
    const { source: language } = request;
    const asked = [...this.requests].filter((running) => running.lines);
    const unknown = [...new Set(lines)].filter((line) => !this.sentences(line, language));
    const text = unknown.filter((line) => !asked.some((running) => running.lines.includes(line)));
    if (text.length) {
      asked.push(this.#run({ key, lines: text }, async (signal) => {
        const { sentences } = await this.api.post("sentences", { text, language }, { signal, retryWhenBusy: true });
        text.forEach((line, at) => remember(this.splits, language, line, sentences[at]));
      }));
    }
    if (unknown.length) await Promise.all(asked.map((running) => running.done));
    changed();
  }

  /** Starts as many requests as may run at a time, and finishes the text if no work is left. */
  #start() {
    const { text } = this;
    if (!text) return;
    const running = [...this.requests].filter(({ sentences }) => sentences);
    const asked = new Set(running.flatMap(({ sentences }) => sentences));
    text.missing = text.missing.filter((sentence) => !asked.has(sentence) && !this.result(text.request, sentence));
    for (let free = MAX_CONCURRENT_REQUESTS - running.length; free > 0 && text.missing.length; free--) {
      const sentences = text.missing.splice(0, text.size);
      text.size = Math.min(BATCH, GROWTH * text.size);
      running.push(this.#run({ key: text.key, sentences }, (signal) => this.#translate(sentences, text.request, signal)));
    }
    if (text.isSplit && !running.length) text.resolve();
  }

  async #translate(sentences, request, signal) {
    for await (const { index, translation } of this.api.stream(
      "translate", { ...request, text: sentences }, { signal, retryWhenBusy: true })) {
      this.remember(request, sentences[index], translation);
      this.text?.changed();
    }
  }

  /** Runs a request. If it fails, the current text fails. */
  #run(about, work) {
    const running = { ...about, controller: new AbortController() };
    this.requests.add(running);
    running.done = work(running.controller.signal).catch((error) => {
      if (!running.controller.signal.aborted) this.#fail(error);
    }).finally(() => {
      this.requests.delete(running);
      if (running.sentences) this.#start();
    });
    return running;
  }

  /** Aborts all requests for which `isUseful` is false. */
  #keep(isUseful) {
    for (const running of this.requests) {
      if (isUseful(running)) continue;
      this.requests.delete(running);
      running.controller.abort();
    }
  }
}

const keys = new WeakMap();

/** The settings of a request as a string. */
function keyOf(request) {
  if (!keys.has(request)) keys.set(request, JSON.stringify(request));
  return keys.get(request);
}
