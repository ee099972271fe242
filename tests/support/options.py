"""What every option accepts and is by default: ``python -m support.options`` writes the table anew."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pflcore.analyses import ANALYSES
from pflcore.backbones import BACKBONES
from pflcore.datasets import DATASETS
from pflcore.methods import METHODS, Method
from pflcore.options import describe_options
from pflcore.partitions import PARTITIONS, Partition
from pflcore.settings import Evaluation, Training
from support.recorded import record

FILE = Path(__file__).parents[1] / "pflcore" / "options.csv"
COLUMNS = ("of", "option", "type", "default", "bounds", "choices", "acts")
KINDS = {"analysis": ANALYSES, "backbone": BACKBONES, "dataset": DATASETS, "method": METHODS, "partition": PARTITIONS}


def classes() -> dict[str, type]:
    """Entries of all registries, what they inherit options from, and the settings, by a name for the table."""
    found: dict[str, type] = {"training": Training, "evaluation": Evaluation}
    for kind, registry in KINDS.items():
        for name in registry.names():
            entry = registry.get(name)
            for cls in entry.__mro__[1:]:
                if "__dataclass_fields__" in vars(cls):
                    found.setdefault(f"{kind}: {cls.__name__}", cls)
            found[f"{kind} {name}"] = entry
    return dict(sorted(found.items()))


def rows() -> Iterator[tuple[str, ...]]:
    """Options at the class that defines them, what `smoke` makes of them, and what entries say of themselves."""
    for name, cls in classes().items():
        own, fields = inspect.get_annotations(cls), {option.name for option in describe_options(cls)}
        for option in describe_options(cls):
            if option.name not in own:
                continue
            form = f"{option.type}{'s' * option.many}{' or null' * option.optional}"
            bounds = " ".join(f"{key} {bound:g}" for key, bound in option.bounds.items())
            default = "required" if option.required else _text(option.default)
            yield (
                name,
                option.name,
                form,
                default,
                bounds,
                " ".join(map(_text, option.choices or ())),
                "later" * option.later,
            )
        if small := vars(cls).get("smoke"):
            yield name, "(smoke)", "", _text(dict(small)), "", "", ""
        if issubclass(cls, Method | Partition):
            for said, value in vars(cls).items():
                if (
                    said[0] != "_"
                    and said not in {*fields, "citation", "name"}
                    and isinstance(value, int | str | tuple)
                ):
                    yield name, f"({said})", "", _text(value), "", "", ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    record(FILE, COLUMNS, rows())
