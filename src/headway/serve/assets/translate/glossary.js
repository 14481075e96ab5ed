// The glossary: a table of required translations for a pair of languages, which is edited in place and stored in the browser.

import { isUndo, make } from "../dom.js";
import { ABOUT_ROW } from "../strings.js";

const SETTING = "glossaries";
const DELAY_MS = 400;
const ROW = /glossary, row (\d+)/g;

export class GlossaryTable {
  /** `changed()` is called when the entries for the current languages have changed. */
  constructor(context, changed) {
    Object.assign(this, { context, changed, timer: null, ending: new AbortController(), rows: [] });
    this.lines = new Map(); // row -> its line in the table, and its inputs
    this.refused = new Set(); // rows that the service has refused
    this.removed = []; // rows that were removed since the last edit, with their positions
    const { t } = context;
    this.body = make("tbody");
    const head = make("tr", {}, make("td"), ...["source", "target"].map(() => make("th", { scope: "col" })), make("td"));
    this.heads = head.querySelectorAll("th");
    this.count = make("span", { class: "badge" });
    this.undo = make("button", { type: "button", hidden: true }, t("glossary.restore"));
    this.undo.addEventListener("click", () => this.#restore());
    this.element = make("details", { class: "card glossary" },
      make("summary", {}, t("glossary.title"), " ", this.count),
      make("p", { class: "quiet" }, t("glossary.about")),
      make("table", {}, make("thead", {}, head), this.body), this.undo);
    this.body.addEventListener("keydown", (event) => {
      if (!isUndo(event) || !this.removed.length) return;
      event.preventDefault(); // otherwise the browser would undo a change of another field
      this.#restore();
    });
    addEventListener("storage", () => this.#useOtherTab(), { signal: this.ending.signal });
  }

  /** Saves a pending edit, and removes all listeners. */
  close() {
    this.#finishEdit();
    this.ending.abort();
  }

  /** Shows the entries for a pair of languages, whose names are the column headers. Models may refuse different entries. */
  use(source, target, model, sourceName, targetName) {
    const pair = `${source}-${target}`;
    this.heads[0].textContent = sourceName;
    this.heads[1].textContent = targetName;
    if (model !== this.model) this.#forgetRefusals();
    this.model = model;
    if (pair === this.pair) return;
    this.#finishEdit(); // of the previous pair
    this.pair = pair;
    this.#show();
  }

  #show() {
    this.#forgetRefusals();
    this.lines.clear();
    this.#forgetRemoved();
    this.rows = this.#saved.map((row) => [...row]);
    this.body.replaceChildren(...this.rows.map((row) => this.#line(row)));
    this.rows.forEach((row) => this.#showIncomplete(row));
    this.#addEmpty();
    this.#showCount();
  }

  /** The saved entries for the current pair. */
  get #saved() {
    return this.context.settings.get(SETTING, {})[this.pair] ?? [];
  }

  /** Shows the entries for the current pair after another tab has changed them. */
  #useOtherTab() {
    if (!this.pair || this.timer !== null || JSON.stringify(this.#saved) === JSON.stringify(this.#written)) return;
    this.#show();
    this.changed();
  }

  /** The rows with text on at least one side. */
  get #written() {
    return this.rows.map((row) => row.map((each) => each.trim())).filter((row) => row.some(Boolean));
  }

  /** The rows that are used: complete rows that the service has not refused. */
  get #used() {
    return this.rows.filter((row) => row.every((each) => each.trim()) && !this.refused.has(row));
  }

  /** The entries that are used, or null if there are none. */
  get entries() {
    const found = this.#used.map((row) => row.map((each) => each.trim()));
    return found.length ? found : null;
  }

  /**
   * Marks the row to which a message of the service refers. The row is not used until the table is edited. Returns
   * whether the message refers to a row.
   */
  refuse(message) {
    const [, number, problem] = message.match(ABOUT_ROW) ?? [];
    if (number === undefined || this.timer !== null) return number !== undefined; // the rows have been edited meanwhile
    const used = this.#used, row = used[number - 1], { t, serviceMessage } = this.context;
    if (!row) return false;
    this.refused.add(row);
    this.element.open = true;
    const inTable = problem.replace(ROW, (_, other) => `row ${this.rows.indexOf(used[other - 1]) + 1}`);
    this.#showProblem(row, t("glossary.refused", { message: serviceMessage(inTable) }));
    this.#showCount();
    return true;
  }

  #forgetRefusals() {
    for (const row of this.refused) this.#showProblem(row, "");
    this.refused.clear();
    this.#showCount();
  }

  /** Shows a note if one side of a row is missing. */
  #showIncomplete(row) {
    if (!this.rows.includes(row) || this.refused.has(row)) return;
    const isIncomplete = row.some((each) => each.trim()) && !row.every((each) => each.trim());
    this.#showProblem(row, isIncomplete ? this.context.t("glossary.incomplete") : "");
  }

