"""Models by name from a small hub on the loopback interface, through the real client: `headway translate hf:NAME`.

Commands run in processes of their own, because the client reads its environment when it is imported. The pauses of the
client between attempts are left out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import causal_models
import marian_models
import masked_models
import pytest
import torch
from argos_packages import packed
from command_server import CommandServer, EndedCommand
from ctranslate2_models import Model
from foreign import marian
from safetensors.torch import load_file, save_file
from small_hub import Repository, SmallHub, running_hub

pytestmark = pytest.mark.slow

SENTENCE = ("der kleine Frosch schläft.", "--precision", "float32")
FULL_DISK = """
import resource
def fill(*_):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
"""
FULL_IN_CONVERSION = f"""{FULL_DISK}
from headway.interop.hub import conversion
write = conversion._write
conversion._write = lambda *arguments: fill() or write(*arguments)
"""


@dataclass(frozen=True)
class User:
    """A user of a hub, whose caches are empty at first."""

    hub: SmallHub
    home: Path
    server: CommandServer

    def call(self, *words: object, setup: str = "", **environment: str) -> EndedCommand:
        """Run a command, after the code ``setup``."""
        return self.server.run([*map(str, words)], self.home, self.environment(**environment), setup)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the variables of a process of the user."""
        inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        settings = {"HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.url, "HF_HUB_DISABLE_TELEMETRY": "1"}
        settings |= {"NO_PROXY": "*", "HF_HUB_DISABLE_XET": "1", **more}
        return {**inherited, **settings}

    def printed(self, *words: object, setup: str = "", **environment: str) -> str:
        """Return the output of a command that must succeed."""
        ended = self.call(*words, setup=setup, **environment)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def converted(self, name: str) -> Path:
        """Return the folder that a name stands for."""
        lines = [json.loads(line) for line in self.printed("models", "--format", "json").splitlines()]
        (folder,) = (line["folder"] for line in lines if line["name"] == name)
        return Path(folder)

    def left(self) -> list[str]:
        """Return the files of converted models, whole or not, and unfinished downloads."""
        unfinished = self.home.glob("hub/**/*.incomplete")
        files = [*(self.home / "hub-headway").rglob("*"), *unfinished]
        return [path.relative_to(self.home).as_posix() for path in files if path.is_file()]


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an OPUS-MT folder with the further files that such repositories have."""
    folder = marian(tmp_path_factory.mktemp("opus") / "opus-mt-de-en")
    for name in ("tf_model.h5", "pytorch_model.bin", "rust_model.ot"):
        (folder / name).write_bytes(b"not read")
    (folder / "modeling_trap.py").write_text("raise SystemExit('executed')")
    return folder


@pytest.fixture
def hub(opus: Path) -> Iterator[SmallHub]:
    with running_hub() as hub:
        hub.repositories["tiny/opus-mt-de-en"] = Repository.of_folder(opus)
        yield hub


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    server = CommandServer()
    yield server
    server.stop()


@pytest.fixture
def user(hub: SmallHub, tmp_path: Path, server: CommandServer) -> User:
    (tmp_path / "home").mkdir()
    return User(hub, tmp_path / "home", server)


NAME = "hf:tiny/opus-mt-de-en"


def test_a_name_is_translated_with_and_then_needs_no_network(user: User, hub: SmallHub, opus: Path) -> None:
    user.printed("import", f"huggingface:{opus}", "-o", "folder")
    expected = user.printed("translate", "folder", *SENTENCE)
    assert expected.strip()
    assert user.printed("translate", NAME, *SENTENCE) == expected
    assert sorted({*hub.downloads()}) == [
        *("config.json", "generation_config.json", "model.safetensors", "source.spm", "target.spm"),
        *("tokenizer_config.json", "vocab.json"),
    ]
    asked = len(hub.requests)
    without = "import socket\nsys.modules['huggingface_hub'] = None\nsocket.socket.connect = None"
    ended = user.call("translate", NAME, *SENTENCE, setup=without)
    assert (ended.stdout, ended.stderr) == (expected, "")
    assert len(hub.requests) == asked
    listed = user.printed("models")
    assert listed.startswith(f"{NAME}  ")
    folder = Path(listed.split()[-1])
    assert (folder.parents[1], folder.parents[2]) == (user.home / "hub-headway", user.home)
    assert str(opus.name) in (folder / "README.md").read_text(encoding="utf-8")


def test_other_tasks_have_names_too(user: User, hub: SmallHub, tmp_path: Path) -> None:
    causal_models.published("gpt2", tmp_path / "gpt2")
    masked_models.published("bert", tmp_path / "bert")
    hub.repositories |= {
        "gpt2": Repository.of_folder(tmp_path / "gpt2"),
        "bert": Repository.of_folder(tmp_path / "bert"),
    }
    assert user.printed("generate", "hf:gpt2", "der kleine", "--max-new-tokens", 5).strip()
    assert user.printed("fill", "huggingface:bert", "der [MASK] Hund").strip()
    assert "task.kind" in user.printed("info", "hf:bert")
    assert {"hf:gpt2", "hf:bert"} == {line.split()[0] for line in user.printed("models").splitlines()}


def change(**attributes: object) -> Callable[[Repository], None]:
    """Return a function that sets attributes of a repository."""

    def apply(repository: Repository) -> None:
        for name, value in attributes.items():
            setattr(repository, name, value)

    return apply


def serve_in_place(file: str, edit: Callable[[bytes], bytes]) -> Callable[[Repository], None]:
    """Return a function that has the CDN send changed bytes of a file."""
    return lambda repository: repository.served.update({file: edit(repository.files[file])})


def flip(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


WEIGHTS = "model.safetensors"
FAULTS: dict[str, tuple[Callable[[Repository], None], dict[str, str], str]] = {
    "private": (change(token="secret"), {}, "no such model on the Hub, or the model is private"),
    "a wrong token": (change(), {"HF_TOKEN": "invalid"}, "the Hub does not accept your token"),
    "gated": (change(gated=True), {}, "a gated model, which requires its owner's permission"),
    "disabled": (change(disabled=True), {}, "the Hub has disabled this model"),
    "limited": (change(limited=True), {}, "too many requests to the Hub; wait"),
    "broken": (change(broken=True), {}, "the Hub answers with status 503"),
    "truncated": (serve_in_place(WEIGHTS, lambda content: content[:-9]), {}, "the download is incomplete"),
    "a wrong hash": (serve_in_place(WEIGHTS, flip), {}, r"model.safetensors is damaged: its hash is"),
    "a small file's wrong hash": (serve_in_place("vocab.json", flip), {}, "vocab.json is damaged"),
    "no config": (
        lambda repository: repository.files.__delitem__("config.json"),
        {},
        "neither a config.json nor a CTr",
    ),
    "offline": (change(), {"HF_HUB_OFFLINE": "1"}, "not in the cache, and the client is offline"),
    "no network": (change(), {"HF_ENDPOINT": "http://127.0.0.1:9"}, "the Hub cannot be reached"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_and_leaves_nothing(fault: str, user: User, hub: SmallHub) -> None:
    cause, environment, message = FAULTS[fault]
    cause(hub.repositories["tiny/opus-mt-de-en"])
    ended = user.call("translate", NAME, *SENTENCE, **environment)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"headway: {NAME}: ")
    assert message in line
    assert user.left() == []


def test_unknown_names_and_revisions(user: User) -> None:
    for name, message in (("hf:tiny/none", "no such model on the Hub"), (f"{NAME}@v9", "has no revision 'v9'")):
        ended = user.call("info", name)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert message in ended.stderr
    assert user.left() == []


def test_a_damaged_file_is_downloaded_again(user: User, hub: SmallHub) -> None:
    repository = hub.repositories["tiny/opus-mt-de-en"]
    serve_in_place(WEIGHTS, flip)(repository)
    assert user.call("info", NAME).returncode == 2
    repository.served.clear()
    assert user.printed("info", NAME)
    assert hub.downloads().count(WEIGHTS) == 2


def test_an_interrupted_download_resumes_and_the_token_reaches_only_the_hub(user: User, hub: SmallHub) -> None:
    change(drops=1, token="secret")(hub.repositories["tiny/opus-mt-de-en"])
    setup = "import huggingface_hub.constants as constants\nconstants.DOWNLOAD_CHUNK_SIZE = 1000"
    assert user.printed("info", NAME, setup=setup, HF_TOKEN="secret")
    assert [wanted for wanted in hub.ranges if not wanted.startswith("bytes=0")]


def test_the_cache_of_the_client_is_enough(user: User, hub: SmallHub) -> None:
    user.printed("import", NAME)
    for without in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        user.printed("models", "--remove", NAME)
        assert user.left() == []
        assert user.printed("info", NAME, **without)
    assert hub.downloads().count(WEIGHTS) == 1


def test_two_processes_convert_a_model_once(user: User, hub: SmallHub) -> None:
    command = [sys.executable, "-m", "headway", "translate", NAME, *SENTENCE]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=user.environment(), cwd=user.home, **pipes) for _ in range(2)]
    first, second = (process.communicate() for process in processes)
    assert first == second
    assert first[0].strip()
    assert first[1] == ""
    assert hub.downloads().count(WEIGHTS) == 1
    assert len([path for path in user.left() if path.endswith(WEIGHTS)]) == 1


def test_a_full_disk_is_named_and_nothing_is_left(user: User) -> None:
    for setup, message in ((f"{FULL_DISK}fill()", "the disk is full"), (FULL_IN_CONVERSION, "cannot be written")):
        ended = user.call("info", NAME, setup=setup)
        (line,) = ended.stderr.splitlines()
        assert (ended.returncode, line.startswith("headway: hf:")) == (2, True)
        assert message in line
        assert user.left() == []
    assert user.printed("info", NAME)


def test_more_than_the_free_space_is_not_begun(user: User, hub: SmallHub) -> None:
    full = "import shutil\nshutil.disk_usage = lambda path: type('Usage', (), {'free': 1000})"
    ended = user.call("translate", NAME, *SENTENCE, setup=full)
    assert "MB to download, but" in ended.stderr
    assert (ended.returncode, ended.stderr.count("\n"), WEIGHTS in hub.downloads()) == (2, 1, False)


def test_update_asks_the_hub_and_replaces_what_has_changed(user: User, hub: SmallHub, opus: Path) -> None:
    repository = hub.repositories["tiny/opus-mt-de-en"]
    user.printed("import", NAME)
    old = user.converted(NAME)
    assert "has the newest content, commit 11111111" in user.printed("models", "--update")
    weights = flip(repository.files[WEIGHTS])
    hub.repositories["tiny/opus-mt-de-en"] = Repository({**repository.files, WEIGHTS: weights}, commit="2" * 40)
    user.printed("import", NAME)
    assert user.converted(NAME) == old
    assert "updated to commit 22222222" in user.printed("models", "--update")
    new = user.converted(NAME)
    assert (new != old, old.exists()) == (True, False)
    pinned = f"{NAME}@{repository.commit}"
    user.printed("import", pinned, HF_HUB_OFFLINE="1")
    assert user.converted(pinned) == old
    hub.repositories.clear()
    ended = user.call("models", "--update")
    assert (ended.returncode, "no such model" in ended.stderr) == (2, True)
    assert (user.converted(NAME), user.converted(pinned)) == (new, old)


def test_python_a_recipe_and_the_service_take_names(user: User, hub: SmallHub) -> None:
    commit = hub.repositories["tiny/opus-mt-de-en"].commit
    code = f"import headway\nprint(headway.load({NAME!r}, revision={commit!r}).translate('der Hund').text)\nsys.exit()"
    assert user.call(setup=code).stdout.strip()
    (user.home / "train.de").write_text("der Hund\n" * 20)
    (user.home / "train.en").write_text("the dog\n" * 20)
    (user.home / "recipe.toml").write_text(
        "[data]\nmax_tokens = 100\ntrain = [{files = ['train.de', 'train.en']}]\n"
        f"dev = {{files = ['train.de', 'train.en']}}\n[training]\nsteps = 1\nstart_from = '{NAME}'\n"
    )
    trained = user.call("train", "recipe.toml")
    assert trained.returncode == 0, trained.stderr
    assert NAME in (user.home / "runs" / "recipe" / "recipe.toml").read_text()
    user.printed("models", "--remove", NAME)
    code = (
        "from headway.serve.hub_models import prepare_model_folder\n"
        f"print(prepare_model_folder({NAME!r}))\nassert 'huggingface_hub' not in sys.modules\n"
        "prepare_model_folder('hf:tiny/other')"
    )
    ended = user.call(setup=code)
    assert "hub-headway/tiny--opus-mt-de-en" in ended.stdout, ended.stderr
    assert "HubError: hf:tiny/other: no such model on the Hub" in ended.stderr


def test_shards_and_bin_files_are_imported_and_code_is_not(user: User, hub: SmallHub, opus: Path) -> None:
    user.printed("import", NAME)
    expected = (user.converted(NAME) / WEIGHTS).read_bytes()
    tensors = load_file(opus / WEIGHTS)
    names, files = sorted(tensors), Repository.of_folder(opus).files
    del files[WEIGHTS]
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in part}, user.home / f"{number}.safetensors")
        files[f"model-{number}.safetensors"] = (user.home / f"{number}.safetensors").read_bytes()
    places = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(names)}
    index = {"model.safetensors.index.json": json.dumps({"weight_map": places}).encode()}
    bad_index = {"model.safetensors.index.json": json.dumps({"weight_map": {"x": "../../../etc/passwd"}}).encode()}
    torch.save(tensors, user.home / "weights.bin")
    torch.save(Trap(), user.home / "trap.bin")
    weights, trap = ((user.home / f"{name}.bin").read_bytes() for name in ("weights", "trap"))
    hub.repositories |= {
        "tiny/shards": Repository({**files, **index}),
        "tiny/pickle": Repository({**files, "pytorch_model.bin": weights}),
        "tiny/traversal": Repository({**files, **bad_index}),
        "tiny/trap": Repository({**files, "pytorch_model.bin": trap}),
    }
    for name in ("hf:tiny/shards", "hf:tiny/pickle"):
        user.printed("import", name)
        assert (user.converted(name) / WEIGHTS).read_bytes() == expected
    for name, message in (("hf:tiny/traversal", "the index of the weights is damaged"),
                          ("hf:tiny/trap", "not a file of tensors")):  # fmt: skip
        ended = user.call("import", name)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert message in ended.stderr
    assert not (user.home / "executed").exists()


class Trap:
    """An object whose unpickling would create a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("executed"),)


