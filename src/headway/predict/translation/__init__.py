"""Translate text with one model, with two models through a third language, or in several processes.

In the order in which a call uses them: :mod:`~headway.predict.translation.text_translator` is the interface of all
translators, and :mod:`~headway.predict.translation.translator` the class that combines the steps.
:mod:`~headway.predict.translation.marked_translation` translates the segments of marked texts,
:mod:`~headway.predict.translation.plan` turns texts into search requests and merges what was found for their parts, and
:mod:`~headway.predict.translation.find_candidates` answers the requests.
"""
