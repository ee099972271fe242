"""The workspace, a folder with specs, generated stages, artifacts and reports, and the paths of each of them.

All paths in generated files are relative to the workspace, so the same specs compile to the same bytes in any place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pflcore.errors import UserError
from pflcore.registry import did_you_mean

PAPER = "paper"
PROFILES = [PAPER, "smoke"]
RESULTS = "results"
COUNTING = "pipeline.report.counting"  # counts quantities that need no training; loaded late, as it imports torch
COUNTS = ".pfl/counts"  # quantities that have been counted, a file per run that differs
KEPT_STAGES = "stages/kept/dvc.yaml"  # the stage file of results from the ledger
TABLES = "stages/tables"
CODE = "stages/code.yaml"  # digests of code, which stage files refer to
RECORDS = "stages/records.json"  # settings of runs, federations, datasets, selections and pretrained weights, by line
RUNS = "artifacts/runs"
PARTITION_REPORTS = "reports/partitions"
PAPERS = "reports/papers"
INDEX = "reports/index.html"


@dataclass(frozen=True)
class Workspace:
    """Paths of a workspace.

    A profile other than ``paper`` has a separate workspace below ``build/`` of the home, so trial runs never mix with
    the real ones. For ``paper``, `root` and `home` are the same.
    """

    root: Path  # the folder where DVC runs; relative paths begin there
    home: Path  # the folder with `specs/` and `pyproject.toml`
    profile: str = PAPER

    @classmethod
    def find(cls, start: Path | None = None, profile: str = PAPER) -> Workspace:
        """Return the workspace around `start` (default: the current folder).

        Its home is the nearest folder whose pyproject.toml has a section ``[tool.pfl]``. If there is none, it is
        `start` if that has `specs/`, or else the nearest folder above with `specs/` and `.pfl/`: other projects have
        folders called `specs` too. Raises :class:`UserError` if there is none, the path has braces, or the profile
        is unknown.
        """
        if profile not in PROFILES:
            raise UserError(f"unknown profile {profile!r}{did_you_mean(profile, PROFILES)}")
        start = (start or Path.cwd()).absolute()
        if set("{}") & set(str(start)):
            raise UserError(f"{start}: DVC fails where a path has braces; rename the folder, or begin elsewhere")
        folders = (start, *start.parents)
        with_section = [folder for folder in folders if _has_pfl_section(folder / "pyproject.toml")]
        with_specs = [folder for folder in folders if (folder / "specs").is_dir()]
        homes = with_section + [folder for folder in with_specs if folder == start or (folder / ".pfl").is_dir()]
        if not homes:
            problem = "neither here nor above is a pyproject.toml with [tool.pfl] or a folder specs/"
            raise UserError(f"{start}: {problem}; go to a study, or make one with `pfl init NAME`")
        home = homes[0]
        return cls(home if profile == PAPER else home / "build" / profile, home, profile)

    @property
    def specs(self) -> Path:
        return self.home / "specs"

    @property
    def stages(self) -> Path:
        return self.root / "stages"

    @property
    def private(self) -> Path:
        """The folder of this machine's private files: checkpoints, timings, caches. Never in git, never in DVC."""
        return self.root / ".pfl"


def _has_pfl_section(path: Path) -> bool:
    """Return whether a pyproject.toml has the section of a study, even if it is not valid TOML."""
    section = re.compile(r"^\s*\[\s*tool\s*\.\s*pfl\s*\]", re.MULTILINE)
    return path.is_file() and bool(section.search(path.read_text("utf-8", errors="replace")))


def raw_data_folder(root: Path) -> Path:
    """Return the folder of raw datasets, one subfolder each: ``$PFL_DATA``, or ``data/`` in the workspace.

    It differs between machines, so neither specs nor commands of stages contain it.
    """
    return Path(os.environ.get("PFL_DATA") or root / "data").expanduser()


# Paths of artifacts, stage files and reports by id, relative to the workspace.
_Path = Callable[[str], str]
dataset_path: _Path = "artifacts/data/{}.parquet".format
partition_path: _Path = "artifacts/partitions/{}.parquet".format
selection_path: _Path = "artifacts/selections/{}.json".format
weights_path: _Path = "artifacts/weights/{}.safetensors".format
frame_path: _Path = "artifacts/tables/{}".format  # the folder with the tidy frame of a spec's runs
shard_path: _Path = "stages/federations/{}/dvc.yaml".format  # the stage file of a federation and its runs
table_path: _Path = f"{TABLES}/{{}}.json".format  # the resolved table of a spec
partition_report_path: _Path = f"{PARTITION_REPORTS}/{{}}".format
report_path: _Path = "reports/{}".format


def run_path(run_id: str, name: str) -> str:
    return f"{RUNS}/{run_id}/{name}"


def partition_report_files(federation_id: str) -> list[str]:
    """Return the files of a partition's page. They are listed one by one, as users may put files into the folder."""
    names = ("index.md", "index.html", "picture.svg", "clients.csv")
    return [f"{partition_report_path(federation_id)}/{name}" for name in names]


def report_files(spec_id: str) -> list[str]:
    """Return the files of a spec's report; the last two are folders. Other files beside them belong to the user."""
    tables = ("table.tex", "table.csv", "table.parquet", "results.csv", "results.parquet")
    names = ("report.md", "report.html", "report.tex", *tables, "figures", "metrics")
    return [f"{report_path(spec_id)}/{name}" for name in names]


def timings_path(spec_id: str) -> Path:
    """Return the file with the durations of a spec's runs."""
    return Path(".pfl", "timings", f"{spec_id}.md")
