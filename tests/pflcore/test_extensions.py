"""Entries from elsewhere: how a study's files and packages' modules join registries, and what is said of mistakes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from support.own_parts import BACKBONE, DATASET, METHOD, SCALING
from support.tiny import CLASSES, SHAPE, backbone, result_bytes, run
from torch import nn

import pflcore
from pflcore import extensions, sources
from pflcore.backbones._base import of_module
from pflcore.datasets import DATASETS
from pflcore.errors import UserError
from pflcore.faults import in_a_line
from pflcore.methods import METHODS
from pflcore.options import describe_options, option
from pflcore.registry import joined, module_of, use_study

MINE = {"methods/mine.py": METHOD, "methods/_scaling.py": SCALING}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Makes a study of the given files and goes there; afterwards there is none."""

    def make(files: dict[str, str], folder: str = "study") -> Path:
        use_study(write(tmp_path / folder, files))
        return tmp_path / folder

    yield make
    use_study(tmp_path / "nowhere")


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as error:
        call()
    return str(error.value)


def test_a_study_file_is_an_entry_like_any_other(study: Callable[..., Path]) -> None:
    folder = study(MINE)
    assert "mine" in METHODS.names() and METHODS.names() == sorted(METHODS.names())
    assert METHODS.create("mine", scale=2.0).scale == 2.0 and METHODS.get("mine").name == "mine"
    assert message(lambda: METHODS.create("mine", scale=0)) == "mine.scale = 0 must be greater than 0"
    assert joined("pflcore.methods")["mine"].origin == "methods/mine.py"
    assert module_of("method", "mine") == "study.methods.mine" and module_of("method", "ditto").startswith("pflcore.")
    assert sources.loaded()["study.methods._scaling"] == SCALING.encode()
    assert extensions.folders() == ["methods"]
    files = {f"study.methods.{name}": folder / f"methods/{name}.py" for name in ("_scaling", "mine")}
    assert extensions.modules() == files
    plain, own = (run(METHODS.create(name), backbone("convnet")) for name in ("fedavg", "mine"))
    assert result_bytes(plain) == result_bytes(own)  # a factor of one


def test_another_study_has_its_own_and_what_was_edited_is_read_anew(study: Callable[..., Path]) -> None:
    study(MINE, "one")
    first = METHODS.get("mine")
    study({}, "one")
    assert METHODS.get("mine") is first
    study({"methods/_scaling.py": "def factor():\n    return 2.0\n"}, "one")
    assert METHODS.get("mine") is not first and sys.modules["study.methods._scaling"].factor() == 2.0
    study({**MINE, "methods/mine.py": METHOD.replace("scaled", "doubled")}, "two")
    assert METHODS.get("mine").__doc__ == "FedAvg whose loss is doubled."
    study({"methods/other.py": METHOD}, "three")
    assert message(lambda: METHODS.get("mine")).startswith("unknown method 'mine'")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("mine", METHOD + "x = (\n", "mine.py:14: the method cannot be imported: SyntaxError: '('"),
        ("_scaling", "import gone\n", "_scaling.py:1: the method cannot be imported: ModuleNotFound"),
        ("mine", "x = 1\n", "mine.py: registers no method; put @METHODS.register before its class"),
        ("mine", METHOD + METHOD.replace("Mine", "Two"), "mine.py:19: the method cannot be imported"),
        ("mine", BACKBONE, "mine.py:6: the method cannot be imported: TypeError: Small must live in"),
        ("mine", METHOD.replace("float = o", "dict = o"), "mine.py: Mine.scale: an option is bool, int"),
    ],
)
def test_a_mistake_is_a_line_and_stays_one(study: Callable[..., Path], name: str, text: str, words: str) -> None:
    study({**MINE, f"methods/{name}.py": text})
    for _ in range(2):
        found = message(lambda: METHODS.get("mine"))
        assert found.startswith(f"methods/{words}") and "\n" not in found


