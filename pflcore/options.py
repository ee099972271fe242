"""Options of registered entries: dataclass fields with help and bounds, for checks, schemas and ``pfl describe``."""

import dataclasses
import functools
import inspect
import operator
import types
import typing
from dataclasses import dataclass
from typing import Any

from pflcore.errors import UserError

# Each is false for NaN.
_BOUNDS = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "greater than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
}
_ACCEPTED = {"float": (int, float), "int": (int,), "str": (str,), "bool": (bool,)}


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    choices: tuple[Any, ...] | None = None,
    later: bool = False,
    **bounds: float,
) -> Any:
    """Return a dataclass field. Types: bool, int, float, str, ``X | None`` and ``tuple[X, ...]`` of these.

    Args:
        default: Without a default, the option is required.
        help: One sentence: what the option is, its unit, what its edge values mean.
        choices: The only values allowed.
        later: The option was added to an entry with results: at its default, records omit it, so run ids stay the same.
        bounds: ge, gt, le, lt, for a number or for each number in a tuple.
    """
    if bounds.keys() - _BOUNDS:
        raise TypeError(f"option: bounds are {', '.join(_BOUNDS)}")
    facts = {"help": help, "choices": choices, "bounds": bounds, "later": later}
    return dataclasses.field(default=default, metadata=facts)


@dataclass(frozen=True)
class OptionInfo:
    """One option as data."""

    name: str
    type: str  # "int", "float", "str", "bool"
    many: bool  # whether the value is a tuple of that type
    optional: bool  # whether null is allowed
    required: bool
    default: Any
    help: str
    choices: tuple[Any, ...] | None
    bounds: dict[str, float]
    later: bool = False  # whether records omit the option at its default


def describe_options(cls: type) -> tuple[OptionInfo, ...]:
    """Return the options of a dataclass in the order of definition; a class's own options precede inherited ones."""
    return _options_of(cls)  # a function of its own, because mypy rejects a class as argument of a cached function


@functools.cache  # because Python compiles type hints, which are strings, at each call of get_type_hints
def _options_of(cls: type) -> tuple[OptionInfo, ...]:
    hints, annotations = typing.get_type_hints(cls), inspect.get_annotations(cls)
    infos = []
    for field in sorted(dataclasses.fields(cls), key=lambda field: field.name not in annotations):
        where = f"{cls.__qualname__}.{field.name}"
        kind, required = _parse(hints[field.name], where), field.default is dataclasses.MISSING
        if "help" not in field.metadata:
            raise TypeError(f"{where}: write an option as {field.name}: {kind[0]} = option(default, help='...')")
        info = OptionInfo(field.name, *kind, required, None if required else field.default, **field.metadata)
        for item in info.default if info.many and isinstance(info.default, tuple) else [info.default]:
            if not (required or (item is None and info.optional)) and (reason := _violation(item, info)):
                raise TypeError(f"{where}: its default {item!r} must be {reason}")
        infos.append(info)
    return tuple(infos)


def check_options(instance: Any) -> None:
    """Check every option of a dataclass instance. Raises :class:`UserError` with option, value and bound."""
    for info in describe_options(type(instance)):
        value = getattr(instance, info.name)
        where = f"{getattr(instance, 'name', type(instance).__name__)}.{info.name}"
        if value is None and info.optional:
            continue
        if info.many and not isinstance(value, tuple):
            raise UserError(f"{where} = {value!r} must be a tuple of {info.type}")
        for item in value if info.many else (value,):
            if reason := _violation(item, info):
                raise UserError(f"{where} = {item!r} must be {reason}")


def _violation(value: Any, info: OptionInfo) -> str:
    """Return the condition that a value violates, or "" if it is valid."""
    if (isinstance(value, bool) and info.type != "bool") or not isinstance(value, _ACCEPTED[info.type]):
        return info.type
    if info.choices is not None and value not in info.choices:
        return f"one of {', '.join(map(repr, info.choices))}"
    for key, bound in info.bounds.items():
        satisfied, words = _BOUNDS[key]
        if not satisfied(value, bound):
            return f"{words} {bound:g}"
    return ""


def _parse(hint: Any, where: str) -> tuple[str, bool, bool]:
    """Return the type of an option's values, whether the option is a tuple, and whether null is allowed."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    arms = [arm for arm in typing.get_args(hint) if arm is not type(None)] if union else [hint]
    many = typing.get_origin(arms[0]) is tuple
    base = typing.get_args(arms[0])[0] if many else arms[0]
    if len(arms) > 1 or base not in (bool, int, float, str):
        raise TypeError(f"{where}: an option is bool, int, float or str, optional, or a tuple of them")
    return base.__name__, many, union
