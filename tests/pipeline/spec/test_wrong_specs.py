"""Wrong specs end in one line that says where and what; no other exception, nothing on a second line."""

from pathlib import Path

import pytest
from support.fake_catalog import BASE, CATALOG, write_specs
from support.mistakes import line_of

from pipeline.spec.resolve import resolve
from pipeline.spec.specs import find_specs, load_spec

METHODS = f"title: A table\ngrid:\n  base: {BASE}\n  axes:\n    method: {{FedAvg: fedavg, FedTP: fedtp}}\n"
TABLE = "table:\n  rows: [method]\n  columns: [clients]\n"
SHORT = {
    "<grid>": f"{METHODS}    clients: [20, 50]\n{TABLE}",
    "<axes>": f"{METHODS}    clients: [20, 50]\n",
    "<tune>": METHODS.replace("dirichlet", "{name: dirichlet, validation_share: 0.2}") + "tune: ",
    "<lr>": "space: {training.lr: [1, 2]}",
    "<methods>": METHODS,
    "<table>": TABLE,
    "<base>": "grid:\n  base:\n    ",
    "<rows>": f"grid:\n  base: {BASE}\n  axes:\n    method:\n",
    "<run>": BASE,
    "<csv>": "method,clients,mean,std,quoted,note\n",
    r"\n": "\n",
}
"""What wrong_specs.txt writes short. Its lines are: a.yaml && another file = its text => how the message begins."""
LINES = Path(__file__).with_name("wrong_specs.txt").read_text(encoding="utf-8").splitlines()
LONG = "k" * 5000
NAMES = ("lr", "momentum", "beta1", "beta2", "eps", "clip", "gamma")
SPACE = ", ".join(f"training.{name}: {[number / 1000 for number in range(1, 900)]}" for name in NAMES)
LARGE = {
    "a.yaml:2: byte 0xe9 is not UTF-8": b"title: ok\nnotes: [caf\xe9]\n",
    "a.yaml: larger than 1 MiB": "a: &a x\nb: [" + "*a, " * 2_500_000 + "*a]",
    "a.yaml:1: more than 20000 values, aliases expanded": "a: &a [x, x]\nb:\n" + "- *a\n" * 9_000,
    "a.yaml:1: nested deeper than 40 levels": "a: " + "[" * 500 + "]" * 500,
    "a.yaml:1: nested too deeply": "a: " + "[" * 50_000,
    "a.yaml:1: the number '1000": "grid: {base: {seed: 1" + "0" * 5000 + "}}",
    "a.yaml:4: grid.axes: 79": f"{METHODS}    seed: {[*range(200)]}\n    backbone.depth: {[*range(1, 200)]}\n",
    "a.yaml:6: tune: 5e+20 combinations for": f"{SHORT['<tune>']}{{space: {{{SPACE}}}, trials: 5}}\n",
    "a.yaml:1: extends[0]: ": f"extends: [{'x/' * 3000}y.yaml]\n",
    "a.yaml:10: table.published: ": f"{SHORT['<grid>']}  published: {LONG}.csv\n",
    "a.yaml:3: grid.base.method: ": f"grid:\n  base:\n    method: {LONG}\n",
}


def message_of(specs: Path, profile: str = "paper") -> str:
    """Return what compiling the specs of a folder says, ``a`` first; it is one line."""
    line = line_of(lambda: resolve(load_spec(specs / "a.yaml", specs, CATALOG), CATALOG, profile))
    assert len(line) < 600
    return line


@pytest.mark.parametrize("line", LINES, ids=[line.partition(" => ")[2] for line in LINES])
def test_one_line_says_where_and_what(tmp_path: Path, line: str) -> None:
    text, _, expected = line.partition(" => ")
    for short, full in SHORT.items():
        text = text.replace(short, full)
    first, *others = text.split(" && ")
    named = {"a.yaml": first} | dict(other.split(" = ", 1) for other in others)
    files = {f"specs/{name}": f"{content}\n" if content else "" for name, content in named.items()}
    assert message_of(write_specs(tmp_path, files)).startswith(f"specs/{expected}")


def test_what_is_no_text_or_too_much_of_it(tmp_path: Path) -> None:
    for expected, content in LARGE.items():
        assert message_of(write_specs(tmp_path, {"specs/a.yaml": content})).startswith(f"specs/{expected}")


def test_what_lies_elsewhere_or_nowhere(tmp_path: Path) -> None:
    specs = write_specs(tmp_path, {"specs/a.yaml": "extends: b.yaml", "b.yaml": "title: b", "c/c.yaml": "title: c"})
    (specs / "b.yaml").symlink_to(tmp_path / "b.yaml")
    assert message_of(specs) == "specs/a.yaml:1: extends: 'b.yaml' leads out of specs/"
    for name, message in {"../b.yaml": "leads out of specs/", "none.yaml": "cannot be read: No such file"}.items():
        assert line_of(load_spec, specs / name, specs, CATALOG).startswith(f"specs/{name}: {message}")
    assert line_of(find_specs, specs).startswith("specs/b.yaml: leads out of specs/")
    (specs / "b.yaml").unlink()
    (specs / "c").symlink_to(tmp_path / "c")
    assert line_of(find_specs, specs).startswith("specs/c: a linked folder")
    for message, files in {
        "specs/a b.yaml: the name 'a b' is not allowed": ["a b.yaml"],
        "specs/$(ls)/a.yaml: the name '$(ls)' is not allowed": ["$(ls)/a.yaml"],
        "specs/table.yml: specs end in .yaml; rename it": ["table.yml"],
        "specs/a/b.yaml: its stage would be called 'a-b', as that of specs/a.b": ["a/b.yaml", "a.b.yaml"],
        "specs: no such folder; specs are YAML files in it": [],
    }.items():
        other = write_specs(tmp_path / message, {f"specs/{name}": "title: x\n" for name in files})
        assert line_of(find_specs, other).startswith(message)