def test_a_name_is_taken_once_and_what_a_class_lacks_is_a_line(study: Callable[..., Path]) -> None:
    study({"datasets/noise.py": DATASET.replace("def load", "def lode"), "methods/fedavg.py": METHOD})
    assert message(lambda: DATASETS.get("noise")) == "datasets/noise.py: Noise does not define load"
    built_in = Path(pflcore.__file__).parent / "methods/fedavg.py"
    assert message(METHODS.names) == (
        f"methods/fedavg.py: 'fedavg' is also the name of the built-in {built_in}; rename one of them"
    )
    study({"methods/My-own.py": METHOD}, "two")
    assert "the file's name is the entry's" in message(METHODS.names)


def test_a_fault_in_training_names_the_line(study: Callable[..., Path]) -> None:
    study({**MINE, "methods/_scaling.py": "def factor():\n    return 1 / 0\n"})
    with pytest.raises(ZeroDivisionError) as error:
        run(METHODS.create("mine"), backbone("convnet"))
    assert "(methods/mine.py:13, step 1 of " in in_a_line(error.value)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """An installed package with a method, and its entry points."""
    points = [EntryPoint("theirs", "someone_fl.inner.method", "pfl.methods")]
    files = {
        "someone_fl/__init__.py": "raise AssertionError('imported to learn names')\n",
        "someone_fl/inner/__init__.py": "",
        "someone_fl/inner/method.py": METHOD.replace("._scaling", ".._scaling"),
        "someone_fl/_scaling.py": SCALING,
    }
    monkeypatch.syspath_prepend(write(tmp_path / "site", files))

    class Points(list[EntryPoint]):
        def select(self, group: str) -> list[EntryPoint]:
            return [one for one in self if one.group == group]

    monkeypatch.setattr(extensions, "entry_points", lambda: Points(points))
    use_study(tmp_path / "nowhere")
    yield points
    monkeypatch.undo()
    METHODS.forget("someone_fl")
    use_study(tmp_path / "elsewhere")


def test_a_package_joins_by_entry_points(package: list[EntryPoint], study: Callable[..., Path], tmp_path: Path) -> None:
    assert "theirs" in METHODS.names() and module_of("method", "theirs") == "someone_fl.inner.method"
    inside = {f"someone_fl.{name}" for name in ("inner", "inner.method", "_scaling")}
    assert set(extensions.modules()) == {"someone_fl", *inside}
    (tmp_path / "site/someone_fl/__init__.py").write_text("")
    assert METHODS.create("theirs", scale=3.0).scale == 3.0 and METHODS.get("theirs").name == "theirs"
    assert sources.loaded()["someone_fl._scaling"] == SCALING.encode()
    study({"methods/theirs.py": METHOD})
    assert message(METHODS.names) == (
        "someone_fl.inner.method: 'theirs' is also the name of methods/theirs.py; rename one of them"
    )
    package[:] = [EntryPoint("gone", "someone_fl.gone", "pfl.methods")]
    study({}, "two")
    gone = "entry point gone = 'someone_fl.gone' of pfl.methods: there is no module someone_fl.gone"
    assert message(METHODS.names) == gone


class Plain(nn.Module):
    """A hidden layer and a norm."""

    citation = "nobody"

    def __init__(
        self, shape: tuple[int, ...], classes: int, width: int = option(4, ge=1, help="Units."), bias: bool = True
    ):
        super().__init__()
        self.body = nn.Linear(shape[0] * shape[1] * shape[2], width, bias)
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> Any:
        return self.head(self.norm(self.body(images.flatten(1))))


def test_a_plain_module_is_a_backbone() -> None:
    entry = of_module(Plain)
    infos = {info.name: info for info in describe_options(entry)}
    assert list(infos) == ["width", "bias", "pretrained"] and infos["width"].bounds == {"ge": 1}
    assert (entry.__doc__, entry.citation) == (Plain.__doc__, "nobody")
    model, groups = entry(width=6).create(SHAPE, CLASSES, 0)
    assert isinstance(model, Plain) and groups.names() == ["body", "norm", "head"]
    assert model.body.weight.shape == (6, 64)
    with pytest.raises(UserError, match="width = 0 must be at least 1"):
        entry(width=0)
    with pytest.raises(TypeError, match=r"first arguments of a backbone's module are \(shape, classes\)"):
        of_module(type("Classes", (nn.Module,), {"__init__": lambda self, classes: None}))
