"""Text: from strings to token ids and back (:mod:`headway.text.tokenizer`)."""
