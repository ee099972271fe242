"""The base class of datasets: facts that are known before loading, and a loader."""

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pflcore.data.samples import ARRAYS, IMAGES, TEXT, Attribute, Bytes, Inputs, Mask, Rows, Samples, check_labels
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import Files, Read, open_files
from pflcore.errors import UserError
from pflcore.options import option
from pflcore.registry import Entry

INCLUDED, DOWNLOAD, FOLDER = "included", "download", "folder"
HALF = (0.5, 0.5, 0.5)
DIGITS = tuple("0123456789")
Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Dataset(Entry, ABC):
    """Base of the datasets: images of one size, texts of one length, or arrays of one shape, with one label each.

    Facts that depend on options are properties, so that a subclass can compute them. Absent, incomplete or damaged data
    raises a :class:`UserError` of one line with its path.
    """

    # (channels, height, width) as distributed, (3, 0, 0) for images of various sizes; (length,) of a text; or the shape
    # of an array, where 0 is a size that is known only after loading.
    original: ClassVar[tuple[int, ...]]
    # Both are empty if known only after loading; `attributes` maps names to the names of their values.
    class_names: ClassVar[Names] = ()
    attributes: ClassVar[dict[str, Names]] = {}
    # Numbers of training and test samples; if they are known only after loading, estimates for planning.
    counts: ClassVar[tuple[int, int] | None] = None
    estimated_counts: ClassVar[tuple[int, int] | None] = None
    # Per channel, of pixels scaled to 0..1.
    mean: ClassVar[tuple[float, ...]] = ()
    std: ClassVar[tuple[float, ...]] = ()
    standardise: ClassVar[bool] = False  # whether training scales arrays to mean 0 and std 1 per channel
    detects: ClassVar[bool] = False  # whether its samples have boxes, which a detector is trained on
    licence: ClassVar[str] = "not stated"
    homepage: ClassVar[str] = ""  # page from which a person downloads it
    # "included" with an installed library, by "download", or in a "folder" that the user fills
    access: ClassVar[str] = FOLDER
    download_size: ClassVar[str] = ""  # in words, e.g. "170 MB"
    # Alternative patterns of files in its folder; one match is enough. A pattern of a folder ends with a slash.
    files: ClassVar[Names] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one model input, under the options ``size`` and ``channels`` if the dataset has them."""
        if self.kind != IMAGES:
            return self.original
        channels, height, width = self.original
        size = getattr(self, "size", None)
        return getattr(self, "channels", channels), size or height, size or width

    @property
    def kind(self) -> str:
        """Return the kind of its samples: "images", "text" or "arrays"."""
        return TEXT if len(self.original) == 1 else IMAGES

    @property
    def expected(self) -> tuple[int, int] | None:
        """Return the numbers of training and test samples under the options; None if known only after loading."""
        return self.counts

    @property
    def classes(self) -> int:
        """Return the number of classes; 0 if known only after loading."""
        return len(self.class_names)

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and std under the options."""
        return self.mean, self.std

    def available(self, folder: Path) -> bool:
        """Return whether all files that are read under the options are on this machine."""
        return all(file.path for file in self.data_files(folder))

    def data_files(self, folder: Path) -> list[DataFile]:
        """Return the files that are read under the options; none for an included dataset."""
        if self.access == INCLUDED:
            return []
        manual = self.access == FOLDER and self.homepage and self.files
        source = Source(self.homepage, file=self.files[0]) if manual else None
        return [DataFile(self.name, folder, self.files, source, self.download_size, automatic=self.access == DOWNLOAD)]

    @abstractmethod
    def load(self, folder: Path) -> Samples:
        """Return the complete dataset, read from its `folder` among the user's data.

        The folder is created only for a download. The folders of other datasets are beside it.
        """

    def generate_attributes(self, labels: Rows, rng: np.random.Generator) -> dict[str, Attribute]:
        """Return attributes for generated samples with the given labels; by default independent of the labels."""
        generated = {}
        for name, values in self.attributes.items():
            values = values or tuple(f"{name} {number}" for number in range(8))
            # Values occur equally often, up to one sample.
            generated[name] = Attribute(rng.permutation(np.arange(len(labels)) % len(values)), values)
        return generated

    def complete(
        self,
        inputs: Inputs,
        labels: Rows,
        train: Mask,
        *,
        where: str,
        source: str,
        class_names: Names = (),
        **fields: Any,
    ) -> Samples:
        """Return the arrays as :class:`Samples`; `class_names` are ignored if the dataset's class states its own.

        `fields` are further fields. Raises :class:`UserError` for another number than :attr:`expected`, or bad labels.
        """
        count = int(np.count_nonzero(train))
        actual, expected = (count, len(train) - count), self.expected
        if expected and actual != expected and train.dtype == bool:  # other types are refused below
            counts = f"{expected[0]:,} training and {expected[1]:,} test samples, found {actual[0]:,} and {actual[1]:,}"
            raise UserError(f"{where}: {self.name} has {counts}; put the complete data there")
        names = self.class_names or class_names
        check_labels(labels, len(names), where)
        _check_lookalikes(class_names, f"{where}: the classes")
        for name, attribute in fields.get("attributes", {}).items():
            check_labels(attribute.values, len(attribute.names), f"{where}: {name}")
            _check_lookalikes(attribute.names, f"{where}: the values of {name}")
        fields["standardise"] = self.standardise
        return Samples(inputs, labels, train, self.name, names, *self.normalisation, source, **fields)

    def join(self, parts: Sequence[tuple[Bytes, Rows]], where: Path, source: str, **fields: Any) -> Samples:
        """Concatenate parts, pairs of inputs and labels, and :meth:`complete` them; the last part is the test set."""
        inputs, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        train = np.arange(len(labels)) < len(labels) - len(parts[-1][1])
        return self.complete(inputs, labels, train, where=str(where), source=source, **fields)

    @contextmanager
    def open(self, folder: Path, archives: Sequence[Source], inside: str, parts: Names) -> Iterator[tuple[Files, str]]:
        """Open the folder `inside` of archives, or the unpacked folder if no archive is present; read only `parts`.

        The unpacked folder is `inside`, its last component, or `folder` itself. Missing archives are downloaded if
        possible. Yield the files, by their names below the folder `inside`, and their source for reports.
        """
        if not any((folder / source.name).is_file() for source in archives):
            for place in (inside, inside.rpartition("/")[2], "."):
                if (folder / place / parts[-1]).exists():
                    with open_files(folder / place, parts) as files:
                        yield files, place
                    return
        alternatives = f"the folder {inside}, or what is in it: {', '.join(parts)}"
        readers: dict[str, Read] = {}
        with ExitStack() as stack:
            paths = [source.obtain(folder, alternatives) for source in archives]
            for path in paths:
                readers |= stack.enter_context(open_files(path, parts, f"{inside}/")).readers
            where = str(paths[0] if len(paths) == 1 else folder)
            yield Files(where, readers), ", ".join(path.name for path in paths)


