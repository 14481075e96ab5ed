"""Random models in Marian's format: arrays with their options, and vocabularies in YAML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

SOURCE = ["</s>", "<unk>", *"abcdefghij"]
TARGET = ["</s>", "<unk>", *"xyzuvw"]
WIDTH, HEADS, INNER = 32, 4, 48
OPTIONS: dict[str, Any] = {  # those that Marian 1.12 writes and that an import could need
    "version": "v1.12.0",
    "type": "transformer",
    "dim-emb": WIDTH,
    "enc-depth": 2,
    "dec-depth": 3,
    "transformer-heads": HEADS,
    "transformer-dim-ffn": INNER,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "swish",
    "transformer-no-projection": False,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-tied-layers": [],
    "transformer-train-positions": False,
    "transformer-guided-alignment-layer": "last",
    "transformer-aan-depth": 2,
    "tied-embeddings": False,
    "tied-embeddings-all": False,
    "lemma-dim-emb": 0,
    "ulr": False,
    "skip": False,
    "layer-normalization": False,
}
PRE_NORM = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}


def arrays(
    options: dict[str, Any], source_size: int, target_size: int, *, tie: str = "none", seed: int = 0
) -> dict[str, Any]:
    """Return the arrays of a random model. ``tie`` is "none", "target" (tied-embeddings) or "all"."""
    draw, found = np.random.default_rng(seed), dict[str, Any]()
    suffix = "_pre" if options["transformer-preprocess"] else ""

    def values(*shape: int) -> Any:
        return (draw.standard_normal(shape) * 0.4).astype(np.float32)

    def norm(name: str, suffix: str = suffix) -> None:
        found[f"{name}_ln_scale{suffix}"] = 1 + values(1, WIDTH)
        found[f"{name}_ln_bias{suffix}"] = values(1, WIDTH)

    def linear(name: str, letter: str, columns: int = WIDTH, rows: int = WIDTH) -> None:
        found[f"{name}_W{letter}"], found[f"{name}_b{letter}"] = values(columns, rows), values(1, rows)

    for side, depth in (("encoder", options["enc-depth"]), ("decoder", options["dec-depth"])):
        for layer in range(1, depth + 1):
            for attention in ("self", "context")[: 1 + (side == "decoder")]:
                for letter in "qkvo":
                    linear(f"{side}_l{layer}_{attention}", letter)
                found[f"{side}_l{layer}_{attention}_Wo"] *= 4  # so that targets depend on sources and positions
                norm(f"{side}_l{layer}_{attention}_Wo")
            linear(f"{side}_l{layer}_ffn", "1", WIDTH, INNER)
            linear(f"{side}_l{layer}_ffn", "2", INNER, WIDTH)
            norm(f"{side}_l{layer}_ffn_ffn")
        if options["transformer-postprocess-top"]:
            norm(f"{side}_top", "")
        if "n" in options["transformer-postprocess-emb"]:
            norm(f"{side}_emb", "_pre")
    if tie == "all":
        found["Wemb"] = values(target_size, WIDTH)
    else:
        found["encoder_Wemb"], found["decoder_Wemb"] = values(source_size, WIDTH), values(target_size, WIDTH)
    if tie == "none":
        found["decoder_ff_logit_out_W"] = values(WIDTH, target_size)
    found["decoder_ff_logit_out_b"] = values(1, target_size)
    found["decoder_ff_logit_out_b"][0, 0] += 2  # so that texts end
    return found


def write(
    folder: Path,
    *,
    source: Sequence[str] = SOURCE,
    target: Sequence[str] | None = TARGET,
    tie: str = "none",
    seed: int = 0,
    compressed: bool = False,
    **changes: Any,
) -> Path:
    """Write model.npz, its vocabularies and decoder.yml. Return the path of the .npz."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["source.yml", "target.yml"] if target is not None else ["vocab.yml", "vocab.yml"]
    target = source if target is None else target
    options = OPTIONS | {key.replace("_", "-"): value for key, value in changes.items()}
    options |= {"dim-vocabs": [len(source), len(target)], "vocabs": [f"/training/{name}" for name in names]}
    for name, tokens in zip(names, (source, target), strict=True):
        (folder / name).write_text("".join(f"{quoted(token)}: {index}\n" for index, token in enumerate(tokens)))
    stored = arrays(options, len(source), len(target), tie=tie, seed=seed)
    save(folder / "model.npz", stored, options, compressed=compressed)
    (folder / "decoder.yml").write_text(yaml.safe_dump({"models": ["model.npz"], "vocabs": names, "beam-size": 6}))
    return folder / "model.npz"


def save(path: Path, stored: dict[str, Any], options: dict[str, Any], *, compressed: bool = False) -> Path:
    """Write arrays and options."""
    text = np.frombuffer(yaml.safe_dump(options).encode() + b"\0", dtype=np.int8)
    arrays: dict[str, Any] = {**stored, "special:model.yml": text}
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def quoted(token: str) -> str:
    return (
        token
        if token.isalnum() or token in ("</s>", "<unk>")
        else '"' + token.replace("\\", "\\\\").replace('"', '\\"') + '"'
    )
