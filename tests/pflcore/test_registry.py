"""Registries, options and settings: every registered entry documents itself, and every mistake is one line."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, make_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pflcore.errors import UserError
from pflcore.options import describe_options, option
from pflcore.registry import KINDS, Entry, Registry, did_you_mean, module_of, registry_of
from pflcore.settings import Evaluation, Training

ENTRIES = [pytest.param(kind, name, id=f"{kind}-{name}") for kind in KINDS for name in registry_of(kind).names()]


def message(call: Callable[[], Any]) -> str:
    """The message of the :class:`UserError` that the call raises; it is one line."""
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


# --- every registered entry ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_an_entry_has_its_name_and_its_module(kind: str, name: str) -> None:
    cls = registry_of(kind).get(name)
    assert cls.name == name and cls.__module__ == module_of(kind, name)


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_an_entry_says_what_it_is_and_where_it_is_from(kind: str, name: str) -> None:
    cls = registry_of(kind).get(name)
    assert "__doc__" in vars(cls) and cls.__doc__
    summary, *rest = cls.__doc__.splitlines()
    assert 10 < len(summary) < 100 and summary[0].isupper() and summary[-1] == "."
    assert not rest or not rest[0].strip()
    assert len(cls.citation) > 10


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_options_are_explained_and_defaults_are_valid(kind: str, name: str) -> None:
    registry = registry_of(kind)
    infos = describe_options(registry.get(name))
    for info in infos:
        assert len(info.help) > 10 and info.help[-1] == "." and "\n" not in info.help, info.name
    defaults = {info.name: info.default for info in infos if not info.required}
    if not any(info.required for info in infos):
        assert registry.create(name) == registry.create(name, **defaults)


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_smoke_options_are_options(kind: str, name: str) -> None:
    registry = registry_of(kind)
    cls = registry.get(name)
    infos = {info.name: info for info in describe_options(cls)}
    assert set(cls.smoke) <= set(infos)
    if not any(info.required for info in infos.values()):
        smoke = registry.create(name, **cls.smoke)
        assert all(getattr(smoke, key) == value for key, value in cls.smoke.items())


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_an_unknown_option_is_refused(kind: str, name: str) -> None:
    registry = registry_of(kind)
    for word in ("no_such_option", "name", "citation", "smoke"):  # the last three are facts of the class
        text = message(lambda word=word: registry.create(name, **{word: 1}))  # type: ignore[misc]
        assert text.startswith(f"{kind} {name!r} has no option {word!r}")
        assert "citation" not in text.removeprefix(f"{kind} {name!r} has no option {word!r}")


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_an_option_out_of_its_bounds_is_refused(kind: str, name: str) -> None:
    registry = registry_of(kind)
    for info in describe_options(registry.get(name)):
        wrap = (lambda value: (value,)) if info.many else (lambda value: value)
        bad = [wrap(object())]
        bad += [wrap(bound) for key, bound in info.bounds.items() if key in ("gt", "lt")]
        bad += [wrap(bound - 1) for key, bound in info.bounds.items() if key == "ge"]
        bad += [wrap(bound + 1) for key, bound in info.bounds.items() if key == "le"]
        for value in bad:
            with pytest.raises(UserError) as error:
                registry.create(name, **{info.name: value})
            assert f"{name}.{info.name} = " in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_is_told_with_its_nearest(kind: str) -> None:
    registry = registry_of(kind)
    names = registry.names()
    assert names == sorted(names) and not any(name.startswith("_") for name in names)
    assert message(lambda: registry.get(f"{names[0]}x")) == (
        f"unknown {kind} {names[0] + 'x'!r}; did you mean {names[0]!r}?"
    )
    assert message(lambda: registry.create("~")) == f"unknown {kind} '~'; known: {', '.join(names)}"
    with pytest.raises(UserError):
        registry.get("_base")


# --- a registry of its own -----------------------------------------------------------------------------------------

HEADER = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from pflcore.options import option
from pflcore.registry import Entry
from {package} import THINGS
"""
DECORATED = "@dataclass(frozen=True, kw_only=True)\n"
THING = '''
@THINGS.register
@dataclass(frozen=True, kw_only=True)
class {name}(Entry):
    """A thing."""

    kept: ClassVar[tuple[str, ...]] = ()
    size: int = option(help="Its size.", ge=1)
    width: float = option(1.0, help="Its width.", gt=0)
'''


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[Any]:
    """A package of entries: good, no dataclass by itself, two in one file, none, elsewhere, and shared code."""
    package = f"things_{abs(hash(tmp_path))}"
    modules = {
        "__init__": f"from pflcore.registry import Registry\nTHINGS = Registry('thing', {package!r})\n",
        "good": HEADER.format(package=package) + THING.format(name="Good"),
        "plain": HEADER.format(package=package) + THING.format(name="Plain").replace(DECORATED, ""),
        "two": HEADER.format(package=package) + THING.format(name="One") + THING.format(name="Two"),
        "none": "",
        "elsewhere": HEADER.format(package=package)
        + "@THINGS.register\nclass Far(Entry):\n    __module__ = 'somewhere.else'\n",
        "_shared": "raise AssertionError('shared code is no entry')",
    }
    folder = tmp_path / package
    folder.mkdir()
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[Any] = __import__(package).THINGS
    return registry


