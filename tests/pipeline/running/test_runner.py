"""``pfl run`` on real projects: the state that `dvc repro` would reach, whatever comes in between."""

import os
import re
import select
import shutil
import signal
import subprocess
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.mistakes import line_of
from support.official import plain, write_files
from support.project import PATIENCE, Project, at_work, kill, make_project, results, spec, wait_for

import pipeline
from pipeline.dvc.recorder import Recorder
from pipeline.running.board import Board, status_path
from pipeline.running.options import RunOptions
from pipeline.running.runner import handle_signals, run_specs
from pipeline.spec.run import Run, read_record
from pipeline.workspace import RECORDS


@pytest.fixture
def project(tmp_path, monkeypatch):
    made = make_project(tmp_path, default=["tiny"])
    made.enter(monkeypatch, PFL_CHECKPOINT_SECONDS="0", PFL_DEVICE="cpu", PFL_DATA=str(tmp_path / "data"))
    return made


def pfl_run(project, *specs, profile="paper", **options):
    return run_specs(project.workspace(profile), RunOptions(specs, **options))


def board_of(project):
    return Board.load(status_path(project.workspace()))


def states(project):
    return {entry.state for entry in board_of(project).entries.values()}


def is_clean(project):
    """Return whether DVC agrees that nothing is to be done."""
    status, again = project.call("dvc", "status"), project.repro()
    assert "up to date" in status.stdout, status.stdout + status.stderr
    assert again.code == 0 and not again.ran and not again.cached, again.output
    return True


def test_it_says_before_it_starts_what_would_fail(project, capsys, monkeypatch):
    long = spec("[fedrod]", rounds=9_999_999, training=", class_weights: balanced")
    project.write("specs/tiny.yaml", long)
    assert pfl_run(project, dry=True) == 0
    assert "fedrod: method fedrod does not go with training.class_weights" in capsys.readouterr().err
    monkeypatch.setenv("PFL_TRACK", "mlfow")
    assert "unknown viewer 'mlfow'" in line_of(pfl_run, project)


def test_it_ends_where_dvc_repro_ends(project, original, capsys):
    assert pfl_run(project, dry=True) == 0
    said = capsys.readouterr().out
    assert pfl_run(project, "tiny", dry=True) == 0 and capsys.readouterr().out == said  # the index too
    assert "guard: not made yet" in said and "9 of 9 stages are to be done, at most; about" in said
    assert not (project.root / "artifacts").exists() and not status_path(project.workspace()).exists()
    assert pfl_run(project, jobs=2) == 0
    assert is_clean(project) and states(project) == {"done"} and len(board_of(project).entries) == 9
    assert results(project) == results(original)
    # Now there is nothing to do, and what is lost comes from DVC's cache.
    assert pfl_run(project, jobs=2) == 0 and states(project) == {"cached"}
    for name in ("artifacts", "reports"):
        shutil.rmtree(project.root / name)
    for lock in [project.root / "dvc.lock", *project.root.glob("stages/**/dvc.lock")]:
        lock.unlink()
    assert pfl_run(project, jobs=2) == 0 and states(project) == {"cached"}
    assert results(project) == results(original) and is_clean(project)
    project.write("specs/tiny.yaml", spec(title="Another title"))
    capsys.readouterr()
    assert pfl_run(project, dry=True) == 0
    kinds = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["guard:", "report", "index:", "3"], "a title costs a report, no training"


def test_only_some_cells(project):
    project.write("specs/tiny.yaml", spec("{FedAvg: fedavg, FedPer: fedper, Local: local}", more="    seed: [0, 7]\n"))
    assert pfl_run(project, "tiny", cells=("Fed*",), seeds=(7,)) == 0
    trained = [path.parent.name for path in project.root.glob("artifacts/runs/*/rounds.parquet")]
    records = [Run(read_record(project.root / RECORDS, run)) for run in trained]
    assert sorted((run.method, run.seed) for run in records) == [("fedavg", 7), ("fedper", 7)]
    assert not (project.root / "reports/tiny").exists()
    assert "no run of these cells has the seed 3" in line_of(pfl_run, project, "tiny", seeds=(3,))


def test_a_profile_keeps_what_was_run_in_it(project):
    for name, method in {"a": "[fedavg]", "b": "[local]"}.items():
        project.write(f"specs/{name}.yaml", spec(method))
        assert pfl_run(project, name, profile="smoke") == 0
    stages = Project(project.root / "build/smoke")
    assert {"stages/tables/a.json", "stages/tables/b.json"} <= stages.generated().keys()
    assert pipeline.open(project.root, profile="smoke").results("a")["accuracy"].between(0, 1).all()
    assert stages.call("dvc", "status").stdout == "Data and pipelines are up to date.\n"


@pytest.mark.matrix
def test_a_broken_spec_that_nobody_asked_for(project, capsys):
    project.write("specs/broken.yaml", "gird: {}\n")
    assert pfl_run(project, "tiny") == 0
    assert "pfl: skipped: specs/broken.yaml:1: gird: unknown key" in capsys.readouterr().err
    assert "guard" not in {entry.kind for entry in board_of(project).entries.values()}
    # It does not count as looked at: DVC still finds it.
    done = project.repro()
    assert done.code == 255 and done.ran == ["guard"] and "specs/broken.yaml:1: gird" in done.output


