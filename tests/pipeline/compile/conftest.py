"""What tests of the compiler share."""

from __future__ import annotations

import pytest
from support.project import Project, make_project, several


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Several specs, compiled; not to be changed."""
    made = make_project(tmp_path_factory.mktemp("several"), several(), default=["tiny", "hostile"])
    made.compile()
    return made
