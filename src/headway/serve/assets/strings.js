// The texts of the page in the language that the person has chosen, or else that of the browser.

import { german } from "./strings/de.js";
import { english } from "./strings/en.js";

const TABLES = { en: english, de: german };
let table = english;

/** Chooses a language. An unknown one becomes English. Returns its code. */
export function useLanguage(code) {
  const known = code in TABLES ? code : "en";
  table = TABLES[known];
  return known;
}

/** Returns a text, with `{name}` replaced by the value of that name. */
export function t(key, values = {}) {
  const text = table[key] ?? english[key];
  if (text === undefined) throw new Error(`no text ${key}`);
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}
