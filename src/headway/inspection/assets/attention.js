// The attention of an inspection: tokens, one large matrix, all layers and heads, and the current selection.

import { color, css, FONT, inkOn, isDark, isolated, make, moveFocus, palette, variable } from "./basics.js";
import { WORDS } from "./attention_words.js";

const TITLE = 20; // space for the title of an axis, in pixels
const SLANT = Math.PI / 3;
const MOST_NAMED = 4; // tokens in a sentence about the selection
let numberOfSections = 0; // makes the ids of each section unique

/** Returns the weights of a map as numbers from 0 to 1: one byte each, or two if there are more steps. */
function unpacked(text, maxWeight) {
  const bytes = atob(text), width = maxWeight > 255 ? 2 : 1, weights = new Float32Array(bytes.length / width);
  for (let at = 0; at < weights.length; at++) {
    const high = width === 2 ? bytes.charCodeAt(2 * at + 1) : 0;
    weights[at] = (bytes.charCodeAt(width * at) + 256 * high) / maxWeight;
  }
  return weights;
}

/**
 * Shows the attention of an inspection. `place` gets the class "attention", whose rules are in attention.css.
 *
 * The options are `language` ("en" or "de"), the `view` that is shown first ({ kind, layer, head }, head 0 for the mean),
 * and `onChoice({ side, row })`, which is called when another row is selected; `row` is null for a selected column.
 */
export class AttentionSection {
  constructor(place, data, { language = "en", view = null, onChoice = () => {} } = {}) {
    Object.assign(this, { place, data, words: WORDS[language], onChoice });
    this.formats = [2, 3].map((digits) => new Intl.NumberFormat(language, { minimumFractionDigits: digits, maximumFractionDigits: digits }));
    Object.assign(this, { kind: null, layer: 1, head: 0, row: 0, column: null, pinned: null });
    this.matrices = new Map(); // because every move of the pointer needs one
    this.weights = new Map();
    this.layout = {};
    this.ground = { key: null, canvas: document.createElement("canvas") }; // the matrix without the selection
    this.listening = new AbortController();
    this.build();
    const { signal } = this.listening;
    addEventListener("resize", () => this.drawMatrix(), { signal });
    const first = data.kinds.find((kind) => kind.id === view?.kind) ?? data.kinds[0];
    this.kinds.querySelector(`[value="${first.id}"]`).checked = true;
    this.chooseKind(first, view?.layer, view?.head);
  }

  /** Ends all listeners outside of the section. */
  close() {
    this.listening.abort();
  }

  /** Draws everything anew, in the colors of another theme. */
  recolor() {
    this.showThumbnails();
    this.chooseHead(this.layer, this.head);
  }

