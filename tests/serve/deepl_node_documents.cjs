// Translates documents with DeepL's client for Node.js. Arguments: the service's URL, a key, and a folder with report.docx.
const fs = require("fs");
const path = require("path");
const deepl = require("deepl-node");

const [url, key, folder] = process.argv.slice(2);
const client = new deepl.DeepLClient(key, { serverUrl: url, maxRetries: 0 });
const at = (name) => path.join(folder, name);
const refusal = (promise) => promise.then(() => null, (error) => error.message);

(async () => {
  const whole = await client.translateDocument(at("report.docx"), at("node.docx"), "en", "de");
  const small = await client.translateDocument(at("report.docx"), at("minified.docx"), "en", "de", {
    enableDocumentMinification: true,
  });
  const handle = await client.uploadDocument(fs.readFileSync(at("page.html")), "en", "de", { filename: "page.html" });
  const { status } = await client.isDocumentTranslationComplete(handle);
  await client.downloadDocument(handle, at("node.html"));
  console.log(
    JSON.stringify({
      done: [whole.done(), small.done(), status.done()],
      billed: whole.billedCharacters,
      formality: await refusal(client.uploadDocument(at("report.docx"), "en", "de", { formality: "more" })),
      unknown: await refusal(client.uploadDocument(Buffer.from("a"), "en", "de", { filename: "a.xyz" })),
      wrongKey: await refusal(client.getDocumentStatus({ documentId: handle.documentId, documentKey: "0" })),
    }),
  );
})();
