"""Plans: lines of all kinds of files in order, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard
from echo_map import EchoMap, echo_plan

from headway.errors import CheckpointError, DataError, OutputError
from headway.jobs.join import join_results
from headway.jobs.plan import Plan
from headway.jobs.protocol import CHUNKS_PER_FOLDER
from headway.jobs.worker import Worker

LINES = {
    "plain": (b"a\nb\nc\nd\n", ["A", "B", "C", "D"]),
    "open": (b"a\nb\nc\nd", ["A", "B", "C", "D"]),
    "crlf": (b"a\r\nb\r\nc\r\nd\r\n", ["A", "B", "C", "D"]),
    "bom": (b"\xef\xbb\xbfa\nb\n", ["A", "B"]),
    "separators": ("a\u2028b\u0085\nc\x0b\n".encode(), ["A\u2028B\u0085", "C\x0b"]),
    "blank": (b"\n\na\n\n", ["", "", "A", ""]),
    "empty": (b"", []),
    "long": (b"x" * 3_000_000 + b"\ny\n", ["X" * 3_000_000, "Y"]),
}


def results(plan: Plan, output: Path) -> bytes:
    Worker(plan, EchoMap()).run()
    join_results(plan, output, verify=True)
    return output.read_bytes()


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", LINES)
def test_lines_keep_their_number_and_order(tmp_path: Path, kind: str, compression: str) -> None:
    content, expected = LINES[kind]
    packed = {"": content, ".gz": gzip.compress(content), ".zst": zstandard.compress(content)}[compression]
    path = tmp_path / f"in.txt{compression}"
    path.write_bytes(packed)
    plan = echo_plan(tmp_path / "job", [path], chunk_lines=2)
    output = results(plan, tmp_path / "out").decode()
    assert output.split("\n")[:-1] == [f"{number} {line}" for number, line in enumerate(expected, start=1)]
    assert plan.num_lines == len(expected)


def test_several_files_and_one_output_for_each(tmp_path: Path) -> None:
    for name, lines in (("one", 5), ("none", 0), ("two", 4)):
        (tmp_path / name).write_text("x\n" * lines)
    paths = [tmp_path / name for name in ("one", "none", "two")]
    plan = echo_plan(tmp_path / "job", *([path] for path in paths))
    expected = [f"{n} X\n" for n in (1, 2, 3, 4, 5)], [f"{n} X\n" for n in (1, 2, 3, 4)]
    assert results(plan, tmp_path / "all").decode() == "".join(expected[0] + expected[1])
    (tmp_path / "each").mkdir()
    join_results(plan, tmp_path / "each")
    found = [(tmp_path / "each" / path.name).read_text() for path in paths]
    assert found == ["".join(expected[0]), "", "".join(expected[1])]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_the_output_is_compressed_if_its_name_says_so(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "in").write_text("a\nb\n")
    packed = results(echo_plan(tmp_path / "job", [tmp_path / "in"]), tmp_path / f"out{suffix}")
    content = gzip.decompress(packed) if suffix == ".gz" else zstandard.ZstdDecompressor().stream_reader(packed).read()
    assert content == b"1 A\n2 B\n"


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_files_in_step(tmp_path: Path, compression: str) -> None:
    pack = gzip.compress if compression else bytes
    (tmp_path / f"de{compression}").write_bytes(pack(b"\xef\xbb\xbfa\nbb\nccc\nd\n"))
    (tmp_path / "en").write_bytes(b"1\r\n2\r\n3\r\n4")
    plan = echo_plan(tmp_path / "job", [tmp_path / f"de{compression}", tmp_path / "en"])
    assert results(plan, tmp_path / "out") == b"1 A|1\n2 BB|2\n3 CCC|3\n4 D|4\n"


@pytest.mark.parametrize(("de", "en"), [(7, 6), (6, 7), (0, 1), (3, 0)])
def test_files_in_step_with_different_lengths_are_refused(tmp_path: Path, de: int, en: int) -> None:
    (tmp_path / "de").write_text("x\n" * de)
    (tmp_path / "en").write_text("x\n" * en)
    with pytest.raises(DataError, match=r"parallel files must have the same number of lines; .*de has .* but .*en has"):
        echo_plan(tmp_path / "job", [tmp_path / "de", tmp_path / "en"])


def test_without_a_number_of_lines_chunks_depend_on_the_size(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes((b"x" * 99 + b"\n") * 20_000)
    plan = echo_plan(tmp_path / "job", [tmp_path / "in"], chunk_lines=None)
    sizes = [chunk.num_lines for chunk in plan.chunks()]
    assert sum(sizes) == 20_000
    assert set(sizes[:-1]) == {328}  # 32 KiB, and the rest of a line
    assert [plan.chunk(number) for number in (0, 15)] == [list(plan.chunks())[number] for number in (0, 15)]


def test_another_request_is_refused_with_what_differs(tmp_path: Path) -> None:
    path, job = tmp_path / "in", tmp_path / "job"
    path.write_text("a\n")
    echo_plan(job, [path], beam_size=4)
    echo_plan(job, [path], beam_size=4)
    with pytest.raises(CheckpointError, match=r"contains a different job: options\.beam_size was 4 and is 5"):
        echo_plan(job, [path], beam_size=5)
    with pytest.raises(CheckpointError, match="chunk_lines was 3 and is 4"):
        echo_plan(job, [path], chunk_lines=4, beam_size=4)
    path.write_text("b\n")
    with pytest.raises(CheckpointError, match="in has changed"):
        echo_plan(job, [path], beam_size=4)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    with pytest.raises(CheckpointError, match="other: neither empty nor a job"):
        echo_plan(tmp_path / "other", [path])


def test_an_input_that_changes_on_the_way_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text("a\n" * 5)
    plan = echo_plan(tmp_path / "job", [path])
    path.write_text("b\n" * 5)
    with pytest.raises(DataError, match="in: has changed since the job was planned"):
        Worker(plan, EchoMap()).run()
    path.write_text("a\n" * 5)
    assert results(plan, tmp_path / "out").startswith(b"1 A\n")


def test_an_interrupted_plan_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(b"a\n" * 5))
    plan = echo_plan(tmp_path / "job", [path])
    (plan.folder / "job.json").unlink()
    (plan.folder / "chunks.bin").write_bytes(b"half")
    assert results(echo_plan(tmp_path / "job", [path]), tmp_path / "out").count(b"\n") == 5


def test_unfinished_jobs_and_damaged_results_are_not_joined(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a\n" * 5)
    plan = echo_plan(tmp_path / "job", [tmp_path / "in"])
    with pytest.raises(CheckpointError, match="2 of 2 chunks have no result yet"):
        join_results(plan, tmp_path / "out")
    results(plan, tmp_path / "out")
    result = plan.folder / "results" / "0000" / "0"
    result.write_bytes(result.read_bytes().replace(b"1 A", b"1 B"))
    join_results(plan, tmp_path / "out")
    with pytest.raises(DataError, match="its content does not match its checksum"):
        join_results(plan, tmp_path / "out", verify=True)
    result.write_bytes(result.read_bytes()[:-1])
    with pytest.raises(DataError, match="damaged: it has 11 bytes instead of 12"):
        join_results(plan, tmp_path / "out")


def test_a_job_can_be_moved_together_with_its_inputs(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "in").write_text("a\n")
    echo_plan(tmp_path / "here" / "job", [tmp_path / "here" / "in"])
    (tmp_path / "here").rename(tmp_path / "there")
    plan = echo_plan(tmp_path / "there" / "job", [tmp_path / "there" / "in"])
    assert results(plan, tmp_path / "out") == b"1 A\n"
    assert plan.input_name(plan.chunk(0)) == str(tmp_path / "there" / "in")


def test_a_folder_without_a_job(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"not a job folder, because it has no job\.json"):
        Plan(tmp_path)


def test_inputs_of_one_name_are_not_joined_to_a_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "in").write_text("x\n")
    plan = echo_plan(tmp_path / "job", [tmp_path / "a" / "in"], [tmp_path / "b" / "in"])
    results(plan, tmp_path / "out")
    with pytest.raises(OutputError, match="several inputs are named in"):
        join_results(plan, tmp_path / "a")


@pytest.mark.slow
def test_more_chunks_than_a_folder_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    (tmp_path / "in").write_text("x\n" * (CHUNKS_PER_FOLDER + 5))
    plan = echo_plan(tmp_path / "job", [tmp_path / "in"], chunk_lines=1)
    assert results(plan, tmp_path / "out").count(b"\n") == CHUNKS_PER_FOLDER + 5
    assert len(list((plan.folder / "results").iterdir())) == 2