  say(key, values) {
    return this.words[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
  }

  quoted(token) {
    return this.say("quoted", { token: isolated(token) });
  }

  /** Returns a weight as text, with a third digit if it is small. */
  share(weight) {
    return this.formats[weight > 0 && weight < 0.1 ? 1 : 0].format(weight);
  }

  // ---- building

  build() {
    const { words } = this, number = (numberOfSections += 1);
    const titled = (tag, name, ...children) => make(tag, { id: `attention-${number}-${name}` }, ...children);
    const by = (name) => `attention-${number}-${name}`;
    this.kinds = make("fieldset", {}, make("legend", {}, words.kind));
    this.layerList = make("select");
    this.headList = make("select");
    this.whole = make("input", { type: "checkbox" });
    this.about = make("p");
    this.said = make("p", { class: "said", "aria-live": "polite" });
    this.rowsTitle = titled("h3", "rows");
    this.columnsTitle = titled("h3", "columns");
    this.rowChips = make("div", { class: "chips", role: "toolbar", "aria-labelledby": by("rows") });
    this.columnChips = make("div", { class: "chips", role: "toolbar", "aria-labelledby": by("columns") });
    this.matrixTitle = titled("figcaption", "matrix");
    this.canvas = make("canvas", {
      class: "matrix", tabindex: "0", role: "application", "aria-labelledby": by("matrix"), "aria-describedby": by("help"),
    });
    this.ramp = make("span", { class: "ramp" });
    this.most = make("span");
    this.heads = make("div", { class: "heads", role: "group", "aria-labelledby": by("all") });
    this.side = make("div", { class: "side" },
      titled("h3", "all", words.all), make("p", { class: "quiet" }, words.allAbout),
      make("div", { class: "scroll" }, this.heads));
    this.signs = make("p", { class: "quiet" });
    this.tip = make("div", { class: "tip", role: "presentation" });
    this.tip.hidden = true;
    const form = make("form", {}, this.kinds,
      make("label", {}, words.layer, " ", this.layerList), make("label", {}, words.head, " ", this.headList),
      make("label", { class: "check" }, this.whole, " ", words.whole));
    const figure = make("figure", {}, this.matrixTitle, make("div", { class: "scroll" }, this.canvas),
      make("div", { class: "legend", "aria-hidden": "true" },
        make("span", {}, "0"), this.ramp, this.most, make("span", {}, words.scale)),
      titled("p", "help", words.help));
    figure.lastElementChild.className = "quiet help";
    this.place.classList.add("attention");
    this.place.replaceChildren(form, this.about, this.said,
      make("div", { class: "two" },
        make("div", {}, this.rowsTitle, this.rowChips), make("div", {}, this.columnsTitle, this.columnChips)),
      this.signs,
      make("div", { class: "pair" }, figure, this.side), this.tip);
    form.addEventListener("submit", (event) => event.preventDefault());
    for (const kind of this.data.kinds) {
      const input = make("input", { type: "radio", name: by("kind"), value: kind.id });
      input.addEventListener("change", () => this.chooseKind(kind));
      this.kinds.append(make("label", {}, input, " ", words.kinds[kind.id].name));
    }
    this.layerList.addEventListener("change", () => this.chooseHead(Number(this.layerList.value), this.head));
    this.headList.addEventListener("change", () => this.chooseHead(this.layer, Number(this.headList.value)));
    this.whole.addEventListener("change", () => this.chooseHead(this.layer, this.head));
    this.listenToMatrix();
  }

  // ---- weights

  /** Returns the matrix of a head, or for head 0 the mean over all heads. */
  matrix(layer, head) {
    const { kind, data } = this, key = [kind.id, layer, head].join();
    if (!this.matrices.has(key)) {
      const map = kind.maps.find((each) => each.layer === layer);
      if (!this.weights.has(map)) this.weights.set(map, unpacked(map.weights, data.max_weight));
      const all = this.weights.get(map), rows = data.sides[kind.rows], columns = data.sides[kind.columns];
      const size = rows.length * columns.length;
      let weights;
      if (head) {
        const place = map.heads.indexOf(head);
        weights = all.subarray(place * size, (place + 1) * size);
      } else {
        weights = new Float32Array(size);
        all.forEach((weight, at) => (weights[at % size] += weight / map.heads.length));
      }
      const largest = weights.reduce((most, each) => Math.max(most, each), 0) || 1;
      const at = (row, column) => weights[row * columns.length + column];
      this.matrices.set(key, { rows, columns, weights, largest, at });
    }
    return this.matrices.get(key);
  }

  get shown() {
    return this.matrix(this.layer, this.head);
  }

  get brightest() {
    return this.whole.checked ? 1 : this.shown.largest;
  }

  // ---- tokens: selecting one colors the tokens that it attends to, or that attend to it

  showChips(place, side, choose) {
    place.replaceChildren();
    place.dir = this.data.right_to_left[side] ? "rtl" : "ltr";
    this.data.sides[side].forEach((token, at) => {
      const looks = { type: "button", class: "chip", tabindex: at ? -1 : 0 };
      const chip = make("button", looks, isolated(token), make("small"));
      chip.addEventListener("click", () => choose(at, true));
      chip.addEventListener("focus", () => choose(at, true));
      chip.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && choose(at, false));
      place.append(chip);
    });
    place.onpointerleave = () => this.restore();
    place.onkeydown = (event) => moveFocus(event, place, 1);
  }

  /** Returns an explanation of the signs that occur in tokens. */
  signsOf(tokens) {
    const found = Object.entries(this.words.signs).filter(([sign]) => tokens.some((token) => token.includes(sign)));
    return found.map(([sign, meaning]) => `${sign} ${meaning}`).join(" · ");
  }

  /** Selects a row, a column, or with both a cell. A pinned selection comes back when the pointer leaves. */
  choose(row, column, pin) {
    Object.assign(this, { row, column });
    if (pin) this.pinned = { row, column };
    this.showChoice();
  }

