"""Values of an axis that say more than their axis: settings of one row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_catalog import BASE, resolved, write_specs
from support.paper_specs import catalog_of_all

from pflcore.errors import UserError
from pipeline.spec.fields import Fields
from pipeline.spec.inherit import inherit
from pipeline.spec.resolve import Resolved
from pipeline.spec.run import COMPONENTS, RUN_FIELDS
from pipeline.spec.yamlfile import Document, Mark


def records(result: Resolved) -> dict[tuple[str, ...], dict[str, Any]]:
    """The record of the run in each cell, by labels."""
    assert result.table is not None
    runs = {run.id: run.record for run in result.runs}
    return {tuple(cell.labels.values()): runs[cell.runs[0]] for cell in result.table.cells if cell.runs}


def grid(axes: str, more: str = "") -> str:
    return f"grid:\n  base: {BASE}\n  axes:\n    method:\n{axes}{more}"


def test_a_row_has_settings_of_its_own(tmp_path: Path) -> None:
    text = grid(
        "      FedAvg: fedavg\n"
        "      FedTP: {name: fedtp, embedding: 16, training: {lr: 0.05}, evaluation: {window: 3}, clients: 5,\n"
        "        analyses: [weights]}\n"
        "      As it is: {backbone: {depth: 2}}\n",
        "    training.rounds: [7, 9]\n",
    )
    found = records(resolved(tmp_path, text))
    plain, own, nameless = found["FedAvg", "7"], found["FedTP", "9"], found["As it is", "7"]
    assert own == {
        **plain,
        "method": {**nameless["method"], "embedding": 16},
        "training": {**plain["training"], "lr": 0.05, "rounds": 9},
        "evaluation": {**plain["evaluation"], "window": 3},
        "clients": 5,
        "analyses": [{"name": "weights"}],
    }
    assert nameless["method"]["name"] == "fedtp"  # of the base
    assert nameless["backbone"] == {"name": "vit", "depth": 2, "dropout": None}
    assert plain["backbone"]["depth"] == 8


def test_an_axis_of_an_option_survives_an_override_with_another_component(tmp_path: Path) -> None:
    """As far as the other has that option, and the override does not state it."""
    text = f"""\
grid:
  base: {BASE}
  axes:
    partition.alpha: [0.1, 3]
    way: {{plain: {{seed: 1}}, same: {{seed: 2}}, stated: {{seed: 3}}, other: {{seed: 4}}}}
  overrides:
    - {{when: {{way: same}}, set: {{partition: {{name: dirichlet, min_samples: 7}}}}}}
    - {{when: {{way: stated}}, set: {{partition: {{name: dirichlet, alpha: 9}}}}}}
    - {{when: {{way: other}}, set: {{partition: pathological}}}}
