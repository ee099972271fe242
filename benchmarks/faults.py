"""Whether anything is lost, or recorded that is not so, when random faults happen at random instants.

A project of twelve runs is made, up to date. For each fault it is copied, a part of it is forgotten, and ``pfl run`` or
``dvc repro`` makes that again while something happens: a signal to one of the processes or to all, a disk that is full
or read-only, files of the future, a file flipped, cut or removed, a second runner, a source that is edited and the edit
undone. Then the same command is typed until it ends well, after two refusals of DVC's ``pfl run``; looked at is this:

- all artifacts, reports and lock files are those of the undisturbed project, to the byte;
- ``dvc status`` is clean;
- DVC's run cache says of no inputs of the undisturbed project, or of the one with the edit, what is not so there;
- no process, no temporary file and no checkpoint is left.

    python benchmarks/faults.py --faults 300 --seed 1    # a table; exit code 1 if anything is violated
    python benchmarks/faults.py --first 17 --faults 1    # the seventeenth again; what it hits varies all the same

As root, in a mount namespace of its own, disks are really full and read-only; otherwise files have a largest size, and
folders lose the permission.
"""

import argparse
import hashlib
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import yaml

# Before this folder, whose pipeline.py would hide the package of that name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import damage
from support.own_parts import METHOD as OWN
from support.project import Project, make_project, spec

