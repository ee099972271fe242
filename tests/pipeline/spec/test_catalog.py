"""The catalog as data, and its cache. The real one is built once, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_catalog import CATALOG

from pflcore.registry import KINDS, registry_of
from pipeline.spec import catalog as module
from pipeline.spec.catalog import Catalog, load_catalog
from pipeline.spec.run import COMPONENTS, LISTS


def test_entries_as_data_and_as_json() -> None:
    entry, vit = CATALOG.entry("method", "fedper"), CATALOG.entry("backbone", "vit")
    assert (entry.summary, entry.citation) == ("A personal head.", "Arivazhagan et al., 2019")
    assert entry.doc == "A personal head.\n\nThe rest is averaged."
    assert entry.facts == {"personal": ["head"], "results_version": 1}
    assert [(option.name, option.required, option.bounds) for option in entry.options] == [("layers", True, {"ge": 1})]
    assert vit.smoke == {"depth": 1} and vit.facts["groups"] == {"qkv": r"attention\.qkv", "head": r"head\."}
    assert Catalog.from_json(CATALOG.to_json()) == CATALOG


def test_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    monkeypatch.setattr(module, "build_catalog", lambda: built.append(1) or CATALOG)
    for damage in (
        None,
        "{",
        "[]",
        '{"entries": {}, "settings": {}}',
        CATALOG.to_json().replace("help", "halp"),
        "\xff",
    ):
        if damage is not None:
            next((tmp_path / ".pfl").iterdir()).write_bytes(damage.encode("latin1"))
        built.clear()
        assert load_catalog(tmp_path) == load_catalog(tmp_path) == CATALOG
        assert built == [1]
    monkeypatch.setattr(module, "fingerprint", lambda: "0" * 64)
    (tmp_path / ".pfl/other.json").touch()
    assert load_catalog(tmp_path) == CATALOG
    assert sorted(item.name for item in (tmp_path / ".pfl").iterdir()) == [f"catalog-{'0' * 64}.json", "other.json"]


def test_the_real_catalog_is_read_without_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from pipeline.spec.catalog import load_catalog;"
        "import pipeline.spec.resolve;"
        "catalog = load_catalog(Path(sys.argv[1])); print('torch' in sys.modules); print(catalog.to_json())"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    (first, built), (second, cached) = (output.split("\n", 1) for output in outputs)
    assert (first, second) == ("True", "False") and Catalog.from_json(built) == Catalog.from_json(cached)
    catalog = Catalog.from_json(built)
    assert set(KINDS) == {*COMPONENTS, *LISTS.values()}
    assert {kind: catalog.names(kind) for kind in KINDS} == {kind: registry_of(kind).names() for kind in KINDS}
