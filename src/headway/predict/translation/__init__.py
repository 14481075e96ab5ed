"""Translate text with one model, with two models through a third language, or in several processes.

The modules, in the order in which a call uses them: :mod:`~headway.predict.translation.text_translator` is the
interface of all translators, and :mod:`~headway.predict.translation.translator` combines the steps.
:mod:`~headway.predict.translation.marked_translation` translates the segments of texts with tags or placeholders.
:mod:`~headway.predict.translation.plan` creates search requests for texts and merges the candidates for their parts,
and :mod:`~headway.predict.translation.find_candidates` runs the searches.
"""
