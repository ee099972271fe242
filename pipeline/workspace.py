"""The workspace: the folder that holds specs, generated stages, artifacts and reports, and where each of them lies.

All paths in generated files are relative to it, so the same specs compile to the same bytes wherever it is.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pflcore.errors import UserError

PAPER = "paper"
RESULTS = "results"
COUNTING = "pipeline.report.counting"  # counts what is known before a run is trained; loaded late, as it imports torch
COUNTS = ".pfl/counts"  # what quantities have been counted, a file per run that differs
KEPT_STAGES = "stages/kept/dvc.yaml"  # the stage file of what is taken from the ledger
TABLES = "stages/tables"
CODE = "stages/code.yaml"  # digests of code, which stage files name
RECORDS = "stages/records.json"  # settings of runs, federations, datasets, selections and pretrained weights, by line
RUNS = "artifacts/runs"
PARTITION_REPORTS = "reports/partitions"
PAPERS = "reports/papers"
INDEX = "reports/index.html"


@dataclass(frozen=True)
class Workspace:
    """Paths of a workspace.

    A profile other than ``paper`` has a workspace of its own below ``build/`` of the home, so that trial runs never mix
    with the real ones; otherwise `root` and `home` are the same.
    """

    root: Path  # where DVC runs and where all relative paths begin
    home: Path  # with `specs/` and `pyproject.toml`
    profile: str = PAPER

    @classmethod
    def find(cls, start: Path | None = None, profile: str = PAPER) -> Workspace:
        """Return the workspace around `start` (default: the current folder). Raise :class:`UserError` if there is none.

        Its home is the nearest folder whose pyproject.toml has a section ``[tool.pfl]``. Without any it is `start`, if
        that has `specs/`, or the nearest folder above with `specs/` in which pfl has been at work: others have folders
        of that name too, and nothing is to be written there.
        """
        start = (start or Path.cwd()).absolute()
        if set("{}") & set(str(start)):
            raise UserError(f"{start}: DVC fails where a path has braces; rename the folder, or begin elsewhere")
        above = (start, *start.parents)
        marked = [folder for folder in above if _is_marked(folder / "pyproject.toml")]
        used = [one for one in above if (one == start or (one / ".pfl").is_dir()) and (one / "specs").is_dir()]
        if not marked + used:
            what = "neither here nor above is a pyproject.toml with [tool.pfl] or a folder specs/"
            raise UserError(f"{start}: {what}; go to a study, or make one with `pfl init NAME`")
        home = (marked + used)[0]
        return cls(home if profile == PAPER else home / "build" / profile, home, profile)

    @property
    def specs(self) -> Path:
        return self.home / "specs"

    @property
    def stages(self) -> Path:
        return self.root / "stages"

    @property
    def private(self) -> Path:
        """What belongs to this machine alone: checkpoints, timings, caches. Never in git, never in DVC."""
        return self.root / ".pfl"


def _is_marked(path: Path) -> bool:
    """Return whether a pyproject.toml has the section of a study, also one that TOML cannot read."""
    section = re.compile(r"^\s*\[\s*tool\s*\.\s*pfl\s*\]", re.MULTILINE)
    return path.is_file() and bool(section.search(path.read_text("utf-8", errors="replace")))


def raw_data_folder(root: Path) -> Path:
    """Return where raw data sets lie, one folder each: ``$PFL_DATA``, or ``data/`` in the workspace.

    It differs between machines and is therefore no part of a spec or of a stage's command.
    """
    return Path(os.environ.get("PFL_DATA") or root / "data")


# Artifacts, stage files and reports by their ids, relative to the workspace.


def dataset_path(data_id: str) -> str:
    return f"artifacts/data/{data_id}.parquet"


def partition_path(federation_id: str) -> str:
    return f"artifacts/partitions/{federation_id}.parquet"


def selection_path(selection_id: str) -> str:
    return f"artifacts/selections/{selection_id}.json"


def weights_path(weights_id: str) -> str:
    return f"artifacts/weights/{weights_id}.safetensors"


def run_path(run_id: str, name: str) -> str:
    return f"{RUNS}/{run_id}/{name}"


def frame_path(spec_id: str) -> str:
    """Return the folder of the tidy frame of a spec's runs."""
    return f"artifacts/tables/{spec_id}"


def shard_path(federation_id: str) -> str:
    """Return the stage file of a federation and its runs."""
    return f"stages/federations/{federation_id}/dvc.yaml"


def table_path(spec_id: str) -> str:
    """Return the resolved table of a spec."""
    return f"{TABLES}/{spec_id}.json"


def partition_report_path(federation_id: str) -> str:
    return f"{PARTITION_REPORTS}/{federation_id}"


def partition_report_files(federation_id: str) -> list[str]:
    """Return what a partition's page consists of. Not the folder, where anything of a person's own may lie."""
    names = ("index.md", "index.html", "picture.svg", "clients.csv")
    return [f"{partition_report_path(federation_id)}/{name}" for name in names]


def report_path(spec_id: str) -> str:
    return f"reports/{spec_id}"


def report_files(spec_id: str) -> list[str]:
    """Return what a spec's report consists of, the last two being folders; what else is there is a person's own."""
    tables = ("table.tex", "table.csv", "table.parquet", "results.csv", "results.parquet")
    names = ("report.md", "report.html", "report.tex", *tables, "figures", "metrics")
    return [f"{report_path(spec_id)}/{name}" for name in names]


def timings_path(spec_id: str) -> Path:
    """Return where the durations of a spec's runs are written."""
    return Path(".pfl", "timings", f"{spec_id}.md")
