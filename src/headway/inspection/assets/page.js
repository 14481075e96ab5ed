// The inspection page, whose values are in the script element "data". The last line shows everything.

import { AttentionSection } from "./attention.js";
import { FONT, isDark, isolated, make, media, moveFocus, quoted } from "./basics.js";

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
let attention = null;

// A masked language model predicts hidden tokens of the source, and other models the tokens of the target.
const hides = data.hidden_positions !== null;
const predictedSide = hides ? "source" : "target";
const rowOf = (step) => (hides ? data.hidden_positions[step] : step);

function percent(value) {
  const digits = value < 0.001 ? 1 : value < 0.1 ? 2 : 3;
  return (value >= 0.9995 ? "100" : (100 * value).toPrecision(digits)) + " %";
}

// ---- the text and its facts

function showFacts() {
  $("model").textContent = `${data.model} · ${data.architecture}`;
  const continues = data.prompt_length !== null;
  const facts = [[hides ? "Text" : continues ? "Prompt" : "Source", data.source]];
  if (hides && data.target !== null) {
    facts.push(["With the most probable token for each mask", data.target]);
  } else if (hides) {
    facts.push([
      "Pseudo-log-likelihood",
      `${data.log_probability.toFixed(3).replace("-", "−")} nats, that is ` +
        `${percent(Math.exp(data.log_probability / data.steps.length))} per token, each given all others ` +
        `(geometric mean of ${data.steps.length})`,
    ]);
  } else if (data.target !== null) {
    const name = continues ? "Continuation" : "Target";
    const found = continues ? "of the most probable tokens" : "by beam search";
    facts.push([`${name}, ${data.target_given ? "as given" : found}`, data.target]);
    const own = data.steps.slice(data.prompt_length ?? 0).filter((step) => !step.forced).length;
    facts.push([
      `Probability of the ${name.toLowerCase()}`,
      `log P = ${data.log_probability.toFixed(3).replace("-", "−")} nats, that is ` +
        `${percent(Math.exp(data.log_probability / own))} per token (geometric mean of ${own}, with the end symbol)`,
    ]);
  }
  for (const [name, value] of facts) $("facts").append(make("dt", {}, name), make("dd", { dir: "auto" }, value));
  const notes = [data.omitted];
  if (data.truncated) notes.push("The text exceeds the model's maximum length: its end was cut off.");
  if (!data.omitted && !data.kinds.length) notes.push("This model has no attention: there are no weights to draw.");
  $("notes").textContent = notes.filter(Boolean).join(" ");
  $("notes").hidden = !$("notes").textContent;
}

// ---- the predictions

function bar(value) {
  const fill = make("i");
  fill.style.width = `${(100 * value).toFixed(2)}%`;
  return make("span", { class: "bar" }, make("span", {}, percent(value)), fill);
}

function showSteps() {
  if (hides) {
    $("predicted-title").textContent = "Predictions";
    $("steps").tHead.rows[0].cells[0].textContent = "#";
    $("steps").tHead.rows[0].cells[1].textContent = "Token";
    $("predicted-about").textContent = data.target === null
      ? "At each position: the token, its probability given all other tokens of the text, and the most probable tokens " +
        "at that position. Each token was hidden in a pass of its own."
      : "For each mask: the most probable token, its probability given the text with all masks hidden, and the most " +
        "probable tokens at that position.";
  }
  const rows = data.kinds.length && data.kinds.some((kind) => kind.rows === predictedSide);
  data.steps.forEach((step, at) => {
    const token = data.sides.target[at];
    const others = step.alternatives.map(([other, probability], place) =>
      make("span", place === step.rank - 1 ? { class: "same" } : {},
        isolated(other), " ", make("small", {}, percent(probability))));
    const line = make("tr", {},
      make("td", {}, String(rowOf(at) + 1)),
      make("td", {}, isolated(token)),
      make("td", {}, step.forced ? "given to the model" : bar(step.probability)),
      make("td", {}, step.forced ? "" : String(step.rank)),
      make("td", {}, make("div", { class: "alternatives" }, ...(step.forced ? [] : others))));
    if (rows) {
      const choose = (pin) => attention.kind.rows === predictedSide && attention.choose(rowOf(at), null, pin);
      line.tabIndex = at ? -1 : 0;
      line.addEventListener("focus", () => choose(true));
      line.addEventListener("pointerenter", () => choose(false));
      line.addEventListener("pointerleave", () => attention.kind.rows === predictedSide && attention.restore());
    }
    $("steps").tBodies[0].append(line);
  });
  // The left and right arrow keys scroll.
  const body = $("steps").tBodies[0];
  body.onkeydown = (event) => /Left|Right/.test(event.key) || moveFocus(event, body, 1);
}

