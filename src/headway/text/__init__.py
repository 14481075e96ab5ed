"""Text: from strings to token ids and back (:mod:`headway.text.tokenizer`)."""

from headway.text.tokenizer import BOS, EOS, NUM_SPECIAL, PAD, UNK, MergeStep, Tokenizer, TokenizerConfig, language_tag

__all__ = ["BOS", "EOS", "NUM_SPECIAL", "PAD", "UNK", "MergeStep", "Tokenizer", "TokenizerConfig", "language_tag"]
