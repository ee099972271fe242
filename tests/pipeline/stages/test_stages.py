"""What single stages do, called as the command line calls them: resumed runs, damaged inputs, odd records."""

from __future__ import annotations

import json
import subprocess
import sys
import time
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


class Interrupted(Exception):
    """Stands for whatever ends a process in the middle of its work."""


def stop_after(round_: int) -> Callable[[Progress], None]:
    def on_round(progress: Progress) -> None:
        if progress.round == round_:
            raise Interrupted

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
    for round_ in (2, 4):
        with pytest.raises(Interrupted):
            torn.train(checkpoint_every=0.0, on_round=stop_after(round_))
        assert tree(torn.out.parent) == {}
        assert torn.checkpoints()
    torn.train()
    assert set(tree(calm.out)) == {"rounds.parquet", "weights.safetensors"}
    assert tree(torn.out) == tree(calm.out)
    assert torn.said == [f"{torn.run.id}: continued from the checkpoint after round 3"]
    assert calm.said == [] and torn.checkpoints() == []
    timing = json.loads((tmp_path / f"torn/.pfl/timings/{torn.run.id}.json").read_text(encoding="utf-8"))
    assert timing["rounds"] == ROUNDS - 3 and timing["seconds"] > 0 and timing["device"].startswith("cpu (")


@pytest.mark.matrix
def test_waiting_is_no_work_of_cores_and_that_of_other_processes_is(tmp_path: Path) -> None:
    done = runner(tmp_path)

    def busy(progress: Progress) -> None:
        if progress.round == 1:
            time.sleep(2.0)
            loop = "import time\nwhile time.process_time() < 0.5: pass"
            subprocess.run([sys.executable, "-S", "-c", loop], check=True)

    done.train(on_round=busy)
    timing = json.loads((tmp_path / f".pfl/timings/{done.run.id}.json").read_text(encoding="utf-8"))
    assert 0.5 <= timing["core_seconds"] < timing["seconds"] - 1.0


def test_checkpoints_are_a_minute_apart_and_other_code_does_not_continue_a_run(tmp_path: Path) -> None:
    changed = runner(tmp_path)
    with pytest.raises(Interrupted):
        changed.train(on_round=stop_after(ROUNDS))
    assert changed.checkpoints() == []
    with pytest.raises(Interrupted):
        changed.train(checkpoint_every=0.0, on_round=stop_after(3))
    assert changed.checkpoints()
    changed.train(code="other")
    assert changed.said == []


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = runner(tmp_path / "a", training=""), runner(tmp_path / "b", training="")
    for one in (first, second):
        one.train()
        one.evaluate()
    assert tree(first.project.root / "artifacts") == tree(second.project.root / "artifacts")
    assert set(tree(first.out)) == {"rounds.parquet"}  # no weights unless they are wanted


def test_what_a_run_leaves(tmp_path: Path) -> None:
    done = runner(tmp_path)
    seen: list[Progress] = []
    done.train(on_round=seen.append)
    table, meta = read_table(done.out / "rounds.parquet", "rounds/2")
    assert table.column_names == [
        *("round", "client", "population", "moment", "correct", "total", "loss", "last_correct")
    ]
    assert table.num_rows == ROUNDS * 3
    assert meta["run"] == done.run.id and meta["diverged"] is None and meta["device"].startswith("cpu (")
    assert meta["communicated_up"] == meta["communicated_down"] < 4 * meta["parameters"]  # the head stays
    assert {len(meta[name]) for name in ("dataset_hash", "partition_hash")} == {64}
    assert meta["code"] == "one"
    assert [(progress.round, progress.rounds) for progress in seen] == [(n, ROUNDS) for n in range(1, ROUNDS + 1)]
    names = set(load_file(done.out / "weights.safetensors"))
    assert {f"client.{client}.head.weight" for client in range(3)} <= names and "head.weight" not in names
    frame = done.evaluate()
    correct, total = (table[name].to_numpy()[-3:].sum() for name in ("correct", "total"))
    assert frame.values.set_index("metric")["mean"]["final"] == pytest.approx(100 * correct / total)
    assert len(frame.clients) == 3 and frame.runs["run"].to_list() == [done.run.id]


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


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def garbage(path: Path) -> None:
    path.write_bytes(b"PAR1 nothing of it PAR1")


