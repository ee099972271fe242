"""Where the folder of a study is."""

import pytest

from pflcore.errors import UserError
from pipeline.workspace import Workspace


def test_folders_that_are_called_specs_are_not_all_studies(tmp_path):
    deep = tmp_path / "below/deep"
    for folder in (deep, tmp_path / "specs"):
        folder.mkdir(parents=True)
    assert Workspace.find(tmp_path).root == tmp_path
    with pytest.raises(UserError, match="neither here nor above"):
        Workspace.find(deep)
    (tmp_path / ".pfl").mkdir()
    assert Workspace.find(deep).root == tmp_path
    (tmp_path / "below/pyproject.toml").write_text("[tool.pfl]\n")
    assert Workspace.find(deep).root == tmp_path / "below"
