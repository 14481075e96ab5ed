// Notices about the translation: possible errors, and changes by the user or the glossary.

import { isolated, make, shortened } from "../dom.js";

const MAX_SENTENCES = 3; // maximum number of sentences per kind of notice
const QUOTED = 50; // maximum number of quoted characters of a source sentence
const QUOTED_TRANSLATION = 200;

export class Notices {
  /**
   * @param context The context of the view.
   * @param {GlossaryEffects} effects The changes caused by the glossary.
   * @param {object} hooks `undo(sentence)` is called when the user undoes a change of a sentence's translation, and
   *   `use(sentence, translation)` when the user chooses the translation without the glossary.
   */
  constructor(context, effects, hooks) {
    Object.assign(this, { context, effects, hooks });
    this.element = make("ul", { class: "notices" });
  }

  /** Shows the notices for sentences. `pivot` is the name of the language through which they are translated, or null. */
  show(slots, pivot) {
    const known = slots.filter((slot) => slot.result);
    const about = known.length && pivot !== null
      ? [make("li", { class: "about" }, this.context.t("notice.pivot", { language: pivot }))] : [];
    const items = [...about, ...this.#warnings(known), ...this.#changes(known)], said = items.map((item) => item.textContent);
    if (said.join("\n") === this.said) return; // keep the buttons, so that they do not lose the focus
    this.said = said.join("\n");
    this.element.replaceChildren(...items);
  }

  #quoted(text, most = QUOTED) {
    return this.context.t("quoted", { text: isolated(shortened(text, most)) });
  }

  /** Sentences with the same warning share an item. */
  #warnings(slots) {
    const { t, serviceMessage } = this.context, found = new Map(); // warning -> its sentences
    const warn = (text, slot) => found.set(text, (found.get(text) ?? new Set()).add(slot.text));
    for (const slot of slots) {
      const { error, unlikely, flags, glossary } = slot.result;
      if (error !== undefined) {
        warn(t("notice.failed", { message: serviceMessage(error) }), slot);
        continue;
      }
      if (unlikely) warn(t("notice.unlikely"), slot);
      for (const flag of flags) warn(t(`notice.${flag}`), slot);
      for (const { met, source, targets } of glossary ?? []) {
        if (!met) warn(t("notice.glossary", { source, target: targets.join(" / ") }), slot);
      }
    }
    return [...found].map(([text, sentences]) => {
      const some = [...sentences].slice(0, MAX_SENTENCES).map((sentence) => this.#quoted(sentence)).join(", ");
      const more = sentences.size > MAX_SENTENCES ? t("notice.more", { count: sentences.size - MAX_SENTENCES }) : "";
      return make("li", {}, text, slots.length > 1 ? make("span", { class: "quiet" }, ` ${some}${more}`) : "");
    });
  }

  #changes(slots) {
    const { t } = this.context;
    const current = [...new Map(slots.filter((slot) => !slot.isStale).map((slot) => [slot.text, slot])).values()];
    const chosen = current.filter((slot) => slot.result.chosen).map((slot) => {
      const said = [t("notice.chosen", { text: this.#quoted(slot.text) })], { lost = [] } = slot.result;
      if (slot.result.position !== undefined) said.push(t("notice.retranslated"));
      if (lost.length) said.push(t("notice.lost", { words: lost.map((word) => this.#quoted(word)).join(", ") }));
      return this.#item(said.join(" "), t("notice.undo"), () => this.hooks.undo(slot.text));
    });
    const affected = current.map((slot) => [slot, this.effects.effect(slot)]).filter(([, effect]) => effect);
    return [...chosen, ...affected.slice(0, MAX_SENTENCES).map(([slot, { kind, other }]) => this.#item(
      t(`notice.${kind}`, { text: this.#quoted(slot.text), other: this.#quoted(other.text, QUOTED_TRANSLATION) }),
      t("notice.free"), () => this.hooks.use(slot.text, other)))];
  }

  #item(about, label, action) {
    const button = make("button", { type: "button" }, label);
    button.addEventListener("click", action);
    return make("li", { class: "change" }, make("span", {}, about), button);
  }
}
