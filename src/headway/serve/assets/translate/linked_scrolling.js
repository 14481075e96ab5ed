// Linked scrolling: the source and its translation scroll together, line by line.

export class LinkedScrolling {
  /**
   * @param {HTMLTextAreaElement} input The source.
   * @param {HTMLElement} pane The element that scrolls the translation.
   * @param {Output} output The translation.
   */
  constructor(input, pane, output) {
    Object.assign(this, { input, pane, output });
    input.addEventListener("scroll", () => this.follow());
    pane.addEventListener("scroll", () => this.#lead());
  }

  /** Scrolls the translation to the visible lines of the source, while the user types or scrolls in the source. */
  follow() {
    const { input, pane } = this, room = input.scrollHeight - input.clientHeight;
    const isRead = input.matches(":hover") || document.activeElement === input;
    if (!isRead || pane.matches(":hover") || room <= 0) return;
    const share = input.scrollTop / room, line = this.output.lineAt(share * input.value.length);
    if (!line) return;
    const own = line.getBoundingClientRect(), outer = pane.getBoundingClientRect();
    pane.scrollTop += (1 - share) * (own.top - outer.top) + share * (own.bottom - outer.bottom);
  }

  /** Scrolls the source to the visible lines of the translation, while the user scrolls in the translation. */
  #lead() {
    const { input, pane } = this, room = pane.scrollHeight - pane.clientHeight;
    if (!pane.matches(":hover") || room <= 0) return;
    const share = pane.scrollTop / room, { top, left, width, height } = pane.getBoundingClientRect();
    const line = document.elementFromPoint(left + width / 2, top + share * (height - 1))?.closest(".output p");
    if (!line) return;
    const position = this.output.startOf(line) / input.value.length; // relative position of the line, which is the same in the pane
    input.scrollTop = position * input.scrollHeight - share * input.clientHeight;
  }
}
