// Functions that create and handle elements. Text is always inserted as text, never as markup.

/** Returns an element with attributes and children. Null and false omit an attribute; true results in an empty value. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** Isolates text that may have another direction, so that it does not affect the words around it. */
export const isolated = (text) => "\u2068" + text + "\u2069";

/** Returns a text, truncated with an ellipsis if it has more than `most` characters. */
export const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** Returns a probability as a percentage: 98%, 4.2%, 0.03%. Only certainty is 100%. */
export function percent(probability, language) {
  const digits = probability >= 0.1 ? 0 : probability >= 0.01 ? 1 : 2;
  const format = (value) => value.toLocaleString(language, { style: "percent", maximumFractionDigits: digits });
  if (probability > 0 && probability < 0.00005) return `< ${format(0.0001)}`;
  return format(probability > 0.99 && probability < 0.9995 ? 0.99 : probability);
}

/**
 * Focuses the field of a new view. If the list of the page's languages has the focus, it keeps it, because a change of
 * the language mounts all views again.
 */
export function focusField(field) {
  if (document.activeElement?.id !== "language") field.focus({ preventScroll: true });
}

/** Returns whether a key event means Undo: Ctrl+Z or Command+Z. */
export const isUndo = ({ key, ctrlKey, metaKey, shiftKey }) => key === "z" && (ctrlKey || metaKey) && !shiftKey;

/** Makes `item` the only one of `items` that the Tab key reaches (a roving tabindex). */
export function makeTabStop(item, items) {
  for (const each of items) each.tabIndex = each === item ? 0 : -1;
}

/** Moves the focus among `items` with the arrow keys, Home and End. Returns the element that has the focus afterwards. */
export function moveFocus(event, items, { vertical = true, horizontal = false, rightToLeft = false } = {}) {
  const at = items.indexOf(document.activeElement), forward = rightToLeft ? -1 : 1;
  const steps = { Home: -at, End: items.length - 1 - at };
  if (vertical) Object.assign(steps, { ArrowDown: 1, ArrowUp: -1 });
  if (horizontal) Object.assign(steps, { ArrowRight: forward, ArrowLeft: -forward });
  if (at < 0 || !(event.key in steps)) return null;
  event.preventDefault();
  const next = items[Math.min(Math.max(at + steps[event.key], 0), items.length - 1)];
  next.focus();
  return next;
}
