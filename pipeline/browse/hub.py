"""Datasets of the Hugging Face hub: download of a repository's Parquet files, which the dataset `image_table` reads."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from rich.console import Console
from rich.markup import escape

from pflcore.data.preparation import preparing
from pflcore.datasets._download import fetch
from pflcore.errors import UserError
from pflcore.files import digest_of
from pipeline.progress import show_preparation
from pipeline.workspace import raw_data_folder

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo, RepoSibling

PREFIX = "hf:"
_ADDRESS = re.compile(r"hf:(?P<repository>[\w.-]+/(?P<name>\w[\w.-]*))(?:/(?P<folder>[^@]+))?(?:@(?P<revision>.+))?")


def fetch_from_hub(address: str, home: Path, console: Console) -> None:
    """Download ``hf:OWNER/NAME[/FOLDER][@REVISION]`` into the data folder NAME, and print how a spec names it.

    A file that already has the hash stated by the hub is not downloaded again; a partial ``<file>.part`` is continued.
    Raises :class:`UserError` for a wrong address, a repository without a clear folder of Parquet files, a wrong hash,
    other Parquet files in the data folder, and any refusal of the hub.
    """
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    if not (match := _ADDRESS.fullmatch(address)):
        raise UserError(f"{address}: must be hf:OWNER/NAME, with /FOLDER and @REVISION where they are needed")
    repository, folder = match["repository"], raw_data_folder(home) / match["name"]
    try:
        hub = HfApi()
        info = hub.dataset_info(repository, revision=match["revision"], files_metadata=True)
        files = _files(address, info, match["folder"])
        if others := {path.name for path in folder.glob("*.parquet")} - files.keys():
            raise UserError(f"{folder}: holds {min(others)}, which is none of {address}; move it away")
        for name, file in files.items():
            if not _has_stated_hash(folder / name, file):
                part = folder / f"{name}.part"
                folder.mkdir(parents=True, exist_ok=True)
                url = hf_hub_url(repository, file.rfilename, repo_type="dataset", revision=info.sha)
                with show_preparation() as show, preparing(show, None):
                    fetch(hub.get_hf_file_metadata(url=url).location, part)
                if not _has_stated_hash(part, file):
                    part.unlink()
                    raise UserError(f"{address}: what was sent of {file.rfilename} has a wrong hash; try again")
                part.replace(folder / name)
            line = f"{name}: here, {folder / name} ({file.size:,} bytes; hash as the hub states it)"
            console.print(escape(line), highlight=False)
    except UserError:
        raise
    except (RepositoryNotFoundError, HFValidationError):  # or one whose owner asks for consent
        reason = "the hub has no such dataset, or it needs consent, given on its page, and HF_TOKEN; check the name"
        raise UserError(f"{address}: {reason}") from None
    except RevisionNotFoundError:
        raise UserError(f"{address}: has no revision {match['revision']!r}; name a branch, tag or commit") from None
    except Exception as error:  # releases of the hub's client use different HTTP libraries
        reason = f"could not be fetched ({type(error).__name__}); check network and disk, and type the same again"
        raise UserError(f"{address}: {reason}") from None
    columns = ", ".join(pq.read_schema(folder / next(iter(files))).names)
    spec = f"{{name: image_table, path: {match['name']}, version: {str(info.sha)[:8]!r}}}"
    console.print(escape(f"dataset: {spec}  # its columns, for image, label and domain: {columns}"), highlight=False)


def _files(address: str, info: DatasetInfo, folder: str | None) -> dict[str, RepoSibling]:
    """Return local name → Parquet file. The name is the file's path below the folder, with dashes for slashes."""
    siblings = {PurePosixPath(file.rfilename): file for file in info.siblings or []}
    parquet_files = {path: file for path, file in siblings.items() if path.suffix == ".parquet"}
    if not parquet_files:
        raise UserError(f"{address}: has no Parquet files; try @refs/convert/parquet, where the hub keeps some")
    folders = sorted({str(path.parent) for path in parquet_files})
    root = PurePosixPath(folder or os.path.commonpath(folders))
    inside = {path.relative_to(root): file for path, file in parquet_files.items() if path.is_relative_to(root)}
    files = {"-".join(path.parts): file for path, file in inside.items()}
    if not any(name.startswith("train") for name in files):
        raise UserError(f"{address}: no train*.parquet; it has the folders {', '.join(folders)}: name one as /FOLDER")
    return dict(sorted(files.items()))


def _has_stated_hash(path: Path, file: RepoSibling) -> bool:
    """Return whether a file exists with the hub's hash: SHA-256 for git LFS files, git's blob hash for others."""
    if not path.is_file():
        return False
    if file.lfs:
        return digest_of(path) == file.lfs.sha256
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == file.blob_id