def test_a_model_of_headway_on_the_hub_is_loaded_as_it_is(user: User, hub: SmallHub, opus: Path) -> None:
    user.printed("import", f"hf:{opus}", "-o", "folder")
    hub.repositories["tiny/own"] = Repository.of_folder(user.home / "folder")
    user.printed("import", "hf:tiny/own")
    kept = {path.name: path.read_bytes() for path in user.converted("hf:tiny/own").iterdir()}
    assert kept == {path.name: path.read_bytes() for path in (user.home / "folder").iterdir()}
    (user.home / "folder" / "config.json").write_text('{"format": 2, "task": {}}')
    hub.repositories["tiny/bad"] = Repository.of_folder(user.home / "folder")
    ended = user.call("import", "hf:tiny/bad")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


def test_a_name_is_imported_to_a_folder(user: User, hub: SmallHub) -> None:
    user.printed("import", NAME, "-o", "folder")
    assert user.left() == []
    assert (user.home / "folder" / "model.svg").exists()
    assert "which all commands now find by this name" in user.printed("import", NAME)
    hub.repositories["tiny/other"] = Repository({"config.json": b'{"model_type": "whisper"}'})
    ended = user.call("import", "hf:tiny/other")
    assert (ended.returncode, "model_type = 'whisper' is not supported" in ended.stderr) == (2, True)


