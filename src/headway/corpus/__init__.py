"""Operations on corpora, line by line, as jobs: translate, score, classify and generate.

====================================  ================================================================================
:mod:`~headway.corpus.lines`          a line of text as the source of a translation
:mod:`~headway.corpus.records`        lines with fields: TSV and JSON objects
:mod:`~headway.corpus.text_map`       an operation on texts as an operation on lines
:mod:`~headway.corpus.translation`    translate, with all options of ``headway translate``
:mod:`~headway.corpus.model_maps`     score, classify and generate
:mod:`~headway.corpus.work`           the job of an operation, and the processes that work on it
====================================  ================================================================================
"""
