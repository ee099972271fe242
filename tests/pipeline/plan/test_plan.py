"""Before anything runs: what training would refuse, what is cached by DVC's locks, and what the rest will take."""

import json
from dataclasses import astuple, replace

import pytest
import yaml
from support.command import pfl as pfl
from support.mistakes import line_of
from support.own_parts import BACKBONE
from support.project import CONVNET, VIT, make_project, spec
from support.report_demo import KEPT

from pipeline.ledger import Entry, Ledger
from pipeline.plan import compatibility
from pipeline.plan.compatibility import compatibility_errors
from pipeline.plan.estimate import Plan, Share, make_plan, plan_lines, visits
from pipeline.spec.run import Run

VISITS = 2 * 1438  # digits have 1438 training samples; two rounds of three clients that hold them all


def plan(project):
    return make_plan(project.workspace(), project.compiled())


def lock(project, *methods, **changes):
    """What DVC leaves behind when it has trained the runs of some methods."""
    shards = {}
    for name, stage in project.stages().items():
        file, _, stage_name = name.partition(":")
        if stage_name.startswith(tuple(f"train@{method}-" for method in methods)):
            outs = [{"path": path} for path in stage["outs"]]
            shards.setdefault(file, {})[stage_name] = {"cmd": stage["cmd"], "outs": outs, **changes}
            for out in stage["outs"]:
                project.write(out, "")
    for file, stages in shards.items():
        project.write(file.replace("dvc.yaml", "dvc.lock"), yaml.safe_dump({"schema": "2.0", "stages": stages}))


def of_method(project, method, rounds=2):
    runs = project.compiled().runs.values()
    return next(run for run in runs if run.method == method and run.training.rounds == rounds)


def time_run(project, method, rounds, seconds):
    text = json.dumps({"seconds": seconds, "device": "cpu", "rounds": rounds})
    project.write(f".pfl/timings/{of_method(project, method).id}.json", text)


def test_each_spec_has_its_share_and_what_is_cached_takes_no_time(tiny):
    figures = plan(tiny)
    assert figures.stages == len(tiny.stages()) == 9 and (figures.slots, figures.visits) == (2, 2 * VISITS)
    size = figures.total.bytes
    assert figures.total == Share("all, each run once", 2, 2, 0, 2, size) and size > 1797 * 64
    assert figures.specs == (replace(figures.total, spec="tiny"),)
    tiny.write("specs/more.yaml", spec("[fedavg, local]"))
    tiny.compile()
    lock(tiny, "fedper")
    time_run(tiny, "fedavg", 1, 5.0)  # half of its rounds
    figures = plan(tiny)
    assert [astuple(one)[:5] for one in (*figures.specs, figures.total)] == [
        *(("more", 2, 2, 10.0, 1), ("tiny", 2, 1, 10.0, 0), ("all, each run once", 3, 2, 10.0, 1))
    ]
    lines = list(plan_lines(figures))
    assert lines[0].startswith("2 of 3 runs are new (over 10 s here); ")
    assert lines[4].split()[:6] == ["tiny", "2", "1", "about", "10", "s"]
    untimed = "1 of the new runs is of a method and backbone neither timed here nor kept in results/ from a CPU"
    assert lines[-1] == untimed
    fedavg = make_plan(tiny.workspace(), tiny.compiled(), [of_method(tiny, "fedavg").id])
    assert [astuple(one)[:5] for one in fedavg.specs] == [("more", 1, 1, 10.0, 0), ("tiny", 1, 1, 10.0, 0)]
    assert list(plan_lines(fedavg))[-1] == f"{VISITS:.3g} sample visits"
    more, whole = figures.specs
    assert more.bytes + whole.bytes > figures.total.bytes > max(more.bytes, whole.bytes)  # which share their data
    for (new, seconds, untimed, size), shown in {
        (0, 0.0, 0, 999): ["none", "999 bytes"],
        (2, 0.0, 2, 1_500_000): ["unknown", "1.5 MB"],
        (2, 5400.0, 0, 2_340_000_000): ["about 1:30 h", "2.3 GB"],
        (2, 5399.0, 1, 1000): ["over 1:29 h", "1.0 kB"],
        (2, 89.0, 0, 1000): ["about 89 s", "1.0 kB"],
    }.items():
        share = Share("a", 3, new, seconds, untimed, size)
        line = list(plan_lines(Plan(1, 1, 0, share, (share,))))[3]
        assert [cell.strip() for cell in line.split("  ") if cell.strip()] == ["a", "3", str(new), *shown]


