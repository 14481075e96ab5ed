// The settings of this browser. Nothing else is stored: neither texts nor translations.

const NAME = "headway";

function load() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? {};
  } catch {
    return {}; // storage is disabled, or its content is not ours
  }
}

const unsaved = {}; // settings that could not be stored; they last until the page is closed

/** Each access reads the storage, because another tab may have changed it. */
export const settings = {
  get: (name, otherwise = null) => ({ ...load(), ...unsaved })[name] ?? otherwise,
  set(name, value) {
    unsaved[name] = value;
    try {
      localStorage.setItem(NAME, JSON.stringify({ ...load(), ...unsaved }));
      delete unsaved[name];
    } catch {
      // It stays among the unsaved ones.
    }
  },
};
