"""Exported models: the state with what it is, and programs that run in a process that cannot import this project."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support import tiny
from support.project import Project
from torch import Tensor

import pipeline
from pflcore.engine.program import program_of
from pflcore.engine.trained import Trained
from pipeline.library.export import export

_ALONE = """
import sys, warnings
for name in ("pflcore", "pipeline"):
    sys.modules[name] = None  # importing them fails
warnings.simplefilter("ignore")
import torch
from safetensors.torch import load_file, save_file

logits = torch.export.load("model.pt2").module()(load_file("samples")["samples"])
save_file({"logits": logits.detach().contiguous()}, "logits")
"""


def alone(folder: Path, samples: Tensor) -> Tensor:
    """The logits that an exported program makes of samples, in a process without the project."""
    save_file({"samples": samples.contiguous()}, folder / "samples")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", _ALONE], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load_file(folder / "logits")["logits"]


def test_a_program_predicts_without_the_project(saved: Project, tmp_path: Path) -> None:
    done = saved.call("pfl", "export", "saved: FedProto", "--client", "2", "--seed", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\S*?(\w+\.\w+)  [\d,]+ bytes$", done.stdout, re.MULTILINE) == [
        *("model.safetensors", "model.pt2")
    ]
    model = pipeline.open(saved.root).model("saved: FedProto", client=2, seed=1)
    images, _ = model.samples("test")
    torch.testing.assert_close(alone(tmp_path, images), model.predict(images))
    assert {"common/prototypes", "common/present"} < load_file(tmp_path / "model.safetensors").keys()


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
    exported = export(saved.workspace(), "saved: FedPer + kNN", 0, 0, None)
    folder = exported.files[0].parent
    assert folder.parent == saved.root / "exports" and folder.name.endswith("-client0")
    assert [path.name for path in exported.files] == ["model.safetensors"]
    assert exported.lacking == "fedper predicts by what it makes of the client's training samples in Python"
    with safe_open(exported.files[0], "pt") as file:
        assert file.metadata()["plain"] == "false"


def test_what_cannot_be_exported_is_one_line(saved: Project) -> None:
    done = saved.call("pfl", "export", "saved: FedAvg", "--client", "3", "--seed", "0")
    assert (done.returncode, done.stderr) == (2, "pfl: there is no client 3: clients are 0 to 2\n")


def test_a_program_takes_any_number_of_texts(tmp_path: Path) -> None:
    data, net = tiny.texts(), tiny.backbone(tiny.TEXT)
    result = tiny.run(tiny.method("fedper"), net, data)
    save_file({name: tensor.contiguous() for name, tensor in result.weights.items()}, tmp_path / "weights")
    model = Trained(data, net, tiny.method("fedper"), tiny.training(), 3, 2, tmp_path / "weights").client(0)
    (tmp_path / "model.pt2").write_bytes(program_of(model))
    texts, _ = model.samples("train")
    torch.testing.assert_close(alone(tmp_path, texts), model.predict(texts))
