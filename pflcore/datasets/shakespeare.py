"""Shakespeare: the next character in a role's speech, from the complete works, LEAF's shards or a text of speeches."""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pflcore.data.preparation import allocate, track
from pflcore.data.samples import SPLITS, Attribute, Bytes, Samples
from pflcore.datasets import DATASETS
from pflcore.datasets._base import Dataset, check_file_name
from pflcore.datasets._download import DataFile, Source
from pflcore.datasets._files import open_files, read_file, reading
from pflcore.errors import UserError
from pflcore.files import read_file as read_large
from pflcore.options import option
from pflcore.seeds import generator

ARCHIVE, TEXT = "1994-01-100.zip", "100.txt"
TINY = Source(
    "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
    "/data/tinyshakespeare/input.txt",
    "sha256",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
# The edition that LEAF and FedTP used; no hash is published.
_WORKS = Source(f"https://www.gutenberg.org/files/100/old/old/{ARCHIVE}")
_LEAF = "https://github.com/TalwalkarLab/leaf"
LEAF_LENGTH = 80  # characters of a text in LEAF's shards
MAX_SHARD_BYTES = 2**30

Windows = tuple[Bytes, Bytes]
"""Training and test samples of one role, both uint8 [n, chunk_len + 1]."""


@DATASETS.register
class Shakespeare(Dataset):
    """Shakespeare's plays by speaking role; the task is to predict the next of 100 characters.

    A sample is a window of `chunk_len` characters and the next one; its role, in one play, is the attribute ``role``.
    The default is the complete works of 1994, without a published hash, by the preprocessing that FedTP took from
    knn-per: a role's last ``max(1, int((1 - train_share) * lines))`` lines are for testing; of ten lines this is one,
    because ``1 - 0.8`` is a little less than 0.2. LEAF counts 1,129 roles and FedTP 683 clients, without saying which;
    about 60 % of the roles (`role_share`) would explain it.
    """

    citation = "Complete Works (Project Gutenberg 100); Caldas et al., LEAF: A Benchmark for Federated Settings, 2018"
    licence = "public domain; the 1994 edition: personal use and free distribution only"
    download_size = "5.5 MB; tiny Shakespeare: 1.1 MB"
    homepage = "https://www.gutenberg.org/ebooks/100"
    original = (80,)
    class_names = tuple(string.printable)  # in the order of the characters' numbers
    estimated_counts = (2_062_679, 515_670)  # FedTP counts 2,578,349 and splits them 80/20
    attributes: ClassVar[dict[str, tuple[str, ...]]] = {"role": ()}
    files = (ARCHIVE, TEXT, "train/*.json", TINY.name)
    smoke: ClassVar[dict[str, Any]] = {"chunk_len": 5}
    results_version = 2  # a test_share and a validation_share are the last part of a text

    source: str = option(
        "gutenberg", choices=("gutenberg", "leaf", "speakers"), help="Complete works, LEAF's shards, or NAME: speeches."
    )
    file: str = option(TINY.name, help="What `speakers` reads; by default tiny Shakespeare, which is downloaded.")
    chunk_len: int = option(80, ge=1, le=1000, help="Characters that a model reads; 5 in FedTP's code.")
    train_share: float = option(0.8, help="Share of a role's lines, from the first on, that train.", gt=0, lt=1)
    min_lines: int = option(3, help="Roles with fewer lines are dropped.", ge=2)
    role_share: float = option(1.0, help="Share of the roles that is drawn and kept.", gt=0, le=1)
    role_seed: int = option(0, help="Another seed draws other roles; without effect when all are kept.", ge=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_file_name(self, "file", "a file in the dataset's folder")
        if self.source == "leaf" and self.chunk_len > LEAF_LENGTH:
            limit = f"must be at most {LEAF_LENGTH} with source = 'leaf'"
            raise UserError(f"{self.name}.chunk_len = {self.chunk_len} {limit}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.chunk_len,)

    def data_files(self, folder: Path) -> list[DataFile]:
        if self.source == "gutenberg":
            return [DataFile("complete works", folder, (ARCHIVE, TEXT), _WORKS, "5.5 MB unpacked")]
        if self.source == "leaf":
            return [DataFile("LEAF's shards", folder, ("train/*.json",), Source(_LEAF, file="train, test"))]
        if self.file == TINY.name:
            return [DataFile("speeches", folder, (TINY.name,), TINY, "1.1 MB", automatic=True)]
        return [DataFile("speeches", folder, (self.file,))]

    def load(self, folder: Path) -> Samples:
        if self.source == "leaf":
            return self._leaf(folder)
        if self.source == "speakers":
            path = folder / self.file
            if self.file == TINY.name:
                path = TINY.obtain(folder, "any other text of speeches, and name it by the option file")
            elif not path.is_file():
                raise UserError(f"{path}: no such file; put it there, or name another by the option file")
            lines = read_speakers(read_text(read_file(path), str(path)), str(path))
            return self.from_lines(lines, str(path), path.name)
        path = folder / TEXT
        if (folder / ARCHIVE).is_file() or not path.is_file():
            with open_files(_WORKS.obtain(folder, f"its {TEXT}")) as files:
                name = next((name for name in files.readers if name.lower().endswith(".txt")), TEXT)
                where, read = files.reader(name)
                source, data = f"{ARCHIVE}/{name}", read()
        else:
            where, source, data = str(path), TEXT, read_file(path)
        return self.from_lines(read_plays(read_text(data, where), where), where, source)

    def from_lines(self, lines: Mapping[str, Sequence[str]], where: str, source: str) -> Samples:
        """Return the samples of the roles' lines, which consist of the characters in :attr:`class_names`."""
        windows = {}
        for name in self._draw([name for name, role_lines in lines.items() if len(role_lines) >= self.min_lines]):
            role_lines = [re.sub("  +", " ", line) for line in lines[name]]
            cut = len(role_lines) - max(1, int((1 - self.train_share) * len(role_lines)))
            windows[name] = self._slide(" ".join(role_lines[:cut])), self._slide(" ".join(role_lines[cut:]))
        return self._from_windows(windows, where, source)

    def _draw(self, names: Sequence[str]) -> list[str]:
        """Return the drawn roles in the given order. As in released code, roles without samples are dropped later."""
        order = generator(self.role_seed, f"{self.name} roles").permutation(len(names))
        return [names[index] for index in sorted(order[: max(1, int(self.role_share * len(names)))])]

    def _slide(self, text: str) -> Bytes:
        """Return all windows of a text, as views of its characters that take no further memory."""
        width = self.chunk_len + 1
        windows: Bytes = np.empty((0, width), np.uint8)
        return sliding_window_view(encode_text(text), width) if len(text) >= width else windows

    def _from_windows(self, windows: Mapping[str, Windows], where: str, source: str) -> Samples:
        """Return the samples in the order of the roles, a role's training samples before its test samples."""
        # Without training or test samples nothing could be learned or measured.
        roles = {name: pair for name, pair in windows.items() if all(map(len, pair))}
        if not roles:
            problem = f"has training and test text of more than {self.chunk_len} characters"
            advice = "use a smaller chunk_len, a larger role_share or a longer text"
            raise UserError(f"{where}: none of {len(windows)} roles of {self.min_lines} lines {problem}; {advice}")
        parts = [part for pair in roles.values() for part in pair]
        sizes = [len(part) for part in parts]
        inputs = allocate((sum(sizes), self.chunk_len + 1))
        advance = track("cutting text into samples", sum(sizes))
        stop = 0
        for part in parts:
            start, stop = stop, stop + len(part)
            inputs[start:stop] = part
            advance(len(part))
        role, test = np.divmod(np.arange(len(parts)), 2)
        labels = inputs[:, -1].astype(np.int64)
        train = np.repeat(test == 0, sizes)
        attributes = {"role": Attribute(np.repeat(role, sizes), tuple(roles))}
        return self.complete(inputs, labels, train, where=where, source=source, attributes=attributes)

    def _leaf(self, folder: Path) -> Samples:
        parts = [read_shards(sorted(folder.glob(f"{split}/*.json")), self.chunk_len) for split in SPLITS]
        if not all(parts):
            advice = f"make LEAF's shakespeare with {_LEAF} and put both there"
            raise UserError(f"{folder}: no users in train/*.json and test/*.json; {advice}")
        train, test = parts
        empty = self._slide("")
        windows = {name: (train.get(name, empty), test.get(name, empty)) for name in self._draw([*(train | test)])}
        return self._from_windows(windows, str(folder), "LEAF train/*.json and test/*.json")


_PRINTABLE = frozenset(string.printable)
UNKNOWN = 255  # the number of a character that is not printable ASCII; no sample contains it
_CODES = np.full(129, UNKNOWN, np.uint8)
_CODES[[ord(character) for character in string.printable]] = np.arange(100)
# Replacements that Unicode's decompositions do not provide.
_REPLACEMENTS = dict.fromkeys("‘’‚‛′", "'") | dict.fromkeys("“”„«»″", '"') | dict.fromkeys("‐‑‒–−", "-")
_REPLACEMENTS |= {"—": "--", "―": "--", "Æ": "AE", "æ": "ae", "Œ": "OE", "œ": "oe", "Ø": "O", "ø": "o", "ß": "ss"}


def read_text(data: bytes, where: str) -> str:
    """Return a text file's content, reduced to the 100 printable ASCII characters.

    Typographic quotes and dashes, ligatures and accented letters become their nearest ASCII counterparts, as in the
    editions that papers used. Other characters are left out; more than one in 1,000 raises :class:`UserError`.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    counts = Counter(text)
    table = {character: _to_ascii(character) for character in counts.keys() - _PRINTABLE}
    unknown = Counter({character: counts[character] for character, plain in table.items() if plain is None})
    if unknown.total() * 1000 > len(text):  # probably another alphabet
        frequent = max(unknown, key=lambda character: (unknown[character], character))
        share = f"{unknown.total():,} of {len(text):,} characters, most often {frequent!r},"
        problem = f"{share} are outside of the 100 printable ASCII characters"
        raise UserError(f"{where}: {problem}; use English plain text")
    return text.translate({ord(character): plain for character, plain in table.items()})


def _to_ascii(character: str) -> str | None:
    """Return a character's counterpart in printable ASCII; "" for an invisible mark, None if there is none."""
    if character in _REPLACEMENTS:
        return _REPLACEMENTS[character]
    if character.isspace():
        return " "
    if unicodedata.category(character) in ("Mn", "Cf"):
        return ""
    return "".join(part for part in unicodedata.normalize("NFKD", character) if part in _PRINTABLE) or None


def encode_text(text: str) -> Bytes:
    """Return the indices of characters in ``string.printable``, :data:`UNKNOWN` for others: uint8 [n]."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    codes: Bytes = _CODES[np.minimum(points, len(_CODES) - 1)]
    return codes


_AUTHOR = "by William Shakespeare"
_END = re.compile(r"End of this Etext|(?:\*\*\* ?)?END OF (?:THE |THIS )?PROJECT GUTENBERG", re.IGNORECASE)
# The first line of a speech is indented by two spaces, the next ones by four. One play is not indented; there, all that
# follows a role's name counts as its lines.
_INDENTED = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"    (.*)")
_FLAT = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"(.*)")


def read_plays(text: str, where: str) -> dict[str, list[str]]:
    """Return the lines of every role of every play in the complete works of 1994, by ``PLAY_ROLE``.

    The rules are those of LEAF's and knn-per's preprocessing, including its errors: stage directions that are indented
    like speech count as speech, as does nearly everything in The Comedy of Errors.
    """
    lines = text.splitlines()
    # The first work, the sonnets, is left out. The first line of the file may also name the author.
    authors = [index for index, line in enumerate(lines) if index and _AUTHOR in line]
    starts = authors[1:] or authors
    end = next((n for n in range(starts[0], len(lines)) if _END.search(lines[n])), len(lines)) if starts else 0
    roles: dict[str, list[str]] = {}
    for start, stop in pairwise([*starts, end]):
        # The line just above the author's is ignored, as in the released code.
        above = [lines[n].strip() for n in range(start - 2, max(start - 8, -1), -1)]
        title = next(filter(None, above), "")
        cast = _read_cast(lines[start + 1 : stop], title == "THE COMEDY OF ERRORS")
        if len(cast) < 2:
            continue
        for role, role_lines in cast.items():
            # A comma and a space become two underscores, as in the released names.
            roles.setdefault(re.sub(r"\W+", "_", f"{title}_{role}".replace(" ", "_")), []).extend(role_lines)
    if not roles:
        advice = "use the edition of 1994 of Project Gutenberg's ebook 100"
        raise UserError(f"{where}: no plays with indented speeches found; {advice}")
    return roles


def _read_cast(lines: Sequence[str], flat: bool) -> dict[str, list[str]]:
    first_line, next_line = _FLAT if flat else _INDENTED
    cast: dict[str, list[str]] = {}
    current = None
    for line in lines:
        if match := first_line.match(line):
            current = match[1].upper()  # the case of names varies within a play
            if flat and current.startswith("ACT "):
                current = None
            else:
                cast.setdefault(current, []).append(match[2])
        elif current is not None and (match := next_line.match(line)):
            if flat and match[1].startswith("<"):
                current = None
            else:
                cast[current].append(match[1])
    return cast


def read_speakers(text: str, where: str) -> dict[str, list[str]]:
    """Return the lines of each speaker in a text of speeches: each is a line ``NAME:``, lines of text, a blank line."""
    roles: dict[str, list[str]] = {}
    current = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            current = None
        elif current is None:
            current, colon, rest = line.strip().rpartition(":")
            if not current or not colon or rest:
                problem = f"expected a speaker's NAME: after a blank line, found {line.strip()[:40]!r}"
                raise UserError(f"{where}: line {number}: {problem}")
            roles.setdefault(current, [])
        else:
            roles[current].append(line)
    return roles


def read_shards(paths: Sequence[Path], length: int) -> dict[str, Bytes]:
    """Return the samples of each user in LEAF's shards, the last `length` + 1 characters: uint8 [n, length + 1]."""
    samples: dict[str, Bytes] = {}
    for path in paths:
        with reading(path, "use shards made by LEAF's preprocessing of shakespeare"):
            shard = json.loads(read_large(path, MAX_SHARD_BYTES))
            for name, count in zip(shard["users"], shard["num_samples"], strict=True):
                texts, targets = (shard["user_data"][name][key] for key in "xy")
                rows = encode_text("".join(text + target for text, target in zip(texts, targets, strict=True)))
                valid = {*map(len, texts)} <= {LEAF_LENGTH} and {*map(len, targets)} <= {1} and (rows != UNKNOWN).all()
                if len(texts) != count or not valid:
                    expected = f"{count} texts of {LEAF_LENGTH} printable ASCII characters, and one more each"
                    raise ValueError(f"user {name!r} must have {expected}")
                if name in samples:
                    raise ValueError(f"user {name!r} is there already")
                # Copied, because a view would keep all characters in memory.
                samples[str(name)] = rows.reshape(-1, LEAF_LENGTH + 1)[:, -length - 1 :].copy()
    return samples