SOURCE = Path(__file__).resolve().parents[1]
PATIENCE = 300.0  # seconds that no command needs
MOMENT = 20.0  # seconds in which whoever has lost his scheduler has to end
ATTEMPTS = 6  # commands until there is nothing to do
PROGRAMS = {"pfl": ("pfl", "run", "-j", "2"), "dvc": ("dvc", "repro")}
AXES = """    training.lr: [0.05, 0.1]
    seed: [0, 1]
table: {rows: [method], columns: [training.lr], average_over: [seed]}
"""
SPEC = spec("[fedavg, fedper, mine]", partition="dirichlet", rounds=8, training=", save_weights: true", more=AXES)
METHOD = OWN.replace("from ._scaling import factor\n", "").replace("factor()", "0.5")
EDITED = METHOD.replace("0.5", "1.5")
OWN_PAGES = ("reports/papers/", "reports/index.html")  # of `pfl run` alone, and no stage's
KEPT = tuple(f".pfl/{name}/" for name in ("logs", "timings", "replaced", "states"))
KEPT += (".dvc/cache/", ".dvc/tmp/", "reports/", "stages/", "dvc.lock")
Entries = dict[str, str]
_load = partial(yaml.load, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
_MD5 = re.compile("[0-9a-f]{32}")


@dataclass
class Trial:
    """One fault: where, to which command, and what is to be undone before that is typed again."""

    root: Path
    rng: random.Random
    process: subprocess.Popen[bytes]
    mounts: bool
    undo: list[Callable[[], object]] = field(default_factory=list)

    def processes(self, whom: str) -> list[psutil.Process]:
        """The scheduler, the process that workers are forked from, a worker, or all of these."""
        there = {one: words for one, words in at_work(self.root).items() if "resource_tracker" not in words}
        scheduler = [one for one in there if one.pid == self.process.pid]
        with suppress(psutil.Error):
            children = scheduler[0].children() if scheduler else []
            parents = [one for one in children if "forkserver" in there.get(one, "")]  # as workers' commands say too
            workers = [one for one in there if one not in (*scheduler, *parents)]
            return {"scheduler": scheduler, "forkserver": parents, "worker": workers[-1:], "all": [*there]}[whom]
        return []

    def signal(self, number: signal.Signals, whom: str) -> None:
        chosen = self.processes(whom) or self.processes("scheduler")
        for sent in (number, signal.SIGCONT)[: 2 if number == signal.SIGSTOP else 1]:
            for one in chosen:
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(sent)
            time.sleep(self.rng.uniform(0.2, 3) if sent == signal.SIGSTOP else 0)

    def small_files(self) -> None:
        """From now on no file of any process here grows beyond some size."""
        limit = self.rng.choice([0, 300, 3000, 30000])
        for one in self.processes("all"):
            with suppress(psutil.NoSuchProcess):
                one.rlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def full_disk(self) -> None:
        if not self.mounts:
            return self.small_files()
        filler, left = self.root / "filler", self.rng.choice([0, 4096, 50_000])
        with suppress(OSError), filler.open("wb") as file:
            file.write(bytes(1 << 27))
        with filler.open("r+b") as file:
            file.truncate(max(0, filler.stat().st_size - left))
        self.undo.append(filler.unlink)

    def read_only(self) -> None:
        folder = self.root / self.rng.choice(["artifacts", "artifacts/runs", "reports", ".pfl", ".dvc", "stages"])
        if self.mounts:
            subprocess.run(["mount", "--bind", folder, folder], check=True)
            subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
            self.undo.append(lambda: subprocess.run(["umount", "-l", folder], check=True))
        else:
            folder.chmod(0o555)
            self.undo.append(lambda: folder.chmod(0o755))

    def clock(self) -> None:
        """Files of another time, as after a clock that was wrong."""
        shift = self.rng.choice([-1, 1]) * 4 * 365 * 86400
        files = self.files("artifacts", "reports", "specs", "methods", ".pfl", "stages")
        for path in files[:: self.rng.choice([1, 3])]:
            with suppress(OSError):
                os.utime(path, (time.time() + shift,) * 2)

    def damage(self, how: Callable[[Path], object]) -> None:
        """Something happens to one file, most likely of those that lie in the workspace."""
        folders = self.rng.choice([["artifacts"], ["artifacts", "reports"], [".pfl/checkpoints"]])
        with suppress(FileNotFoundError):
            if files := [path for path in self.files(*folders) if path.stat().st_size]:
                how(self.rng.choice(files))

    def second(self, program: str) -> None:
        """Somebody else types the same, or the other command."""
        other = start(self.root, program)
        self.undo.append(lambda: finish(other))

    def edit(self) -> None:
        (self.root / "methods/mine.py").write_text(EDITED)
        with suppress(subprocess.TimeoutExpired):  # undone at once, later, or at the end
            self.process.wait(self.rng.choice([0.0, 0.5, 3.0, PATIENCE]))
        (self.root / "methods/mine.py").write_text(METHOD)

    def files(self, *folders: str) -> list[Path]:
        return sorted(path for folder in folders for path in (self.root / folder).rglob("*") if path.is_file())


SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)
WHOM = ("scheduler", "forkserver", "worker", "all")
KINDS: dict[str, Callable[[Trial], object]] = {
    **{f"{one.name} {whom}": partial(Trial.signal, number=one, whom=whom) for whom in WHOM for one in SIGNALS},
    "full disk": Trial.full_disk,
    "largest file": Trial.small_files,
    "read-only folder": Trial.read_only,
    "clock": Trial.clock,
    "file flipped": partial(Trial.damage, how=damage.flip),
    "file cut": partial(Trial.damage, how=damage.cut),
    "file removed": partial(Trial.damage, how=Path.unlink),
    "second pfl run": partial(Trial.second, program="pfl"),
    "second dvc repro": partial(Trial.second, program="dvc"),
    "edit, undone": Trial.edit,
}


def environment(root: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(SOURCE), "PFL_DEVICE": "cpu", "PFL_CHECKPOINT_SECONDS": "0.1", "PYTHONFAULTHANDLER": "1"}
    return Project(root).environment(**own)


def start(root: Path, program: str) -> subprocess.Popen[bytes]:
    with (root.parent / "said.txt").open("ab") as said:
        streams = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
        return subprocess.Popen(PROGRAMS[program], cwd=root, env=environment(root), start_new_session=True, **streams)