@pytest.mark.matrix
def test_own_images_that_have_changed_are_noticed_by_every_command(project):
    """Replaced, added or gone after they were read: said; a file that was only touched: not."""
    images = {f"{kind}/{n}.png": plain((9 * n, 0, 0), "PNG") for kind in ("rose", "tulip") for n in range(20)}
    text = spec("[fedavg]", partition="{name: iid, test_share: 0.25}")
    text = text.replace("digits", "{name: image_folder, path: flowers, size: 8, channels: 1}")
    project.write("specs/tiny.yaml", text)
    flowers = write_files(project.root / "data/flowers", images)
    assert pfl_run(project) == 0
    os.utime(flowers / "rose/1.png", ns=(1, 1))
    (flowers / ".DS_Store").write_text("of a file manager")
    (flowers / "gone.png").symlink_to("nowhere")
    assert project.call("pfl", "status").stderr == ""
    before = (flowers / "rose/1.png").stat()
    other = (flowers / "rose/1.png").read_bytes()
    project.write("data/flowers/rose/1.png", other[:-1] + bytes([other[-1] ^ 1]))  # of the same size and time
    os.utime(flowers / "rose/1.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    for command in ("status", "plan", "run"):
        assert "data/flowers: has changed since it was read" in project.call("pfl", command).stderr, command
    shutil.rmtree(flowers)
    assert "data/flowers: is gone" in project.call("pfl", "status").stderr
    next((project.root / ".pfl/raw").iterdir()).write_text("{")
    assert project.call("pfl", "status").stderr == ""


@contextmanager
def stopped(process):
    """Let a program and all that it started stand still for the time of the block."""
    os.killpg(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGCONT)


@pytest.mark.matrix
def test_a_second_one_waits_for_who_is_at_work_in_the_workspace(project):
    project.write("specs/tiny.yaml", spec("[fedavg]", rounds=150))
    project.write("pyproject.toml", '[tool.pfl]\ndefault = ["tiny"]\ncompile = ["tiny"]\n')
    project.call("pfl", "compile")
    with at_work(project, "pfl", "run", "-j", "1") as first:
        wait_for(lambda: "1 running" in project.call("pfl", "status").stdout, first)
        with stopped(first):
            beside = project.repro()
            assert beside.code and "is busy, it is being blocked by" in beside.output
            project.write("specs/other.yaml", spec("[fedper]"))  # which DVC has not seen yet
            how = {"cwd": project.root, "env": project.environment(), "text": True, "stderr": subprocess.PIPE}
            second = subprocess.Popen(["pfl", "run", "-j", "1", "other"], **how)
            try:
                assert select.select([second.stderr], [], [], PATIENCE)[0]
                assert "another pfl run is at work here (process" in second.stderr.readline()
            except BaseException:
                second.kill()
                raise
        rest = second.communicate(timeout=PATIENCE)
        assert second.returncode == 0, rest
        assert first.wait(PATIENCE) == 0
    assert is_clean(project)


def test_the_first_interruption_is_heeded_between_two_steps_and_the_second_at_once(monkeypatch, capfd):
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)  # whatever pytest runs under
    scheduler = SimpleNamespace(interrupted=False)
    with handle_signals(scheduler):
        os.kill(os.getpid(), signal.SIGINT)
        assert scheduler.interrupted
        assert capfd.readouterr().err.strip() == "stopping; a second Ctrl-C stops at once"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert capfd.readouterr().err == ""


LONG = spec("{FedAvg: fedavg, FedPer: fedper}", rounds=150, training=", save_weights: true")


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """What the stages of a long spec give when nothing stops them."""
    project = make_project(tmp_path_factory.mktemp("calm"), {"specs/tiny.yaml": LONG})
    project.compile()
    project.execute(project.compiled())
    return results(project)


@pytest.mark.parametrize(
    ("program", "number"),
    [
        ("pfl run -j 2", signal.SIGINT),
        pytest.param("pfl run -j 2", signal.SIGTERM, marks=pytest.mark.matrix),
        ("pfl run -j 2", signal.SIGKILL),
        ("dvc repro", signal.SIGKILL),
    ],
)
def test_what_is_stopped_goes_on_from_its_checkpoint_to_the_same_bytes(project, calm, program, number):
    project.write("specs/tiny.yaml", LONG)
    project.compile()
    with at_work(project, *program.split(), rounds=3) as process:
        if number == signal.SIGKILL:
            kill(process)
        else:
            process.send_signal(number)
            output, _ = process.communicate(timeout=30)
            assert process.returncode == 130 and "Traceback" not in output
            assert "\nstopping; a second Ctrl-C stops at once\n" in output
            assert output.rstrip().endswith("pfl: interrupted; the same command continues from the last checkpoint")
            assert not board_of(project).of_state("running")
            with closing(Recorder(project.root, project.compiled().stages)) as recorder:
                ended = [entry.address for entry in board_of(project).of_state("done")]
                assert ended and recorder.stale(ended) == {}
    if program.startswith("pfl"):
        first, killed = project.call("pfl", "status").stdout.splitlines()[0], number == signal.SIGKILL
        how = r"was stopped \(it began .*\); type it again to continue" if killed else ".*ended after.*"
        assert re.fullmatch(f"pfl run -j 2: {how}", first), first
    said = project.succeed(*program.split()) + "".join(map(Path.read_text, project.root.glob(".pfl/logs/*")))
    rounds = map(int, re.findall(r"continued from the checkpoint after round (\d+)", said))
    assert 3 <= max(rounds) < 150 and not list(project.root.glob(".pfl/checkpoints/*/round-*"))
    assert calm.items() <= results(project).items() and is_clean(project)
