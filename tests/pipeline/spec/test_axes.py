"""Values of an axis that say more than their axis: settings of one row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.fake_catalog import BASE, CATALOG, resolved

from pflcore.errors import UserError
from pipeline.spec.fields import Fields
from pipeline.spec.resolve import Resolved


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


def test_it_is_the_run_that_an_override_makes(tmp_path: Path) -> None:
    axes = "      FedAvg: fedavg\n      FedTP: {}\n"
    override = (
        "  overrides:\n    - {when: {method: FedTP}, set: {training: {lr: 0.05}, backbone: {name: vit, depth: 1}}}\n"
    )
    one = resolved(tmp_path / "one", grid(axes.format("fedtp"), override))
    row = axes.format("{name: fedtp, training: {lr: 0.05}, backbone: {name: vit, depth: 1}}")
    assert resolved(tmp_path / "two", grid(row)) == one


def test_values_of_a_list_have_settings_too(tmp_path: Path) -> None:
    found = records(resolved(tmp_path, grid("      - fedavg\n      - {name: fedtp, seed: 4}\n")))
    assert [record["seed"] for record in found.values()] == [0, 4]
    assert list(found) == [("fedavg",), ("fedtp",)]


def test_settings_come_after_what_other_axes_choose(tmp_path: Path) -> None:
    """Whether the axis of the row or that of the backbone is written first."""
    rows = "    method: {A: fedavg, B: {name: fedavg, backbone: {dropout: 0.5}}}\n"
    backbones = "    backbone: {Deep: vit, Flat: {name: vit, depth: 1}}\n"
    for name, axes in {"one": rows + backbones, "two": backbones + rows}.items():
        found = records(resolved(tmp_path / name, f"grid:\n  base: {BASE}\n  axes:\n{axes}"))
        key = ("B", "Flat") if name == "one" else ("Flat", "B")
        assert found[key]["backbone"] == {"name": "vit", "depth": 1, "dropout": 0.5}


def test_an_axis_of_an_option_survives_a_row_with_another_component(tmp_path: Path) -> None:
    axes = "      A: fedavg\n      B: {name: fedavg, backbone: {name: vit, dropout: 0.5}}\n"
    found = records(resolved(tmp_path, grid(axes, "    backbone.depth: [1, 2]\n")))
    assert found["B", "2"]["backbone"] == {"name": "vit", "depth": 2, "dropout": 0.5}


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
    ("axes", "expected"),
    [
        (
            "      FedTP: {name: fedtp, trainig: {lr: 1}}\n",
            "5: grid.axes.method.FedTP.trainig: unknown option; did you mean 'training'?",
        ),
        (
            "      FedTP:\n        name: fedtp\n        training.lr: 1\n",
            "7: grid.axes.method.FedTP.training.lr: unknown option; write training: {lr: …}",
        ),
        (
            "      FedTP:\n        name: fedtp\n        training:\n          lr: -1\n",
            "8: grid.axes.method.FedTP.training.lr: -1 must be greater than 0",
        ),
        (
            "      FedTP:\n        name: fedtp\n        training: 0.1\n",
            "7: grid.axes.method.FedTP.training: 0.1 must be `option: value` lines",
        ),
        (
            "      FedTP: {name: fedtp, embeding: 1, training: {lr: 1}}\n",
            "5: grid.axes.method.FedTP.embeding: unknown option; did you mean 'embedding'?",
        ),
        (
            "      FedTP:\n        name: fedtp\n        method: fedavg\n",
            "7: grid.axes.method.FedTP.method: unknown option; known: embedding, server_lr, normalised, variant",
        ),
        (
            "      - fedavg\n      - name: fedtp\n        backbone: {deep: 1, name: vit}\n",
            "7: grid.axes.method[1].backbone.deep: unknown option; did you mean 'depth'?",
        ),
    ],
)
def test_mistakes_in_a_row(tmp_path: Path, axes: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        resolved(tmp_path, grid(axes))
    assert str(caught.value) == f"specs/a.yaml:{expected}"


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
    assert Fields(CATALOG).beside("method") == [
        "dataset", "partition", "clients", "seed", "backbone", "training", "evaluation", "analyses",
    ]  # fmt: skip
    code = (
        "from pipeline.spec.catalog import build_catalog\n"
        "from pipeline.spec.fields import Fields\n"
        "from pipeline.spec.run import COMPONENTS, RUN_FIELDS\n"
        "fields = Fields(build_catalog())\n"
        "print([(kind, one) for kind in COMPONENTS for one in RUN_FIELDS if one not in (kind, *fields.beside(kind))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[('dataset', 'seed')]\n"


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
