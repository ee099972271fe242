"""Registries, options and settings: every entry documents itself, a study's files and packages' modules join, and every
mistake is one line."""

import math
import sys
from dataclasses import dataclass, make_dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mistakes import line_of
from support.official import write_files
from support.own_parts import BACKBONE, DATASET, METHOD, SCALING
from support.tiny import CLASSES, SHAPE, backbone, result_bytes, run
from torch import nn

import pflcore
from pflcore import extensions, sources
from pflcore.backbones._base import backbone_of
from pflcore.datasets import DATASETS
from pflcore.faults import error_line
from pflcore.methods import METHODS
from pflcore.methods.simple import FedAvg
from pflcore.options import describe_options, option
from pflcore.registry import KINDS, Entry, did_you_mean, extensions_of, module_of, registry_of, use_study
from pflcore.settings import Evaluation, Training


@pytest.mark.parametrize("kind, name", [(kind, name) for kind in KINDS for name in registry_of(kind).names()])
def test_an_entry_documents_itself_and_its_options(kind, name):
    registry, cls = registry_of(kind), registry_of(kind).get(name)
    assert cls.name == name and cls.__module__ == module_of(kind, name) and len(cls.citation) > 10
    summary, *rest = (vars(cls)["__doc__"] or "").splitlines()
    assert 10 < len(summary) < 100 and summary[0].isupper() and summary[-1] == "."
    assert not rest or not rest[0].strip()
    infos = {info.name: info for info in describe_options(cls)}
    assert all(len(info.help) > 10 and info.help[-1] == "." and "\n" not in info.help for info in infos.values())
    assert set(cls.smoke) <= set(infos)
    if not any(info.required for info in infos.values()):
        assert registry.create(name) == registry.create(name, **{info.name: info.default for info in infos.values()})
        smoke = registry.create(name, **cls.smoke)
        assert all(getattr(smoke, key) == value for key, value in cls.smoke.items())
    # A fact of the class is no option.
    assert line_of(registry.create, name, smoke=1).startswith(f"{kind} {name!r} has no option 'smoke'")
    off = {"gt": 0, "lt": 0, "ge": -1, "le": 1}
    for info in infos.values():
        for value in (object(), *(bound + off[key] for key, bound in info.bounds.items())):
            wrong = {info.name: (value,) if info.many else value}
            assert f"{name}.{info.name} = " in line_of(registry.create, name, **wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_comes_with_its_nearest(kind):
    registry, names = registry_of(kind), registry_of(kind).names()
    assert names == sorted(names) and not any(name.startswith("_") for name in names)
    assert line_of(registry.get, f"{names[0]}x") == f"unknown {kind} '{names[0]}x'; did you mean {names[0]!r}?"
    assert line_of(registry.create, "~") == f"unknown {kind} '~'; known: {', '.join(names)}"
    assert did_you_mean("xyz", []) == ""


def test_a_message_lists_fifty_names():
    names = [f"spec{number}" for number in range(53)]
    assert did_you_mean("~", names) == f"; known: {', '.join(names[:50])} and 3 more"


def test_two_classes_of_one_name():
    METHODS.get("fedavg")
    with pytest.raises(TypeError, match=r"^pflcore\.methods\.simple: two classes are called 'fedavg'; beside others"):
        METHODS.register(type("Twin", (FedAvg,), {"__module__": FedAvg.__module__, "name": "fedavg"}))


@dataclass(frozen=True, kw_only=True)
class Sample(Entry):
    count: int = option(3, help="A count.", ge=1, le=9)
    share: float = option(0.5, help="A share.", gt=0, lt=1)
    word: str = option("a", help="A word.", choices=("a", "b"))
    flag: bool = option(False, help="A flag.")
    limit: int | None = option(None, help="A limit or none.", ge=0)
    sizes: tuple[int, ...] = option((1, 2), help="Sizes.", ge=1)
    words: tuple[str, ...] = option((), help="Words.", choices=("x", "y"))


def test_values_outside_their_bounds_and_other_types_are_refused():
    Sample(count=9, share=0.999, word="b", flag=True, limit=0, sizes=(), words=("y", "x"))
    for name, value, text in (
        ("count", 0, "= 0 must be at least 1"),
        ("count", 10, "= 10 must be at most 9"),
        *(("count", value, f"= {value} must be int") for value in (2.0, True, None)),
        ("share", 0, "= 0 must be greater than 0"),
        ("share", 1.0, "= 1.0 must be less than 1"),
        ("share", math.nan, "= nan must be greater than 0"),
        ("share", "0.5", "= '0.5' must be float"),
        ("word", "c", "= 'c' must be one of 'a', 'b'"),
        ("flag", 1, "= 1 must be bool"),
        ("limit", -1, "= -1 must be at least 0"),
        ("sizes", [1], "= [1] must be a tuple of int"),
        ("sizes", (1, 0), "= 0 must be at least 1"),
        ("words", ("x", "z"), "= 'z' must be one of 'x', 'y'"),
    ):
        assert line_of(Sample, **{name: value}) == f"Sample.{name} {text}"
    for hint in ("list[int]", "int | str", "object"):
        with pytest.raises(TypeError, match=r"Odd\.value: an option is bool, int, float or str"):
            describe_options(make_dataclass("Odd", [("value", hint, option(1, help="Odd."))]))
    for default, words in ((1, "write an option as value: int = option"), (option("x", help="A."), "its default 'x'")):
        with pytest.raises(TypeError, match=rf"Odd\.value: {words}"):
            describe_options(make_dataclass("Odd", [("value", "int", default)]))


def test_settings_are_explained_and_bounded():
    for info in (*describe_options(Training), *describe_options(Evaluation)):
        assert len(info.help) > 10 and info.help[-1] == "." and not info.required
    assert line_of(Training, sample_rate=1.1) == "Training.sample_rate = 1.1 must be at most 1"
    assert line_of(Evaluation, window=-1) == "Evaluation.window = -1 must be at least 0"
    for clients, rate, cohort in ((100, 0.29, 29), (300, 0.07, 21), (9, 1e-6, 1), (7, 1.0, 7)):
        assert Training(sample_rate=rate).cohort_size(clients) == cohort


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 300), st.integers(0, 20))
def test_the_last_round_is_measured_and_the_window_counts_back_from_it(rounds, every, window, curve):
    schedule = Evaluation(every=every, window=window, curve_every=curve)
    rounds_, window_ = set(schedule.due(rounds)), set(range(rounds, max(rounds - window, 1) - 1, -every))
    assert rounds_ == window_ | (set(range(curve, rounds + 1, curve)) if curve else set()) and rounds in rounds_