@pytest.mark.parametrize("form", ["ctranslate2", "marian", "argos"])
def test_models_of_other_toolkits_have_names_too(form: str, user: User, hub: SmallHub, tmp_path: Path) -> None:
    """The kind is found by the files of the repository, as ``headway import PATH`` finds it."""
    folder = tmp_path / "toolkit"
    match form:
        case "ctranslate2":
            Model(target=None, source=["<blank>", "<s>", "</s>", *"abc", "<unk>"]).save(folder, "int8")
            (folder / "vmap.txt").write_text("\ta b\na\tb c\n")
            path, text = folder, "a b c"
        case "marian":
            path = marian_models.write(folder)
            text = " ".join(marian_models.SOURCE[2:5])
        case _:
            folder.mkdir()
            path, text = Path(shutil.copy(packed("sentencepiece"), folder)), "der kleine Frosch"
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    hub.repositories["tiny/toolkit"] = repository = Repository.of_folder(folder)
    repository.files |= {"notes.txt": b"not read", "modeling_trap.py": b"raise SystemExit", "pytorch.bin": b"not read"}
    user.printed("import", f"{form}:{path}", "-o", "folder")
    call = "translate", "hf:tiny/toolkit", text, "--precision", "float32"
    expected = user.printed("translate", "folder", *call[2:])
    assert user.printed(*call) == expected
    assert {*hub.downloads()} == files
    assert user.printed(*call, setup="sys.modules['huggingface_hub'] = None") == expected
    names = {file.name for file in user.converted("hf:tiny/toolkit").iterdir()}
    assert names == {file.name for file in (user.home / "folder").iterdir()} - {"model.svg"}
    assert ("shortlist.safetensors" in names) == ("vmap.txt" in files)
    assert user.printed("import", "hf:tiny/toolkit", "-o", "again").count("found: ") == 1
    assert user.printed("translate", "again", *call[2:]) == expected


