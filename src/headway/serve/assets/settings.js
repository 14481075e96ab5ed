// The settings stored in this browser. Neither texts nor translations are stored.

const NAME = "headway";

function load() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? {};
  } catch {
    return {}; // storage is disabled, or its content is invalid
  }
}

const unsaved = {}; // settings that could not be stored; they last until the page is closed

/** Settings. Each access reads the storage, because another tab may have changed it. */
export const settings = {
  get: (name, otherwise = null) => ({ ...load(), ...unsaved })[name] ?? otherwise,
  set(name, value) {
    unsaved[name] = value;
    try {
      localStorage.setItem(NAME, JSON.stringify({ ...load(), ...unsaved }));
      delete unsaved[name];
    } catch {
      // The setting remains in `unsaved`.
    }
  },
};
