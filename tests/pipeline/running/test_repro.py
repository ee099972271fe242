"""The process that stages of one ``dvc repro`` are forked from: nobody can tell a fork from a process of its own."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from support.project import PATIENCE, wait_for

from pipeline.compile.compiler import source_folder
from pipeline.running import repro

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
INTERRUPTED = "pfl: interrupted; the same command continues from the last checkpoint\n"

# Stands for DVC: executes what it is sent, one after the other.
DVC = """\
import json, os, shlex, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
for line in sys.stdin:
    words, variables = json.loads(line)
    environment = {**os.environ, "DVC_STAGE": words[-1][:9], **variables}
    process = subprocess.Popen(["bash", "-c", shlex.join(words)], env=environment, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
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
sys.modules["pipeline.cli.commands"].app = lambda **_: exec(sys.argv[3])
main()
"""
PARENT = "import os; print(os.getppid())"


class End(NamedTuple):
    code: int
    out: str
    err: str


class Dvc:
    """A stand-in for a ``dvc repro`` under way in a folder."""

    def __init__(self, folder):
        for name, text in {"dvc": DVC, "pfl": PFL, "warm.py": "VALUE = 1\n"}.items():
            (folder / name).write_text(text)
        own = ("PFL_", "DVC_", "PYTHON")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        environment["PYTHONPATH"] = str(source_folder())
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
        self.folder = folder
        self.process = subprocess.Popen([sys.executable, "dvc", "repro"], cwd=folder, env=environment, **streams)

    def start(self, code, kind="train", **variables):
        """Begin with a stage that executes `code`; return the process of its command."""
        words = [sys.executable, str(self.folder / "pfl"), "stage", kind, code]
        print(json.dumps([words, variables]), file=self.process.stdin, flush=True)
        return int(self._line())

    def end(self):
        return End(*json.loads(self._line()))

    def _line(self):
        assert select.select([self.process.stdout], [], [], PATIENCE)[0]
        return self.process.stdout.readline()

    def run(self, code, kind="train", **variables):
        self.start(code, kind, **variables)
        return self.end()

    def is_shared(self, kind="train", **variables):
        """Return whether a stage would be a fork, and not a process that DVC has started."""
        return self.run(PARENT, kind, **variables).out != f"{self.process.pid}\n"

    def warm(self):
        """Wait until stages are forks; return the process that they are forked from."""
        wait_for(self.is_shared)
        return int(self.run(PARENT).out)

    def sockets(self):
        return list((self.folder / ".pfl").glob("warm/*"))

    def finish(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)


def has_ended(process):
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] == "Z"
    return True


def asks(process):
    with suppress(OSError):
        return any(str(one.readlink()).startswith("socket:") for one in Path(f"/proc/{process}/fd").iterdir())


@pytest.fixture
def dvc(tmp_path):
    made = Dvc(tmp_path)
    yield made
    made.finish()


CODES = {
    "output": "import sys; print('one'); print('two', file=sys.stderr)",
    "input": "print(input())",
    "exit code": "raise SystemExit(3)",
    "end of its own": "import os; os._exit(4)",
    "mistake of a user": "from pflcore.errors import UserError; raise UserError('wrong')",
    "interruption": "raise SystemExit(130)",
    "fault": "1 / 0",
    "kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "place": "import os, sys; print(sys.argv[:3], os.getcwd(), os.umask(0), os.getpgrp(), os.getsid(0))",
    "variables": "import os; print(sorted({**os.environ, 'PFL_WARM': ''}.items()))",
    "streams": "import sys; print(*((s.encoding, s.errors, s.line_buffering) for s in (sys.stdout, sys.stderr)))",
    "signals": "import signal; print([signal.getsignal(n) for n in range(1, 32)], signal.pthread_sigmask(0, []))",
    "files": "import os; print(sorted(os.listdir('/proc/self/fd'))[:3])",
    "last acts": "import atexit; atexit.register(print, 'last')\nprint('first')\nraise SystemExit(0)",
}


def test_a_fork_does_what_a_process_of_its_own_does(dvc):
    alone = {name: dvc.run(code, PFL_WARM="0") for name, code in CODES.items()}
    assert dvc.sockets() == []
    dvc.warm()
    assert {name: dvc.run(code) for name, code in CODES.items()} == alone
    assert (alone["mistake of a user"], alone["kill"].code) == (End(2, "", "pfl: wrong\n"), -signal.SIGKILL)


def test_who_shares_it_and_until_when(dvc):
    """Stages of this `dvc` with the same variables and code; each `dvc` has its own, which ends with it."""
    shared, other = dvc.warm(), Dvc(dvc.folder)
    assert not dvc.is_shared(PFL_WARM="0") and not dvc.is_shared("guard")
    assert not dvc.is_shared(DVC_STAGE="", OMP_NUM_THREADS="7")  # read when libraries are imported
    assert len(dvc.sockets()) == 2 and dvc.warm() == shared
    try:
        theirs = other.warm()
        assert theirs != shared and oct((dvc.folder / ".pfl/warm").stat().st_mode)[-3:] == "700"
        other.process.kill()
        wait_for(lambda: has_ended(theirs))
    finally:
        other.finish()
    path, value = dvc.folder / "warm.py", "import os, pipeline.running.warm as warm; print(warm.VALUE, os.getppid())"
    assert dvc.run(value).out == f"1 {shared}\n"
    path.unlink()
    path.write_text("VALUE = 2\n")
    assert dvc.run(value).out == f"2 {dvc.process.pid}\n"
    after = dvc.warm()
    assert after != shared and dvc.run(value).out == f"2 {after}\n" and has_ended(shared)
    dvc.finish()
    wait_for(lambda: has_ended(after) and not dvc.sockets())


def test_what_others_could_reach_or_left_is_not_used(dvc):
    place = dvc.folder / ".pfl/warm"
    place.mkdir(parents=True)
    place.chmod(0o750)
    assert not dvc.is_shared() and not dvc.sockets()
    place.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(place, 65534, -1)
        assert not dvc.is_shared() and not dvc.sockets()
        os.chown(place, 0, -1)
    (place / "2147483647-1-stale").touch()
    dvc.warm()
    assert len(dvc.sockets()) == 1


ORDERLY = """
import os, time
try:
    open('fork', 'w').write(str(os.getpid()))
    while True:
        time.sleep(0.1)  # short, since Python notices no signal that comes just before it sleeps
except KeyboardInterrupt:
    time.sleep(0.5)  # a second one would end this
    print('orderly')
    raise SystemExit(130)
"""


def test_signals_reach_a_command_and_its_fork_alike(dvc):
    shared, mark = dvc.warm(), dvc.folder / "fork"
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        mark.unlink(missing_ok=True)
        command = dvc.start(ORDERLY)
        wait_for(lambda: mark.exists() and mark.read_text())
        fork = int(mark.read_text())
        assert fork != command and not has_ended(fork)
        if number == signal.SIGINT:  # typed at the terminal
            os.kill(-os.getpgid(command), number)
            assert dvc.end() == End(130, "orderly\n", INTERRUPTED)
        else:
            os.kill(command, number)
            assert dvc.end().code == -number
        wait_for(lambda fork=fork: has_ended(fork))
        assert dvc.warm() == shared


@pytest.mark.matrix
def test_one_that_was_killed_or_does_not_answer_is_not_waited_for(dvc):
    shared = dvc.warm()
    os.kill(shared, signal.SIGSTOP)
    dvc.start("open('begun', 'w').close()")
    wait_for((dvc.folder / "begun").exists)
    os.kill(shared, signal.SIGCONT)  # which lets go of the streams
    assert dvc.end().code == 0 and dvc.warm() == shared
    os.kill(shared, signal.SIGSTOP)
    command = dvc.start("import time; time.sleep(600)")
    wait_for(lambda: asks(command))
    os.kill(command, signal.SIGINT)  # before there is a fork to be reached by it
    os.kill(shared, signal.SIGCONT)
    assert dvc.end().code == -signal.SIGINT and dvc.warm() == shared
    os.kill(shared, signal.SIGKILL)
    assert dvc.run("print('by itself')") == End(0, "by itself\n", "")


def test_a_fork_that_is_lost_leaves_interruptions_to_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind("place")
        listening.listen()

        def lose():
            connection, _ = listening.accept()
            connection.send(repro.BEGUN)
            time.sleep(0.2)
            connection.close()  # with a request that nobody has read

        thread = threading.Thread(target=lose)
        thread.start()
        with pytest.raises(ConnectionResetError):
            repro.request_fork(Path("place"))
        thread.join()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
