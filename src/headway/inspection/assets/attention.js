"use strict";
// The attention section: tokens, the large matrix, all heads, and the current selection.

// ---- weights

for (const kind of data.kinds) {
  for (const map of kind.maps) {
    const text = atob(map.weights), weights = new Float32Array(text.length / 2);
    for (let at = 0; at < weights.length; at++) {
      weights[at] = (text.charCodeAt(2 * at) + 256 * text.charCodeAt(2 * at + 1)) / 65535;
    }
    map.weights = weights;
  }
}
const state = { kind: null, layer: 1, head: 0, row: 0, column: null, pinned: null };

/** Returns the matrix of a head, or for head 0 the mean over all heads. Cached, because every pointer move needs it. */
const matrices = new Map();
function matrix(kind, layer, head) {
  const key = [kind.id, layer, head].join();
  if (!matrices.has(key)) {
    const map = kind.maps.find((each) => each.layer === layer);
    const rows = data.sides[kind.rows], columns = data.sides[kind.columns];
    const size = rows.length * columns.length;
    let weights;
    if (head) {
      const place = map.heads.indexOf(head);
      weights = map.weights.subarray(place * size, (place + 1) * size);
    } else {
      weights = new Float32Array(size);
      map.weights.forEach((weight, at) => (weights[at % size] += weight / map.heads.length));
    }
    const largest = weights.reduce((most, each) => Math.max(most, each), 0) || 1;
    matrices.set(key, { rows, columns, weights, largest, at: (row, column) => weights[row * columns.length + column] });
  }
  return matrices.get(key);
}
const shown = () => matrix(state.kind, state.layer, state.head);
const brightest = () => ($("whole").checked ? 1 : shown().largest);

// ---- tokens: selecting one colors the tokens that it attends to, or that attend to it

function showChips(id, side, choose) {
  const place = $(id);
  place.replaceChildren();
  place.dir = data.rightToLeft[side] ? "rtl" : "ltr";
  data.sides[side].forEach((token, at) => {
    const looks = { type: "button", class: "chip", tabindex: at ? -1 : 0 };
    const chip = make("button", looks, isolated(token), make("small"));
    chip.addEventListener("click", () => choose(at, true));
    chip.addEventListener("focus", () => choose(at, true));
    chip.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && choose(at, false));
    place.append(chip);
  });
  place.onpointerleave = () => restore();
  place.onkeydown = (event) => moveFocus(event, place, 1);
}

