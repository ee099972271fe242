"""Test that random faults at random times lose no result and record no wrong one.

The script makes a project of twelve runs. For each fault it copies the project, removes some results, and lets ``pfl
run`` or ``dvc repro`` make them again. Meanwhile the fault happens: a signal to one process or to all, a disk that is
full or read-only, wrong file times, a file that is flipped, truncated or removed, a second runner, or a source that is
edited and restored. The command is then repeated until it succeeds; after two failures ``pfl run`` is used. Checks:

- all artifacts, reports and lock files equal those of the undisturbed project, byte by byte;
- ``dvc status`` is clean;
- no entry of DVC's run cache contradicts the undisturbed project or the one with the edit;
- no process, no temporary file and no checkpoint is left.

    python benchmarks/faults.py --faults 300 --seed 1    # a table; exit code 1 if a check fails
    python benchmarks/faults.py --first 17 --faults 1    # fault 17 again; what it hits still varies

As root, in a separate mount namespace, disks are really full or read-only. Otherwise the size of files is limited, and
folders lose their write permission.
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

# The parent folder must come first: pipeline.py in this folder would hide the package of that name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import damage
from support.own_parts import METHOD as OWN
from support.project import Project, make_project, spec

SOURCE = Path(__file__).resolve().parents[1]
PATIENCE = 300.0  # timeout of a command, in seconds
MOMENT = 20.0  # seconds in which processes have to end after their scheduler
ATTEMPTS = 6  # most commands until one succeeds
PROGRAMS = {"pfl": ("pfl", "run", "-j", "2"), "dvc": ("dvc", "repro")}
AXES = """    training.lr: [0.05, 0.1]
    seed: [0, 1]
table: {rows: [method], columns: [training.lr], average_over: [seed]}
"""
SPEC = spec("[fedavg, fedper, mine]", partition="dirichlet", rounds=8, training=", save_weights: true", more=AXES)
METHOD = OWN.replace("from ._scaling import factor\n", "").replace("factor()", "0.5")
EDITED = METHOD.replace("0.5", "1.5")
OWN_PAGES = ("reports/papers/", "reports/index.html")  # written by `pfl run` and by no stage
KEPT = tuple(f".pfl/{name}/" for name in ("logs", "timings", "replaced", "states"))
KEPT += (".dvc/cache/", ".dvc/tmp/", "reports/", "stages/", "dvc.lock")
Entries = dict[str, str]
_load = partial(yaml.load, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
_MD5 = re.compile("[0-9a-f]{32}")


@dataclass
class Trial:
    """One fault: the project, the disturbed command, and what to undo before the command is repeated."""

    root: Path
    rng: random.Random
    process: subprocess.Popen[bytes]
    mounts: bool
    undo: list[Callable[[], object]] = field(default_factory=list)

    def processes(self, whom: str) -> list[psutil.Process]:
        """Return the scheduler, the process that workers are forked from, a worker, or all of these."""
        there = {one: words for one, words in at_work(self.root).items() if "resource_tracker" not in words}
        scheduler = [one for one in there if one.pid == self.process.pid]
        with suppress(psutil.Error):
            children = scheduler[0].children() if scheduler else []
            parents = [one for one in children if "forkserver" in there.get(one, "")]  # workers have that name too
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
        """Limit the size of files that the project's processes write from now on."""
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
        """Shift the times of files by four years, as if the clock had been wrong."""
        shift = self.rng.choice([-1, 1]) * 4 * 365 * 86400
        files = self.files("artifacts", "reports", "specs", "methods", ".pfl", "stages")
        for path in files[:: self.rng.choice([1, 3])]:
            with suppress(OSError):
                os.utime(path, (time.time() + shift,) * 2)

    def damage(self, how: Callable[[Path], object]) -> None:
        """Apply `how` to a random file among artifacts, reports or checkpoints."""
        folders = self.rng.choice([["artifacts"], ["artifacts", "reports"], [".pfl/checkpoints"]])
        with suppress(FileNotFoundError):
            if files := [path for path in self.files(*folders) if path.stat().st_size]:
                how(self.rng.choice(files))

    def second(self, program: str) -> None:
        """Start a second command, `pfl run` or `dvc repro`, in the same project."""
        other = start(self.root, program)
        self.undo.append(lambda: finish(other))

    def edit(self) -> None:
        (self.root / "methods/mine.py").write_text(EDITED)
        with suppress(subprocess.TimeoutExpired):  # restored at once, later, or at the command's end
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
    """Return the exit code of a process. After a timeout, dump its stack, kill its group, and return None."""
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
    """Make a project and bring it up to date; return the seconds that took."""
    make_project(root, {"specs/faults.yaml": SPEC, "methods/mine.py": METHOD}, ["faults"])
    began = time.monotonic()
    if finish(start(root, "pfl")) or finish(start(root, "dvc")):
        sys.exit((root.parent / "said.txt").read_text()[-4000:])
    return time.monotonic() - began


def forget(root: Path, rng: random.Random) -> None:
    """Remove the results and records of some runs, all last states and the run cache; sometimes the reports too."""
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
    """Return all processes whose folder is the project, except zombies, each with its command."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.cwd() == str(root) and process.status() != psutil.STATUS_ZOMBIE:
                found[process] = " ".join(process.cmdline())
    return found


def results(root: Path) -> Entries:
    """Return path → hash of each output of stages, and path → sorted entries of each lock file."""
    found = {}
    for path in (path for folder in ("artifacts", "reports") for path in (root / folder).rglob("*") if path.is_file()):
        if not (name := path.relative_to(root).as_posix()).startswith(OWN_PAGES):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in (*root.glob("dvc.lock"), *root.glob("stages/**/dvc.lock")):
        found[path.relative_to(root).as_posix()] = repr(sorted(_load(path.read_bytes())["stages"].items()))
    return found


def recorded(root: Path) -> Entries:
    """Return command and inputs → outputs, for all entries in DVC's run cache."""

    def hashes(files: list[dict[str, str]]) -> str:
        return repr([(one["path"], one["md5"]) for one in files])

    entries = [_load(path.read_bytes()) for path in root.glob(".dvc/cache/runs/*/*/*") if path.is_file()]
    return {f"{one['cmd']} {hashes(one['deps'])}": hashes(one["outs"]) for one in entries}


def violations(root: Path, calm: Path, expected: Entries, true: Entries) -> list[str]:
    """Return a line for each check that fails after the fault."""
    found, told = results(root), []
    told += [f"{name} differs" for name in sorted(found.keys() | expected) if found.get(name) != expected.get(name)]
    status = subprocess.run(["dvc", "status"], cwd=root, env=environment(root), capture_output=True, text=True)
    if "up to date" not in status.stdout:
        told.append(f"dvc status: {' '.join(status.stdout.split())[:300]}{status.stderr[-300:].strip()}")
    known = set(_MD5.findall(repr(true)))  # an entry with another hash rightly describes a damaged file
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
    """Carry out one fault and repeat the command until it succeeds. Return its kind, a description, and problems."""
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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background commands with SIGINT ignored
    mounts = os.geteuid() == 0 and shutil.which("unshare") is not None
    if mounts and "PFL_FAULTS" not in os.environ:
        words = [sys.executable, __file__, *sys.argv[1:]]
        os.execvpe("unshare", ["unshare", "-m", *words], {**os.environ, "PFL_FAULTS": "1"})
    os.environ["PATH"] = environment(Path())["PATH"]  # contains pfl and dvc
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