"""
    found = {labels: record["partition"] for labels, record in records(resolved(tmp_path, text)).items()}
    assert found["0.1", "same"] == {"name": "dirichlet", "alpha": 0.1, "min_samples": 7}
    assert found["3", "same"] == {"name": "dirichlet", "alpha": 3.0, "min_samples": 7}
    assert found["0.1", "stated"] == found["3", "stated"] == {"name": "dirichlet", "alpha": 9.0, "min_samples": 10}
    assert found["0.1", "other"] == found["3", "other"] == {"name": "pathological", "classes_per_client": 2}
    assert found["3", "plain"] == {"name": "dirichlet", "alpha": 3.0, "min_samples": 10}


@pytest.mark.parametrize(
    ("settings", "other", "at"),
    [
        ("training: {lr: 0.5}", "training.lr: [0.1, 0.2]", "training.lr: the axis 'training.lr'"),
        ("training: {lr: 0.5}", "speed: {slow: {training: {lr: 0.1}}, fast: {}}", "training.lr: the axis 'speed'"),
        ("backbone: vit", "backbone: [vit, convnet]", "backbone: the axis 'backbone'"),
        ("backbone: vit", "deep: {no: {}, yes: {backbone: {depth: 9}}}", "backbone: the axis 'deep'"),
        ("backbone: {name: vit, depth: 2}", "backbone.depth: [1, 3]", "backbone.depth: the axis 'backbone.depth'"),
        ("clients: 5", "clients: [5, 9]", "clients: the axis 'clients'"),
        ("seed: 5", "partition: {a: {alpha: 1, seed: 3}, b: {alpha: 2}}", "seed: the axis 'partition'"),
    ],
)
def test_two_axes_that_set_the_same_thing(tmp_path: Path, settings: str, other: str, at: str) -> None:
    axes = f"      FedAvg: fedavg\n      FedTP: {{name: fedtp, {settings}}}\n"
    with pytest.raises(UserError) as caught:
        resolved(tmp_path, grid(axes, f"    {other}\n"))
    assert str(caught.value) == (
        f"specs/a.yaml:6: grid.axes.method.FedTP.{at} sets this too; leave it to one of them, or write an override"
    )


def test_what_is_called_like_an_option_is_the_option() -> None:
    """Of the real entries as well: only images of MNIST-M are drawn with a seed of their own."""
    fields = Fields(catalog_of_all())
    hidden = [(kind, one) for kind in COMPONENTS for one in RUN_FIELDS if one not in (kind, *fields.beside(kind))]
    assert hidden == [("dataset", "seed")]


IN_VAIN = {
    "an option": ("alpha: 0.3", "partition: [dirichlet, pathological]",
                  "partition.alpha has no effect: axis partition sets partition"),
    "some values": ("alpha: 0.3", "partition: {a: dirichlet, b: {alpha: 1}}\n  only: {partition: [a]}",
                    "partition.alpha has no effect: axis partition sets partition"),
    "a part": ("name: dirichlet, alpha: 0.3", "where: {a: {partition: pathological}, b: {seed: 1}}\n"
               "  overrides: [{when: {where: b}, set: {partition: {name: dirichlet}}}]",
               "partition has no effect: axis where and grid.overrides[0] set partition"),
    "an axis of an option": ("name: dirichlet, alpha: 0.3", "partition.alpha: [0.1, 0.2]",
                             "partition.alpha has no effect: axis partition.alpha sets partition.alpha"),
    "not everywhere": ("name: dirichlet, alpha: 0.3", "where: {a: {partition: pathological}, b: {seed: 1}}", ""),
    "patched": ("name: dirichlet, alpha: 0.3", "partition: {a: {alpha: 0.1}, b: {}}", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_VAIN)
def test_what_the_base_says_in_vain_is_told(tmp_path: Path, case: str) -> None:
    said, axes, told = IN_VAIN[case]
    base = BASE.replace("partition: dirichlet", f"\n    partition: {{{said}}}")
    idle = resolved(tmp_path, f"grid:\n  base: {base}\n  axes:\n    {axes}\n").idle
    assert idle == ([f"specs/a.yaml:3: grid.base.{told} everywhere"] if told else [])


def test_what_is_inherited_may_be_overridden(tmp_path: Path) -> None:
    parent = f"abstract: true\ngrid:\n  base: {BASE}\n  axes: {{partition: [dirichlet, pathological]}}\n"
    child = "extends: b.yaml\ngrid:\n  base: {training: {lr: 0.2}}\n  axes: {training.lr: [0.1], method: [fedavg]}\n"
    told = ["b.yaml:3: grid.base.partition has no effect: axis partition sets partition everywhere",
            "a.yaml:3: grid.base.training.lr has no effect: axis training.lr sets training.lr everywhere"]  # fmt: skip
    assert resolved(tmp_path, child, b_yaml=parent).idle == [f"specs/{line}" for line in told]


# A part of the axes, with what is said of the rest left standing.

TABLE = f"""\
grid:
  base: {BASE}
  axes:
    method: {{A: fedavg, B: {{name: fedtp, embedding: 4}}, C: fedtp,
      D: {{name: fedtp, embedding: 2}}, E: {{name: fedtp, embedding: 3}}}}
    clients: [5, 9, 20]
  overrides:
    - {{when: {{method: [A, B]}}, set: {{training: {{lr: 0.5}}}}}}
  exclude:
    - {{method: A, clients: 5}}
    - {{method: [D, E], clients: [5, 20]}}
table:
  rows: [method]
  columns: [clients]
  published: t.csv
  clients: {{clients: {{5: 0, 20: 1}}}}