/** Moves the focus with the arrow keys among the focusable elements in `place`, `across` of which are on a line. */
function moveFocus(event, place, across) {
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

function chooseRow(row, pin) {
  Object.assign(state, { row, column: null });
  if (pin) state.pinned = { row, column: null };
  showChoice();
}
function chooseColumn(column, pin) {
  Object.assign(state, { row: null, column });
  if (pin) state.pinned = { row: null, column };
  showChoice();
}
function chooseCell(row, column, pin) {
  Object.assign(state, { row, column });
  if (pin) state.pinned = { row, column };
  showChoice();
}
function restore() {
  hideTip();
  Object.assign(state, state.pinned ?? { row: 0, column: null });
  showChoice();
}

function paintChips(id, weights, chosen, most) {
  [...$(id).children].forEach((chip, at) => {
    chip.classList.toggle("chosen", at === chosen);
    chip.setAttribute("aria-pressed", at === chosen);
    const rgb = weights && color(weights(at) / most);
    chip.style.backgroundColor = weights ? css(rgb) : "";
    chip.style.color = weights ? inkOn(rgb) : "";
    chip.querySelector("small").textContent = weights && weights(at) >= 0.0005 ? share(weights(at)) : "";
  });
}

function showChoice() {
  const view = shown(), most = brightest();
  const byRow = state.row !== null;
  paintChips("rows", byRow ? null : (row) => view.at(row, state.column), state.row, most);
  paintChips("columns", byRow ? (column) => view.at(state.row, column) : null, state.column, most);
  const said = sentence(view);
  if (said !== $("said").textContent) $("said").textContent = said; // screen readers read each assignment aloud
  document.querySelectorAll("#steps tbody tr").forEach((line, at) => {
    line.classList.toggle("chosen", byRow && state.kind.rows === predictedSide && rowOf(at) === state.row);
  });
  drawMatrix();
}

function sentence(view) {
  const best = (count, value, names) =>
    [...Array(count).keys()]
      .sort((one, other) => value(other) - value(one))
      .slice(0, 4)
      .filter((at) => value(at) >= 0.0005)
      .map((at) => `${quoted(names[at])} ${share(value(at))}`)
      .join(", ");
  const { row, column } = state;
  if (row !== null && column !== null) {
    return `${quoted(view.rows[row])} (row ${row + 1}) attends to ${quoted(view.columns[column])} ` +
      `(column ${column + 1}) with weight ${share(view.at(row, column))}.`;
  }
  if (row !== null) {
    const found = best(view.columns.length, (at) => view.at(row, at), view.columns);
    return `${quoted(view.rows[row])} (row ${row + 1}) attends most to: ${found || "nothing"}.`;
  }
  const found = best(view.rows.length, (at) => view.at(at, column), view.rows);
  return `${quoted(view.columns[column])} (column ${column + 1}) is attended to most by: ${found || "nothing"}.`;
}

// ---- the matrix

const layout = {};
const TITLE = 20; // space for the title of an axis, in pixels
const FONT = '14px system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif';
const SLANT = Math.PI / 3;

function measure(context, view) {
  const width = (token) => context.measureText(token).width;
  const left = Math.min(Math.max(...view.rows.map(width)), 150) + 14 + TITLE;
  const label = Math.min(Math.max(...view.columns.map(width)), 150);
  const room = $("matrix").parentElement.clientWidth - left - 10;
  const right = Math.cos(SLANT) * label + 12;
  const cell = Math.max(17, Math.min(40, Math.floor((room - right) / view.columns.length)));
  const up = Math.sin(SLANT) * label + 22 + TITLE;
  const title = left + width(state.kind.columnsName) + 4;
  const rows = cell * view.rows.length;
  Object.assign(layout, { left, up, cell, width: Math.max(left + cell * view.columns.length + right, title) });
  Object.assign(layout, { height: up + rows + 4, rowsTitled: width(state.kind.rowsName) <= rows });
}

/** The matrix without the selection. It is redrawn only if it looks different, so pointing at a large one is fast. */
const ground = { key: null, canvas: document.createElement("canvas") };

function drawMatrix() {
  const view = shown(), canvas = $("matrix"), context = canvas.getContext("2d");
  context.font = FONT;
  measure(context, view);
  const { left, up, cell, width, height } = layout;
  const sharp = Math.min(devicePixelRatio || 1, Math.sqrt(1.6e7 / (width * height)));
  const key = [state.kind.id, state.layer, state.head, brightest(), isDark(), cell, width, height, sharp].join();
  if (ground.key !== key) {
    drawGround(view, sharp);
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
  const { row, column } = state;
  if (row !== null) {
    context.strokeRect(left, up + row * cell, cell * view.columns.length, cell);
    drawRowLabel(context, view.rows[row], row);
  }
  if (column !== null) {
    context.strokeRect(left + column * cell, up, cell, cell * view.rows.length);
    drawColumnLabel(context, view.columns[column], column);
  }
}

function drawGround(view, sharp) {
  const { left, up, cell, width, height } = layout;
  Object.assign(ground.canvas, { width: Math.round(width * sharp), height: Math.round(height * sharp) });
  const context = ground.canvas.getContext("2d");
  context.scale(sharp, sharp);
  context.font = FONT;
  context.fillStyle = variable("--quiet");
  drawTitles(context);
  context.fillStyle = variable("--ink");
  view.rows.forEach((token, row) => drawRowLabel(context, token, row));
  view.columns.forEach((token, column) => drawColumnLabel(context, token, column));
  const most = brightest();
  for (let row = 0; row < view.rows.length; row++) {
    for (let column = 0; column < view.columns.length; column++) {
      drawCell(context, view.at(row, column), row, column, most);
    }
  }
  context.strokeStyle = variable("--line");
  context.strokeRect(left - 0.5, up - 0.5, cell * view.columns.length + 1, cell * view.rows.length + 1);
}

function fitted(context, token, most) {
  if (context.measureText(token).width <= most) return token;
  const characters = [...token];
  while (characters.length && context.measureText(characters.join("") + "…").width > most) characters.pop();
  return characters.join("") + "…";
}

function drawTitles(context) {
  drawText(context, state.kind.columnsName, layout.left, TITLE / 2, 0, "left");
  if (layout.rowsTitled) drawText(context, state.kind.rowsName, TITLE / 2, layout.up, -Math.PI / 2, "right");
}

function drawRowLabel(context, token, row) {
  const place = layout.up + (row + 0.5) * layout.cell;
  drawText(context, fitted(context, token, 150), layout.left - 8, place, 0, "right");
}

function drawColumnLabel(context, token, column) {
  const place = layout.left + (column + 0.5) * layout.cell;
  drawText(context, fitted(context, token, 150), place, layout.up - 8, -SLANT, "left");
}

function drawText(context, text, x, y, turn, align) {
  context.save();
  context.translate(x, y);
  context.rotate(turn);
  Object.assign(context, { textAlign: align, textBaseline: "middle" });
  context.fillText(isolated(text), 0, 0);
  context.restore();
}

function drawCell(context, weight, row, column, most) {
  const { left, up, cell } = layout, rgb = color(weight / most);
  context.fillStyle = css(rgb);
  context.fillRect(left + column * cell, up + row * cell, cell, cell);
  if (cell < 24 || weight < 0.005) return;
  context.save();
  context.fillStyle = inkOn(rgb);
  context.font = FONT.replace("14px", cell < 30 ? "9px" : "11px");
  Object.assign(context, { textAlign: "center", textBaseline: "middle" });
  const number = weight >= 0.995 ? "1" : weight.toFixed(2).slice(1);
  context.fillText(number, left + (column + 0.5) * cell, up + (row + 0.5) * cell);
  context.restore();
}

function cellAt(event) {
  const view = shown(), box = $("matrix").getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - layout.left) / layout.cell);
  const row = Math.floor((event.clientY - box.top - layout.up) / layout.cell);
  const inside = row >= 0 && row < view.rows.length && column >= 0 && column < view.columns.length;
  return inside ? [row, column] : null;
}

