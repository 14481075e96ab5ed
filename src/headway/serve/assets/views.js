// The views in the order of the navigation. A view is shown if a model of the service has its capability.
// A module exports `mount(container, context, state)`. See views/translate.js for an example, and main.js for the context.

export const VIEWS = [
  { name: "translate", capability: "translates", load: () => import("./views/translate.js") },
  { name: "why", capability: "translates", load: () => import("./views/why.js") },
  { name: "write", capability: "continues", load: () => import("./views/write.js") },
  { name: "fill", capability: "fills", load: () => import("./views/fill.js") },
  { name: "classify", capability: "labels", load: () => import("./views/classify.js") },
];
