// The frame of the page: navigation, theme, language, API key, and the banner shown while the service is unreachable.

import { aboutModels } from "./about.js";
import { Api, UnreachableError, MAX_PATIENCE_S, isKey, nextEvent, pause } from "./api.js";
import { make } from "./dom.js";
import { settings } from "./settings.js";
import { serviceMessage, t, useLanguage } from "./strings.js";
import { VIEWS } from "./views.js";

const $ = (id) => document.getElementById(id);
const RETRY_MS = 2000;
const MAX_RETRY_MS = 60_000;
const STEADY_MS = 10_000; // a service that has been reachable for this time is considered stable
const api = new Api({ key: () => settings.get("key"), askForKey, onUnreachable });

/**
 * The context that is passed to each view:
 *   api                    the client for the native API (api.js)
 *   t(key, values)         returns a text in the page's language (strings/)
 *   serviceMessage(text)   returns a message of the service as a sentence, in the page's language if possible
 *   language               the code of the page's language
 *   models, languages      the replies of /api/v1/models and /api/v1/languages
 *   settings               get(name, otherwise) and set(name, value), stored in the browser
 *   describe(error)        describes an error to the user
 *   announce(text)         announces a text to users of screen readers
 *   navigate(view, state)  opens a view with a new state
 *   offers(view)           returns whether a view is shown
 *   sentence()             returns the sentence in the Translate view as a state of the Why view, or null
 * `document` dispatches the events "themechange" and "serviceback".
 *
 * mount(container, context, state) builds the view in an empty container. It may return `{ state, unmount, shown }`:
 * `state()` returns a state with which another mount looks the same (the page's language may change), and `unmount()`
 * ends requests and listeners. A view that is not visible stays mounted in a hidden container; `shown()` is called when it
 * becomes visible again.
 */
const context = { api, t, serviceMessage, settings, describe, announce, navigate, offers, sentence, language: "en", models: [], languages: [] };
const mounted = new Map(); // name of a view -> its container and the object that mount() has returned

// ---- views

const offered = () => VIEWS.filter((view) => context.models.some((model) => view.capability === model.capability));

function offers(name) {
  return offered().some((view) => view.name === name);
}

function sentence() {
  return mounted.get("translate")?.handle.sentence ?? null;
}

