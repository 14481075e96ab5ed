"""Jobs that process corpora line by line: translate, score, classify and generate.

====================================  ================================================================================
:mod:`~headway.corpus.lines`          convert lines to sources of translations
:mod:`~headway.corpus.records`        lines with fields: TSV and JSON objects
:mod:`~headway.corpus.text_map`       apply an operation on texts to lines
:mod:`~headway.corpus.translation`    translate, with all options of ``headway translate``
:mod:`~headway.corpus.model_maps`     score, classify and generate
:mod:`~headway.corpus.work`           create an operation's job, and start the processes that work on it
====================================  ================================================================================
"""
