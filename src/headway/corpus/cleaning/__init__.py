"""Cleaning of corpora: repair texts, and drop the pairs, texts and labeled texts that a model should not learn from.

================================================  =====================================================================
:mod:`~headway.corpus.cleaning.config`            which repairs and rules, in which order, with which thresholds
:mod:`~headway.corpus.cleaning.corpus_files`      what file names mean, and the files with what is kept
:mod:`~headway.corpus.cleaning.corpus_lines`      the lines of a corpus as texts, and texts as lines of the same format
:mod:`~headway.corpus.cleaning.tmx_output`        pairs as a translation memory
:mod:`~headway.corpus.cleaning.repairs`           repairs of a text: wrong encodings, entities, tags, white space
:mod:`~headway.corpus.cleaning.language`          probabilities of languages, for batches of texts
:mod:`~headway.corpus.cleaning.scripts`           the script of each character
:mod:`~headway.corpus.cleaning.facts`             numbers, addresses and placeholders, which a translation keeps
:mod:`~headway.corpus.cleaning.similarity`        copies and repeated n-grams
:mod:`~headway.corpus.cleaning.measures`          the values by which rules judge a line
:mod:`~headway.corpus.cleaning.measuring`         measure all lines: the first pass, an operation of a job
:mod:`~headway.corpus.cleaning.length_ratio`      limits of the length ratio, learned from the corpus
:mod:`~headway.corpus.cleaning.lexical_model`     scores of pairs by word translations that are learned from the corpus
:mod:`~headway.corpus.cleaning.cross_entropy`     scores of pairs by two translation models
:mod:`~headway.corpus.cleaning.coverage`          whether a side of a pair was truncated
:mod:`~headway.corpus.cleaning.mixture`           the border between the scores of translations and of bad pairs
:mod:`~headway.corpus.cleaning.artificial_pairs`  texts that make bad pairs of good ones
:mod:`~headway.corpus.cleaning.scoring`           score pairs by these models, as an operation of a job
:mod:`~headway.corpus.cleaning.learned_scores`    what is learned from a corpus to score its pairs
:mod:`~headway.corpus.cleaning.repeats`           lines with equal keys, found by partitions on disk
:mod:`~headway.corpus.cleaning.rules`             the rules: which value, which threshold, in which direction
:mod:`~headway.corpus.cleaning.decisions`         which lines are dropped, and by which rule: the second pass
:mod:`~headway.corpus.cleaning.findings`          counts, histograms and examples for the report
:mod:`~headway.corpus.cleaning.report`            report.json and report.html
:mod:`~headway.corpus.cleaning.request`           inputs and settings for given files, languages and models
:mod:`~headway.corpus.cleaning.run`               the passes one after another, in a folder that can be resumed
:mod:`~headway.corpus.cleaning.hint`              a look at a sample of a training corpus
================================================  =====================================================================
"""
