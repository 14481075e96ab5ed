"""Training: run a recipe, and write models to a run folder.

A run folder contains the resolved ``recipe.toml``, ``metrics.jsonl``, TensorBoard events, ``tokenizer/`` and
``tokens/`` (built once), ``checkpoints/step-N/`` (the training state), the model folders ``best/`` and ``average/``,
and ``chosen_model`` (the name of the better one).
"""
