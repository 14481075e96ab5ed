// Calls a service with Google's client of v2 for Node.js, and prints what it got as JSON.
// GOOGLE_CLOUD_TRANSLATE_ENDPOINT is the service's URL. Arguments: a key, a key that accepts one request, a wrong key.
const { Translate } = require("@google-cloud/translate").v2;

const [key, limitedKey, wrongKey] = process.argv.slice(2);
const texts = ["Guten Morgen", "Grüße – 5 & 6?", "Zwei\nZeilen"];
const auto = "Good morning to all of you";
const client = (own) => new Translate({ key: own, retryOptions: { autoRetry: false } });
const refusal = (promise) => promise.then(([got]) => `no error, but ${got}`, (error) => [error.code, error.message]);
const options = { from: "en", to: "de", format: "text" };

(async () => {
  const good = client(key);
  const [detected] = await good.detect([auto, auto]);
  console.log(
    JSON.stringify({
      one: (await good.translate(texts[0], options))[0],
      list: (await good.translate(texts, options))[0],
      auto: (await good.translate(auto, "de"))[0],
      detected: detected.map((each) => each.language),
      languages: (await good.getLanguages())[0],
      unknown: await refusal(good.translate("a", { from: "en", to: "zz" })),
      wrongKey: await refusal(client(wrongKey).translate("a", options)),
      limit: [(await client(limitedKey).translate(texts[0], options))[0], await refusal(client(limitedKey).translate("a", options))],
    }),
  );
})();
