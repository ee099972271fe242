"""The parts of ``pfl run``: the graph, workers that cannot influence each other, notes, the board."""

from __future__ import annotations

import ast
import os
import signal
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
from rich.console import Console
from support import vandals
from support.project import make_project

from pflcore.errors import UserError
from pflcore.memory import TooLittleMemory
from pipeline.compile.graph import Graph, Stage
from pipeline.dvc.finished import Finished
from pipeline.running import local
from pipeline.running.board import Board, StageState, duration
from pipeline.running.cells import cell_name, cells_meant
from pipeline.running.display import live_view, show_status, summary
from pipeline.running.jobs import Ended, Job, Slot
from pipeline.running.local import LocalPool, slots, visible_gpus
from pipeline.running.worker import _attempt


def stage(name: str, *deps: str, kind: str = "train") -> Stage:
    return Stage("dvc.yaml", name, f"pfl stage {kind} stages/{name}.yaml", tuple(deps), (f"out/{name}",))


@pytest.fixture
def graph() -> Graph:
    """a → b → d, a → c → d, and e on its own."""
    return Graph(
        [stage("d", "out/b", "out/c"), stage("b", "out/a"), stage("c", "out/a"), stage("e"), stage("a", "raw")]
    )


def test_what_is_needed_comes_first_and_nothing_else_comes(graph: Graph) -> None:
    assert graph.needed(["dvc.yaml:d"]) == [f"dvc.yaml:{name}" for name in "abcd"]
    assert graph.needed(["dvc.yaml:e", "dvc.yaml:b"]) == [f"dvc.yaml:{name}" for name in "eab"]
    assert graph.after("dvc.yaml:a") == {f"dvc.yaml:{name}" for name in "bcd"}


def test_the_longest_way_to_the_end_counts(graph: Graph) -> None:
    order = graph.needed(["dvc.yaml:d"])
    heights = graph.heights(order, {"dvc.yaml:a": 1, "dvc.yaml:b": 10, "dvc.yaml:c": 2, "dvc.yaml:d": 5})
    assert heights == {"dvc.yaml:d": 5, "dvc.yaml:c": 7, "dvc.yaml:b": 15, "dvc.yaml:a": 16}


def test_stages_of_a_compilation_know_what_they_are_about(tmp_path: Path) -> None:
    compilation = make_project(tmp_path).compiled()
    graph = Graph(compilation.stages)
    kinds = {one.kind: one for one in graph.stages.values()}
    assert set(kinds) == {"guard", "data", "partition", "describe", "train", "evaluate", "report", "index"}
    assert kinds["train"].subject in compilation.runs
    assert kinds["report"].subject == "tiny" and kinds["index"].subject == "index"
    order = graph.needed(graph.stages)
    assert order[0] == "dvc.yaml:guard" and set(order) == set(graph.stages)
    assert all(order.index(before) < order.index(one) for one in order for before in graph.upstream[one])


def pool(root: Path, count: int = 1) -> LocalPool:
    return LocalPool(root, root / ".pfl/finished", [Slot("cpu") for _ in range(count)], {})


def ends(workers: LocalPool, count: int) -> list[Ended]:
    """The ends of so many stages."""
    found: list[Ended] = []
    until = time.monotonic() + 60.0
    while len(found) < count:
        found += [event for event in workers.events(1.0) if isinstance(event, Ended)]
        assert time.monotonic() < until, "no stage has ended"
    return found


def ended(workers: LocalPool) -> Ended:
    (end,) = ends(workers, 1)
    return end


def job(root: Path, name: str = "a", command: str = "pfl stage nothing") -> Job:
    return Job(name, command, "key", (), root / f"{name}.log")


def test_one_stage_cannot_influence_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = pool(tmp_path)
    try:
        seen = []
        for what in (vandals.look, vandals.vandalise, vandals.look):
            monkeypatch.setattr(local, "work", what)
            assert workers.start(job(tmp_path)) == "cpu"
            assert workers.start(job(tmp_path, "b")) is None  # there is one place
            seen.append(ast.literal_eval(ended(workers).message))
    finally:
        workers.close()
    before, vandalised, after = seen
    assert all(vandalised[name] != before[name] for name in before)
    assert after == before


