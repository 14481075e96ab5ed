// Lists of languages and models to choose from.

import { make } from "./dom.js";
import { browserCode } from "./translate/words.js";

/** Returns the name of a language in the page's language. */
export function languageName(code, { language, languages }) {
  try {
    const name = new Intl.DisplayNames([language], { type: "language", fallback: "none" }).of(browserCode(code));
    if (name) return name;
  } catch {
    // The browser does not support this code.
  }
  const pair = languages.find((each) => each.source === code || each.target === code);
  return pair?.source === code ? pair.source_name : pair?.target_name ?? code;
}

/** Fills a list with languages, without duplicates and sorted by name, and selects `chosen` if possible. */
export function fillLanguages(list, codes, chosen, context) {
  const named = [...new Set(codes)].map((code) => [code, languageName(code, context)]);
  named.sort((one, other) => one[1].localeCompare(other[1], context.language));
  list.replaceChildren(...named.map(([code, name]) => make("option", { value: code }, name)));
  choose(list, chosen);
}

/** Fills a list with the names of models, and keeps the selection if possible. */
export function fillModels(list, names) {
  const { value } = list;
  list.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  choose(list, value);
}

/** Selects a value in a list, or the first value if the list does not contain it. */
export function choose(list, value) {
  const values = [...list.options].map((option) => option.value);
  list.value = values.includes(value) ? value : values[0] ?? "";
}