  #showProblem(row, problem) {
    const { line, inputs } = this.lines.get(row);
    if (line.nextSibling?.className === "problem") line.nextSibling.remove();
    if (problem) {
      const said = make("p", { class: "error", role: "alert" }, problem);
      line.after(make("tr", { class: "problem" }, make("td"), make("td", { colspan: 3 }, said)));
    }
    for (const input of inputs) input.setAttribute("aria-invalid", String(Boolean(problem)));
  }

  /** The dictionaries for all pairs of languages with entries, in the format of the service. */
  dictionaries(pairs) {
    const saved = this.context.settings.get(SETTING, {});
    return pairs.map(({ source, target }) => {
      const pair = `${source}-${target}`;
      const entries = (pair === this.pair ? this.entries : saved[pair]) ?? [];
      return { source, target, entries: entries.filter((row) => row.every(Boolean)) };
    }).filter((each) => each.entries.length);
  }

  #line(row) {
    const line = make("tr"), number = make("td", { class: "quiet" });
    const inputs = [0, 1].map((at) => {
      const input = make("input", { type: "text", dir: "auto", spellcheck: "false" });
      input.value = row[at];
      input.addEventListener("input", () => {
        row[at] = input.value;
        this.#forgetRemoved();
        this.#forgetRefusals(); // including refusals of rows that contradicted this one
        this.#showProblem(row, "");
        if (row === this.rows.at(-1) && input.value) this.#addEmpty();
        this.#later();
      });
      return input;
    });
    const remove = make("button", { type: "button", class: "plain" }, "✕");
    remove.addEventListener("click", () => {
      this.#forgetRefusals();
      this.#showProblem(row, "");
      const next = line.nextSibling.querySelector("input");
      const at = this.rows.indexOf(row);
      this.removed.push({ row, at });
      this.undo.hidden = false;
      this.rows.splice(at, 1);
      this.lines.delete(row);
      line.remove();
      this.#number();
      next.focus();
      this.#save();
      this.changed();
    });
    line.append(number, ...inputs.map((input) => make("td", {}, input)), make("td", {}, remove));
    line.addEventListener("focusout", (event) => inputs.includes(event.relatedTarget) || this.#showIncomplete(row));
    this.lines.set(row, { line, number, inputs, remove });
    return line;
  }

  /** Numbers the rows. The last row is empty and cannot be removed. */
  #number() {
    const { t } = this.context;
    this.rows.forEach((row, at) => {
      const { number, inputs, remove } = this.lines.get(row);
      number.textContent = at + 1;
      inputs.forEach((input, side) =>
        input.setAttribute("aria-label", t("glossary.cell", { language: this.heads[side].textContent, row: at + 1 })));
      remove.setAttribute("aria-label", t("glossary.remove", { row: at + 1 }));
      remove.hidden = row === this.rows.at(-1);
    });
  }

  #forgetRemoved() {
    this.removed = [];
    this.undo.hidden = true;
  }

  /** Restores the row that was removed last. */
  #restore() {
    const { row, at } = this.removed.pop();
    this.undo.hidden = !this.removed.length;
    this.lines.get(this.rows[at]).line.before(this.#line(row));
    this.rows.splice(at, 0, row);
    this.#forgetRefusals();
    this.#showIncomplete(row);
    this.#number();
    this.lines.get(row).inputs[0].focus();
    this.#save();
    this.changed();
  }

  #addEmpty() {
    const row = ["", ""];
    this.rows.push(row);
    this.body.append(this.#line(row));
    this.#number();
  }

  #later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.#save();
      this.changed();
    }, DELAY_MS);
  }

  #save() {
    clearTimeout(this.timer);
    this.timer = null;
    const { settings } = this.context;
    settings.set(SETTING, { ...settings.get(SETTING, {}), [this.pair]: this.#written });
    this.#showCount();
  }

  #finishEdit() {
    if (this.timer !== null) this.#save();
  }

  #showCount() {
    this.count.textContent = this.#used.length || "";
  }
}
