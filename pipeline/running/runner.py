"""``pfl run``: compile, find what is stale, and bring the wanted reports up to date, many stages at a time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout

from pflcore.errors import UserError
from pflcore.memory import memory_limit
from pipeline.compile.compiler import Compilation, compile_workspace
from pipeline.compile.generated import write
from pipeline.compile.graph import Graph
from pipeline.dvc.finished import Finished
from pipeline.dvc.program import executables, initialise
from pipeline.dvc.recorder import Recorder
from pipeline.plan.estimate import Speed
from pipeline.printing import Printer
from pipeline.report.pages.provenance import timings_path
from pipeline.running.board import Board, StageState, duration
from pipeline.running.display import show, summary
from pipeline.running.jobs import Pool
from pipeline.running.local import LocalPool, slots, visible_gpus
from pipeline.running.scheduler import Scheduler
from pipeline.spec.selection import add, read_selection
from pipeline.spec.specs import find_specs
from pipeline.workspace import PAPER, Workspace, raw_data_folder, report_path

# Expected seconds of stages other than training; only the order of work and the time left depend on them.
_SECONDS = {"data": 2.0, "partition": 0.5, "describe": 1.0, "evaluate": 0.2, "report": 2.0}
_MOST_SHOWN = 3  # reports that are printed; of more, only where they are


@dataclass(frozen=True)
class Wish:
    """What `pfl run` was asked for.

    Attributes:
        specs: Their names; empty for the default ones.
        everything: All specs instead.
        jobs: Stages at a time; None for as many as there is room for.
        gpus: ``0,1``, or None for those that are visible.
        per_gpu: Stages at a time on each of them.
        keep_going: After a failure, start what does not depend on it.
        dry: Only say what there is to do.
        cluster: The address of a Ray cluster that does the work.
    """

    specs: tuple[str, ...] = ()
    everything: bool = False
    jobs: int | None = None
    gpus: str | None = None
    per_gpu: int = 1
    keep_going: bool = True
    dry: bool = False
    cluster: str | None = None


def status_path(workspace: Workspace) -> Path:
    """Where the state of the last `pfl run` is."""
    return workspace.private / "run.json"


def run_specs(workspace: Workspace, wish: Wish) -> int:
    """Bring reports up to date and print them; 1 when a stage failed, otherwise 0.

    A profile's own workspace holds just what has been asked of it: the stages of the specs named here.

    Raises:
        UserError: A spec is invalid, or one of these is only to be extended; nothing has been written then. Or a
            setting cannot be used.
    """
    with Printer(complete=True) as printer:  # which does not even wait for its reader between work and pages
        return _run(workspace, wish, printer)


def _run(workspace: Workspace, wish: Wish, printer: Printer) -> int:
    own = workspace.root != workspace.home
    gpus = None if wish.cluster else visible_gpus(wish.gpus)
    names, compilation = _compile(workspace, wish)
    with _alone(workspace) as waited:
        if waited:  # others may have edited them meanwhile
            names, compilation = _compile(workspace, wish)
        initialise(workspace.root)
        write(workspace, compilation)
        if own:  # the raw data of the project, not of the profile's workspace
            os.environ.setdefault("PFL_DATA", str(raw_data_folder(workspace.home)))
        with chdir(workspace.root):  # DVC takes a few paths from there
            board = _bring_up_to_date(workspace, wish, gpus, names, compilation, printer)
    if board is None:
        return 0
    lines = summary(board, board.title)
    print("\n".join(lines), file=sys.stderr, flush=True)
    failed = bool(board.of_state("failed"))
    made = {entry.subject for entry in board.of_kind("report") if entry.state in ("done", "cached")}
    _print_reports(workspace.root, [name for name in names if name in made])
    from pipeline.papers.pages import refresh  # after the work: it takes a second

    idle = all(entry.state == "cached" for entry in board.entries.values())
    print(f"\n{refresh(workspace, compilation, names, idle=idle)}")
    return 1 if failed else 0


def _bring_up_to_date(
    workspace: Workspace,
    wish: Wish,
    gpus: list[str] | None,
    names: list[str],
    compilation: Compilation,
    printer: Printer,
) -> Board | None:
    """Execute what is stale of the reports of `names`; how that went, or None when it was only to be told."""
    graph = Graph(compilation.stages)
    targets = [_target(graph, f"{report_path(name)}/table.parquet") for name in names]
    if not wish.specs:
        targets += [address for address, stage in graph.stages.items() if stage.kind == "index"]
    order = graph.needed(targets)
    notes = Finished(workspace.root, workspace.private / "finished")
    recorder = Recorder(workspace.root, (graph.stages[address] for address in order), notes)
    stale = recorder.stale(order)
    expected = _expected(workspace, compilation, graph, order)
    if wish.dry:
        recorder.close()
        _tell(graph, order, stale, expected)
        return None
    board = Board(title=_command(workspace, wish))
    for address in order:
        stage = graph.stages[address]
        board.entries[address] = StageState(address, stage.kind, stage.subject, expected=expected[address])
    if stale:
        pool = _pool(workspace, wish, gpus, compilation, graph, recorder)
        _schedule(workspace, wish, graph, order, stale, recorder, pool, board, compilation, printer)
    else:
        recorder.close()
        for entry in board.entries.values():
            entry.state = "cached"
    board.ended = time.time()
    board.save(status_path(workspace), now=True)
    return board


def _schedule(
    workspace: Workspace,
    wish: Wish,
    graph: Graph,
    order: list[str],
    stale: dict[str, str],
    recorder: Recorder,
    pool: Pool,
    board: Board,
    compilation: Compilation,
    printer: Printer,
) -> None:
    board.places = pool.capacity
    path = status_path(workspace)
    gpus = {
        address: int(compilation.resources[run].gpus)
        for address in order
        if (run := graph.stages[address].run) in compilation.resources and graph.stages[address].kind == "train"
    }
    with show(board, printer) as display, _terminable():
        try:
            Scheduler(
                graph,
                order,
                stale,
                recorder=recorder,
                pool=pool,
                board=board,
                display=display,
                save=lambda now: board.save(path, now),
                logs=workspace.private / "logs",
                gpus=gpus,
                keep_going=wish.keep_going,
            ).run()
        except BaseException:
            for entry in board.of_state("running", "waiting"):
                entry.state, entry.note = "queued", "interrupted"
            board.ended = time.time()
            board.save(path, now=True)
            raise


def _compile(workspace: Workspace, wish: Wish) -> tuple[list[str], Compilation]:
    """The wanted specs, and what there is to run. Writes nothing but which specs are selected here from now on."""
    found = list(find_specs(workspace.specs))
    selection = read_selection(workspace, found)
    asked = list(wish.specs) or (found if wish.everything else selection.default)
    if not asked:
        raise UserError("nothing to run: there are no specs")
    own = workspace.root != workspace.home
    seen = [] if own else selection.compiled
    compilation = compile_workspace(workspace, sorted({*seen, *asked}), wanted=asked)
    names = [name for name in asked if name in compilation.tables]
    if not names:
        raise UserError(f"specs/{asked[0]}.yaml: abstract; run a spec that extends it")
    new = [name for name in names if name not in seen]
    if new and not own:
        if wish.dry:
            raise UserError(f"DVC does not see the stages of {new[0]} yet; ask `pfl plan`, or `pfl add {new[0]}` first")
        add(workspace, new)
    for problem in compilation.skipped.values():
        print(f"pfl: left alone: {problem}", file=sys.stderr)
    return names, compilation


def _pool(
    workspace: Workspace,
    wish: Wish,
    gpus: list[str] | None,
    compilation: Compilation,
    graph: Graph,
    recorder: Recorder,
) -> Pool:
    notes = workspace.private / "finished"
    places = slots(wish.jobs, gpus, wish.per_gpu, dict(os.environ), 2 * memory_limit() / 2**30)
    if not wish.cluster:
        return LocalPool(workspace.root, notes, places, {"PATH": executables()})
    from pipeline.dvc.remote import default_remote
    from pipeline.running.cluster.cluster import Cluster

    remote = default_remote(recorder.repo.config)
    trains = {address: stage for address, stage in graph.stages.items() if stage.kind == "train"}
    asked = {address: compilation.resources[stage.subject] for address, stage in trains.items()}
    local = LocalPool(workspace.root, notes, places, {"PATH": executables()})
    return Cluster(wish.cluster, remote, local, trains, asked, wish.jobs)


def _expected(workspace: Workspace, compilation: Compilation, graph: Graph, order: list[str]) -> dict[str, float]:
    """Expected seconds of each stage."""
    speed = Speed(compilation.runs.values(), workspace.private / "timings")
    found = {}
    for address in order:
        stage = graph.stages[address]
        training = stage.kind == "train" and stage.run
        found[address] = speed.seconds(compilation.runs[training]) if training else _SECONDS.get(stage.kind, 0.5)
    return found


@contextmanager
def _alone(workspace: Workspace) -> Iterator[bool]:
    """Only one `pfl run` works in a workspace; a second one waits for the first, and says so. Whether it had to."""
    workspace.private.mkdir(parents=True, exist_ok=True)
    lock, waited = FileLock(workspace.private / "run.lock"), False
    try:
        lock.acquire(timeout=0)
    except Timeout:
        board = Board.load(status_path(workspace))
        who = f" (process {board.process}: {board.title})" if board and board.alive else ""
        line = f"another pfl run is at work here{who}; waiting for its end, see `pfl status`"
        print(line, file=sys.stderr, flush=True)
        lock.acquire()
        waited = True
    try:
        yield waited
    finally:
        lock.release()


@contextmanager
def _terminable() -> Iterator[None]:
    """A request to terminate ends the run like Ctrl-C does: what is finished is recorded, the rest is stopped."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(graph: Graph, order: list[str], stale: dict[str, str], expected: dict[str, float]) -> None:
    """What `pfl run --dry-run` prints."""
    due: dict[str, str] = {}
    for address in order:
        before = next((other for other in graph.upstream[address] if other in due), None)
        if address in stale:
            due[address] = stale[address]
        elif before:
            stage = graph.stages[before]
            due[address] = f"depends on {stage.kind} {stage.subject}"
    for address, why in due.items():
        stage = graph.stages[address]
        name = stage.kind if stage.kind == stage.subject else f"{stage.kind} {stage.subject}"
        print(f"{name}: {why}")
    work = sum(expected[address] for address in due)
    told = f"; about {duration(work)} of work for one process" if due else ""
    print(f"{len(due)} of {len(order)} stages are to be done, at most{told}")


