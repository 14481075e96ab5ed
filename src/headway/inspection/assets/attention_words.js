// The texts of the attention section in each language. `{name}` stands for a value.

export const WORDS = {
  en: {
    quoted: "“{token}”",
    signs: {
      "␣": "a space", "↵": "a new line", "<bos>": "the beginning of the text", "<eos>": "the end of the text",
      "<unk>": "a word that the model does not know", "<0x": "a byte of a character that the model has no token for",
    },
    kinds: {
      cross: {
        name: "Cross-attention", rows: "target token being predicted (query)", columns: "source token (key)",
        about: "Where the decoder looks in the source while it predicts a target token. Each row is one predicted token.",
      },
      pooling: {
        name: "Attention pooling", rows: "the whole text (query)", columns: "token (key)",
        about: "How much each token contributes to the one vector from which the label is predicted.",
      },
      encoder: {
        name: "Encoder self-attention", rows: "source token (query)", columns: "source token (key)",
        about: "Which source tokens each source token attends to. Every token can see all others.",
      },
      decoder: {
        name: "Decoder self-attention", rows: "token being predicted (query)", columns: "token already read (key)",
        about: "Which of the previous tokens the decoder uses to predict a token. It never sees later tokens, so the " +
          "upper right is empty.",
      },
    },
    kind: "Kind", layer: "Layer", head: "Head", layerOf: "{layer} of {count}",
    oneHead: "head {head}", mean: "mean", meanOf: "mean of {count} heads", oneLayer: "layer {layer}",
    whole: "Color scale from 0 to 1 for all maps", rows: "Rows: {name}", columns: "Columns: {name}",
    title: "{kind}, layer {layer} of {count}, {head}", thumbnail: "layer {layer}, {head}",
    scale: "attention weight (each row sums to 1)",
    help: "Point at a cell, or move with the arrow keys when the matrix has the focus.",
    all: "All layers and heads",
    allAbout: "Rows are queries and columns are keys, as in the large matrix. Each small picture has its own color " +
      "scale, from 0 to its largest weight. Choose one to enlarge it.",
    cell: "{row} (row {rowNumber}) attends to {column} (column {columnNumber}) with weight {weight}.",
    row: "{row} (row {number}) attends most to: {found}.",
    column: "{column} (column {number}) is attended to most by: {found}.", nothing: "nothing",
  },
  de: {
    quoted: "„{token}“",
    signs: {
      "␣": "ein Leerzeichen", "↵": "ein Zeilenumbruch", "<bos>": "der Anfang des Textes", "<eos>": "das Ende des Textes",
      "<unk>": "ein Wort, das das Modell nicht kennt", "<0x": "ein Byte eines Zeichens, für das das Modell kein Token hat",
    },
    kinds: {
      cross: {
        name: "Cross-Attention", rows: "Zieltoken, das vorhergesagt wird (Query)", columns: "Quelltoken (Key)",
        about: "Wohin der Decoder im Ausgangstext blickt, während er ein Token der Übersetzung vorhersagt. Jede Zeile " +
          "ist ein vorhergesagtes Token.",
      },
      pooling: {
        name: "Attention-Pooling", rows: "der ganze Text (Query)", columns: "Token (Key)",
        about: "Wie viel jedes Token zu dem einen Vektor beiträgt, aus dem die Klasse vorhergesagt wird.",
      },
      encoder: {
        name: "Self-Attention im Encoder", rows: "Quelltoken (Query)", columns: "Quelltoken (Key)",
        about: "Auf welche Token des Ausgangstexts jedes Token blickt. Jedes kann alle anderen sehen.",
      },
      decoder: {
        name: "Self-Attention im Decoder", rows: "Token, das vorhergesagt wird (Query)",
        columns: "bereits gelesenes Token (Key)",
        about: "Welche der bisherigen Token der Decoder nutzt, um ein Token vorherzusagen. Spätere sieht er nie, daher " +
          "ist rechts oben nichts.",
      },
    },
    kind: "Art", layer: "Schicht", head: "Head", layerOf: "{layer} von {count}",
    oneHead: "Head {head}", mean: "Mittel", meanOf: "Mittel der {count} Heads", oneLayer: "Schicht {layer}",
    whole: "Farbskala von 0 bis 1 für alle Bilder", rows: "Zeilen: {name}", columns: "Spalten: {name}",
    title: "{kind}, Schicht {layer} von {count}, {head}", thumbnail: "Schicht {layer}, {head}",
    scale: "Gewicht (jede Zeile hat die Summe 1)",
    help: "Wählen Sie ein Feld, oder wandern Sie mit den Pfeiltasten, wenn die Matrix den Fokus hat.",
    all: "Alle Schichten und Heads",
    allAbout: "Zeilen sind Queries und Spalten Keys, wie in der großen Matrix. Jedes kleine Bild hat seine eigene " +
      "Farbskala, von 0 bis zu seinem größten Gewicht. Wählen Sie eines, um es zu vergrößern.",
    cell: "{row} (Zeile {rowNumber}) blickt auf {column} (Spalte {columnNumber}) mit Gewicht {weight}.",
    row: "{row} (Zeile {number}) blickt vor allem auf: {found}.",
    column: "Auf {column} (Spalte {number}) blicken vor allem: {found}.", nothing: "nichts",
  },
};
