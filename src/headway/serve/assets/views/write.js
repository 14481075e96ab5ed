// The Write view: a language model continues a text. Each token shows its alternatives; choosing one continues the text
// from there.

import { isAbort } from "../api.js";
import { copyButton } from "../copy_button.js";
import { focusField, isUndo, make } from "../dom.js";
import { choose, fillModels } from "../lists.js";
import { confidenceLegend } from "../translate/output.js";
import { Story } from "../write/story.js";
import { TokenMenu } from "../write/token_menu.js";
import { WritingOptions } from "../write/writing_options.js";

const ALTERNATIVES = 10;
const STARTS = ["story", "dialogue", "list", "question", "analogy"]; // prompts to start from
const SAID = { end: "end", stop: "reached", length: "length" }; // finish reason -> key of its text
const CONTROLS = ["go", "stop", "again", "undo", "clear", "token"]; // controls that the help describes

export function mount(container, context, state = {}) {
  return new WriteView(container, context, state);
}

class WriteView {
  constructor(container, context, state) {
    this.context = context;
    this.models = context.models.filter((model) => model.capability === "continues");
    this.history = [...(state.history ?? [])]; // earlier states: { begun, pieces, said }
    this.said = state.said ?? null; // key of the status text
    this.#build(container, state);
    this.#restore({ begun: state.begun ?? null, pieces: state.pieces ?? [] });
    this.#show();
    focusField(this.prompt);
  }

  state() {
    return {
      prompt: this.prompt.value, model: this.model.value, begun: this.begun, pieces: this.story.pieces,
      options: this.options.state, history: this.history, said: this.#outcome,
    };
  }

  unmount() {
    this.running?.abort();
    this.menu.close();
  }

  #build(container, state) {
    const { t } = this.context;
    this.prompt = make("textarea", { dir: "auto", rows: 3, placeholder: t("write.placeholder") });
    this.prompt.value = state.prompt ?? "";
    this.model = make("select", {});
    fillModels(this.model, this.models.map(({ name }) => name));
    if (state.model) choose(this.model, state.model);
    this.options = new WritingOptions(this.context, state.options);
    this.go = make("button", { type: "button", class: "primary" });
    this.stop = make("button", { type: "button", class: "stop" }, t("write.stop"));
    this.again = make("button", { type: "button" }, t("write.again"));
    this.undo = make("button", { type: "button" }, t("write.undo"));
    this.clear = make("button", { type: "button" }, t("write.clear"));
    this.status = make("p", { class: "quiet", role: "status" });
    this.failure = make("p", { class: "error", role: "alert" });
    this.info = make("p", { class: "quiet token-info" });
    this.text = make("div", { class: "text", dir: "auto", role: "group", "aria-label": t("write.result") });
    this.hint = make("p", { class: "quiet" }, t("write.hint"));
    this.copy = copyButton(this.context, () => this.begun + this.story.text);
    this.legend = make("div", { class: "row legend" }, confidenceLegend(this.context, "confidence.token"), this.copy);
    const page = make("section", { class: "card page", "aria-label": t("write.result") },
      this.hint, this.text, this.info, this.legend);
    const models = make("label", { class: "field" }, make("span", {}, t("write.model")), this.model);
    models.hidden = this.models.length < 2;
    const starts = STARTS.map((name) => {
      const button = make("button", { type: "button" }, t(`write.start.${name}`));
      button.addEventListener("click", () => this.#startFrom(t(`write.start.${name}.text`)));
      return button;
    });
    const help = make("details", { class: "help" }, make("summary", {}, t("write.help")),
      make("dl", {}, ...CONTROLS.flatMap((name) => [
        make("dt", {}, t(`write.${name}`)), make("dd", { class: "quiet" }, t(`write.${name}.about`)),
      ])));
    container.append(
      make("h1", {}, t("view.write")),
      make("p", { class: "quiet about" }, t("write.about")),
      make("div", { class: "columns" },
        make("section", { class: "card controls", "aria-label": t("write.prompt") },
          make("label", { class: "field" }, make("span", {}, t("write.prompt")), this.prompt),
          make("div", { class: "row starts", role: "group", "aria-label": t("write.starts") }, make("span", { class: "quiet" }, t("write.starts")), ...starts),
          models, make("div", { class: "row" }, this.go, this.stop), make("div", { class: "row" }, this.again, this.undo, this.clear),
          this.status, this.failure, help),
        page,
        make("section", { class: "card settings", "aria-label": t("write.settings") }, this.options.element)));
    this.story = new Story(this.text, this.context, {
      point: (piece) => this.#describe(piece),
      choose: (index) => this.menu.open(index),
    });
    this.menu = new TokenMenu(page, this.context, this.story, {
      request: () => (this.running ? null : { model: this.model.value, begun: this.begun }),
      choose: (index, alternative) => this.#branch(index, alternative),
    });
    this.go.addEventListener("click", () => this.#write());
    this.stop.addEventListener("click", () => this.running?.abort());
    this.again.addEventListener("click", () => {
      this.#keep();
      this.#restore({ begun: this.prompt.value, pieces: [] });
      this.#write(false);
    });
    this.undo.addEventListener("click", () => this.#undo());
    this.clear.addEventListener("click", () => {
      this.#keep();
      this.#restore({ begun: null, pieces: [] });
      this.#show();
      this.prompt.focus();
    });
    container.addEventListener("keydown", (event) => {
      if (!isUndo(event) || event.target.matches("input, textarea")) return;
      event.preventDefault(); // otherwise the browser would change the prompt
      const { focused } = this.story;
      if (!this.undo.disabled) this.#undo();
      if (focused >= 0 && this.story.pieces.length) this.story.focus(Math.min(focused, this.story.pieces.length - 1));
    });
    this.prompt.addEventListener("input", () => this.#show());
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#write();
    });
  }

  /** Key of the status text while nothing is being written. */
  get #outcome() {
    return this.running ? "stopped" : this.said;
  }

