"""Training: a recipe in, a run folder with models out.

A run folder holds ``recipe.toml`` as resolved, ``metrics.jsonl``, TensorBoard events, ``tokenizer/`` and ``tokens/``
(built once), ``checkpoints/step-N/`` (the training state), and the model folders ``best/`` and ``average/``.
"""
