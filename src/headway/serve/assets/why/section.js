// A section of the Why view, with a title and a line that explains its content.

import { make } from "../dom.js";

export function section(title, about, ...children) {
  return make("section", { class: "card", "aria-label": title }, make("h2", {}, title), make("p", { class: "quiet" }, about), ...children);
}