def finish(process: subprocess.Popen[bytes]) -> int | None:
    """Its exit code, or None if it had to be killed with all that it started; it says then where its threads were."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(PATIENCE)
    with suppress(psutil.NoSuchProcess, subprocess.TimeoutExpired):
        psutil.Process(process.pid).rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        process.send_signal(signal.SIGABRT)
        process.wait(MOMENT)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return None


def make(root: Path) -> float:
    """A project that is up to date; the seconds that took."""
    make_project(root, {"specs/faults.yaml": SPEC, "methods/mine.py": METHOD}, ["faults"])
    began = time.monotonic()
    if finish(start(root, "pfl")) or finish(start(root, "dvc")):
        sys.exit((root.parent / "said.txt").read_text()[-4000:])
    return time.monotonic() - began


def forget(root: Path, rng: random.Random) -> None:
    """What some runs' stages have made, all last states, and the run cache; now and then the reports too."""
    shutil.rmtree(root / ".pfl/states")
    shutil.rmtree(root / ".dvc/cache/runs")
    for folder in rng.sample(sorted(root.glob("artifacts/runs/*")), rng.choice([2, 3, 4])):
        shutil.rmtree(folder)
        for lock in root.glob("stages/federations/*/dvc.lock"):
            entries = _load(lock.read_bytes())
            entries["stages"] = {name: one for name, one in entries["stages"].items() if folder.name not in name}
            lock.write_text(yaml.safe_dump(entries, sort_keys=False))
    if rng.random() < 0.3:
        (root / "stages/dvc.lock").unlink()
        shutil.rmtree(root / "reports/faults")


def at_work(root: Path) -> dict[psutil.Process, str]:
    """All processes in a project but for zombies, each with its command."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.cwd() == str(root) and process.status() != psutil.STATUS_ZOMBIE:
                found[process] = " ".join(process.cmdline())
    return found


def results(root: Path) -> Entries:
    """Path → hash of all that stages have made; a lock file's entries have no order."""
    found = {}
    for path in (path for folder in ("artifacts", "reports") for path in (root / folder).rglob("*") if path.is_file()):
        if not (name := path.relative_to(root).as_posix()).startswith(OWN_PAGES):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in (*root.glob("dvc.lock"), *root.glob("stages/**/dvc.lock")):
        found[path.relative_to(root).as_posix()] = repr(sorted(_load(path.read_bytes())["stages"].items()))
    return found


def recorded(root: Path) -> Entries:
    """Command and inputs → outputs of all entries in DVC's run cache."""

    def hashes(files: list[dict[str, str]]) -> str:
        return repr([(one["path"], one["md5"]) for one in files])

    entries = [_load(path.read_bytes()) for path in root.glob(".dvc/cache/runs/*/*/*") if path.is_file()]
    return {f"{one['cmd']} {hashes(one['deps'])}": hashes(one["outs"]) for one in entries}


def violations(root: Path, calm: Path, expected: Entries, true: Entries) -> list[str]:
    """Return what differs from the undisturbed project once the fault is over, a line each."""
    found, told = results(root), []
    told += [f"{name} differs" for name in sorted(found.keys() | expected) if found.get(name) != expected.get(name)]
    status = subprocess.run(["dvc", "status"], cwd=root, env=environment(root), capture_output=True, text=True)
    if "up to date" not in status.stdout:
        told.append(f"dvc status: {' '.join(status.stdout.split())[:300]}{status.stderr[-300:].strip()}")
    known = set(_MD5.findall(repr(true)))  # entries about a damaged file are about just that
    for key, outs in recorded(root).items():
        if true.get(key, outs) != outs or (key not in true and known.issuperset(_MD5.findall(key))):
            told.append(f"recorded, and not so: {key[:200]}")
    _, alive = psutil.wait_procs(left := at_work(root), MOMENT)
    told += [f"process {one.pid} is left: {left[one][:120]}" for one in alive]
    names = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    more = sorted(name for name in names if not (calm / name).exists() and "__pycache__" not in name)
    told += [f"{name} is left" for name in more if not name.startswith(KEPT) or ".part" in name]
    return told