// ---- where a language model was unsure

const MANY_CHOICES = 5; // in nats: from exp(5), about 150 choices, the color is deepest

function showCertainty() {
  $("choices").dir = data.right_to_left.target ? "rtl" : "ltr";
  $("choices").replaceChildren(...data.steps.map((step, at) => {
    const looks = { class: at < data.prompt_length ? "chip given" : "chip", role: "listitem" };
    const chip = make("span", looks, isolated(data.sides.target[at]), make("small", {}, count(step.choices)));
    const strength = Math.round(55 * Math.min(Math.log(step.choices) / MANY_CHOICES, 1));
    chip.style.background = `color-mix(in srgb, var(--against) ${strength}%, var(--raised))`;
    return chip;
  }));
  const first = data.prompt_length < data.steps.length - 1 ? data.prompt_length : 0;
  const places = [...data.steps.keys()].slice(first);
  const unsure = places.sort((one, other) => data.steps[other].choices - data.steps[one].choices).slice(0, 3);
  $("unsure").textContent = "Most unsure: " + unsure.map((at) => {
    const others = data.steps[at].alternatives.slice(0, 3).map(([token, value]) => `${quoted(token)} ${percent(value)}`);
    const list = others.length ? `: ${others.join(", ")}` : "";
    return `at ${quoted(data.sides.target[at])} (token ${at + 1}), ${count(data.steps[at].choices)} choices${list}`;
  }).join("; ") + ".";
}
const count = (value) => (value < 9.95 ? value.toFixed(1) : String(Math.round(value)));

// ---- alignment: two lines of tokens, with curves between aligned tokens