# --- entries from elsewhere ------------------------------------------------------------------------------------------

MINE = {"methods/mine.py": METHOD, "methods/_scaling.py": SCALING}


@pytest.fixture
def study(tmp_path):
    """Makes a study of the given files and goes there; afterwards there is none."""
    yield lambda files, folder="study": use_study(write_files(tmp_path / folder, files))
    use_study(tmp_path / "nowhere")


def test_a_study_file_is_an_entry_like_any_other(study, tmp_path):
    study(MINE)
    assert "mine" in METHODS.names() and METHODS.names() == sorted(METHODS.names())
    assert METHODS.create("mine", scale=2.0).scale == 2.0 and METHODS.get("mine").name == "mine"
    assert line_of(METHODS.create, "mine", scale=0) == "mine.scale = 0 must be greater than 0"
    assert extensions_of("pflcore.methods")["mine"].origin == "methods/mine.py"
    assert module_of("method", "mine") == "study.methods.mine" and module_of("method", "ditto").startswith("pflcore.")
    assert sources.loaded()["study.methods._scaling"] == SCALING.encode() and extensions.folders() == ["methods"]
    files = {f"study.methods.{name}": tmp_path / f"study/methods/{name}.py" for name in ("_scaling", "mine")}
    assert extensions.modules() == files
    plain, study_result = (run(METHODS.create(name), backbone("convnet")) for name in ("fedavg", "mine"))
    assert result_bytes(plain) == result_bytes(study_result)  # a factor of one


def test_another_study_has_its_own_and_what_was_edited_is_read_anew(study):
    study(MINE, "one")
    first = METHODS.get("mine")
    study({}, "one")
    assert METHODS.get("mine") is first
    study({"methods/_scaling.py": "def factor():\n    return 2.0\n"}, "one")
    assert METHODS.get("mine") is not first and sys.modules["study.methods._scaling"].factor() == 2.0
    study({**MINE, "methods/mine.py": METHOD.replace("scaled", "doubled")}, "two")
    assert METHODS.get("mine").__doc__ == "FedAvg whose loss is doubled."
    study({"methods/other.py": METHOD}, "three")
    assert line_of(METHODS.get, "mine").startswith("unknown method 'mine'")


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("mine", METHOD + "x = (\n", "mine.py:14: the method cannot be imported: SyntaxError: '('"),
        ("_scaling", "import gone\n", "_scaling.py:1: the method cannot be imported: ModuleNotFound"),
        ("mine", "x = 1\n", "mine.py: registers no method; put @METHODS.register before its class"),
        ("mine", METHOD + METHOD.replace("Mine", "Two"), "mine.py:19: the method cannot be imported"),
        ("mine", BACKBONE, "mine.py:6: the method cannot be imported: TypeError: Small must live in"),
        ("mine", METHOD.replace("float = o", "dict = o"), "mine.py: Mine.scale: an option is bool, int"),
    ],
)
def test_a_mistake_is_a_line_and_stays_one(study, name, text, words):
    study({**MINE, f"methods/{name}.py": text})
    for _ in range(2):
        assert line_of(METHODS.get, "mine").startswith(f"methods/{words}")


