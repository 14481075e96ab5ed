"""``headway corpus clean``: each fault is dropped by its rule, and nothing else is."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from command_line import assert_refused, run, write_lines

from headway.corpus.cleaning.cross_entropy import PairEntropies
from headway.corpus.work import load_line_map
from headway.data.readers import read_lines
from headway.data.tmx import read_tmx
from headway.jobs.plan import Plan
from headway.jobs.worker import Worker
from headway.predict import load_translator

SUBJECTS = [
    ("Der Hund", "The dog"),
    ("Die Katze", "The cat"),
    ("Mein Bruder", "My brother"),
    ("Unsere Lehrerin", "Our teacher"),
]
VERBS = [
    ("läuft jeden Morgen durch", "runs every morning through"),
    ("sitzt am Abend gerne in", "likes to sit in the evening in"),
    ("wartet schon lange vor", "has been waiting for a long time in front of"),
]
PLACES = [
    ("den alten Garten", "the old garden"),
    ("das kleine Haus", "the small house"),
    ("die neue Schule", "the new school"),
]
GOOD = [
    (f"{subject[0]} {verb[0]} {place[0]}.", f"{subject[1]} {verb[1]} {place[1]}.")
    for subject in SUBJECTS
    for verb in VERBS
    for place in PLACES
]
FAULTS = {
    "empty": ("", "The dog sleeps in the garden."),
    "length": ("Das ist lang. " * 80, "This is long. " * 80),
    "letters": ("*** ---- === 12 ###", "The dog sleeps."),
    "script": ("Собака каждое утро бегает по саду.", "The dog runs through the garden."),
    "copy": (GOOD[3][0], GOOD[3][0].lower()),
    "language": (GOOD[4][0], "Le chien court tous les matins dans le vieux jardin de la maison."),
    "ratio": (
        "Ja, das weiß ich.",
        "The teacher who has been waiting in front of the old school for a long time was not there " * 3,
    ),
    "facts": ("Er hat 3 große Hunde im Garten.", "He has 4 big dogs in the garden."),
    "repetition": ("sehr " * 20 + "gut war das Essen heute", "very " * 20 + "good was the food today"),
    "duplicate": (GOOD[5][0].upper(), GOOD[5][1].rstrip(".")),
}
PAIRS = [*GOOD, *FAULTS.values()]


def write_pairs(folder: Path, pairs: list[tuple[str, str]] = PAIRS) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    return write_lines(folder / "raw.de", [pair[0] for pair in pairs]), write_lines(
        folder / "raw.en", [pair[1] for pair in pairs]
    )


def clean(*words: object, out: Path, code: int = 0) -> dict[str, Any]:
    ended = run("corpus", "clean", *words, "-o", out)
    assert ended.code == code, ended.err
    report: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert not (out / ".job").exists()
    return report


def dropped(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_lines(out / "dropped.jsonl.zst")]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


LANGUAGES = ("--from", "de", "--to", "en")
pytest_plugins = ["model_folders"]  # the fixtures of that file


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    clean(*write_pairs(folder), *LANGUAGES, out=folder / "clean")
    return folder


def test_each_fault_is_dropped_by_its_rule_and_nothing_else_is(cleaned: Path) -> None:
    out = cleaned / "clean"
    assert sorted(path.name for path in out.iterdir()) == [
        "dropped.jsonl.zst",
        "kept.de",
        "kept.en",
        "report.html",
        "report.json",
    ]
    assert list(zip(read_lines(out / "kept.de"), read_lines(out / "kept.en"), strict=True)) == GOOD
    records = dropped(out)
    assert [record["rule"] for record in records] == list(FAULTS)
    assert [record["line"] for record in records] == [*range(len(GOOD) + 1, len(PAIRS) + 1)]
    assert (records[7]["value"], records[7]["threshold"]) == (1, 0)
    assert records[7]["source"] == FAULTS["facts"][0]


def test_the_report_counts_and_shows_both_sides_of_each_border(cleaned: Path) -> None:
    report = json.loads((cleaned / "clean" / "report.json").read_text(encoding="utf-8"))
    assert (report["lines"], report["kept"]) == (len(PAIRS), len(GOOD))
    rules = {rule["name"]: rule for rule in report["rules"]}
    assert {name: rules[name]["dropped"] for name in FAULTS} == dict.fromkeys(FAULTS, 1)
    assert all(rule["alone"] >= rule["dropped"] for rule in rules.values())
    for name in ("ratio", "language"):
        assert sum(rules[name]["histogram"]["counts"]) <= len(PAIRS)
        assert len(rules[name]["examples"]["kept"]) == 20
        values = [example["value"] for example in rules[name]["examples"]["kept"]]
        assert values == sorted(values, reverse=rules[name]["drops"] == "above")
    assert rules["language"]["examples"]["dropped"][0]["texts"][1].startswith("Le chien")
    assert report["corpus"]["source"]["detected_languages"]["de"] >= len(GOOD)
    page = (cleaned / "clean" / "report.html").read_text(encoding="utf-8")
    assert "Le chien court" in page
    assert not [word for word in ("<script", "<link", "src=", "@import", "url(") if word in page]


def test_texts_in_the_report_are_escaped(tmp_path: Path) -> None:
    hostile = ("<script>alert(1)</script><img src=x> " * 2, "'\"><svg onload=alert(1)>")
    clean(*write_pairs(tmp_path, [hostile, *GOOD]), *LANGUAGES, "--set", "repairs=[]", out=tmp_path / "clean")
    page = (tmp_path / "clean" / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "<svg onload" not in page
    assert "&lt;svg onload" in page


def test_repairs_are_made_counted_and_shown(tmp_path: Path) -> None:
    damaged = ("Der Hund l&auml;uft <b>schnell</b> nach Hause.", "The dog runs  home fast.")
    report = clean(*write_pairs(tmp_path, [*GOOD, damaged]), *LANGUAGES, out=tmp_path / "clean")
    assert [*read_lines(tmp_path / "clean" / "kept.de")][-1] == "Der Hund läuft schnell nach Hause."
    assert [*read_lines(tmp_path / "clean" / "kept.en")][-1] == "The dog runs home fast."
    counts = {name: entry["lines"] for name, entry in report["repairs"].items()}
    assert {name: count for name, count in counts.items() if count} == {"entities": 1, "tags": 1, "spaces": 1}
    assert report["repairs"]["tags"]["examples"][0]["before"] == list(damaged)


@pytest.mark.parametrize("ending", ["tsv", "jsonl", "tsv.zst", "jsonl.gz"])
def test_records_keep_their_other_fields(ending: str, cleaned: Path, tmp_path: Path) -> None:
    lines = [
        f"{number}\t{source}\t{target}"
        if "tsv" in ending
        else json.dumps({"id": number, "source": source, "target": target})
        for number, (source, target) in enumerate(PAIRS)
    ]
    lines.insert(1, "only one column" if "tsv" in ending else "{")
    data = "".join(line + "\n" for line in lines).encode()
    path = tmp_path / f"raw.{ending}"
    path.write_bytes(
        zstandard.compress(data) if ending.endswith("zst") else gzip.compress(data) if ending.endswith("gz") else data
    )
    fields = ("--fields", "2,3") if "tsv" in ending else ()
    clean(path, *fields, *LANGUAGES, out=tmp_path / "clean")
    kept = [*read_lines(tmp_path / "clean" / f"kept.{ending}")]
    assert kept == [lines[0], *lines[2 : len(GOOD) + 1]]
    assert dropped(tmp_path / "clean")[0]["rule"] == "undecodable"
    assert [record["rule"] for record in dropped(tmp_path / "clean")[1:]] == list(FAULTS)


def test_lines_that_are_no_text_are_dropped(tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path, GOOD)
    source.write_bytes(source.read_bytes() + "Gr\xfc\xdfe\n".encode("latin-1") + b"a\0b\n")
    target.write_bytes(target.read_bytes() + b"Greetings\nab\n")
    clean(source, target, *LANGUAGES, out=tmp_path / "clean")
    assert [record["rule"] for record in dropped(tmp_path / "clean")] == ["undecodable"] * 2
    assert dropped(tmp_path / "clean")[0]["source"] == "Gr\ufffd\ufffde"


def test_held_out_texts_are_always_removed(tmp_path: Path) -> None:
    held_out = write_lines(tmp_path / "test.en", [GOOD[7][1].upper(), "Something else."])
    clean(*write_pairs(tmp_path, GOOD), *LANGUAGES, "--held-out", held_out, "--set", "rules=[]", out=tmp_path / "clean")
    assert [(record["rule"], record["line"]) for record in dropped(tmp_path / "clean")] == [("held_out", 8)]


def test_rules_have_the_given_order_and_thresholds(tmp_path: Path) -> None:
    config = tmp_path / "clean.toml"
    config.write_text('rules = ["length", "empty"]\n[thresholds]\nmax_characters = 40\n', encoding="utf-8")
    pairs = [("Kurz.", "Short."), ("", "x" * 41), ("", "x")]
    clean(*write_pairs(tmp_path, pairs), *LANGUAGES, "--config", config, out=tmp_path / "clean")
    records = dropped(tmp_path / "clean")
    assert [(record["rule"], record["value"]) for record in records] == [("length", 41), ("empty", 1)]
    ended = run("schema", "clean")
    assert json.loads(ended.out)["properties"]["thresholds"]


def test_single_texts(tmp_path: Path) -> None:
    texts = [source for source, _ in GOOD]
    lines = [*texts, "", texts[0].upper(), "*** 12 ###", "sehr " * 20 + "gut", "Le chien court dans le vieux jardin."]
    path = write_lines(tmp_path / "texts.txt", lines)
    clean(path, out=tmp_path / "clean")
    assert [*read_lines(tmp_path / "clean" / "kept.txt")] == [*texts, lines[-1]]
    assert [record["rule"] for record in dropped(tmp_path / "clean")] == ["empty", "duplicate", "letters", "repetition"]
    clean(path, "--from", "de", out=tmp_path / "german")
    assert [*read_lines(tmp_path / "german" / "kept.de")] == texts


def test_labeled_texts(tmp_path: Path) -> None:
    rows = [f"{number % 2}\t{source}" for number, (source, _) in enumerate(GOOD)]
    rows += [f"1\t{GOOD[0][0].lower()}", rows[1]]
    path = write_lines(tmp_path / "raw.tsv", rows)
    report = clean(path, "--labels", out=tmp_path / "clean")
    assert [*read_lines(tmp_path / "clean" / "kept.tsv")] == rows[1 : len(GOOD)]
    records = dropped(tmp_path / "clean")
    assert [(record["rule"], record["label"]) for record in records] == [
        ("contradiction", "0"),
        ("contradiction", "1"),
        ("duplicate", "1"),
    ]
    assert report["warnings"] == []
    report = clean(
        write_lines(tmp_path / "one.tsv", [f"x\t{source}" for source, _ in GOOD]), "--labels", out=tmp_path / "one"
    )
    assert report["warnings"] == ["100 % of the texts have the label 'x'"]


@pytest.fixture
def _workers_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.cli.commands.corpus.clean._IN_PROCESS_LINES", 0)

    def run_worker(command: list[str], **_: object) -> None:
        plan = Plan(Path(command[2]))
        Worker(plan, load_line_map(plan)).run()

    monkeypatch.setattr("headway.corpus.work.run_workers", run_worker)


@pytest.mark.usefixtures("_workers_in_this_process")
def test_results_depend_neither_on_chunks_nor_on_interruptions(cleaned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = cleaned / "again"
    words = ("corpus", "clean", cleaned / "raw.de", cleaned / "raw.en", *LANGUAGES, "-o", out, "--chunk-lines", 7)
    with monkeypatch.context() as patch:
        patch.setattr("headway.corpus.cleaning.run.write_report", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(*words).code == 130
    assert (out / ".job").exists()
    assert run(*words).code == 0
    assert content(out) == content(cleaned / "clean")
    assert "kept" in run(*words).err  # nothing is left to do
    shutil.rmtree(out)


def test_word_translations_are_learned_from_each_pair_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[tuple[str, str]] = []

    def learn(pairs: list[tuple[str, str]], share: float, path: Path) -> None:
        learned.extend(pairs)
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.corpus.cleaning.learned_scores.MIN_PAIRS", 2)
    monkeypatch.setattr("headway.corpus.cleaning.learned_scores.learn_lexical_model", learn)
    assert run("corpus", "clean", *write_pairs(tmp_path), *LANGUAGES, "-o", tmp_path / "clean").code == 130
    assert learned == GOOD  # without the pair that repeats another one in capital letters


def test_two_models_score_each_pair(tmp_path: Path, folders: dict[str, Path]) -> None:
    words = (*write_pairs(tmp_path, GOOD), *LANGUAGES, "--model", folders["translator"], "--reverse", folders["back"])
    report = clean(*words, out=tmp_path / "clean")
    rules = {rule["name"]: rule for rule in report["rules"]}
    for name in ("truncated", "cross_entropy"):
        assert sum(rules[name]["histogram"]["counts"]) == len(GOOD)
    translator, back = (load_translator(folders[name], precision="int8") for name in ("translator", "back"))
    dual = PairEntropies.compute(
        translator, back, [source for source, _ in GOOD], [target for _, target in GOOD]
    ).dual_cross_entropy
    examples = rules["cross_entropy"]["examples"]
    values = {example["line"]: example["value"] for example in (*examples["kept"], *examples["dropped"])}
    assert values == {line: pytest.approx(dual[line - 1], rel=1e-3) for line in values}


def test_wrong_use(cleaned: Path, tmp_path: Path, folders: dict[str, Path]) -> None:
    source, target = cleaned / "raw.de", cleaned / "raw.en"
    out = ("-o", tmp_path / "out")
    short = write_lines(tmp_path / "short.en", ["One line."])
    (tmp_path / "binary.en").write_bytes(b"\0\1\2abc" * 1000)
    refused = [
        ((source, short, *LANGUAGES, *out), r"same number of lines; .*short\.en has 1"),
        ((source, tmp_path / "binary.en", *LANGUAGES, *out), r"binary\.en: looks binary"),
        ((source, target, "--from", "de", "--to", "tlh", *out), "language 'tlh' cannot be detected by py3langid"),
        ((source, target, "--to", "en", *out), "--to needs --from"),
        ((source, target, *out), "pairs need --from and --to"),
        ((source, *LANGUAGES, *out), "has no partner"),
        ((source, tmp_path / "nothing.en", *LANGUAGES, *out), "no such file"),
        ((source, target, *LANGUAGES, "--labels", *out), "cannot be combined"),
        ((source, "--labels", *out), "plain text has no labels"),
        ((source, target, *LANGUAGES, "--set", "thresholds.min_letter_share=2", *out), "min_letter_share = 2"),
        ((source, target, *LANGUAGES, "--set", "thresholds.max_words=2", *out), "unknown key 'thresholds.max_words'"),
        ((source, target, *LANGUAGES, "--set", 'rules=["copies"]', *out), "rules"),
        (
            (source, target, *LANGUAGES, "--model", folders["translator"], *out),
            "--model and --reverse must be used together",
        ),
        (
            (source, target, *LANGUAGES, "--model", folders["back"], "--reverse", folders["translator"], *out),
            "translates from en to de; expected de to en; exchange",
        ),
        (
            (source, target, *LANGUAGES, "--model", folders["classifier"], "--reverse", folders["back"], *out),
            "does not translate",
        ),
        ((source, target, *LANGUAGES, "-o", tmp_path), "not empty, and not the folder of an interrupted run"),
        (
            (source, target, "--from", "en", "--to", "de", "-o", cleaned / "clean"),
            "contains the results of another run",
        ),
    ]
    before = content(cleaned / "clean")
    for words, message in refused:
        assert_refused(run("corpus", "clean", *words), message)
    assert content(cleaned / "clean") == before


@pytest.mark.slow
def test_a_killed_command_continues_and_writes_the_same_files(tmp_path: Path) -> None:
    dice = random.Random(1)
    pairs = [(f"{number} {source}", f"{number} {target}") for number in range(700) for source, target in PAIRS]
    dice.shuffle(pairs)
    files = write_pairs(tmp_path, pairs)
    clean_command = ("clean", *map(str, files), *LANGUAGES, "--workers", "2")

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headway", "corpus", *words]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)

    def kill_after(seconds: float, *processes: subprocess.Popen[bytes]) -> None:
        time.sleep(seconds)
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def planned_jobs() -> list[Path]:
        return [path.parent for path in (tmp_path / "killed" / ".job").glob("clean*/job.json")]

    once, killed = str(tmp_path / "once"), str(tmp_path / "killed")
    begin = time.monotonic()
    assert start(*clean_command, "-o", once).wait() == 0
    seconds, has_helpers = time.monotonic() - begin, False
    for attempt in range(6):
        process = start(*clean_command, "-o", killed)
        while process.poll() is None and not planned_jobs():
            time.sleep(0.01)
        try:  # at first as soon as there is a job, then later
            process.wait(seconds * attempt / 6)
            break
        except subprocess.TimeoutExpired:
            kill_after(0, process)
        jobs = planned_jobs()
        if (
            jobs and not has_helpers
        ):  # as on other machines: one worker is killed, too, and the other one finishes the job
            dying, finishing = (start("work", str(jobs[-1])) for _ in "ab")
            kill_after(seconds / 6, dying)
            assert finishing.wait() == 0
            has_helpers = True
    assert has_helpers
    assert start(*clean_command, "-o", killed).wait() == 0
    assert content(tmp_path / "killed") == content(tmp_path / "once")


def test_translation_memories_are_read_and_written(tmp_path: Path) -> None:
    def unit(source: str, target: str) -> str:
        return f'<tu><tuv xml:lang="de-DE"><seg>{source}</seg></tuv><tuv xml:lang="en"><seg>{target}</seg></tuv></tu>\n'

    units = [
        *(unit(*pair) for pair in GOOD[:3]),
        unit("Das ist gut &amp; <bpt>x</bpt>schön.", "That is good &amp; nice."),
    ]
    path = tmp_path / "raw.tmx"
    path.write_text(
        f'<?xml version="1.0"?><tmx version="1.4"><body>{"".join(units)}{units[0]}</body></tmx>', encoding="utf-8"
    )
    clean(path, *LANGUAGES, out=tmp_path / "clean")
    expected = [*GOOD[:3], ("Das ist gut & schön.", "That is good & nice.")]
    kept = tmp_path / "clean" / "kept.tmx"
    assert list(read_tmx([kept.read_bytes()], kept, ("de", "en"))) == expected
    assert [(record["rule"], record["line"]) for record in dropped(tmp_path / "clean")] == [("duplicate", 5)]
    text = run("corpus", "clean", kept, *write_pairs(tmp_path, GOOD[3:5]), *LANGUAGES, "-o", tmp_path / "both")
    assert text.code == 0, text.err
    both = tmp_path / "both"
    assert list(zip(read_lines(both / "kept.de"), read_lines(both / "kept.en"), strict=True)) == [*expected, *GOOD[3:5]]
    path.write_text("<tmx>\n<body>\n<tu></body></tmx>", encoding="utf-8")
    assert_refused(run("corpus", "clean", path, *LANGUAGES, "-o", tmp_path / "broken"), r"raw\.tmx, line 3")