function showTip(event, row, column) {
  const view = shown(), tip = $("tip");
  tip.textContent = `${isolated(view.rows[row])} → ${isolated(view.columns[column])}: ${share(view.at(row, column))}`;
  tip.hidden = false;
  const flip = event.clientX > innerWidth - tip.offsetWidth - 24;
  tip.style.left = `${flip ? event.clientX - tip.offsetWidth - 12 : event.clientX + 14}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)}px`;
}
const hideTip = () => ($("tip").hidden = true);

function listenToMatrix() {
  const canvas = $("matrix");
  const point = (event, pin) => {
    const cell = cellAt(event);
    if (!cell) return restore();
    chooseCell(...cell, pin);
    showTip(event, ...cell);
  };
  canvas.addEventListener("pointermove", (event) => point(event, false));
  canvas.addEventListener("click", (event) => point(event, true));
  canvas.addEventListener("pointerleave", restore);
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const view = shown();
    const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
    const started = state.row !== null && state.column !== null;
    chooseCell(
      within((state.row ?? 0) + (started ? move[0] : 0), view.rows.length),
      within((state.column ?? 0) + (started ? move[1] : 0), view.columns.length),
      true,
    );
  });
}

// ---- the selection of kind, layer and head

const headName = (head, kind) => (head ? `head ${head}` : `mean of ${kind.maps[0].heads.length} heads`);

function showControls() {
  data.kinds.forEach((kind) => {
    const input = make("input", { type: "radio", name: "kind", value: kind.id });
    input.checked = kind === state.kind;
    input.addEventListener("change", () => chooseKind(kind));
    $("kinds").append(make("label", {}, input, kind.name));
  });
  $("layer").addEventListener("change", () => chooseHead(Number($("layer").value), state.head));
  $("head").addEventListener("change", () => chooseHead(state.layer, Number($("head").value)));
  $("whole").addEventListener("change", () => chooseHead(state.layer, state.head));
  $("controls").addEventListener("submit", (event) => event.preventDefault());
}

function options(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, name]) => make("option", { value }, name)));
  select.value = chosen;
  select.disabled = pairs.length < 2;
}

const heads = (kind) => (kind.maps[0].heads.length > 1 ? [0, ...kind.maps[0].heads] : kind.maps[0].heads);

function chooseKind(kind, layer = kind.maps.at(-1).layer, head = heads(kind)[0]) {
  state.kind = kind;
  Object.assign(state, { row: 0, column: null, pinned: null });
  options($("layer"), kind.maps.map((map) => [map.layer, `${map.layer} of ${kind.maps.length}`]), layer);
  options($("head"), heads(kind).map((each) => [each, headName(each, kind)]), head);
  $("about").textContent = kind.about;
  $("rows-title").textContent = `Rows: ${kind.rowsName}`;
  $("columns-title").textContent = `Columns: ${kind.columnsName}`;
  showChips("rows", kind.rows, chooseRow);
  showChips("columns", kind.columns, chooseColumn);
  showThumbnails(kind);
  chooseHead(layer, heads(kind).includes(head) ? head : heads(kind)[0]);
}

function chooseHead(layer, head) {
  Object.assign(state, { layer, head });
  $("layer").value = layer;
  $("head").value = head;
  const kind = state.kind;
  $("matrix-title").textContent =
    `${kind.name}, layer ${layer} of ${kind.maps.length}, ${headName(head, kind)}`;
  $("most").textContent = share(brightest());
  $("ramp").style.background =
    `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map((value) => css(color(value))).join()})`;
  for (const thumb of $("heads").querySelectorAll("button")) {
    const chosen = thumb.dataset.place === `${layer},${head}`;
    thumb.setAttribute("aria-pressed", chosen);
    thumb.tabIndex = chosen ? 0 : -1;
  }
  showChoice();
}

function showThumbnails(kind) {
  const place = $("heads"), columns = heads(kind);
  place.style.gridTemplateColumns = `max-content repeat(${columns.length}, max-content)`;
  place.replaceChildren(make("span"));
  columns.forEach((head) => place.append(make("span", { class: "top" }, head ? `head ${head}` : "mean")));
  for (const map of kind.maps) {
    place.append(make("span", {}, `layer ${map.layer}`));
    for (const head of columns) {
      const name = `layer ${map.layer}, ${headName(head, kind)}`;
      const thumb = make("button", { type: "button", class: "thumb", title: name, "aria-label": name });
      thumb.dataset.place = `${map.layer},${head}`;
      thumb.append(drawThumbnail(matrix(kind, map.layer, head)));
      thumb.addEventListener("click", () => chooseHead(map.layer, head));
      place.append(thumb);
    }
  }
  place.onkeydown = (event) => moveFocus(event, place, columns.length);
  $("side").hidden = kind.maps.length * columns.length < 2;
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
