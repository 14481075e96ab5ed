// German translations of the service's error messages. {…} is a placeholder, whose value is kept.

export const germanMessages = {
  // The service
  "The quota of this key is used up": "Das Kontingent dieses Schlüssels ist aufgebraucht",
  "Too many requests": "Zu viele Anfragen",
  "The service is busy; try again later": "Der Dienst ist ausgelastet; versuchen Sie es später noch einmal",
  "No worker is available now; try again later": "Kein Prozess kann jetzt antworten; versuchen Sie es später noch einmal",
  "The model {name} is being loaded; try again later": "Das Modell {name} wird geladen; versuchen Sie es später noch einmal",
  "No model translates from {source} into {target}": "Kein Modell übersetzt aus {source} in {target}",
  "The body has more than {most} bytes": "Die Anfrage hat mehr als {most} Bytes",
  "{count} texts in one request; at most {most} are accepted": "{count} Texte in einer Anfrage; höchstens {most} sind erlaubt",
  "{count} characters in one request; at most {most} are accepted": "{count} Zeichen in einer Anfrage; höchstens {most} sind erlaubt",
  "{count} texts in one job; at most {most} are accepted": "Das Dokument hat {count} Texte; höchstens {most} sind erlaubt",
  "{count} characters in one job; at most {most} are accepted": "Das Dokument hat {count} Zeichen; höchstens {most} sind erlaubt",
  "a text has {count} characters; at most {most} are accepted": "ein Absatz hat {count} Zeichen; höchstens {most} sind erlaubt",

  // Why
  "a text of {count} tokens is too long to be inspected; at most {most} are accepted: give one of its sentences":
    "ein Text von {count} Token ist für diese Ansicht zu lang; höchstens {most} sind möglich: geben Sie einen seiner Sätze ein",
  "a translation of {count} tokens is too long to be inspected; at most {most} are accepted: shorten it":
    "eine Übersetzung von {count} Token ist für diese Ansicht zu lang; höchstens {most} sind möglich: kürzen Sie sie",
  "a text of more than {most} tokens is translated in {parts} parts; give one of its sentences":
    "ein Text von mehr als {most} Token wird in {parts} Teilen übersetzt; geben Sie einen seiner Sätze ein",
  "prefix: {phrase} contains characters or words that the vocabulary lacks; leave it out or respell it":
    "{phrase} enthält Zeichen oder Wörter, die das Modell nicht kennt; schreiben Sie es anders",
  "prefix: {count} tokens, but this target may have at most {most}; raise max_length (--max-length) up to the model's number of positions, or use a shorter prefix":
    "der Anfang hat {count} Token, die Übersetzung darf aber nur {most} haben; geben Sie weniger Text ein",

  // Glossary
  "{phrase} is translated as {target}, but as {other} in {place}; list all alternatives in one entry, separated by |":
    "für {phrase} steht hier {target}, in einer anderen Zeile aber {other}; schreiben Sie alle Möglichkeiten in eine Zeile, getrennt durch |",
  "{phrase} contains characters or words that this model's vocabulary does not have; remove the entry, or use a spelling that occurs in the training text":
    "{phrase} enthält Zeichen oder Wörter, die das Modell nicht kennt; lassen Sie den Eintrag weg, oder schreiben Sie ihn anders",
  "{phrase} has {count} tokens; expected at most {most}; shorten the entry, or raise max_length (--max-length) if it is lower than 50":
    "{phrase} hat {count} Token, erlaubt sind {most}; kürzen Sie den Eintrag",
  "a phrase is empty; expected words in each column and on each side of |":
    "etwas fehlt; auf jeder Seite von | muss ein Wort stehen",
  "{phrase} contains a control character; expected one line of text": "{phrase} enthält ein Steuerzeichen; erlaubt ist eine Zeile Text",

  // Fill
  "the text has {count} {mask}; expected from 1 to {most}, such as {example}": "der Text hat {count} {mask}; möglich sind 1 bis {most}",
  "the text has {count} tokens, but the model's context has {most} besides the begin and end symbols; shorten the text":
    "der Text hat {count} Token, das Modell kann aber nur {most} lesen; kürzen Sie den Text",

  // Documents
  "This key has too many documents; fetch or delete finished documents":
    "Es sind zu viele Dokumente; speichern oder entfernen Sie fertige",
  "There is no document {id}": "Der Dienst hat dieses Dokument nicht mehr; übersetzen Sie es noch einmal",
  "documents with the extension {extension} are not supported; expected {list}":
    "Dokumente mit der Endung {extension} werden nicht unterstützt; möglich sind {list}",
  "the file has no extension; expected {list}": "die Datei hat keine Endung; möglich sind {list}",
  "a {extension} document may contain macros; save it in a format without macros":
    "ein Dokument mit der Endung {extension} kann Makros enthalten; speichern Sie es in einem Format ohne Makros",
  "the document contains macros; save it in a format without macros":
    "das Dokument enthält Makros; speichern Sie es in einem Format ohne Makros",
  "the document's type allows macros; save it in a format without macros":
    "das Dokument ist von einer Art, die Makros enthalten kann; speichern Sie es in einem Format ohne Makros",
  "the document is encrypted; save it without a password": "das Dokument ist verschlüsselt; speichern Sie es ohne Kennwort",
  "the document is encrypted, or in a format from before 2007; save it without a password":
    "das Dokument ist verschlüsselt oder in einem Format aus der Zeit vor 2007; speichern Sie es ohne Kennwort",
  "the file is not an office document, or it is damaged (no valid zip archive)":
    "die Datei ist kein Office-Dokument, oder sie ist beschädigt (kein gültiges ZIP-Archiv)",
  "the file is not a {kind}": "die Datei ist nicht von dieser Art: {kind}",
  "the {kind} uses the Strict Open XML variant; save it as an ordinary .docx or .pptx file":
    "das Dokument ist in der Variante Strict Open XML; speichern Sie es als gewöhnliche Datei in .docx oder .pptx",
  "the file is not an OpenDocument Text file": "die Datei ist kein OpenDocument-Text",
  "the unpacked document has {count} bytes; expected at most {most}": "das Dokument hat ausgepackt {count} Bytes; erlaubt sind {most}",
  "the document contains too much text": "das Dokument hat zu viel Text",
  "the document takes too long to process": "das Dokument zu verarbeiten dauert zu lange",
  "the document cannot be processed; it is damaged, or needs too much memory":
    "das Dokument kann nicht verarbeitet werden; es ist beschädigt oder braucht zu viel Speicher",
  "the document is nested too deeply": "das Dokument ist zu tief verschachtelt",
  "the file is not valid {encoding} (byte {place}); convert it to UTF-8":
    "die Datei ist kein gültiges {encoding} (Byte {place}); wandeln Sie sie in UTF-8 um",
  "the file is not a text file, because it contains null characters": "die Datei ist keine Textdatei, denn sie enthält Nullzeichen",
  "the file is not valid JSON ({reason})": "die Datei ist kein gültiges JSON ({reason})",
  "the file is not a valid PO file ({reason})": "die Datei ist keine gültige PO-Datei ({reason})",
  "the file is not a PO file, because it has no msgid": "die Datei ist keine PO-Datei, denn sie hat kein msgid",
  "the file has no subtitles, because no line has the form 00:00:01,000 --> 00:00:02,000":
    "die Datei hat keine Untertitel, denn keine Zeile hat die Form 00:00:01,000 --> 00:00:02,000",
  "the XML is not valid ({reason})": "das XML ist nicht gültig ({reason})",
  "the service cannot write it": "der Dienst kann es nicht schreiben",
  "internal error": "der Dienst ist daran gescheitert; sein Protokoll nennt den Grund",
};
