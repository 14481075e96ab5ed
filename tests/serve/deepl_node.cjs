// Calls a service with DeepL's client for Node.js, and prints what it got as JSON. Arguments: the service's URL.
const deepl = require("deepl-node");

const client = new deepl.DeepLClient("any", { serverUrl: process.argv[2], maxRetries: 0 });
const refusal = (promise) => promise.then(() => null, (error) => `${error.constructor.name}: ${error.message}`);
const entries = (glossary, ...pair) =>
  client.getMultilingualGlossaryDictionaryEntries(glossary, ...pair).then((found) => found.entries.entries());

async function translations() {
  const options = {
    formality: "prefer_more",
    preserveFormatting: true,
    context: "Auf dem Meer.",
    splitSentences: "on",
    modelType: "quality_optimized",
  };
  return {
    one: await client.translateText("Ein Hund.", "en", "de"),
    list: (await client.translateText(["Ein Hund.", "Hallo Welt. Guten Morgen!"], "en", "de", options)).map((each) => each.text),
    whole: (await client.translateText("Hallo Welt. Guten Morgen!", "en", "de", { splitSentences: "off" })).text,
    html: (await client.translateText("<p>Ein <b>Hund</b>.</p>", "en", "de", { tagHandling: "html", ignoreTags: ["i", "u"] })).text,
    detected: await client.translateText("Guten Morgen, wie geht es Ihnen?", null, "en-US"),
    formality: await refusal(client.translateText("Hallo!", "en", "de", { formality: "more" })),
    unknown: await refusal(client.translateText("Hallo!", "en", "zz")),
    deprecated: await refusal(client.translateText("Hallo!", "de", "en")),
    sources: (await client.getSourceLanguages()).map((each) => each.code),
    targets: (await client.getTargetLanguages()).map((each) => each.code),
    limited: (await client.getUsage()).anyLimitReached(),
    rephrased: await refusal(client.rephraseText("Hallo!", "de")),
    noModel: await refusal(
      client.createMultilingualGlossary("x", [
        { sourceLangCode: "fr", targetLangCode: "de", entries: new deepl.GlossaryEntries({ entries: { a: "b" } }) },
      ]),
    ),
  };
}

async function glossariesOfVersion2() {
  const given = new deepl.GlossaryEntries({ entries: { Hund: "cat", 'Sag "Hallo", du': "a, b c" } });
  const first = await client.createGlossary("first", "en", "de", given);
  const csv = Buffer.from('\uFEFFHund,cat,en,de\n"Sag ""Hallo"", du","a, b c"\n');
  const second = await client.createGlossaryWithCsv("second", "en", "de", csv);
  const text = (await client.translateText("Ein Hund.", "en", "de", { glossary: first })).text;
  const found = {
    text,
    counts: [first.entryCount, second.entryCount],
    entries: [(await client.getGlossaryEntries(first)).entries(), (await client.getGlossaryEntries(second)).entries()],
    names: (await client.listGlossaries()).map((each) => each.name),
    pairs: await client.getGlossaryLanguagePairs(),
  };
  await client.deleteGlossary(first);
  await client.deleteGlossary(second);
  return { ...found, deleted: await refusal(client.getGlossary(first.glossaryId)) };
}

async function glossariesOfVersion3() {
  const dictionary = (sourceLangCode, targetLangCode, given) => ({
    sourceLangCode,
    targetLangCode,
    entries: new deepl.GlossaryEntries({ entries: given }),
  });
  const both = [dictionary("en", "de", { Hund: "cat" }), dictionary("de", "en", { cat: "Hund" })];
  const glossary = await client.createMultilingualGlossary("both", both);
  const found = { created: glossary.dictionaries.map((each) => each.entryCount) };
  await client.updateMultilingualGlossaryName(glossary, "renamed");
  await client.updateMultilingualGlossaryDictionary(glossary, dictionary("en", "de", { Welt: "sun" }));
  found.merged = await entries(glossary, "en", "de");
  await client.replaceMultilingualGlossaryDictionaryWithCsv(glossary, "en", "de", '"Hund","bat"\n');
  found.replaced = await entries(glossary, "en", "de");
  found.text = (await client.translateText("Ein Hund.", "en", "de", { glossary })).text;
  await client.deleteMultilingualGlossaryDictionary(glossary, "en", "de");
  found.left = (await client.getMultilingualGlossary(glossary.glossaryId)).dictionaries.map((each) => each.sourceLangCode);
  found.names = (await client.listMultilingualGlossaries()).map((each) => each.name);
  await client.deleteMultilingualGlossary(glossary);
  return { ...found, deleted: await refusal(client.getMultilingualGlossary(glossary.glossaryId)) };
}

(async () => {
  const found = { ...(await translations()), v2: await glossariesOfVersion2(), v3: await glossariesOfVersion3() };
  console.log(JSON.stringify(found));
})();