def test_what_is_cached(tiny, monkeypatch):
    for methods, changes, new, expected in (
        (["fedavg"], {}, 1, VISITS),
        (["fedavg", "fedper"], {}, 0, 0),
        (["fedavg", "fedper"], {"cmd": "pfl stage train other"}, 2, 2 * VISITS),  # trained with other code
    ):
        lock(tiny, *methods, **changes)
        assert (plan(tiny).total.new, plan(tiny).visits) == (new, expected)
    lock(tiny, "fedavg", "fedper")
    (tiny.root / f"artifacts/runs/{of_method(tiny, 'fedper').id}/rounds.parquet").unlink()
    assert plan(tiny).total.new == 1  # its result is lost
    (path,) = tiny.root.glob("stages/federations/*/dvc.lock")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])  # DVC is writing it
    with monkeypatch.context() as patch:
        patch.setattr("time.sleep", lambda seconds: path.write_bytes(content))
        assert plan(tiny).total.new == 1
    path.write_text("- a\n", encoding="utf-8")
    assert "dvc.lock: damaged; restore it with `git checkout" in line_of(plan, tiny)


def test_times_are_of_similar_runs_here_else_of_the_ledger(tiny):
    tiny.write("specs/longer.yaml", spec("[fedavg, fedper]", rounds=6))
    tiny.compile()
    short, kept = of_method(tiny, "fedavg"), of_method(tiny, "fedper", 6)
    time_run(tiny, "fedavg", 2, 4.0)
    time_run(tiny, "fedper", 2, 0.0)  # which says nothing
    (tiny.root / "specs/tiny.yaml").unlink()  # its run is in stages/records.json
    (share,) = plan(tiny).specs
    assert (share.seconds, share.untimed) == (pytest.approx(12.0), 1)
    seconds = [(kept, 7, 30.0, "cpu (AVX2)"), (kept, 8, 1.0, "NVIDIA H100"), (short, 9, 1e6, "cpu (AVX2)")]
    entries = [
        Entry(Run({**run.record, "seed": seed}), {}, "", took, {**KEPT, "device": device}, {})
        for run, seed, took, device in seconds
    ]
    Ledger(tiny.root).write("tiny", entries, {})
    (share,) = plan(tiny).specs
    assert (share.seconds, share.untimed) == (pytest.approx(12.0 + 30.0), 0)  # what was timed here goes first


def test_visits():
    base = {"rounds": 10, "sample_rate": 0.1, "local_epochs": 5, "local_steps": None, "batch_size": 64}
    for training, changes, expected in (
        ({}, {}, 10 * 5 * 2 * 20),
        ({"sample_rate": 0.01}, {}, 10 * 5 * 1 * 20),  # at least one client
        ({"sample_rate": 0.29}, {"clients": 100}, 10 * 5 * 29 * 4),
        ({"local_steps": 7, "batch_size": 8}, {}, 10 * 2 * 7 * 8),
        ({"local_steps": 7}, {}, 10 * 2 * 7 * 20),  # a batch is no larger than what a client has
        ({}, {"method": {"name": "local", "schedule": "every_round"}}, 10 * 5 * 20 * 20),
        ({}, {"partition": {"name": "iid", "train_limit": 7}}, 10 * 5 * 2 * 7),
        ({}, {"partition": {"name": "iid", "train_share": 0.25}}, 10 * 5 * 2 * 5),
        ({}, {"partition": {"name": "iid", "test_share": 0.2}}, 10 * 5 * 2 * 20),  # of 500, 400 are left
    ):
        record = {"dataset": {"name": "digits", "stand_in": 400}, "clients": 20, "method": {"name": "fedavg"}}
        record |= {"partition": {"name": "iid"}, **changes, "training": {**base, **training}}
        assert visits(Run(record)) == expected


MISFITS = {
    "11: X: method fedper: also_personal: the backbone has no parameter group 'hed'; did you mean 'head'?": spec(
        "{A: fedavg, X: {name: fedper, also_personal: [hed]}}"
    ),
    "11: X: method scaffold: its local steps": spec("{A: fedavg, X: scaffold}", training=", optimizer: adam"),
    "11: X: analyses: 'embeddings' needs a method with a hypernetwork": spec(
        "{A: fedavg, X: {name: fedavg, analyses: [embeddings]}}"
    ),
    "11: X, 6: method fedamp: alpha: 1 above sigma / 5": spec(
        "{A: fedavg, X: {name: fedamp, alpha: 1.0, sigma: 3.0}}", more="    clients: [3, 6]\n"
    ),
    "7: FedAvg and 1 more: backbone lstm takes text, the dataset has images": spec(backbone="lstm"),
    "4: FedAvg and 1 more: image_folder.path = '../x' must be a folder": spec().replace(
        "dataset: digits", "dataset: {name: image_folder, path: ../x}"
    ),
    "5: FedAvg and 1 more: partition 'iid': 562 of 2,000": spec().replace("clients: 3", "clients: 2000"),
}


