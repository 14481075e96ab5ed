// Pointing at a word of the source, with the mouse or the arrow keys: it is marked, and so is its translation.

const CARET_KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];

export class SourcePointing {
  /**
   * @param {HTMLTextAreaElement} input The source.
   * @param {SourceMarks} marks Marks its words.
   * @param {Output} output The translation. While a word of it is pointed at, the source is not.
   */
  constructor(input, marks, output) {
    Object.assign(this, { marks, output, position: null });
    input.addEventListener("pointermove", ({ clientX, clientY }) => this.#point(positionAt(input, clientX, clientY)));
    input.addEventListener("keyup", ({ key }) => CARET_KEYS.includes(key) && this.#point(input.selectionStart));
    for (const type of ["pointerleave", "blur"]) input.addEventListener(type, () => this.#point(null));
  }

  /** Forgets where a person points, and removes the marks of the translation. */
  clear() {
    this.position = null;
    this.output.markFrom(null);
  }

  #point(position) {
    if (position === this.position || this.output.pointed) return;
    this.position = position;
    this.marks.show(this.output.markFrom(position), false);
  }
}

/** Returns the position of the character at a place of the window in the text of a textarea, or null if there is none. */
function positionAt(textarea, x, y) {
  const caret = document.caretPositionFromPoint?.(x, y); // between two characters
  if (caret?.offsetNode !== textarea) return null; // not in the text, or not supported by the browser
  const { left, top, bottom, height } = caret.getClientRect();
  if (y < top || y > bottom || Math.abs(x - left) > height) return null; // beside the text
  const isRightToLeft = getComputedStyle(textarea).direction === "rtl";
  return x < left === isRightToLeft ? caret.offset : caret.offset - 1;
}
