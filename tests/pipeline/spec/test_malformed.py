"""Bad specs end in one line that says where and what; no other exception, nothing on a second line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_catalog import BASE, CATALOG, write_specs

from pflcore.errors import UserError
from pipeline.spec.resolve import resolve
from pipeline.spec.specs import find_specs, load_spec

METHODS = f"title: A table\ngrid:\n  base: {BASE}\n  axes:\n    method: {{FedAvg: fedavg, FedTP: fedtp}}\n"
TABLE = "table:\n  rows: [method]\n  columns: [clients]\n"
SHORT = {
    "<grid>": f"{METHODS}    clients: [20, 50]\n{TABLE}",
    "<axes>": f"{METHODS}    clients: [20, 50]\n",
    "<methods>": METHODS,
    "<table>": TABLE,
    "<base>": "grid:\n  base:\n    ",
    "<rows>": f"grid:\n  base: {BASE}\n  axes:\n    method:\n",
    "<run>": BASE,
    "<csv>": "method,clients,mean,std,quoted,note\n",
    r"\n": "\n",
}
"""What malformed.txt writes short. Its lines are: a.yaml && another file = its text => how the message begins."""
LINES = Path(__file__).with_name("malformed.txt").read_text(encoding="utf-8").splitlines()
BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
)
LARGE = {
    "a byte": (b"title: ok\nnotes: [caf\xe9]\n", "a.yaml:2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
    "binary": (b"\x00\x01\x02ELF", "a.yaml:1: character 0x00 is not allowed in YAML"),
    "10 MB": (b"a: &a x\nb: [" + b"*a, " * 2_500_000 + b"*a]", "a.yaml: larger than 1 MiB"),
    "aliases": (b"a: &a [x, x]\nb:\n" + b"- *a\n" * 9_000, "a.yaml:1: more than 20000 values, aliases expanded"),
    "bomb": (BOMB.encode(), "a.yaml:1: more than 20000 values, aliases expanded"),
    "deep": (b"a: " + b"[" * 500 + b"]" * 500, "a.yaml:1: nested deeper than 40 levels"),
    "digits": (b"grid: {base: {seed: 1" + b"0" * 5000 + b"}}", "a.yaml:1: the number '1000"),
    "runs": (
        f"{METHODS}    seed: {list(range(200))}\n    backbone.depth: {list(range(1, 200))}\n{TABLE}".encode(),
        "a.yaml:4: grid.axes: 79600 runs; a spec holds at most 20000",
    ),
}


def message_of(specs: Path) -> str:
    """What compiling the specs of a folder says, ``a`` first; it is one line."""
    with pytest.raises(UserError) as caught:
        resolve(load_spec(specs / "a.yaml", specs, CATALOG), CATALOG)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("line", LINES, ids=[line.partition(" => ")[2] for line in LINES])
def test_one_line_says_where_and_what(tmp_path: Path, line: str) -> None:
    text, _, expected = line.partition(" => ")
    for short, full in SHORT.items():
        text = text.replace(short, full)
    first, *others = text.split(" && ")
    files: dict[str, str | bytes] = {"specs/a.yaml": f"{first}\n" if first else ""}
    for other in others:
        name, _, content = other.partition(" = ")
        files[f"specs/{name}"] = f"{content}\n" if content else ""
    assert message_of(write_specs(tmp_path, files)).startswith(f"specs/{expected}")


@pytest.mark.parametrize("name", LARGE)
def test_what_is_no_text_or_too_much_of_it(tmp_path: Path, name: str) -> None:
    content, expected = LARGE[name]
    assert message_of(write_specs(tmp_path, {"specs/a.yaml": content})).startswith(f"specs/{expected}")


@pytest.mark.parametrize("path", ["specs/a b.yaml", "specs/$(ls)/a.yaml", "specs/Table.yaml", "specs/a\nb.yaml"])
def test_names_of_files(tmp_path: Path, path: str) -> None:
    specs = write_specs(tmp_path, {path: "title: x\n"})
    with pytest.raises(UserError, match=r"^specs/.*: the name '.*' is not allowed; use a-z, 0-9,"):
        find_specs(specs)


def test_other_endings_and_colliding_names(tmp_path: Path) -> None:
    specs = write_specs(tmp_path, {"specs/table.yml": "title: x\n"})
    with pytest.raises(UserError, match=r"^specs/table\.yml: specs end in \.yaml; rename it$"):
        find_specs(specs)
    specs = write_specs(tmp_path / "b", {"specs/a/b.yaml": "title: x", "specs/a.b.yaml": "title: x"})
    with pytest.raises(UserError, match=r"^specs/a/b\.yaml: its stage would be called 'a-b', as that of specs/a\.b"):
        find_specs(specs)


def test_links_that_lead_out(tmp_path: Path) -> None:
    specs = write_specs(tmp_path, {"specs/a.yaml": "extends: b.yaml", "b.yaml": "title: b", "c/c.yaml": "title: c"})
    (specs / "b.yaml").symlink_to(tmp_path / "b.yaml")
    assert message_of(specs) == "specs/a.yaml:1: extends: 'b.yaml' leads out of specs/"
    with pytest.raises(UserError, match=r"^specs/b\.yaml: leads out of specs/"):
        find_specs(specs)
    (specs / "b.yaml").unlink()
    (specs / "c").symlink_to(tmp_path / "c")
    with pytest.raises(UserError, match=r"^specs/c: a linked folder"):
        find_specs(specs)


def test_a_path_out_of_the_folder(tmp_path: Path) -> None:
    specs = write_specs(tmp_path, {"specs/a.yaml": "title: a", "b.yaml": "title: b"})
    with pytest.raises(UserError, match=r"^specs/\.\./b\.yaml: leads out of specs/"):
        load_spec(specs / ".." / "b.yaml", specs, CATALOG)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^specs: no such folder; specs are YAML files in it$"):
        find_specs(tmp_path / "specs")
    with pytest.raises(UserError, match=r"^specs/a\.yaml: cannot be read: No such file or directory$"):
        load_spec(tmp_path / "specs" / "a.yaml", tmp_path / "specs", CATALOG)


@pytest.mark.parametrize(
    ("profile", "tail"),
    [("smok", "did you mean 'smoke'?"), ("Paper", "did you mean 'paper'?"), ("../smoke", ""), ("", "known: paper, ")],
)
def test_unknown_profile(tmp_path: Path, profile: str, tail: str) -> None:
    specs = write_specs(tmp_path, {"specs/a.yaml": SHORT["<grid>"]})
    with pytest.raises(UserError) as caught:
        resolve(load_spec(specs / "a.yaml", specs, CATALOG), CATALOG, profile)
    assert str(caught.value).startswith(f"unknown profile {profile!r}; {tail}")
