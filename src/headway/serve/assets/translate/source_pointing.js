// Marks the source word at the mouse pointer or caret, and its translation.

const CARET_KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];

export class SourcePointing {
  /**
   * @param {HTMLTextAreaElement} input The source.
   * @param {SourceMarks} marks Marks words in the source.
   * @param {Output} output The translation. While the pointer is on a word of the translation, this class marks nothing.
   */
  constructor(input, marks, output) {
    Object.assign(this, { marks, output, position: null });
    input.addEventListener("pointermove", ({ clientX, clientY }) => this.#point(positionAt(input, clientX, clientY)));
    input.addEventListener("keyup", ({ key }) => CARET_KEYS.includes(key) && this.#point(input.selectionStart));
    for (const type of ["pointerleave", "blur"]) input.addEventListener(type, () => this.#point(null));
  }

  /** Forgets the current word, and removes the marks in the translation. */
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

/** Returns the index of the character in a textarea at a point in the window, or null if there is none. */
function positionAt(textarea, x, y) {
  const caret = document.caretPositionFromPoint?.(x, y); // between two characters
  if (caret?.offsetNode !== textarea) return null; // outside the text, or not supported by the browser
  const { left, top, bottom, height } = caret.getClientRect();
  if (y < top || y > bottom || Math.abs(x - left) > height) return null; // beside the text
  const isRightToLeft = getComputedStyle(textarea).direction === "rtl";
  return x < left === isRightToLeft ? caret.offset : caret.offset - 1;
}
