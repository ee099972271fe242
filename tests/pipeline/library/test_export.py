"""Exported models, loaded as their cards say in a process that cannot import this project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny
from support.project import Project
from torch import Tensor

import pfl
from pflcore.datasets import DATASETS
from pflcore.engine.trained import Trained
from pipeline.library.card import Card, card
from pipeline.library.export import _timm_call, export
from pipeline.spec.run import Run

_ALONE = """
import sys, warnings
for name in ("pfl", "pflcore", "pipeline"):
    sys.modules[name] = None  # importing them fails
warnings.simplefilter("ignore")
"""


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def alone(folder: Path, code: str, samples: Tensor) -> Tensor:
    """The logits that code from a card makes of samples, in a process without the project."""
    save_file({"samples": samples.contiguous()}, folder / "samples")
    code = re.sub(r"torch\.zeros\(5, .*?\)", 'load_file("samples")["samples"]', code)
    code = f"{_ALONE}from safetensors.torch import load_file, save_file\n{code}"
    code += 'save_file({"logits": logits.detach().contiguous()}, "logits")\n'
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load_file(folder / "logits")["logits"]


def test_the_weights_are_the_models_and_the_card_says_so(saved: Project, tmp_path: Path) -> None:
    done = saved.call("pfl", "export", "saved: FedProto", "--client", "2", "--seed", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\S*?(\w+\.\w+)  [\d,]+ bytes$", done.stdout, re.MULTILINE) == [
        *("model.safetensors", "README.md")
    ]
    model = pfl.open(saved.root).model("saved: FedProto", client=2, seed=1)
    images, labels = model.samples("test")
    page = (tmp_path / "README.md").read_text("utf-8")
    (study,) = blocks(page)
    hits = int((model.predict(images).argmax(1) == labels).sum())
    assert f"**{100 * hits / len(labels):.2f} %** ({hits} of {len(labels)})" in page
    assert "by itself is **not** what was measured" in page and "`common/" in page
    assert "client=2)" in study and re.search(r'pfl.open\(\).model\("fedproto-convnet-digits-\w{8}"', study)
    found = load_file(tmp_path / "model.safetensors")
    assert {"common/prototypes", "common/present"} < found.keys()
    tiny.assert_states_close(found, {name: tensor.detach() for name, tensor in model.state().items()}, atol=0)


def test_a_memory_is_told_and_not_left_out_silently(saved: Project) -> None:
    files = export(saved.workspace(), "saved: FedPer + kNN", 0, 0, None)
    folder = files[0].parent
    assert folder.parent == saved.root / "exports" and folder.name.endswith("-client0")
    assert [path.name for path in files] == ["model.safetensors", "README.md"]
    page = (folder / "README.md").read_text("utf-8")
    assert "by itself is **not** what was measured" in page
    (lines,) = blocks(page)
    assert lines.startswith("import pfl\n")


def test_what_cannot_be_exported_is_one_line(saved: Project) -> None:
    done = saved.call("pfl", "export", "saved: FedAvg", "--client", "3", "--seed", "0")
    assert (done.returncode, done.stderr) == (2, "pfl: there is no client 3: clients are 0 to 2\n")


@pytest.mark.parametrize(
    ("net", "size"),
    [
        ("vit", None),
        *(pytest.param(*more, marks=pytest.mark.matrix) for more in [("resnet50", 16), ("timm_model", None)]),
    ],
)
def test_networks_of_timm_are_loaded_with_timm(net: str, size: int | None, tmp_path: Path) -> None:
    backbone, data = tiny.backbone(net), tiny.federation((6, 5), (4, 3), shape=(3, 32, 32))
    data = data if size is None else type(data)(**{**vars(data), "size": size})
    result = tiny.run(tiny.method("fedper"), backbone, data, training=tiny.training(rounds=1, local_epochs=1))
    save_file({name: tensor.contiguous() for name, tensor in result.weights.items()}, tmp_path / "weights")
    run = Trained(data, backbone, tiny.method("fedper"), tiny.training(rounds=1), 3, 1, tmp_path / "weights")
    model = run.client(1)
    save_file({name: it.detach().clone() for name, it in model.state().items()}, tmp_path / "model.safetensors")
    facts = DATASETS.get("digits")().load(tmp_path)
    facts = type(facts)(
        **{
            **vars(facts),
            **{"inputs": np.zeros((len(facts), 3, 32, 32), np.uint8), "mean": (0.4,) * 3, "std": (0.3,) * 3},
            **{"size": size},
        }
    )
    record = {
        name: {"name": word} for name, word in [("dataset", "digits"), ("partition", "iid"), ("method", "fedper")]
    }
    told = Card(
        run=Run({**record, "clients": 2, "seed": 3}),
        run_id="fedper-1",
        client=1,
        spec="tiny",
        plain=True,
        timm=_timm_call(model.net, data.shape, data.classes),
        samples=facts,
        training_samples=5,
        measured=(1, 3),
        here=(1, 3),
        obtained="a machine",
        beside=[],
    )
    with_timm, _ = blocks(card(told))
    images, _ = model.samples("test")
    torch.testing.assert_close(alone(tmp_path, with_timm, images), model.predict(images), rtol=1e-4, atol=1e-4)
