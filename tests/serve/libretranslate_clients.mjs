// Calls a service with clients of LibreTranslate for Node.js, and prints what they got as JSON.
// Arguments: the service's URL, a key, and a wrong key.
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const { translate: whole } = require("libretranslate");
const { default: translate, Translate } = await import("translate");

const [url, key, wrongKey] = process.argv.slice(2);
const texts = ["Guten Morgen", "Grüße – 5 & 6?", "Zwei\nZeilen"];
const refusal = (promise) => promise.then((got) => `no error, but ${got}`, (error) => `${error.constructor.name}: ${error.message}`);
const ask = (query, more = {}) => whole({ query, source: "en", target: "de", apiurl: url, apiKey: key, ...more });

const engine = (chosen) => {
  const found = Translate({ engine: "libre", key: chosen });
  const original = found.engines.libre;
  found.engines.libre = { ...original, fetch: (options) => original.fetch({ ...options, url: `${url}/translate` }) };
  return found;
};

const all = async (call) => {
  const found = [];
  for (const text of texts) found.push(await call(text));
  return found;
};

console.log(
  JSON.stringify({
    libretranslate: {
      texts: await all((text) => ask(text)),
      auto: await ask("Good morning to all of you", { source: "auto" }),
      html: await ask("<b>Guten</b> Morgen", { format: "html" }),
      unknown: await refusal(ask("a", { target: "zz" })),
      wrongKey: (await ask("a", { apiKey: wrongKey })) ?? null,
    },
    translate: {
      texts: await all((text) => engine(key)(text, { from: "en", to: "de" })),
      unknown: await refusal(engine(key)("a", { from: "en", to: "fr" })),
    },
  }),
);
