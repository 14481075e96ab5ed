// Lists to choose languages and models from.

import { make } from "./dom.js";
import { browserCode } from "./translate/words.js";

/** Returns the name of a language in the language of the page. */
export function languageName(code, { language, languages }) {
  try {
    const name = new Intl.DisplayNames([language], { type: "language", fallback: "none" }).of(browserCode(code));
    if (name) return name;
  } catch {
    // not a code that browsers know
  }
  const pair = languages.find((each) => each.source === code || each.target === code);
  return pair?.source === code ? pair.source_name : pair?.target_name ?? code;
}

/** Fills a list with languages, each once, in the order of their names, and chooses one of them if possible. */
export function fillLanguages(list, codes, chosen, context) {
  const named = [...new Set(codes)].map((code) => [code, languageName(code, context)]);
  named.sort((one, other) => one[1].localeCompare(other[1], context.language));
  list.replaceChildren(...named.map(([code, name]) => make("option", { value: code }, name)));
  choose(list, chosen);
}

/** Fills a list with the names of models, and keeps the choice if possible. */
export function fillModels(list, names) {
  const { value } = list;
  list.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  choose(list, value);
}

/** Chooses a value of a list, or its first one if the list does not have it. */
export function choose(list, value) {
  const values = [...list.options].map((option) => option.value);
  list.value = values.includes(value) ? value : values[0] ?? "";
}
