"""``pfl run``: compile, find stale stages, and bring the requested reports up to date, many stages at a time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress

from filelock import FileLock, Timeout

from pflcore.errors import UserError
from pflcore.files import named
from pipeline.compile.compilation import Compilation, Graph
from pipeline.compile.generated import write
from pipeline.dvc.program import executables, initialise
from pipeline.dvc.recorder import Recorder
from pipeline.progress import warn
from pipeline.raw_data import changed_folders
from pipeline.report.formats import chars_without_latex
from pipeline.running.board import Board, Display, StageState, status_path, summary
from pipeline.running.local import LocalPool, slots, visible_gpus
from pipeline.running.options import Request, RunOptions
from pipeline.running.scheduler import Scheduler
from pipeline.spec.selection import add
from pipeline.stages.guard import write_output
from pipeline.stages.tracking import check_viewers
from pipeline.timing import duration
from pipeline.workspace import INDEX, PAPERS, Workspace, raw_data_folder, report_path, run_path, timings_path

MAX_SHOWN = 3  # reports that are printed; if there are more, only their paths are
_MIN_CHECKED_SECONDS = 60.0  # seconds of training, from which on it is checked beforehand what training would refuse


def run_specs(workspace: Workspace, options: RunOptions) -> int:
    """Bring reports up to date and print them; return 1 if a stage failed, otherwise 0.

    Raises :class:`UserError` if a spec or a setting is invalid; then nothing is written.
    """
    gpus = None if options.cluster else visible_gpus(options.gpus)
    if not options.cluster:  # whose nodes may have other viewers
        check_viewers()
    request = Request.compiled(workspace, options)
    with _exclusive(workspace) as waited:
        if waited:  # specs may have been edited meanwhile
            request = Request.compiled(workspace, options)
        if request.added:  # not earlier: it would stop the `pfl run` that this one has waited for
            add(workspace, request.added)
        initialise(workspace.root)
        write(workspace, request.compilation)
        warn(changed_folders(workspace))
        profiled = workspace.root != workspace.home  # a profile's workspace, which has neither a guard nor raw data
        if request.compilation.skipped or profiled:  # the guard does not run, but stages depend on its output
            write_output(workspace)
        if profiled:
            os.environ.setdefault("PFL_DATA", str(raw_data_folder(workspace.home)))
        with chdir(workspace.root):  # DVC takes a few paths relative to the current folder
            board = _bring_up_to_date(request, gpus)
    if board is None:
        return 0
    print("\n".join(summary(board)), file=sys.stderr, flush=True)
    if request.runs is None:
        complete = {entry.subject for entry in board.of_state("done", "cached") if entry.kind == "report"}
        _print_reports(workspace, [name for name in request.specs if name in complete])
        idle = all(entry.state == "cached" for entry in board.entries.values())
        print(f"\n{update_pages(workspace, request.compilation, request.specs, idle=idle)}")
    return 1 if board.of_state("failed") else 0


def _bring_up_to_date(request: Request, gpus: list[str] | None) -> Board | None:
    """Execute the stale stages that a request needs; return the board. With `dry`, list them and return None."""
    workspace, options, graph = request.workspace, request.options, Graph(request.compilation.stages)
    order = _required_stages(request, graph)
    recorder = Recorder(workspace.root, (graph.stages[address] for address in order))
    stale = recorder.stale(order)
    seconds: dict[str, float] = {}
    if stale:
        from pipeline.plan.estimate import Speed  # imported late, since it imports NumPy

        runs, new = request.compilation.runs, dict[str, float]()  # run → expected seconds
        speed = Speed(runs.values(), workspace.private / "timings")
        for stage in map(graph.stages.__getitem__, order):
            seconds[stage.address] = speed.seconds(runs[stage.subject]) if stage.kind == "train" else 1.0
            if stage.kind == "train" and stage.address in stale:
                new[stage.subject] = seconds[stage.address]
        if sum(new.values()) > _MIN_CHECKED_SECONDS:
            from pipeline.plan.compatibility import compatibility_errors

            warn(compatibility_errors(workspace, request.compilation, new))
    if options.dry or not stale:
        recorder.close()
    if options.dry:
        print(_dry_run_text(graph, order, stale, seconds))
        return None
    board = Board(options.command, path=status_path(workspace))
    for address in order:
        stage, expected = graph.stages[address], seconds.get(address, 0.0)
        state = "queued" if stale else "cached"
        board.entries[address] = StageState(address, stage.kind, stage.subject, state, expected)  # type: ignore[arg-type]
    if stale:
        pool = _pool(request, gpus, graph, len(stale))
        board.places = pool.capacity
        logs = workspace.private / "logs"
        display = Display(board)
        with display.bars:
            scheduler = Scheduler(graph, board, {*stale}, recorder, pool, display, logs, options.keep_going)
            try:
                with handle_signals(scheduler):
                    scheduler.run()
            except BaseException:
                for entry in board.of_state("running", "waiting"):
                    entry.state, entry.note = "queued", "interrupted"
                board.finish()
                raise
    board.finish()
    return board


def _required_stages(request: Request, graph: Graph) -> list[str]:
    """Return the stages that the requested reports or runs need, each after its dependencies.

    The guard checks all specs, so it is left out while a spec that was not asked for is invalid.
    """
    makers = {out: address for address, stage in graph.stages.items() for out in stage.outs}
    if request.runs is not None:
        targets = [makers[run_path(run, "rounds.parquet")] for run in request.runs]
    else:
        targets = [makers[f"{report_path(name)}/table.parquet"] for name in request.specs]
        # The index of the default specs, unless it needs reports of specs that were not named.
        for address, stage in graph.stages.items():
            if stage.kind == "index" and (not request.options.specs or set(graph.upstream[address]) <= set(targets)):
                targets.append(address)
    skipped = request.compilation.skipped
    return [address for address in graph.needed(targets) if not (skipped and graph.stages[address].kind == "guard")]


def _dry_run_text(graph: Graph, order: list[str], stale: Mapping[str, str], seconds: Mapping[str, float]) -> str:
    """Return a line for each stage to be executed, with the reason, and a line about all of them."""
    lines: dict[str, str] = {}
    names = {address: StageState(address, stage.kind, stage.subject) for address, stage in graph.stages.items()}
    for address in order:
        # The guard's output is always the same.
        rerun = [other for other in graph.upstream[address] if other in lines and graph.stages[other].kind != "guard"]
        dependency = f"depends on {names[rerun[0]].name}" if rerun else ""
        if reason := stale.get(address) or dependency:
            lines[address] = f"{names[address].name}: {reason}"
    time = f"; about {duration(sum(seconds[address] for address in lines))} of work for one process" if lines else ""
    return "\n".join([*lines.values(), f"{len(lines)} of {len(order)} stages are to be done, at most{time}"])


def _pool(request: Request, gpus: list[str] | None, graph: Graph, expected: int) -> LocalPool:
    root, options = request.workspace.root, request.options
    local = root, slots(options.jobs, gpus, options.per_gpu), {"PATH": executables()}
    if not options.cluster:
        return LocalPool(*local, expected)
    from pipeline.running.ray import RayPool

    trains = {address: stage for address, stage in graph.stages.items() if stage.kind == "train"}
    needs = {address: request.compilation.resources[stage.subject] for address, stage in trains.items()}
    return RayPool(*local, options.cluster, trains, needs, options.jobs)


@contextmanager
def handle_signals(scheduler: Scheduler) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP end a run between two steps, not within DVC; a second one ends it at once."""

    def interrupt(*_: object) -> None:
        if scheduler.interrupted:
            scheduler.interrupted_again = True
            raise KeyboardInterrupt
        scheduler.interrupted = True
        with suppress(OSError):  # not by `print`: the signal may have interrupted a write to the same stream
            os.write(2, b"\nstopping; a second Ctrl-C stops at once\n")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    active = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in active}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _exclusive(workspace: Workspace) -> Iterator[bool]:
    """Let one `pfl run` at a time work in a workspace; another one waits for it. Yield whether it waited."""
    workspace.private.mkdir(parents=True, exist_ok=True)
    path, waited = workspace.private / "run.lock", False
    lock = FileLock(path, fallback_to_soft=False)  # DVC needs real ones, too
    try:
        with named(path):
            acquired = lock.acquire(timeout=0)
    except Timeout:
        board = Board.load(status_path(workspace))
        owner = f" (process {board.process}: {board.title})" if board and board.alive else ""
        line = f"another pfl run is at work here{owner}; waiting for its end, see `pfl status`"
        print(line, file=sys.stderr, flush=True)
        acquired, waited = lock.acquire(), True
    with acquired:
        yield waited


