// Other translations of a sentence: the n-best list.

import { isAbort } from "../api.js";
import { isolated, make, percent, shortened } from "../dom.js";
import { meter } from "../meter.js";

const COUNT = 4;
const QUOTED = 60; // maximum number of quoted characters of the sentence

export class Versions {
  /**
   * @param {(sentence: string, translation: object) => void} use Called with the sentence and the chosen version.
   */
  constructor(context, use) {
    const { t } = context;
    Object.assign(this, { context, use, shown: null }); // identifies the sentence and settings of the list
    this.list = make("ol");
    this.title = make("summary");
    this.element = make("details", { class: "card versions", hidden: true },
      this.title, make("p", { class: "quiet" }, t("versions.about")), this.list);
    this.element.addEventListener("toggle", () => this.#fill());
  }

  close() {
    this.asking?.abort();
  }

  /** Shows the versions of a sentence, or nothing if there is no sentence. Requests them only when the list is open. */
  show(slot, request) {
    Object.assign(this, { slot, request });
    this.element.hidden = !slot;
    if (slot) {
      const { t } = this.context;
      this.title.textContent = t("versions.title", { text: t("quoted", { text: isolated(shortened(slot.text, QUOTED)) }) });
    }
    this.#fill();
  }

  async #fill() {
    const { slot, request } = this;
    if (!slot || !this.element.open) return;
    const key = slot.isStale ? null : JSON.stringify([request, slot.text]);
    if (key !== this.shown) {
      this.shown = key;
      this.asking?.abort();
      this.list.replaceChildren(); // they belong to another sentence
      if (key === null) return; // the sentence must be translated first
      try {
        await this.#ask(slot.text, request);
      } catch (error) {
        if (isAbort(error)) return;
        this.shown = null; // so that the versions are requested again
        this.list.replaceChildren(make("li", { class: "error" }, this.context.describe(error)));
      }
    }
    for (const button of this.list.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.textContent === slot.result.text));
    }
  }

  async #ask(sentence, request) {
    const { signal } = (this.asking = new AbortController());
    const body = { ...request, text: sentence, options: { n_best: COUNT, beam_size: COUNT } };
    const { translations: [{ alternatives, ...best }] } = await this.context.api.post("translate", body, { signal });
    const versions = [best, ...alternatives].filter(({ text }, at, all) => all.findIndex((each) => each.text === text) === at);
    this.list.replaceChildren(...versions.map((version) => {
      const button = make("button", { type: "button", class: "plain", dir: "auto" }, version.text);
      button.addEventListener("click", () => {
        const { top } = button.getBoundingClientRect();
        this.use(sentence, { ...version, unlikely: best.unlikely });
        scrollBy(0, button.getBoundingClientRect().top - top); // because a new notice above may have moved the button
      });
      const probability = Math.exp(version.log_probability);
      const share = make("span", { class: "share" }, meter(probability), percent(probability, this.context.language));
      return make("li", {}, make("div", {}, button, share));
    }));
  }
}
