"""Clean corpora: repair texts, and drop the pairs, texts and labeled texts that a model should not be trained on.

================================================  =====================================================================
:mod:`~headway.corpus.cleaning.config`            the configuration: repairs, rules and thresholds
:mod:`~headway.corpus.cleaning.corpus_files`      detect the formats of files, and write the kept lines
:mod:`~headway.corpus.cleaning.corpus_lines`      convert lines to texts, and texts to lines of the same format
:mod:`~headway.corpus.cleaning.tmx_output`        write pairs as a translation memory
:mod:`~headway.corpus.cleaning.repairs`           repairs of a text: wrong encodings, entities, tags, white space
:mod:`~headway.corpus.cleaning.language`          probabilities of languages, for batches of texts
:mod:`~headway.corpus.cleaning.scripts`           the script of each character
:mod:`~headway.corpus.cleaning.facts`             numbers, addresses and placeholders, which a translation must keep
:mod:`~headway.corpus.cleaning.similarity`        copies and repeated n-grams
:mod:`~headway.corpus.cleaning.measures`          the values of a line that rules compare with thresholds
:mod:`~headway.corpus.cleaning.measuring`         measure all lines: the first pass, run as a job
:mod:`~headway.corpus.cleaning.length_ratio`      limits of the length ratio, learned from the corpus
:mod:`~headway.corpus.cleaning.lexical_model`     scores of pairs by word translations that are learned from the corpus
:mod:`~headway.corpus.cleaning.cross_entropy`     scores of pairs by two translation models
:mod:`~headway.corpus.cleaning.coverage`          whether a side of a pair was truncated
:mod:`~headway.corpus.cleaning.mixture`           the threshold between the scores of translations and bad pairs
:mod:`~headway.corpus.cleaning.artificial_pairs`  create bad pairs from good ones
:mod:`~headway.corpus.cleaning.scoring`           score pairs with these models, as a job
:mod:`~headway.corpus.cleaning.learned_scores`    learn from a corpus how to score its pairs
:mod:`~headway.corpus.cleaning.repeats`           find lines with equal keys, in partitions on disk
:mod:`~headway.corpus.cleaning.rules`             the rules: which value, which threshold, in which direction
:mod:`~headway.corpus.cleaning.decisions`         which lines are dropped, and by which rule: the second pass
:mod:`~headway.corpus.cleaning.findings`          counts, histograms and examples for the report
:mod:`~headway.corpus.cleaning.report`            report.json and report.html
:mod:`~headway.corpus.cleaning.request`           create inputs and settings from files, languages and models
:mod:`~headway.corpus.cleaning.run`               run both passes in a folder, so that a run can be resumed
:mod:`~headway.corpus.cleaning.hint`              check a sample of a training corpus
================================================  =====================================================================
"""
