"""``benchmarks/faults.py`` finds nothing, in a dozen faults, and would find it if there were something."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.damage import flip
from support.project import Project

PROGRAM = Path(__file__).parents[2] / "benchmarks/faults.py"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The program as a module."""
    specification = importlib.util.spec_from_file_location("faults", PROGRAM)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "faults", module)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "MOMENT", 0.5)
    yield module


def test_what_is_violated_is_told(
    faults: ModuleType, reproduced: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, root = tmp_path / "calm", reproduced.root
    monkeypatch.setenv("PATH", reproduced.environment()["PATH"])
    shutil.copytree(root, calm, symlinks=True)
    expected, true = faults.results(calm), faults.recorded(calm)
    assert len(true) == 10 and "reports/tiny/report.md" in expected

    def told() -> list[str]:
        return faults.violations(root, calm, expected, true)

    assert told() == []
    (weights,) = root.glob("artifacts/runs/fedavg-*/rounds.parquet")
    flip(weights)
    (root / "artifacts/runs/.x.1.part").write_text("half")
    (root / "stages/dvc.lock").unlink()
    other = subprocess.Popen(["sleep", "100"], cwd=root)
    entry = next(path for path in sorted(root.glob(".dvc/cache/runs/*/*/*")))
    text = entry.read_text(encoding="utf-8")
    entry.chmod(0o644)
    entry.write_text(text[: text.index("outs:")] + text[text.index("outs:") :].replace("md5: ", "md5: 0"))
    found = "\n".join(told())
    other.kill()
    other.wait()
    for words in (
        f"{weights.relative_to(root)} differs",
        "artifacts/runs/.x.1.part differs",
        "artifacts/runs/.x.1.part is left",
        "dvc status: ",
        "recorded, and not so: ",
        f"process {other.pid} is left: sleep 100",
    ):
        assert words in found, found


def test_what_does_not_end_is_told(faults: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "PATIENCE", 0.2)
    process = subprocess.Popen(["sleep", "100"], cwd=tmp_path, start_new_session=True)
    began = time.monotonic()
    assert faults.finish(process) is None and time.monotonic() - began < 50
    assert process.returncode is not None and faults.at_work(tmp_path) == {}


@pytest.mark.slow
def test_a_dozen_faults() -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, "--faults", "12", "--seed", "3"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