def _target(graph: Graph, report: str) -> str:
    return next(address for address, stage in graph.stages.items() if report in stage.outs)


def _command(workspace: Workspace, wish: Wish) -> str:
    """The command that asks for the same again."""
    words = ["pfl run", *wish.specs, *(["--all"] if wish.everything else [])]
    options = {
        "--profile": None if workspace.profile == PAPER else workspace.profile,
        "-j": wish.jobs,
        "--gpus": wish.gpus,
        "--per-gpu": None if wish.per_gpu == 1 else wish.per_gpu,
        "--cluster": wish.cluster,
    }
    words += [f"{option} {value}" for option, value in options.items() if value is not None]
    return " ".join(words + ([] if wish.keep_going else ["--fail-fast"]))


def _print_reports(root: Path, names: list[str]) -> None:
    if len(names) <= _MOST_SHOWN:
        for name in names:
            print(f"\n{_summary(root, name)}")
        return
    for name in names:
        print(os.path.relpath(root / report_path(name) / "report.md"))


def _summary(root: Path, name: str) -> str:
    """The first part of a report, down to its first section, and where the rest lies."""
    report = root / report_path(name) / "report.md"
    top, _, _ = report.read_text(encoding="utf-8").partition("\n## ")
    times = os.path.relpath(root / timings_path(name))
    return (
        f"{top.strip()}\n\nAll of it: {os.path.relpath(report)}; HTML, LaTeX and CSV beside it. Training times: {times}"
    )
