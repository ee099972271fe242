"""Nothing is recorded under code, or for a record, that did not make it; and what a process imports is known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from support.editing import Laboratory, complaint

from pipeline.compile.compiler import source_folder


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    """A laboratory, made once for all of pytest's processes; not to be changed."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "laboratory"
    with FileLock(folder.with_suffix(".lock")):
        return Laboratory.found(folder) if folder.exists() else Laboratory.make(folder, rounds=6)


@pytest.fixture
def laboratory(original: Laboratory, tmp_path: Path) -> Laboratory:
    return original.copy(tmp_path / "copy")


@pytest.mark.matrix
def test_a_method_edited_while_another_trains_is_not_recorded_as_the_old_one(laboratory: Laboratory) -> None:
    with laboratory.amid("dvc", "fedavg") as process:
        laboratory.edit()
    output = process.communicate()[0]
    assert process.returncode == 255 and set(laboratory.results()) == {"fedavg"}
    assert complaint(output).startswith("the code of method.fedprox was edited after this stage was compiled")
    laboratory.undo()
    assert laboratory.faults() == []
    laboratory.call("git", "checkout", "-q", "second")  # the commands of evaluation and report are the same there
    laboratory.settle("pfl")
    assert laboratory.results() == laboratory.truth["second"] and laboratory.wrongly_recorded() == []


@pytest.mark.matrix
def test_what_is_edited_and_compiled_while_it_trains_is_recorded_as_what_trained(laboratory: Laboratory) -> None:
    with laboratory.amid("pfl", "fedprox") as process:
        laboratory.edit()
        laboratory.compile()
    output = process.communicate()[0]
    assert laboratory.wrongly_recorded() == [], output
    # It is there under the code that trained it, and the other code trains anew.
    assert laboratory.faults("pfl") == [] and laboratory.version == "second"
    laboratory.undo()
    laboratory.compile()
    assert laboratory.faults("pfl") == [] and laboratory.results() == laboratory.truth["first"]


@pytest.mark.matrix
def test_a_record_edited_by_hand_is_not_trained(laboratory: Laboratory) -> None:
    laboratory.tamper()
    process = laboratory.start("dvc")
    assert "edited by hand; run `pfl compile`" in complaint(process.communicate()[0])
    assert process.returncode == 255 and set(laboratory.results()) == {"fedavg"}
    laboratory.compile()
    assert laboratory.faults() == []


SCRIPT = """
import sys
from pathlib import Path
from pflcore import sources
package = Path(sys.argv[1])
sys.path.insert(0, str(package.parent))
sources.note("mine")
import mine.one
print(mine.one.VALUE, sources.loaded()["mine.one"])
# An edit of the same size within the same second, which Python's own bytecode does not notice.
(package / "one.py").write_text("VALUE = 2")
del sys.modules["mine.one"]
import mine.one
print(mine.one.VALUE, sources.loaded()["mine.one"])
"""


def test_what_is_imported_is_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name, text in {"__init__.py": "", "one.py": "VALUE = 1"}.items():
        (tmp_path / "mine" / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(source_folder())}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "mine")]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
    assert done.stdout.splitlines() == ["1 b'VALUE = 1'", "2 b'VALUE = 2'"]
