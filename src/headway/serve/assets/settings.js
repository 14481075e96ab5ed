// The settings of this browser. Nothing else is stored: neither texts nor translations.

const NAME = "headway";

function load() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? {};
  } catch {
    return {}; // storage is disabled, or its content is not ours
  }
}
const values = load();

export const settings = {
  get: (name, otherwise = null) => values[name] ?? otherwise,
  set(name, value) {
    values[name] = value;
    try {
      localStorage.setItem(NAME, JSON.stringify(values));
    } catch {
      // The setting lasts until the page is closed.
    }
  },
};