function svg(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function placed(tokens, reversed) {
  const context = make("canvas").getContext("2d");
  context.font = FONT.replace("14px", "15px");
  const widths = tokens.map((token) => Math.max(context.measureText(token).width, 10));
  const middles = [];
  let end = 8;
  for (const at of reversed ? [...tokens.keys()].reverse() : tokens.keys()) {
    middles[at] = end + widths[at] / 2;
    end += widths[at] + 16;
  }
  return { middles, end };
}

function showAlignment() {
  const source = data.sides.source, target = data.sides.target, picture = $("alignment");
  const above = placed(source, data.right_to_left.source), below = placed(target, data.right_to_left.target);
  const width = Math.max(above.end, below.end);
  for (const line of [above, below]) line.middles = line.middles.map((x) => x + (width - line.end) / 2);
  picture.replaceChildren(svg("desc", {}, data.alignment.map(([s, t]) => `${target[t]}: ${source[s]}`).join("; ")));
  for (const [name, value] of [["width", width], ["height", 150], ["viewBox", `0 0 ${width} 150`]]) {
    picture.setAttribute(name, value);
  }
  const marked = (kind, at, element) => Object.assign(element.dataset, { [kind]: at }) && element;
  for (const [s, t] of data.alignment) {
    const [x, y] = [above.middles[s], below.middles[t]];
    const path = svg("path", { d: `M ${x} 34 C ${x} 80, ${y} 70, ${y} 116` });
    picture.append(marked("target", t, marked("source", s, path)));
  }
  for (const [kind, tokens, line, y] of [["source", source, above, 26], ["target", target, below, 134]]) {
    const own = kind === "source" ? 0 : 1, others = [target, source][own];
    const dir = data.right_to_left[kind] ? "rtl" : "ltr";
    const place = svg("g", { role: "group", "aria-label": `${kind} tokens`, dir });
    tokens.forEach((token, at) => {
      const joined = data.alignment.filter((pair) => pair[own] === at).map((pair) => quoted(others[pair[1 - own]]));
      const name = `${quoted(token)}, aligned to ${joined.join(", ") || "nothing"}`;
      const looks = { x: line.middles[at], y, "text-anchor": "middle", class: joined.length ? "" : "minor" };
      const spoken = { tabindex: at ? -1 : 0, role: "img", "aria-label": name };
      const text = svg("text", { ...looks, ...spoken }, isolated(token));
      text.addEventListener("focus", () => dim(kind, at));
      text.addEventListener("blur", () => dim(null));
      text.addEventListener("pointerenter", () => dim(kind, at));
      text.addEventListener("pointerleave", () => dim(null));
      place.append(text);
    });
    place.onkeydown = (event) => moveFocus(event, place, 1);
    picture.append(place);
  }
}

function dim(kind, at) {
  for (const path of $("alignment").querySelectorAll("path")) {
    path.classList.toggle("dim", kind !== null && Number(path.dataset[kind]) !== at);
  }
}

// ---- a classifier's labels, and the attribution of one label

function showLabels() {
  for (const [label, probability] of data.labels) {
    $("labels").tBodies[0].append(
      make("tr", {}, make("th", { scope: "row" }, isolated(label)), make("td", {}, bar(probability))));
  }
}

function showAttribution() {
  const { label, values } = data.attribution;
  const strongest = Math.max(...values.map(Math.abs)) || 1;
  $("attribution-title").textContent = `Attribution for ${quoted(label)}`;
  $("attributed").dir = data.right_to_left.source ? "rtl" : "ltr";
  $("attributed").replaceChildren(...data.sides.source.map((token, at) => {
    const value = values[at] / strongest;
    const chip = make("span", { class: "chip", role: "listitem" }, isolated(token), make("small", {}, signed(value)));
    const strength = Math.round(100 * Math.abs(value) * 0.55);
    chip.style.background = `color-mix(in srgb, var(--${value < 0 ? "against" : "for"}) ${strength}%, var(--raised))`;
    return chip;
  }));
}
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);

// ---- the whole page

function showAll() {
  showFacts();
  if (data.labels) {
    $("classes").hidden = false;
    showLabels();
    if (data.attribution) {
      $("attribution").hidden = false;
      showAttribution();
    }
  }
  if (data.prompt_length !== null) {
    $("certainty").hidden = false;
    showCertainty();
  }
  if (data.kinds.length) {
    $("attention").hidden = false;
    attention = new AttentionSection($("attention-body"), data, { view: data.view, onChoice: markStep });
  }
  if (data.alignment.length) {
    $("aligned").hidden = false;
    $("aligned-about").textContent =
      "Each target token (below) is connected to the source token (above) with the largest mean weight over the " +
      `heads of cross-attention layer ${data.alignment_layer}. Point at a token, or move to it with the Tab and ` +
      "arrow keys, to see only its own lines.";
    showAlignment();
  }
  if (data.steps.length) {
    $("predicted").hidden = false;
    showSteps();
  }
}

/** Marks the predicted token whose row is selected. */
function markStep({ side, row }) {
  document.querySelectorAll("#steps tbody tr").forEach((line, at) => {
    line.classList.toggle("chosen", side === predictedSide && row !== null && rowOf(at) === row);
  });
}

media.addEventListener("change", () => attention?.recolor());
$("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  attention?.recolor();
});
showAll();
