"""``headway corpus``: jobs on all kinds of files give what the commands for one file give, and can be resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import assert_refused, run, write_lines

from headway.corpus.work import load_line_map
from headway.jobs.plan import Plan
from headway.jobs.worker import Worker

pytest_plugins = ["model_folders"]  # the fixtures of that file
WORDS = ["das rote Haus", "der Baum", "", "das grüne Haus und der Baum"]
FLOAT = ("--precision", "float32")


def job(command: str, model: Path, *words: object, folder: Path, code: int = 0) -> list[str]:
    """Run a job with one worker, and return the lines of its output."""
    ended = run("corpus", command, model, *words, "-o", folder / "job", "--workers", 1)
    assert ended.code == code, ended.err
    assert ended.out == ""
    ended = run("corpus", "join", folder / "job", "-o", folder / "out", "--verify")
    assert ended.code == code, ended.err
    return (folder / "out").read_text(encoding="utf-8").split("\n")[:-1]


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be the worker, because a new one would need seconds to import PyTorch."""

    def run_worker(command: list[str], **_: object) -> None:
        plan = Plan(Path(command[2]))
        Worker(plan, load_line_map(plan)).run()

    monkeypatch.setattr("headway.corpus.work.run_workers", run_worker)


@pytest.mark.usefixtures("_in_this_process")
def test_a_job_translates_like_translate(folders: dict[str, Path], tmp_path: Path) -> None:
    source, model = write_lines(tmp_path / "in", WORDS * 3), folders["translator"]
    expected = run("translate", model, "-i", source, *FLOAT, "--beam-size", 2).out.split("\n")[:-1]
    assert job("translate", model, source, *FLOAT, "--beam-size", 2, "--chunk-lines", 5, folder=tmp_path) == expected
    command = ("corpus", "translate", model, source, "-o", tmp_path / "job", "--chunk-lines", 5, *FLOAT)
    assert run(*command, "--beam-size", 2).code == 0  # nothing is left to do
    assert_refused(run(*command, "--beam-size", 3), r"settings\.search\.beam_size was 2 and is 3; repeat its command")
    status = json.loads(run("corpus", "status", tmp_path / "job", "--format", "json").out)
    assert (status["is_done"], status["lines_done"], status["chunks_done"]) == (True, 12, 3)
    assert "12 of 12 done (100.0 %)" in run("corpus", "status", tmp_path / "job").out


@pytest.mark.slow
def test_fields_are_kept_and_the_result_is_added(folders: dict[str, Path], tmp_path: Path) -> None:
    model = folders["translator"]
    texts = run("translate", model, "-i", write_lines(tmp_path / "in", WORDS), *FLOAT).out.split("\n")[:-1]
    records = [{"id": number, "text": word} for number, word in enumerate(WORDS)]
    records[1]["text"] = [WORDS[1], WORDS[0]]
    lines = [json.dumps(record) for record in records]
    (tmp_path / "j").mkdir()
    source = write_lines(tmp_path / "in.jsonl", [lines[0], lines[1], "{", *lines[2:], '{"text": 3}'])
    found = job("translate", model, source, "--field", "text", *FLOAT, folder=tmp_path / "j", code=3)
    expected = [{**record, "translation": text} for record, text in zip(records, texts, strict=True)]
    expected[1]["translation"] = [texts[1], texts[0]]
    assert [json.loads(line) for line in found] == [*expected[:2], None, *expected[2:], None]
    status = run("corpus", "status", tmp_path / "j" / "job").out
    assert "in.jsonl, line 3: not valid JSON" in status
    assert "in.jsonl, line 6: field text is [3]; expected a string or a list of strings" in status
    (tmp_path / "t").mkdir()
    source = write_lines(tmp_path / "in.tsv", [f"{number}\t{word}" for number, word in enumerate(WORDS)])
    found = job("translate", model, source, "--field", "2", *FLOAT, folder=tmp_path / "t")
    assert found == [f"{number}\t{word}\t{text}" for number, (word, text) in enumerate(zip(WORDS, texts, strict=True))]
    ended = run("corpus", "translate", model, source, "-o", tmp_path / "x")
    assert_refused(ended, r"in\.tsv: lines have fields; name one with --field, such as --field 1")


@pytest.mark.slow
def test_a_bad_line_is_reported_with_file_line_and_byte(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"das Haus\nder \xff Baum\ndas Haus")
    found = job("translate", folders["translator"], tmp_path / "in", *FLOAT, folder=tmp_path, code=3)
    assert len(found) == 3
    assert (found[0], found[1]) == (found[2], "")
    failed = tmp_path / "failed.jsonl"
    assert run("corpus", "join", tmp_path / "job", "-o", tmp_path / "out", "--failed", failed).code == 3
    record = json.loads(failed.read_text())
    assert (record["file"], record["line"]) == (str(tmp_path / "in"), 2)
    assert "byte 5 of the line (0xFF) is not UTF-8" in record["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "model", "more"),
    [
        ("classify", "classifier", ()),
        ("classify", "classifier", ("--format", "json")),
        ("score", "language_model", ()),
        ("score", "masked", ()),
        ("generate", "language_model", ("--max-new-tokens", 3, *FLOAT)),
    ],
)
def test_jobs_of_other_commands(
    folders: dict[str, Path], tmp_path: Path, command: str, model: str, more: tuple[object, ...]
) -> None:
    source = write_lines(tmp_path / "in", ["das rote Haus", "der Baum"] * 2)
    expected = run(command, folders[model], "-i", source, *more).out.split("\n")[:-1]
    assert len(expected) == 4
    assert job(command, folders[model], source, *more, "--chunk-lines", 2, folder=tmp_path) == expected