def test_what_takes_moments_does_not_wait_for_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "work", vandals.look)
    workers = pool(tmp_path)
    brief = [Job(name, "pfl stage nothing", "key", (), tmp_path / f"{name}.log", brief=True) for name in "abc"]
    try:
        assert workers.start(brief[0]) == "cpu"  # as long as there is a place
        for _ in range(2):
            assert workers.start(brief[1]) == "beside them"
            assert workers.start(brief[2]) is None and workers.start(job(tmp_path, "d")) is None
            assert {end.address for end in ends(workers, 2)} == {"a", "b"}
            assert workers.start(job(tmp_path, "a")) == "cpu"
        assert workers.capacity == 1
    finally:
        workers.close()


def test_a_worker_that_vanishes_is_noticed_and_its_place_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = pool(tmp_path)
    try:
        monkeypatch.setattr(local, "work", vandals.vanish)
        for _ in range(2):
            assert workers.start(job(tmp_path)) == "cpu"
            end = ended(workers)
            assert (end.outcome, end.message) == ("lost", "its process was ended by SIGKILL")
    finally:
        workers.close()


@pytest.mark.matrix
def test_the_process_that_workers_are_forked_from_may_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = pool(tmp_path)
    try:
        monkeypatch.setattr(local, "work", vandals.look)
        for _ in range(2):
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
            assert workers.start(job(tmp_path)) == "cpu"
            assert ended(workers).outcome == "done"
    finally:
        workers.close()


def test_what_a_stage_complains_of_is_one_line_and_in_its_log(tmp_path: Path) -> None:
    workers = pool(tmp_path)
    try:
        for command, told in {
            "pfl stage train none": "stages/records.json: no such file; run `pfl compile`",
            "rm -rf /": "is no stage of this pipeline",
        }.items():
            workers.start(job(tmp_path, command=command))
            end = ended(workers)
            assert end.outcome == "failed" and told in end.message and "\n" not in end.message
            assert told in (tmp_path / "a.log").read_text(encoding="utf-8")
    finally:
        workers.close()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TooLittleMemory("not enough memory on cuda:0 for one client"), "memory"),
        (RuntimeError("CUDA error: out of memory"), "memory"),
        (MemoryError(), "memory"),
        (UserError("no such file"), "failed"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "failed"),
    ],
)
def test_what_counts_as_memory_that_did_not_suffice(error: Exception, outcome: str) -> None:
    def act() -> None:
        raise error

    assert _attempt(act)[0] == outcome


def test_fewer_at_a_time_after_memory_did_not_suffice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "work", vandals.look)
    workers = LocalPool(tmp_path, tmp_path / "notes", [Slot("gpu 0")] * 2 + [Slot("gpu 1")] * 2, {})
    try:
        for name in "abcd":
            assert workers.start(job(tmp_path, name))
        assert workers.start(job(tmp_path, "e")) is None
        all_four = ends(workers, 4)
        first = all_four[0].address
        device = workers._last[first]
        assert workers.shrink(first) == f"at most 1 at a time on {device} from now on"
        assert workers.capacity == 3 and workers.shrink(first) == ""  # one is left alone
        assert sorted(slot.name for slot in workers.free).count(device) == 1
        other = next(end.address for end in all_four if workers._last[end.address] != device)
        for name in "abc":
            assert workers.start(job(tmp_path, name))
        assert workers.shrink(other)  # while both of its places are taken
        ends(workers, 3)
        assert len(workers.free) == workers.capacity == 2
    finally:
        workers.close()


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    shared = slots(3, None, 1, {}, 64)
    assert [slot.variables for slot in shared] == [{"PFL_DEVICE": "cpu", "PFL_WORKERS": "2", "PFL_THREADS": "1"}] * 3
    assert len(slots(None, None, 1, {}, 64)) == 8
    assert len(slots(None, None, 1, {}, 9)) == 2  # memory for two
    assert slots(1, None, 1, {"PFL_THREADS": "4"}, 9)[0].variables["PFL_THREADS"] == "4"
    on_gpus = slots(None, ["0", "2"], 2, {}, 64)
    assert [slot.name for slot in on_gpus] == ["gpu 0", "gpu 2"] * 2
    assert on_gpus[1].variables == {"CUDA_VISIBLE_DEVICES": "2", "PFL_DEVICE": "cuda"}


