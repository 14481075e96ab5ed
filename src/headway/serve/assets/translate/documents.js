// Documents: dropped or selected files are translated in the background, and their translations are saved as files.

import { UnreachableError, isAbort, nextEvent, pause } from "../api.js";
import { isolated, make } from "../dom.js";

const CHECK_MS = 500;
const RUNNING = ["waiting", "running"];

export class Documents {
  /**
   * @param context The context of the view.
   * @param {HTMLElement} dropZone The element on which files can be dropped.
   * @param {() => object} fields Returns the fields to send with a new document, such as its languages.
   * @param {object[]} entries The `state` of an earlier instance, to continue with its documents.
   */
  constructor(context, dropZone, fields, entries = []) {
    Object.assign(this, { context, fields, entries: new Set(), ending: new AbortController() });
    const { t } = context;
    this.chooser = make("input", { type: "file", multiple: true, class: "visually-hidden", tabindex: -1, "aria-hidden": "true" });
    const choose = make("button", { type: "button" }, t("documents.choose"));
    choose.addEventListener("click", () => this.chooser.click());
    this.chooser.addEventListener("change", () => {
      this.#add(this.chooser.files);
      this.chooser.value = "";
    });
    this.list = make("ul", { class: "documents" });
    this.element = make("section", { class: "card drop", "aria-label": t("documents.title") },
      make("div", { class: "row" }, choose, make("span", { class: "quiet" }, t("documents.about")), this.chooser), this.list);
    for (const type of ["dragenter", "dragover"]) {
      dropZone.addEventListener(type, (event) => {
        if (![...event.dataTransfer.types].includes("Files")) return;
        event.preventDefault();
        this.element.classList.add("over");
      });
    }
    for (const type of ["dragleave", "drop"]) {
      dropZone.addEventListener(type, (event) => {
        if (type === "dragleave" && dropZone.contains(event.relatedTarget)) return;
        this.element.classList.remove("over");
      });
    }
    dropZone.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.#add(event.dataTransfer.files);
    });
    for (const entry of entries) this.#translate(entry);
  }

  /** The state with which another instance can continue with the documents. */
  get state() {
    return [...this.entries];
  }

  /** Stops polling. The service continues to translate the documents, and deletes them after a while. */
  close() {
    this.ending.abort();
  }

  #add(files) {
    for (const file of files) this.#translate({ file, fields: this.fields(), path: null, error: null, isDone: false });
  }

  /** Returns a list of a document's warnings with the given `titles`, and with the texts that each warning affects. */
  #warningList(warnings, titles) {
    const { t } = this.context;
    return make("ul", { class: "warnings" }, ...warnings.map(({ num_texts: count, examples }, at) => {
      const quoted = examples.map((each) => t("quoted", { text: isolated(each) })), left = count - examples.length;
      const texts = [...quoted, ...(left ? [t("documents.left", { count: left })] : [])].map((each) => make("li", { dir: "auto" }, each));
      return make("li", {}, make("details", {}, make("summary", {}, titles[at]), make("ul", { class: "quiet" }, ...texts)));
    }));
  }

  /** Translates a document, or continues to do so. Its `path` in the API is null until it has been sent. */
  async #translate(entry) {
    const { file } = entry;
    const { api, t, describe, announce } = this.context;
    const name = make("b", { dir: "auto" }, file.name), said = make("span", { class: "quiet" }, t("documents.sending"));
    const progress = make("progress", { max: 1, value: 0, "aria-label": t("documents.progress", { name: isolated(file.name) }) });
    const remove = make("button", { type: "button" }, t("documents.cancel"));
    const item = make("li", {}, name, progress, said, remove);
    this.list.append(item);
    this.entries.add(entry);
    const canceling = new AbortController();
    const signal = AbortSignal.any([canceling.signal, this.ending.signal]);
    remove.addEventListener("click", () => {
      canceling.abort();
      item.remove();
      this.entries.delete(entry);
      if (entry.path) api.delete(entry.path).catch(() => {}); // the service deletes it after a while anyway
    });
    try {
      if (entry.error) throw entry.error;
      if (!entry.path) entry.path = await this.#send(entry, signal);
      const { path } = entry;
      let found = await this.#progress(path, signal);
      while (RUNNING.includes(found.status)) {
        if (found.num_texts) progress.value = found.num_done / found.num_texts;
        said.textContent = t("documents.running", { done: found.num_done, all: found.num_texts });
        await pause(CHECK_MS, signal);
        found = await this.#progress(path, signal);
      }
      if (found.status !== "done") throw Object.assign(new Error(found.error ?? found.status), { status: 400 });
      progress.remove();
      remove.textContent = t("documents.remove");
      const problems = found.warnings.map(({ kind, num_texts: count }) => t(`documents.${kind}`, { count, all: found.num_texts }));
      const result = found.num_texts ? [t("documents.done", { name: file.name }), ...problems] : [file.name, t("documents.empty")];
      if (!entry.isDone) announce(result.join(" "));
      entry.isDone = true;
      if (!found.num_texts) {
        said.textContent = t("documents.empty");
        return;
      }
      said.textContent = entry.fields.model === undefined ? "" : t("documents.by", { model: entry.fields.model });
      const save = make("button", { type: "button", class: "primary" }, t("documents.save"));
      const target = found.name.replace(/(?=\.[^.]*$)|$/, `.${entry.fields.target}`); // report.docx becomes report.de.docx
      save.addEventListener("click", () => this.#save(`${path}/result`, target).catch((error) => {
        said.textContent = describe(error);
      }));
      remove.before(save);
      if (found.warnings.length) item.append(this.#warningList(found.warnings, problems));
    } catch (error) {
      if (isAbort(error)) return;
      entry.error = error;
      progress.remove();
      said.className = "error";
      said.textContent = describe(error);
      remove.textContent = t("documents.remove");
      item.append(said); // below the name
    }
  }

  /** Sends a document, and returns its path in the API. Waits while the service is unreachable. */
  async #send({ file, fields }, signal) {
    const form = new FormData();
    form.append("file", file);
    for (const [field, value] of Object.entries(fields)) form.append(field, value);
    const { id } = await this.#retryWhenReachable(signal, () => this.context.api.post("documents", form, { signal }));
    return `documents/${id}`;
  }

  /** Returns the progress of a document. Waits while the service is unreachable. */
  #progress(path, signal) {
    return this.#retryWhenReachable(signal, () => this.context.api.get(path, { signal }));
  }

  /** Returns the result of `ask`, which is called again whenever the service has become reachable. */
  async #retryWhenReachable(signal, ask) {
    for (;;) {
      try {
        return await ask();
      } catch (error) {
        if (!(error instanceof UnreachableError)) throw error;
        await nextEvent("serviceback", signal);
      }
    }
  }

  async #save(path, name) {
    const url = URL.createObjectURL(await this.context.api.file(path));
    const link = make("a", { href: url, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000); // after the browser has read the file
  }
}
