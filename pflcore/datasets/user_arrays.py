"""A user's own numbers: a table of features, or arrays of any shape in a NumPy file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from pflcore.data.samples import SPLITS, Attribute, Inputs, Mask, Samples, as_floats
from pflcore.datasets import DATASETS
from pflcore.datasets._base import ArrayDataset, check_distinct, check_file_name
from pflcore.datasets._files import reading
from pflcore.datasets._user_files import UserFiles, duplicates_note, name_classes
from pflcore.errors import UserError
from pflcore.options import option

_RESERVED = ("input", "label", "split", "boxes")  # columns of the dataset artifact; attributes need other names
_INDEX = ("", "__index_level_0__")  # names of the index column that pandas writes, in CSV and in Parquet
_UNNAMED = "Unnamed: 0"  # the name of an index that pandas wrote, read and wrote again
_PLAIN = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
_FOREIGN = r"^[\pZ+\x{2212}$€£-]*\d+([.,']\d{3})*([.,]\d+)?[\pZ%$€£]*$"  # such as 0,5 or $1,234 or 5 %
_MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")


@dataclass(frozen=True, kw_only=True)
class UserArrays(ArrayDataset, UserFiles):
    """Base of the datasets of a user's own numbers; classes and counts are known only after loading."""

    citation = "none: the user's own numbers"
    original = (0,)

    file: str = option("", help="The name of the file; empty: the only one of its kind in the folder.")
    label: str = option("label", help="What holds the labels: integers from 0 on, or texts.")
    attribute_columns: tuple[str, ...] = option(
        (), help="What else is known of each sample, such as a person: attributes that a partition can go by."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct(self, "attribute_columns", allow_empty=True)
        if self.file:
            check_file_name(self, "file", "a file in the folder")
            object.__setattr__(self, "files", (self.file,))
        if reserved := [name for name in self.attribute_columns if name in _RESERVED]:
            raise UserError(f"{self.name}.attribute_columns = {reserved[0]!r} is the name of something else; rename it")
        object.__setattr__(self, "attributes", dict.fromkeys(self.attribute_columns, ()))

    def find(self, folder: Path) -> Path:
        """Return the path of the file. Raises :class:`UserError` if there is none, or more than one."""
        root = self.root(folder)
        if root.is_file():
            raise UserError(f"{root}: 'path' is the folder of the data, and 'file' the name in it; set both")
        paths = sorted({path for pattern in self.files for path in root.glob(pattern) if path.name[0] != "."})
        if not paths:
            raise UserError(f"{root}: no {' or '.join(self.files)} here; put it there, or set 'path' or 'file'")
        if len(paths) > 1:
            raise UserError(f"{root}: {', '.join(path.name for path in paths)}; say which by the option 'file'")
        return paths[0]

    def assemble(self, path: Path, inputs: Inputs, train: Mask, columns: Mapping[str, pa.Array], note: str) -> Samples:
        """Return the samples. `columns` are labels and attributes by name; reports append `note` to the file name."""
        names, labels = name_classes(columns[self.label].to_pylist(), train, str(path), "sample")
        fields = {"attributes": {name: _attribute(columns[name]) for name in self.attribute_columns}}
        source = f"{path.name}{note}{duplicates_note(inputs, train, 'sample')}"
        return self.complete(inputs, labels, train, where=str(path), source=source, class_names=names, **fields)


@dataclass(frozen=True, kw_only=True)
class UserTable(UserArrays):
    """Base of the datasets whose samples are the rows of a CSV or Parquet file."""

    files = ("*.csv", "*.parquet")

    split: str | None = option(None, help="The column that says train or test of each row; null: all are for training.")

    @property
    def other_columns(self) -> list[str]:
        """The columns that are no input: labels, attributes and the split."""
        return [self.label, *self.attribute_columns, *filter(None, [self.split])]

    def read(self, path: Path, inputs: tuple[str, ...] = ()) -> pa.Table:
        """Return the table. Raises :class:`UserError` without rows, or without one column of each name that is used.

        The columns of the input are `inputs`; without them, any column can be one.
        """
        with reading(path, "mend it, or export it again"):
            table = _read_csv(path) if path.suffix == ".csv" else pq.read_table(path, partitioning=None)
        if not len(table):
            raise UserError(f"{path}: has no rows; put the complete data there")
        counts = Counter(table.column_names)
        for name in (*self.other_columns, *(inputs or counts)):
            if counts[name] != 1:
                raise UserError(f"{path}: needs one column {name!r}, has {', '.join(table.column_names[:20])}")
        return table

    def metadata(self, table: pa.Table, inputs: tuple[str, ...], path: Path) -> tuple[dict[str, pa.Array], Mask]:
        """Return the other columns and the mask of training rows. Raises :class:`UserError` for bad or null cells."""
        for name in (*self.other_columns, *inputs):
            if nulls := table[name].null_count:
                row = pc.index(pc.is_null(table[name]), True).as_py()
                problem = f"{nulls:,} of {len(table):,} rows lack {name!r}, the first is row {row}"
                raise UserError(f"{path}: {problem}; fill or drop them")
        columns = {name: _plain(table[name], name, path) for name in self.other_columns}
        if not self.split:
            return columns, np.ones(len(table), bool)
        sides = columns[self.split].to_pylist()
        for row, side in enumerate(sides):
            if side not in SPLITS:
                raise UserError(f"{path}: row {row}: {self.split!r} is {side!r}; it must be train or test")
        return columns, np.array([side == "train" for side in sides], bool)


@DATASETS.register
class ArrayTable(UserTable):
    """Your own table of numbers, in a CSV or Parquet file; no code needed.

    A sample is a row: features, sensor readings or an embedding. Its input is all `columns`, concatenated. A column has
    numbers, or lists of equal length, such as embeddings in Parquet. Without `columns`, the input is all columns with
    numbers and no other purpose, except an index that pandas wrote; columns of texts are left out, and the
    partition's page names them. Labels that are texts become classes in alphabetical order.
    """

    name = "array_table"

    columns: tuple[str, ...] = option((), help="The columns of the input; empty: all others with numbers.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_distinct(self, "columns", allow_empty=True)
        if leaked := [name for name in self.columns if name in (self.label, self.split)]:
            raise UserError(f"{self.name}.columns has {leaked[0]!r}, which is not for a model to see; leave it out")

    def load(self, folder: Path) -> Samples:
        path = self.find(folder)
        table = self.read(path, self.columns)
        selected, left_out = [*self.columns], list[str]()
        if not selected:
            for name in table.column_names:
                if _has_numbers(table[name].type) and name not in (*self.other_columns, *_INDEX, _UNNAMED):
                    selected.append(name)
                elif name not in (*self.other_columns, *_INDEX):
                    _check_text(table[name], name, path)
                    left_out.append(name)
        if not selected:
            others = ", ".join(self.other_columns)
            raise UserError(f"{path}: no column has numbers beside {others}; name the input's in 'columns'")
        columns, train = self.metadata(table, tuple(selected), path)
        inputs = np.concatenate([_numbers(table[name], name, path) for name in selected], axis=1)
        note = f" (without {', '.join(left_out)})" if left_out else ""
        return self.assemble(path, inputs, train, columns, note)


@DATASETS.register
class ArrayFile(UserArrays):
    """Your own arrays of any shape, in a NumPy file (.npz); no code needed.

    The first dimension of the inputs is the samples, and one to three dimensions follow. The first of these is the
    channels: signals are [n, channels, time]. With the default names, the file has ``x`` and ``label``, or ``x_train``,
    ``label_train``, ``x_test`` and ``label_test``. An attribute is an array like the labels.
    """

    name = "array_file"
    files = ("*.npz",)

    inputs: str = option("x", help="The name of the inputs in the file, or its beginning before _train and _test.")
    sample_shape: tuple[int, ...] = option(
        (), ge=1, help="The shape of one sample, for plans and generated samples; empty: as it is in the file."
    )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sample_shape or self.original

    def load(self, folder: Path) -> Samples:
        path = self.find(folder)
        with reading(path, "write it with numpy.savez, without objects"), np.load(path) as file:
            arrays = dict(file)
        names = (self.inputs, self.label, *self.attribute_columns)
        suffixes = ("_train", "_test") if f"{self.inputs}_train" in arrays else ("",)
        parts = [[name + suffix for name in names] for suffix in suffixes]
        if missing := [name for part in parts for name in part if name not in arrays]:
            raise UserError(f"{path}: has no {missing[0]!r}, but {', '.join(arrays)[:200]}; set the options of names")
        for inputs, *columns in parts:
            shape = arrays[inputs].shape
            if len(shape) not in (2, 3, 4) or 0 in shape or (self.sample_shape and shape[1:] != self.sample_shape):
                expected = self.sample_shape or "one to three dimensions"
                raise UserError(f"{path}: {inputs} is {shape}; it must be samples, each of {expected}")
            if arrays[inputs].dtype.kind not in "fiub":
                raise UserError(f"{path}: {inputs} is {arrays[inputs].dtype}; it must be numbers")
            for name in columns:
                array = arrays[name]
                if array.shape != shape[:1] or array.dtype.kind not in "iuU":
                    problem = f"is {array.dtype} {array.shape}; it must be {shape[0]} integers or texts"
                    raise UserError(f"{path}: {name} {problem}")
        if len({arrays[inputs].shape[1:] for inputs, *_ in parts}) > 1:
            raise UserError(f"{path}: the samples for training and test are of different shapes")
        values, *labels = (np.concatenate([arrays[name] for name in group]) for group in zip(*parts, strict=True))
        train = np.arange(len(values)) < len(arrays[parts[0][0]])
        by_name = {name: pa.array(column) for name, column in zip(names[1:], labels, strict=True)}
        return self.assemble(path, as_floats(values, str(path)), train, by_name, "")


def _read_csv(path: Path) -> pa.Table:
    """Return the table in a CSV file, blanks around the names of columns removed. Raises ``ValueError``."""
    with path.open("rb") as file:
        header = file.readline(1 << 20)
    if header.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError("it is UTF-16; save it as UTF-8")
    if b"," not in header and (b";" in header or b"\t" in header):
        raise ValueError("the cells are separated by semicolons or tabs; use commas, and decimal points")
    convert = pyarrow.csv.ConvertOptions(null_values=_MISSING, strings_can_be_null=True)
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    table = pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)
    if binary := [field.name for field in table.schema if pa.types.is_binary(field.type)]:
        raise ValueError(f"column {binary[0]!r} is not UTF-8; save it as UTF-8")
    return table.rename_columns([name.strip() for name in table.column_names])


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _has_numbers(kind: pa.DataType) -> bool:
    """Return whether a column has numbers, booleans, or lists of them."""
    single = kind.value_type if _is_list(kind) else kind
    checks = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean
    return any(check(single) for check in checks)


def _numbers(column: pa.ChunkedArray, name: str, path: Path) -> Inputs:
    """Return a column of numbers or lists as float32 [n, numbers per row]."""
    where = f"{path}: column {name!r}"
    if not _has_numbers(column.type):
        raise UserError(f"{where} is {column.type}, not numbers; leave it out of 'columns'")
    if not _is_list(column.type):
        return as_floats(column.to_numpy()[:, None], where)
    widths = pc.list_value_length(column).to_numpy()
    if not widths[0]:
        raise UserError(f"{where}: its lists are empty; name others in 'columns'")
    if (widths != widths[0]).any():
        row = int((widths != widths[0]).argmax())
        raise UserError(f"{where}: row {row} has {widths[row]} numbers, the first has {widths[0]}")
    values = pc.list_flatten(column)
    if values.null_count:
        row = int(pc.index(pc.is_null(values), True).as_py() // widths[0])
        raise UserError(f"{where}: row {row} lacks a number; fill it or drop the row")
    return as_floats(values.to_numpy().reshape(len(column), -1), where)


def _check_text(column: pa.ChunkedArray, name: str, path: Path) -> None:
    """Raise :class:`UserError` for a column of texts, about to be left out, of which more than half are numbers."""
    if column.type not in (pa.string(), pa.large_string()):
        return
    plain, foreign = (pc.match_substring_regex(column, pattern) for pattern in (_PLAIN, _FOREIGN))
    if (pc.sum(pc.or_(plain, foreign)).as_py() or 0) > len(column) / 2:
        row = max(0, pc.index(plain, False).as_py())
        problem = f"{name!r} is the text {column[row].as_py()!r}, and most rows have numbers"
        raise UserError(f"{path}: row {row}: {problem}; write 1234.5, or list 'columns'")


def _plain(column: pa.ChunkedArray, name: str, path: Path) -> pa.Array:
    """Return a column of integers or texts; booleans and categories become texts."""
    if pa.types.is_dictionary(column.type) or pa.types.is_boolean(column.type):
        column = column.cast(pa.string())
    if not (pa.types.is_integer(column.type) or column.type in (pa.string(), pa.large_string())):
        raise UserError(f"{path}: column {name!r} is {column.type}; it must be integers or texts")
    return column.combine_chunks()


def _attribute(column: pa.Array) -> Attribute:
    """Return a column as an attribute with sorted values: integers by size, texts alphabetically."""
    values = column.unique().sort()
    codes = pc.index_in(column, value_set=values)
    return Attribute(np.asarray(codes).astype(np.int64), tuple(map(str, values.to_pylist())))