  restore() {
    this.tip.hidden = true;
    Object.assign(this, this.pinned ?? { row: 0, column: null });
    this.showChoice();
  }

  paintChips(place, weights, chosen, most) {
    [...place.children].forEach((chip, at) => {
      chip.classList.toggle("chosen", at === chosen);
      chip.setAttribute("aria-pressed", at === chosen);
      const rgb = weights && color(weights(at) / most);
      chip.style.backgroundColor = weights ? css(rgb) : "";
      chip.style.color = weights ? inkOn(rgb) : "";
      chip.querySelector("small").textContent = weights && weights(at) >= 0.0005 ? this.share(weights(at)) : "";
    });
  }

  showChoice() {
    const { shown, brightest, row, column } = this, byRow = row !== null;
    this.paintChips(this.rowChips, byRow ? null : (at) => shown.at(at, column), row, brightest);
    this.paintChips(this.columnChips, byRow ? (at) => shown.at(row, at) : null, column, brightest);
    const text = this.sentence();
    if (text !== this.said.textContent) this.said.textContent = text; // screen readers read each assignment aloud
    this.onChoice({ side: this.kind.rows, row });
    this.drawMatrix();
  }

  sentence() {
    const { shown, row, column } = this;
    const best = (count, value, names) =>
      [...Array(count).keys()]
        .sort((one, other) => value(other) - value(one))
        .slice(0, MOST_NAMED)
        .filter((at) => value(at) >= 0.0005)
        .map((at) => `${this.quoted(names[at])} ${this.share(value(at))}`)
        .join(", ") || this.words.nothing;
    const [rowToken, columnToken] = [this.quoted(shown.rows[row] ?? ""), this.quoted(shown.columns[column] ?? "")];
    if (row !== null && column !== null) {
      const weight = this.share(shown.at(row, column));
      return this.say("cell", {
        row: rowToken, rowNumber: row + 1, column: columnToken, columnNumber: column + 1, weight,
      });
    }
    if (row !== null) {
      const found = best(shown.columns.length, (at) => shown.at(row, at), shown.columns);
      return this.say("row", { row: rowToken, number: row + 1, found });
    }
    const found = best(shown.rows.length, (at) => shown.at(at, column), shown.rows);
    return this.say("column", { column: columnToken, number: column + 1, found });
  }

  // ---- the matrix

  measure(context) {
    const { shown, kind, words } = this, width = (token) => context.measureText(token).width;
    const left = Math.min(Math.max(...shown.rows.map(width)), 150) + 14 + TITLE;
    const label = Math.min(Math.max(...shown.columns.map(width)), 150);
    const room = this.canvas.parentElement.clientWidth - left - 10;
    const right = Math.cos(SLANT) * label + 12;
    const cell = Math.max(20, Math.min(40, Math.floor((room - right) / shown.columns.length)));
    const up = Math.sin(SLANT) * label + 22 + TITLE;
    const names = words.kinds[kind.id];
    const title = left + width(names.columns) + 4, rows = cell * shown.rows.length;
    const whole = Math.max(left + cell * shown.columns.length + right, title);
    Object.assign(this.layout, { left, up, cell, width: whole, height: up + rows + 4 });
    this.layout.rowsTitled = width(names.rows) <= rows;
  }