@pytest.mark.slow
def test_pairs_are_scored(folders: dict[str, Path], tmp_path: Path) -> None:
    model, source, target = folders["translator"], folders["source"], folders["target"]
    expected = run("score", model, "--source", source, "--target", target).out.split("\n")[:-1]
    assert job("score", model, source, "--target", target, folder=tmp_path) == expected
    ended = run("corpus", "score", model, source, "-o", tmp_path / "x")
    assert_refused(ended, "pass the file with the translations with --target")


@pytest.mark.slow
def test_a_model_that_changes_is_noticed(folders: dict[str, Path], tmp_path: Path) -> None:
    model = shutil.copytree(folders["translator"], tmp_path / "model")
    source = write_lines(tmp_path / "in", WORDS)
    command = ("corpus", "translate", model, source, "-o", tmp_path / "job", *FLOAT)
    assert run(*command, "--workers", 1).code == 0
    shutil.rmtree(tmp_path / "job" / "results")
    (model / "config.json").write_bytes((model / "config.json").read_bytes() + b" ")
    assert_refused(run("corpus", "work", tmp_path / "job"), "model: has changed since the job in .*job was created")
    assert_refused(run(*command), "contents.*model was")
    (model / "README.md").write_text("# Another card\n")


def test_mistakes_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    model, source = folders["translator"], folders["source"]
    assert_refused(run("corpus", "work", tmp_path), r"not a job folder, because it has no job\.json")
    assert_refused(run("corpus", "translate", model, tmp_path / "gone", "-o", tmp_path / "x"), "gone: no such file")
    words = ("corpus", "translate", model, source, "-o", tmp_path / "x")
    assert_refused(run(*words, "--field", "text"), "--field applies only to .jsonl and .tsv files")
    assert_refused(run(*words, "--mbr"), "--mbr chooses among several candidates")
    assert_refused(run("corpus", "translate", tmp_path / "gone", source, "-o", tmp_path / "x"), "gone: no such model")
    assert not (tmp_path / "x").exists()


class TestLongFiles:
    @pytest.fixture(autouse=True)
    def _few_lines_are_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headway.cli.long_files.LONG_FILE_LINES", 10)

    @pytest.mark.usefixtures("_in_this_process")
    def test_a_long_file_is_a_job_that_disappears(self, folders: dict[str, Path], tmp_path: Path) -> None:
        short, long = write_lines(tmp_path / "short", WORDS * 2), write_lines(tmp_path / "long", WORDS * 4)
        model, output = folders["translator"], tmp_path / "out"
        expected = run("translate", model, "-i", short, *FLOAT).out
        ended = run("translate", model, "-i", long, "-o", output, *FLOAT)
        assert (ended.code, ended.out) == (0, ""), ended.err
        assert output.read_text() == 2 * expected
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []

    @pytest.mark.slow
    def test_errors_stop_or_are_marked(self, folders: dict[str, Path], tmp_path: Path) -> None:
        source, output = tmp_path / "in", tmp_path / "out"
        source.write_bytes(b"das Haus\n" * 12 + b"\xff\n" + b"der Baum\n")
        command = ("translate", folders["translator"], "-i", source, "-o", output, *FLOAT)
        assert_refused(run(*command), r"in, line 13: byte 1 of the line \(0xFF\) is not UTF-8")
        assert not output.exists()
        refused = run(*command, "--on-error", "mark")
        assert_refused(refused, r'options\.on_error was "stop" and is "mark"; .*start over with --fresh')
        ended = run(*command, "--on-error", "mark", "--fresh")
        assert ended.code == 0
        assert "in, line 13: byte 1" in ended.err
        assert "1 of 14 lines failed and are empty in the output" in ended.err
        assert output.read_text().split("\n")[12] == ""

    @pytest.mark.slow
    def test_shards_are_parts_of_the_whole(self, folders: dict[str, Path], tmp_path: Path) -> None:
        source = write_lines(tmp_path / "in", [f"das Haus {number}" for number in range(7)])
        command = ("translate", folders["translator"], "-i", source, *FLOAT, "--beam-size", 2, "--n-best", 2)
        whole = run(*command).out
        assert "".join(run(*command, "--shard", f"{part}/3").out for part in (1, 2, 3)) == whole
        assert_refused(
            run(*command, "--shard", "4/3"), "--shard 4/3: expected the number of a part and the number of parts"
        )
        assert_refused(run(*command[:2], "--shard", "1/3"), "--shard needs a file")


@pytest.mark.slow
def test_an_interrupted_job_is_resumed(folders: dict[str, Path], tmp_path: Path) -> None:
    """Killed, stopped by SIGTERM, resumed with another number of workers: the output is that of one process."""
    model, source = folders["translator"], write_lines(tmp_path / "in", [*WORDS, "Haus"] * 400)
    expected = run("translate", model, "-i", source, *FLOAT).out
    words = ["corpus", "translate", model, source, "-o", tmp_path / "job", *FLOAT, "--chunk-lines", 50]
    command = [sys.executable, "-m", "headway", *map(str, words)]

    def num_results() -> int:
        return len(list((tmp_path / "job" / "results").rglob("*")))

    for number, workers in ((signal.SIGKILL, 2), (signal.SIGTERM, 1)):
        before = -1
        while before != num_results():  # workers whose command was killed end some tenths of a second later
            before = num_results()
            time.sleep(0.5)
        process = subprocess.Popen([*command, "--workers", str(workers)], env={**os.environ, "OMP_NUM_THREADS": "1"})
        while num_results() < before + 3 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait() == (-9 if number == signal.SIGKILL else 143)
    ended = run(*words, "--workers", 1)
    assert ended.code == 0, ended.err
    run("corpus", "join", tmp_path / "job", "-o", tmp_path / "out", "--verify")
    assert (tmp_path / "out").read_text() == expected
