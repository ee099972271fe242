"""A server process that has imported everything, from which the stages of one ``dvc repro`` are forked.

DVC runs a command per stage, and each would spend seconds importing PyTorch. So the first command forks the server,
which imports :mod:`pipeline.running.warm` while the stage works. Later commands pass their arguments, environment,
standard streams and process group to a fork of the server, wait for it, and end with its exit code.

The server belongs to one ``dvc`` and ends with it. The name of its socket contains that process and a hash of what a
command must have in common with the server. If an imported module has changed on disk, the server forks nothing and
ends. If anything fails, a stage runs in the process of its own command. All of this needs Linux.
"""

from __future__ import annotations

import atexit
import hashlib
import marshal
import os
import select
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pflcore import sources

FOLDER = Path(".pfl/warm")  # short, since the path of a socket is limited to about a hundred bytes
TIMEOUT = 10.0  # seconds to wait for an answer
BEGUN, GO = b"begun", b"go"
_PER_COMMAND = {"DVC_STAGE", "PWD", "OLDPWD", "SHLVL", "_"}  # may differ between the commands of one `dvc`


def execute(command: Callable[[], None]) -> None:
    """Execute a stage's command, given in `sys.argv`, here or in a fork; if a fork executes it, exit with its code."""
    try:
        forked = _try_fork()
    except KeyboardInterrupt:
        _exit_with(-signal.SIGINT)
    try:
        command()
    except SystemExit as end:
        if forked and isinstance(end.code, int):  # skip the interpreter's cleanup, which takes longer than many stages
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)
        raise


def _try_fork() -> bool:
    """Return True in a fork of the server, False in a process that has to execute the command itself."""
    disabled = "DVC_STAGE" not in os.environ or os.environ.get("PFL_WARM") == "0" or not hasattr(os, "pidfd_open")
    if disabled or sys.argv[2:3] == ["guard"]:  # the guard compiles and does not need these imports
        return False
    with suppress(OSError):
        if (path := _socket_path()) and not request_fork(path):
            return _start(path)
    return False


def _socket_path() -> Path | None:
    """Return the path of the socket: the `dvc` above this process, and a hash of what must equal the server's.

    Return None if no `dvc` runs this process, or if other users could reach the socket.
    """
    pid = os.getppid()
    for _ in range(2):  # there may be a shell in between
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if any(word.rpartition(b"/")[2] == b"dvc" for word in words[:4]):
            break
        pid = int(_process_stat(pid)[1])
    else:
        return None
    FOLDER.mkdir(0o700, parents=True, exist_ok=True)
    status = FOLDER.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
        return None
    variables = sorted((name, value) for name, value in os.environ.items() if name not in _PER_COMMAND)
    packages = [Path(folder).stat().st_mtime_ns for folder in sys.path if folder.endswith("-packages")]
    environment = repr((variables, sys.executable, sys.path, packages))
    return FOLDER / f"{pid}-{_process_stat(pid)[19]}-{hashlib.sha256(environment.encode()).hexdigest()[:16]}"


def _process_stat(pid: int) -> list[str]:
    """Return Linux's facts about a process after its name: at index 1 its parent, at 19 its start time."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()


def request_fork(path: Path) -> bool:
    """Let a fork of the server execute this command, and exit with its code. Return whether there is a server."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(TIMEOUT)
        try:
            connection.connect(str(path))
        except FileNotFoundError:
            return False
        request = marshal.dumps((sys.argv, dict(os.environ), os.getpgrp()))
        socket.send_fds(connection, [request], [0, 1, 2])
        if connection.recv(len(BEGUN)) == BEGUN:
            # From now on Ctrl-C reaches the fork too, and only the fork should handle it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                connection.send(GO)
                connection.settimeout(None)
                if code := connection.recv(16):
                    _exit_with(int(code))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return True


def _exit_with(code: int) -> NoReturn:
    """End this process with an exit code; a negative code is a signal, with which it then ends."""
    if code < 0:
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _start(path: Path) -> bool:
    """Fork the server for later commands; return False in this process, True in a command that the server forks."""
    owner = os.pidfd_open(int(path.name.partition("-")[0]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))  # raises an error if another command has just done so
        if not os.fork():
            process = os.getpid()
            try:
                _serve(listening, owner)
                return True
            finally:
                if os.getpid() == process:
                    path.unlink(missing_ok=True)
                    os._exit(0)
    os.close(owner)
    return False


def _serve(listening: socket.socket, owner: int) -> None:
    """Import everything, and fork a process for each command that asks, one at a time, as DVC runs them.

    Return in each fork, and in the server when `owner` has ended or an imported module has been edited.
    """
    os.setpgid(0, 0)  # Ctrl-C at the terminal is for stages, not for the server
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.close(null)
    import pipeline.running.warm  # noqa: F401

    for other in FOLDER.iterdir():  # sockets of servers that were killed
        pid, start, _ = f"{other.name}--".split("-", 2)
        with suppress(OSError, ValueError):
            if _process_stat(int(pid))[19] == start:
                continue
        other.unlink(missing_ok=True)
    listening.listen()
    while owner not in select.select([listening.fileno(), owner], [], [])[0]:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.settimeout(TIMEOUT)
            request, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            if not request:  # the command has ended already
                continue
            if sources.edited():
                return
            if not (child := os.fork()):
                listening.close()  # otherwise commands could connect after the server's end and would wait in it
                os.close(owner)
                _adopt_command(connection, request, streams)
                return
            for stream in streams:
                os.close(stream)
            connection.settimeout(None)
            child_fd, poller = os.pidfd_open(child), select.poll()
            poller.register(child_fd, select.POLLIN)
            poller.register(connection, select.POLLRDHUP)
            if child_fd not in dict(poller.poll()):  # the command was killed
                os.kill(child, signal.SIGKILL)
            os.close(child_fd)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            connection.send(str(code).encode())


def _adopt_command(connection: socket.socket, request: bytes, streams: list[int]) -> None:
    """Take over arguments, environment, group and streams of the command that asked for this fork."""
    try:
        sys.argv, environment, group = marshal.loads(request)
        os.setpgid(0, group)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]
        connection.send(BEGUN)
        if connection.recv(len(GO)) != GO:  # the command was interrupted first
            os._exit(1)
        connection.detach()  # keeps it open: the command would execute the stage itself if this end closed
    except BaseException:
        os._exit(1)
