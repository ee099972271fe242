"""Registries, options and settings: every registered entry documents itself, and every mistake is one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, make_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pflcore.errors import UserError
from pflcore.methods.simple import FedAvg
from pflcore.options import describe_options, option
from pflcore.registry import KINDS, Entry, did_you_mean, module_of, registry_of
from pflcore.settings import Evaluation, Training

ENTRIES = [pytest.param(kind, name, id=f"{kind}-{name}") for kind in KINDS for name in registry_of(kind).names()]


def message(call: Callable[[], Any]) -> str:
    """The message of the :class:`UserError` that the call raises; it is one line."""
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_an_entry_documents_itself_and_its_options(kind: str, name: str) -> None:
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
    text = message(lambda: registry.create(name, smoke=1))  # a fact of the class
    assert text.startswith(f"{kind} {name!r} has no option 'smoke'")
    for info in infos.values():
        off = {"gt": 0, "lt": 0, "ge": -1, "le": 1}
        for value in (object(), *(bound + off[key] for key, bound in info.bounds.items())):
            text = message(
                lambda info=info, value=value: registry.create(name, **{info.name: (value,) if info.many else value})
            )
            assert f"{name}.{info.name} = " in text


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_comes_with_its_nearest(kind: str) -> None:
    registry = registry_of(kind)
    names = registry.names()
    assert names == sorted(names) and not any(name.startswith("_") for name in names)
    assert message(lambda: registry.get(f"{names[0]}x")) == (
        f"unknown {kind} {names[0] + 'x'!r}; did you mean {names[0]!r}?"
    )
    assert message(lambda: registry.create("~")) == f"unknown {kind} '~'; known: {', '.join(names)}"
    assert did_you_mean("xyz", []) == ""


def test_two_classes_of_one_name() -> None:
    twin = type("Twin", (FedAvg,), {"__module__": FedAvg.__module__, "name": "fedavg"})
    words = r"^pflcore\.methods\.simple: two classes are called 'fedavg'; beside others each must state its name$"
    registry_of("method").get("fedavg")
    with pytest.raises(TypeError, match=words):
        registry_of("method").register(twin)


# --- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sample(Entry):
    count: int = option(3, help="A count.", ge=1, le=9)
    share: float = option(0.5, help="A share.", gt=0, lt=1)
    word: str = option("a", help="A word.", choices=("a", "b"))
    flag: bool = option(False, help="A flag.")
    limit: int | None = option(None, help="A limit or none.", ge=0)
    sizes: tuple[int, ...] = option((1, 2), help="Sizes.", ge=1)
    words: tuple[str, ...] = option((), help="Words.", choices=("x", "y"))


def test_options_within_their_bounds_and_as_data() -> None:
    given = {
        "count": 9,
        "share": 0.999,
        "word": "b",
        "flag": True,
        "limit": 0,
        "sizes": (5, 1),
        "words": ("y", "x", "y"),
    }
    assert {name: getattr(Sample(**given), name) for name in given} == given
    assert (Sample(limit=None, sizes=()).limit, Sample().sizes) == (None, (1, 2))
    with pytest.raises(FrozenInstanceError):
        Sample().count = 4  # type: ignore[misc]
    infos = {info.name: info for info in describe_options(Sample)}
    assert list(infos) == list(given)
    assert [name for name in infos if infos[name].many] == ["sizes", "words"]
    assert [name for name in infos if infos[name].optional] == ["limit"]
    assert infos["count"].bounds == {"ge": 1, "le": 9} and infos["word"].choices == ("a", "b")
    assert infos["sizes"].default == (1, 2) and not infos["sizes"].required


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("count", 0, "= 0 must be at least 1"),
        ("count", 10, "= 10 must be at most 9"),
        ("count", 2.0, "= 2.0 must be int"),
        ("count", True, "= True must be int"),
        ("count", None, "= None must be int"),
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
    ],
)
def test_values_outside_their_bounds_are_refused(name: str, value: Any, text: str) -> None:
    assert message(lambda: Sample(**{name: value})) == f"Sample.{name} {text}"


@pytest.mark.parametrize("hint", ["list[int]", "int | str", "object"])
def test_an_option_of_another_type_is_a_mistake(hint: str) -> None:
    Odd = make_dataclass("Odd", [("value", hint, option(1, help="Odd."))])
    with pytest.raises(TypeError, match=r"Odd\.value: an option is bool, int, float or str"):
        describe_options(Odd)


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_are_explained_and_bounded() -> None:
    for info in (*describe_options(Training), *describe_options(Evaluation)):
        assert len(info.help) > 10 and info.help[-1] == "." and not info.required
    assert message(lambda: Training(sample_rate=1.1)) == "Training.sample_rate = 1.1 must be at most 1"
    assert message(lambda: Training(lr=math.nan)) == "Training.lr = nan must be greater than 0"
    assert message(lambda: Evaluation(window=-1)) == "Evaluation.window = -1 must be at least 0"
    for clients, rate, cohort in ((100, 0.29, 29), (300, 0.07, 21), (9, 1e-6, 1), (7, 1.0, 7)):
        assert Training(sample_rate=rate).cohort_size(clients) == cohort


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 300), st.integers(0, 20))
def test_the_last_round_is_measured_and_the_window_counts_back_from_it(
    rounds: int, every: int, window: int, curve: int
) -> None:
    schedule = Evaluation(every=every, window=window, curve_every=curve)
    due = set(schedule.due(rounds))
    assert due == {round_ for round_ in range(1, rounds + 1) if schedule.is_due(round_, rounds)}
    counted_back = set(range(rounds, max(rounds - window, 1) - 1, -every))
    assert due == counted_back | (set(range(curve, rounds + 1, curve)) if curve else set()) and rounds in due