  /** Draws the matrix and the selection. The matrix is only redrawn if it looks different, so that pointing is fast. */
  drawMatrix() {
    const { canvas, layout, shown, row, column, ground } = this, context = canvas.getContext("2d");
    context.font = FONT;
    this.measure(context);
    const { left, up, cell, width, height } = layout;
    const sharp = Math.min(devicePixelRatio || 1, Math.sqrt(1.6e7 / (width * height)));
    const key = [this.kind.id, this.layer, this.head, this.brightest, isDark(), cell, width, height, sharp].join();
    if (ground.key !== key) {
      this.drawGround(sharp);
      ground.key = key;
      for (const side of ["width", "height"]) canvas[side] = ground.canvas[side];
      Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(ground.canvas, 0, 0);
    context.scale(sharp, sharp);
    context.font = FONT;
    context.strokeStyle = context.fillStyle = variable("--mark");
    context.lineWidth = 2.5;
    if (row !== null) {
      context.strokeRect(left, up + row * cell, cell * shown.columns.length, cell);
      this.drawRowLabel(context, shown.rows[row], row);
    }
    if (column !== null) {
      context.strokeRect(left + column * cell, up, cell, cell * shown.rows.length);
      this.drawColumnLabel(context, shown.columns[column], column);
    }
  }

  drawGround(sharp) {
    const { layout, shown, brightest } = this, { left, up, cell, width, height } = layout;
    const { canvas } = this.ground, context = canvas.getContext("2d");
    Object.assign(canvas, { width: Math.round(width * sharp), height: Math.round(height * sharp) });
    context.scale(sharp, sharp);
    context.font = FONT;
    context.fillStyle = variable("--quiet");
    const names = this.words.kinds[this.kind.id];
    drawText(context, names.columns, left, TITLE / 2, 0, "left");
    if (layout.rowsTitled) drawText(context, names.rows, TITLE / 2, up, -Math.PI / 2, "right");
    context.fillStyle = variable("--ink");
    shown.rows.forEach((token, row) => this.drawRowLabel(context, token, row));
    shown.columns.forEach((token, column) => this.drawColumnLabel(context, token, column));
    for (let row = 0; row < shown.rows.length; row++) {
      for (let column = 0; column < shown.columns.length; column++) {
        this.drawCell(context, shown.at(row, column), row, column, brightest);
      }
    }
    context.strokeStyle = variable("--line");
    context.strokeRect(left - 0.5, up - 0.5, cell * shown.columns.length + 1, cell * shown.rows.length + 1);
  }

  drawRowLabel(context, token, row) {
    const place = this.layout.up + (row + 0.5) * this.layout.cell;
    drawText(context, fitted(context, token, 150), this.layout.left - 8, place, 0, "right");
  }

  drawColumnLabel(context, token, column) {
    const place = this.layout.left + (column + 0.5) * this.layout.cell;
    drawText(context, fitted(context, token, 150), place, this.layout.up - 8, -SLANT, "left");
  }

  drawCell(context, weight, row, column, most) {
    const { left, up, cell } = this.layout, rgb = color(weight / most);
    context.fillStyle = css(rgb);
    context.fillRect(left + column * cell, up + row * cell, cell, cell);
    if (cell < 24 || weight < 0.005) return;
    context.save();
    context.fillStyle = inkOn(rgb);
    context.font = FONT.replace("14px", cell < 30 ? "9px" : "11px");
    Object.assign(context, { textAlign: "center", textBaseline: "middle" });
    const number = weight >= 0.995 ? "1" : this.formats[0].format(weight).slice(1);
    context.fillText(number, left + (column + 0.5) * cell, up + (row + 0.5) * cell);
    context.restore();
  }

  cellAt(event) {
    const { shown, layout } = this, box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - layout.left) / layout.cell);
    const row = Math.floor((event.clientY - box.top - layout.up) / layout.cell);
    const inside = row >= 0 && row < shown.rows.length && column >= 0 && column < shown.columns.length;
    return inside ? [row, column] : null;
  }

  showTip(event, row, column) {
    const { shown, tip } = this;
    tip.textContent = `${isolated(shown.rows[row])} → ${isolated(shown.columns[column])}: ${this.share(shown.at(row, column))}`;
    tip.hidden = false;
    const flip = event.clientX > innerWidth - tip.offsetWidth - 24;
    tip.style.left = `${flip ? event.clientX - tip.offsetWidth - 12 : event.clientX + 14}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)}px`;
  }

  listenToMatrix() {
    const { canvas } = this;
    const point = (event, pin) => {
      const cell = this.cellAt(event);
      if (!cell) return this.restore();
      this.choose(...cell, pin);
      this.showTip(event, ...cell);
    };
    canvas.addEventListener("pointermove", (event) => point(event, false));
    canvas.addEventListener("click", (event) => point(event, true));
    canvas.addEventListener("pointerleave", () => this.restore());
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (!move) return;
      event.preventDefault();
      const { shown, row, column } = this;
      const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
      const started = row !== null && column !== null;
      this.choose(
        within((row ?? 0) + (started ? move[0] : 0), shown.rows.length),
        within((column ?? 0) + (started ? move[1] : 0), shown.columns.length),
        true,
      );
    });
  }

  // ---- the selection of kind, layer and head

  headName(head) {
    return head ? this.say("oneHead", { head }) : this.say("meanOf", { count: this.kind.maps[0].heads.length });
  }

  get headNumbers() {
    const { heads } = this.kind.maps[0];
    return heads.length > 1 ? [0, ...heads] : heads;
  }

  chooseKind(kind, layer, head) {
    Object.assign(this, { kind, row: 0, column: null, pinned: null });
    const heads = this.headNumbers, names = this.words.kinds[kind.id], count = kind.maps.length;
    layer ??= kind.maps.at(-1).layer;
    head = heads.includes(head) ? head : heads[0];
    options(this.layerList, kind.maps.map((map) => [map.layer, this.say("layerOf", { layer: map.layer, count })]), layer);
    options(this.headList, heads.map((each) => [each, this.headName(each)]), head);
    this.about.textContent = names.about;
    this.signs.textContent = this.signsOf([...this.data.sides[kind.rows], ...this.data.sides[kind.columns]]);
    this.rowsTitle.textContent = this.say("rows", { name: names.rows });
    this.columnsTitle.textContent = this.say("columns", { name: names.columns });
    this.showChips(this.rowChips, kind.rows, (row, pin) => this.choose(row, null, pin));
    this.showChips(this.columnChips, kind.columns, (column, pin) => this.choose(null, column, pin));
    this.showThumbnails();
    this.chooseHead(layer, head);
  }

  chooseHead(layer, head) {
    Object.assign(this, { layer, head });
    this.layerList.value = layer;
    this.headList.value = head;
    const kind = this.words.kinds[this.kind.id].name, count = this.kind.maps.length;
    this.matrixTitle.textContent = this.say("title", { kind, layer, count, head: this.headName(head) });
    this.most.textContent = this.share(this.brightest);
    const stops = [0, 0.25, 0.5, 0.75, 1].map((value) => css(color(value)));
    this.ramp.style.background = `linear-gradient(to right, ${stops.join()})`;
    for (const thumb of this.heads.querySelectorAll("button")) {
      const chosen = thumb.dataset.place === `${layer},${head}`;
      thumb.setAttribute("aria-pressed", chosen);
      thumb.tabIndex = chosen ? 0 : -1;
    }
    this.showChoice();
  }

  showThumbnails() {
    const { kind, heads } = this, columns = this.headNumbers;
    heads.style.gridTemplateColumns = `max-content repeat(${columns.length}, max-content)`;
    heads.replaceChildren(make("span"));
    columns.forEach((head) => {
      heads.append(make("span", { class: "top" }, head ? this.say("oneHead", { head }) : this.words.mean));
    });
    for (const { layer } of kind.maps) {
      heads.append(make("span", {}, this.say("oneLayer", { layer })));
      for (const head of columns) {
        const name = this.say("thumbnail", { layer, head: this.headName(head) });
        const thumb = make("button", { type: "button", class: "thumb", title: name, "aria-label": name });
        thumb.dataset.place = `${layer},${head}`;
        thumb.append(drawThumbnail(this.matrix(layer, head)));
        thumb.addEventListener("click", () => this.chooseHead(layer, head));
        heads.append(thumb);
      }
    }
    heads.onkeydown = (event) => moveFocus(event, heads, columns.length);
    this.side.hidden = kind.maps.length * columns.length < 2;
  }
}

function options(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, name]) => make("option", { value }, name)));
  select.value = chosen;
  select.disabled = pairs.length < 2;
}

function fitted(context, token, most) {
  if (context.measureText(token).width <= most) return token;
  const characters = [...token];
  while (characters.length && context.measureText(characters.join("") + "…").width > most) characters.pop();
  return characters.join("") + "…";
}

function drawText(context, text, x, y, turn, align) {
  context.save();
  context.translate(x, y);
  context.rotate(turn);
  Object.assign(context, { textAlign: align, textBaseline: "middle" });
  context.fillText(isolated(text), 0, 0);
  context.restore();
}

function drawThumbnail(view) {
  const rows = view.rows.length, columns = view.columns.length;
  const canvas = make("canvas", { width: columns, height: rows, "aria-hidden": "true" });
  const scale = Math.min(84 / columns, Math.max(84 / rows, 12));
  Object.assign(canvas.style, { width: `${columns * scale}px`, height: `${rows * scale}px` });
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  const colors = palette();
  view.weights.forEach((weight, at) => {
    const rgb = colors[Math.round(255 * (weight / view.largest))];
    for (let part = 0; part < 3; part++) image.data[4 * at + part] = rgb[part];
    image.data[4 * at + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  return canvas;
}
