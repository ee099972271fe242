"""Fixtures that several files of tests use."""

import os
import shutil
import signal

import pytest
import torch
from filelock import FileLock
from support.project import Project, make_project

# Started in the background by a shell, pytest would hand on to all processes of tests that they ignore interruptions.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # what the engine chooses for the small images of tests


@pytest.fixture
def tiny(tmp_path):
    """A project of one spec, compiled."""
    made = make_project(tmp_path)
    made.compile()
    return made


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """A project that DVC has reproduced, made once for all of pytest's processes; not to be changed."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "reproduced"
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "done").exists():
            made = make_project(folder, default=["tiny"])
            made.compile()
            made.succeed("dvc", "repro")
            made.write("done", "")
        return Project(folder)


@pytest.fixture
def reproduced(original, tmp_path):
    """A copy of the reproduced project in another place."""
    shutil.copytree(original.root, tmp_path / "copy", ignore=shutil.ignore_patterns("tmp", "warm"), symlinks=True)
    return Project(tmp_path / "copy")
