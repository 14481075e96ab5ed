// The tree of a beam search: nested lists that grow in the direction of the text. A chain of tokens without a fork is a
// single item.

import { make, percent } from "../dom.js";
import { SPACE, visible } from "../write/story.js";
import { section } from "./section.js";

const END = "<eos>";

export class SearchTree {
  constructor(context, beamSize) {
    const { t } = (this.context = context);
    this.about = make("p", { class: "quiet" });
    this.showDropped = make("input", { type: "checkbox" });
    this.showDropped.checked = true;
    this.tree = make("div", { class: "tree", tabindex: 0, role: "group", "aria-label": t("why.tree") });
    this.element = section(t("why.tree"), t("why.tree.about", { beam: beamSize }), this.about,
      make("label", { class: "row" }, this.showDropped, t("why.showDropped")), this.tree);
    this.showDropped.addEventListener("change", () => {
      this.tree.classList.toggle("hide-dropped", !this.showDropped.checked);
      this.#fit();
    });
    this.resizing = new ResizeObserver(() => this.#fit());
    this.resizing.observe(this.element);
  }

  close() {
    this.resizing.disconnect();
  }

  show(tree) {
    const { t } = this.context, { list, dropped } = treeList(tree, this.context);
    this.tree.replaceChildren(list);
    const said = [t("why.tree.count", { ends: tree.ends.length, dropped }), t("why.tree.score")];
    if (list.textContent.includes(SPACE)) said.push(t("why.tree.space"));
    this.about.textContent = said.join(" ");
    this.#fit();
  }

  /** Lays out the tree to the right if there is room, otherwise downwards. */
  #fit() {
    const { tree } = this;
    tree.classList.remove("down");
    tree.classList.toggle("down", tree.scrollWidth > tree.clientWidth);
  }
}

/** Returns the list element of a tree, and the number of dropped branches. */
function treeList(tree, context) {
  const children = new Map(); // index of a node, or null -> its children
  tree.nodes.forEach(({ parent }, at) => children.set(parent, [...(children.get(parent) ?? []), at]));
  const ends = new Map(tree.ends.map((end, place) => [end.node, { ...end, place }]));
  const onBest = new Set();
  for (let at = tree.ends[0]?.node ?? null; at !== null; at = tree.nodes[at].parent) onBest.add(at);
  const dropped = tree.nodes.filter((_, at) => !children.has(at) && !ends.has(at)).length;
  const list = listOf(children.get(null) ?? [], { tree, children, ends, onBest, ...context });
  const start = make("span", { class: "node start" }, context.t("why.start"));
  return { list: make("ul", {}, make("li", {}, start, list)), dropped };
}

function listOf(nodes, about) {
  // The branch of the best translation comes first, then the most probable branches.
  const value = (at) => (about.onBest.has(at) ? 1 : about.tree.nodes[at].log_probability);
  const sorted = [...nodes].sort((one, other) => value(other) - value(one));
  return make("ul", {}, ...sorted.map((at) => itemOf(at, about)));
}

function itemOf(first, about) {
  const { tree, children, ends, onBest, t, language } = about;
  const chain = [first];
  while (children.get(chain.at(-1))?.length === 1 && onBest.has(first) === onBest.has(children.get(chain.at(-1))[0])) {
    chain.push(children.get(chain.at(-1))[0]);
  }
  const last = chain.at(-1), end = ends.get(last), next = children.get(last) ?? [];
  const text = chain.map((at) => tree.nodes[at].token).filter((token) => token !== END).join("");
  const isDropped = !end && !next.length;
  const label = make("span", { class: "node" }, make("bdi", {}, text === "" ? t("why.end") : visible(text)),
    make("small", {}, percent(Math.exp(tree.nodes[first].log_probability), language)));
  if (onBest.has(first)) label.classList.add("best");
  if (isDropped) label.classList.add("dropped");
  if (end) {
    label.classList.add("end");
    const score = end.score.toLocaleString(language, { maximumFractionDigits: 2 }).replace("-", "−");
    label.append(make("small", { class: "rank" }, t("why.rank", { place: end.place + 1, score })));
  }
  if (isDropped) label.append(make("span", { class: "visually-hidden" }, t("why.dropped")));
  const item = make("li", { class: isDropped ? "is-dropped" : null }, label);
  if (next.length) item.append(listOf(next, about));
  return item;
}
