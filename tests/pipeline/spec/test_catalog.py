"""The catalog as data, and its cache. The real one is built once, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_catalog import CATALOG, FedPer, FedTP, Vit

from pflcore.registry import KINDS, registry_of
from pipeline.spec import catalog as module
from pipeline.spec.catalog import Catalog, describe_entry, load_catalog
from pipeline.spec.run import COMPONENTS, LISTS


def test_an_entry_as_data() -> None:
    entry = describe_entry("fedper", FedPer)
    assert entry.summary == "A personal head."
    assert entry.doc == "A personal head.\n\nThe rest is averaged."
    assert entry.citation == "Arivazhagan et al., 2019"
    assert entry.facts == {"personal": ["head"], "results_version": 1}
    assert [(option.name, option.required, option.bounds) for option in entry.options] == [("layers", True, {"ge": 1})]
    assert describe_entry("fedtp", FedTP).smoke == {"embedding": 8}
    assert describe_entry("vit", Vit).facts["groups"] == {"qkv": r"attention\.qkv", "head": r"head\."}


def test_json_round_trip_keeps_order_and_types() -> None:
    again = Catalog.from_json(CATALOG.to_json())
    assert again == CATALOG
    assert again.to_json() == CATALOG.to_json()
    assert again.entries["backbone"]["convnet"].options[0].default == (16, 32)


def test_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(module, "build_catalog", lambda: built.append(1) or CATALOG)
    folder = tmp_path / ".pfl"
    assert load_catalog(tmp_path) == CATALOG
    (path,) = folder.iterdir()
    assert path.name.startswith("catalog-")
    assert load_catalog(tmp_path) == CATALOG
    assert len(built) == 1
    for damage in ("", "{", "[]", "{}", '{"entries": {}, "settings": {}}', CATALOG.to_json().replace("help", "halp")):
        path.write_text(damage, encoding="utf-8")
        built.clear()
        assert load_catalog(tmp_path) == CATALOG
        assert built == [1]
    path.write_bytes(b"\xff")
    assert load_catalog(tmp_path) == CATALOG

    monkeypatch.setattr(module, "fingerprint", lambda: "0" * 64)
    (folder / "other.json").touch()
    with monkeypatch.context() as edited:
        edited.setattr(module, "_STARTED", 0.0)
        assert load_catalog(tmp_path) == CATALOG  # and is not kept: sources are newer than this process
    assert "0" * 64 not in " ".join(item.name for item in folder.iterdir())
    assert load_catalog(tmp_path) == CATALOG
    assert sorted(item.name for item in folder.iterdir()) == [f"catalog-{'0' * 64}.json", "other.json"]


def test_the_real_catalog_is_read_without_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from pipeline.spec.catalog import load_catalog;"
        "import pipeline.spec.resolve;"
        "catalog = load_catalog(Path(sys.argv[1])); print('torch' in sys.modules); print(catalog.to_json())"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    (first, built), (second, cached) = (output.split("\n", 1) for output in outputs)
    assert (first, second) == ("True", "False")
    assert built == cached
    catalog = Catalog.from_json(built)
    assert set(KINDS) == {*COMPONENTS, *LISTS.values()}
    assert {kind: catalog.names(kind) for kind in KINDS} == {kind: registry_of(kind).names() for kind in KINDS}