def test_names_are_read_without_importing(things: Registry[Any]) -> None:
    assert things.names() == ["elsewhere", "good", "none", "plain", "two"]
    assert not [name for name in sys.modules if name.startswith(f"{things.package}.")]
    assert things.get("good") is things.get("good")
    assert [name for name in sys.modules if name.startswith(f"{things.package}.")] == [f"{things.package}.good"]


def test_a_required_option_must_be_given(things: Registry[Any]) -> None:
    assert (things.create("good", size=2).size, things.create("good", size=2).width) == (2, 1.0)
    text = message(lambda: things.create("good"))
    assert text.startswith("thing 'good': ") and "'size'" in text


@pytest.mark.parametrize("name", ["good", "plain"])
def test_an_entry_is_a_frozen_dataclass_by_itself_or_by_being_registered(things: Registry[Any], name: str) -> None:
    thing = things.create(name, size=2)
    assert thing == things.create(name, size=2, width=1.0) != things.create(name, size=3)
    with pytest.raises(FrozenInstanceError):
        thing.size = 3
    assert message(lambda: things.create(name, size=0)).endswith(f"{name}.size = 0 must be at least 1")


def test_options_are_suggested_and_class_variables_are_not(things: Registry[Any]) -> None:
    assert message(lambda: things.create("good", sise=1)) == ("thing 'good' has no option 'sise'; did you mean 'size'?")
    assert message(lambda: things.create("good", kept=())) == "thing 'good' has no option 'kept'; known: size, width"
    assert message(lambda: things.create("good", nam=1)) == "thing 'good' has no option 'nam'; known: size, width"


@pytest.mark.parametrize(
    ("name", "words"),
    [("two", "registers two entries"), ("none", "registers nothing"), ("elsewhere", "must live in a module of")],
)
def test_a_file_that_is_not_one_entry_is_a_mistake(things: Registry[Any], name: str, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        things.get(name)


def test_near_names_are_suggested_or_all_are_listed() -> None:
    assert did_you_mean("fedavgg", ["fedper", "fedavg"]) == "; did you mean 'fedavg'?"
    assert did_you_mean("xyz", ["fedper", "fedavg"]) == "; known: fedper, fedavg"
    assert did_you_mean("xyz", []) == ""


# --- options -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sample(Entry):
    count: int = option(3, help="A count.", ge=1, le=9)
    share: float = option(0.5, help="A share.", gt=0, lt=1)
    word: str = option("a", help="A word.", choices=("a", "b"))
    flag: bool = option(False, help="A flag.")
    limit: int | None = option(None, help="A limit or none.", ge=0)
    sizes: tuple[int, ...] = option((1, 2), help="Sizes.", ge=1)
    words: tuple[str, ...] = option((), help="Words.", choices=("x", "y"))


@pytest.mark.parametrize(
    "options",
    [
        {"count": 1},
        {"count": 9},
        {"share": 0.999},
        {"word": "b"},
        {"flag": True},
        {"limit": 0},
        {"limit": None},
        {"sizes": ()},
        {"sizes": (5, 1)},
        {"words": ("y", "x", "y")},
    ],
)
def test_values_within_their_bounds_are_taken(options: dict[str, Any]) -> None:
    sample = Sample(**options)
    assert all(getattr(sample, name) == value for name, value in options.items())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"count": 0}, "Sample.count = 0 must be at least 1"),
        ({"count": 10}, "Sample.count = 10 must be at most 9"),
        ({"count": 2.0}, "Sample.count = 2.0 must be int"),
        ({"count": True}, "Sample.count = True must be int"),
        ({"count": "3"}, "Sample.count = '3' must be int"),
        ({"count": None}, "Sample.count = None must be int"),
        ({"share": 0}, "Sample.share = 0 must be greater than 0"),
        ({"share": 1.0}, "Sample.share = 1.0 must be less than 1"),
        ({"share": math.nan}, "Sample.share = nan must be greater than 0"),
        ({"share": "0.5"}, "Sample.share = '0.5' must be float"),
        ({"share": False}, "Sample.share = False must be float"),
        ({"word": "c"}, "Sample.word = 'c' must be one of 'a', 'b'"),
        ({"word": 1}, "Sample.word = 1 must be str"),
        ({"flag": 1}, "Sample.flag = 1 must be bool"),
        ({"flag": "yes"}, "Sample.flag = 'yes' must be bool"),
        ({"limit": -1}, "Sample.limit = -1 must be at least 0"),
        ({"sizes": [1]}, "Sample.sizes = [1] must be a tuple of int"),
        ({"sizes": 1}, "Sample.sizes = 1 must be a tuple of int"),
        ({"sizes": (1, 0)}, "Sample.sizes = 0 must be at least 1"),
        ({"sizes": (1, 2.5)}, "Sample.sizes = 2.5 must be int"),
        ({"words": ("x", "z")}, "Sample.words = 'z' must be one of 'x', 'y'"),
    ],
)
def test_values_outside_their_bounds_are_refused(options: dict[str, Any], text: str) -> None:
    assert message(lambda: Sample(**options)) == text


