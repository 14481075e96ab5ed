// Marks parts of the text in a textarea with boxes behind it, whose positions come from an invisible copy of the text.

import { make } from "../dom.js";

export class SourceMarks {
  constructor(textarea) {
    this.textarea = textarea;
    this.copy = make("div", { class: "copy", "aria-hidden": "true", dir: "auto" });
    this.boxes = make("div", { class: "boxes" });
    this.layer = make("div", { class: "marks", "aria-hidden": "true" }, this.copy, this.boxes);
    textarea.before(this.layer);
    textarea.addEventListener("scroll", () => this.#scroll());
    textarea.addEventListener("input", () => this.show([]));
  }

  /** Highlights spans [start, end) of the text. With `scrolls`, scrolls the first span into view. */
  show(spans, scrolls = true) {
    this.boxes.replaceChildren();
    if (!spans.length) return;
    const { textarea, copy } = this;
    if (copy.textContent !== textarea.value) copy.textContent = textarea.value;
    copy.style.width = `${textarea.clientWidth}px`;
    const origin = copy.getBoundingClientRect(), text = copy.firstChild;
    let top = null;
    for (const [start, end] of spans) {
      if (end > text.length) continue;
      const range = document.createRange();
      range.setStart(text, start);
      range.setEnd(text, end);
      for (const rect of range.getClientRects()) {
        const box = make("i");
        Object.assign(box.style, {
          left: `${rect.left - origin.left}px`, top: `${rect.top - origin.top}px`,
          width: `${rect.width}px`, height: `${rect.height}px`,
        });
        this.boxes.append(box);
        top ??= rect.top - origin.top;
      }
    }
    if (scrolls && top !== null && (top < textarea.scrollTop || top > textarea.scrollTop + textarea.clientHeight - 24)) {
      textarea.scrollTop = top - textarea.clientHeight / 3;
    }
    this.#scroll();
  }

  #scroll() {
    this.boxes.style.transform = `translateY(${-this.textarea.scrollTop}px)`;
  }
}