def test_a_name_is_taken_once_and_what_a_class_lacks_is_a_line(study):
    study({"datasets/noise.py": DATASET.replace("def load", "def lode"), "methods/fedavg.py": METHOD})
    assert line_of(DATASETS.get, "noise") == "datasets/noise.py: Noise does not define load"
    place = Path(pflcore.__file__).parent / "methods/fedavg.py"
    assert line_of(METHODS.names).startswith(f"methods/fedavg.py: 'fedavg' is also the name of the built-in {place}; ")
    study({"methods/My-own.py": METHOD}, "two")
    assert "the file's name is the entry's" in line_of(METHODS.names)


def test_a_fault_in_training_names_the_line(study):
    study({**MINE, "methods/_scaling.py": "def factor():\n    return 1 / 0\n"})
    with pytest.raises(ZeroDivisionError) as error:
        run(METHODS.create("mine"), backbone("convnet"))
    assert "(methods/mine.py:13, step 1 of " in error_line(error.value)


def test_a_package_joins_by_entry_points(study, tmp_path, monkeypatch, request):
    inner = {"__init__.py": "", "method.py": METHOD.replace("._scaling", ".._scaling")}
    files = {"__init__.py": "raise AssertionError('imported to learn names')\n", "_scaling.py": SCALING}
    package = write_files(tmp_path / "someone_fl", {**files, **{f"inner/{name}": text for name, text in inner.items()}})
    monkeypatch.syspath_prepend(tmp_path)
    points = {"pfl.methods": [EntryPoint("theirs", "someone_fl.inner.method", "pfl.methods")]}

    class Points:
        def select(self, group):
            return points.get(group, [])

    monkeypatch.setattr(extensions, "entry_points", Points)
    request.addfinalizer(lambda: METHODS.forget("someone_fl"))
    study({})
    assert "theirs" in METHODS.names() and module_of("method", "theirs") == "someone_fl.inner.method"
    inside = {f"someone_fl.{name}" for name in ("inner", "inner.method", "_scaling")}
    assert set(extensions.modules()) == {"someone_fl", *inside}
    (package / "__init__.py").write_text("")
    assert METHODS.create("theirs", scale=3.0).scale == 3.0 and METHODS.get("theirs").name == "theirs"
    assert sources.loaded()["someone_fl._scaling"] == SCALING.encode()
    study({"methods/theirs.py": METHOD})
    words = "someone_fl.inner.method: 'theirs' is also the name of methods/theirs.py; rename one of them"
    assert line_of(METHODS.names) == words
    points["pfl.methods"] = [EntryPoint("gone", "someone_fl.gone", "pfl.methods")]
    study({}, "two")
    message = "entry point gone = 'someone_fl.gone' of pfl.methods: there is no module someone_fl.gone"
    assert line_of(METHODS.names) == message


class Plain(nn.Module):
    """A hidden layer and a norm."""

    citation = "nobody"

    def __init__(self, shape, classes, width: int = option(4, ge=1, help="Units."), bias: bool = True):
        super().__init__()
        self.body = nn.Linear(shape[0] * shape[1] * shape[2], width, bias)
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, classes)


def test_a_plain_module_is_a_backbone():
    entry = backbone_of(Plain)
    infos = {info.name: info for info in describe_options(entry)}
    assert list(infos) == ["width", "bias", "pretrained"] and infos["width"].bounds == {"ge": 1}
    model, groups = entry(width=6).create(SHAPE, CLASSES, 0)
    assert groups.names() == ["body", "norm", "head"] and model.body.weight.shape == (6, 64)
    assert (entry.__doc__, entry.citation) == (Plain.__doc__, "nobody")
    with pytest.raises(TypeError, match=r"first arguments of a backbone's module are \(shape, classes\)"):
        backbone_of(type("Classes", (nn.Module,), {"__init__": lambda self, classes: None}))