  /** Whether the continuation on the page belongs to the prompt in the field. */
  get #fits() {
    return this.story.pieces.length > 0 && this.begun === this.prompt.value;
  }

  #show() {
    const { t } = this.context, isRunning = Boolean(this.running);
    this.go.textContent = t(this.#fits ? "write.on" : "write.go");
    const [shown, hidden] = isRunning ? [this.stop, this.go] : [this.go, this.stop];
    const hadFocus = [hidden, this.again].includes(document.activeElement);
    shown.hidden = false;
    hidden.hidden = true;
    if (hadFocus) shown.focus();
    // The buttons keep their positions, so that a second click never hits another button.
    this.undo.disabled = isRunning || !this.history.length;
    this.again.disabled = isRunning || !this.#fits;
    this.clear.disabled = isRunning || !this.story.pieces.length;
    this.hint.hidden = this.story.pieces.length > 0 || isRunning;
    this.legend.hidden = this.info.hidden = !this.hint.hidden;
    this.copy.hidden = isRunning || !this.story.pieces.length;
    if (!isRunning && this.begun !== this.prompt.value) this.said = null; // the status belongs to a text with another prompt
    const said = isRunning ? "writing" : this.said;
    this.status.textContent = said === null ? "" : t(`write.${said}`);
    this.text.setAttribute("aria-busy", String(isRunning));
  }

  /** Inserts a prompt into the field as if the user had typed it. */
  #startFrom(text) {
    this.prompt.value = text;
    this.#show();
    this.prompt.focus();
  }

  /** Saves the current text for Undo. */
  #keep() {
    this.history.push({ begun: this.begun, pieces: [...this.story.pieces], said: this.#outcome });
  }

  #restore({ begun, pieces }) {
    this.begun = begun; // the prompt of the text on the page, which may differ from the prompt in the field
    this.story.begin(begun ?? "");
    this.story.use(pieces);
    this.#describe(null);
  }

  #undo() {
    const kept = this.history.pop();
    this.#restore(kept);
    if (kept.begun !== null) this.prompt.value = kept.begun;
    this.said = kept.said;
    this.#show();
    (this.undo.disabled ? this.go : this.undo).focus();
    this.context.announce(this.story.text);
  }

  /** Continues the text at its end. With `isUndoable`, Undo can return to it. */
  async #write(isUndoable = true) {
    if (this.running) return;
    const { api, describe, announce } = this.context;
    if (isUndoable) this.#keep();
    const replaces = this.story.pieces.length > 0 && !this.#fits; // the text on the page has another prompt
    if (!this.#fits) this.#restore({ begun: this.prompt.value, pieces: [] });
    const start = this.story.text.length;
    this.running = new AbortController();
    const { signal } = this.running;
    this.failure.textContent = "";
    this.said = null;
    this.#show();
    try {
      const body = {
        prompt: this.begun + this.story.text, model: this.model.value, alternatives: ALTERNATIVES,
        options: { ...this.options.values, beyond_context: "slide" }, // the text may be longer than the model's context
      };
      for await (const event of api.stream("generate", body, { signal })) {
        if (event.continuation) this.said = SAID[event.continuation.finish_reason];
        else this.story.add(event);
      }
    } catch (error) {
      if (isAbort(error)) this.said = "stopped";
      else this.failure.textContent = describe(error);
    } finally {
      this.story.finish();
      if (isUndoable && !replaces && this.story.text.length === start) this.history.pop(); // nothing has changed
      this.running = null;
      announce(this.story.text.slice(start)); // as a whole, because a screen reader cannot follow single tokens
      this.#show();
    }
  }

  /** Replaces a token with an alternative, and continues from there. */
  #branch(index, alternative) {
    this.running?.abort();
    this.#keep();
    this.story.replaceFrom(index, alternative);
    this.prompt.value = this.begun;
    this.story.focus(index);
    setTimeout(() => this.#write(false)); // after the running request has ended
  }

  #describe(piece) {
    const { t } = this.context;
    this.info.textContent = piece ? this.story.describe(piece) : t("write.point");
  }
}
