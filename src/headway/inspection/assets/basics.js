"use strict";
// Functions for all parts of the page. The page shows the content of the script element "data", inserted as plain text.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// A masked language model predicts hidden tokens of the source, and other models the tokens of the target.
const hides = data.hiddenPositions !== null;
const predictedSide = hides ? "source" : "target";
const rowOf = (step) => (hides ? data.hiddenPositions[step] : step);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Isolates a token, so that its text direction does not affect the words around it.
const isolated = (token) => "\u2068" + token + "\u2069";
const quoted = (token) => "“" + isolated(token) + "”";
const share = (value) => value.toFixed(value > 0 && value < 0.1 ? 3 : 2);
function percent(value) {
  const digits = value < 0.001 ? 1 : value < 0.1 ? 2 : 3;
  return (value >= 0.9995 ? "100" : (100 * value).toPrecision(digits)) + " %";
}

// ---- colors: one hue from light to dark, so that lightness alone shows the value; reversed in dark mode

const RAMPS = {
  light: [[255, 255, 255], [205, 222, 241], [133, 178, 217], [56, 120, 183], [8, 48, 107]],
  dark: [[27, 31, 39], [24, 62, 104], [36, 108, 168], [98, 172, 224], [226, 243, 255]],
};
const media = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (media.matches ? "dark" : "light")) === "dark";

/** Interpolates a ramp to 256 colors. */
const steps = (ramp) => Array.from({ length: 256 }, (_, step) => {
  const place = (step / 255) * (ramp.length - 1), below = Math.min(Math.floor(place), ramp.length - 2);
  return ramp[below].map((from, at) => Math.round(from + (place - below) * (ramp[below + 1][at] - from)));
});
const PALETTES = { light: steps(RAMPS.light), dark: steps(RAMPS.dark) };
const palette = () => PALETTES[isDark() ? "dark" : "light"];
const color = (value) => palette()[Math.round(255 * Math.min(Math.max(value, 0), 1))];
const css = (rgb) => `rgb(${rgb.join(" ")})`;
const luminance = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, part, at) => sum + part * (rgb[at] / 255) ** 2.2, 0);
const inkOn = (rgb) => (luminance(rgb) > 0.18 ? "#000000" : "#ffffff");
const variable = (name) => {
  const probe = document.body.appendChild(make("i", { style: `color: var(${name})` }));
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
};
