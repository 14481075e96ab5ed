// The texts of the page, in the language that the user has chosen or in the browser's language.

import { german } from "./strings/de.js";
import { germanMessages } from "./strings/de_messages.js";
import { english } from "./strings/en.js";

const TABLES = { en: english, de: german };
const MESSAGES = { en: [], de: Object.entries(germanMessages).map(([form, text]) => [pattern(form), text]) };
const QUOTED = /(?<![\p{L}\p{N}])'([^']*)'(?![\p{L}\p{N}])/gu; // quoted text in a message of the service
export const ABOUT_ROW = /^glossary, row (\d+): (.*)$/s; // a message about an entry of a glossary
let chosen = "en";

/** Selects a language, or English if the language is not supported. Returns the code of the selected language. */
export function useLanguage(code) {
  chosen = code in TABLES ? code : "en";
  return chosen;
}

/** Returns a text in which each `{name}` is replaced with the value of that name. */
export function t(key, values = {}) {
  const text = TABLES[chosen][key] ?? english[key];
  if (text === undefined) throw new Error(`no text ${key}`);
  return filled(text, values);
}

/** Returns a message of the service as a sentence, in the page's language if there is a translation. */
export function serviceMessage(message) {
  const [, row, problem] = message.match(ABOUT_ROW) ?? [];
  if (row) return t("glossary.row", { row, message: serviceMessage(problem) });
  for (const [form, text] of MESSAGES[chosen]) {
    const found = message.match(form);
    if (found) return sentence(filled(text, localized(found.groups ?? {})));
  }
  return sentence(message.replace(QUOTED, (_, text) => t("quoted", { text })));
}

const filled = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

/** Returns values with the quotation marks and the number format of the page's language. */
const localized = (values) => Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value
  .replace(/^(['"])(.*)\1$/s, (_, mark, text) => t("quoted", { text }))
  .replace(/^\d{1,3}(,\d{3})+$/, (digits) => Number(digits.replaceAll(",", "")).toLocaleString(chosen))]));

/** Returns a regular expression for messages of the form `form`. */
function pattern(form) {
  const literal = form.replace(/[.*+?^$()|[\]\\]/g, "\\$&");
  return new RegExp(`^${literal.replace(/\{(\w+)\}/g, "(?<$1>.+)")}$`, "s");
}

/** Capitalizes the first letter, unless the text begins with the name of a file or field, and adds a period. */
function sentence(text) {
  const begun = /^\p{Ll}[\p{L}'’]*[\s,]/u.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
  return !text || /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