def test_options_as_data() -> None:
    infos = {info.name: info for info in describe_options(Sample)}
    assert list(infos) == ["count", "share", "word", "flag", "limit", "sizes", "words"]
    assert [name for name in infos if infos[name].many] == ["sizes", "words"]
    assert [name for name in infos if infos[name].optional] == ["limit"]
    assert infos["count"].bounds == {"ge": 1, "le": 9} and infos["word"].choices == ("a", "b")
    assert infos["sizes"].default == (1, 2) and not infos["sizes"].required


@pytest.mark.parametrize("hint", ["list[int]", "int | str", "dict[str, int]", "object"])
def test_an_option_of_another_type_is_a_mistake(hint: str) -> None:
    Odd = make_dataclass("Odd", [("value", hint, option(1, help="Odd."))])
    with pytest.raises(TypeError, match=r"Odd\.value: an option is bool, int, float or str"):
        describe_options(Odd)


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [Training, Evaluation])
def test_settings_are_explained(settings: type) -> None:
    for info in describe_options(settings):
        assert len(info.help) > 10 and info.help[-1] == "." and not info.required


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Training(rounds=0), "Training.rounds = 0 must be at least 1"),
        (lambda: Training(sample_rate=0), "Training.sample_rate = 0 must be greater than 0"),
        (lambda: Training(sample_rate=1.1), "Training.sample_rate = 1.1 must be at most 1"),
        (lambda: Training(local_epochs=0), "Training.local_epochs = 0 must be at least 1"),
        (lambda: Training(batch_size=0), "Training.batch_size = 0 must be at least 1"),
        (lambda: Training(lr=0.0), "Training.lr = 0.0 must be greater than 0"),
        (lambda: Training(lr=math.nan), "Training.lr = nan must be greater than 0"),
        (lambda: Training(momentum=1.0), "Training.momentum = 1.0 must be less than 1"),
        (lambda: Training(weight_decay=-1e-9), "Training.weight_decay = -1e-09 must be at least 0"),
        (lambda: Evaluation(every=0), "Evaluation.every = 0 must be at least 1"),
        (lambda: Evaluation(window=-1), "Evaluation.window = -1 must be at least 0"),
    ],
)
def test_settings_outside_their_bounds_are_refused(call: Callable[[], Any], words: str) -> None:
    assert message(call) == words


@given(st.integers(1, 100), st.integers(1, 4))
def test_a_decimal_share_samples_what_it_says(percent: int, hundreds: int) -> None:
    assert Training(sample_rate=percent / 100).cohort_size(100 * hundreds) == percent * hundreds


@given(st.integers(1, 2000), st.floats(1e-6, 1))
def test_a_cohort_is_at_least_one_and_at_most_all(clients: int, rate: float) -> None:
    assert 1 <= Training(sample_rate=rate).cohort_size(clients) <= clients


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 300), st.integers(0, 20))
def test_the_last_round_is_measured_and_the_window_counts_back_from_it(
    rounds: int, every: int, window: int, curve: int
) -> None:
    schedule = Evaluation(every=every, window=window, curve_every=curve)
    due = set(schedule.due(rounds))
    assert due == {round_ for round_ in range(1, rounds + 1) if schedule.is_due(round_, rounds)}
    counted_back = set(range(rounds, max(rounds - window, 1) - 1, -every))
    for_curve = set(range(curve, rounds + 1, curve)) if curve else set()
    assert due == counted_back | for_curve and rounds in due
