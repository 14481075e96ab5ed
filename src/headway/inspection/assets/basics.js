// Functions for all parts of a page that shows an inspection: elements, numbers, focus and colors.

/** Returns a new element. Styles are set as properties, because a page's policy may forbid style attributes. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const FONT = '14px system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif'; // of pictures

// Isolates a token, so that its text direction does not affect the words around it.
export const isolated = (token) => "\u2068" + token + "\u2069";
export const quoted = (token) => "“" + isolated(token) + "”";

/** Moves the focus with the arrow keys among the focusable elements in `place`, `across` of which are on a line. */
export function moveFocus(event, place, across) {
  const items = [...place.querySelectorAll("[tabindex]")];
  const at = items.indexOf(document.activeElement);
  const forward = place.getAttribute("dir") === "rtl" ? -1 : 1;
  const steps = { ArrowRight: forward, ArrowLeft: -forward, ArrowDown: across, ArrowUp: -across, Home: -at };
  steps.End = items.length - 1 - at;
  if (!(event.key in steps) || at < 0) return;
  event.preventDefault();
  const next = items[Math.min(Math.max(at + steps[event.key], 0), items.length - 1)];
  for (const item of items) item.tabIndex = item === next ? 0 : -1;
  next.focus();
}

// ---- colors: one hue from light to dark, so that lightness alone shows the value; reversed in dark mode

const RAMPS = {
  light: [[255, 255, 255], [205, 222, 241], [133, 178, 217], [56, 120, 183], [8, 48, 107]],
  dark: [[27, 31, 39], [24, 62, 104], [36, 108, 168], [98, 172, 224], [226, 243, 255]],
};
export const media = matchMedia("(prefers-color-scheme: dark)");
export const isDark = () => (document.documentElement.dataset.theme || (media.matches ? "dark" : "light")) === "dark";

/** Interpolates a ramp to 256 colors. */
const interpolated = (ramp) => Array.from({ length: 256 }, (_, step) => {
  const place = (step / 255) * (ramp.length - 1), below = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[below].map((from, at) => Math.round(from + (place - below) * (ramp[below + 1][at] - from)));
});
const PALETTES = { light: interpolated(RAMPS.light), dark: interpolated(RAMPS.dark) };
export const palette = () => PALETTES[isDark() ? "dark" : "light"];
export const color = (value) => palette()[Math.round(255 * Math.min(Math.max(value, 0), 1))];
export const css = (rgb) => `rgb(${rgb.join(" ")})`;
const luminance = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, part, at) => sum + part * (rgb[at] / 255) ** 2.2, 0);
export const inkOn = (rgb) => (luminance(rgb) > 0.18 ? "#000000" : "#ffffff");
export const variable = (name) => {
  const probe = document.body.appendChild(make("i"));
  probe.style.color = `var(${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
};
