"""What a ``pfl run`` was asked for, and what that compiles to."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from pflcore.errors import UserError
from pipeline.compile.compiler import Compilation, compile_workspace
from pipeline.spec.selection import add, read_selection
from pipeline.spec.specs import find_specs
from pipeline.workspace import PAPER, Workspace


@dataclass(frozen=True)
class Wish:
    """What `pfl run` was asked for.

    Attributes:
        specs: Their names; empty for the default ones.
        everything: All specs instead.
        jobs: Stages at a time; None for as many as there is room for.
        gpus: ``0,1``, or None for those that are visible.
        per_gpu: Stages at a time on each of them.
        keep_going: After a failure, start what does not depend on it.
        dry: Only say what there is to do.
        cluster: The address of a Ray cluster that does the work.
    """

    specs: tuple[str, ...] = ()
    everything: bool = False
    jobs: int | None = None
    gpus: str | None = None
    per_gpu: int = 1
    keep_going: bool = True
    dry: bool = False
    cluster: str | None = None


@dataclass(frozen=True)
class Request:
    """A wish in a workspace, compiled.

    Attributes:
        specs: Those whose reports are wanted.
        compilation: They, and whatever else has been selected in the workspace.
    """

    workspace: Workspace
    wish: Wish
    specs: list[str]
    compilation: Compilation

    @classmethod
    def compiled(cls, workspace: Workspace, wish: Wish) -> Request:
        """Compile a wish. Writes nothing but which specs are selected here from now on.

        Raises:
            UserError: A spec is invalid, or only to be extended, or there is none; or the engine was edited and not
                probed.
        """
        known = list(find_specs(workspace.specs))
        selection = read_selection(workspace, known)
        wanted = list(wish.specs) or (known if wish.everything else selection.default)
        if not wanted:
            raise UserError("nothing to run: there are no specs")
        selected = selection.compiled if workspace.root == workspace.home else []
        compilation = compile_workspace(workspace, sorted({*selected, *wanted}), wanted=wanted)
        compilation.check_probed()
        specs = [name for name in wanted if name in compilation.tables]
        if not specs:
            raise UserError(f"specs/{wanted[0]}.yaml: abstract; run a spec that extends it")
        new = [name for name in specs if name not in selected]
        if new and workspace.root == workspace.home:
            if wish.dry:
                line = f"DVC does not see the stages of {new[0]} yet; ask `pfl plan`, or `pfl add {new[0]}` first"
                raise UserError(line)
            add(workspace, new)
        for problem in compilation.skipped.values():
            print(f"pfl: left alone: {problem}", file=sys.stderr)
        return cls(workspace, wish, specs, compilation)

    @property
    def command(self) -> str:
        """What asks for the same again."""
        wish, profile = self.wish, self.workspace.profile
        options = {
            "--profile": None if profile == PAPER else profile,
            "-j": wish.jobs,
            "--gpus": wish.gpus,
            "--per-gpu": None if wish.per_gpu == 1 else wish.per_gpu,
            "--cluster": wish.cluster,
        }
        words = ["pfl run", *wish.specs, *(["--all"] if wish.everything else [])]
        words += [f"{option} {value}" for option, value in options.items() if value is not None]
        return " ".join(words + ([] if wish.keep_going else ["--fail-fast"]))