async function show(view) {
  const wasHidden = mounted.get(view.name)?.container.hidden;
  for (const [name, { container }] of mounted) container.hidden = name !== view.name;
  for (const link of $("views").children) {
    if (link.hash === `#${view.name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${t(`view.${view.name}`)} · Headway`;
  if (!mounted.has(view.name)) await open(view);
  else if (wasHidden) mounted.get(view.name).handle.shown?.();
}

async function open(view, state) {
  mounted.get(view.name)?.handle.unmount?.();
  mounted.get(view.name)?.container.remove();
  const container = make("div", { class: `view-${view.name}` });
  const entry = { container, handle: {} };
  mounted.set(view.name, entry);
  $("main").append(container);
  const { mount } = await loaded(view, container);
  container.replaceChildren();
  if (mounted.get(view.name) !== entry) return;
  entry.handle = mount(container, context, state) ?? {};
  container.append(aboutModels(context, context.models.filter((model) => model.capability === view.capability)));
}

/** Returns the module of a view. While the service is unreachable, shows a note in the container. */
async function loaded(view, container) {
  for (;;) {
    try {
      return await view.load();
    } catch {
      container.replaceChildren(make("p", { class: "note" }, t("error.gone")));
      onUnreachable();
      await nextEvent("serviceback");
    }
  }
}

function navigate(name, state) {
  const view = offered().find((each) => each.name === name);
  if (!view) return;
  open(view, state);
  location.hash = name;
  show(view);
}

function showChosen() {
  const views = offered();
  const chosen = views.find((view) => `#${view.name}` === location.hash) ?? views[0];
  $("views").hidden = views.length < 2;
  if (chosen) show(chosen);
  else $("main").replaceChildren(make("p", { class: "note" }, t("none")));
}

// ---- language and theme

function useChosenLanguage() {
  context.language = useLanguage(settings.get("language") ?? navigator.language.slice(0, 2));
  document.documentElement.lang = $("language").value = context.language;
  $("skip").textContent = t("skip");
  $("views").setAttribute("aria-label", t("views"));
  $("language").setAttribute("aria-label", t("language"));
  $("key-title").textContent = t("key.title");
  $("key-label").firstElementChild.textContent = t("key.label");
  $("key-send").textContent = t("key.send");
  $("gone").textContent = t("gone");
  $("views").replaceChildren(
    ...offered().map((view) => make("a", { href: `#${view.name}` }, t(`view.${view.name}`))));
  showTheme();
}

const media = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (settings.get("theme") ?? (media.matches ? "dark" : "light")) === "dark";

function showTheme() {
  if (settings.get("theme")) document.documentElement.dataset.theme = settings.get("theme");
  const other = t(isDark() ? "theme.light" : "theme.dark");
  $("theme").textContent = `${isDark() ? "☀" : "☾"} ${other}`;
  $("theme").setAttribute("aria-label", t("theme.switch", { theme: other }));
  document.dispatchEvent(new Event("themechange"));
}

// ---- errors

function describe(error) {
  if (error instanceof UnreachableError) return t("error.gone");
  const { status, retryAfter } = error, message = serviceMessage(error.message);
  if (status === 429 && retryAfter !== null && retryAfter <= MAX_PATIENCE_S) return t("error.busy", { seconds: retryAfter });
  if (status === 413) return t("error.large", { message });
  if (status === 502) return t("error.foreign");
  if (status === 504) return t("error.late");
  if (status === 503) return t("error.unavailable", { message });
  if (status === undefined || status >= 500) return t("error.internal");
  return t("error.refused", { message });
}

function announce(text) {
  $("announcement").textContent = text;
}

let isUnreachable = false, retryMs = RETRY_MS, backAt = -Infinity;

async function onUnreachable() {
  if (isUnreachable) return;
  isUnreachable = true;
  $("gone").hidden = false;
  // Increase the pauses, because the service may be ready although requests fail, which are then repeated each time.
  retryMs = performance.now() - backAt < STEADY_MS ? Math.min(2 * retryMs, MAX_RETRY_MS) : RETRY_MS;
  do await pause(retryMs);
  while (!(await api.answers()));
  backAt = performance.now();
  isUnreachable = false;
  $("gone").hidden = true;
  announce(t("back"));
  document.dispatchEvent(new Event("serviceback"));
}

function askForKey() {
  const dialog = $("key-dialog");
  const isWrong = Boolean(settings.get("key"));
  $("key-about").textContent = isWrong ? t("key.wrong") : t("key.about");
  $("key-about").classList.toggle("error", isWrong);
  $("key").value = settings.get("key") ?? ""; // so that the user can correct a mistake
  checkKey();
  if (!dialog.open) dialog.showModal();
  $("key").select();
  return new Promise((resolve) => {
    dialog.onclose = () => {
      settings.set("key", $("key").value.trim());
      resolve();
    };
  });
}

/** Sets a validation message if the key in the field is invalid, so that the dialog stays open. */
function checkKey() {
  const text = $("key").value.trim();
  $("key").setCustomValidity(!text || isKey(text) ? "" : t("key.characters"));
}

// ---- start

async function start() {
  useChosenLanguage();
  $("skip").addEventListener("click", (event) => {
    event.preventDefault(); // because the fragment of the URL is the name of a view
    $("main").focus();
  });
  $("key").addEventListener("input", checkKey);
  $("key-dialog").addEventListener("cancel", (event) => event.preventDefault()); // nothing works without a key
  media.addEventListener("change", showTheme);
  $("theme").addEventListener("click", () => {
    settings.set("theme", isDark() ? "light" : "dark");
    showTheme();
  });
  for (;;) {
    try {
      [context.models, context.languages] = await Promise.all([api.get("models"), api.get("languages")]);
      break;
    } catch (error) {
      $("main").replaceChildren(make("p", { class: "note" }, describe(error)));
      if (!(error instanceof UnreachableError)) await pause(RETRY_MS);
      else await nextEvent("serviceback");
    }
  }
  $("main").replaceChildren();
  useChosenLanguage();
  showChosen();
  addEventListener("hashchange", showChosen);
  $("language").addEventListener("change", () => {
    settings.set("language", $("language").value);
    useChosenLanguage();
    const views = VIEWS.filter((view) => mounted.has(view.name));
    for (const view of views) open(view, mounted.get(view.name).handle.state?.());
    showChosen();
  });
}
start();
