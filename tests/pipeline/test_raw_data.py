"""Own images that are replaced, added or gone after they were read: said; a file that was only touched: not."""

import os
import shutil

import pytest
from support.official import plain, write_files
from support.project import make_project, spec

from pipeline.running.options import RunOptions
from pipeline.running.runner import run_specs


@pytest.mark.matrix
def test_own_images_that_have_changed_are_noticed_by_every_command(tmp_path, monkeypatch, capsys):
    images = {f"{kind}/{n}.png": plain((9 * n, 0, 0), "PNG") for kind in ("rose", "tulip") for n in range(20)}
    text = spec("[fedavg]", partition="{name: iid, test_share: 0.25}")
    text = text.replace("digits", "{name: image_folder, path: flowers, size: 8, channels: 1}")
    project = make_project(tmp_path, {"specs/own.yaml": text}, ["own"])
    write_files(tmp_path / "data/flowers", images)
    monkeypatch.chdir(tmp_path)
    for name, value in project.environment(PFL_DATA=str(tmp_path / "data"), PFL_DEVICE="cpu").items():
        monkeypatch.setenv(name, value)
    assert run_specs(project.workspace(), RunOptions()) == 0
    os.utime(tmp_path / "data/flowers/rose/1.png", ns=(1, 1))
    (tmp_path / "data/flowers/.DS_Store").write_text("of a file manager")
    (tmp_path / "data/flowers/gone.png").symlink_to("nowhere")
    assert project.call("pfl", "status").stderr == ""
    project.write("data/flowers/rose/1.png", plain((0, 200, 0), "PNG"))
    for command in ("status", "plan", "run"):
        assert "data/flowers: has changed since it was read" in project.call("pfl", command).stderr, command
    shutil.rmtree(tmp_path / "data/flowers")
    assert "data/flowers: is gone" in project.call("pfl", "status").stderr
    next((tmp_path / ".pfl/raw").iterdir()).write_text("{")
    assert project.call("pfl", "status").stderr == ""
