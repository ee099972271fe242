"""Shakespeare: the next character of what a role says, from the complete works, LEAF's shards or lists of speeches."""

from __future__ import annotations

from pathlib import Path

from pflcore.data.samples import Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import FOLDER
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import open_files, read_file
from pflcore.datasets._speeches import LEAF_LENGTH, read_plays, read_shards, read_speakers
from pflcore.datasets._text import RoleTexts, read_text
from pflcore.errors import UserError
from pflcore.options import option

ARCHIVE = "1994-01-100.zip"
TEXT = "100.txt"
TINY = Source(
    "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
    "/data/tinyshakespeare/input.txt",
    "sha256",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
# The complete works as LEAF and FedTP took them; no hash of them is public.
_WORKS = Source(f"https://www.gutenberg.org/files/100/old/old/{ARCHIVE}")
_LEAF = "https://github.com/TalwalkarLab/leaf"


@DATASETS.register
class Shakespeare(RoleTexts):
    """Shakespeare's plays, the next of 100 characters, by speaking role.

    A sample is a text of `chunk_len` characters with the one after it, its role the attribute ``role``. By default
    the complete works of 1994 are looked for as ``1994-01-100.zip`` (Project Gutenberg, ``files/100/old/old``) and
    unpacked as ``100.txt``, in this order. No hash of them is published, so none is checked. Roles are those of one
    play, and lines and split are those of the preprocessing that FedTP took from knn-per. LEAF counts 1,129 roles and
    FedTP 683 clients, without saying which; about 60 % of the roles (`role_share`) would explain it.
    """

    citation = (
        "W. Shakespeare, Complete Works (Project Gutenberg 100); roles as clients: S. Caldas et al., LEAF: A Benchmark "
        "for Federated Settings, 2018 (arXiv 1812.01097)"
    )
    licence = "public domain; the 1994 edition: personal use and free distribution only"
    download_size = "5.5 MB; tiny Shakespeare: 1.1 MB"
    homepage = "https://www.gutenberg.org/ebooks/100"
    access = FOLDER
    about = (2_062_679, 515_670)  # FedTP counts 2,578,349 and splits them 80/20
    files = (ARCHIVE, TEXT, "train/*.json", TINY.name)

    source: str = option(
        "gutenberg",
        help="gutenberg: the complete works; leaf: LEAF's JSON shards train/*.json and test/*.json (its lines are "
        "gone, so min_lines is not used); speakers: a text of speeches that begin with a line NAME: and end with a "
        "blank one, by default tiny Shakespeare, which is downloaded.",
        choices=("gutenberg", "leaf", "speakers"),
    )
    file: str = option(
        TINY.name,
        help="Name of the file in the dataset's folder that source: speakers reads; with the default name it must be "
        "tiny Shakespeare.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.file.isprintable() or self.file in ("", ".", "..") or set(self.file) & set("/\\"):
            raise UserError(f"{self.name}.file = {self.file!r} must be the name of a file in the dataset's folder")
        if self.source == "leaf" and self.chunk_len > LEAF_LENGTH:
            raise UserError(
                f"{self.name}.chunk_len = {self.chunk_len} must be at most {LEAF_LENGTH} with source = 'leaf'"
            )

    def data_files(self, folder: Path) -> list[DataFile]:
        """Return the complete works, LEAF's shards, or the text of speeches."""
        if self.source == "gutenberg":
            return [DataFile("complete works", folder, (ARCHIVE, TEXT), _WORKS, "5.5 MB unpacked")]
        if self.source == "leaf":
            return [DataFile("LEAF's shards", folder, ("train/*.json",), Source(_LEAF, file="train, test"))]
        if self.file == TINY.name:
            return [DataFile("speeches", folder, (TINY.name,), TINY, "1.1 MB", needed=True)]
        return [DataFile("speeches", folder, (self.file,))]

    def load(self, folder: Path) -> Samples:
        """Read from `folder`; tiny Shakespeare is downloaded when it is wanted and not there."""
        if self.source == "leaf":
            return self._leaf(folder)
        return self._speakers(folder) if self.source == "speakers" else self._gutenberg(folder)

    def _gutenberg(self, folder: Path) -> Samples:
        path = next((folder / name for name in (ARCHIVE, TEXT) if (folder / name).is_file()), None)
        if path is None:
            raise self.absent(folder, f"{ARCHIVE}, or its {TEXT},")
        if path.name != ARCHIVE:
            inside, data = "", read_file(path)
        else:
            with open_files(path, lambda name: name.lower().endswith(".txt")) as files:
                if len(files) != 1:
                    raise UserError(f"{path}: holds {len(files)} text files, expected one, {TEXT}; get it again")
                ((name, read),) = files.items()
                inside, data = f"/{name}", read()
        where = f"{path}{inside}"
        lines = read_plays(read_text(data, where), where)
        return self.from_lines(lines, where=where, source=f"{path.name}{inside}")

    def _speakers(self, folder: Path) -> Samples:
        path = folder / self.file
        if self.file == TINY.name:
            path = TINY.obtain(folder, "any other text of speeches, and name it by the option file")
        elif not path.is_file():
            raise UserError(f"{path}: no such file; put it there, or name another by the option file")
        lines = read_speakers(read_text(read_file(path), str(path)), str(path))
        return self.from_lines(lines, where=str(path), source=path.name)

    def _leaf(self, folder: Path) -> Samples:
        train, test = (sorted(folder.glob(f"{name}/*.json")) for name in ("train", "test"))
        if not train or not test:
            raise UserError(
                f"{folder}: no train/*.json and test/*.json; make LEAF's shakespeare with {_LEAF} and put both there"
            )
        windows = read_shards(train, test, self.chunk_len)
        if not windows:
            raise UserError(f"{folder}: the JSON files hold no users; run LEAF's preprocessing again")
        kept = {name: windows[name] for name in self.draw(list(windows))}
        return self.from_windows(kept, where=str(folder), source="LEAF train/*.json and test/*.json")
