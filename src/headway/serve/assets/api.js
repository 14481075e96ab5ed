// A client for the native API, /api/v1. Aborting a signal also ends the work on the server.

export const MAX_PATIENCE_S = 60; // maximum Retry-After of a busy service; a longer one is treated as an error
const MAX_RETRIES = 3; // maximum number of retries if the service is unavailable

/** An error reply. `status` is the HTTP status. `retryAfter` is in seconds, or null. */
export class ApiError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    Object.assign(this, { name: "ApiError", status, retryAfter });
  }
}

/** The service does not answer at all. */
export class UnreachableError extends Error {
  constructor() {
    super("the service does not answer");
    this.name = "UnreachableError";
  }
}

/** Returns whether a text can be a key, which must not contain characters that a header cannot contain. */
export const isKey = (text) => Boolean(text) && !/[^!-~]/.test(text);

/** Returns the error for a reply that does not come from the service, such as the login page of a proxy. */
const foreignReply = () => new ApiError(502, "the reply does not come from the service");

export const isAbort = (error) => error?.name === "AbortError";

/** Waits for an event of the document, unless the signal is aborted. */
export const nextEvent = (type, signal) =>
  new Promise((resolve, reject) => {
    document.addEventListener(type, resolve, { once: true, signal });
    signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
  });

/** Waits, unless the signal is aborted. */
export const pause = (milliseconds, signal) =>
  new Promise((resolve, reject) => {
    const fail = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", fail);
      resolve();
    }, milliseconds);
    if (signal?.aborted) fail();
    else signal?.addEventListener("abort", fail, { once: true });
  });

export class Api {
  /**
   * @param {object} hooks
   * @param {() => string | null} hooks.key Returns the key stored in the browser.
   * @param {() => Promise<void>} hooks.askForKey Asks the user for a key, and resolves when there is a new key.
   * @param {() => void} hooks.onUnreachable Called when the service does not answer.
   */
  constructor(hooks) {
    this.hooks = hooks;
    this.root = new URL("../", import.meta.url).href; // URL of the service, which may include a path prefix of a proxy
  }

  get(path, { signal } = {}) {
    return this.#json("GET", path, undefined, signal);
  }

  /** Sends JSON or a form, and returns the JSON of the reply. With `retryWhenBusy`, retries while the service is busy. */
  post(path, body, { signal, retryWhenBusy = false } = {}) {
    return this.#json("POST", path, body, signal, retryWhenBusy);
  }

  /** Returns a file as a Blob. */
  async file(path, { signal } = {}) {
    return this.#answered((await this.#send("GET", path, undefined, signal)).blob(), signal);
  }

  delete(path, { signal } = {}) {
    return this.#json("DELETE", path, undefined, signal);
  }

  /** Yields the values of a reply that consists of server-sent events. An event with `error` is thrown. */
  async *stream(path, body, { signal, retryWhenBusy = false } = {}) {
    const reply = await this.#send("POST", path, { ...body, stream: true }, signal, retryWhenBusy);
    if (!reply.headers.get("Content-Type")?.startsWith("text/event-stream")) throw foreignReply();
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    try {
      for (;;) {
        const { value, done } = await this.#answered(reader.read(), signal);
        if (done) return;
        const events = (text + value).split("\n\n");
        text = events.pop();
        for (const event of events) {
          const found = JSON.parse(event.replace(/^data: /, ""));
          if (found.error) throw new ApiError(found.error.status, found.error.message);
          yield found;
        }
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  async #json(method, path, body, signal, retryWhenBusy) {
    const reply = await this.#send(method, path, body, signal, retryWhenBusy);
    return reply.status === 204 ? null : this.#answered(reply.json(), signal);
  }

  async #send(method, path, body, signal, retryWhenBusy = false) {
    for (let retries = 0; ; ) {
      const key = this.hooks.key();
      const isForm = body === undefined || body instanceof FormData;
      const headers = isForm ? {} : { "Content-Type": "application/json" };
      if (isKey(key)) headers.Authorization = `Bearer ${key}`;
      const request = fetch(`${this.root}api/v1/${path}`, {
        method, headers, signal, body: isForm ? body : JSON.stringify(body),
      });
      const reply = await this.#answered(request, signal);
      if (reply.ok) return reply;
      const message = await reply.json().then((found) => found.error.message, () => reply.statusText);
      const retryAfter = Number(reply.headers.get("Retry-After")) || null;
      if (reply.status === 403) await this.#newKey(key);
      else if (retryWhenBusy && retryAfter && retryAfter <= MAX_PATIENCE_S && (reply.status === 429 || retries < MAX_RETRIES)) {
        if (reply.status !== 429) retries += 1;
        await pause(1000 * retryAfter, signal);
      } else throw new ApiError(reply.status, message, retryAfter);
    }
  }

  /** Asks for a key once, no matter how many requests need it. */
  async #newKey(refused) {
    if (this.hooks.key() !== refused) return; // another request has already asked for a new key
    this.asking ??= this.hooks.askForKey().finally(() => (this.asking = null));
    await this.asking;
  }

  /** Distinguishes an aborted request and a reply that is not JSON from a service that is unreachable. */
  async #answered(promise, signal) {
    try {
      return await promise;
    } catch (error) {
      if (isAbort(error) || signal?.aborted) throw error;
      if (error instanceof SyntaxError) throw foreignReply();
      this.hooks.onUnreachable();
      throw new UnreachableError();
    }
  }

  /** Returns whether the service is ready. */
  async answers() {
    try {
      return (await fetch(`${this.root}ready`)).ok;
    } catch {
      return false;
    }
  }
}
