// The views, in the order of the navigation. A view is shown if a loaded model has one of its kinds.
// A module exports `mount(container, context, state)`; views/translate.js is an example, main.js describes the context.

export const VIEWS = [
  { name: "translate", kinds: ["translation"], load: () => import("./views/translate.js") },
  { name: "why", kinds: ["translation"], load: () => import("./views/why.js") },
  { name: "write", kinds: ["language_model"], load: () => import("./views/write.js") },
  { name: "fill", kinds: ["masked_language_model"], load: () => import("./views/fill.js") },
  { name: "classify", kinds: ["classification"], load: () => import("./views/classify.js") },
];
