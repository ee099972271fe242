"""Reading files that others made: errors as one line, packed archives, pickles of arrays alone, tables of images."""

from __future__ import annotations

import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pflcore.errors import UserError
from pflcore.files import check_plain, is_lfs_pointer, parse_json
from pflcore.files import read_file as read_bytes

Read = Callable[[], bytes]
"""Return a file's content."""

MAX_FILE_BYTES = 2**28
GET_AGAIN = "delete it and get it again, with `pfl fetch` where it can be downloaded"


@contextmanager
def reading(path: Path | str, advice: str = GET_AGAIN) -> Iterator[None]:
    """Raise whatever a library raises in the block as one :class:`UserError` that names the file."""
    try:
        if Path(path).exists() and not Path(path).is_dir():
            check_plain(Path(path))
        yield
    except UserError:
        raise
    except Exception as error:  # readers of damaged files raise almost anything
        raise UserError(f"{path}: {describe(error, Path(path))}; {advice}") from None


def describe(error: Exception, file: Path | bytes) -> str:
    """Say in a few words why a file, or its content, could not be read."""
    if is_lfs_pointer(file):
        return "a pointer of git LFS; `git lfs pull` gets the content"
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, KeyError):
        return f"has no {error.args[0]}"
    return f"cannot be read ({' '.join(str(error).split())[:200] or type(error).__name__})"


def read_file(path: Path) -> bytes:
    """Return the content of a file of one image, list or batch."""
    return read_bytes(path, MAX_FILE_BYTES)


@contextmanager
def open_files(place: Path, wanted: Callable[[str], object]) -> Iterator[dict[str, Read]]:
    """Open a folder, a zip or a tar, and yield a reader for each wanted file, by its name within; for one thread.

    Nothing is unpacked to the disk, and a member whose name leaves the archive is refused. The files of a compressed
    tar, which can be read only from its start, stay in memory.
    """
    if place.is_dir():
        walked = ((inside, name) for inside, _, names in os.walk(place, followlinks=True) for name in names)
        names = sorted((Path(inside) / name).relative_to(place).as_posix() for inside, name in walked)
        yield {name: partial(read_file, place / name) for name in names if wanted(name)}
        return
    files: dict[str, Read] = {}
    with reading(place):
        archive: Any = (zipfile.ZipFile if place.suffix == ".zip" else tarfile.open)(place)
    with archive:
        with reading(place):
            zipped = isinstance(archive, zipfile.ZipFile)
            packed = not zipped and not isinstance(archive.fileobj, BufferedReader)
            for member in archive.infolist() if zipped else archive:
                name = member.filename if zipped else member.name
                if name.startswith(("/", "\\")) or ".." in PurePosixPath(name.replace("\\", "/")).parts:
                    raise ValueError(f"its member {name!r} points outside of the archive")
                if wanted(name) and (not member.is_dir() if zipped else member.isfile()):
                    read = partial(_read_member, place, archive, member)
                    files[name] = partial(bytes, read()) if packed else read
        yield files


def _read_member(place: Path, archive: Any, member: Any) -> bytes:
    with reading(place), archive.open(member) if hasattr(archive, "infolist") else archive.extractfile(member) as file:
        data: bytes = file.read()
        return data


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickle containers, texts, numbers and NumPy arrays, and refuse whatever else a pickle asks for."""

    allowed = frozenset(
        {("numpy", "dtype"), ("numpy", "ndarray")}
        | {(f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")}
        | {(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")}
    )

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"refused: the pickle asks for {module}.{name}")
        return super().find_class(module, name)


def load_pickle(data: bytes, where: str) -> Any:
    """Return what a pickle of arrays holds; texts of Python 2 become str."""
    with reading(where):
        return _ArrayUnpickler(BytesIO(data), encoding="latin1").load()


@dataclass(frozen=True, eq=False)
class ImageTable:
    """A table of encoded images, and columns of integers or texts by their names.

    `class_names` are those of the integers of the first column, where the file has them.
    """

    path: Path
    images: pa.ChunkedArray
    columns: dict[str, list[int] | list[str]]
    class_names: tuple[str, ...]

    def readers(self) -> list[tuple[str, Read]]:
        """Return what messages call each image, and what gives its bytes."""
        return [(f"{self.path}: row {row}", image.as_py) for row, image in enumerate(self.images)]


def read_table(path: Path, image: str, columns: Sequence[str]) -> ImageTable:
    """Read a Parquet file with a column of encoded images, and others of integers or texts, the labels first.

    Images are binary, or structs with a binary field ``bytes``. Names of integer labels are in the metadata of exports
    of the Hugging Face library ``datasets``.
    """

    def suits(name: str, kinds: Sequence[Callable[[pa.DataType], bool]]) -> bool:
        if len(schema.get_all_field_indices(name)) != 1:
            return False
        kind = schema.field(name).type
        if name == image and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        kind = kind.value_type if name != image and pa.types.is_dictionary(kind) else kind
        return any(fits(kind) for fits in kinds)

    with reading(path):
        schema = pq.read_schema(path)
        has = ", ".join(f"{field.name:.40}: {field.type!s:.60}" for field in list(schema)[:12])
        words = pa.types.is_integer, pa.types.is_string, pa.types.is_large_string
        for name, what, kinds in (
            (image, "binary or struct<bytes: binary>", (pa.types.is_binary, pa.types.is_large_binary)),
            *((name, "integers or text", words) for name in columns),
        ):
            if not suits(name, kinds):
                raise UserError(f"{path}: needs a column {name!r} of {what}, has {has}")
        table = pq.read_table(path, columns=list(dict.fromkeys([image, *columns])), partitioning=None)
        images = pc.struct_field(table[image], "bytes") if pa.types.is_struct(table[image].type) else table[image]
        values = {name: table[name].to_pylist() for name in columns}
    for name, nulls in ((image, images.null_count), *((name, table[name].null_count) for name in columns)):
        if nulls:
            raise UserError(f"{path}: column {name!r} holds {nulls} nulls")
    if not table.num_rows:
        raise UserError(f"{path}: holds no images; remove it or export it again")
    return ImageTable(path, images, values, _class_names(path, schema.metadata or {}, columns[0]))


def _class_names(path: Path, metadata: dict[bytes, bytes], label: str) -> tuple[str, ...]:
    try:
        names = parse_json(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or len(set(names)) < len(names):
        raise UserError(f"{path}: the metadata's names for column {label!r} are not distinct texts; export it again")
    return tuple(names)
