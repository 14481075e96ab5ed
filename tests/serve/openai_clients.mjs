// Calls a service with OpenAI's client for Node.js, and prints what it got as JSON.
// Arguments: the service's URL, a key, a key that may send two requests a minute, and the name of a language model.
import { createRequire } from "node:module";

const { default: OpenAI } = createRequire(import.meta.url)("openai");
const [url, key, limitedKey, model] = process.argv.slice(2);
const connect = (apiKey, maxRetries = 0) => new OpenAI({ apiKey, baseURL: `${url}/v1`, maxRetries });
const client = connect(key);
const refusal = (promise) => promise.then(() => null, (error) => `${error.constructor.name}: ${error.message}`);
const options = { model, max_tokens: 12, temperature: 1.5, top_p: 0.9, seed: 3 };
const chat = { model: "model", messages: [{ role: "user", content: "Ein Hund läuft." }] };

async function streamed(stream, textOf) {
  let text = "", chunks = 0;
  for await (const chunk of await stream) {
    text += (chunk.choices.length && textOf(chunk.choices[0])) || "";
    chunks += 1;
  }
  return { text, chunks };
}

const stopped = async () => {
  const stream = await client.completions.create({ ...options, prompt: "ein", max_tokens: 50, stream: true });
  for await (const chunk of stream) {
    stream.controller.abort();
    return chunk.object;
  }
};

async function limited() {
  const small = { ...options, prompt: "a", max_tokens: 1 };
  const other = connect(limitedKey);
  for (let count = 0; count < 2; count++) await other.completions.create(small);
  const error = await other.completions.create(small).catch((found) => found);
  return { name: error.constructor.name, retryAfter: Number(error.headers.get("retry-after")) };
}

const completion = await client.completions.create({ ...options, prompt: ["ein", "zwei rote"], n: 2 });
const scored = await client.completions.create({ ...options, prompt: "zwei rote", max_tokens: 0, echo: true, logprobs: 2 });
console.log(
  JSON.stringify({
    models: (await client.models.list()).data.map((each) => each.id),
    model: (await client.models.retrieve(model)).owned_by,
    texts: completion.choices.map((each) => each.text),
    usage: completion.usage.completion_tokens,
    stopped: (await client.completions.create({ ...options, prompt: "ein", stop: ["\u0000", "a"] })).choices[0].text,
    streamed: await streamed(client.completions.create({ ...options, prompt: "ein", stream: true }), (each) => each.text),
    logprobs: scored.choices[0].logprobs.token_logprobs,
    chat: (await client.chat.completions.create(chat)).choices[0].message.content,
    chatStream: await streamed(client.chat.completions.create({ ...chat, stream: true }), (each) => each.delta.content),
    left: await stopped(),
    unknown: await refusal(client.completions.create({ ...options, model: "gpt-9", prompt: "a" })),
    empty: await refusal(client.chat.completions.create({ model, messages: [] })),
    wrongKey: await refusal(connect("wrong").completions.create({ ...options, prompt: "a" })),
    limited: await limited(),
  }),
);
