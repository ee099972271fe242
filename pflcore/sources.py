"""The source of each imported module as it was read, which may differ from the file on disk later.

Files are edited while a long run trains. The project's packages are therefore imported by a loader that remembers the
source and uses bytecode only if it was compiled from exactly these bytes.
"""

import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any
from zlib import crc32

_contents: dict[str, bytes] = {}
_paths: dict[str, str] = {}
_packages: set[str] = set()


def note(package: str) -> None:
    """Remember the sources of a package from now on. The package calls this function before its other imports."""
    _packages.add(package)
    for name, module in list(sys.modules.items()):  # modules of the package that are already imported
        if name.partition(".")[0] == package and name not in _contents and getattr(module, "__file__", None):
            _remember(name, str(module.__file__))
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def loaded() -> Mapping[str, bytes]:
    """Return the content of each module, and of each file passed to :func:`read`, as this process read it."""
    return _contents


def read(path: Path) -> str:
    """Read a text file that belongs to the code, such as a template, and remember it like a module's source."""
    return _remember(path.relative_to(Path(__file__).parent.parent).as_posix(), str(path)).decode()


def edited(package: str = "") -> str | None:
    """Return one remembered module or file that has changed on disk since it was read; None if there is none."""
    for name, path in _paths.items():
        if package in ("", name.partition(".")[0]):
            try:
                if Path(path).read_bytes() != _contents[name]:
                    return name
            except OSError:
                return name
    return None


def forget(package: str) -> None:
    """Forget the sources of a package, so that its modules can be imported again."""
    for name in [name for name in _contents if name.partition(".")[0] == package]:
        del _contents[name], _paths[name]


def _remember(name: str, path: str) -> bytes:
    _contents[name], _paths[name] = Path(path).read_bytes(), path
    return _contents[name]


class _Finder(MetaPathFinder):
    """Finds modules by the other finders, and gives them a loader that remembers sources."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in _packages:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)):
                if type(spec.loader) is SourceFileLoader:
                    spec.loader = _Loader(spec.loader.name, spec.loader.path)
                return spec
        return None


class _Loader(SourceFileLoader):
    """Remembers sources that it reads; bytecode has the source's checksum in place of its modification time."""

    def path_stats(self, path: str) -> Mapping[str, int]:
        source = _remember(self.name, path)
        return {"mtime": crc32(source), "size": len(source)}

    def get_data(self, path: str) -> bytes:
        return _contents[self.name] if path == self.path else super().get_data(path)
