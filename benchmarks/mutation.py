"""Whether tests notice mistakes that Cosmic Ray's operators plant, one at a time, in a copy of the tree.

    python benchmarks/mutation.py                              # 20 mistakes in each module of mutation.yaml; a table
    python benchmarks/mutation.py --modules pflcore/engine --sample 5 --seed 3
    python benchmarks/mutation.py --modules pflcore/engine/loop.py --all

A sample is drawn by place: places in a module where something can be mutated, and for each one of its mutants. Each is
tested by what mutation.yaml names beside the module, up to the first test that fails. Not planted are, since
no test could or should notice:

- what is in an annotation, and what an error says;
- `is` for another comparison and the other way round, which are often the same;
- `frozen`, `kw_only`, `slots` and `strict` of dataclasses and of `zip`: they guard against other mistakes;
- what does not compile;
- those that mutation.yaml argues, line by line, to change nothing.

Exit code 1 if fewer than `--least` percent of all that were planted were noticed. Needs the extra `slow`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import gc
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator, Set
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

SOURCE = Path(__file__).parents[1]
PLAN = SOURCE / "benchmarks/mutation.yaml"
LEFT = (".*", "__pycache__", "build", "artifacts")
# What takes long to import and does not change is imported once for all; our own packages never are.
LIBRARIES = (
    "torch", "torch.func", "torch.utils.flop_counter", "timm", "numpy", "pandas", "pyarrow.parquet", "h5py", "pooch",
    "safetensors.torch", "scipy.stats", "sklearn.neighbors", "matplotlib.figure", "pydantic", "typer", "rich.console",
    "jinja2", "hypothesis", "pytest",
)  # fmt: skip
GUARDS = {"frozen", "kw_only", "slots", "strict"}

Place = tuple[int, int]  # line from 1, character from 0


@dataclass(frozen=True)
class Mutant:
    """One mistake: the module's text with it."""

    module: str
    text: str

    def lines(self) -> tuple[str, str]:
        """The lines that differ, before and after."""
        before = (SOURCE / self.module).read_text(encoding="utf-8").splitlines()
        changes = [line for line in difflib.ndiff(before, self.text.splitlines()) if line[:2] in ("- ", "+ ")]
        old, new = ([line[2:].strip() for line in changes if line[0] == sign] for sign in "-+")
        return " ".join(filter(None, old)), " ".join(filter(None, new))


def places(text: str) -> dict[Place, list[tuple[str, int]]]:
    """Where a module can be mutated, and how: operators, each with which of its occurrences it is."""
    spared = list(_spared(text))
    nodes = list(ast_nodes(get_ast(text)))
    found: dict[Place, list[tuple[str, int]]] = defaultdict(list)
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments() or name.count("Is") == 1:  # needs names of variables; `is` for `==`, or `==` for `is`
            continue
        begins = (begin for node in nodes for begin, _ in operator().mutation_positions(node))
        for index, place in enumerate(begins):
            if not any(begin <= place < end for begin, end in spared):
                found[place].append((name, index))
    return dict(sorted(found.items()))


def mutants(
    module: str, most: int | None, draw: random.Random, argued: Set[tuple[str, str, str | None]]
) -> tuple[int, list[Mutant]]:
    """How many places a module has, and what is planted: all there is, or one at each of at most so many places."""
    text = (SOURCE / module).read_text(encoding="utf-8")
    found, made = places(text), list[Mutant]()
    for place in draw.sample(list(found), len(found)):
        for name, index in draw.sample(found[place], len(found[place])):
            one = Mutant(module, mutate_code(text, get_operator(name)(), index) or text)
            line, becomes = one.lines()
            if {(module, line, becomes), (module, line, None)} & argued:
                continue
            if one.text != text and _compiles(one.text):
                made.append(one)
                if most is not None:
                    break
        if len(made) == most:
            break
    return len(found), made


def _spared(text: str) -> Iterator[tuple[Place, Place]]:
    """Where nothing is planted."""
    rows = text.splitlines()

    def place(line: int, byte: int) -> Place:
        return line, len(rows[line - 1].encode()[:byte].decode())

    for node in ast.walk(ast.parse(text)):
        inner: list[ast.AST | None] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.Raise):
            inner.append(node.exc)
        if isinstance(node, ast.keyword) and node.arg in GUARDS:
            inner.append(node)
        for one in inner:
            if isinstance(one, ast.expr | ast.keyword):
                end = one.end_lineno or one.lineno, one.end_col_offset or 0
                yield place(one.lineno, one.col_offset), place(*end)


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except (SyntaxError, SyntaxWarning):
        return False
    return True


@functools.cache
def tree(folder: Path, process: int) -> Path:
    """This process's copy of the tree."""
    made = folder / str(process)
    shutil.copytree(SOURCE, made, ignore=shutil.ignore_patterns(*LEFT))
    return made


