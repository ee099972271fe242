"""An entry of the ledger as a file: what was run and by which code, then a line of correct predictions per round.

A digest makes an edit by hand visible. What compiles reads entries too, so nothing is imported that takes time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from pflcore.errors import UserError
from pflcore.files import write_text
from pipeline.parsing import parse_yaml
from pipeline.spec.run import Run

FACTS: dict[str, Any] = {
    "device": str,
    "torch": str,
    "dataset_hash": str,
    "partition_hash": str,
    "code": str,
    "parameters": int,
    "communicated_up": int,
    "communicated_down": int,
    "stored": int,
    "received": int,
    "server": int,
    "macs": int,
    "positions": int,
    "diverged": dict | None,
    "chosen": dict | None,
}
"""What the header of ``rounds.parquet`` says beside the run's id, each with what it is."""

_HEAD = "# A kept result: not to be edited. `pfl results` lists what is kept, `pfl verify` trains it again.\n"
_MOST = 4_000_000  # bytes; the largest run of all papers takes 150,000


@dataclass(frozen=True)
class Entry:
    """A kept run.

    Attributes:
        run: As it was resolved.
        made_by: Name of a fingerprint of code → its digest, for the engine, dataset, partition, backbone and method.
        obtained: The day, as ``2026-11-22``.
        seconds: How long it trained on an accelerator, or how long cores worked for it; None where that is not known.
        facts: Those of :data:`FACTS`.
        measurements: As :mod:`pipeline.ledger.measurements` writes them.
    """

    run: Run
    made_by: dict[str, str]
    obtained: str
    seconds: float | None
    facts: dict[str, Any]
    measurements: str

    def write(self, path: Path) -> None:
        """Write it as a text file."""
        header = {
            "obtained": self.obtained,
            "seconds": self.seconds,
            "made_by": self.made_by,
            "facts": self.facts,
            "settings": self.run.record,
        }
        text = f"{yaml.dump(header, Dumper=_Dumper, sort_keys=False)}---\n{self.measurements}"
        write_text(path, f"{_HEAD}digest: {_digest(text)}\n{text}")


def read_entry(path: Path) -> Entry:
    """An entry from its file.

    Raises:
        UserError: It is missing, damaged, was edited, or is of another run than its name says.
    """
    shown = os.path.relpath(path)
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{shown}: not a file; move it away")
        with path.open("rb") as file:
            raw = file.read(_MOST + 1)
        if len(raw) > _MOST:
            raise UserError(f"{shown}: larger than any kept result ({_MOST:,} bytes)")
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{shown}: cannot be read ({error})") from None
    digest, _, rest = text.removeprefix(_HEAD).partition("\n")
    if digest != f"digest: {_digest(rest)}":
        raise UserError(f"{shown}: edited by hand, or cut; take it back with `git checkout`, or keep the run anew")
    header, _, measurements = rest.partition("---\n")
    try:
        content = parse_yaml(header)
        entry = Entry(
            run=Run(content["settings"]),
            made_by={str(name): str(digest) for name, digest in content["made_by"].items()},
            obtained=date.fromisoformat(content["obtained"]).isoformat(),
            seconds=None if content["seconds"] is None else float(content["seconds"]),
            facts={name: _fact(name, content["facts"].get(name)) for name in FACTS},
            measurements=measurements,
        )
        name = entry.run.id
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{shown}: not a kept result ({what}); keep the run anew") from None
    if name != path.stem:
        raise UserError(f"{shown}: its settings are those of {name}; rename it")
    return entry


def _fact(name: str, value: Any) -> Any:
    """A fact that is what it should be. Raises ``TypeError``."""
    if not isinstance(value, FACTS[name]) or isinstance(value, bool):
        raise TypeError(f"{name}: {value!r}")
    return value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """What a record shares is written out."""

    ignore_aliases: Callable[..., bool] = staticmethod(lambda data: True)