def errors_of(project):
    compilation = project.compiled()
    return compatibility_errors(project.workspace(), compilation, compilation.runs)


def test_misfits_are_lines_with_their_places(tmp_path, pfl):
    project = make_project(tmp_path, {f"specs/s{index:02}.yaml": text for index, text in enumerate(MISFITS.values())})
    lines = errors_of(project)
    assert len(lines) == len(MISFITS)
    for line, (index, words) in zip(lines, enumerate(MISFITS), strict=True):
        assert line.startswith(f"specs/s{index:02}.yaml:{words}") and "\n" not in line
    # The command ends with 2 and a line per spec.
    project.write("specs/a.yaml", spec("[fedavg, fedtp]"))
    project.write("specs/b.yaml", spec("[fedbn]"))
    half = "{A: fedavg, B: {name: fedrep, head_epochs: 0.5}}"  # which depends on how many samples clients have
    project.write("specs/good.yaml", spec(half, more="    partition: [iid]\n"))
    code, out, err = pfl(tmp_path, "validate", "a", "b")
    lines = [line.split(": ")[1:4] for line in err.splitlines() if line.startswith("pfl: ")]
    assert (code, out) == (2, "")
    assert lines == [["specs/a.yaml:11", "fedtp", "method fedtp"], ["specs/b.yaml:11", "fedbn", "method fedbn"]]
    line = "pfl: specs/good.yaml:5: grid.base.partition has no effect: grid.axes.partition set it everywhere"
    for command in ("validate", "plan"):
        code, _, err = pfl(tmp_path, command, "good")
        assert code == 0 and err.splitlines().count(line) == 1


@pytest.mark.matrix
def test_a_module_that_looks_at_numbers_is_built_with_them_and_its_faults_are_lines(tmp_path):
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg]", backbone="small")}, default=["tiny"])
    for looks, code in (("__import__('torch').zeros(1).item()", 0), ("[][9]", 2)):
        project.write("backbones/small.py", BACKBONE.replace("channels, height", f"{looks}\n        channels, height"))
        done = project.call("pfl", "validate")
        assert done.returncode == code and "Traceback" not in done.stderr
    assert "specs/tiny.yaml:11: fedavg: fedavg on small: IndexError: list index out of range" in done.stderr


def test_what_fits_is_built_once_until_something_else_does(tmp_path, monkeypatch):
    project = make_project(tmp_path, {"specs/tiny.yaml": spec("[fedavg, fedrod, pfedhn]", backbone=CONVNET)})
    built, build = [], compatibility.build
    monkeypatch.setattr(compatibility, "build", lambda run: (built.append(run.method), build(run)))
    assert not errors_of(project) and sorted(built) == ["fedavg", "fedrod", "pfedhn"]
    # Other rounds and rates are nothing to build a model for; another width is, and so is edited code.
    project.write("specs/tiny.yaml", spec("[fedavg]", rounds=9, backbone=CONVNET).replace("lr: 0.1", "lr: 0.2"))
    assert not errors_of(project) and len(built) == 3
    project.write("specs/tiny.yaml", spec("[fedavg]", backbone=CONVNET.replace("[8]", "[9]")))
    assert not errors_of(project) and len(built) == 4
    monkeypatch.setattr(compatibility, "fingerprint", lambda: "other code")
    assert not errors_of(project) and len(built) == 5
    project.write(".pfl/fit.json", "{")
    assert not errors_of(project) and len(built) == 6
    # A refusal may be of what is installed meanwhile, so it is asked again.
    project.write("specs/tiny.yaml", spec("[fedavg]", backbone=VIT.replace("patch: 4", "patch: 5")))
    assert len(errors_of(project)) == 1
    monkeypatch.setattr(compatibility, "build", lambda run: None)
    assert not errors_of(project)


def test_own_files_that_are_not_there_and_their_size(tmp_path, pfl, monkeypatch):
    monkeypatch.delenv("PFL_DATA", raising=False)
    text = spec(backbone="mlp").replace("digits", "array_table").replace("iid", "{name: iid, test_share: 0.5}")
    project = make_project(tmp_path, {"specs/tiny.yaml": text, "specs/digits.yaml": spec()})
    line = f"pfl: {tmp_path}/data/array_table: not there; put the data there before `pfl run`"
    assert pfl(tmp_path, "validate")[::2] == (0, f"{line}\n") and plan(project).total.bytes < 300_000
    project.write("data/array_table/some.csv", "a,label\n" + "0.25,1\n" * 300_000)
    assert pfl(tmp_path, "validate", "tiny")[::2] == (0, "")
    assert plan(project).total.bytes > 2_100_000
