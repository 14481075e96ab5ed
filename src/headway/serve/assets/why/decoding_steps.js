// The decoding of a translation step by step: the decoder's input, the chosen token and the most probable tokens.

import { isolated, make, percent } from "../dom.js";
import { section } from "./section.js";

const BEGIN = "<bos>";

export class DecodingSteps {
  constructor(context) {
    const { t } = (this.context = context);
    const columns = [t("why.steps.step"), t("why.steps.input"), t("why.steps.chosen"), t("why.steps.best")];
    this.encoderInput = make("p", { class: "quiet" });
    this.rows = make("tbody", {});
    const head = make("thead", {}, make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name))));
    this.element = section(t("why.steps"), t("why.steps.about"), this.encoderInput,
      make("div", { class: "steps", tabindex: 0, role: "group", "aria-label": t("why.steps") }, make("table", {}, head, this.rows)));
  }

  /** Shows the steps of an inspected translation. */
  show({ sides, steps }) {
    const { t } = this.context, read = [BEGIN];
    this.encoderInput.textContent = t("why.steps.encoder", { tokens: listed(sides.source) });
    this.rows.replaceChildren(...steps.map((step, at) => {
      const input = listed(read), token = sides.target[at];
      read.push(token);
      return make("tr", {},
        make("td", {}, String(at + 1)),
        make("td", {}, input),
        make("td", {}, make("bdi", {}, token)),
        make("td", {}, step.forced ? t("why.steps.given") : this.#best(step)));
    }));
  }

  #best({ alternatives }) {
    return alternatives.map(([token, value]) => `${isolated(token)} ${percent(value, this.context.language)}`).join(", ");
  }
}

const listed = (tokens) => tokens.map(isolated).join(" ");