def test_other_repositories_without_a_single_model_are_refused(user: User, hub: SmallHub) -> None:
    several = {"a.argosmodel": b"1", "b.argosmodel": b"2"}
    for files, message in (
        (several, "the repository contains several models (a.argosmodel, b.argosmodel)"),
        ({"model.bin": b"a pickle"}, "the repository contains neither a config.json nor a CTranslate2"),
        ({"model.bin": b"a pickle", "shared_vocabulary.txt": b"a"}, "model.bin"),
        ({"m.npz": b"no archive", "v.yml": b""}, "not Marian's weights, or damaged"),
    ):
        hub.repositories["tiny/other"] = Repository(files)
        ended = user.call("translate", "hf:tiny/other", "a")
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
        assert ended.stderr.startswith("headway: hf:tiny/other: ")
        assert message in ended.stderr
    assert user.left() == []


def test_an_update_without_a_network_is_an_error(user: User) -> None:
    user.printed("import", NAME)
    left = user.left()
    offline = user.call("models", "--update", HF_HUB_OFFLINE="1")
    assert offline.stderr == f"headway: {NAME}: the client is offline (HF_HUB_OFFLINE), so the Hub cannot be queried\n"
    unreachable = user.call("models", "--update", HF_ENDPOINT="http://127.0.0.1:9")
    assert (unreachable.returncode, unreachable.stderr.count("\n")) == (2, 1)
    assert user.left() == left
