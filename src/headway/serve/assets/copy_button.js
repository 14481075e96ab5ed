// A button that copies a text, and confirms it.

import { make } from "./dom.js";

const SAID_MS = 1500;

/** Returns the button. `text()` returns the text to copy, and `said()` the label of the button after copying. */
export function copyButton({ t, announce }, text, said = () => t("copied")) {
  const button = make("button", { type: "button", class: "plain" }, t("copy"));
  button.addEventListener("click", async () => {
    await copyText(text());
    button.textContent = said();
    announce(button.textContent);
    setTimeout(() => (button.textContent = t("copy")), SAID_MS);
  });
  return button;
}

/** Copies text, even if the page is not in a secure context, such as on another machine's http address. */
async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = make("textarea", { class: "visually-hidden" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
