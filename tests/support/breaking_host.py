"""A server of files on this machine that breaks off, is busy, or knows no ranges, as tests ask for."""

import hashlib
import http.server
import threading
import time
from dataclasses import dataclass, field

import pytest

from pflcore.datasets import _download

CONTENT = bytes(range(256)) * 20_000  # five megabytes
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Host:
    """What is served, whatever its name."""

    port: int = 0
    limits: list[int] = field(default_factory=list)  # bytes of the next answers; all in those after them
    refuse: int = 0  # requests that end with the status 503
    ranges: bool = True
    delay: float = 0.0  # seconds before an answer
    requested: list[str | None] = field(default_factory=list)
    sent: int = 0

    def source(self, digest=DIGEST, name="real.zip", algorithm="sha256"):
        return _download.Source(f"http://127.0.0.1:{self.port}/{name}", algorithm, digest)


@pytest.fixture
def host(monkeypatch):
    """A host without pauses between tries, which no proxy stands before."""
    monkeypatch.setattr(_download, "PAUSE_SECONDS", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    state = Host()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requested = self.headers["Range"]
            state.requested.append(requested)
            time.sleep(state.delay)
            state.refuse -= 1
            if state.refuse >= 0:
                return self.send_error(503)
            start = int(requested.removeprefix("bytes=").removesuffix("-")) if requested and state.ranges else 0
            if start and start >= len(CONTENT):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(CONTENT) - start))
            self.end_headers()
            body = CONTENT[start:][: state.limits.pop(0) if state.limits else None]
            self.wfile.write(body)
            state.sent += len(body)

        def log_message(self, *_): ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield state
        server.shutdown()
        thread.join()
