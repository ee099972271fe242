"""``pfl report --serve``: the pages at an address of this machine alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pflcore.errors import UserError

_HOST = "127.0.0.1"


@contextmanager
def serving(folder: Path, port: int) -> Iterator[str]:
    """Serve the files of a folder, for the time of the block; the address to open.

    Only this machine can ask, and only for files, under the names of this machine: a page of somebody else that lets
    its name stand for this address gets nothing.

    Args:
        port: 0 is any that is free.

    Raises:
        UserError: The port cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        server = ThreadingHTTPServer((_HOST, port), partial(_Files, directory=str(folder)))
    except OSError as error:
        raise UserError(
            f"port {port} cannot be used ({error.strerror or error}); choose another with --serve"
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{_HOST}:{server.server_port}/index.html"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Files(SimpleHTTPRequestHandler):
    def send_head(self) -> Any:
        """Files alone, and none for another host's name."""
        name = (self.headers.get("Host") or "").rpartition(":")[0] or (self.headers.get("Host") or "")
        if name not in (_HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN, "this server is for this machine alone")
            return None
        return super().send_head()

    def list_directory(self, path: Any) -> None:
        """Never a listing."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # pages change under the same name
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what is asked for is nobody's news."""
