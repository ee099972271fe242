"""What single stages do, called as the command line calls them: resumed runs, damaged inputs, odd records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file
from support.project import CONVNET, VIT, tree
from support.runner import ROUNDS, runner

from pflcore.artifacts import read_table
from pflcore.engine import Progress
from pflcore.errors import UserError
from pipeline.spec.run import Run, options
from pipeline.spec.table import read_resolved
from pipeline.stages import data, index, partition, report
from pipeline.workspace import frame_path


def stop_after(round_: int) -> Callable[[Progress], None]:
    def on_round(progress: Progress) -> None:
        if progress.round == round_:
            raise InterruptedError  # whatever ends a process in the middle of its work

    return on_round


# What can lie between two rounds: personal parts, what the server keeps, nothing but the shared model.
KINDS = [
    ("fedper", CONVNET),
    *(pytest.param(*one, marks=pytest.mark.matrix) for one in (("fedtp", VIT), ("local", CONVNET), ("fedavg", VIT))),
]


@pytest.mark.parametrize(("method", "backbone"), KINDS)
def test_a_resumed_run_ends_with_the_same_bytes(tmp_path: Path, method: str, backbone: str) -> None:
    calm = runner(tmp_path / "calm", method, backbone)
    calm.train()
    torn = runner(tmp_path / "torn", method, backbone)
    with pytest.raises(InterruptedError):
        torn.train(on_round=stop_after(ROUNDS))
    assert torn.checkpoints() == [], "they are a minute apart"
    for round_ in (2, 4):
        with pytest.raises(InterruptedError):
            torn.train(checkpoint_every=0.0, on_round=stop_after(round_))
        assert tree(torn.out.parent) == {} and torn.checkpoints()
    torn.train()
    assert set(tree(calm.out)) == {"rounds.parquet", "weights.safetensors"}
    assert tree(torn.out) == tree(calm.out)
    assert torn.said == [f"{torn.run.id}: continued from the checkpoint after round 3"]
    assert calm.said == [] and torn.checkpoints() == []
    timing = json.loads((tmp_path / f"torn/.pfl/timings/{torn.run.id}.json").read_text(encoding="utf-8"))
    assert timing["rounds"] == ROUNDS - 3 and timing["seconds"] > 0 and timing["device"].startswith("cpu (")


def test_other_code_does_not_continue_a_run(tmp_path: Path) -> None:
    changed = runner(tmp_path, training="")
    with pytest.raises(InterruptedError):
        changed.train(checkpoint_every=0.0, on_round=stop_after(3))
    assert changed.checkpoints()
    changed.train(code="other")
    assert changed.said == [] and set(tree(changed.out)) == {"rounds.parquet"}, "no weights unless they are wanted"


def test_what_a_run_leaves(tmp_path: Path) -> None:
    done, seen = runner(tmp_path), list[Progress]()
    done.train(on_round=seen.append)
    table, meta = read_table(done.out / "rounds.parquet", "rounds/2")
    columns = ["round", "client", "population", "moment", "correct", "total", "loss", "last_correct"]
    assert table.column_names == columns and table.num_rows == ROUNDS * 3
    assert meta["run"] == done.run.id and meta["diverged"] is None and meta["code"] == "one"
    assert meta["communicated_up"] == meta["communicated_down"] < 4 * meta["parameters"]  # the head stays
    assert {len(meta[name]) for name in ("dataset_hash", "partition_hash")} == {64}
    assert [(progress.round, progress.rounds) for progress in seen] == [(n, ROUNDS) for n in range(1, ROUNDS + 1)]
    names = set(load_file(done.out / "weights.safetensors"))
    assert {f"client.{client}.head.weight" for client in range(3)} <= names and "head.weight" not in names
    frame = done.evaluate()
    correct, total = (table[name].to_numpy()[-3:].sum() for name in ("correct", "total"))
    assert frame.values.set_index("metric")["mean"]["final"] == pytest.approx(100 * correct / total)
    assert len(frame.clients) == 3 and frame.runs["run"].to_list() == [done.run.id]
    # The index has a row for it as soon as there is its report.
    (resolved,), reports = done.project.compiled().tables.values(), done.project.root / "reports"
    with pytest.raises(UserError, match=r"table\.parquet: no such table artifact"):
        index.run([resolved], reports)
    report.run(resolved, done.project.root, reports / "a")
    index.run([resolved.model_copy(update={"title": "<script>a|b*"})], reports)
    assert r"| &lt;script&gt;a\|b\* | 1 | 1 | [md](a/report.md)" in (reports / "index.md").read_text(encoding="utf-8")


def test_a_diverging_run_ends_and_is_reported(tmp_path: Path) -> None:
    wild = runner(tmp_path)
    wild.change(training={"lr": 1e30})
    wild.train()
    assert len(wild.said) == 1 and "diverged" in wild.said[0]
    _, meta = read_table(wild.out / "rounds.parquet", "rounds/2")
    assert set(meta["diverged"]) == {"round", "client"}
    frame = wild.evaluate()
    assert frame.runs["state"].to_list() == ["diverged"] and frame.values.empty
    (table,) = wild.project.compiled().tables.values()
    report.run(table, wild.project.root, tmp_path / "report")
    assert "diverged" in (tmp_path / "report/report.md").read_text(encoding="utf-8")


def another_schema(path: Path) -> None:
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"pfl": b'{"schema":"dataset/9"}'}), path)


def rows_outside(path: Path) -> None:
    table = pq.read_table(path)
    at = table.column_names.index("sample")
    moved = (table.column("sample").to_numpy() + 100_000).tolist()
    pq.write_table(table.set_column(at, table.schema.field("sample"), [moved]), path)


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("dataset", lambda path: path.write_bytes(path.read_bytes()[:-100]), "not a readable Parquet file"),
    ("dataset", another_schema, "expected the artifact schema dataset/2, found dataset/9"),
    ("dataset", Path.unlink, "no such dataset artifact; run the stage that makes it"),
    ("partition", rows_outside, "is outside the dataset of 1797 samples"),
    ("partition", Path.unlink, "no such partition artifact"),
]


def test_what_cannot_be_trained_is_one_error_and_no_output(tmp_path: Path) -> None:
    whole = runner(tmp_path)
    for what, damage, message in DAMAGE:
        path: Path = getattr(whole, what)
        content = path.read_bytes()
        damage(path)
        with pytest.raises(UserError, match=message):
            whole.train()
        path.write_bytes(content)
    with pytest.raises(UserError, match="device 'tpu9' cannot be used"):
        whole.train(device="tpu9")
    assert tree(whole.out) == {}
    whole.train()
    rounds, out = whole.out / "rounds.parquet", tmp_path / "out.parquet"
    rounds.write_bytes(b"PAR1 nothing of it PAR1")
    with pytest.raises(UserError, match=f"^{rounds}"):
        whole.evaluate()
    with pytest.raises(UserError, match="clients get none of the"):
        partition.run(Run({"partition": {"name": "iid"}, "clients": 1000, "seed": 0}), whole.dataset, out)
    with pytest.raises(UserError, match="unknown dataset 'nothing'; known: "):
        data.run({"name": "nothing", "stand_in": None}, out, tmp_path / "data")
    assert not out.exists() and not (whole.project.root / frame_path("a")).exists()


def test_records(tmp_path: Path) -> None:
    said = data.run({"name": "digits", "stand_in": 80}, tmp_path / "out.parquet", tmp_path / "data")
    assert said.startswith("digits: 100 samples, 10 classes, from stand-in")
    assert read_table(tmp_path / "out.parquet", "dataset/2")[0].num_rows == 100
    assert options({"name": "convnet", "channels": [2, 4], "kernel": 3}) == {"channels": (2, 4), "kernel": 3}
    path = tmp_path / "table.json"
    for text in (None, "{", "[]", '{"spec": "a"}', "\xff"):
        if text is not None:
            path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=f"^{path}: .*pfl compile"):
            read_resolved(path)
