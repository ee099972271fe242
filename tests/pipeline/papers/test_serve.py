"""The pages at an address of this machine: files, no listings, nothing outside, and for nobody else."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pflcore.errors import UserError
from pipeline.papers.serve import serving


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "reports/papers").mkdir(parents=True)
    (tmp_path / "reports/index.html").write_text("the index", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    with serving(tmp_path / "reports", 0) as at:
        yield at


def ask(address: str, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str]:
    where = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", where.port or 0, timeout=10)
    connection.request(method, path, headers={"Host": host or where.netloc})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_files_are_served_and_nothing_else(address: str) -> None:
    assert urlsplit(address).hostname == "127.0.0.1"
    assert ask(address, "/index.html") == (200, "the index")
    assert ask(address, "/") == (200, "the index")
    assert ask(address, "/papers/")[0] == 404  # a folder without an index is not listed
    for path in ("/../secret.txt", "/%2e%2e/secret.txt", "//../secret.txt", "/papers/../../secret.txt"):
        status, body = ask(address, path)
        assert status == 404 and "secret" not in body.replace("secret.txt", "")
    assert ask(address, "/index.html", method="POST")[0] == 501


@pytest.mark.parametrize(("host", "status"), [("localhost:{port}", 200), ("evil.example:{port}", 403), ("evil", 403)])
def test_other_names_for_this_address_get_nothing(address: str, host: str, status: int) -> None:
    assert ask(address, "/index.html", host.format(port=urlsplit(address).port))[0] == status


def test_a_port_that_is_taken_is_one_line(address: str, tmp_path: Path) -> None:
    port = urlsplit(address).port or 0
    with pytest.raises(UserError, match=f"port {port} cannot be used"), serving(tmp_path, port):
        pass


def test_it_ends_with_the_block(tmp_path: Path) -> None:
    with serving(tmp_path / "later", 0) as at:
        assert (tmp_path / "later").is_dir()
    with pytest.raises(ConnectionError):
        ask(at, "/index.html")
