"""What a fingerprint consists of, on packages made here: modules, templates, what is left out, what is remembered."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pipeline.compile.fingerprint import Code


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files = {
        "pflcore/__init__.py": "",
        "pflcore/base.py": "BASE = 1\n",
        "pflcore/part/__init__.py": "from . import own\n",
        "pflcore/part/own.py": "from .. import base\nfrom ..base import BASE\nimport torch\n",
        "pflcore/part/deep/low.py": "from ... import base\n",  # a package without a file
        "pflcore/alone.py": "ALONE = 1\n",
        "pipeline/__init__.py": "",
        "pipeline/page.py": "import pflcore.base as base\n",
        "pipeline/templates/page.md.j2": "# {{ title }}\n",
        "pipeline/templates/notes.txt": "not a template\n",
    }
    for name, text in files.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "source"


def test_modules_of_a_closure_with_their_packages(source: Path) -> None:
    code = Code(source)

    def named(*roots: str, without: str | None = None) -> list[str]:
        return code.names(code.fingerprint(*roots, without=without))

    part = ["pflcore", "pflcore.base", "pflcore.part", "pflcore.part.own"]
    assert named("pflcore.part.own") == named("pflcore.part") == part
    assert named("pflcore.part.deep.low") == sorted([*part, "pflcore.part.deep.low"])
    assert named("pflcore.alone") == ["pflcore", "pflcore.alone"]
    page = ["pflcore", "pflcore.base", "pipeline", "pipeline.page", "pipeline/templates/page.md.j2"]
    assert named("pipeline.page") == page
    assert named("pipeline.page", "pflcore.alone") == [*page[:1], "pflcore.alone", *page[1:]]
    assert named("pipeline.page", without="pflcore.base") == page[2:]
    assert named("pflcore.part", without="pflcore.part.own") == [] and named("torch") == []
    assert code.fingerprint("pflcore.alone").endswith("\n") and code.fingerprint("torch") == "\n"


def test_a_module_is_known_by_its_name(source: Path) -> None:
    code = Code(source)
    assert code.modules["pflcore.part"] == source / "pflcore/part/__init__.py"
    assert code.has("pflcore.part.deep.low") and not code.has("pflcore.part.deep") and not code.has("torch")


def test_contents_are_compared_by_meaning_and_templates_by_all_their_text(source: Path) -> None:
    code = Code(source)
    known = code.fingerprint("pipeline.page", "pflcore.alone")
    on_disk = code.on_disk(known)
    assert on_disk["pflcore.alone"] == b"ALONE = 1\n" and on_disk["pipeline/templates/page.md.j2"] == b"# {{ title }}\n"
    assert code.altered(known, on_disk) is None
    assert code.altered(known, {**on_disk, "pflcore.alone": b"ALONE = 1  # one\n", "other": b"X = 2"}) is None
    assert code.altered(known, {**on_disk, "pflcore.alone": b"ALONE = 2\n"}) == "pflcore.alone"
    name = "pipeline/templates/page.md.j2"
    assert code.altered(known, {**on_disk, name: b"# {{ title }}"}) == name
    assert code.altered(known, {}) is None
    (source / "pflcore/alone.py").unlink()
    (source / name).unlink()
    again = Code(source).on_disk(known)
    assert again["pflcore.alone"] == again[name] == b"" and again["pflcore.base"] == b"BASE = 1\n"
    line = next(line for line in known.splitlines() if line.startswith(name))
    assert line == f"{name} {hashlib.sha256(on_disk[name]).hexdigest()[:16]}"
    assert all(len(line.split()[1]) == 16 for line in known.splitlines())


def test_what_is_remembered_grows_until_it_is_too_much(source: Path, tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    other = {f"2 {number}": ["0" * 16, []] for number in range(1999)}
    known.write_text(json.dumps(other))
    first = Code(source, known)
    first.fingerprint("pflcore.alone")
    first.remember()
    kept = json.loads(known.read_text())
    assert len(kept) == 2001 and other.items() <= kept.items()  # the package and the module are new
    written = known.stat().st_mtime_ns
    same = Code(source, known)
    same.fingerprint("pflcore.alone")
    same.remember()
    assert known.stat().st_mtime_ns == written
    more = Code(source, known)
    more.fingerprint("pflcore.base")
    more.remember()
    assert set(json.loads(known.read_text())) <= set(kept) | {
        f"2 {hashlib.sha256(b'BASE = 1' + bytes([10])).hexdigest()}"
    }
    assert len(json.loads(known.read_text())) == 2  # of 2001, none but what was used now


@pytest.mark.parametrize("content", ["", "[]", "{", '{"2 a": 3}', '{"2 a": ["b", 4]}', '{"2 a": ["b", ["c"], "d"]}'])
def test_what_cannot_be_read_is_parsed_anew(content: str, source: Path, tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    known.write_text(content)
    code = Code(source, known)
    assert code.fingerprint("pflcore.part") == Code(source).fingerprint("pflcore.part")
    code.remember()
    assert len(json.loads(known.read_text())) == 4  # and nothing of what was there
    Code(source, None).remember()


def test_what_is_remembered_is_believed(source: Path, tmp_path: Path) -> None:
    known = tmp_path / "known.json"
    key = f"2 {hashlib.sha256(b'ALONE = 1' + bytes([10])).hexdigest()}"
    known.write_text(json.dumps({key: ["f" * 16, ["pflcore.base"]]}))
    lines = Code(source, known).fingerprint("pflcore.alone").splitlines()
    assert [line.split()[0] for line in lines] == ["pflcore", "pflcore.alone", "pflcore.base"]
    assert lines[1].split()[1] == "f" * 16