@pytest.mark.parametrize("wanted", ["", "a", "0,0", "-1"])
def test_gpus_that_are_no_numbers_are_refused(wanted: str) -> None:
    with pytest.raises(UserError, match=r"--gpus .* must be numbers separated by commas"):
        visible_gpus(wanted)


def test_gpus_as_wished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local, "_DRIVERS", (str(tmp_path / "none"),))
    monkeypatch.delenv("PFL_DEVICE", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(None) is None
    with pytest.raises(UserError, match="there is no GPU here; leave it out"):
        visible_gpus("0")
    monkeypatch.setattr(local, "_DRIVERS", (str(tmp_path),))
    assert visible_gpus("0, 1") == ["0", "1"]
    monkeypatch.setenv("PFL_DEVICE", "cuda:1")
    assert visible_gpus(None) == ["1"]
    monkeypatch.setenv("PFL_DEVICE", "cpu")
    assert visible_gpus(None) is None


def test_gpus_are_counted_among_those_that_are_visible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local, "_DRIVERS", (str(tmp_path),))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5f")
    assert visible_gpus("1, 0") == ["GPU-5f", "4"]
    monkeypatch.setenv("PFL_DEVICE", "cuda:1")
    assert visible_gpus(None) == ["GPU-5f"]
    with pytest.raises(
        UserError, match=r"^--gpus 0,4: there is no GPU 4, since CUDA_VISIBLE_DEVICES = '4,GPU-5f' leave"
    ):
        visible_gpus("0,4")


def test_complete_outputs_are_known_by_their_inputs_and_looks(tmp_path: Path) -> None:
    notes = Finished(tmp_path, tmp_path / ".pfl/finished")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_text("1")
    (tmp_path / "b").write_text("2")
    assert not notes.complete("x", "key")
    notes.note("x", "key", ("out", "b"))
    assert notes.complete("x", "key")
    assert not any(notes.complete("x", other) for other in ("a", "other")) and not notes.complete("y", "key")
    (tmp_path / "out/c").write_text("3")
    assert not notes.complete("x", "key")
    (tmp_path / "out/c").unlink()
    assert notes.complete("x", "key")
    os.utime(tmp_path / "b", ns=(1, 1))
    assert not notes.complete("x", "key")
    (tmp_path / "b").unlink()
    assert not notes.complete("x", "key")
    notes.forget("x")
    notes.forget("x")
    for damaged in ("", "[]", "{}", '{"key": "key", "outs": 1, "looks": []}'):
        notes._path("x").write_text(damaged)
        assert not notes.complete("x", "key")


@pytest.fixture
def board() -> Board:
    made = Board(title="pfl run", places=2)
    for name, state in (("a", "done"), ("b", "running"), ("c", "failed"), ("d", "queued"), ("e", "cached")):
        made.entries[name] = StageState(name, "train", f"run-{name}", state, expected=10.0)  # type: ignore[arg-type]
    made.entries["a"].seconds, made.entries["a"].diverged = 20.0, True
    running = made.entries["b"]
    running.began, running.round, running.rounds, running.accuracy, running.place = time.time() - 30, 3, 9, 0.5, "gpu 1"
    made.entries["c"].note = "the reason"
    return made


