"""What the terminal says of datasets: parts that are here and missing, with any options; and fetching them."""

import hashlib
import io
import json
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from huggingface_hub import constants
from rich.console import Console
from support import own_parts
from support.breaking_host import CONTENT
from support.breaking_host import host as host
from support.digit_files import write_mnist, write_usps_hdf5
from support.mistakes import line_of, refuses
from support.official import plain, table, write_files, write_zip

from pflcore.datasets import DATASETS, domainnet
from pflcore.registry import use_study
from pipeline.browse.dataset_view import fetch, show_facts
from pipeline.browse.hub import fetch_from_hub
from pipeline.browse.listing import describe, list_kind
from pipeline.spec.catalog import Invalid, load_catalog
from pipeline.workspace import Workspace


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PFL_DATA", "~/data")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def facts(data, name, **options):
    """What is shown of a dataset with some options, by the words before the colon."""
    out = io.StringIO()
    show_facts(name, data.parent, Console(file=out, width=10_000), options)
    lines = [line.partition(": ") for line in out.getvalue().splitlines()]
    return {key.strip().rstrip(":"): text for key, _, text in lines}


def test_which_parts_are_here_and_how_others_are_got(data):
    for name in DATASETS.names():
        assert (facts(data, name)["needs"] == "nothing: it comes with a library") == (name == "digits")
    write_mnist(data / "mnist")
    write_usps_hdf5(data / "usps" / "usps.h5")
    shown = facts(data, "digits5")
    assert shown["state"] == "needs folder; 10 of 15 parts are here"
    assert shown["USPS, test"] == f"here, {data}/usps/usps.h5"
    assert shown["SVHN, test"].startswith("missing; fetched when a run needs it: test_32x32.mat, 64 MB, md5 eb5a983b")
    assert shown["MNIST-M, photographs of BSDS500"].startswith("missing; by hand: BSR_bsds500.tgz, 71 MB, no hash is")
    clipart = facts(data, "domainnet", lists="fedbn")["clipart"]
    assert clipart.startswith("missing; pfl fetch gets it: clipart.zip, 1.3 GB, md5 cd0d8f2d77a4e181449b78ed62bccf1e, ")
    assert clipart.endswith(f"into {data}/domainnet; taken instead: clipart/")
    write_files(data / "domainnet", {"sketch/bird/1.jpg": b"x", "domainnet_dataset.zip": b"x"})
    size = write_zip(data / "domainnet" / "clipart.zip", {"a": b"b"}).stat().st_size
    shown = facts(data, "domainnet", lists="fedbn")
    assert shown["state"] == "needs folder; 3 of 7 parts are here"
    assert shown["clipart"].startswith(f"here, {data}/domainnet/clipart.zip ({size:,} bytes; its hash is checked")
    assert shown["sketch"] == f"here, {data}/domainnet/sketch (a folder says neither hash nor version)"


def test_a_broken_part_of_a_study_hides_no_other(tmp_path, capsys):
    bare = own_parts.DATASET.replace('    licence, download_size, access = "none", "none", "included"\n', "")
    files = {"datasets/bare.py": bare, "datasets/gone.py": "import gone\n", "datasets/noise.py": own_parts.DATASET}
    needs = own_parts.DATASET.replace("    def load", "    size: int = option(help='In pixels.')\n\n    def load")
    write_files(tmp_path, {**files, "datasets/asks.py": f"from pflcore.options import option\n{needs}"})
    try:
        catalog, workspace, out = load_catalog(tmp_path), Workspace(tmp_path, tmp_path), io.StringIO()
        list_kind("datasets", workspace, catalog, Console(file=out, width=10_000))
        shown = {line.split("  ")[0]: line for line in out.getvalue().splitlines()}
        assert "needs folder" in shown["bare"] and "ready" in shown["noise"] and "digits" in shown
        said = capsys.readouterr().err.splitlines()
        problem = "datasets/gone.py:1: the dataset cannot be imported: ModuleNotFoundError: No module named 'gone'"
        assert said[0] == f"pfl: skipped: {problem}" and "skipped: dataset 'asks'" in said[1] and len(said) == 2
        assert line_of(describe, "gone", workspace, catalog, Console(file=out)) == problem
        with pytest.raises(Invalid) as error:
            catalog.validate("dataset", {"name": "gone"})
        assert error.value.message == problem
    finally:
        use_study(tmp_path / "nowhere")


def test_what_has_an_address_and_a_hash_is_fetched_and_the_rest_is_a_persons(tmp_path, data, monkeypatch, host):
    said, digest = Console(file=io.StringIO(), width=10_000), hashlib.md5(CONTENT).hexdigest()
    of = domainnet.DomainNet.archives
    archives = [one._replace(source=host.source(digest, one.source.name, "md5")) for one in of]
    monkeypatch.setattr(domainnet.DomainNet, "archives", tuple(archives))
    host.limits = [1_000_000]  # the first transfer breaks off
    fetch("domainnet", tmp_path, said, {})
    expected = {f"{domain}.zip" for domain in domainnet.DomainNet.domains}
    assert {path.name for path in (data / "domainnet").iterdir()} == expected
    assert host.sent == 6 * len(CONTENT) and len(host.requested) == 7
    refuses(r"^domainnet: get FedBN's lists yourself; ", fetch, "domainnet", tmp_path, said, {"lists": "fedbn"})
    assert len(host.requested) == 7, "what is here is not fetched again"
    shown = said.file.getvalue()
    assert f"infograph: here, {data}/domainnet/infograph.zip ({len(CONTENT):,} bytes;" in shown
    assert "unverified, from https://huggingface.co/datasets/Jemary/FedBN_Dataset/resolve/main/" in shown


# --- `pfl fetch hf:…` against files served on this machine ------------------------------------------------------------

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
        (
            "hf:some/cats@v1",
            "the hub has no such dataset, or it needs consent, given on its page, and HF_TOKEN; check the name",
        ),
        ("hf:some/pets@v2", "has no revision 'v2'; name a branch, tag or commit"),
        ("hf:some/words@v1", "has no Parquet files; try @refs/convert/parquet, where the hub keeps some"),
        ("hf:some/many@v1", "no train*.parquet; it has the folders x/test, x/train, y/test, y/train: name one as /FOL"),
    ):
        assert line_of(fetched, address, tmp_path).startswith(f"{address}: {problem}")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert "could not be fetched (ConnectError); check network and disk" in line_of(fetched, "hf:some/pets", tmp_path)
