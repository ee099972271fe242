"""Exported models: the state, and what it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support import tiny
from support.project import Project

import pipeline
from pipeline.library.export import export


def test_the_weights_of_a_method_with_more_than_a_network(saved: Project, tmp_path: Path) -> None:
    done = saved.call("pfl", "export", "saved: FedProto", "--client", "2", "--seed", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\S*model\.safetensors  [\d,]+ bytes\n", done.stdout)
    model = pipeline.open(saved.root).model("saved: FedProto", client=2, seed=1)
    found = load_file(tmp_path / "model.safetensors")
    assert {"common/prototypes", "common/present"} < found.keys()
    tiny.assert_states_close(found, {name: tensor.detach() for name, tensor in model.state().items()}, atol=0)


def test_the_weights_say_what_they_are(saved: Project, tmp_path: Path) -> None:
    done = saved.call("pfl", "export", "saved: FedAvg", "--client", "1", "--seed", "0", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    model = pipeline.open(saved.root).model("saved: FedAvg", client=1, seed=0)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        header = file.metadata()
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in model.state().items())
    assert header["format"] == "pt" and header["run"].startswith("fedavg-convnet-digits-")
    facts = {name: json.loads(text) for name, text in header.items() if name not in ("format", "run")}
    assert (facts["client"], facts["plain"], facts["size"]) == (1, True, None)
    assert facts["classes"] == [str(digit) for digit in range(10)] and len(facts["mean"]) == len(facts["std"]) == 1
    assert facts["settings"]["method"]["name"] == "fedavg" and facts["settings"]["seed"] == 0


def test_a_memory_is_told_and_not_left_out_silently(saved: Project) -> None:
    path = export(saved.workspace(), "saved: FedPer + kNN", 0, 0, None)
    folder = path.parent
    assert folder.parent == saved.root / "exports" and folder.name.endswith("-client0")
    with safe_open(path, "pt") as file:
        assert file.metadata()["plain"] == "false"


def test_what_cannot_be_exported_is_one_line(saved: Project) -> None:
    done = saved.call("pfl", "export", "saved: FedAvg", "--client", "3", "--seed", "0")
    assert (done.returncode, done.stderr) == (2, "pfl: there is no client 3: clients are 0 to 2\n")
