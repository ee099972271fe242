"""What single stages do, called as the command line calls them: resumed runs, damaged inputs, tuning, viewers."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file
from support.damage import cut
from support.mistakes import line_of, refuses
from support.project import make_project, spec, tree
from support.runner import ROUNDS, Runner
from support.tiny import stop_in

from pflcore.artifacts import read_meta, read_table, write_table
from pflcore.engine import Progress
from pflcore.errors import UserError
from pflcore.protocols import curve
from pipeline.report.figures._costs import at_edge
from pipeline.report.frame import read_frame
from pipeline.report.write import build_report
from pipeline.spec.run import Run
from pipeline.stages import data, partition, tracking
from pipeline.stages.results import index, select
from pipeline.stages.tracking import track
from pipeline.workspace import RECORDS, RUNS, frame_path, run_path, selection_path


def test_a_run_is_resumed_from_its_last_checkpoint_by_the_same_code(tmp_path):
    torn = Runner(tmp_path)
    with pytest.raises(InterruptedError):
        torn.train(on_round=stop_in(ROUNDS))
    assert torn.checkpoints() == [], "they are a minute apart"
    for round_ in (2, 4):
        with pytest.raises(InterruptedError):
            torn.train(checkpoint_every=0.0, on_round=stop_in(round_))
        assert tree(torn.out.parent) == {} and torn.checkpoints()
    torn.train()
    assert torn.said == [f"{torn.run.id}: continued from the checkpoint after round 3"] and torn.checkpoints() == []
    timing = json.loads((tmp_path / f".pfl/timings/{torn.run.id}.json").read_text(encoding="utf-8"))
    assert timing["rounds"] == ROUNDS - 3 and timing["seconds"] > 0 and timing["device"].startswith("cpu (")
    assert 50 < timing["peak_mb"] < 100_000, "more than Python, PyTorch and the model; not bytes"
    with pytest.raises(InterruptedError):
        torn.train(checkpoint_every=0.0, on_round=stop_in(2), code="other")
    torn.said.clear()
    torn.train(code="third")
    assert torn.said == [], "other code does not continue a run"


def test_what_a_run_leaves(tmp_path):
    done, seen = Runner(tmp_path), []
    done.train(on_round=seen.append)
    table, meta = read_table(done.out / "rounds.parquet", "rounds/2")
    columns = ["round", "client", "population", "moment", "correct", "total", "loss", "train_loss", "last_correct"]
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
    assert "table.parquet: no such table artifact" in line_of(index, [resolved], reports)
    build_report(resolved, done.project.root, reports / "a")
    index([resolved.model_copy(update={"title": "<script>a|b*"})], reports)
    assert r"| &lt;script&gt;a\|b\* | 1 | 1 | [md](a/report.md)" in (reports / "index.md").read_text(encoding="utf-8")
    cells, _ = read_table(reports / "a/table.parquet", "table/2")  # as if the run had diverged
    at = cells.column_names.index("obtained_mean")
    write_table(reports / "a/table.parquet", cells.set_column(at, "obtained_mean", pa.array([None], "f8")), "table/2")
    index([resolved], reports)
    assert "| 0 | 1 | [md](a/report.md)" in (reports / "index.md").read_text(encoding="utf-8")


def test_a_diverging_run_ends(tmp_path):
    wild = Runner(tmp_path, training="")
    wild.change(training={"lr": 1e30})
    wild.train(checkpoint_every=0.0)
    assert len(wild.said) == 1 and "diverged" in wild.said[0]
    assert set(tree(wild.out)) == {"rounds.parquet"}, "no weights unless they are wanted"
    assert wild.checkpoints() == [] and not list(tmp_path.glob(".pfl/states/*"))
    frame = wild.evaluate()
    assert frame.runs["state"].to_list() == ["diverged"] and frame.values.empty


def another_schema(path):
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"pfl": b'{"schema":"dataset/9"}'}), path)


def rows_outside(path):
    table = pq.read_table(path)
    moved = (table.column("sample").to_numpy() + 100_000).tolist()
    pq.write_table(table.set_column(table.column_names.index("sample"), table.schema.field("sample"), [moved]), path)


def test_what_cannot_be_trained_is_one_error_and_no_output(tmp_path):
    whole, out = Runner(tmp_path), tmp_path / "out.parquet"
    for path, damage, message in (
        (whole.dataset, cut, "not a readable Parquet file"),
        (whole.dataset, another_schema, "expected the artifact schema dataset/2, found dataset/9"),
        (whole.dataset, Path.unlink, "no such dataset artifact; run the stage that makes it"),
        (whole.partition, rows_outside, "is outside the dataset of 1797 samples"),
    ):
        content = path.read_bytes()
        damage(path)
        refuses(message, whole.train)
        path.write_bytes(content)
    assert "device 'tpu9' cannot be used" in line_of(whole.train, device="tpu9")
    assert tree(whole.out) == {}
    whole.out.mkdir(parents=True)
    (whole.out / "rounds.parquet").write_bytes(b"PAR1 nothing of it PAR1")
    assert line_of(whole.evaluate).startswith(f"{whole.out}/rounds.parquet")
    with pytest.raises(UserError, match="clients get none of the"):
        partition.run(Run({"partition": {"name": "iid"}, "clients": 1000, "seed": 0}), whole.dataset, out)
    with pytest.raises(UserError, match="unknown dataset 'nothing'; known: "):
        data.run({"name": "nothing", "stand_in": None}, out, tmp_path / "data")
    assert not out.exists() and not whole.frame.exists()


# Trials are trained, one is chosen by what it gave on validation samples, and runs are trained with that.

SEEDS = "    seed: [0, 3]\ntable: {rows: [method], average_over: [seed]}\n"
TUNE = """\
tune:
  space: {training.lr: [0.001, 0.3, 0.1]}
  where: {method: FedAvg}
  seeds: [7, 8]
  trial: {training: {rounds: 3}}
