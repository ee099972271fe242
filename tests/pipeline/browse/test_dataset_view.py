"""What the terminal says of datasets: parts that are here and missing, with any options; and fetching them."""

import hashlib
import io

import pytest
from rich.console import Console
from support import own_parts
from support.breaking_host import CONTENT
from support.breaking_host import host as host
from support.digit_files import write_mnist, write_usps_hdf5
from support.mistakes import line_of
from support.official import write_files, write_zip

from pflcore.datasets import DATASETS, domainnet
from pflcore.errors import UserError
from pflcore.registry import use_study
from pipeline.browse.dataset_view import fetch, show_facts
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
    assert (shown["state"], shown["USPS"]) == ("needs folder; 3 of 8 parts are here", f"here, {data}/usps/usps.h5")
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
    host.most = [1_000_000]  # the first transfer breaks off
    fetch("domainnet", tmp_path, said, {})
    expected = {f"{domain}.zip" for domain in domainnet.DomainNet.domains}
    assert {path.name for path in (data / "domainnet").iterdir()} == expected
    assert host.sent == 6 * len(CONTENT) and len(host.asked) == 7
    with pytest.raises(UserError, match=r"^domainnet: get FedBN's lists yourself; "):
        fetch("domainnet", tmp_path, said, {"lists": "fedbn"})
    assert len(host.asked) == 7, "what is here is not fetched again"
    shown = said.file.getvalue()
    assert f"infograph: here, {data}/domainnet/infograph.zip ({len(CONTENT):,} bytes;" in shown
    assert "unverified, from https://huggingface.co/datasets/Jemary/FedBN_Dataset/resolve/main/" in shown
