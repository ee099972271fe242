"""The process that stages of one ``dvc repro`` are forked from: nobody can tell a fork from a process of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from support.project import make_project, spec

from pipeline.compile.compiler import source_folder

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
matrix = pytest.mark.matrix
PATIENCE = 60.0  # seconds that nothing here needs

# Stands for DVC: executes what it is told, one after the other.
DVC = """\
import json, os, shlex, subprocess, sys
for line in sys.stdin:
    words, variables = json.loads(line)
    environment = {**os.environ, "DVC_STAGE": words[-1][:9], **variables}
    process = subprocess.Popen(["bash", "-c", shlex.join(words)], env=environment, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    print(process.pid, flush=True)
    said = process.communicate("typed")
    print(json.dumps([process.returncode, *said]), flush=True)
"""
# Stands for pfl: the same entry, with a command that executes what it is given, and what is imported in warm.py here.
PFL = """\
import pathlib, sys
from types import ModuleType
from pipeline.cli import main
sys.modules["pipeline.running"].__path__ = [str(pathlib.Path(__file__).parent)]
sys.modules["pipeline.cli.commands"] = ModuleType("commands")
sys.modules["pipeline.cli.commands"].app = lambda: exec(sys.argv[3])
main()
"""
WARM = "VALUE = 1\n"


class End(NamedTuple):
    code: int
    out: str
    err: str


@dataclass
class Dvc:
    """A stand-in for a ``dvc repro`` under way in a folder."""

    process: subprocess.Popen[str]
    folder: Path

    def start(self, code: str, kind: str = "train", **variables: str) -> int:
        """Begin with a stage that executes `code`; the process of its command."""
        assert self.process.stdin
        words = [sys.executable, str(self.folder / "pfl"), "stage", kind, code]
        print(json.dumps([words, variables]), file=self.process.stdin, flush=True)
        return int(self._line())

    def end(self) -> End:
        return End(*json.loads(self._line()))

    def _line(self) -> str:
        """What it says next, a line at a time, so that none waits in a buffer."""
        assert self.process.stdout and select.select([self.process.stdout], [], [], PATIENCE)[0]
        return self.process.stdout.readline()

    def run(self, code: str, kind: str = "train", **variables: str) -> End:
        self.start(code, kind, **variables)
        return self.end()

    def is_shared(self, kind: str = "train", **variables: str) -> bool:
        """Whether a stage would be a fork, and not a process that DVC has started."""
        return self.run("import os; print(os.getppid())", kind, **variables).out != f"{self.process.pid}\n"

    def warm(self) -> int:
        """Wait until stages are forks; the process that they are forked from."""
        wait_for(self.is_shared)
        return int(self.run("import os; print(os.getppid())").out)

    def sockets(self) -> list[Path]:
        return list((self.folder / ".pfl").glob("warm/*"))


def wait_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def lives(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"dvc": DVC, "pfl": PFL, "warm.py": WARM}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def begin(folder: Path) -> Dvc:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PFL_", "DVC_", "PYTHON"))}
    process = subprocess.Popen(
        [sys.executable, "dvc", "repro"],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(source_folder())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Dvc(process, folder)


def finish(dvc: Dvc) -> None:
    with suppress(ProcessLookupError):
        os.killpg(dvc.process.pid, signal.SIGKILL)
    dvc.process.communicate(timeout=PATIENCE)


@pytest.fixture
def dvc(folder: Path) -> Iterator[Dvc]:
    made = begin(folder)
    yield made
    finish(made)


CODES = {
    "output": "import sys; print('one'); print('two', file=sys.stderr)",
    "input": "print(input())",
    "exit code": "raise SystemExit(3)",
    "end of its own": "import os; os._exit(4)",
    "said at the end": "raise SystemExit('no')",
    "mistake of a user": "from pflcore.errors import UserError; raise UserError('wrong')",
    "full disk": "raise OSError(28, 'No space left on device', 'file')",
    "interruption": "raise SystemExit(130)",
    "fault": "1 / 0",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "place": "import os, sys; print(sys.argv[:3], os.getcwd(), os.umask(0), os.getpgrp(), os.getsid(0))",
    "variables": "import os; print(sorted({**os.environ, 'PFL_WARM': ''}.items()))",
    "streams": "import sys; print(*((s.encoding, s.errors, s.line_buffering) for s in (sys.stdout, sys.stderr)))",
    "signals": "import signal; print([signal.getsignal(n) for n in range(1, 32) if n != signal.SIGINT])",
    "files": "import os; print(sorted(os.listdir('/proc/self/fd'))[:3])",
    "last acts": "import atexit; atexit.register(print, 'last')\nprint('first')\nraise SystemExit(0)",
}


def test_a_fork_does_what_a_process_of_its_own_does(dvc: Dvc) -> None:
    alone = {name: dvc.run(code, PFL_WARM="0") for name, code in CODES.items()}
    assert dvc.sockets() == []
    dvc.warm()
    assert {name: dvc.run(code) for name, code in CODES.items()} == alone
    assert (alone["mistake of a user"], alone["kill"].code) == (End(2, "", "pfl: wrong\n"), -signal.SIGKILL)
    assert dvc.is_shared()


def test_who_shares_it(dvc: Dvc) -> None:
    shared = dvc.warm()
    assert not dvc.is_shared(PFL_WARM="0")
    assert not dvc.is_shared("guard")
    assert not dvc.is_shared(DVC_STAGE="", OMP_NUM_THREADS="7")  # read when libraries are imported
    assert len(dvc.sockets()) == 2
    assert dvc.warm() == shared
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(source_folder())}
    words = [sys.executable, "pfl", "stage", "train", "import os; print(os.getppid())"]
    for variables in ({}, {"DVC_STAGE": "typed"}):  # by hand, or by what is not DVC
        done = subprocess.run(words, cwd=dvc.folder, env=environment | variables, capture_output=True, check=False)
        assert int(done.stdout) == os.getpid()


def test_each_dvc_has_its_own_and_it_ends_with_it(dvc: Dvc) -> None:
    other = begin(dvc.folder)
    try:
        shared = [dvc.warm(), other.warm()]
        assert len(set(shared)) == 2 and len(dvc.sockets()) == 2
        assert oct((dvc.folder / ".pfl/warm").stat().st_mode)[-3:] == "700"
        other.process.kill()
        wait_for(lambda: not lives(shared[1]))
        assert dvc.warm() == shared[0] and len(dvc.sockets()) == 1
    finally:
        finish(other)
    finish(dvc)
    wait_for(lambda: not lives(shared[0]))
    assert dvc.sockets() == []


@matrix
def test_it_does_not_outlive_a_dvc_that_ends_while_it_imports(folder: Path) -> None:
    (folder / "warm.py").write_text("import time; open('importing', 'w').close(); time.sleep(600)")
    dvc = begin(folder)
    assert not dvc.is_shared()
    wait_for((folder / "importing").exists)
    assert not dvc.is_shared() and len(dvc.sockets()) == 1  # nobody waits for it
    finish(dvc)
    wait_for(lambda: not dvc.sockets())


@pytest.mark.parametrize("edited", ["VALUE = 2\n", pytest.param(None, marks=matrix)])
def test_edited_code_is_never_forked(dvc: Dvc, edited: str | None) -> None:
    shared, path = dvc.warm(), dvc.folder / "warm.py"
    value = "import os, pipeline.running.warm as warm; print(warm.VALUE, os.getppid())"
    assert dvc.run(value).out == f"1 {shared}\n"
    path.unlink()
    if edited is None:
        assert "No module named" in dvc.run(value).err
    else:
        path.write_text(edited)
        assert dvc.run(value).out == f"2 {dvc.process.pid}\n"
        after = dvc.warm()
        assert after != shared and dvc.run(value).out == f"2 {after}\n"
    wait_for(lambda: not lives(shared))


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=matrix)])
def test_a_command_that_is_killed_takes_its_fork_along(dvc: Dvc, number: signal.Signals) -> None:
    shared = dvc.warm()
    command = dvc.start("import os, time; open('fork', 'w').write(str(os.getpid())); time.sleep(600)")
    wait_for(lambda: (dvc.folder / "fork").exists() and (dvc.folder / "fork").read_text())
    fork = int((dvc.folder / "fork").read_text())
    assert fork != command and lives(fork)
    os.kill(command, number)
    assert dvc.end().code == -number
    wait_for(lambda: not lives(fork))
    assert dvc.warm() == shared


def test_a_fork_does_not_outlive_a_command_that_was_killed_before_it_knew_of_it(dvc: Dvc) -> None:
    shared = dvc.warm()
    os.kill(shared, signal.SIGSTOP)
    command = dvc.start("import os, time; open('fork', 'w').write(str(os.getpid())); time.sleep(600)")
    wait_for(lambda: is_asking(command))
    os.kill(command, signal.SIGSTOP)
    os.kill(shared, signal.SIGCONT)
    wait_for(lambda: (dvc.folder / "fork").exists() and (dvc.folder / "fork").read_text())
    os.kill(command, signal.SIGKILL)
    wait_for(lambda: not lives(int((dvc.folder / "fork").read_text())))
    assert dvc.end().code == -signal.SIGKILL
    assert dvc.warm() == shared


ORDERLY = """
import time
try:
    open('begun', 'w').close()
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(0.5)  # a second one would end this
    print('orderly')
    raise SystemExit(130)
"""
INTERRUPTED = "pfl: interrupted; the same command goes on from the last checkpoint\n"


@pytest.mark.parametrize("everyone", [pytest.param(True, marks=matrix), False])
def test_an_interruption_is_one(dvc: Dvc, everyone: bool) -> None:
    """Whether it comes from the terminal to all, or to the command alone."""
    dvc.warm()
    dvc.run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")  # of which nothing remains
    command = dvc.start(ORDERLY)
    wait_for((dvc.folder / "begun").exists)
    os.kill(-os.getpgid(command) if everyone else command, signal.SIGINT)
    if everyone:  # the stand-in is no DVC, which ignores it
        wait_for(lambda: dvc.process.poll() is not None)
    else:
        assert dvc.end() == End(130, "orderly\n", INTERRUPTED)


@matrix
def test_an_interruption_may_come_before_the_command_knows_that_it_has_begun(dvc: Dvc) -> None:
    shared = dvc.warm()
    os.kill(shared, signal.SIGSTOP)
    command = dvc.start(ORDERLY)
    wait_for(lambda: is_asking(command))
    os.kill(command, signal.SIGSTOP)
    os.kill(shared, signal.SIGCONT)
    wait_for((dvc.folder / "begun").exists)
    os.kill(command, signal.SIGINT)
    os.kill(command, signal.SIGCONT)
    assert dvc.end() == End(130, "orderly\n", INTERRUPTED)


def is_asking(process: int) -> bool:
    """Whether a command has a connection and waits."""
    with suppress(OSError):
        sockets = [path for path in Path(f"/proc/{process}/fd").iterdir() if "socket" in path.readlink().name]
        states = set()
        for _ in range(5):
            states.add(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0])
            time.sleep(0.02)
        return bool(sockets) and states == {"S"}
    return False


@matrix
def test_a_shared_process_that_vanished_is_not_missed(dvc: Dvc) -> None:
    shared = dvc.warm()
    os.kill(shared, signal.SIGKILL)
    wait_for(lambda: not lives(shared))
    assert dvc.run("print('by itself')") == End(0, "by itself\n", "")


@matrix
def test_one_that_does_not_answer_is_not_waited_for(dvc: Dvc) -> None:
    shared = dvc.warm()
    os.kill(shared, signal.SIGSTOP)
    dvc.start("open('begun', 'w').close()")
    wait_for((dvc.folder / "begun").exists)
    os.kill(shared, signal.SIGCONT)
    assert dvc.end().code == 0
    assert dvc.warm() == shared


def test_what_others_could_reach_or_made_is_not_used(dvc: Dvc) -> None:
    place = dvc.folder / ".pfl/warm"
    place.mkdir(parents=True)
    place.chmod(0o750)
    assert not dvc.is_shared() and not dvc.sockets()
    place.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(place, 65534, -1)
        assert not dvc.is_shared() and not dvc.sockets()
        os.chown(place, 0, -1)
    (place / "1-1-of-nobody").touch()
    (place / "2147483647-1-stale").touch()
    dvc.warm()
    assert len(dvc.sockets()) == 1


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    specs = {"specs/first.yaml": spec("[fedavg]"), "specs/second.yaml": spec("[fedper]", rounds=9999)}
    project = make_project(tmp_path, specs, default=["first", "second"])
    project.compile()
    environment = project.environment(PFL_CHECKPOINT_SECONDS="0", PFL_DEVICE="cpu", TERM="xterm")
    process, descriptor = pty.fork()
    if not process:
        os.chdir(tmp_path)
        os.execvpe("dvc", ["dvc", "repro", "stages/dvc.yaml:first", "stages/dvc.yaml:second"], environment)
    termios.tcsetwinsize(descriptor, (24, 87))
    yield Terminal(process, descriptor)
    os.close(descriptor)  # which ends all that still runs there


@dataclass
class Terminal:
    """A terminal with a ``dvc repro``."""

    process: int
    descriptor: int
    shown: str = ""

    def read(self) -> bool:
        """Whether there may be more to come."""
        assert select.select([self.descriptor], [], [], 2 * PATIENCE)[0]
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:
            return False
        self.shown += data.decode(errors="replace")
        return True

    def commands(self) -> list[Path]:
        """What DVC has started, as folders below /proc."""
        folders = [Path(f"/proc/{name}") for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
        return [folder for folder in folders if parent(folder) == self.process]


def parent(folder: Path) -> int:
    with suppress(OSError):
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


@matrix
def test_a_terminal_sees_the_bar_and_interrupts(terminal: Terminal, tmp_path: Path) -> None:
    """Everything as it is: DVC, a short run, a long one that begins when all has been imported, and Ctrl-C."""
    while not list(tmp_path.glob(".pfl/checkpoints/fedper-*/round-*")):
        assert terminal.read()
    (command,) = terminal.commands()
    assert b"train" in (command / "cmdline").read_bytes() and "torch" not in (command / "maps").read_text()
    while not re.search(r"fedper-[^\n]{,60}━[^\n]{,99}[1-9]\d*/9999\b", terminal.shown[-500:]):
        assert terminal.read()
    os.write(terminal.descriptor, b"\x03")
    while terminal.read():
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(terminal.process, 0)[1]) == 255
    last = terminal.shown.rpartition("Running stage")[2]
    # A shell that stands between is reached by the terminal's interruption too, and ends by it.
    assert "pfl: interrupted; the same command" in last and re.search(r"exited with (130|-2)\b", last), last
    assert list(tmp_path.glob(".pfl/checkpoints/fedper-*/round-*"))
    wait_for(lambda: not list(tmp_path.glob(".pfl/warm/*")))
