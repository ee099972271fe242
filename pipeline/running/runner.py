"""``pfl run``: compile, find what is stale, and bring the wanted reports up to date, many stages at a time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from filelock import FileLock, Timeout

from pflcore.memory import memory_limit
from pipeline.compile.generated import write
from pipeline.compile.graph import Graph
from pipeline.dvc.finished import Finished
from pipeline.dvc.program import executables, initialise
from pipeline.dvc.recorder import Recorder
from pipeline.papers.refresh import refresh
from pipeline.running.board import Board, status_path
from pipeline.running.display import show, summary
from pipeline.running.jobs import Pool
from pipeline.running.local import LocalPool, slots, visible_gpus
from pipeline.running.request import Request, Wish
from pipeline.running.scheduler import Scheduler
from pipeline.running.work import Work, wanted
from pipeline.stages.guard import leave_output
from pipeline.workspace import Workspace, raw_data_folder, report_path, timings_path

_MOST_SHOWN = 3  # reports that are printed; of more, only where they are


def run_specs(workspace: Workspace, wish: Wish) -> int:
    """Bring reports up to date and print them; 1 when a stage failed, otherwise 0.

    A profile's own workspace holds just what has been asked of it: the stages of the specs named here.

    Raises:
        UserError: A spec is invalid, or one of these is only to be extended; nothing has been written then. Or a
            setting cannot be used.
    """
    gpus = None if wish.cluster else visible_gpus(wish.gpus)
    request = Request.compiled(workspace, wish)
    with _alone(workspace) as waited:
        if waited:  # others may have edited them meanwhile
            request = Request.compiled(workspace, wish)
        initialise(workspace.root)
        write(workspace, request.compilation)
        if request.compilation.skipped or workspace.root != workspace.home:  # the guard has to wait, or there is none
            leave_output(workspace)
        if workspace.root != workspace.home:  # the raw data of the project, not of the profile's workspace
            os.environ.setdefault("PFL_DATA", str(raw_data_folder(workspace.home)))
        with chdir(workspace.root):  # DVC takes a few paths from there
            board = _bring_up_to_date(request, gpus)
    if board is None:
        return 0
    print("\n".join(summary(board, board.title)), file=sys.stderr, flush=True)
    if request.runs is None:
        _show_reports(request, board)
    return 1 if board.of_state("failed") else 0


def _show_reports(request: Request, board: Board) -> None:
    workspace = request.workspace
    complete = {entry.subject for entry in board.of_kind("report") if entry.state in ("done", "cached")}
    _print_reports(workspace.root, [name for name in request.specs if name in complete])
    idle = all(entry.state == "cached" for entry in board.entries.values())
    print(f"\n{refresh(workspace, request.compilation, request.specs, idle=idle)}")


def _bring_up_to_date(request: Request, gpus: list[str] | None) -> Board | None:
    """Execute what is stale of what a request needs; how that went, or None when it was only to be told."""
    workspace, graph = request.workspace, Graph(request.compilation.stages)
    order = wanted(request, graph)
    finished = Finished(workspace.root, workspace.private / "finished")
    recorder = Recorder(workspace.root, (graph.stages[address] for address in order), finished)
    work = Work.of(request, graph, order, recorder.stale(order))
    if request.wish.dry:
        recorder.close()
        print(work.explain())
        return None
    board = Board(title=request.command, path=status_path(workspace), entries=work.states())
    if work.stale:
        _execute(work, recorder, _pool(request, gpus, graph, recorder), board)
    else:
        recorder.close()
        for entry in board.entries.values():
            entry.state = "cached"
    board.ended = time.time()
    board.save(now=True)
    return board


def _pool(request: Request, gpus: list[str] | None, graph: Graph, recorder: Recorder) -> Pool:
    root, wish = request.workspace.root, request.wish
    places = slots(wish.jobs, gpus, wish.per_gpu, dict(os.environ), 2 * memory_limit() / 2**30)
    local = partial(LocalPool, root, recorder.finished.folder, places, {"PATH": executables()})
    if not wish.cluster:
        return local()
    from pipeline.dvc.remote import default_remote
    from pipeline.running.cluster.cluster import Cluster

    remote = default_remote(recorder.repo.config)
    trains = {address: stage for address, stage in graph.stages.items() if stage.kind == "train"}
    resources = {address: request.compilation.resources[stage.subject] for address, stage in trains.items()}
    return Cluster(wish.cluster, remote, local(), trains, resources, wish.jobs)


def _execute(work: Work, recorder: Recorder, pool: Pool, board: Board) -> None:
    board.places = pool.capacity
    with show(board) as display, _terminable():
        try:
            Scheduler(work, recorder, pool, board, display).run()
        except BaseException:
            for entry in board.of_state("running", "waiting"):
                entry.state, entry.note = "queued", "interrupted"
            board.ended = time.time()
            board.save(now=True)
            raise


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
