"""Ids of runs never change, and depend on what they stand for."""

from pathlib import Path

from support.fake_catalog import BASE, resolved

from pipeline.spec.run import Run

EQUAL = {
    "training: {lr: 1}": "training: {lr: 1.0}",
    "backbone: {name: convnet, pool: 1}": "backbone: {name: convnet, pool: 1.0, channels: [16, 32]}",
    "seed: 0": "analyses: []",
    "analyses: [weights, maps]": "analyses: [{name: maps}, weights]",
}
RECORD = {
    "dataset": {"name": "digits", "stand_in": None}, "partition": {"name": "dirichlet", "alpha": 0.3},
    "clients": 10, "seed": 0, "backbone": {"name": "convnet", "channels": [8, 16]}, "method": {"name": "fedavg"},
    "training": {"rounds": 40, "lr": 0.1}, "evaluation": {"every": 1}, "profile": "paper",
}  # fmt: skip


def test_ids_never_change_and_depend_on_what_they_stand_for(tmp_path: Path) -> None:
    for pair in EQUAL.items():
        texts = (f"extends: b.yaml\ngrid: {{base: {{{setting}}}}}" for setting in pair)
        first, second = (resolved(tmp_path, text, b_yaml=f"grid: {{base: {BASE}}}").runs[0].id for text in texts)
        assert first == second, pair
    names = ("id", "federation_id", "data_id")
    before = [getattr(Run(dict(reversed(RECORD.items()))), name) for name in names]
    assert before == ["fedavg-convnet-digits-c70697d7", "digits-dirichlet-n10-s0-d5a4b076", "digits-302ab2f1"]
    for field, value, differing in (
        ("profile", "smoke", 1),
        ("training", {"rounds": 41, "lr": 0.1}, 1),
        ("seed", 1, 2),
        ("partition", {"name": "dirichlet", "alpha": 1.0}, 2),
        ("dataset", {"name": "digits", "stand_in": 8}, 3),
    ):
        after = [getattr(Run({**RECORD, field: value}), name) for name in names]
        assert [old != new for old, new in zip(before, after, strict=True)] == [n < differing for n in range(3)]


SPLITS = f"""grid: {{base: {BASE}, axes: {{partition.seed: {{own: null, held: 5, far: 8}}, seed: [5, 6, 9]}}}}
table: {{rows: [partition.seed], columns: [seed]}}"""


def test_a_seed_of_the_partition_stands_in_the_place_of_the_runs(tmp_path: Path) -> None:
    record = {**RECORD, "partition": {**RECORD["partition"], "seed": 4}}
    first, second, plain = Run(record), Run({**record, "seed": 7}), Run({**RECORD, "seed": 4})
    assert first.federation == second.federation == plain.federation and first.federation_id == plain.federation_id
    assert len({first.id, second.id, plain.id}) == 3 and Run(first.federation).federation_id == first.federation_id
    runs = resolved(tmp_path, SPLITS).runs
    dealt = [(run.record["partition"].get("seed"), run.seed, run.federation["seed"]) for run in runs]
    assert dealt == [(split_seed, seed, split_seed or seed) for split_seed in (None, 5, 8) for seed in (5, 6, 9)]
    assert len({run.federation_id for run in runs}) == 4
    small = {(run.record["partition"].get("seed"), run.seed) for run in resolved(tmp_path, SPLITS, "smoke").runs}
    assert small == {(None, 1), (None, 0), (1, 1), (1, 0), (0, 1), (0, 0)}