def tried(number: int, seed: int, root: Path, calm: Path, seconds: float, mounts: bool) -> tuple[str, str, list[str]]:
    """Carry out one fault and settle; its kind, what else is to be said of it, and what is violated but results."""
    rng = random.Random(f"{seed}-{number}")
    kind = random.Random(seed).sample(list(KINDS), len(KINDS))[number % len(KINDS)]
    subprocess.run(["cp", "-a", f"{calm}/.", root], check=True)
    forget(root, rng)
    program = rng.choice(["pfl", "pfl", "dvc"])
    trial = Trial(root, rng, start(root, program), mounts)
    at, problems = rng.uniform(0.3, 0.2 * seconds), []
    with suppress(subprocess.TimeoutExpired):
        trial.process.wait(at)
    late = " (had ended)" if trial.process.poll() is not None else ""
    KINDS[kind](trial)
    if finish(trial.process) is None:
        problems.append(f"the disturbed command did not end: {(root.parent / 'said.txt').read_text()[-4000:]}")
    for undo in reversed(trial.undo):
        undo()
    codes = [trial.process.returncode] if kind.startswith("SIG") and not trial.process.returncode else []
    while not codes or (codes[-1] and len(codes) < ATTEMPTS):
        codes.append(finish(start(root, program if len(codes) < 2 else "pfl")))
    if codes[-1] != 0:
        problems.append(f"it does not settle: {codes}")
    return kind, f"{program} at {at:.1f} s{late}, exit {trial.process.returncode}, then {codes}", problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1, help="of kinds and instants")
    parser.add_argument("--first", type=int, default=0, help="number of the first fault")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells have those in the background ignore
    mounts = os.geteuid() == 0 and shutil.which("unshare") is not None
    if mounts and "PFL_FAULTS" not in os.environ:
        words = [sys.executable, __file__, *sys.argv[1:]]
        os.execvpe("unshare", ["unshare", "-m", *words], {**os.environ, "PFL_FAULTS": "1"})
    os.environ["PATH"] = environment(Path())["PATH"]  # with pfl and dvc
    counts, wrong, taken = (Counter[str]() for _ in range(3))
    with tempfile.TemporaryDirectory(prefix="pfl-benchmark-") as folder:
        calm, other = Path(folder) / "calm", Path(folder) / "other"
        seconds = make(calm)
        shutil.copytree(calm, other)
        (other / "methods/mine.py").write_text(EDITED)
        if finish(start(other, "pfl")):
            sys.exit((other.parent / "said.txt").read_text()[-4000:])
        expected, true = results(calm), recorded(calm) | recorded(other)
        print(f"undisturbed: {seconds:.0f} s for two commands, {len(expected)} files", flush=True)
        for number in range(chosen.first, chosen.first + chosen.faults):
            began, root = time.monotonic(), Path(folder) / "tried"
            root.mkdir()
            if mounts:
                subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", root], check=True)
            kind, how, problems = tried(number, chosen.seed, root, calm, seconds, mounts)
            problems += violations(root, calm, expected, true)
            left = list(at_work(root))
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left)
            if mounts:
                subprocess.run(["umount", "-l", root], check=True)
            shutil.rmtree(root)
            spent = round(time.monotonic() - began)
            for count, value in ((counts, 1), (wrong, bool(problems)), (taken, spent)):
                count[kind] += value
            print(f"{number}: {kind}, {how}: {spent} s{'; '.join(['', *problems])}", flush=True)
    print("\n| fault | times | violations | s each |\n|---|---:|---:|---:|")
    for count in (counts, wrong, taken):
        count["all"] = count.total()
    for kind in (kind for kind in (*KINDS, "all") if counts[kind]):
        print(f"| {kind} | {counts[kind]} | {wrong[kind]} | {taken[kind] / counts[kind]:.0f} |")
    return 1 if wrong["all"] else 0


if __name__ == "__main__":
    sys.exit(main())