"""
SPEC = spec(partition="{name: iid, validation_share: 0.3}", rounds=4, more=SEEDS)


def rounds(project, run):
    table = pd.read_parquet(project.root / run_path(run, "rounds.parquet"))
    return table[["round", "client", "population", "correct", "total", "loss"]].astype({"population": str})


def test_the_best_on_validation_samples_is_chosen_trained_and_reported(tmp_path):
    def executed(name, text):
        project = make_project(tmp_path / name, {"specs/tiny.yaml": text}, default=["tiny"])
        project.compile()
        project.execute(compilation := project.compiled())
        return project, compilation

    project, compilation = executed("tuned", SPEC + TUNE)
    (selection,) = compilation.selections.values()
    means = []
    for trial in selection.trials:
        tables = [rounds(project, run.id) for run in trial.runs]  # the window is of one round
        own = [one[(one["population"] == "validation") & one["round"].isin([2, 3])] for one in tables]
        sums = [one.groupby("round")[["correct", "total"]].sum() for one in own]
        means.append(sum((100 * one["correct"] / one["total"]).mean() for one in sums) / 2)
    written = json.loads((project.root / selection_path(selection.id)).read_text())
    assert [trial["mean"] for trial in written["trials"]] == pytest.approx(means) and len(set(means)) == 3
    chosen = written["chosen"]
    assert chosen == selection.trials[max(range(3), key=means.__getitem__)].chosen
    # Tuned runs are the runs with what was chosen.
    rate = chosen["training.lr"]
    by_hand, plain = executed("by_hand", SPEC.replace(" lr: 0.1", f" lr: {rate}"))
    runs = {(run.method, run.seed): run.id for run in plain.runs.values()}
    tuned = [run for run in compilation.runs.values() if run.tuned]
    assert len(tuned) == 2
    for run in tuned:
        assert rounds(project, run.id).equals(rounds(by_hand, runs["fedavg", run.seed]))
        assert read_meta(project.root / run_path(run.id, "rounds.parquet"), "rounds/2")["chosen"] == chosen
    page = (project.root / "reports/tiny/report.md").read_text(encoding="utf-8")
    section = page.partition("## Tuning")[2].partition("## Partitions")[0]
    assert "To choose from: training.lr 0.001, 0.3, 0.1." in section and "FedPer" not in section
    shown = str(rate) if rate == 0.1 else f"{rate}\\*"  # at the edge of the space
    (line,) = [line for line in section.splitlines() if line.startswith("| FedAvg")]
    assert line.split()[:6] == ["|", "FedAvg", "|", shown, "|", "3"]
    assert "3 of 3" in line and "18 (4.5×)" in line
    tried = pd.read_csv(project.root / "reports/tiny/figures/tuning.csv")
    assert len(tried) == 6 and tried["chosen"].sum() == 2 and sorted(set(tried["training.lr"])) == [0.001, 0.1, 0.3]
    # Of equal trials the first is chosen, and none that diverged under any seed.
    out = tmp_path / "out.json"
    same, _ = read_table(project.root / run_path(tuned[0].id, "rounds.parquet"), "rounds/2")

    def choose(*diverged):
        for number, trial in enumerate(selection.trials):
            end = {"round": 2, "client": 0} if number in diverged else None
            for run, state in zip(trial.runs, (None, end), strict=True):
                write_table(project.root / run_path(run.id, "rounds.parquet"), same, "rounds/2", diverged=state)
        select(selection.id, project.root / RECORDS, project.root / RUNS, out)
        return json.loads(out.read_text())["chosen"]

    assert choose() == selection.trials[0].chosen and choose(0) == selection.trials[1].chosen
    assert "all 3 trials diverged; widen the space" in line_of(choose, 0, 1, 2)


def test_values_at_the_edge_of_a_space():
    assert at_edge(0.3, [0.001, 0.3, 0.1]) and at_edge(0.001, [0.001, 0.3, 0.1])
    assert not any((at_edge(0.1, [0.001, 0.3, 0.1]), at_edge("sgd", ["sgd", "adam"]), at_edge(0.1, [0.1])))


SHAPES = """\
title: Shapes
grid:
  base:
    dataset: {name: detection_folder, size: 32, class_list: [box, disc], stand_in: 24}
    partition: iid
    clients: 2
    backbone: {name: mobilenetv2_ssd, width: 35, attention: se}
    training: {rounds: 2, sample_rate: 1.0, local_epochs: 1, batch_size: 6, lr: 0.01}
    evaluation: {window: 0, curve_every: 1}
    analyses: [{name: detections, images: 1, least: 0.0}]
  axes: {method: {FedPer: {name: fedper, also_personal: [local_attention]}}}
