"""A part of the axes, with what is said of the rest left standing."""

from __future__ import annotations

from pathlib import Path

from support.fake_catalog import BASE, resolved

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


def test_one_label_and_axes_that_are_lists(tmp_path: Path) -> None:
    text = "extends: b.yaml\ngrid: {only: {clients: 9}}\n"
    result = resolved(tmp_path, text, t_csv=CSV, b_yaml=TABLE)
    assert {run.clients for run in result.runs} == {9}
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
