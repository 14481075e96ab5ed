"""Language models and masked language models: continue texts, fill in hidden words, and measure how probable texts
are."""
