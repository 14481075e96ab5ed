# ruff: noqa: E501
"""Write docs/benchmarks.md from the measurements in benchmarks/results.

    python benchmarks/report.py            # rewrite docs/benchmarks.md
    python benchmarks/report.py --check    # exit with 1 if docs/benchmarks.md is out of date

Each section reads the result files of one benchmark. A table contains only measurements from one run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

Json = dict[str, Any]
Row = Sequence[str]

INTRODUCTION = """\
# Benchmarks

This page reports, like the paper's tables 2 and 3 (section 6), the scores and training times of Headway's recipes, and compares
Headway's speed with other engines.

`python benchmarks/report.py` writes this page from the files in `benchmarks/results`. Each table compares engines within one
run on one machine. The machines are shared, so only ratios within a run are comparable. [speed.md](speed.md) explains what
makes decoding fast and which settings to choose; [training.md](training.md) explains how to train.
"""


_LANGUAGE_MODEL_SCORES = (
    ("val_loss", "loss"),
    ("bits_per_byte", "bits per byte"),
    ("masked_loss", "loss of masked tokens"),
    ("masked_accuracy", "share of masked tokens predicted correctly"),
    ("accuracy", "accuracy"),
    ("accuracy_scratch", "without pretraining"),
    ("accuracy_tfidf", "TF-IDF with a linear SVM"),
    ("blimp", "BLiMP"),
    ("xz", "xz"),
    ("ppmd", "PPMd"),
)


def table(header: Row, rows: Sequence[Row]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value: float) -> str:
    """Return a number with three significant digits and commas between thousands."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def load(pattern: str) -> list[tuple[str, Json]]:
    """Return (file name, content) of the result files that match, oldest first."""
    return [(path.name, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(RESULTS.glob(pattern))]


def quality() -> Iterator[str]:
    """Yield the scores that the shipped recipes reach."""
    for name, data in load("recipes-*.json"):
        yield f"## Scores of the recipes\n\n{data['date']} (`{name}`). {data['signature']}.\n"
        rows = []
        for each in data["results"]:
            recipe = f"[{each['recipe']}](../recipes/{each['recipe']})" if each["recipe"] else f"`{each['command']}`"
            minutes = "" if each["minutes"] is None else number(each["minutes"])
            rows.append(
                [each["task"], recipe, each["metric"], each["score"], each["detail"], minutes, each["processor"]]
            )
        yield table(["task", "recipe", "metric", "score", "model", "minutes", "processor"], rows)


def training() -> Iterator[str]:
    """Yield the training speed of Headway and other toolkits, from the newest comparison."""
    name, data = load("training-*.json")[-1]
    yield (
        f"## Training speed\n\n`{data['command']}` ({data['date']}, {data['machine']}; `{name}`).\n\n"
        "All toolkits train the same model (pre-norm, 8,000 tokens, dropout also inside the feed-forward layers) on Multi30k. "
        "A sweep first finds each toolkit's fastest settings; then Headway and each other toolkit take turns. The tables show "
        "medians over the rounds, with the range of the ratio in parentheses. FLOP utilization counts real (non-padding) tokens "
        "only, relative to the fastest matrix product of any shape in the same minutes.\n"
    )
    for model in dict.fromkeys(each["model"] for each in data["results"]):
        rows = []
        for each in (one for one in data["results"] if one["model"] == model and not one["failure"]):
            rounds = each["rounds"]
            ratios = sorted(one["first"]["target_tokens_per_s"] / one["own"]["target_tokens_per_s"] for one in rounds)
            utilization = [one["own"]["model_flop_per_s"] / one["peak"]["flop_per_s"] for one in rounds]
            memory = max(one["own"]["peak_bytes"] for one in rounds) / 2**30
            reference = each is data["results"][0] or ratios[0] == ratios[-1] == 1
            rows.append(
                [
                    each["name"],
                    each["precision"],
                    number(median(one["own"]["target_tokens_per_s"] for one in rounds)),
                    "1.0" if reference else f"{median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})",
                    f"{median(utilization):.0%}",
                    f"{memory:.1f}",
                ]
            )
        header = ["toolkit", "type", "target tokens/s", "Headway bfloat16 is faster by", "FLOP utilization", "GiB"]
        yield f"### The {model} model\n\n" + table(header, rows)


def learning() -> Iterator[str]:
    """Yield the BLEU scores that Headway and another toolkit reach after the same training time."""
    for name, data in load("learning-*.json"):
        yield (
            f"## Quality after the same time\n\n`python benchmarks/learning.py` ({data['date']}, {data['processor']}, one thread "
            f"each; `{name}`). The table shows the BLEU of greedy translations of the development set of {data['corpus']} by a model "
            "with 1.4 million weights, in float32. Both toolkits ran at the same time, each on its own core.\n"
        )
        rows = [
            [toolkit, f"{seconds / 60:.1f}", str(steps), f"{bleu:.1f}"]
            for toolkit, scores in data["scores"].items()
            for seconds, steps, bleu in scores
        ]
        yield table(["toolkit", "minutes", "steps", "BLEU"], rows)
        yield f"![BLEU against minutes of training](../benchmarks/results/{name.removesuffix('.json')}.png)\n"


def decoding() -> Iterator[str]:
    """Yield the translation speed of Headway and other engines."""
    yield (
        "## Translation speed\n\nSpeeds are in target tokens per second. The model is the paper's base model with a vocabulary "
        "of 32,000 tokens and random weights. Each sentence has 20 source tokens and 20 forced target tokens. Every engine runs "
        "in two threads or in two processes. The names of other engines include the settings that were tried: workers x threads "
        "and batch size.\n"
    )
    for name, data in load("decoding-*.json"):
        machine = f"{data['processor']} ({data['capability']})"
        for run in data.get("runs", [data]):
            command = run.get("command", f"python benchmarks/decoding.py --rounds {run['rounds']}")
            versions = ", ".join(f"{library} {version}" for library, version in data["versions"].items())
            if "forced" in run:
                yield f"### {machine}, {data['date']}\n\n`{command}` (`{name}`; {versions}).\n"
                yield forced_table(run["forced"])
            if "file" in run:
                model = run.get(
                    "model", run.get("file model", "a model of recipes/multi30k-de-en.toml after 1,400 steps")
                )
                yield f"### A whole file: {machine}, {data['date']}\n\n`{command}` (`{name}`). Model: {model}.\n"
                yield file_table(run["file"])


def forced_table(settings: Json) -> str:
    """Return a table of speeds with one row per engine and one column per batch size and beam."""
    engines = [name for name in next(iter(settings.values())) if name != "floor share"]
    rows = []
    for engine in engines:
        speeds = [setting.get(engine) for setting in settings.values()]
        rows.append([engine, *("" if speed is None else number(speed["tokens_per_s"]) for speed in speeds)])
    for peer in ("ctranslate2", "transformers"):
        ratios = [best(setting, "headway") / best(setting, peer) for setting in settings.values()]
        rows.append([f"**best of Headway / best of {peer}**", *(f"**{ratio:.2f}**" for ratio in ratios)])
    return table(["engine", *settings], rows)


def best(setting: Json, engine: str) -> float:
    """Return the highest speed of an engine's settings."""
    return max(float(speed["tokens_per_s"]) for name, speed in setting.items() if name.startswith(engine))


def file_table(engines: Json) -> str:
    """Return seconds and BLEU of each engine for a whole file."""
    rows = [[name, f"{each['seconds']:.2f}", f"{each['bleu']:.1f}"] for name, each in engines.items()]
    return table(["engine", "seconds", "BLEU"], rows)


def imported_models() -> Iterator[str]:
    """Yield the speed of imported CTranslate2 models, compared with CTranslate2 itself."""
    for name, data in load("imported-ctranslate2-*.json"):
        first = data["runs"][0]
        machine = f"{first['date']}, {first['processor']}, {first['capability']}, two threads or two processes"
        yield (
            "## Imported models of CTranslate2\n\nThe table shows the speed of Headway with an imported int8 folder, divided by the "
            "speed of CTranslate2 with the same folder, in int8. The values in parentheses are for a Headway model "
            f"of the same size and its own CTranslate2 export. Both pairs ran in turn ({machine}; `{name}`, `benchmarks/imported_models.py`).\n"
        )
        cases = list(first["forced"])
        rows = []
        for run in data["runs"]:
            ratios = {case: each["ratios"] for case, each in run.get("forced", {}).items()}
            ratios |= {"a whole file": run["file"]["ratios"]} if "file" in run else {}
            shown = (ratios.get(case) for case in (*cases, "a whole file"))
            rows.append([run["model"], *("" if each is None else _ratio_pair(each) for each in shown)])
        yield table(["model", *cases, "a whole file"], rows)
        for run in data["runs"]:
            if "file" in run:
                bleu = run["file"]["bleu"]
                yield (
                    f"BLEU of the whole file: {bleu['imported: headway threads']} with the imported model, "
                    f"{bleu['imported: ctranslate2 threads']} with CTranslate2.\n"
                )


def _ratio_pair(ratios: Json) -> str:
    return f"{ratios['imported']:.2f} ({ratios['own']:.2f})"


def classification() -> Iterator[str]:
    """Yield the accuracy and speed of the classifier and of linear models."""
    for name, data in load("classification-*.json"):
        yield (
            f"## Classification\n\nAG News, {data['train_texts']:,} training texts, {data['dev_texts']:,} development texts "
            f"({data['date']}, {data['machine']}; `{name}`).\n"
        )
        rows = [
            [
                "Headway" if each["name"].startswith("Headway") else each["name"],
                f"{each['accuracy']:.2%}",
                "" if each["training_s"] is None else number(each["training_s"]),
                number(each["texts_per_s"]),
            ]
            for each in data["results"]
        ]
        yield table(["classifier", "accuracy", "training, s", "texts/s"], rows)


def preparing() -> Iterator[str]:
    """Yield the speed of tokenizing a corpus into the token store."""
    for name, data in load("preparing-*.json"):
        yield (
            f"## Preparing a corpus\n\n`{data['command']}` ({data['date']}, {data['machine']}; `{name}`).\n\n"
            f"On two cores, {data['pairs']:,} sentence pairs were tokenized at {number(data['tokens_per_s'])} tokens/s. A prepared "
            f"run took {data['start_to_first_step_s']} s from the start of `headway train` to its first step.\n"
        )
    for name, data in load("text-memory-*.json")[-1:]:
        yield (
            f"The table shows the anonymous memory of all processes of `headway prepare` and `headway train` (median) with a language "
            f"model's corpus ({data['date']}, {data['processor']}; `{name}`, from `benchmarks/text_memory.py`). {data.get('notes', '')}\n"
        )
        rows = [
            [text, number(row["prepare_mb"]), number(median(row["train_mb"])), str(len(row["train_mb"]))]
            for text, row in data["peaks"].items()
        ]
        yield table(["text", "prepare, MB", "train, MB", "training runs"], rows)


def unlikely() -> Iterator[str]:
    """Yield the share of texts flagged as ``unlikely``, by model and kind of text."""
    for name, data in load("unlikely-*.json"):
        yield (
            f"## The flag `unlikely`\n\n`python benchmarks/unlikely.py` ({data['date']}, PyTorch {data['torch']}, calibrated in "
            f"{data['calibrated_in']}; `{name}`). The table shows the share of texts that are flagged; in the models' own domain, "
            f"these are false alarms. The values in parentheses are the shares flagged by the source alone. {data['note']}\n"
        )
        runs = data["results"]
        header = [f"{each['model']}, calibrated on {each['calibrated_on']}, {each['precision']}" for each in runs]
        kinds = dict.fromkeys((row["group"], row["kind"]) for each in runs for row in each["rows"])
        found = [{row["kind"]: row for row in each["rows"]} for each in runs]
        rows = [[*kind, *(share(each[kind[1]]) if kind[1] in each else "" for each in found)] for kind in kinds]
        yield table(["group", "text", *header], rows)


def share(row: Json) -> str:
    """Return the percentage of flagged texts and, in parentheses, the percentage flagged by the source alone."""
    flagged, alone = (f"{100 * row[key] / row['texts']:.1f}" for key in ("flagged", "source_alone"))
    return f"{flagged} % ({alone} %)"


def distributed() -> Iterator[str]:
    """Yield the projected cost of exchanging gradients on many GPUs."""
    for name, data in load("distributed-*.json"):
        yield (
            f"## Exchanging gradients\n\n`{data['command']}` ({data['date']}, {data['machine']}; `{name}`). This is a projection, "
            f"not a measurement. It assumes an {data['assumed']}; {data['tokens']:,} tokens per step on each device.\n"
        )
        rows = [
            [
                each["preset"],
                str(each["gpus"]),
                each["link"],
                f"{each['computing']:.1f}",
                f"{each['exchange']:.1f}",
                f"{each['worst']:.0%} to {each['best']:.0%}",
            ]
            for each in data["projections"]
        ]
        yield table(["model", "GPUs", "link", "computing, ms", "exchange, ms", "efficiency"], rows)


def language_models() -> Iterator[str]:
    """Yield the scores of language models and the speed of training and generation."""
    results = json.loads((RESULTS / "language-models.json").read_text(encoding="utf-8"))
    yield "## Language models\n\nLosses are in nats per token of the development text, which is divided into blocks that do not overlap.\n"
    rows = []
    for name, each in results.items():
        scores = ", ".join(f"{label} {each[key]}" for key, label in _LANGUAGE_MODEL_SCORES if key in each)
        rows.append(
            [name, scores, str(each["minutes"]), f"{each['processor']}, {each['load']}", f"`{each['command']}`"]
        )
    yield table(["model", "scores", "minutes", "processor", "command"], rows)
    for name, data in load("language-model-training-*.json")[-1:]:
        yield (
            f"\nThe next table compares the training of a GPT with 6 layers and a width of 384 ({data['date']}, {data['processor']}, "
            f"two cores; `{name}`). It shows the time per step of nanoGPT and of the `Trainer` of transformers, each in its faster "
            "configuration, divided by Headway's time per step. Matrix "
            f"products in Headway's fastest configuration reach {data['share_of_peak']:.0%} of the speed at which PyTorch multiplies "
            f"two large bfloat16 matrices ({number(data['peak_gflop_per_s'])} GFLOP/s).\n"
        )
        yield table(["comparison", "ratio"], [[what, number(value)] for what, value in data["ratios"].items()])
    runs = load("generation-*.json")
    cases = {name: case for _, data in runs for name, case in data["cases"].items()}
    comparisons = dict.fromkeys(what for _, data in runs for ratios in data["ratios"].values() for what in ratios)
    titles = [f"{data['processor']}, {data['date']} (`{name}`)" for name, data in runs]
    yield (
        "\nThe next table compares generation with the dimensions of GPT-2 small in two threads. It shows the time of the other "
        "toolkit divided by Headway's time (median over rounds in turn).\n"
    )
    rows = []
    for case, sizes in cases.items():
        for what in comparisons:
            found = [data["ratios"].get(case, {}).get(what) for _, data in runs]
            if any(found):
                size = "{prompts} x {tokens} + {new} tokens".format(**sizes)
                rows.append([f"{case} ({size})", what, *("" if each is None else number(each) for each in found)])
    yield table(["case", "comparison", *titles], rows)


_SERVING_FIGURES = (  # the part of serving.py's results, the keys of a figure in it, and the column title
    ("throughput", ("ratios", "service / file"), "service / file"),
    ("throughput", ("ratios", "service / CTranslate2"), "service / CTranslate2"),
    ("throughput", ("ratios", "service / CTranslate2, 10 ms"), "service / CTranslate2, 10 ms"),
    ("latency", ("added p50 ms",), "added p50, ms"),
    ("latency", ("p99 - p99 ms",), "p99 - p99, ms"),
    ("overload", ("4", "goodput / capacity"), "goodput / capacity at 4 times the load"),
    ("overload", ("4", "accepted p99 s"), "p99 of accepted requests, s"),
    ("overload", ("0.8", "accepted p99 s"), "p99 at 0.8 times the load, s"),
    ("start", ("median",), "start, s"),
    ("memory", ("2 workers, MB",), "PSS of 2 workers, MB"),
    ("memory", ("2 workers / 1 worker",), "PSS of 2 workers / 1 worker"),
)


def serving() -> Iterator[str]:
    """Yield the speed and memory of the service."""
    yield (
        "## Serving\n\n`python benchmarks/serving.py` (beam 4, int8, two cores, 64 clients with one sentence at a time, load generator "
        "on the same cores; the docstring of `benchmarks/serving.py` defines each figure). Added latency is the time "
        "of a single client's request minus the time of the same call in a process.\n"
    )
    rows = []
    for name, data in load("serving-*.json"):
        row = [f"{data['model']} (`{name}`)", data["processor"]]
        for part, keys, _ in _SERVING_FIGURES:
            found = data.get(part)
            for key in keys:
                found = None if found is None else found.get(key)
            row.append("" if found is None else number(found))
        rows.append(row)
    yield table(["model", "processor", *(title for _, _, title in _SERVING_FIGURES)], rows)


SECTIONS = (
    quality,
    language_models,
    training,
    learning,
    decoding,
    imported_models,
    serving,
    classification,
    unlikely,
    preparing,
    distributed,
)


def render() -> str:
    """Return the whole page."""
    return "\n".join([INTRODUCTION, *(part for section in SECTIONS for part in section())])


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only; exit with 1 if the page is out of date")
    if parser.parse_args().check:
        if PAGE.read_text(encoding="utf-8") != render():
            sys.exit("docs/benchmarks.md is out of date; run: python benchmarks/report.py")
    else:
        PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
