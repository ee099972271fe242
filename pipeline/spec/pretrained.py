"""Files that are part of a run by what is in them, and not by where they lie: pretrained weights, splits.

So the same file elsewhere is the same run, and another file under the same name is another. Where weights are absent
the run is named after their place until they are there: the spec is valid, and only the stage that reads them fails.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.spec.run import ABSENT

_NAME = re.compile(r"[\w+=@,][\w.+=@, -]*")  # what neither DVC nor a file system takes for anything but a name
_WRITTEN = ("artifacts", "build", "reports", "stages")  # by stages


@dataclass
class Weights:
    """The files of weights that specs name, relative to `home`: content → path, of several the first named."""

    home: Path
    paths: dict[str, str] = field(default_factory=dict)

    def content(self, path: str) -> str:
        """Return what stands for the file in a run. Raises ``ValueError`` for a path that is none of the project."""
        plain = all(map(_NAME.fullmatch, path.split("/")))
        if not plain or not (self.home / path).resolve().is_relative_to(self.home.resolve()):
            raise ValueError("must be a path inside the project, of plain names with forward slashes between them")
        if path.split("/")[0] in _WRITTEN:  # the guard, which comes before all stages, depends on the file
            raise ValueError(f"lies in {path.split('/')[0]}/, where stages write; copy it to a folder of its own")
        content = content_of(self.home, path)
        self.paths.setdefault(content, path)
        return content


def content_of(home: Path, path: str) -> str:
    """Return ``sha256:<64 hex digits>`` of a file, given relative to `home`, or ``absent:<path>``."""
    try:
        with (home / path).open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError:
        return f"{ABSENT}{path}"