"""
CSV = "method,clients,mean,std,quoted,note\nC,5,50,,,\nA,9,60,,,\nB,5,70,,,\n"


def test_what_is_kept_is_as_in_the_whole_table(tmp_path: Path) -> None:
    whole = resolved(tmp_path / "whole", TABLE, t_csv=CSV).table
    text = "extends: b.yaml\ngrid: {only: {method: [A, D, C], clients: [20, 9]}}\n"
    result = resolved(tmp_path / "part", text, t_csv=CSV, b_yaml=TABLE)
    part = result.table
    assert whole is not None and part is not None
    assert part.labels == {"method": ["C", "D", "A"], "clients": ["9", "20"]}  # in the order of the whole
    assert whole.labels == {"method": ["C", "D", "E", "A", "B"], "clients": ["5", "9", "20"]}
    kept = [cell for cell in whole.cells if cell.labels["method"] in "ACD" and cell.labels["clients"] in ("9", "20")]
    assert {tuple(cell.labels.values()): cell for cell in part.cells} == {
        tuple(cell.labels.values()): cell for cell in kept
    }
    assert sum(cell.published is not None for cell in part.cells) == 1
    assert part.clients == {"clients": {"20": 1}}
    assert {run.id for run in result.runs} == {run for cell in kept for run in cell.runs}
    assert len(result.runs) == 5


def test_only_is_inherited_lifted_and_added_to(tmp_path: Path) -> None:
    middle = "extends: b.yaml\nabstract: true\ngrid: {only: {method: [A], clients: [9]}}\n"
    for name, more, expected in (
        ("inherited", "", ["A"]),
        ("lifted", "grid: {only: {method: null}}\n", ["A", "B", "C", "D", "E"]),
        ("added to", "grid: {only: {method+: [F]}, axes: {method: {F: {name: fedtp, embedding: 8}}}}\n", ["A", "F"]),
    ):
        text = f"extends: c.yaml\n{more}table: {{clients: {{clients: null}}}}\n"
        result = resolved(tmp_path / name, text, t_csv=CSV, b_yaml=TABLE, c_yaml=middle)
        assert result.table is not None
        assert sorted(result.table.labels["method"]) == expected
        assert result.table.labels["clients"] == ["9"]


# Specs that extend several files, and lists that are added to.


def read(folder: Path, **texts: str) -> tuple[Document, tuple[str, ...]]:
    """Spec ``a`` with what it inherits, of files given by name without ``.yaml``."""
    specs = write_specs(folder, {f"specs/{name}.yaml": text for name, text in texts.items()})
    return inherit(specs / "a.yaml", specs)


def test_a_file_inherited_in_two_ways_is_merged_once(tmp_path: Path) -> None:
    """Else the second way would undo what the first has changed, and add to lists twice."""
    document, files = read(
        tmp_path,
        base="notes: [n]\ngrid: {base: {clients: 1, seed: 1}}\n",
        b="extends: base.yaml\nnotes+: [b]\ngrid: {base: {clients: 2}}\n",
        c="extends: base.yaml\nnotes+: [c]\ngrid: {base: {seed: 2}}\n",
        a="extends: [b.yaml, c.yaml]\nnotes+: [a]\n",
    )
    assert files == ("specs/a.yaml", "specs/c.yaml", "specs/b.yaml", "specs/base.yaml")
    assert document.data["grid"]["base"] == {"clients": 2, "seed": 2}
    assert document.data["notes"] == ["n", "b", "c", "a"]


def test_a_list_is_replaced_or_added_to_anywhere(tmp_path: Path) -> None:
    document, _ = read(
        tmp_path,
        b="notes: [one]\n"
        "grid:\n"
        "  base:\n"
        "    analyses: [weights]\n"
        "    method: {name: x, parts: [p]}\n"
        "  axes:\n"
        "    clients: [5]\n"
        "    method: {C+: {name: x, parts: [p]}}\n"
        "table: {rows: [r]}\n",
        a="extends: b.yaml\n"
        "notes+: [two, three]\n"
        "claims+: [c]\n"
        "grid:\n"
        "  base: {analyses+: [maps], method: {parts+: [q]}}\n"
        "  axes:\n"
        "    clients+: [9]\n"
        "    method: {C+: {parts+: [q]}}\n"
        "table: {rows: [s]}\n",
    )
    del document.data["extends"]
    method = {"name": "x", "parts": ["p", "q"]}
    assert document.data == {
        "notes": ["one", "two", "three"],
        "claims": ["c"],  # nothing is inherited, so it is the list
        "grid": {
            "base": {"analyses": ["weights", "maps"], "method": method},
            "axes": {"clients": [5, 9], "method": {"C+": method}},  # a label may end in anything
        },
        "table": {"rows": ["s"]},
    }
    assert document.marks["notes",] == document.marks["notes", 0] == Mark("specs/b.yaml", 1)
    assert document.marks["notes", 2] == Mark("specs/a.yaml", 2)
    assert document.marks["claims",] == document.marks["claims", 0] == Mark("specs/a.yaml", 3)
    assert document.marks["grid", "base", "method", "parts", 1] == Mark("specs/a.yaml", 5)
    assert document.marks["grid", "axes", "clients", 1] == Mark("specs/a.yaml", 7)
