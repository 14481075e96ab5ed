// Splits a text into lines and sentences, and translates the sentences that are not known yet.
//
// A text is translated in pieces, so that the first sentences of a long one appear at once, and a change of one sentence
// sends only this sentence. Sentences that are already translated are remembered until the page is closed.

const FIRST_BATCH = 1; // sentences; each batch is larger than the one before, up to BATCH
const GROWTH = 4;
const BATCH = 16;
const MAX_CONCURRENT_REQUESTS = 2; // requests at a time
const MAX_LINE = 4000; // characters; longer lines are cut, because browsers are slow with them
const FIRST_SPLIT = { lines: 20, characters: 4000 }; // of the first request that splits lines
const SPLIT = { lines: 500, characters: 50000 };
const MAX_REMEMBERED = 20000; // sentences, and lines

const UP_TO_LAST_LETTER = /^.*[\p{L}\p{N}]/su;
const MAY_END_SENTENCE = /[^\p{L}\p{N}\p{M}\s,'’"“”„()\-–%]/u;

/** Returns whether a sentence can end before the end of the line. Takes linear time, also for lines without letters. */
const mayHaveSentences = (line) => MAY_END_SENTENCE.test(line.match(UP_TO_LAST_LETTER)?.[0] ?? "");

/** Returns the lines of a text; they concatenate to the text. */
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

/** Returns the lines from a place on, as many as fit into the limits, but at least one. */
function firstLines(lines, from, { lines: most, characters: room }) {
  let to = from;
  for (let left = room; to < lines.length && to - from < most; to++) {
    left -= lines[to].length;
    if (left < 0 && to > from) break;
  }
  return lines.slice(from, to);
}

/** Adds to a map of maps. */
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

  /** Ends all requests. What is translated stays known. */
  close() {
    this.#end(new DOMException("nobody needs the text any more", "AbortError"));
    this.#keep(() => false);
  }

  /**
   * Translates the sentences that have no translation yet. Requests for an earlier text continue if this one needs
   * their results, and are aborted otherwise.
   *
   * @param lines The lines of the text.
   * @param request The fields of /api/v1/translate but `text`.
   * @param changed Is called whenever there are new sentences or translations.
   * Throws the first error, and an AbortError if there is a newer text.
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

  /** Finds the sentences of a text, and has those translated that are not known. */
  async #split(text, lines) {
    const { source } = text.request, wantedLines = new Set(lines);
    this.#keep((running) => running.key === text.key && (!running.lines || running.lines.some((line) => wantedLines.has(line))));
    for (let at = 0, most = FIRST_SPLIT; at < lines.length; most = SPLIT) {
      const some = firstLines(lines, at, most);
      at += some.length;
      await this.#ask(text, some);
      if (text !== this.text) return; // it has ended
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
        await Promise.race(running); // the first sentence, before a large request keeps the service busy
        if (text !== this.text) return;
      }
    }
    text.isSplit = true;
    this.#keep(({ sentences }) => !sentences || sentences.some((sentence) => text.wanted.has(sentence)));
    this.#start();
  }

  /** Asks for the sentences of the lines whose sentences are not known, unless they are asked for already. */
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

  /** Starts as many requests as may run at a time, and finishes the text if nothing is left. */
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

  /** Runs a request, whose error ends the present text. */
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

  /** Ends all requests but those for which `isUseful` is true. */
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
