"""The page on methods: its method works as printed, gives the printed numbers, and the functions it lists exist."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from pflcore.client_view import FACTS, ClientView
from pflcore.method import Method, Phase, Steps

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/methods.md").read_text(encoding="utf-8")


@pytest.mark.matrix
def test_its_method_gives_the_numbers_that_it_prints(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "pflcore", tmp_path / "pflcore", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(text)
    command, paths = [sys.executable, "compare.py"], {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    found, expected = ([line.split() for line in text.splitlines()] for text in (done.stdout, printed))
    assert [line[0] for line in found] == [line[0] for line in expected] == ["fedavg", "fedper", "nearest_mean"]
    # Sums round otherwise on another machine, which five rounds carry on.
    assert all(abs(float(a[1]) - float(b[1])) < 2 for a, b in zip(found, expected, strict=True))


def test_it_names_every_function_that_a_method_may_override() -> None:
    every = {**vars(Steps), **vars(Method)}
    functions = {name for name, value in every.items() if inspect.isfunction(value) and name[0] != "_"}
    assert set(re.findall(r"`(\w+)`", PAGE.partition("## ")[0])) >= functions
    known = {field.name for field in fields(ClientView)} | set(vars(ClientView))
    assert set(re.findall(r"`local\.(\w+)", PAGE)) <= known
    assert all(f"`{fact}`" in PAGE for fact in FACTS) and all(f"`{field.name}=" in PAGE for field in fields(Phase))
