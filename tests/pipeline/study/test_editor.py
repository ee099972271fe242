"""What an editor shows in a new study: the answers of a language server for YAML, where one is installed.

`npm install -g yaml-language-server` does; its answers come from nothing but the schema that `pfl init` wrote.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from pipeline.study.create import _FIRST, create

SERVER = shutil.which("yaml-language-server")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SERVER, reason="no yaml-language-server here")]


class Editor:
    """One open spec, and a language server behind it."""

    def __init__(self, root: Path) -> None:
        self.uri, self.count, self.version = (root / "specs/mine.yaml").as_uri(), 0, 0
        self.server = subprocess.Popen(
            [str(SERVER), "--stdio"], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.told: Queue[dict[str, Any]] = Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.ask("initialize", {"processId": None, "rootUri": root.as_uri(), "capabilities": {}})
        self.send("initialized", {})

    def send(self, method: str, parameters: Any, **more: Any) -> None:
        assert self.server.stdin
        text = json.dumps({"jsonrpc": "2.0", "method": method, "params": parameters, **more}).encode()
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        self.server.stdin.flush()

    def _listen(self) -> None:
        assert self.server.stdout
        with suppress(ValueError):  # closed
            while header := self.server.stdout.readline():
                self.server.stdout.readline()
                self.told.put(json.loads(self.server.stdout.read(int(header.split()[1]))))

    def ask(self, method: str, parameters: Any) -> Any:
        self.count += 1
        self.send(method, parameters, id=self.count)
        while (message := self.told.get(timeout=60)).get("id") != self.count or "method" in message:
            pass
        return message["result"]

    def type(self, text: str) -> list[str]:
        """Make this the text; what is wrong with it then."""
        self.version += 1
        document = {"uri": self.uri, "version": self.version}
        if self.version == 1:
            self.send("textDocument/didOpen", {"textDocument": {**document, "languageId": "yaml", "text": text}})
        else:
            self.send("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})
        while (message := self.told.get(timeout=60)).get("method") != "textDocument/publishDiagnostics":
            pass
        return [found["message"] for found in message["params"]["diagnostics"]]

    def at(self, method: str, text: str, behind: str) -> Any:
        """What the server answers for the place behind some words of the text."""
        before = text[: text.index(behind) + len(behind)].split("\n")
        place = {"line": len(before) - 1, "character": len(before[-1])}
        return self.ask(f"textDocument/{method}", {"textDocument": {"uri": self.uri}, "position": place})


@pytest.fixture
def editor(tmp_path: Path) -> Iterator[Editor]:
    create(tmp_path / "study")
    made = Editor(tmp_path / "study")
    yield made
    made.server.kill()
    made.server.communicate()


def test_names_are_completed_and_explained_and_typos_found(editor: Editor) -> None:
    text = "# yaml-language-server: $schema=../.pfl/schema.json\n" + _FIRST
    assert editor.type(text) == []
    unfinished = text.replace("FedPer: fedper", "FedPer: ")
    editor.type(unfinished)
    offered = {item["label"]: item for item in editor.at("completion", unfinished, "FedPer: ")["items"]}
    assert {"fedper", "fedavg", "ditto", "apfl"} <= set(offered)
    assert "last linear layer stays on the client" in offered["fedper"]["documentation"]
    editor.type(text)
    hover = editor.at("hover", text, "sample_ra")["contents"]["value"]
    assert "Share of the clients sampled in each round" in hover
    (wrong,) = editor.type(text.replace("FedPer: fedper", "FedPer: fedpre"))
    assert wrong.startswith("Value is not accepted. Valid values: ") and '"fedper"' in wrong
    assert editor.type(text.replace("sample_rate", "sample_rat")) == ["Property sample_rat is not allowed."]