def another_schema(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"pfl": b'{"schema":"dataset/9"}'}), path)


def rows_outside(path: Path) -> None:
    table = pq.read_table(path)
    index = table.column_names.index("sample")
    moved = (table.column("sample").to_numpy() + 100_000).tolist()
    pq.write_table(table.set_column(index, table.schema.field("sample"), [moved]), path)


DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    ("dataset", truncated, "not a readable Parquet file"),
    ("dataset", another_schema, "expected the artifact schema dataset/2, found dataset/9"),
    ("dataset", Path.unlink, "no such dataset artifact; run the stage that makes it"),
    ("partition", rows_outside, "is outside the dataset of 1797 samples"),
    ("partition", Path.unlink, "no such partition artifact"),
]


@pytest.mark.parametrize(("what", "damage", "message"), DAMAGE)
def test_damaged_inputs_are_one_error_and_no_output(
    tmp_path: Path, what: str, damage: Callable[[Path], None], message: str
) -> None:
    damaged = runner(tmp_path)
    damage(getattr(damaged, what))
    with pytest.raises(UserError) as error:
        damaged.train()
    assert message in str(error.value)
    assert tree(damaged.out) == {}


def test_an_unknown_device_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="device 'tpu9' cannot be used"):
        runner(tmp_path).train(device="tpu9")


def test_a_dataset_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown dataset 'nothing'; known: "):
        data.run({"name": "nothing", "stand_in": None}, tmp_path / "out.parquet", tmp_path / "data")
    assert not (tmp_path / "out.parquet").exists()


def test_a_stand_in_has_the_size_it_was_asked_for(tmp_path: Path) -> None:
    said = data.run({"name": "digits", "stand_in": 80}, tmp_path / "out.parquet", tmp_path / "data")
    assert said.startswith("digits: 100 samples, 10 classes, from stand-in")
    assert read_table(tmp_path / "out.parquet", "dataset/2")[0].num_rows == 100


def test_a_partition_that_is_impossible(tmp_path: Path) -> None:
    made = runner(tmp_path)
    federation = Run({"partition": {"name": "iid"}, "clients": 1000, "seed": 0})
    with pytest.raises(UserError, match="clients get none of the"):
        partition.run(federation, made.dataset, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("damage", [truncated, garbage])
def test_measurements_that_are_damaged(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    done = runner(tmp_path)
    done.train()
    damage(done.out / "rounds.parquet")
    with pytest.raises(UserError) as error:
        done.evaluate()
    assert str(error.value).startswith(str(done.out / "rounds.parquet"))
    assert not (done.project.root / frame_path("a")).exists()


@pytest.mark.parametrize("text", [None, "{", "[]", '{"spec": "a"}', "\xff"])
def test_tables_that_are_damaged(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "table.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"^{path}: .*pfl compile"):
        read_resolved(path)


def test_an_index_needs_its_reports(tmp_path: Path) -> None:
    made = runner(tmp_path)
    (table,), reports = made.project.compiled().tables.values(), made.project.root / "reports"
    with pytest.raises(UserError, match=r"table\.parquet: no such table artifact"):
        index.run([table], reports)
    assert not (reports / "index.md").exists()
    made.evaluate()
    report.run(table, made.project.root, reports / "a")
    for title, shown in (("Tiny", "Tiny"), ("<script>a|b*", r"&lt;script&gt;a\|b\*")):
        index.run([table.model_copy(update={"title": title})], reports)
        assert f"| {shown} | 1 | 1 | [md](a/report.md)" in (reports / "index.md").read_text(encoding="utf-8")


def test_lists_in_records_become_tuples() -> None:
    assert options({"name": "convnet", "channels": [2, 4], "kernel": 3}) == {"channels": (2, 4), "kernel": 3}
