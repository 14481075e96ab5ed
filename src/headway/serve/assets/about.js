// About this model: a drawing of the architecture, which is fetched when the user opens the section.

import { make } from "./dom.js";

/** Returns a closed section with drawings of the models, which the service makes from their configurations. */
export function aboutModels({ api, t, describe }, models) {
  const drawings = make("div", {});
  const element = make("details", { class: "card about-models" }, make("summary", {}, t("about.title")), drawings);
  element.addEventListener("toggle", async () => {
    if (!element.open || drawings.childElementCount) return;
    try {
      for (const { name } of models) {
        const file = await api.file(`diagram?model=${encodeURIComponent(name)}`);
        const text = new DOMParser().parseFromString(await file.text(), "image/svg+xml").querySelector("desc").textContent;
        drawings.append(make("figure", {},
          make("figcaption", {}, name),
          make("img", { src: URL.createObjectURL(file), alt: t("about.drawing", { name, text }) })));
      }
    } catch (error) {
      drawings.replaceChildren(make("p", { class: "error", role: "alert" }, describe(error)));
    }
  });
  return element;
}
