"""A server of files on this machine that breaks off, is busy, or knows no ranges, as tests ask for."""

from __future__ import annotations

import hashlib
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pflcore.datasets._download import Source

CONTENT = bytes(range(256)) * 20_000  # five megabytes


@dataclass
class Host:
    """What is served, whatever its name."""

    port: int = 0
    most: list[int] = field(default_factory=list)  # bytes of the next answers; all in those after them
    refuse: int = 0  # requests that end with the status 503
    ranges: bool = True
    delay: float = 0.0  # seconds before an answer
    asked: list[str | None] = field(default_factory=list)
    sent: int = 0

    def source(self, digest: str | None = None) -> Source:
        digest = digest or hashlib.sha256(CONTENT).hexdigest()
        return Source(f"http://127.0.0.1:{self.port}/real.zip", "sha256", digest)


@contextmanager
def serving() -> Iterator[Host]:
    """A host for the time of the block."""
    state = Host()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            state.asked.append(wanted)
            time.sleep(state.delay)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.ranges else 0
            if state.refuse or start >= len(CONTENT):
                self.send_error(503 if state.refuse else 416)
                state.refuse = max(state.refuse - 1, 0)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(CONTENT) - start))
            self.end_headers()
            body = CONTENT[start:][: state.most.pop(0) if state.most else None]
            self.wfile.write(body)
            state.sent += len(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield state
        server.shutdown()
        thread.join()