table: {rows: [method], columns: [], metric: clients}
"""


def test_detection_from_a_spec_to_its_report(tmp_path):
    """Precision in the artifacts, mAP in the words, boxes in a picture."""
    project = make_project(tmp_path / "shapes", {"specs/shapes.yaml": SHAPES})
    project.compile()
    project.execute(project.compiled())
    frame = read_frame(project.root / frame_path("shapes"))
    (folder,) = (project.root / "artifacts/runs").iterdir()
    rounds, meta = read_table(folder / "rounds.parquet", "rounds/2")
    precision = rounds["precision"].to_numpy()
    last = precision[rounds["round"].to_numpy() == 2]
    assert len(precision) == 4 and ((precision >= 0) & (precision <= 1)).all() and meta["figure"] == "mAP"
    assert (frame.clients["accuracy"] / 100).to_list() == pytest.approx(last.tolist())
    assert frame.values.set_index("metric")["mean"]["clients"] == pytest.approx(100 * last.mean())
    text = (project.root / "reports/shapes/report.md").read_text(encoding="utf-8")
    assert "mAP (%)" in text and "average precision at an overlap of one half" in text and "accuracy (%)" not in text
    assert "## Detections" in text and (project.root / "reports/shapes/figures/detections.svg").is_file()
    rows = read_table(folder / "analysis.parquet", "analysis/1")[0].to_pandas()
    drawn = {item.partition(".")[0]: own.to_numpy() for item, own in rows[rows["client"] == 1].groupby("item")["value"]}
    objects, found = (drawn[kind].reshape(-1, 6) for kind in ("there", "found"))
    assert 1 <= len(objects) <= 3 and set(objects[:, 0]) <= {0, 1} and (np.diff(found[:, 5]) <= 0).all()
    assert (objects[:, 1:5] >= 0).all() and (objects[:, 3:5] > objects[:, 1:3]).all()


@pytest.mark.parametrize("fails", [None, 0, 1])
def test_a_viewer_costs_a_line_when_it_is_begun_or_in_a_round_and_not_the_run(monkeypatch, capsys, fails):
    evaluation = SimpleNamespace(is_due=lambda round_, rounds: round_ == 2)
    run, shown, logged = SimpleNamespace(evaluation=evaluation), [], {}

    def log(round_, figures):
        if round_ == fails:
            raise ConnectionError("the server\nis away")
        logged[round_] = figures

    def notes(run, private):
        log(0, {})
        return log, lambda: log(-1, {})

    monkeypatch.setitem(tracking.TRACKERS, "notes", notes)
    for variable in ("", "notes,"):
        monkeypatch.setenv("PFL_TRACK", variable)
        with track(run, Path(".pfl"), lambda progress: shown.append(progress.round)) as on_round:
            for round_ in (1, 2):
                on_round(Progress(round_, 2, 1.5 / round_, 0.25 * round_))
    assert shown == [1, 2, 1, 2]
    whole = {0: {}, 1: {"loss": 1.5}, 2: {"loss": 0.75, "accuracy": 50.0}, -1: {}}
    assert list(logged.items()) == list(whole.items())[:fails]
    line = "pfl: notes: logging disabled for this run (ConnectionError: the server is away)\n"
    assert capsys.readouterr().err == ("" if fails is None else line)
    monkeypatch.setenv("PFL_TRACK", "tensorbord")
    line = line_of(track(run, Path(".pfl"), print).__enter__)
    assert "unknown viewer 'tensorbord'; did you mean 'tensorboard'" in line


@pytest.mark.slow
def test_tensorboard_and_mlflow_show_a_run(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    project = make_project(tmp_path, {"specs/tiny.yaml": spec()}, ["tiny"])
    project.succeed("pfl", "run", "tiny", PFL_TRACK="tensorboard,mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    client = MlflowClient((project.root / ".pfl/mlflow").as_uri())
    experiment = client.get_experiment_by_name("digits").experiment_id
    for run in project.compiled().runs.values():
        rounds = read_table(project.root / run_path(run.id, "rounds.parquet"), "rounds/2")[0]
        expected = [(int(r), pytest.approx(float(a))) for r, a, _ in zip(*curve(rounds), strict=True)]
        events = EventAccumulator(str(project.root / ".pfl/tensorboard" / run.id))
        events.Reload()
        assert [(event.step, event.value) for event in events.Scalars("accuracy")] == expected
        (found,) = client.search_runs([experiment], f"tags.`pfl.run` = '{run.id}'")
        history = client.get_metric_history(found.info.run_id, "accuracy")
        assert [(one.step, one.value) for one in history] == expected and found.info.status == "FINISHED"
    tracking.mlflow(run, project.workspace().private)[1]()  # one that trains again goes on under its name
    assert len(client.search_runs([experiment])) == 2
