"""Damaged copies of real files, and what everything that reads must do with them: read, or refuse in one line."""

from __future__ import annotations

import random
import resource
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pflcore.errors import UserError

# What parsers stumble over: ends of structures, numbers that are none, dates that are none, depth, aliases, tags.
_WORDS = [
    b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\n\n", b"\t", b"'", b'"', b"{", b"}", b"]", b": ", b"- ", b", ", b"#",
    b"nan", b"NaN", b"Infinity", b"1e999", b"-1", b"0", b"99999999999999999999", b"null", b"~", b"true", b"[]", b"{}",
    b"2023-99-99", b"2023-02-30 25:61:61", b"0x", b"1_0", b"[" * 3000, b"{a: " * 300, b"&a [*a]", b"*b", b"<<: *b",
    b"!!python/object:os.system x", b"!!binary x", b"!!set x", b"%YAML 9.9", b"---\n", b"...\n", b"../../..",
    b"A" * 5000,
]  # fmt: skip

_ROOM = 512 << 20  # bytes: pictures may be as large as Pillow allows, 90 million pixels of four bytes


@dataclass
class Damage:
    """Copies of a file with up to four faults each; the same of a seed."""

    content: bytes
    random: random.Random

    def copy(self) -> bytes:
        """One of them."""
        content = bytearray(self.content)
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randint(0, len(content))
            length = min(self.random.choice((1, 1, 2, 8, 64, len(content))), len(content) - at)
            kind = self.random.randrange(6)
            if kind == 0 and at < len(content):
                content[at] ^= 1 << self.random.randrange(8)
            elif kind == 1:
                del content[at : at + length]
            elif kind == 2:
                content[at:at] = content[at : at + length]
            elif kind == 3:
                content[at : at + length] = self.random.randbytes(min(length, 64))
            else:  # in the place of a word, or beside it
                end = at + (length if kind == 4 else 0)
                content[at:end] = self.random.choice(_WORDS)
        return bytes(content)


def fuzz(path: Path, read: Callable[[Path], object], *, copies: int, seed: int, seal: Seal | None = None) -> int:
    """Read damaged copies of a file in its place; returns how many of them were refused.

    Args:
        seal: Makes what protects the content fit it, a digest in it or its name, so that the reader has to read.

    Raises:
        AssertionError: Something else than :class:`UserError` was raised, or with more words than a person reads; or
            reading took more memory than any of these small files has a use for.
    """
    original = path.read_bytes()
    damage = Damage(original, random.Random(seed))
    refused = 0
    before = _peak()
    try:
        for number in range(copies):
            content = damage.copy()
            target = path
            path.unlink(missing_ok=True)
            if seal:
                target, content = seal(path, content)
            target.write_bytes(content)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    read(target)
            except UserError as error:
                refused += 1
                assert len(str(error)) < 2000, f"copy {number}: {len(str(error)):,} characters: {str(error)[:200]} …"
            except Exception as error:
                kept = path.with_name(f"fuzzed-{path.name}")
                kept.write_bytes(content)
                raise AssertionError(
                    f"copy {number} of seed {seed}, {kept}: {type(error).__name__}: {error}"
                ) from error
            finally:
                target.unlink(missing_ok=True)
    finally:
        path.write_bytes(original)
    assert _peak() - before < _ROOM, f"seed {seed}: reading took {(_peak() - before) >> 20:,} MiB"
    return refused


def _peak() -> int:
    """The most memory that this process has had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


Seal = Callable[[Path, bytes], tuple[Path, bytes]]
