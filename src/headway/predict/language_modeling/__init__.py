"""Language models and masked language models: continue texts, fill in masked words, and score texts."""