def _print_reports(workspace: Workspace, names: list[str]) -> None:
    """Print the paths of reports and, if there are few, their tables without the legend."""
    for name in names:
        path = workspace.root / report_path(name) / "report.md"
        if len(names) > MAX_SHOWN:
            print(os.path.relpath(path))
            continue
        lines = path.read_text(encoding="utf-8").partition("\n## ")[0].strip().splitlines()
        rows = [index for index, line in enumerate(lines) if line.startswith("|")]
        table = "\n".join(lines[: rows[-1] + 1] if rows else lines)
        links = f"All of it: {os.path.relpath(path)}; HTML, LaTeX and CSV beside it"
        if missing := chars_without_latex(path.with_name("report.tex").read_text(encoding="utf-8")):
            links += f"; LaTeX has no {', '.join(missing)} and shows numbers of Unicode instead"
        if (times := workspace.root / timings_path(name)).is_file():  # not in a clone, which has trained nothing
            links += f". Training times: {os.path.relpath(times)}"
        print(f"\n{table}\n\n{links}")


def update_pages(workspace: Workspace, compilation: Compilation, specs: Iterable[str], *, idle: bool = False) -> str:
    """Update the pages of the papers of some specs; return a line with their paths, or with the error. If `idle`,
    nothing has been run, so the pages are not updated if all of them exist."""
    names = list(dict.fromkeys(spec.split("/")[0] for spec in specs))
    pages = [workspace.root / PAPERS / f"{name}.html" for name in names]
    if not (idle and all(page.is_file() for page in pages)):
        from pipeline.papers.pages import Papers  # imported late, since it imports what renders pages

        try:
            Papers.compile(workspace, names, compilation).write(names)
        except UserError as error:
            return f"pages of papers: {error}"
    rest = f" and {len(pages) - 3} more" if len(pages) > 3 else ""
    index = os.path.relpath(workspace.root / INDEX)
    return f"By paper: {', '.join(map(os.path.relpath, pages[:3]))}{rest}; all papers: {index}"
