// A small bar that shows a probability.

import { make } from "./dom.js";

export function meter(probability) {
  const bar = make("i", { class: "meter", "aria-hidden": "true" }, make("i"));
  bar.firstChild.style.width = `${100 * probability}%`;
  return bar;
}