def ends(root: Path, tests: list[str], limit: float) -> tuple[str, float]:
    """How tests end in a tree: `passed`, `failed` or `too long`; and seconds."""
    began = time.monotonic()
    child = os.fork()
    if not child:
        _test(root, tests)
    while time.monotonic() - began < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.02)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # the child, and what it has left behind
    if not done:
        os.waitpid(child, 0)
        return "too long", time.monotonic() - began
    return "failed" if status else "passed", time.monotonic() - began


def _test(root: Path, tests: list[str]) -> None:
    """Carry tests out in this forked process, which ends with them."""
    code = 3
    try:
        os.setsid()
        said = os.open(root.with_suffix(".txt"), os.O_CREAT | os.O_TRUNC | os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(said, stream)
        os.chdir(root)
        os.environ |= {"HOME": str(root), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PFL_WORKERS": "1"}
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none is needed, and they take seconds
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        sys.path[0] = str(root)
        import pytest

        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", f"--rootdir={root}", *tests]))
        where = getattr(sys.modules.get("pflcore"), "__file__", None) or str(root)
        code = code if where.startswith(str(root)) else 9  # else nothing of the copy was tested
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def tried(job: tuple[Path, Mutant, list[str], float]) -> tuple[Mutant, str, float]:
    """Plant one, and how tests of it end."""
    folder, mutant, tests, limit = job
    root = tree(folder, os.getpid())
    path = root / mutant.module
    original = path.read_text(encoding="utf-8")
    _write(path, mutant.text)
    try:
        return mutant, *ends(root, tests, limit)
    finally:
        _write(path, original)


def _write(path: Path, text: str) -> None:
    """Write a module, and forget what was compiled: Python goes by time and size, which may be the same."""
    path.write_text(text, encoding="utf-8")
    for made in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        made.unlink()


def usual(job: tuple[Path, list[str]]) -> float:
    """Seconds that tests take where nothing is planted."""
    folder, tests = job
    end, seconds = ends(tree(folder, os.getpid()), tests, 600)
    if end != "passed":
        said = tree(folder, os.getpid()).with_suffix(".txt").read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"where nothing is planted, these tests {end}: {' '.join(tests)}\n{said[-3000:]}")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="*", default=[""], help="beginnings of the paths of those to mutate")
    parser.add_argument("--sample", type=int, default=20, help="most mutants of a module")
    parser.add_argument("--all", action="store_true", help="all mutants at all places")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--plan", type=Path, default=PLAN, help="which tests are to notice; mutation.yaml")
    parser.add_argument("--least", type=float, default=0.0, help="percent to be noticed")
    given = parser.parse_args()
    plan = yaml.safe_load(given.plan.read_text(encoding="utf-8"))
    argued = {(one["module"], one["line"], one.get("becomes")) for one in plan["argued"]}
    modules = [name for name in plan["modules"] if name.startswith(tuple(given.modules))]
    for name in LIBRARIES:
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    gc.freeze()  # else its pages are copied in every fork
    total, noticed, usually = 0, 0, dict[tuple[str, ...], float]()
    print("| module | places | mutants | failed | too long | survived | score | seconds | each |\n|---|" + "---:|" * 8)
    with (
        tempfile.TemporaryDirectory(prefix="mutation") as folder,
        ProcessPoolExecutor(given.jobs, multiprocessing.get_context("fork")) as pool,  # not daemons: tests have workers
    ):
        for module in modules:
            tests = plan["modules"][module]
            draw = random.Random(f"{given.seed} {module}")
            found, chosen = mutants(module, None if given.all else given.sample, draw, argued)
            if (key := tuple(tests)) not in usually:
                usually[key] = pool.submit(usual, (Path(folder), tests)).result()
            whole = usually[key]
            limit = max(30.0, 5 * whole)
            jobs = [(Path(folder), one, tests, limit) for one in chosen]
            done = list(pool.map(tried, jobs))
            counts = [sum(end == kind for _, end, _ in done) for kind in ("failed", "too long", "passed")]
            total, noticed = total + len(done), noticed + counts[0] + counts[1]
            each = sum(seconds for *_, seconds in done) / max(len(done), 1)
            cells = [module, found, len(done), *counts, _percent(sum(counts[:2]), len(done))]
            cells += [f"{whole:.0f}", f"{each:.0f}"]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            for mutant, end, _ in done:
                if end == "passed":
                    print("  survived: {}\n   becomes: {}".format(*mutant.lines()), flush=True)
    print(f"\n{noticed} of {total} noticed ({_percent(noticed, total)})")
    return 100 * noticed < given.least * total


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


if __name__ == "__main__":
    sys.exit(main())
