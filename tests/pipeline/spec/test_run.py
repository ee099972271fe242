"""The ids of runs: they never change, and depend on what they stand for."""

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
        one, other = (resolved(tmp_path, text, b_yaml=f"grid: {{base: {BASE}}}").runs[0].id for text in texts)
        assert one == other, pair
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
        assert [one != other for one, other in zip(before, after, strict=True)] == [n < differing for n in range(3)]
