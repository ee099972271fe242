"""What this process has imported, as it was read: the source of each module, whatever lies on disk by now.

A long run outlives many edits. To know which code has computed a result, it is not enough to look at files when it is
done, nor when it begins: a module may have been imported before, be imported later, or come from bytecode that Python
takes for its own because size and second of two edits are the same. So packages of the project are imported by a loader
that reads the source, remembers it, and takes bytecode only if that was made from these very bytes (PEP 552).
"""

from __future__ import annotations

import hashlib
import marshal
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from types import CodeType, ModuleType

from pflcore.errors import UserError

_CHECKED = MAGIC_NUMBER + (0b11).to_bytes(4, "little")  # bytecode that names the hash of its source
_contents: dict[str, bytes] = {}
_paths: dict[str, str] = {}
_packages: set[str] = set()


def note(package: str) -> None:
    """Remember the sources of a package from now on. To be called by the package itself, first of all."""
    _packages.add(package)
    for name, module in list(sys.modules.items()):  # this one, and what came before it
        if name.partition(".")[0] == package and name not in _contents and getattr(module, "__file__", None):
            _paths[name] = str(module.__file__)
            _contents[name] = Path(_paths[name]).read_bytes()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def loaded() -> Mapping[str, bytes]:
    """Module, or file that :func:`read` was given → its content as this process has it."""
    return _contents


def read(path: Path) -> str:
    """A text file that belongs to the code, such as a template; what was read is remembered like a module's source."""
    content, name = path.read_bytes(), path.relative_to(Path(__file__).parent.parent).as_posix()
    _contents[name], _paths[name] = content, str(path)
    return content.decode()


def edited(package: str | None = None) -> str | None:
    """A module, or file that :func:`read` was given, that does not lie on disk any more as it was read.

    Args:
        package: Where to look; None looks everywhere.
    """
    for name, path in _paths.items():
        if package and name.partition(".")[0] != package:
            continue
        try:
            if Path(path).read_bytes() != _contents[name]:
                return name
        except OSError:
            return name
    return None


def forget(package: str) -> None:
    """Whatever is remembered of a package, as its modules are to be imported anew."""
    for name in [name for name in _contents if name.partition(".")[0] == package]:
        del _contents[name], _paths[name]


def digests() -> dict[str, bytes]:
    """Module → digest of its source, to be compared by :func:`agree` in another process."""
    return {name: hashlib.sha256(source).digest() for name, source in _contents.items()}


def agree(others: Mapping[str, bytes]) -> None:
    """Make sure that this process has the same code as one that it works for.

    Args:
        others: The :func:`digests` there.

    Raises:
        UserError: A module that both have imported was edited in between.
    """
    for name, theirs in others.items():
        if name in _contents and hashlib.sha256(_contents[name]).digest() != theirs:
            raise UserError(f"{name} was edited while processes that work together were started; start again")


class _Finder(MetaPathFinder):
    """Finds modules where the other finders do, and gives them a loader that remembers."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in _packages:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(fullname, path, target)
            if found:
                if type(found.loader) is SourceFileLoader:
                    found.loader = _Loader(found.loader.name, found.loader.path)
                return found
        return None


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = _contents[fullname] = self.get_data(path)
        _paths[fullname] = path
        begin = _CHECKED + source_hash(source)
        bytecode = cache_from_source(path)
        try:
            cached = self.get_data(bytecode)
            code = marshal.loads(cached[len(begin) :]) if cached.startswith(begin) else None
        except (OSError, EOFError, ValueError, TypeError):
            code = None
        if isinstance(code, CodeType) and code.co_filename == path:  # else it was compiled in another place
            return code
        made: CodeType = self.source_to_code(source, path)
        if not sys.dont_write_bytecode:
            self.set_data(bytecode, begin + marshal.dumps(made))  # does nothing where that is not possible
        return made