@dataclass(frozen=True, kw_only=True)
class ArrayDataset(Dataset):
    """Base of the datasets of features [n, d], signals [n, channels, time] and other arrays of floats.

    A subclass states the shape of one sample in ``original``; 0 stands for a size that is known only after loading.
    """

    results_version: ClassVar[int] = 2  # 1 had other generated samples

    standardise: bool = option(  # type: ignore[misc]
        True,
        help="Bring channels, or single features, to mean 0 and std 1 over training samples of clients that train.",
    )

    @property
    def kind(self) -> str:
        return ARRAYS


def encode(words: Sequence[str], names: Sequence[str]) -> Rows:
    """Return the index in `names` of each word: int64 [n]."""
    codes = {name: code for code, name in enumerate(names)}
    return np.fromiter((codes[word] for word in words), np.int64, len(words))


def _check_lookalikes(names: Names, where: str) -> None:
    """Raise :class:`UserError` for names that look the same to the reader of a report."""
    by_look: dict[str, str] = {}
    for name in names:
        visible = "".join(character for character in name if unicodedata.category(character) != "Cf")
        other = by_look.setdefault(" ".join(unicodedata.normalize("NFC", visible).split()), name)
        if other != name:
            raise UserError(f"{where} {other!a} and {name!a} look the same; rename one")


def check_distinct(entry: Entry, option: str, allow_empty: bool = False) -> None:
    """Raise :class:`UserError` unless the names in an option are distinct, and there is one or `allow_empty`."""
    names: Names = getattr(entry, option)
    if len(set(names)) < len(names) or not (names or allow_empty):
        minimum = "" if allow_empty else ", one at least"
        raise UserError(f"{entry.name}.{option} = {list(names)} must be distinct names{minimum}")


def check_file_name(entry: Entry, option: str, description: str) -> None:
    """Raise :class:`UserError` unless an option is a plain file name; `description` is what the message calls it."""
    name: str = getattr(entry, option)
    if not name.isprintable() or name in ("", ".", "..") or set(name) & set("/\\"):
        raise UserError(f"{entry.name}.{option} = {name!r} must be the name of {description}")
