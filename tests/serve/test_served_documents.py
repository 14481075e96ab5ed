"""Documents in the service: the native API, DeepL's with its client, and LibreTranslate's as its page calls it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import deepl
import docx
import httpx
import pytest
from in_process import make_service
from running_clients import HERE, call, install_node
from running_service import RunningService, running, unpack_model, wait_until

from headway.documents import FORMATS, document_extensions, isolated, translate_document
from headway.errors import ConfigError
from headway.predict import Candidate, Glossary, GlossaryTerm, Source, Translation, Translator, load_translator
from headway.serve.clients import Client
from headway.serve.config import LimitsConfig
from headway.serve.documents import ServedDocuments
from headway.serve.errors import TooLargeError
from headway.serve.service import Service
from headway.storage import TemporaryFolder

KEYS = ("first", "second")
BODY = "a b <b>c d</b> e"


class UploadingClient(httpx.Client):
    """A client that remembers its documents."""

    def __init__(self, url: str) -> None:
        super().__init__(base_url=url, headers={"X-API-Key": "first"}, timeout=30)
        self.created: list[str] = []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    unpack_model(folder)
    keys = "".join(f'[[keys]]\nname = "{key}"\nsha256 = "{sha256(key.encode()).hexdigest()}"\n' for key in KEYS)
    (folder / "serve.toml").write_text(
        'workers = 1\n[[models]]\npath = "model"\n[limits]\ndocuments = 3\nbody_bytes = 150_000\n'
        "document_bytes = 100_000\n"
        f"job_characters = 20_000\n{keys}characters_per_month = 50_000\n"
    )
    document = docx.Document()
    paragraph = document.add_paragraph("a b ")
    paragraph.add_run("c d").bold = True
    document.save(str(folder / "report.docx"))
    (folder / "page.html").write_text(f"<p>{BODY}</p>\n<pre>a b</pre>")
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[RunningService]:
    with running(["--config", str(folder / "serve.toml")]) as found:
        yield found


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    return load_translator(folder / "model", precision="int8")


@pytest.fixture
def http(service: RunningService) -> Iterator[UploadingClient]:
    """A client with the first key, whose documents are deleted at the end."""
    with UploadingClient(service.url) as found:
        yield found
        for identifier in found.created:
            found.delete(f"/api/v1/documents/{identifier}")


@pytest.fixture
def expected(folder: Path, translator: Translator, tmp_path: Path) -> Callable[[str], bytes]:
    """Return a function that returns a document as Python translates it."""

    def translate(name: str) -> bytes:
        target = tmp_path / f"expected{Path(name).suffix}"
        translate_document(translator, folder / name, target)
        return target.read_bytes()

    return translate


def upload(http: UploadingClient, name: str, content: bytes, **fields: str) -> httpx.Response:
    data = {"source": "en", "target": "de"} | fields
    reply = http.post("/api/v1/documents", data=data, files={"file": (name, content)})
    if reply.status_code == 201:
        http.created.append(reply.json()["id"])
    return reply


def dictionaries(source: str, target: str, *entry: str) -> str:
    """Return a dictionary with one entry in the form of the native API."""
    return json.dumps([{"source": source, "target": target, "entries": [entry]}])


def finished(http: UploadingClient, identifier: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def is_over() -> bool:
        nonlocal found
        found = http.get(f"/api/v1/documents/{identifier}").json()
        return found["status"] in ("done", "failed")

    wait_until(is_over)
    return found


def office_parts(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        # deepl-node adds entries for folders to documents that it has minified.
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


@pytest.mark.parametrize("name", ["report.docx", "page.html"])
@pytest.mark.slow_but_every(4)
def test_native_documents_are_those_of_python(
    name: str, http: UploadingClient, folder: Path, expected: Callable[[str], bytes]
) -> None:
    created = upload(http, name, (folder / name).read_bytes()).json()
    assert created["name"] == name
    status = finished(http, created["id"])
    assert (status["status"], status["error"], status["num_texts"], status["num_done"]) == ("done", None, 1, 1)
    assert status["ended"] < status["expires"]
    result = http.get(f"/api/v1/documents/{created['id']}/result")
    assert result.headers["content-type"].startswith(FORMATS[Path(name).suffix[1:]].media_type)
    assert f'filename="{name}"' in result.headers["content-disposition"]
    if name == "page.html":
        assert result.content == expected(name)
    else:
        assert office_parts(result.content) == office_parts(expected(name))
    assert http.delete(f"/api/v1/documents/{created['id']}").status_code == 204
    assert http.get(f"/api/v1/documents/{created['id']}").status_code == 404


def test_what_may_be_wrong_is_counted_by_kind(http: UploadingClient) -> None:
    texts = ["a b", "c d", "<b>a & b</b> " * 40, *(f"a b c {number}" for number in range(4))]
    body = {"text": texts, "source": "en", "target": "de"}
    translations = http.post("/api/v1/translate", json=body).json()["translations"]
    expected: dict[str, list[str]] = {}
    for text, translation in zip(texts, translations, strict=True):
        for kind in translation["flags"]:
            expected.setdefault(kind, []).append(text)
    assert expected, "the test needs a text whose translation has a flag"
    found = finished(http, upload(http, "a.txt", "\n\n".join(texts).encode()).json()["id"])
    assert found["warnings"] == [
        {
            "kind": kind,
            "num_texts": len(own),
            "examples": [text if len(text) < 100 else f"{text[:99]}…" for text in own],
        }
        for kind, own in expected.items()
    ]


def test_documents_belong_to_their_key(http: UploadingClient, service: RunningService, folder: Path) -> None:
    identifier = upload(http, "page.html", (folder / "page.html").read_bytes()).json()["id"]
    for path in ("", "/result"):
        reply = httpx.get(f"{service.url}/api/v1/documents/{identifier}{path}", headers={"X-API-Key": "second"})
        assert (reply.status_code, reply.json()["error"]["message"]) == (404, f"There is no document {identifier}")
    assert httpx.get(f"{service.url}/api/v1/documents/{identifier}").status_code == 403


def test_the_language_is_detected_and_a_document_in_the_target_language_stays(http: UploadingClient) -> None:
    english = b"<p>Good morning to all of you, and thank you very much.</p>"
    status = finished(http, upload(http, "a.html", english, source="auto").json()["id"])
    assert (status["status"], status["source"]) == ("done", "en")


@pytest.mark.parametrize(
    ("name", "content", "fields", "status", "message"),
    [
        ("a.xyz", b"a", {}, 400, "the extension '.xyz' are not supported"),
        ("a.docm", b"a", {}, 400, "macros"),
        ("a.docx", b"a", {}, 400, "not an office document"),
        ("a.docx", b"\xd0\xcf\x11\xe0" + bytes(100), {}, 400, "encrypted"),
        ("a.json", b"[" * 50_000, {}, 400, "nested too deeply"),
        ("a.txt", b"a" * 30_000, {}, 413, "30,000 characters in one job"),
        ("a.txt", b"a " * 60_000, {}, 400, "120,000 bytes; expected at most 100,000"),
        ("a.txt", bytes(200_000), {}, 413, "The body has more than"),
        ("a.txt", b"a", {"target": "fr"}, 400, "fr is not supported"),
        ("a.txt", b"a", {"target": ""}, 400, "target: Field required"),
        ("a.txt", b"a", {"model": "none"}, 404, "There is no model none"),
        ("a.txt", b"a", {"glossary": "none"}, 404, "There is no glossary none"),
        ("a.txt", b"a", {"glossary": "none", "dictionaries": "[]"}, 400, "only one of them is accepted"),
        ("a.txt", b"a", {"dictionaries": "["}, 400, "not valid JSON"),
        ("a.txt", b"a", {"dictionaries": "[]"}, 400, "dictionaries: List should have at least 1 item"),
        ("a.txt", b"a", {"dictionaries": dictionaries("de", "en", "a", "b")}, 400, "no dictionary for en to de"),
        ("a.txt", b"a", {"dictionaries": dictionaries("en", "de", "a", "")}, 400, "glossary"),
    ],
)
def test_what_is_refused(
    name: str, content: bytes, fields: dict[str, str], status: int, message: str, http: UploadingClient
) -> None:
    reply = upload(http, name, content, **fields)
    assert reply.status_code == status, reply.text
    assert message in reply.json()["error"]["message"]
    assert "/tmp" not in reply.text  # no path of the server


def test_a_glossary_or_dictionaries_apply_to_a_document(
    http: UploadingClient, folder: Path, tmp_path: Path, translator: Translator
) -> None:
    source = folder / "report.docx"
    translate_document(translator, source, tmp_path / "plain.docx")
    translate_document(translator, source, tmp_path / "terms.docx", glossary=Glossary([("a", "kk")]))
    with_terms, plain = (office_parts((tmp_path / f"{name}.docx").read_bytes()) for name in ("terms", "plain"))
    assert b"kk" in with_terms["word/document.xml"].lower()
    assert b"kk" not in plain["word/document.xml"].lower()
    body = {"name": "terms", "dictionaries": [{"source": "en", "target": "de", "entries": [["a", "kk"]]}]}
    identifier = http.post("/api/v1/glossaries", json=body).json()["id"]
    ways = ({"glossary": identifier}, {"dictionaries": json.dumps(body["dictionaries"])})
    for fields in ways:
        created = upload(http, "report.docx", source.read_bytes(), **fields).json()["id"]
        finished(http, created)
        assert office_parts(http.get(f"/api/v1/documents/{created}/result").content) == with_terms
    http.delete(f"/api/v1/glossaries/{identifier}")


def test_a_dictionary_for_another_language_than_the_detected_one_has_no_effect(http: UploadingClient) -> None:
    text = b"Good morning to all of you, and thank you very much."
    created = upload(http, "a.txt", text, source="auto", dictionaries=dictionaries("fr", "de", "Good", "kk")).json()
    assert finished(http, created["id"])["status"] == "done"


def test_a_key_has_a_limited_number_of_documents(http: UploadingClient) -> None:
    replies = [upload(http, "a.txt", b"a b") for _ in range(4)]
    assert [reply.status_code for reply in replies] == [201, 201, 201, 429]
    assert int(replies[-1].headers["retry-after"]) > 0


def test_a_bomb_in_a_document_does_not_end_the_service(http: UploadingClient) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", b" " * (50 << 20))
    reply = upload(http, "a.docx", data.getvalue())
    assert reply.status_code == 400
    assert "compressed by a factor of" in reply.json()["error"]["message"]
    assert http.get("/ready").json() == {"status": "ready"}


@pytest.fixture
def client(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> Iterator[deepl.DeepLClient]:
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda _: sleep(0.05))  # the client asks every five seconds
    with contextlib.closing(deepl.DeepLClient("first", server_url=service.url)) as found:
        yield found


LANGUAGES: dict[str, Any] = {"source_lang": "EN", "target_lang": "DE"}


class TestDeepL:
    def test_a_file_is_translated(
        self, client: deepl.DeepLClient, folder: Path, tmp_path: Path, expected: Callable[[str], bytes]
    ) -> None:
        target = tmp_path / "page.html"
        status = client.translate_document_from_filepath(str(folder / "page.html"), str(target), **LANGUAGES)
        assert (status.done, status.billed_characters) == (True, len(BODY))
        assert target.read_bytes() == expected("page.html")

    def test_a_stream_is_translated(
        self, client: deepl.DeepLClient, folder: Path, expected: Callable[[str], bytes]
    ) -> None:
        target = io.BytesIO()
        with (folder / "report.docx").open("rb") as source:
            client.translate_document(source, target, **LANGUAGES)
        assert office_parts(target.getvalue()) == office_parts(expected("report.docx"))

    def test_upload_status_and_download(self, client: deepl.DeepLClient) -> None:
        handle = client.translate_document_upload(b"a b", filename="a.txt", **LANGUAGES)
        status = client.translate_document_wait_until_done(handle)
        assert status.done
        target = io.BytesIO()
        client.translate_document_download(handle, target)
        assert target.getvalue()

        def is_deleted() -> bool:
            try:
                client.translate_document_get_status(handle)
            except deepl.DeepLException as error:
                return "Not found" in str(error)
            return False

        wait_until(is_deleted)  # once it has been sent

    def test_a_result_that_was_not_received_stays(self, service: RunningService, client: deepl.DeepLClient) -> None:
        handle = client.translate_document_upload(b"a b c d", filename="a.txt", **LANGUAGES)
        client.translate_document_wait_until_done(handle)
        url = f"{service.url}/v2/document/{handle.document_id}/result"
        query, key = {"document_key": handle.document_key}, {"authorization": "DeepL-Auth-Key first"}
        assert httpx.head(url, params=query, headers=key).status_code == 200
        assert httpx.get(url, params=query, headers=key | {"range": "bytes=0-1"}).status_code == 206
        target = io.BytesIO()
        client.translate_document_download(handle, target)
        assert target.getvalue()

    def test_the_key_of_a_document_is_needed(self, client: deepl.DeepLClient) -> None:
        handle = client.translate_document_upload(b"a b", filename="a.txt", **LANGUAGES)
        wrong = deepl.DocumentHandle(handle.document_id, "0" * 64)
        with pytest.raises(deepl.DeepLException, match="Not found"):
            client.translate_document_get_status(wrong)
        client.translate_document_wait_until_done(handle)
        with pytest.raises(deepl.DeepLException, match="Not found"):
            client.translate_document_download(wrong, io.BytesIO())
        client.translate_document_download(handle, io.BytesIO())

    def test_errors(self, client: deepl.DeepLClient, tmp_path: Path) -> None:
        with pytest.raises(deepl.DeepLException, match="formality"):
            client.translate_document(b"a b", io.BytesIO(), filename="a.txt", formality="more", **LANGUAGES)
        with pytest.raises(deepl.DeepLException, match=r"Invalid file data: .*'.xyz' are not supported"):
            client.translate_document(b"a b", io.BytesIO(), filename="a.xyz", **LANGUAGES)
        with pytest.raises(deepl.DeepLException, match="'output_format' not supported"):
            client.translate_document(b"a", io.BytesIO(), filename="a.txt", output_format="pdf", **LANGUAGES)
        with pytest.raises(deepl.DeepLException, match="'target_lang' not supported"):
            client.translate_document(b"a", io.BytesIO(), filename="a.txt", target_lang="FR")

    def test_a_glossary_applies(self, client: deepl.DeepLClient) -> None:
        glossary = client.create_glossary("terms", "EN", "DE", {"a": "kk"})
        target = io.BytesIO()
        client.translate_document(b"b a c", target, filename="a.txt", glossary=glossary, **LANGUAGES)
        assert b"kk" in target.getvalue().lower()
        client.delete_glossary(glossary)

    def test_rephrasing_has_no_model(self, client: deepl.DeepLClient) -> None:
        with pytest.raises(deepl.DeepLException, match="Value for 'target_lang' not supported"):
            client.rephrase_text("a b", target_lang="EN-US")


@pytest.mark.slow
def test_deepl_node(
    service: RunningService, folder: Path, tmp_path: Path, expected: Callable[[str], bytes], image: bytes
) -> None:
    install_node(tmp_path, "deepl-node@1.28.0")
    script = shutil.copy(HERE / "deepl_node_documents.cjs", tmp_path)
    for name in ("report.docx", "page.html"):
        shutil.copy(folder / name, tmp_path)
    with_image = docx.Document(str(tmp_path / "report.docx"))
    with_image.add_picture(io.BytesIO(image))
    with_image.save(str(tmp_path / "report.docx"))
    found = call("node", str(script), service.url, "first", str(tmp_path))
    assert found["done"] == [True, True, True]
    assert found["billed"] == len('a b <g id="0">c d</g>')
    assert "formality" in found["formality"]
    assert re.search(r"Invalid file data: .*'.xyz' are not supported", found["unknown"])
    assert "Not found" in found["wrongKey"]
    assert (tmp_path / "node.html").read_bytes() == expected("page.html")
    parts = office_parts((tmp_path / "node.docx").read_bytes())
    assert office_parts((tmp_path / "minified.docx").read_bytes()) == parts
    assert image in parts.values()


@pytest.fixture
def image() -> bytes:
    """A picture of one pixel."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(4))), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_a_document_that_was_fetched_makes_room(http: UploadingClient) -> None:
    first, second, third = (upload(http, f"{name}.txt", b"a b").json()["id"] for name in "abc")
    for identifier in (first, second, third):
        finished(http, identifier)
    refused = upload(http, "d.txt", b"a b")
    assert (refused.status_code, "fetch or delete" in refused.text) == (429, True)
    assert http.get(f"/api/v1/documents/{second}/result").status_code == 200
    assert upload(http, "d.txt", b"a b").status_code == 201
    assert http.get(f"/api/v1/documents/{second}").status_code == 404
    assert http.get(f"/api/v1/documents/{first}").status_code == 200


