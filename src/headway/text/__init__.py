"""Convert text to token ids and back (:mod:`headway.text.tokenizer`)."""
