"""`pfl fetch hf:…` against files served on this machine: by their hashes, once, and what is refused in a line."""

import hashlib
import io
import json
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from huggingface_hub import constants
from rich.console import Console
from support.mistakes import line_of
from support.official import plain, table, write_files

from pflcore.datasets import DATASETS
from pipeline.browse.hub import fetch_from_hub

TABLES = [table([plain((value,) * 3, "PNG")], ["a", "b"], label=[value % 2]) for value in (9, 90, 201)]
PETS = dict(zip(("data/train-0.parquet", "data/train-1.parquet", "data/test.parquet"), TABLES, strict=True))
MANY = {f"{part}/{split}/0.parquet": TABLES[0] for part in "xy" for split in ("train", "test")}


def stated(name, content):
    """Return what the hub says of a file; test files are not in its large file storage."""
    lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 9}
    git = hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()
    return {"rfilename": name, "size": len(content), "blobId": git} | ({} if "test" in name else {"lfs": lfs})


@pytest.fixture
def site(monkeypatch, tmp_path):
    """Serve three datasets under the revision v1; return the folder of what is sent of `some/pets`."""

    class Handler(SimpleHTTPRequestHandler):
        def end_headers(self):
            self.send_header("X-Error-Code", "RevisionNotFound" if "/pets/" in self.path else "RepoNotFound")
            super().end_headers()

    for name, files in {"some/pets": PETS, "some/many": MANY, "some/words": {"a.txt": b""}}.items():
        said = {"id": name, "sha": "5" * 40, "siblings": [stated(*file) for file in files.items()]}
        write_files(tmp_path / "site/api/datasets" / name / "revision", {"v1": json.dumps(said)})
        write_files(tmp_path / "site/datasets" / name / "resolve" / ("5" * 40), files)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("PFL_DATA", str(tmp_path / "raw"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path / "site")) as server:
        here = f"http://127.0.0.1:{server.server_address[1]}"  # HF_ENDPOINT is read when the module is imported
        for name in ("HUGGINGFACE_CO_URL_TEMPLATE", "ENDPOINT"):
            monkeypatch.setattr(constants, name, getattr(constants, name).replace(constants.ENDPOINT, here))
        Thread(target=server.serve_forever).start()
        yield tmp_path / "site/datasets/some/pets/resolve" / ("5" * 40)
        server.shutdown()


def fetched(address, home):
    said = io.StringIO()
    fetch_from_hub(address, home, Console(file=said, width=10_000))
    return said.getvalue().splitlines()


def test_files_come_by_their_hashes_and_are_read(site, tmp_path):
    write_files(site, {"data/train-1.parquet": TABLES[2]})
    assert "of data/train-1.parquet has a wrong hash; try again" in line_of(fetched, "hf:some/pets@v1", tmp_path)
    write_files(site, PETS | {"data/test.parquet": b"not asked for again"})
    *_, last = fetched("hf:some/pets@v1", tmp_path)
    assert last.startswith("dataset: {name: image_table, path: pets, version: '55555555'}") and "image, label" in last
    samples = DATASETS.create("image_table", path="pets", size=8).load(tmp_path / "raw/image_table")
    assert samples.inputs[:, 0, 0, 0].tolist() == [9, 90, 201] and samples.train.tolist() == [True, True, False]
    fetched("hf:some/many/y@v1", tmp_path)
    assert sorted(path.name for path in (tmp_path / "raw/many").iterdir()) == ["test-0.parquet", "train-0.parquet"]
    write_files(tmp_path / "raw/pets", {"train.parquet": b""})
    assert "holds train.parquet, which is none of hf" in line_of(fetched, "hf:some/pets@v1", tmp_path)


def test_wrong_addresses_and_no_network(site, tmp_path, monkeypatch):
    for address, problem in (
        ("hf:pets", "must be hf:OWNER/NAME, with /FOLDER and @REVISION where they are needed"),
        ("hf:some/cats@v1", "the hub has no such dataset, or it needs HF_TOKEN; check the name"),
        ("hf:some/pets@v2", "has no revision 'v2'; name a branch, tag or commit"),
        ("hf:some/words@v1", "has no Parquet files; try @refs/convert/parquet, where the hub keeps some"),
        ("hf:some/many@v1", "no train*.parquet; it has the folders x/test, x/train, y/test, y/train: name one as /FOL"),
    ):
        assert line_of(fetched, address, tmp_path).startswith(f"{address}: {problem}")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert "could not be fetched (ConnectError); check network and disk" in line_of(fetched, "hf:some/pets", tmp_path)