def served_documents(translator: Translator, **limits: int) -> tuple[ServedDocuments, Client]:
    service = make_service({"model": translator}, limits=LimitsConfig(**limits))
    return ServedDocuments(service), service.clients.authenticate(None)


def test_the_next_service_removes_the_documents_of_a_killed_one(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    served_documents(translator)
    killed, running = (TemporaryFolder("headway-documents-") for _ in range(2))
    (killed.path / "source").write_text("secret")
    os.close(killed._lock.descriptor)  # as the system does when the process is killed
    fresh = tmp_path / "headway-documents-without-lock"  # of a service that is just starting
    fresh.mkdir()
    (tmp_path / "headway-documents-link").symlink_to(fresh)
    served_documents(translator)
    assert set(tmp_path.iterdir()) == {running.path, fresh, tmp_path / "headway-documents-link"}
    running.remove()
    assert not running.path.exists()


def test_a_document_with_too_many_texts_is_refused_before_its_texts_are_read(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        documents, client = served_documents(translator, job_texts=3)
        with pytest.raises(TooLargeError, match="4 texts in one job; at most 3"):
            await documents.add(client, "a.txt", b"a b\n\nb c\n\nc d\n\nd e\n", "en", "de")
        documents.close()

    monkeypatch.setattr(isolated, "DocumentText", None)
    asyncio.run(run())


def test_an_upload_that_is_canceled_leaves_nothing(translator: Translator) -> None:
    async def run() -> None:
        documents, client = served_documents(translator, documents=1)
        for seconds in (0.0, 0.001, 0.05):
            adding = asyncio.ensure_future(documents.add(client, "a.txt", b"a b", "en", "de"))
            await asyncio.sleep(seconds)
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
        document = await documents.add(client, "a.txt", b"a b", "en", "de")
        assert {path.name for path in document.folder.parent.iterdir()} == {document.id, "lock"}
        documents.close()

    asyncio.run(run())


def test_warnings_name_the_texts_without_their_tags(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    unmet = (GlossaryTerm("a", ("x",), met=False),)
    results: dict[str, Translation | ConfigError] = {
        "a <b>": Translation("", (Candidate("x", 0.0, 0.0, (), (), glossary=unmet),), unlikely=True),
        "c d": ConfigError("it cannot be translated"),
        "long": Translation("", (Candidate("y", 0.0, 0.0, (), (), flags=("repeated",)),)),
    }

    async def translate(
        _service: Service, _client: Client, sources: Sequence[Source], *_: object, **_how: object
    ) -> tuple[list[Translation | ConfigError], None]:
        return [
            next(own for begin, own in results.items() if source.text.startswith(begin)) for source in sources
        ], None

    monkeypatch.setattr(Service, "translate", translate)

    async def run() -> None:
        documents, client = served_documents(translator)
        html = f"<p>a <b>&amp; b</b>,<img src='c.png'>c</p><p>c d</p><p>long {'word ' * 40}</p>"
        document = await documents.add(client, "a.html", html.encode(), "en", "de")
        await asyncio.wait_for(document.finished.wait(), 60)
        found = {each.kind: (each.num_texts, each.examples) for each in document.warnings}
        long = f"long {'word ' * 40}"[:99] + "…"
        marked = (1, ["a & b, c"])
        assert found == {"unlikely": marked, "glossary": marked, "failed": (1, ["c d"]), "repeated": (1, [long])}
        assert "c d" in document.fetch().read_text(encoding="utf-8")
        documents.close()

    asyncio.run(run())


def test_a_document_whose_folder_is_gone_fails(translator: Translator) -> None:
    async def run() -> None:
        documents, client = served_documents(translator)
        document = await documents.add(client, "a.txt", b"a b", "en", "de")
        shutil.rmtree(document.folder)
        await asyncio.wait_for(document.finished.wait(), 60)
        assert (document.status, document.expiry is None) == ("failed", False)
        documents.close()

    asyncio.run(run())


def test_the_language_is_detected_whatever_the_limit_of_a_request(translator: Translator) -> None:
    async def run() -> None:
        documents, client = served_documents(translator, characters=50)
        text = "\n\n".join(["Good morning to all of you."] * 20)
        document = await documents.add(client, "a.txt", text.encode(), "auto", "de")
        assert document.source_language == "en"
        documents.close()

    asyncio.run(run())


class TestLibreTranslate:
    def send(self, service: RunningService, name: str, content: bytes, **fields: str) -> httpx.Response:
        data = {"source": "en", "target": "de", "api_key": "second"} | fields
        return httpx.post(f"{service.url}/translate_file", data=data, files={"file": (name, content)}, timeout=30)

    def test_a_file_is_translated(
        self, service: RunningService, folder: Path, expected: Callable[[str], bytes]
    ) -> None:
        reply = self.send(service, "my page.html", (folder / "page.html").read_bytes())
        assert reply.status_code == 200, reply.text
        address = reply.json()["translatedFileUrl"]
        assert address.startswith(f"{service.url}/download_file/")
        assert address.endswith("my%20page.html")
        result = httpx.get(address)
        assert result.content == expected("page.html")
        assert httpx.get(address.replace("my%20page", "other")).status_code == 404
        assert httpx.get(f"{service.url}/download_file/{'0' * 64}.a.txt").json()["error"].startswith("There is no")
        wait_until(lambda: any('"/download_file/..."' in line for line in service.log))
        secret = address.rpartition("/")[2].partition(".")[0]
        assert not any(secret in line or "my page" in line or "my%20page" in line for line in service.log)

    def test_errors(self, service: RunningService) -> None:
        for fields, status, message in (
            ({"api_key": "wrong"}, 403, "Invalid API key"),
            ({"source": ""}, 400, "Invalid request: missing source parameter"),
            ({"target": "fr"}, 400, "fr is not supported"),
        ):
            reply = self.send(service, "a.txt", b"a", **fields)
            assert (reply.status_code, reply.json()) == (status, {"error": message})
        assert "not supported" in self.send(service, "a.xyz", b"a").json()["error"]

    def test_the_settings_list_the_formats(self, service: RunningService) -> None:
        settings = httpx.get(f"{service.url}/frontend/settings").json()
        assert settings["filesTranslation"] is True
        assert settings["supportedFilesFormat"] == list(document_extensions())


def test_a_text_file_in_a_named_encoding(http: UploadingClient) -> None:
    content = "größe".encode("latin-1")
    refused = upload(http, "a.txt", content)
    assert refused.status_code == 400
    assert "it may be windows-1252" in refused.text
    assert "unknown encoding 'hex'" in upload(http, "a.txt", content, encoding="hex").text
    created = upload(http, "a.txt", content, encoding="windows-1252").json()
    assert finished(http, created["id"])["status"] == "done"
