"""`pfl fetch hf:…` against a hub on this machine: files by their hashes, a wrong one, and what is refused in a line."""

import hashlib
import io
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants
from rich.console import Console
from support.mistakes import line_of
from support.official import plain, table

from pflcore.datasets import DATASETS, _download
from pipeline.browse.hub import fetch_from_hub

SHA = "5" * 40
TABLES = [table([plain((value,) * 3, "PNG")], ["a", "b"], label=[value % 2]) for value in (9, 90, 201)]
NAMES = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test.parquet"]
PETS = dict(zip(NAMES, TABLES, strict=True))
MANY = {f"{part}/{split}/0000.parquet": TABLES[0] for part in "xy" for split in ("train", "test")}


def stated(name, content):
    """Return what the hub says of a file; test files are not in its large file storage."""
    lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 9}
    git = hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()
    return {"rfilename": name, "size": len(content), "blobId": git, **({} if "test" in name else {"lfs": lfs})}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Yield what it sends of `some/pets`, which may be other than what it states, or broken off, and what is asked for:
    files, and from where on."""
    sent, asked = dict(PETS), []
    monkeypatch.setattr(_download, "PAUSE_SECONDS", 0.0)
    known = {"some/pets": PETS, "some/many": MANY, "some/words": {"a.txt": b"a"}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            form = r"/(?:api/)?(?:datasets/)?([\w-]+(?:/\w+)?)(?:/(?:revision|resolve)/(\w+))?/?([^?]*).*"
            repository, revision, name = re.fullmatch(form, self.path).groups()
            error = "" if revision in (None, "v1", SHA) else "RevisionNotFound"
            error = error if repository in known else "RepoNotFound"
            siblings = [stated(*file) for file in known.get(repository, {}).items()]
            body = json.dumps({"id": repository, "sha": SHA, "siblings": siblings}).encode()
            start = int((self.headers["Range"] or "bytes=0-")[6:-1])
            if name:
                body = {**MANY, **sent}[name]
                asked.append((name, start))
            self.send_response(404 if error else 206 if start else 200)
            self.send_header("X-Error-Code", error)
            self.send_header("X-Repo-Commit", SHA)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("Content-Length", str(len(PETS.get(name, body)) - start))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[start:])

        do_HEAD = do_GET

        def log_message(self, *_): ...

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PFL_DATA", str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint, template = f"http://127.0.0.1:{server.server_address[1]}", "HUGGINGFACE_CO_URL_TEMPLATE"
        url = getattr(constants, template).replace(constants.ENDPOINT, endpoint)
        monkeypatch.setattr(constants, template, url)  # both are read from HF_ENDPOINT when the module is imported
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        threading.Thread(target=server.serve_forever).start()
        yield sent, asked
        server.shutdown()


def fetched(address, home):
    said = io.StringIO()
    fetch_from_hub(address, home, Console(file=said, width=10_000))
    return said.getvalue().splitlines()


def test_files_come_by_their_hashes_once_and_are_read(hub, tmp_path):
    (sent, asked), folder = hub, tmp_path / "pets"
    sent[NAMES[1]] = TABLES[1][:100]
    assert "(ConnectionError); check the network and the" in line_of(fetched, "hf:some/pets@v1", tmp_path)
    sent[NAMES[1]] = TABLES[1][:-1] + b"?"
    asked.clear()
    assert line_of(fetched, "hf:some/pets@v1", tmp_path).endswith(f"was sent of {NAMES[1]} has a wrong hash; try again")
    assert {*asked} == {(NAMES[1], 0), (NAMES[1], 100)}  # its header is asked for; others came before it
    sent |= PETS
    *_, last = fetched("hf:some/pets@v1", tmp_path)
    assert last.startswith("dataset: {name: image_table, path: pets, version: '55555555'}") and "image, label" in last
    assert sorted(path.name for path in folder.iterdir()) == ["test.parquet", *(name[5:] for name in NAMES[:2])]
    samples = DATASETS.create("image_table", path="pets", size=8).load(tmp_path / "image_table")
    assert samples.inputs[:, 0, 0, 0].tolist() == [9, 90, 201] and samples.train.tolist() == [True, True, False]
    asked.clear()
    assert len(fetched("hf:some/pets", tmp_path)) == 4 and not asked
    fetched("hf:some/many/y", tmp_path)
    assert sorted(path.name for path in (tmp_path / "many").iterdir()) == ["test-0000.parquet", "train-0000.parquet"]


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("hf:pets", "must be hf:OWNER/NAME, with /FOLDER and @REVISION where they are needed"),
        ("hf:some/cats", "the hub has no such data set, or it needs HF_TOKEN; check the name"),
        ("hf:some/pets@v2", "has no revision 'v2'; name a branch, tag or commit"),
        ("hf:some/words", "has no Parquet files; try @refs/convert/parquet, where the hub keeps some"),
        ("hf:some/many", "no train*.parquet; it has the folders x/test, x/train, y/test, y/train: name one as /FOLDER"),
    ],
)
def test_wrong_addresses(address, problem, hub, tmp_path):
    assert line_of(fetched, address, tmp_path) == f"{address}: {problem}"


def test_files_of_another_set_and_no_network(hub, tmp_path, monkeypatch):
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "train.parquet").write_bytes(b"")
    assert "holds train.parquet, which is none of hf:some/pets" in line_of(fetched, "hf:some/pets", tmp_path)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert "could not be fetched (ConnectError); check the network" in line_of(fetched, "hf:some/pets", tmp_path)
