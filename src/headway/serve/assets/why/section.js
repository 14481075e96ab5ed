// A section of the view Why, with its title and a line on what it shows.

import { make } from "../dom.js";

export function section(title, about, ...children) {
  return make("section", { class: "card", "aria-label": title }, make("h2", {}, title), make("p", { class: "quiet" }, about), ...children);
}