def test_the_board_is_kept_in_a_file(board: Board, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert Board.load(path) is None
    board.path = path
    board.save(now=True)
    again = Board.load(path)
    assert again and again.entries == board.entries and again.title == "pfl run" and again.alive
    again.ended = 1.0
    assert not again.alive
    again.ended, again.process = 0.0, 2**22 + 1
    assert not again.alive
    for damaged in ("", "[]", "{}", '{"entries": [{"x": 1}]}'):
        path.write_text(damaged)
        with pytest.raises(UserError, match="cannot be read; the next `pfl run` writes it anew"):
            Board.load(path)


def test_time_left_comes_from_what_has_been_trained(board: Board) -> None:
    now = time.time()
    assert board.entries["b"].left(now) == pytest.approx(60, abs=1)
    # It took 110 s where 20 s were expected, so what is queued will take 55.
    assert board.left(now) == pytest.approx(60, abs=2)  # the other place has less to do
    board.places = 1
    assert board.left(now) == pytest.approx(60 + 55, abs=2)
    board.entries["b"].resumed = 2
    assert board.entries["b"].left(now) == pytest.approx(180, abs=1)


def test_status_names_what_runs_and_what_went_wrong(board: Board) -> None:
    console = Console(width=120, record=True)
    show_status(board, console, everything=False)
    shown = console.export_text()
    assert "pfl run: since" in shown and "1 done, 1 running, 1 failed, 1 queued (1 cached), about" in shown
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip().startswith("run-")}
    assert set(lines) == {"run-a", "run-b", "run-c"}
    assert "diverged" in lines["run-a"] and "the reason" in lines["run-c"]
    assert "3/9" in lines["run-b"] and "50.00 %" in lines["run-b"] and "gpu 1" in lines["run-b"]
    show_status(board, console, everything=True)
    assert "run-d" in console.export_text()
    board.process = 2**22 + 1
    show_status(board, console, everything=False)
    shown = console.export_text()
    assert "was killed; the same command goes on" in shown and "stopped" in shown


def test_the_live_view_has_a_row_per_running_stage(board: Board) -> None:
    console = Console(width=120, record=True)
    console.print(live_view(board))
    shown = console.export_text()
    assert "run-b" in shown and "round 3/9, 50.00 %" in shown and "run-c" not in shown


def test_the_end_tells_failures_with_their_last_lines(board: Board, tmp_path: Path) -> None:
    log = tmp_path / "c.log"
    log.write_text("--- started\n" + "".join(f"line {number}\n" for number in range(9)))
    board.entries["c"].log = str(log)
    lines = summary(board, "pfl run -j 2")
    assert "1 done, 1 cached, 1 failed, 1 not done, 1 runs trained" in lines[0]
    assert lines[1] == "diverged: run-a"
    assert lines[2:5] == ["FAILED run-c: the reason", "    line 4", "    line 5"]
    assert lines[-1].endswith("to try the rest again: pfl run -j 2")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0 s"), (42, "42 s"), (187, "3:07 min"), (7500, "2:05 h"), (273_600, "3 d 4 h")]
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


NAMES = ["FedAvg, 50", "FedAvg, 100", "FedOFA, 50", "FedOFA*, 50", "k[N], 50"]


@pytest.mark.parametrize(
    ("patterns", "meant"),
    [
        ([], NAMES),
        (["FedAvg, *"], ["FedAvg, 50", "FedAvg, 100"]),
        (["FedOFA*, 50"], ["FedOFA*, 50"]),  # a name that is written out, and not a pattern
        (["FedOFA*"], ["FedOFA, 50", "FedOFA*, 50"]),
        (["k[N], 50", "FedAvg, 1??"], ["FedAvg, 100", "k[N], 50"]),
    ],
)
def test_what_patterns_of_cells_mean(patterns: list[str], meant: list[str]) -> None:
    assert sorted(cells_meant(patterns, NAMES)) == sorted(meant)
    assert cell_name({"method": "FedOFA*", "clients": "50"}) in NAMES


def test_a_pattern_that_means_no_cell() -> None:
    with pytest.raises(UserError, match=r"^no kept cell 'FedAgv, 50' .*; did you mean 'FedAvg, 50'\?$"):
        cells_meant([NAMES[0], "FedAgv, 50"], NAMES, "kept cell")
    with pytest.raises(UserError, match=r"^no cell 'x' .*, 'n11' and 988 more$"):
        cells_meant(["x"], [f"n{number}" for number in range(1000)], "cell")
